"""The native kernel of `neighbors.nearest` against float64: every form, every library, hard cases.

The kernel compiles nothing, so each test takes many shapes.
"""

import copy
import ctypes
import gc
import itertools
import pickle
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rknn_jax import neighbors
from rknn_jax.kernels import native
from rknn_jax.kernels.native import nearest
from rknn_jax.mechanisms import _distributed
from tests.test_neighbors import HARD, NEAREST, adversarial, hard, sq_distances64

FOLDER = Path(native.__file__).parent
SHAPES = [  # n, s, f, k: one more and one less than registers, lanes and panels hold
    (1, 1, 1, 1),
    (7, 2, 3, 2),
    (8, 15, 4, 3),
    (9, 16, 5, 16),
    (17, 17, 15, 4),
    (16, 33, 16, 10),
    (9, 48, 17, 1),
    (5, 49, 31, 49),
    (30, 70, 33, 5),
    (3, 1100, 70, 40),
    (270, 1700, 3, 2),
    (270, 700, 600, 1),
    (9, 2048, 9, 1),
    (9, 2049, 9, 1),
    (9, 4096, 9, 1),
    (9, 4097, 9, 1),
]


def libraries() -> list[str]:
    """The libraries that were compiled and run on this processor."""
    found = []
    for name in native.PROCESSORS:
        path = FOLDER / f"{name}.so"
        if path.exists() and ctypes.CDLL(str(path)).rknn_supported():
            found.append(name)
    return found


pytestmark = pytest.mark.skipif(not libraries(), reason="no C++ compiler made a library")


@pytest.fixture(params=libraries(), autouse=True)
def processor(request, monkeypatch):
    """Every library of this processor stands for the best one."""
    loaded = ctypes.CDLL(str(FOLDER / f"{request.param}.so"))
    monkeypatch.setattr(native, "load", lambda: loaded)
    return request.param


def found(points, references, k, form):
    """Points are repeated, because few of them are solved by differences alone."""
    repeated = np.concatenate([points] * -(-20 // max(1, len(points))))
    return nearest.References(references, k, form).nearest(repeated)[: len(points)]


def order64(points, references, k):
    distances = sq_distances64(points, references)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def unit_vectors():
    """Four hundred, which float32 finds equally far from 0, and others twice as long."""
    vectors = normal(0, 1000, 20)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[400:] *= 2
    return vectors


def spiral():
    """Distances from 0 that differ by less than keys of floats can tell."""
    turn = np.arange(600)
    radius = 1 - 1e-6 * turn
    return np.float32(np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1))


def wrong_on_spirals(form):
    """Count wrong answers in twenty orders of the references."""
    wrong = 0
    for seed in range(20):
        references = np.random.default_rng(seed).permutation(spiral())
        index = found(np.zeros((1, 2)), references, 1, form)
        wrong += index[0, 0] != order64(np.zeros((1, 2)), references, 1)[0, 0]
    return wrong


@pytest.mark.parametrize("form", nearest.FORMS)
def test_ids_are_those_of_float64_at_any_size(form):
    for seed, (n, s, f, k) in enumerate(SHAPES):
        points, references = normal(seed, n, f), normal(seed + 99, s, f)
        index = found(points, references, k, form)
        assert index.dtype == np.int32
        np.testing.assert_array_equal(index, order64(points, references, k), err_msg=f"{n, s, f}")


@pytest.mark.parametrize("form", nearest.FORMS)
@pytest.mark.parametrize("kind", HARD)
def test_rows_that_a_product_cannot_decide_are_exact_too(kind, form):
    """Either of two twins that differ by rounding alone is right."""
    points, references = hard(kind)
    distances = sq_distances64(points, references)
    for k in (1, NEAREST):
        index = found(points, references, k, form)
        there = np.take_along_axis(distances, index, axis=1)
        nearest_there = np.sort(distances, axis=1)[:, :k]
        np.testing.assert_allclose(there, nearest_there, rtol=1e-14, atol=1e-14)
        if kind in ("duplicates", "pairs"):  # whole numbers: ties are exact
            np.testing.assert_array_equal(index, order64(points, references, k))


@pytest.mark.parametrize("form", nearest.FORMS)
@pytest.mark.parametrize(
    "kind", ["one float32 apart", "duplicated", "huge with small gaps", "one feature"]
)
def test_ids_are_float64s_where_float32_loses_the_order(kind, form):
    points, references = adversarial(kind)
    index = found(points, references, NEAREST, form)
    np.testing.assert_array_equal(index, order64(points, references, NEAREST))


@pytest.mark.parametrize("form", nearest.FORMS)
def test_roundings_that_all_go_one_way_decide_nothing(form):
    """Constant features add up with the same rounding each time, so that a float32 sum drifts.

    References differ by less than the drift, in one feature.
    """
    width = 1024
    rng = np.random.default_rng(0)
    references = np.where(np.arange(40)[:, None] % 2, 1, -1) * np.full((40, width), 0.1)
    references[:, 0] += 1e-5 * rng.permutation(40)
    references = references.astype(np.float32)
    points = np.repeat(np.linspace(0.7, 1.3, 60, dtype=np.float32)[:, None], width, axis=1) / 10
    np.testing.assert_array_equal(
        found(points, references, 5, form), order64(points, references, 5)
    )


def losing(side):
    """Two references, and points whose rest after rounding decides between them.

    The references have no rest, or the other way round.
    """
    rng = np.random.default_rng(0)
    sign = rng.choice([-1.0, 1.0], 64)
    rests = 0.4 * sign
    whole = rng.integers(-90, 90, (20, 64)).astype(float)
    whole[:, 1] = 125  # so that the bytes of both sides have the unit 1
    whole[:, 0] -= sign[0] * (whole @ sign + 10)  # the whole numbers say the opposite
    whole = whole[np.abs(whole[:, 0]) < 126]
    assert len(whole)
    exact = np.stack([sign, -sign]) * 127
    if side == "points":
        return (whole + rests).astype(np.float32), exact.astype(np.float32)
    rows = np.concatenate([whole + rests, -whole - rests, exact])
    return exact[:1].astype(np.float32), rows.astype(np.float32)


@pytest.mark.parametrize("form", nearest.FORMS)
@pytest.mark.parametrize("side", ["points", "references"])
def test_integers_that_lose_alike_are_not_trusted(side, form):
    points, references = losing(side)
    k = len(references) - 1
    np.testing.assert_array_equal(
        found(points, references, k, form), order64(points, references, k)
    )


@pytest.mark.parametrize("form", nearest.FORMS)
def test_features_of_any_scale(form):
    """Points far larger and far smaller than references, beyond the scales that points may have."""
    references = normal(0, 60, 50)
    scales = np.float32(10.0) ** np.arange(-30, 15)[:, None]
    points = scales * normal(1, 45, 50)
    for scale in (1, 1e-20, 1e-6, 1e6):
        pair = points * np.float32(min(scale, 1)), references * np.float32(scale)
        np.testing.assert_array_equal(found(*pair, 2, form), order64(*pair, 2), err_msg=f"{scale}")


@pytest.mark.parametrize("form", nearest.FORMS)
def test_many_neighbors_among_many_references_of_several_panels(form):
    """In any order: the k-th distance is guessed from a sample of those that came first."""
    s = 9000
    points, references = 0.1 * normal(0, 20, 24), normal(1, s, 24)
    references[: s // 2] = references[s // 2 :][: s // 2]  # everyone has a twin
    outwards = np.argsort(np.linalg.norm(references, axis=1))
    for order in (np.arange(s), outwards, outwards[::-1], outwards.reshape(3, -1).T.ravel()):
        for k in (300, 1200):
            index = found(points, references[order], k, form)
            np.testing.assert_array_equal(index, order64(points, references[order], k))


@pytest.mark.parametrize("form", nearest.FORMS)
def test_many_candidates_whose_float32_distances_are_equal(form):
    points, references = np.zeros((1, 20)), unit_vectors()
    for k in (1, 100):
        index = found(points, references, k, form)
        np.testing.assert_array_equal(index, order64(points, references, k))


@pytest.mark.parametrize("form", nearest.FORMS)
def test_distances_whose_keys_are_equal(form):
    assert wrong_on_spirals(form) == 0


@pytest.mark.parametrize("form", nearest.FORMS)
def test_one_record_moves_no_other_record(form):
    """To the bit: what sensitivity rests on. Records of one product share registers."""
    points, references = hard("close")
    before = found(points, references, NEAREST, form)
    others = np.delete(np.arange(len(points)), 13)
    for value in (9.0, 1e6, 1e-30, np.nan, np.inf, 3e38):
        other = points.copy()
        other[13] = value
        after = found(other, references, NEAREST, form)
        np.testing.assert_array_equal(after[others], before[others], err_msg=f"{value}")
    prepared = nearest.References(references, NEAREST, form)
    for count in (1, 3, 65):
        some = np.random.default_rng(0).permutation(len(points))[:count]
        np.testing.assert_array_equal(prepared.nearest(points[some]), before[some])


@pytest.mark.parametrize("form", nearest.FORMS)
@pytest.mark.parametrize("value", [np.nan, -np.inf, 3e38])
def test_what_is_not_finite_has_no_neighbors(form, value):
    points, references = normal(0, 20, 12), normal(1, 30, 12)
    points[5, 3] = value
    index = found(points, references, 2, form)
    assert (index[5] == -1).all()
    fine = np.delete(np.arange(20), 5)
    np.testing.assert_array_equal(index[fine], order64(points[fine], references, 2))
    references[7, 1] = value
    assert (found(points, references, 2, form) == -1).all()


@pytest.mark.long
def test_all_forms_and_xla_agree_to_the_bit(monkeypatch):
    points, references = normal(0, 300, 60), normal(1, 130, 60)
    points[::3] = np.round(points[::3])
    references[::2] = np.round(references[::2])
    monkeypatch.setattr(neighbors, "FEW_DIFFERENCES", 0)
    for metric in ("sqeuclidean", "cosine"):
        xla, own = (
            neighbors.nearest(points, references, 4, metric=metric, implementation=form)
            for form in ("xla", "native")
        )
        np.testing.assert_array_equal(own, xla)


@pytest.mark.parametrize("form", nearest.FORMS)
def test_a_far_reference_leaves_the_others_exact(form):
    """It takes the scale of all integers, so that they say nothing of the others."""
    points, references = normal(0, 50, 40), normal(1, 500, 40)
    references[17] *= 1e6
    np.testing.assert_array_equal(
        found(points, references, 3, form), order64(points, references, 3)
    )


def test_libraries_have_the_same_order_of_distances_that_are_equal(monkeypatch):
    """Permutations of one vector are equally far from 0, up to the order of summation."""
    rng = np.random.default_rng(0)
    one = (rng.integers(0, 256, 100) / 255).astype(np.float32)
    references = np.stack([rng.permutation(one) for _ in range(30)])
    found_by = []
    for name in libraries():
        loaded = ctypes.CDLL(str(FOLDER / f"{name}.so"))
        monkeypatch.setattr(native, "load", lambda loaded=loaded: loaded)
        found_by.append(found(np.zeros((1, 100), np.float32), references, 30, None))
    assert all((other == found_by[0]).all() for other in found_by)


@pytest.mark.long
def test_copies_have_references_of_their_own():
    points, references = normal(0, 20, 8), normal(1, 30, 8)
    prepared = nearest.References(references, 2)
    copies = [copy.copy(prepared), pickle.loads(pickle.dumps(prepared))]
    del prepared
    gc.collect()
    for other in copies:
        np.testing.assert_array_equal(other.nearest(points), order64(points, references, 2))


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="at least one feature"):
        neighbors.nearest(np.zeros((3, 0), np.float32), np.zeros((5, 0), np.float32), 2)
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"num_neighbors={k}"):
            nearest.References(normal(0, 5, 2), k)
    with pytest.raises(TypeError, match="float"):
        nearest.References(normal(0, 5, 2), 2.0)


def test_a_library_that_does_not_load_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "avx512.so").write_bytes(b"no library")
    monkeypatch.undo()
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    with pytest.warns(RuntimeWarning, match="are not used"):
        assert native.load.__wrapped__() is None


def test_threads_share_references():
    points, references = normal(0, 400, 30), normal(1, 200, 30)
    prepared = nearest.References(references, 3)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(prepared.nearest, np.split(points, 40)))
    np.testing.assert_array_equal(np.concatenate(parts), order64(points, references, 3))


def test_the_arrays_may_have_any_layout_and_type():
    points, references = normal(0, 40, 60), normal(1, 20, 60)
    views = points[::-2, ::3].astype(np.float64), np.asfortranarray(references[:, ::3])
    expected = order64(views[0].astype(np.float32), views[1], 2)
    np.testing.assert_array_equal(found(*views, 2, None), expected)


def test_every_shape_has_a_form():
    for s, f, k in itertools.product((1, 40, 200, 4000), (1, 64, 784, 20_000), (1, 10)):
        assert nearest.best_form(s, f, k) in nearest.FORMS
    wide = normal(0, 3, 20_000), normal(1, 5, 20_000)
    for form in nearest.FORMS:  # integers give way where their sums would not fit
        np.testing.assert_array_equal(found(*wide, 1, form), order64(*wide, 1))


def skewed(kind, seed, n, s, f):
    """Data of which one form or another is undecided for most points."""
    rng = np.random.default_rng(seed)
    points, references = normal(seed, n, f), normal(seed + 99, s, f)
    if kind == "clusters":
        centers = normal(seed + 7, 5, f)
        return tuple(
            np.float32(0.05) * rows + centers[np.sort(rng.integers(0, 5, len(rows)))]
            for rows in (points, references)
        )
    if kind == "one dominant feature":
        points[:, 0] *= 1000
        references[:, 0] *= 1000
    if kind == "copies":
        references = np.concatenate([references[: -(-s // 5)]] * 5)[rng.permutation(s)]
    if kind == "ties":
        return np.round(points), np.round(references)
    if kind == "changing":  # first points that every form decides, then some that few decide
        points[n // 3 :] = references[0] + np.float32(1e-3) * points[n // 3 :]
        references[s // 2 :] = references[0] + np.float32(1e-3) * references[s // 2 :]
    return points, references


KINDS = ("clusters", "one dominant feature", "copies", "ties", "changing")


@pytest.mark.long
@pytest.mark.parametrize("form", nearest.FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_way_that_points_are_solved_changes_no_neighbor(kind, form):
    """Enough points for every way: several tiles leave many candidates, one after another."""
    points, references = skewed(kind, 0, 1500, 130, 30)
    for k in (1, 4):
        prepared = nearest.References(references, k, form)
        for threads in (1, 3):
            index = prepared.nearest(points, threads)
            np.testing.assert_array_equal(index, order64(points, references, k))


@pytest.mark.slow
@pytest.mark.parametrize("form", nearest.FORMS)
def test_a_hundred_thousand_random_points_have_the_neighbors_of_float64(form):
    rng = np.random.default_rng(0)
    cases = 0
    while cases < 100_000:
        n, s, f = (int(2 ** rng.uniform(0, most)) for most in (12, 9, 8))
        k = int(min(s, 2 ** rng.uniform(0, 5)))
        kind = rng.choice((*KINDS, "normal"))
        points, references = skewed(kind, int(rng.integers(2**31)), n, s, f)
        index = nearest.References(references, k, form).nearest(points, int(rng.integers(1, 4)))
        expected = order64(points, references, k)
        np.testing.assert_array_equal(index, expected, err_msg=f"{kind}, {n, s, f, k}")
        cases += n


def test_copies_of_a_row_come_in_the_order_of_their_numbers():
    """Also between others as far away, and where fewer rows are distinct than asked for."""
    axes = np.eye(4, dtype=np.float32)
    references = axes[[0, 1, 0, 2, 1, 0, 3, 3]]
    for form in nearest.FORMS:
        index = found(np.zeros((1, 4)), references, 8, form)
        np.testing.assert_array_equal(index, [range(8)])
        np.testing.assert_array_equal(found(axes[:1], references, 3, form), [[0, 2, 5]])
        np.testing.assert_array_equal(found(axes[:1], axes[[1] * 6], 5, form), [range(5)])


TRANSFORMED = {
    "jit": lambda run, points, rows: jax.jit(run)(points, rows),
    "points mapped": lambda run, points, rows: jax.vmap(run, (0, None))(
        points.reshape(8, 10, -1), rows
    ).reshape(80, -1),
    "each point mapped": lambda run, points, rows: jax.vmap(
        lambda point: run(point[None], rows)[0]
    )(points),
    "both mapped": lambda run, points, rows: jax.vmap(
        lambda some: jax.vmap(run, (None, 0))(some, np.stack([rows[::-1], rows]))[1]
    )(points.reshape(8, 10, -1)).reshape(80, -1),
    "on all devices": lambda run, points, rows: jax.jit(
        jax.shard_map(
            run,
            mesh=_distributed.all_devices(),
            in_specs=(PartitionSpec(_distributed.CLIENTS), PartitionSpec()),
            out_specs=PartitionSpec(_distributed.CLIENTS),
        )
    )(points, rows),
}


@pytest.mark.long
@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_traced_calls_take_the_kernel(metric):
    points, references = normal(0, 80, 5), normal(1, 9, 5)

    def run(points, references):
        return neighbors.nearest(points, references, 2, metric=metric, implementation="native")

    plain = run(points, references)
    for name, transformed in TRANSFORMED.items():
        found = transformed(run, points, references)
        np.testing.assert_array_equal(found, plain, err_msg=name)
    slope = jax.grad(lambda given: jnp.sum((given - references[run(given, references)[:, 0]]) ** 2))
    np.testing.assert_allclose(
        slope(jnp.asarray(points)), 2 * (points - references[plain[:, 0]]), rtol=1e-6
    )
    votes = jax.jit(neighbors.nearest_votes, static_argnums=(3, 4))
    labels = np.arange(80) % 3
    expected = neighbors.nearest_votes(points, references, labels, 2, 3)
    np.testing.assert_array_equal(votes(points, references, labels, 2, 3), expected)


def test_traced_rows_that_are_not_finite_have_no_neighbors():
    points, references = normal(0, 20, 12), normal(1, 30, 12)
    points[5, 3] = np.nan
    index = jax.jit(lambda given: neighbors.nearest(given, references, 2))(points)
    assert (index[5] == -1).all()
    assert (np.delete(index, 5, axis=0) >= 0).all()


def test_the_comparison_before_the_first_use_finds_a_wrong_kernel(monkeypatch):
    assert nearest.agrees()
    right = nearest.References.nearest
    monkeypatch.setattr(
        nearest.References, "nearest", lambda self, *given: right(self, *given)[::-1]
    )
    assert not nearest.agrees()


FAULTS = {
    "no bound for float32": ("return 1.01f * (UNIT", "return 0 * (UNIT"),
    "no bound for integers": ("return 1.02f * (operands", "return 0 * (operands"),
    "integers lose nothing": ("  x.lost = 1.01f * sqrtf(sum_of(squares))", "  x.lost = 0"),
    "keys are distances": ("NUMBER * 0x1p-23f * fabsf(least)", "0 * fabsf(least)"),
    "float32 decides many": ("by_gaps(r, x, found, 0, index)", "by_gaps(r, x, found, -1, index)"),
    "two of a lane at most": ("if (crowded >> lane & 1)", "if (false)"),
    "copies by place": ("{apart, r.copies[c]}", "{apart, own}"),
    "ties by place": ("(distance == other.distance && number < other.number)", "false"),
}


@pytest.mark.long
@pytest.mark.parametrize("processor", libraries()[:1], indirect=True)  # it makes its own
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_the_proofs_are_found(fault, tmp_path, monkeypatch):
    """The hard cases fail if a bound is gone."""
    old, new = FAULTS[fault]
    counts = []
    for path in (*FOLDER.glob("*.h"), FOLDER / "nearest.cc"):
        source = path.read_text()
        counts.append(source.count(old))
        (tmp_path / path.name).write_text(source.replace(old, new))
    assert sum(counts) == 1
    library = tmp_path / "faulty.so"
    headers = f"-isystem{jax.ffi.include_dir()}"
    options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-march=native", headers]
    subprocess.run(["c++", *options, tmp_path / "nearest.cc", "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    monkeypatch.setattr(native, "load", lambda: loaded)
    wrong = 0
    for form in nearest.FORMS:
        for kind in ("close", "duplicates", "pairs", "the same"):
            points, references = hard(kind)
            index = found(points, references, NEAREST, form)
            wrong += (index != order64(points, references, NEAREST)).any()
        points, references = np.zeros((1, 20)), unit_vectors()
        for k in (1, 100):
            wrong += (found(points, references, k, form) != order64(points, references, k)).any()
        wrong += wrong_on_spirals(form)
        points, references = losing("points")
        wrong += (found(points, references, 1, form) != order64(points, references, 1)).any()
        points, references = skewed("copies", 0, 40, 20, 2)
        points, references = np.round(points), np.round(references)
        wrong += (found(points, references, 9, form) != order64(points, references, 9)).any()
    assert wrong > 0

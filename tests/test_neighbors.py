"""Distances and neighbors by XLA against float64: ragged shapes, ties and far-away origins.

`test_native_nearest` has the native kernel.

Compiling takes all the time, so that nearly all tests ask about the same number of points,
references, features and neighbors: they share a program or two.
"""

import functools
import os
from typing import get_args

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from rknn_jax import bsvs, neighbor_graph, neighbors
from rknn_jax.kernels import assignment, native

POINTS = 131
REFERENCES = 60
FEATURES = 24
NEAREST = 3
CLASSES = 5


def data(seed, n=POINTS, s=REFERENCES, f=FEATURES, offset=0.0):
    rng = np.random.default_rng(seed)
    points = (rng.normal(size=(n, f)) + offset).astype(np.float32)
    return points, (rng.normal(size=(s, f)) + offset).astype(np.float32)


def sq_distances64(points, references):
    return cdist(points.astype(np.float64), references.astype(np.float64), "sqeuclidean")


def cosine64(points, references):
    points = points.astype(np.float64)
    references = references.astype(np.float64)
    norms = np.linalg.norm(points, axis=1)[:, None] * np.linalg.norm(references, axis=1)[None]
    return 1 - points @ references.T / norms


MULTIPLIES_HALVES = neighbors.multiplies_halves.__wrapped__  # not the cached one
DISTANCES = {"sqeuclidean": sq_distances64, "cosine": cosine64}


def nearest(points, references, k=NEAREST, **options):
    """Index and distance in NumPy, whose slices are not compiled."""
    index = neighbors.nearest(points, references, k, **options)
    metric = options.get("metric", "sqeuclidean")
    distance = neighbors.distances(points, references, index, metric=metric)
    return np.asarray(index), np.asarray(distance)


def nearest_votes(points, references, labels):
    return np.asarray(neighbors.nearest_votes(points, references, labels, NEAREST, CLASSES))


@pytest.fixture(autouse=True, scope="module")
def _not_by_differences():
    """XLA does the work. Small problems go the way of large ones, and no machine tries bfloat16
    where no test asks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "load", lambda: None)
        patch.setattr(neighbors, "FEW_DIFFERENCES", 0)
        patch.setattr(neighbors, "FEWEST_FOR_HALVES", 1)
        patch.setattr(neighbors, "multiplies_halves", lambda: False)
        yield


@pytest.fixture(params=["bfloat16", "float32"])
def first_product(request, monkeypatch):
    """The precision of the product that is tried first."""
    halves = request.param == "bfloat16"
    monkeypatch.setattr(neighbors, "multiplies_halves", lambda: halves)


def several_labels(n):
    """Up to three of a record; missing ones are negative, and some are named twice."""
    return np.random.default_rng(1).integers(-1, CLASSES, (n, 3))


def assert_nearest(index, found, distances):
    """Distances are those of the float64 order; another index is allowed where they agree to
    1e-5, for cosines.
    """
    expected = np.sort(distances, axis=1)[:, : index.shape[1]]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    there = np.take_along_axis(distances, index, 1)
    np.testing.assert_allclose(there, expected, rtol=1e-5, atol=1e-6)
    assert (np.diff(np.sort(index, axis=1), axis=1) > 0).all()


# Against float64.


@pytest.mark.long
@given(
    st.integers(0, 99), st.sampled_from([(40, 30, 20), (1, 1, 1)]), st.sampled_from([0.0, 100.0])
)
def test_distances_equal_float64_even_far_from_the_origin(seed, shape, offset):
    points, references = data(seed, *shape, offset)
    found = jax.jit(neighbors.pairwise_sq_distances)(points, references)
    expected = sq_distances64(points, references)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-4)


def assert_nearest_of_random(seed, n, s, f, k, metric):
    points, references = data(seed, n, s, f)
    index = neighbors.nearest(points, references, k, metric=metric)
    found = neighbors.distances(points, references, index, metric=metric)
    chex.assert_shape((index, found), (n, k))
    chex.assert_type([index, found], [jnp.int32, jnp.float32])
    distances = DISTANCES[metric](points, references)
    assert_nearest(np.asarray(index), np.asarray(found), distances)


@pytest.mark.long
@pytest.mark.parametrize(
    ("n", "s", "k", "metric"),
    [
        (65, REFERENCES, NEAREST, "sqeuclidean"),
        (POINTS, REFERENCES, NEAREST, "cosine"),
        (1, 6, 6, "sqeuclidean"),
    ],
)
def test_nearest_is_the_float64_order(n, s, k, metric):
    """One point after a block, two blocks and a part of one, and one point all of whose
    references are asked for.
    """
    assert_nearest_of_random(0, n, s, FEATURES, k, metric)


@pytest.mark.slow
@given(
    st.integers(0, 99),
    st.sampled_from([1, 63, 64, 65, 200]),
    st.sampled_from([1, 9, 30]),
    st.sampled_from([1, 4, 16]),
    st.sampled_from(["sqeuclidean", "cosine"]),
)
def test_nearest_is_the_float64_order_at_every_block_boundary(seed, n, s, k, metric):
    assert_nearest_of_random(seed, n, s, 7, min(k, s), metric)


@pytest.mark.long
@pytest.mark.parametrize(
    ("s", "k"),
    [
        pytest.param(1024, 3, marks=pytest.mark.slow),
        pytest.param(1025, 3, marks=pytest.mark.slow),
        (2100, 40),
        pytest.param(1100, 1100, marks=pytest.mark.slow),
    ],
)
def test_many_references_are_taken_in_groups(s, k):
    """Some points lie among duplicates, more of them than there are candidates."""
    points, references = data(0, 70, s, 5)
    references[900:1100] = references[900]
    points[:5] = references[900] + points[:5] / 100
    assert_nearest(*nearest(points, references, k), sq_distances64(points, references))


@pytest.mark.long
def test_blocks_on_several_cores_are_put_together(monkeypatch):
    """Three blocks, and the last is filled up; what fills it does not vote."""
    points, references = data(0)
    labels = several_labels(POINTS)
    whole = nearest(points, references), nearest_votes(points, references, labels)
    assert_nearest(*whole[0], sq_distances64(points, references))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(neighbors, "LARGEST_BLOCK", 64)
    sizes = []
    run = neighbors._nearest

    def recorded(points, *arguments, **options):
        sizes.append(len(points))
        return run(points, *arguments, **options)

    monkeypatch.setattr(neighbors, "_nearest", recorded)
    parts = nearest(points, references), nearest_votes(points, references, labels)
    assert sizes == [64] * 6
    chex.assert_trees_all_equal(parts, whole)


# Rows that a product cannot decide.

HARD = ["far from the origin", "close", "one huge", "duplicates", "pairs", "the same"]


def hard(kind):
    """Points and references whose distances the product cannot tell apart, or only for some
    rows.
    """
    points, references = data(1)
    again = references[np.arange(POINTS) % REFERENCES]
    if kind == "far from the origin":  # centring helps neither of two clusters
        side = np.float32([[3000.0], [-3000.0]])
        return points + side[np.arange(POINTS) % 2], references + side[np.arange(REFERENCES) % 2]
    if kind == "close":
        return points * np.float32(1e-3) + again, references
    if kind == "one huge":
        return points, np.concatenate([references[:-1], 1e4 * references[:1]])
    if kind == "duplicates":  # more than there are candidates
        return np.round(points), np.round(references[np.arange(REFERENCES) % 7])
    if kind == "pairs":  # the float32 product decides
        return np.round(points), np.round(references[np.arange(REFERENCES) // 2])
    return again, references


@pytest.mark.long
@pytest.mark.usefixtures("first_product")
@pytest.mark.parametrize("kind", HARD)
def test_rows_that_a_product_cannot_decide_are_exact_too(kind):
    points, references = hard(kind)
    distances = sq_distances64(points, references)
    index, found = nearest(points, references)
    np.testing.assert_allclose(found, np.sort(distances, axis=1)[:, :NEAREST], rtol=1e-5)
    if kind in ("duplicates", "pairs"):  # whole numbers: the order is float64's, ties included
        order = np.argsort(distances, axis=1, kind="stable")
        np.testing.assert_array_equal(index, order[:, :NEAREST])


def how_of(*products):
    return assignment.How(NEAREST, products, "xla", 64, 8)


@functools.partial(jax.jit, static_argnames=("product", "stage"))
def staged(points, references, product, stage):
    how = how_of(product)
    prepared = assignment.prepare(references, how.products)
    found = assignment._by_gaps(points, None, references=prepared, how=how, level=0)
    if stage == "pair":
        found = assignment._by_pair(points, found, rows=prepared.rows)
    if stage == "candidates":
        found = assignment._by_candidates(points, found, references=prepared, how=how)
    return found.number[:, :NEAREST], found.sure


def refined(points, references, product, stage="gaps"):
    return tuple(map(np.asarray, staged(points, references, product, stage)))


STAGES = ["gaps", "pair", "candidates"]
PRODUCTS = get_args(assignment.Product)


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("kind", ["plain", *HARD])
def test_a_certified_row_is_float64s_and_others_are_not_always(kind, product, stage):
    points, references = data(1) if kind == "plain" else hard(kind)
    number, sure = refined(points, references, product, stage)
    order = np.argsort(sq_distances64(points, references), axis=1, kind="stable")[:, :NEAREST]
    right = (number == order).all(axis=1)
    assert right[sure].all()
    if kind == "plain":
        assert np.mean(sure) > (0.2 if product == "bfloat16" else 0.9)
    if kind == "pairs":  # ties: no gap proves them, differences do
        some = stage == "candidates" and product != "bfloat16"
        assert sure.mean() > 0.5 if some else stage == "candidates" or not sure.any()
    if kind == "far from the origin" and stage == "gaps":
        assert not right.all()  # so a certificate is needed


@pytest.mark.long
@pytest.mark.parametrize("place", range(NEAREST))
@pytest.mark.parametrize("product", PRODUCTS)
def test_differences_decide_the_only_gap_in_doubt(place, product):
    """Twins stand first among the neighbors, in the middle, or as the last and the first beyond."""
    rng = np.random.default_rng(5)
    far = np.float32([1, 2, 3, 4, 5, 6])[:, None] * np.eye(6, FEATURES, dtype=np.float32)
    aside = 1e-5 * np.eye(1, FEATURES, 10, dtype=np.float32)
    references = np.concatenate([far, far[place : place + 1] + aside])
    points = (rng.normal(size=(POINTS, FEATURES)) * 1e-3).astype(np.float32)
    order = np.argsort(sq_distances64(points, references), axis=1, kind="stable")[:, :NEAREST]
    _, proved = refined(points, references, product)
    number, sure = refined(points, references, product, "pair")
    assert not proved.any()
    assert sure.all()
    np.testing.assert_array_equal(number, order)
    assert len(np.unique(order, axis=0)) == 2  # either twin comes first


def adversarial(kind):
    """Points and references, at one shape, whose float64 order float32 loses."""
    rng = np.random.default_rng(3)
    points, references = data(3)
    if kind == "one float32 apart":  # each query and the next larger ones, coordinate by coordinate
        references = np.repeat(references[:6], 10, axis=0)
        for copy in range(1, 10):
            references[copy::10, copy] = np.nextafter(references[copy::10, copy], np.float32(9))
    if kind == "duplicated":
        references = references[rng.integers(0, 9, REFERENCES)]
    if kind == "huge with small gaps":
        references = 1e6 + np.round(references * 4) / 4
        points = (references[rng.integers(0, REFERENCES, POINTS)] + np.round(points)) / 1
    if kind == "one feature":
        points[:, 1:] = references[:, 1:] = 0
    return points.astype(np.float32), references.astype(np.float32)


@pytest.mark.usefixtures("first_product")
@pytest.mark.parametrize(
    "kind", ["one float32 apart", "duplicated", "huge with small gaps", "one feature"]
)
def test_ids_are_exactly_float64s_where_float32_loses_the_order(kind):
    points, references = adversarial(kind)
    order = np.argsort(sq_distances64(points, references), axis=1, kind="stable")
    np.testing.assert_array_equal(nearest(points, references)[0], order[:, :NEAREST])


@pytest.mark.long
@pytest.mark.parametrize(("n", "s", "f", "k"), [(70, 3, 1, 3), (300, 40, 5, 40), (5, 2, 9, 1)])
def test_ids_are_exactly_float64s_for_all_neighbors_and_for_few_references(n, s, f, k):
    """All references asked for, one feature, and points that fill no block."""
    points, references = data(7, n, s, f)
    order = np.argsort(sq_distances64(points, references), axis=1, kind="stable")
    np.testing.assert_array_equal(nearest(points, references, k)[0], order[:, :k])


@functools.partial(jax.jit, static_argnames="product")
def bound(points, references, product):
    prepared = assignment.prepare(references, (product,))
    centred = points - prepared.centre
    sq_norm = jnp.sum(centred**2, axis=1)
    return assignment._error(centred, sq_norm, prepared, product, 0), prepared.centre


def rounded(rows):
    return rows.astype(ml_dtypes.bfloat16).astype(np.float32)


def norms(rows):
    return np.linalg.norm(rows.astype(np.float64), axis=1)


@pytest.mark.parametrize(
    ("product", "scale"), [*((product, 1) for product in PRODUCTS), ("float32", 1e-19)]
)
def test_the_bound_of_rounding_is_that_of_its_proof(product, scale):
    """In float64: the errors of <x,q> by rounded operands twice, and those of sums."""
    points, references = (np.float32(scale) * part for part in data(0))
    found, centre = bound(points, references, product)
    x, q = (part - np.asarray(centre) for part in (points, references))
    size, sizes = norms(x), norms(q)
    (lost, low), (losses, lows) = (
        {
            "float32": (np.zeros(len(part)), np.zeros(len(part))),
            "bfloat16": (norms(part - rounded(part)), np.zeros(len(part))),
            "bfloat16x3": (
                norms(part - rounded(part) - rounded(part - rounded(part))),
                norms(rounded(part - rounded(part))),
            ),
        }[product]
        for part in (x, q)
    )
    reach = sizes.max()
    operands = 2 * (lost * reach + (size + lost) * losses.max() + low * lows.max())
    width = FEATURES * (3 if product == "bfloat16x3" else 1)
    sums = 8 * width**0.5 * 2.0**-24 * 2 * size * reach + 8 * width * 2.0**-126
    others = 8 * 2.0**-24 * (size + reach) ** 2
    slack = 1.01 if product == "float32" else 1.02
    np.testing.assert_allclose(found, slack * (operands + sums + others), rtol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_products_err_less_than_their_bound(product):
    """Against float64, over features of many sizes; the worst row comes within a tenth of it."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-6, 6, (200, 1))
    x = (scales * rng.standard_normal((200, FEATURES))).astype(np.float32)
    q = (x[:40] / scales[:40]).astype(np.float32)
    q -= q.mean(axis=0)
    products = assignment._operand(x, product, "points").astype(jnp.float32) @ (
        assignment._operand(q, product, "references").astype(jnp.float32).T
    )
    prepared = assignment.prepare(q, (product,))
    error = assignment._error(x, np.sum(x**2, axis=1), prepared, product, 0)
    off = np.abs(np.asarray(products) - x.astype(np.float64) @ q.astype(np.float64).T).max(axis=1)
    assert (2 * off < np.asarray(error)).all()
    assert (2 * off / np.asarray(error)).max() > (1e-4 if product == "float32" else 0.02)


def test_sums_of_very_many_features_are_bounded_as_matrix_units_make_them():
    """They cut off a sum of 16 terms at a time, which errs by width / 16 last bits at most."""
    width = 2**14
    references = np.tile(np.arange(1, 5, dtype=np.float32)[:, None], width)
    prepared = assignment.prepare(references, ("float32",))
    points = references - prepared.centre
    sq_norm = np.sum(np.asarray(points) ** 2, axis=1)
    error = assignment._error(points, sq_norm, prepared, "float32", 0)
    worst = width / 16 * 2.0**-23 * 2 * np.sqrt(sq_norm) * np.asarray(prepared.reach)
    assert (np.asarray(error) >= worst).all()


def test_operands_that_lose_their_last_bits_alike_are_not_trusted():
    """All references round to few values, so that the products err by as much as they can."""
    unit = 2.0**-8

    def reference(up):
        row = np.zeros((1, FEATURES), np.float32)
        row[0, :16] = 1 + unit
        row[0, :up] = 1 + 3 * unit
        return row

    far = reference(0)
    far[0, 8:] *= -1
    near = [reference(16)] * 6 + [reference(6)] * 3 + [reference(0)]
    half = np.concatenate(near + [far] * (REFERENCES // 2 - len(near)))
    references = np.concatenate([half, -half])
    points = np.tile(reference(0), (POINTS, 1))
    for stage in STAGES:
        index, sure = refined(points, references, "bfloat16", stage)
        assert not np.any(sure & (index[:, 0] != 9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "multiplies_halves", lambda: True)
        np.testing.assert_array_equal(nearest(points, references)[0], [[9, 6, 7]] * POINTS)


def test_squares_below_float32s_range_decide_nothing():
    points, references = (np.float32(1e-19) * part for part in data(0))
    order = np.argsort(sq_distances64(points, references), axis=1)
    for stage in STAGES:
        index, sure = refined(points, references, "float32", stage)
        assert not np.any(sure & (index[:, 0] != order[:, 0]))


def test_few_differences_are_taken_one_by_one(monkeypatch):
    points, references = data(0)
    filtered = nearest(points, references)
    monkeypatch.setattr(neighbors, "FEW_DIFFERENCES", points.size * len(references))
    assert neighbors._how(points, references, NEAREST, None).products == ()
    index, distance = nearest(points, references)
    np.testing.assert_array_equal(index, filtered[0])
    np.testing.assert_allclose(distance, filtered[1], rtol=1e-6)


# What sensitivity rests on.


@pytest.mark.usefixtures("first_product")
def test_one_record_moves_no_other_record():
    """To the bit, although blocks of records share products: what sensitivity rests on."""
    points, references = hard("close")
    before = nearest(points, references)
    replacements = {0: 9.0, 17: 1e6, 63: references[0], 64: 0.0, POINTS - 1: references.mean(0)}
    for row, value in replacements.items():
        other = points.copy()
        other[row] = value
        after = nearest(other, references)
        others = np.arange(POINTS) != row
        for one, changed in zip(before, after, strict=True):
            np.testing.assert_array_equal(one[others], changed[others], err_msg=f"row {row}")


@pytest.mark.usefixtures("first_product")
def test_a_record_has_the_same_neighbours_in_any_company():
    """In another place, half of the others being others."""
    points, references = hard("close")
    order = np.random.default_rng(0).permutation(POINTS)
    elsewhere = points[order]
    elsewhere[1::2] = 10 * data(2)[0][1::2]
    for alone, among in zip(
        nearest(points, references), nearest(elsewhere, references), strict=True
    ):
        np.testing.assert_array_equal(among[::2], alone[order[::2]])


@pytest.mark.long
def test_a_record_has_the_same_neighbours_among_fewer():
    points, references = hard("close")
    order = np.random.default_rng(0).permutation(POINTS)[:65]
    for alone, among in zip(
        nearest(points, references), nearest(points[order], references), strict=True
    ):
        np.testing.assert_array_equal(among, alone[order])


@pytest.mark.long
def test_rows_that_are_sure_stay_as_they_are_while_others_are_solved_again(monkeypatch):
    """Others are those among duplicates, more of them than fit into one go.

    What would solve them answers nonsense here.
    """
    points, references = data(0)
    references[20:40] = references[20]
    among = [3, 4, 5, 6, 7, 40, POINTS - 1]
    points[among] = references[20] + points[among] / 100
    sure = np.any([refined(points, references, "float32", stage)[1] for stage in STAGES], axis=0)
    assert not sure[among].any()
    assert sure.sum() > 100
    expected = nearest(points, references)

    def nonsense(points, before, rows):
        return before._replace(number=jnp.full_like(before.number, 59))

    monkeypatch.setattr(assignment, "_by_differences", nonsense)
    monkeypatch.setattr(neighbors, "TILE", 32)  # of no other test, so that it is traced here
    found = nearest(points, references)[0]
    np.testing.assert_array_equal(found[~sure], 59)
    np.testing.assert_array_equal(found[sure], expected[0][sure])


@pytest.mark.slow
@pytest.mark.parametrize("s", [200, 1200])
def test_a_row_that_becomes_undecided_takes_no_other_along(s):
    """Three references are as near as each other up to rounding, and the record that is replaced
    comes to lie among duplicates.
    """
    for seed in range(8):
        rng = np.random.default_rng(seed)
        points, references = data(seed, 64, s, 64)
        references *= 3
        same = (rng.integers(-(2**10), 2**10, 64) / 2**10 * 0.3).astype(np.float32)
        references[:3] = [rng.permutation(same) for _ in range(3)]
        points[:3] = 0
        references[20:40] = 0
        references[20:40, 0] = 20
        other = points.copy()
        other[50] = references[20]
        labels = np.zeros(64, int)
        before = neighbors.nearest_votes(points, references, labels, 1, 1)
        after = neighbors.nearest_votes(other, references, labels, 1, 1)
        assert np.abs(np.asarray(before) - np.asarray(after)).sum() <= 2, f"seed {seed}"


# Votes.


@pytest.mark.parametrize(
    ("n", "several"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(64, False, marks=pytest.mark.slow),
        (POINTS, True),
    ],
)
def test_votes_summed_on_the_way_are_those_of_the_ids(n, several):
    points, references = data(0, n)
    labels = several_labels(n) if several else several_labels(n)[:, 0]
    cells = bsvs.cells(nearest(points, references)[0], labels, CLASSES)
    expected = bsvs.sum_votes(cells, REFERENCES * CLASSES).reshape(REFERENCES, CLASSES)
    np.testing.assert_array_equal(nearest_votes(points, references, labels), expected)


@pytest.mark.long
def test_a_block_holds_neither_all_distances_nor_a_copy_of_the_points():
    """Far below the 4 GB that 2,048 rows of differences to 500 references take."""
    how = neighbors._how(np.empty((600_000, 324)), np.empty((500, 324)), 1, None)
    block = jax.ShapeDtypeStruct((neighbors.BLOCK, 324), jnp.float32)
    queries = jax.ShapeDtypeStruct((500, 324), jnp.float32)
    ready = jax.eval_shape(lambda rows: assignment.prepare(rows, how.products), queries)
    options = {"how": how, "metric": "sqeuclidean"}
    compiled = neighbors._nearest.lower(block, ready, **options).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 30e6


# Transformations of JAX.


def test_jit_and_vmap_trace_the_call():
    points, references = data(3)

    def run(points):
        return neighbors.nearest(points, references, NEAREST)

    jax.eval_shape(lambda given: neighbors.nearest(points, given, NEAREST), references)
    one = jax.eval_shape(run, points)
    two = jax.eval_shape(jax.vmap(run), np.stack([points, points]))
    chex.assert_shape(one, (POINTS, NEAREST))
    chex.assert_shape(two, (2, POINTS, NEAREST))


@pytest.mark.slow
def test_jit_and_vmap_agree_with_the_plain_call():
    points, references = data(3, 40, 12, 4)
    plain = neighbors.nearest(points, references, 2)
    inside = jax.jit(lambda p, r: neighbors.nearest(p, r, 2))(points, references)
    chex.assert_trees_all_equal(inside, plain)
    stacked = jax.vmap(lambda p: neighbors.nearest(p, references, 2))(jnp.stack([points, points]))
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[1], stacked), plain, rtol=1e-6)


# Cosines.


@pytest.mark.long
@pytest.mark.parametrize("scale", [1e-23, 3e19])
def test_cosines_do_not_depend_on_the_scale(scale):
    """The squares of neither are numbers of float32."""
    points, references = hard("the same")
    index, distance = nearest(points * np.float32(scale), references, metric="cosine")
    np.testing.assert_array_equal(index[:, 0], np.arange(POINTS) % REFERENCES)
    np.testing.assert_allclose(distance[:, 0], 0, atol=1e-6)


@pytest.mark.long
def test_a_zero_vector_is_at_cosine_distance_one():
    """From everything: also from another zero vector. Ties go to the lowest index."""
    axes = np.eye(FEATURES, dtype=np.float32)
    references = np.concatenate([np.zeros((1, FEATURES), np.float32), axes, -axes, -axes[:11]])
    points = np.concatenate([references, references, -references])[:POINTS]
    index, distance = nearest(points, references, metric="cosine")
    np.testing.assert_allclose(distance[0], [1, 1, 1], atol=1e-6)
    np.testing.assert_array_equal(index[0], [0, 1, 2])
    np.testing.assert_allclose(distance[1:25], [[0, 1, 1]] * 24, atol=1e-6)
    np.testing.assert_array_equal(index[1:4], [[1, 0, 2], [2, 0, 1], [3, 0, 1]])


# Bad input.


@pytest.mark.parametrize(
    ("shapes", "k", "message"),
    [
        (((5, 3), (4, 2)), 1, "of one width"),
        (((5, 3), (4, 3)), 5, "num_neighbors=5"),
        (((5, 3), (4, 3)), 0, "num_neighbors=0"),
        (((5,), (4, 3)), 1, r"\(5,\)"),
    ],
)
def test_bad_shapes_are_named(shapes, k, message):
    with pytest.raises(ValueError, match=message):
        neighbors.nearest(np.zeros(shapes[0], np.float32), np.zeros(shapes[1], np.float32), k)


def test_labels_of_another_number_are_refused():
    points = np.zeros((5, 3), np.float32)
    references = np.zeros((4, 3), np.float32)
    labels = np.zeros(4, int)
    with pytest.raises(ValueError, match="each of 5 points, got 4"):
        neighbors.nearest_votes(points, references, labels, 1, 2)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("where", ["points", "references"])
def test_features_that_are_not_finite_are_refused(where, value):
    points, references = data(0)
    (points if where == "points" else references)[7, 1] = value
    message = f"{where} has NaN or infinite values in 1 rows, first in row 7"
    with pytest.raises(ValueError, match=message):
        nearest(points, references)
    with pytest.raises(ValueError, match=message):
        nearest_votes(points, references, several_labels(POINTS))


def test_features_too_large_for_float32_are_refused_and_large_ones_are_not():
    points, references = data(0)
    index, _ = nearest(1e17 * points, 1e17 * references)
    assert_nearest(index, nearest(points, references)[1], sq_distances64(points, references))
    with pytest.raises(ValueError, match="squared distances fit float32"):
        nearest(1e30 * points, 1e30 * references)


def test_the_first_row_that_is_not_finite_is_named():
    features = np.zeros((5, 3), np.float32)
    neighbors.check_finite("embeddings", features)
    features[3, 1] = np.nan
    features[4, 1] = np.inf
    with pytest.raises(
        ValueError, match="embeddings has NaN or infinite values in 2 rows, first in row 3"
    ):
        neighbors.check_finite("embeddings", features)


@pytest.mark.parametrize(
    ("flags", "expected"), [("fpu amx_bf16", True), ("fpu avx512_bf16", False)]
)
def test_halves_are_tried_first_where_the_processor_multiplies_them(flags, expected, monkeypatch):
    monkeypatch.setattr(neighbors.Path, "read_text", lambda path: flags)
    assert MULTIPLIES_HALVES() is expected


def test_halves_are_not_tried_first_on_a_processor_that_does_not_tell(monkeypatch):
    def fail(path):
        raise FileNotFoundError

    monkeypatch.setattr(neighbors.Path, "read_text", fail)
    assert MULTIPLIES_HALVES() is False


# Graphs.


@pytest.mark.parametrize("copies", [1, 3])
def test_no_point_is_its_own_neighbour_even_among_duplicates(copies, monkeypatch):
    monkeypatch.setattr(neighbors, "FEW_DIFFERENCES", 2**24)
    distinct = np.random.default_rng(0).normal(size=(30 // copies, 3)).astype(np.float32)
    graph = neighbor_graph.self_graph(np.repeat(distinct, copies, axis=0), 4, 3)
    assert graph.diagonal().max() == 0
    assert np.isfinite(graph.data).all()
    assert ((graph > 0).sum(axis=1) >= 4).all()
    assert abs(graph - graph.T).max() < 1e-7


def test_a_graph_of_few_points_has_fewer_neighbours(monkeypatch):
    monkeypatch.setattr(neighbors, "FEW_DIFFERENCES", 2**24)
    assert neighbor_graph.self_graph(np.float32([[0.0], [1.0]])).nnz == 2


def digits():
    return load_digits().data.astype(np.float32)


@pytest.mark.long
def test_an_inverted_file_with_all_cells_is_exact():
    rows = digits()[:600]
    index, distance = neighbor_graph.inverted_file(rows, 4, probes=1000)
    exact = np.sort(cdist(rows, rows, "sqeuclidean"), axis=1)[:, :4]
    np.testing.assert_allclose(distance, exact, rtol=1e-4, atol=1e-1)
    found = ((rows[index] - rows[:, None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-1)


@pytest.mark.long
@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_an_inverted_file_finds_nearly_all_neighbors(monkeypatch, metric):
    rows = digits()
    exact = cdist(rows, rows, metric)
    monkeypatch.setattr(neighbor_graph, "LARGEST_EXACT", 100)
    index, distance = neighbor_graph.neighbors_of_each(rows, 8, metric=metric)
    kth = np.sort(exact, axis=1)[:, 7:8]
    found = np.take_along_axis(exact, index, axis=1)
    np.testing.assert_allclose(distance, found, rtol=1e-3, atol=0.5)
    assert np.mean(found <= kth + 1e-6) > 0.97


def test_cells_with_few_rows_are_searched_farther():
    rows = np.concatenate([np.zeros((1, 2)), 100 + np.eye(2)[[0, 1] * 8]]).astype(np.float32)
    index, _ = neighbor_graph.inverted_file(rows, 5, probes=1)
    assert (index[:, 0] >= 0).all()
    assert all(len(set(row)) == 5 for row in index.tolist())


@pytest.mark.long
def test_copies_that_crowd_a_cell_are_searched_in_parts(monkeypatch):
    monkeypatch.setattr(neighbor_graph, "ROWS_AT_ONCE", 32)
    rows = np.concatenate([np.ones((400, 3)), digits()[:200, 18:21]]).astype(np.float32)
    index, distance = neighbor_graph.inverted_file(rows, 5)
    np.testing.assert_array_equal(distance[:400], 0)
    assert (index[:400] < 400).all()
    found = ((rows[index] - rows[:, None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distance, found, rtol=1e-4, atol=1e-2)

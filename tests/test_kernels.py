"""The Pallas kernels without a GPU: interpreted they equal the XLA forms, and they lower for
CUDA.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh

from rknn_jax import kernels, neighbors
from rknn_jax.kernels import assignment, shapes
from rknn_jax.kernels import decode as pallas_decode
from rknn_jax.kernels import nearest as pallas_nearest
from rknn_jax.mechanisms import collision


@pytest.fixture(autouse=True, scope="module")
def _not_by_differences():
    """Small problems go the way of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "FEW_DIFFERENCES", 0)
        yield


RAGGED = 129, 200, 37, 3  # points, references, features, neighbors


def gaussian(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_finds_what_xla_finds(seed, n, s, f, k, duplicates):
    """The answers are equal to the bit; ties among duplicates go to the lowest index."""
    points = gaussian(seed, n, f)
    references = gaussian(seed + 1, s, f)
    references = references[np.arange(s) % 20] if duplicates else references
    found = neighbors.nearest(points, references, k, implementation="pallas")
    expected = neighbors.nearest(points, references, k, implementation="xla")
    chex.assert_trees_all_equal(found, expected)


@pytest.mark.long
@given(st.integers(0, 99), st.booleans())
def test_the_kernel_finds_what_xla_finds(seed, duplicates):
    """Points, references and features that fill no tile.

    The product of bfloat16 would compile as long again; its keys are looked at below.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "multiplies_halves", lambda: False)
        assert_finds_what_xla_finds(seed, *RAGGED, duplicates)


@pytest.mark.slow
@given(
    st.integers(0, 99),
    st.sampled_from([1, 127, 129, 300]),
    st.sampled_from([3, 33, 128, 200]),
    st.sampled_from([1, 37, 65]),
    st.integers(1, 16),
    st.booleans(),
)
def test_the_kernel_finds_what_xla_finds_at_any_size(seed, n, s, f, k, duplicates):
    assert_finds_what_xla_finds(seed, n, s, f, min(k, s), duplicates)


@functools.partial(jax.jit, static_argnames=("product", "count"))
def keys_of_both(points, references, product, count):
    prepared = assignment.prepare(references, (product,))
    given = assignment._operand(points, product, "points")
    arguments = given, jnp.sum(points**2, axis=1), prepared.doubled[0], prepared.sq_norms, count
    return tuple(
        least[:, None] + jax.lax.bitcast_convert_type(keys, jnp.float32)
        for keys, least in (
            pallas_nearest.smallest_keys(*arguments),
            assignment.smallest_keys(*arguments),
        )
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("s", "count", "product"),
    [
        (200, 9, "bfloat16x3"),
        pytest.param(200, 9, "float32", marks=pytest.mark.slow),
        pytest.param(1500, 40, "bfloat16x3", marks=pytest.mark.slow),
        (1500, 40, "float32"),
    ],
)
def test_the_keys_are_the_smallest(s, count, product):
    """Not only those that survive the certificate; the last bits hold the reference's number."""
    both = keys_of_both(gaussian(1, 150, 70), gaussian(0, s, 70), product, count)
    found, expected = (np.sort(np.asarray(distances), axis=1) for distances in both)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.long
def test_a_row_that_is_not_finite_is_refused(monkeypatch):
    monkeypatch.setattr(neighbors, "multiplies_halves", lambda: False)
    n, s, f, k = RAGGED
    points = gaussian(0, n, f)
    references = gaussian(1, s, f)
    points[128, 2] = np.inf
    with pytest.raises(
        ValueError, match="points has NaN or infinite values in 1 rows, first in row 128"
    ):
        neighbors.nearest(points, references, k, implementation="pallas")


def messages(n, num_buckets, seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (n, 2), np.uint32)
    return collision.Message(
        jnp.asarray(words), jnp.asarray(rng.integers(0, num_buckets, n), jnp.int32)
    )


@functools.partial(jax.jit, static_argnames=("num_cells", "implementation"))
def support(messages, num_buckets, num_cells, implementation):
    return collision.count_support(messages, num_buckets, num_cells, implementation=implementation)


def assert_counts_what_xla_counts(n, num_cells, num_buckets):
    """And about as many as there are by chance."""
    given = messages(n, num_buckets)
    counts = support(given, jnp.int32(num_buckets), num_cells, "pallas")
    chex.assert_trees_all_equal(counts, support(given, jnp.int32(num_buckets), num_cells, "xla"))
    expected = n * num_cells / num_buckets
    assert int(np.sum(counts)) == pytest.approx(expected, abs=7 * expected**0.5 + 1)


@pytest.mark.long
@pytest.mark.parametrize("num_buckets", [2, 5, 65_535])
def test_the_decode_kernel_counts_what_xla_counts(num_buckets):
    """One message and some cells more than a program takes."""
    assert_counts_what_xla_counts(4097, 1500, num_buckets)


@pytest.mark.slow
@given(
    st.sampled_from([0, 1, 100, 4097]),
    st.sampled_from([1, 1023, 1500]),
    st.sampled_from([2, 5, 65_535]),
)
def test_the_decode_kernel_counts_what_xla_counts_at_any_size(n, num_cells, num_buckets):
    assert_counts_what_xla_counts(n, num_cells, num_buckets)


def lowered(monkeypatch, function, *arguments):
    """The program for CUDA, as it is on a machine that has it."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernels, "_verified", lambda agrees: True)
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")  # jax 0.11 asks for one
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


SLOW_SIZES = [
    pytest.param(size, marks=pytest.mark.slow) for size in shapes.NEAREST if size != "svhn hog"
]


@pytest.mark.long
@pytest.mark.parametrize("size", ["svhn hog", *SLOW_SIZES])
def test_the_assignment_lowers_for_cuda(monkeypatch, size):
    n, s, f = shapes.NEAREST[size]
    arrays = jax.ShapeDtypeStruct((n, f), jnp.float32), jax.ShapeDtypeStruct((s, f), jnp.float32)
    program = lowered(
        monkeypatch, lambda p, r: neighbors.nearest(p, r, max(shapes.NEIGHBORS[size])), *arrays
    )
    assert program.count("triton") >= 2  # for all rows, and for those whose order is not proved
    assert "smallest_keys" in program


@pytest.mark.long
def test_the_decode_lowers_for_cuda(monkeypatch):
    n, num_cells = shapes.DECODE
    given = collision.Message(
        jax.ShapeDtypeStruct((n, 2), jnp.uint32), jax.ShapeDtypeStruct((n,), jnp.int32)
    )
    program = lowered(monkeypatch, lambda m: collision.count_support(m, 3, num_cells), given)
    assert "triton" in program
    assert "count_in_intervals" in program


@pytest.mark.long
def test_both_lower_for_tpu_by_xla(monkeypatch):
    """No kernel of another platform is called."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    arrays = (
        jax.ShapeDtypeStruct((70_000, 20), jnp.float32),
        jax.ShapeDtypeStruct((90, 20), jnp.float32),
    )
    given = collision.Message(
        jax.ShapeDtypeStruct((5_000, 2), jnp.uint32), jax.ShapeDtypeStruct((5_000,), jnp.int32)
    )
    for function, arguments in (
        (lambda p, r: neighbors.nearest(p, r, 3), arrays),
        (lambda m: collision.count_support(m, 3, 1_000), (given,)),
    ):
        program = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
        assert "triton" not in program
        assert "rknn_" not in program


def test_what_cannot_be_had_is_refused(monkeypatch):
    points = gaussian(0, 100, 3)
    with pytest.raises(ValueError, match="got cuda on a cpu"):
        neighbors.nearest(points, points, 1, implementation="cuda")
    with pytest.raises(NotImplementedError, match="at most 64 candidates"):
        neighbors.nearest(points, points, 60, implementation="pallas")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(ValueError, match="got pallas on a tpu"):
        kernels.chosen("pallas", lambda: True)
    assert kernels.chosen(None, lambda: True) == "xla"


def test_a_gpu_takes_only_a_kernel_that_agrees(monkeypatch):
    """A kernel that is wrong or does not compile costs one warning, and is asked once."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    asked = []

    def right():
        asked.append(1)
        return True

    def wrong():
        asked.append(1)
        return False

    def broken():
        asked.append(1)
        raise RuntimeError("no such instruction\nand more")

    assert [kernels.chosen(None, right) for _ in range(2)] == ["pallas"] * 2
    with pytest.warns(RuntimeWarning, match="differs from XLA") as warned:
        assert [kernels.chosen(None, wrong) for _ in range(2)] == ["xla"] * 2
    assert len(warned) == 1
    with pytest.warns(RuntimeWarning, match="no such instruction. XLA computes"):
        assert kernels.chosen(None, broken) == "xla"
    assert len(asked) == 3
    assert kernels.chosen("pallas", wrong) == "pallas"


def test_a_cpu_takes_a_native_kernel_that_was_compiled_and_agrees(monkeypatch):
    monkeypatch.setattr(kernels.native, "load", lambda: "library")
    assert kernels.chosen(None, lambda: False, lambda: True) == "native"
    assert kernels.chosen(None, lambda: True) == "xla"
    with pytest.warns(RuntimeWarning, match="differs from XLA"):
        assert kernels.chosen(None, lambda: True, lambda: False) == "xla"
    with pytest.raises(ValueError, match="got native on a cpu"):
        kernels.chosen("native", lambda: True)
    monkeypatch.setattr(kernels.native, "load", lambda: None)
    assert kernels.chosen(None, lambda: True, lambda: True) == "xla"
    with pytest.raises(ValueError, match="got native on a cpu"):
        kernels.chosen("native", lambda: True, lambda: True)


@pytest.mark.long
def test_the_comparison_of_the_decode_passes_and_finds_a_wrong_kernel(monkeypatch):
    assert collision._kernel_agrees()
    right = pallas_decode.count_in_intervals

    def wrong(*arguments, **named):
        return right(*arguments, **named).at[7].add(1)

    monkeypatch.setattr(pallas_decode, "count_in_intervals", wrong)
    assert not collision._kernel_agrees()


def test_the_comparison_runs_inside_of_a_traced_function(monkeypatch):
    """Its arrays are concrete there too."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    seen = []

    def agrees():
        seen.append(float(jnp.sum(jnp.ones(3))))
        return True

    @jax.jit
    def double(x):
        assert kernels.chosen(None, agrees) == "pallas"
        return 2 * x

    assert double(1.0) == 2
    assert seen == [3]


@pytest.mark.parametrize(("num_neighbors", "expected"), [(10, "pallas"), (60, "xla")])
def test_many_neighbors_are_found_without_the_kernel(monkeypatch, num_neighbors, expected):
    """Private-kNN's 300 neighbors must work on a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernels, "_verified", lambda agrees: True)
    points = jax.ShapeDtypeStruct((1000, 8), jnp.float32)
    how = neighbors._how(points, points, num_neighbors, None)
    assert how.implementation == expected

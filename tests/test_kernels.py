"""The Pallas kernels without a GPU: interpreted they equal the XLA forms, and they lower for CUDA."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rknn_jax import kernels, neighbors
from rknn_jax.kernels import nearest as pallas_nearest
from rknn_jax.kernels import shapes
from rknn_jax.mechanisms import collision


@pytest.fixture(autouse=True, scope="module")
def _not_by_differences():
    """Small problems go the way of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "FEW_DIFFERENCES", 0)
        yield


def gaussian(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@settings(max_examples=4)
@given(
    st.integers(0, 99),
    st.sampled_from([1, 127, 129, 300]),
    st.sampled_from([3, 33, 128, 200]),
    st.sampled_from([1, 37, 65]),
    st.integers(1, 16),
    st.booleans(),
)
def test_the_kernel_finds_what_xla_finds(seed, n, s, f, k, duplicates):
    """Ragged sizes, and duplicates, whose ties go to the lowest index: the answers are equal to the bit."""
    points, references, k = gaussian(seed, n, f), gaussian(seed + 1, s, f), min(k, s)
    references = references[np.arange(s) % 20] if duplicates else references
    found = neighbors.nearest(points, references, k, implementation="pallas")
    chex.assert_trees_all_equal(found, neighbors.nearest(points, references, k, implementation="xla"))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(("s", "count"), [(200, 9), (1500, 40)])
def test_the_keys_are_the_smallest(dtype, s, count):
    """Not only those that survive the certificate; summed in another order, few keys differ in their last bits."""
    how = neighbors._How(1, "sqeuclidean", "xla", (dtype,), 64)
    prepared = neighbors._prepare(jnp.asarray(gaussian(0, s, 70)), how)
    arguments = jnp.asarray(gaussian(1, 150, 70)), prepared.doubled[0], prepared.sq_norms, count
    expected = np.sort(neighbors._smallest_keys(*arguments), axis=1)
    found = np.sort(pallas_nearest.smallest_keys(*arguments), axis=1)
    assert found.shape == expected.shape
    assert np.mean(found == expected) > 0.9
    np.testing.assert_allclose(*(keys.astype(np.int32).view(np.float32) for keys in (found, expected)), rtol=1e-3)


def test_a_row_that_is_not_finite_is_refused():
    points, references = gaussian(0, 130, 5), gaussian(1, 40, 5)
    points[129, 2] = np.inf
    with pytest.raises(ValueError, match="points has NaN or infinite values in 1 rows, first in row 129"):
        neighbors.nearest(points, references, 3, implementation="pallas")


def messages(n, num_buckets, seed=0):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (n, 2), np.uint32)
    return collision.Message(jnp.asarray(words), jnp.asarray(rng.integers(0, num_buckets, n), jnp.int32))


@settings(max_examples=4)
@given(st.sampled_from([0, 1, 100, 4097]), st.sampled_from([1, 1023, 1500]), st.sampled_from([2, 5, 65_535]))
def test_the_decode_kernel_counts_what_xla_counts(n, num_cells, num_buckets):
    given = messages(n, num_buckets)
    counts = collision.count_support(given, num_buckets, num_cells, implementation="pallas")
    chex.assert_trees_all_equal(counts, collision.count_support(given, num_buckets, num_cells, implementation="xla"))
    assert int(counts.sum()) == pytest.approx(n * num_cells / num_buckets, abs=7 * (n * num_cells / num_buckets) ** 0.5 + 1)


def lowered(monkeypatch, function, *arguments):
    """The program for CUDA, as it is on a machine that has it."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("size", shapes.NEAREST)
def test_the_assignment_lowers_for_cuda(monkeypatch, size):
    n, s, f = shapes.NEAREST[size]
    arrays = jax.ShapeDtypeStruct((n, f), jnp.float32), jax.ShapeDtypeStruct((s, f), jnp.float32)
    program = lowered(monkeypatch, lambda p, r: neighbors.nearest(p, r, max(shapes.NEIGHBORS[size])), *arrays)
    assert program.count("triton") >= 2  # of bfloat16, and of float32 for the rows that it leaves
    assert "smallest_keys" in program


def test_the_decode_lowers_for_cuda(monkeypatch):
    n, num_cells = shapes.DECODE
    given = collision.Message(jax.ShapeDtypeStruct((n, 2), jnp.uint32), jax.ShapeDtypeStruct((n,), jnp.int32))
    program = lowered(monkeypatch, lambda m: collision.count_support(m, 3, num_cells), given)
    assert "triton" in program
    assert "count_in_intervals" in program


def test_what_cannot_be_had_is_refused(monkeypatch):
    points = gaussian(0, 100, 3)
    with pytest.raises(ValueError, match="got cuda on a cpu"):
        neighbors.nearest(points, points, 1, implementation="cuda")
    with pytest.raises(NotImplementedError, match="at most 64 candidates"):
        neighbors.nearest(points, points, 60, implementation="pallas")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(ValueError, match="got pallas on a tpu"):
        kernels.chosen("pallas")
    assert kernels.chosen(None) == "xla"

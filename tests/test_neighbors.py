"""Distances and neighbours against float64, over ragged shapes, ties and far-away origins."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import neighbors


def data(seed, n, s, f, offset=0.0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, f)) + offset).astype(np.float32), (rng.normal(size=(s, f)) + offset).astype(np.float32)


def sq_distances64(points, references):
    return ((points[:, None].astype(np.float64) - references[None].astype(np.float64)) ** 2).sum(-1)


def cosine64(points, references):
    points, references = points.astype(np.float64), references.astype(np.float64)
    return 1 - points @ references.T / np.linalg.norm(points, axis=1)[:, None] / np.linalg.norm(references, axis=1)[None]


@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 30), st.integers(1, 20), st.sampled_from([0.0, 100.0]))
def test_distances_equal_float64_even_far_from_the_origin(seed, n, s, f, offset):
    points, references = data(seed, n, s, f, offset)
    expected = sq_distances64(points, references)
    np.testing.assert_allclose(neighbors.pairwise_sq_distances(points, references), expected, rtol=1e-5, atol=2e-4)
    np.testing.assert_allclose(neighbors.pairwise_cosine_distances(points, references), cosine64(points, references), atol=2e-6)


@given(
    st.integers(0, 99),
    st.sampled_from([1, 255, 256, 257, 600]),
    st.integers(1, 30),
    st.integers(1, 9),
    st.sampled_from(["sqeuclidean", "cosine"]),
)
def test_nearest_is_the_float64_order_at_every_block_boundary(seed, n, s, k, metric):
    points, references = data(seed, n, s, 7)
    k = min(k, s)
    distances = (sq_distances64 if metric == "sqeuclidean" else cosine64)(points, references)
    index, found = neighbors.nearest(points, references, k, metric=metric)
    chex.assert_shape((index, found), (n, k))
    chex.assert_type([index, found], [jnp.int32, jnp.float32])
    np.testing.assert_allclose(found, np.sort(distances, axis=1)[:, :k], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(distances, np.asarray(index), 1), np.sort(distances, axis=1)[:, :k], rtol=1e-4, atol=1e-5)
    assert all(len(set(row)) == k for row in np.asarray(index).tolist())


@pytest.mark.parametrize("k", [1, 3])
def test_ties_go_to_the_lowest_index(k):
    references = np.repeat(np.eye(2, dtype=np.float32), 4, axis=0)
    index, _ = neighbors.nearest(references[:1], references, k)
    np.testing.assert_array_equal(index[0], np.arange(k))


def test_reverse_and_forward_neighbours_are_one_function_with_swapped_arguments():
    points, references = data(0, 50, 20, 5)
    distances = sq_distances64(points, references)
    np.testing.assert_array_equal(neighbors.nearest(points, references, 1)[0][:, 0], distances.argmin(1))
    np.testing.assert_array_equal(neighbors.nearest(references, points, 1)[0][:, 0], distances.argmin(0))


def test_one_record_moves_no_other_record():
    points, references = data(0, 300, 20, 5)
    before, _ = neighbors.nearest(points, references, 3)
    points[17] = 9
    after, _ = neighbors.nearest(points, references, 3)
    others = np.arange(300) != 17
    np.testing.assert_array_equal(np.asarray(before)[others], np.asarray(after)[others])


def test_the_distance_matrix_is_never_held():
    """Temporaries of the compiled program at 600,000 x 500 x 324, k = 4: far below the 1.2 GB of an [n, s] matrix."""
    shapes = jax.ShapeDtypeStruct((600_000, 324), jnp.float32), jax.ShapeDtypeStruct((500, 324), jnp.float32)
    memory = neighbors._nearest.lower(*shapes, num_neighbors=4, metric="sqeuclidean").compile().memory_analysis()
    assert memory.temp_size_in_bytes < 100e6


def test_jit_and_vmap_agree_with_the_plain_call():
    points, references = data(3, 40, 12, 4)
    plain = neighbors.nearest(points, references, 2)
    chex.assert_trees_all_equal(jax.jit(lambda p, r: neighbors.nearest(p, r, 2))(points, references), plain)
    stacked = jax.vmap(lambda p: neighbors.nearest(p, references, 2))(jnp.stack([points, points]))
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[1], stacked), plain, rtol=1e-6)


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


def test_the_first_row_that_is_not_finite_is_named():
    features = np.zeros((5, 3), np.float32)
    neighbors.check_finite("embeddings", features)
    features[3, 1] = np.nan
    features[4, 1] = np.inf
    with pytest.raises(ValueError, match="embeddings has NaN or infinite values in 2 rows, first in row 3"):
        neighbors.check_finite("embeddings", features)


def test_a_zero_vector_is_at_cosine_distance_one():
    np.testing.assert_allclose(neighbors.pairwise_cosine_distances(np.zeros((1, 3), np.float32), np.eye(3, dtype=np.float32)), 1)


@pytest.mark.parametrize("copies", [1, 3])
def test_no_point_is_its_own_neighbour_even_among_duplicates(copies):
    points = np.repeat(np.random.default_rng(0).normal(size=(30, 3)), copies, axis=0).astype(np.float32)
    graph = neighbors.self_graph(points, 4, 3)
    assert graph.diagonal().max() == 0
    assert np.isfinite(graph.data).all()
    assert ((graph > 0).sum(axis=1) >= 4).all()
    assert abs(graph - graph.T).max() < 1e-7


def test_a_graph_of_few_points_has_fewer_neighbours():
    assert neighbors.self_graph(np.float32([[0.0], [1.0]])).nnz == 2

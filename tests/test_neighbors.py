"""Distances and neighbours against float64, over ragged shapes, ties and far-away origins."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import bsvs, graphs, neighbors


def data(seed, n, s, f, offset=0.0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, f)) + offset).astype(np.float32), (rng.normal(size=(s, f)) + offset).astype(np.float32)


def sq_distances64(points, references):
    return ((points[:, None].astype(np.float64) - references[None].astype(np.float64)) ** 2).sum(-1)


def cosine64(points, references):
    points, references = points.astype(np.float64), references.astype(np.float64)
    return 1 - points @ references.T / np.linalg.norm(points, axis=1)[:, None] / np.linalg.norm(references, axis=1)[None]


DISTANCES = {"sqeuclidean": sq_distances64, "cosine": cosine64}


@pytest.fixture(autouse=True, scope="module")
def _not_by_differences():
    """Small problems go the way of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "FEW_DIFFERENCES", 0)
        yield


@pytest.fixture(params=["bfloat16", "float32"])
def first_product(request, monkeypatch):
    """The precision of the product that is tried first."""
    monkeypatch.setattr(neighbors, "multiplies_halves", lambda platform: request.param == "bfloat16")


def assert_nearest(index, found, distances):
    """Distances are those of the float64 order; another index is allowed where distances agree to 1e-5."""
    index, found = np.asarray(index), np.asarray(found)
    expected = np.sort(distances, axis=1)[:, : index.shape[1]]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(distances, index, 1), expected, rtol=1e-5, atol=1e-6)
    assert (np.diff(np.sort(index, axis=1), axis=1) > 0).all()


@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 30), st.integers(1, 20), st.sampled_from([0.0, 100.0]))
def test_distances_equal_float64_even_far_from_the_origin(seed, n, s, f, offset):
    points, references = data(seed, n, s, f, offset)
    expected = sq_distances64(points, references)
    np.testing.assert_allclose(neighbors.pairwise_sq_distances(points, references), expected, rtol=1e-5, atol=2e-4)


@given(
    st.integers(0, 99),
    st.sampled_from([1, 63, 64, 65, 200]),
    st.sampled_from([1, 9, 30]),
    st.sampled_from([1, 4, 16]),
    st.sampled_from(["sqeuclidean", "cosine"]),
)
def test_nearest_is_the_float64_order_at_every_block_boundary(seed, n, s, k, metric):
    points, references = data(seed, n, s, 7)
    k = min(k, s)
    index, found = neighbors.nearest(points, references, k, metric=metric)
    chex.assert_shape((index, found), (n, k))
    chex.assert_type([index, found], [jnp.int32, jnp.float32])
    assert_nearest(index, found, DISTANCES[metric](points, references))


@pytest.mark.parametrize(("s", "k"), [(1024, 3), (1025, 3), (2100, 40), (1100, 1100)])
def test_many_references_are_taken_in_groups(s, k):
    points, references = data(0, 70, s, 5)
    assert_nearest(*neighbors.nearest(points, references, k), sq_distances64(points, references))


def test_parts_on_several_cores_are_put_together(monkeypatch):
    points, references = data(0, 2 * neighbors.SMALLEST_PART + 1, 20, 3)
    labels = np.arange(len(points)) % 4
    index, found = neighbors.nearest(points, references, 2)
    counts = neighbors.nearest_votes(points, references, labels, 2, 4)
    assert_nearest(index, found, sq_distances64(points, references))
    monkeypatch.setattr(neighbors, "SMALLEST_PART", len(points))
    chex.assert_trees_all_equal(neighbors.nearest(points, references, 2), (index, found))
    np.testing.assert_array_equal(neighbors.nearest_votes(points, references, labels, 2, 4), counts)


def hard(kind):
    """Points and references whose distances the product cannot tell apart, or can only for some rows."""
    points, references = data(1, 130, 60, 24)
    if kind == "far from the origin":  # centring helps neither of two clusters
        side = np.float32([[300.0], [-300.0]])
        return points + side[np.arange(130) % 2], references + side[np.arange(60) % 2]
    if kind == "close":
        return points * np.float32(1e-3) + references[np.arange(130) % 60], references
    if kind == "one huge":
        return points, np.concatenate([references[:-1], 1e4 * references[:1]])
    if kind == "duplicates":
        return np.round(points), np.round(references[np.arange(60) % 7])
    return references[np.arange(130) % 60], references


@pytest.mark.usefixtures("first_product")
@pytest.mark.parametrize("kind", ["far from the origin", "close", "one huge", "duplicates", "the same"])
def test_rows_that_a_product_cannot_decide_are_exact_too(kind):
    k, (points, references) = 3, hard(kind)
    distances = sq_distances64(points, references)
    index, found = neighbors.nearest(points, references, k)
    np.testing.assert_allclose(found, np.sort(distances, axis=1)[:, :k], rtol=1e-5)
    if kind == "duplicates":  # whole numbers: the order is that of float64, ties included
        np.testing.assert_array_equal(index, np.argsort(distances, axis=1, kind="stable")[:, :k])


@functools.partial(jax.jit, static_argnames="how")
def refine(points, references, how):
    return neighbors._refine(points, neighbors._prepare(references, how), how, 0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("kind", ["plain", "far from the origin", "close", "one huge", "duplicates", "the same"])
def test_a_certified_row_is_right_and_others_are_not_always(kind, dtype):
    points, references = data(1, 4000, 200, 24) if kind == "plain" else hard(kind)
    how = neighbors._How(2, "sqeuclidean", "xla", (dtype,), 64)
    index, distance, sure = refine(points, references, how)
    expected = np.sort(sq_distances64(points, references), axis=1)[:, :2].T
    right = np.isclose(distance, expected, rtol=1e-5, atol=0).all(axis=0)
    assert right[np.asarray(sure)].all()
    if kind == "plain":
        assert np.mean(sure) > 0.95
    if kind == "far from the origin" and dtype == jnp.bfloat16:
        assert not right.all()  # so a certificate is needed


def test_few_differences_are_taken_one_by_one(monkeypatch):
    points, references = data(0, 70, 30, 9)
    filtered = neighbors.nearest(points, references, 3)
    monkeypatch.setattr(neighbors, "FEW_DIFFERENCES", points.size * len(references))
    index, distance = neighbors.nearest(points, references, 3)
    np.testing.assert_array_equal(index, filtered[0])
    np.testing.assert_allclose(distance, filtered[1], rtol=1e-6)


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


@pytest.mark.usefixtures("first_product")
def test_one_record_moves_no_other_record():
    """To the bit, although blocks of records share products: what sensitivity rests on."""
    points, references = data(0, 300, 20, 5)
    before = neighbors.nearest(points, references, 3)
    points[17] = 9
    after = neighbors.nearest(points, references, 3)
    others = np.arange(300) != 17
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[others], np.asarray(other)[others])


@pytest.mark.parametrize("s", [200, 1200])
def test_a_row_that_becomes_undecided_takes_no_other_along(s, monkeypatch):
    """Three references are as near as each other up to rounding, and the record that is replaced comes to lie among duplicates."""
    monkeypatch.setattr(neighbors, "multiplies_halves", lambda platform: False)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        points, references = data(seed, 64, s, 64)
        references *= 3
        same = (rng.integers(-(2**10), 2**10, 64) / 2**10 * 0.3).astype(np.float32)
        references[:3] = [rng.permutation(same) for _ in range(3)]
        points[:3], references[20:40], references[20:40, 0] = 0, 0, 20
        other = points.copy()
        other[50] = references[20]
        counts = [neighbors.nearest_votes(given, references, np.zeros(64, int), 1, 1) for given in (points, other)]
        assert np.abs(counts[0] - counts[1]).sum() <= 2


def test_operands_that_lose_their_last_bits_alike_are_not_trusted():
    """All references round to few values, so that the products are wrong by as much as they can be."""
    unit = 2.0**-8

    def reference(up):
        row = np.full((1, 16), 1 + unit, np.float32)
        row[0, :up] = 1 + 3 * unit
        return row

    half = np.concatenate([reference(16)] * 4 + [reference(6)] * 3 + [reference(0)])
    how = neighbors._How(1, "sqeuclidean", "xla", (jnp.bfloat16,), 64)
    points, references = np.tile(reference(0), (64, 1)), np.concatenate([half, -half])
    index, _, sure = refine(points, references, how)
    assert not np.any(sure & (index[0] != 7))
    np.testing.assert_array_equal(neighbors.nearest(points, references, 1)[0], np.full((64, 1), 7))


@pytest.mark.parametrize("scale", [1e-23, 1e18])
def test_cosines_do_not_depend_on_the_scale(scale):
    vectors = data(0, 30, 1, 784)[0]
    index, distance = neighbors.nearest(vectors * np.float32(scale), vectors[::-1].copy(), 1, metric="cosine")
    np.testing.assert_array_equal(index[:, 0], np.arange(30)[::-1])
    np.testing.assert_allclose(distance, 0, atol=1e-6)


def test_squares_below_float32s_range_decide_nothing():
    points, references = (np.float32(1e-19) * part for part in data(0, 512, 300, 16))
    how = neighbors._How(1, "sqeuclidean", "xla", (jnp.float32,), 64)
    index, _, sure = refine(points, references, how)
    exact, _ = neighbors._by_differences(jnp.asarray(points), jnp.asarray(references), 1)
    assert not np.any(sure & (index[0] != exact[0]))


@pytest.mark.usefixtures("first_product")
def test_a_record_has_the_same_neighbours_in_any_company():
    points, references = hard("close")
    order = np.random.default_rng(0).permutation(len(points))[:77]
    chex.assert_trees_all_equal(
        jax.tree.map(lambda x: x[order], neighbors.nearest(points, references, 4)), neighbors.nearest(points[order], references, 4)
    )


@pytest.mark.parametrize(("n", "several"), [(1, False), (64, False), (150, True)])
def test_votes_summed_on_the_way_are_those_of_the_ids(n, several):
    points, references = data(0, n, 11, 4)
    labels = np.random.default_rng(1).integers(-1, 5, (n, 3) if several else n)
    cells = bsvs.cells(neighbors.nearest(points, references, 2)[0], labels, 5)
    expected = bsvs.sum_votes(cells, 55).reshape(11, 5)
    np.testing.assert_array_equal(neighbors.nearest_votes(points, references, labels, 2, 5), expected)


def memory(function, *shapes, **fixed):
    how = neighbors._how(*shapes[:2], 4, "sqeuclidean", None)
    return function.lower(*shapes, 0, 0, len(shapes[0]), len(shapes[0]), how=how, **fixed).compile().memory_analysis()


def test_neither_the_distances_nor_the_connections_are_held():
    """At 500 references and k = 4: far below the 1.2 GB of an [n, s] matrix, and the votes need the same for any n."""
    shapes = jax.ShapeDtypeStruct((600_000, 324), jnp.float32), jax.ShapeDtypeStruct((500, 324), jnp.float32)
    assert memory(neighbors._nearest, *shapes).temp_size_in_bytes < 10e6 + 32 * 600_000
    votes = memory(neighbors._nearest_votes, *shapes, jax.ShapeDtypeStruct((600_000,), jnp.int32), num_classes=10)
    assert votes.temp_size_in_bytes + votes.output_size_in_bytes < 10e6


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


def test_labels_of_another_number_are_refused():
    with pytest.raises(ValueError, match="each of 5 points, got 4"):
        neighbors.nearest_votes(np.zeros((5, 3), np.float32), np.zeros((4, 3), np.float32), np.zeros(4, int), 1, 2)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("where", ["points", "references"])
def test_features_that_are_not_finite_are_refused(where, value):
    arrays = dict(zip(("points", "references"), data(0, 80, 9, 3), strict=True))
    arrays[where][7, 1] = value
    for run in (neighbors.nearest, lambda p, r, k: neighbors.nearest_votes(p, r, np.zeros(80, int), k, 2)):
        with pytest.raises(ValueError, match=f"{where} has NaN or infinite values in 1 rows, first in row 7"):
            run(arrays["points"], arrays["references"], 2)


def test_features_too_large_for_float32_are_refused_and_large_ones_are_not():
    points, references = data(0, 30, 9, 3)
    assert_nearest(
        neighbors.nearest(1e17 * points, 1e17 * references, 2)[0],
        neighbors.nearest(points, references, 2)[1],
        sq_distances64(points, references),
    )
    with pytest.raises(ValueError, match="squared distances fit float32"):
        neighbors.nearest(1e30 * points, 1e30 * references, 2)


def test_the_first_row_that_is_not_finite_is_named():
    features = np.zeros((5, 3), np.float32)
    neighbors.check_finite("embeddings", features)
    features[3, 1] = np.nan
    features[4, 1] = np.inf
    with pytest.raises(ValueError, match="embeddings has NaN or infinite values in 2 rows, first in row 3"):
        neighbors.check_finite("embeddings", features)


def test_a_zero_vector_is_at_cosine_distance_one():
    vectors = np.concatenate([np.zeros((1, 3)), np.eye(3)]).astype(np.float32)
    index, distance = neighbors.nearest(vectors, vectors, 4, metric="cosine")
    np.testing.assert_allclose(distance, [[1, 1, 1, 1], *[[0, 1, 1, 1]] * 3], atol=1e-6)
    np.testing.assert_array_equal(index, [[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]])


@pytest.mark.parametrize("copies", [1, 3])
def test_no_point_is_its_own_neighbour_even_among_duplicates(copies):
    points = np.repeat(np.random.default_rng(0).normal(size=(30, 3)), copies, axis=0).astype(np.float32)
    graph = graphs.self_graph(points, 4, 3)
    assert graph.diagonal().max() == 0
    assert np.isfinite(graph.data).all()
    assert ((graph > 0).sum(axis=1) >= 4).all()
    assert abs(graph - graph.T).max() < 1e-7


def test_a_graph_of_few_points_has_fewer_neighbours():
    assert graphs.self_graph(np.float32([[0.0], [1.0]])).nnz == 2

"""The public side of the decoder against its definitions, written out in float64."""

import jax
import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from rknn_jax import answers
from rknn_jax.answers import covariance, process, radial, walks
from rknn_jax.kernels.native import public_side
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans
from rknn_jax.types import Queries


@pytest.fixture(autouse=True, params=["native", "numpy"])
def form(request, monkeypatch):
    """Run every test with the native kernels, and as an installation without a compiler does."""
    if request.param == "numpy":
        monkeypatch.setattr(public_side, "runs", lambda: False)
    elif not public_side.runs():
        pytest.skip("no native library was compiled")


@pytest.fixture(scope="module")
def digits():
    """Public rows, queries, graph, and votes of other digits, without noise."""
    rows, labels = load_digits(return_X_y=True)
    features = rows.astype(np.float32)
    public, private = features[:700], features[700:]
    queries = kmeans.select(jax.random.key(0), public, 60)
    near = np.asarray(nearest(private, queries.features, 1))[:, 0]
    votes = np.zeros((60, 10))
    np.add.at(votes, (near, labels[700:]), 1)
    return public, queries, self_graph(public), votes


def averages(cluster, num_queries):
    """Return the means of queries, dense float64 `[s, m]`; those without rows have none."""
    hot = (np.asarray(cluster) == np.arange(num_queries)[:, None]).astype(float)
    return hot / np.maximum(hot.sum(axis=1, keepdims=True), 1)


def of_walks(graph, again, mean):
    """Return the covariances of rows with queries, as the equation of walks defines them."""
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = 1 / np.sqrt(np.where(degree > 0, degree, 1))
    similarity = graph.toarray() * scale[:, None] * scale
    return np.linalg.solve(np.eye(len(scale)) - again * similarity, mean.T)


def of_widths(features, width, mean):
    rows = np.asarray(features, np.float64)
    apart = ((rows[:, None] - rows) ** 2).sum(axis=2)
    return np.exp(-apart / (width * np.median(apart))) @ mean.T


def far(found, expected):
    """Return the relative error of the whole."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def check_walks(graph, cluster, num_queries, longest=1e-4):
    """Compare walks with their definition, with an error of the `longest` between queries."""
    order = np.argsort(cluster, kind="stable")
    size = np.bincount(cluster, minlength=num_queries).astype(float)
    mean = averages(cluster[order], num_queries)
    graph = graph[order][:, order]
    every = zip(walks.WALKS, walks.walks(graph, cluster[order], size), strict=True)
    for again, found in every:
        expected = of_walks(graph, again, mean)
        rows = found.ties.astype(np.float64) @ found.between + found.between[cluster[order]]
        most = longest if again == 0.999 else 1e-4
        assert far(found.between, mean @ expected) < most
        assert far(rows, expected) < most + 4e-4, "rounded to half precision"


@pytest.mark.long
def test_walks_solve_their_equation(digits):
    public, queries, graph, _ = digits
    check_walks(graph, queries.cluster, 60)
    check_walks(graph, np.zeros(len(public), int), 1, 3e-4)
    check_walks(graph, np.random.default_rng(0).integers(0, 40, len(public)), 40)


@pytest.mark.long
def test_walks_of_islands_of_lone_rows_and_of_queries_without_rows(digits):
    """Islands inside a cluster are never left: their eigenvalues are those of the longest walks."""
    public, queries, graph, _ = digits
    island = np.arange(len(public)) // 20
    apart = graph.multiply(island[:, None] == island).tocsr()
    check_walks(apart, queries.cluster, 60, 2e-3)
    check_walks(apart, island // 4, 12, 1e-2)
    check_walks(graph, np.arange(len(public)), len(public))
    check_walks(scipy.sparse.csr_matrix(graph.shape), queries.cluster, 62)


@pytest.mark.long
def test_walks_whose_eigenvalues_are_outside_of_the_estimated_range(digits, monkeypatch):
    """The series would grow without bound; a wider range is taken."""
    public, queries, graph, _ = digits
    monkeypatch.setattr(walks._Moves, "_eigenvalues", lambda moves: (-0.2, 0.2))
    check_walks(graph, queries.cluster, 60)


def test_an_inverse_that_rounding_spoils_has_the_least_eigenvalues_that_it_may():
    values, vectors = np.array([1e-9, -1e-9, 2.0]), np.linalg.qr(np.ones((3, 3)) + np.eye(3))[0]
    found = walks._inverse((vectors * values) @ vectors.T, np.full(3, 0.1))
    expected = (vectors / [0.1, 0.1, 2.0]) @ vectors.T
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.long
def test_radial_kernels_are_their_definition(digits, monkeypatch):
    public, queries, _, _ = digits
    mean = averages(queries.cluster, 60)
    monkeypatch.setattr(radial, "CELLS_AT_ONCE", 10_000)
    for block in (radial.BLOCK, 0):
        monkeypatch.setattr(radial, "BLOCK", block)
        kernels = radial.radial(lambda which: public[which], queries.cluster, 60)
        for width, found in zip(radial.WIDTHS, kernels, strict=True):
            expected = of_widths(public, width, mean)
            assert far(found.across(slice(100, 300)), expected[100:300]) < 1e-5
            assert far(found.between, mean @ expected) < 1e-5
            assert np.linalg.eigvalsh(found.between)[0] > 0
    assert radial.WIDTHS[0] * 3 == pytest.approx(radial.WIDTHS[1])


@pytest.mark.parametrize("count", [1, 2, 5, 6, 101, 700])
def test_the_median_distance_is_that_of_all_pairs(digits, count, monkeypatch):
    monkeypatch.setattr(radial, "CELLS_AT_ONCE", 20_000)
    rows = digits[0][:count]
    apart = ((rows[:, None] - rows) ** 2).sum(axis=2)
    assert radial.median_sq_distance(rows) == pytest.approx(np.median(apart), rel=1e-6)


def former(features, queries, graph):
    """Return the kernels as they were first, from matrices of all rows in float64."""
    size = np.bincount(queries.cluster, minlength=len(queries.index)).astype(float)
    mean = averages(queries.cluster, len(size))
    rows = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    across = [of_widths(rows, width, mean) for width in radial.WIDTHS]
    across += [of_walks(graph, again, mean) for again in walks.WALKS]
    across += [rows @ (mean @ rows).T, mean.T * size]
    *local, linear, own = (
        covariance.Kernel.centered(
            np.eye(len(size)) if one is across[-1] else mean @ one,
            covariance.Raw(queries.cluster, lambda block, one=one: one[block]),
            size,
        )
        for one in across
    )
    return covariance.Kernels(tuple(local), linear, own, size, queries.cluster)


@pytest.mark.long
@pytest.mark.parametrize(
    "epsilon", [0.1, *(pytest.param(one, marks=pytest.mark.long) for one in (0.5, 2.0, np.inf))]
)
def test_labels_are_those_of_matrices_in_double_precision_but_for_ties(digits, epsilon):
    """Probabilities differ by less than 1e-3, so that labels differ at closer ties alone."""
    public, queries, graph, votes = digits
    ours = answers.kernels(queries, public, graph)
    theirs = former(public, queries, graph)
    rng = np.random.default_rng(0)
    for _ in range(3):
        noise = 0 if epsilon == np.inf else rng.laplace(scale=2 / epsilon, size=votes.shape)
        stddev = np.full(votes.shape, np.sqrt(8) / epsilon)
        found, expected = (
            answers.decode(votes + noise, stddev, kernels, redraws=0) for kernels in (ours, theirs)
        )
        np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-3)
        best = np.sort(expected.probabilities, axis=1)
        clear = best[:, -1] - best[:, -2] > 1e-3
        np.testing.assert_array_equal(found.labels[clear], expected.labels[clear])
        assert clear.mean() > 0.98


def test_products_are_those_of_the_rows(digits):
    public, queries, graph, _ = digits
    kernels = answers.kernels(queries, public, graph)
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(60, 7)), rng.normal(size=(60, 3)).astype(np.float32)
    block = slice(50, 400)
    for kernel in (*kernels.local, kernels.linear, kernels.own):
        rows = kernel.rows(block)
        for given, found in zip(columns, kernel.products(columns)(block), strict=True):
            assert found.dtype == given.dtype
            assert far(found, rows @ given) < 1e-5


@pytest.mark.long
def test_log_likelihoods_of_little_noise_are_computed_in_double_precision(digits):
    """Those that may matter are; the others are far from the greatest either way."""
    public, queries, graph, votes = digits
    kernels = answers.kernels(queries, public, graph)
    tried, _ = process.mixtures(kernels, 10)
    for stddev, counts in ((0.0, votes * 1e4), (30.0, votes)):
        noise = np.full(votes.shape, stddev)
        seen = process.standardized(counts, noise, kernels.size, np.ones(10))
        exact = np.array([process.log_likelihood(seen, one.between) for one in tried])
        found = process.log_likelihoods(seen, tried)
        near = exact > exact.max() - process.MAY_MATTER / 2
        np.testing.assert_allclose(found[near], exact[near], atol=process.UNHEARD)
        assert (found[~near] < exact.max() - process.MAY_MATTER / 4).all()


def test_a_query_of_each_row(digits):
    public = digits[0][:80]
    rows = np.arange(80)
    kernels = answers.kernels(Queries(public, rows, rows, np.ones(80)), public, self_graph(public))
    found = answers.decode(np.eye(80, 3) * 9, np.ones((80, 3)), kernels)
    assert np.isfinite(found.probabilities).all()
    assert np.isfinite(found.stability).all()


@pytest.mark.parametrize("num_queries", [1, 2])
@pytest.mark.parametrize("equal", [True, False])
def test_few_queries_label_all_rows(num_queries, equal):
    """One query, as where all public rows are equal, is a release like any other."""
    rng = np.random.default_rng(0)
    features = np.ones((40, 4), np.float32) if equal else rng.normal(size=(40, 4)).astype("f4")
    cluster = (np.arange(40) % num_queries).astype(np.int32)
    size = np.bincount(cluster)
    queries = Queries(features[:num_queries], np.arange(num_queries), cluster, size)
    found = answers.kernels(queries, features)
    counts = np.array([[50.0, 3, 2]] * num_queries)
    told = answers.decode(counts, np.full_like(counts, 2.0), found)
    assert told.labels.tolist() == [0] * 40
    assert told.probabilities.shape == (40, 3)


@threadpool_limits.wrap(1)  # on a busy machine, several threads wait for each other
def test_components_of_wide_rows_are_those_of_all_eigenvectors(monkeypatch):
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((400, 150)))[0] * np.linspace(3, 0.1, 150)
    features = (rng.standard_normal((300, 150)) @ directions.T).astype(np.float32)
    features -= features.mean(axis=0)
    exact = covariance._components(lambda which: features[which], 300, 400)
    monkeypatch.setattr(covariance, "WIDE", 100)
    found = covariance._components(lambda which: features[which], 300, 400)
    np.testing.assert_allclose(found.T @ found, np.eye(100), atol=1e-9)
    kept = [np.linalg.norm(features @ basis) ** 2 for basis in (found, exact)]
    assert kept[0] > 0.998 * kept[1]
    # Fewer rows than components: all that there is stays.
    few = covariance._components(lambda which: features[:40][which], 40, 400)
    np.testing.assert_allclose(features[:40] @ few @ few.T, features[:40], atol=1e-4)

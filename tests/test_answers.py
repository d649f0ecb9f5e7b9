"""Class shares by likelihood: against the dense Gaussian process, and where smoothing is known."""

import jax
import numpy as np
import pytest
import scipy.linalg
from sklearn.datasets import load_digits

from rknn_jax import answers, postprocessing
from rknn_jax.labelers import rknn
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans
from rknn_jax.types import Queries

NONE = Guarantee(1.0, 0.0, "replace-one", "central", ())


@pytest.fixture(scope="module")
def digits():
    """Public rows, their labels, queries, kernels and votes of other digits, without noise."""
    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    public, private = order[:500], order[500:]
    features = rows.astype(np.float32)
    queries = kmeans.select(jax.random.key(0), features[public], 33)
    near = np.asarray(nearest(features[private], queries.features, 1)[0])[:, 0]
    votes = np.zeros((33, 10))
    np.add.at(votes, (near, labels[private]), 1)
    graph = self_graph(features[public])
    kernels = answers.kernels(queries, features[public], graph)
    return features[public], labels[public], queries, graph, kernels, votes


def small():
    """Return a few rows in a line, their queries and features."""
    features = np.linspace(0, 5, 12, dtype=np.float32)[:, None] + np.zeros((1, 2), np.float32)
    cluster = np.arange(12) // 3
    centers = np.stack([features[cluster == q].mean(axis=0) for q in range(4)])
    size = np.full(4, 3.0)
    return Queries(centers, np.arange(4) * 3, cluster, size), features


def test_the_posterior_is_that_of_the_rows_as_a_gaussian_process():
    """Row by row, with all covariances written out, in float64."""
    _, features = small()
    mean = np.kron(np.eye(4), np.full((1, 3), 1 / 3))
    rows = features.astype(np.float64) - features.mean(axis=0)
    whole = rows @ rows.T
    unit = np.mean(np.diag(mean @ whole @ mean.T))
    whole = whole / unit + 0.05
    queries, _ = small()
    kernel = answers.kernels(queries, features).linear
    mixed = answers._mixed([(1.0, kernel)], 0.05)
    counts = np.array([[9.0, 1, 0], [6, 4, 1], [2, 5, 2], [0, 3, 8]])
    seen = answers.standardized(counts, np.full((4, 3), 0.7), np.full(4, 3.0))
    gain = whole @ mean.T @ np.linalg.inv(mean @ whole @ mean.T + np.diag(seen.noise))
    found, variance = answers._posterior(seen, mixed)
    assert found == pytest.approx(seen.prior + seen.spread * (gain @ seen.residual), abs=1e-7)
    left = np.diag(whole - gain @ mean @ whole)
    assert variance == pytest.approx(left[:, None] * seen.spread**2, abs=1e-7)


def test_the_likelihood_is_that_of_the_normal_distribution():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    seen = answers.Seen(rng.normal(size=(5, 3)), np.full(5, 0.3), np.full(3, 1 / 3))
    covariance = root @ root.T + 0.3 * np.eye(5)
    found = answers._log_likelihood(seen, root @ root.T)
    sign, log_determinant = np.linalg.slogdet(covariance)
    exact = -0.5 * np.trace(seen.residual.T @ scipy.linalg.solve(covariance, seen.residual))
    assert sign == 1
    assert found == pytest.approx(exact - 1.5 * log_determinant, rel=1e-6)


def test_kernels_are_sound_and_without_their_mean(digits):
    *_, kernels, _ = digits
    weight = kernels.size / kernels.size.sum()
    for kernel in (*kernels.local, kernels.linear, kernels.own):
        assert np.linalg.eigvalsh(kernel.between)[0] > -1e-6
        assert np.mean(np.diag(kernel.between)) == pytest.approx(1)
        assert np.abs(kernel.between @ weight).max() < 1e-6
        assert np.abs(kernel.across @ weight).max() < 1e-6


def test_walks_solve_their_equation(digits):
    features, _, _, graph, _, _ = digits
    scale = 1 / np.sqrt(np.asarray(graph.sum(axis=1)).ravel())
    similarity = graph.multiply(scale[:, None]).multiply(scale).tocsr()
    start = np.eye(len(features))[:, :5]
    found = answers._walked(similarity, 0.99, start)
    assert found - 0.99 * (similarity @ found) == pytest.approx(start, abs=1e-3)


def by_default(counts, stddev, queries, graph):
    answered = rknn.answer(counts, stddev, NONE, queries, rknn.ReverseKNN())
    own = answered.probabilities[queries.cluster]
    return postprocessing.public_labels(graph, own, len(counts)).argmax(axis=1)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_more_labels_are_right_than_by_strengths_that_are_set_beforehand(digits, epsilon):
    """Fixed noise: 0.85 against 0.82 at epsilon = 0.2, 0.96 against 0.95 at 1."""
    _, truth, queries, graph, kernels, votes = digits
    rng = np.random.default_rng(1)
    right = np.zeros((8, 2))
    keep = 1 - np.exp(-epsilon / 2)
    for one in right:
        noise = rng.geometric(keep, votes.shape) - rng.geometric(keep, votes.shape)
        stddev = np.full(votes.shape, np.sqrt(2) * 2 / epsilon)
        shares = answers.decode(votes + noise, stddev, kernels)
        default = by_default(votes + noise, stddev, queries, graph)
        one[:] = np.mean(shares.labels == truth), np.mean(default == truth)
        assert shares.probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert right[:, 0].mean() > right[:, 1].mean()


def test_confidence_is_near_what_is_right_and_falls_with_noise(digits):
    _, truth, _, _, kernels, votes = digits
    rng = np.random.default_rng(2)
    told = []
    for stddev in (0.5, 8.0, 200.0):
        noisy = votes + stddev * rng.normal(size=votes.shape)
        shares = answers.decode(noisy, np.full(votes.shape, stddev), kernels)
        told.append((shares.confidence.mean(), np.mean(shares.labels == truth), shares.agreement))
    assert abs(told[0][0] - told[0][1]) < 0.08
    assert told[0][0] > told[1][0] > told[2][0]
    assert told[2][0] < 0.3, "counts that tell nothing leave nothing to be sure of"
    assert told[0][2] > told[2][2]


def test_counts_without_noise_or_votes_are_no_error():
    queries, features = small()
    kernels = answers.kernels(queries, features)
    for counts in (np.zeros((4, 3)), np.eye(4, 3) * 50):
        shares = answers.decode(counts, np.zeros((4, 3)), kernels)
        assert np.isfinite(shares.probabilities).all()
    assert shares.labels[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_more_cells_than_memory_holds_are_refused(monkeypatch):
    queries, features = small()
    monkeypatch.setattr(answers, "MOST_CELLS", 47)
    with pytest.raises(ValueError, match="smoothing=likelihood"):
        answers.kernels(queries, features)

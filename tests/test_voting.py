"""Post-processing: arg max, soft labels, smoothing that helps and never sees private data,
propagation against a dense solve.
"""

import itertools

import jax
import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from rknn_jax import postprocessing
from rknn_jax.neighbor_graph import neighbor_graph
from rknn_jax.neighbors import distances, nearest


def test_noisy_max_takes_the_first_of_equal_counts():
    np.testing.assert_array_equal(
        postprocessing.noisy_max(np.array([[1.0, 3, 3], [-5, -7, -5]])), [1, 0]
    )


def test_soft_labels_are_shares_of_the_positive_counts():
    soft = postprocessing.soft_labels(np.array([[3.0, -4, 1], [-1, -2, -3]]))
    np.testing.assert_allclose(soft, [[0.75, 0, 0.25], [1 / 3] * 3], rtol=1e-6)
    assert soft.dtype == np.float32


def test_the_posterior_of_two_classes_is_that_of_their_difference_and_without_noise_certain():
    counts = np.array([[3.0, 5], [2, 2], [0, 400], [7, 1]])
    stddev = np.array([[1.0, 2], [3, 3], [4, 4], [0, 0]])
    second = scipy.stats.norm.cdf((counts[:3, 1] - counts[:3, 0]) / np.hypot(*stddev[:3].T))
    np.testing.assert_allclose(
        postprocessing.posterior(counts, stddev),
        [*np.column_stack([1 - second, second]), [1, 0]],
        atol=1e-6,
    )


def test_the_posterior_is_how_often_each_class_is_the_greatest(monkeypatch):
    """200,000 draws: a share is within 4.5 standard errors of 0.0011 at most with a false alarm
    of 2e-4 over the 30 of them.
    """
    rng = np.random.default_rng(0)
    counts = rng.normal(0, 4, (6, 5))
    stddev = rng.uniform(1, 4, (6, 5))
    greatest = (counts + stddev * rng.normal(size=(200_000, 6, 5))).argmax(axis=2)
    shares = np.stack([np.bincount(query, minlength=5) for query in greatest.T]) / 200_000
    whole = postprocessing.posterior(counts, stddev)
    np.testing.assert_allclose(whole, shares, atol=0.005)
    monkeypatch.setattr(postprocessing, "LARGEST_GRID", 2500)
    np.testing.assert_allclose(postprocessing.posterior(counts, stddev), whole, rtol=1e-6)


def test_the_posterior_is_calibrated_for_laplace_noise_too():
    """Counts of a wide prior, 4,000 queries: of labels said to be right with 0.5 to 0.9 as many
    are, within 0.05 (4 standard errors).
    """
    rng = np.random.default_rng(1)
    truth = rng.uniform(0, 300, (4000, 6))
    posterior = postprocessing.posterior(
        truth + rng.laplace(0, 40, truth.shape), np.full(truth.shape, 40 * np.sqrt(2))
    )
    sure = posterior.max(axis=1)
    right = posterior.argmax(axis=1) == truth.argmax(axis=1)
    between = (sure > 0.5) & (sure < 0.9)
    assert between.sum() > 1500
    assert abs(right[between].mean() - sure[between].mean()) < 0.05


def test_the_posterior_stays_exact_where_one_cell_is_far_noisier():
    np.testing.assert_allclose(
        postprocessing.posterior(np.zeros((2, 2)), np.array([[1.0, 300], [5, 5]])), 0.5, atol=1e-3
    )


@pytest.mark.parametrize("spread", [1e3, 1e10, 1e150])
def test_the_posterior_of_any_noises_takes_no_more_memory(spread):
    """At a large epsilon a cell without votes is e^(ε/2) times sharper: a grid as fine as that held
    terabytes. Known: of centers at 0, each as likely to be above 0 as below; and one cell by
    another's law.
    """
    around = np.array([[1, spread, 1], [spread, spread, 1], [1, 1, spread]])
    known = [[0.25, 0.5, 0.25], [0.375, 0.375, 0.25], [0.25, 0.25, 0.5]]
    np.testing.assert_allclose(postprocessing.posterior(np.zeros((3, 3)), around), known, atol=1e-3)
    counts = np.array([[3, 1, 2]]) * spread
    stddev = np.array([[spread, 1, 1]])
    above = scipy.stats.norm.cdf(1)
    found = postprocessing.posterior(counts, stddev)
    np.testing.assert_allclose(found, [[above, 0, 1 - above]], atol=1e-3)


def graph(num_points=60, seed=0):
    points = np.random.default_rng(seed).normal(size=(num_points, 3)).astype(np.float32)
    index = np.asarray(nearest(points, points, 7))[:, 1:]
    distance = np.asarray(distances(points, points, index))
    return neighbor_graph(index, distance, np.sqrt(distance[:, -1]))


def test_the_neighbor_graph_is_symmetric_with_self_tuned_weights():
    index = np.array([[1], [0], [1]])
    distance = np.array([[4.0], [4.0], [1.0]])
    scale = np.array([2.0, 2.0, 0.5])
    expected = np.zeros((3, 3))
    expected[0, 1] = expected[1, 0] = np.exp(-1.0)
    expected[1, 2] = expected[2, 1] = np.exp(-1.0) / 2
    np.testing.assert_allclose(neighbor_graph(index, distance, scale).toarray(), expected)


@pytest.mark.parametrize("strength", [0.0, 0.5, 0.95])
def test_propagation_equals_the_dense_solution(strength):
    similarity = graph()
    labels = np.random.default_rng(3).dirichlet(np.ones(4), 60)
    weights = similarity.toarray()
    scale = np.diag(weights.sum(1) ** -0.5)
    expected = np.linalg.solve(np.eye(60) - strength * scale @ weights @ scale, labels)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(
        postprocessing.propagate(similarity, labels, strength), expected, atol=1e-4
    )


def test_propagation_repairs_a_wrong_label_inside_a_group():
    blocks = scipy.sparse.csr_matrix(np.kron(np.eye(2), np.ones((8, 8)) - np.eye(8)))
    labels = np.eye(2)[np.repeat([0, 1], 8)]
    labels[3] = [0, 1]
    np.testing.assert_array_equal(
        postprocessing.propagate(blocks, labels, 0.9).argmax(1), np.repeat([0, 1], 8)
    )


def test_a_strength_of_one_would_forget_the_votes():
    with pytest.raises(ValueError, match=r"strength=1\.0"):
        postprocessing.propagate(graph(), np.ones((60, 2)) / 2, 1.0)


def test_noisy_max_agrees_under_jax_and_numpy():
    counts = jax.random.normal(jax.random.key(0), (30, 5))
    np.testing.assert_array_equal(postprocessing.noisy_max(counts), np.asarray(counts).argmax(1))


def test_the_assignment_is_the_best_of_all_and_finds_labels_that_the_arg_max_misses():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.normal(size=(5, 5))
        best = max(
            itertools.permutations(range(5)),
            key=lambda labels: sum(counts[q, label] for q, label in enumerate(labels)),
        )
        np.testing.assert_array_equal(postprocessing.assignment(counts), best)
    noisy = 100 * np.eye(10) + rng.normal(size=(200, 10, 10)) * 40
    right = [
        np.mean([decode(counts) == np.arange(10) for counts in noisy])
        for decode in (postprocessing.noisy_max, postprocessing.assignment)
    ]
    assert right[1] > right[0] + 0.1
    with pytest.raises(ValueError, match="got 4 queries and 5 classes"):
        postprocessing.assignment(counts[:4])

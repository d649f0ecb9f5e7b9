"""The kernel of a Gaussian mixture: its fit, and the labels of classes that are clouds of rows."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.stats
from sklearn.mixture import GaussianMixture

from rknn_jax import answers
from rknn_jax.answers import gaussian_mixture
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans
from rknn_jax.types import Queries

NUM_CLASSES = 12


def clouds(seed, wrong=0.25):
    """Return public rows, their classes, queries and votes of classes that overlap."""
    rng = np.random.default_rng(seed)
    centers = 0.45 * rng.normal(size=(NUM_CLASSES, 40))
    classes = rng.integers(NUM_CLASSES, size=5000)
    rows = (centers[classes] + 0.9 * rng.normal(size=(5000, 40))).astype(np.float32)
    public, private = rows[:1000], rows[1000:]
    told = classes[1000:].copy()
    mistaken = rng.random(4000) < wrong
    told[mistaken] = rng.integers(NUM_CLASSES, size=mistaken.sum())
    queries = kmeans.select(jax.random.key(seed), public, 100)
    near = np.asarray(nearest(private, queries.features, 1))[:, 0]
    votes = np.zeros((100, NUM_CLASSES))
    np.add.at(votes, (near, told), 1)
    return public, classes[:1000], queries, votes


def right(votes, classes, kernels, epsilon=2.0):
    rng = np.random.default_rng(0)
    noisy = votes + np.round(rng.laplace(scale=2 / epsilon, size=votes.shape))
    stddev = np.full(votes.shape, np.sqrt(8) / epsilon)
    return float(np.mean(answers.decode(noisy, stddev, kernels, redraws=0).labels == classes))


@pytest.fixture(scope="module")
def split():
    public, classes, queries, votes = clouds(0)
    return public, classes, queries, votes, self_graph(public)


def test_classes_that_are_clouds_are_read_as_such(split):
    """Without the mixture, the decoder has 4 to 7 points less on four splits."""
    public, classes, queries, votes, graph = split
    without = right(votes, classes, answers.kernels(queries, public, graph))
    kernels = answers.kernels(queries, public, graph, num_classes=NUM_CLASSES)
    assert right(votes, classes, kernels) > max(without + 0.03, 0.85)


def test_classes_of_two_clouds_are_read_as_such(split):
    """With one component for each class, the decoder has 5 to 9 points less on four splits."""
    public, classes, queries, votes, graph = split
    pairs = votes[:, :6] + votes[:, 6:]
    kernels = answers.kernels(queries, public, graph, num_classes=6)
    assert len(kernels.components) == 2
    found = right(pairs, classes % 6, kernels)
    one = replace(kernels, components=kernels.components[:1])
    assert found > max(right(pairs, classes % 6, one) + 0.02, 0.85)


def test_counts_refuse_a_mixture_that_cuts_across_the_classes(split):
    """A class that depends on the length of a row is no cloud, and labels stay what they were."""
    public, _, queries, _, graph = split
    length = np.linalg.norm(public, axis=1)
    classes = (length > np.median(length)).astype(int)
    votes = np.zeros((100, 2))
    np.add.at(votes, (queries.cluster, classes), 20)
    found = [
        right(votes, classes, answers.kernels(queries, public, graph, num_classes=number))
        for number in (None, 2)
    ]
    assert found[1] >= found[0] - 0.01


def test_responsibilities_are_those_of_the_likelihoods(split):
    """Against densities in float64, by means and covariance that the responsibilities give."""
    public = split[0] - split[0].mean(axis=0)
    hard = np.eye(3, dtype=np.float32)[np.arange(len(public)) % 3]
    moment = public.T @ public / len(public)
    mixture = gaussian_mixture._maximized(public, moment, hard)
    rows = public.astype(np.float64)
    means = hard.T @ rows / hard.sum(axis=0)[:, None]
    within = np.mean([np.outer(row, row) for row in rows - means[np.arange(len(rows)) % 3]], axis=0)
    level = np.trace(within) / len(within)
    within = 0.95 * within + 0.05 * level * np.eye(len(within))
    logs = np.stack(
        [scipy.stats.multivariate_normal(mean, within).logpdf(rows) for mean in means], axis=1
    )
    expected = np.exp(logs) * hard.mean(axis=0)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mixture.responsibilities(public), expected, atol=1e-4)


def test_the_fit_is_that_of_scikit_learn(split, monkeypatch):
    """Its iterations stay where these end, without shrinking."""
    monkeypatch.setattr(gaussian_mixture, "SHRUNK", 0.0)
    monkeypatch.setattr(gaussian_mixture, "CONVERGED", 1e-5)
    monkeypatch.setattr(gaussian_mixture, "STEPS", 300)
    public, _, queries, *_ = split
    rows = public - public.mean(axis=0)
    means = np.stack([rows[queries.cluster == q].mean(axis=0) for q in range(100)])
    mine = gaussian_mixture.fit(rows, queries.cluster, means, NUM_CLASSES).responsibilities(rows)
    centers = mine.T @ rows / mine.sum(axis=0)[:, None]
    within = np.cov(rows.T.astype(np.float64), bias=True)
    within -= np.cov(centers.T.astype(np.float64), aweights=mine.mean(axis=0), bias=True)
    theirs = GaussianMixture(
        NUM_CLASSES,
        covariance_type="tied",
        means_init=centers,
        precisions_init=np.linalg.inv(within),
        weights_init=mine.mean(axis=0) / mine.mean(axis=0).sum(dtype=np.float64),
        max_iter=300,
        random_state=0,
    ).fit(rows.astype(np.float64))
    assert np.mean(theirs.predict(rows) == mine.argmax(axis=1)) > 0.99


def test_a_sample_of_the_rows_is_enough(split, monkeypatch):
    public, classes, queries, votes, graph = split
    monkeypatch.setattr(gaussian_mixture, "MOST_PRODUCTS", 40 * NUM_CLASSES * 800)
    assert len(gaussian_mixture.rows_of(1000, 40, NUM_CLASSES)) == 800
    kernels = answers.kernels(queries, public, graph, num_classes=NUM_CLASSES)
    assert right(votes, classes, kernels) > 0.84


@pytest.mark.parametrize(
    ("reason", "there"),
    [
        ("few queries", False),
        ("few rows", False),
        ("one class", False),
        ("equal rows", True),
        ("huge rows", True),
        ("tiny rows", True),
        ("a far row", True),
    ],
)
def test_odd_rows_are_read_and_without_a_mixture_if_there_can_be_none(reason, there):
    rng = np.random.default_rng(0)
    num_rows = 19 if reason == "few rows" else 40
    number = {"few queries": 9, "one class": 1}.get(reason, 4)
    rows = rng.normal(size=(num_rows, 3)).astype(np.float32)
    rows *= np.float32({"equal rows": 0, "huge rows": 1e30, "tiny rows": 1e-30}.get(reason, 1))
    if reason == "a far row":
        rows[3] = 1e15
    cluster = (np.arange(num_rows) % 8).astype(np.int32)
    queries = Queries(rows[:8], np.arange(8), cluster, np.bincount(cluster))
    kernels = answers.kernels(queries, rows, num_classes=number)
    assert bool(kernels.components) == there
    counts = np.full((8, number), 5.0)
    found = answers.decode(counts, np.ones_like(counts), kernels)
    assert np.isfinite(found.probabilities).all()


def test_a_dry_run_has_no_mixture(split):
    """It takes clusters of the rows for classes, so that a mixture would find them again."""
    public, _, queries, *_ = split
    sides = [
        ReverseKNN().public_side(queries, public, NUM_CLASSES, smoothing)
        for smoothing in ("auto", "none")
    ]
    assert [not side.kernels.components for side in sides] == [False, True]

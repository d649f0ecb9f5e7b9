"""Least squares: the model is that of its equations, and its strength is chosen on public
quantities.

`tests/test_prototypes.py` has the sums that both read.
"""

import functools
import inspect
import math

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from rknn_jax.labelers import _linear_head, _one_sum, least_squares
from rknn_jax.labelers._class_sums import NoisySums
from rknn_jax.labelers._public_ball import Ball, Spectrum
from rknn_jax.labelers.least_squares import EXPLAINED, LeastSquares
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.types import Queries
from tests.test_prototypes import Split

WIDTH = 7


@functools.cache
def digits():
    return Split()


@functools.cache
def problem():
    """Return noisy sums of four classes, and rows of unequal variance."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, WIDTH)) @ rng.normal(size=(WIDTH, WIDTH)) * 0.2
    counts = np.array([300.0, 200.0, 400.0, 100.0])
    return rows, rng.normal(size=(4, WIDTH)) * 60, counts


def moments(sums, counts):
    """Return the moments of centered classes, X^T (Y - shares)."""
    return sums - np.outer(counts / counts.sum(), sums.sum(axis=0))


def test_without_noise_and_with_equal_variances_it_is_ridge_regression(monkeypatch):
    """Against the normal equations in float64: (n A + ridge I) W = X^T Y."""
    monkeypatch.setattr(least_squares, "POWERS", (0.0,))
    rows, sums, counts = problem()
    second = np.cov(rows.T, bias=True)
    ridge = (1 - EXPLAINED) / EXPLAINED * np.trace(second)
    equations = counts.sum() * second + ridge * np.eye(WIDTH)
    expected = np.linalg.solve(equations, moments(sums, counts).T)
    noisy = NoisySums(sums, counts, 0.0, 0.0)
    weights, bias, link = LeastSquares().solve(noisy, Spectrum.of(rows, np.ones(80)))
    np.testing.assert_allclose(weights, expected, rtol=1e-8)
    np.testing.assert_allclose(bias + rows.mean(axis=0) @ weights, counts / counts.sum())
    assert link == "linear"


def test_with_noise_it_is_the_posterior_mean():
    """Against the formulas of normal priors and their likelihoods, with dense matrices."""
    rows, sums, counts = problem()
    second = np.cov(rows.T, bias=True)
    found = moments(sums, counts)
    num_records, of_class, stddev = counts.sum(), 3 / 16, 25.0
    design = num_records * second
    seen = (1 - EXPLAINED) * of_class * design + stddev**2 * np.eye(WIDTH)
    variances, directions = np.linalg.eigh(second)
    gains, logs = [], []
    for power in least_squares.POWERS:
        shape = directions @ np.diag(variances**power) @ directions.T
        prior = EXPLAINED * of_class / np.trace(second @ shape) * shape
        law = multivariate_normal(np.zeros(WIDTH), design @ prior @ design + seen)
        logs.append(law.logpdf(found).sum())
        gains.append(prior @ design @ np.linalg.inv(law.cov))
    chance = np.exp(np.array(logs) - max(logs))
    gain = np.einsum("p,pij->ij", chance / chance.sum(), gains)
    noisy = NoisySums(sums, counts, stddev, 0.0)
    weights, _, _ = LeastSquares().solve(noisy, Spectrum.of(rows, np.ones(80)))
    np.testing.assert_allclose(weights, gain @ found.T, rtol=1e-6)


@pytest.mark.long
def test_overlapping_clusters_are_told_from_a_direction_like_any_other():
    """Means of clusters lie along axes of large variance, and most of the others hold noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(20, size=9000)
    rows = (0.45 * rng.normal(size=(20, 48)))[labels] + 0.9 * rng.normal(size=(9000, 48))
    right = {}
    for powers in ((0.0,), least_squares.POWERS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(least_squares, "POWERS", powers)
            labeler = LeastSquares(epsilon=0.5)
            queries = Queries.alone(rows[:1000], np.arange(1000))
            tally = labeler.tally(queries, 20)
            totals = tally.total(rows[1000:].astype(np.float32), labels[1000:].astype(np.int32))
            accuracies = []
            for number in range(3):
                noise = labeler.simulated(jax.random.key(number))
                drawn = noise.draw(totals)
                found = labeler.read(drawn, noise.stddev, np.asarray, queries, noise.guarantee)
                accuracies.append(np.mean(found.labels == labels[:1000]))
            right[powers] = np.mean(accuracies)
    assert right[least_squares.POWERS] > right[0.0,] + 0.04


@pytest.mark.parametrize("constant", [True, False])
def test_features_without_variance_have_no_weight(constant):
    rows, sums, counts = problem()
    rows = rows.copy()
    rows[:, : WIDTH if constant else 2] = 0.25
    for stddev in (0.0, 25.0):
        noisy = NoisySums(sums, counts, stddev, 0.0)
        weights, bias, _ = LeastSquares().solve(noisy, Spectrum.of(rows, np.ones(80)))
        assert np.isfinite(weights).all()
        assert np.isfinite(bias).all()
        if constant:
            np.testing.assert_allclose(weights, 0, atol=1e-9)


def test_noise_without_end_leaves_the_shares_of_the_classes():
    rows, sums, counts = problem()
    noisy = NoisySums(sums, counts, 1e9, 0.0)
    weights, bias, _ = LeastSquares().solve(noisy, Spectrum.of(rows, np.ones(80)))
    np.testing.assert_allclose(weights, 0, atol=1e-6)
    np.testing.assert_allclose(bias, counts / counts.sum(), atol=1e-6)


def test_only_released_sums_and_public_rows_reach_the_model():
    """The model is a function of those two, by its signature."""
    assert list(inspect.signature(LeastSquares.solve).parameters) == ["self", "noisy", "spectrum"]
    assert set(_one_sum.Sums._fields) == {"totals", "encode"}


def test_it_reads_the_same_sums_as_prototypes():
    """The sensitivity of the sums is found by search in the tests of prototypes."""
    split = digits()
    votes = [
        labeler.contribute(jax.random.key(0), split.private, lambda each: each, split.queries, 10)
        for labeler in (LeastSquares(), Prototypes())
    ]
    np.testing.assert_array_equal(votes[0].totals, votes[1].totals)
    for name in ("sensitivity", "stddev"):
        assert getattr(LeastSquares(), name) == getattr(Prototypes(), name)


@pytest.mark.parametrize(
    ("labeler", "least"),
    [
        (LeastSquares(epsilon=5.0), 0.87),
        (LeastSquares(epsilon=0.5), 0.6),
        (LeastSquares(epsilon=5.0, relation="add-remove"), 0.87),
        (LeastSquares(epsilon=5.0, mechanism="laplace"), 0.8),
    ],
    ids=str,
)
def test_digits_are_labeled(labeler, least):
    assert digits().accuracy(labeler) >= least


def test_without_noise_it_is_as_good_as_least_squares_on_the_private_rows():
    split = digits()
    ball = Ball.around(split.queries, 2)
    rows = np.hstack([ball.clip(split.private.images), np.ones((len(split.private.labels), 1))])
    design = np.linalg.lstsq(rows, np.eye(10)[split.private.labels], rcond=None)[0]
    public = np.hstack([ball.clip(split.queries.features), np.ones((500, 1))])
    best = np.mean(np.argmax(public @ design, axis=1) == split.truth)
    assert split.accuracy(LeastSquares(epsilon=math.inf)) >= best - 0.03


def test_a_strength_that_ignores_the_noise_is_found(monkeypatch):
    """A planted fault: dividing by small variances amplifies the noise."""
    split = digits()
    labeler = LeastSquares(epsilon=1.0)
    right = np.mean([split.accuracy(labeler, noise) for noise in range(3)])
    inverse = least_squares._inverse
    monkeypatch.setattr(least_squares, "_inverse", lambda *given: inverse(*given[:3], 0.0))
    blind = np.mean([split.accuracy(labeler, noise) for noise in range(3)])
    assert blind < right - 0.2


def test_probabilities_are_shares_even_if_all_scores_are_negative():
    ball = Ball(np.zeros(2), 1.0, 2)
    head = _linear_head.Head(np.eye(2), np.array([-3.0, -3.0]), ball, lambda each: each, "linear")
    found = head.of_features(np.array([[0.5, 0.1], [0.1, 0.5], [0.0, 0.0]]))
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(found[:2].argmax(axis=1), [0, 1])

"""Principal components of private features: what a record can move, the noise that hides it, and
what may not depend on the records.
"""

import math
from dataclasses import replace

import hypothesis
import hypothesis.extra.numpy
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import Laplace
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import _dp_pca

FALSE_ALARM = 1e-6
"""Probability with which each test of randomness would fail for other keys than its own."""

CENTRE = np.array([0.5, -1.0, 2.0])
LENGTH = 1.5
RNG = np.random.default_rng(0)


def fitted(
    features, count=2, epsilon=1.0, delta=1e-5, centre=CENTRE, length=LENGTH, relation="add-remove"
):
    return _dp_pca.fit(
        jax.random.key(0),
        features,
        count,
        centre=centre,
        length=length,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
    )


# What a record can move.


values = st.floats(-1e6, 1e6, allow_subnormal=False) | st.floats(-2, 2, allow_subnormal=False)
some_rows = hypothesis.extra.numpy.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.just(3)), elements=values
)


@pytest.mark.long
@hypothesis.settings(max_examples=300)
@hypothesis.given(some_rows, hypothesis.extra.numpy.arrays(np.float64, (3,), elements=values))
def test_no_neighbour_that_a_search_finds_moves_the_moments_by_more_than_the_sensitivity(
    rows, other
):
    moments = _dp_pca.second_moments(rows, CENTRE, LENGTH)
    removed = np.linalg.norm(_dp_pca.second_moments(rows[1:], CENTRE, LENGTH) - moments)
    swapped = np.linalg.norm(
        _dp_pca.second_moments(np.vstack([other, rows[1:]]), CENTRE, LENGTH) - moments
    )
    hypothesis.target(removed, label="removed")
    hypothesis.target(swapped, label="replaced")
    assert removed <= _dp_pca.SENSITIVITY["add-remove"] * (1 + 1e-9)
    assert swapped <= _dp_pca.SENSITIVITY["replace-one"] * (1 + 1e-9)


def test_the_sensitivity_is_attained():
    rows = CENTRE + 1e6 * np.eye(3)
    with_one, with_other, without = (
        _dp_pca.second_moments(rows[kept], CENTRE, LENGTH) for kept in ([0, 2], [1, 2], [2])
    )
    assert np.linalg.norm(with_one - without) == pytest.approx(
        _dp_pca.SENSITIVITY["add-remove"], rel=1e-9
    )
    assert np.linalg.norm(with_one - with_other) == pytest.approx(
        _dp_pca.SENSITIVITY["replace-one"], rel=1e-9
    )


def test_one_record_moves_no_other_ones_coordinates():
    """The shift attack on published code, which centers by the private mean: here the rows of
    others stay as they are, to the bit.
    """
    features = RNG.normal(size=(30, 3))
    components = fitted(features)
    attacked = np.vstack([features[:-1], [[1e9, -1e9, 1e9]]])
    np.testing.assert_array_equal(components(attacked)[:-1], components(features)[:-1])
    order = RNG.permutation(30)
    np.testing.assert_array_equal(components(features[order]), components(features)[order])


def test_projections_are_those_of_clipped_rows_in_float64():
    features = RNG.normal(size=(40, 3)) * 3
    components = fitted(features)
    expected = []
    for row in features:
        y = (row - CENTRE) / LENGTH
        expected.append(components.directions @ (y / max(1.0, math.sqrt(sum(y**2)))))
    np.testing.assert_allclose(components(features), expected, atol=1e-6)
    assert components(features).dtype == np.float32
    assert np.linalg.norm(components(features), axis=1).max() <= 1 + 1e-6


# The noise.


@pytest.mark.parametrize(
    ("epsilon", "delta", "sigma"),
    [(0.3, 1e-5, 11.238044), (0.3, 1e-6, 12.992383), (1.0, 1e-5, 3.730632)],
    ids=str,
)
@pytest.mark.parametrize(
    ("relation", "sensitivity"), [("add-remove", 1.0), ("replace-one", math.sqrt(2))]
)
def test_the_noise_is_the_analytic_gaussian_mechanisms(
    epsilon, delta, sigma, relation, sensitivity
):
    """Multipliers from an independent computation; the classical formula's are 16.149351,
    17.662675 and 4.844805.
    """
    features = RNG.normal(size=(50, 3))
    components = fitted(features, 3, epsilon, delta, relation=relation)
    (event,) = components.guarantee.events
    assert (event.kind, event.count) == ("gaussian", 1)
    assert event.parameter == pytest.approx(sigma, rel=1e-6)
    noise = _dp_pca.symmetric_noise(jax.random.key(0), 3, sensitivity * event.parameter)
    expected = _dp_pca.leading(_dp_pca.second_moments(features, CENTRE, LENGTH) + noise, 3)
    np.testing.assert_allclose(components.directions, expected, atol=1e-6)


@pytest.mark.long
def test_the_noise_is_symmetric_with_half_the_variance_off_the_diagonal():
    sigma = 3.0
    size = 1500
    noise = _dp_pca.symmetric_noise(jax.random.key(1), size, sigma)
    np.testing.assert_array_equal(noise, noise.T)
    for drawn, variance in (
        (np.diag(noise), sigma**2),
        (noise[np.triu_indices(size, 1)], sigma**2 / 2),
    ):
        share = stats.chi2.cdf((drawn**2).sum() / variance, len(drawn))
        assert FALSE_ALARM / 2 < share < 1 - FALSE_ALARM / 2
        assert stats.kstest(drawn[:20_000] / math.sqrt(variance), "norm").pvalue > FALSE_ALARM


@pytest.mark.long
def test_the_noise_is_alike_in_all_directions_of_the_frobenius_norm():
    """Which is what makes one Gaussian value of it: its product with any symmetric matrix of
    norm 1 has variance σ².
    """
    draws = np.stack(
        [_dp_pca.symmetric_noise(key, 3, 2.0) for key in jax.random.split(jax.random.key(2), 2000)]
    )
    for _ in range(5):
        direction = RNG.normal(size=(3, 3))
        direction += direction.T
        along = (draws * direction / np.linalg.norm(direction)).sum((1, 2))
        share = stats.chi2.cdf((along**2).sum() / 4, len(along))
        assert FALSE_ALARM / 2 < share < 1 - FALSE_ALARM / 2


# The components.


def test_without_noise_they_are_the_singular_vectors():
    features = RNG.normal(size=(200, 3)) @ np.diag([3, 1, 0.3]) + 0.2
    rows = _dp_pca.clipped(features, CENTRE, LENGTH)
    components = fitted(features, 3, epsilon=math.inf, delta=0.0)
    expected = np.linalg.svd(rows)[2]
    np.testing.assert_allclose(np.abs(components.directions @ expected.T), np.eye(3), atol=1e-5)
    assert components.guarantee.epsilon == math.inf
    assert "No privacy" in str(components.guarantee)


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_they_are_orthonormal_whatever_the_noise(epsilon):
    directions = fitted(RNG.normal(size=(20, 3)), 3, epsilon).directions
    np.testing.assert_allclose(directions @ directions.T, np.eye(3), atol=1e-6)
    assert directions.dtype == np.float32


def test_many_records_drown_the_noise():
    """20,000 rows in a plane of 10 dimensions: their moments are 400 times the noise of epsilon
    = 0.3, the plane is found.
    """
    plane = np.linalg.qr(RNG.normal(size=(10, 10)))[0][:2]
    rows = RNG.normal(size=(20_000, 2)) @ plane
    components = fitted(
        rows, 2, epsilon=0.3, centre=np.zeros(10), length=1.0, relation="replace-one"
    )
    assert np.linalg.norm(plane @ components.directions.T, axis=1).min() > 0.999
    few = fitted(rows[:20], 2, epsilon=0.3, centre=np.zeros(10), length=1.0, relation="replace-one")
    assert np.linalg.norm(plane @ few.directions.T, axis=1).min() < 0.9


def test_delta_is_part_of_the_guarantee_and_composes():
    guarantee = fitted(RNG.normal(size=(9, 3)), relation="replace-one").guarantee
    assert (guarantee.epsilon, guarantee.delta, guarantee.relation) == (1.0, 1e-5, "replace-one")
    votes = Guarantee(0.5, 0.0, "replace-one", "central", (Laplace(2.0, 1),))
    whole = accounting.compose([guarantee, votes], 1e-5)
    assert 1.0 < whole.epsilon < 1.5, "together they cost less than their sum"
    opaque = replace(guarantee, events=(), delta=2e-5)
    assert accounting.compose([opaque, guarantee]).delta == pytest.approx(3e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 0}, "num_components=0"),
        ({"count": 4}, "num_components=4"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.nan}, "epsilon=nan"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"length": 0.0}, "length=0.0"),
        ({"length": math.nan}, "length=nan"),
        ({"centre": np.zeros(4)}, r"\(4,\)"),
        ({"centre": np.array([0, 0, np.inf])}, "finite"),
        ({"relation": "both"}, "relation='both'"),
    ],
    ids=str,
)
def test_bad_input_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        fitted(np.zeros((5, 3)), **change)


@pytest.mark.parametrize("row", [np.nan, np.inf, 1e308, -1.7e308, 1e200])
@pytest.mark.parametrize("length", [1e-310, 1e-3, 1.0])
def test_one_bad_record_is_no_error_and_moves_no_more_than_any_other(row, length):
    """An error would tell that record, and NaN in one row would spoil all moments."""
    rows = np.random.default_rng(0).normal(size=(20, 3))
    bad = np.vstack([rows, [[row, 1.0, -1.0]]])
    moved = _dp_pca.second_moments(bad, np.zeros(3), length) - _dp_pca.second_moments(
        rows, np.zeros(3), length
    )
    assert np.linalg.norm(moved) <= 1 + 1e-9
    found = _dp_pca.fit(
        jax.random.key(0), bad, 2, centre=np.zeros(3), length=length, epsilon=1.0, delta=1e-5
    )
    assert np.isfinite(found.directions).all()


@pytest.mark.parametrize("features", [np.zeros(3), np.zeros((5, 4))], ids=["flat", "wide"])
def test_features_that_do_not_fit_are_refused(features):
    with pytest.raises(ValueError, match="Expected (finite )?features"):
        fitted(features)

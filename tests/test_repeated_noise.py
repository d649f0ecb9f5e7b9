"""Noise that several parties add, each all of it."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rknn_jax.mechanisms._repeated import Repeated
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian

EACH = [
    DiscreteLaplace(0.5, 2000, 3),
    DiscreteLaplace(1.0, 2000, 3, unit="person", grid=10),
    Gaussian(1.0, 2000, 3, relation="add-remove", delta=1e-5),
]


@pytest.mark.parametrize("each", EACH, ids=str)
def test_variances_add_up_and_the_guarantee_is_one_party_s(each):
    """By 6,000 draws, within five standard errors: once in 10^6 by chance; see `test_trust`."""
    both = Repeated.of(each, 2, "a model")
    totals = np.full(both.shape, 40 * each.grid)
    assert both.noise_stddev == pytest.approx(np.sqrt(2) * each.noise_stddev)
    for drawn, stddev in (
        (both.estimate(jax.random.key(0), totals, 9), each.stddev(totals, 9)[0, 0]),
        (both.release(totals), each.noise_stddev),
    ):
        variance = 2 * stddev**2
        noise = np.asarray(drawn, np.float64) - 40
        assert abs(np.mean(noise)) < 5 * np.sqrt(variance / noise.size)
        assert abs(np.mean(np.square(noise)) / variance - 1) < 5 * np.sqrt(5 / noise.size)


def test_the_parties_share_no_draw():
    each = DiscreteLaplace(1e-3, 200, 2)
    both = Repeated.of(each, 2, "a model")
    one = np.asarray(both.estimate(jax.random.key(0), np.zeros(both.shape, np.int32), 1))
    assert np.mean(one % 2 == 0) < 0.7  # twice one draw would be even throughout


@pytest.mark.parametrize("each", EACH, ids=str)
def test_a_release_composes_by_the_noise_that_a_party_draws(each):
    """That of Gaussian noise is discrete; its ledger was charged 4% too little at epsilon = 4."""
    found = Repeated.of(each, 2, "aggregate").release_guarantee(9)
    assert found == replace(each.release_guarantee(9), trust="aggregate")

"""Privacy loss distributions of one noisy value, on a grid.

Each function returns dp-accounting's `PrivacyLossDistribution` of a pair of neighboring values,
which events compose (`rknn_jax.privacy.events`). Losses are rounded up to the grid by connecting
the dots of the hockey-stick curve; functions named `lower_` round down, for audits.

**No relation is passed on.** The noise is divided by the change that a neighbor makes, so it
already includes the relation. dp-accounting's own replace-one doubles the Gaussian in one
accountant and not in the other. Its event accountant forgets how often randomized response is
repeated. Distributions are therefore made here, one by one.

This is the only file that imports dp-accounting. Import it late, because that takes 2 s.

Reference: Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
Distributions", 2022.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import expit
from scipy.stats import binom

from rknn_jax.privacy import sampled_gaussian


def laplace(scale: float, interval: float) -> Any:
    """Return the distribution of Laplace noise on a change by 1."""
    return pld.from_laplace_mechanism(scale, **_rounded_up(interval))


def response(loss: float, interval: float) -> Any:
    """Return the distribution of randomized response, whose losses are +-`loss`.

    One shift of discrete Laplace noise has these losses. dp-accounting's
    `from_randomized_response` computes them as a difference of logarithms, whose last digit may
    move them to the next grid point.
    """
    return pld.from_discrete_laplace_mechanism(loss, **_rounded_up(interval))


def lower_response(loss: float, interval: float) -> Any:
    """Return the distribution of randomized response, rounded down."""
    return pld.from_discrete_laplace_mechanism(loss, **_rounded_down(interval))


def gaussian(noise_multiplier: float, interval: float, sampling_prob: float) -> Any:
    """Return the distribution of Gaussian noise, whose record takes part with a probability.

    A neighbor adds or removes the record, unless the probability is 1.
    """
    return pld.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling_prob, **_rounded_up(interval)
    )


def discrete_gaussian(stddev: float, interval: float) -> Any:
    """Return the distribution of discrete Gaussian noise on a change by 1."""
    return pld.from_discrete_gaussian_mechanism(stddev, **_rounded_up(interval))


def lower_discrete_gaussian(stddev: float, interval: float) -> Any:
    """Return the distribution of discrete Gaussian noise, rounded down."""
    return pld.from_discrete_gaussian_mechanism(stddev, **_rounded_down(interval))


def replaced_gaussian(
    noise_multiplier: float, interval: float, sampling_prob: float, opposite: bool
) -> Any:
    """Return the distribution of a replaced record's curve (`sampled_gaussian`).

    Args:
      noise_multiplier: Noise multiplier z.
      interval: Distance of the grid.
      sampling_prob: Probability g in (0, 1).
      opposite: True for records that move the value in opposite directions.
    """
    z = noise_multiplier
    g = sampling_prob
    largest = math.log1p(g * math.expm1(min(0.5 / z**2 + 10 / z, 700)))
    deltas = sampled_gaussian.opposite_deltas if opposite else sampled_gaussian.replaced_deltas
    return _from_curve(lambda epsilons: deltas(epsilons, z, g), largest, interval)


def binomial(stddev: float, coins: int, interval: float) -> Any:
    """Return the distribution of the heads of fair coins on a change by 1.

    Args:
      stddev: Standard deviation of the heads, sqrt(`coins`) / 2.
      coins: Number of coins, at least 1.
      interval: Distance of the grid.
    """
    largest = min(1 / stddev**2 / 2 + 10 / stddev, math.log(coins))
    return _from_curve(lambda epsilons: binomial_deltas(epsilons, coins), largest, interval)


def binomial_deltas(epsilons: np.ndarray, coins: int) -> np.ndarray:
    """Return delta at each epsilon between heads of N fair coins and the same number plus one.

    delta = F(x) - e^epsilon F(x - 1), with x the largest number whose odds exceed e^epsilon. The
    odds of x heads against x - 1 are (N - x + 1)/x, infinite at x = 0. Binomials are symmetric, so
    both directions are alike.
    """
    last = np.ceil((coins + 1) * expit(-epsilons)) - 1
    deltas: np.ndarray = np.maximum(
        binom.cdf(last, coins, 0.5) - np.exp(epsilons) * binom.cdf(last - 1, coins, 0.5), 0
    )
    return deltas


def _from_curve(
    deltas_of: Callable[[np.ndarray], np.ndarray], largest: float, interval: float
) -> Any:
    """Return the privacy loss distribution of a pair whose two directions share one curve.

    The curve is sampled from 0 to `largest`, its largest epsilon.
    """
    points = np.arange(math.ceil(largest / interval) + 1)
    wanted = points * interval
    deltas = deltas_of(wanted)
    # The divergence H of (P, Q) at -epsilon follows from H of (Q, P) at epsilon.
    mirrored = -np.expm1(-wanted) + np.exp(-wanted) * deltas
    epsilons = np.concatenate([-points[:0:-1], points])
    deltas = np.concatenate([mirrored[:0:-1], deltas])
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(interval, epsilons, deltas)
    )


def _rounded_up(interval: float) -> dict[str, Any]:
    return {"value_discretization_interval": interval, "use_connect_dots": True}


def _rounded_down(interval: float) -> dict[str, Any]:
    return {
        "pessimistic_estimate": False,
        "value_discretization_interval": interval,
        "use_connect_dots": False,
    }

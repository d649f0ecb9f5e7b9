"""Noise that costs no more than an epsilon, found by search with the accountants.

Reference: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from rknn_jax.privacy import renyi
from rknn_jax.privacy.accounting import (
    MOST_PLD_VALUES,
    compose,
    epsilons,
    number_of,
    smallest_pld_delta,
)
from rknn_jax.privacy.analytic_gaussian import check_amounts, gaussian_noise_multiplier
from rknn_jax.privacy.events import Binomial, DiscreteGaussian, Event, Gaussian
from rknn_jax.privacy.guarantee import Guarantee

MOST_NOISE = 1e20
"""Largest noise that `calibrate` tries, in units of its start."""


def calibrate(
    events_of: Callable[[float], Sequence[Event]], epsilon: float, delta: float, start: float = 1.0
) -> float:
    """Return the least noise, to 0.1%, at which events cost no more than epsilon.

    Args:
      events_of: Function from a factor of the noise to the events at that noise. Their epsilon
        falls as the factor grows.
      epsilon: Target epsilon, positive.
      delta: Delta, in [0, 1).
      start: Factor at which the search begins. Defaults to 1.

    Raises:
      ValueError: If no noise reaches epsilon, by accountants that can take a delta so small.
    """

    def log_cost(scale: float) -> float:
        found = epsilons(events_of(scale), delta)
        if not found:
            num_values = number_of(events_of(scale))
            raise ValueError(
                "Expected delta > 0, and for binomial noise delta >= "
                f"{smallest_pld_delta(num_values):.3g} and at most {MOST_PLD_VALUES} values, got "
                f"delta={delta} and {num_values} values; choose a larger delta, or ask less."
            )
        cost = min(found.values())
        return math.log(cost) if cost else -math.inf

    # `slope` estimates the derivative of ln epsilon by ln scale.
    low = 0.0
    high = math.inf
    scale = start
    slope = -1.0
    last: tuple[float, float] | None = None
    while high > 1.001 * low:
        if scale > MOST_NOISE * start:
            raise ValueError(
                f"Expected an epsilon that some noise reaches at delta={delta}, got "
                f"epsilon={epsilon}; choose a larger epsilon or delta."
            )
        off = log_cost(scale) - math.log(epsilon)
        low, high = (scale, high) if off > 0 else (low, scale)
        if last and math.isfinite(last[1]) and math.isfinite(off) and last[0] != scale:
            slope = float(np.clip((off - last[1]) / math.log(scale / last[0]), -3.0, -0.3))
        last = scale, off
        # Overshoot to either side of the answer in turn, so that both ends close in.
        beyond = 1.0004 if off > 0 else 1 / 1.0004
        scale *= beyond * math.exp(float(np.clip(-off / slope, -1.0, 1.0)))
        if not low < scale < high:
            scale = math.sqrt(low * high)
    return high


def share_of_rounds(
    guarantee_of: Callable[[float], Guarantee], epsilon: float, delta: float, num_rounds: int
) -> float:
    """Return the largest epsilon of a round, to 0.2%, at which equal rounds cost no more than all.

    An even share always suffices. With a delta, rounds compose to less than their sum, so that each
    may cost more.

    Args:
      guarantee_of: Function from the epsilon of a round to its guarantee, whose cost grows with it.
      epsilon: Epsilon of all rounds together.
      delta: Delta of all rounds together.
      num_rounds: Number of rounds.
    """
    low = epsilon / num_rounds
    first = guarantee_of(low)
    known = bool(first.events) or not first.delta
    if num_rounds == 1 or not delta or not known or epsilon == math.inf:
        return low
    high = epsilon
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        together = compose([guarantee_of(middle)], delta, num_rounds)
        low, high = (middle, high) if together.epsilon <= epsilon else (low, middle)
    return low


def zcdp_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return a noise multiplier at which concentrated DP gives (epsilon, delta)-DP.

    It also holds for discrete Gaussian noise and whichever integers a neighbor changes, by
    Canonne, Kamath & Steinke, Theorem 15. It is larger than `gaussian_noise_multiplier`.

    >>> round(zcdp_noise_multiplier(1.0, 1e-5), 3)
    4.045
    """
    low = gaussian_noise_multiplier(epsilon, delta)
    root = math.sqrt(-math.log(delta))
    # Bun & Steinke's conversion, epsilon = rho + 2·sqrt(rho·log(1/delta)), always suffices.
    high = (math.sqrt(epsilon + root**2) + root) / (math.sqrt(2) * epsilon) * (1 + 1e-12)
    for _ in range(60):
        middle = (low + high) / 2
        enough = renyi.epsilon_of(renyi.curve([Gaussian(middle)]), delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def binomial_coins(epsilon: float, delta: float, count: int) -> int:
    """Return the fewest fair coins, to 0.2%, that make integer counts (epsilon, delta)-DP.

    The number of heads is the noise.

    Args:
      epsilon: Target epsilon, positive.
      delta: Delta, in (0, 1).
      count: Number of counts that a neighbor changes, each by 1.
    """
    check_amounts(epsilon, delta)
    start = math.sqrt(count) * gaussian_noise_multiplier(epsilon, delta)
    return math.ceil(
        4 * calibrate(lambda sigma: [Binomial(sigma, count)], epsilon, delta, start) ** 2
    )


@functools.cache
def discrete_gaussian_stddev(epsilon: float, delta: float, count: int) -> float:
    """Return the least integer noise that makes integer counts (epsilon, delta)-DP.

    Args:
      epsilon: Target epsilon, positive.
      delta: Delta, in (0, 1).
      count: Number of counts that a neighbor changes, each by 1.

    Returns:
      Sigma of the exact discrete Gaussian at which the unit shifts compose to (epsilon, delta);
      0.1% less does not suffice. Below sigma = 3, the analytic formula for continuous noise errs on
      either side, so it only starts the search.
    """
    check_amounts(epsilon, delta)
    start = math.sqrt(count) * gaussian_noise_multiplier(epsilon, delta)
    return calibrate(lambda sigma: [DiscreteGaussian(sigma, count)], epsilon, delta, start)

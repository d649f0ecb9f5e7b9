"""Flooding: the number of pairs of canceling messages that hide a vote in the shuffle model.

`mechanisms.multi_message` is the protocol.

The server sees how often each cell was sent with (+) and with (-). For x votes these numbers are x
+ N₁ + N₃ and N₂ + N₃. N₁ and N₂ are geometric of ratio a = e^-ε_c, so that their difference is
discrete Laplace noise. N₃ ~ NB(r, p) is the flooding. Without it, the smaller of both numbers would
tell N₁ from N₁ + 1. The δ of one vote is exact:

D = N₁ - N₂, M = min(N₁, N₂) and N₃ are independent, with D discrete Laplace and M geometric of
ratio a². The view is equivalent to the difference and the smaller of both numbers. Without the vote
(P₀), these are D and W = M + N₃. With the vote (P₁), they are D + 1, and W if D >= 0 or W + 1 if D
< 0. The differences have likelihood ratio P₀/P₁ = a above 0 and 1/a elsewhere. The values at or
below 0 have probability 1/(1 + a) under P₀ and a/(1 + a) under P₁. With G the law of W,

    δ(P₀‖P₁) = 1/(1 + a) · Σ_w (G(w) - e^(ε - ε_c)·G(w - 1))₊
    δ(P₁‖P₀) = a/(1 + a) · Σ_w (G(w - 1) - e^(ε + ε_c)·G(w))₊ + (1 - e^(ε - ε_c))₊/(1 + a)

and the second is 0 for ε >= ε_c, because G(w) >= a²·G(w - 1). The excess over ε_c belongs to the
flooding: ε₁ = ε - ε_c. More flooding at the same p is more independent noise, so δ falls as r
grows.

References: Ghazi et al., "Private Counting from Anonymous Messages: Near-Optimal Accuracy with
Vanishing Communication Overhead", 2020, whose parameters are `published`. The exact δ and the
parameters `tight`, which follow from it, are ours.
"""

import bisect
import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import special
from scipy.linalg import solve_banded

TAIL = 1e-5  # share of delta reserved for values of W beyond the summed ones
ROUNDING = 1e-8  # relative error of a sum in float64; 10,000 times the largest ever seen
LARGEST_EPSILON = 4.0  # of the flooding; for larger ones, ln(1/δ) pairs hide a vote anyway
MOST_PAIRS = 1e7


class Flooding(NamedTuple):
    """N₃ ~ NB(r, p) of one cell: r is `shape` and p is e^-`decay`."""

    shape: float
    decay: float

    @property
    def mean(self) -> float:
        """Mean number of pairs of messages, r·p/(1 - p)."""
        return self.shape * odds(self.decay)


NONE = Flooding(0.0, math.inf)


def cell_deltas(
    epsilon: float, count_epsilon: float, flooding: Flooding, unsummed: float = 1e-30
) -> tuple[float, float]:
    """Return δ(P₀‖P₁) and δ(P₁‖P₀) of one vote in one cell, rounded up.

    Args:
      epsilon: Epsilon ε, at least 0.
      count_epsilon: Epsilon ε_c of the difference.
      flooding: Flooding of the cell.
      unsummed: Probability of the values of W that are added as a whole instead of summed. Defaults
        to 1e-30.
    """
    a = math.exp(-count_epsilon)
    rest = epsilon - count_epsilon
    now, beyond = _smaller_number(count_epsilon, flooding, unsummed, rising=rest >= 0)
    before = np.append(0.0, now[:-1])
    without = np.maximum(now - _exp(rest) * before, 0).sum() * (1 + ROUNDING) + beyond
    if rest >= 0:
        return float(without) / (1 + a), 0.0
    with_vote = (
        np.maximum(before - _exp(epsilon + count_epsilon) * now, 0).sum() * (1 + ROUNDING)
        + now[-1]
        + beyond
    )
    return float(without) / (1 + a), float(a * with_vote - math.expm1(rest)) / (1 + a)


def published(flooding_epsilon: float, count_epsilon: float, delta: float) -> Flooding:
    """Return the published flooding: r = 3(1 + ln(1/δ)) and p = e^(-ε₁/5).

    It sends several times as many messages as necessary.

    Args:
      flooding_epsilon: Epsilon ε₁ of the flooding.
      count_epsilon: Epsilon ε_c of the count.
      delta: Delta of one vote in one cell.

    Raises:
      ValueError: If the published formula does not hide a vote at this ε₁.
    """
    flooding = Flooding(3 * (1 + math.log(1 / delta)), 0.2 * flooding_epsilon)
    _check(flooding)
    if (
        max(cell_deltas(flooding_epsilon + count_epsilon, count_epsilon, flooding, TAIL * delta))
        > delta
    ):
        raise ValueError(
            "Expected an epsilon for which the published flooding hides a vote, got "
            f"{flooding_epsilon:.6g} a cell; use flooding='tight'."
        )
    return flooding


@functools.lru_cache(maxsize=256)
def tight(flooding_epsilon: float, count_epsilon: float, delta: float) -> Flooding:
    """Return the flooding of least mean that hides a vote, by its exact δ.

    p = e^-(0.52 + 0.55·ε₁)ε₁ sends at most 2% more than the best p for ε₁ <= 1, and 5% more beyond,
    at δ <= 1e-5. r is the least that suffices, rounded up.

    Args:
      flooding_epsilon: Epsilon ε₁ of the flooding, used up to `LARGEST_EPSILON`.
      count_epsilon: Epsilon ε_c of the count.
      delta: Delta of one vote in one cell.

    Raises:
      ValueError: If more than `MOST_PAIRS` would be needed.
    """
    from scipy.optimize import brentq  # imported late: it takes half a second

    epsilon = min(flooding_epsilon, LARGEST_EPSILON)
    decay = (0.52 + 0.55 * epsilon) * epsilon
    # A smaller number of 0 at a difference <= 0 rules out the vote: δ >= (1 - a)(1 - p)^r.
    least = math.log(-math.expm1(-count_epsilon) / delta) / -_log_rest(decay)
    if least <= 0:
        return NONE

    def excess(log_shape: float) -> float:
        flooding = Flooding(math.exp(log_shape), decay)
        _check(flooding)
        return math.log(
            max(cell_deltas(epsilon + count_epsilon, count_epsilon, flooding, TAIL * delta)) / delta
        )

    low = high = math.log(least) - 1e-3
    while excess(high) > 0:
        low = high
        high = high + 1.0
    shape = brentq(excess, low, high, xtol=5e-5) if low < high else high
    while excess(shape) > 0:
        shape += 5e-5
    return Flooding(math.exp(shape), decay)


def odds(decay: float) -> float:
    """Return p/(1 - p) for p = e^-decay: the mean of a negative binomial of shape 1."""
    return math.exp(-decay) / -math.expm1(-decay)


def law(shape: float, decay: float, most: int) -> np.ndarray:
    """Return P[N = 0], ..., P[N = most] of N ~ NB(shape, e^-decay), float64."""
    if shape == 0 or decay == math.inf:
        zero: np.ndarray = np.eye(1, most + 1)[0]
        return zero
    steps = np.log1p((shape - 1) / np.arange(1, most + 1)) - decay
    return np.exp(shape * _log_rest(decay) + np.append(0.0, np.cumsum(steps)))


def above(shape: float, decay: float, values: np.ndarray | int) -> np.ndarray:
    """Return P[N > v] of N ~ NB(shape, e^-decay) for each of `values` >= 0."""
    if shape == 0 or decay == math.inf:
        return np.zeros(np.shape(values))
    chances: np.ndarray = special.betainc(np.asarray(values) + 1.0, shape, math.exp(-decay))
    return chances


def _reach(shape: float, decay: float, chance: float) -> int:
    """Return the least v with P[N > v] <= chance of N ~ NB(shape, e^-decay)."""
    most = 1
    while above(shape, decay, most) > chance:
        most *= 2
    values = range(most + 1)
    return bisect.bisect_left(values, True, key=lambda v: bool(above(shape, decay, v) <= chance))


def _smaller_number(
    count_epsilon: float, flooding: Flooding, unsummed: float, *, rising: bool
) -> tuple[np.ndarray, float]:
    """Return G(0), ..., G(w) and the probability of all larger values, rounded up.

    With `rising`, the second counts only larger values at which G may still rise.
    """
    shape, decay = flooding
    square = math.exp(-2 * count_epsilon)

    def found(most: int) -> np.ndarray:
        # filtered[i] = square · filtered[i - 1] + given[i]
        given = -math.expm1(-2 * count_epsilon) * law(shape, decay, most)
        bands = np.stack([np.ones(most + 1), np.full(most + 1, -square)])
        filtered: np.ndarray = solve_banded((1, 0), bands, given, check_finite=False)
        return filtered

    if (
        rising and shape >= 1
    ):  # G is then log-concave, as both of its parts are, so it never rises again.
        start = found(math.ceil(flooding.mean + odds(2 * count_epsilon)) + 1)
        if start[-1] <= start[-2]:
            return start, 0.0
    pairs = _reach(shape, decay, unsummed / 2)
    lone = math.ceil(-math.log(unsummed / 2) / (2 * count_epsilon))
    return found(pairs + lone), float(above(shape, decay, pairs)) + square ** (lone + 1)


def _check(flooding: Flooding) -> None:
    if flooding.mean > MOST_PAIRS:
        raise ValueError(
            f"Expected at most {MOST_PAIRS:g} pairs of messages to flood a cell, got "
            f"{flooding.mean:.3g}; raise epsilon."
        )


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))  # A smaller value is safe: the result is only subtracted.


def _log_rest(decay: float) -> float:
    return math.log(-math.expm1(-decay))  # ln(1 - p)

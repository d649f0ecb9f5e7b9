"""Lower bounds of epsilon from the frequency of an event, and the bounds that a guarantee claims.

Clopper-Pearson intervals of an event's two probabilities give p1 >= l1 and p0 <= u0, except with
probability 1 - confidence, so that epsilon >= ln((l1 - delta) / u0).

Reference: Clopper & Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of
the Binomial", 1934.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import beta

from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee

DELTAS = (1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
"""Points of the claimed curve that are tested, beside the claimed delta."""

Curve = tuple[tuple[float, float], ...]
"""Pairs of delta and epsilon that are claimed together."""


def claimed_curve(guarantee: Guarantee) -> Curve:
    """Return the pairs `(delta, epsilon)` that a guarantee promises.

    The guarantee's own pair comes first. If the guarantee names its noise, the costs of that noise
    at other deltas follow.

    Raises:
      ValueError: If epsilon is infinite.
    """
    if not math.isfinite(guarantee.epsilon):
        raise ValueError("Expected a finite epsilon, got infinity; there is no guarantee to break.")
    claimed = [(guarantee.delta, guarantee.epsilon)]
    for delta in DELTAS:
        if delta > guarantee.delta and guarantee.events:
            costs = accounting.epsilons(guarantee.events, delta)
            claimed.append((delta, min([guarantee.epsilon, *costs.values()])))
    return tuple(claimed)


def lower_bounds(
    hits: np.ndarray, runs: int, error: float, deltas: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return lower bounds of epsilon from the frequency of an event.

    Args:
      hits: Numbers of runs with the event, for either input, int `[..., 2]`.
      runs: Number of runs of each input.
      error: Largest probability that the bounds of one event do not hold.
      deltas: Deltas of the bounds, each in [0, 1).

    Returns:
      float64 `[..., num_deltas]`: the largest bound by the event and its complement, in either
      order of the inputs. Values below 0, which epsilon never takes, still rank events.
    """
    hits = np.asarray(hits, np.float64)
    tail = error / 4  # Two intervals, each with two ends.
    with np.errstate(invalid="ignore"):  # The formula gives NaN for no hits or for hits only.
        low = np.where(hits > 0, beta.ppf(tail, hits, runs - hits + 1), 0)
        high = np.where(hits < runs, beta.ppf(1 - tail, hits + 1, runs - hits), 1)
    (low0, low1) = np.moveaxis(low, -1, 0)
    (high0, high1) = np.moveaxis(high, -1, 0)
    more = np.stack([low1, low0, 1 - high1, 1 - high0], axis=-1)[..., None, :]
    less = np.stack([high0, high1, 1 - low0, 1 - low1], axis=-1)[..., None, :]
    with np.errstate(divide="ignore"):
        odds = np.log(np.maximum(more - np.asarray(deltas)[:, None], 0)) - np.log(less)
    bounds: np.ndarray = odds.max(axis=-1)
    return bounds

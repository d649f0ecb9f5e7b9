"""Accounting by Rényi divergences, which add up at every order.

Reference: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
Proposition 12 (conversion to epsilon and delta).
"""

import math
from collections.abc import Iterable

import numpy as np

from rknn_jax.privacy.events import Event, merged
from rknn_jax.privacy.sampled_gaussian import ORDERS


def curve(events: Iterable[Event]) -> np.ndarray:
    """Return the Rényi divergence of the events together at `ORDERS`, float64 `[4096]`."""
    return total_curve(event.rdp(ORDERS) for event in events)


def total_curve(curves: Iterable[np.ndarray]) -> np.ndarray:
    """Add up Rényi divergences at `ORDERS`; one that cannot be computed is infinite."""
    total: np.ndarray = np.nan_to_num(sum(curves), nan=math.inf, posinf=math.inf)
    return total


def epsilon_of(divergence: np.ndarray, delta: float) -> float:
    """Return the least epsilon, over the orders, that Rényi divergences give at a delta.

    At order a it is D + ln(1 - 1/a) - (ln delta + ln a) / (a - 1), by Canonne, Kamath & Steinke.

    Args:
      divergence: Divergence D at `ORDERS`, float64 `[4096]`.
      delta: Delta, in (0, 1).
    """
    values = divergence + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(values.min()))


def rdp_epsilon_as_published(events: Iterable[Event], delta: float) -> float:
    """Return epsilon by the conversion in the papers of PATE and Private-kNN.

    The conversion is the least Rényi divergence + ln(1/delta) / (order - 1) over the orders.

    >>> from rknn_jax.privacy.events import Gaussian
    >>> round(rdp_epsilon_as_published([Gaussian(85.0, 8192)], 1e-5), 4)
    5.6765
    """
    divergence = curve(merged(events))
    return float(np.min(divergence - math.log(delta) / (ORDERS - 1)))


def renyi_divergence(events: Iterable[Event], order: float) -> float:
    """Return the Rényi divergence of the events together.

    Args:
      events: Events of one release or of many.
      order: Order, above 1. The divergence is that of the next order at which curves are known.

    Returns:
      The divergence; infinity if it is not bounded, or cannot be computed.

    >>> from rknn_jax.privacy.events import Gaussian
    >>> order = float(ORDERS[2000])
    >>> round(renyi_divergence([Gaussian(2.0)], order) / order, 6)
    0.125
    """
    divergence = curve(merged(events))
    place = int(np.searchsorted(ORDERS, order))
    return float(divergence[place]) if place < len(ORDERS) else math.inf

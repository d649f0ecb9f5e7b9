"""Rényi divergences in closed form, of one value whose privacy loss is known.

References: Mironov, "Rényi Differential Privacy", 2017, Propositions 5 to 7 (randomized response,
Laplace and Gaussian noise); Bun & Steinke, "Concentrated Differential Privacy", 2016, Proposition
1.4 (the line of any pure guarantee).
"""

import math

import numpy as np

SMALLEST_LOSS = 1e-4  # loss of one value below which its Rényi divergence is bounded, not computed


def gaussian_rdp(orders: np.ndarray, loss: float) -> np.ndarray:
    """Return the Rényi divergence of Gaussian noise of noise multiplier 1/loss at orders.

    It is a loss²/2 at order a, float64 `[n]`. Every loss-DP pair has this at most.
    """
    divergence: np.ndarray = orders * loss**2 / 2
    return divergence


def laplace_rdp(orders: np.ndarray, loss: float) -> np.ndarray:
    """Return the Rényi divergence of Laplace noise of scale 1/loss at orders, float64 `[n]`.

    It is ln[a/(2a-1) e^((a-1)loss) + (a-1)/(2a-1) e^(-a loss)]/(a-1) at order a.
    """
    if loss < SMALLEST_LOSS:  # The exact curve is lost in rounding, and this one is above it.
        return gaussian_rdp(orders, loss)
    up = (orders - 1) * loss + np.log(orders / (2 * orders - 1))
    down = -orders * loss + np.log((orders - 1) / (2 * orders - 1))
    near = np.minimum((orders - 1) * loss, 1)
    # The linear terms of the two exponentials cancel.
    more = orders * _above_tangent(near) + (orders - 1) * _above_tangent(-orders * loss)
    more /= 2 * orders - 1
    divergence: np.ndarray = _log_of_sum(near, more, up, down) / (orders - 1)
    return divergence


def response_rdp(orders: np.ndarray, loss: float) -> np.ndarray:
    """Return the Rényi divergence of randomized response at orders, float64 `[n]`.

    It is ln[(e^((a-1)loss) + e^(-a loss))/(1 + e^-loss)]/(a-1) at order a, the most that loss-DP
    allows.
    """
    if loss < SMALLEST_LOSS:  # The exact curve is lost in rounding, and this one is above it.
        return gaussian_rdp(orders, loss)
    up = (orders - 1) * loss - math.log1p(math.exp(-loss))
    down = -orders * loss - math.log1p(math.exp(-loss))
    near = np.minimum((orders - 1) * loss, 1)
    more = np.expm1(near) * -np.expm1(-orders * loss) / (1 + math.exp(-loss))
    divergence: np.ndarray = _log_of_sum(near, more, up, down) / (orders - 1)
    return divergence


def _log_of_sum(near: np.ndarray, more: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Return ln(e^up + e^down), from the sum less 1 where `near` is below 1.

    The logarithm of a sum near 1 would lose small losses.
    """
    logarithm: np.ndarray = np.where(near < 1, np.log1p(more), np.logaddexp(up, down))
    return logarithm


def _above_tangent(x: np.ndarray) -> np.ndarray:
    """Return e^x - 1 - x, to 12 digits from `SMALLEST_LOSS` on."""
    found: np.ndarray = np.expm1(x) - x
    return found

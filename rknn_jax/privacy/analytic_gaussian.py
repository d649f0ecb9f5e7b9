"""Gaussian noise in closed form: epsilon from the noise, and the noise from epsilon.

With noise multiplier sigma, the standard deviation in units of the L2 sensitivity, the noise is
(epsilon, delta)-DP exactly if

    delta >= Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma).

For large sigma, both terms are nearly equal, and their difference would lose its digits. The
derivative of delta by epsilon is -e^epsilon Phi(-1/(2 sigma) - epsilon sigma), so that delta is
also an integral of positive numbers, which is taken by quadrature:

    delta = 1/sigma · ∫ e^(epsilon + u/sigma) Phi(-1/(2 sigma) - epsilon sigma - u) du, u > 0

Reference: Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018,
Theorem 8.
"""

import functools
import math

import numpy as np
from scipy.special import log_ndtr, logsumexp

NUM_NODES = 64
"""Nodes of the quadrature, whose relative error is 1e-13."""

LAST = 46.0
"""Negative logarithm of the share of the integral that is left out: e^-46 = 1e-20."""

SMALLEST_STDDEV = 1.0
"""Least noise multiplier of which delta is taken by quadrature."""


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier at which Gaussian noise is (epsilon, delta)-DP.

    The noise multiplier is sigma in units of the L2 sensitivity, rounded up in the twelfth digit.
    This is the analytic calibration. The textbook's sqrt(2 ln(1.25/delta))/epsilon is larger, and
    wrong for epsilon > 1.

    Raises:
      ValueError: If epsilon or delta is out of range.

    >>> round(gaussian_noise_multiplier(1.0, 1e-5), 6)
    3.730632
    """
    from scipy.optimize import brentq  # imported late: it takes half a second

    check_amounts(epsilon, delta)
    root = math.sqrt(-math.log(delta))
    # zCDP's noise multiplier always suffices.
    high = (math.sqrt(epsilon + root**2) + root) / (math.sqrt(2) * epsilon)
    low = high
    while _gaussian_log_delta(low, epsilon) <= math.log(delta):
        low /= 2
    multiplier: float = brentq(
        lambda sigma: _gaussian_log_delta(sigma, epsilon) - math.log(delta),
        low,
        2 * low,
        xtol=1e-14 * low,
        rtol=1e-13,
    ) * (1 + 1e-12)
    return multiplier


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return epsilon of Gaussian noise with a given noise multiplier.

    The standard deviation is `noise_multiplier` times the L2 sensitivity.

    Raises:
      ValueError: If the noise multiplier or delta is out of range.

    >>> round(gaussian_epsilon(3.730632, 1e-5), 5)
    1.0
    """
    check_amounts(noise_multiplier, delta, "noise_multiplier")
    if _gaussian_log_delta(noise_multiplier, 0.0) <= math.log(delta):
        return 0.0
    high = 0.5 / noise_multiplier**2 + math.sqrt(-2 * math.log(delta)) / noise_multiplier
    from scipy.optimize import brentq  # imported late: it takes half a second

    found: float = brentq(
        lambda epsilon: _gaussian_log_delta(noise_multiplier, epsilon) - math.log(delta),
        0.0,
        high * (1 + 1e-9),
        xtol=1e-14 * high,
        rtol=1e-13,
    )
    return found


def check_amounts(amount: float, delta: float, name: str = "epsilon") -> None:
    """Refuse an amount that is not finite and positive, and a delta outside (0, 1).

    Raises:
      ValueError: In these cases, with the name of the amount.
    """
    if not 0 < amount < math.inf:
        raise ValueError(f"Expected 0 < {name} < infinity, got {name}={amount}.")
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; Gaussian noise gives no pure "
            "differential privacy."
        )


def _gaussian_log_delta(sigma: float, epsilon: float) -> float:
    """Return ln delta by the module's equations."""
    if sigma >= SMALLEST_STDDEV:
        return _integral(sigma, epsilon)
    upper, lower = log_ndtr(np.array([0.5, -0.5]) / sigma - epsilon * sigma)
    return float(upper + math.log(-math.expm1(epsilon + lower - upper)))


def _integral(sigma: float, epsilon: float) -> float:
    """Return ln delta by quadrature."""
    start = 0.5 / sigma + epsilon * sigma
    # ln Phi(-start - u) falls by more than start·u + u²/2, and e^(u/sigma) gives back half a u at
    # most where it matters.
    end = 2 * LAST / (start + math.sqrt(start**2 + LAST))
    nodes, log_weights = _nodes()
    u = end * nodes
    logs = epsilon + u / sigma + log_ndtr(-start - u) + log_weights
    return float(logsumexp(logs)) + math.log(end) - math.log(sigma)


@functools.cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of Gauss and Legendre in [0, 1], and the logarithms of their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    return (nodes + 1) / 2, np.log(weights / 2)

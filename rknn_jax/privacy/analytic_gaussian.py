"""Gaussian noise in closed form: epsilon from the noise, and the noise from epsilon.

With noise multiplier sigma, the standard deviation in units of the L2 sensitivity, the noise is
(epsilon, delta)-DP exactly if

    delta >= Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma).

Reference: Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018,
Theorem 8.
"""

import math

import numpy as np
from scipy.special import log_ndtr


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
    """Return ln delta by the module's equation."""
    upper, lower = log_ndtr(np.array([0.5, -0.5]) / sigma - epsilon * sigma)
    return float(upper + math.log(-math.expm1(epsilon + lower - upper)))

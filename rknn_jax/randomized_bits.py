"""One randomized bit of each record that checks labels, where nobody is trusted.

A bit says whether a record agrees with the labels near it. Randomized response makes it
epsilon-DP by itself, before it leaves the record.

Reference: Warner, "Randomized Response", 1965.
"""

import math

import jax
import numpy as np
from scipy.stats import beta

from rknn_jax.answers.measured import CONFIDENCE, Interval


def keep_probability(epsilon: float) -> float:
    """Return the probability e^epsilon/(1 + e^epsilon) that randomized response keeps a bit."""
    return 1 / (1 + math.exp(-epsilon))


def randomized(key: jax.Array, bits: np.ndarray, epsilon: float) -> np.ndarray:
    """Return bits by randomized response, bool `[c]`, in simulation: each is epsilon-DP by itself.

    Args:
      key: Random key, which is consumed.
      bits: True bits, bool `[c]`.
      epsilon: Epsilon of a bit; infinity keeps all.
    """
    size = 1 << len(bits).bit_length()  # few sizes make few programs
    kept = np.asarray(jax.random.bernoulli(key, keep_probability(epsilon), (size,)))[: len(bits)]
    sent: np.ndarray = kept == bits
    return sent


def debiased(share: float, epsilon: float) -> float:
    """Return the share of true bits that gives a share of randomized ones on average.

    It is an unbiased estimate if `share` was counted, and may then be below 0 or above 1.

    Args:
      share: Share of randomized bits that are 1.
      epsilon: Epsilon of a bit.
    """
    return (share - 1 + keep_probability(epsilon)) / math.tanh(epsilon / 2)


def interval_of_bits(ones: int, size: int, epsilon: float) -> Interval:
    """Return a share with its 95% interval, from randomized bits.

    If records that agree have a share p, each bit is 1 with the probability that `debiased` maps
    back to p, and bits are independent. So their sum is binomial, and Clopper and Pearson's
    interval, mapped back, has chance and noise in one law.

    Args:
      ones: Number of randomized bits that are 1.
      size: Number of bits, at least 1.
      epsilon: Epsilon of a bit.
    """
    tail = (1 - CONFIDENCE) / 2
    low = beta.ppf(tail, ones, size - ones + 1) if ones else 0.0
    high = beta.ppf(1 - tail, ones + 1, size - ones) if ones < size else 1.0
    found = (min(max(debiased(share, epsilon), 0.0), 1.0) for share in (ones / size, low, high))
    return Interval(*map(float, found))

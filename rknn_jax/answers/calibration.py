"""From mean shares and redrawn counts to probabilities that hold.

The process is Gaussian, and true shares of a class are often near 0 or 1: mean shares are too even.
`python -m benchmarks.calibrating` fits the two powers here, and judges them on kinds of data that
had no part in the fit. Powers that depend on the noise or on the agreement fitted better and held
no better.
"""

import math

import numpy as np

SHARPER = 1.8
"""Power that makes mean shares probabilities of being right.

It has about the least log-loss on splits 0 and 1 of the data sets of `benchmarks.decoding`, over
all epsilons. The splits that `benchmarks.decoding` reports are others.
"""

STEADIER = 1.25
"""Power of the odds against chance that makes redrawn counts a stability, chosen so too."""

DOUBT = 1e-3
"""Probability that a label is any other class whatever the counts say, so that none is 0 or 1."""


def doubted(probabilities: np.ndarray) -> np.ndarray:
    """Return probabilities of classes with a little doubt, float32 `[m, num_classes]`.

    The most probable class stays the same, and no logarithm is infinite.

    Args:
      probabilities: `[m, num_classes]`, in [0, 1].
    """
    even = np.float32(DOUBT / probabilities.shape[1])
    mixed: np.ndarray = np.float32(1 - DOUBT) * np.asarray(probabilities, np.float32) + even
    return mixed


def sharper(shares: np.ndarray) -> np.ndarray:
    """Return the probabilities of rows' classes from mean shares, float32 `[m, num_classes]`."""
    raised = shares**SHARPER
    probabilities: np.ndarray = raised / raised.sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32)


def steadier(stays: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the stability from the part of redrawn counts that agree, float32 `[m]`."""
    chance = max(num_classes - 1, 1)
    odds = (stays * chance / np.maximum(1 - stays, 1e-9)) ** STEADIER / chance
    stability: np.ndarray = odds / (1 + odds)
    return stability.astype(np.float32)


def greatest(squares: float, num_classes: int) -> float:
    """Return the greatest share if shares have this sum of squares and all others are equal.

    Means of shares are too even if there is noise, and their greatest is too small. Expected
    squares are not.
    """
    if num_classes == 1:
        return 1.0
    even = 1 / num_classes
    beyond = min(max(squares - even, 0.0), 1 - even)
    return even + math.sqrt(beyond * (num_classes - 1) / num_classes)

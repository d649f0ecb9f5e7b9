"""From mean shares and redrawn counts to probabilities that hold.

The process is Gaussian, and true shares of a class are near 0 or 1: mean shares are too even. How
much depends on how far noise hides the shares. Without noise, only rows between queries are too
even. Where it hides everything, even shares are right. In between, they are too even most. And they
are right where private records near each other do not agree, as true shares are in between then.

`python -m benchmarks.calibrating` fits the numbers here, and judges each on data sets that had no
part in it.
"""

import math

import numpy as np

SHARPER = (-0.2, 3.4, -2.6, 0.0)
"""Logarithm of the power that makes mean shares probabilities: `power`.

It had the least log-loss on splits 0 and 1 of the data sets of `benchmarks.decoding`, over all
epsilons. The splits that `benchmarks.decoding` reports are others.
"""

STEADIER = 1.25
"""Likewise, power of the odds against chance that makes redrawn counts a stability."""


def seen_part(shares: np.ndarray, squares: np.ndarray, size: np.ndarray) -> float:
    """Return the part of the shares' variation between classes that noise does not hide.

    Args:
      shares: Mean share of each class near each query, `[s, num_classes]`.
      squares: Expected squares of the shares, likewise.
      size: Public rows of each query, `[s]`.
    """
    even = 1 / shares.shape[1]
    weight = size / size.sum()
    shown = float(weight @ (shares**2).sum(axis=1)) - even
    whole = float(weight @ squares.sum(axis=1)) - even
    return min(max(shown / whole, 0.0), 1.0) if whole > 0 else 0.0


def power(seen: float, agreement: float) -> float:
    """Return the power that makes mean shares probabilities.

    Args:
      seen: Result of `seen_part`.
      agreement: Result of `greatest`.
    """
    terms = (1.0, seen, seen**2, agreement)
    return math.exp(math.fsum(one * term for one, term in zip(SHARPER, terms, strict=True)))


def sharper(shares: np.ndarray, power: float) -> np.ndarray:
    """Return the probabilities of rows' classes from mean shares, float32 `[m, num_classes]`.

    Args:
      shares: Mean shares, rows summing to 1.
      power: Result of `power`.
    """
    raised = shares**power
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

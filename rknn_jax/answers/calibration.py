"""From mean shares, redrawn counts and measured shares to probabilities that hold.

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


MOST_POWER = 8.0
"""Largest power that a measured share raises probabilities to."""

APART = 2.0**-20
"""Least relative difference of a row's greatest probability from those before it."""

MOST_ROWS = 2**14
"""Rows that tell which power that is."""


def doubted(probabilities: np.ndarray) -> np.ndarray:
    """Return probabilities of classes with a little doubt, float32 `[m, num_classes]`.

    The most probable class stays the same, and no logarithm is infinite.

    Args:
      probabilities: `[m, num_classes]`, in [0, 1].
    """
    even = np.float32(DOUBT / probabilities.shape[1])
    mixed: np.ndarray = np.float32(1 - DOUBT) * np.asarray(probabilities, np.float32) + even
    return mixed


def measured(probabilities: np.ndarray, share: float) -> np.ndarray:
    """Return probabilities whose greatest one is a measured share on average, float32.

    All are raised to one power, of at most `MOST_POWER` and at least its inverse. The most probable
    class of a row stays the same, and rows keep their order if there are two classes.

    Args:
      probabilities: `[m, num_classes]`, positive.
      share: Share of rows that are right, as it was measured.
    """
    logs = np.log(np.maximum(probabilities, 1e-9).astype(np.float64))
    logs -= logs.max(axis=1, keepdims=True)
    some = logs[np.linspace(0, len(logs) - 1, min(len(logs), MOST_ROWS)).astype(np.int64)]

    def beyond(log_power: float) -> float:
        # The greatest logarithm of a row is 0.
        return float(np.mean(1 / np.exp(math.exp(log_power) * some).sum(axis=1))) - share

    low, high = -math.log(MOST_POWER), math.log(MOST_POWER)
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) > 0 else (middle, high)
    raised = np.exp(math.exp((low + high) / 2) * logs)
    found = np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float32)
    # A power below 1 brings classes so close that they round to one number, here or in `doubted`.
    # Then the first one would be the most probable.
    rows, best = np.arange(len(found)), probabilities.argmax(axis=1)
    before = np.where(np.arange(found.shape[1]) < best[:, None], found, 0).max(axis=1)
    found[rows, best] = np.maximum(found[rows, best], before * np.float32(1 + APART))
    return found


def expected_recall(probabilities: np.ndarray, share: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the expected recall of each class by probabilities, float64 `[num_classes]`.

    It is the part of the rows expected to be of a class that got its label. The probabilities of a
    rare class among another one are too small, so that its share may be known better otherwise.

    Args:
      probabilities: `[m, num_classes]`, positive.
      share: Least share of the rows that is of the class, `[num_classes]`. Defaults to 0, unknown.
    """
    labels, most = probabilities.argmax(axis=1), probabilities.max(axis=1)
    found = np.bincount(labels, weights=most, minlength=probabilities.shape[1])
    expected = probabilities.sum(axis=0, dtype=np.float64)
    recall: np.ndarray = found / np.maximum(expected, share * np.float64(len(labels)))
    return recall


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

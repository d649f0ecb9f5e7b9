"""Agreement of a record's class with the labels of the public rows near it."""

import numpy as np

from rknn_jax.label_sets import HALF
from rknn_jax.neighbors import Metric, nearest

NEAR = 5
"""Public rows near a record, whose mean probabilities tell the class that it checks.

One row alone would count the distance between rows as an error of the labels. If all rows of a
query have its label, one is enough, and the mean over several queries would hide their errors.
"""

AT_ONCE = 2**22
"""Probabilities near checking records that are held at a time."""


def num_near(rows: np.ndarray) -> int:
    """Return the number of public rows near a record that tell its class."""
    return min(NEAR, len(rows))


def near(points: np.ndarray, rows: np.ndarray, metric: Metric) -> np.ndarray:
    """Return the public rows near each record, int32 `[c, NEAR]`, by that record alone.

    Args:
      points: Finite features, float32 `[c, f]`.
      rows: Features of the public rows, float32 `[m, f]`.
      metric: Distance between features.
    """
    return np.asarray(nearest(points, rows, num_near(rows), metric=metric), np.int32)


def agreement(
    near: np.ndarray, ids: np.ndarray, probabilities: np.ndarray, *, smooth: bool
) -> np.ndarray:
    """Return whether the public rows near each record got its class, or its set, bool `[c]`.

    Args:
      near: Result of `near`, nearest first.
      ids: Class of each record, int32 `[c]`, or its ballot `[c, r + 1]`.
      probabilities: Soft labels of the public rows, float32 `[m, num_classes]`.
      smooth: False if the nearest row alone tells.
    """
    near = near if smooth else near[:, :1]
    size = max(1, AT_ONCE // max(1, near.shape[1] * probabilities.shape[1]))
    found = np.zeros(len(near), bool)
    for first in range(0, len(found), size):
        block = slice(first, first + size)
        mean = probabilities[near[block]].mean(axis=1)
        mine = ids[block]
        if mine.ndim == 1:
            found[block] = mean.argmax(axis=1) == mine
            continue
        named = (mine[:, :-1, None] == np.arange(mean.shape[1])).any(axis=1)
        found[block] = ((mean >= HALF) == named).all(axis=1)
    return found

"""Clipping of records to a public ball, which bounds what a record adds to a sum.

The bound holds for every float: NaN, infinity, and numbers whose difference, quotient, or norm
overflows. A record that has no clipped form counts as the center. An error in its place would tell
that one record.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

CLIP_SLACK = 1 - 1e-12
"""Factor that keeps a clipped norm below the radius in spite of rounding."""


def clip_to_ball(
    features: ArrayLike, center: ArrayLike, radius: float, norm: Literal[1, 2] = 2
) -> np.ndarray:
    """Return features relative to a center, clipped, in units of the radius.

    Each row depends on that row and the ball alone, bit for bit.

    Args:
      features: `[n, f]`.
      center: Public center, `[f]`.
      radius: Public radius, positive.
      norm: Norm of the ball, 1 or 2. Defaults to 2.

    Returns:
      float64 `[n, f]`, whose rows have a norm of at most 1. A row becomes 0 if its norm is not
      finite.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # In C's order, where NumPy sums a row in one order, whatever other rows there are.
        rows = np.ascontiguousarray(features, np.float64) - np.asarray(center, np.float64)
        rows = rows / radius
        lengths = np.linalg.norm(rows, ord=norm, axis=1, keepdims=True)
    # Check what is clipped, as a finite row may overflow on the way here.
    usable = np.isfinite(lengths)
    rows = np.where(usable, rows, 0)
    clipped: np.ndarray = rows * (CLIP_SLACK / np.maximum(np.where(usable, lengths, 0), 1))
    return clipped

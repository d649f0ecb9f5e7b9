"""Cosines between private and public features, around a public center and within a public range."""

from dataclasses import dataclass

import numpy as np

from rknn_jax.types import Array, Queries

MOST_PAIRED = 1000
"""Public rows whose pairs determine the range."""

FINEST = 2.0**25
"""Steps of a coordinate of 1 in a direction.

Products of two coordinates are multiples of 2^-50, and sums of them stay below 2. So a cosine is
exact, in whichever order it is added up. Otherwise the last bit of a record's cosine depends on
how many other records are multiplied with it, and all of them could move by one.
"""


@dataclass(frozen=True, eq=False)
class PublicCosines:
    """Public center of features, and a public range of cosines.

    Attributes:
      center: Mean of the public features, float64 `[f]`.
      low: Lower end of the range.
      high: Upper end of the range, above `low`.
      pairs: Cosines of pairs of public rows, float64 `[num_pairs]`, in order.
    """

    center: np.ndarray
    low: float
    high: float
    pairs: np.ndarray

    @classmethod
    def of(cls, queries: Queries, low: float, high: float) -> "PublicCosines":
        """Return the cosines around the queries' center, with a range of two quantiles.

        Args:
          queries: Public queries, each of which counts as often as its size in the center.
          low: Quantile of the range's lower end, among pairs of queries.
          high: Quantile of its upper end.
        """
        features = np.asarray(queries.features, np.float64)
        center = np.average(features, axis=0, weights=queries.size)
        step = -(-len(features) // MOST_PAIRED)
        rows = _directions(features[::step], center)
        pairs = np.sort((rows @ rows.T)[np.triu_indices(len(rows), 1)])
        if not len(pairs):
            return cls(center, 0.0, 1.0, np.zeros(1))
        ends = np.quantile(pairs, (low, high))
        upper = float(ends[1]) if ends[1] > ends[0] else float(ends[0]) + 1
        return cls(center, float(ends[0]), upper, pairs)

    def directions(self, features: Array) -> np.ndarray:
        """Return features `[n, f]` as vectors of length 1 around the center, float64 `[n, f]`.

        Coordinates are rounded to multiples of 1/`FINEST`, for which cosines are exact.

        A row at the center, or whose distance to it is not finite, becomes 0. Each row depends on
        that row and the center alone.
        """
        return _directions(features, self.center)

    def clip(self, cosines: np.ndarray) -> np.ndarray:
        """Return cosines clipped to the range, from 0 at its lower end to 1 at its upper end."""
        clipped: np.ndarray = np.clip((cosines - self.low) / (self.high - self.low), 0, 1)
        return clipped


def _directions(features: Array, center: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        # In C's order, where NumPy sums a row in one order, whatever other rows there are.
        rows = np.ascontiguousarray(features, np.float64) - center
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # Check the length, as a finite row may overflow on the way here.
    usable = (lengths > 0) & np.isfinite(lengths)
    directions = np.divide(rows, lengths, out=np.zeros_like(rows), where=usable)
    rounded: np.ndarray = np.rint(directions * FINEST) / FINEST
    return rounded

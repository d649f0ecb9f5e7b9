"""Public ball to which features are clipped, and the spread of public features in it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rknn_jax.privacy.clipping import clip_to_ball
from rknn_jax.types import Array, Queries


@dataclass(frozen=True, eq=False)
class Ball:
    """Public ball to which features are clipped.

    Attributes:
      center: Center of the public features, float64 `[f]`.
      radius: Radius, positive.
      norm: Norm of the ball, 1 or 2.
    """

    center: np.ndarray
    radius: float
    norm: Literal[1, 2]

    @classmethod
    def around(cls, queries: Queries, norm: Literal[1, 2]) -> "Ball":
        """Return the ball around the mean of the public rows that holds half of them.

        Args:
          queries: Public queries, each of which counts as often as its size.
          norm: Norm of the ball.
        """
        features = np.asarray(queries.features, np.float64)
        center = np.average(features, axis=0, weights=queries.size)
        lengths = np.linalg.norm(features - center, ord=norm, axis=1)
        radius = float(np.median(np.repeat(lengths, queries.size)))
        return cls(center, radius if radius > 0 else 1.0, norm)

    def clip(self, features: Array) -> np.ndarray:
        """Return features `[n, f]` in the ball; see `clip_to_ball`."""
        return clip_to_ball(features, self.center, self.radius, self.norm)


class Spectrum(NamedTuple):
    """Second moment of the clipped public features, by its eigenvectors.

    Attributes:
      directions: float64 `[f, f]`, one eigenvector in each column.
      variances: float64 `[f]`, eigenvalues, at least 0.
      mean: float64 `[f]`, mean of the clipped public features.
    """

    directions: np.ndarray
    variances: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, weights: np.ndarray) -> "Spectrum":
        """Return the spectrum of clipped public rows `[s, f]` with weights `[s]`."""
        mean = np.average(rows, axis=0, weights=weights)
        centered = (rows - mean) * np.sqrt(weights / weights.sum())[:, None]
        variances, directions = np.linalg.eigh(centered.T @ centered)
        return cls(directions, np.maximum(variances, 0), mean)

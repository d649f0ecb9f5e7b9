"""Noise of the mechanisms by which records check labels: exact in a release, or simulated."""

from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from rknn_jax.privacy import exact_noise


class Noise(Protocol):
    """Draws of the mechanisms."""

    def winner(self, counts: np.ndarray, scale: float) -> int:
        """Return the place of the largest of counts with exponential noise, int64 `[c]`."""

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        """Return counts with discrete Laplace noise, int64."""


class ExactNoise:
    """Exact noise of the operating system's entropy, for a release."""

    def winner(self, counts: np.ndarray, scale: float) -> int:
        """Return the winner of permute-and-flip."""
        return int(exact_noise.permute_and_flip(counts[None], scale)[0])

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        """Return counts with noise; see `exact_noise.discrete_laplace`."""
        return exact_noise.discrete_laplace(counts, scale)


@dataclass
class SimulatedNoise:
    """Noise of a simulation.

    Attributes:
      key: Random key; a part of it is consumed by each draw.
    """

    key: jax.Array

    def winner(self, counts: np.ndarray, scale: float) -> int:
        """Return the winner of permute-and-flip."""
        return int(np.argmax(counts + scale * self._exponential(len(counts))))

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        """Return counts with noise, the difference of two geometric numbers."""
        up, down = np.floor(scale * self._exponential(2 * counts.size)).reshape(2, *counts.shape)
        noisy: np.ndarray = counts + (up - down).astype(np.int64)
        return noisy

    def _exponential(self, count: int) -> np.ndarray:
        self.key, own = jax.random.split(self.key)
        return np.asarray(jax.random.exponential(own, (count,)), np.float64)

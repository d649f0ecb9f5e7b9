"""Linear classifier of clipped features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal.disk import write_arrays
from rknn_jax.labelers._public_ball import Ball
from rknn_jax.types import Array, Encoder

Link = Literal["softmax", "linear"]
"""`softmax` if scores are logarithms of odds, or `linear` if they are probabilities."""


@dataclass(frozen=True, eq=False)
class Head:
    """Linear classifier of clipped features.

    Attributes:
      weights: float64 `[f, num_classes]`.
      bias: float64 `[num_classes]`.
      ball: Public ball to which features are clipped.
      encode: Map of images to features.
      link: Map of scores to probabilities.
    """

    weights: np.ndarray
    bias: np.ndarray
    ball: Ball
    encode: Encoder
    link: Link

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Weights and bias by name."""
        return {"weights": self.weights, "bias": self.bias}

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`.

        Args:
          images: uint8 `[n, height, width, channels]`.
        """
        return self.of_features(self.encode(images))

    def of_features(self, features: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of features `[n, f]`."""
        scores = self.ball.clip(features) @ self.weights + self.bias
        if self.link == "softmax":
            return np.asarray(jax.nn.softmax(jnp.asarray(scores, jnp.float32)))
        # The largest score keeps its lead if all scores are negative.
        lifted = scores - np.minimum(scores.max(axis=1, keepdims=True), 0)
        positive = np.maximum(lifted, 0) + 1e-9 * (scores >= scores.max(axis=1, keepdims=True))
        shares: np.ndarray = positive / positive.sum(axis=1, keepdims=True)
        return shares.astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write `linear.npz`: weights, bias, and the ball."""
        folder.mkdir(parents=True)
        radius = np.array(self.ball.radius)
        ball = {"center": self.ball.center, "radius": radius, "norm": np.array(self.ball.norm)}
        write_arrays(folder / "linear.npz", self.params | ball, compress=False)

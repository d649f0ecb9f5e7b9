"""One hidden layer on flattened inputs of any shape.

This is the Layer-2 head of noisy SGD, which the reverse k-NN paper compares with.
"""

import flax.linen as nn
import jax

EPOCHS = 30
"""Default passes over the data."""

MIN_SIZE = 1
"""Smallest image height and width, in pixels."""

FEATURES = True
"""Whether the network takes features `[n, f]` as well as images."""


class MLP(nn.Module):
    """Map float32 `[n, ...]` to logits `[n, num_classes]`.

    Attributes:
      num_classes: Number of classes |Y|.
      hidden: Number of hidden units, with ReLU. Defaults to 64.
    """

    num_classes: int
    hidden: int = 64

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the hidden layer, float32 `[n, hidden]`."""
        x = nn.relu(nn.Dense(self.hidden)(images.reshape(len(images), -1)))
        return x if features else nn.Dense(self.num_classes)(x)


Model = MLP

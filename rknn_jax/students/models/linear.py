"""Softmax regression on flattened inputs of any shape.

This is the Layer-1 head of noisy SGD, which the reverse k-NN paper compares with.
"""

import flax.linen as nn
import jax

EPOCHS = 30
"""Default passes over the data."""

MIN_SIZE = 1
"""Smallest image height and width, in pixels."""

FEATURES = True
"""Whether the network takes features `[n, f]` as well as images."""


class Linear(nn.Module):
    """Map float32 `[n, ...]` to logits `[n, num_classes]`.

    Attributes:
      num_classes: Number of classes |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the flattened inputs."""
        x = images.reshape(len(images), -1)
        head = nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros)
        return x if features else head(x)


Model = Linear

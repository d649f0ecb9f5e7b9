"""Softmax regression on whatever it is given, flattened: the Layer-1 head of the noisy SGD that
the reverse k-NN paper compares with.
"""

import flax.linen as nn
import jax

EPOCHS = 30
"""Passes over the data."""

MIN_SIZE = 1
"""Smallest image height and width."""


class Linear(nn.Module):
    """Maps float32 `[n, ...]` to logits `[n, num_classes]`.

    Attributes:
      num_classes: |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` what was given, flattened."""
        x = images.reshape(len(images), -1)
        head = nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros)
        return x if features else head(x)


Model = Linear

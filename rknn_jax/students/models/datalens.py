"""The small network of DataLens, which is also the student of DPDFD.

    conv 3x3 valid 32, max-pool 2, conv 3x3 valid 64, flatten, dense 64, head

Biases and ReLU follow every layer but the head. There is no batch normalization, so an image's
output depends on no other image. The dropout of 0.2 and 0.25 after the convolutions is left out,
because a network here is a function of its weights and images. Pooling drops odd rows and columns.
Images too small for both convolutions are padded with zeros.

References: Wang et al., "DataLens: Scalable Privacy Preserving Training via Gradient Compression
and Aggregation", 2021, whose code has the network; Liu et al., "Model Conversion via Differentially
Private Data-Free Distillation", 2023.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rknn_jax.students.models.cnn import max_pool

EPOCHS = 30
"""Default passes over the data; many more would memorize noisy labels."""

MIN_SIZE = 1
"""Smallest image height and width, in pixels; sizes below 8 are padded to 8."""

_LEAST = 8


class DataLens(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    Attributes:
      num_classes: Number of classes |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the layer before the head, float32 `[n, 64]`."""
        del train
        _, height, width, _ = images.shape
        x = jnp.pad(
            images, ((0, 0), (0, max(0, _LEAST - height)), (0, max(0, _LEAST - width)), (0, 0))
        )
        x = max_pool(nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x)))
        x = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        return x if features else nn.Dense(self.num_classes)(x)


Model = DataLens

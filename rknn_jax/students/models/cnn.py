"""A small convolutional network that trains in about a second per epoch on two cores.

    conv 3x3 w/2, max-pool 2, conv w, conv 2w stride 2, conv 2w, conv 4w stride 2,
    flatten, dense 128, head

Batch normalization and ReLU follow every layer but the head. The network takes any image size and
number of channels. Pooling reshapes and takes the maximum: on CPU, the gradient of `nn.max_pool`
makes a whole step 30% slower.
"""

import flax.linen as nn
import jax

EPOCHS = 30
"""Default passes over the data; many more would memorize noisy labels."""

MIN_SIZE = 2
"""Smallest image height and width, in pixels."""


class CNN(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    Attributes:
      num_classes: Number of classes |Y|.
      width: Number of channels w after the pooling. Defaults to 32.
      num_features: Size of the layer before the head. Defaults to 128.
    """

    num_classes: int
    width: int = 32
    num_features: int = 128

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the layer before the head.

        Features are float32 `[n, num_features]`.
        """

        def normalise(x: jax.Array) -> jax.Array:
            return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))

        def conv(x: jax.Array, channels: int, stride: int = 1) -> jax.Array:
            return normalise(nn.Conv(channels, (3, 3), stride, use_bias=False)(x))

        x = max_pool(conv(images, self.width // 2))
        x = conv(conv(x, self.width), 2 * self.width, 2)
        x = conv(conv(x, 2 * self.width), 4 * self.width, 2)
        x = normalise(nn.Dense(self.num_features, use_bias=False)(x.reshape(len(x), -1)))
        return x if features else nn.Dense(self.num_classes)(x)


def max_pool(x: jax.Array) -> jax.Array:
    """Halve height and width; an odd last row or column is left out."""
    n, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))


Model = CNN

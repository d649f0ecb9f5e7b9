"""The small tanh network of private training on MNIST, with 26,010 parameters.

    conv 8x8 16 stride 2, max-pool 2 stride 1, conv 4x4 32 stride 2 valid, max-pool 2 stride 1,
    flatten, dense 32, head

There is no batch normalization, which would mix records. tanh follows both convolutions and the
dense layer, whose output is the features. The input is 2(x - 0.5). Bounded activations suit clipped
gradients better than ReLU.

Convolutions are products of patches and a matrix, and poolings are maxima of neighboring slices.
Per-example gradients would otherwise be grouped convolutions, which are slow in XLA on a CPU.

References: the tutorials of TensorFlow Privacy; Papernot, Thakurta, Song, Chien & Erlingsson,
"Tempered Sigmoid Activations for Deep Learning with Differential Privacy", 2020.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

EPOCHS = 30
"""Default passes over the data, without noise."""

MIN_SIZE = 13
"""Smallest image height and width, in pixels: the last pooling leaves one pixel."""


class TanhCNN(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    Images must have 13x13 pixels or more.

    Attributes:
      num_classes: Number of classes |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the layer before the head, float32 `[n, 32]`."""
        del train  # no layer behaves differently in training
        x = nn.tanh(nn.Dense(16, name="conv1")(_patches(_padded(2 * (images - 0.5), 8), 8)))
        x = nn.tanh(nn.Dense(32, name="conv2")(_patches(_max_pool(x), 4)))
        x = nn.tanh(nn.Dense(32)(_max_pool(x).reshape(len(x), -1)))
        return x if features else nn.Dense(self.num_classes)(x)


def _padded(x: jax.Array, size: int) -> jax.Array:
    """Pad images with zeros for patches of stride 2, as padding `SAME` does.

    The number of patches is half the number of rows, and of columns, rounded up.
    """
    lacking = [max(0, 2 * (-(-length // 2) - 1) + size - length) for length in x.shape[1:3]]
    return jnp.pad(x, [(0, 0), *((few // 2, few - few // 2) for few in lacking), (0, 0)])


def _patches(x: jax.Array, size: int) -> jax.Array:
    """Return patches of `size` x `size` pixels and stride 2; `size` is even.

    Returns:
      Patches `[n, rows, columns, size^2 c]`.
    """
    n, height, width, c = x.shape
    rows = (height - size) // 2 + 1
    columns = (width - size) // 2 + 1
    tall = rows + size // 2 - 1
    wide = columns + size // 2 - 1
    blocks = (
        x[:, : 2 * tall, : 2 * wide]
        .reshape(n, tall, 2, wide, 2, c)
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(n, tall, wide, 4 * c)
    )
    # Columns before rows: the second step moves longer runs of memory than one step for both.
    strips = jnp.concatenate([blocks[:, :, j : j + columns] for j in range(size // 2)], axis=-1)
    return jnp.concatenate([strips[:, i : i + rows] for i in range(size // 2)], axis=-1)


def _max_pool(x: jax.Array) -> jax.Array:
    """Take the largest of 2x2 pixels around every corner."""
    x = jnp.maximum(x[:, 1:], x[:, :-1])
    return jnp.maximum(x[:, :, 1:], x[:, :, :-1])


Model = TanhCNN

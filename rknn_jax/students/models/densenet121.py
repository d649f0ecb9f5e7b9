"""DenseNet-121 for images of 32x32 pixels, the reverse k-NN paper's student on CIFAR-10.

    conv 3x3 64; dense blocks of 6, 12, 24, 16 layers, a transition between two blocks;
        normalize; mean over the image; head
    layer: x and conv 3x3 32(normalize(conv 1x1 128(normalize(x)))), side by side
    transition: conv 1x1 to half the channels, of normalize(x); mean over 2x2 pixels

"Normalize" is batch normalization and ReLU. Convolutions have no bias, and the input is 2(x - 0.5).
The form for ImageNet begins with a 7x7 convolution of stride 2 and a pooling. This form keeps every
pixel until the first transition. The network needs an accelerator: on a CPU, forward and backward
take 130 ms of one core per image, and compilation takes a minute.

Reference: Huang, Liu, van der Maaten & Weinberger, "Densely Connected Convolutional Networks",
2017.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

EPOCHS = 160
"""Passes over the data in the reverse k-NN paper."""

MIN_SIZE = 8
"""Smallest image height and width, in pixels: three transitions leave one pixel."""

_GROWTH = 32


class DenseNet(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    Images must have 8x8 pixels or more.

    Attributes:
      num_classes: Number of classes |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the layer before the head, float32 `[n, 1024]`."""

        def normalise(x: jax.Array) -> jax.Array:
            return nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))

        def conv(x: jax.Array, channels: int, size: int) -> jax.Array:
            return nn.Conv(
                channels, (size, size), use_bias=False, kernel_init=nn.initializers.he_normal()
            )(x)

        x = conv(2 * (images - 0.5), 2 * _GROWTH, 3)
        for number, layers in enumerate((6, 12, 24, 16)):
            if number > 0:
                x = _mean_pool(conv(normalise(x), x.shape[-1] // 2, 1))
            for _ in range(layers):
                new = conv(normalise(conv(normalise(x), 4 * _GROWTH, 1)), _GROWTH, 3)
                x = jnp.concatenate([x, new], -1)
        x = normalise(x).mean((1, 2))
        return x if features else nn.Dense(self.num_classes)(x)


def _mean_pool(x: jax.Array) -> jax.Array:
    """Halve height and width; an odd last row or column is left out."""
    n, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4))


Model = DenseNet

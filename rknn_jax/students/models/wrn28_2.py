"""WRN-28-2, the network of MixMatch and the reverse k-NN paper's student on SVHN.

    conv 3x3 16; 3 groups of 4 blocks of 32, 64, 128 channels, the last two groups of stride 2;
        normalize; mean over the image; head
    block: x + conv 3x3(normalize(conv 3x3(normalize(x))))

"Normalize" is batch normalization and LeakyReLU of slope 0.1. If a block changes the channels, a
1x1 convolution of its normalized input replaces x. Convolutions have no bias, and the input is 2(x
- 0.5). The running statistics forget a thousandth per step, as in MixMatch. Predictions are
therefore those of the weights only after some thousands of steps. On a CPU, forward and backward
take 17 ms of one core per image of 32x32 pixels.

References: Zagoruyko & Komodakis, "Wide Residual Networks", 2016; Oliver et al., "Realistic
Evaluation of Deep Semi-Supervised Learning Algorithms", 2018.
"""

import flax.linen as nn
import jax

EPOCHS = 50
"""Default passes over the data."""

MIN_SIZE = 1
"""Smallest image height and width, in pixels."""

_INIT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # the initializer of He et al


class WideResNet(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    Attributes:
      num_classes: Number of classes |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the layer before the head, float32 `[n, 128]`."""

        def normalise(x: jax.Array) -> jax.Array:
            return nn.leaky_relu(
                nn.BatchNorm(use_running_average=not train, momentum=0.999)(x), 0.1
            )

        def conv(x: jax.Array, channels: int, size: int = 3, stride: int = 1) -> jax.Array:
            return nn.Conv(channels, (size, size), stride, use_bias=False, kernel_init=_INIT)(x)

        def block(x: jax.Array, channels: int, stride: int) -> jax.Array:
            normal = normalise(x)
            shortcut = x if x.shape[-1] == channels else conv(normal, channels, 1, stride)
            return shortcut + conv(normalise(conv(normal, channels, 3, stride)), channels)

        x = conv(2 * (images - 0.5), 16)
        for channels, stride in ((32, 1), (64, 2), (128, 2)):
            x = block(x, channels, stride)
            for _ in range(3):
                x = block(x, channels, 1)
        x = normalise(x).mean((1, 2))
        return x if features else nn.Dense(self.num_classes)(x)


Model = WideResNet

"""ResNet-18 for images of about 32x32 pixels, the backbone of SimCLR and SCAN on CIFAR-10.

    conv 3x3 64; two blocks each of 64, 128, 256 and 512 channels, strides 1, 2, 2, 2;
    mean over the image; head

The stem is a 3x3 convolution of stride 1 without pooling. A block is two 3x3 convolutions beside a
shortcut, which is a 1x1 convolution if the shape changes. Batch normalization follows every
convolution. ReLU follows all but the last convolution of a block, to which the shortcut is added
first.

Forward takes 0.56 billion multiplications per image, so the network needs an accelerator. On an
accelerator, it computes in bfloat16. Parameters, batch statistics, and results are float32
everywhere.

Reference: He, Zhang, Ren & Sun, "Deep Residual Learning for Image Recognition", 2016.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

EPOCHS = 60
"""Default passes over the data; many more would memorize noisy labels."""

MIN_SIZE = 8
"""Smallest image height and width, in pixels: the last blocks see one pixel."""


class ResNet18(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    Attributes:
      num_classes: Number of classes |Y|.
      dtype: Data type of the computation. Defaults to bfloat16 on an accelerator and float32 on a
        CPU.
    """

    num_classes: int
    dtype: Any = None

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the layer before the head, float32 `[n, 512]`."""
        dtype = self.dtype or (jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)

        def conv(x: jax.Array, channels: int, size: int = 3, stride: int = 1) -> jax.Array:
            kernel = nn.initializers.he_normal()
            x = nn.Conv(
                channels,
                (size, size),
                stride,
                padding=size // 2,
                use_bias=False,
                kernel_init=kernel,
                dtype=dtype,
            )(x)
            normalised: jax.Array = nn.BatchNorm(
                use_running_average=not train, momentum=0.9, dtype=dtype
            )(x)
            return normalised

        x = nn.relu(conv(images.astype(dtype), 64))
        for channels, stride in (
            (64, 1),
            (64, 1),
            (128, 2),
            (128, 1),
            (256, 2),
            (256, 1),
            (512, 2),
            (512, 1),
        ):
            shortcut = x if x.shape[-1] == channels else conv(x, channels, 1, stride)
            x = nn.relu(shortcut + conv(nn.relu(conv(x, channels, stride=stride)), channels))
        x = x.astype(jnp.float32).mean((1, 2))
        return x if features else nn.Dense(self.num_classes)(x)


Model = ResNet18

"""M5 of An et al.: five 5x5 convolutions and one dense layer, the student of the reverse k-NN paper on MNIST.

    conv 5x5 valid 32, 64, 96, 128, 160; flatten; dense; batch normalisation

without biases, batch normalisation and ReLU after every convolution, input 2(x - 0.5); `ValidCNN` is what M3 and M7 share with it. 137
million multiplications an image forward make it dear on a CPU, where XLA's own convolution reaches a quarter of the speed of its matrix
product. So on a CPU the convolutions are Winograd's F(m x m, k x k) with m + k = 9: an 8x8 tile of the input gives m x m outputs by 64
products a channel pair where the sum itself takes m^2 k^2, which is 400 for 5x5 kernels,

    Y = A' [(G W G') * (B' X B)] A

and all of it is matrix products. In float32 the largest error is 5e-5 of the output's standard deviation (bfloat16: 2e-2). An epoch of
5,000 images takes a quarter of the time. 28 - 4 - 4 - 4 - 4 - 4 is a multiple of 4 at every layer, so no tile is wasted.

References: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for MNIST Digit Recognition", 2020;
Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from functools import cache
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

EPOCHS = 6
"""Passes over the data that suit it; noisy labels are memorised in many more."""

MIN_SIZE = 21
"""Smallest image height and width: five valid 5x5 convolutions leave one pixel."""

_TILE = 8
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # and infinity; the usual choice, near the best in float32


class ValidCNN(nn.Module):
    """Maps float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    A subclass says how many channels each convolution has, and the size of its kernels. The image must be large enough to leave one pixel.

    Attributes:
      num_classes: |Y|.
    """

    num_classes: int
    channels: ClassVar[tuple[int, ...]]
    kernel_size: ClassVar[int]

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the last convolution's output averaged over the image, float32 `[n, channels[-1]]`."""

        def normalise(x: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)

        x = 2 * (images - 0.5)
        for layer, channels in enumerate(self.channels):
            shape = (self.kernel_size, self.kernel_size, x.shape[-1], channels)
            kernel = self.param(f"conv{layer + 1}", nn.initializers.lecun_normal(), shape)
            x = nn.relu(normalise(convolve(x, kernel)))
        if features:
            return x.mean((1, 2))
        return normalise(nn.Dense(self.num_classes, use_bias=False)(x.reshape(len(x), -1)))


class M5(ValidCNN):
    """For images of 21x21 pixels or more. Features: float32 `[n, 160]`."""

    channels = (32, 64, 96, 128, 160)
    kernel_size = 5


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the valid convolution (in fact correlation) of stride 1.

    Args:
      images: float32 `[n, height, width, c]`.
      kernel: float32 `[k, k, c, d]`, k from 2 to 7.

    Returns:
      float32 `[n, height - k + 1, width - k + 1, d]`.
    """
    return jax.lax.platform_dependent(images, kernel, cpu=_winograd, default=_direct)


def _direct(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _winograd(images: jax.Array, kernel: jax.Array) -> jax.Array:
    n, height, width, _ = images.shape
    size, _, _, channels = kernel.shape
    out = _TILE - size + 1  # output pixels of a tile, along each axis
    to_outputs, to_spectrum, to_filters = _transforms(size)
    tiles = _tiles(images, out)  # [8, 8, n, rows, columns, c]
    rows, columns = tiles.shape[3:5]
    spectrum = jnp.matmul(to_spectrum, tiles.reshape(_TILE**2, -1)).reshape(_TILE**2, n * rows * columns, -1)
    filters = jnp.matmul(to_filters, kernel.reshape(size**2, -1)).reshape(_TILE**2, -1, channels)
    products = jax.lax.dot_general(spectrum, filters, (((2,), (1,)), ((0,), (0,))))
    outputs = jnp.matmul(to_outputs, products.reshape(_TILE**2, -1)).reshape(out, out, n, rows, columns, channels)
    outputs = outputs.transpose(2, 3, 0, 4, 1, 5).reshape(n, rows * out, columns * out, channels)
    return outputs[:, : height - size + 1, : width - size + 1]


def _tiles(images: jax.Array, stride: int) -> jax.Array:
    """Cut images into 8x8 tiles that begin `stride` pixels apart, zeros after the end: `[8, 8, n, rows, columns, c]`."""
    n, height, width, c = images.shape
    overlap = _TILE - stride
    rows, columns = (-(-(size - overlap) // stride) for size in (height, width))
    parts = -(-_TILE // stride)  # blocks of stride x stride pixels that a tile reaches into, along each axis
    tall, wide = rows + parts - 1, columns + parts - 1
    padding = ((0, 0), (0, max(0, tall * stride - height)), (0, max(0, wide * stride - width)), (0, 0))
    blocks = jnp.pad(images, padding)[:, : tall * stride, : wide * stride].reshape(n, tall, stride, wide, stride, c)
    strips = jnp.concatenate([blocks[:, part : part + rows] for part in range(parts)], 2)[:, :, :_TILE]
    tiles = jnp.concatenate([strips[:, :, :, part : part + columns] for part in range(parts)], 4)[:, :, :, :, :_TILE]
    return tiles.transpose(2, 4, 0, 1, 3, 5)


@cache
def _transforms(size: int) -> tuple[np.ndarray, ...]:
    """Return A', B' and G of Toom and Cook's algorithm, each for both axes at once: float32 `[m^2, 64]`, `[64, 64]` and `[64, size^2]`.

    Polynomials of degree < d are given by their values at the 7 points and their leading coefficient (infinity): V(d) evaluates. A
    product is a product of values, and correlation is the transpose of that in one factor: A = V(m)', G = V(size), B = V(8)^-1'.
    """

    def evaluate(degree: int) -> np.ndarray:
        return np.vstack([np.power.outer(_POINTS, np.arange(degree)), np.eye(degree)[-1]])

    matrices = evaluate(_TILE - size + 1).T, np.linalg.inv(evaluate(_TILE)).T, evaluate(size)
    return tuple(np.kron(matrix, matrix).astype(np.float32) for matrix in matrices)


Model = M5

"""M5 of An et al.: five 5x5 convolutions and one dense layer, the student of the reverse k-NN paper on MNIST.

    conv 5x5 valid 32, 64, 96, 128, 160; flatten; dense; batch normalisation

without biases, batch normalisation and ReLU after every convolution, input 2(x - 0.5). 137 million multiplications an image forward make
it dear on a CPU, where XLA's own convolution reaches a quarter of the speed of its matrix product. So on a CPU the convolutions are
Winograd's F(4x4, 5x5): an 8x8 tile of the input gives 4x4 outputs by 64 products a channel pair where the sum itself takes 400,

    Y = A' [(G W G') * (B' X B)] A

and all of it is matrix products. In float32 the largest error is 3e-5 of the output's standard deviation (bfloat16: 2e-2). An epoch of
5,000 images takes a quarter of the time. 28 - 4 - 4 - 4 - 4 - 4 is a multiple of 4 at every layer, so no tile is wasted.

References: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for MNIST Digit Recognition", 2020;
Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

EPOCHS = 6
"""Passes over the data that suit it; noisy labels are memorised in many more."""

MIN_SIZE = 21
"""Smallest image height and width: five valid 5x5 convolutions leave one pixel."""

_CHANNELS = (32, 64, 96, 128, 160)
_KERNEL = 5
_OUT = 4  # output pixels of a tile, along each axis
_TILE = _OUT + _KERNEL - 1
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # and infinity; the usual choice, near the best in float32


class M5(nn.Module):
    """Maps float32 images `[n, height, width, channels]` in [0, 1], of 21x21 pixels or more, to logits `[n, num_classes]`.

    Attributes:
      num_classes: |Y|.
    """

    num_classes: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the last convolution's output averaged over the image, float32 `[n, 160]`."""

        def normalise(x: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)

        x = 2 * (images - 0.5)
        for layer, channels in enumerate(_CHANNELS):
            shape = (_KERNEL, _KERNEL, x.shape[-1], channels)
            kernel = self.param(f"conv{layer + 1}", nn.initializers.lecun_normal(), shape)
            x = nn.relu(normalise(convolve(x, kernel)))
        if features:
            return x.mean((1, 2))
        return normalise(nn.Dense(self.num_classes, use_bias=False)(x.reshape(len(x), -1)))


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the valid 5x5 convolution (in fact correlation) of stride 1.

    Args:
      images: float32 `[n, height, width, c]`.
      kernel: float32 `[5, 5, c, d]`.

    Returns:
      float32 `[n, height - 4, width - 4, d]`.
    """
    return jax.lax.platform_dependent(images, kernel, cpu=_winograd, default=_direct)


def _direct(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _winograd(images: jax.Array, kernel: jax.Array) -> jax.Array:
    n, height, width, _ = images.shape
    channels = kernel.shape[-1]
    tiles = _tiles(images)  # [8, 8, n, rows, columns, c]
    rows, columns = tiles.shape[3:5]
    spectrum = jnp.matmul(_B, tiles.reshape(_TILE**2, -1)).reshape(_TILE**2, n * rows * columns, -1)
    filters = jnp.matmul(_G, kernel.reshape(_KERNEL**2, -1)).reshape(_TILE**2, -1, channels)
    products = jax.lax.dot_general(spectrum, filters, (((2,), (1,)), ((0,), (0,))))
    out = jnp.matmul(_A, products.reshape(_TILE**2, -1)).reshape(_OUT, _OUT, n, rows, columns, channels)
    out = out.transpose(2, 3, 0, 4, 1, 5).reshape(n, rows * _OUT, columns * _OUT, channels)
    return out[:, : height - _KERNEL + 1, : width - _KERNEL + 1]


def _tiles(images: jax.Array) -> jax.Array:
    """Cut images into 8x8 tiles at stride 4, zeros after the end: `[8, 8, n, rows, columns, c]`."""
    n, height, width, c = images.shape
    rows, columns = (-(-(size - _KERNEL + 1) // _OUT) for size in (height, width))
    padding = ((0, 0), (0, (rows + 1) * _OUT - height), (0, (columns + 1) * _OUT - width), (0, 0))
    blocks = jnp.pad(images, padding).reshape(n, rows + 1, _OUT, columns + 1, _OUT, c)
    tall = jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], 2)
    return jnp.concatenate([tall[:, :, :, :-1], tall[:, :, :, 1:]], 4).transpose(2, 4, 0, 1, 3, 5)


def _transforms() -> list[np.ndarray]:
    """Return A', B' and G of Toom and Cook's algorithm, each for both axes at once: float32 `[16, 64]`, `[64, 64]` and `[64, 25]`.

    Polynomials of degree < m are given by their values at the 7 points and their leading coefficient (infinity): V(m) evaluates. A
    product is a product of values, and correlation is the transpose of that in one factor: A = V(4)', G = V(5), B = V(8)^-1'.
    """

    def evaluate(size: int) -> np.ndarray:
        return np.vstack([np.power.outer(_POINTS, np.arange(size)), np.eye(size)[-1]])

    matrices = evaluate(_OUT).T, np.linalg.inv(evaluate(_TILE)).T, evaluate(_KERNEL)
    return [np.kron(matrix, matrix).astype(np.float32) for matrix in matrices]


_A, _B, _G = _transforms()

Model = M5

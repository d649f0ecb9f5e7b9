"""M5 of An et al., the reverse k-NN paper's student on MNIST.

    conv 5x5 valid 32, 64, 96, 128, 160; flatten; dense; batch normalization

There are no biases. Batch normalization and ReLU follow every convolution, and the input is 2(x -
0.5). `ValidCNN` is the part that M3 and M7 share with M5.

Forward takes 137 million multiplications per image. On a CPU, XLA's own convolution reaches a
quarter of the speed of its matrix product. On a CPU, the convolutions are therefore Winograd's F(m
x m, k x k) with m + k = 9:

    Y = A' [(G W G') * (B' X B)] A

An 8x8 tile of the input gives m x m outputs by 64 products per channel pair. The direct sum takes
m^2 k^2 products, which is 400 for 5x5 kernels. All steps are matrix products. In float32 the
largest error is 5e-5 of the output's standard deviation (bfloat16: 2e-2). An epoch of 5,000 images
takes a quarter of the time. 28 - 4 - 4 - 4 - 4 - 4 is a multiple of 4 at every layer, so no tile is
wasted.

Noisy SGD computes per-example gradients with `vmap`. The images of all examples then stay one
batch, and only the kernels' gradients are separate. Each kernel has 64 numbers per channel pair as
tiles and 25 as it is, and memory limits the speed there. The kernels' gradients are therefore plain
products of image patches and output gradients.

References: An, Lee, Park, Yang & So, "An Ensemble of Simple Convolutional Neural Network Models for
MNIST Digit Recognition", 2020; Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks",
2016.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

EPOCHS = 6
"""Default passes over the data; many more would memorize noisy labels."""

MIN_SIZE = 21
"""Smallest image height and width, in pixels: five valid 5x5 convolutions leave one pixel."""

_TILE = 8
_POINTS = (
    0.0,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
)  # The last point is infinity. These usual points are near the best in float32.


class ValidCNN(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to logits `[n, num_classes]`.

    A subclass sets the number of channels of each convolution, and the size of the kernels. The
    image must be large enough to leave one pixel.

    Attributes:
      num_classes: Number of classes |Y|.
    """

    num_classes: int
    channels: ClassVar[tuple[int, ...]]
    kernel_size: ClassVar[int]

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Return logits, or with `features` the mean of the last convolution over the image.

        Features are float32 `[n, channels[-1]]`.
        """

        def normalise(x: jax.Array) -> jax.Array:
            normalised: jax.Array = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            return normalised

        x = 2 * (images - 0.5)
        for layer, channels in enumerate(self.channels):
            shape = (self.kernel_size, self.kernel_size, x.shape[-1], channels)
            kernel = self.param(f"conv{layer + 1}", nn.initializers.lecun_normal(), shape)
            x = nn.relu(normalise(convolve(x, kernel)))
        if features:
            return x.mean((1, 2))
        return normalise(nn.Dense(self.num_classes, use_bias=False)(x.reshape(len(x), -1)))


class M5(ValidCNN):
    """M5, for images of 21x21 pixels or more. Features: float32 `[n, 160]`."""

    channels = (32, 64, 96, 128, 160)
    kernel_size = 5


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the valid convolution (in fact correlation) of stride 1.

    Args:
      images: Images, float32 `[n, height, width, c]`.
      kernel: Kernel, float32 `[k, k, c, d]`, k from 2 to 7.

    Returns:
      Float32 `[n, height - k + 1, width - k + 1, d]`.
    """
    convolved: jax.Array = jax.lax.platform_dependent(
        images, kernel, cpu=_winograd, default=_direct
    )
    return convolved


def _direct(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _one_batch(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Any:
    """Make a vmapped `function(images, kernel)` take all examples as one batch.

    This applies if the examples share a kernel.
    """
    batched_function = jax.custom_batching.custom_vmap(function)

    @batched_function.def_vmap
    def rule(
        axis_size: int, batched: Any, images: jax.Array, kernel: jax.Array
    ) -> tuple[jax.Array, bool]:
        if batched[1]:
            return jax.vmap(function, [0 if one else None for one in batched])(images, kernel), True
        out = batched_function(images.reshape(-1, *images.shape[2:]), kernel)
        return out.reshape(axis_size, -1, *out.shape[1:]), True

    return batched_function


# Three maps, linear in each argument. The gradients of each map are the other two, so gradients of
# gradients work.


@jax.custom_vjp
@_one_batch
def _winograd(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return _tiled(images, kernel)


@jax.custom_vjp
@_one_batch
def _of_images(back: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the gradient with respect to the images."""
    n, rows, columns, _ = back.shape
    images = jax.ShapeDtypeStruct(
        (n, rows + len(kernel) - 1, columns + len(kernel) - 1, kernel.shape[2]), back.dtype
    )
    transposed = jax.linear_transpose(lambda images: _tiled(images, kernel), images)
    gradient: jax.Array = transposed(back)[0]
    return gradient


@jax.custom_batching.custom_vmap
def _summed(images: jax.Array, back: jax.Array) -> jax.Array:
    size = images.shape[1] - back.shape[1] + 1
    kernel = jax.ShapeDtypeStruct((size, size, images.shape[-1], back.shape[-1]), images.dtype)
    transposed = jax.linear_transpose(lambda kernel: _tiled(images, kernel), kernel)
    gradient: jax.Array = transposed(back)[0]
    return gradient


@_summed.def_vmap
def _each_apart(
    axis_size: int, batched: Any, images: jax.Array, back: jax.Array
) -> tuple[jax.Array, bool]:
    images, back = (
        array if one else jnp.broadcast_to(array[None], (axis_size, *array.shape))
        for array, one in zip((images, back), batched, strict=True)
    )
    size = images.shape[2] - back.shape[2] + 1
    patches = jax.vmap(lambda images: _patches(images, size))(images).reshape(
        axis_size, -1, size**2 * images.shape[-1]
    )
    sums = jax.lax.dot_general(
        patches, back.reshape(axis_size, -1, back.shape[-1]), (((1,), (1,)), ((0,), (0,)))
    )
    return sums.reshape(axis_size, size, size, images.shape[-1], back.shape[-1]), True


@jax.custom_vjp
def _of_kernel(images: jax.Array, back: jax.Array) -> jax.Array:
    """Return the gradient with respect to the kernel."""
    gradient: jax.Array = _summed(images, back)
    return gradient


def _keep(function: Any) -> Any:
    return lambda *arguments: (function(*arguments), arguments)


_winograd.defvjp(
    _keep(_winograd), lambda kept, out: (_of_images(out, kept[1]), _of_kernel(kept[0], out))
)
_of_images.defvjp(
    _keep(_of_images), lambda kept, out: (_winograd(out, kept[1]), _of_kernel(out, kept[0]))
)
_of_kernel.defvjp(
    _keep(_of_kernel), lambda kept, out: (_of_images(kept[1], out), _winograd(kept[0], out))
)


def _patches(images: jax.Array, size: int) -> jax.Array:
    """Return the patch under a kernel of `size` at each place, `[n, rows, columns, size^2, c]`."""
    rows, columns = (length - size + 1 for length in images.shape[1:3])
    return jnp.stack(
        [images[:, i : i + rows, j : j + columns] for i in range(size) for j in range(size)], 3
    )


def _tiled(images: jax.Array, kernel: jax.Array) -> jax.Array:
    n, height, width, _ = images.shape
    size, _, _, channels = kernel.shape
    out = _TILE - size + 1  # output pixels of a tile, along each axis
    to_outputs, to_spectrum, to_filters = _transforms(size)
    tiles = _tiles(images, out)  # [8, 8, n, rows, columns, c]
    rows, columns = tiles.shape[3:5]
    spectrum = jnp.matmul(to_spectrum, tiles.reshape(_TILE**2, -1)).reshape(
        _TILE**2, n * rows * columns, -1
    )
    filters = jnp.matmul(to_filters, kernel.reshape(size**2, -1)).reshape(_TILE**2, -1, channels)
    products = jax.lax.dot_general(spectrum, filters, (((2,), (1,)), ((0,), (0,))))
    outputs = jnp.matmul(to_outputs, products.reshape(_TILE**2, -1)).reshape(
        out, out, n, rows, columns, channels
    )
    outputs = outputs.transpose(2, 3, 0, 4, 1, 5).reshape(n, rows * out, columns * out, channels)
    return outputs[:, : height - size + 1, : width - size + 1]


def _tiles(images: jax.Array, stride: int) -> jax.Array:
    """Cut images into 8x8 tiles that begin `stride` pixels apart, with zeros after the end.

    Returns:
      Tiles `[8, 8, n, rows, columns, c]`.
    """
    n, height, width, c = images.shape
    overlap = _TILE - stride
    rows, columns = (-(-(size - overlap) // stride) for size in (height, width))
    parts = -(
        -_TILE // stride
    )  # blocks of stride x stride pixels that a tile reaches into, along each axis
    tall = rows + parts - 1
    wide = columns + parts - 1
    padding = (
        (0, 0),
        (0, max(0, tall * stride - height)),
        (0, max(0, wide * stride - width)),
        (0, 0),
    )
    blocks = jnp.pad(images, padding)[:, : tall * stride, : wide * stride].reshape(
        n, tall, stride, wide, stride, c
    )
    strips = jnp.concatenate([blocks[:, part : part + rows] for part in range(parts)], 2)[
        :, :, :_TILE
    ]
    tiles = jnp.concatenate([strips[:, :, :, part : part + columns] for part in range(parts)], 4)[
        :, :, :, :, :_TILE
    ]
    return tiles.transpose(2, 4, 0, 1, 3, 5)


@cache
def _transforms(size: int) -> tuple[np.ndarray, ...]:
    """Return A', B', and G of the Toom-Cook algorithm, each for both axes at once.

    A polynomial of degree < d is given by its values at the 7 points and its leading coefficient
    (infinity): V(d) evaluates. A product of polynomials is a product of values. Correlation is the
    transpose of the product in one factor: A = V(m)', G = V(size), B = V(8)^-1'.

    Returns:
      Float32 `[m^2, 64]`, `[64, 64]`, and `[64, size^2]`.
    """

    def evaluate(degree: int) -> np.ndarray:
        return np.vstack([np.power.outer(_POINTS, np.arange(degree)), np.eye(degree)[-1]])

    matrices = evaluate(_TILE - size + 1).T, np.linalg.inv(evaluate(_TILE)).T, evaluate(size)
    return tuple(np.kron(matrix, matrix).astype(np.float32) for matrix in matrices)


Model = M5

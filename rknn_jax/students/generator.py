"""Image generator for data-free distillation, which needs no image to learn from.

The generator uses no batch statistics, so its images do not depend on each other. Each image is
scaled to a publicly known mean and spread of pixels.

Reference: Chen et al., "Data-Free Learning of Student Networks" (DAFL), 2019. The generator is
theirs except for the normalization.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import checkpoints, pytree

UNIFORM = nn.initializers.lecun_uniform()
"""Initializer of the generator's weights; the truncated normal one takes seconds to compile."""


INK = 0.7
"""Standard deviation of an image's mean pixel, relative to that of its pixels.

Images differ in their amount of ink: a one has less than an eight.
"""


class Painter(nn.Module):
    """Map z, float32 `[n, latent]`, to images float32 `[n, height, width, channels]` in [0, 1].

        dense; normalize, up 2, conv 3x3 width, normalize, leaky ReLU,
        up 2, conv 3x3 width / 2, normalize, leaky ReLU, conv 3x3

    This is DAFL's network for images of any size. Its first layer has a quarter of the pixels along
    each axis, rounded up. Surplus rows and columns are cut off.
    """

    image_shape: tuple[int, int, int]
    width: int
    margin: int
    pixel_mean: float
    pixel_stddev: float

    @nn.compact
    def __call__(self, z: jax.Array) -> jax.Array:
        """Generate images from z."""
        height, width, channels = self.image_shape
        height = height - 2 * self.margin
        width = width - 2 * self.margin
        rows = -(-height // 4)
        columns = -(-width // 4)

        def grown(x: jax.Array, channels: int) -> jax.Array:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            return nn.leaky_relu(
                nn.GroupNorm(num_groups=1)(nn.Conv(channels, (3, 3), kernel_init=UNIFORM)(x)), 0.2
            )

        x = nn.GroupNorm(num_groups=1)(
            nn.Dense(rows * columns * self.width, kernel_init=UNIFORM)(z).reshape(
                -1, rows, columns, self.width
            )
        )
        x = grown(grown(x, self.width), self.width // 2)
        x = nn.Conv(channels, (3, 3), kernel_init=UNIFORM)(x)[:, :height, :width]
        x = (x - x.mean((1, 2, 3), keepdims=True)) * jax.lax.rsqrt(
            x.var((1, 2, 3), keepdims=True) + 1e-6
        )
        pixels = jnp.clip(
            self.pixel_mean + self.pixel_stddev * (x + INK * z[:, :1, None, None]), 0, 1
        )
        return jnp.pad(
            pixels, ((0, 0), (self.margin, self.margin), (self.margin, self.margin), (0, 0))
        )


@pytree.register
@dataclass(frozen=True, eq=False)
class Generator:
    """A trained generator, released with the student.

    Attributes:
      params: Weights, as host arrays.
      painter: Network of the weights.
      latent: Number of dimensions of z.
    """

    params: Any
    painter: Painter = field(metadata=pytree.STATIC)
    latent: int = field(metadata=pytree.STATIC)

    def __call__(self, key: jax.Array, num: int) -> np.ndarray:
        """Return generated images, uint8 `[num, height, width, channels]`.

        `key` is consumed.
        """
        z = jax.random.normal(key, (num, self.latent))
        return np.asarray(painted(self.painter, self.params, z))


@partial(jax.jit, static_argnames="painter")
def painted(painter: Painter, params: Any, z: jax.Array) -> jax.Array:
    """Return the images of z, uint8."""
    return as_uint8(painter.apply(params, z))  # type: ignore[arg-type]


def as_uint8(images: jax.Array) -> jax.Array:
    """Return images in [0, 1] as integers from 0 to 255, uint8."""
    return jnp.round(255 * images).astype(jnp.uint8)


def save(generator: Generator, folder: str | Path) -> None:
    """Write a generator, whole or not at all. Raises ValueError if `folder` exists."""
    painter = generator.painter
    told = {
        name: getattr(painter, name)
        for name in ("image_shape", "width", "margin", "pixel_mean", "pixel_stddev")
    }
    checkpoints.save(folder, generator.params, {"painter": told, "latent": generator.latent})


def load(folder: str | Path) -> Generator:
    """Read a generator that `save` wrote. Raises ValueError if there is none."""
    params, record = checkpoints.load(folder, "generator")
    told = record["painter"]
    return Generator(
        params, Painter(**told | {"image_shape": tuple(told["image_shape"])}), record["latent"]
    )

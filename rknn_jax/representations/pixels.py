"""Raw pixels: the baseline of all other representations."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rknn_jax._internal import pytree
from rknn_jax.representations import Representation
from rknn_jax.types import Array


@dataclass(frozen=True)
class Config(Representation):
    """Settings of raw pixels; there are none."""


@pytree.register
@dataclass(frozen=True)
class Encoder:
    """Encoder that flattens images; nothing is learned."""

    def __call__(self, images: Array) -> jax.Array:
        """Return float32 `[n, h·w·c]` in [0, 1] from uint8 `[n, h, w, c]`.

        A pixel is one division, which IEEE 754 rounds in one way, whatever the batch.
        """
        flat = jnp.asarray(images).reshape(len(images), math.prod(images.shape[1:]))
        return flat.astype(jnp.float32) / 255

    def describe(self, image: jax.Array) -> jax.Array:
        """Return one image as float32 `[h·w·c]` in [0, 1], from uint8 `[h, w, c]`."""
        return image.reshape(-1).astype(jnp.float32) / 255


def fit(key: jax.Array, images: Array, config: Config = Config()) -> Encoder:
    """Return the encoder; `key` and the public `images`, uint8 `[m, h, w, c]`, are not needed."""
    del key, images, config
    return Encoder()


EXAMPLES = (Config(),)

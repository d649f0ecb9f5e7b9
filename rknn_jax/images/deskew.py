"""Deskewing: shear away the covariance of an image's ink, and center the ink."""

import jax
import jax.numpy as jnp

from rknn_jax._internal.one_record import map_records
from rknn_jax.images.warps import as_uint8, centred, warp
from rknn_jax.types import Array

MOST_SHEAR = 1.5  # the shear of a nearly horizontal stroke


def deskew(images: Array) -> jax.Array:
    """Shear and shift every image so that its ink is upright and centered.

    The intensity then has no covariance between rows and columns, and its mean lies in the center.

    Args:
      images: Images on background 0, uint8 `[n, h, w, 1]`. A blank image is left as it is.

    Returns:
      Uint8 `[n, h, w, 1]`, read bilinearly and rounded, so that background stays exactly flat. Each
      image depends on itself alone, bit for bit.
    """
    return map_records(_deskew, None, images)


def deskew_one(image: jax.Array) -> jax.Array:
    """Shear and shift one image, uint8 `[h, w, 1]`, as `deskew` does."""
    images = jnp.asarray(image, jnp.float32)[None]
    _, height, width, _ = images.shape
    ink = images[..., 0] / jnp.maximum(images.sum((1, 2)), 1e-12)[:, :, None]
    rows = centred(height)[None, :, None]
    columns = centred(width)[None, None, :]
    row_mean = (ink * rows).sum((1, 2), keepdims=True)
    column_mean = (ink * columns).sum((1, 2), keepdims=True)
    variance = (ink * (rows - row_mean) ** 2).sum((1, 2), keepdims=True)
    covariance = (ink * (rows - row_mean) * (columns - column_mean)).sum((1, 2), keepdims=True)
    shear = jnp.clip(covariance / jnp.maximum(variance, 1e-12), -MOST_SHEAR, MOST_SHEAR)
    down = jnp.broadcast_to(row_mean, ink.shape)
    across = column_mean + shear * rows + jnp.zeros((1, 1, width))
    return as_uint8(warp(images, jnp.stack([down, across], axis=-1)))[0]


def _deskew(_: None, image: jax.Array) -> jax.Array:
    return deskew_one(image)

"""Bilinear warps of image batches: what deskewing, the views of the spectral embedding and the students' augmentation share."""

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates


def affine_displacement(matrix: jax.Array, shift: jax.Array, height: int, width: int) -> jax.Array:
    """Return the displacement that reads pixel p, counted from the image's centre, at `matrix @ p + shift`.

    Args:
      matrix: float32 `[n, 2, 2]`, rows before columns.
      shift: float32 `[n, 2]`, in pixels.
      height: in pixels.
      width: in pixels.

    Returns:
      float32 `[n, height, width, 2]`.
    """
    pixels = jnp.stack(jnp.meshgrid(centred(height), centred(width), indexing="ij"), -1)
    return jnp.einsum("nij,hwj->nhwi", matrix - jnp.eye(2)[None], pixels) + shift[:, None, None]


def warp(images: jax.Array, displacement: jax.Array) -> jax.Array:
    """Move images by one bilinear interpolation; what lies outside is the nearest edge.

    Args:
      images: float32 `[n, height, width, channels]`.
      displacement: float32 `[n, height, width, 2]`, how far from each pixel its new value is read, in pixels.

    Returns:
      float32 of the same shape as `images`.
    """

    def read(channel: jax.Array, offset: jax.Array) -> jax.Array:
        rows, columns = jnp.arange(channel.shape[0], dtype=jnp.float32)[:, None], jnp.arange(channel.shape[1], dtype=jnp.float32)[None]
        return map_coordinates(channel, [rows + offset[..., 0], columns + offset[..., 1]], order=1, mode="nearest")

    return jax.vmap(jax.vmap(read, (2, None), 2))(images, displacement)


def centred(size: int) -> jax.Array:
    """Return pixel positions counted from the middle, float32 `[size]`."""
    return jnp.arange(size, dtype=jnp.float32) - (size - 1) / 2


def as_uint8(values: jax.Array) -> jax.Array:
    """Round to uint8, what lies outside its range to the nearest end."""
    return jnp.clip(jnp.round(values), 0, 255).astype(jnp.uint8)

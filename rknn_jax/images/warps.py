"""Bilinear warps of image batches.

Deskewing, the views of the spectral embedding, augmentation, and DTI's prototypes use them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates


def affine_displacement(matrix: jax.Array, shift: jax.Array, height: int, width: int) -> jax.Array:
    """Return the displacement that reads pixel p at `matrix @ p + shift`.

    Pixels are counted from the image's center.

    Args:
      matrix: Linear maps, rows before columns, float32 `[n, 2, 2]`.
      shift: Shifts in pixels, float32 `[n, 2]`.
      height: Height in pixels.
      width: Width in pixels.

    Returns:
      Float32 `[n, height, width, 2]`.
    """
    pixels = jnp.stack(jnp.meshgrid(centred(height), centred(width), indexing="ij"), -1)
    return jnp.einsum("nij,hwj->nhwi", matrix - jnp.eye(2)[None], pixels) + shift[:, None, None]


def thin_plate_displacement(offsets: jax.Array, height: int, width: int) -> jax.Array:
    """Thin-plate spline: the smoothest displacement with given offsets at a grid of control points.

    The points lie evenly from corner pixel to corner pixel. The spline bends on the square [-1,
    1]^2, whatever the image's shape, and is linear in the offsets.

    Args:
      offsets: Offsets at the control points, float32 `[n, rows, columns, 2]`; two rows and columns
        or more.
      height: Height in pixels.
      width: Width in pixels.

    Returns:
      Float32 `[n, height, width, 2]`, in the unit of `offsets`.

    Reference: Bookstein, "Principal Warps: Thin-Plate Splines and the Decomposition of
    Deformations", 1989.
    """
    rows, columns = offsets.shape[1:3]
    basis = jnp.asarray(_thin_plate_basis(height, width, rows, columns), jnp.float32)
    return jnp.einsum(
        "hwp,npi->nhwi",
        basis,
        offsets.reshape(len(offsets), -1, 2),
        precision=jax.lax.Precision.HIGHEST,
    )


@functools.cache
def _thin_plate_basis(height: int, width: int, rows: int, columns: int) -> np.ndarray:
    """Return the weight of each control point's offset in each pixel's displacement.

    Returns:
      Float64 `[height, width, rows * columns]`.
    """
    points = _square(rows, columns)
    pixels = _square(height, width)

    def bending(at: np.ndarray) -> np.ndarray:
        sq_distance = ((at[:, None] - points[None]) ** 2).sum(-1)
        bent: np.ndarray = sq_distance * np.log(np.where(sq_distance > 0, sq_distance, 1))
        return bent

    plane = np.c_[np.ones(len(points)), points]
    system = np.block([[bending(points), plane], [plane.T, np.zeros((3, 3))]])
    solution = np.linalg.solve(system, np.eye(len(system))[:, : len(points)])
    basis: np.ndarray = (np.c_[bending(pixels), np.ones(len(pixels)), pixels] @ solution).reshape(
        height, width, -1
    )
    return basis


def _square(rows: int, columns: int) -> np.ndarray:
    """Return a grid's positions on [-1, 1]^2, float64 `[rows * columns, 2]`."""
    return np.stack(
        np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij"), -1
    ).reshape(-1, 2)


def warp(images: jax.Array, displacement: jax.Array) -> jax.Array:
    """Move pixels by one bilinear interpolation; values outside are those of the nearest edge.

    Args:
      images: Images, float32 `[n, height, width, channels]`.
      displacement: Offset from each pixel at which its new value is read, in pixels, float32 `[n,
        height, width, 2]`.

    Returns:
      Float32 of the same shape as `images`.
    """

    def read(channel: jax.Array, offset: jax.Array) -> jax.Array:
        rows = jnp.arange(channel.shape[0], dtype=jnp.float32)[:, None]
        columns = jnp.arange(channel.shape[1], dtype=jnp.float32)[None]
        warped: jax.Array = map_coordinates(
            channel, [rows + offset[..., 0], columns + offset[..., 1]], order=1, mode="nearest"
        )
        return warped

    return jax.vmap(jax.vmap(read, (2, None), 2))(images, displacement)


def centred(size: int) -> jax.Array:
    """Return pixel positions counted from the middle, float32 `[size]`."""
    return jnp.arange(size, dtype=jnp.float32) - (size - 1) / 2


def as_uint8(values: jax.Array) -> jax.Array:
    """Round to uint8, with values outside its range moved to the nearest end."""
    return jnp.clip(jnp.round(values), 0, 255).astype(jnp.uint8)

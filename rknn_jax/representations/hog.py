"""Histograms of oriented gradients (HOG) of image batches, equal to `skimage.feature.hog`.

Gradients are central differences. For a color image, they are those of the channel of greatest
magnitude. Unsigned orientations are binned per cell without trigonometry. An angle in [0, pi) has
reached the i-th bin's edge iff the gradient lies in a half-plane. Blocks of cells are normalized
and concatenated.

Reference: Dalal & Triggs, "Histograms of Oriented Gradients for Human Detection", 2005.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.images.deskew import deskew_one
from rknn_jax.representations import Representation
from rknn_jax.types import Array

BlockNorm = Literal["L1", "L1-sqrt", "L2", "L2-Hys"]

BLOCK_SIZE = 100  # images at a time, whose gradients stay in the cache of a CPU core
EPSILON = 1e-5  # epsilon of skimage's block norms
CLIP = 0.2  # largest value in L2-Hys


def _l1(blocks: jax.Array) -> jax.Array:
    return blocks / (jnp.sum(jnp.abs(blocks), axis=-1, keepdims=True) + EPSILON)


def _l2(blocks: jax.Array) -> jax.Array:
    return blocks / jnp.sqrt(jnp.sum(blocks**2, axis=-1, keepdims=True) + EPSILON**2)


NORMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "L1": _l1,
    "L1-sqrt": lambda blocks: jnp.sqrt(_l1(blocks)),
    "L2": _l2,
    "L2-Hys": lambda blocks: _l2(jnp.minimum(_l2(blocks), CLIP)),
}


@dataclass(frozen=True)
class Config(Representation):
    """Settings of HOG.

    Attributes:
      cells: Sides of the cells in pixels; histograms of several sizes are concatenated. Defaults to
        (7, 4).
      block: Side of the normalized blocks, in cells. Defaults to 2.
      orientations: Number of bins of 180 degrees. Defaults to 9.
      block_norm: Block norm, as in scikit-image. Defaults to `L2-Hys`.
      deskew: True to deskew single-channel images first. Defaults to False.
    """

    cells: tuple[int, ...] = (7, 4)
    block: int = 2
    orientations: int = 9
    block_norm: BlockNorm = "L2-Hys"
    deskew: bool = False

    def __post_init__(self) -> None:
        if not self.cells or min(self.cells) < 1 or self.block < 1 or self.orientations < 1:
            raise ValueError(
                f"Expected positive cells, block and orientations, got cells={self.cells}, "
                f"block={self.block}, "
                f"orientations={self.orientations}."
            )
        if self.block_norm not in NORMS:
            raise ValueError(
                f"Expected block_norm to be one of {tuple(NORMS)}, got "
                f"block_norm={self.block_norm!r}."
            )


@pytree.register
@dataclass(frozen=True)
class Encoder:
    """Encoder by HOG of each image, one image a program; nothing is learned."""

    config: Config = field(metadata=pytree.STATIC)

    def __call__(self, images: Array) -> jax.Array:
        """Return float32 `[n, f]` from uint8 `[n, h, w, c]`; row i depends on image i alone.

        Raises:
          ValueError: For images smaller than one block of cells, or color images with `deskew`.
        """
        if self.config.deskew and images.shape[-1] != 1:
            raise ValueError(
                f"Expected single-channel images with deskew=True, got shape {images.shape}; "
                "pass deskew=False."
            )
        return map_records(Encoder.describe, self, images)

    def describe(self, image: jax.Array) -> jax.Array:
        """Return the features of one image, float32 `[f]`, from uint8 `[h, w, c]`."""
        config = self.config
        block = (config.block, config.block)
        # Not scaled to [0, 1]: equal pixels must differ by exactly 0, which a fused multiply-add
        # would break.
        upright = (deskew_one(image) if config.deskew else image).astype(jnp.float32)[None]
        return jnp.concatenate(
            [
                _hog(
                    upright,
                    config.orientations,
                    (c, c),
                    cells_per_block=block,
                    block_norm=config.block_norm,
                    transform_sqrt=False,
                )[0]
                for c in config.cells
            ]
        )


def fit(key: jax.Array, images: Array, config: Config = Config()) -> Encoder:
    """Return the encoder; `key` and the public `images`, uint8 `[m, h, w, c]`, are not needed."""
    del key, images
    return Encoder(config)


@functools.partial(
    jax.jit,
    static_argnames=(
        "orientations",
        "pixels_per_cell",
        "cells_per_block",
        "block_norm",
        "transform_sqrt",
    ),
)
def hog(
    images: Array,
    *,
    orientations: int = 9,
    pixels_per_cell: tuple[int, int] = (8, 8),
    cells_per_block: tuple[int, int] = (3, 3),
    block_norm: BlockNorm = "L2-Hys",
    transform_sqrt: bool = False,
) -> jax.Array:
    """Histograms of oriented gradients, with the parameters and results of `skimage.feature.hog`.

    Args:
      images: Images, float32 `[n, h, w, c]`.
      orientations: Number of bins of 180 degrees. Defaults to 9.
      pixels_per_cell: Rows and columns of a cell, in pixels. Defaults to (8, 8).
      cells_per_block: Rows and columns of a block, in cells. Defaults to (3, 3).
      block_norm: `L1`, `L1-sqrt`, `L2`, or `L2-Hys`. Defaults to `L2-Hys`.
      transform_sqrt: True to take the square root of the image first, which must not be negative.
        Defaults to False.

    Returns:
      Float32 `[n, f]` in the order block row, block column, cell row, cell column, orientation.

    Raises:
      ValueError: For images smaller than one block.
    """
    images = jnp.asarray(images)
    return _in_blocks(
        lambda image: _hog(
            image,
            orientations,
            pixels_per_cell,
            cells_per_block=cells_per_block,
            block_norm=block_norm,
            transform_sqrt=transform_sqrt,
        ),
        images,
    )


def _in_blocks(describe: Callable[[jax.Array], jax.Array], images: jax.Array) -> jax.Array:
    """Apply `describe` to each image, `BLOCK_SIZE` at a time.

    Blocks keep the gradients in the cache.
    """
    described: jax.Array = jax.lax.map(
        lambda image: describe(image[None])[0], images, batch_size=min(BLOCK_SIZE, len(images))
    )
    return described


def _hog(
    images: jax.Array,
    orientations: int,
    pixels_per_cell: tuple[int, int],
    cells_per_block: tuple[int, int],
    block_norm: BlockNorm,
    transform_sqrt: bool,
) -> jax.Array:
    n, height, width, _ = images.shape
    (rows, columns) = pixels_per_cell
    (block_rows, block_columns) = cells_per_block
    cell_rows = height // rows
    cell_columns = width // columns
    down = cell_rows - block_rows + 1
    right = cell_columns - block_columns + 1
    if down < 1 or right < 1:
        raise ValueError(
            f"Expected images of at least {rows * block_rows}x{columns * block_columns} pixels "
            f"for pixels_per_cell={pixels_per_cell} and "
            f"cells_per_block={cells_per_block}, got {height}x{width}; use smaller cells or blocks."
        )
    vertical, horizontal = _gradient(jnp.sqrt(images) if transform_sqrt else images)
    pool = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    pooled = [
        pool("nhw,wj->nhj", bin, _pooling(width, columns))
        for bin in _binned(vertical, horizontal, orientations)
    ]
    histogram = jnp.stack(
        [pool("nhj,hi->nij", bin, _pooling(height, rows)) for bin in pooled], axis=-1
    )
    window = [
        histogram[:, i : i + down, j : j + right]
        for i in range(block_rows)
        for j in range(block_columns)
    ]
    blocks = jnp.stack(window, axis=3).reshape(n, down, right, -1)
    return NORMS[block_norm](blocks).reshape(n, -1)


def _pooling(size: int, side: int) -> np.ndarray:
    """Return the matrix `[size, size // side]` that takes means over whole cells.

    A matrix product is several times as fast as a reduction.
    """
    matrix: np.ndarray = (np.arange(size)[:, None] // side == np.arange(size // side)).astype(
        np.float32
    ) / np.float32(side)
    return matrix


def _gradient(images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return vertical and horizontal central differences `[n, h, w]`, 0 at the border.

    Each pixel uses its channel of greatest magnitude.
    """
    vertical = jnp.pad(images[:, 2:] - images[:, :-2], ((0, 0), (1, 1), (0, 0), (0, 0)))
    horizontal = jnp.pad(images[:, :, 2:] - images[:, :, :-2], ((0, 0), (0, 0), (1, 1), (0, 0)))
    if images.shape[-1] == 1:
        return vertical[..., 0], horizontal[..., 0]
    strongest = jnp.argmax(vertical**2 + horizontal**2, axis=-1, keepdims=True)
    vertical, horizontal = (
        jnp.take_along_axis(part, strongest, axis=-1)[..., 0] for part in (vertical, horizontal)
    )
    return vertical, horizontal


def _binned(vertical: jax.Array, horizontal: jax.Array, orientations: int) -> list[jax.Array]:
    """Return each pixel's magnitude in the bin of its angle and 0 in the others.

    There is one array `[n, h, w]` per bin.
    """
    magnitude = jnp.sqrt(vertical**2 + horizontal**2)
    upper = (vertical > 0) | ((vertical == 0) & (horizontal >= 0))
    vertical = jnp.where(upper, vertical, -vertical)
    horizontal = jnp.where(upper, horizontal, -horizontal)
    edges = [
        (round(float(np.cos(angle)), 15), float(np.sin(angle)))
        for angle in np.pi * np.arange(1, orientations) / orientations
    ]
    reached = [
        jnp.ones_like(upper),
        *(vertical * cos >= horizontal * sin for cos, sin in edges),
        jnp.zeros_like(upper),
    ]
    return [jnp.where(reached[i] & ~reached[i + 1], magnitude, 0) for i in range(orientations)]


EXAMPLES = (
    Config(cells=(2,), block=2),
    Config(cells=(3, 2), block=1, orientations=4, block_norm="L1-sqrt", deskew=True),
)

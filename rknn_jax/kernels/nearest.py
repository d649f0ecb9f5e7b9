"""First step of `neighbors.nearest` as one kernel: product, packing and running minima.

No distance reaches memory. A program takes a tile of points and a group of references, a tile of
references at a time. The product of two tiles accumulates in registers. While any point has a key
below the worst of its best keys, each such point replaces that worst key by its smallest new key.
If tiles come in random order, few rounds are needed after the first tile.

The kernel is written for Triton: sizes are powers of two, and a tile is loaded at its use.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from rknn_jax.kernels import MOST_KEYS


class Tile(NamedTuple):
    """Sizes of a product that fits the registers of `warps` warps."""

    points: int
    references: int
    features: int
    warps: int


# On an H200, tiles of 128 x 128 took 1.4 to 1.5 times as long in 8 warps, and 1.0 to 1.2 in 4.
TILES = {"bfloat16": Tile(64, 128, 64, 4), "float32": Tile(64, 64, 32, 8)}
NONE = np.int32(2**31 - 1)
Ref = Any  # reference to memory; Pallas has no public type for it


def smallest_keys(
    points: jax.Array, sq_norm: jax.Array, doubled: jax.Array, sq_norms: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Find the smallest keys of each point in each group.

    The signature is that of `assignment.smallest_keys`.

    Returns:
      `(keys, least)`: int32 `[g, m, B]`, not in order, of distances less 0, float32 `[g, B]`.

    Raises:
      NotImplementedError: If more than `MOST_KEYS` keys are asked for.
    """
    if count > MOST_KEYS:
        raise NotImplementedError(
            f"Expected at most {MOST_KEYS} candidates of a point, got {count}; use "
            "implementation='xla'."
        )
    num_points = len(points)
    (groups, size, _) = doubled.shape
    tile = TILES[doubled.dtype.name]
    sq_norm = _padded(sq_norm, (tile.points,))
    points = _padded(points, (tile.points, tile.features))
    doubled = _padded(doubled, (1, tile.references, tile.features))
    sq_norms = _padded(sq_norms, (1, tile.references), jnp.inf)
    padded_size = doubled.shape[1]
    width = points.shape[1]
    lanes = pl.next_power_of_2(max(count, 16))
    keys = pl.pallas_call(
        functools.partial(
            _kernel, tile=tile, count=count, number_mask=2 ** (size - 1).bit_length() - 1
        ),
        grid=(groups, len(points) // tile.points),
        in_specs=[
            pl.BlockSpec((tile.points, width), lambda group, block: (block, 0)),
            pl.BlockSpec((tile.points,), lambda group, block: (block,)),
            pl.BlockSpec((None, padded_size, width), lambda group, block: (group, 0, 0)),
            pl.BlockSpec((None, padded_size), lambda group, block: (group, 0)),
        ],
        out_specs=pl.BlockSpec((None, tile.points, lanes), lambda group, block: (group, block, 0)),
        out_shape=jax.ShapeDtypeStruct((groups, len(points), lanes), jnp.int32),
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=3),
        interpret=jax.default_backend() == "cpu",
        name="smallest_keys",
    )(points, sq_norm, doubled, sq_norms)
    keys = jnp.swapaxes(keys[:, :num_points, :count], 1, 2)
    return keys, jnp.zeros((groups, num_points), jnp.float32)


def _kernel(
    points: Ref,
    sq_norm: Ref,
    doubled: Ref,
    sq_norms: Ref,
    out: Ref,
    *,
    tile: Tile,
    count: int,
    number_mask: int,
) -> None:
    num_points, num_references, num_features, _ = tile
    lane = jax.lax.broadcasted_iota(jnp.int32, out.shape, 1)
    # Distinct start values for the first `count` lanes; the other lanes are never the worst.
    free = jnp.where(lane < count, NONE - lane, -NONE - 1)

    def take_tile(i: jax.Array, best: jax.Array) -> jax.Array:
        references = pl.ds(i * num_references, num_references)

        def add(step: jax.Array, products: jax.Array) -> jax.Array:
            features = pl.ds(step * num_features, num_features)
            return products + _products(points[:, features], doubled[references, features])

        none = jnp.zeros((num_points, num_references), jnp.float32)
        products = jax.lax.fori_loop(0, points.shape[1] // num_features, add, none)
        bits = jax.lax.bitcast_convert_type(
            products + (sq_norms[references][None] + sq_norm[...][:, None]), jnp.int32
        )
        number = i * num_references + jax.lax.broadcasted_iota(jnp.int32, bits.shape, 1)
        keys = jnp.where(number <= number_mask, bits & ~number_mask | number, NONE)
        return jax.lax.while_loop(_some_are_better, _take_one, (best, keys))[0]

    out[...] = jax.lax.fori_loop(0, doubled.shape[0] // num_references, take_tile, free)


def _products(points: jax.Array, references: jax.Array) -> jax.Array:
    dims = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(
        points,
        references,
        dims,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _some_are_better(state: tuple[jax.Array, jax.Array]) -> jax.Array:
    best, keys = state
    return jnp.max((jnp.min(keys, axis=1) < jnp.max(best, axis=1)).astype(jnp.int32)) > 0


def _take_one(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    best, keys = state
    worst = jnp.max(best, axis=1, keepdims=True)
    key = jnp.min(keys, axis=1, keepdims=True)
    return jnp.where((best == worst) & (key < worst), key, best), jnp.where(keys == key, NONE, keys)


def _padded(array: jax.Array, multiples: tuple[int, ...], value: float = 0) -> jax.Array:
    return jnp.pad(
        array,
        [(0, -size % multiple) for size, multiple in zip(array.shape, multiples, strict=True)],
        constant_values=value,
    )

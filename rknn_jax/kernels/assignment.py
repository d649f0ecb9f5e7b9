"""Nearest references of a block of points: fast products, and a proof for each row.

A block is solved in stages. Each stage hands on the rows that it cannot prove:

1. `_by_gaps`: |x - q|² = |x|² - 2<x,q> + |q|² from one matrix product. The bits of a positive float
   sort as an integer. The reference's number replaces the lowest bits, so the smallest distances
   are integer minima. If each of the k + 1 smallest leads the next by more than the rounding can
   change, their order is proved.
2. `_by_candidates`: float64 distances of some candidates more. They are the nearest if the farthest
   of the k is closer than a bound for all others.
3. `_by_differences`: float64 distances to all references.

So the answer always is float64's order, ties by the lowest number, and a row depends on its own
point and the references alone.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import kernels

LARGEST_GROUP = 1024
"""Number of references whose number fits into a key. More of them are split into groups."""

UNROLLED = 32
"""Most keys of a point that are found without a sort."""

ROWS_OF_TILE = 64
"""Least number of rows of a tile in XLA's matrix-vector product."""

LARGEST_KEY = np.int32(2**31 - 1)

Stage = Callable[[jax.Array], tuple[jax.Array, jax.Array]]  # [B, f] to numbers [B, k] and bool [B]


class How(NamedTuple):
    """Static settings, decided before tracing.

    Attributes:
      num_neighbors: Number of neighbors k.
      dtypes: Types of the products, tried in turn; none takes differences alone.
      implementation: Implementation of `smallest_keys`.
      tile: Number of points of a product.
      again: Most rows that are solved again at a time.
    """

    num_neighbors: int
    dtypes: tuple[Any, ...]
    implementation: kernels.Implementation
    tile: int
    again: int


class References(NamedTuple):
    """References, prepared for the products.

    `rows` are `[s, f]`. `doubled` is -2q, centered, padded and split into g groups of G: `[g, G,
    f]` of each dtype. `sq_norms` are |q|² `[g, G]`, infinite for the padding.
    """

    rows: jax.Array
    centre: jax.Array
    doubled: tuple[jax.Array, ...]
    sq_norms: jax.Array
    reach: jax.Array  # the greatest |q|
    residuals: tuple[jax.Array, ...]  # per dtype, the greatest norm of the rounding error of q


@functools.partial(jax.jit, static_argnames="dtypes")
def prepare(rows: jax.Array, dtypes: tuple[Any, ...]) -> References:
    """Center, group and round references `[s, f]`."""
    centre = jnp.mean(rows, axis=0, keepdims=True)
    groups = -(-len(rows) // LARGEST_GROUP)
    size = -(-len(rows) // groups)
    centred = jnp.pad(rows - centre, ((0, groups * size - len(rows)), (0, 0)))
    sq_norms = jnp.sum(centred**2, axis=1)
    padded = jnp.where(jnp.arange(len(centred)) < len(rows), sq_norms, jnp.inf)
    doubled = tuple((-2 * centred).reshape(groups, size, -1).astype(dtype) for dtype in dtypes)
    lost = [centred + given.astype(jnp.float32).reshape(centred.shape) / 2 for given in doubled]
    residuals = tuple(jnp.sqrt(jnp.max(jnp.sum(part**2, axis=1))) for part in lost)
    reach = jnp.sqrt(jnp.max(sq_norms))
    return References(rows, centre, doubled, padded.reshape(groups, size), reach, residuals)


def solve(points: jax.Array, references: References, how: How) -> jax.Array:
    """Return the numbers of the nearest references, int32 `[n, k]`, nearest first.

    Args:
      points: float32 `[n, f]`.
      references: References from `prepare`.
      how: Settings.

    Returns:
      A row is -1 if a feature is not finite or a distance overflows float32.
    """
    stages: list[Stage] = [
        functools.partial(_by_gaps, references=references, how=how, level=level)
        for level in range(len(how.dtypes))
        if how.num_neighbors < UNROLLED
    ]
    if how.dtypes:
        stages.append(functools.partial(_by_candidates, references=references, how=how))
    stages.append(functools.partial(_by_differences, rows=references.rows, how=how))
    return _in_stages(points, stages, how.tile, how.again)


def num_candidates(num_neighbors: int) -> int:
    """Return the number of candidates to refine, k + 4 + k/8.

    The candidates beyond k + 1 leave room for ties.
    """
    return num_neighbors + 4 + num_neighbors // 8


def distances(points: jax.Array, references: References, number: jax.Array, how: How) -> jax.Array:
    """Return the squared distances `[n, k]` of points to the given references.

    They are sums of squared float32 differences.
    """

    def of_tile(points: jax.Array, number: jax.Array) -> tuple[jax.Array]:
        return (_sum_last((points[:, None] - references.rows[number]) ** 2),)

    return _over_tiles(of_tile, how.tile, points, number)[0]


def _in_stages(points: jax.Array, stages: list[Stage], tile: int, again: int) -> jax.Array:
    """Take the first stage, tile by tile, and the others for the rows that it leaves."""
    number, sure = _over_tiles(stages[0], tile, points)
    if len(stages) == 1:
        return number
    few = min(again, len(points))
    count = jnp.sum(~sure)
    unsure = jnp.nonzero(~sure, size=len(points) + few, fill_value=len(points))[0]

    def solve_some(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start, number = state
        rows = jax.lax.dynamic_slice_in_dim(unsure, start, few)
        given = points.at[rows].get(mode="clip")
        better = _in_stages(given, stages[1:], few, max(1, again // 8))
        return start + few, number.at[rows].set(better, mode="drop")

    start = jnp.zeros_like(count)
    return jax.lax.while_loop(lambda state: state[0] < count, solve_some, (start, number))[1]


def _over_tiles(
    function: Callable[..., tuple[jax.Array, ...]], tile: int, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """Apply a function to tiles of rows; the last one begins earlier if it would pass the end."""
    n = len(arrays[0])
    if n <= tile:
        return function(*arrays)
    shapes = jax.eval_shape(function, *(array[:tile] for array in arrays))
    empty = tuple(jnp.zeros((n, *part.shape[1:]), part.dtype) for part in shapes)

    def step(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        at = jnp.minimum(i * tile, n - tile)
        parts = function(*(jax.lax.dynamic_slice_in_dim(array, at, tile) for array in arrays))
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(full, part, at, 0)
            for full, part in zip(found, parts, strict=True)
        )

    found: tuple[jax.Array, ...] = jax.lax.fori_loop(0, -(-n // tile), step, empty)
    return found


def _by_gaps(
    points: jax.Array, references: References, how: How, level: int
) -> tuple[jax.Array, jax.Array]:
    """Return the references of the smallest keys; sure if their order is proved."""
    k = how.num_neighbors
    centred = points - references.centre
    wanted = min(k + 1, len(references.rows))
    sq_norm = _sq_norm(centred)
    number, near, step = _candidates(centred, sq_norm, references, how, level, wanted)
    gap = near[1:] - near[:-1]
    error = _error(centred, sq_norm, references, level)[None]
    sure = jnp.all(gap > 2 * error + step * near[:-1], axis=0)
    return number[:k].T, sure


def _by_candidates(
    points: jax.Array, references: References, how: How
) -> tuple[jax.Array, jax.Array]:
    """Return the nearest candidates of a float32 product; sure if no other can be nearer."""
    k = how.num_neighbors
    centred = points - references.centre
    level = len(how.dtypes) - 1
    sq_norm = _sq_norm(centred)
    number, near, _ = _candidates(centred, sq_norm, references, how, level, num_candidates(k))
    everything = number.size == len(references.rows) * len(points)
    error = _error(centred, sq_norm, references, level)
    floor = near[-1] - error
    rows = references.rows.at[number.T].get(mode="clip")
    with jax.enable_x64(True):
        exact = _sum_last((points.astype(jnp.float64)[:, None] - rows.astype(jnp.float64)) ** 2)
        exact = jnp.where(number.T < len(references.rows), exact, jnp.inf)
        number, exact = _least(number.T, exact, k)
        sure = (exact[:, -1] < floor.astype(jnp.float64)) | everything & jnp.isfinite(error)
    return number, sure


def _by_differences(points: jax.Array, rows: jax.Array, how: How) -> tuple[jax.Array, jax.Array]:
    """Return the nearest references by float64 distances to all, always sure.

    The numbers of a row are -1 if a feature is not finite or a distance overflows float32.
    """
    size = min(len(rows), LARGEST_GROUP)
    groups = jnp.pad(rows, ((0, -len(rows) % size), (0, 0))).reshape(-1, 1, size, rows.shape[1])
    with jax.enable_x64(True):
        given = points.astype(jnp.float64)[:, None]

        def of_group(group: jax.Array) -> jax.Array:
            return _sum_last((given - group.astype(jnp.float64)) ** 2)

        exact = jax.lax.map(of_group, groups)
        exact = jnp.swapaxes(exact, 0, 1).reshape(len(points), -1)[:, : len(rows)]
        number = jax.lax.top_k(-exact, how.num_neighbors)[1].astype(jnp.int32)
        fits = jnp.all(jnp.isfinite(exact.astype(jnp.float32)), axis=1, keepdims=True)
    return jnp.where(fits, number, -1), jnp.ones(len(points), bool)


def _least(number: jax.Array, exact: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the `count` nearest of each row of `[B, m]`; ties go to the lowest number."""
    exact, number = jax.lax.sort((exact, number), dimension=1, num_keys=2)
    return number[:, :count], exact[:, :count]


def _sum_last(terms: jax.Array) -> jax.Array:
    """Sum `[..., f]` over f.

    On a CPU the sum is a product with ones, which XLA vectorizes, unlike sums along the last axis.
    Rows are padded to whole tiles of that product, so that every row has the same order of
    summation.
    """
    if jax.default_backend() != "cpu":
        return jnp.sum(terms, axis=-1)
    rows = terms.reshape(-1, terms.shape[-1])
    rows = jax.lax.optimization_barrier(jnp.pad(rows, ((0, -len(rows) % ROWS_OF_TILE), (0, 0))))
    ones = jnp.ones(rows.shape[1], rows.dtype)
    # Not jnp.matmul: under vmap, its explicit type would make float32 of float64.
    sums = jax.lax.dot(rows, ones, precision=jax.lax.Precision.HIGHEST)
    return sums[: terms.size // terms.shape[-1]].reshape(terms.shape[:-1])


def _sq_norm(rows: jax.Array) -> jax.Array:
    """Return the squared norms `[B]` of rows `[B, f]`, which XLA vectorizes as products of rows."""
    sq_norm: jax.Array = jnp.einsum("bf,bf->b", rows, rows, precision=jax.lax.Precision.HIGHEST)
    return sq_norm


def _error(centred: jax.Array, sq_norm: jax.Array, references: References, level: int) -> jax.Array:
    """Bound the errors `[B]` of |x|² - 2<x,q> + |q|².

    If the operands are rounded to x' and q', <x,q> errs by |x - x'||q| + |x'||q - q'| at most, by
    Cauchy and Schwarz. Products that underflow float32 are lost. In any order, sums of f terms in
    float32 err by less than 8·sqrt(f)·2^-24 of the sum of sizes. The exception has probability
    f·e^-31 (Higham & Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, Theorem
    3.1). All sizes add up to (|x| + |q|)². The rounding of x - c, of the three norms and of the
    last two sums takes 8 times 2^-24 more. One percent covers the rounding of the bound itself.
    """
    width = centred.shape[1]
    reach = references.reach
    norm = jnp.sqrt(sq_norm)
    sums: jax.Array = (8 * width**0.5 + 8) * 2**-24 * (norm + reach) ** 2 + 8 * width * 2**-126
    dtype = references.doubled[level].dtype
    if dtype == jnp.float32:
        return sums
    lost = centred - centred.astype(dtype).astype(jnp.float32)
    residual = jnp.sqrt(_sq_norm(lost))
    operands = 2 * (residual * reach + (norm + residual) * references.residuals[level])
    return 1.01 * operands + sums


def _candidates(
    centred: jax.Array,
    sq_norm: jax.Array,
    references: References,
    how: How,
    level: int,
    count: int,
) -> tuple[jax.Array, jax.Array, float]:
    """Return the references of the smallest keys.

    Returns:
      `(number, near, step)`: `[m, B]` and approximate distances `[m, B]`, in order, at most
      `count` of each point. A distance is at least `near` and at most (1 + step)·near. No other
      reference's approximate distance is below the last.
    """
    groups, size, _ = references.doubled[level].shape
    smallest = smallest_keys
    if how.implementation == "pallas":
        # A late import, because Pallas takes a second to import.
        from rknn_jax.kernels.nearest import smallest_keys as smallest
    keys = smallest(
        centred, sq_norm, references.doubled[level], references.sq_norms, min(count, size)
    )
    mask = _number_mask(size)
    number = (keys & mask) + size * jnp.arange(groups, dtype=jnp.int32)[:, None, None]
    keys = keys.reshape(-1, len(centred))
    number = number.reshape(-1, len(centred))
    if groups > 1 or how.implementation == "pallas":
        order = jax.lax.top_k(~keys.T, min(count, len(keys)))[1].T
        keys = jnp.take_along_axis(keys, order, axis=0)
        number = jnp.take_along_axis(number, order, axis=0)
    near = jax.lax.bitcast_convert_type(keys & ~mask, jnp.float32)
    return number, near, (mask + 1) * 2.0**-23


def _number_mask(size: int) -> int:
    """Return the mask of a key's lowest bits, which hold one of `size` numbers."""
    return (1 << (size - 1).bit_length()) - 1


def smallest_keys(
    points: jax.Array, sq_norm: jax.Array, doubled: jax.Array, sq_norms: jax.Array, count: int
) -> jax.Array:
    """Find the smallest keys of each point in each group.

    A key holds the bits of an approximate distance, with the reference's number in the lowest ones.

    Args:
      points: float32 `[B, f]`, centered.
      sq_norm: float32 `[B]`, |x|².
      doubled: bfloat16 or float32 `[g, G, f]`, -2q.
      sq_norms: float32 `[g, G]`, |q|².
      count: Number of keys m.

    Returns:
      int32 `[g, m, B]`, in order.
    """
    given = points.astype(doubled.dtype)

    def of_group(group: tuple[jax.Array, jax.Array]) -> jax.Array:
        doubled, sq_norms = group
        products = jax.lax.dot_general(
            doubled,
            given,
            (((1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return _smallest(pack(products + (sq_norms[:, None] + sq_norm[None])), count)

    if len(doubled) == 1:
        return of_group((doubled[0], sq_norms[0]))[None]
    keys: jax.Array = jax.lax.map(of_group, (doubled, sq_norms))
    return keys


def pack(distances: jax.Array) -> jax.Array:
    """Put the row's number into the lowest bits of each distance `[G, B]`.

    As int32, the results sort as the distances do, if the distances are not negative.
    """
    bits = jax.lax.bitcast_convert_type(distances, jnp.int32)
    return bits & ~_number_mask(len(bits)) | jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0)


def _smallest(keys: jax.Array, count: int) -> jax.Array:
    """Return the smallest keys of each column, int32 `[count, B]` from distinct keys `[G, B]`."""
    if count > UNROLLED:
        return ~jax.lax.top_k(~keys.T, count)[0].T
    keys = jax.lax.optimization_barrier(keys)
    found = [jnp.min(keys, axis=0)]
    while len(found) < count:
        found.append(jnp.min(jnp.where(keys > found[-1][None], keys, LARGEST_KEY), axis=0))
    return jnp.stack(found)

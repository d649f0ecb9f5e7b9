"""Nearest references of a block of points: fast products, and a proof for each row.

A block is solved in stages. Each stage hands on the rows that it cannot prove:

1. `_by_gaps`: |x - q|² = |x|² - 2<x,q> + |q|² from one matrix product. The bits of a positive float
   sort as an integer. The reference's number replaces the lowest bits, so the smallest distances
   are integer minima. If each of the k + 1 smallest leads the next by more than the rounding can
   change, their order is proved.
2. `_by_pair`: if only one of these gaps is too small, two float64 distances decide it.
3. `_by_candidates`: float64 distances of some candidates more. They are the nearest if the farthest
   of the k is closer than a bound for all others.
4. `_by_differences`: float64 distances to all references.

So the answer always is float64's order, ties by the lowest number, and a row depends on its own
point and the references alone.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

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

FEW_KEYS = 2
"""Most keys of a point whose order is proved so often that subtracting the least does not pay."""

ALIGNED = 128
"""Number of points whose multiples tiles are, as accelerators' kernels take them."""

DISTANCES_TILE = 128
"""Number of points whose differences to their neighbors exist at a time."""

LARGEST_KEY = np.int32(2**31 - 1)


class Found(NamedTuple):
    """References found for B points.

    Attributes:
      number: int32 `[B, min(k + 1, s)]`, nearest first.
      sure: bool `[B]`, true if the first k are proved to be the k nearest, in order.
      doubt: int32 `[B]`, the only gap between neighbors that is not proved; -1 if there are several
        or none.
    """

    number: jax.Array
    sure: jax.Array
    doubt: jax.Array


Product = Literal["float32", "bfloat16", "bfloat16x3"]
"""Type of a matrix product's operands; the sums are float32.

`bfloat16x3` splits a float32 into a high and a low part and leaves out the product of the low
parts. On matrix units it costs three products of bfloat16, and is nearly as exact as float32.
"""

Stage = Callable[[jax.Array, Found], Found]  # points [B, f] and what was found for them so far


class How(NamedTuple):
    """Static settings, decided before tracing.

    Attributes:
      num_neighbors: Number of neighbors k.
      products: Products, tried in turn; none takes differences alone.
      implementation: Implementation of `smallest_keys`.
      tile: Number of points of a product.
      again: Most rows that are solved again at a time.
    """

    num_neighbors: int
    products: tuple[Product, ...]
    implementation: kernels.Implementation
    tile: int
    again: int


class References(NamedTuple):
    """References, prepared for the products.

    `rows` are `[s, f]`. `doubled` is -2q, centered, padded and split into g groups of G: `[g, G,
    w]`, an operand of each product. `sq_norms` are |q|² `[g, G]`, infinite for the padding.
    """

    rows: jax.Array
    centre: jax.Array
    doubled: tuple[jax.Array, ...]
    sq_norms: jax.Array
    reach: jax.Array  # the greatest |q|
    residuals: tuple[jax.Array, ...]  # of each product, the greatest norm of what q loses
    lows: tuple[jax.Array, ...]  # and the greatest norm of the low part of q


@functools.partial(jax.jit, static_argnames="products")
def prepare(rows: jax.Array, products: tuple[Product, ...]) -> References:
    """Center, group and round references `[s, f]`."""
    # As a product, because XLA may sum a mean again wherever it is used, in another order, and then
    # norms and products would have different centers.
    weights = jnp.full((1, len(rows)), 1 / len(rows), jnp.float32)
    centre = jnp.matmul(weights, rows, precision=jax.lax.Precision.HIGHEST)
    groups = -(-len(rows) // LARGEST_GROUP)
    size = -(-len(rows) // groups)
    centred = jnp.pad(rows - centre, ((0, groups * size - len(rows)), (0, 0)))
    sq_norms = _rounded_sq_norm(centred)
    padded = jnp.where(jnp.arange(len(centred)) < len(rows), sq_norms, jnp.inf)
    doubled = tuple(
        _operand(-2 * centred, product, "references").reshape(groups, size, -1)
        for product in products
    )
    lost = [_lost(centred, product) for product in products]
    residuals = tuple(jnp.max(residual) for residual, _ in lost)
    lows = tuple(jnp.max(low) for _, low in lost)
    reach = jnp.sqrt(jnp.max(sq_norms))
    return References(
        rows,
        centre,
        doubled,
        sq_norms=padded.reshape(groups, size),
        reach=reach,
        residuals=residuals,
        lows=lows,
    )


def solve(points: jax.Array, references: References, how: How) -> jax.Array:
    """Return the numbers of the nearest references, int32 `[n, k]`, nearest first.

    Args:
      points: float32 `[n, f]`.
      references: References from `prepare`.
      how: Settings.

    Returns:
      A row is -1 if a feature is not finite or a distance overflows float32.
    """
    stages: list[Stage] = []
    for level in range(len(how.products)):
        if how.num_neighbors < UNROLLED:
            stages.append(functools.partial(_by_gaps, references=references, how=how, level=level))
            if how.num_neighbors > 1:
                stages.append(functools.partial(_by_pair, rows=references.rows))
    if how.products:
        stages.append(functools.partial(_by_candidates, references=references, how=how))
    width = min(how.num_neighbors + 1, len(references.rows))
    nothing = jnp.full(len(points), -1, jnp.int32)
    none = Found(jnp.tile(nothing[:, None], width), nothing >= 0, nothing)
    last = functools.partial(_by_differences, rows=references.rows)
    first, *others = [*stages, last]

    def of_tile(points: jax.Array, *none: jax.Array) -> Found:
        return first(points, Found(*none))

    found = Found(*_over_tiles(of_tile, how.tile, points, *none))
    for stage in others:
        few = max(1, how.again // 8) if stage is last else how.again
        found = _for_unsure(points, found, stage, few)
    return found.number[:, : how.num_neighbors]


def num_candidates(num_neighbors: int) -> int:
    """Return the number of candidates to refine, k + 4 + k/8.

    The candidates beyond k + 1 leave room for ties.
    """
    return num_neighbors + 4 + num_neighbors // 8


def distances(points: jax.Array, rows: jax.Array, number: jax.Array) -> jax.Array:
    """Return the squared distances `[n, k]` of points `[n, f]` to the given rows of `[s, f]`.

    They are sums of squared float32 differences, of a tile of points at a time.
    """

    def of_tile(points: jax.Array, number: jax.Array) -> tuple[jax.Array]:
        return (_sum_last((points[:, None] - rows[number]) ** 2),)

    return _over_tiles(of_tile, DISTANCES_TILE, points, number)[0]


def _for_unsure(points: jax.Array, found: Found, stage: Stage, count: int) -> Found:
    """Take a stage for the rows that are not sure, at most `count` at a time."""
    n = len(points)
    count = min(count, n)
    num_unsure = jnp.sum(~found.sure)

    def solve(found: Found) -> Found:
        # A sort, as `jnp.nonzero` takes twenty times as long to compile.
        row = jnp.arange(n + count, dtype=jnp.int32)
        unsure = jnp.sort(jnp.where(jnp.pad(found.sure, (0, count), constant_values=True), n, row))

        def solve_some(state: tuple[jax.Array, Found]) -> tuple[jax.Array, Found]:
            start, found = state
            rows = jax.lax.dynamic_slice_in_dim(unsure, start, count)
            given, before = jax.tree.map(
                lambda array: array.at[rows].get(mode="clip"), (points, found)
            )
            better = stage(given, before)
            return start + count, jax.tree.map(
                lambda array, part: array.at[rows].set(part, mode="drop"), found, better
            )

        start = jnp.zeros_like(num_unsure)
        return jax.lax.while_loop(lambda state: state[0] < num_unsure, solve_some, (start, found))[
            1
        ]

    # Counting the rows is a tenth of listing them, which few features would feel.
    result: Found = jax.lax.cond(num_unsure > 0, solve, lambda found: found, found)
    return result


def _over_tiles(
    function: Callable[..., tuple[jax.Array, ...]], tile: int, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """Apply a function to tiles of rows; the last one begins earlier if it would pass the end."""
    n = len(arrays[0])
    if n <= tile:
        return function(*arrays)
    count = -(-n // tile)
    tile = min(tile, ALIGNED * -(-n // (count * ALIGNED)))
    shapes = jax.eval_shape(function, *(array[:tile] for array in arrays))
    empty = tuple(jnp.zeros((n, *part.shape[1:]), part.dtype) for part in shapes)

    def step(i: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        at = jnp.minimum(i * tile, n - tile)
        parts = function(*(jax.lax.dynamic_slice_in_dim(array, at, tile) for array in arrays))
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(full, part, at, 0)
            for full, part in zip(found, parts, strict=True)
        )

    found: tuple[jax.Array, ...] = jax.lax.fori_loop(0, count, step, empty)
    return found


def _by_gaps(points: jax.Array, _: Found, *, references: References, how: How, level: int) -> Found:
    """Return the references of the smallest keys; sure if their order is proved."""
    k = how.num_neighbors
    centred = points - references.centre
    sq_norm = _sq_norm(centred)
    wanted = k + 2 if k > 1 else 2  # a single neighbor is doubted too seldom for `_by_pair`
    number, near, far = _candidates(
        centred, sq_norm, references, how=how, level=level, count=wanted
    )
    error = _error(centred, sq_norm, references, product=how.products[level], level=level)[None]
    unproved = near[1:] - far[:-1] <= 2 * error
    unproved |= ~jnp.isfinite(error)
    first = jnp.argmax(unproved, axis=0).astype(jnp.int32)
    doubt = jnp.where(jnp.sum(unproved, axis=0) == 1, first, -1)
    return Found(number[: k + 1].T, ~jnp.any(unproved[:k], axis=0), doubt)


def _by_pair(points: jax.Array, found: Found, *, rows: jax.Array) -> Found:
    """Put the two references at the only gap in doubt into the order of float64's distances."""
    place = jnp.maximum(found.doubt, 0)[:, None] + jnp.arange(2)[None]
    pair = jnp.take_along_axis(found.number, place, axis=1, mode="clip")
    with jax.enable_x64(True):
        given = points.astype(jnp.float64)[:, None]
        exact = _sum_last((given - rows[pair].astype(jnp.float64)) ** 2)
        pair, _ = _least(pair, exact, 2)
    number = jnp.put_along_axis(found.number, place, pair, axis=1, inplace=False, mode="clip")
    return Found(number, found.sure | (found.doubt >= 0), found.doubt)


def _by_candidates(points: jax.Array, before: Found, *, references: References, how: How) -> Found:
    """Return the nearest candidates of a float32 product; sure if no other can be nearer."""
    k = how.num_neighbors
    centred = points - references.centre
    level = len(how.products) - 1
    sq_norm = _rounded_sq_norm(centred)
    number, near, _ = _candidates(
        centred, sq_norm, references, how=how, level=level, count=num_candidates(k)
    )
    everything = number.size == len(references.rows) * len(points)
    error = _error(centred, sq_norm, references, product=how.products[level], level=level)
    floor = near[-1] - error
    rows = references.rows.at[number.T].get(mode="clip")
    with jax.enable_x64(True):
        exact = _sum_last((points.astype(jnp.float64)[:, None] - rows.astype(jnp.float64)) ** 2)
        exact = jnp.where(number.T < len(references.rows), exact, jnp.inf)
        number, exact = _least(number.T, exact, before.number.shape[1])
        sure = (exact[:, k - 1] < floor.astype(jnp.float64)) | everything & jnp.isfinite(error)
    return Found(number, sure, before.doubt)


def _by_differences(points: jax.Array, before: Found, *, rows: jax.Array) -> Found:
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
        number = jax.lax.top_k(-exact, before.number.shape[1])[1].astype(jnp.int32)
        fits = jnp.all(jnp.isfinite(exact.astype(jnp.float32)), axis=1, keepdims=True)
    return Found(jnp.where(fits, number, -1), jnp.ones(len(points), bool), before.doubt)


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


def _rounded_sq_norm(rows: jax.Array) -> jax.Array:
    """Return the squared norms `[B]` of float32 rows `[B, f]`, each rounded once."""
    with jax.enable_x64(True):
        return _sum_last(rows.astype(jnp.float64) ** 2).astype(jnp.float32)


def _halves(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split float32 rows into high and low parts, float32 with the bits of bfloat16."""
    # Not a conversion there and back, which XLA may leave out.
    high = jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
    return high, jax.lax.reduce_precision(rows - high, exponent_bits=8, mantissa_bits=7)


def _operand(rows: jax.Array, product: Product, side: Literal["points", "references"]) -> jax.Array:
    """Return an operand `[B, w]` of a product from float32 rows `[B, f]`."""
    if product == "float32":
        return rows
    high, low = _halves(rows)
    if product == "bfloat16":
        return high.astype(jnp.bfloat16)
    # The sum over the columns is that of high·high, high·low and low·high.
    parts = [high, high, low] if side == "points" else [high, low, high]
    return jnp.concatenate([part.astype(jnp.bfloat16) for part in parts], axis=1)


def _lost(rows: jax.Array, product: Product) -> tuple[jax.Array, jax.Array]:
    """Return the norms `[B]` of what an operand loses of float32 rows, and of its low part."""
    if product == "float32":
        return jnp.zeros(len(rows)), jnp.zeros(len(rows))
    high, low = _halves(rows)
    if product == "bfloat16":
        return jnp.sqrt(_sq_norm(rows - high)), jnp.zeros(len(rows))
    return jnp.sqrt(_sq_norm(rows - high - low)), jnp.sqrt(_sq_norm(low))


def _error(
    centred: jax.Array, sq_norm: jax.Array, references: References, product: Product, level: int
) -> jax.Array:
    """Bound the errors `[B]` of |x|² - 2<x,q> + |q|², where |x|² may be any constant of its row.

    A constant takes no part in the order. So `_by_gaps` may sum |x|² in float32, and only
    `_by_candidates`, which compares with other distances, needs it rounded once, as |q|² is.

    If the operands are rounded to x' and q', <x,q> errs by |x - x'||q| + |x'||q - q'| at most, by
    Cauchy and Schwarz. The product of low parts that `bfloat16x3` leaves out is at most that of
    their norms. Products that underflow float32 are lost. In any order, sums of w terms in float32
    err by less than 8·sqrt(w)·2^-24 of the sum of sizes. The exception has probability w·e^-31
    (Higham & Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, Theorem 3.1).
    Matrix units sum 16 or more terms at a time and cut the result off, so they err by w/16·2^-23 at
    most, which is more from 4,096 terms on. The sizes of 2<x,q> add up to 2|x||q|, and with low
    parts to one percent more. The rounding of x - c, of both norms and of the last two sums takes 8
    times 2^-24 of (|x| + |q|)². One percent covers the rounding of the bound itself.
    """
    width = references.doubled[level].shape[2]
    reach = references.reach
    norm = jnp.sqrt(sq_norm)
    terms = 8 * max(width**0.5, width / 64)
    sums: jax.Array = 2**-24 * (2 * terms * norm * reach + 8 * (norm + reach) ** 2)
    sums += 8 * width * 2**-126
    if product == "float32":
        return 1.01 * sums
    residual, low = _lost(centred, product)
    operands = 2 * (residual * reach + (norm + residual) * references.residuals[level])
    operands += 2 * low * references.lows[level]
    return 1.02 * (operands + sums)


def _candidates(
    centred: jax.Array,
    sq_norm: jax.Array,
    references: References,
    how: How,
    level: int,
    count: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the references of the smallest keys.

    Returns:
      `(number, near, far)`: `[m, B]`, and float32 `[m, B]` that bound the approximate distances
      from below and above, in order, at most `count` of each point. No other reference's
      approximate distance is below the last `near`.
    """
    groups, size, _ = references.doubled[level].shape
    smallest = smallest_keys
    if how.implementation == "pallas":
        # A late import, because Pallas takes a second to import.
        from rknn_jax.kernels.nearest import smallest_keys as smallest
    keys, least = smallest(
        _operand(centred, how.products[level], "points"),
        sq_norm,
        references.doubled[level],
        references.sq_norms,
        min(count, size),
    )
    mask = _number_mask(size)
    number = (keys & mask) + size * jnp.arange(groups, dtype=jnp.int32)[:, None, None]
    above = jax.lax.bitcast_convert_type(keys & ~mask, jnp.float32)
    near = (least[:, None] + above).reshape(-1, len(centred))
    far = (least[:, None] + above * (1 + (mask + 1) * 2.0**-23)).reshape(-1, len(centred))
    number = number.reshape(-1, len(centred))
    if groups > 1 or how.implementation == "pallas":
        order = jax.lax.top_k(-near.T, min(count, len(near)))[1].T
        number, near, far = (
            jnp.take_along_axis(array, order, axis=0) for array in (number, near, far)
        )
    return number, near, far


def _number_mask(size: int) -> int:
    """Return the mask of a key's lowest bits, which hold one of `size` numbers."""
    return (1 << (size - 1).bit_length()) - 1


def smallest_keys(
    points: jax.Array, sq_norm: jax.Array, doubled: jax.Array, sq_norms: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Find the smallest keys of each point in each group.

    A key holds the bits of an approximate distance, with the reference's number in the lowest ones.
    If many keys are asked for, the least distance of the point and group is subtracted first, so
    that the number replaces bits that weigh little.

    Args:
      points: bfloat16 or float32 `[B, w]`, centered.
      sq_norm: float32 `[B]`, |x|².
      doubled: `[g, G, w]` of the same type, -2q.
      sq_norms: float32 `[g, G]`, |q|².
      count: Number of keys m.

    Returns:
      `(keys, least)`: int32 `[g, m, B]`, in order, and float32 `[g, B]`.
    """

    def of_group(group: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        doubled, sq_norms = group
        products = jax.lax.dot_general(
            doubled,
            points,
            (((1,), (1,)), ((), ())),
            precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        distances = products + (sq_norms[:, None] + sq_norm[None])
        if count <= FEW_KEYS:
            return _smallest(pack(distances), count), jnp.zeros(len(points), jnp.float32)
        distances = jax.lax.optimization_barrier(distances)
        least = jnp.min(distances, axis=0)
        return _smallest(pack(distances - least[None]), count), least

    if len(doubled) == 1:
        keys, least = of_group((doubled[0], sq_norms[0]))
        return keys[None], least[None]
    found: tuple[jax.Array, jax.Array] = jax.lax.map(of_group, (doubled, sq_norms))
    return found


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

"""Distances, and the k nearest references of every point, exactly and in memory that does not grow
with their product.

Reverse k-NN labeling and k-NN are one function with its arguments swapped: `nearest(private,
queries, k)` connects every private record to its k nearest queries, `nearest(queries, private, k)`
every query to its k nearest records. Points are streamed in blocks, so the `[num_points,
num_references]` matrix never exists, and `nearest_votes` sums the votes in the same pass.

A block is solved in three steps, each of which hands on what it cannot decide:

1. `_smallest_keys`: |x - q|² = |x|² - 2<x,q> + |q|² from one matrix product, of bfloat16 where the
   hardware multiplies them faster. As the bits of a positive float order it, the reference's number
   takes the lowest of them, and the few smallest are integer minima.
2. `_refine`: the distances of these few candidates, from differences. They are the nearest if the
   farthest of them is closer than the bound that step 1's rounding leaves for all others.
3. The rows without that certificate are solved again, with a product of float32, and then by
  differences to all references.

So the answer is that of the differences whatever found it, and a record's neighbours depend on no
other record.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs, kernels
from rknn_jax.types import Array

Metric = Literal["sqeuclidean", "cosine"]

BLOCK_SIZE = {"cpu": 64}  # points at a time, whose tile of distances stays in the cache of a core
LARGE_BLOCK = 8192  # the same on an accelerator
LARGEST_GROUP = 1024  # references whose number is packed into a key; more are taken in groups
# of a tile, whose minimum is taken lane by lane; XLA's CPU compiler fuses so many, but not 16
SLABS = 8
UNROLLED = 32  # candidates that are found and ordered without a sort
FEW_DIFFERENCES = 2**24  # of features: so many are taken one by one, which compiles faster
ROWS_OF_TILE = 64  # at least those of a tile of XLA's product of a matrix and a vector
SMALLEST_PART = 4096  # points that are worth a thread
LARGEST_KEY = np.int32(2**31 - 1)

_T = TypeVar("_T")


def pairwise_sq_distances(points: Array, references: Array) -> jax.Array:
    """Return squared Euclidean distances.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`.

    Returns:
      float32 `[n, s]`, at least 0. Both sides are centred on the references' mean first, which
      keeps |x|^2 - 2<x,q> + |q|^2 from cancelling where features sit far from the origin.
    """
    centre = jnp.mean(references, axis=0, keepdims=True)
    points = points - centre
    references = references - centre
    products = jnp.matmul(points, references.T, precision=jax.lax.Precision.HIGHEST)
    distances = (
        jnp.sum(points**2, axis=1, keepdims=True)
        - 2 * products
        + jnp.sum(references**2, axis=1)[None]
    )
    return jnp.maximum(distances, 0)


def nearest(
    points: Array,
    references: Array,
    num_neighbors: int,
    *,
    metric: Metric = "sqeuclidean",
    implementation: kernels.Implementation | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Find the nearest references of every point.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`.
      num_neighbors: k, between 1 and s.
      metric: squared Euclidean distance, or 1 - cosine similarity, by which a zero vector is at
        distance 1 from everything.
      implementation: of the first step; see `kernels.chosen`.

    Returns:
      `(index, distance)`, int32 and float32 `[n, k]`, nearest first; ties go to the lowest index.
      Distances are sums of squared differences in float32, and the indices are those of the
      smallest of them.

    Raises:
      ValueError: for k outside [1, s], features of different width, fewer than two dimensions, and,
        outside of `jax.jit`, for features that are not finite or overflow.
    """
    points, references = _checked(points, references, num_neighbors)
    how = _how(points, references, num_neighbors, metric, implementation)
    parts = _on_every_core(points, lambda *part: _nearest(points, references, *part, how=how))
    index, distance = (
        jnp.concatenate([found[i][first:] for found, first in parts]) for i in range(2)
    )
    if not isinstance(distance, jax.core.Tracer):
        _check_finite_distances([distance], points, references)
    return index, distance


def nearest_votes(
    points: Array,
    references: Array,
    labels: Array,
    num_neighbors: int,
    num_classes: int,
    *,
    metric: Metric = "sqeuclidean",
    implementation: kernels.Implementation | None = None,
) -> jax.Array:
    """Sum every point's labels over its nearest references: `nearest`, `bsvs.cells` and
    `bsvs.sum_votes` in one pass.

    The memory beyond the inputs does not grow with n.

    Args:
      points: float32 `[n, f]`, private records.
      references: float32 `[s, f]`, queries.
      labels: int32 `[n]` or `[n, r]`, as in `bsvs.cells`.
      num_neighbors: k, between 1 and s.
      num_classes: |Y|.
      metric: as in `nearest`.
      implementation: as in `nearest`.

    Returns:
      int32 `[s, num_classes]`, private.

    Raises:
      ValueError: as in `nearest`, and for labels of another number than points.
    """
    points, references = _checked(points, references, num_neighbors)
    labels = jnp.asarray(labels, jnp.int32)
    if len(labels) != len(points):
        raise ValueError(
            f"Expected a row of labels for each of {len(points)} points, got {len(labels)}."
        )
    how = _how(points, references, num_neighbors, metric, implementation)
    parts = _on_every_core(
        points,
        lambda *part: _nearest_votes(
            points, references, labels, *part, how=how, num_classes=num_classes
        ),
    )
    counts, farthest = ([found[i] for found, _ in parts] for i in range(2))
    if not isinstance(farthest[0], jax.core.Tracer):
        _check_finite_distances(farthest, points, references)
    return _total(counts, (len(references), num_classes))


def check_finite(name: str, features: Array) -> None:
    """Raise ValueError, naming the first bad row, where `features` `[n, f]` hold NaN or
    infinity.
    """
    bad = ~np.isfinite(np.asarray(features)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{name} has NaN or infinite values in {int(bad.sum())} rows, first in row {row}; "
            "remove or repair these rows."
        )


class _How(NamedTuple):
    """What is decided before tracing: `dtypes` are those of the products that are tried in turn."""

    num_neighbors: int
    metric: Metric
    implementation: kernels.Implementation
    dtypes: tuple[Any, ...]
    block: int


class _References(NamedTuple):
    """`rows` `[s, f]`, and in g groups of G, centred and padded: `doubled`, -2q, `[g, G, f]` of
    each dtype, and |q|² `[g, G]`.
    """

    rows: jax.Array
    centre: jax.Array
    doubled: tuple[jax.Array, ...]
    sq_norms: jax.Array
    reach: jax.Array  # the greatest |q|
    residuals: tuple[jax.Array, ...]  # of each dtype, the greatest norm of what it loses of q


def _checked(points: Array, references: Array, num_neighbors: int) -> tuple[jax.Array, jax.Array]:
    points = jnp.asarray(points, jnp.float32)
    references = jnp.asarray(references, jnp.float32)
    if points.ndim != 2 or references.ndim != 2 or points.shape[1] != references.shape[1]:
        raise ValueError(
            f"Expected points [n, f] and references [s, f] of one width, got {points.shape} and "
            f"{references.shape}; "
            "encode both with the same representation."
        )
    if not 1 <= num_neighbors <= len(references):
        raise ValueError(
            "Expected 1 <= num_neighbors <= number of references, got "
            f"num_neighbors={num_neighbors} with {len(references)} references; "
            "use fewer neighbors or more references."
        )
    return points, references


@functools.partial(jax.jit, static_argnames="shape")
def _total(counts: list[jax.Array], shape: tuple[int, int]) -> jax.Array:
    return jnp.sum(jnp.stack(counts), axis=0).reshape(shape)


@jax.jit
def _all_finite(arrays: list[jax.Array]) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(array)) for array in arrays]))


def _check_finite_distances(
    distances: list[jax.Array], points: jax.Array, references: jax.Array
) -> None:
    if not bool(
        _all_finite([*distances, references])
    ):  # an infinite reference is nobody's neighbour
        check_finite("points", points)
        check_finite("references", references)
        raise ValueError(
            "Expected features whose squared distances fit float32, got larger ones; scale them."
        )


def _how(
    points: jax.Array,
    references: jax.Array,
    num_neighbors: int,
    metric: Metric,
    implementation: kernels.Implementation | None,
) -> _How:
    platform = jax.default_backend()
    block = BLOCK_SIZE.get(jax.default_backend(), LARGE_BLOCK)
    if points.size * len(references) <= FEW_DIFFERENCES:
        return _How(num_neighbors, metric, kernels.chosen(implementation), (), block)
    halves = (
        (jnp.bfloat16,) if multiplies_halves(platform) and len(references) <= LARGEST_GROUP else ()
    )  # more are nearer to each other
    return _How(
        num_neighbors, metric, kernels.chosen(implementation), (*halves, jnp.float32), block
    )


@functools.cache
def multiplies_halves(platform: str) -> bool:
    """Return whether products of bfloat16 are faster than of float32."""
    if platform != "cpu":
        return True
    with contextlib.suppress(OSError):
        return bool({"avx512_bf16", "amx_bf16"} & set(Path("/proc/cpuinfo").read_text().split()))
    return False


def _on_every_core(
    points: jax.Array, run: Callable[[int, int, int, int], _T]
) -> list[tuple[_T, int]]:
    """Run parts of the points side by side, one on each core of a CPU, which XLA would use only
    within single products.

    Args:
      points: `[n, f]`.
      run: called as `run(start, first, stop, size)` of a part of `size` points from `start` on, of
        which `first` to `stop` are wanted.

    Returns:
      `(result, first)` of each part. All parts are of one size, and `first` is not 0 where one
      overlaps the one before.
    """
    n = len(points)
    parts = 1
    if not isinstance(points, jax.core.Tracer) and [
        device.platform for device in points.devices()
    ] == ["cpu"]:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        parts = max(1, min(cores, n // SMALLEST_PART))
    if parts == 1:
        return [(run(0, 0, n, n), 0)]
    size = -(-n // parts)
    run(0, 0, 0, size)  # nothing: it compiles, once for all threads

    def part(number: int) -> tuple[_T, int]:
        start = min(number * size, n - size)
        first = number * size - start
        return jax.block_until_ready(run(start, first, size, size)), first

    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(part, range(parts)))


@functools.partial(jax.jit, static_argnames=("size", "how"))
def _nearest(
    points: jax.Array,
    references: jax.Array,
    start: Any,
    first: Any,
    stop: Any,
    size: int,
    how: _How,
) -> tuple[jax.Array, jax.Array]:
    def keep(
        found: tuple[jax.Array, jax.Array], at: jax.Array, index: jax.Array, distance: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return jax.tree.map(
            lambda full, part: jax.lax.dynamic_update_slice_in_dim(full, part.T, at, 0),
            found,
            (index, distance),
        )

    empty = (
        jnp.zeros((size, how.num_neighbors), jnp.int32),
        jnp.zeros((size, how.num_neighbors), jnp.float32),
    )
    return _over_blocks(points, references, start, first, stop, size, how, keep, empty)


@functools.partial(jax.jit, static_argnames=("size", "how", "num_classes"))
def _nearest_votes(
    points: jax.Array,
    references: jax.Array,
    labels: jax.Array,
    start: Any,
    first: Any,
    stop: Any,
    size: int,
    how: _How,
    num_classes: int,
) -> tuple[jax.Array, jax.Array]:
    def count(
        found: tuple[jax.Array, jax.Array, Any],
        at: jax.Array,
        index: jax.Array,
        distance: jax.Array,
    ) -> tuple[jax.Array, jax.Array, Any]:
        totals, farthest, done = found
        votes = bsvs.cells(
            index.T, jax.lax.dynamic_slice_in_dim(labels, start + at, index.shape[1]), num_classes
        )
        fresh = at + jnp.arange(index.shape[1]) >= done
        totals = totals + bsvs.sum_votes(
            jnp.where(fresh[:, None], votes, bsvs.NO_CELL), len(totals)
        )
        return totals, jnp.maximum(farthest, jnp.max(distance)), at + index.shape[1]

    none = jnp.zeros(len(references) * num_classes, jnp.int32), jnp.float32(0), first
    return _over_blocks(points, references, start, first, stop, size, how, count, none)[:2]


def _over_blocks(
    points: jax.Array,
    references: jax.Array,
    start: Any,
    first: Any,
    stop: Any,
    size: int,
    how: _How,
    visit: Callable[..., _T],
    state: _T,
) -> _T:
    """Fold `visit(state, at, index, distance)` over blocks of points `start + first` to `start +
    stop`, where `at` counts from `start`.

    Blocks are of one size, and the last one begins earlier where it would pass the end.
    """
    if not size:
        return state
    block = min(how.block, size)
    prepared = _prepare(references, how)

    def step(i: jax.Array, state: _T) -> _T:
        at = jnp.minimum(first + i * block, size - block)
        rows = jax.lax.dynamic_slice_in_dim(points, start + at, block)
        index, distance = _solve(_unit(rows, 0) if how.metric == "cosine" else rows, prepared, how)
        return visit(state, at, index, distance / 2 if how.metric == "cosine" else distance)

    return jax.lax.fori_loop(0, (stop - first + block - 1) // block, step, state)


def _prepare(references: jax.Array, how: _How) -> _References:
    rows = _unit(references, 1) if how.metric == "cosine" else references
    centre = jnp.mean(rows, axis=0, keepdims=True)
    groups = -(-len(rows) // LARGEST_GROUP)
    size = -(-len(rows) // (groups * SLABS)) * SLABS
    centred = jnp.pad(rows - centre, ((0, groups * size - len(rows)), (0, 0)))
    sq_norms = jnp.sum(centred**2, axis=1)
    padded = jnp.where(jnp.arange(len(centred)) < len(rows), sq_norms, jnp.inf).reshape(
        groups, size
    )
    doubled = tuple((-2 * centred).reshape(groups, size, -1).astype(dtype) for dtype in how.dtypes)
    lost = [centred + given.astype(jnp.float32).reshape(centred.shape) / 2 for given in doubled]
    residuals = tuple(jnp.sqrt(jnp.max(jnp.sum(part**2, axis=1))) for part in lost)
    return _References(rows, centre, doubled, padded, jnp.sqrt(jnp.max(sq_norms)), residuals)


def _solve(
    points: jax.Array, references: _References, how: _How, tried: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Return indices and distances `[k, B]` of a block of points `[B, f]`."""
    if tried == len(how.dtypes):
        return _by_differences(points, references.rows, how.num_neighbors)
    index, distance, sure = _refine(points, references, how, tried)
    few = -(-len(points) // 16)

    def again(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        index, distance, unsure = state
        rows = jax.lax.top_k(unsure.astype(jnp.int32), few)[1]
        # rows that are sure fill up, and stay
        better = _solve(points[rows], references, how, tried + 1)
        open_ = unsure[rows][None]
        index, distance = (
            old.at[:, rows].set(jnp.where(open_, new, old[:, rows]))
            for old, new in zip((index, distance), better, strict=True)
        )
        return index, distance, unsure.at[rows].set(False)

    return jax.lax.while_loop(lambda state: jnp.any(state[2]), again, (index, distance, ~sure))[:2]


def _by_differences(points: jax.Array, rows: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    size = min(len(rows), LARGEST_GROUP)
    groups = jnp.pad(rows, ((0, -len(rows) % size), (0, 0))).reshape(-1, 1, size, rows.shape[1])
    distances = jax.lax.map(lambda group: _sum_last((points[:, None] - group) ** 2), groups)
    distances = jnp.swapaxes(distances, 0, 1).reshape(len(points), -1)[:, : len(rows)]
    negative, index = jax.lax.top_k(-distances, count)
    return index.T, -negative.T


def _refine(
    points: jax.Array, references: _References, how: _How, tried: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the nearest candidates, their distances `[k, B]`, and for which points no other
    reference can be nearer `[B]`.
    """
    rows = references.rows
    k = how.num_neighbors
    centred = points - references.centre
    index, floor = _candidates(
        centred,
        references.doubled[tried],
        references.sq_norms,
        _num_candidates(k),
        how.implementation,
    )
    distance = _sum_last((points[None] - rows.at[index].get(mode="clip")) ** 2)
    distance = jnp.where(index < len(rows), distance, jnp.inf)
    everything = jnp.sum(index < len(rows), axis=0) == len(rows)
    index, distance = _order(index, distance, k)
    sure = distance[-1] < floor - _rounding(centred, references, tried)
    return index, distance, sure | everything


def _sum_last(terms: jax.Array) -> jax.Array:
    """Sum `[m, B, f]` over f: on a CPU by a product with ones, which XLA vectorizes, unlike sums
    along the last axis.

    Rows are filled up to whole tiles of that product, whose order of summation then is the same for
    all of them.
    """
    if jax.default_backend() != "cpu":
        return jnp.sum(terms, axis=-1)
    rows = terms.reshape(-1, terms.shape[-1])
    rows = jax.lax.optimization_barrier(jnp.pad(rows, ((0, -len(rows) % ROWS_OF_TILE), (0, 0))))
    sums = jnp.matmul(
        rows, jnp.ones(rows.shape[1], jnp.float32), precision=jax.lax.Precision.HIGHEST
    )
    return sums[: terms.shape[0] * terms.shape[1]].reshape(terms.shape[:2])


def _num_candidates(num_neighbors: int) -> int:
    """Return how many are refined: with four more and half of k, rounding to bfloat16 leaves one
    point in a hundred undecided.
    """
    return num_neighbors + 4 + num_neighbors // 2


def _rounding(centred: jax.Array, references: _References, tried: int) -> jax.Array:
    """Bound the errors `[B]` of |x|² - 2<x,q> + |q|² and of a sum of squared differences together.

    With operands that are rounded, to x' and q', <x,q> errs by |x - x'||q| + |x'||q - q'| at most,
    by Cauchy and Schwarz. Products that leave float32's range below are lost. Sums of f terms in
    float32 err by less than 8·sqrt(f)·2^-24 of the sum of sizes in any order but with probability
    f·e^-31 (Higham & Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, Theorem
    3.1), and all sizes add up to (|x| + |q|)². One percent covers the rounding of the bound itself.
    """
    width = centred.shape[1]
    reach = references.reach
    lost = centred - centred.astype(references.doubled[tried].dtype).astype(jnp.float32)
    norm = jnp.sqrt(jnp.sum(centred**2, axis=1))
    residual = jnp.sqrt(jnp.sum(lost**2, axis=1))
    operands = 2 * (residual * reach + (norm + residual) * references.residuals[tried])
    return (
        1.01 * operands + (16 * width**0.5 + 8) * 2**-24 * (norm + reach) ** 2 + 8 * width * 2**-126
    )


def _candidates(
    points: jax.Array,
    doubled: jax.Array,
    sq_norms: jax.Array,
    count: int,
    implementation: kernels.Implementation,
) -> tuple[jax.Array, jax.Array]:
    """Return the references of the smallest keys `[m, B]`, and what no other's approximate
    distance is below `[B]`.
    """
    groups, size, _ = doubled.shape
    smallest = _smallest_keys
    if implementation == "pallas":
        from rknn_jax.kernels.nearest import (
            smallest_keys as smallest,
        )  # late: Pallas takes a second to import
    keys = smallest(points, doubled, sq_norms, min(count, size))
    number = (keys & _number_mask(size)) + size * jnp.arange(groups)[:, None, None]
    keys = keys.reshape(-1, len(points))
    number = number.reshape(-1, len(points))
    if groups > 1:
        order = jax.lax.top_k(~keys.T, min(count, len(keys)))[1].T
        keys = jnp.take_along_axis(keys, order, axis=0)
        number = jnp.take_along_axis(number, order, axis=0)
    return number, jax.lax.bitcast_convert_type(
        jnp.max(keys, axis=0) & ~_number_mask(size), jnp.float32
    )


def _number_mask(size: int) -> int:
    """Return the lowest bits of a key, which hold one of `size` numbers."""
    return 2 ** (size - 1).bit_length() - 1


def _smallest_keys(
    points: jax.Array, doubled: jax.Array, sq_norms: jax.Array, count: int
) -> jax.Array:
    """Find the smallest keys of each point in each group: bits of its approximate distances, which
    carry the reference's number.

    Args:
      points: float32 `[B, f]`, centred.
      doubled: bfloat16 or float32 `[g, G, f]`, -2q.
      sq_norms: float32 `[g, G]`, |q|².
      count: m.

    Returns:
      int32 `[g, m, B]`.
    """
    given = points.astype(doubled.dtype)
    sq_norm = jnp.sum(points**2, axis=1)

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

    return (
        jax.lax.map(of_group, (doubled, sq_norms))
        if len(doubled) > 1
        else of_group((doubled[0], sq_norms[0]))[None]
    )


def pack(distances: jax.Array) -> jax.Array:
    """Put the row's number into the lowest bits of each distance `[G, B]`, which as int32 order
    as they do where they are not negative.
    """
    bits = jax.lax.bitcast_convert_type(distances, jnp.int32)
    return bits & ~_number_mask(len(bits)) | jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0)


def _smallest(keys: jax.Array, count: int) -> jax.Array:
    """Return the smallest of each column of different keys: int32 `[count, B]` from `[G, B]`."""
    if count > UNROLLED:
        return ~jax.lax.top_k(~keys.T, count)[0].T
    slabs = jnp.split(jax.lax.optimization_barrier(keys), SLABS)
    found = [jnp.min(functools.reduce(jnp.minimum, slabs), axis=0)]
    while len(found) < count:
        above = (jnp.where(slab > found[-1][None], slab, LARGEST_KEY) for slab in slabs)
        found.append(jnp.min(functools.reduce(jnp.minimum, above), axis=0))
    return jnp.stack(found)


def _order(index: jax.Array, distance: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the `count` nearest of each column, ties by index, from `[m, B]`: each goes where
    as many others come before it.
    """
    bits = jax.lax.bitcast_convert_type(distance, jnp.int32)  # as whole numbers NaN has a place too
    if len(index) > UNROLLED:
        bits, index = jax.lax.sort((bits, index), dimension=0, num_keys=2)
        return index[:count], jax.lax.bitcast_convert_type(bits[:count], jnp.float32)
    before = (bits[:, None] < bits[None]) | (bits[:, None] == bits[None]) & (
        index[:, None] < index[None]
    )
    here = jnp.sum(before, axis=0, dtype=jnp.int32)[None] == jnp.arange(count)[:, None, None]
    index, bits = (
        jnp.sum(jnp.where(here, values[None], 0), axis=1, dtype=jnp.int32)
        for values in (index, bits)
    )
    return index, jax.lax.bitcast_convert_type(bits, jnp.float32)


def _unit(vectors: jax.Array, side: int) -> jax.Array:
    """Scale vectors `[n, f]` to length 1, at half whose squared distance is 1 - cosine: `[n, f +
    2]`.

    A zero vector becomes one that is at a right angle to all, also to those of the other side.
    """
    scale = jnp.max(jnp.abs(vectors), axis=1, keepdims=True)
    zero = (scale == 0).astype(jnp.float32)
    vectors = vectors / (scale + zero)  # so that no square leaves float32's range
    sides = [zero, jnp.zeros_like(zero)]
    return jnp.concatenate(
        [
            vectors / (jnp.linalg.norm(vectors, axis=1, keepdims=True) + zero),
            sides[side],
            sides[1 - side],
        ],
        axis=1,
    )

"""Exact k nearest references of every point, and distances, in bounded memory.

Reverse k-NN labeling and k-NN are one function with its arguments swapped. `nearest(private,
queries, k)` connects every private record to its k nearest queries. `nearest(queries, private, k)`
connects every query to its k nearest records. Points are streamed in blocks, so the `[num_points,
num_references]` matrix never exists. `nearest_votes` sums the votes in the same pass.

A block is solved in three steps. Each step hands on the points that it cannot decide:

1. `_smallest_keys`: |x - q|² = |x|² - 2<x,q> + |q|² from one matrix product, in bfloat16 if the
   hardware multiplies bfloat16 faster. The bits of a positive float sort as an integer. The
   reference's number replaces the lowest bits, so the smallest distances are integer minima.
2. `_refine`: the distances of these few candidates, from differences. The candidates are the
   nearest if the farthest of the k is closer than a bound for all others. The bound allows for the
   rounding of step 1.
3. Rows without that certificate are solved again with a float32 product, and then by differences to
   all references.

So the answer always equals that of the differences, and a record's neighbors depend on no other
record.
"""

import contextlib
import functools
import os
import sys
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

BLOCK_SIZE = {"cpu": 64}  # points per block: their tile of distances stays in a core's cache
LARGE_BLOCK = 2**16  # points per block on an accelerator, where each block costs about 0.5 ms
LARGEST_GROUP = 1024  # references whose number fits into a key; more are split into groups
# Slabs of a tile, whose minimum is taken lane by lane. XLA's CPU compiler fuses 8, but not 16.
SLABS = 8
UNROLLED = 32  # most candidates that are found and ordered without a sort
FEW_DIFFERENCES = 2**24  # most feature differences taken directly, which compiles faster
ROWS_OF_TILE = 64  # at least the rows of a tile of XLA's matrix-vector product
SMALLEST_PART = 4096  # fewest points that are worth a thread
LARGEST_KEY = np.int32(2**31 - 1)

_T = TypeVar("_T")


def pairwise_sq_distances(points: Array, references: Array) -> jax.Array:
    """Return squared Euclidean distances.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`.

    Returns:
      float32 `[n, s]`, at least 0. Both sides are centered on the references' mean first. Otherwise
      |x|^2 - 2<x,q> + |q|^2 would cancel for features far from the origin.
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
      num_neighbors: Number of neighbors k, between 1 and s.
      metric: Squared Euclidean distance, or 1 - cosine similarity. A zero vector is at cosine
        distance 1 from everything. Defaults to squared Euclidean.
      implementation: Implementation of the first step, as in `kernels.chosen`. Defaults to its
        choice for the platform.

    Returns:
      `(index, distance)`, int32 and float32 `[n, k]`, nearest first; ties go to the lowest index.
      Distances are sums of squared differences in float32, and the indices are those of the
      smallest sums.

    Raises:
      ValueError: If k is outside [1, s], the features differ in width or do not have two
        dimensions. Outside of `jax.jit` also if features are not finite or their distances
        overflow.
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
    """Sum every point's labels over its nearest references.

    The result is that of `nearest`, `bsvs.cells` and `bsvs.sum_votes`, in one pass. The memory
    beyond the inputs does not grow with n.

    Args:
      points: float32 `[n, f]`, private records.
      references: float32 `[s, f]`, queries.
      labels: int32 `[n]` or `[n, r]`, as in `bsvs.cells`.
      num_neighbors: Number of neighbors k, between 1 and s.
      num_classes: Number of classes |Y|.
      metric: Metric, as in `nearest`.
      implementation: Implementation, as in `nearest`.

    Returns:
      int32 `[s, num_classes]`, private.

    Raises:
      ValueError: As in `nearest`, and if the numbers of labels and points differ.
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
    votes: jax.Array = _total(counts, (len(references), num_classes))
    return votes


def check_finite(name: str, features: Array) -> None:
    """Raise ValueError if features `[n, f]` hold NaN or infinity, naming the first bad row."""
    bad = ~np.isfinite(np.asarray(features)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{name} has NaN or infinite values in {int(bad.sum())} rows, first in row {row}; "
            "remove or repair these rows."
        )


class _How(NamedTuple):
    """Static settings, decided before tracing; `dtypes` are the product types to try in turn."""

    num_neighbors: int
    metric: Metric
    implementation: kernels.Implementation
    dtypes: tuple[Any, ...]
    block: int


class _References(NamedTuple):
    """References, prepared for the products.

    `rows` are `[s, f]`. `doubled` is -2q, centered, padded and split into g groups of G: `[g, G,
    f]` of each dtype. `sq_norms` are |q|² `[g, G]`.
    """

    rows: jax.Array
    centre: jax.Array
    doubled: tuple[jax.Array, ...]
    sq_norms: jax.Array
    reach: jax.Array  # the greatest |q|
    residuals: tuple[jax.Array, ...]  # per dtype, the greatest norm of the rounding error of q


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
    # An infinite reference has infinite distances and is found by no point, so check it too.
    if not bool(_all_finite([*distances, references])):
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
    block = BLOCK_SIZE.get(platform, LARGE_BLOCK)
    if implementation is None and (
        points.size * len(references) <= FEW_DIFFERENCES
        or _num_candidates(num_neighbors) > kernels.MOST_KEYS
    ):
        implementation = "xla"
    implementation = kernels.chosen(implementation, _kernel_agrees)
    if points.size * len(references) <= FEW_DIFFERENCES:
        return _How(num_neighbors, metric, implementation, (), block)
    # References of a larger set lie closer together, and bfloat16 would decide too few points.
    halves = (
        (jnp.bfloat16,) if multiplies_halves(platform) and len(references) <= LARGEST_GROUP else ()
    )
    return _How(num_neighbors, metric, implementation, (*halves, jnp.float32), block)


def _kernel_agrees() -> bool:
    """Compare the kernel with XLA, bit by bit, in one group of references and in two."""
    rng = np.random.default_rng(0)
    for count in (300, LARGEST_GROUP + 100):
        points = rng.standard_normal((1000, 70), np.float32)
        references = rng.standard_normal((count, 70), np.float32)
        pallas, xla = (
            nearest(points, references, 4, implementation=form) for form in ("pallas", "xla")
        )
        if not np.array_equal(pallas[0], xla[0]):
            return False
    return True


@functools.cache
def multiplies_halves(platform: str) -> bool:
    """Return whether bfloat16 products are faster than float32 products."""
    if platform != "cpu":
        return True
    with contextlib.suppress(OSError):
        return bool({"avx512_bf16", "amx_bf16"} & set(Path("/proc/cpuinfo").read_text().split()))
    return False


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _on_every_core(
    points: jax.Array, run: Callable[[int, int, int, int], _T]
) -> list[tuple[_T, int]]:
    """Run parts of the points side by side, one on each core of a CPU.

    XLA alone would use the cores only within single products.

    Args:
      points: `[n, f]`.
      run: Function called as `run(start, first, stop, size)` on the `size` points from `start` on.
        Only its points `first` to `stop` are wanted.

    Returns:
      `(result, first)` of each part. All parts have the same size, and `first` is not 0 if a part
      overlaps the previous one.
    """
    n = len(points)
    parts = 1
    if not isinstance(points, jax.core.Tracer) and [
        device.platform for device in points.devices()
    ] == ["cpu"]:
        parts = max(1, min(num_cores(), n // SMALLEST_PART))
    if parts == 1:
        return [(run(0, 0, n, n), 0)]
    size = -(-n // parts)
    run(0, 0, 0, size)  # an empty slice: all threads then share one compiled program

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
        kept: tuple[jax.Array, jax.Array] = jax.tree.map(
            lambda full, part: jax.lax.dynamic_update_slice_in_dim(full, part.T, at, 0),
            found,
            (index, distance),
        )
        return kept

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
    """Fold `visit(state, at, index, distance)` over blocks of points.

    The points are `start + first` to `start + stop`, and `at` counts from `start`. All blocks have
    the same size. The last one begins earlier if it would pass the end.
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

    last: _T = jax.lax.fori_loop(0, (stop - first + block - 1) // block, step, state)
    return last


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
        # Rows that are already sure fill the block, and keep their results.
        rows = jax.lax.top_k(unsure.astype(jnp.int32), few)[1]
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
    """Return the nearest candidates, their distances and their certificates.

    Returns:
      `(index, distance, sure)`: `[k, B]`, `[k, B]` and bool `[B]`. `sure` holds for the points to
      which no other reference can be nearer.
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
    """Sum `[m, B, f]` over f.

    On a CPU the sum is a product with ones, which XLA vectorizes, unlike sums along the last axis.
    Rows are padded to whole tiles of that product, so that every row has the same order of
    summation.
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
    """Return the number of candidates to refine, k + 4 + k/2.

    With so many, rounding to bfloat16 leaves one point in a hundred undecided.
    """
    return num_neighbors + 4 + num_neighbors // 2


def _rounding(centred: jax.Array, references: _References, tried: int) -> jax.Array:
    """Bound the errors `[B]` of |x|² - 2<x,q> + |q|² and of a sum of squared differences together.

    If the operands are rounded to x' and q', <x,q> errs by |x - x'||q| + |x'||q - q'| at most, by
    Cauchy and Schwarz. Products that underflow float32 are lost. In any order, sums of f terms in
    float32 err by less than 8·sqrt(f)·2^-24 of the sum of sizes. The exception has probability
    f·e^-31 (Higham & Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019, Theorem
    3.1). All sizes add up to (|x| + |q|)². One percent covers the rounding of the bound itself.
    """
    width = centred.shape[1]
    reach = references.reach
    lost = centred - centred.astype(references.doubled[tried].dtype).astype(jnp.float32)
    norm = jnp.sqrt(jnp.sum(centred**2, axis=1))
    residual = jnp.sqrt(jnp.sum(lost**2, axis=1))
    operands = 2 * (residual * reach + (norm + residual) * references.residuals[tried])
    bound: jax.Array = (
        1.01 * operands + (16 * width**0.5 + 8) * 2**-24 * (norm + reach) ** 2 + 8 * width * 2**-126
    )
    return bound


def _candidates(
    points: jax.Array,
    doubled: jax.Array,
    sq_norms: jax.Array,
    count: int,
    implementation: kernels.Implementation,
) -> tuple[jax.Array, jax.Array]:
    """Return the references of the smallest keys, and a bound for all others.

    Returns:
      `(number, floor)`: `[m, B]` and `[B]`. No other reference's approximate distance is below
      `floor`.
    """
    groups, size, _ = doubled.shape
    smallest = _smallest_keys
    if implementation == "pallas":
        # A late import, because Pallas takes a second to import.
        from rknn_jax.kernels.nearest import smallest_keys as smallest
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
    """Return the mask of a key's lowest bits, which hold one of `size` numbers."""
    return (1 << (size - 1).bit_length()) - 1


def _smallest_keys(
    points: jax.Array, doubled: jax.Array, sq_norms: jax.Array, count: int
) -> jax.Array:
    """Find the smallest keys of each point in each group.

    A key holds the bits of an approximate distance, with the reference's number in the lowest ones.

    Args:
      points: float32 `[B, f]`, centered.
      doubled: bfloat16 or float32 `[g, G, f]`, -2q.
      sq_norms: float32 `[g, G]`, |q|².
      count: Number of keys m.

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
    """Put the row's number into the lowest bits of each distance `[G, B]`.

    As int32, the results sort as the distances do, if the distances are not negative.
    """
    bits = jax.lax.bitcast_convert_type(distances, jnp.int32)
    return bits & ~_number_mask(len(bits)) | jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0)


def _smallest(keys: jax.Array, count: int) -> jax.Array:
    """Return the smallest keys of each column, int32 `[count, B]` from distinct keys `[G, B]`."""
    if count > UNROLLED:
        return ~jax.lax.top_k(~keys.T, count)[0].T
    slabs = jnp.split(jax.lax.optimization_barrier(keys), SLABS)
    found = [jnp.min(functools.reduce(jnp.minimum, slabs), axis=0)]
    while len(found) < count:
        above = (jnp.where(slab > found[-1][None], slab, LARGEST_KEY) for slab in slabs)
        found.append(jnp.min(functools.reduce(jnp.minimum, above), axis=0))
    return jnp.stack(found)


def _order(index: jax.Array, distance: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Return the `count` nearest of each column of `[m, B]`; ties go by index.

    For few rows, the rank of an entry is the number of entries before it.
    """
    bits = jax.lax.bitcast_convert_type(distance, jnp.int32)  # integers, so that NaN has a rank too
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
    """Scale vectors `[n, f]` to length 1 and add two columns: `[n, f + 2]`.

    1 - cosine is half the squared distance of the results. A zero vector becomes one at a right
    angle to all others, including those of the other side.
    """
    scale = jnp.max(jnp.abs(vectors), axis=1, keepdims=True)
    zero = (scale == 0).astype(jnp.float32)
    vectors = vectors / (scale + zero)  # keeps the squares within float32's range
    sides = [zero, jnp.zeros_like(zero)]
    return jnp.concatenate(
        [
            vectors / (jnp.linalg.norm(vectors, axis=1, keepdims=True) + zero),
            sides[side],
            sides[1 - side],
        ],
        axis=1,
    )

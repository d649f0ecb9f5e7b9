"""Exact k nearest references of every point, and distances, in bounded memory.

Reverse k-NN labeling and k-NN are one function with its arguments swapped. `nearest(private,
queries, k)` connects every private record to its k nearest queries. `nearest(queries, private, k)`
connects every query to its k nearest records. Points are streamed in blocks, so the `[num_points,
num_references]` matrix never exists. `nearest_votes` sums the votes in the same pass. Votes need no
distances; `distances` has those of the neighbors.

On a CPU, the native kernel `kernels.native.nearest` does all of it, if the installation compiled
it. It takes NumPy arrays and compiles nothing; in a traced call it is part of the compiled program.
On accelerators and without the kernel, `kernels.assignment` solves a block. Both have the same ids.
A record's neighbors depend on no other record.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs, kernels
from rknn_jax._internal.cores import num_cores
from rknn_jax.kernels import assignment
from rknn_jax.kernels.assignment import How, References
from rknn_jax.kernels.native import nearest as native
from rknn_jax.types import Array

Metric = Literal["sqeuclidean", "cosine"]

BLOCK = 2048  # least number of points that a CPU takes at a time
LARGEST = 1e15
"""Largest absolute value of a feature; squared distances of larger float32 features overflow."""

LARGEST_BLOCK = 8192
BLOCK_BYTES = 2**22  # of more points than the least: a copy of them stays in the cache
SMALLEST_BLOCK = 64  # fewer points are filled up, so that few programs serve all sizes
TILE = 128  # points of a product on a CPU: their distances stay in a core's cache
LARGE_TILE = 2**17  # points of a product on an accelerator
AGAIN = 8  # rows that a CPU solves again at a time
LARGE_AGAIN = 2**13  # rows that an accelerator solves again at a time
FEW_DIFFERENCES = 2**22  # most feature differences taken directly, which compiles faster
FEWEST_FOR_HALVES = 256  # references above which a CPU's bfloat16 products pay

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
    # The references are public, so that their mean tells nothing of a record.
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
) -> jax.Array:
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
      int32 `[n, k]`, nearest first, in the order of float64's distances; ties go to the lowest
      index. The native kernel and XLA sum in different orders. If two distances agree in all but
      the last places of float64, either may come first. In a traced call, a row is -1 if its
      features are not finite or their distances overflow float32.

    Raises:
      ValueError: If k is outside [1, s], the features differ in width or do not have two
        dimensions. Outside of `jax.jit` also if features are not finite or their distances
        overflow.
    """
    points, references = _checked(points, references, num_neighbors)
    # All forms return the same indices but for ties, so that which one runs is a matter of speed.
    how = _how(points, references, num_neighbors, implementation)
    if how.implementation == "native":  # which has blocks and threads of its own
        threads = num_cores() if len(points) > BLOCK else 1
        found = _native(points, references, num_neighbors, metric=metric)(points, threads)
        _check_found([found.min(initial=0)], points, references)
        # Without a type, JAX compiles a program for each new shape of a NumPy array.
        return jnp.asarray(found, jnp.int32)
    find = _finder(points, references, how, metric=metric)
    # Blocks run side by side and come back in order.
    index, least = zip(*_over_blocks(find, points), strict=True)
    _check_found(least, points, references)
    return _joined(index, len(points))


def distances(
    points: Array, references: Array, index: Array, *, metric: Metric = "sqeuclidean"
) -> jax.Array:
    """Return the distances of points to some references each.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`.
      index: int32 `[n, k]`, numbers of references, as from `nearest`.
      metric: Metric, as in `nearest`.

    Returns:
      float32 `[n, k]`, sums of squared differences in float32, or their halves for cosines.
    """
    references = jnp.asarray(references, jnp.float32)
    points = _near_work(points, np.float32, references, index)
    index = _near_work(index, np.int32, points, references)

    def run(start: int, stop: int, size: int) -> Array:
        block = _filled(points, start, stop, size=size, mode="edge")
        some = _filled(index, start, stop, size=size, mode="edge")
        distance: Array = _distances(block, references, some, metric=metric)
        return distance

    return _joined(list(_over_blocks(run, points)), len(points))


def in_metric(features: Array, metric: Metric) -> Array:
    """Return the features as a metric sees them: of unit length under cosine, else unchanged."""
    if metric != "cosine":
        return features
    rows = np.asarray(features)
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: np.ndarray = rows / np.where(norm > 0, norm, 1)
    return scaled


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
      labels: Integers `[n]` or `[n, r]`, as in `bsvs.cells`.
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
    labels = labels if isinstance(labels, jax.Array) else np.asarray(labels)
    labels = _near_work(bsvs.voting_labels(labels, num_classes), np.int32, points, references)
    if len(labels) != len(points):
        raise ValueError(
            f"Expected a row of labels for each of {len(points)} points, got {len(labels)}."
        )
    how = _how(points, references, num_neighbors, implementation)
    find = _finder(points, references, how, metric=metric)

    def run(start: int, stop: int, size: int) -> tuple[Array, Array]:
        index, least = find(start, stop, size)
        # Rows that fill a block up cast no vote: their labels are `NO_CELL`.
        near = _filled(index, 0, len(index), size=size, mode="edge")
        cast = _filled(
            labels, start, stop, size=size, mode="constant", constant_values=bsvs.NO_CELL
        )
        votes: Array = _votes(near, cast, num_queries=len(references), num_classes=num_classes)
        return votes, least

    total: Any = 0
    lowest = []
    for votes, least in _over_blocks(run, points):
        # Integers, so that blocks add up to the same sum in any order.
        total = total + votes
        # -1 marks a row without neighbors; it is looked at once, after all blocks.
        lowest.append(least)
    _check_found(lowest, points, references)
    return jnp.asarray(total, jnp.int32).reshape(len(references), num_classes)


def usable_rows(array: np.ndarray) -> np.ndarray:
    """Return rows as float32 `[n, f]`, and unusable rows as NaN.

    A row is unusable if it holds NaN, infinity or more than `LARGEST`.
    """
    # Overflow, underflow and signaling NaN are expected here, and a row's own affair.
    with np.errstate(all="ignore"):
        rows = array.astype(np.float32)
    # NaN compares as False, so that one comparison finds NaN, infinity and large values.
    rows[~np.all(np.abs(rows) <= LARGEST, axis=1)] = np.nan
    return rows


def check_finite(name: str, features: Array) -> None:
    """Raise ValueError if features `[n, f]` hold NaN or infinity, naming the first bad row."""
    bad = ~np.isfinite(np.asarray(features)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{name} has NaN or infinite values in {int(bad.sum())} rows, first in row {row}; "
            "remove or repair these rows."
        )


def _checked(points: Array, references: Array, num_neighbors: int) -> tuple[Array, Array]:
    points, references = (
        _near_work(given, np.float32, points, references) for given in (points, references)
    )
    if points.ndim != 2 or references.ndim != 2 or points.shape[1] != references.shape[1]:
        raise ValueError(
            f"Expected points [n, f] and references [s, f] of one width, got {points.shape} and "
            f"{references.shape}; "
            "encode both with the same representation."
        )
    if not points.shape[1]:
        raise ValueError("Expected at least one feature, got points and references without any.")
    if not 1 <= num_neighbors <= len(references):
        raise ValueError(
            "Expected 1 <= num_neighbors <= number of references, got "
            f"num_neighbors={num_neighbors} with {len(references)} references; "
            "use fewer neighbors or more references."
        )
    return points, references


def _near_work(given: Any, dtype: Any, *others: Array) -> Array:
    """Return an array where its blocks are cheap to take.

    That is the host, unless an accelerator has the work or JAX traces it or the others.
    """
    traced = any(isinstance(array, jax.core.Tracer) for array in (given, *others))
    if traced or jax.default_backend() != "cpu":
        return jnp.asarray(given, dtype)
    return np.asarray(given, dtype)


def _check_found(least: Sequence[Array], points: Array, references: Array) -> None:
    """Raise ValueError if the least index of a block is negative: a record has no neighbors."""
    if any(isinstance(index, jax.core.Tracer) for index in least):
        return
    if any(int(index) < 0 for index in least):
        check_finite("points", points)
        check_finite("references", references)
        raise ValueError(
            "Expected features whose squared distances fit float32, got larger ones; scale them."
        )


def _native(
    points: Array, references: Array, num_neighbors: int, metric: Metric
) -> Callable[[Any, int], Any]:
    """Return the native kernel as a function of points `[n, f]` and a number of threads.

    It returns the indices `[n, k]`. A traced function has XLA's threads instead.
    """
    cosine = metric == "cosine"
    rows = _unit(jnp.asarray(references, jnp.float32), 1) if cosine else references
    if isinstance(points, np.ndarray):
        return native.References(np.asarray(rows), num_neighbors, cosine=cosine).nearest
    given = jnp.asarray(rows, jnp.float32)
    return lambda block, _: native.nearest(block, given, num_neighbors, cosine=cosine)


def _finder(
    points: Array, references: Array, how: How, metric: Metric
) -> Callable[[int, int, int], tuple[Array, Array]]:
    """Return the function that solves a block.

    The function takes the first row, the row after the last, and the size that other blocks have.
    It returns the indices `[size or fewer, k]`, and the least of them.
    """
    if how.implementation == "native":
        solve = _native(points, references, how.num_neighbors, metric=metric)

        def find(start: int, stop: int, size: int) -> tuple[Array, Array]:
            index = solve(points[start:stop], 1)
            return index, index.min(initial=0)

        return find
    rows = jnp.asarray(references, jnp.float32)
    if metric == "cosine":
        rows = _unit(rows, 1)
    ready: References = assignment.prepare(rows, how.products)

    def find_by_xla(start: int, stop: int, size: int) -> tuple[Array, Array]:
        block = _filled(points, start, stop, size=size, mode="edge")
        index, least = _nearest(block, ready, how=how, metric=metric)
        return index, least

    return find_by_xla


def _how(
    points: Array,
    references: Array,
    num_neighbors: int,
    implementation: kernels.Implementation | None,
) -> How:
    platform = jax.default_backend()
    # Small problems: exact differences cost less than the compilation of products and candidates.
    few = math.prod(points.shape) * len(references) <= FEW_DIFFERENCES
    many = assignment.num_candidates(num_neighbors) > kernels.MOST_KEYS
    if implementation is None and platform != "cpu" and (few or many):
        implementation = "xla"
    implementation = kernels.chosen(implementation, _kernel_agrees, native.agrees)
    tile, again = (TILE, AGAIN) if platform == "cpu" else (LARGE_TILE, LARGE_AGAIN)
    if num_neighbors >= assignment.UNROLLED:  # the first stage gathers the candidates' features
        tile = min(tile, LARGE_AGAIN)
    products = () if few else _products(platform, len(references))
    return How(num_neighbors, products, implementation, tile=tile, again=again)


def _products(platform: str, num_references: int) -> tuple[assignment.Product, ...]:
    """Return the products of `assignment.How`."""
    if platform != "cpu":
        return ("bfloat16x3",)
    # References of a larger set lie closer together, and bfloat16 would decide too few points.
    some = FEWEST_FOR_HALVES <= num_references <= assignment.LARGEST_GROUP
    return ("bfloat16", "float32") if some and multiplies_halves() else ("float32",)


def _kernel_agrees() -> bool:
    """Compare the kernel with XLA, bit by bit, in one group of references and in two."""
    rng = np.random.default_rng(0)
    for count in (300, assignment.LARGEST_GROUP + 100):
        points = rng.standard_normal((1000, 70), np.float32)
        references = rng.standard_normal((count, 70), np.float32)
        pallas, xla = (
            nearest(points, references, 4, implementation=form) for form in ("pallas", "xla")
        )
        if not np.array_equal(pallas, xla):
            return False
    return True


@functools.cache
def multiplies_halves() -> bool:
    """Return whether this CPU's bfloat16 products are faster than its float32 products.

    They are with matrix units (AMX). With AVX512-BF16 alone, XLA's took 1.4 to 1.7 times as long.
    """
    with contextlib.suppress(OSError):
        return "amx_bf16" in Path("/proc/cpuinfo").read_text().split()
    return False


def _over_blocks(run: Callable[[int, int, int], _T], points: Array) -> Iterator[_T]:
    """Run blocks of the points, side by side on the cores of a CPU.

    XLA alone would use the cores only within single products. An accelerator runs all points as one
    program, because several would wait for the host in between.

    Args:
      run: Function called as `run(start, stop, size)`, on points filled up to `size`.
      points: `[n, f]`.

    Yields:
      The result of each block, in order.
    """
    n = len(points)
    if not isinstance(points, np.ndarray):
        yield run(0, n, n)
        return
    # Halved until most of a block holds points: the rest of it is work for nothing.
    size = _block(points.shape[1])
    while size >= 2 * max(n, SMALLEST_BLOCK):
        size //= 2
    blocks = [(start, min(start + size, n), size) for start in range(0, max(n, 1), size)]
    yield jax.device_get(run(*blocks[0]))  # compiles, once for all threads
    with ThreadPoolExecutor(num_cores()) as pool:
        yield from pool.map(lambda block: jax.device_get(run(*block)), blocks[1:])


def _block(width: int) -> int:
    """Return the number of points that a CPU takes at a time, a power of two."""
    size = LARGEST_BLOCK
    while size > BLOCK and 4 * size * width > BLOCK_BYTES:
        size //= 2
    return size


def _filled(rows: Any, start: int, stop: int, size: int, mode: Any, **fill: Any) -> Any:
    """Return rows `start` to `stop`, filled up to `size` rows."""
    if size == len(rows):
        return rows
    block = rows[start:stop]
    if len(block) == size:
        return block
    widths = [(0, size - len(block)), *[(0, 0)] * (rows.ndim - 1)]
    return np.pad(block, widths, mode if len(block) else "constant", **fill)


def _joined(blocks: Sequence[Array], n: int) -> jax.Array:
    """Return the first n rows of the blocks of `_over_blocks`."""
    if isinstance(blocks[0], np.ndarray):
        joined = np.concatenate(blocks)[:n]
        return jnp.asarray(joined, joined.dtype)
    return jnp.asarray(blocks[0])


@functools.partial(jax.jit, static_argnames=("how", "metric"))
def _nearest(
    points: jax.Array, references: References, how: How, metric: Metric
) -> tuple[jax.Array, jax.Array]:
    """Return the indices `[n, k]` and the least of them."""
    points = _unit(points, 0) if metric == "cosine" else points
    index = assignment.solve(points, references, how)
    return index, jnp.min(index, initial=0)


@functools.partial(jax.jit, static_argnames="metric")
def _distances(
    points: jax.Array, references: jax.Array, index: jax.Array, metric: Metric
) -> jax.Array:
    if metric == "cosine":
        unit = _unit(points, 0), _unit(references, 1)
        return assignment.distances(*unit, index) / 2
    return assignment.distances(points, references, index)


@functools.partial(jax.jit, static_argnames=("num_queries", "num_classes"))
def _votes(index: jax.Array, labels: jax.Array, num_queries: int, num_classes: int) -> jax.Array:
    cells = bsvs.cells(index, labels, num_classes)
    votes: jax.Array = bsvs.sum_votes(cells, num_queries * num_classes)
    return votes


def _unit(vectors: Any, side: int) -> Any:
    """Scale vectors `[n, f]` to length 1 and add two columns: `[n, f + 2]`.

    1 - cosine is half the squared distance of the results. A zero vector becomes one at a right
    angle to all others, including those of the other side. Each row depends on its own vector
    alone, bit for bit.
    """
    xp = np if isinstance(vectors, np.ndarray) else jnp
    # |u - v|² / 2 = 1 - u·v for unit vectors u and v.
    scale = xp.max(xp.abs(vectors), axis=1, keepdims=True)
    zero = (scale == 0).astype(xp.float32)
    with np.errstate(invalid="ignore"):  # infinities become NaN, which has no neighbors
        vectors = vectors / (scale + zero)  # keeps the squares within float32's range
    # A zero vector is (0, 1, 0) among points and (0, 0, 1) among references: squared distance 2 to
    # every unit vector and to each other, which is cosine distance 1.
    sides = [zero, xp.zeros_like(zero)]
    return xp.concatenate([vectors / (_length(vectors) + zero), sides[side], sides[1 - side]], 1)


def _length(vectors: Any) -> Any:
    """Return the lengths `[n, 1]` of float32 vectors `[n, f]`, each by itself.

    `sum` adds in an order that depends on the number of rows in XLA, and on the order of an array
    in memory in NumPy. Here halves are added, until one column is left. The squares are exact in
    float64, so that it does not matter where a product and a sum become one instruction.
    """
    if isinstance(vectors, np.ndarray):
        exact = np.ascontiguousarray(vectors, np.float64)
        return np.sqrt((exact**2).sum(axis=1, keepdims=True)).astype(np.float32)
    with jax.enable_x64(True):
        square: jax.Array = vectors.astype(jnp.float64) ** 2
        while square.shape[1] > 1:
            half = square.shape[1] // 2
            pairs = square[:, :half] + square[:, half : 2 * half]
            square = jnp.concatenate([pairs, square[:, 2 * half :]], axis=1)
        return jnp.sqrt(square).astype(jnp.float32)

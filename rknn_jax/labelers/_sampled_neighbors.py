"""Neighbors of Private-kNN: the k nearest references of each point in a fresh Poisson sample.

Each point has its own sample for each step. Every reference is in a sample with the same
probability g, independently. Drawing n coins for each sample would cost more than the distances. So
there are two cheaper ways:

- Visit the references from the nearest one on, with a coin for each, until k have come up. This
  takes about k/g coins, and one search for all steps.
- If that exceeds the gn members of a sample, draw the sample first. The gaps between its members
  are geometric.

The remaining work is one matrix product, streamed over blocks of points:

    distance up to |q|² = |x|² - 2<q, x> = <(q, 1), (-2x, |x|²)>

in float32, both sides centered on the mean of the points. On a CPU, the native kernel of
`kernels.native.nearest` finds those that get coins. It computes a mean and scales from all
references, but they decide only how soon it is done: the order that it proves is float64's.

A reference's distance must depend on itself and the points alone, and ties on its
place alone. Then one more reference in a sample takes one place, and pushes at most one other out.
That bounds the sensitivity. The rounding of a matrix product depends on its shape, so references
are multiplied `TILE` at a time, whatever their number.

**Persons.** If persons are sampled in place of references, a person in a sample stands by the one
reference of that person that is nearest to the point. That reference and its distance depend on the
point and on that person alone. So the samples are those of one reference for each person, and the
bound on the sensitivity holds for a person with any number of references.

References: Zhu, Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer
Vision", 2020, section 3; Fan, Muller & Rezucha, "Development of Sampling Plans by Using Sequential
(Item by Item) Selection Techniques", 1962 (gaps).
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import kernels
from rknn_jax._internal.cores import num_cores
from rknn_jax.kernels.native import nearest as native
from rknn_jax.neighbors import check_finite
from rknn_jax.types import Array

LARGEST_TILE = 2**26
"""Number of distances that a thread holds at a time."""

LARGEST_BLOCK = 128
"""Number of points that a thread takes at a time, at least 2.

A single point is rounded in another way. A product with more points is no faster.
"""

NATIVE_BLOCK = 256
"""Number of points that the native kernel takes at a time, which pass all references together."""

TILE = 1024
"""Number of references in a product. Padding of the last tile has infinite distance."""

SMALLEST_PROB = 1e-4
"""Least sampling probability. float32's coins are exact to 2^-23, a thousandth of it."""

TAIL = 8.0
"""Standard deviations of a sample's size that memory is kept for; more has probability 1e-15."""

RUN = 8
FEWEST_RUNS = 3
"""Number of values in a run, and least number of runs for each neighbor for which runs pay.

A run is represented by its minimum.
"""

THREADS = 2
"""Number of threads: one picks neighbors while another multiplies."""


def nearest_in_samples(
    key: jax.Array,
    points: Array,
    references: Array,
    num_neighbors: int,
    sampling_prob: float,
    num_samples: int = 1,
    person: np.ndarray | None = None,
    *,
    implementation: kernels.Implementation | None = None,
) -> np.ndarray:
    """Find the nearest references of every point in Poisson samples of its own.

    Args:
      key: Random key, which is consumed. Point i draws from `fold_in(key, i)`, so the result does
        not depend on the size of a block.
      points: float32 `[s, f]`.
      references: float32 `[n, f]`. A row that is not finite is as far away as a row can be.
      num_neighbors: Number of neighbors k >= 1.
      sampling_prob: Probability of each reference to be in a sample, from `SMALLEST_PROB` to 1,
        exact to float32's 2^-23.
      num_samples: Number of independent samples of each point. Defaults to 1.
      person: Number of each reference's person, int `[n]`, from 0 on without gaps. If given,
        persons are sampled, and each stands by the nearest reference. Defaults to None.
      implementation: Implementation of the search for references that get coins, `native` or
        `xla`. Defaults to native on a CPU that has it.

    Returns:
      int32 `[s, num_samples, k]`, indices of references, nearest first, ties by the lowest index or
      person; -1 at the end if a sample holds fewer than k.

    Raises:
      ValueError: If k < 1, a probability is out of range, features differ in width, or points are
        not finite.
    """
    points = jnp.asarray(points, jnp.float32)
    references = _far_if_not_finite(references)
    if (
        points.ndim != 2
        or references.ndim != 2
        or points.shape[1] != references.shape[1]
        or not references.shape[1]
    ):
        raise ValueError(
            f"Expected points [s, f > 0] and references [n, f], got shapes {points.shape} and "
            f"{references.shape}."
        )
    if num_neighbors < 1 or num_samples < 1:
        raise ValueError(
            f"Expected num_neighbors and num_samples >= 1, got {num_neighbors} and {num_samples}."
        )
    if not SMALLEST_PROB <= sampling_prob <= 1:
        raise ValueError(
            f"Expected {SMALLEST_PROB} <= sampling_prob <= 1, got sampling_prob={sampling_prob}; "
            "1 samples every record."
        )
    check_finite("points", points)
    if not len(references):
        return np.full((len(points), num_samples, num_neighbors), -1, np.int32)
    block = max(2, min(LARGEST_BLOCK, LARGEST_TILE // max(len(references), TILE), len(points)))
    num_units = len(references) if person is None else int(np.max(person)) + 1
    room = sample_room(num_units, sampling_prob, num_neighbors)
    reach = coin_reach(num_units, sampling_prob, num_neighbors)
    by_coins = num_neighbors <= reach <= room
    if (
        by_coins
        and person is None
        and kernels.chosen(implementation, None, native.agrees) == "native"
    ):
        prepared = native.References(np.asarray(references), reach, overflow=True)
        block = NATIVE_BLOCK
        given = np.pad(np.asarray(points), ((0, -len(points) % block), (0, 0)))

        def of_block(start: int) -> np.ndarray:
            return prepared.nearest(given[start : start + block])

    else:
        factors = _augmented(points, references)
        number = None if person is None else jnp.asarray(person, jnp.int32)
        padded = jnp.pad(points, ((0, -len(points) % block), (0, 0)))
        sizes = (num_neighbors, num_samples, room, num_units)

        def of_block(start: int) -> np.ndarray:
            points = jax.lax.dynamic_slice_in_dim(padded, start, block)
            if by_coins:
                return np.asarray(_in_order(*factors, points, reach, num_units, number))
            return np.asarray(
                _in_samples(key, *factors, points, start, sizes, sampling_prob, number)
            )

    def sampled(start: int) -> np.ndarray:
        found = of_block(start)
        if not by_coins:
            return found
        up = _coins(key, start + jnp.arange(block), (num_samples, reach), sampling_prob)
        return _first_up(found, np.asarray(up), num_neighbors)

    with ThreadPoolExecutor(max(THREADS, num_cores())) as pool:
        found = list(pool.map(sampled, range(0, len(points), block)))
    return np.concatenate([np.zeros((0, num_samples, num_neighbors), np.int32), *found])[
        : len(points)
    ]


def sample_room(num_references: int, sampling_prob: float, num_neighbors: int) -> int:
    """Return the number of members of a sample that are drawn.

    It is `TAIL` standard deviations above the expected size of a sample.
    """
    expected = num_references * sampling_prob
    room = math.ceil(expected + TAIL * math.sqrt(expected * (1 - sampling_prob)) + TAIL)
    return max(min(room, num_references), num_neighbors)


def coin_reach(num_references: int, sampling_prob: float, num_neighbors: int) -> int:
    """Return the number of nearest references that get a coin.

    It is `TAIL` standard deviations above the expected number of coins until k have come up.
    """
    wanted = (
        num_neighbors
        + TAIL * math.sqrt(num_neighbors * (1 - sampling_prob))
        + (TAIL**2 if sampling_prob < 1 else 0)
    )
    return min(math.ceil(wanted / sampling_prob), num_references)


def poisson_sample(
    key: jax.Array, num_references: int, sampling_prob: float, room: int
) -> jax.Array:
    """Draw a Poisson sample as ascending indices, int32 `[room]`. `key` is consumed.

    `num_references` fills the places after its end.
    """
    gaps = jnp.minimum(
        jax.random.geometric(key, jnp.float32(sampling_prob), (room,), dtype=jnp.int32),
        num_references + 1,
    )
    return jnp.minimum(jnp.cumsum(gaps) - 1, num_references)


def _far_if_not_finite(references: Array) -> jax.Array:
    """Return references as float32, with the largest number in place of rows that are not finite.

    An error would tell that one private record.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rows = jnp.asarray(np.asarray(references), jnp.float32)
    finite = jnp.isfinite(rows).all(axis=-1, keepdims=True)
    return jnp.where(finite, rows, np.finfo(np.float32).max)


@jax.jit
def _augmented(points: jax.Array, references: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the center `[1, f]`, and the references' factor, `[num_tiles, TILE, f + 1]`."""
    # With the mean of the references, one of them would change the rounding of all distances.
    centre = jnp.mean(points, axis=0, keepdims=True)
    # At least two tiles, because a loop of one tile is compiled without the loop.
    rest = -len(references) % TILE if len(references) > TILE else 2 * TILE - len(references)
    tiles = jnp.pad(references, ((0, rest), (0, 0))).reshape(-1, TILE, references.shape[1])
    filled = jnp.arange(len(tiles) * TILE).reshape(-1, TILE) < len(references)

    def of_tile(tile: tuple[jax.Array, jax.Array]) -> jax.Array:
        centred = tile[0] - centre
        there = tile[1][:, None]
        return jnp.concatenate(
            [
                jnp.where(there, -2 * centred, 0),
                jnp.where(there, jnp.sum(centred**2, axis=1, keepdims=True), jnp.inf),
            ],
            axis=1,
        )

    return centre, jax.lax.map(of_tile, (tiles, filled))


@functools.partial(jax.jit, static_argnames=("reach", "num_units"))
def _in_order(
    centre: jax.Array,
    augmented: jax.Array,
    points: jax.Array,
    reach: int,
    num_units: int,
    person: jax.Array | None,
) -> jax.Array:
    """Return the references of a block of points from the nearest one on, int32 `[b, reach]`."""
    distances, own = _distances(centre, augmented, points, num_units=num_units, person=person)
    nearest: jax.Array = jax.lax.map(lambda row: _smallest(row, reach), distances)
    return nearest if own is None else jnp.take_along_axis(own, nearest, 1)


@functools.partial(jax.jit, static_argnames=("sizes", "sampling_prob"))
def _in_samples(
    key: jax.Array,
    centre: jax.Array,
    augmented: jax.Array,
    points: jax.Array,
    first: Any,
    sizes: tuple[int, int, int, int],
    sampling_prob: float,
    person: jax.Array | None,
) -> jax.Array:
    """Return the nearest of samples that are drawn first, int32 `[b, num_samples, k]`."""
    num_neighbors, num_samples, room, num_units = sizes
    distances, own = _distances(centre, augmented, points, num_units=num_units, person=person)

    def of_point(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        distances, number = row
        keys = jax.random.split(jax.random.fold_in(key, number), num_samples)

        def of_sample(key: jax.Array) -> jax.Array:
            index = poisson_sample(key, num_units, sampling_prob, room)
            chosen = index[
                _smallest(distances.at[index].get(mode="fill", fill_value=jnp.inf), num_neighbors)
            ]
            return jnp.where(chosen < num_units, chosen, -1)

        samples: jax.Array = jax.lax.map(of_sample, keys)
        return samples

    found: jax.Array = jax.lax.map(of_point, (distances, first + jnp.arange(len(points))))
    if own is None:
        return found
    return jnp.where(found < 0, -1, jnp.take_along_axis(own[:, None], jnp.maximum(found, 0), 2))


def _distances(
    centre: jax.Array,
    augmented: jax.Array,
    points: jax.Array,
    num_units: int,
    person: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """Return distances to references, or to persons and the reference that each stands by."""
    given = jnp.pad(points - centre, ((0, 0), (0, 1)), constant_values=1)
    products = jax.lax.map(
        lambda tile: jnp.matmul(given, tile.T, precision=jax.lax.Precision.HIGHEST), augmented
    )
    # A distance that overflows may be NaN, and a search by runs would lose its whole run.
    products = jnp.where(jnp.isnan(products), jnp.inf, products)
    distances = jnp.moveaxis(products, 0, 1).reshape(len(points), -1)
    if person is None:
        return distances, None
    return _nearest_of_each(distances[:, : len(person)], person, num_units)


@functools.partial(jax.jit, static_argnames=("coins", "sampling_prob"))
def _coins(
    key: jax.Array, numbers: jax.Array, coins: tuple[int, int], sampling_prob: float
) -> jax.Array:
    """Toss the coins of a block of points, bool `[b, num_samples, reach]`.

    Args:
      key: Key of all points.
      numbers: Numbers of the points, int32 `[b]`.
      coins: `(num_samples, reach)`, coins of a point.
      sampling_prob: Probability of a coin.
    """
    num_samples, reach = coins

    def of_point(number: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.fold_in(key, number), num_samples)
        return jax.vmap(
            lambda key: jax.random.bernoulli(key, jnp.float32(sampling_prob), (reach,))
        )(keys)

    tossed: jax.Array = jax.lax.map(of_point, numbers)
    return tossed


def _first_up(nearest: np.ndarray, up: np.ndarray, num_neighbors: int) -> np.ndarray:
    """Return the first references whose coins come up, int32 `[b, num_samples, k]`, or -1.

    Args:
      nearest: int32 `[b, reach]`, references from the nearest one on.
      up: bool `[b, num_samples, reach]`.
      num_neighbors: Number of neighbors k.
    """
    num_points, num_samples, reach = up.shape
    row, place = np.divmod(np.flatnonzero(up), reach)
    before = np.arange(len(row)) - np.searchsorted(row, row)
    first = before < num_neighbors
    row, place, before = row[first], place[first], before[first]
    found = np.full((num_points * num_samples, num_neighbors), -1, np.int32)
    found[row, before] = nearest[row // num_samples, place]
    return found.reshape(num_points, num_samples, num_neighbors)


def _nearest_of_each(
    distances: jax.Array, person: jax.Array, num_persons: int
) -> tuple[jax.Array, jax.Array]:
    """Return each person's least distance, `[b, num_persons]`, and the first reference that has it.

    Args:
      distances: float32 `[b, n]`.
      person: int32 `[n]`, number of each reference's person.
      num_persons: Number of persons.
    """
    columns = distances.T
    least = jax.ops.segment_min(columns, person, num_persons)
    place = jnp.arange(len(person), dtype=jnp.int32)[:, None]
    tied = jnp.where(columns == least[person], place, len(person))
    return least.T, jax.ops.segment_min(tied, person, num_persons).T


def _smallest(values: jax.Array, count: int) -> jax.Array:
    """Return the places of the smallest values in order, int32 `[count]`, ties by the lowest place.

    If there are many values, the smallest lie in the runs whose minima are the smallest. Equal
    minima go to the first run, so ties do too. The result is the same as by one sort.
    """
    if len(values) < FEWEST_RUNS * RUN * count:
        return jax.lax.top_k(-values, count)[1]
    runs = jnp.pad(values, (0, -len(values) % RUN), constant_values=jnp.inf).reshape(-1, RUN)
    chosen = jnp.sort(jax.lax.top_k(-jnp.min(runs, axis=1), count)[1])
    best = jax.lax.top_k(-runs[chosen].ravel(), count)[1]
    return (chosen[best // RUN] * RUN + best % RUN).astype(jnp.int32)

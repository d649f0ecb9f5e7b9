"""The k nearest references of every point among a fresh Poisson sample of them: the neighbours of Private-kNN.

Every point, and every step taken for it, looks at a sample of its own, in which each reference takes part with the same probability,
independently. Samples are never drawn as n coins: the gaps between the members of a Poisson sample are geometric, so a sample of 3% costs
3% of the draws, and k members are chosen among it alone. What is left is one matrix product, streamed over blocks of points.

    distance up to |q|² = |x|² - 2<q, x>    of float32, both sides centred on the references' mean

A neighbour's place in the list may depend on its own distance and on nothing else of the others, which is what bounds the sensitivity: one
reference more in a sample takes one place, and pushes at most one other out.

References: Zhu, Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer Vision", 2020, section 3;
Fan, Muller & Rezucha, "Development of Sampling Plans by Using Sequential (Item by Item) Selection Techniques", 1962 (gaps).
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.neighbors import check_finite
from rknn_jax.types import Array

LARGEST_TILE = 2**24
"""Distances that a thread holds at a time."""

LARGEST_BLOCK = 128
"""Points that a thread takes at a time; a product with more of them is no faster."""

TAIL = 8.0
"""Standard deviations of a sample's size that room is kept for; more has probability 1e-15."""

THREADS = 2
"""While one picks neighbours another multiplies."""


def nearest_in_samples(
    key: jax.Array, points: Array, references: Array, num_neighbors: int, sampling_prob: float, num_samples: int = 1
) -> np.ndarray:
    """Find the nearest references of every point in Poisson samples of its own.

    Args:
      key: is consumed. Point i draws from `fold_in(key, i)`, so the result does not depend on the size of a block.
      points: float32 `[s, f]`.
      references: float32 `[n, f]`.
      num_neighbors: k >= 1.
      sampling_prob: with which each reference is in a sample, in (0, 1], exact to float32's 2^-23.
      num_samples: independent samples of each point.

    Returns:
      int32 `[s, num_samples, k]`, nearest first, ties by the lowest index; -1 at the end where a sample holds fewer than k.

    Raises:
      ValueError: for k < 1, a probability outside (0, 1], features of different width, no reference, or features that are not finite.
    """
    points, references = jnp.asarray(points, jnp.float32), jnp.asarray(references, jnp.float32)
    if points.ndim != 2 or references.ndim != 2 or points.shape[1] != references.shape[1] or not len(references):
        raise ValueError(f"Expected points [s, f] and references [n > 0, f], got shapes {points.shape} and {references.shape}.")
    if num_neighbors < 1 or num_samples < 1:
        raise ValueError(f"Expected num_neighbors and num_samples >= 1, got {num_neighbors} and {num_samples}.")
    if not 0 < sampling_prob <= 1:
        raise ValueError(f"Expected 0 < sampling_prob <= 1, got sampling_prob={sampling_prob}; 1 samples every record.")
    check_finite("points", points)
    check_finite("references", references)
    block = max(1, min(LARGEST_BLOCK, LARGEST_TILE // len(references), len(points)))
    room = sample_room(len(references), sampling_prob, num_neighbors)
    solve = functools.partial(_solve, key, *_centred(references), sizes=(num_neighbors, room, num_samples), sampling_prob=sampling_prob)
    padded = jnp.pad(points, ((0, -len(points) % block), (0, 0)))

    def of_block(start: int) -> np.ndarray:
        return np.asarray(solve(jax.lax.dynamic_slice_in_dim(padded, start, block), start))

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(of_block, range(0, len(points), block)))
    return np.concatenate([np.zeros((0, num_samples, num_neighbors), np.int32), *found])[: len(points)]


def sample_room(num_references: int, sampling_prob: float, num_neighbors: int) -> int:
    """Return how many members of a sample are drawn: `TAIL` standard deviations more than it is expected to have."""
    expected = num_references * sampling_prob
    room = math.ceil(expected + TAIL * math.sqrt(expected * (1 - sampling_prob)) + TAIL)
    return max(min(room, num_references), num_neighbors)


def poisson_sample(key: jax.Array, num_references: int, sampling_prob: float, room: int) -> jax.Array:
    """Draw a Poisson sample as ascending indices, int32 `[room]`; `num_references` stands behind its end. `key` is consumed."""
    gaps = jnp.minimum(jax.random.geometric(key, jnp.float32(sampling_prob), (room,), dtype=jnp.int32), num_references + 1)
    return jnp.minimum(jnp.cumsum(gaps) - 1, num_references)


@jax.jit
def _centred(references: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    centre = jnp.mean(references, axis=0, keepdims=True)
    centred = references - centre
    return centre, centred, jnp.sum(centred**2, axis=1)


@functools.partial(jax.jit, static_argnames=("sizes", "sampling_prob"))
def _solve(
    key: jax.Array,
    centre: jax.Array,
    centred: jax.Array,
    sq_norms: jax.Array,
    points: jax.Array,
    first: Any,
    sizes: tuple[int, int, int],
    sampling_prob: float,
) -> jax.Array:
    num_neighbors, room, num_samples = sizes
    products = jnp.matmul(points - centre, centred.T, precision=jax.lax.Precision.HIGHEST)

    def of_point(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        products, number = row

        def of_sample(key: jax.Array) -> jax.Array:
            index = poisson_sample(key, len(centred), sampling_prob, room)
            distance = sq_norms.at[index].get(mode="fill", fill_value=jnp.inf) - 2 * products.at[index].get(mode="fill", fill_value=0)
            chosen = index[jax.lax.top_k(-distance, num_neighbors)[1]]
            return jnp.where(chosen < len(centred), chosen, -1)

        return jax.lax.map(of_sample, jax.random.split(jax.random.fold_in(key, number), num_samples))

    return jax.lax.map(of_point, (products, first + jnp.arange(len(points))))

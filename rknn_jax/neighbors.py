"""Distances, and the k nearest references of every point, in memory that does not grow with their product.

Reverse k-NN labeling and k-NN are one function with its arguments swapped: `nearest(private, queries, k)` connects every private record
to its k nearest queries, `nearest(queries, private, k)` every query to its k nearest records. Points are streamed in blocks, so the
`[num_points, num_references]` matrix never exists.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from rknn_jax.types import Array

Metric = Literal["sqeuclidean", "cosine"]

BLOCK_SIZE = 256  # points at a time: a larger tile of distances leaves the cache of a CPU core


def pairwise_sq_distances(points: Array, references: Array) -> jax.Array:
    """Return squared Euclidean distances.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`.

    Returns:
      float32 `[n, s]`, at least 0. Both sides are centred on the references' mean first, which keeps |x|^2 - 2<x,q> + |q|^2 from
      cancelling where features sit far from the origin.
    """
    centre = jnp.mean(references, axis=0, keepdims=True)
    points, references = points - centre, references - centre
    products = jnp.matmul(points, references.T, precision=jax.lax.Precision.HIGHEST)
    distances = jnp.sum(points**2, axis=1, keepdims=True) - 2 * products + jnp.sum(references**2, axis=1)[None]
    return jnp.maximum(distances, 0)


def pairwise_cosine_distances(points: Array, references: Array) -> jax.Array:
    """Return 1 - cosine similarity, float32 `[n, s]` in [0, 2]. A zero vector is at distance 1 from everything."""
    return jnp.clip(1 - jnp.matmul(_unit(points), _unit(references).T, precision=jax.lax.Precision.HIGHEST), 0, 2)


def nearest(points: Array, references: Array, num_neighbors: int, *, metric: Metric = "sqeuclidean") -> tuple[jax.Array, jax.Array]:
    """Find the nearest references of every point.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`.
      num_neighbors: k, between 1 and s.
      metric: squared Euclidean or cosine distance.

    Returns:
      `(index, distance)`, int32 and float32 `[n, k]`, nearest first; ties go to the lowest index.

    Raises:
      ValueError: for k outside [1, s], features of different width, or fewer than two dimensions.
    """
    points, references = jnp.asarray(points, jnp.float32), jnp.asarray(references, jnp.float32)
    if points.ndim != 2 or references.ndim != 2 or points.shape[1] != references.shape[1]:
        raise ValueError(
            f"Expected points [n, f] and references [s, f] of one width, got {points.shape} and {references.shape}; "
            "encode both with the same representation."
        )
    if not 1 <= num_neighbors <= len(references):
        raise ValueError(
            f"Expected 1 <= num_neighbors <= number of references, got num_neighbors={num_neighbors} with {len(references)} references; "
            "use fewer neighbors or more references."
        )
    return _nearest(points, references, num_neighbors, metric)


def self_graph(
    features: Array, num_neighbors: int = 10, tuning_neighbor: int = 7, *, metric: Metric = "sqeuclidean"
) -> scipy.sparse.csr_matrix:
    """Join each of m points `[m, f]` to its nearest others by `neighbor_graph`; fewer points have fewer neighbours."""
    count = min(max(num_neighbors, tuning_neighbor) + 1, len(features))
    index, distance = without_itself(*map(np.asarray, nearest(features, features, count, metric=metric)))
    scale = np.sqrt(distance[:, min(tuning_neighbor, count - 1) - 1]) + 1e-12
    return neighbor_graph(index[:, :num_neighbors], distance[:, :num_neighbors], scale)


def without_itself(index: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop each of m points from its own neighbours `[m, k]`, or the last one where a duplicate took its place; `[m, k - 1]`."""
    own = index == np.arange(len(index))[:, None]
    drop = np.where(own.any(axis=1), own.argmax(axis=1), index.shape[1] - 1)
    keep = np.arange(index.shape[1])[None] != drop[:, None]
    return index[keep].reshape(len(index), -1), distance[keep].reshape(len(index), -1)


def neighbor_graph(index: Array, distance: Array, scale: Array) -> scipy.sparse.csr_matrix:
    """Join every point to its nearest ones with self-tuned weights, symmetrically.

    Args:
      index: int32 `[m, k]`, each point's neighbours, without itself.
      distance: float32 `[m, k]`, squared distances.
      scale: float32 `[m]`, each point's own distance scale, say to its 7th neighbour.

    Returns:
      `[m, m]`, the mean of W and its transpose, with W_ij = exp(-d²_ij / (scale_i·scale_j)).

    Reference: Zelnik-Manor & Perona, "Self-Tuning Spectral Clustering", 2004.
    """
    index, distance, scale = np.asarray(index), np.asarray(distance, np.float64), np.asarray(scale, np.float64)
    weight = np.exp(-distance / (scale[:, None] * scale[index]))
    row = np.repeat(np.arange(len(index)), index.shape[1])
    graph = scipy.sparse.csr_matrix((weight.ravel(), (row, index.ravel())), shape=(len(index), len(index)))
    return (graph + graph.T) / 2


def check_finite(name: str, features: Array) -> None:
    """Raise ValueError, naming the first bad row, where `features` `[n, f]` hold NaN or infinity."""
    bad = ~np.isfinite(np.asarray(features)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{name} has NaN or infinite values in {int(bad.sum())} rows, first in row {row}; remove or repair these rows.")


@functools.partial(jax.jit, static_argnames=("num_neighbors", "metric"))
def _nearest(points: jax.Array, references: jax.Array, num_neighbors: int, metric: Metric) -> tuple[jax.Array, jax.Array]:
    distances = {"sqeuclidean": pairwise_sq_distances, "cosine": pairwise_cosine_distances}[metric]
    num_points = len(points)
    block = min(BLOCK_SIZE, num_points)

    def fill(i: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start = jnp.minimum(i * block, num_points - block)  # the last block overlaps its neighbour rather than being ragged
        tile = distances(jax.lax.dynamic_slice_in_dim(points, start, block), references)
        best = _smallest(tile, num_neighbors)
        return jax.tree.map(lambda full, part: jax.lax.dynamic_update_slice_in_dim(full, part, start, 0), found, best)

    empty = jnp.zeros((num_points, num_neighbors), jnp.int32), jnp.zeros((num_points, num_neighbors), jnp.float32)
    return jax.lax.fori_loop(0, -(-num_points // block) if num_points else 0, fill, empty)


def _smallest(distances: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    if count == 1:  # an arg min is several times faster than a sort
        index = jnp.argmin(distances, axis=1, keepdims=True).astype(jnp.int32)
        return index, jnp.take_along_axis(distances, index, axis=1)
    negative, index = jax.lax.top_k(-distances, count)
    return index.astype(jnp.int32), -negative


def _unit(vectors: Array) -> jax.Array:
    norm = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return jnp.asarray(vectors) / jnp.where(norm > 0, norm, 1)

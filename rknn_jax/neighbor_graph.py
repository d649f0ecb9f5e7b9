"""Neighbor graphs of public records, along which labels spread."""

import numpy as np
import scipy.sparse

from rknn_jax.neighbors import Metric, nearest
from rknn_jax.types import Array


def self_graph(
    features: Array,
    num_neighbors: int = 10,
    tuning_neighbor: int = 7,
    *,
    metric: Metric = "sqeuclidean",
) -> scipy.sparse.csr_matrix:
    """Join each of m points `[m, f]` to its nearest others by `neighbor_graph`.

    Fewer points than `num_neighbors` have fewer neighbors. Each point's scale is its distance to
    its `tuning_neighbor`-th neighbor.
    """
    count = min(max(num_neighbors, tuning_neighbor) + 1, len(features))
    index, distance = without_itself(
        *map(np.asarray, nearest(features, features, count, metric=metric))
    )
    scale = np.sqrt(distance[:, min(tuning_neighbor, count - 1) - 1]) + 1e-12
    return neighbor_graph(index[:, :num_neighbors], distance[:, :num_neighbors], scale)


def without_itself(index: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop each of m points from its own neighbors `[m, k]`; the result is `[m, k - 1]`.

    If a duplicate took a point's place, its last neighbor is dropped.
    """
    own = index == np.arange(len(index))[:, None]
    drop = np.where(own.any(axis=1), own.argmax(axis=1), index.shape[1] - 1)
    keep = np.arange(index.shape[1])[None] != drop[:, None]
    return index[keep].reshape(len(index), -1), distance[keep].reshape(len(index), -1)


def neighbor_graph(index: Array, distance: Array, scale: Array) -> scipy.sparse.csr_matrix:
    """Join every point to its nearest ones with self-tuned weights, symmetrically.

    Args:
      index: int32 `[m, k]`, each point's neighbors, without itself.
      distance: float32 `[m, k]`, squared distances.
      scale: float32 `[m]`, each point's own distance scale, such as its distance to its 7th
        neighbor.

    Returns:
      `[m, m]`, the mean of W and its transpose, with W_ij = exp(-d²_ij / (scale_i·scale_j)).

    Reference: Zelnik-Manor & Perona, "Self-Tuning Spectral Clustering", 2004.
    """
    index = np.asarray(index)
    distance = np.asarray(distance, np.float64)
    scale = np.asarray(scale, np.float64)
    weight = np.exp(-distance / (scale[:, None] * scale[index]))
    row = np.repeat(np.arange(len(index)), index.shape[1])
    graph = scipy.sparse.csr_matrix(
        (weight.ravel(), (row, index.ravel())), shape=(len(index), len(index))
    )
    return (graph + graph.T) / 2

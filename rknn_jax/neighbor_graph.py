"""Neighbor graphs of public records, along which labels spread.

All pairs of m records cost m² f operations. Above `LARGEST_EXACT` records, an inverted file
searches the records of the nearest cells alone, and a few true neighbors are missed.

Reference: Jégou, Douze & Schmid, "Product Quantization for Nearest Neighbor Search", 2011, for the
inverted file (IVF).
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse

from rknn_jax._internal import progress
from rknn_jax._internal.cores import num_cores, one_thread_for_products
from rknn_jax.neighbors import Metric, distances, nearest
from rknn_jax.types import Array

LARGEST_EXACT = 2**14
"""Most records whose neighbors are searched among all records."""

PROBES = 16
"""Cells of average size that are searched for each record, the nearest ones and its own first.

They hold 0.96 to 1 of the ten nearest neighbors of images and of groups, and fewer of pure noise in
many dimensions, where neighbors say little (`benchmarks/results/scale.json`).
"""

ROWS_AT_ONCE = 2**10
"""Records that are searched at once."""

ROWS_OF_CELL = 64
"""Records of each cell that train the inverted file."""


def neighbors_of_each(
    features: Array, count: int, *, metric: Metric = "sqeuclidean"
) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest records of every record, itself included; approximately if they are many.

    Args:
      features: float32 `[m, f]`.
      count: Number of neighbors, at most m.
      metric: Metric, as in `neighbors.nearest`. Defaults to squared Euclidean.

    Returns:
      `(index, distance)`, int32 and float32 `[m, count]`, nearest first.
    """
    if len(features) <= LARGEST_EXACT:
        near = nearest(features, features, count, metric=metric)
        return np.asarray(near), np.asarray(distances(features, features, near, metric=metric))
    rows = np.asarray(features, np.float32)
    if metric == "cosine":  # half the squared distance of unit vectors
        norm = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.asarray(rows / np.where(norm > 0, norm, 1), np.float32)
    index, distance = inverted_file(rows, count)
    return index, distance / 2 if metric == "cosine" else distance


def inverted_file(
    rows: np.ndarray, count: int, probes: int = PROBES
) -> tuple[np.ndarray, np.ndarray]:
    """Search every row's neighbors in the cells nearest to its own.

    There are sqrt(m) cells, the clusters of a sample of rows.

    Args:
      rows: float32 `[m, f]`.
      count: Number of neighbors.
      probes: Number of cells that are searched. Defaults to `PROBES`.

    Returns:
      `(index, distance)`, int32 and float32 `[m, count]` of squared distances, nearest first.
    """
    from sklearn.cluster import MiniBatchKMeans  # imported late: it takes over a second

    num_cells = int(len(rows) ** 0.5)
    sample = np.random.default_rng(0).choice(
        len(rows), min(len(rows), ROWS_OF_CELL * num_cells), replace=False
    )
    model = MiniBatchKMeans(num_cells, init="random", n_init=1, max_iter=10, random_state=0)
    centers = model.fit(rows[np.sort(sample)]).cluster_centers_.astype(np.float32)
    cell = model.predict(rows)
    apart = np.einsum("ij,ij->i", centers, centers)[None] - 2 * centers @ centers.T
    near = np.argsort(apart, axis=1, kind="stable")
    sizes = np.bincount(cell, minlength=num_cells)
    members = np.split(np.argsort(cell, kind="stable"), np.cumsum(sizes)[:-1])
    wanted = max(count, min(len(rows), probes * len(rows) // num_cells))
    sq_norms = np.einsum("ij,ij->i", rows, rows)
    index = np.empty((len(rows), count), np.int32)
    distance = np.empty((len(rows), count), np.float32)

    def search(number: int) -> None:
        own = members[number]
        if not len(own):
            return
        enough = int(np.searchsorted(np.cumsum(sizes[near[number]]), wanted)) + 1
        others = np.concatenate([members[each] for each in near[number, :enough]])
        others = others[:: -(-len(others) // (2 * wanted))]  # copies may crowd one cell
        for start in range(0, len(own), ROWS_AT_ONCE):
            some = own[start : start + ROWS_AT_ONCE]
            partial = sq_norms[others] - 2 * rows[some] @ rows[others].T
            chosen = np.argpartition(partial, count - 1, axis=1)[:, :count]
            found = np.take_along_axis(partial, chosen, axis=1) + sq_norms[some, None]
            order = np.argsort(found, axis=1, kind="stable")
            index[some] = others[np.take_along_axis(chosen, order, axis=1)]
            distance[some] = np.maximum(np.take_along_axis(found, order, axis=1), 0)

    # Each thread multiplies alone; BLAS would start threads of its own in each of them.
    with (
        progress.phase("joining neighbors", num_cells, "cells") as done,
        one_thread_for_products(),
        ThreadPoolExecutor(num_cores()) as pool,
    ):
        for _ in pool.map(search, range(num_cells)):
            done.advance()
    return index, distance


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
    index, distance = without_itself(*neighbors_of_each(features, count, metric=metric))
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

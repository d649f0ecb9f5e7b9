"""K-means by Lloyd's iterations from greedy k-means++ seeds.

The numbers drawn, the order of the steps and the rules of convergence are scikit-learn's, so that
the clusters are those of `sklearn.cluster.KMeans` of the same seed, up to rounding. Neighbors come
from `neighbors.nearest`, which takes a fraction of the time, and importing scikit-learn would take
longer than many a clustering.

References: Arthur & Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007; Lloyd,
"Least Squares Quantization in PCM", 1982.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse

from rknn_jax.neighbors import nearest

TOLERANCE = 1e-4
"""Squared shift of all centers together at which iterations end, in variances of a feature."""

ROWS_AT_ONCE = 2**14


class Clusters(NamedTuple):
    """Clusters of m rows.

    Attributes:
      centers: `[s, f]`, of the rows' type.
      labels: Number of each row's cluster, int32 `[m]`.
      inertia: Sum of the squared distances of the rows to their centers.
    """

    centers: np.ndarray
    labels: np.ndarray
    inertia: float


def fit(
    points: np.ndarray,
    num_clusters: int,
    seed: int,
    *,
    num_starts: int,
    max_iterations: int = 300,
    weights: np.ndarray | None = None,
) -> Clusters:
    """Cluster rows from several seedings, and keep the clusters of least inertia.

    Args:
      points: float32 or float64 `[m, f]`.
      num_clusters: Number of clusters s, at most m.
      seed: Seed of the seedings.
      num_starts: Number of seedings.
      max_iterations: Maximum number of iterations of each. Defaults to 300.
      weights: Weights of the rows, `[m]`. Defaults to ones.
    """
    rng = np.random.RandomState(seed)
    mean = points.mean(axis=0)
    centered = points - mean
    weights = np.asarray(np.ones(len(points)) if weights is None else weights, points.dtype)
    exact = centered.astype(np.float64)
    best = None
    for _ in range(num_starts):
        seeds = plus_plus(rng, exact, weights, num_clusters)
        found = _iterated(centered, weights, centered[seeds], max_iterations)
        if best is None or (
            found.inertia < best.inertia and not _same(found.labels, best.labels, num_clusters)
        ):
            best = found
    assert best is not None
    return best._replace(centers=best.centers + mean)


def fit_from(points: np.ndarray, centers: np.ndarray, max_iterations: int) -> Clusters:
    """Cluster rows `[m, f]`, starting with the given centers `[s, f]`."""
    mean = points.mean(axis=0)
    weights = np.ones(len(points), points.dtype)
    found = _iterated(points - mean, weights, centers - mean, max_iterations)
    return found._replace(centers=found.centers + mean)


def plus_plus(
    rng: np.random.RandomState, points: np.ndarray, weights: np.ndarray, num_clusters: int
) -> np.ndarray:
    """Choose seeds by greedy k-means++, the best of 2 + log(s) draws each.

    Args:
      rng: Generator.
      points: float64 `[m, f]`.
      weights: Weights of the rows, `[m]`, whose type is that of the distances.
      num_clusters: Number of seeds s.

    Returns:
      Numbers of rows, int64 `[s]`.
    """
    trials = 2 + int(np.log(num_clusters))
    sq_norms = np.einsum("ij,ij->i", points, points)[:, None]
    ones_column = np.ones_like(sq_norms)
    right = np.ascontiguousarray(np.hstack([points, sq_norms, ones_column]).T)

    def sq_distances(chosen: np.ndarray) -> np.ndarray:
        rows = np.hstack([-2 * points[chosen], ones_column[chosen], sq_norms[chosen]])
        rounded: np.ndarray = (rows @ right).astype(weights.dtype)
        np.maximum(rounded, 0, out=rounded)
        return rounded

    seeds = np.empty(num_clusters, np.int64)
    seeds[0] = rng.choice(len(points), p=weights / weights.sum())
    closest = sq_distances(seeds[:1])[0]
    total = closest @ weights
    for i in range(1, num_clusters):
        drawn = np.searchsorted(np.cumsum(weights * closest), rng.uniform(size=trials) * total)
        drawn = np.minimum(drawn, len(points) - 1)
        left = sq_distances(drawn)
        np.minimum(left, closest, out=left)
        totals = left @ weights[:, None]
        best = int(np.argmin(totals))
        closest, total, seeds[i] = left[best], totals[best], drawn[best]
    return seeds


def _iterated(
    points: np.ndarray, weights: np.ndarray, centers: np.ndarray, max_iterations: int
) -> Clusters:
    """Take Lloyd's iterations until no row or hardly any center moves."""
    tolerance = np.mean(np.var(points, axis=0)) * TOLERANCE
    before = np.full(len(points), -1, np.int32)
    for _ in range(max_iterations):
        labels = assigned(points, centers)
        moved = _means(points, weights, labels, centers)
        shift = np.sum((moved - centers) ** 2)
        centers = moved
        if np.array_equal(labels, before):
            break
        if shift <= tolerance:
            labels = assigned(points, centers)
            break
        before = labels
    else:
        labels = assigned(points, centers)
    return Clusters(centers, labels, _inertia(points, weights, labels, centers))


def assigned(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the number of each row's nearest center, int32 `[m]`, ties by the lowest."""
    return np.asarray(nearest(points, centers, 1))[:, 0]


def sq_distances(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return squared distances of rows `[m, f]` to centers `[s, f]`, float64 `[m, s]`, at least 0.

    Both sides are centered first, so that features far from 0 cancel little.
    """
    mean = centers.mean(axis=0, dtype=np.float64)
    points, centers = points - mean, centers - mean
    norms = (np.einsum("ij,ij->i", rows, rows) for rows in (points, centers))
    apart: np.ndarray = np.add.outer(*norms) - 2 * points @ centers.T
    np.maximum(apart, 0, out=apart)
    return apart


def _means(
    points: np.ndarray, weights: np.ndarray, labels: np.ndarray, centers: np.ndarray
) -> np.ndarray:
    """Return the means of clusters; an empty one takes the row that is farthest from its center."""
    order = np.argsort(labels, kind="stable")
    held = np.bincount(labels, minlength=len(centers))
    first = np.concatenate([[0], np.cumsum(held)])
    of_cluster = scipy.sparse.csr_matrix(
        (weights[order], order, first), shape=(len(centers), len(points))
    )
    sums: np.ndarray = of_cluster @ points
    sizes = np.bincount(labels, weights, minlength=len(centers)).astype(points.dtype)
    empty = np.flatnonzero(held == 0)
    if len(empty):
        apart = ((points - centers[labels]) ** 2).sum(axis=1)
        if apart.max() > 0:  # otherwise there are fewer distinct rows than clusters
            farthest = np.argpartition(apart, -len(empty))[: -len(empty) - 1 : -1]
            for cluster, row in zip(empty, farthest, strict=True):
                moved = weights[row] * points[row]
                sums[labels[row]] -= moved
                sums[cluster] = moved
                sizes[labels[row]] -= weights[row]
                sizes[cluster] = weights[row]
    filled = sizes > 0
    means = np.array(centers)
    means[filled] = sums[filled] / sizes[filled, None]
    return means


def _inertia(
    points: np.ndarray, weights: np.ndarray, labels: np.ndarray, centers: np.ndarray
) -> float:
    total = 0.0
    for start in range(0, len(points), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        apart = points[rows] - centers[labels[rows]]
        total += float(weights[rows] @ np.einsum("ij,ij->i", apart, apart))
    return total


def _same(one: np.ndarray, other: np.ndarray, num_clusters: int) -> bool:
    """Return whether two clusterings are the same up to the numbers of clusters."""
    pairs = one.astype(np.int64) * num_clusters + other
    return len(np.unique(pairs)) == len(np.unique(one))

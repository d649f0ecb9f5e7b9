"""Public side of the decoder: how alike the class shares of public rows and queries are.

A kernel is a covariance of shares between rows. A query's share is the mean over its public rows,
so its covariances are means of the rows'. Everything here reads public data alone.

- local: shares change little between similar rows. Radial kernels of three widths, and walks on the
  neighbor graph of three lengths.
- linear: shares are linear in the features, as logistic regression takes them.
- queries: each query has shares of its own.

Each kernel is without its mean over the public rows, which a class's share of all records covers.

Reference: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapter 4.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from rknn_jax.neighbors import Metric
from rknn_jax.types import Array, Queries

_log = logging.getLogger(__name__)

WIDTHS = (0.1, 0.3, 1.0)
"""Widths of radial kernels, in units of the median squared distance of rows."""

WALKS = (0.9, 0.99, 0.999)
"""Probabilities that a walk on the neighbor graph goes on after a step."""

MOST_LANDMARKS = 4096
"""Most rows whose means stand for the queries in radial kernels."""

MOST_QUERIES = 2000
"""Most queries, whose covariances take some seconds then."""

MOST_COMPONENTS = 100
"""Most principal components of the features in the linear kernel."""

MOST_CELLS = 2**26
"""Most rows times queries with walks, which take 4 bytes a cell and length."""

MOST_STEPS = 500
"""Most steps of the solver of walks, which ends earlier at a relative error of `TOLERANCE`."""

TOLERANCE = 1e-4

BLOCK = 2**24
"""Most rows times queries, or times landmarks, that a kernel is computed for once and kept."""

ROWS_AT_ONCE = 2**20
"""Rows times queries that are decoded at a time."""

Raw = Callable[[slice], np.ndarray]
"""Covariances of a block of rows with the queries, `[b, s]`."""


@dataclass(frozen=True)
class Kernel:
    """Covariance of shares without its mean over the rows, with a mean variance of 1 of a query.

    Attributes:
      between: Between the mean shares of queries, float64 `[s, s]`.
      raw: Covariances of rows, before the mean is taken out.
      weight: Part of each query in all rows, float64 `[s]`.
      of_queries: Covariance of each query with the mean, float64 `[s]`.
      whole: Variance of the mean.
      unit: Mean variance of a query.
    """

    between: np.ndarray
    raw: Raw
    weight: np.ndarray
    of_queries: np.ndarray
    whole: float
    unit: float

    @classmethod
    def centered(cls, between: np.ndarray, raw: Raw, size: np.ndarray) -> "Kernel":
        """Lift the covariances of queries until none is negative, and take the mean out.

        Args:
          between: Between queries, `[s, s]`.
          raw: Covariances of rows.
          size: Public rows of each query, `[s]`.
        """
        between = (between + between.T) / 2
        least = float(np.linalg.eigvalsh(between)[0])
        lift = max(0.0, -least) + 1e-9 * float(np.trace(between)) / len(between)
        between = between + lift * np.eye(len(between))
        weight = size / size.sum()
        of_queries = between @ weight
        whole = float(weight @ of_queries)
        between = between - of_queries[:, None] - of_queries + whole
        unit = float(np.mean(np.diag(between))) or 1.0
        return cls(between / unit, raw, weight, of_queries, whole, unit)

    def rows(self, block: slice) -> np.ndarray:
        """Return the covariances of a block of rows with the queries, `[b, s]`."""
        across = self.raw(block)
        of_rows = across @ self.weight
        centered: np.ndarray = across - of_rows[:, None] - self.of_queries + self.whole
        return centered / self.unit


@dataclass(frozen=True)
class Kernels:
    """Public side of the model.

    Attributes:
      local: Local kernels.
      linear: Linear kernel.
      own: Kernel of queries with shares of their own.
      size: Public rows of each query, float64 `[s]`.
      cluster: Query of each row, int `[m]`.
    """

    local: tuple[Kernel, ...]
    linear: Kernel
    own: Kernel
    size: np.ndarray
    cluster: np.ndarray

    def blocks(self) -> Iterator[slice]:
        """Yield blocks of rows that fit into memory."""
        step = max(1, ROWS_AT_ONCE // len(self.size))
        for start in range(0, len(self.cluster), step):
            yield slice(start, min(start + step, len(self.cluster)))


def kernels(
    queries: Queries,
    features: Array,
    graph: scipy.sparse.csr_matrix | None = None,
    *,
    metric: Metric = "sqeuclidean",
) -> Kernels | None:
    """Return the kernels, or None if not all rows can be read together.

    They cannot if there are more than `MOST_QUERIES` queries, or if a row is of no query.

    Args:
      queries: Queries, with the query of each public row.
      features: float32 `[m, f]`, of the public rows.
      graph: Neighbor graph of the public rows, `[m, m]`. Defaults to None, which leaves walks out.
        So do more than `MOST_CELLS` rows times queries.
      metric: Metric of the features. Defaults to squared Euclidean.
    """
    if len(queries.index) > MOST_QUERIES:
        _log.warning(
            f"{len(queries.index):,} queries are more than the {MOST_QUERIES:,} that can be read "
            "together: each row takes its query's label, spread between similar rows"
        )
        return None
    cluster = np.asarray(queries.cluster)
    if cluster.min() < 0:
        return None
    size = np.bincount(cluster, minlength=len(queries.index)).astype(np.float64)
    rows = np.asarray(features, np.float64)
    if metric == "cosine":
        norm = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(norm > 0, norm, 1)
    rows = rows - rows.mean(axis=0)
    local = list(_radial(rows, cluster, size))
    if graph is not None and len(rows) * len(size) <= MOST_CELLS:
        local += _walks(graph, cluster, size)

    def own(block: slice) -> np.ndarray:
        hot: np.ndarray = np.eye(len(size), dtype=np.float32)[cluster[block]]
        return hot

    return Kernels(
        tuple(local),
        _linear(rows, cluster, size),
        Kernel.centered(np.eye(len(size)), own, size),
        size,
        cluster,
    )


def _radial(rows: np.ndarray, cluster: np.ndarray, size: np.ndarray) -> Iterator[Kernel]:
    """Yield radial kernels, in which a few rows of each query stand for all of them."""
    chosen = _landmarks(cluster, len(size))
    mean = _averaging(cluster[chosen], len(size))
    distances = _sq_distances(rows[chosen], rows[chosen])
    unit = float(np.median(distances)) or 1.0
    scales = [width * unit for width in WIDTHS]

    def across(block: slice, scales: list[float]) -> list[np.ndarray]:
        apart = _sq_distances(rows[block], rows[chosen])
        return [(mean @ np.exp(-apart / np.float32(scale)).T).T for scale in scales]

    raws = _kept(across, scales, len(rows)) if len(rows) * len(size) <= BLOCK else None
    for i, scale in enumerate(scales):

        def raw(block: slice, scale: float = scale) -> np.ndarray:
            [found] = across(block, [scale])
            return found

        between = mean @ (mean @ np.exp(-distances / np.float32(scale)).T).T
        yield Kernel.centered(between.astype(np.float64), raws[i] if raws else raw, size)


def _kept(
    across: Callable[[slice, list[float]], list[np.ndarray]], scales: list[float], num_rows: int
) -> list[Raw]:
    """Compute the covariances of all rows once, with one pass for all scales."""
    step = max(1, BLOCK // MOST_LANDMARKS)
    blocks = [slice(start, start + step) for start in range(0, num_rows, step)]
    parts = zip(*(across(block, scales) for block in blocks), strict=True)
    return [_of_array(np.concatenate(part)) for part in parts]


def _of_array(across: np.ndarray) -> Raw:
    """Return covariances that were computed before."""

    def raw(block: slice) -> np.ndarray:
        return across[block]

    return raw


def _sq_distances(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return squared distances, float32 `[n, s]`."""
    rows = np.asarray(rows, np.float32)
    others = np.asarray(others, np.float32)
    squares = np.sum(rows**2, axis=1)[:, None] + np.sum(others**2, axis=1)
    distances: np.ndarray = np.maximum(squares - 2 * rows @ others.T, 0)
    return distances


def _landmarks(cluster: np.ndarray, num_queries: int) -> np.ndarray:
    """Return the positions of the rows that stand for the queries, as many of each as fit.

    A fixed seed is safe: the rows are public.
    """
    if len(cluster) <= MOST_LANDMARKS:
        return np.arange(len(cluster))
    order = np.random.default_rng(0).permutation(len(cluster))
    order = order[np.argsort(cluster[order], kind="stable")]
    held = np.bincount(cluster, minlength=num_queries)
    rank = np.arange(len(order)) - (np.cumsum(held) - held)[cluster[order]]
    return np.sort(order[rank < max(1, MOST_LANDMARKS // num_queries)])


def _walks(
    graph: scipy.sparse.csr_matrix, cluster: np.ndarray, size: np.ndarray
) -> Iterator[Kernel]:
    """Yield kernels of walks on the neighbor graph, scaled by the roots of degrees."""
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
    similarity = (scale @ graph @ scale).tocsr()
    mean = _averaging(cluster, len(size))
    for again in WALKS:
        across = _walked(similarity, again, np.asarray(mean.todense()).T)
        between = mean @ across
        yield Kernel.centered(between, _of_array(across.astype(np.float32)), size)


def _walked(similarity: scipy.sparse.csr_matrix, again: float, start: np.ndarray) -> np.ndarray:
    """Solve (1 - again · similarity) x = start for all columns, by conjugate gradients."""
    solution = np.zeros_like(start)
    residual = start.copy()
    direction = residual.copy()
    squared = np.sum(residual**2, axis=0)
    least = TOLERANCE**2 * squared
    for _ in range(MOST_STEPS):
        moved = direction - again * (similarity @ direction)
        step = squared / np.maximum(np.sum(direction * moved, axis=0), 1e-300)
        solution += step * direction
        residual -= step * moved
        after = np.sum(residual**2, axis=0)
        if np.all(after <= least):
            break
        direction = residual + after / np.maximum(squared, 1e-300) * direction
        squared = after
    return solution


def _linear(rows: np.ndarray, cluster: np.ndarray, size: np.ndarray) -> Kernel:
    """Return the linear kernel of rows whose mean is 0."""
    if rows.shape[1] > MOST_COMPONENTS:
        _, vectors = np.linalg.eigh(rows.T @ rows)
        rows = rows @ vectors[:, -MOST_COMPONENTS:]
    means = _averaging(cluster, len(size)) @ rows

    def raw(block: slice) -> np.ndarray:
        covariances: np.ndarray = rows[block] @ means.T
        return covariances

    return Kernel.centered(means @ means.T, raw, size)


def _averaging(cluster: np.ndarray, num_queries: int) -> scipy.sparse.csr_matrix:
    """Return the map from rows to the means of queries, `[s, m]`."""
    held = np.bincount(cluster, minlength=num_queries)
    weight = 1 / held[cluster]
    where = (cluster, np.arange(len(cluster)))
    return scipy.sparse.csr_matrix((weight, where), shape=(num_queries, len(cluster)))

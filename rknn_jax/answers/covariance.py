"""Public side of the decoder: how alike the class shares of public rows and queries are.

A kernel is a covariance of shares between rows. A query's share is the mean over its public rows,
so its covariances are means of the rows'. Everything here reads public data alone.

- local: shares change little between similar rows. Radial kernels of three widths, and walks on the
  neighbor graph of three lengths.
- components: shares are those of the components of a Gaussian mixture, one or two for each class.
- linear: shares are linear in the features, as logistic regression takes them.
- queries: each query has shares of its own.

Each kernel is without its mean over the public rows, which a class's share of all records covers.

Reference: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapter 4.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse

from rknn_jax._internal.cores import one_thread_for_products
from rknn_jax.answers import gaussian_mixture
from rknn_jax.answers.radial import Rows, radial
from rknn_jax.answers.walks import walks
from rknn_jax.neighbors import Metric
from rknn_jax.types import Array, Queries

_log = logging.getLogger(__name__)

MOST_QUERIES = 2000
"""Most queries, whose covariances take some seconds then."""

MOST_COMPONENTS = 100
"""Most principal components of the features in the linear kernel."""

WIDE = 1500
SPARE = 20
ITERATIONS = 4
"""Features from which on components are found by iteration, its spare columns, and its steps."""

MOST_CELLS = 2**26
"""Most rows times queries with walks, which take 2 bytes a cell and length."""

SMALL = 2**20
"""Most numbers of features whose kernels one thread computes as fast as several, which would wait
for each other.
"""

CLOUDS = {1: 1, 2: 4}
"""Components of a mixture for each class, and the fewest queries of a component, on average.

Few counts do not contradict two components for each class, which then look sure and may be wrong.
"""

FEATURES_AT_ONCE = 2**16
"""Rows whose features are read at a time."""

ROWS_AT_ONCE = 2**20
"""Rows times queries that are decoded at a time."""

Factor = Callable[[slice], np.ndarray]
"""Left factor of the covariances of a block of rows with the queries, float32 `[b, r]`."""


@dataclass(frozen=True)
class Raw:
    """Covariances of rows with queries before the mean is taken out: factor · basis + shared.

    Attributes:
      cluster: Query of each row, int `[m]`.
      factor: Left factor. Defaults to none.
      basis: Right factor, float64 `[r, s]`. Defaults to the identity.
      shared: What all rows of a query have, float64 `[s, s]`. Defaults to none.
    """

    cluster: np.ndarray
    factor: Factor | None = None
    basis: np.ndarray | None = None
    shared: np.ndarray | None = None


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
        """Take the mean out of covariances.

        Args:
          between: Between queries, `[s, s]`, without negative eigenvalues but by rounding.
          raw: Covariances of rows.
          size: Public rows of each query, `[s]`.
        """
        between = (between + between.T) / 2
        between += 1e-9 * float(np.trace(between)) / len(between) * np.eye(len(between))
        weight = size / size.sum()
        of_queries = between @ weight
        whole = float(weight @ of_queries)
        between = between - of_queries[:, None] - of_queries + whole
        unit = float(np.mean(np.diag(between))) or 1.0
        return cls(between / unit, raw, weight, of_queries=of_queries, whole=whole, unit=unit)

    def rows(self, block: slice) -> np.ndarray:
        """Return the covariances of a block of rows with the queries, `[b, s]`."""
        [found] = self.products([np.eye(len(self.weight))])(block)
        return found

    def products(self, columns: Sequence[np.ndarray]) -> Callable[[slice], list[np.ndarray]]:
        """Return a function of a block of rows: their covariances times columns, `[b, n]` each.

        The covariances themselves, `[b, s]`, are not computed.

        Args:
          columns: Columns `[s, n]`, float64 or float32, which the products have, too.
        """
        parts = [self._parts(each) for each in columns]
        raw = self.raw

        def of(block: slice) -> list[np.ndarray]:
            left = raw.factor(block) if raw.factor else None
            found = []
            for inner, outer in parts:
                # One row of `outer` for each query, or one for all of them.
                by_query = left is None or len(outer) > 1
                part = outer[raw.cluster[block] if by_query else np.s_[:]]
                found.append(part if left is None else left.astype(inner.dtype) @ inner + part)
            return found

        return of

    def _parts(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns as the left factor takes them, and what comes by query or to all."""
        total = columns.sum(axis=0, dtype=np.float64)
        inner = (columns - np.outer(self.weight, total)) / self.unit
        outer = ((self.whole - self.of_queries) @ columns / self.unit)[None]
        if self.raw.shared is not None:
            outer = outer + self.raw.shared @ inner
        if self.raw.basis is not None:
            inner = self.raw.basis @ inner
        return inner.astype(columns.dtype), outer.astype(columns.dtype)


@dataclass(frozen=True)
class Kernels:
    """Public side of the model.

    Attributes:
      local: Local kernels.
      linear: Linear kernel.
      own: Kernel of queries with shares of their own.
      size: Public rows of each query, float64 `[s]`.
      cluster: Query of each row, int `[m]`.
      components: Kernels of Gaussian mixtures, fewer components first. Defaults to none.
    """

    local: tuple[Kernel, ...]
    linear: Kernel
    own: Kernel
    size: np.ndarray
    cluster: np.ndarray
    components: tuple[Kernel, ...] = ()

    def blocks(self, width: int = 0) -> Iterator[slice]:
        """Yield blocks of rows that fit into memory, with `width` numbers of each, if any."""
        step = max(1, ROWS_AT_ONCE // max(len(self.size), width))
        for start in range(0, len(self.cluster), step):
            yield slice(start, min(start + step, len(self.cluster)))


def kernels(
    queries: Queries,
    features: Array,
    graph: scipy.sparse.csr_matrix | None = None,
    *,
    metric: Metric = "sqeuclidean",
    num_classes: int | None = None,
) -> Kernels | None:
    """Return the kernels, or None if not all rows can be read together.

    They cannot if there are more than `MOST_QUERIES` queries, or if a row is of no query.

    Args:
      queries: Queries, with the query of each public row.
      features: float32 `[m, f]`, of the public rows.
      graph: Neighbor graph of the public rows, `[m, m]`. Defaults to None, which leaves walks out.
        So do more than `MOST_CELLS` rows times queries.
      metric: Metric of the features. Defaults to squared Euclidean.
      num_classes: Number of classes, of which each has `CLOUDS` components of a Gaussian mixture.
        Defaults to None, which leaves mixtures out. So do fewer queries, or too few rows.
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
    with one_thread_for_products(np.size(features) <= SMALL):
        return _kernels(
            cluster,
            len(queries.index),
            _rows(features, metric),
            graph=graph,
            num_classes=num_classes,
        )


def _kernels(
    cluster: np.ndarray,
    num_queries: int,
    rows: Rows,
    graph: scipy.sparse.csr_matrix | None,
    num_classes: int | None,
) -> Kernels:
    """Return the kernels of rows whose mean is 0; see `kernels`."""
    size = np.bincount(cluster, minlength=num_queries).astype(np.float64)
    local = [
        Kernel.centered(one.between, Raw(cluster, one.across), size)
        for one in radial(rows, cluster, len(size))
    ]
    if graph is not None and len(cluster) * len(size) <= MOST_CELLS:
        local += _walks(graph, cluster, size)
    num_features = rows(slice(0, 1)).shape[1]
    means = _means(rows, cluster, size, num_features)
    basis = None
    if num_features > MOST_COMPONENTS:
        basis = _components(rows, len(cluster), num_features)
    found = []
    if num_classes is not None and num_classes > 1:
        found = [
            _mixture(
                rows, cluster, size, means=means, basis=basis, num_components=num_classes * clouds
            )
            for clouds, fewest in CLOUDS.items()
            if num_classes * clouds * fewest <= num_queries
        ]
    if basis is not None:
        means = means @ basis @ basis.T
    own = np.eye(len(size))
    return Kernels(
        tuple(local),
        Kernel.centered(means @ means.T, Raw(cluster, rows, means.T), size),
        Kernel.centered(own, Raw(cluster, shared=own), size),
        size=size,
        cluster=cluster,
        components=tuple(filter(None, found)),
    )


def _rows(features: Array, metric: Metric) -> Rows:
    """Return a function that reads features without their mean, of length 1 before if cosine."""
    given = np.asarray(features)
    mean = np.zeros(given.shape[1])

    def rows(which: slice | np.ndarray) -> np.ndarray:
        found = np.array(given[which], np.float32)
        if metric == "cosine":
            norm = np.linalg.norm(found, axis=1, keepdims=True)
            found /= np.where(norm > 0, norm, 1)
        found -= mean.astype(np.float32)
        return found

    total = sum(rows(block).sum(axis=0, dtype=np.float64) for block in _feature_blocks(len(given)))
    mean += total / len(given)
    return rows


def _feature_blocks(num_rows: int) -> list[slice]:
    starts = range(0, num_rows, FEATURES_AT_ONCE)
    return [slice(start, start + FEATURES_AT_ONCE) for start in starts]


def _walks(
    graph: scipy.sparse.csr_matrix, cluster: np.ndarray, size: np.ndarray
) -> Iterator[Kernel]:
    """Yield kernels of walks on the neighbor graph."""
    order = np.argsort(cluster, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    for found in walks(graph[order][:, order], cluster[order], size):

        def factor(block: slice, ties: np.ndarray = found.ties) -> np.ndarray:
            return ties[place[block]].astype(np.float32)

        between = found.between
        yield Kernel.centered(between, Raw(cluster, factor, between, between), size)


def _means(read: Factor, cluster: np.ndarray, size: np.ndarray, width: int) -> np.ndarray:
    """Return the mean of each query's rows, float64 `[s, width]`.

    Args:
      read: Function that reads a block of rows, `[b, width]`.
      cluster: Query of each row.
      size: Public rows of each query.
      width: Number of columns.
    """
    means = np.zeros((len(size), width))
    for block in _feature_blocks(len(cluster)):
        found = read(block)
        hot = (np.ones(len(found)), cluster[block], np.arange(len(found) + 1))
        means += scipy.sparse.csr_matrix(hot, (len(found), len(size))).T @ found
    means /= np.maximum(size, 1)[:, None]
    return means


def _mixture(
    rows: Rows,
    cluster: np.ndarray,
    size: np.ndarray,
    means: np.ndarray,
    basis: np.ndarray | None,
    num_components: int,
) -> Kernel | None:
    """Return the kernel of a Gaussian mixture, or None if rows are too few for it.

    Args:
      rows: Function that reads features.
      cluster: Query of each row.
      size: Public rows of each query.
      means: Mean features of each query, `[s, f]`.
      basis: Directions in which the mixture is fitted, `[f, r]`, or None for all.
      num_components: Number of components.
    """
    turned = means if basis is None else means @ basis
    chosen = gaussian_mixture.rows_of(len(cluster), turned.shape[1], num_components)
    if chosen is None:
        return None

    def read(which: slice | np.ndarray) -> np.ndarray:
        return rows(which) if basis is None else rows(which) @ basis.astype(np.float32)

    mixture = gaussian_mixture.fit(read(chosen), cluster[chosen], turned, num_components)

    def factor(block: slice) -> np.ndarray:
        shares = mixture.responsibilities(read(block))
        unit: np.ndarray = shares / np.linalg.norm(shares, axis=1, keepdims=True)
        return unit

    found = _means(factor, cluster, size, num_components)
    return Kernel.centered(found @ found.T, Raw(cluster, factor, found.T), size)


def _components(rows: Rows, num_rows: int, num_features: int) -> np.ndarray:
    """Return the first principal components of rows whose mean is 0, float64 `[f, components]`.

    Of wide rows they are found by subspace iteration, as all eigenvectors take minutes from some
    thousand features on (Halko, Martinsson & Tropp, "Finding Structure with Randomness", 2011,
    algorithm 4.4).
    """

    def squared(basis: np.ndarray | None) -> np.ndarray:
        """Return the rows' second moment, or its product with a basis."""
        width = num_features if basis is None else basis.shape[1]
        total = np.zeros((num_features, width))
        for block in _feature_blocks(num_rows):
            found = rows(block)
            total += found.T @ (found if basis is None else found @ basis)
        return total

    if num_features <= WIDE:
        most = (num_features - MOST_COMPONENTS, num_features - 1)
        vectors: np.ndarray = scipy.linalg.eigh(squared(None), subset_by_index=most)[1]
        return vectors
    # A fixed seed is safe: the rows are public.
    start = np.random.default_rng(0).standard_normal((num_features, MOST_COMPONENTS + SPARE))
    basis = scipy.linalg.qr(start, mode="economic")[0]
    for _ in range(ITERATIONS):
        basis = scipy.linalg.qr(squared(basis), mode="economic")[0]
    turned = scipy.linalg.eigh(basis.T @ squared(basis))[1]
    wide: np.ndarray = basis @ turned[:, -MOST_COMPONENTS:]
    return wide

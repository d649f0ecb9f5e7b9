"""Class shares of public rows from noisy counts, by a Gaussian model of which everything is exact.

Smoothing and spreading have strengths that are set beforehand. Here the noisy counts choose them:
the model knows the noise of each count, so the counts have a likelihood.

**Model.** Public row i has a share f_ic of class c among the private records like it. Shares are a
class's share of all records plus a Gaussian process over the rows. A query's count is its number of
votes N_q times the mean share of its public rows, plus the mechanism's noise, plus the chance of
which records vote. So counts and shares are jointly Gaussian, and the shares' mean and variance
given the counts are solutions of linear equations in s unknowns.

**Kernels.** The process is a mixture of three kernels, each without its mean over the rows:

- local: shares change little between neighbors. Walks on the neighbor graph of three lengths, and
  radial kernels of two widths, are tried.
- linear: shares are linear in the features, as logistic regression takes them.
- queries: each query has shares of its own.

Each mixture of `SHARES` has a prior probability, which falls with the parts that are not local.
Times its marginal likelihood on all counts, that is its weight. The result is the mean over all
mixtures. With little noise one of them decides; with much noise many stay, and none is fitted to
noise. Nothing here reads private data but the noisy counts, so it costs no privacy.

The Gaussian model is not true: shares lie between 0 and 1. Labels are the classes of the greatest
mean, and probabilities are the means, cut at 0.

Reference: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2 and 5;
Quadrianto et al., "Estimating Labels from Label Proportions", 2009.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.spatial.distance import cdist

from rknn_jax import postprocessing
from rknn_jax.types import Array, Queries

WALKS = (0.9, 0.99, 0.999)
"""Probabilities that a walk on the neighbor graph goes on after a step."""

WIDTHS = (0.1, 0.3)
"""Widths of radial kernels, in units of the median squared distance of rows and queries."""

SHARES = [
    (local, linear, 1 - local - linear)
    for local, linear in itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), repeat=2)
    if 1 - local - linear in (0.0, 0.25)
]
"""Parts of local, linear and query kernels in the mixtures that are tried."""

AMPLITUDES = (0.3, 1.0)
"""Variances of the process, in units of that of labels that are certain."""

NOT_LOCAL = 3.0
"""Logarithm of the prior odds of a mixture that is all local against one that is not at all."""

MOST_COMPONENTS = 100
"""Most principal components of the features in the linear and radial kernels."""

CLASS_SHARE = 0.1
"""Prior variance of a class's share of all records, in units of that of evenly shared classes."""

FEWEST_VOTES = 0.2
"""Least number of votes of a query, as a part of what its public rows let expect."""

LEAST_SHARE = 1e-3
"""Least prior share of a class."""

LEAST_WEIGHT = 0.01
"""Weight below which a mixture is left out."""

MOST_CELLS = 2**26
"""Most rows times queries. The kernels then take 4 GB."""

DRAWS = 200
"""Number of redrawn shares behind the confidence, a multiple of 1/200."""

MOST_STEPS = 500
"""Most steps of the solver of walks, which ends earlier at a relative error of `TOLERANCE`."""

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Shares:
    """Class shares of the public rows.

    Attributes:
      probabilities: float32 `[m, num_classes]`, mean shares, rows summing to 1.
      confidence: float32 `[m]`, probability under the model that the row's greatest mean share is
        its greatest share.
      agreement: Mean over the rows of the greatest mean share: how far private records near a row
        agree, as the counts tell.
    """

    probabilities: np.ndarray
    confidence: np.ndarray
    agreement: float

    @property
    def labels(self) -> np.ndarray:
        """Class of the greatest mean share, int32 `[m]`."""
        found: np.ndarray = self.probabilities.argmax(axis=1).astype(np.int32)
        return found


class Kernel(NamedTuple):
    """Covariances of the shares, with a mean variance of 1 over the queries.

    Attributes:
      between: Between the mean shares of queries, float64 `[s, s]`.
      across: Between rows and queries, float64 `[m, s]`.
      within: Of each row with itself, float64 `[m]`.
    """

    between: np.ndarray
    across: np.ndarray
    within: np.ndarray


class Seen(NamedTuple):
    """Counts as the model takes them.

    Attributes:
      residual: Shares by the counts less the prior shares, in prior standard deviations, float64
        `[s, num_classes]`.
      noise: Variance of the residuals, float64 `[s]`.
      prior: Prior share of each class, float64 `[num_classes]`.
    """

    residual: np.ndarray
    noise: np.ndarray
    prior: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Prior standard deviation of each class's shares, float64 `[num_classes]`."""
        spread: np.ndarray = np.sqrt(self.prior * (1 - self.prior))
        return spread


class Kernels(NamedTuple):
    """Public side of the model.

    Attributes:
      local: Local kernels.
      linear: Linear kernel.
      own: Kernel of queries with shares of their own.
      size: Public rows of each query, float64 `[s]`.
    """

    local: tuple[Kernel, ...]
    linear: Kernel
    own: Kernel
    size: np.ndarray


def kernels(
    queries: Queries, features: Array, graph: scipy.sparse.csr_matrix | None = None
) -> Kernels:
    """Return the kernels, which read public data alone.

    Args:
      queries: Queries, with the query of each public row.
      features: float32 `[m, f]`, of the public rows.
      graph: Neighbor graph of the public rows, `[m, m]`. Defaults to None, which leaves walks out.

    Raises:
      ValueError: If rows times queries are more than `MOST_CELLS`.
    """
    size = np.asarray(queries.size, np.float64)
    cluster = np.asarray(queries.cluster)
    if len(cluster) * len(size) > MOST_CELLS:
        raise ValueError(
            f"Expected public rows times queries of at most {MOST_CELLS} with "
            f"smoothing=likelihood, got {len(cluster)} times {len(size)}; ask fewer queries, or "
            "use smoothing=auto."
        )
    rows = np.asarray(features, np.float64)
    local = tuple(_local_kernels(np.asarray(queries.features), rows, cluster, size, graph))
    own = _centered(np.eye(len(size)), np.eye(len(size))[cluster], np.ones(len(cluster)), size)
    return Kernels(local, _linear_kernel(rows, cluster, size), own, size)


def decode(counts: Array, stddev: Array, public: Kernels) -> Shares:
    """Return the class shares of all public rows, by post-processing alone.

    Args:
      counts: `[s, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, `[s, num_classes]`, in votes.
      public: Kernels of the queries.
    """
    counts = np.asarray(counts, np.float64)
    seen = standardized(counts, np.asarray(stddev, np.float64), public.size)
    weights, mixtures = _mixtures(seen, public)
    mean = np.zeros((len(mixtures[0].within), len(seen.prior)))
    squares = np.zeros_like(mean)
    for weight, mixture in zip(weights, mixtures, strict=True):
        one, variance = _posterior(seen, mixture)
        mean += weight * one
        squares += weight * (one**2 + variance)
    deviation = np.sqrt(np.maximum(squares - mean**2, 0))
    probabilities = postprocessing.soft_labels(mean)
    agreement = float(probabilities.max(axis=1).mean())
    return Shares(probabilities, _stays(mean, deviation), agreement)


def _stays(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the share of redrawn shares whose greatest class is that of the mean, float32 `[m]`.

    A fixed seed is safe: this is an estimate after the release, and draws none of its noise.
    """
    rng = np.random.default_rng(0)
    first = mean.argmax(axis=1)
    stays = np.zeros(len(mean), np.float32)
    for _ in range(DRAWS):
        redrawn = mean + deviation * rng.standard_normal(mean.shape)
        stays += redrawn.argmax(axis=1) == first
    return stays / np.float32(DRAWS)


def standardized(counts: np.ndarray, stddev: np.ndarray, size: np.ndarray) -> Seen:
    """Return the counts as shares, less the prior and in prior standard deviations.

    The number of votes of a query lies between the sum of its noisy counts and what its public rows
    let expect: the noisier the sums, the nearer to the latter. Likewise the share of a class lies
    between its noisy total and an even share.

    Args:
      counts: `[s, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, `[s, num_classes]`, in votes.
      size: `[s]`, public rows of each query.
    """
    num_classes = counts.shape[1]
    variance = stddev**2
    total = max(counts.sum(), 1.0)
    expected = total * size / size.sum()
    sums = counts.sum(axis=1)
    noise = variance.sum(axis=1)
    uneven = max(np.mean((sums - expected) ** 2 - noise - expected), 0) / np.mean(expected**2)
    believed = uneven * expected**2 / (uneven * expected**2 + noise + 1e-9)
    votes = np.maximum(expected + believed * (sums - expected), FEWEST_VOTES * expected)
    even = 1 / num_classes
    share = counts.sum(axis=0) / total
    doubt = variance.sum(axis=0) / total**2
    # Twice the noise, so that noise alone makes no class frequent.
    differ = max(np.mean((share - even) ** 2 - 2 * doubt), 0)
    prior = np.maximum(even + differ / (differ + doubt + 1e-12) * (share - even), LEAST_SHARE)
    prior = prior / prior.sum()
    spread = np.sqrt(prior * (1 - prior))
    residual = (counts / votes[:, None] - prior) / spread
    # One variance for all classes, so that one factorization serves them.
    scale = np.exp(np.mean(np.log(spread**2)))
    return Seen(residual, variance.mean(axis=1) / votes**2 / scale + 1 / votes, prior)


def _mixtures(seen: Seen, public: Kernels) -> tuple[np.ndarray, list[Kernel]]:
    """Return the mixtures that matter, and their weights, which sum to 1."""
    constant = CLASS_SHARE / len(seen.prior)
    scores = []
    tried = []
    for amplitude, shares in itertools.product(AMPLITUDES, SHARES):
        choices = public.local if shares[0] else public.local[:1]
        for kernel in choices:
            parts = zip(shares, (kernel, public.linear, public.own), strict=True)
            given = [(amplitude * share, part) for share, part in parts if share]
            prior = -NOT_LOCAL * (1 - shares[0]) - np.log(len(choices))
            between = sum(share * part.between for share, part in given) + constant
            scores.append(prior + _log_likelihood(seen, np.asarray(between)))
            tried.append(given)
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    kept = np.flatnonzero(weights > LEAST_WEIGHT)
    return weights[kept] / weights[kept].sum(), [_mixed(tried[i], constant) for i in kept]


def _mixed(parts: list[tuple[float, Kernel]], constant: float) -> Kernel:
    sums = (sum(share * part[i] for share, part in parts) + constant for i in range(3))
    return Kernel(*(np.asarray(each) for each in sums))


def _log_likelihood(seen: Seen, between: np.ndarray) -> float:
    """Return the log-likelihood of the counts, without constants."""
    factor = np.linalg.cholesky(between + np.diag(seen.noise + 1e-9))
    whitened = scipy.linalg.solve_triangular(factor, seen.residual, lower=True)
    num_classes = seen.residual.shape[1]
    return float(-0.5 * np.sum(whitened**2) - num_classes * np.sum(np.log(np.diag(factor))))


def _posterior(seen: Seen, kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and variance of each row's shares, float64 `[m, num_classes]` each."""
    factor = np.linalg.cholesky(kernel.between + np.diag(seen.noise + 1e-9))
    whitened = scipy.linalg.solve_triangular(factor, seen.residual, lower=True)
    gain = scipy.linalg.solve_triangular(factor, kernel.across.T, lower=True)
    mean = seen.prior + seen.spread * (gain.T @ whitened)
    left = np.maximum(kernel.within - np.sum(gain**2, axis=0), 0)
    return mean, left[:, None] * seen.spread**2


def _local_kernels(
    centers: np.ndarray,
    rows: np.ndarray,
    cluster: np.ndarray,
    size: np.ndarray,
    graph: scipy.sparse.csr_matrix | None,
) -> Iterator[Kernel]:
    """Yield the local kernels."""
    distance = cdist(rows, centers, "sqeuclidean")
    unit = np.median(distance) or 1.0
    mean = _averaging(cluster, size)
    for width in WIDTHS:
        across = np.exp(-distance / (width * unit))
        between = mean @ across
        yield _sound((between + between.T) / 2, across, np.ones(len(rows)), size)
    if graph is None:
        return
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
    similarity = (scale @ graph @ scale).tocsr()
    for again in WALKS:
        across = _walked(similarity, again, np.asarray(mean.todense()).T)
        between = mean @ across
        # A row's own variance is about that of its query.
        within = np.diag(between)[cluster]
        yield _sound((between + between.T) / 2, across, within, size)


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


def _linear_kernel(rows: np.ndarray, cluster: np.ndarray, size: np.ndarray) -> Kernel:
    centered = rows - rows.mean(axis=0)
    if rows.shape[1] > MOST_COMPONENTS:
        _, vectors = np.linalg.eigh(centered.T @ centered)
        centered = centered @ vectors[:, -MOST_COMPONENTS:]
    means = _averaging(cluster, size) @ centered
    within = np.sum(centered**2, axis=1)
    return _centered(means @ means.T, centered @ means.T, within, size)


def _averaging(cluster: np.ndarray, size: np.ndarray) -> scipy.sparse.csr_matrix:
    """Return the map from rows to the means of queries, `[s, m]`."""
    held = np.bincount(cluster, minlength=len(size))
    weight = 1 / np.maximum(held, 1)[cluster]
    where = (cluster, np.arange(len(cluster)))
    return scipy.sparse.csr_matrix((weight, where), shape=(len(size), len(cluster)))


def _sound(between: np.ndarray, across: np.ndarray, within: np.ndarray, size: np.ndarray) -> Kernel:
    """Lift the covariances of queries until none is negative, and center them."""
    least = float(np.linalg.eigvalsh(between)[0])
    lift = max(0.0, -least) + 1e-9 * float(np.trace(between)) / len(between)
    return _centered(between + lift * np.eye(len(between)), across, within, size)


def _centered(
    between: np.ndarray, across: np.ndarray, within: np.ndarray, size: np.ndarray
) -> Kernel:
    """Take the mean over all rows out of the shares, and scale the kernel."""
    weight = size / size.sum()
    of_queries = between @ weight
    of_rows = across @ weight
    whole = float(weight @ of_queries)
    between = between - of_queries[:, None] - of_queries + whole
    across = across - of_rows[:, None] - of_queries + whole
    within = np.maximum(within - 2 * of_rows + whole, 0)
    unit = float(np.mean(np.diag(between))) or 1.0
    return Kernel(between / unit, across / unit, within / unit)

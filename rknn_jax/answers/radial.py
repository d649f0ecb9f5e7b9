"""Radial kernels of three widths, in which a few rows of each query stand for all of them.

One pass over rows and landmarks serves all widths: it takes their distances, exponentials, and
means over the landmarks of each query, a block that fits the processor's cache at a time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse

from rknn_jax.answers import cholesky
from rknn_jax.kernels.native import public_side

WIDTHS = (0.1, 0.3, 1.0)
"""Widths of radial kernels, in units of the median squared distance of rows.

The first is a third of the second, so that its exponentials are cubes.
"""

MOST_LANDMARKS = 4096
"""Most rows whose means stand for the queries in radial kernels."""

BLOCK = 2**24
"""Most rows times queries that kernels are computed for once and kept."""

CELLS_AT_ONCE = 2**18
"""Rows times landmarks at a time."""

SAMPLE = 2**14
"""Numbers that tell between which two of them a median lies."""

Rows = Callable[[slice | np.ndarray], np.ndarray]
"""Features of some rows, float32 `[b, f]`."""


class Radial(NamedTuple):
    """Radial kernel of one width.

    Attributes:
      between: Covariances between the means of queries, float64 `[s, s]`.
      across: Covariances of a block of rows with the queries, float32 `[b, s]`.
    """

    between: np.ndarray
    across: Callable[[slice], np.ndarray]


def radial(rows: Rows, cluster: np.ndarray, num_queries: int) -> list[Radial]:
    """Return the radial kernels of all widths.

    Args:
      rows: Features of rows, whose mean is 0.
      cluster: Query of each row, int `[m]`.
      num_queries: Number of queries s.
    """
    chosen = _landmarks(cluster, num_queries)
    mean = averaging(cluster[chosen], num_queries)
    points = rows(chosen)
    unit = max(median_sq_distance(points), 0.0) or 1.0
    near = _Near(points, mean.astype(np.float32), unit)
    every = range(len(WIDTHS))
    if len(cluster) * num_queries > BLOCK:
        found = near.means(points, every)
        return [Radial(_lifted(mean @ found[i].T), _across(near, rows, i)) for i in every]
    found = near.means(rows(slice(None)), every)
    return [Radial(_lifted(mean @ kept[:, chosen].T), _kept(kept)) for kept in found]


def averaging(cluster: np.ndarray, num_queries: int) -> scipy.sparse.csr_matrix:
    """Return the map from rows to the means of queries, `[s, m]`."""
    held = np.bincount(cluster, minlength=num_queries)
    weight = 1 / held[cluster]
    where = (cluster, np.arange(len(cluster)))
    return scipy.sparse.csr_matrix((weight, where), shape=(num_queries, len(cluster)))


def _lifted(between: np.ndarray) -> np.ndarray:
    """Add to the variances until rounding leaves no negative eigenvalue, `[s, s]`."""
    between = (between + between.T) / 2
    whole = float(np.mean(np.diag(between)))
    lift = float(np.finfo(np.float32).eps) * whole
    while lift < whole:
        between = cholesky.with_diagonal(between, lift)
        try:
            cholesky.factored(between.copy())
        except np.linalg.LinAlgError:
            lift *= 2
        else:
            break
    return between


def _kept(found: np.ndarray) -> Callable[[slice], np.ndarray]:
    """Return covariances that were computed before, `[s, m]`."""
    return lambda block: found[:, block].T


def _across(near: "_Near", rows: Rows, i: int) -> Callable[[slice], np.ndarray]:
    """Compute covariances of one width when they are asked for."""
    return lambda block: near.means(rows(block), [i])[0].T


class _Near(NamedTuple):
    """Landmarks by query, `[l, f]`, their means by query, `[s, l]`, and the unit of distances."""

    points: np.ndarray
    mean: scipy.sparse.csr_matrix
    unit: float

    def means(self, rows: np.ndarray, which: Sequence[int]) -> list[np.ndarray]:
        """Return the mean kernels of the queries' landmarks with rows, float32 `[s, m]` each.

        Args:
          rows: float32 `[m, f]`.
          which: Numbers of the widths.
        """
        doubled = self.points * np.float32(2 / self.unit)
        own = _squares(self.points) / np.float32(self.unit)
        found = [np.empty((self.mean.shape[0], len(rows)), np.float32) for _ in which]
        step = public_side.padded(CELLS_AT_ONCE // len(self.points))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            if public_side.runs():
                some = np.pad(some, ((0, -len(some) % public_side.WIDTH), (0, 0)))
            minus = doubled @ some.T
            minus -= _squares(some) / np.float32(self.unit)
            for out, kernel in zip(found, self._means(minus, own, which), strict=True):
                part = out[:, start : start + step]
                part[:] = kernel[:, : part.shape[1]]
        return found

    def _means(self, minus: np.ndarray, own: np.ndarray, which: Sequence[int]) -> list[np.ndarray]:
        """Return the means of kernels of negative distances, once `own` is taken from them."""
        if public_side.runs():
            first = self.mean.indptr
            every = public_side.radial_means(minus, own, first, 1 / WIDTHS[1])
            return [every[i] for i in which]
        minus -= own[:, None]
        kernels = _kernels(np.minimum(minus, 0, out=minus), which)
        return [self.mean @ kernel for kernel in kernels]


def _kernels(minus: np.ndarray, which: Sequence[int]) -> list[np.ndarray]:
    """Return the kernels of some widths of negative squared distances, which are overwritten."""
    found = {}
    if 2 in which:
        found[2] = np.exp(minus)
    if 0 in which or 1 in which:
        minus *= np.float32(1 / WIDTHS[1])
        found[1] = np.exp(minus, out=minus)
    if 0 in which:
        found[0] = found[1] * found[1]
        found[0] *= found[1]
    return [found[i] for i in which]


def _squares(rows: np.ndarray) -> np.ndarray:
    squares: np.ndarray = np.einsum("ij,ij->i", rows, rows)
    return squares


def median_sq_distance(points: np.ndarray) -> float:
    """Return the median over all pairs of rows `[l, f]`, in any order, and each with itself.

    A sample of pairs tells between which numbers it lies. Few numbers of all pairs do, too, and
    are sorted; the others are counted alone.
    """
    square = _squares(points)
    count = len(points)
    # A fixed seed is safe: the rows are public.
    one, other = np.random.default_rng(0).integers(0, count, (2, SAMPLE))
    sample = _squares(points[one] - points[other])
    low, high = np.quantile(sample, [0.48, 0.52])  # five standard deviations of the median's rank
    below, middle = 0, []
    step = max(1, CELLS_AT_ONCE // count)
    for start in range(0, count, step):
        block = slice(start, start + step)
        for others, times in ((block, 1), (slice(start + step, None), 2)):
            apart = (np.float32(-2) * points[block]) @ points[others].T
            apart += square[block, None]
            apart += square[others]
            below += times * int(np.count_nonzero(apart < low))
            middle += times * [apart[(apart >= low) & (apart <= high)]]
    held = np.sort(np.concatenate(middle))
    ranks = np.array([(count**2 - 1) // 2, count**2 // 2]) - below
    if ranks[0] < 0 or ranks[1] >= len(held):  # of few pairs, or by rounding
        return float(np.median(square[:, None] - 2 * points @ points.T + square))
    return float(held[ranks].mean())


def _landmarks(cluster: np.ndarray, num_queries: int) -> np.ndarray:
    """Return the positions of the rows that stand for the queries, by query, as many as fit.

    A fixed seed is safe: the rows are public.
    """
    if len(cluster) <= MOST_LANDMARKS:
        return np.argsort(cluster, kind="stable")
    order = np.random.default_rng(0).permutation(len(cluster))
    order = order[np.argsort(cluster[order], kind="stable")]
    held = np.bincount(cluster, minlength=num_queries)
    rank = np.arange(len(order)) - (np.cumsum(held) - held)[cluster[order]]
    chosen: np.ndarray = order[rank < max(1, MOST_LANDMARKS // num_queries)]
    return chosen

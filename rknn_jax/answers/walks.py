"""Walks on the neighbor graph: how often those from a row end among the public rows of a query.

With S the graph, scaled by the roots of degrees, a walk that goes on with probability a has the
covariances (1 - aS)⁻¹. Their means over the rows of queries are needed alone: of one side for rows
with queries, of both sides between queries. Let H be the indicators of the queries, N the numbers
of their rows, and P the map that takes out each query's mean. Elimination of the parts without
means leaves one small inverse, of what the queries do to each other,

    between = (N - a Hᵀ S (H + aT))⁻¹,    rows with queries = (H + aT) between,

where T = (1 - a PSP)⁻¹ PSH says how much more a row is tied with a query than the other rows of its
own query are. Walks are slow between clusters, which the inverse covers, and fast within them: the
eigenvalues of PSP are far from 1, so that few products with S solve for T, and the same ones serve
all lengths of walks. T is a series of Chebyshev polynomials of PSP, in single precision.

Reference: Saad, "Iterative Methods for Sparse Linear Systems", 2003, chapters 6.11 and 14.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.linalg.lapack import dpotri

from rknn_jax.answers import cholesky
from rknn_jax.kernels.native import public_side

WALKS = (0.9, 0.99, 0.999)
"""Probabilities that a walk on the neighbor graph goes on after a step."""

MOST_STEPS = 500
"""Most terms of the series, which ends earlier at a relative error of `TOLERANCE`."""

TOLERANCE = 1e-5

LANCZOS_STEPS = 24
"""Steps by which the range of eigenvalues is estimated."""

GROWTH = 2.0
"""Growth of a term that only an eigenvalue outside of the range explains: in it, none grows."""

SCALES = (0.0, 2.0, 1.0)
"""Factors of T_{k-1} in T_{k+1} in the first, the second and all further steps."""

CELLS_AT_ONCE = 2**20
"""Rows times queries that are solved for at a time, as many as fit the processor's cache."""


class Walks(NamedTuple):
    """Walks of one length.

    Attributes:
      between: Covariances between the means of queries, float64 `[s, s]`.
      ties: aT, float16 `[m, s]`, the rows of a query together. The relative error of a number is
        2⁻¹¹ at most, and products weigh it with shares that are of the order of 1.
    """

    between: np.ndarray
    ties: np.ndarray


def walks(graph: scipy.sparse.csr_matrix, cluster: np.ndarray, size: np.ndarray) -> list[Walks]:
    """Return walks of all lengths.

    Args:
      graph: Neighbor graph, `[m, m]`, whose rows are ordered by their query.
      cluster: Query of each row, int `[m]`, in ascending order.
      size: Rows of each query, float64 `[s]`.
    """
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
    similarity = (scale @ graph @ scale).tocsr()
    shape = (len(cluster), len(size))
    hot = scipy.sparse.csr_matrix((np.ones(len(cluster)), cluster, np.arange(shape[0] + 1)), shape)
    direct = similarity @ hot
    moves = _Moves(similarity.astype(np.float32), hot.astype(np.float32), size)
    tied, indirect = _tied(moves, direct.astype(np.float32).tocsc())
    alone = np.diag(np.maximum(size, 1))
    met = (hot.T @ direct).toarray()
    found = []
    for i, again in enumerate(WALKS):
        both = indirect[i] + indirect[i].T
        between = _inverse(alone - again * met - again / 2 * both, (1 - again) * np.diag(alone))
        found.append(Walks(np.where(size > 0, between, 0), tied[i]))
    return found


def _inverse(matrix: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Invert a matrix that is above a diagonal one but by rounding.

    Args:
      matrix: Symmetric `[s, s]`, in C order.
      least: The diagonal, above 0.
    """
    try:
        lower, _ = dpotri(cholesky.factored(matrix.copy()), lower=True, overwrite_c=True)
    except np.linalg.LinAlgError:
        root = np.sqrt(least)
        values, vectors = np.linalg.eigh(matrix / root / root[:, None])
        scaled = vectors / root[:, None]
        return np.asarray((scaled / np.maximum(values, 1)) @ scaled.T)
    found: np.ndarray = lower + lower.T
    np.einsum("ii->i", found)[:] /= 2
    return found


class _Moves:
    """The map PSP, of columns whose mean is 0 in each query."""

    def __init__(
        self, similarity: scipy.sparse.csr_matrix, hot: scipy.sparse.csr_matrix, size: np.ndarray
    ) -> None:
        self.similarity = similarity
        self._hot = hot
        self._mean = (scipy.sparse.diags(1 / np.maximum(size, 1)) @ hot.T).tocsr()
        self._mean_single = self._mean.astype(np.float32)
        self._first = np.concatenate([[0], np.cumsum(size)])
        self.take_range(*self._eigenvalues())

    def take_range(self, low: float, high: float) -> None:
        """Set the range of the eigenvalues of which the series is."""
        self.middle, self.half = (low + high) / 2, max((high - low) / 2, 1e-2)
        identity = scipy.sparse.identity(self.similarity.shape[0], np.float32, "csr")
        shifted = (self.similarity - self.middle * identity) * (2 / self.half)
        self._doubled = shifted.astype(np.float32).tocsr()
        has_native = public_side.runs()
        self._native = public_side.Graph(self._doubled, self._first) if has_native else None

    def centered(self, columns: np.ndarray, *, exactly: bool = False) -> np.ndarray:
        """Take out the mean of each query, in place, float32 `[m, b]`.

        Args:
          columns: Columns.
          exactly: If True, sum in double precision: the longest walks multiply errors of means by a
            thousand. Defaults to False.
        """
        if exactly:
            means = (self._mean @ columns.astype(np.float64)).astype(np.float32)
        else:
            means = self._mean_single @ columns
        columns -= self._hot @ means
        return columns

    def _eigenvalues(self) -> tuple[float, float]:
        """Estimate the least and the greatest one, by Lanczos' method."""
        # A fixed seed is safe: the rows are public.
        start = np.random.default_rng(0).standard_normal((self.similarity.shape[0], 1))
        now = self.centered(start.astype(np.float32))
        now /= max(np.linalg.norm(now), 1e-30)
        before = np.zeros_like(now)
        diagonal, off = [], [0.0]
        for _ in range(LANCZOS_STEPS):
            after = self.centered(self.similarity @ now) - np.float32(off[-1]) * before
            diagonal.append(float(np.vdot(after, now)))
            after -= np.float32(diagonal[-1]) * now
            off.append(float(np.linalg.norm(after)))
            if off[-1] < 1e-4:
                break
            before, now = now, after / np.float32(off[-1])
        values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, off[1:-1])
        doubt = off[-1] * np.abs(vectors[-1])
        return max(values[0] - doubt[0], -1.0), min(values[-1] + doubt[-1], 1.0)

    def step(
        self,
        now: np.ndarray,
        before: np.ndarray,
        scale: float,
        sums: list[np.ndarray],
        terms: np.ndarray,
    ) -> float:
        """Write 2 (PSP - middle) / half · now - scale · before over `before`, float32 `[m, b]`.

        Args:
          now: Columns whose mean is 0 in each query.
          before: The same.
          scale: Factor.
          sums: Arrays that gain their term times the result.
          terms: The terms.

        Returns:
          Sum of the squares of the result.
        """
        if self._native is not None:
            return self._native.step(now, before, scale, sums, terms)
        before *= np.float32(-scale)
        before += self._doubled @ now
        flat = self.centered(before).ravel()
        for term, part in zip(terms, sums, strict=True):
            part += np.float32(term) * before
        return float(flat @ flat)


def _tied(
    moves: _Moves, direct: scipy.sparse.csc_matrix
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return aT, float16 `[m, s]`, and (SH)ᵀ aT, float64 `[s, s]`, of all lengths of walks."""
    num_rows, num_queries = direct.shape
    tied = [np.empty(direct.shape, np.float16) for _ in WALKS]
    indirect = [np.empty((num_queries, num_queries)) for _ in WALKS]
    step = public_side.padded(min(num_queries, max(1, CELLS_AT_ONCE // num_rows)))
    for first in range(0, num_queries, step):
        columns = slice(first, first + step)
        given = direct[:, columns].toarray()
        start = np.zeros((num_rows, public_side.padded(given.shape[1])), np.float32)
        start[:, : given.shape[1]] = given
        moves.centered(start)
        solved = _solved(moves, start)
        if solved is None:
            moves.take_range(-1.0, 1.0)  # no eigenvalue of a graph is outside
            solved = _solved(moves, start)
        assert solved is not None
        for i, part in enumerate(solved):
            found = part[:, : given.shape[1]]
            tied[i][:, columns] = found
            indirect[i][:, columns] = direct.T @ found
    return tied, indirect


def _solved(moves: _Moves, start: np.ndarray) -> list[np.ndarray] | None:
    """Return a (1 - a PSP)⁻¹ start for all a in `WALKS`, float32 `[m, b]`.

    None if the range of the eigenvalues turns out to be wider.

    Args:
      moves: Map PSP.
      start: Columns whose mean is 0 in each query, float32 `[m, b]`.
    """
    # 1/(z - t) = 2 (z² - 1)^-½ Σ' (z + (z² - 1)^½)^-k T_k(t), with half the first term.
    outside = np.maximum((1 / np.array(WALKS) - moves.middle) / moves.half, 1 + 1e-6)
    root = np.sqrt(outside**2 - 1)
    terms = 2 / (moves.half * root)
    ratio = outside + root
    length = float(np.linalg.norm(start))
    before, now = np.zeros_like(start), start / 2
    sums = [np.float32(term) * now for term in terms]
    for number in range(MOST_STEPS):
        terms = terms / ratio
        # T_{k+1}(t) = 2t T_k(t) - T_{k-1}(t), of which T_0 is halved here.
        squares = moves.step(now, before, SCALES[min(number, 2)], sums, terms)
        before, now = now, before
        if moves.half < 1 and np.sqrt(squares) > GROWTH * length:
            return None
        if np.max(terms / (1 - 1 / ratio)) * np.sqrt(squares) <= TOLERANCE * length:
            break
    return [moves.centered(part, exactly=True) for part in sums]

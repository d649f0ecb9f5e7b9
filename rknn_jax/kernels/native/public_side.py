"""Walks and radial kernels of the decoder's public side, by the native kernels."""

import ctypes
import functools
import warnings

import numpy as np
import scipy.sparse

from rknn_jax.kernels import native

WIDTH = 16
"""Columns come in multiples of this number."""


def padded(count: int) -> int:
    """Return the least allowed number of columns that holds `count`."""
    return -(-count // WIDTH) * WIDTH


class Graph:
    """Weights between rows, with the rows of a query together.

    Args:
      weights: float32 `[m, m]`.
      first: First row of each query, and the number of rows, int64 `[s + 1]`.
    """

    def __init__(self, weights: scipy.sparse.csr_matrix, first: np.ndarray) -> None:
        self._starts = np.ascontiguousarray(weights.indptr, np.int32)
        self._columns = np.ascontiguousarray(weights.indices, np.int32)
        self._weights = np.ascontiguousarray(weights.data, np.float32)
        self._first = np.ascontiguousarray(first, np.int64)

    def step(
        self,
        now: np.ndarray,
        before: np.ndarray,
        scale: float,
        sums: list[np.ndarray],
        terms: np.ndarray,
    ) -> float:
        """Write weights · now - scale · before, less the means of queries, over `before`.

        Args:
          now: float32 `[m, b]` in C order, as are the others; b is a multiple of `WIDTH`.
          before: float32 `[m, b]`.
          scale: Factor.
          sums: Three arrays that gain their term times the result, float32 `[m, b]`.
          terms: The terms, `[3]`.

        Returns:
          Sum of the squares of the result.
        """
        terms = np.ascontiguousarray(terms, np.float32)
        found: float = _library().rknn_walk_step(
            self._starts.ctypes.data,
            self._columns.ctypes.data,
            self._weights.ctypes.data,
            self._first.ctypes.data,
            len(self._first) - 1,
            now.shape[1],
            scale,
            now.ctypes.data,
            before.ctypes.data,
            _addresses(sums),
            terms.ctypes.data,
        )
        return found


def radial_means(
    minus: np.ndarray, own: np.ndarray, first: np.ndarray, steep: float
) -> list[np.ndarray]:
    """Return the means over the landmarks of each query of three radial kernels.

    Args:
      minus: Negative squared distances and `own`, float32 `[l, b]`; b is a multiple of `WIDTH`.
      own: What is taken from all numbers of a landmark, float32 `[l]`.
      first: First landmark of each query, and the number of landmarks, int64 `[s + 1]`.
      steep: Factor of the distances of the second kernel, of which the first is the cube. That of
        the third is 1.

    Returns:
      float32 `[s, b]` each.
    """
    found = [np.empty((len(first) - 1, minus.shape[1]), np.float32) for _ in range(3)]
    minus, own = (np.ascontiguousarray(each, np.float32) for each in (minus, own))
    first = np.ascontiguousarray(first, np.int64)
    _library().rknn_radial_means(
        minus.ctypes.data,
        own.ctypes.data,
        first.ctypes.data,
        len(first) - 1,
        minus.shape[1],
        steep,
        _addresses(found),
    )
    return found


@functools.cache
def runs() -> bool:
    """Return whether the library is here and agrees with NumPy on a small problem."""
    found = native.load()
    if found is None or not hasattr(found, "rknn_radial_means"):
        return False
    if _agrees():
        return True
    warnings.warn(
        "The native kernels of the public side are not used: their results are not NumPy's.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _agrees() -> bool:
    rng = np.random.default_rng(0)
    now, before, minus = (rng.standard_normal((40, 2 * WIDTH), np.float32) for _ in range(3))
    first = np.array([0, 9, 9, 40])
    weights = scipy.sparse.random_array((40, 40), density=0.2, rng=rng, dtype=np.float32).tocsr()
    hot = np.repeat(np.eye(3), np.diff(first), axis=0)
    means = (hot / np.maximum(hot.sum(axis=0), 1)).T
    expected = weights @ now - 2 * before
    expected = expected - hot @ (means @ expected)
    sums = [np.zeros_like(now) for _ in range(3)]
    square = Graph(weights, first).step(now, before, 2, sums, np.arange(3))
    steps = np.allclose([before, *sums], [expected * each for each in (1, 0, 1, 2)], atol=1e-5)
    apart = np.minimum(minus - now[:, 0, None], 0)
    kernels = [means @ np.exp(factor * apart) for factor in (15, 5, 1)]
    found = radial_means(minus, now[:, 0], first, 5)
    near = np.isclose(square, np.sum(expected**2), rtol=1e-5)
    return bool(steps and near and np.allclose(found, kernels, atol=1e-5))


def _addresses(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))


def _library() -> ctypes.CDLL:
    found = native.load()
    assert found is not None, "callers ask `runs` first"
    address, size, number = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
    found.rknn_walk_step.argtypes = [*[address] * 4, size, size, number, *[address] * 4]
    found.rknn_walk_step.restype = ctypes.c_double
    found.rknn_radial_means.argtypes = [address, address, address, size, size, number, address]
    found.rknn_radial_means.restype = None
    return found

"""Cholesky factors in place. NumPy's transpose the matrix on the way, which takes longer."""

import numpy as np
import scipy.linalg


def factored(matrix: np.ndarray) -> np.ndarray:
    """Return the lower factor of a symmetric matrix `[s, s]`, float32 or float64, over it.

    Args:
      matrix: Matrix in C order, which is overwritten.

    Raises:
      numpy.linalg.LinAlgError: If the matrix is not positive definite.
    """
    found: np.ndarray = scipy.linalg.cholesky(
        matrix.T, lower=True, overwrite_a=True, check_finite=False
    )
    return found


def positive(matrix: np.ndarray) -> np.ndarray:
    """Return a symmetric matrix with so much on its diagonal that it is positive definite.

    Covariances of rows whose distances are mostly rounding may not be.

    Raises:
      numpy.linalg.LinAlgError: If a number is not finite.
    """
    lift = float(np.finfo(np.float32).eps) * float(np.abs(np.diag(matrix)).mean())
    while np.isfinite(lift):
        found = with_diagonal(matrix, lift)
        try:
            factored(found.copy())
        except np.linalg.LinAlgError:
            lift *= 2
        else:
            return found
    raise np.linalg.LinAlgError("a covariance is not finite")


def whitened(factor: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the columns times the inverse of a lower factor."""
    found: np.ndarray = scipy.linalg.solve_triangular(
        factor, columns, lower=True, check_finite=False
    )
    return found


def solved(factor: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the columns times the inverse of the matrix that has a lower factor."""
    found: np.ndarray = scipy.linalg.cho_solve((factor, True), columns, check_finite=False)
    return found


def with_diagonal(matrix: np.ndarray, values: np.ndarray | float) -> np.ndarray:
    """Return a copy in C order with values added to the diagonal, of the same type."""
    found = np.array(matrix, order="C")
    np.einsum("ii->i", found)[:] += np.asarray(values, matrix.dtype)
    return found

"""Nearest references of points in NumPy, by the native kernel of `nearest.cc`."""

import ctypes
import operator
import weakref
from typing import Any, Literal

import numpy as np

from rknn_jax.kernels import native

Form = Literal["floats", "words", "bytes"]
"""Form of the first product: float32, or integers of about eleven or of eight bits."""

FORMS: tuple[Form, ...] = ("floats", "words", "bytes")

FEWEST_FEATURES = 5  # for words; of fewer, rounding a point takes longer than products save
FEWEST_REFERENCES = (40, 100)  # for words, if there is one neighbor and if there are several
LEAST_WORK = 6_000  # features of all references to a neighbor, below which words do not pay
FEWEST_FOR_BYTES = 600  # references to a neighbor; of fewer, bytes leave too many candidates
FEWEST_FEATURES_FOR_BYTES = 100
USUAL_FEATURES = 512  # above which bytes leave more candidates


class References:
    """References, prepared for `nearest`, which several threads may call.

    Args:
      rows: float32 `[s, f]`, finite or not.
      num_neighbors: Number of neighbors k, at most s.
      form: Form of the product. Defaults to the one that is fastest on Gaussian points.
      overflow: If True, distances may overflow float32. Then a reference that is far away takes no
        neighbor from any point, as private references must not. Defaults to False.
    """

    def __init__(
        self,
        rows: np.ndarray,
        num_neighbors: int,
        form: Form | None = None,
        *,
        overflow: bool = False,
    ) -> None:
        self._rows = np.ascontiguousarray(rows, np.float32)  # the kernel reads them
        self._num_neighbors = operator.index(num_neighbors)
        self._made_by = (form, overflow)
        if not 1 <= self._num_neighbors <= len(self._rows):
            raise ValueError(
                f"Expected 1 <= num_neighbors <= {len(self._rows)} references, got "
                f"num_neighbors={num_neighbors}."
            )
        self._library = _library()
        count, width = self._rows.shape
        code = FORMS.index(form or best_form(count, width, self._num_neighbors))
        self._prepared = self._library.rknn_prepare(
            self._rows.ctypes.data, count, width, self._num_neighbors, code, overflow
        )
        if not self._prepared:
            raise MemoryError(f"Not enough memory to prepare {count:,} references.")
        weakref.finalize(self, self._library.rknn_release, self._prepared)

    def nearest(self, points: np.ndarray) -> np.ndarray:
        """Return the numbers of the nearest references, int32 `[n, k]`, nearest first.

        Args:
          points: float32 `[n, f]`.

        Returns:
          The order is float64's, ties by the lowest number. A row is -1 if a feature is not finite
          or, without `overflow`, a distance overflows float32.
        """
        points = np.ascontiguousarray(points, np.float32)
        if points.ndim != 2 or points.shape[1] != self._rows.shape[1]:
            raise ValueError(
                f"Expected points [n, {self._rows.shape[1]}] as wide as the references, got "
                f"{points.shape}."
            )
        index = np.empty((len(points), self._num_neighbors), np.int32)
        solved = self._library.rknn_nearest(
            self._prepared, points.ctypes.data, len(points), index.ctypes.data
        )
        if not solved:
            raise MemoryError(f"Not enough memory to find neighbors of {len(points):,} points.")
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        """Have copies prepare their own references, which are released one by one."""
        return _again, (self._rows, self._num_neighbors, *self._made_by)


def _again(rows: np.ndarray, num_neighbors: int, form: Form | None, overflow: bool) -> References:
    return References(rows, num_neighbors, form, overflow=overflow)


def best_form(num_references: int, width: int, num_neighbors: int) -> Form:
    """Return the form for s references, f features and k neighbors.

    It is the fastest on Gaussian points, or nearly so. Bytes leave candidates in proportion to the
    neighbors, so it takes many references until they pay. With AVX2, words stand for them.
    """
    crowd = num_neighbors * max(1.0, width / USUAL_FEATURES)
    if width >= FEWEST_FEATURES_FOR_BYTES and num_references >= FEWEST_FOR_BYTES * crowd:
        return "bytes"
    several = num_neighbors > 1
    if width < FEWEST_FEATURES or num_references < FEWEST_REFERENCES[several]:
        return "floats"
    # With AVX-512, float32 is faster.
    work = LEAST_WORK * (2 if several and native.processor() == "avx512" else 1)
    return "words" if num_references * width >= work * num_neighbors else "floats"


def agrees() -> bool:
    """Compare every form with float64 on a small problem that has ties and a point far away."""
    rng = np.random.default_rng(0)
    points, references = (rng.standard_normal((count, 70), np.float32) for count in (100, 90))
    references[60:] = references[:30]
    points[7] *= 1e4
    apart = points[:, None].astype(np.float64) - references[None]
    expected = np.argsort((apart**2).sum(axis=2), axis=1, kind="stable")
    for num_neighbors in (1, 4):
        for form in FORMS:
            found = References(references, num_neighbors, form).nearest(points)
            if not np.array_equal(found, expected[:, :num_neighbors]):
                return False
    return True


def _library() -> ctypes.CDLL:
    found = native.load()
    assert found is not None, "callers ask `kernels.chosen` first"
    address, size = ctypes.c_void_p, ctypes.c_long
    found.rknn_prepare.argtypes = [address, size, size, size, ctypes.c_int, ctypes.c_int]
    found.rknn_prepare.restype = address
    found.rknn_nearest.argtypes = [address, address, size, address]
    found.rknn_nearest.restype = ctypes.c_int
    found.rknn_release.argtypes = [address]
    found.rknn_release.restype = None
    return found

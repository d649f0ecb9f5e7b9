"""Nearest references of points, by the native kernel of `nearest.cc`.

`References` takes NumPy arrays, which the kernel reads where they are: XLA would copy those that do
not begin at a multiple of 64 bytes, as most do. `nearest` is for traced functions.
"""

import ctypes
import operator
import weakref
from typing import Any, Literal

import jax
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
      form: Form of the first product. Defaults to the one that is fastest on Gaussian points. If
        it leaves many candidates of the first points, other forms are tried on later ones.
      cosine: If True, points are scaled to length 1, and the references are two columns wider than
        they, as `neighbors.nearest` scales them. Defaults to False.
      overflow: If True, distances may overflow float32. Then a reference that is far away takes no
        neighbor from any point, as private references must not. Defaults to False.
    """

    def __init__(
        self,
        rows: np.ndarray,
        num_neighbors: int,
        form: Form | None = None,
        *,
        cosine: bool = False,
        overflow: bool = False,
    ) -> None:
        self._rows = np.ascontiguousarray(rows, np.float32)  # the kernel reads them
        self._num_neighbors = operator.index(num_neighbors)
        self._made_by = (form, cosine, overflow)
        if not 1 <= self._num_neighbors <= len(self._rows):
            raise ValueError(
                f"Expected 1 <= num_neighbors <= {len(self._rows)} references, got "
                f"num_neighbors={num_neighbors}."
            )
        self._library = _library()
        count, width = self._rows.shape
        self._width = width - 2 if cosine else width  # of points
        code = FORMS.index(form or best_form(count, width, self._num_neighbors))
        self._prepared = self._library.rknn_prepare(
            self._rows.ctypes.data, count, width, self._num_neighbors, code, overflow, cosine
        )
        if not self._prepared:
            raise MemoryError(f"Not enough memory to prepare {count:,} references.")
        weakref.finalize(self, self._library.rknn_release, self._prepared)

    def nearest(self, points: np.ndarray, num_threads: int = 1) -> np.ndarray:
        """Return the numbers of the nearest references, int32 `[n, k]`, nearest first.

        Args:
          points: float32 `[n, f]`.
          num_threads: Number of threads that share the points. Defaults to the caller's alone.

        Returns:
          The order is float64's, ties by the lowest number. A row is -1 if a feature is not finite
          or, without `overflow`, a distance overflows float32.
        """
        points = np.ascontiguousarray(points, np.float32)
        if points.ndim != 2 or points.shape[1] != self._width:
            raise ValueError(
                f"Expected points [n, {self._width}], as the references are, got {points.shape}."
            )
        index = np.empty((len(points), self._num_neighbors), np.int32)
        solved = self._library.rknn_nearest_of_arrays(
            self._prepared, points.ctypes.data, len(points), index.ctypes.data, num_threads
        )
        if not solved:
            raise MemoryError(f"Not enough memory to find neighbors of {len(points):,} points.")
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        """Have copies prepare their own references, which are released one by one."""
        return _again, (self._rows, self._num_neighbors, *self._made_by)


def _again(
    rows: np.ndarray, num_neighbors: int, form: Form | None, cosine: bool, overflow: bool
) -> References:
    return References(rows, num_neighbors, form, cosine=cosine, overflow=overflow)


def nearest(
    points: jax.Array, rows: jax.Array, num_neighbors: int, *, cosine: bool = False
) -> jax.Array:
    """Return what `References.nearest` does, in a function that may be traced or mapped.

    Args:
      points: float32 `[n, f]`.
      rows: References, float32 `[s, f]`.
      num_neighbors: Number of neighbors k, at most s.
      cosine: As in `References`.
    """
    result = jax.ShapeDtypeStruct((len(points), num_neighbors), np.int32)
    num_references, width = rows.shape
    form = FORMS.index(best_form(num_references, width, num_neighbors))
    # Numbers of references have no gradients, and functions of them may be differentiated.
    given = jax.lax.stop_gradient((points, rows))
    settings = {"form": np.int32(form), "cosine": np.bool_(cosine)}
    # Arrays that are not mapped keep one copy, which the kernel reads for all.
    index: jax.Array = native.call(
        "rknn_nearest", result, *given, vmap_method="expand_dims", **settings
    )
    return index


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
    found.rknn_prepare.argtypes = [address, size, size, size, *[ctypes.c_int] * 3]
    found.rknn_prepare.restype = address
    found.rknn_nearest_of_arrays.argtypes = [address, address, size, address, size]
    found.rknn_nearest_of_arrays.restype = ctypes.c_int
    found.rknn_release.argtypes = [address]
    found.rknn_release.restype = None
    return found

"""Arrays of a Python caller as public rows and private records."""

from dataclasses import replace

import jax
import numpy as np

from rknn_jax.labelers import _persons
from rknn_jax.neighbors import check_finite, usable_rows
from rknn_jax.queries import kmeans
from rknn_jax.types import Array, Queries, Records


def checked(
    public: Array, private: Array, labels: Array, num_classes: int, person: Array | None
) -> tuple[np.ndarray, Records]:
    """Return the public rows, float32 `[m, f]`, and the private records.

    A private row that `usable_rows` marks becomes zeros without a label, as records without a class
    cast no vote.

    Args:
      public: Public features `[m, f]`.
      private: Private features `[n, f]`.
      labels: Private labels, integers `[n]`. Those outside `[0, num_classes)` become -1.
      num_classes: Number of classes |Y|.
      person: Name of each private row's person, integers or strings `[n]`, or None.

    Raises:
      ValueError: If the arrays do not fit each other or have masks, or the labels are no integers.
    """
    given = {"public": public, "private": private, "labels": labels, "person": person}
    for name, array in given.items():
        if np.ma.isMaskedArray(array):
            raise ValueError(
                f"Expected an array without a mask in {name}, got a masked one; fill it, such as "
                f"by {name}.filled(numpy.nan), or -1 for labels."
            )
        if name in ("public", "private") and np.asarray(array).dtype.kind in "OUSTcmM":
            raise ValueError(
                f"Expected numbers in {name}, got an array of {np.asarray(array).dtype}; pass "
                f"{name}.astype(float)."
            )
    public = np.asarray(public, np.float32)
    private = np.asarray(private)
    labels = np.asarray(labels)
    if public.ndim != 2 or labels.ndim != 1 or private.shape != (len(labels), public.shape[1]):
        raise ValueError(
            "Expected public [m, f], private [n, f] and labels [n], got shapes "
            f"{public.shape}, {private.shape} and {labels.shape}."
        )
    if labels.dtype.kind not in "iu" or not len(labels):
        raise ValueError(
            f"Expected integer labels of one private row or more, got {labels.dtype} "
            f"{labels.shape}; number the classes from 0."
        )
    check_finite("public", public)
    private = usable_rows(private)
    clients = None if person is None else _persons.as_numbers(person, len(private))
    finite = np.asarray(np.isfinite(private).all(axis=1))
    usable = finite & (labels >= 0) & (labels < num_classes)
    known = np.where(usable, labels, -1).astype(np.int32)
    return public, Records(np.where(finite[:, None], private, 0), known, clients)


def ask(key: jax.Array, public: np.ndarray, num_queries: int | None) -> Queries:
    """Return clusters of the public rows as queries, or each row alone.

    Args:
      key: Random key, which is consumed.
      public: Public features, float32 `[m, f]`.
      num_queries: Number of clusters, or None for each row alone.
    """
    if num_queries is None:
        queries = Queries.alone(public, np.arange(len(public)))
    else:
        queries = kmeans.select(key, public, num_queries)
    return replace(queries, images=public[queries.index])

"""Labels and rows of a Python caller: lists, arrays, series and frames, as `labels` takes them.

No content of a single record raises an error, because the error would reveal that record.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from rknn_jax.records.classes import MISSING_WORDS, infer_classes, number_of

_NO_CLASS = "\ufffd"
"""Text that is no class, for what cannot be read."""


def single(y: ArrayLike, classes: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, one a record, and the classes.

    Returns:
      `(labels, classes)`: labels `[n]` for `labels.encode`, and the sorted classes `[num_classes]`.

    Raises:
      ValueError: If the labels are numbers, and the classes are names without a number.
    """
    labels = column_or_1d(np.asarray(y, dtype=None if hasattr(y, "dtype") else object))
    if classes is not None:
        known = sorted_classes(classes)
        if labels.dtype.kind in "biuf" and all(number_of(str(name)) is None for name in known):
            raise ValueError(
                f"Expected labels that are classes, such as {str(known[0])!r}, got {labels.dtype}; "
                "nothing was spent. Pass the names of the classes, not their numbers."
            )
        return labels, known
    values = [label for label in labels.tolist() if not _is_missing(label)]
    known = sorted_classes(values)
    if known.dtype.kind == "U":
        infer_classes(known)  # refuses text such as 'nan', which may be no class
    return labels, known


def several(y: Any, classes: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return labels of records that may have several, and all classes in the given order.

    Args:
      y: Indicator matrix of numbers or bool `[n, num_classes]`, whose columns are the classes in
        their order, dense or sparse; or a list, tuple, set or array of classes for each record. A
        list of lists of 0 and 1 is read as classes, so pass an array.
      classes: All classes.

    Returns:
      `(labels, classes)`: a mask, bool `[n, num_classes]`, or lists as objects `[n]`, both for
      `labels.encode`; and the classes `[num_classes]`.

    Raises:
      ValueError: If an indicator matrix has other columns.
    """
    plain = np.asarray(classes, dtype=object).tolist()
    known = np.array(plain)
    if len(sorted_classes(classes)) < len(plain):
        raise ValueError(f"Expected every class once, got classes={plain}.")
    columns = getattr(y, "columns", None)
    if columns is not None and list(columns) != plain:
        raise ValueError(
            f"Expected the columns of y to be the classes in their order, got {list(columns)[:5]}; "
            "pass y[classes]."
        )
    matrix = y.toarray() if issparse(y) else y if isinstance(y, list | tuple) else np.atleast_1d(y)
    if isinstance(matrix, np.ndarray) and matrix.ndim == 2:
        kind = matrix.dtype.kind
        if kind in "biuf" and matrix.shape[1] != len(plain):
            raise ValueError(
                f"Expected an indicator matrix [n, {len(plain)}], a column a class, got shape "
                f"{matrix.shape}; pass lists of classes otherwise."
            )
        if kind in "biuf":
            return matrix > 0, known
        if columns is not None:  # of several types, or bool with missing values
            names = [str(name) for name in plain]
            rows = [
                [_indicated(cell, name) for cell, name in zip(row, names, strict=True)]
                for row in matrix
            ]
            return _lists(rows), known
        if kind == "O" and matrix.shape[1] == len(plain):
            raise ValueError(
                "Expected an indicator matrix of numbers or bool, or lists of classes, got objects "
                f"of shape {matrix.shape}, which may be either; pass y.astype(float), or "
                "y.tolist() for lists."
            )
    return _lists(list(matrix)), known


def _lists(rows: Sequence[Any]) -> np.ndarray:
    """Return lists as objects `[n]`, of any lengths."""
    found = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        found[place] = row
    return found


def _indicated(cell: Any, name: str) -> str | None:
    """Return the name if the cell of an indicator has the class."""
    try:
        return name if not _is_missing(cell) and cell > 0 else None
    except Exception:  # an error would reveal the record, whatever it holds
        return _NO_CLASS


def numbers_of(row: Any, width: int) -> np.ndarray:
    """Return a row as float64 `[width]`, or NaN if it does not hold `width` numbers."""
    try:
        numbers = np.asarray(row, dtype=np.float64)
    except Exception:  # an error would reveal the record
        numbers = np.empty(0)
    return numbers if numbers.shape == (width,) else np.full(width, np.nan)


def sorted_classes(values: ArrayLike) -> np.ndarray:
    """Return the distinct class values, text or numbers, sorted."""
    plain = np.asarray(values, dtype=object).tolist()
    if len({isinstance(value, str) for value in plain}) > 1:
        raise ValueError(
            "Expected classes and labels to be all text or all numbers, got both; write them alike."
        )
    distinct = np.unique(np.array(plain))
    check_classification_targets(distinct)
    return distinct


def _is_missing(label: Any) -> bool:
    try:
        if isinstance(label, str):
            return not label.strip()
        return str(label).lower() in MISSING_WORDS or bool(label < 0)
    except Exception:  # an error would reveal the record
        return False


def check_aligned(rows: ArrayLike, **columns: ArrayLike | None) -> None:
    """Raise ValueError if data frames name rows differently, as then labels would be mixed up.

    Args:
      rows: Private rows.
      columns: Labels and persons of the rows, by their names; None and arrays have no index.
    """
    index = _index_of(rows)
    for name, column in columns.items():
        other = _index_of(column)
        if index is not None and other is not None and not index.equals(other):
            raise ValueError(
                f"Expected {name} with the index of X, got another index; nothing was spent. "
                f"Join them by it, such as {name}.loc[X.index], or pass .to_numpy() of both if "
                "their order is right."
            )


def _index_of(values: ArrayLike | None) -> Any:
    """Return the index of a data frame or series of pandas, or None."""
    index = getattr(values, "index", None)
    return index if hasattr(index, "equals") else None

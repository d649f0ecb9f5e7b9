"""Labels and rows that a Python caller gives, as class numbers and float rows.

No content of a single record raises an error, because the error would reveal that record.
"""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from rknn_jax.release import tables
from rknn_jax.release.tables import FOREIGN, MISSING

LISTS = (list, tuple, set, frozenset)
"""Types of a record's labels, if it may have several."""

NO_LABEL = ("None", "nan", "<NA>")
"""Results of `str` for missing values; among text the empty string marks a missing value."""


def class_ids(y: ArrayLike, classes: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """Return class numbers and classes.

    Returns:
      `(ids, classes)`: int32 `[n]` and the sorted classes `[num_classes]`. The number of a record
      without a label is `MISSING`, and of one with a label outside the classes `FOREIGN`.
    """
    labels = column_or_1d(np.asarray(y, dtype=object)).tolist()
    known = sorted_classes(
        [label for label in labels if not _is_missing(label)] if classes is None else classes
    )
    if classes is None and known.dtype.kind == "U":
        tables.infer_classes(known)  # refuses text such as 'nan', which may be no class
    number = {value: i for i, value in enumerate(known.tolist())}
    return np.array([_number_of(label, number) for label in labels], np.int32), known


def class_sets(y: Any, classes: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes of records that may have several, and all classes in the given order.

    Args:
      y: Indicator matrix of numbers or bool `[n, num_classes]`, whose columns are the classes in
        their order, dense or sparse; or a list, tuple, set or array of classes for each record. A
        list of lists of 0 and 1 is read as classes, so pass an array.
      classes: All classes.

    Returns:
      `(labels, classes)`: a mask, bool `[n, num_classes]`, or lists of class numbers as objects
      `[n]`, both for `label_lists.cast`; and the classes `[num_classes]`.

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
            rows = [[_indicated(cell, i) for i, cell in enumerate(row)] for row in matrix]
            return _lists(rows), known
        if kind == "O" and matrix.shape[1] == len(plain):
            raise ValueError(
                "Expected an indicator matrix of numbers or bool, or lists of classes, got objects "
                f"of shape {matrix.shape}, which may be either; pass y.astype(float), or "
                "y.tolist() for lists."
            )
    number = {value: i for i, value in enumerate(plain)}
    rows = [[_number_of(label, number) for label in _several(each)] for each in matrix]
    return _lists(rows), known


def _lists(rows: Sequence[list[int]]) -> np.ndarray:
    """Return lists as objects `[n]`, of any lengths."""
    found = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        found[place] = row
    return found


def _several(labels: Any) -> Iterable[Any]:
    """Return the labels of a record, which may be one."""
    if isinstance(labels, np.ndarray):
        return labels.ravel()
    return labels if isinstance(labels, LISTS) else (labels,)


def _indicated(cell: Any, number: int) -> int:
    """Return the class number if the cell of an indicator has the class; else as `_number_of`."""
    if _is_missing(cell):
        return MISSING
    try:
        return number if cell > 0 else MISSING
    except Exception:  # an error would reveal the record, whatever it holds
        return FOREIGN


def _number_of(label: Any, number: dict[Any, int]) -> int:
    """Return a label's class number, or `MISSING` or `FOREIGN` for anything that is no class."""
    try:
        found = number.get(label)
    except Exception:  # an error would reveal the record, whatever it holds
        return FOREIGN
    if found is not None:
        return found
    return MISSING if _is_missing(label) else FOREIGN


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
        return _says_nothing(label)
    except Exception:  # an error would reveal the record
        return False


def _says_nothing(label: Any) -> bool:
    return (
        not label.strip()
        if isinstance(label, str)
        else str(label) in NO_LABEL or (isinstance(label, Real) and label < 0)
    )


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

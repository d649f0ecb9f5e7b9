"""Labels and rows of a Python caller: lists, arrays, series and frames, as `labels` takes them.

No content of a single record raises an error, because the error would reveal that record. The type
of a column may (`column_types`).
"""

import warnings
from collections.abc import Mapping, Sequence, Set
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from rknn_jax._internal.panics import called
from rknn_jax.records.classes import MISSING_WORDS, infer_classes, scalar
from rknn_jax.records.code_points import in_unicode
from rknn_jax.records.column_types import (
    buffered,
    column_at,
    column_names,
    is_plain,
    is_text,
    refuse_numbers,
)
from rknn_jax.records.features import number

_NO_CLASS = "\ufffd"
"""Text that is not a class, for what cannot be read."""


def single(y: ArrayLike, classes: ArrayLike | None) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, one a record, and the classes.

    Returns:
      `(labels, classes)`: labels `[n]` for `labels.encode`, and the sorted classes `[num_classes]`.

    Raises:
      ValueError: If the labels are numbers by their type, and the classes are names without a
        number, or if two of them have one.
    """
    labels = column_or_1d(in_unicode(np.asarray(y))) if _is_typed(y) else column(y)
    if classes is not None:
        known = sorted_classes(classes)
        refuse_numbers(y, [str(name) for name in known])
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
        list of lists of 0 and 1 is read as classes, so pass an array. Of a frame, a cell that is no
        number above 0 has no label.
      classes: All classes.

    Returns:
      `(labels, classes)`: a mask, bool `[n, num_classes]`, or lists as objects `[n]`, both for
      `labels.encode`; and the classes `[num_classes]`.

    Raises:
      ValueError: If an indicator matrix has other columns, or if the labels are text by their type.
    """
    plain = np.asarray(classes, dtype=object).tolist()
    known = np.array(plain)
    if len(sorted_classes(classes)) < len(plain):
        raise ValueError(f"Expected every class once, got classes={plain}.")
    columns = column_names(y)
    names = [str(name) for name in plain]  # columns of Polars have no other names
    if columns is not None and columns not in (plain, names):
        raise ValueError(
            f"Expected the columns of y to be the classes in their order, got {columns[:5]}; "
            "pass y[classes]."
        )
    if columns is not None:
        every = [_indicators_in(column_at(y, place)) for place in range(len(columns))]
        return np.stack(every, axis=1), known
    matrix = _dense(y)
    kind = "text" if is_text(y) else ""
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind not in "biuf":
        kind = f"an array of {matrix.dtype}"
    if kind:
        # The lengths of lists decide the shape of an array of objects, so no shape is accepted. One
        # cell of text makes text of an indicator.
        raise ValueError(
            f"Expected an indicator matrix of numbers or bool, or lists of classes, got {kind}, "
            "which may be either; nothing was spent. Pass y.astype(float), or a list for each "
            "record, such as y.tolist(), with [name] for a single class."
        )
    if not isinstance(matrix, np.ndarray):
        return _lists(matrix), known
    if matrix.ndim == 2 and matrix.shape[1] != len(plain):
        raise ValueError(
            f"Expected an indicator matrix [n, {len(plain)}], a column a class, got shape "
            f"{matrix.shape}; pass lists of classes otherwise."
        )
    return (matrix > 0 if matrix.ndim == 2 else _lists(list(matrix))), known


def _dense(y: Any) -> Any:
    """Return labels as an array, or as a list if each of them stands for itself."""
    if issparse(y):
        return real(y.toarray())
    y = _listed(buffered(y))  # a series has no second axis, whatever its lists hold
    if isinstance(y, np.ma.MaskedArray) and y.ndim == 1:
        return y.tolist()  # with None for what is masked, and no float for a whole number
    y = unmasked(y)
    return _plain(np.atleast_1d(np.asarray(y))) if hasattr(y, "__array__") else list(y)


def _lists(rows: Sequence[Any]) -> np.ndarray:
    """Return lists as objects `[n]`, of any lengths."""
    found = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        found[place] = row
    return found


def _is_indicated(cell: Any) -> bool:
    """Return whether the cell of an indicator is a number above 0, or text of one, or "true".

    One cell decides whether a frame is read as numbers, as objects or as text, so all of them say
    the same of all other records.
    """
    if type(cell) in (bool, int, float):
        return bool(cell > 0)
    try:
        if isinstance(cell, str | bytes):
            return number(cell) > 0
        value = real(np.asarray(cell))
        plain = value.dtype.kind in "biuf" and not value.ndim
        exact = value.dtype.kind == "O" and isinstance(cell, Number)  # as a decimal
        return bool(value > 0) if plain else exact and bool(cell > 0)
    except Exception:  # an error would reveal the record, whatever it holds
        return False


def column(values: Any) -> np.ndarray:
    """Return one value a record as objects `[n]`, each as it is given.

    The shape of a frame or of an array of a type can be wrong. In a list and among objects, a value
    stands for itself, whatever the others are: a list of one value counts as that value.

    Args:
      values: Array, series, frame of one column, or a list of any objects.

    Raises:
      ValueError: If an array or frame has several columns.
    """
    values = _only_column(buffered(values))
    values = _listed(values)  # series, whose missing values make no floats
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()  # with None for what is masked, and no float for a whole number
    elif isinstance(values, np.ndarray):
        values = np.asarray(values)  # a row of a matrix is a matrix
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":  # as among objects
        with np.errstate(all="ignore"):  # a warning would tell of one
            values = values.astype(np.float64)
    cells = isinstance(values, np.ndarray) and values.dtype.kind in "Oc" and values.ndim > 0
    if hasattr(values, "__array__") and not cells:
        readable = in_unicode(values) if isinstance(values, np.ndarray) else values
        objects: np.ndarray = column_or_1d(np.asarray(readable, dtype=object))
        return objects
    return _lists([_only(value) for value in values])


def _listed(values: Any) -> Any:
    """Return a series or an array of Arrow as a list, and anything else as it is.

    Text of Arrow may be no Unicode, and an error would reveal the record. pandas makes floats of
    categories that are whole numbers, and True of a missing bool.
    """
    array = getattr(values, "array", values)
    if hasattr(array, "categories") and hasattr(array, "codes"):
        names = [*_listed(array.categories), None]
        return [names[code] for code in array.codes.tolist()]  # -1 is the last
    named = [name for name in ("to_list", "to_pylist") if hasattr(values, name)]
    if not named and (_of_numpy(values) or not hasattr(values, "__array__")):
        return values
    try:
        return called(getattr(values, named[0])) if named else list(values)
    except Exception:  # of one record or of several, whatever they hold
        places = values.iloc if hasattr(values, "iloc") else values
        return [_at(places, place) for place in range(len(values))]


def _at(values: Any, place: int) -> Any:
    """Return the value at a place, or text that is not a class if it cannot be read."""
    try:
        value = called(values.__getitem__, place)
        return value.as_py() if hasattr(value, "as_py") else value
    except Exception:  # an error would reveal the record, whatever it holds
        return _NO_CLASS


def _of_numpy(values: Any) -> bool:
    return isinstance(values, np.ndarray) or isinstance(getattr(values, "dtype", None), np.dtype)


def _is_typed(values: Any) -> bool:
    """Return whether NumPy reads values as they are: an array or series of a type of NumPy's.

    Others may have missing values, for which NumPy makes floats of all whole numbers. One complex
    number or one of bytes makes all others so.
    """
    dtype = getattr(values, "dtype", None)
    plain = isinstance(dtype, np.dtype) and dtype.kind not in "OcST"
    return plain and not isinstance(values, np.ma.MaskedArray)


def _only_column(values: Any) -> Any:
    """Return the column of a frame or table that has only one, and anything else as it is.

    Raises:
      ValueError: If a frame or table has none or several.
    """
    columns = column_names(values)
    if columns is None:
        return values
    if len(columns) != 1:
        raise ValueError(
            f"Expected one value a record, got a frame of {len(columns)} columns; pass one column."
        )
    return column_at(values, 0)


def _only(value: Any) -> Any:
    """Return the value of a list of one, or the value itself."""
    listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    value = value[0] if listed and len(value) == 1 else value
    try:
        return scalar(value)
    except Exception:  # an error would reveal the record, whatever it holds
        return _NO_CLASS


def rows_of(values: Any, width: int) -> np.ndarray:
    """Return rows of features as numbers `[n, f]`; a row of objects that holds no numbers is NaN.

    The type and shape of an array or frame can be wrong. In a list, and among objects and text, a
    row stands for itself, whatever the others are.

    Args:
      values: Array or frame of any type, or a list, tuple or other sequence of rows.
      width: Number of features f.

    Raises:
      ValueError: If an array is neither of numbers nor of text or objects, or has no rows.
    """
    columns = column_names(values)
    if columns is not None:
        every = [_numbers_in(column_at(values, place)) for place in range(len(columns))]
        return np.stack(every, axis=1)
    values = unmasked(buffered(values))
    held = hasattr(values, "__array__") or np.isscalar(values)
    cells = _plain(np.asarray(values)) if held else _lists(list(values))
    kind = cells.dtype.kind
    if kind not in "biufOUST" or cells.ndim not in (1, 2) or (cells.ndim == 1 and kind != "O"):
        raise ValueError(
            f"Expected a 2D array of numbers [n, {width}] in X, got shape {cells.shape} of dtype "
            f"{cells.dtype}; pass one row a record, such as X.reshape(-1, {width})."
        )
    if kind in "biuf":
        return cells
    with warnings.catch_warnings():  # a warning would reveal a row too
        warnings.simplefilter("ignore")
        rows = [numbers_of(row, width) for row in cells]
    return np.array(rows).reshape(len(cells), width)


def _numbers_in(column: Any) -> np.ndarray:
    """Return a column of a frame as numbers float64 `[n]`, NaN for what is none.

    A cell is the same number whatever the type of its column.
    """
    with warnings.catch_warnings():  # a warning would reveal a row
        warnings.simplefilter("ignore")
        plain = _plain_numbers(column)
        if plain is None:
            plain = np.array([number(cell) for cell in _listed(column)], np.float64)
    return plain


def _indicators_in(column: Any) -> np.ndarray:
    """Return which cells of a column indicate its class, bool `[n]`, whatever its type."""
    plain = _plain_numbers(column)
    cells = [_is_indicated(cell) for cell in _listed(column)] if plain is None else plain > 0
    return np.asarray(cells, bool)


def _plain_numbers(column: Any) -> np.ndarray | None:
    """Return a column of integers, floats or bools by its type as float64 `[n]`, with NaN for null.

    Others are None.
    """
    if not is_plain(column):
        return None
    try:
        if hasattr(column, "iloc"):
            found = column.to_numpy(dtype=np.float64, na_value=np.nan)
        elif hasattr(column, "to_pylist"):
            from pyarrow import compute  # whoever has such a column has the package

            found = compute.cast(column, "float64", safe=False).to_numpy(zero_copy_only=False)
        else:
            found = column.cast(float).to_numpy()
    except Exception:  # an error would reveal the record, whatever it holds
        return None
    return np.asarray(found, np.float64)


def _plain(values: np.ndarray) -> np.ndarray:
    """Return an array without complex numbers, bfloat16, or code points beyond Unicode."""
    if values.dtype.kind == "V" and np.can_cast(values.dtype, np.float32):  # bfloat16
        return values.astype(np.float32)
    return in_unicode(real(values))


def real(values: np.ndarray) -> np.ndarray:
    """Return complex numbers as real ones, NaN for those with an imaginary part.

    One complex cell makes the whole array or frame complex. Other arrays are returned as they are.
    """
    return np.where(values.imag == 0, values.real, np.nan) if values.dtype.kind == "c" else values


def unmasked(values: Any) -> Any:
    """Return an array with NaN, or None beside what is no number, for what a mask hides.

    NumPy and scikit-learn read what lies under the mask. Anything but a masked array is returned as
    it is.
    """
    if not isinstance(values, np.ma.MaskedArray) or values.dtype.names:
        return values
    if values.dtype.kind in "biuf":
        with np.errstate(all="ignore"):  # a warning would tell of one
            return np.ma.filled(values.astype(np.float64), np.nan)
    cells = values.data.astype(object)
    cells[np.ma.getmaskarray(values)] = None
    return cells


def numbers_of(row: Any, width: int) -> np.ndarray:
    """Return a row as float64 `[width]`, or NaN if it does not hold `width` numbers."""
    try:
        row = unmasked(row)
        cells = np.asarray(real(row) if isinstance(row, np.ndarray) else row)
        numbers = cells.astype(float) if cells.dtype.kind in "biuf" else _each_number(row)
    except Exception:  # an error would reveal the record
        numbers = _each_number(row)
    return numbers if numbers.shape == (width,) else np.full(width, np.nan)


def _each_number(row: Any) -> np.ndarray:
    if isinstance(row, Mapping | Set):  # its keys are no numbers, and have no order
        return np.empty(0)
    try:
        return np.array([number(cell) for cell in row])
    except Exception:  # an error would reveal the record
        return np.empty(0)


def sorted_classes(values: ArrayLike) -> np.ndarray:
    """Return the distinct class values, text or whole numbers, sorted.

    Raises:
      ValueError: If they are anything else, or both.
    """
    values = list(values) if isinstance(values, Set) else values
    plain = np.asarray(values, dtype=object).tolist()
    if len({isinstance(value, str) for value in plain}) > 1:
        raise ValueError(
            "Expected classes and labels to be all text or all numbers, got both; write them alike."
        )
    try:
        distinct = np.unique(np.array(plain))
        with warnings.catch_warnings():  # that there are as many classes as values
            warnings.simplefilter("ignore")
            check_classification_targets(distinct)
    except (TypeError, ValueError) as error:
        kinds = sorted({type(value).__name__ for value in plain})
        raise ValueError(
            "Expected classes and labels as text or as whole numbers of 64 bits, got "
            f"{', '.join(kinds)} of other values; pass text, such as [str(name) for name in "
            "classes], and the same of the labels."
        ) from error
    return distinct


def _is_missing(label: Any) -> bool:
    try:
        if isinstance(label, str):
            return not label.strip()
        return str(label).lower() in MISSING_WORDS or bool(label < 0)
    except Exception:  # an error would reveal the record
        return False


def name_of(person: Any, name: str | None) -> str:
    """Return the name of the persons, or "" if they have none.

    Args:
      person: Whose the records are. A series has a name, and so has a frame of one column.
      name: Name that the user gives, or None.

    Raises:
      ValueError: If the user gives another name than the series has.
    """
    columns = column_names(person)
    found = getattr(person, "name", None) if columns is None else next(iter(columns), None)
    own = "" if found is None else str(found)
    if name and own and name != own:
        raise ValueError(
            f"Expected person_name={own!r}, the name of person, got person_name={name!r}; rename "
            "the series if both name the same people."
        )
    return name or own


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

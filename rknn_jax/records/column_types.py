"""Types of the columns of frames, tables, series and arrays, and those that are refused.

A type is no record's, so it may raise an error, also where a program has guessed it from all cells.
The caller alone sees it, before anything is paid.
"""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from rknn_jax.records.classes import code_value, number_of

NUMBER_TYPES = ("int", "uint", "float", "double", "bool", "decimal", "sparse")
TIME_TYPES = ("date", "time", "duration", "period", "interval")
NESTED_TYPES = ("list", "array", "struct", "fixed_size_list", "large_list", "map")
"""Names of types of columns, or their beginnings, in small letters."""

_WORDS = (
    r"(large_)?(str|string|stringdtype|utf8|binary)(_view)?\b|[<>|=]?[us]\d|object|bytes|categorical|"
    r"enum|null|uuid|extension<arrow\.uuid|fixed_size_binary"
)
_VALUE = re.compile(
    rf"((large_|fixed_size_)?(list|array)(_view)?[(<](\w+: )?)*(dictionary<values=)?({_WORDS}|"
    r"(torch\.)?(u?int\d|b?float|double|half_?float|bool|complex|decimal))"
)
"""Labels, or sets of them."""

_PERSON = re.compile(
    rf"$|(?!fixed_size_binary\[8\])({_WORDS})|"
    r"(torch\.)?(u?int\d|float64|double|complex128)"
)
_INSIDE = re.compile(
    r"(?:sparse\[|dictionary<values=|run_end_encoded<run_ends: \w+, values: )([^,>]*)"
)
_TEXT = re.compile(r"(large_)?(str|string|utf8)(_view)?\b")
_PLAIN = re.compile(r"(u?int\d+|float(16|32|64)?|double|half_?float|bool(ean)?)(\[pyarrow\])?")


def column_at(frame: Any, place: int) -> Any:
    """Return a column of a frame or table."""
    if hasattr(frame, "iloc"):
        return frame.iloc[:, place]
    named = hasattr(frame, "column_names")
    return frame.column(place) if named else frame[frame.columns[place]]


def column_names(values: Any) -> list[Any] | None:
    """Return the names of the columns of a frame or table, or None for anything else.

    The `columns` of a table of Arrow are its values.
    """
    # Of the class: those of a series of pandas are values too, by the names of records.
    names = [name for name in ("column_names", "columns") if hasattr(type(values), name)]
    return list(getattr(values, names[0])) if names else None


def buffered(values: Any) -> Any:
    """Return what a memoryview or another buffer holds as an array, and anything else as it is.

    So is what has no rows of its own, but an `__array__`.
    """
    if isinstance(values, str | bytes) or hasattr(values, "dtype"):
        return values
    rows = hasattr(type(values), "__iter__") or hasattr(type(values), "__getitem__")
    if hasattr(values, "__array__") and not rows:
        return np.asarray(values)
    try:
        return np.asarray(memoryview(values))
    except (TypeError, ValueError, NotImplementedError):
        return values


def is_text(values: Any) -> bool:
    """Return whether values, or a column of theirs, are text by their type."""
    return any(_TEXT.match(kind) for _, kind in _kinds(values))


def is_plain(column: Any) -> bool:
    """Return whether a series or array holds integers, floats or bools by its type."""
    kind = str(getattr(column, "dtype", getattr(column, "type", "")))
    return bool(_PLAIN.fullmatch(kind.lower()))


def refuse_unread(**given: Any) -> None:
    """Raise ValueError if values have no rows in an order, by their type.

    These are a query that has not run, such as a lazy frame of Polars, and a dict or a set.

    Args:
      given: Rows or columns, by their names.
    """
    for name, held in given.items():
        if isinstance(held, Mapping | Set) and not hasattr(held, "dtype"):  # sparse arrays may be
            raise ValueError(
                f"Expected an array, a list or a frame in {name}, got {type(held).__name__}, which "
                "has no rows in an order; nothing was spent. Pass a list of them, or of a dict of "
                f"columns pandas.DataFrame({name})."
            )
        unread = hasattr(held, "collect") or hasattr(held, "fetchall")
        if unread and not hasattr(held, "__array__"):
            raise ValueError(
                f"Expected an array or a frame in {name}, got {type(held).__name__}, whose rows "
                f"are not read yet; pass its frame, such as {name}.collect(), or {name}.df() of "
                "DuckDB."
            )


def refuse_persons(person: Any) -> None:
    """Raise ValueError if persons are anything but whole numbers, floats of 64 bits, or text.

    Two people of one shorter float would have the votes of one. Among objects and in text, floats
    of all lengths look alike. Where a program reads times or structs, one cell can make text of all
    of them. Eight bytes are the place of an object of Polars.

    Args:
      person: Whose the records are, of which the type alone is read.
    """
    for _, kind in _kinds(person):
        if not _PERSON.match(kind):
            raise ValueError(
                f"Expected person as whole numbers or text, got {kind}; nothing was spent. Read "
                "them again as whole numbers, such as int64, or pass person.astype(str)."
            )


def refuse_columns(public: Any) -> None:
    """Raise ValueError if a public frame has columns of other types than numbers.

    Args:
      public: Array or frame.
    """
    if not (hasattr(public, "columns") and hasattr(public, "dtypes")):
        return
    others: dict[str, list[str]] = {}
    for place, (name, dtype) in enumerate(zip(public.columns, public.dtypes, strict=True)):
        kind = str(dtype).lower()
        if not kind.startswith(NUMBER_TYPES) and not _holds_numbers(public, place, kind):
            others.setdefault(kind, []).append(str(name))
    _refuse(others)


def refuse_private_columns(private: Any) -> None:
    """Raise ValueError if a private frame has columns of times or of nested values.

    No cell can have made a column of such a type, unless a program guessed the type. One of text
    may be numbers but for one record, whose row alone cannot be used then.

    Args:
      private: Array or frame, of which the types alone are read.
    """
    others: dict[str, list[str]] = {}
    for name, kind in _kinds(private):
        if kind.startswith(TIME_TYPES + NESTED_TYPES):
            others.setdefault(kind, []).append(name)
    _refuse(others)


def refuse_labels(y: Any) -> None:
    """Raise ValueError if labels are anything but numbers or text, or lists of them, by their type.

    Times and structs are text where one cell is, and then all values are others.

    Args:
      y: Labels, of which the type alone is read.
    """
    for _, kind in _kinds(y):
        if kind and not _VALUE.match(kind):
            raise ValueError(
                f"Expected y as text or numbers, got {kind}; nothing was spent. Pass "
                "y.astype(str), or the numbers in it."
            )


def refuse_numbers(y: Any, classes: Sequence[str]) -> None:
    """Raise ValueError if labels are numbers by their type, which cannot tell the classes.

    Args:
      y: Labels, of which the type alone is read.
      classes: Names of the classes.
    """
    for _, kind in _kinds(y):
        if not kind.startswith(NUMBER_TYPES):
            continue
        found: dict[float, str] = {}
        for name in classes:
            value = number_of(name)
            value = code_value(name) if value is None else value
            if value is None:
                continue
            other = found.setdefault(value, name)
            if other != name:
                raise ValueError(
                    f"Expected labels as text, got {kind}, where the classes {other!r} and "
                    f"{name!r} are one number; nothing was spent. Read the labels as text."
                )
        if not found:
            raise ValueError(
                f"Expected labels that are classes, such as {classes[0]!r}, got {kind}; nothing "
                "was spent. Pass the names of the classes, not their numbers."
            )


def _kinds(values: Any) -> list[tuple[str, str]]:
    """Return the names of columns and their types in small letters; of a series or array, one.

    Of categories, dictionaries and sparse arrays, it is the type of their values.
    """
    values = buffered(values)
    names = column_names(values)
    if names is None:
        return [("", _kind(getattr(values, "dtype", getattr(values, "type", ""))))]
    types = values.schema.types if hasattr(type(values), "column_names") else values.dtypes
    return [(str(name), _kind(kind)) for name, kind in zip(names, types, strict=True)]


def _kind(dtype: Any) -> str:
    if str(dtype) == "category":
        dtype = dtype.categories.dtype
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        dtype = dtype.newbyteorder("=")  # whose name tells no order of bytes
    kind = str(dtype).lower()
    inside = _INSIDE.match(kind)
    return inside[1] if inside else kind


def _refuse(others: dict[str, list[str]]) -> None:
    """Raise ValueError if there are columns of these types, each with the columns' names."""
    if others:
        told = [f"{names} of {kind} ({_remedy(kind)})" for kind, names in others.items()]
        raise ValueError(
            f"Expected columns of numbers in X, got {', '.join(told)}; leave them out, or make "
            "numbers of them on both sides."
        )


def _holds_numbers(frame: Any, place: int, kind: str) -> bool:
    """Return whether a column of objects, of text or of categories holds numbers alone."""
    if kind.startswith(TIME_TYPES):
        return False
    try:
        np.asarray(column_at(frame, place), dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return True


def _remedy(kind: str) -> str:
    """Return how numbers are made of columns of a type."""
    if kind.startswith(TIME_TYPES):
        return "such as days since a fixed date"
    if kind.startswith(NESTED_TYPES):
        return "a column for each number"
    return "such as one-hot columns by scikit-learn's OneHotEncoder"

"""Public columns that are carried along to the labels, whose numbers are often ids.

They are numbers where NumPy has a type that holds all of them as they are, and text otherwise: of
floats, two ids beyond 2**53 may be one number.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np


def numbers(values: Sequence[int | float | Decimal | None]) -> np.ndarray:
    """Return numbers as int64, uint64 or float64 `[m]`, or as text if that would change one.

    None and NaN are NaN among floats, and empty text.

    >>> numbers([2**60 + 1, None]).tolist()
    ['1152921504606846977', '']
    """
    if values and all(type(value) is int for value in values):
        for kind in (np.int64, np.uint64):
            bounds = np.iinfo(kind)
            if bounds.min <= min(values) and max(values) <= bounds.max:  # type: ignore[operator, type-var]
                return np.array(values, kind)
    if all(map(_is_float, values)):
        return np.array([np.nan if value is None else float(value) for value in values], float)
    return np.array([_text(value) for value in values], str)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the column of several files, whose parts are numbers or text `[...]` each."""
    kinds = {part.dtype.kind for part in parts}
    if len(kinds) == 1:
        return np.concatenate(parts)
    values = [value for part in parts for value in part.tolist()]
    if "U" not in kinds:
        return numbers(values)
    return np.array([value if isinstance(value, str) else _text(value) for value in values], str)


def _is_float(value: Any) -> bool:
    """Return whether a float is the same number, by its shortest text."""
    if value is None or isinstance(value, float) or value != value:
        return True
    try:
        return bool(Decimal(repr(float(value))) == value)
    except OverflowError:
        return False


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return format(value, "f") if isinstance(value, Decimal) else str(value)

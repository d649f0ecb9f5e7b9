"""Names of classes that nobody has named yet, by the labels alone.

A label's name depends on that label, and not on the type of the array or file that it is in. One
text among numbers makes text of them all in NumPy, and one missing value makes 1.0 of 1 in pandas.
"""

from typing import Any

import numpy as np

from rknn_jax.records.classes import MISSING_WORDS
from rknn_jax.records.code_points import in_unicode
from rknn_jax.records.labels import NUMBERED, WIDE, check_single, without_numbers

_WRITTEN = {"True": True, "False": False}
"""Bools as NumPy and pandas write them where one text makes text of all labels."""


def names_of(labels: np.ndarray, where: str) -> list[str]:
    """Return the class of each label by its name, "" for none, if the classes are not known yet.

    Each label is looked at by itself, and a number has one name in every type: its digits, as whole
    numbers have them. Text as programs write numbers is the number, so that 1, 1.0, True, "1",
    "1.0" and "True" are the class "1", and "01" and "1.00" are other ones. Missing values, the
    words for them and negative numbers are no class, and neither are lists and other objects.

    Args:
      labels: Labels as stored, `[n]`.
      where: Name of the shard, for the errors.

    Raises:
      ValueError: If the labels are stored in another shape or type.
    """
    check_single(labels, where)
    labels = in_unicode(labels)
    if labels.dtype.kind == "U":
        labels = without_numbers(labels)
    elif labels.dtype.kind == "f" and labels.dtype.itemsize < 8:
        labels = labels.astype(str).astype(np.float64)  # 0.1 stays 0.1
    known: dict[str | float, str] = {}  # labels repeat
    names = []
    for value in labels.tolist():
        if type(value) not in (str, int, float, bool):  # others may not be hashed
            names.append(_name_of(value))
            continue
        name = known.get(value)
        if name is None:
            name = known[value] = _name_of(value)
        names.append(name)
    return names


def _name_of(value: Any) -> str:
    """Return the name of one label's class, "" for none."""
    try:
        if not isinstance(value, str):
            return _name_of_number(value)
        text = value.partition(NUMBERED)[0].strip()
        if text.lower() in MISSING_WORDS:
            return ""
        return _name_of_number(_WRITTEN[text]) if text in _WRITTEN else _name_of_text(text)
    except Exception:  # an error would reveal the record, whatever it holds
        return ""


def _name_of_text(text: str) -> str:
    """Return a text, or the name of the number of which `str` makes this text."""
    if len(text) > WIDE or not text.isascii():
        return text
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text:
            return _name_of_number(number)
    return text


def _name_of_number(value: Any) -> str:
    """Return the digits of a number; "" if it is negative or not finite, or no number."""
    if isinstance(value, int | np.integer):
        return str(int(value)) if value >= 0 else ""
    number = float(value)
    if not 0 <= number < np.inf:
        return ""
    return str(int(number)) if number == int(number) else str(number)

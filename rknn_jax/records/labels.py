"""Labels as class numbers: one rule for files of every format, frames, arrays and lists.

A label is looked up among the names of the classes. If it is none of them and is a number, in any
type or in text, it is a class by its value where a name is a number too, and a class number
otherwise. So `--classes 1,2,3` are three names for the integers 1, 2, 3, and `--classes 10` or
`--classes cat,dog` count from 0. False and true are 0 and 1. Missing values and the words for them,
"" and negative numbers that name no class are missing. Everything else is foreign.

Several labels of a record are a mask, bool `[b, num_classes]`, labels `[b, l]`, text `[b]` with
`SEPARATOR` between names or of `mask_text`, or lists of labels as objects `[b]`.

Row i of a result depends on record i alone, and nothing of a single record raises an error, because
the error would reveal that record.
"""

import functools
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from rknn_jax import label_sets
from rknn_jax._internal.option_names import option
from rknn_jax.records.classes import (
    FOREIGN,
    LONGEST_LABEL,
    MISSING,
    MISSING_WORDS,
    MOST_LABELS,
    Classes,
    code_value,
    cut,
    number_of,
    scalar,
)
from rknn_jax.records.code_points import in_unicode

SEPARATOR = ";"
"""Sign between the names of several classes in one text."""

NUMBERED = "\x1f"
"""Sign between the name of a class and its number, in a column that declares both.

Such a label is a class by its name. If the classes have no names, or the numbers from 0 on as
names, it is a class by its number.
"""

WIDE = 32
"""Characters of the longest label from which on those of a client are stored each at its length."""

MASK = "\x01"
"""Beginning of text that stands for a mask of bools, in formats whose lists have no type."""

_MASK = re.compile(rf"{MASK}(\d{{1,9}})((?:{SEPARATOR}\d{{1,9}})*)", re.ASCII)

REMEDY = (
    "save a mask of bool [n, num_classes], a list column, names with ; between them, or class "
    "numbers [n, l] with -1 for none"
)


class Encoded(NamedTuple):
    """Labels of a block as class numbers: private.

    Attributes:
      ids: Class numbers int32 `[b]`, `MISSING` for a record that is not counted; or ballots int32
        `[b, r + 1]`, as `label_sets.ballots` returns them.
      told: int64 `[b]`, how often the owner is told of each record: 1 for a label, and of several
        labels 1, and 1 more if one does not count, because there are too many or it is foreign.
    """

    ids: np.ndarray
    told: np.ndarray


def encode(
    labels: np.ndarray,
    classes: Classes,
    most: int | None = None,
    where: str = "the labels",
) -> Encoded:
    """Return labels as class numbers.

    Args:
      labels: Labels as stored.
      classes: Set of classes.
      most: Most labels of a record that count, r. Defaults to None, one label a record.
      where: Name of the shard, for the errors.

    Raises:
      ValueError: If labels are stored in another shape or type.
    """
    lookup = _lookup(classes)
    labels = in_unicode(labels)
    if most is None:
        check_single(labels, where)
        numbers = lookup.array(labels)
        ids = np.where(numbers == FOREIGN, MISSING, numbers).astype(np.int32)
        return Encoded(ids, (numbers != MISSING).astype(np.int64))
    numbers = _several(labels, lookup, where)
    ballots = label_sets.ballots(numbers, classes.count, most)
    counted = numbers == MISSING
    for kept in ballots[:, :-1].T:
        counted |= numbers == kept[:, None]
    return Encoded(ballots, 1 + np.logical_not(counted.all(axis=1)))


def agree(classes: Classes, declared: Sequence[str], values: Sequence[str] = ()) -> bool:
    """Return False if labels have names that a file declares, of which none is one of the classes.

    Args:
      classes: Set of classes.
      declared: Names of the class numbers, in their order, or none.
      values: Numbers that are names of the classes. Defaults to none.
    """
    texts = [*named_numbers(declared), *values]
    return not texts or bool(np.any(encode(np.array(texts), classes).ids != MISSING))


def named_numbers(names: Sequence[str]) -> list[str]:
    """Return the labels that stand for the class numbers from 0, if a file declares their names.

    >>> named_numbers(["0", "1"])
    ['0', '1']
    """
    if [*names] == [str(number) for number in range(len(names))]:
        return [*names]  # numbers without names have these ones in `datasets`
    return [f"{name}{NUMBERED}{number}" for number, name in enumerate(names)]


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the labels of several blocks, each as it is.

    Arrays of one kind keep it, and others become objects. NumPy would make floats of integers
    beside them, so that one record of a block would round the labels of all others.
    """
    if len({part.dtype.kind for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)


class Text(str):
    """Label, or labels with `SEPARATOR` between them, that a file has as text."""

    __slots__ = ()


def whole(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the labels of all records, from those of blocks, each as `encode` takes it in its own.

    If one text is long, all are `Text` objects, for NumPy would store each of them as long. If some
    blocks have text and others do not, so are those that have.
    """
    text = [part for part in parts if part.dtype.kind == "U"]
    wide = any(part.dtype.itemsize > WIDE * np.dtype("U1").itemsize for part in text)
    several = any(part.ndim > 1 for part in parts)
    if several or not text or not (wide or len(text) < len(parts)):
        return joined(parts)
    known: dict[str, Text] = {}  # labels repeat
    found = []
    for part in parts:
        objects = in_unicode(part).astype(object)
        if part.dtype.kind == "U":
            objects[:] = [known.setdefault(label, Text(label)) for label in objects]
        found.append(objects)
    return np.concatenate(found)


def mask_text(mask: Sequence[bool]) -> str:
    """Return a record's mask as text: its length, and the places of the labels that it has.

    Of many labels, one more than `MOST_LABELS` is told.

    >>> mask_text([False, True, True])[1:]
    '3;1;2'
    """
    places = [place for place, has in enumerate(mask) if has]
    return SEPARATOR.join([f"{MASK}{len(mask)}", *map(str, places[: MOST_LABELS + 1])])


def check_types(
    empty: np.ndarray, classes: Classes, most: int | None, where: str, *, typed: bool
) -> None:
    """Raise ValueError if labels cannot be used, by their shape and type alone.

    Args:
      empty: The labels of no record, in the shape and type of the others.
      classes: Set of classes.
      most: As for `encode`.
      where: Name of the shard, for the errors.
      typed: Whether the format has types, so that text is no number.
    """
    if typed and empty.dtype.kind == "U" and classes.names is None:
        raise ValueError(
            f"Expected {option('classes')} to name the text labels in {where}, got "
            f"{option('classes')} {classes.count}; pass names, as in {option('classes')} a,b,c, or "
            f"{option('classes')} 0,1,2 for numbers in text."
        )
    encode(empty, classes, most, where)


def plain(labels: np.ndarray, where: str) -> np.ndarray:
    """Return labels whose classes are not known yet, one a record.

    Args:
      labels: Labels as stored.
      where: Name of the shard, for the errors.

    Returns:
      int64 `[n]`, `MISSING` if a record has no label and `FOREIGN` for a number that is not a class
      number; or text `[n]`, "" if a record has no label.

    Raises:
      ValueError: If the labels are stored in another shape or type.
    """
    check_single(labels, where)
    labels = in_unicode(labels)
    if labels.dtype.kind == "U":
        return np.char.strip(without_numbers(labels))
    if labels.dtype.kind == "O" and any(isinstance(value, str) for value in labels):
        return np.array([_text_of(value) for value in labels], str)
    if labels.dtype.kind == "O":
        labels = np.array([_float_of(value) for value in labels], np.float64)
    return _class_numbers(labels, FOREIGN)


def _text_of(value: Any) -> str:
    """Return a label as text, which is empty if it is missing."""
    try:
        text = "" if value is None else str(value).strip()
    except Exception:  # an error would reveal the record, whatever it holds
        return ""
    return "" if text.lower() in MISSING_WORDS and not isinstance(value, str) else text


def without_numbers(labels: np.ndarray) -> np.ndarray:
    """Return text labels without the class numbers that follow `NUMBERED`."""
    if not np.any(np.char.find(labels, NUMBERED) >= 0):
        return labels
    return np.char.partition(labels, NUMBERED)[..., 0]


def _float_of(value: Any) -> float:
    """Return a number as a float. What is missing or no number is NaN, which is missing."""
    try:
        return float(value)
    except Exception:  # an error would reveal the record, whatever it holds
        return float("nan")


def check_single(labels: np.ndarray, where: str) -> None:
    """Raise ValueError for labels that are not one a record, by their shape and type alone."""
    if labels.ndim != 1:
        raise ValueError(
            f"Expected labels [n] in {where}, got shape {_shape(labels)}; save one label a record, "
            f"or name the most labels of a record with {option('labels_per_record')}."
        )
    if labels.dtype.kind not in "biufUO":
        raise ValueError(
            f"Expected labels as class numbers or text in {where}, got dtype {labels.dtype}; "
            f"save labels.astype(str), or pass {option('labels_per_record')} for lists."
        )


def _shape(labels: np.ndarray) -> str:
    return f"[{', '.join(['n', *map(str, labels.shape[1:])])}]"


def _class_numbers(values: np.ndarray, count: int) -> np.ndarray:
    """Return numbers as class numbers from 0 to `count`, int64."""
    if values.dtype.kind == "f":
        # Of longer floats, and of signaling NaN; a warning would tell of one.
        with np.errstate(all="ignore"):
            values = values.astype(np.float64)
        values = np.where(np.isnan(values), np.float64(MISSING), values)
        foreign = (values >= count) | ((values > 0) & (values != np.round(values)))
    else:
        foreign = values >= count
    known = np.where(values >= 0, values, np.int64(MISSING))
    return np.where(foreign, np.int64(FOREIGN), known).astype(np.int64)


class _Lookup:
    """Class numbers of labels, each by itself."""

    def __init__(self, classes: Classes) -> None:
        self.count = classes.count
        self.counts_from_0 = classes.counts_from_0 and not classes.numerals
        self.names = {name: i for i, name in enumerate(classes.names or ())}
        # Of a long name, files have the beginning alone.
        for name, i in list(self.names.items()):
            text = name.encode(errors="replace")
            if len(text) > LONGEST_LABEL:
                self.names.setdefault(cut(text), i)
        self.values = classes.numerals
        self.reads_codes = not classes.counts_from_0
        if self.reads_codes:  # where no file was read here, a program may have made numbers of them
            codes = {code_value(name): i for name, i in self.names.items()}
            self.values = {
                value: i for value, i in codes.items() if value is not None
            } | self.values
        self.is_counted = classes.is_counted

    def array(self, labels: np.ndarray) -> np.ndarray:
        """Return class numbers int64 of the shape of an array of any type."""
        kind = labels.dtype.kind
        if kind in "biuf" and self.counts_from_0:
            return _class_numbers(labels, self.count)
        if kind == "f":
            with np.errstate(all="ignore"):  # a warning would tell of one
                labels = labels.astype(np.float64)
        values = labels.ravel().tolist()
        if kind == "O":
            numbers = [self.any(value) for value in values]
        else:
            of = self.text if kind == "U" else self.number
            known = {value: of(value) for value in set(values)}  # labels repeat
            numbers = [known[value] for value in values]
        return np.array(numbers, np.int64).reshape(labels.shape)

    def text(self, text: str) -> int:
        """Return the class number of a text. NUL at its end is padding, as in NumPy."""
        text = text.rstrip("\0")
        number = self.names.get(text)
        if number is None and NUMBERED in text:
            return self._numbered(*text.split(NUMBERED)[:2])
        return self._other_text(text.strip()) if number is None else number

    def _numbered(self, name: str, number: str) -> int:
        """Return the class number of a name with its number in the column."""
        known = self.names.get(name)
        if known is not None:
            return known
        value = number_of(number)
        by_number = self.is_counted and (not self.names or number_of(name.strip()) is None)
        if by_number and value is not None:
            return self.number(value)
        name = name.strip()
        if name.lower() in MISSING_WORDS:
            return self.names.get(name, MISSING)
        # A name that is a number is never the place of another class.
        found = number_of(name)
        by_value = FOREIGN if found is None else self.values.get(found, FOREIGN)
        return self.names.get(name, by_value)

    def _other_text(self, text: str) -> int:
        number = self.names.get(text)
        if number is not None:
            return number
        if not text or text.lower() in MISSING_WORDS:
            return MISSING
        value = number_of(text)
        if value is None and self.reads_codes:
            value = code_value(text)
        return FOREIGN if value is None else self.number(value)

    def number(self, value: float) -> int:
        """Return the class number of a number. A float32 of 0.1 is 0.1, also as a float64."""
        number = self.values.get(value)
        if number is None and self.values and isinstance(value, float) and value % 1:
            found = [self.values[one] for one in _shorter(value) if one in self.values]
            number = found[0] if found else None
        if number is None and self.counts_from_0 and 0 <= value < self.count:
            number = int(value) if value == int(value) else None
        if number is not None:
            return number
        return FOREIGN if value >= 0 else MISSING  # NaN is missing

    def any(self, value: Any) -> int:
        """Return the class number of any object."""
        try:
            value = _as_text_or_number(scalar(value))
            if isinstance(value, str):
                return self.text(value)
            if value is None or str(value).lower() in MISSING_WORDS:
                return MISSING
            try:
                return self.number(value)
            except TypeError:  # of dates and UUIDs, which are text where one cell of a column is
                return self.text(str(value))
        except Exception:  # an error would reveal the record, whatever it holds
            return FOREIGN


def _as_text_or_number(value: Any) -> Any:
    """Return bytes as text, decimals and fractions as numbers, and anything else as it is.

    One cell of bytes makes bytes of a column of text, and one float makes floats of decimals.

    >>> [_as_text_or_number(one) for one in (b"cat", Decimal("0.1"), Decimal(10**20))]
    ['cat', 0.1, 100000000000000000000]
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Decimal | Fraction):
        rounded = float(value)
        return int(value) if rounded.is_integer() and int(value) == value else rounded
    return value


def _shorter(value: float) -> list[float]:
    """Return the shortest numbers whose floats of 32 or 16 bits are this one.

    >>> _shorter(float(np.float32(0.1)))
    [0.1]
    """
    with np.errstate(all="ignore"):  # a warning would tell of one
        floats = np.float32(value), np.float16(value)
    return [float(str(one)) for one in floats if float(one) == value]


_lookup = functools.lru_cache(maxsize=16)(_Lookup)


def _several(labels: np.ndarray, lookup: _Lookup, where: str) -> np.ndarray:
    """Return class numbers int64 `[b, l]`."""
    kind = labels.dtype.kind
    if kind == "b" and labels.shape[1:] == (lookup.count,):
        return np.where(labels, np.arange(lookup.count), MISSING)
    if labels.ndim == 1 and kind in "UO":
        return _of_lists(labels, lookup)
    if labels.ndim not in (1, 2) or kind not in ("iufUb" if labels.ndim == 1 else "iufU"):
        raise ValueError(
            f"Expected several labels a record in {where}, got shape {_shape(labels)} of dtype "
            f"{labels.dtype} for {lookup.count} classes; {REMEDY}."
        )
    if labels.ndim == 2 and kind != "U" and labels.shape[1] == lookup.count > 1:
        raise ValueError(
            f"Expected a mask or class numbers in {where}, got numbers of shape {_shape(labels)} "
            f"for {lookup.count} classes, which may be either; save a mask as bool, or class "
            "numbers with a further column of -1."
        )
    return lookup.array(labels if labels.ndim == 2 else labels[:, None])


def _of_lists(labels: np.ndarray, lookup: _Lookup) -> np.ndarray:
    """Return the class numbers of lists, as objects, or of text with `SEPARATOR`."""
    rows = labels.tolist()
    if labels.dtype.kind == "U":
        numbers = [_of_text(text, lookup) for text in rows]
    else:
        numbers = [
            _of_text(row, lookup)
            if isinstance(row, Text)
            else [lookup.any(value) for value in _head(row)]
            for row in rows
        ]
    lengths = np.array([len(row) for row in numbers], np.int64)
    there = np.arange(lengths.max(initial=0)) < lengths[:, None]
    found = np.full(there.shape, MISSING, np.int64)
    found[there] = [number for row in numbers for number in row]
    further = found[:, MOST_LABELS:]
    further[further != MISSING] = FOREIGN  # given, but not counted
    return found


def _of_text(text: str, lookup: _Lookup) -> list[int]:
    """Return the class numbers of several labels in one text; of a mask, those of its places."""
    mask = _MASK.fullmatch(text)
    if mask is None:
        return [lookup.any(value) for value in _head(_split(text))]
    places = [int(place) for place in mask[2].split(SEPARATOR)[1:]]
    fits = int(mask[1]) == lookup.count and max(places, default=0) < lookup.count
    return places[: MOST_LABELS + 1] if fits else [FOREIGN]


def _split(text: str) -> list[str]:
    return [text] if NUMBERED in text else text.split(SEPARATOR)


def _head(labels: Any) -> Sequence[Any]:
    """Return the first labels of a record, or its only one.

    One label more than `MOST_LABELS` tells that there are more, and a long list takes no memory for
    the other records.
    """
    try:
        held = labels.ravel().tolist() if isinstance(labels, np.ndarray) else labels
        if isinstance(held, list | tuple | set | frozenset):
            return list(held)[: MOST_LABELS + 1]
    except Exception:  # an error would reveal the record, whatever it holds
        return [labels]
    return [held]

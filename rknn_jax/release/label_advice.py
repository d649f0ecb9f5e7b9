"""How labels are read as classes, and what to change if that is not meant.

`reading` needs the type of a column alone. `Seen` looks at private labels, for the curator's eyes
alone: nothing of it may be told elsewhere.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.formats import Layout
from rknn_jax.records.classes import MISSING, MISSING_WORDS, Classes, number_of
from rknn_jax.records.labels import MASK, NUMBERED, SEPARATOR, encode

BOOL = "bool"
NUMBER = "numbers"
WHOLE = "whole numbers"
"""Words for labels that are not text."""

MOST_NUMBERS = 10_000
"""Most different numbers that are counted one by one."""

MOST_SHOWN = 20
"""Most class numbers or names that a sentence shows."""

LARGEST = 2.0**53
"""Most distance from 0 of a number that may be the name of a class."""

TRUTH = ("true", "false")
"""Bools as text, in small letters."""

OTHERS = ("|", ",", "/", "+", "&", "\t", " ")
"""Signs that stand between several labels in other programs."""


def reading_of(layout: Layout, classes: Classes | None) -> str:
    """Return how labels are read as classes, by the type of their column, or "" if it is plain.

    Args:
      layout: Layout of private records with labels.
      classes: Set of classes; None if it is not known yet.
    """
    labels = layout.empty.labels
    if classes is None or labels is None or layout.classes or not layout.typed:
        return ""
    if labels.dtype.kind == "b" and labels.ndim > 1:  # a mask says its classes by their places
        return ""
    what = {"b": BOOL, "i": WHOLE, "u": WHOLE, "f": NUMBER}.get(labels.dtype.kind, "")
    return reading(what, classes)


def reading(what: str, classes: Classes) -> str:
    """Return how labels that are not text are read as classes whose names are not numbers, or "".

    Args:
      what: `BOOL`, `NUMBER` or `WHOLE`, or "" for text.
      classes: Set of classes.
    """
    if not what or not classes.names or classes.numerals or not classes.counts_from_0:
        return ""
    if what == BOOL:
        first, second = map(repr, classes.names[:2])
        return (
            f"labels are bool: False is read as {first}, True as {second}; if not, pass "
            f"{option('classes')} False,True"
        )
    shown = [f"{number} is {name!r}" for number, name in enumerate(classes.names[:MOST_SHOWN])]
    rest = ", ..." if classes.count > MOST_SHOWN else ""
    return (
        f"labels are {what}, counted from 0: {', '.join(shown)}{rest}; if not, name the numbers "
        f"themselves with {option('classes')}"
    )


class Seen:
    """Counts of numbers, bools and lists among the labels of private records: private.

    Args:
      classes: Set of classes.
      most: Most labels of a record that count; None for one label a record.
    """

    def __init__(self, classes: Classes, most: int | None) -> None:
        self._classes = classes
        self._most = most
        self._numbers: Counter[float] = Counter()
        self._bools = self._texts = 0
        self._lists = 0
        self._masks = 0
        self._separated: Counter[str] = Counter()

    def add(self, labels: np.ndarray) -> None:
        """Look at the labels of a block, as stored."""
        if self._most is None:
            if labels.ndim == 1:
                self._add_single(Counter(_hashable(labels)))
            return
        if labels.ndim != 1 or labels.dtype.kind not in "UO":
            return
        for row in labels.tolist():
            parts = parts_of(row)
            if parts:
                self._lists += 1
                self._masks += _is_mask(parts, self._classes.count)

    def separated(self, foreign: Mapping[str, int]) -> Counter[str]:
        """Return how many foreign labels are known classes with each other sign between them."""
        found: Counter[str] = Counter()
        signs = OTHERS if self._most is not None else (SEPARATOR, *OTHERS)
        for text, count in foreign.items():
            sign = next((one for one in signs if self._has(text, one)), None)
            if sign is not None:
                found[sign] += count
        return found

    def _has(self, text: str, sign: str) -> bool:
        parts = [part.strip() for part in text.split(sign)]
        return len(parts) > 1 and all(parts) and not unknown(parts, self._classes)

    def _add_single(self, counts: Mapping[str | float, int]) -> None:
        for label, count in counts.items():
            if str(label).strip().lower() in TRUTH:
                self._bools += count
            elif (number := _number(label)) is not None:
                if number in self._numbers or len(self._numbers) < MOST_NUMBERS:
                    self._numbers[number] += count
            elif isinstance(label, str) and label.strip().lower() not in ("", *MISSING_WORDS):
                self._texts += count

    def advice(self, foreign: Mapping[str, int]) -> Iterator[str]:
        """Yield what to change about labels and classes.

        Args:
          foreign: Number of records of each label that is none of the classes.
        """
        yield from self._advice_on_numbers()
        if self._lists and self._masks == self._lists:
            yield (
                f"All lists of labels hold {self._classes.count} numbers that are 0 or 1, as masks "
                f"of {self._classes.count} classes do, but are read as the class numbers 0 and 1; "
                "save masks as lists of bool, which have one fixed size in Parquet and Arrow, or "
                "save the names of the classes."
            )
        for sign, count in sorted(self.separated(foreign).items()):
            most = "" if self._most else f" and pass {option('labels_per_record')}"
            how = "" if sign == SEPARATOR else f"save them with {SEPARATOR!r} between the names"
            yield (
                f"{count:,} labels are names of classes with {sign!r} between them; "
                f"{how}{most if how else most.removeprefix(' and ')}."
            )

    def _advice_on_numbers(self) -> Iterator[str]:
        classes = self._classes
        if self._bools and (told := reading(BOOL, classes)):
            yield f"{told[0].upper()}{told[1:]}, or name the classes in the other order."
        from_0 = classes.counts_from_0 and not classes.numerals
        if not from_0 or self._numbers.total() <= self._texts:  # most labels are names
            return
        outside = [number for number in self._numbers if not 0 <= number < classes.count]
        if sorted(self._numbers) == [*range(-1, classes.count - 1)]:
            yield (
                f"{self._numbers[-1]:,} labels are -1, which is read as no label, and labels are "
                f"{classes.count} numbers, as many as classes; if these are the classes, pass "
                f"{option('classes')} {self._named_numbers()}."
            )
            return
        if self._numbers[0] or not outside:
            if told := reading(NUMBER, classes):
                yield f"{told[0].upper()}{told[1:]}."
            return
        yield self._advice_on_outside(min(outside) < 0)

    def _named_numbers(self) -> str:
        """Return the numbers as names with commas between them."""
        numbers = sorted(self._numbers)
        return ",".join(str(int(one)) if one == int(one) else str(one) for one in numbers)

    def _advice_on_outside(self, negative: bool) -> str:
        """Return what to do about labels without a 0, of which some are no class numbers."""
        named = self._named_numbers().split(",")
        odd = f"{named[0]}, which is read as no label" if negative else named[-1]
        if len(named) > MOST_SHOWN:
            named = [*named[:2], "...", named[-1]]
        return (
            f"No label is 0 and some are {odd}, while numbers are counted from 0; if these are all "
            f"classes, name the numbers, as in {option('classes')} {','.join(named)}, or save the "
            "labels counted from 0."
        )


def parts_of(row: Any) -> list[Any]:
    """Return the labels of a record that may have several; none for a mask, or without a label.

    >>> parts_of("a;b"), parts_of([1, 0]), parts_of("")
    (['a', 'b'], [1, 0], [])
    """
    if isinstance(row, str):
        if not row or row.startswith(MASK):
            return []
        return [row] if NUMBERED in row else row.split(SEPARATOR)
    if isinstance(row, list | tuple):
        return list(row)
    return []


def unknown(parts: Sequence[str], classes: Classes) -> list[str]:
    """Return the texts that are none of the classes, and no word for a missing label."""
    ids, told = encode(np.array(parts, str).reshape(-1), classes)
    return list(itertools.compress(parts, (told > 0) & (ids == MISSING)))


def _is_mask(parts: list[Any], count: int) -> bool:
    return len(parts) == count and {_number(part) for part in parts} <= {0, 1}


def _hashable(labels: np.ndarray) -> Iterator[str | float]:
    """Yield numbers and texts; a bool as text, since it equals a number."""
    for label in labels.tolist():
        if isinstance(label, float):
            yield label
        elif label is not None:
            yield str(label)


def _number(label: Any) -> float | None:
    """Return the value of a number, or of a text that is one."""
    if isinstance(label, bool):
        return None
    number = label if isinstance(label, float) else number_of(str(label).strip())
    if number is None or str(label).startswith(MASK) or not abs(number) <= LARGEST:
        return None
    return float(number)

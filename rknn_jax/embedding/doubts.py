"""Columns of a table that may not be what they look like, in words for whoever embeds it.

What is found in a public table is a warning, or an error where columns were not named. What is
found in a private one is for its curator alone, changes nothing, and is written nowhere.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.records.public_values import stand_in


class Kind(NamedTuple):
    """Text that stands for a quantity.

    Attributes:
      name: What such texts are.
      remedy: What to save in their place.
      pattern: Regular expression of the whole text.
    """

    name: str
    remedy: str
    pattern: re.Pattern[str]


_CLOCK = r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[ap]\.?m\.?)?"
_DAY = r"(\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./](\d{4}|\d{2})\.?)"
_NAMED_DAY = r"(\d{1,2}\.?[- ][a-z]{3,9}\.?[- ]\d{2,4}|[a-z]{3,9}\.? \d{1,2},? \d{4})"
_NUMBER = r"[-+]?\d+([.,]\d+)*"
_GROUPS = r"\d{1,3}([,'’ \u00a0\u202f]\d{3})+(\.\d+)?"
_UNITS = (
    r"%|‰|°[cf]?|k?g|[mµu]g|[ckmµ]?m|[mdµ]?l|mmhg|bpm|mm?ol(/l)?|[mµ]?g/d?l|years?|y|yrs?|months?|"
    r"days?|d|hours?|h|hrs?|min|sec|s|€|\$|£|eur|usd|gbp|k"
)

KINDS = tuple(
    Kind(name, remedy, re.compile(pattern, re.IGNORECASE))
    for name, remedy, pattern in (
        (
            "dates",
            "make numbers of them, such as days since a fixed date, and the month as text",
            rf"({_DAY}|{_NAMED_DAY})([ T]{_CLOCK}.*)?",
        ),
        ("times of day", "make numbers of them, such as hours", _CLOCK),
        (
            "numbers with a decimal comma or a thousands separator",
            "save the numbers plainly, such as 5133 or 5.133",
            rf"[-+]?(\d+,\d+|\d{{1,3}}(\.\d{{3}})+(,\d+)?|{_GROUPS})",
        ),
        (
            "numbers with a unit or a sign",
            "save the number alone",
            rf"[€$£] ?{_NUMBER}|{_NUMBER} ?({_UNITS})|[<>≤≥~] ?{_NUMBER}( ?({_UNITS}))?",
        ),
    )
)

LISTS = Kind(
    "lists that were saved as text",
    "save a Parquet column of lists of float32, an .npz or .npy array, or a column for each number",
    re.compile(r"\s*[\[(].*", re.DOTALL),
)
"""Embeddings in a column of text."""

_PLAIN = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?|nan", re.IGNORECASE)

MOST = 0.9
"""Least share of a column's texts that are of one kind."""

MOST_TYPED = 0.8
"""Least share of three digits among floats, of which one in ten ends by a zero."""

ALIKE = 3
"""Least number of columns whose sentences are told as one."""

NAMED = 5
"""Most other columns that such a sentence names."""

MARKED = 5
"""Least number of numbers with a point that are doubted."""

FEW = 3
"""Values that are shown."""

SHIFT = 3.0
"""Distance of the private mean from the public one that is told, in public standard deviations."""

NARROW = 0.1
"""Private standard deviation that is told, in public ones."""

FEWEST = 20
"""Fewest private numbers whose standard deviation says something."""

MOST_REVIEWED = 100_000
"""Private records that are reviewed, the first ones."""

_ID = re.compile(
    r"(?i:(^|[^a-z])(id|ids|nr|no|uuid|guid|mrn|patient|person|subject|user|client|customer)$)"
    r"|[a-z](ID|Id|Nr|No)$|^(ID|Id)[A-Z_]"
)


def kind_of(texts: Iterable[str | None]) -> Kind | None:
    """Return the kind of nearly all texts that are not empty, or None."""
    given = [text.strip() for text in texts if text and text.strip()]
    for kind in KINDS:
        count = sum(kind.pattern.fullmatch(text) is not None for text in given)
        if given and count >= MOST * len(given):
            return kind
    return None


def feature_kind(texts: Iterable[str]) -> Kind | None:
    """Return the kind of nearly all texts that are not empty, in a column that has to be a feature.

    Unlike in a category, numbers among the texts are of that kind too.

    >>> feature_kind(["1,234.5", "7.25"]).name
    'numbers with a decimal comma or a thousands separator'
    >>> feature_kind(["[0.5, 1]"]).remedy[:21]
    'save a Parquet column'
    """
    given = [text for text in texts if text.strip()]
    alone = [text for text in given if not _PLAIN.fullmatch(text.strip())]
    lists = sum(LISTS.pattern.fullmatch(text) is not None for text in alone)
    return LISTS if alone and lists >= MOST * len(alone) else kind_of(alone)


def of_numbers(name: str, values: np.ndarray, most_values: int) -> Iterator[str]:
    """Yield what may be wrong with a public column of numbers.

    Args:
      name: Name of the column.
      values: Finite values, float64 `[n]`.
      most_values: Most different values that a category may have.
    """
    if text := stand_in(values):
        yield f"column {name!r} {text}"
    distinct = np.unique(values)
    whole = bool((values == np.trunc(values)).all())
    if whole and len(distinct) > most_values and _ID.search(name):
        yield (
            f"column {name!r} of whole numbers is named like an id, whose distances mean nothing; "
            f"leave it out with {option('drop')}, or with {option('keep')} beside the embeddings"
        )


def of_points(name: str, texts: Iterable[str], *, typed: bool) -> Iterator[str]:
    """Yield whether the points of a public column of numbers may separate thousands.

    Args:
      name: Name of the column.
      texts: Numbers as text.
      typed: Whether the file has the numbers as floats, which end without zeros.
    """
    digits = r"\d{1,3}" if typed else r"\d{3}"
    given = [text.strip().lstrip("+-") for text in texts]
    marked = [text for text in given if "." in text]
    grouped = all(re.fullmatch(rf"[1-9]\d{{0,2}}\.{digits}", text) for text in marked)
    small = all(re.fullmatch(r"\d{1,3}", text) for text in given if "." not in text)
    full = sum(len(text.rpartition(".")[2]) == 3 for text in marked)
    if len(marked) >= MARKED and grouped and small and full >= MOST_TYPED * len(marked):
        yield (
            f"column {name!r} has three digits after every point, such as {marked[0]!r}, as "
            "thousands separators have; if they are such, save the numbers plainly, such as 5133"
        )


def grouped(sentences: Iterable[tuple[str, str]]) -> list[str]:
    """Return sentences on columns, and those that many columns share as one.

    Sentences are alike but for the name of the column, and the numbers and values in them.

    Args:
      sentences: Names of columns, and a sentence on each.
    """
    alike: dict[str, list[tuple[str, str]]] = {}
    for name, sentence in sentences:
        bare = re.sub(r"\d[\d.,]*", "", _QUOTED.sub("", sentence.replace(repr(name), "")))
        alike.setdefault(bare, []).append((name, sentence))
    return [text for found in alike.values() for text in _as_one(found)]


def _as_one(found: Sequence[tuple[str, str]]) -> list[str]:
    """Return the first of several sentences, with the other columns of which it is told."""
    if len(found) < ALIKE:
        return [sentence for _, sentence in found]
    others = [repr(name) for name, _ in found[1:]]
    more = ", ..." if len(others) > NAMED else ""
    shown = ", ".join(others[:NAMED])
    return [f"{found[0][1]} [and so in {len(others):,} other columns: {shown}{more}]"]


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


def of_totals(last: str, filled: Sequence[str]) -> str:
    """Return that a public row may be one of totals.

    Args:
      last: Which row it is.
      filled: Names of the columns that are not empty in it.
    """
    names = ", ".join(map(repr, filled))
    return (
        f"{last} is empty but for {names}, as a row of totals is; if it is one, remove it, because "
        "means and deviations count it"
    )


@dataclass
class Unread:
    """Private values of one column that its model cannot use.

    Attributes:
      count: Number of values that are there.
      odd: Such values, counted.
      sum: Sum of the numbers in public standard deviations.
      squares: Sum of their squares.
    """

    count: int = 0
    odd: Counter[str] = field(default_factory=Counter)
    sum: float = 0.0
    squares: float = 0.0


def sentences(name: str, found: Unread, *, is_number: bool) -> Iterator[str]:
    """Yield what the curator should know of a private column.

    Args:
      name: Name of the column.
      found: Its values.
      is_number: Whether it is a column of numbers.
    """
    odd = found.odd.total()
    if odd:
        what = "are no numbers" if is_number else "are in no public row"
        shown = ", ".join(repr(text) for text, _ in found.odd.most_common(FEW))
        kind = kind_of(found.odd.elements())
        hint = f" ({kind.name}: {kind.remedy})" if kind else ""
        yield (
            f"{odd:,} of {found.count:,} values of column {name!r} {what}, such as {shown}{hint}; "
            "they count as missing"
        )
    numbers = found.count - odd
    shift = found.sum / max(numbers, 1)
    if is_number and abs(shift) > SHIFT:
        side = "above" if shift > 0 else "below"
        yield (
            f"column {name!r} lies {abs(shift):.1f} public standard deviations {side} the public "
            "mean on average; do both sides have the same unit?"
        )
    variance = found.squares / max(numbers, 1) - shift**2
    if is_number and numbers >= FEWEST and variance < NARROW**2:
        yield (
            f"column {name!r} varies less than {NARROW:g} times as much as in the public table; do "
            "both sides have the same unit?"
        )


def roles(numbers: Sequence[str], categories: Sequence[tuple[str, int]]) -> str:
    """Return the roles of the columns of a table in words.

    Args:
      numbers: Names of the columns of numbers.
      categories: Names of the columns of categories, and how many values each has.
    """
    parts = []
    if numbers:
        parts.append(f"numbers {', '.join(numbers)}")
    if categories:
        told = ", ".join(f"{name} ({count} values)" for name, count in categories)
        parts.append(f"categories {told}")
    return "; ".join(parts)

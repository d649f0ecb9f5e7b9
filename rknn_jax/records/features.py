"""Features: which columns they are, and their values as float32."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rknn_jax._internal.checks import check_together
from rknn_jax._internal.option_names import option

NUMBER = "number"
WHOLE = "integer"
FIELD = "text or number"
"""Kinds of columns: floats, bools and decimals; integers; columns of a format without types."""

NUMBERS = (NUMBER, WHOLE, FIELD)

TRUTH = {"true": 1.0, "false": 0.0}
"""Words of bools, in small letters, as numbers."""

SPACES = " \t\n\f\r"
"""White space around a number or a word of bools in text."""

NUMERAL = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""Text that is a number, in every format."""

_NUMERAL = re.compile(NUMERAL)

MOST_NAMED = 10
"""Most columns that an error names."""

FLATTEN = "give each key in them a column of its own, as pandas.json_normalize does"
"""Remedy for columns of objects, which have keys of their own."""

OBJECTS = ("struct", "map", "object")
"""Beginnings of the kinds of columns of objects."""


def embed_texts() -> str:
    """Return the remedy for columns that hold text."""
    return (
        f"leave them out with {option('drop')}, or embed them first: texts by rknn embed --text, "
        "and categories by rknn embed --table"
    )


_UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # what pandas calls an index


def number_of_text(text: str) -> float:
    """Return text as a number, as in a field of a file, and NaN for what is none.

    >>> [number_of_text(text) for text in ("2.5", " tRUE", "1e400", "1_0", "inf", "\u0661", "")]
    [2.5, 1.0, inf, nan, nan, nan, nan]
    """
    text = text.strip(SPACES)
    return float(text) if _NUMERAL.fullmatch(text) else TRUTH.get(text.lower(), math.nan)


def number(cell: Any) -> float:
    """Return a cell as a number, and NaN for what is none.

    One odd cell makes text, bytes or complex numbers of a column, so each of them is the number
    that it was: NUL at the end of text is padding, as in NumPy, and true and false are 1 and 0.

    >>> [number(cell) for cell in ("2.5", b"2", "True", "(2+0j)", 2 + 0j, 1j, True, None, "x", "")]
    [2.5, 2.0, 1.0, 2.0, 2.0, nan, 1.0, nan, nan, nan]
    """
    try:
        text = cell.decode() if isinstance(cell, bytes) else cell
        if isinstance(text, str):
            text = text.rstrip("\0")
            if not text.endswith("j)"):
                return number_of_text(text)
        is_complex = isinstance(text, str | complex | np.complexfloating)
        value = complex(text) if is_complex else float(text)
    except Exception:  # an error would reveal the record, whatever it holds
        return float("nan")
    return float(value.real) if value.imag == 0 else float("nan")


def real_rows(array: np.ndarray, where: str, width: int | None = None) -> np.ndarray:
    """Return the array if it holds rows of real numbers.

    Args:
      array: Array as read.
      where: Argument and name of its file, for the errors.
      width: Required number of dimensions f. Defaults to any.

    Raises:
      ValueError: If it does not.
    """
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"Expected embeddings of real numbers in {where}, got dtype {array.dtype}; save them "
            "as float32."
        )
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"Expected embeddings [n > 0, f > 0] in {where}, got shape {array.shape}; save one "
            "row a record."
        )
    if width is not None and array.shape[1] != width:
        raise ValueError(
            f"Expected embeddings of one width, got {array.shape[1]} dimensions in {where} and "
            f"{width} in {option('public')}; embed both with the same model."
        )
    return array


def check_types(empty: np.ndarray, width: int, where: str) -> None:
    """Raise ValueError if embeddings cannot be used, by their shape and type alone.

    Args:
      empty: The embeddings of no record, in the shape and type of the others.
      width: Number of dimensions f of the public rows.
      where: Argument and name of the file, for the errors.
    """
    real_rows(np.zeros((1, *empty.shape[1:]), empty.dtype), where, width)


def refuse_unnamed(names: Iterable[str], remedy: str) -> None:
    """Raise ValueError if a column has the name of an index, or none.

    Args:
      names: Names of columns among which features are.
      remedy: How to leave such a column out, and what to do if it is a feature, for the error.
    """
    unnamed = [name for name in names if _UNNAMED.fullmatch(name)]
    if unnamed:
        raise ValueError(
            f"Expected features, got {unnamed[:MOST_NAMED]}, which is the name of an index; write "
            f"the data without its index, as by to_csv(index=False), or {remedy}."
        )


def choose(kinds: Mapping[str, str]) -> list[str]:
    """Return the names of the columns of features, by names and types alone.

    Args:
      kinds: `NUMBER` for floats, bools and decimals, `WHOLE` for integers, `FIELD` in a format
        without types, or the name of another type, for each column that is not a label, person or
        index by the file's own word.

    Raises:
      ValueError: If a column may be no feature, with the names of all such columns. An unnamed one
        and an integer among floats may be an index or an id, which would decide every distance.
    """
    check_together(
        lambda: refuse_unnamed(
            kinds, f"drop it with {option('drop')}, or name the features with {option('embedding')}"
        ),
        lambda: refuse_others(kinds),
        lambda: _refuse_whole(kinds),
    )
    return list(kinds)


def refuse_others(kinds: Mapping[str, str]) -> None:
    """Raise ValueError for columns that hold no numbers, with a remedy for each kind.

    Args:
      kinds: Kinds of columns by their names, as for `choose`.
    """
    others: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        if kind not in NUMBERS:
            others.setdefault(kind, []).append(name)
    if others:
        told = [
            f"{names[:MOST_NAMED]} of {kind} ({_remedy(kind)})" for kind, names in others.items()
        ]
        raise ValueError(
            f"Expected a column 'embeddings', or columns of numbers alone, got {', '.join(told)} "
            f"too; leave them out with {option('drop')}, or name the features with "
            f"{option('embedding')}."
        )


def flattened(kind: str) -> str:
    """Return the remedy for a column of objects, after a comma, and "" for another type."""
    return f", or {FLATTEN}" if kind.startswith(OBJECTS) else ""


def _remedy(kind: str) -> str:
    """Return how features are made of columns of a type."""
    if kind.startswith(OBJECTS):  # whatever they hold
        return FLATTEN
    if kind.startswith(("date", "time", "duration")):
        return "make numbers of them, such as days since a fixed date"
    if "list" in kind or "tensor" in kind:
        return f"name one column of lists of numbers with {option('embedding')}, alone"
    if "binary" in kind:  # images are structs of bytes and a path, whose path is text
        return "embed images by rknn embed --images FOLDER --columns NAME"
    if "string" in kind:
        return (
            "embed categories by rknn embed --table, and texts by rknn embed --text; save numbers "
            "and lists that became text as numbers"
        )
    return "make columns of numbers of them"


def _refuse_whole(kinds: Mapping[str, str]) -> None:
    """Raise ValueError for integers among floats, which may be an index or an id."""
    numbers = [name for name, kind in kinds.items() if kind in NUMBERS]
    whole = [name for name in numbers if kinds[name] == WHOLE]
    if whole and len(whole) < len(numbers):
        raise ValueError(
            f"Expected embedding columns of one kind, got integers in {whole[:MOST_NAMED]} among "
            f"floats; leave out with {option('drop')} what is no feature, or name the features "
            f"with {option('embedding')}."
        )


def refuse_unknown(drop: Sequence[str], found: Iterable[Sequence[str]]) -> None:
    """Raise ValueError if a column that is to be dropped is in no file.

    Args:
      drop: Names of `--drop`.
      found: Names of the columns of each file.
    """
    if not drop:
        return
    known = dict.fromkeys(name for names in found for name in names)
    unknown = [name for name in drop if name not in known]
    if unknown:
        raise ValueError(
            f"Expected columns of the data in {option('drop')}, got {unknown[:MOST_NAMED]}; the "
            f"columns are {', '.join(known) or 'none, because arrays have no columns'}. Correct "
            "the names, with spaces between them."
        )


def refuse_shared(
    embedding: Sequence[str], label: str, person: str | None, drop: Sequence[str] = ()
) -> None:
    """Raise ValueError if a column is named for two roles.

    Args:
      embedding: Names of the features that the user gives.
      label: Name of the label.
      person: Name of the person, or None.
      drop: Names of columns that are not features. Defaults to none.
    """
    named = {option("label"): label, option("person"): person}
    for flag, name in named.items():
        if name in embedding:
            raise ValueError(
                f"Expected features without the {flag.removeprefix('--')}, got {name!r} in "
                f"{option('embedding')} and in {flag}; name it once."
            )
    for flag, names in {
        option("embedding"): embedding,
        option("label"): [label],
        option("person"): [person],
    }.items():
        both = sorted({name for name in names if name is not None} & {*drop})
        if both:
            raise ValueError(
                f"Expected columns without another role in {option('drop')}, got "
                f"{both[:MOST_NAMED]} in {flag} too; leave them out of one."
            )
    if label == person:
        raise ValueError(
            f"Expected a column of labels and one of persons, got {label!r} in {option('label')} "
            f"and in {option('person')}; name two."
        )

"""Features: which columns they are, and their values as float32."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rknn_jax._internal.checks import check_together

NUMBER = "number"
WHOLE = "integer"
FIELD = "text or number"
"""Kinds of columns: floats, bools and decimals; integers; columns of a format without types."""

NUMBERS = (NUMBER, WHOLE, FIELD)

FEWEST_IDS = 20
"""Fewest public rows among which different whole numbers are taken for an id."""

FEWEST_IN_INDEX = 5
"""Fewest public rows among which consecutive numbers are taken for an index."""

ROWS_AT_FIRST = 1000
"""Rows that are looked at first, so that most columns take no more time."""

MOST_NAMED = 10
"""Most columns that an error names."""

EMBED_TEXTS = (
    "leave them out with --drop, or embed them first: texts by rknn embed --text, and categories "
    "by rknn embed --table"
)
"""Remedy for columns that hold text."""

NO_FEATURE = "leave it out with --drop, or name the features, as with --embedding"
"""Remedy for a column that looks like an id."""

_UNNAMED = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # what pandas calls an index


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
            f"{width} in --public; embed both with the same model."
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
        without types, or the name of another type, for each column that is no label, person or
        index by the file's own word.

    Raises:
      ValueError: If a column may be no feature, with the names of all such columns. An unnamed one
        and an integer among floats may be an index or an id, which would decide every distance.
    """
    check_together(
        lambda: refuse_unnamed(kinds, "drop it with --drop, or name the features with --embedding"),
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
            "too; leave them out with --drop, or name the features with --embedding."
        )


def _remedy(kind: str) -> str:
    """Return how features are made of columns of a type."""
    if kind.startswith(("date", "time", "duration")):
        return "make numbers of them, such as days since a fixed date"
    if "list" in kind or "tensor" in kind:
        return "name one column of lists of numbers with --embedding, alone"
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
            "floats; leave out with --drop what is no feature, or name the features with "
            "--embedding."
        )


def refuse_values(
    rows: np.ndarray, names: Sequence[str], where: str, most: float, *, chosen: bool
) -> None:
    """Raise ValueError for public columns that cannot be features by their values, all at once.

    Args:
      rows: float32 `[m, f]`, NaN for what is no number.
      names: Names of the f columns, or none if they have no names.
      where: Argument and name of the file, for the error.
      most: Largest distance from 0.
      chosen: Whether the user has named the features. Otherwise, an index or an id is refused.
    """
    finite = np.isfinite(rows)
    columns = [rows[finite[:, i], i] for i in range(len(names))]
    check_together(
        lambda: _refuse_texts(finite, names, where),
        lambda: _refuse_holes(finite, names, where),
        lambda: _refuse_large(rows, names, where, most),
        lambda: None if chosen else refuse_ids(columns, names, where, NO_FEATURE),
    )


def _refuse_texts(finite: np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise ValueError for columns without any number, which hold text."""
    holds = np.asarray(finite.any(axis=0))
    texts = [name for name, some in zip(names, holds, strict=False) if not some]
    if texts:
        raise ValueError(
            f"Expected numbers in {where}, got {texts[:MOST_NAMED]} without a number in any row; "
            f"{EMBED_TEXTS}."
        )


def _refuse_holes(finite: np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise ValueError for rows with a value that is no finite number."""
    some = np.asarray(finite.any(axis=0)) if names else np.ones(finite.shape[1], bool)
    holes = ~finite & some
    if holes.any():
        columns: np.ndarray = holes.any(axis=0)
        named = [name for name, hole in zip(names, columns, strict=False) if hole]
        what = f" in {named[:MOST_NAMED]}" if named else ""
        raise ValueError(
            f"Expected finite embeddings in {where}, got NaN, infinity or text{what}, first in row "
            f"{int(np.argmax(holes.any(axis=1)))}; remove or repair such rows"
            f"{', or leave the columns out with --drop' if named else ''}."
        )


def _refuse_large(rows: np.ndarray, names: Sequence[str], where: str, most: float) -> None:
    """Raise ValueError for finite values that are too far from 0."""
    if np.fmax.reduce(rows, axis=None) <= most and np.fmin.reduce(rows, axis=None) >= -most:
        return
    with np.errstate(invalid="ignore"):
        large = np.isfinite(rows) & (np.abs(rows) > most)
    if large.any():
        named = [name for name, one in zip(names, large.any(axis=0), strict=False) if one]
        what = f" in {named[:MOST_NAMED]}" if named else ""
        raise ValueError(
            f"Expected embeddings within {most:g} of 0 in {where}, got larger{what}, first in row "
            f"{int(np.argmax(large.any(axis=1)))}; rescale them."
        )


def find_ids(columns: Iterable[np.ndarray], names: Sequence[str]) -> list[str]:
    """Return the names of public columns that look like an index or an id.

    An index is the numbers from one to another, each once, in any order. An id is another whole
    number in every row, in at most half of the columns, since counts of many things are all
    different too.

    Args:
      columns: Finite values of each column of numbers, at most one a row.
      names: Names of the columns.
    """
    held = list(columns)
    different = [_is_different(values) for values in held]
    ids = 2 * sum(different) <= len(names)
    return [
        name
        for name, values, is_different in zip(names, held, different, strict=True)
        if is_different
        and (np.ptp(values) == len(values) - 1 or (ids and len(values) >= FEWEST_IDS))
    ]


def _is_different(values: np.ndarray) -> bool:
    """Return whether a column has another whole number in every row."""
    first = values[:ROWS_AT_FIRST]
    for some in (first, values) if len(values) > len(first) else (values,):
        if np.any(some != np.round(some)) or len(np.unique(some)) < len(some):
            return False
    return len(values) >= FEWEST_IN_INDEX


def refuse_ids(
    columns: Iterable[np.ndarray], names: Sequence[str], where: str, remedy: str
) -> None:
    """Raise ValueError if a public column looks like an index or an id among others.

    Args:
      columns: Finite values of each column of numbers.
      names: Names of the columns, or none if they have no names.
      where: Argument and name of the file, for the error.
      remedy: How to leave it out, and what to do if it is a feature, for the error.
    """
    ids = find_ids(columns, names) if len(names) > 1 else []
    if ids:
        raise ValueError(
            f"Expected features in {where}, got {ids[:MOST_NAMED]} with another whole number in "
            f"every row, as an id has or an index, which would decide every distance; {remedy}."
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
            f"Expected columns of the data in --drop, got {unknown[:MOST_NAMED]}; the columns are "
            f"{', '.join(known) or 'none, because arrays have no columns'}. Correct the names, "
            "with spaces between them."
        )


def refuse_shared(
    embedding: Sequence[str], label: str, person: str | None, drop: Sequence[str] = ()
) -> None:
    """Raise ValueError if a column is named for two roles.

    Args:
      embedding: Names of the features that the user gives.
      label: Name of the label.
      person: Name of the person, or None.
      drop: Names of columns that are no features. Defaults to none.
    """
    named = {"--label": label, "--person": person}
    for flag, name in named.items():
        if name in embedding:
            raise ValueError(
                f"Expected features without the {flag.removeprefix('--')}, got {name!r} in "
                f"--embedding and in {flag}; name it once."
            )
    for flag, names in {"--embedding": embedding, "--label": [label], "--person": [person]}.items():
        both = sorted({name for name in names if name is not None} & {*drop})
        if both:
            raise ValueError(
                f"Expected columns without another role in --drop, got {both[:MOST_NAMED]} in "
                f"{flag} too; leave them out of one."
            )
    if label == person:
        raise ValueError(
            f"Expected a column of labels and one of persons, got {label!r} in --label and in "
            "--person; name two."
        )

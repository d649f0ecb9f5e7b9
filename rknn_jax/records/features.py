"""Features: which columns they are, and their values as float32."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

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
      remedy: What to do if such a column is a feature, for the error.
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
      ValueError: If a column may be no feature. An unnamed one and an integer among floats may be
        an index or an id, which would decide every distance.
    """
    refuse_unnamed(kinds, "name the features with --embedding")
    others = [name for name, kind in kinds.items() if kind not in NUMBERS]
    if others:
        raise ValueError(
            f"Expected a column 'embeddings', or columns of numbers alone, got "
            f"{others[:MOST_NAMED]} too; name the features with --embedding, or make features of "
            f"text by rknn embed --table. The first of them holds {kinds[others[0]]}."
        )
    whole = [name for name, kind in kinds.items() if kind == WHOLE]
    if whole and len(whole) < len(kinds):
        raise ValueError(
            f"Expected embedding columns of one kind, got integers in {whole[:MOST_NAMED]} among "
            "floats; drop columns that are no features, or name the features with --embedding."
        )
    return list(kinds)


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
      remedy: What to do if it is a feature, for the error.
    """
    ids = find_ids(columns, names) if len(names) > 1 else []
    if ids:
        raise ValueError(
            f"Expected features in {where}, got {ids[:MOST_NAMED]} with another whole number in "
            "every row, as an id has or an index, which would decide every distance; leave it out, "
            f"or {remedy}."
        )


def refuse_shared(embedding: Sequence[str], label: str, person: str | None) -> None:
    """Raise ValueError if a column is named for two roles.

    Args:
      embedding: Names of the features that the user gives.
      label: Name of the label.
      person: Name of the person, or None.
    """
    named = {"--label": label, "--person": person}
    for flag, name in named.items():
        if name in embedding:
            raise ValueError(
                f"Expected features without the {flag.removeprefix('--')}, got {name!r} in "
                f"--embedding and in {flag}; name it once."
            )
    if label == person:
        raise ValueError(
            f"Expected a column of labels and one of persons, got {label!r} in --label and in "
            "--person; name two."
        )

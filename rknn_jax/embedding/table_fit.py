"""Fit of a model of tables to the public table, and doubts about its columns."""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.checks import check_together
from rknn_jax._internal.option_names import option
from rknn_jax.embedding import doubts, table_files
from rknn_jax.embedding.table import (
    Category,
    Number,
    TableModel,
    Truth,
    is_bool,
    is_text,
    no_numbers,
    numbers,
    texts,
)
from rknn_jax.formats import _arrow
from rknn_jax.formats.csv import NUMBER
from rknn_jax.records import features, public_values

MOST_VALUES = 32
"""Most different values of a column of text."""

NEARLY = 0.9
"""Least share of numbers among the public values of a column of text that is told to be one."""

_PADDED = re.compile(r"0\d+", re.ASCII)
_EXPONENT = re.compile(r"\d+[eE]\d+", re.ASCII)
"""Codes, by a leading zero or by an exponent that few programs write for a number."""

LEAST_COLUMNS = 4
"""Least number of columns of which a row of totals is told."""

RARELY = 0.01
"""Most share of nearly empty rows beside those of totals."""

MOST_TOLD = 5
"""Most values that are told of a column."""


def no_feature() -> str:
    """Return the remedy for a column that is not a feature."""
    drop, columns = option("drop"), option("columns")
    return f"leave it out with {drop}, or name the columns of features with {columns}"


"""Remedy for a column that looks like an id."""


def fit(path: Path, argument: str, names: Sequence[str], *, chosen: bool) -> TableModel:
    """Fit the columns of a public table, which is read at once.

    Args:
      path: Public table.
      argument: Command-line argument that named it, for the errors.
      names: Names of the columns of features.
      chosen: Whether the user has named them. Otherwise, a column that looks like an id is refused.

    Raises:
      ValueError: If there are no columns or no rows, or a column is neither numbers nor text of few
        different values.
    """
    where = f"{argument} {path}"
    pa = _arrow.pyarrow()
    read = functools.partial(table_files.tables, path, argument, names, 2**16, refuse=True)
    parts = list(read(unlike=dict.fromkeys(names, table_files.NO_CELL))) if names else []
    if not parts:
        raise ValueError(
            f"Expected columns of features and rows in {where}, got none; name the columns with "
            f"{option('columns')}."
        )
    table = pa.concat_tables(parts).select(list(names))
    refuse = [] if chosen else [functools.partial(_refuse_ids, table, where)]
    fits, told, *_ = check_together(
        functools.partial(_fit_columns, table, chosen=chosen),
        functools.partial(_totals, table, path, argument),
        *refuse,
    )
    columns, notes = fits
    ids = () if chosen else _repeated_ids(table, notes)
    model = TableModel(columns, (*notes, *told, *ids))
    if not model.width:
        raise ValueError(f"Expected values in {where}, got none in {', '.join(names)}.")
    return model


def _refuse_ids(table: Any, where: str) -> None:
    """Raise ValueError if a column is an index or an id, by its name or its numbers."""
    names = table.column_names
    check_together(
        lambda: features.refuse_unnamed(names, no_feature()),
        lambda: public_values.refuse_ids(_whole_columns(table), names, where, no_feature()),
    )


def _repeated_ids(table: Any, notes: Sequence[str]) -> Iterator[str]:
    """Yield which columns that no note names may be ids that repeat."""
    names = table.column_names
    known = [any(f"column {name!r}" in note for note in notes) for name in names]
    columns = [
        np.zeros(0) if is_known else values
        for values, is_known in zip(_whole_columns(table), known, strict=True)
    ]
    for sentence in public_values.doubted(columns, names, no_feature()):
        yield f"columns {sentence}"


def _whole_columns(table: Any) -> list[np.ndarray]:
    """Return the finite numbers of each column. Text is no id, and counts among the others."""
    return [_whole_column(table.column(name), name) for name in table.column_names]


def _whole_column(column: Any, name: str) -> np.ndarray:
    """Return the finite numbers of a column, or none if it holds something else too."""
    try:
        values, every = numbers(column, name)
    except ValueError:  # it is refused by itself
        return np.zeros(0)
    return values[np.isfinite(values)] if every else np.zeros(0)


def _fit_columns(
    table: Any, *, chosen: bool
) -> tuple[tuple[Number | Category, ...], tuple[str, ...]]:
    """Return the fitted columns of a table, and sentences on what may be wrong with them.

    Raises:
      ValueError: If a column cannot be used, with the words on all that cannot.
    """
    columns: list[Number | Category] = []
    notes: list[tuple[str, str]] = []
    failures: list[tuple[str, str]] = []
    for name in table.column_names:
        try:
            column, told = _fitted(table.column(name), name, chosen=chosen)
        except ValueError as error:
            failures.append((name, str(error)))
            continue
        columns.append(column)
        notes += [(name, sentence) for sentence in told]
    if failures:
        raise ValueError(" ".join(doubts.grouped(failures)))
    return tuple(columns), tuple(doubts.grouped(notes))


def _totals(table: Any, path: Path, argument: str) -> list[str]:
    """Return which last rows of public files may be totals, in words.

    Such a row is nearly empty, and nearly all others are not.
    """
    names = table.column_names
    if len(names) < LEAST_COLUMNS or not table.num_rows:
        return []
    filled = np.stack([np.asarray(column.is_valid()) for column in table.columns], axis=1)
    bare = filled.sum(axis=1) <= max(1, len(names) // 4)
    if not bare.any():
        return []
    files = table_files.files(path, argument)
    counts = [table_files.num_rows(one, argument) for one in files] if len(files) > 1 else []
    ends = np.cumsum(counts) if counts else np.array([table.num_rows])
    last = {end - 1 for end in ends.tolist() if end}
    if sum(row not in last for row in np.flatnonzero(bare).tolist()) > RARELY * len(bare):
        return []
    return [
        doubts.of_totals(
            f"row {end - 1:,}, the last one of {file.name},",
            [name for name, held in zip(names, filled[end - 1], strict=True) if held],
        )
        for file, end in zip(files, ends.tolist(), strict=True)
        if end and bare[end - 1] and filled[end - 1].any()
    ]


def _fitted(column: Any, name: str, *, chosen: bool) -> tuple[Number | Category, tuple[str, ...]]:
    """Return a fitted column, and sentences on what may be wrong with it."""
    if (code := _code_in(column)) is not None:
        return _fitted_codes(column, name, code)
    values, all_numbers = numbers(column, name)
    there = values[np.isfinite(values)]
    if all_numbers:
        std = float(there.std()) if len(there) else 0.0
        mean = float(there.mean()) if len(there) else 0.0
        told = () if chosen else tuple(_doubts(column, name, there))
        fitted = Truth if is_bool(column) else Number
        return fitted(name, mean, std or 1.0), told
    given = texts(column)
    found = sorted({text for text in given if text})
    odd = _odd_values(given, values)
    if len(found) > MOST_VALUES and odd:
        raise ValueError(f"Expected numbers in the column {name!r}, got {odd}.")
    texts_alone = no_numbers(given, values)
    kind = None if odd else doubts.kind_of(texts_alone)
    if kind and (len(found) > MOST_VALUES or not chosen):
        raise ValueError(
            f"Expected numbers or categories in the column {name!r}, got {kind.name} such as "
            f"{texts_alone[0]!r}; {kind.remedy}, or leave the column out with {option('drop')}. If "
            f"it is a category of few values, name all columns with {option('columns')}."
        )
    if len(found) > MOST_VALUES:
        raise ValueError(
            f"Expected at most {MOST_VALUES} different values in the text column {name!r}, got "
            f"{len(found):,}, such as {texts_alone[0]!r}; group them, embed the column by "
            f"{option('text')}, or leave it out with {option('drop')}, or by naming the others "
            f"with {option('columns')}."
        )
    note = (f"column {name!r} is one-hot, because of {odd}",) if odd else ()
    return Category(name, tuple(found)), note


def _code_in(column: Any) -> str | None:
    """Return the first code in a column whose numerals are codes, or None.

    One with a leading zero tells, but of exponents all have to: a few stand for large numbers. If a
    column holds other text than numbers, it is a category anyway.
    """
    if not is_text(_arrow.plain(column).type) or not numbers(column, "")[1]:
        return None
    given = [text for text in texts(column) if text and re.match(NUMBER, text)]
    padded = next((text for text in given if _PADDED.fullmatch(text.strip())), None)
    if padded is None and all(_EXPONENT.fullmatch(text.strip()) for text in given):
        return given[0]
    return padded


def _fitted_codes(column: Any, name: str, code: str) -> tuple[Category, tuple[str, ...]]:
    """Return a column of codes as a category, and a sentence that says so."""
    found = sorted({text for text in texts(column) if text})
    remedy = "if its values are numbers, save them plainly, such as 12 or 100000"
    if len(found) > MOST_VALUES:
        raise ValueError(
            f"Expected at most {MOST_VALUES} different values in the text column {name!r}, got "
            f"{len(found):,} codes, such as {code!r}; group them, or leave the column out with "
            f"{option('drop')}; {remedy}."
        )
    return Category(name, tuple(found)), (
        f"column {name!r} is one-hot, because {code!r} is a code; {remedy}",
    )


def _doubts(column: Any, name: str, values: np.ndarray) -> Iterator[str]:
    """Yield what may be wrong with a public column of numbers.

    Args:
      column: Arrow column.
      name: Name of the column.
      values: Its finite numbers.
    """
    yield from doubts.of_numbers(name, values, MOST_VALUES)
    plain = _arrow.plain(column)
    if is_text(plain.type):
        given = [text for text in texts(column) if text and re.match(NUMBER, text)]
        yield from doubts.of_points(name, given, typed=False)
    elif _arrow.pyarrow().types.is_floating(plain.type):
        shown = [f"{value:.15g}" for value in values.tolist()]
        yield from doubts.of_points(name, shown, typed=True)


def _odd_values(given: Sequence[str | None], values: np.ndarray) -> str:
    """Return which public values keep a column from being one of numbers, with the remedy.

    Args:
      given: Values of the column.
      values: The same values as numbers, NaN for what is none.

    Returns:
      The text of it, or "" if less than `NEARLY` of the values are numbers.
    """
    numbers = len(values) - int(np.isnan(values).sum())
    odd = Counter(no_numbers(given, values))
    count = sum(odd.values())
    if not odd or numbers < NEARLY * (numbers + count):
        return ""
    shown = ", ".join(repr(text) for text, _ in odd.most_common(MOST_TOLD))
    more = f" and {len(odd) - MOST_TOLD:,} others" if len(odd) > MOST_TOLD else ""
    return (
        f"{shown}{more} in {count:,} of {numbers + count:,} values, which are no numbers; if they "
        "stand for missing numbers, leave such fields empty on both sides, and if they are "
        "mistakes, mend them"
    )

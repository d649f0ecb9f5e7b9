"""Tables: numbers are standardized, and text of few different values becomes one-hot.

Means, deviations and values are those of the public table alone. The private table is transformed
with the public table's card, so that both sides have the same features.
"""

import functools
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.checks import check_together
from rknn_jax.embedding import Embedded, doubts, table_files
from rknn_jax.formats import _arrow
from rknn_jax.formats.csv import NUMBER
from rknn_jax.records import features
from rknn_jax.records.classes import MISSING_WORDS

MOST_VALUES = 32
"""Most different values of a column of text."""

MISSING_NUMBERS = MISSING_WORDS | {"", "?", "-", "--", ".", "#n/a", "missing", "unknown"}
"""Text that stands for a missing number among numbers, in lower case."""

TRUTHS = dict.fromkeys(("true", "t", "yes", "y"), "1") | dict.fromkeys(
    ("false", "f", "no", "n"), "0"
)
"""Words for bools, in lower case."""

NEARLY = 0.9
"""Least share of numbers among the public values of a column of text that is told to be one."""

LEAST_COLUMNS = 4
"""Least number of columns of which a row of totals is told."""

RARELY = 0.01
"""Most share of nearly empty rows beside those of totals."""

MOST_TOLD = 5
"""Most values that are told of a column."""


@dataclass(frozen=True)
class Number:
    """Column of numbers. A missing one is at the mean.

    Attributes:
      name: Name of the column.
      mean: Mean of the public values.
      std: Standard deviation of the public values, or 1 if they are all equal.
    """

    name: str
    mean: float
    std: float

    @property
    def width(self) -> int:
        """Number of features."""
        return 1

    def features(self, column: Any) -> np.ndarray:
        """Return standardized numbers, float64 `[b, 1]`, from an Arrow column; NaN for others."""
        values = self._numbers(column)
        scaled = (values - self.mean) / self.std
        return np.where(np.isfinite(values), scaled, np.nan)[:, None]

    def _numbers(self, column: Any) -> np.ndarray:
        return numbers(column, self.name)[0]

    def review(self, column: Any, found: doubts.Unread) -> None:
        """Count the values of a private Arrow column that are no numbers."""
        values = self.features(column)[:, 0]
        held = values[np.isfinite(values)]
        found.sum += float(held.sum())
        odd = [] if len(held) == len(values) else _no_numbers(texts(column), values)
        found.odd.update(odd)
        found.count += len(held) + len(odd)


@dataclass(frozen=True)
class Truth(Number):
    """Column of bools, which are 1 and 0. The private side may have words for them.

    Attributes:
      truth: True, by which a card tells such a column.
    """

    truth: bool = True

    def _numbers(self, column: Any) -> np.ndarray:
        if not _is_text(_arrow.plain(column).type):
            return super()._numbers(column)
        words = [TRUTHS.get(_bare(text), text) if text else text for text in texts(column)]
        pa = _arrow.pyarrow()
        return super()._numbers(pa.chunked_array([pa.array(words, pa.large_string())]))


@dataclass(frozen=True)
class Category:
    """Column of text. A value that no public row has, or a missing one, is all zeros.

    Attributes:
      name: Name of the column.
      values: Different public values, in order.
    """

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.values)

    def features(self, column: Any) -> np.ndarray:
        """Return one-hot rows, float64 `[b, width]`, from an Arrow column."""
        found = np.array([self._known(text or "") for text in texts(column)], object)
        one_hot: np.ndarray = found[:, None] == np.array(self.values, object)
        return one_hot.astype(np.float64)

    def review(self, column: Any, found: doubts.Unread) -> None:
        """Count the values of a private Arrow column that no public row has."""
        given = [text for text in texts(column) if text]
        found.count += len(given)
        found.odd.update(text for text in given if self._known(text) not in self.values)

    def _known(self, text: str) -> str:
        """Return the public value that a text is, but for capitals and white space around it."""
        if text in self.values:
            return text
        return self._alike.get(_bare(text), text)

    @functools.cached_property
    def _alike(self) -> dict[str, str]:
        """Public values by their text in small letters; without those of which there are two."""
        counts = Counter(map(_bare, self.values))
        return {_bare(value): value for value in self.values if counts[_bare(value)] == 1}


@dataclass(frozen=True)
class TableModel:
    """Fitted columns.

    Attributes:
      columns: Columns, in the order of their features.
      told: Sentences on public columns that may not be what they look like. Defaults to none.
    """

    columns: tuple[Number | Category, ...]
    told: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Number of features f."""
        return sum(column.width for column in self.columns)

    @property
    def card(self) -> dict[str, Any]:
        """The fitted columns and their digest."""
        fitted = [asdict(column) for column in self.columns]
        digest = hashlib.sha256(json.dumps(fitted).encode()).hexdigest()
        return {
            "kind": "table",
            "name": "standardized",
            "sha256": digest,
            "width": self.width,
            "columns": fitted,
            "versions": {},
        }

    @property
    def roles(self) -> str:
        """Roles of the columns in words."""
        numbers = [one.name for one in self.columns if isinstance(one, Number)]
        categories = [(one.name, one.width) for one in self.columns if isinstance(one, Category)]
        return doubts.roles(numbers, categories)

    def __call__(self, records: Any) -> Embedded:
        """Return the features of an Arrow table. A row without any value cannot be used."""
        parts = [column.features(records.column(column.name)) for column in self.columns]
        nulls = [
            np.isnan(part[:, 0])
            if isinstance(column, Number)
            else records.column(column.name).is_null().to_numpy()
            for column, part in zip(self.columns, parts, strict=True)
        ]
        empty = np.all(nulls, axis=0)
        made = np.concatenate(parts, axis=1)
        with np.errstate(over="ignore"):  # such values are infinite then
            features = np.where(np.isnan(made), 0.0, made).astype(np.float32)
        unusable = empty | ~np.isfinite(features).all(axis=1)
        features[unusable] = np.nan
        reasons = {
            int(row): "no values" if empty[row] else "a number too large"
            for row in np.flatnonzero(unusable)
        }
        return Embedded(features, reasons)


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
            "--columns."
        )
    table = pa.concat_tables(parts).select(list(names))
    refuse = [] if chosen else [functools.partial(_refuse_ids, table, where)]
    fits, told, *_ = check_together(
        functools.partial(_fit_columns, table, chosen=chosen),
        functools.partial(_totals, table, path, argument),
        *refuse,
    )
    columns, notes = fits
    model = TableModel(columns, (*notes, *told))
    if not model.width:
        raise ValueError(f"Expected values in {where}, got none in {', '.join(names)}.")
    return model


def review(model: TableModel, path: Path, argument: str) -> list[str]:
    """Return what the curator of a private table should know of it, and nobody else.

    Args:
      model: Model that the public table has.
      path: Private table, of which the first `doubts.MOST_REVIEWED` records are read.
      argument: Command-line argument that named it.
    """
    names = [column.name for column in model.columns]
    found = {name: doubts.Unread() for name in names}
    unlike = dict.fromkeys(names, table_files.NO_CELL)
    parts = table_files.tables(path, argument, names, 2**14, refuse=False, unlike=unlike)
    for table in itertools.islice(parts, -(-doubts.MOST_REVIEWED // 2**14)):
        for column in model.columns:
            column.review(table.column(column.name), found[column.name])
    return doubts.grouped(
        (one.name, sentence)
        for one in model.columns
        for sentence in doubts.told(one.name, found[one.name], is_number=isinstance(one, Number))
    )


def of_card(card: dict[str, Any]) -> TableModel:
    """Return the model of a card.

    Raises:
      ValueError: If the card is not one that a run on a table wrote.
    """
    try:
        fitted = tuple(_column(column) for column in card["columns"])
        model = TableModel(fitted)
        if model.card["sha256"] != card["sha256"]:
            raise ValueError("its columns are not those of its digest")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected the card of an embedded table, got another or a changed one ({error}); name "
            "the .card.json of the public table."
        ) from error
    return model


def _column(given: dict[str, Any]) -> Number | Category:
    if "values" in given:
        return Category(given["name"], tuple(given["values"]))
    kind = Truth if given.get("truth") else Number
    return kind(given["name"], given["mean"], given["std"])


def _refuse_ids(table: Any, where: str) -> None:
    """Raise ValueError if a column is an index or an id, by its name or its numbers."""
    remedy = "leave it out with --drop, or name the columns of features with --columns"
    names = table.column_names
    # Text is no id, and counts among the columns that are none.
    columns = [_whole_column(table.column(name), name) for name in names]
    check_together(
        lambda: features.refuse_unnamed(names, remedy),
        lambda: features.refuse_ids(columns, names, where, remedy),
    )


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
    values, all_numbers = numbers(column, name)
    there = values[np.isfinite(values)]
    if all_numbers:
        std = float(there.std()) if len(there) else 0.0
        mean = float(there.mean()) if len(there) else 0.0
        told = () if chosen else tuple(_doubts(column, name, there))
        fitted = Truth if _is_bool(column) else Number
        return fitted(name, mean, std or 1.0), told
    given = texts(column)
    found = sorted({text for text in given if text})
    odd = _odd_values(given, values)
    if len(found) > MOST_VALUES and odd:
        raise ValueError(f"Expected numbers in the column {name!r}, got {odd}.")
    texts_alone = _no_numbers(given, values)
    kind = None if odd else doubts.kind_of(texts_alone)
    if kind and (len(found) > MOST_VALUES or not chosen):
        raise ValueError(
            f"Expected numbers or categories in the column {name!r}, got {kind.name} such as "
            f"{texts_alone[0]!r}; {kind.remedy}, or leave the column out with --drop. If it is a "
            "category of few values, name all columns with --columns."
        )
    if len(found) > MOST_VALUES:
        raise ValueError(
            f"Expected at most {MOST_VALUES} different values in the text column {name!r}, got "
            f"{len(found):,}, such as {texts_alone[0]!r}; group them, embed the column by --text, "
            "or leave it out with --drop, or by naming the others with --columns."
        )
    note = (f"column {name!r} is one-hot, because of {odd}",) if odd else ()
    return Category(name, tuple(found)), note


def _doubts(column: Any, name: str, values: np.ndarray) -> Iterator[str]:
    """Yield what may be wrong with a public column of numbers.

    Args:
      column: Arrow column.
      name: Name of the column.
      values: Its finite numbers.
    """
    yield from doubts.of_numbers(name, values, MOST_VALUES)
    plain = _arrow.plain(column)
    if _is_text(plain.type):
        given = [text for text in texts(column) if text and re.match(NUMBER, text)]
        yield from doubts.of_points(name, given, typed=False)
    elif _arrow.pyarrow().types.is_floating(plain.type):
        shown = [f"{value:.15g}" for value in values.tolist()]
        yield from doubts.of_points(name, shown, typed=True)


def _no_numbers(given: Sequence[str | None], values: np.ndarray) -> list[str]:
    """Return the texts that are neither numbers nor stand for a missing one.

    Args:
      given: Values of the column.
      values: The same values as numbers, NaN for what is none.
    """
    return [
        text
        for text, value in zip(given, values.tolist(), strict=True)
        if np.isnan(value) and text is not None and text.strip().lower() not in MISSING_NUMBERS
    ]


def _odd_values(given: Sequence[str | None], values: np.ndarray) -> str:
    """Return which public values keep a column from being one of numbers, with the remedy.

    Args:
      given: Values of the column.
      values: The same values as numbers, NaN for what is none.

    Returns:
      The text of it, or "" if less than `NEARLY` of the values are numbers.
    """
    numbers = len(values) - int(np.isnan(values).sum())
    odd = Counter(_no_numbers(given, values))
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


def numbers(column: Any, name: str) -> tuple[np.ndarray, bool]:
    """Return an Arrow column as numbers, and whether it is a column of numbers.

    Args:
      column: Arrow column of numbers or text.
      name: Name of the column, for the errors.

    Returns:
      `(values, all_numbers)`: float64 `[b]`, NaN for what is missing or no number; and whether
      there are numbers, and nothing else but `MISSING_NUMBERS`.

    Raises:
      ValueError: If the column holds neither numbers nor text.
    """
    pa = _arrow.pyarrow()
    from pyarrow import compute

    types = pa.types
    if types.is_dictionary(column.type):  # views in it cannot be cast
        column = pa.chunked_array([_arrow.plain(column)])
    kind = column.type
    if types.is_boolean(kind):
        column = column.cast(pa.int8())
    if types.is_integer(column.type) or types.is_floating(kind) or types.is_decimal(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64), True
    if not _is_text(kind):
        raise ValueError(
            f"Expected numbers or text in column {name!r}, got {kind}; convert it, or leave it out "
            "with --drop, or by naming the others with --columns."
        )
    text = column.cast(pa.large_string())
    is_number = compute.match_substring_regex(text, NUMBER)
    kept = compute.utf8_trim_whitespace(compute.if_else(is_number, text, None))
    values = np.asarray(kept.cast(pa.float64()).to_numpy(), np.float64)
    words = compute.utf8_lower(compute.utf8_trim_whitespace(compute.fill_null(text, "")))
    missing = compute.is_in(words, pa.array(sorted(MISSING_NUMBERS), pa.large_string())).to_numpy()
    are = compute.fill_null(is_number, False).to_numpy()
    return values, bool(np.all(are | missing)) and bool(are.any())


def _is_text(kind: Any) -> bool:
    types = _arrow.pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bool(column: Any) -> bool:
    return bool(_arrow.pyarrow().types.is_boolean(_arrow.plain(column).type))


def _bare(text: str) -> str:
    return text.strip().casefold()


def texts(column: Any) -> list[str | None]:
    """Return an Arrow column of text or booleans as a list."""
    pa = _arrow.pyarrow()
    values: list[str | None] = _arrow.plain(column).cast(pa.large_string()).to_pylist()
    return values

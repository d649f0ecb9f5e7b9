"""Tables: numbers are standardized, and text of few different values becomes one-hot.

Means, deviations and values are those of the public table alone. The private table is transformed
with the public table's card, so that both sides have the same features.
"""

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.embedding import Embedded, doubts, table_files
from rknn_jax.formats import _arrow
from rknn_jax.formats.csv import NUMBER
from rknn_jax.neighbors import LARGEST
from rknn_jax.records.classes import MISSING_WORDS
from rknn_jax.records.features import flattened

MISSING_NUMBERS = MISSING_WORDS | {"", "?", "-", "--", ".", "#n/a", "missing", "unknown"}
"""Text that stands for a missing number among numbers, in lower case."""

TRUTHS = dict.fromkeys(("true", "t", "yes", "y"), "1") | dict.fromkeys(
    ("false", "f", "no", "n"), "0"
)
"""Words for bools, in lower case."""


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

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of the feature."""
        return (self.name,)

    def features(self, column: Any) -> np.ndarray:
        """Return standardized numbers, float64 `[b, 1]`, from an Arrow column; NaN for others."""
        values = self._numbers(column)
        with np.errstate(all="ignore"):  # a warning would tell of a record
            scaled = (values - self.mean) / self.std
        return np.where(np.isfinite(values), scaled, np.nan)[:, None]

    def _numbers(self, column: Any) -> np.ndarray:
        return numbers(column, self.name)[0]

    def review(self, column: Any, found: doubts.Unread) -> None:
        """Count the values of a private Arrow column that are not numbers."""
        values = self.features(column)[:, 0]
        held = values[np.abs(values) <= LARGEST]  # the square of a larger one may overflow
        found.sum += float(held.sum())
        found.squares += float(np.square(held).sum())
        odd = [] if len(held) == len(values) else no_numbers(texts(column), values)
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
        if not is_text(_arrow.plain(column).type):
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

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, one of each value."""
        return tuple(f"{self.name}={value}" for value in self.values)

    def features(self, column: Any) -> np.ndarray:
        """Return one-hot rows, float64 `[b, width]`, from an Arrow column."""
        found = np.array([self._known(text or "") for text in self._texts(column)], object)
        one_hot: np.ndarray = found[:, None] == np.array(self.values, object)
        return one_hot.astype(np.float64)

    def review(self, column: Any, found: doubts.Unread) -> None:
        """Count the values of a private Arrow column that no public row has."""
        given = [text for text in self._texts(column) if text]
        found.count += len(given)
        found.odd.update(text for text in given if self._known(text) not in self.values)

    def _texts(self, column: Any) -> list[str | None]:
        """Return the values; raise ValueError by their type alone."""
        pa = _arrow.pyarrow()
        kind = _arrow.plain(column).type
        try:
            texts(pa.chunked_array([], kind))
        except pa.lib.ArrowNotImplementedError as error:
            raise ValueError(
                f"Expected text in column {self.name!r}, as on the public side, got {kind}; "
                f"convert it, or leave it out of both sides with {option('drop')}"
                f"{flattened(str(kind))}."
            ) from error
        return texts(column)

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
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in their order."""
        return tuple(name for column in self.columns for name in column.feature_names)

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
        with np.errstate(all="ignore"):  # such values are infinite then
            features = np.where(np.isnan(made), 0.0, made).astype(np.float32)
        unusable = empty | ~np.isfinite(features).all(axis=1)
        features[unusable] = np.nan
        reasons = {
            int(row): "no values" if empty[row] else "a number too large"
            for row in np.flatnonzero(unusable)
        }
        return Embedded(features, reasons)


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
        for sentence in doubts.sentences(
            one.name, found[one.name], is_number=isinstance(one, Number)
        )
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


def no_numbers(given: Sequence[str | None], values: np.ndarray) -> list[str]:
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
    if not is_text(kind):
        raise ValueError(
            f"Expected numbers or text in column {name!r}, got {kind}; convert it, or leave it out "
            f"with {option('drop')}, or by naming the others with "
            f"{option('columns')}{flattened(str(kind))}."
        )
    text = column.cast(pa.large_string())
    is_number = compute.match_substring_regex(text, NUMBER)
    kept = compute.utf8_trim_whitespace(compute.if_else(is_number, text, None))
    values = np.asarray(kept.cast(pa.float64()).to_numpy(), np.float64)
    words = compute.utf8_lower(compute.utf8_trim_whitespace(compute.fill_null(text, "")))
    missing = compute.is_in(words, pa.array(sorted(MISSING_NUMBERS), pa.large_string())).to_numpy()
    are = compute.fill_null(is_number, False).to_numpy()
    return values, bool(np.all(are | missing)) and bool(are.any())


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is one of text."""
    types = _arrow.pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bool(column: Any) -> bool:
    """Return whether an Arrow column holds bools, by its type."""
    return bool(_arrow.pyarrow().types.is_boolean(_arrow.plain(column).type))


def _bare(text: str) -> str:
    return text.strip().casefold()


def texts(column: Any) -> list[str | None]:
    """Return an Arrow column of text, bytes or booleans as a list."""
    pa = _arrow.pyarrow()
    column = _arrow.plain(column)
    types = pa.types
    kinds = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    values: list[str | None]
    if any(is_kind(column.type) for is_kind in kinds):
        values = _arrow.text_column(column).tolist()  # a cast fails at a value that is no Unicode
    else:
        values = column.cast(pa.large_string()).to_pylist()
    return values

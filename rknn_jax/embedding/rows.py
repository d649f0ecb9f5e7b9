"""Rows of table files as a source of records, and the texts in their columns."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal import disk
from rknn_jax._internal.option_names import option
from rknn_jax.embedding import Rows, table_files
from rknn_jax.formats import LABELS, _arrow, clear_errors, csv, refuse_absent, suffix_of
from rknn_jax.records.features import flattened

JSON = "arrow.json"
"""Arrow type of serialized JSON, which is no text."""


@dataclass(frozen=True)
class TableFile:
    """File of records in columns.

    Attributes:
      path: File, whose suffix is one of `table_files.SUFFIXES`, or a folder or pattern of such
        files.
      argument: Command-line argument that named it, for the errors.
      features: Names of the columns that a model reads.
      label: Name of the column of labels. Defaults to None, for records without labels.
      keep: Names of further columns that are copied. Defaults to none.
      private: Whether the records are private. Then a broken record of a CSV file is a row without
        values, and otherwise an error. Defaults to False.
      texts: Whether the features are text alone, and no numbers. Defaults to False.
    """

    path: Path
    argument: str
    features: tuple[str, ...]
    label: str | None = None
    keep: tuple[str, ...] = ()
    private: bool = False
    texts: bool = False

    def __post_init__(self) -> None:
        found = table_files.names(self.path, self.argument)
        if not table_files.declares_names(self.path, self.argument, private=self.private):
            return
        with clear_errors(self.where):
            first = table_files.files(self.path, self.argument)[0]
            is_csv = suffix_of(first.name) in csv.SUFFIXES
            (csv.refuse_absent if is_csv else refuse_absent)(self.wanted, found)

    def __len__(self) -> int:
        return table_files.num_rows(self.path, self.argument)

    @property
    def where(self) -> str:
        """Argument and name of the file."""
        return f"{self.argument} {self.path}"

    @property
    def state(self) -> list[Any]:
        """Files, and the columns by their roles."""
        files = table_files.files(self.path, self.argument)
        roles = [self.argument, self.features, self.label, self.keep, self.texts]
        return [*([one.name, *disk.file_state(one)] for one in files), *roles]

    @property
    def name_column(self) -> str:
        """Name of the column of row numbers."""
        return "row"

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        label = () if self.label is None else (self.label,)
        return tuple(dict.fromkeys([*self.features, *label, *self.keep]))

    def blocks(self, size: int) -> Iterator[Rows]:
        """Yield the columns of at most `size` records, as an Arrow table of the features.

        Without any record, it is one block of none.
        """
        first = 0
        refuse = not self.private
        classes = table_files.class_names(self.path, self.argument, self.label, self.keep)
        found = table_files.tables(
            self.path,
            self.argument,
            self.wanted,
            size,
            refuse=refuse,
            label=self.label,
            persons=self.keep if self.private else (),
            unlike=dict.fromkeys(
                self.features, table_files.NO_TEXT if self.texts else table_files.NO_CELL
            ),
        )
        begun = next(found, None)
        if begun is None:
            begun = table_files.empty(self.path, self.argument, self.wanted)
        for table in itertools.chain([begun], found):
            copied = {name: table.column(name).combine_chunks() for name in self.keep}
            if self.label is not None:
                copied[LABELS] = table.column(self.label).combine_chunks()
            last = first + table.num_rows
            records = table.select(list(self.features))
            yield Rows(
                records, np.arange(first, last), copied, classes=classes, broken=_broken(table)
            )
            first = last


def _broken(table: Any) -> dict[int, str]:
    """Return why rows of a table cannot be read, by their places."""
    if table_files.BROKEN not in table.column_names:
        return {}
    why = table.column(table_files.BROKEN)
    if why.null_count == len(why):
        return {}
    return {row: text for row, text in enumerate(why.to_pylist()) if text is not None}


def texts(records: Any) -> list[str]:
    """Return the texts in one or more columns of an Arrow table.

    Columns are joined with a line break. Missing ones are left out, and so are those of white
    space alone.

    Raises:
      ValueError: If a column holds no text.
    """
    columns = [_text_values(records.column(name), name) for name in records.column_names]
    return [
        "\n".join(text for text in values if text and not text.isspace())
        for values in zip(*columns, strict=True)
    ]


def _text_values(column: Any, name: str) -> list[str | None]:
    """Return an Arrow column of text as a list, with None for missing values.

    Raises:
      ValueError: If the column holds something else.
    """
    types = _arrow.pyarrow().types
    kind = column.type
    is_json = getattr(kind, "extension_name", "") == JSON
    column = _arrow.plain(column)
    kind = kind if is_json else column.type
    if is_json or not (
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    ):
        raise ValueError(
            f"Expected text in column {name!r}, got {kind}; name the columns of the text with "
            f"{option('columns')}{flattened(str(kind))}."
        )
    values: list[str | None] = column.to_pylist()
    return values

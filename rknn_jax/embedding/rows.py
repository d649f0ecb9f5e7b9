"""Columns of CSV, JSON-lines and Parquet files, in blocks of rows.

**A line is a record** in CSV and JSON lines. A line that cannot be read, or has too many or too few
fields, is a record whose values are all missing, so that no record can hide or move another one.
These two formats have no types of columns, so that all their values are text.
"""

import csv
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rknn_jax.embedding import Rows
from rknn_jax.formats import LABELS, _arrow, absent

SUFFIXES = (".csv", ".jsonl", ".parquet")

LINES_WITH_NAMES = 100
"""Lines of a JSON-lines file that tell the names of its columns."""


@dataclass(frozen=True)
class TableFile:
    """File of records in columns.

    Attributes:
      path: File, whose suffix is one of `SUFFIXES`.
      argument: Command-line argument that named it, for the errors.
      features: Names of the columns that a model reads.
      label: Name of the column of labels. Defaults to None, for records without labels.
      keep: Names of further columns that are copied. Defaults to none.
    """

    path: Path
    argument: str
    features: tuple[str, ...]
    label: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        found = names(self.path, self.argument)
        for name in self._wanted:
            if name not in found:
                raise ValueError(f"{self.where}: {absent(name, found)}")

    def __len__(self) -> int:
        if self.path.suffix == ".parquet":
            return int(_parquet(self.path, self.where).metadata.num_rows)
        with self.path.open("rb") as file:
            lines = sum(1 for _ in file)
        return lines - (self.path.suffix == ".csv")

    @property
    def where(self) -> str:
        """Argument and name of the file."""
        return f"{self.argument} {self.path}"

    @property
    def state(self) -> list[Any]:
        """Name, size and time of the file."""
        status = self.path.stat()
        return [self.path.name, status.st_size, status.st_mtime_ns, *self._wanted]

    @property
    def name_column(self) -> str:
        """Name of the column of row numbers."""
        return "row"

    @property
    def _wanted(self) -> tuple[str, ...]:
        label = () if self.label is None else (self.label,)
        return tuple(dict.fromkeys([*self.features, *label, *self.keep]))

    def blocks(self, size: int) -> Iterator[Rows]:
        """Yield the columns of at most `size` records, as an Arrow table of the features."""
        first = 0
        for table in tables(self.path, self.where, self._wanted, size):
            copied = {name: table.column(name).combine_chunks() for name in self.keep}
            if self.label is not None:
                copied[LABELS] = table.column(self.label).combine_chunks()
            last = first + table.num_rows
            yield Rows(table.select(list(self.features)), list(range(first, last)), copied)
            first = last


def names(path: Path, argument: str) -> list[str]:
    """Return the names of a file's columns.

    Raises:
      ValueError: If the file cannot be read, or is in another format.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"Expected {argument} to name a {', '.join(SUFFIXES)} file, got {path}; save it in one "
            "of these."
        )
    if not path.is_file():
        raise ValueError(f"There is no file {argument} {path}; name one that exists.")
    if path.suffix == ".parquet":
        return list(_parquet(path, f"{argument} {path}").schema_arrow.names)
    with path.open("rb") as file:
        if path.suffix == ".csv":
            return _fields(file.readline().removeprefix(b"\xef\xbb\xbf"))
        every = [_record(line) for line in itertools.islice(file, LINES_WITH_NAMES)]
    return list(dict.fromkeys(itertools.chain.from_iterable(every)))


def tables(path: Path, where: str, columns: Sequence[str], size: int) -> Iterator[Any]:
    """Yield Arrow tables of the named columns, of at most `size` rows each.

    Columns of CSV and JSON lines are text, with null for a missing value.
    """
    pa = _arrow.pyarrow()
    if path.suffix == ".parquet":
        for batch in _parquet(path, where).iter_batches(batch_size=size, columns=list(columns)):
            yield pa.Table.from_batches([batch]).select(list(columns))
        return
    schema = pa.schema([(name, pa.large_string()) for name in columns])
    records = _csv_records(path) if path.suffix == ".csv" else _json_records(path)
    while block := list(itertools.islice(records, size)):
        values = {name: [record.get(name) for record in block] for name in columns}
        yield pa.table(values, schema=schema)


def texts(records: Any) -> list[str]:
    """Return the texts in one or more columns of an Arrow table.

    Columns are joined with a line break. Missing ones are left out.

    Raises:
      ValueError: If a column holds no text.
    """
    columns = [_text_values(records.column(name), name) for name in records.column_names]
    return ["\n".join(filter(None, values)) for values in zip(*columns, strict=True)]


def _text_values(column: Any, name: str) -> list[str | None]:
    """Return an Arrow column of text as a list, with None for missing values.

    Raises:
      ValueError: If the column holds something else.
    """
    types = _arrow.pyarrow().types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise ValueError(
            f"Expected text in column {name!r}, got {kind}; name the columns of the text with "
            "--columns."
        )
    values: list[str | None] = column.to_pylist()
    return values


def _parquet(path: Path, where: str) -> Any:
    pa = _arrow.pyarrow()
    try:
        return pa.parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{where} is no whole Parquet file ({error}); write it anew.") from error


def _csv_records(path: Path) -> Iterator[dict[str, str]]:
    with path.open("rb") as file:
        header = _fields(file.readline().removeprefix(b"\xef\xbb\xbf"))
        for line in file:
            fields = _fields(line)
            pairs = zip(header, fields, strict=False) if len(fields) == len(header) else ()
            yield {name: field for name, field in pairs if field}


def _fields(line: bytes) -> list[str]:
    """Return the fields of one line. A quote ends with its line."""
    text = line.decode(errors="replace").rstrip("\r\n")
    try:
        return next(csv.reader(io.StringIO(text)), [])
    except csv.Error:  # such as a field beyond the limit
        return []


def _json_records(path: Path) -> Iterator[dict[str, str]]:
    with path.open("rb") as file:
        yield from map(_record, file)


def _record(line: bytes) -> dict[str, str]:
    """Return the values of a line as text, without the missing ones."""
    try:
        found = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None and value != ""
    }

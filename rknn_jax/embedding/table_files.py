"""Columns of CSV, JSON-lines, Parquet and Arrow files, as Arrow tables.

Parquet and Arrow files may be a folder, as `datasets` and its hub have them, or a pattern.

A record of RFC 4180 is a row in CSV, and a line in JSON lines. A private record that cannot be read
is a row whose values are all missing, so that no record can hide or move another one. These two
formats have no types of columns, so that all their values are text.
"""

import glob
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rknn_jax.formats import _arrow, _csv_records, _hub, clear_errors, feather

TYPED = (".parquet", ".arrow")
"""Suffixes of files whose columns have types. A folder or a pattern names such files."""

SUFFIXES = (".csv", ".jsonl", *TYPED)

LINES_WITH_NAMES = 100
"""Lines of a JSON-lines file that tell the names of its columns."""


def declares_names(path: Path, *, private: bool) -> bool:
    """Return False for private JSON lines, whose names are private.

    A column is missing in a record that does not name it. An error would reveal that no record
    among the first ones names it.
    """
    return not (private and path.suffix == ".jsonl")


def files(path: Path, argument: str) -> list[Path]:
    """Return the files that a path names, in order of their names.

    Args:
      path: File, or a folder or pattern of files in `TYPED`. Names in a folder that begin with a
        dot or an underscore are left out.
      argument: Command-line argument that named it, for the errors.

    Raises:
      ValueError: If there is none, or a file is in another format.
    """
    several = path.is_dir()
    if several:
        below = (one.relative_to(path) for one in path.rglob("*"))
        found = [path / one for one in below if not _hidden(one)]
    elif any(sign in str(path) for sign in "*?[") and not path.exists():
        several = True
        found = [Path(one) for one in glob.glob(str(path), recursive=True)]
    else:
        found = [path]
    known = sorted(one for one in found if one.suffix in (TYPED if several else SUFFIXES))
    if several and not known:
        raise ValueError(
            f"Expected files that end in {', '.join(TYPED)} in {argument} {path}, got none; name a "
            "folder that holds some."
        )
    if not known:
        raise ValueError(
            f"Expected {argument} to name a {', '.join(SUFFIXES)} file, or a folder of "
            f"{' or '.join(TYPED)} files, got {path}; save it in one of these."
        )
    if not known[0].is_file():
        raise ValueError(f"There is no file {argument} {path}; name one that exists.")
    return known


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def names(path: Path, argument: str) -> list[str]:
    """Return the names of the columns.

    Raises:
      ValueError: If a file cannot be read, is in another format, or has other columns than the
        first.
    """
    found = files(path, argument)
    where = f"{argument} {path}"
    if found[0].suffix in TYPED:
        return list(_schema(found, argument).names)
    with path.open("rb") as file:
        if path.suffix == ".csv":
            with clear_errors(where):
                return _csv_records.header(file)
        every = [_record(line) for line in itertools.islice(file, LINES_WITH_NAMES)]
    return list(dict.fromkeys(itertools.chain.from_iterable(every)))


def types(path: Path, argument: str) -> dict[str, Any]:
    """Return the Arrow types of the columns of Parquet or Arrow files, by their names."""
    return {field.name: field.type for field in _schema(files(path, argument), argument)}


def is_typed(path: Path) -> bool:
    """Return whether a path names Parquet or Arrow files, by itself or in a folder."""
    try:
        return files(path, "")[0].suffix in TYPED
    except ValueError:
        return False


def class_names(path: Path, argument: str, label: str | None) -> tuple[str, ...]:
    """Return the names that `datasets` declares for the class numbers in a column, or none."""
    found = files(path, argument)
    if label is None or found[0].suffix not in TYPED:
        return ()
    return _hub.class_names(_schema(found, argument), label)


def _schema(found: Sequence[Path], argument: str) -> Any:
    """Return the Arrow schema of files.

    Raises:
      ValueError: If a file has other columns than the first, or declares other features.
    """
    schemas = [_schema_of(one, f"{argument} {one}") for one in found]
    for one, schema in zip(found, schemas, strict=True):
        features = [(held.metadata or {}).get(_hub.KEY) for held in (schema, schemas[0])]
        if not schema.equals(schemas[0]) or features[0] != features[1]:
            raise ValueError(
                f"Expected the same columns and features in all files of {argument}, got others in "
                f"{one} than in {found[0]}; name a pattern of files that belong together."
            )
    return schemas[0]


def _schema_of(path: Path, where: str) -> Any:
    if path.suffix == ".parquet":
        return _parquet(path, where).schema_arrow
    with clear_errors(where), path.open("rb") as file:
        return feather.schema(file)


def _num_rows_of(path: Path, where: str) -> int:
    if path.suffix == ".parquet":
        return int(_parquet(path, where).metadata.num_rows)
    with clear_errors(where), path.open("rb") as file:
        return sum(batch.num_rows for batch in feather.record_batches(file))


def num_rows(path: Path, argument: str) -> int:
    """Return the number of records."""
    found = files(path, argument)
    if found[0].suffix in TYPED:
        return sum(_num_rows_of(one, f"{argument} {path}") for one in found)
    with path.open("rb") as file:
        if path.suffix == ".csv":
            _csv_records.header(file)
            return _csv_records.num_records(file)
        return sum(1 for _ in file)


def empty(path: Path, argument: str, columns: Sequence[str]) -> Any:
    """Return an Arrow table of the named columns without a record."""
    pa = _arrow.pyarrow()
    found = files(path, argument)
    if found[0].suffix in TYPED:
        return _schema(found, argument).empty_table().select(list(columns))
    return pa.schema([(name, pa.large_string()) for name in columns]).empty_table()


def tables(
    path: Path, argument: str, columns: Sequence[str], size: int, *, refuse: bool
) -> Iterator[Any]:
    """Yield Arrow tables of the named columns, of `size` rows each, but for the last one.

    Columns of CSV and JSON lines are text, with null for a missing value.

    Args:
      path: File, folder or pattern, as for `files`.
      argument: Command-line argument that named it, for the errors.
      columns: Names of the columns.
      size: Number of rows of a table.
      refuse: Whether a broken record of a CSV file is an error.

    Raises:
      ValueError: If `refuse`, and a record of a CSV file is broken.
    """
    pa = _arrow.pyarrow()
    where = f"{argument} {path}"
    found = files(path, argument)
    if found[0].suffix in TYPED:
        batches = itertools.chain.from_iterable(
            _batches(one, f"{argument} {one}", columns, size) for one in found
        )
        yield from map(_as_unicode, _resized(batches, size))
        return
    schema = pa.schema([(name, pa.large_string()) for name in columns])
    if path.suffix == ".csv":
        with clear_errors(where):
            yield from _resized(_csv_tables(path, schema, refuse), size)
        return
    records = _json_records(path)
    while block := list(itertools.islice(records, size)):
        values = {name: [record.get(name) for record in block] for name in columns}
        yield pa.table(values, schema=schema)


def _batches(path: Path, where: str, columns: Sequence[str], size: int) -> Iterator[Any]:
    """Yield the columns of a Parquet or Arrow file as tables of any number of rows."""
    pa = _arrow.pyarrow()
    if path.suffix == ".parquet":
        for batch in _parquet(path, where).iter_batches(batch_size=size, columns=list(columns)):
            yield pa.Table.from_batches([batch]).select(list(columns))
        return
    with clear_errors(where), path.open("rb") as file:
        for batch in feather.record_batches(file):
            yield pa.Table.from_batches([batch]).select(list(columns))


def _as_unicode(table: Any) -> Any:
    """Return a table whose text is Unicode, since Parquet files may hold other bytes as text."""
    pa = _arrow.pyarrow()
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        for place, field in enumerate(table.schema):
            column = _arrow.plain(table.column(place))
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                text = _arrow.text_column(column.cast(pa.large_binary()))
                table = table.set_column(place, field, pa.array(text, field.type))
    return table


def _parquet(path: Path, where: str) -> Any:
    pa = _arrow.pyarrow()
    try:
        return pa.parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{where} is no whole Parquet file ({error}); write it anew.") from error


def _csv_tables(path: Path, schema: Any, refuse: bool) -> Iterator[Any]:
    """Yield the columns of a CSV file as text. An empty field is missing."""
    pa = _arrow.pyarrow()
    with path.open("rb") as file:
        found = _csv_records.header(file)
        for table, _ in _csv_records.tables(file, found, refuse=refuse):
            columns = [table.column(found.index(name)) for name in schema.names]
            empty = pa.scalar(b"", pa.binary())
            known = [
                pa.compute.if_else(pa.compute.equal(column, empty), None, column)
                for column in columns
            ]
            yield pa.table([column.cast(pa.large_string()) for column in known], schema=schema)


def _resized(parts: Iterator[Any], size: int) -> Iterator[Any]:
    """Yield tables of `size` rows, but for the last one."""
    pa = _arrow.pyarrow()
    held: list[Any] = []
    for part in parts:
        held.append(part)
        whole = pa.concat_tables(held)
        last = whole.num_rows - whole.num_rows % size
        yield from (whole.slice(start, size) for start in range(0, last, size))
        held = [whole.slice(last)]
    if held and held[0].num_rows:
        yield held[0]


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
        name: _plain(value) if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None and value != ""
    }


def _plain(text: str) -> str:
    """Return text without halves of surrogate pairs, which JSON may escape and UTF-8 lacks."""
    return text.encode(errors="replace").decode()

"""Columns of the table files that `rknn label` reads, as Arrow tables.

The files may be a folder, as `datasets` and its hub have them, or a pattern.

A record of RFC 4180 is a row in CSV, and a line in JSON lines. A private record that cannot be read
is a row whose values are all missing, so that no record can hide or move another one. These two
formats have no types of columns, so that all their values are text.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import fsspec

from rknn_jax import formats
from rknn_jax._internal import disk, urls
from rknn_jax._internal.option_names import option
from rknn_jax.formats import (
    LABELS,
    Columns,
    FormatError,
    _arrow,
    _csv_records,
    _data_files,
    _encodings,
    _hub,
    clear_errors,
    csv,
    feather,
    is_compressed,
    jsonl,
    parquet,
    refuse_compression,
    suffix_of,
)
from rknn_jax.formats._csv_records import NO_UTF8
from rknn_jax.records.features import FLATTEN, MOST_NAMED

TYPED = (*parquet.SUFFIXES, *feather.SUFFIXES)
"""Suffixes of files whose columns have types."""

SUFFIXES = (*csv.SUFFIXES, *jsonl.SUFFIXES, *TYPED)

LINES_WITH_NAMES = 100
"""Lines of a JSON-lines file that tell the names of its columns."""

NO_TEXT = (bool, int, float, list, dict)
"""Values of JSON that are not text."""

NO_CELL = (list, dict)
"""Values of JSON that are neither text nor a number."""

_KINDS = {bool: "a bool", int: "a number", float: "a number", list: "a list", dict: "an object"}

BROKEN = "\0broken"
"""Name of the column that tells why records of a file without types are broken, as text."""


def declares_names(path: Path, argument: str, *, private: bool) -> bool:
    """Return False for private JSON lines, whose names are private.

    A column is missing in a record that does not name it. An error would reveal that no record
    among the first ones names it.
    """
    return not (private and _suffix(files(path, argument)[0]) in jsonl.SUFFIXES)


def files(path: Path, argument: str) -> list[Path]:
    """Return the files that a path names, in order of their names.

    Args:
      path: File in `SUFFIXES`, or a folder or pattern of such files, as a release finds them. Of
        these, the ones in `TYPED` are read if there are any.
      argument: Command-line argument that named it, for the errors.

    Raises:
      ValueError: If it is in another format, or as in `_data_files.find`.
    """
    found = [path] if path.is_file() else _found(path, argument)
    if _suffix(found[0]) not in SUFFIXES:
        raise ValueError(
            f"Expected {argument} to name a {', '.join(SUFFIXES)} file, or a folder of such files, "
            f"got {path}; save it in one of these."
        )
    return found


def _found(path: Path, argument: str) -> list[Path]:
    suffixes = TYPED if is_typed(path) else SUFFIXES
    return [Path(one) for one in _data_files.find([str(path)], argument, suffixes).files]


def _suffix(path: Path) -> str:
    return suffix_of(path.name)


@contextmanager
def _opened(path: Path, argument: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed. Errors name it."""
    with ExitStack() as stack:
        stack.enter_context(clear_errors(f"{argument} {path}"))
        refuse_compression(path.name)
        if is_compressed(path.name):
            yield stack.enter_context(fsspec.open(str(path), "rb", compression="infer"))
        else:
            yield stack.enter_context(path.open("rb"))


def names(path: Path, argument: str) -> list[str]:
    """Return the names of the columns.

    Raises:
      ValueError: If a file cannot be read, is in another format, or has other columns than the
        first.
    """
    found = files(path, argument)
    if _suffix(found[0]) in TYPED:
        return list(_schema(found, argument).names)
    held = [_names_of(one, argument) for one in found]
    for one, own in zip(found, held, strict=True):
        csvs = _suffix(one) in csv.SUFFIXES
        if _suffix(one) != _suffix(found[0]) or (csvs and set(own) != set(held[0])):
            raise _different(argument, one, found[0])
    return list(dict.fromkeys(itertools.chain.from_iterable(held)))


def _names_of(path: Path, argument: str) -> list[str]:
    """Return the names of the columns of a file without types."""
    with _opened(path, argument) as file:
        if _suffix(path) in csv.SUFFIXES:
            return csv.column_names(file)
        head = list(itertools.islice(jsonl.lines(file), LINES_WITH_NAMES))
        records = [_as_text(record or {}) for record in jsonl.parsed(head, public=False)]
        return list(dict.fromkeys(itertools.chain.from_iterable(records)))


def _different(argument: str, one: Path, first: Path) -> ValueError:
    return ValueError(
        f"Expected the same columns and features in all files of {argument}, got others in {one} "
        f"than in {first}; name a pattern of files that belong together."
    )


def types(path: Path, argument: str) -> dict[str, Any]:
    """Return the Arrow types of the columns of Parquet or Arrow files, by their names."""
    return {field.name: field.type for field in _schema(files(path, argument), argument)}


def is_typed(path: Path) -> bool:
    """Return whether a path names files whose columns have types, by itself or in a folder."""
    if path.is_dir():
        inside = (Path(one).relative_to(path) for one in disk.files_below(path))
        return any(_suffix(one) in TYPED for one in inside if not _hidden(one))
    named = (path, *map(Path, urls.matching(str(path))))
    return any(_suffix(one) in TYPED for one in named)


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def class_names(
    path: Path, argument: str, label: str | None, keep: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return the names that `datasets` declares for class numbers, by the columns that have them.

    Args:
      path: As for `files`.
      argument: As for `files`.
      label: Column of the labels, which become `LABELS`; None without one.
      keep: Further columns that are kept.
    """
    found = files(path, argument)
    columns = {name: name for name in keep} | ({} if label is None else {LABELS: label})
    if not columns or _suffix(found[0]) not in TYPED:
        return {}
    schema = _schema(found, argument)
    return {name: _hub.class_names(schema, column) for name, column in columns.items()}


def _schema(found: Sequence[Path], argument: str) -> Any:
    """Return the Arrow schema of files.

    Raises:
      ValueError: If a file has other columns than the first, or declares other features.
    """
    schemas = [_arrow.without_dictionaries(_schema_of(one, argument)) for one in found]
    for one, schema in zip(found, schemas, strict=True):
        features = [(held.metadata or {}).get(_hub.KEY) for held in (schema, schemas[0])]
        if not schema.equals(schemas[0]) or features[0] != features[1]:
            raise _different(argument, one, found[0])
    return schemas[0]


def _schema_of(path: Path, argument: str) -> Any:
    with _opened(path, argument) as file:
        if _suffix(path) in parquet.SUFFIXES:
            return _arrow.pyarrow().parquet.ParquetFile(file).schema_arrow
        return feather.schema(file)


def num_rows(path: Path, argument: str) -> int:
    """Return the number of records."""
    return sum(_num_rows_of(one, argument) for one in files(path, argument))


def _num_rows_of(path: Path, argument: str) -> int:
    form = formats.of(_suffix(path))
    assert form is not None
    with _opened(path, argument) as file:
        return int(form.num_rows(file, Columns()))


def num_no_utf8(path: Path, argument: str) -> int:
    """Return the number of private records of CSV or JSON lines with bytes that are not UTF-8."""
    return sum(_num_no_utf8_of(one, argument) for one in files(path, argument))


def _num_no_utf8_of(path: Path, argument: str) -> int:
    if _suffix(path) in TYPED:
        return 0
    form = csv if _suffix(path) in csv.SUFFIXES else jsonl
    with _opened(path, argument) as file:
        found = form.broken(file)
    return int(found[NO_UTF8] + found[jsonl.REPLACED])


def no_utf8_lines(path: Path, argument: str) -> list[bytes]:
    """Return lines of the first file of CSV or JSON lines that has some in another encoding."""
    for one in files(path, argument):
        if _suffix(one) not in TYPED:
            with _opened(one, argument) as file:
                if found := list(_encodings.lines_of(file)):
                    return found
    return []


def empty(path: Path, argument: str, columns: Sequence[str]) -> Any:
    """Return an Arrow table of the named columns without a record."""
    found = files(path, argument)
    if _suffix(found[0]) in TYPED:
        return _schema(found, argument).empty_table().select(list(columns))
    return _text_schema(columns).empty_table()


def _text_schema(columns: Sequence[str]) -> Any:
    pa = _arrow.pyarrow()
    return pa.schema([(name, pa.large_string()) for name in (*columns, BROKEN)])


def tables(
    path: Path,
    argument: str,
    columns: Sequence[str],
    size: int,
    *,
    refuse: bool,
    label: str | None = None,
    persons: Sequence[str] = (),
    unlike: Mapping[str, tuple[type, ...]] = MappingProxyType({}),
) -> Iterator[Any]:
    """Yield Arrow tables of the named columns, of `size` rows each, but for the last one.

    Columns of CSV and JSON lines are text, with null for a missing value, and the column `BROKEN`
    tells why a record cannot be read.

    Args:
      path: File, folder or pattern, as for `files`.
      argument: Command-line argument that named it, for the errors.
      columns: Names of the columns.
      size: Number of rows of a table.
      refuse: Whether a broken record of a CSV file, and a value of `unlike`, is an error.
      label: Name of the column of labels, of which JSON lines may hold lists. Defaults to None.
      persons: Names of the columns that may say whose a record is. Lists and objects of JSON lines
        are missing there. Defaults to none.
      unlike: Types of JSON that are not values of a column, and missing then. Defaults to none.

    Raises:
      ValueError: If `refuse`, and a record of a CSV file is broken, or a value is in `unlike`.
    """
    parts = itertools.chain.from_iterable(
        _parts(
            one,
            argument,
            columns,
            size=size,
            refuse=refuse,
            label=label,
            persons=persons,
            unlike=unlike,
        )
        for one in files(path, argument)
    )
    yield from map(_as_unicode, _resized(parts, size))


def _parts(
    path: Path,
    argument: str,
    columns: Sequence[str],
    size: int,
    refuse: bool,
    label: str | None,
    persons: Sequence[str],
    unlike: Mapping[str, tuple[type, ...]],
) -> Iterator[Any]:
    """Yield the columns of a file as tables of any number of rows."""
    pa = _arrow.pyarrow()
    with _opened(path, argument) as file:
        if _suffix(path) in csv.SUFFIXES:
            yield from _csv_tables(file, columns, refuse)
        elif _suffix(path) in jsonl.SUFFIXES:
            yield from _json_tables(
                file,
                columns,
                size,
                label=label,
                persons=persons,
                unlike=unlike,
                refuse=refuse,
            )
        elif _suffix(path) in parquet.SUFFIXES:
            reader = parquet.opened(file)
            for batch in reader.iter_batches(batch_size=size, columns=list(columns)):
                yield pa.Table.from_batches([batch]).select(list(columns))
        else:
            for batch in feather.record_batches(file, columns):
                yield _decoded(pa.Table.from_batches([batch]))


def _decoded(table: Any) -> Any:
    """Return a table with values in place of dictionaries of them.

    Batches have dictionaries of their own. Joined, one value more may be one too many for the type
    of their numbers, and the error would tell of it.
    """
    values = [_arrow.decoded(column.combine_chunks()) for column in table.columns]
    fields = zip(table.schema, values, strict=True)
    kinds = [field.with_type(column.type) for field, column in fields]
    return _arrow.pyarrow().table(
        values, schema=_arrow.pyarrow().schema(kinds, table.schema.metadata)
    )


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


def _csv_tables(file: IO[bytes], columns: Sequence[str], refuse: bool) -> Iterator[Any]:
    """Yield the columns of a CSV file as text. An empty field is missing."""
    pa = _arrow.pyarrow()
    compute = pa.compute
    found = csv.column_names(file)
    empty = pa.scalar(b"", pa.binary())
    for table, broken in _csv_records.tables(file, found, refuse=refuse):
        fields = [table.column(found.index(name)) for name in columns]
        known = [compute.if_else(compute.equal(one, empty), None, one) for one in fields]
        texts = [one.cast(pa.large_string()) for one in known]
        every = map(broken.get, range(table.num_rows)) if broken else pa.nulls(table.num_rows)
        why = pa.array(every, pa.large_string())
        yield pa.table([*texts, why], schema=_text_schema(columns))


def _json_tables(
    file: IO[bytes],
    columns: Sequence[str],
    size: int,
    label: str | None,
    persons: Sequence[str],
    unlike: Mapping[str, tuple[type, ...]],
    refuse: bool,
) -> Iterator[Any]:
    """Yield the values of JSON lines as text.

    Raises:
      FormatError: If `refuse`, and a value is in `unlike`.
    """
    pa = _arrow.pyarrow()
    found = jsonl.lines(file)
    first = 0
    while block := list(itertools.islice(found, size)):
        records = list(jsonl.parsed(block, public=False))
        odd = [_unlike(record or {}, unlike) for record in records]
        if refuse:
            _refuse_unlike(records, odd, unlike, first)
        texts = [_as_text(record or {}, label, persons) for record in records]
        values = {
            name: [
                None if name in no else text.get(name) for text, no in zip(texts, odd, strict=True)
            ]
            for name in columns
        }
        why = [
            jsonl.NO_OBJECT if record is None else f"{no[0]!r} holds no text" if no else None
            for record, no in zip(records, odd, strict=True)
        ]
        yield pa.table(values | {BROKEN: why}, schema=_text_schema(columns))
        first += len(block)


def _unlike(record: Mapping[str, Any], unlike: Mapping[str, tuple[type, ...]]) -> list[str]:
    """Return the names of the columns of which a record holds a value of another type."""
    return [name for name, kinds in unlike.items() if isinstance(record.get(name), kinds)]


def _refuse_unlike(
    records: Sequence[Mapping[str, Any] | None],
    odd: Sequence[Sequence[str]],
    unlike: Mapping[str, tuple[type, ...]],
    first: int,
) -> None:
    """Raise FormatError for the first public value of another type.

    Args:
      records: Records.
      odd: Names of the columns with such values, for each record.
      unlike: Types that are not values of a column.
      first: Number of the first record.
    """
    for row, (record, names) in enumerate(zip(records, odd, strict=True), first):
        if record is not None and names:
            kind = _KINDS[type(record[names[0]])]
            wanted = "text" if float in unlike[names[0]] else "text or a number"
            value = record[names[0]]
            flat = ""
            if isinstance(value, dict):
                flat = f"; its keys are {', '.join(map(repr, [*value][:MOST_NAMED]))}: {FLATTEN}"
            raise FormatError(
                f"Expected {wanted} in column {names[0]!r}, got {kind} in row {row}; save the "
                f"value itself as {wanted}, or name other columns with {option('columns')}{flat}."
            )


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


def _as_text(
    record: Mapping[str, Any], label: str | None = None, persons: Sequence[str] = ()
) -> dict[str, str]:
    """Return the values of a record as text, without the missing ones."""
    return {
        name: _plain(value)
        if isinstance(value, str)
        else jsonl.label_text(value)
        if name == label
        else json.dumps(value)
        for name, value in record.items()
        if value is not None and value != ""
        # The fields of an object have no order, so that its text would be several names.
        if name == label or name not in persons or not isinstance(value, list | dict)
    }


def _plain(text: str) -> str:
    """Return text without halves of surrogate pairs, which JSON may escape and UTF-8 lacks."""
    return text.encode(errors="replace").decode()

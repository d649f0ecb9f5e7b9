"""Comma-separated values with a line of names: a column for each feature, and one of labels.

**A line is a record**, whatever it holds. So no record can hide, move or end another one: a quote
ends with its line, and a line that is empty, or has too many or too few fields, is a row of NaN in
its place, which casts no vote. An error would reveal that record. A file has no types, so that none
are guessed from private rows: a field that is no number is NaN, too.
"""

import csv as python_csv
import io
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from rknn_jax.formats import EMBEDDINGS, Block, Columns, FormatError, _arrow, absent

SUFFIXES = (".csv",)

NUMBER = r"^\s*[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,4})?\s*$"
"""Fields that are numbers. Those beyond float64 become infinite."""

READ_AT_ONCE = 2**22  # bytes
SEPARATOR = b"\x1f"
"""Byte between fields once quotes are resolved. ASCII keeps it for this purpose."""

MISSING = -1
FOREIGN = 2**31 - 1
"""Class numbers of a record without a label, and of one with a label that is no class."""


def features(file: IO[bytes], columns: Columns) -> tuple[str, ...]:
    """Return the names of the columns of the embeddings, from the first line."""
    return tuple(_features(_names(file), columns))


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Count the lines after the first, by reading the file once."""
    del columns
    _names(file)
    rows = 0
    last = b"\n"
    while content := file.read(READ_AT_ONCE):
        rows += content.count(b"\n")
        last = content[-1:]
    return rows + (last != b"\n")


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield rows in blocks of at most `size`, each line in its place."""
    names = _names(file)
    own = _features(names, columns)
    read = [columns.label] if columns.reads_label else []
    read += [] if columns.person is None else [columns.person]
    for name in [*own, *read]:
        if name not in names:
            raise absent(name, names)
    for lines in _lines(file):
        whole = _block(_batch(lines, names), own, columns)
        for start in range(0, len(lines), size):
            part = slice(start, start + size)
            yield Block(*(None if values is None else values[part] for values in whole))


def _names(file: IO[bytes]) -> list[str]:
    """Read the first line.

    Raises:
      FormatError: If it names no columns, one twice, or separates them otherwise.
    """
    line = file.readline().removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    names = [field.strip() for field in _fields(line.decode(errors="replace"))]
    if not any(names):
        raise FormatError("Expected a first line with the names of the columns, got none; add it.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FormatError(f"Expected every name once in the first line, got {twice[:5]} twice.")
    other = [sign for sign in (";", "\t") if sign in names[0]]
    if len(names) == 1 and other:
        raise FormatError(f"Expected commas between the fields, got {other[0]!r}; save it so.")
    return names


def _features(names: list[str], columns: Columns) -> list[str]:
    if columns.embedding is not None:
        return list(columns.embedding)
    if columns.raw:
        return [_arrow.raw_name(names, columns)]
    found = [name for name in names if name not in columns.aside]
    if not found:
        raise absent(EMBEDDINGS, names)
    if columns.width is not None and len(found) != columns.width:
        remedy = "name the features with --embedding"
        if columns.label not in names:
            remedy = f"name the label's column with --label, one of {names[:5]}, or {remedy}"
        raise FormatError(
            f"Expected {columns.width} columns beside the label {columns.label!r}, as --public has "
            f"dimensions, got {len(found)}; {remedy}."
        )
    return found


def _lines(file: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield the rest of the file as lists of lines without their ends."""
    rest = b""
    while content := file.read(READ_AT_ONCE):
        lines = (rest + content).split(b"\n")
        rest = lines.pop()
        if lines:
            yield lines
    if rest:
        yield [rest]


def _batch(lines: list[bytes], names: Sequence[str]) -> Any:
    """Return lines as columns of bytes, a row for each line."""
    from pyarrow import csv

    pa = _arrow.pyarrow()
    content = b"\n".join([_joined(line, len(names)) for line in lines]) + b"\n"
    return csv.read_csv(
        pa.BufferReader(content),
        csv.ReadOptions(column_names=list(names), block_size=len(content), use_threads=False),
        csv.ParseOptions(
            delimiter=SEPARATOR.decode(),
            quote_char=False,
            ignore_empty_lines=False,
        ),
        csv.ConvertOptions(
            check_utf8=False, column_types=dict.fromkeys(names, pa.binary()), null_values=[]
        ),
    )


def _joined(line: bytes, count: int) -> bytes:
    """Return a line of `count` fields with `SEPARATOR`, all empty if it has another number."""
    line = line.rstrip(b"\r")
    if b'"' in line:
        line = SEPARATOR.join(
            field.encode(errors="surrogateescape")
            for field in _fields(line.decode(errors="surrogateescape"))
        )
    else:
        line = line.replace(b",", SEPARATOR)
    if line.count(SEPARATOR) != count - 1 or b"\r" in line:
        return SEPARATOR * (count - 1)
    return line


def _fields(line: str) -> list[str]:
    """Return the fields of one line. A quote ends with its line."""
    try:
        return next(python_csv.reader(io.StringIO(line)), [""])
    except python_csv.Error:  # such as a field beyond the limit
        return []


def _block(batch: Any, own: Sequence[str], columns: Columns) -> Block:
    labels = None
    if columns.reads_label:
        labels = _arrow.label_column(batch.column(columns.label).combine_chunks())
        if columns.classes is not None:
            labels = _class_numbers(labels, columns.classes)
    persons = None
    if columns.person is not None:
        persons = _arrow.person_column(batch.column(columns.person), columns.person)
    if not own:
        return Block(None, labels, persons)
    if columns.raw:
        return Block(_arrow.text_column(batch.column(own[0])), labels, persons)
    return Block(np.stack([_numbers(batch.column(name)) for name in own], axis=1), labels, persons)


def _class_numbers(labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Return class numbers of text: of a class's name, or of a number. Others are `FOREIGN`."""
    number = {name: i for i, name in enumerate(classes)}

    def of(text: str) -> float:
        if text in number:
            return number[text]
        try:
            return float(text) if text else MISSING
        except ValueError:
            return FOREIGN

    values, places = np.unique(np.char.strip(labels), return_inverse=True)
    return np.array([of(str(text)) for text in values], np.float64)[places]


def _numbers(column: Any) -> np.ndarray:
    from pyarrow import compute

    pa = _arrow.pyarrow()
    is_number = compute.match_substring_regex(column, NUMBER)
    kept = compute.if_else(is_number, column, pa.scalar(None, pa.binary()))
    text = compute.utf8_trim_whitespace(kept.cast(pa.string()))
    values: np.ndarray = text.cast(pa.float64()).to_numpy()
    return values

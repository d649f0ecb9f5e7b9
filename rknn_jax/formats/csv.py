"""Comma-separated values with a line of names: a column for each feature, and one of labels.

A file has no types, so that none are guessed from private rows. Every column but the label is a
feature unless `--embedding` names them. A field that is no number, and a line with too many or too
few fields, make a row of NaN, which casts no vote. An error would reveal that record.
"""

from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from rknn_jax.formats import Block, Columns, FormatError, _arrow, absent

SUFFIXES = (".csv",)

NUMBER = r"^\s*[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,2})?\s*$"
"""Fields that are numbers; all of them fit float64."""

READ_AT_ONCE = 2**22  # bytes


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Count the lines of records, by reading the file once."""
    del columns
    reader = _Lines(file, None)
    rows = sum(int(batch.num_rows) for batch in reader)
    return rows + reader.broken


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield at most `size` rows at a time. Lines that cannot be split into fields come last."""
    names = _Lines(file, None).names
    features = _features(names, columns)
    wanted = [*features, *([columns.label] if columns.label is not None else [])]
    for name in wanted:
        if name not in names:
            raise absent(name, names)
    file.seek(0)
    reader = _Lines(file, wanted)
    for batch in reader:
        for start in range(0, batch.num_rows, size):
            yield _block(batch.slice(start, size), features, columns)
    while reader.broken:
        rows = min(size, reader.broken)
        reader.broken -= rows
        missing = np.full(rows, np.nan) if columns.numbers else np.full(rows, "")
        yield Block(
            np.full((rows, len(features)), np.nan) if features else None,
            None if columns.label is None else missing,
        )


class _Lines:
    """Batches of a file whose fields stay bytes.

    Attributes:
      names: Names of all columns.
      broken: Number of lines so far that have too many or too few fields.
    """

    def __init__(self, file: IO[bytes], wanted: list[str] | None) -> None:
        from pyarrow import csv

        pa = _arrow.library()
        self.broken = 0
        parsing = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=self._skip)
        reading = csv.ReadOptions(block_size=READ_AT_ONCE)
        heads = csv.open_csv(file, reading, csv.ParseOptions(invalid_row_handler=lambda _: "skip"))
        self.names: list[str] = heads.schema.names
        file.seek(0)
        kept = wanted if wanted is not None else self.names[:1]
        converting = csv.ConvertOptions(
            check_utf8=False,
            include_columns=kept,
            column_types=dict.fromkeys(self.names, pa.binary()),
        )
        self._reader = csv.open_csv(file, reading, parsing, converting)

    def __iter__(self) -> Iterator[Any]:
        yield from self._reader

    def _skip(self, row: Any) -> str:
        del row
        self.broken += 1
        return "skip"


def _features(names: list[str], columns: Columns) -> list[str]:
    if columns.embedding is not None:
        return list(columns.embedding)
    found = [name for name in names if name not in (columns.label, "labels")]
    if columns.width is not None and len(found) != columns.width:
        raise FormatError(
            f"Expected {columns.width} columns beside the label, as --public has dimensions, got "
            f"{len(found)}; name the features with --embedding."
        )
    return found


def _block(batch: Any, features: list[str], columns: Columns) -> Block:
    labels = None
    if columns.label is not None:
        column = batch.column(columns.label)
        labels = _numbers(column) if columns.numbers else _arrow.label_column(column)
    if not features:
        return Block(None, labels)
    return Block(np.stack([_numbers(batch.column(name)) for name in features], axis=1), labels)


def _numbers(column: Any) -> np.ndarray:
    from pyarrow import compute

    pa = _arrow.library()
    is_number = compute.match_substring_regex(column, NUMBER)
    kept = compute.if_else(is_number, column, pa.scalar(None, pa.binary()))
    text = compute.utf8_trim_whitespace(kept.cast(pa.string()))
    values: np.ndarray = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values

"""Comma-separated values with a line of names: a column for each feature, and one of labels.

A record of RFC 4180 is a row; see `_csv_records`, which says what is proved of it. A broken record
of a private file is a row of NaN in its place, which casts no vote. An error would reveal it. A
file has no types, so that none are guessed from private rows: a field that is not a number is NaN,
too.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax._internal.private_warnings import warn_owner
from rknn_jax.formats import (
    AbsentError,
    Block,
    Columns,
    FormatError,
    Layout,
    _arrow,
    _csv_records,
    _encodings,
    _feature_names,
    absent,
)
from rknn_jax.records import features as rules
from rknn_jax.records.features import FIELD

SUFFIXES = (".csv",)

_SPACES = f"[{rules.SPACES}]*"

NUMBER = f"^{_SPACES}{rules.NUMERAL}{_SPACES}$"
"""Fields that are numbers. Those beyond float64 become infinite."""

TRUTH = {
    f"^{_SPACES}{''.join(f'[{letter}{letter.upper()}]' for letter in word)}{_SPACES}$": value
    for word, value in rules.TRUTH.items()
}
"""Fields of bools, as numbers."""

NO_NAMES = "If the file has no line of names, put one before its first record."
"""Remedy for a file whose first record is taken for names of columns."""

STEP = 0.1
"""Most change of the step between numbers that are names, such as wavelengths."""

FEWEST_SORTED = 20
"""Fewest numbers in one order that are names, though their steps differ."""


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the file, from the first line."""
    names = column_names(file)
    own = _checked(names, columns)
    empty = _arrow.pyarrow().table({name: _arrow.pyarrow().array([], "binary") for name in names})
    return Layout(tuple(own), _block(empty, own, columns), typed=False, names=tuple(names))


def others(file: IO[bytes], columns: Columns) -> dict[str, np.ndarray]:
    """Return the columns of a public file that have no role, as text."""
    names = column_names(file)
    skip = {*_checked(names, columns), *columns.left_behind}
    rest = [name for name in names if name not in skip]
    if not rest:
        return {}
    parts = [table.select(rest) for table, _ in _csv_records.tables(file, names, refuse=True)]
    return {
        name: np.concatenate([_arrow.text_column(part.column(name)) for part in parts]).astype(str)
        for name in rest
        if parts
    }


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Count the records after the header, by reading the file once."""
    del columns
    column_names(file)
    return _csv_records.num_records(file)


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield rows in blocks of at most `size`, each record in its place.

    Raises:
      FormatError: If a record of a public file is broken.
    """
    names = column_names(file)
    own = _checked(names, columns)
    reasons: collections.Counter[str] = collections.Counter()
    for table, broken in _csv_records.tables(file, names, refuse=columns.public):
        reasons.update(broken.values())
        whole = _block(table, own, columns)
        for start in range(0, table.num_rows, size):
            part = slice(start, start + size)
            yield Block(*(None if values is None else values[part] for values in whole))
    if reasons:
        why = ", ".join(f"{count:,} have {reason}" for reason, count in sorted(reasons.items()))
        advice = ""
        if reasons[_csv_records.NO_UTF8]:
            advice = f". If all of it is in another encoding, {_encodings.remedy([])}"
        warn_owner(
            f"{reasons.total():,} records of {getattr(file, 'name', 'a CSV file')} are broken and "
            f"cast no vote ({why}); tell nobody how many, and save the data in UTF-8 with the "
            f"quotes of RFC 4180, or as Parquet{advice}",
            stacklevel=2,
        )


def broken(file: IO[bytes]) -> collections.Counter[str]:
    """Return how many records of a private file are broken, by reason."""
    names = column_names(file)
    tables = _csv_records.tables(file, names, refuse=False)
    return collections.Counter(reason for _, found in tables for reason in found.values())


def column_names(file: IO[bytes]) -> list[str]:
    """Read the header, and return the names of the columns.

    Raises:
      FormatError: If it names no columns, one twice, separates them otherwise, is no UTF-8, or
        looks like a record.
    """
    names = [name.strip() for name in _csv_records.header(file)]
    if not any(names):
        raise FormatError("Expected a first line with the names of the columns, got none; add it.")
    if is_record(names):  # and its values are told to nobody
        raise FormatError(
            "Expected a first line with the names of the columns, got one of numbers, as a record "
            "has; put a line of names before it, or if these are names, begin them with a letter."
        )
    twice = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    if twice:
        raise FormatError(f"Expected every name once in the first line, got {twice[:5]} twice.")
    other = [sign for sign in (";", "\t") if sign in names[0]]
    if len(names) == 1 and other:
        raise FormatError(f"Expected commas between the fields, got {other[0]!r}; save it so.")
    return names


def is_record(names: Sequence[str]) -> bool:
    """Return whether a first line looks like a record: most of its fields are numbers.

    Numbers are names if they count from 0 or 1, as those of a frame without names, or go on in
    steps, as years and wavelengths.

    >>> is_record(["5.1", "3.5", "1.4", "setosa"]), is_record(["0", "1", "2", "labels"])
    (True, False)
    >>> is_record(["850", "852", "854"]), is_record(["0", "0", "0", "12", "0"])
    (False, True)
    """
    numbers = [float(name) for name in names if re.match(NUMBER, name, re.ASCII)]
    if not numbers or 2 * len(numbers) < len(names):
        return False
    if numbers[0] in (0, 1) and numbers == [numbers[0] + i for i in range(len(numbers))]:
        return False
    steps = np.diff(numbers)
    if len(numbers) < 3 or not (np.all(steps > 0) or np.all(steps < 0)):
        return True
    even = np.ptp(steps) <= STEP * abs(steps.mean())
    return not even and len(numbers) < FEWEST_SORTED


def refuse_absent(names: Iterable[str], found: Sequence[str]) -> None:
    """Raise AbsentError if columns are absent, as for other formats, with a further remedy."""
    missing = [name for name in dict.fromkeys(names) if name not in {*found}]
    if missing:
        raise AbsentError(f"{absent(missing, found)} {NO_NAMES}")


def _checked(names: list[str], columns: Columns) -> list[str]:
    """Return the names of the columns of the embeddings, if all that are read are there."""
    own = _features(names, columns)
    read = [columns.label] if columns.reads_label else []
    read += [] if columns.person is None else [columns.person]
    refuse_absent([*own, *read], names)
    return own


def _features(names: list[str], columns: Columns) -> list[str]:
    if columns.embedding is not None:
        return list(columns.embedding)
    if columns.raw:
        return [_feature_names.raw_name(names, columns)]
    kinds = {name: FIELD for name in names if name not in columns.aside}
    found = _feature_names.choose(kinds, names)
    if columns.width is not None and len(found) != columns.width:
        remedy = (
            f"name the features with {option('embedding')}, leave others out with "
            f"{option('drop')}, or embed both sides first, texts by rknn embed --text and "
            "categories by rknn embed --table; make numbers of dates"
        )
        if columns.label not in names:
            remedy = f"name the label's column with {option('label')}, or {remedy}"
        if len(found) == 1:
            remedy = (
                "a CSV file has no lists: if the embeddings were saved as text, save a Parquet "
                f"column of lists of float32, or an .npz file; or {remedy}"
            )
        remedy = f"{remedy}. {NO_NAMES}"
        raise FormatError(
            f"Expected {columns.width} columns beside the label {columns.label!r}, as "
            f"{option('public')} has dimensions, got {len(found)}, {found[: rules.MOST_NAMED]}; "
            f"{remedy}"
        )
    return found


def _block(batch: Any, own: Sequence[str], columns: Columns) -> Block:
    labels = None
    if columns.reads_label:
        labels = _arrow.label_column(batch.column(columns.label))
    persons = None
    if columns.person is not None:
        persons = _arrow.person_column(batch.column(columns.person), columns.person)
    if not own:
        return Block(None, labels, persons)
    if columns.raw:
        texts = _arrow.text_column(batch.column(own[0]))
        if labels is not None:
            labels = _arrow.unlabeled(labels, texts == "")
        return Block(texts, labels, persons)
    return Block(_numbers([batch.column(name) for name in own]), labels, persons)


def _numbers(columns: Sequence[Any]) -> np.ndarray:
    """Return columns of bytes as numbers `[b, f]`, in one pass, since a pass of each is slow."""
    from pyarrow import compute

    pa = _arrow.pyarrow()
    chunks = [chunk for column in columns for chunk in column.chunks]
    fields = pa.chunked_array(chunks, pa.binary()).combine_chunks()
    is_number = compute.match_substring_regex(fields, NUMBER)
    kept = compute.if_else(is_number, fields, pa.scalar(None, pa.binary()))
    text = compute.utf8_trim_whitespace(kept.cast(pa.string()))
    values: np.ndarray = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if kept.null_count:
        values = values.copy()  # Arrow's own cannot be written to
        for pattern, value in TRUTH.items():
            values[
                compute.match_substring_regex(fields, pattern).to_numpy(zero_copy_only=False)
            ] = value
    return np.ascontiguousarray(values.reshape(len(columns), -1).T)


def _write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    names = [*(f"x{number}" for number in range(features.shape[1])), "labels"]
    rows = ([*row, label] for row, label in zip(features.tolist(), labels.tolist(), strict=True))
    lines = (",".join(map(str, row)) for row in [names, *rows])
    path.write_text("".join(f"{line}\n" for line in lines))


EXAMPLES = (_write,)

"""JSON lines: an object a line, whose keys are columns.

A line is a row, whatever it holds, and no other line changes it. A line of a private file that is
no object is a row without values, which casts no vote. Values are read as in CSV, each by itself:
numbers, true and false, and text that is a number are numbers, and everything else is NaN. A list
of numbers of the public width is an embedding, and a list of names or numbers several labels. So is
a mask, a list of bools, if it has a bool for each class.

A private file tells no names of columns: which keys a record has is that record's own affair. Its
features are those of the public side or of `--embedding`, or else the lists under `embeddings`. The
columns of a public file are the keys of its first lines.
"""

import collections
import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax._internal.private_warnings import warn_owner
from rknn_jax.formats import (
    EMBEDDINGS,
    Block,
    Columns,
    FormatError,
    Layout,
    _arrow,
    _encodings,
    _feature_names,
    refuse_absent,
)
from rknn_jax.formats._csv_records import NO_UTF8, UTF8_MARK, is_utf8
from rknn_jax.records import carried
from rknn_jax.records.classes import CUT, LONGEST_LABEL, MOST_LABELS, cut
from rknn_jax.records.features import FIELD, number_of_text
from rknn_jax.records.labels import SEPARATOR, mask_text

SUFFIXES = (".jsonl",)

LINES_WITH_NAMES = 100
"""Lines of a public file that tell the names of its columns."""

LONGEST = 2**26
"""Most bytes of a line that is read, so that memory is bounded."""

DEEPEST = 100
"""Most lists and objects inside each other. Python's own limit is another at each call."""

_SIGNS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[]}]', re.DOTALL)

NO_OBJECT = "no object of JSON, or more than 64 MiB"
"""Reason why a line is broken."""

READ_AT_ONCE = 2**24
"""Bytes of lines that are read at once."""

REPLACED = f"{NO_UTF8}, which are replaced"
"""Why a line is not read as it stands, though it is no broken record."""

Record = Mapping[str, Any]


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the file. Of a private file, nothing is read.

    There are no features in it before `columns.embedding` names them.
    """
    head = _head(file, columns)
    unknown = columns.embedding is None and not columns.public
    own = [] if unknown else _features(head, columns)
    names = tuple(_names(head))
    empty = _block([], own, _width(head, own, columns), columns)
    return Layout(tuple(own), empty, typed=False, names=names, declares=columns.public)


def others(file: IO[bytes], columns: Columns) -> dict[str, np.ndarray]:
    """Return the columns of a public file that have no role, as numbers or text."""
    head = _head(file, columns)
    skip = {*_features(head, columns), *columns.left_behind}
    names = [name for name in _names(head) if name not in skip]
    values: dict[str, list[Any]] = {name: [] for name in names}
    file.seek(0)
    for record in _records(file, public=True):
        for name in names:
            values[name].append(record.get(name))
    return {name: column for name in names if (column := _plain_column(values[name])) is not None}


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Count the lines, by reading the file once."""
    del columns
    rows = 0
    last = b"\n"
    while content := file.read(READ_AT_ONCE):
        rows += content.count(b"\n")
        last = content[-1:]
    return rows + (last != b"\n")


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield at most `size` rows at a time, at least one block, which may be empty.

    Raises:
      FormatError: If a line of a public file is no object.
    """
    head = _head(file, columns)
    own = _features(head, columns)
    width = _width(head, own, columns)
    file.seek(0)
    row = 0
    broken = 0
    for lines in _groups(file, size):
        records = list(parsed(lines, public=columns.public, row=row))
        row += len(lines)
        broken += sum(record is None for record in records)
        yield _block([record or {} for record in records], own, width, columns)
    if not row:
        yield _block([], own, width, columns)
    if broken:
        warn_owner(
            f"{broken:,} lines of {getattr(file, 'name', 'a file of JSON lines')} are no objects "
            "of JSON and cast no vote; tell nobody how many",
            stacklevel=2,
        )


def broken(file: IO[bytes]) -> collections.Counter[str]:
    """Return how many lines of a private file are no objects or no UTF-8, by reason."""
    found: collections.Counter[str] = collections.Counter()
    for line in lines(file):
        [record] = parsed([line], public=False)
        if line is not None and not _is_plain(line):
            found[NO_UTF8 if record is None else REPLACED] += 1
        elif record is None:
            found[NO_OBJECT] += 1
    return found


def first_keys(file: IO[bytes]) -> list[str]:
    """Return the keys of the first records of a private file, for its curator alone."""
    return _names(list(itertools.islice(_records(file, public=False), LINES_WITH_NAMES)))


def _groups(file: IO[bytes], size: int) -> Iterator[list[bytes | None]]:
    """Yield `size` lines, or about `READ_AT_ONCE` bytes, at a time; None for a line too long."""
    held: list[bytes | None] = []
    count = 0
    for line in lines(file):
        held.append(line)
        count += len(line or b"")
        if len(held) == size or count >= READ_AT_ONCE:
            yield held
            held = []
            count = 0
    if held:
        yield held


def lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the lines of a file without the mark of UTF-8; None for a line too long.

    A mark may begin any line, since files are joined. Were it dropped from the first one alone,
    whether a record can be read would depend on the others before it.
    """
    while line := file.readline(LONGEST):
        if len(line) < LONGEST or line.endswith(b"\n"):
            yield line.removeprefix(UTF8_MARK)
            continue
        while (more := file.readline(LONGEST)) and not more.endswith(b"\n"):
            pass
        yield None


def parsed(lines: Sequence[bytes | None], *, public: bool, row: int = 0) -> Iterator[Record | None]:
    """Yield the object of each line, or None.

    Args:
      lines: Lines of a file.
      public: Whether a line that is no object is an error.
      row: Number of the first line, for the error. Defaults to 0.

    Raises:
      FormatError: If a public line is no object.
    """
    for number, line in enumerate(lines, row):
        found = None
        try:
            if line is not None and not _is_deep(line):
                found = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            pass
        if isinstance(found, dict):
            yield found
        elif public:
            remedy = ""
            if line is not None and not _is_plain(line):
                remedy = f" If all is in another encoding: {_encodings.remedy([line])}."
            raise FormatError(
                'Expected an object of JSON in every line, such as {"x": 1.5}, got something '
                f"else in row {number}; repair it, or save the data as Parquet.{remedy}"
            )
        else:
            yield None


def _is_deep(line: bytes) -> bool:
    """Return whether there are more than `DEEPEST` lists and objects inside each other."""
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False
    signs = (found[0] for found in _SIGNS.finditer(line))
    steps = (1 if sign in b"[{" else -1 for sign in signs if sign[:1] != b'"')
    return max(itertools.accumulate(steps), default=0) > DEEPEST


def _is_plain(line: bytes) -> bool:
    """Return whether a line is UTF-8 without zero bytes, as UTF-16 has."""
    return is_utf8(line) and b"\0" not in line


def _records(file: IO[bytes], *, public: bool) -> Iterator[Record]:
    row = 0
    for lines in _groups(file, 2**10):
        yield from (record or {} for record in parsed(lines, public=public, row=row))
        row += len(lines)


def _head(file: IO[bytes], columns: Columns) -> list[Record]:
    """Return the first records of a public file, and none of a private one."""
    if not columns.public:
        return []
    return list(itertools.islice(_records(file, public=True), LINES_WITH_NAMES))


def _names(head: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(itertools.chain.from_iterable(head)))


def _features(head: Sequence[Record], columns: Columns) -> list[str]:
    """Return the names of the columns of features.

    Raises:
      FormatError: If it is not clear which they are.
    """
    names = _names(head)
    own = list(columns.embedding or ())
    if columns.embedding is None and not columns.public:
        if columns.raw:
            raise FormatError(
                "Expected the column of the records, which private JSON lines do not tell, got "
                f"none; name it with {option('embedding')}."
            )
        own = [EMBEDDINGS]
    elif columns.embedding is None:
        own = _chosen(head, names, columns)
    if columns.public:
        refuse_absent([*own, *([columns.label] if columns.reads_label else [])], names)
    return own


def _chosen(head: Sequence[Record], names: list[str], columns: Columns) -> list[str]:
    if EMBEDDINGS in names and EMBEDDINGS not in columns.drop:
        return [EMBEDDINGS]
    if columns.raw:
        return [_feature_names.raw_name(names, columns)]
    kinds = {name: _kind(head, name) for name in names if name not in columns.aside}
    return _feature_names.choose(kinds, names)


def _kind(head: Sequence[Record], name: str) -> str:
    """Return the kind of a public column, for `records.features.choose`."""
    types = {type(record.get(name)) for record in head}
    return "list" if list in types else "object" if dict in types else FIELD


def _width(head: Sequence[Record], own: Sequence[str], columns: Columns) -> int:
    """Return the number of dimensions f.

    Raises:
      FormatError: If it is not known.
    """
    if len(own) != 1 or columns.raw:
        return len(own)
    if columns.public:
        value = next(iter(head), {}).get(own[0])
        return len(value) if isinstance(value, list) else 1
    if columns.width is None:
        raise FormatError(
            "Expected the number of dimensions, which private JSON lines do not tell, got none; "
            f"name the public records with {option('public')}, or the columns of features with "
            f"{option('embedding')}. rknn join reads lists named {EMBEDDINGS!r} alone: pass "
            "--dimensions for them, and save other columns as Parquet or CSV."
        )
    return columns.width


def _block(records: Sequence[Record], own: Sequence[str], width: int, columns: Columns) -> Block:
    labels = None
    if columns.reads_label:
        texts = [label_text(record.get(columns.label)) for record in records]
        labels = np.array(texts, dtype=str)
    persons = None
    if columns.person is not None:
        persons = _arrow.objects([_person(record.get(columns.person)) for record in records])
    if not own:
        return Block(None, labels, persons)
    if columns.raw:
        found = [record.get(own[0]) for record in records]
        there = np.array([isinstance(text, str) for text in found], bool)
        raw = [text if is_text else None for text, is_text in zip(found, there, strict=True)]
        if labels is not None:
            labels = np.where(there, labels, "")
        return Block(_arrow.objects(raw), labels, persons)
    rows = np.full((len(records), width), np.nan)
    for row, record in zip(rows, records, strict=True):
        values = [record.get(name) for name in own]
        if len(own) == 1 and isinstance(values[0], list):
            _fill(row, values[0], columns)
        elif len(own) == width:
            row[:] = [_number(value) for value in values]
    return Block(rows, labels, persons)


def _fill(row: np.ndarray, values: list[Any], columns: Columns) -> None:
    """Copy a list of numbers into a row, which stays NaN if it is of another length.

    Raises:
      FormatError: If a public list is of another length.
    """
    if len(values) != len(row):
        if columns.public:
            raise FormatError(
                f"Expected lists of one length, got lengths {len(row)} and {len(values)}; embed "
                "all with the same model."
            )
        return
    if {*map(type, values)} <= {int, float}:
        with contextlib.suppress(OverflowError):
            row[:] = values
            return
    row[:] = [math.nan if isinstance(value, str) else _number(value) for value in values]


def _number(value: Any) -> float:
    """Return a value as a number, and NaN for what is none.

    >>> [_number(value) for value in (2, "2.5", True, "False", None, "x", [1], -(10**400))]
    [2.0, 2.5, 1.0, 0.0, nan, nan, nan, -inf]
    """
    if isinstance(value, str):
        return number_of_text(value)
    if not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def label_text(value: Any) -> str:
    """Return a label as text, and several with `SEPARATOR` between them or as a mask of bools.

    What is no label ends like no other one, such as a bool in a list of names.
    """
    if not isinstance(value, list):
        return _text(value)
    if value and all(isinstance(one, bool) for one in value):
        return mask_text(value)
    some = value[: MOST_LABELS + 1]
    return SEPARATOR.join(CUT if isinstance(one, bool) else _text(one) for one in some)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return CUT
    text = value if isinstance(value, str) else json.dumps(value)
    return cut(text[: LONGEST_LABEL + 1].encode(errors="replace"))


def _person(value: Any) -> Any:
    """Return whose a record is: a number or text, and None for anything else."""
    return None if isinstance(value, bool) or not isinstance(value, str | int | float) else value


def _plain_column(values: Sequence[Any]) -> np.ndarray | None:
    """Return public values as numbers or text `[m]`, or None if they hold lists or objects."""
    types = {type(value) for value in values} - {type(None)}
    if types & {list, dict}:
        return None
    if types <= {int, float, bool}:
        return carried.numbers(values)
    texts = [
        "" if one is None else one if isinstance(one, str) else json.dumps(one) for one in values
    ]
    return np.array([text.encode(errors="replace").decode() for text in texts], str)


def _write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    pairs = zip(features.tolist(), labels.tolist(), strict=True)
    lines = (json.dumps({"embeddings": row, "labels": label}) for row, label in pairs)
    path.write_text("".join(f"{line}\n" for line in lines))


EXAMPLES = (_write,)

"""Records in shards, on any file system, read in blocks of rows.

Files are shards, and `data_files` finds them. So are arrays, Arrow tables and whatever offers an
Arrow stream (pandas, Polars, DuckDB).
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import PurePosixPath
from typing import IO, Any, Protocol

import fsspec
import numpy as np
from fsspec.spec import AbstractBufferedFile

from rknn_jax import formats
from rknn_jax._internal.option_names import option
from rknn_jax.formats import Block, Columns, Layout, _encodings, _objects, csv
from rknn_jax.formats._data_files import refuse_copies
from rknn_jax.records.features import MOST_NAMED
from rknn_jax.records.labels import joined


class Shard(Protocol):
    """Part of a data set that is read by itself.

    Attributes:
      name: Name of the shard, which no other shard of the data set has.
    """

    @property
    def name(self) -> str:
        """Name of the shard."""

    @property
    def where(self) -> str:
        """Name of the shard with the argument that named it, for the errors."""

    def num_rows(self) -> int:
        """Return the number of rows, without reading them if the format allows."""

    def layout(self) -> Layout:
        """Return the columns with their shapes and types, without reading a row."""

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of `size` rows, of which the last one may have fewer."""

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone, in blocks of about `size`."""

    def persons(self, size: int) -> Iterator[np.ndarray]:
        """Yield whose the records are, in blocks of about `size`."""


@dataclass(frozen=True)
class Records:
    """Records of a data set, which are read as often as they are needed.

    Attributes:
      shards: Shards, in order of their names.
      rows: Number of rows of each shard.
    """

    shards: tuple[Shard, ...]
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.rows)

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> "Records":
        """Return the records of shards, whose rows are counted."""
        return cls(tuple(shards), tuple(shard.num_rows() for shard in shards))


@dataclass(frozen=True)
class ArrayShard:
    """Arrays in memory.

    Attributes:
      name: Name of the shard.
      embeddings: float `[n, f]`.
      labels_: `[n]`. Defaults to None.
      persons_: `[n]`, whose the records are. Defaults to None.
    """

    name: str
    embeddings: np.ndarray
    labels_: np.ndarray | None = None
    persons_: np.ndarray | None = None

    @property
    def where(self) -> str:
        """Name of the shard."""
        return self.name

    def num_rows(self) -> int:
        """Return n."""
        return len(self.embeddings)

    def layout(self) -> Layout:
        """Return the shapes and types of the arrays."""
        whole = Block(self.embeddings, self.labels_, self.persons_)
        return Layout((), Block(*(None if values is None else values[:0] for values in whole)))

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield views of `size` rows."""
        for start in range(0, len(self.embeddings), size):
            whole = Block(self.embeddings, self.labels_, self.persons_)
            part = slice(start, start + size)
            yield Block(*(None if values is None else values[part] for values in whole))

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels at once."""
        if self.labels_ is not None:
            yield self.labels_

    def persons(self, size: int) -> Iterator[np.ndarray]:
        """Yield whose the records are, at once."""
        if self.persons_ is not None:
            yield self.persons_


@dataclass(frozen=True)
class ArrowShard:
    """Arrow table or data set, or an object that offers an Arrow stream more than once.

    Attributes:
      name: Name of the shard.
      table: `pyarrow.Table`, `pyarrow.dataset.Dataset`, a data frame of pandas or Polars, or a
        relation of DuckDB.
      columns: Columns to read. A release sets a width that is None to that of the public rows.
    """

    name: str
    table: Any
    columns: Columns

    @property
    def where(self) -> str:
        """Name of the shard."""
        return self.name

    def num_rows(self) -> int:
        """Return the number of rows."""
        if _objects.has_objects(self.table):
            return len(self.table)
        return sum(batch.num_rows for batch in self._batches([]))

    def layout(self) -> Layout:
        """Return the layout of the table, from its schema.

        Raises:
          ValueError: If pyarrow would build dictionaries while it reads a data set, which a single
            value that is no Unicode stops. Also if its files may hold the same records.
        """
        import pyarrow.dataset

        from rknn_jax.formats import _arrow, _arrow_tables

        if isinstance(self.table, pyarrow.dataset.Dataset):
            schema = self.table.schema
            if not _arrow.without_dictionaries(schema).equals(schema):
                raise ValueError(
                    f"Expected a data set of {self.name} without dictionaries, got {schema.types}, "
                    "which one record could make unreadable; name its files instead."
                )
            if len(files := _files_of(self.table)) > 1:
                refuse_copies(files, self.name)
        if _objects.has_objects(self.table):
            return _objects.layout(self.table, self.columns)
        return _arrow_tables.layout(_schema(self.table), self.columns)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of `size` rows."""
        from rknn_jax.formats import _arrow_tables

        if _objects.has_objects(self.table):
            yield from _objects.blocks(self.table, self.columns, size)
            return
        schema = _schema(self.table)
        features = _arrow_tables.features_of(schema, self.columns)
        names = _arrow_tables.names_of(schema, self.columns)
        parts = (
            _arrow_tables.block(batch.slice(start, size), features, self.columns)
            for batch in self._batches(names)
            for start in range(0, batch.num_rows, size)
        )
        yield from regular(parts, size)

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone."""
        only = replace(self, columns=self.columns._replace(embedding=(), person=None))
        yield from (block.labels for block in only.blocks(size) if block.labels is not None)

    def persons(self, size: int) -> Iterator[np.ndarray]:
        """Yield whose the records are."""
        only = replace(self, columns=self.columns._replace(embedding=(), reads_label=False))
        yield from (block.persons for block in only.blocks(size) if block.persons is not None)

    def _batches(self, names: list[str]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.dataset

        if isinstance(self.table, pa.RecordBatchReader):
            raise ValueError(
                f"Expected {self.name} to be readable more than once, got a stream; pass a table, "
                "a data set or a data frame."
            )
        if isinstance(self.table, pa.dataset.Dataset):
            yield from self.table.to_batches(columns=names or None)
            return
        for batch in pa.RecordBatchReader.from_stream(self.table):
            yield batch.select(names) if names else batch


def _files_of(dataset: Any) -> list[str]:
    """Return the files of an Arrow data set and of those that it joins."""
    children = (_files_of(child) for child in getattr(dataset, "children", ()))
    return [*getattr(dataset, "files", ()), *itertools.chain.from_iterable(children)]


def _schema(table: Any) -> Any:
    """Return the schema of a table or data frame.

    Raises:
      ValueError: If a column of Polars holds objects.
    """
    import pyarrow as pa
    import pyarrow.dataset

    if isinstance(table, pa.Table | pa.dataset.Dataset):
        return table.schema
    schema = table.schema if type(table).__module__.startswith("polars.") else {}
    objects = [name for name, kind in schema.items() if str(kind) == "Object"]
    if objects:  # Polars gives Arrow the places of Python's objects in memory
        raise ValueError(
            f"Expected columns of numbers or text, got {objects[:MOST_NAMED]} of objects, which "
            "Polars cannot tell; cast them to text, or leave them out."
        )
    return pa.RecordBatchReader.from_stream(table).schema


@dataclass(frozen=True)
class FileShard:
    """File of records.

    Attributes:
      name: Path or URL.
      argument: Command-line argument that named it, for the errors.
      columns: Columns to read.
      labels_name: Path or URL of a file of the labels, in the same order. Defaults to None, for
        labels in the same file.
    """

    name: str
    argument: str
    columns: Columns
    labels_name: str | None = None

    @property
    def where(self) -> str:
        """Argument and path or URL."""
        return f"{self.argument} {self.name}"

    def layout(self) -> Layout:
        """Return the columns with their shapes and types, from heads and schemas alone.

        Raises:
          ValueError: If the file or that of its labels is absent, or there is not one label a row.
        """
        if self.labels_name is None:
            return self._layout(self.name, self.argument, self.columns)
        rows = self._layout(self.name, self.argument, self.columns._replace(reads_label=False))
        argument = option("private_labels")
        labels = self._layout(self.labels_name, argument, self._labels_alone)
        if self.num_rows() != self._num_rows(self.labels_name, argument, self._labels_alone):
            raise self._unequal()
        block = rows.empty._replace(labels=labels.empty.labels)
        return rows._replace(empty=block, typed=labels.typed, classes=labels.classes)

    def files(self) -> "list[FileShard]":
        """Return this file and that of its labels, if there is one, each by itself."""
        own = replace(self, labels_name=None)
        if self.labels_name is None:
            return [own]
        return [own, replace(own, name=self.labels_name, argument=option("private_labels"))]

    def refuse_named_labels(self) -> None:
        """Raise ValueError if a file of labels has other columns.

        They may name records, and in another order. `--drop` says that one does not, unless the
        file of records has it too.
        """
        if self.labels_name is None:
            return
        labels = self._layout(self.labels_name, option("private_labels"), self._labels_alone)
        if not labels.declares:
            return
        others = [name for name in labels.names if name != self.columns.label]
        shared = self._shared(others)
        others = [name for name in others if name not in self.columns.drop or name in shared]
        if not others:
            return
        remedy = "join both files into one by such a column, or if the rows are in one order, "
        remedy += f"leave it out with {option('drop')}"
        if shared:
            remedy = (
                f"{', '.join(map(repr, shared))} may say another order than {self.where} does, and "
                f"{option('drop')} does not change that: join both files into one by it, or if the "
                "rows are in one order, save the labels alone, as one column"
            )
        raise ValueError(
            f"Expected {option('private_labels')} {self.labels_name} to hold the column "
            f"{self.columns.label!r} alone, because labels belong to records by their order, "
            f"got {', '.join(map(repr, others))} too; {remedy}."
        )

    def _shared(self, names: Sequence[str]) -> list[str]:
        """Return which columns of the file of labels are in this file too, in any spelling.

        All are if this file does not tell which columns it has.
        """
        only = Columns(embedding=(), reads_label=False)
        own = self._layout(self.name, self.argument, only)
        known = {name.strip().casefold() for name in own.names}
        return [name for name in names if not own.declares or name.strip().casefold() in known]

    def others(self) -> dict[str, np.ndarray]:
        """Return the columns of a public file that have no role, by their names."""
        with self._opened(self.name, self.argument) as file:
            return dict(_format(self.name, self.argument).others(file, self.columns))

    def features(self) -> tuple[str, ...]:
        """Return the names of the columns of the embeddings; none if the format has none."""
        return self.own_layout().features

    def own_layout(self) -> Layout:
        """Return the layout of this file, without that of a separate file of labels.

        Raises:
          ValueError: If columns of this file cannot be used, whatever their role.
        """
        columns = self.columns
        if self.labels_name is not None:
            columns = columns._replace(reads_label=False)
        return self._layout(self.name, self.argument, columns)

    def column_names(self) -> Sequence[str]:
        """Return the names of all columns or arrays, or the keys of the first records: private."""
        keys = self._first_keys(self.name, self.argument)
        layout = self.own_layout()
        return keys or layout.names or layout.arrays

    def texts(self, name: str) -> list[str]:
        """Return the texts of a column of a public file; none if it has no such column."""
        only = replace(self, columns=Columns(embedding=(), reads_label=False, public=True))
        return [str(text) for text in only.others().get(name, ())]

    def lengths(self) -> Counter[int]:
        """Return how many lists of embeddings have each length, if their type leaves it open."""
        of = getattr(_format(self.name, self.argument), "lengths", None)
        if of is None:
            return Counter()
        with self._opened(self.name, self.argument) as file:
            found: Counter[int] = of(file, self.columns)
            return found

    def broken(self) -> Counter[str]:
        """Return how many records are broken, by reason, in formats that can have such records."""
        found: Counter[str] = Counter()
        for name, argument in (
            (self.name, self.argument),
            (self.labels_name, option("private_labels")),
        ):
            of = name and getattr(_format(name, argument), "broken", None)
            if name and of:
                with self._opened(name, argument) as file:
                    found.update(of(file))
        return found

    def no_utf8_lines(self) -> list[bytes]:
        """Return lines of a file of text that are in another encoding, or none: private."""
        found: list[bytes] = []
        for shard in self.files():
            if hasattr(_format(shard.name, shard.argument), "broken"):
                with shard._opened(shard.name, shard.argument) as file:
                    found += _encodings.lines_of(file)
        return found

    def unseen(self) -> Iterator[str]:
        """Yield which columns no first record has, in formats that do not declare columns.

        What a private file's records have is private.
        """
        alone = self.labels_name is None
        label = [self.columns.label] if self.columns.reads_label else []
        asked = [*(self.columns.embedding or (formats.EMBEDDINGS,))]
        asked += [*(label if alone else []), *filter(None, [self.columns.person])]
        keys = self._first_keys(self.name, self.argument)
        yield from self._unseen(self.name, keys, asked)
        if self.labels_name is not None:
            keys = self._first_keys(self.labels_name, option("private_labels"))
            yield from self._unseen(self.labels_name, keys, label)
            yield from self._further(self.labels_name, keys or ())

    def _first_keys(self, name: str, argument: str) -> list[str] | None:
        """Return the keys of a file's first records, or None if it declares its columns."""
        of = getattr(_format(name, argument), "first_keys", None)
        if of is None:
            return None
        with self._opened(name, argument) as file:
            found: list[str] = of(file)
            return found

    def _further(self, name: str, keys: Sequence[str]) -> Iterator[str]:
        """Yield which keys of a file of labels may say another order; see `refuse_named_labels`."""
        others = [key for key in keys if key not in (self.columns.label, *self.columns.drop)]
        if others:
            yield (
                f"Records of {name} have {', '.join(map(repr, others[:MOST_NAMED]))} beside "
                f"{self.columns.label!r}, and labels belong to records by their order: if one says "
                "another order, join both files into one by it; if none does, leave them out with "
                f"{option('drop')}."
            )

    def _unseen(self, name: str, keys: list[str] | None, asked: Sequence[str]) -> Iterator[str]:
        if keys is None:
            return
        missing = [one for one in asked if one not in keys]
        if missing:
            yield (
                f"No record at the beginning of {name} has "
                f"{', '.join(map(repr, missing[:MOST_NAMED]))}; the records have "
                f"{', '.join(keys[:MOST_NAMED]) or 'no keys'}{formats.nested(missing, keys)}. Name "
                f"the columns with {option('embedding')}, {option('label')} and {option('person')}."
            )

    def num_rows(self) -> int:
        """Return the number of rows, from the file's head if it is there."""
        return self._num_rows(self.name, self.argument, self.columns)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of `size` rows.

        Raises:
          ValueError: If the file is absent, damaged or changed, or the labels are not as many.
        """
        if self.labels_name is None:
            yield from regular(self._read(self.name, self.argument, self.columns, size), size)
            return
        without = self.columns._replace(reads_label=False)
        of_rows = self._read(self.name, self.argument, without, size)
        of_labels = self._read(self.labels_name, option("private_labels"), self._labels_alone, size)
        pairs = zip(regular(of_rows, size), regular(of_labels, size), strict=True)
        try:
            for rows, labels in pairs:
                if len(_values(rows)) != len(_values(labels)):
                    raise ValueError
                yield Block(rows.embeddings, labels.labels, rows.persons)
        except ValueError as error:
            if str(error) and "zip()" not in str(error):
                raise
            raise self._unequal() from error

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone."""
        name, argument = self.name, self.argument
        if self.labels_name is not None:
            name, argument = self.labels_name, option("private_labels")
        for block in self._read(name, argument, self._labels_alone, size):
            if block.labels is not None:
                yield block.labels

    def persons(self, size: int) -> Iterator[np.ndarray]:
        """Yield whose the records are."""
        only = self.columns._replace(embedding=(), reads_label=False)
        for block in self._read(self.name, self.argument, only, size):
            if block.persons is not None:
                yield block.persons

    @property
    def _labels_alone(self) -> Columns:
        return self.columns._replace(embedding=(), reads_label=True, person=None)

    def _unequal(self) -> ValueError:
        return ValueError(
            f"Expected one label a private record, got another number of labels in "
            f"{self.labels_name} for the embeddings of {self.name}; save both in the same order."
        )

    def _layout(self, name: str, argument: str, columns: Columns) -> Layout:
        format_ = _format(name, argument)
        with self._opened(name, argument) as file:
            try:
                found: Layout = format_.layout(file, columns)
            except formats.FormatError as error:
                raise type(error)(f"{error}{_of_partitions(str(error), name)}") from error
            return found

    def _num_rows(self, name: str, argument: str, columns: Columns) -> int:
        format_ = _format(name, argument)
        with self._opened(name, argument) as file:
            return int(format_.num_rows(file, columns))

    def _read(self, name: str, argument: str, columns: Columns, size: int) -> Iterator[Block]:
        format_ = _format(name, argument)
        with self._opened(name, argument) as file:
            yield from format_.blocks(file, columns, size)

    @contextmanager
    def _opened(self, name: str, argument: str) -> Iterator[IO[bytes]]:
        with (
            formats.clear_errors(f"{argument} {name}"),
            _decompressed(name) as file,
        ):
            yield file


@contextmanager
def _decompressed(name: str) -> Iterator[IO[bytes]]:
    """Open a path or URL.

    Raises:
      FormatError: If its compression cannot be read, or its length is not known.
    """
    formats.refuse_compression(name)
    with fsspec.open(name, "rb", compression="infer") as file:
        if not isinstance(file, AbstractBufferedFile):
            yield file
            return
        if file.size is None:  # read to wherever the connection ends
            raise formats.FormatError(
                "Expected a server that tells the length of a file, got none; read it through a "
                f"cache, as simplecache::{name}, or save it here."
            )
        # Those of object stores read lines of any length alone.
        yield BufferedReader(file)


def _of_partitions(error: str, name: str) -> str:
    """Return what to do if the error names a column that a folder has in its name, or ""."""
    named = [part for part in PurePosixPath(name).parts if f"{part.partition('=')[0]!r}" in error]
    parts = [part for part in named if "=" in part]
    if not parts:
        return ""
    return (
        f" Folders such as {parts[0]!r} hold the column in their names, which are not read; write "
        "it into the files, as by pandas.read_parquet(FOLDER).to_parquet('all.parquet')."
    )


def files_of(shards: Sequence[Shard]) -> list[str]:
    """Return the paths and URLs of the files among shards, those of labels too."""
    files = [one for one in shards if isinstance(one, FileShard)]
    return [name for one in files for name in (one.name, one.labels_name) if name]


def with_one_order(shards: Sequence[FileShard], first: tuple[str, ...] = ()) -> list[FileShard]:
    """Return shards that read the same feature columns in the same order.

    Args:
      shards: Files of one data set.
      first: Names of the features in order. Defaults to those of the first file that has names.

    Raises:
      ValueError: If a file has other columns.
    """
    layouts = [shard.own_layout() for shard in shards]
    first = first or next((one.features for one in layouts if len(one.features) > 1), ())
    found = []
    for shard, layout in zip(shards, layouts, strict=True):
        names = layout.features
        if not layout.declares and shard.columns.embedding is None:
            unnamed = shard.columns._replace(embedding=first or (formats.EMBEDDINGS,))
            found.append(replace(shard, columns=unnamed))
            continue
        if len(names) > 1 and set(names) != set(first):
            other = sorted(set(names) ^ set(first))
            told = f" {csv.NO_NAMES}" if formats.suffix_of(shard.name) in csv.SUFFIXES else ""
            raise ValueError(
                f"Expected the same columns of features everywhere, got others in {shard.where}: "
                f"{other[:5]}; name the features with {option('embedding')}, or rename them.{told}"
            )
        named = shard.columns._replace(embedding=first) if len(names) > 1 else shard.columns
        found.append(replace(shard, columns=named))
    return found


def regular(blocks: Iterator[Block], size: int) -> Iterator[Block]:
    """Yield blocks of exactly `size` rows, of which the last one may have fewer.

    Blocks of one size share one compiled program.
    """
    held: list[Block] = []
    count = 0
    for block in blocks:
        if not held and len(_values(block)) == size:
            yield block
            continue
        held.append(block)
        count += len(_values(block))
        while count >= size:
            whole = _joined(held)
            yield Block(*(None if part is None else part[:size] for part in whole))
            held = [Block(*(None if part is None else part[size:] for part in whole))]
            count -= size
    if held:
        rest = _joined(held)
        if len(_values(rest)):
            yield rest


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    embeddings, labels, persons = zip(*blocks, strict=True)
    return Block(
        None if embeddings[0] is None else np.concatenate(embeddings),
        None if labels[0] is None else joined(labels),
        None if persons[0] is None else np.concatenate(persons),
    )


def _values(block: Block) -> np.ndarray:
    return next(values for values in block if values is not None)


def _format(name: str, argument: str) -> Any:
    found = formats.of(formats.suffix_of(name))
    if found is None:
        raise ValueError(
            f"Expected {argument} to name a {', '.join(sorted(formats.suffixes()))} file, got "
            f"{argument} {name}; save it in one of these."
        )
    return found

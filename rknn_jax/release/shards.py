"""Records in shards, on any file system, read in blocks of rows.

A data set is a file, a folder, a pattern such as `shards/*.parquet`, or a list of these. Names may
be URLs that fsspec knows, such as `s3://bucket/folder` or `memory://folder`. Arrays, Arrow tables
and whatever offers an Arrow stream (pandas, Polars, DuckDB) make shards too.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import IO, Any, Protocol

import fsspec
import numpy as np

from rknn_jax import formats
from rknn_jax.formats import Block, Columns

REMOTE = "://"
"""Part of a name that makes it a URL."""


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

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of `size` rows, of which the last one may have fewer."""

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone, in blocks of about `size`."""


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
    """

    name: str
    embeddings: np.ndarray
    labels_: np.ndarray | None = None

    @property
    def where(self) -> str:
        """Name of the shard."""
        return self.name

    def num_rows(self) -> int:
        """Return n."""
        return len(self.embeddings)

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield views of `size` rows."""
        for start in range(0, len(self.embeddings), size):
            stop = start + size
            labels = None if self.labels_ is None else self.labels_[start:stop]
            yield Block(self.embeddings[start:stop], labels)

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels at once."""
        if self.labels_ is not None:
            yield self.labels_


@dataclass(frozen=True)
class ArrowShard:
    """Arrow table or data set, or an object that offers an Arrow stream more than once.

    Attributes:
      name: Name of the shard.
      table: `pyarrow.Table`, `pyarrow.dataset.Dataset`, a data frame of pandas or Polars, or a
        relation of DuckDB.
      columns: Columns to read.
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
        return sum(batch.num_rows for batch in self._batches([]))

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of `size` rows."""
        from rknn_jax.formats import _arrow

        schema = _schema(self.table)
        features = _arrow.features_of(schema, self.columns)
        names = _arrow.names_of(schema, self.columns)
        parts = (
            _arrow.block(batch.slice(start, size), features, self.columns)
            for batch in self._batches(names)
            for start in range(0, batch.num_rows, size)
        )
        yield from regular(parts, size)

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone."""
        only = replace(self, columns=self.columns._replace(embedding=()))
        yield from (block.labels for block in only.blocks(size) if block.labels is not None)

    def _batches(self, names: list[str]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.dataset

        if isinstance(self.table, pa.dataset.Dataset):
            yield from self.table.to_batches(columns=names or None)
            return
        for batch in pa.RecordBatchReader.from_stream(self.table):
            yield batch.select(names) if names else batch


def _schema(table: Any) -> Any:
    import pyarrow as pa
    import pyarrow.dataset

    if isinstance(table, pa.Table | pa.dataset.Dataset):
        return table.schema
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

    def num_rows(self) -> int:
        """Return the number of rows, from the file's head if it is there."""
        format_ = _format(self.name, self.argument)
        with self._opened(self.name, self.argument) as file:
            return int(format_.num_rows(file, self.columns))

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield blocks of `size` rows.

        Raises:
          ValueError: If the file is absent, damaged or changed, or the labels are not as many.
        """
        if self.labels_name is None:
            yield from regular(self._read(self.name, self.argument, self.columns, size), size)
            return
        of_rows = self._read(self.name, self.argument, self.columns._replace(label=None), size)
        only = self.columns._replace(embedding=())
        of_labels = self._read(self.labels_name, "--private-labels", only, size)
        pairs = zip(regular(of_rows, size), regular(of_labels, size), strict=True)
        try:
            for rows, labels in pairs:
                if len(_values(rows)) != len(_values(labels)):
                    raise ValueError
                yield Block(rows.embeddings, labels.labels)
        except ValueError as error:
            if str(error) and "zip()" not in str(error):
                raise
            raise ValueError(
                f"Expected one label a private record, got another number of labels in "
                f"{self.labels_name} for the embeddings of {self.name}; save both in the same "
                "order."
            ) from error

    def labels(self, size: int) -> Iterator[np.ndarray]:
        """Yield the labels alone."""
        only = self.columns._replace(embedding=())
        name = self.labels_name or self.name
        for block in self._read(name, self.argument, only, size):
            if block.labels is not None:
                yield block.labels

    def _read(self, name: str, argument: str, columns: Columns, size: int) -> Iterator[Block]:
        format_ = _format(name, argument)
        with self._opened(name, argument) as file:
            yield from format_.blocks(file, columns, size)

    @contextmanager
    def _opened(self, name: str, argument: str) -> Iterator[IO[bytes]]:
        with (
            formats.clear_errors(f"{argument} {name}"),
            fsspec.open(name, "rb", compression="infer") as file,
        ):
            yield file


def find(names: Sequence[str], argument: str) -> list[str]:
    """Return the files that paths, folders, patterns or URLs name, in order.

    Args:
      names: Paths or URLs of files, folders, or patterns with `*`.
      argument: Command-line argument that named them, for the errors.

    Raises:
      ValueError: If there is none, or one is named twice. Two copies of a record would have twice
        the votes that the noise covers.
    """
    found = [file for name in names for file in _files(name, argument)]
    same = {os.path.realpath(file) if REMOTE not in file else file for file in found}
    if len(same) < len(found):
        raise ValueError(
            f"Expected every file of {argument} once, got one of {', '.join(names)} twice; name it "
            "once, because its records would count twice."
        )
    return found


def _files(name: str, argument: str) -> list[str]:
    with formats.clear_errors(f"{argument} {name}"):
        system, path = fsspec.core.url_to_fs(name)
        pattern = any(sign in name for sign in "*?[") and not system.exists(path)
        if not pattern and not system.isdir(path):
            return [name]
        inside = system.glob(path) if pattern else system.find(path)
        known = [each for each in inside if _suffix(each) in formats.suffixes()]
        files = sorted(system.unstrip_protocol(each) if REMOTE in name else each for each in known)
    if not files:
        raise ValueError(
            f"Expected files that end in {', '.join(sorted(formats.suffixes()))} in {argument} "
            f"{name}, got a folder or pattern without any; check the name."
        )
    return files


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
    parts = zip(*blocks, strict=True)
    return Block(*(None if part[0] is None else np.concatenate(part) for part in parts))


def _values(block: Block) -> np.ndarray:
    values = block.labels if block.embeddings is None else block.embeddings
    assert values is not None
    return values


def _format(name: str, argument: str) -> Any:
    found = formats.of(_suffix(name))
    if found is None:
        raise ValueError(
            f"Expected {argument} to name a {', '.join(sorted(formats.suffixes()))} file, got "
            f"{argument} {name}; save it in one of these."
        )
    return found


def _suffix(name: str) -> str:
    path = PurePosixPath(name)
    return PurePosixPath(path.stem).suffix if path.suffix in (".gz", ".bz2", ".xz") else path.suffix

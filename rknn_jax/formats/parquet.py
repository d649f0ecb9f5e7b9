"""Parquet: a column of lists, or a numeric column for each feature."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rknn_jax.formats import Block, Columns, Layout, _arrow, _arrow_tables

SUFFIXES = (".parquet", ".pq")

BUFFER = 2**22
"""Bytes that are read ahead of each column. Otherwise pyarrow reads whole row groups."""


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the file, from its schema."""
    pa = _arrow.pyarrow()
    return _arrow_tables.layout(pa.parquet.ParquetFile(file).schema_arrow, columns)


def others(file: IO[bytes], columns: Columns) -> dict[str, np.ndarray]:
    """Return the columns of a public file that have no role."""
    pa = _arrow.pyarrow()
    reader = pa.parquet.ParquetFile(file)
    features = _arrow_tables.features_of(reader.schema_arrow, columns)
    names = [name for name in reader.schema_arrow.names if name not in features]
    return _arrow_tables.others(reader.read(columns=names), features, columns) if names else {}


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Return the number of rows, from the file's foot."""
    del columns
    pa = _arrow.pyarrow()
    return int(pa.parquet.ParquetFile(file).metadata.num_rows)


def lengths(file: IO[bytes], columns: Columns) -> Counter[int]:
    """Return how many lists of embeddings have each length, if their type leaves it open."""
    pa = _arrow.pyarrow()
    reader = pa.parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)
    own = _arrow_tables.features_of(reader.schema_arrow, columns)[:1]
    batches = reader.iter_batches(columns=own)
    return sum((_arrow.lengths(batch.column(own[0])) for batch in batches), Counter[int]())


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield at most `size` rows at a time, at least one block, which may be empty."""
    reader = opened(file)
    schema = reader.schema_arrow
    own = _arrow_tables.features_of(schema, columns)
    names = _arrow_tables.names_of(schema, columns)
    if not reader.metadata.num_rows:
        yield _arrow_tables.block(reader.read(columns=names), own, columns)
    for batch in reader.iter_batches(batch_size=size, columns=names):
        yield _arrow_tables.block(batch, own, columns)


def opened(file: IO[bytes]) -> Any:
    """Return a reader of the file, whose categories come as their values.

    For the dictionaries that a file declares, pyarrow converts what it has read, and that fails if
    one value is no Unicode, or is one more than their numbers can count. So the metadata are
    written anew, with another schema for the same columns.
    """
    pa = _arrow.pyarrow()
    how = {"buffer_size": BUFFER, "pre_buffer": False}
    reader = pa.parquet.ParquetFile(file, **how)
    plain = _arrow.without_dictionaries(reader.schema_arrow)
    if plain == reader.schema_arrow:
        return reader
    for compliant in (True, False):  # two names of the items of lists
        sink = pa.BufferOutputStream()
        pa.parquet.write_metadata(plain, sink, use_compliant_nested_type=compliant)
        metadata = pa.parquet.read_metadata(pa.BufferReader(sink.getvalue()))
        with contextlib.suppress(RuntimeError):  # other names than those of the file
            metadata.append_row_groups(reader.metadata)
            return pa.parquet.ParquetFile(file, metadata=metadata, **how)
    return reader


def _write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    pa = _arrow.pyarrow()
    width = features.shape[1]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
    pa.parquet.write_table(pa.table({"embeddings": lists, "labels": labels}), path)


EXAMPLES = (_write,)

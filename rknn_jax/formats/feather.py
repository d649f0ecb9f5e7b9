"""Arrow's own file format, also called Feather: columns as in Parquet."""

from collections.abc import Iterator
from typing import IO

from rknn_jax.formats import Block, Columns, _arrow

SUFFIXES = (".feather", ".arrow")


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Return the number of rows."""
    del columns
    reader = _arrow.library().ipc.open_file(file)
    return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield at most `size` rows at a time, at least one block, which may be empty."""
    reader = _arrow.library().ipc.open_file(file)
    features = _arrow.features_of(reader.schema, columns)
    _arrow.names_of(reader.schema, columns)
    if not reader.num_record_batches:
        yield _arrow.block(reader.schema.empty_table(), features, columns)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        for start in range(0, max(batch.num_rows, 1), size):
            yield _arrow.block(batch.slice(start, size), features, columns)

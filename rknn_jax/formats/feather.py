"""Arrow's own file format, also called Feather: columns as in Parquet.

Its record batches are read whole, so write batches of some ten thousand rows.
"""

from collections.abc import Iterator
from typing import IO

from rknn_jax.formats import Block, Columns, _arrow

SUFFIXES = (".feather", ".arrow")


def features(file: IO[bytes], columns: Columns) -> tuple[str, ...]:
    """Return the names of the columns of the embeddings, from the file's schema."""
    return tuple(_arrow.features_of(_arrow.pyarrow().ipc.open_file(file).schema, columns))


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Return the number of rows."""
    del columns
    reader = _arrow.pyarrow().ipc.open_file(file)
    return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield at most `size` rows at a time, at least one block, which may be empty."""
    reader = _arrow.pyarrow().ipc.open_file(file)
    own = _arrow.features_of(reader.schema, columns)
    _arrow.names_of(reader.schema, columns)
    if not reader.num_record_batches:
        yield _arrow.block(reader.schema.empty_table(), own, columns)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)  # offsets beyond the data would end the process
        for start in range(0, max(batch.num_rows, 1), size):
            yield _arrow.block(batch.slice(start, size), own, columns)

"""Arrow's own formats: files, also called Feather, and streams, as `datasets` saves them.

Record batches are read whole, so write batches of some ten thousand rows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rknn_jax.formats import Block, Columns, FormatError, Layout, _arrow, _arrow_tables

SUFFIXES = (".feather", ".arrow", ".ipc", ".arrows")

_MAGIC = b"ARROW1"  # begins a file; a stream begins with the length of its schema
_END = b"\xff\xff\xff\xff\0\0\0\0"  # ends a stream


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the file, from its schema."""
    return _arrow_tables.layout(_opened(file).schema, columns)


def others(file: IO[bytes], columns: Columns) -> dict[str, np.ndarray]:
    """Return the columns of a public file that have no role."""
    reader = _opened(file)
    features = _arrow_tables.features_of(reader.schema, columns)
    names = [name for name in reader.schema.names if name not in features]
    if not names:
        return {}
    table = _arrow.pyarrow().Table.from_batches(_batches(file, reader), reader.schema).select(names)
    table.validate(full=True)  # offsets beyond the data would end the process
    return _arrow_tables.others(table, features, columns)


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Return the number of rows."""
    del columns
    return sum(batch.num_rows for batch in _batches(file, _opened(file)))


def lengths(file: IO[bytes], columns: Columns) -> Counter[int]:
    """Return how many lists of embeddings have each length, if their type leaves it open."""
    reader = _opened(file)
    own = _arrow_tables.features_of(reader.schema, columns)[0]
    found = Counter[int]()
    for batch in _batches(file, reader):
        _arrow.check_offsets(batch.column(own))
        found.update(_arrow.lengths(batch.column(own)))
    return found


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield at most `size` rows at a time, at least one block, which may be empty."""
    reader = _opened(file)
    own = _arrow_tables.features_of(reader.schema, columns)
    names = _arrow_tables.names_of(reader.schema, columns)
    num_batches = 0
    for num_batches, batch in enumerate(_batches(file, reader), 1):  # noqa: B007 counted for below
        for name in names:
            _arrow.check_offsets(batch.column(name))
        for start in range(0, max(batch.num_rows, 1), size):
            yield _arrow_tables.block(batch.slice(start, size), own, columns)
    if not num_batches:
        yield _arrow_tables.block(reader.schema.empty_table(), own, columns)


def schema(file: IO[bytes]) -> Any:
    """Return the Arrow schema of the file."""
    return _opened(file).schema


def record_batches(file: IO[bytes], names: Sequence[str]) -> Iterator[Any]:
    """Yield the named columns of the record batches of the file, whose offsets are checked."""
    for batch in _batches(file, _opened(file)):
        for name in names:
            _arrow.check_offsets(batch.column(name))
        yield batch.select(list(names))


def _opened(file: IO[bytes]) -> Any:
    ipc = _arrow.pyarrow().ipc
    begins = file.read(len(_MAGIC))
    file.seek(0)
    return ipc.open_file(file) if begins == _MAGIC else ipc.open_stream(file)


def _batches(file: IO[bytes], reader: Any) -> Iterator[Any]:
    """Yield the record batches of a file or a stream that was opened.

    Raises:
      FormatError: If a stream lacks its end, which pyarrow takes for the end of the data.
    """
    if not isinstance(reader, _arrow.pyarrow().RecordBatchReader):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
        return
    place = file.tell()
    for batch in reader:
        place = file.tell()
        yield batch
    file.seek(place)  # a batch may end like a stream, so that the last bytes do not tell
    if file.read(len(_END) + 1) != _END:
        raise FormatError(
            "Expected one stream of Arrow with its mark at the end, as Arrow 0.15 and later write "
            "it, got one that was cut, is older, or has something after it; copy it again, or "
            "write it anew."
        )


def _write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    from pyarrow import feather

    pa = _arrow.pyarrow()
    width = features.shape[1]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), width)
    feather.write_feather(pa.table({"embeddings": lists, "labels": labels}), path)


EXAMPLES = (_write,)

"""NumPy's `.npy`: one array, the embeddings, or the labels if no embeddings are asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rknn_jax.formats import Block, Columns, FormatError, Layout
from rknn_jax.records.code_points import in_unicode

SUFFIXES = (".npy",)

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of the head of an array, for each version of the format that holds plain numbers."""


LARGEST_READ = 2**40
"""Most bytes of a block. A damaged head may ask for more than any memory."""


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the array, from its head."""
    return Layout((), _block(empty(file), columns))


def others(file: IO[bytes], columns: Columns) -> dict[str, np.ndarray]:
    """Return nothing, because an array has no columns with names."""
    del file, columns
    return {}


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Return the length of the array, from its head."""
    del columns
    shape, _, _ = head(file)
    return shape[0] if shape else 0


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield the array in blocks of `size` rows."""
    for rows in arrays(file, size):
        yield _block(rows, columns)


def _block(rows: np.ndarray, columns: Columns) -> Block:
    if columns.person is not None:
        raise FormatError(
            f"Expected an array {columns.person!r} of persons, got a .npy file, which holds one "
            "array; save both in a .npz file."
        )
    return Block(None, rows) if columns.embedding == () else Block(rows, None)


def empty(file: IO[bytes]) -> np.ndarray:
    """Return no rows of an array, from its head.

    Raises:
      FormatError: If it has no rows.
    """
    shape, _, dtype = head(file)
    _check_rows(shape)
    return np.empty((0, *shape[1:]), dtype)


def head(file: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    """Read the head of an array: its shape, whether it is in Fortran's order, and its dtype.

    Raises:
      ValueError: If the head is damaged, or the array holds Python objects.
    """
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise ValueError(f"the array is no .npy file: {error}") from error
    if version not in HEADERS:
        raise ValueError(f"version {version} of the format")
    shape, fortran, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("pickled objects")
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape}")
    return shape, fortran, dtype


def _check_rows(shape: tuple[int, ...]) -> None:
    if not shape:
        raise FormatError(
            "Expected rows, got an array of one value of shape (); save one row each."
        )


def arrays(file: IO[bytes], size: int) -> Iterator[np.ndarray]:
    """Yield the rows of an array in blocks of `size`, at least one, which may be empty.

    An array in Fortran's order is read whole.

    Raises:
      ValueError: If the file ends before the array, or goes on after it.
    """
    shape, fortran, dtype = head(file)
    _check_rows(shape)
    if fortran and len(shape) > 1:
        whole = _read(file, int(np.prod(shape, dtype=object)), dtype).reshape(shape, order="F")
        starts = range(0, len(whole), size)
        yield from [whole[start : start + size] for start in starts] or [whole]
    else:
        row = int(np.prod(shape[1:], dtype=object))
        for start in range(0, max(shape[0], 1), size):
            rows = min(size, shape[0] - start)
            yield _read(file, rows * row, dtype).reshape(rows, *shape[1:])
    if file.read(1):  # as of two arrays that were saved into one file
        raise ValueError("goes on after its array")


def _read(file: IO[bytes], count: int, dtype: Any) -> np.ndarray:
    """Read `count` values.

    Raises:
      ValueError: If the file ends before.
    """
    wanted = count * dtype.itemsize
    if wanted > LARGEST_READ:
        raise ValueError(f"its head asks for {wanted} bytes at once")
    content = file.read(wanted)
    if len(content) < wanted:
        raise ValueError(f"ends after {len(content)} of {wanted} bytes")
    return in_unicode(np.frombuffer(content, dtype, count))


def _write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    del labels
    np.save(path, features)


EXAMPLES = (_write,)

"""NumPy's `.npz`: an archive with an array `embeddings` and, for private records, `labels`."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.formats import EMBEDDINGS, Block, Columns, FormatError, Layout, absent, npy

SUFFIXES = (".npz",)


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the arrays, from their heads.

    Raises:
      FormatError: If an array is absent, or their lengths differ.
    """
    names = _names(columns)
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(file))
        _check_lengths(stack, archive, names, columns)
        return Layout(
            (),
            Block(
                *(
                    None if name is None else npy.empty(_member(stack, archive, name))
                    for name in names
                )
            ),
            arrays=tuple(name.removesuffix(".npy") for name in archive.namelist()),
        )


def others(file: IO[bytes], columns: Columns) -> dict[str, np.ndarray]:
    """Return nothing, because an array has no columns with names."""
    del file, columns
    return {}


def num_rows(file: IO[bytes], columns: Columns) -> int:
    """Return the length of the first array that is asked for, from its head."""
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(file))
        first = next(name for name in _names(columns) if name is not None)
        return npy.num_rows(_member(stack, archive, first), columns)


def blocks(file: IO[bytes], columns: Columns, size: int) -> Iterator[Block]:
    """Yield the arrays in blocks of `size` rows.

    Raises:
      ValueError: If an array is absent or damaged, or their lengths differ.
    """
    names = _names(columns)
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(file))
        named = _check_lengths(stack, archive, names, columns)
        members = [npy.arrays(_member(stack, archive, name), size) for name in named]
        for parts in zip(*members, strict=True):
            found = iter(parts)
            yield Block(*(None if name is None else next(found) for name in names))


def _check_lengths(
    stack: ExitStack, archive: zipfile.ZipFile, names: Sequence[str | None], columns: Columns
) -> list[str]:
    """Return the names of the arrays that are read, if these have one length."""
    named = [name for name in names if name is not None]
    lengths = [npy.num_rows(_member(stack, archive, name), columns) for name in named]
    if len(set(lengths)) > 1:
        told = [f"{length} {name}" for length, name in zip(lengths, named, strict=True)]
        raise FormatError(
            f"Expected one label a record, got {', '.join(told)}; save all in the same order."
        )
    return named


def _names(columns: Columns) -> tuple[str | None, str | None, str | None]:
    """Return the arrays of embeddings, labels and persons; None for what is not read."""
    label = columns.label if columns.reads_label else None
    if columns.embedding == ():
        return None, label, columns.person
    names = columns.embedding or (EMBEDDINGS,)
    if len(names) > 1:
        raise FormatError(
            f"Expected one array of embeddings, got {len(names)} names in {option('embedding')}; "
            "name one."
        )
    return names[0], label, columns.person


def _archive(file: IO[bytes]) -> zipfile.ZipFile:
    """Open an archive whose arrays are all that the file holds, each once.

    Raises:
      ValueError: If it is none, or another one or another array of a name would be left out.
    """
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        file.seek(0)
        start = file.read(6)
        if start == b"\x93NUMPY":
            raise ValueError("a plain array under the name of an archive") from None
        if start[:2] == b"PK" or not start:
            raise ValueError("the end of the archive is missing") from None
        raise ValueError("no archive; pickled objects are not loaded") from None
    held = archive.infolist()
    if min((one.header_offset for one in held), default=0):
        raise ValueError("something is before its archive")
    if len({one.filename for one in held}) < len(held):
        raise ValueError("two arrays of one name")
    return archive


def _member(stack: ExitStack, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    found = [member.removesuffix(".npy") for member in archive.namelist()]
    if name not in found:
        raise absent([name], found)
    return stack.enter_context(archive.open(f"{name}.npy"))


def _write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    np.savez(path, embeddings=features, labels=labels)


EXAMPLES = (_write,)

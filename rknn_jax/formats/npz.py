"""NumPy's `.npz`: an archive with an array `embeddings` and, for private records, `labels`.

An array `classes` of text names the class numbers among the labels, in their order, as a ClassLabel
of `datasets` does. Such numbers are then matched by name, in whatever order a user lists the names.
Where all names are numbers, the labels are these, and are matched by their values.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.formats import EMBEDDINGS, Block, Columns, FormatError, Layout, _hub, absent, npy
from rknn_jax.records.classes import number_of
from rknn_jax.records.features import MOST_NAMED

SUFFIXES = (".npz",)

NUMBERS = "biuf"
"""Kinds of types of class numbers and masks."""

CLASSES = "classes"
"""Name of the array of the classes."""


def layout(file: IO[bytes], columns: Columns) -> Layout:
    """Return the layout of the arrays, from their heads.

    Raises:
      FormatError: If an array is absent, or their lengths differ.
    """
    names = _names(columns)
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(file))
        _check_lengths(stack, archive, names, columns)
        empty = Block(
            *(None if name is None else npy.empty(_member(stack, archive, name)) for name in names)
        )
        classes = () if empty.labels is None else _class_names(archive, columns, empty.labels)
        if empty.labels is not None:
            _with_names(empty.labels, classes)  # refuses what blocks would refuse
        values = _are_values(classes) and not _is_mask(empty.labels)
        return Layout(
            (),
            empty,
            arrays=tuple(name.removesuffix(".npy") for name in archive.namelist()),
            classes=() if values else classes,
            values=classes if values else (),
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
        classes: tuple[str, ...] | None = None
        for parts in zip(*members, strict=True):
            found = iter(parts)
            block = Block(*(None if name is None else next(found) for name in names))
            if block.labels is not None:
                if classes is None:
                    classes = _class_names(archive, columns, block.labels)
                block = block._replace(labels=_with_names(block.labels, classes))
            yield block


def names_of_classes(array: np.ndarray) -> tuple[str, ...]:
    """Return the names that an array `classes` holds, or none if it is no text `[num_classes]`."""
    if array.ndim != 1 or array.dtype.kind not in "US":
        return ()
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    return tuple(map(str, array))


def _class_names(archive: zipfile.ZipFile, columns: Columns, labels: np.ndarray) -> tuple[str, ...]:
    """Return the names of the class numbers among the labels, in their order.

    There are none of text, or if the file has no `classes`, or their number alone.

    Raises:
      FormatError: If nobody can tell what `classes` says of class numbers.
    """
    others = {*(columns.embedding or ()), columns.label, columns.person}
    member = f"{CLASSES}.npy"
    if labels.dtype.kind not in NUMBERS or CLASSES in others or member not in archive.namelist():
        return ()
    try:
        with archive.open(member) as file:
            shape, _, dtype = npy.head(file)
        if shape == () and dtype.kind in "iu":
            return ()
        if len(shape) != 1 or dtype.kind not in "US":
            raise ValueError(f"shape {[*shape]} of dtype {dtype}")
    except ValueError as error:  # as of pickled objects
        raise FormatError(
            f"Expected text [num_classes] or an integer in {CLASSES!r} beside class numbers, got "
            f"{error}; save the names of the classes in the order of their numbers, or leave "
            f"{CLASSES!r} out."
        ) from error
    with archive.open(member) as file:
        names = names_of_classes(next(npy.arrays(file, max(shape[0], 1))))
    return _hub.distinct(names)


def _are_values(names: tuple[str, ...]) -> bool:
    """Return whether names are numbers, so that numbers among the labels are such names."""
    return any(names) and all(number_of(name) is not None for name in names if name)


def _is_mask(labels: np.ndarray | None) -> bool:
    """Return whether labels are a mask of the classes, by their shape and type."""
    return labels is not None and labels.dtype.kind == "b" and labels.ndim == 2


def _with_names(labels: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return class numbers, or a mask of the classes, with the names; other labels as they are.

    Raises:
      FormatError: If nobody knows which of the two they are, or a mask is of other classes.
    """
    mask = _is_mask(labels)
    numbers = [name for i, name in enumerate(names) if number_of(name) not in (None, i)]
    if numbers and not mask and not _are_values(names):
        raise FormatError(
            f"Expected names in {CLASSES!r} of which all are numbers, or none, beside class "
            f"numbers, got {', '.join(names[:MOST_NAMED])} with {numbers[0]}, so that a number may "
            "be a name or its place; save the labels as text."
        )
    if not names or labels.dtype.kind not in NUMBERS or (_are_values(names) and not mask):
        return labels
    if labels.shape[1:] == (len(names),):
        if not mask:
            raise FormatError(
                "Expected a mask or class numbers as labels, got numbers of shape "
                f"[n, {len(names)}] beside as many names in {CLASSES!r}, which may be either; "
                "save a mask as bool, or class numbers with a further column of -1."
            )
        labels = np.where(labels, np.arange(len(names)), -1)
    elif mask:
        raise FormatError(
            f"Expected a mask of {len(names)} columns, one for each name in {CLASSES!r}, got shape "
            f"{['n', *labels.shape[1:]]}; save a column for each, or leave {CLASSES!r} out."
        )
    return _hub.named(labels.ravel(), names).reshape(labels.shape)


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

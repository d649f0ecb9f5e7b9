"""Embeddings and labels of a user, whole.

The files are those of `rknn_jax.formats`, and `rknn_jax.release.shards` finds them. The rules are
those of `rknn_jax.records`. Nothing is ever unpickled, because loading a pickle can run code.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.formats import AbsentError, Columns, absent, clear_errors, npz
from rknn_jax.formats._data_files import find
from rknn_jax.neighbors import LARGEST, usable_rows
from rknn_jax.privacy.fingerprints import Digest
from rknn_jax.records import features, public_values
from rknn_jax.records.carried import joined, numbers
from rknn_jax.records.classes import Classes
from rknn_jax.records.features import real_rows
from rknn_jax.records.labels import whole
from rknn_jax.release.shards import ArrowShard, FileShard, Shard, with_one_order
from rknn_jax.release.widths import with_one_width

ROWS_AT_ONCE = 2**14
"""Rows that are read at once into a whole array."""

MOST_TEXT = 2**28
"""Most bytes of a column that is carried along to the labels."""

MOST_NAME = 2**10
"""Most characters of its name."""

SOURCE_FILE = "source_file"
SOURCE_ROW = "source_row"
"""Columns that say where a row of several files comes from."""

RAW_AT_ONCE = 2**10
"""Raw records that are read at once."""

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")


def read_embeddings(
    names: str | Sequence[str] | Path, argument: str, columns: Columns = Columns()
) -> np.ndarray:
    """Read and check embeddings, whole, as `read_named_embeddings` does."""
    return read_named_embeddings(names, argument, columns)[0]


def read_named_embeddings(
    names: str | Sequence[str] | Path, argument: str, columns: Columns = Columns()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read and check embeddings, whole.

    Args:
      names: Files, folders, patterns or URLs, as for `data_files.find`.
      argument: Command-line argument that named them, for the errors.
      columns: Columns to read. Defaults to the usual names.

    Returns:
      `(embeddings, features)`: float32 `[n, f]`, finite, with n and f at least 1, and the names of
      the f columns, or none if they have no names.

    Raises:
      ValueError: If a file cannot be used.
    """
    where = f"{argument} {_words(names)}"
    shards = _opened(names, argument, columns._replace(reads_label=False, public=True))
    array = _joined(shards, where)
    names = shards[0].columns.embedding or shards[0].features()
    if len(names) != array.shape[1]:
        names = ()

    def stored() -> Iterator[np.ndarray | None]:
        return (block.embeddings for shard in shards for block in shard.blocks(ROWS_AT_ONCE))

    try:
        chosen = bool(columns.embedding)
        public_values.refuse_values(array, names, where, LARGEST, stored, chosen=chosen)
    except ValueError as error:
        told = _text_doubts(shards, names, array)
        raise ValueError(" ".join([str(error), *told])) from error
    return array, names


def _text_doubts(
    shards: Sequence[FileShard], names: Sequence[str], rows: np.ndarray
) -> Iterator[str]:
    """Yield what texts in public columns of features are, and what to save in their place."""
    from rknn_jax.embedding import doubts

    holes = np.logical_not(np.isfinite(rows).all(axis=0))
    found: dict[doubts.Kind, list[str]] = {}
    for name, hole in zip(names, holes, strict=False):
        kind = doubts.feature_kind(shards[0].texts(name)) if hole else None
        if kind is not None:
            found.setdefault(kind, []).append(name)
    for kind, of_kind in found.items():
        yield f"{of_kind[: features.MOST_NAMED]} hold {kind.name}: {kind.remedy}."


def feature_names(path: Path, argument: str, columns: Columns) -> tuple[str, ...]:
    """Return the names of the columns of features in their order, or none without names.

    Args:
      path: File, folder or pattern to open.
      argument: Command-line argument that named it, for the errors.
      columns: Columns to read.

    Raises:
      ValueError: If the columns cannot be used.
    """
    shards = _opened(path, argument, columns._replace(reads_label=False))
    names = shards[0].own_layout().features
    return names if len(names) > 1 else ()


def read_others(
    names: str | Sequence[str] | Path, argument: str, columns: Columns
) -> dict[str, np.ndarray]:
    """Read the columns of public data that have no role, such as the source row, whole.

    Columns that not every file has are left out, and those that the labels cannot carry: of text
    beyond `MOST_TEXT` bytes, or of names that no file can have. The rows of several files have
    `SOURCE_FILE` and `SOURCE_ROW` too.

    Args:
      names: Files, folders, patterns or URLs, as for `data_files.find`.
      argument: Command-line argument that named them, for the errors.
      columns: Columns that are read.

    Returns:
      Numbers or text `[m]` by the names of the columns.
    """
    public = columns._replace(reads_label=False, public=True)
    shards = _opened(names, argument, public)
    parts = [shard.others() for shard in shards]
    shared = filter(_names_a_file, set.intersection(*map(set, parts)))
    whole = {name: joined([part[name] for part in parts]) for name in sorted(shared)}
    whole = _sources(shards) | whole
    return {name: values for name, values in whole.items() if values.nbytes <= MOST_TEXT}


def _names_a_file(name: str) -> bool:
    """Return whether an archive can hold an array of this name: Unicode, not long, no zeros.

    NumPy takes `a.npy` for `a`.
    """
    halves = any("\ud800" <= sign <= "\udfff" for sign in name)
    return len(name) <= MOST_NAME and "\0" not in name and not halves and name[-4:] != ".npy"


def _sources(shards: Sequence[FileShard]) -> dict[str, np.ndarray]:
    """Return the file of each row, and the number of the row in it, from 0 on.

    Files are named within the folder that holds all of them. A single file needs no such columns.
    """
    if len(shards) < 2:
        return {}
    counts = [shard.num_rows() for shard in shards]
    paths = [PurePosixPath(shard.name) for shard in shards]
    files = [shard.name for shard in shards]
    if len({path.is_absolute() for path in paths}) == 1:
        folder = os.path.commonpath([path.parent for path in paths])
        files = [os.fspath(path.relative_to(folder)) for path in paths]
    rows = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    return {SOURCE_FILE: np.repeat(np.array(files, str), counts), SOURCE_ROW: rows}


def carried(others: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of `labels.npz` for public columns that have no role.

    They are `row`, the number of the row in its source, `file`, and `public_NAME` for the others.

    Args:
      others: Result of `read_others`.
    """
    found = {
        name if name == "file" else f"public_{name}": values for name, values in others.items()
    }
    rows = _whole_numbers(others["row"]) if "row" in others else None
    if rows is not None:
        del found["public_row"]
        found["row"] = rows
    return found


def _whole_numbers(values: np.ndarray) -> np.ndarray | None:
    """Return whole numbers, which a CSV file has as text, as integers; None for other values."""
    if values.dtype.kind == "U" and all(map(_WHOLE.fullmatch, values.tolist())):
        values = numbers([int(text) for text in values.tolist()])
    return values if values.dtype.kind in "iu" else None


def read_raw(
    names: str | Sequence[str] | Path, argument: str, columns: Columns, digest: Digest
) -> Iterator[np.ndarray]:
    """Yield public records for an encoder, in blocks.

    Args:
      names: Files, folders, patterns or URLs, as for `data_files.find`.
      argument: Command-line argument that named them, for the errors.
      columns: Column to read.
      digest: Fingerprint that the records are added to.

    Raises:
      ValueError: If a file cannot be used.
    """
    for shard in _opened(names, argument, columns._replace(public=True)):
        rows = shard.num_rows()
        for number, block in enumerate(shard.blocks(RAW_AT_ONCE)):
            assert block.embeddings is not None
            if not number:
                digest.begin(block.embeddings.dtype.kind, (rows, *block.embeddings.shape[1:]))
            digest.update(block.embeddings)
            yield block.embeddings


def read_records(path: Path, argument: str, columns: Columns = Columns()) -> np.ndarray:
    """Read embeddings of private records, whole.

    No content of a single record raises an error, because the error would reveal that record.

    Args:
      path: File, folder or pattern to read.
      argument: Command-line argument that named it, for the errors.
      columns: Columns to read. Defaults to the usual names, and the width of `with_one_width`.

    Returns:
      float32 `[n, f]`. A record is a row of NaN if it holds NaN, infinity, more than `LARGEST` or
      another number of values.

    Raises:
      ValueError: If the file as a whole cannot be used.
    """
    shards = with_one_width(_opened(path, argument, columns._replace(reads_label=False)))
    return usable_rows(_joined(shards, f"{argument} {path}"))


def read_optional(path: Path, argument: str, name: str) -> np.ndarray | None:
    """Read one array of an .npz file as stored, or return None if it has none of that name.

    Args:
      path: File to read.
      argument: Command-line argument that named the file, for the errors.
      name: Name of the array.

    Raises:
      ValueError: If the file cannot be read.
    """
    try:
        return _array_of(path, argument, name)
    except AbsentError:
        return None


def read_labels(
    path: Path, labels_path: Path | None = None, argument: str | None = None
) -> np.ndarray:
    """Read the labels of private records as they are stored, whole, for `labels.encode`.

    Args:
      path: File of the private records, or a folder or pattern of such files.
      labels_path: Separate file of the labels, which takes precedence. Defaults to None, for labels
        in `path`.
      argument: Name of the setting that named `path`, for the errors. Defaults to that of
        `private`.

    Raises:
      ValueError: If the file as a whole cannot be used.
    """
    source, argument = (
        (path, argument or option("private"))
        if labels_path is None
        else (labels_path, option("private_labels"))
    )
    shards = file_shards(os.fspath(source), argument, Columns(embedding=()))
    for shard in shards:
        check_labels_named(shard.name, labels_path is not None)
    return whole([part for shard in shards for part in shard.labels(ROWS_AT_ONCE)])


def check_labels_named(name: str, separate: bool) -> None:
    """Refuse an .npy file of private records without a file of their labels.

    Raises:
      ValueError: If there is none.
    """
    if name.endswith(".npy") and not separate:
        raise ValueError(
            f"Expected {option('private_labels')} beside {option('private')} {name}, got none; a "
            ".npy file holds one array."
        )


def read_classes(path: Path) -> Classes | None:
    """Return the classes of an .npz file's array `classes`, or None if it has none.

    The array holds text `[|Y|]` or the number of classes.
    """
    array = read_optional(path, option("private"), npz.CLASSES) if path.suffix == ".npz" else None
    if array is None:
        return None
    try:
        if array.ndim == 0 and array.dtype.kind in "iu":
            return Classes(int(array))
        if names := npz.names_of_classes(array):
            return Classes(len(names), names)
    except ValueError as error:
        raise ValueError(
            f"'classes' in {option('private')} {path} cannot be used: {error}"
        ) from error
    raise ValueError(
        f"Expected 'classes' in {option('private')} {path} to be an integer or text [num_classes], "
        f"got shape {array.shape} of dtype {array.dtype}; save the classes' names in the order of "
        "their numbers, or leave it out."
    )


def refuse_unknown(drop: Sequence[str], shards: Sequence[Shard]) -> None:
    """Raise ValueError if a column that is to be dropped is in no file or table.

    Args:
      drop: Names of `--drop`.
      shards: Public and private files and tables.
    """
    if not drop:
        return
    only = Columns(embedding=(), reads_label=False)
    tables: list[FileShard | ArrowShard] = [one for one in shards if isinstance(one, ArrowShard)]
    for shard in shards:
        if isinstance(shard, FileShard):
            tables += shard.files()
    layouts = [
        replace(one, columns=only._replace(public=one.columns.public)).layout() for one in tables
    ]
    if all(layout.declares for layout in layouts):
        features.refuse_unknown(drop, [layout.names for layout in layouts])


def file_shards(names: str | Sequence[str], argument: str, columns: Columns) -> list[FileShard]:
    """Return the files that names stand for, each with its own order of columns."""
    given = [names] if isinstance(names, str) else list(names)
    return [FileShard(name, argument, columns) for name in find(given, argument).files]


def _opened(names: str | Sequence[str] | Path, argument: str, columns: Columns) -> list[FileShard]:
    given = os.fspath(names) if isinstance(names, Path) else names
    return with_one_order(file_shards(given, argument, columns))


def _joined(shards: Sequence[FileShard], where: str) -> np.ndarray:
    """Read embeddings as float32 `[n, f]`."""
    rows: np.ndarray | None = None
    filled = 0
    for block in (block for shard in shards for block in shard.blocks(ROWS_AT_ONCE)):
        assert block.embeddings is not None
        part = real_rows(block.embeddings, where)
        if rows is None:
            rows = np.empty((sum(shard.num_rows() for shard in shards), part.shape[1]), np.float32)
        if part.shape[1] != rows.shape[1]:
            raise ValueError(
                f"Expected embeddings of one length in {where}, got lists of lengths "
                f"{rows.shape[1]} and {part.shape[1]}; embed all with the same model."
            )
        if filled + len(part) <= len(rows):
            with np.errstate(all="ignore"):  # such values are infinite then
                rows[filled : filled + len(part)] = part
        filled += len(part)
    if rows is None:
        raise ValueError(f"Expected embeddings [n > 0, f > 0] in {where}, got no row; add some.")
    if filled != len(rows):
        raise ValueError(
            f"Expected {len(rows)} rows in {where}, as when it was opened, got {filled}; keep the "
            "data unchanged while it is read."
        )
    return rows


def _words(names: str | Sequence[str] | Path) -> str:
    return os.fspath(names) if isinstance(names, str | Path) else ", ".join(names)


def _array_of(path: Path, argument: str, name: str) -> np.ndarray:
    """Read an array of any shape from an archive.

    Raises:
      AbsentError: If the archive has no array of that name.
      ValueError: If it cannot be read.
    """
    with clear_errors(f"{argument} {path}"), np.load(path, allow_pickle=False) as archive:
        if name not in archive.files:
            raise absent([name], archive.files)
        array: np.ndarray = archive[name]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"its member {name} is no .npy file")
        return array

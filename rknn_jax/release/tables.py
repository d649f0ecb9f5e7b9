"""Embeddings and labels of a user, whole, and the rules for both.

The files are those of `rknn_jax.formats`, and `rknn_jax.release.shards` finds them. Labels are
class numbers or text. NaN, null, a negative number and the empty string mean that a record has no
label. Nothing is ever unpickled, because loading a pickle can run code.
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rknn_jax.formats import AbsentError, Columns, absent, clear_errors
from rknn_jax.neighbors import LARGEST, usable_rows
from rknn_jax.privacy.ledger import Digest
from rknn_jax.release.shards import FileShard, find, with_one_order

MISSING = -1
"""Class number of a record without a label."""

FOREIGN = 2**31 - 1
"""Class number of a label that no set of classes holds, such as 1.5."""

MOST_INFERRED = 10_000
"""Most classes that are inferred from class numbers.

Larger numbers are more likely to be something else, so the user has to name the classes.
"""

ROWS_AT_ONCE = 2**14
"""Rows that are read at once into a whole array."""

RAW_AT_ONCE = 2**10
"""Raw records that are read at once."""

_NOBODY = {"nan", "none", "null", "<na>", "na", "n/a", "nat"}
_WHOLE = re.compile(r"(?P<sign>[+-]?)(?P<digits>[0-9]{1,400})(\.0*)?")

MISSING_TEXT = {"nan", "none", "null", "<na>"}  # str() of missing values, in lower case


@dataclass(frozen=True)
class Classes:
    """Set of labels, in order. It is public: epsilon does not cover it.

    Attributes:
      count: Number of classes |Y|.
      names: Text labels, or the names of the class numbers. Defaults to None, for plain class
        numbers.
      source: Origin of the set: given, inferred from the private labels, or assumed if nothing is
        known. Defaults to given.
    """

    count: int
    names: tuple[str, ...] | None = None
    source: Literal["given", "inferred", "assumed"] = "given"

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(
                f"Expected at least 2 classes, got {self.count}; pass --classes with their "
                "number or names."
            )
        if self.names and (len(set(self.names)) < len(self.names) or "" in self.names):
            raise ValueError(
                "Expected distinct, non-empty class names, got --classes "
                f"{','.join(self.names)}; name every class once."
            )

    def name(self, label: int) -> str:
        """Return the name of class `label`, or its number as text."""
        return self.names[label] if self.names else str(label)


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
      names: Files, folders, patterns or URLs, as for `shards.find`.
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
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).all(axis=1)))
        raise ValueError(
            f"Expected finite embeddings in {where}, got NaN or infinity, first in row {row}; "
            "remove or repair such rows, or name the columns of numbers with --embedding."
        )
    if max(float(array.max()), -float(array.min())) > LARGEST:
        row = int(np.argmax(np.abs(array.astype(np.float64)).max(axis=1)))
        raise ValueError(
            f"Expected embeddings within {LARGEST:g} of 0 in {where}, got larger in row {row}; "
            "rescale them."
        )
    features = shards[0].columns.embedding or ()
    return array, features if len(features) == array.shape[1] else ()


def read_raw(
    names: str | Sequence[str] | Path, argument: str, columns: Columns, digest: Digest
) -> Iterator[np.ndarray]:
    """Yield public records for an encoder, in blocks.

    Args:
      names: Files, folders, patterns or URLs, as for `shards.find`.
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


def read_records(path: Path, argument: str, width: int | None = None) -> np.ndarray:
    """Read embeddings of private records, whole.

    No content of a single record raises an error, because the error would reveal that record.

    Args:
      path: File to read.
      argument: Command-line argument that named the file, for the errors.
      width: Required number of dimensions f. Defaults to that of the file.

    Returns:
      float32 `[n, f]`. A record is a row of NaN if it holds NaN, infinity, more than `LARGEST` or
      another number of values.

    Raises:
      ValueError: If the file as a whole cannot be used.
    """
    columns = Columns(reads_label=False, width=width)
    return usable_rows(_joined(_opened(path, argument, columns), f"{argument} {path}"))


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


def read_labels(path: Path, labels_path: Path | None = None) -> np.ndarray:
    """Read the labels of private records, whole.

    Args:
      path: File of the private records.
      labels_path: Separate file of the labels, which takes precedence. Defaults to None, for labels
        in `path`.

    Returns:
      int64 `[n]`, `MISSING` if a record has no label, or text `[n]`, "" if a record has no label. A
      number that is no class number, such as 1.5, is `FOREIGN`. It raises no error, because an
      error would reveal one record's label.

    Raises:
      ValueError: If the file as a whole cannot be used.
    """
    where = f"--private {path}" if labels_path is None else f"--private-labels {labels_path}"
    found = [plain_labels(labels, where) for labels in stored_labels(path, labels_path)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def stored_labels(path: Path, labels_path: Path | None = None) -> list[np.ndarray]:
    """Read the labels of private records as they are stored, in blocks, as `read_labels` does."""
    check_labels_named(str(path), labels_path is not None)
    source, argument = (
        (path, "--private") if labels_path is None else (labels_path, "--private-labels")
    )
    (shard,) = _opened(source, argument, Columns(embedding=()))
    return list(shard.labels(ROWS_AT_ONCE))


def check_labels_named(name: str, separate: bool) -> None:
    """Refuse an .npy file of private records without a file of their labels.

    Raises:
      ValueError: If there is none.
    """
    if name.endswith(".npy") and not separate:
        raise ValueError(
            f"Expected --private-labels beside --private {name}, got none; a .npy file holds one "
            "array."
        )


def read_classes(path: Path) -> Classes | None:
    """Return the classes of an .npz file's array `classes`, or None if it has none.

    The array holds text `[|Y|]` or the number of classes.
    """
    array = read_optional(path, "--private", "classes") if path.suffix == ".npz" else None
    if array is None:
        return None
    try:
        if array.ndim == 0 and array.dtype.kind in "iu":
            return Classes(int(array))
        if array.ndim == 1 and array.dtype.kind == "U":
            return Classes(len(array), tuple(map(str, array)))
    except ValueError as error:
        raise ValueError(f"'classes' in --private {path} cannot be used: {error}") from error
    raise ValueError(
        f"Expected 'classes' in --private {path} to be an integer or text [num_classes], got "
        f"shape {array.shape} of dtype {array.dtype}; "
        "save the classes' names in the order of their numbers, or leave it out."
    )


def parse_classes(text: str) -> Classes:
    """Return the classes of `--classes`: a number, or names with commas between them."""
    if text.strip().isdecimal():
        return Classes(int(text))
    names = tuple(name.strip() for name in text.split(","))
    return Classes(len(names), names)


def infer_classes(labels: np.ndarray) -> Classes:
    """Return the classes that occur among the labels.

    The result depends on private data, and epsilon does not cover it.

    Args:
      labels: Labels from `read_labels`.

    Returns:
      The distinct text labels in sorted order, or all class numbers up to the largest label.
    """
    if labels.dtype.kind == "U":
        names = tuple(str(name) for name in np.unique(labels) if name)
        unclear = [name for name in names if name.lower() in MISSING_TEXT]
        if unclear:
            raise ValueError(
                f"Expected text labels, got {unclear[0]!r} among the labels; where it says that "
                "there is no label, save '' instead, and "
                "where it is a class, name all classes with --classes."
            )
        return Classes(len(names), names, source="inferred")
    count = int(labels.max(initial=MISSING)) + 1
    if count > FOREIGN:
        raise ValueError(
            "Expected class numbers from 0 on to infer the classes from, got other numbers; "
            "number the classes 0..C-1."
        )
    if count > MOST_INFERRED:
        raise ValueError(
            f"Expected labels in 0..C-1, got a label {count - 1}; number the classes from 0, or "
            f"pass --classes {count}."
        )
    return Classes(count, source="inferred")


def label_ids(labels: np.ndarray, classes: Classes) -> np.ndarray:
    """Return class numbers.

    Args:
      labels: Labels from `read_labels`.
      classes: Set of classes of the labels.

    Returns:
      int32 `[n]`, `MISSING` if a record has no label or a label outside the classes. Such a record
      casts no vote.

    Raises:
      ValueError: If the labels are text and the classes have no names.
    """
    if labels.dtype.kind == "U":
        if classes.names is None:
            raise ValueError(
                f"Expected --classes to name the text labels, got --classes {classes.count}; "
                "pass names, as in --classes a,b,c."
            )
        number = {name: i for i, name in enumerate(classes.names)} | {"": MISSING}
        ids = np.array([number.get(str(label), MISSING) for label in labels], np.int64)
    else:
        ids = np.where(labels < classes.count, labels, MISSING)
    return ids.astype(np.int32)


def person_names(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the name of each record's person, and whether it has one.

    A name is 128 bits of BLAKE2b, so that two persons do not share one. Whole numbers are one
    person however they are written: 7, 7.0, "07". Text is compared without spaces around it and in
    Unicode's form NFKC. Missing values, the words for them, and floats that are too large to be
    exact are nobody. No single value raises an error.

    Args:
      values: Numbers, text or bytes `[b]`.
      where: Argument and name of the file, for the errors.

    Returns:
      `(names, known)`, uint64 `[b, 2]` and bool `[b]`.

    Raises:
      ValueError: If the values are of another kind or shape.
    """
    if values.ndim != 1 or values.dtype.kind not in "iufUSO":
        raise ValueError(
            f"Expected numbers or text [n] that tell whose a record is in {where}, got "
            f"{values.dtype} {values.shape}; save one value a record."
        )
    if values.dtype.kind == "f":
        exact = 2.0 ** (np.finfo(values.dtype).nmant + 1)
        values = np.where(np.abs(values.astype(np.float64)) < exact, values, np.nan)
    texts = [_person_text(value) for value in values.tolist()]
    digests = {text: blake2b(text, digest_size=16).digest() for text in set(texts)}
    joined = b"".join([digests[text] for text in texts])
    known = np.array([bool(text) for text in texts], bool)
    return np.frombuffer(joined, "<u8").reshape(-1, 2), known


def _person_text(value: Any) -> bytes:
    """Return a person's number or text in one form, which is empty for nobody."""
    try:
        text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
        plain = unicodedata.normalize("NFKC", text).strip()
    except Exception:  # an error would reveal the record, whatever it holds
        return b""
    if not plain or plain.lower() in _NOBODY:
        return b""
    number = _WHOLE.fullmatch(plain)
    if number:
        digits = number["digits"].lstrip("0") or "0"
        plain = f"-{digits}" if number["sign"] == "-" and digits != "0" else digits
    return plain.encode(errors="surrogatepass")


def given(labels: np.ndarray) -> np.ndarray:
    """Return which records have a label, usable or not, from `plain_labels`, bool `[n]`."""
    found: np.ndarray = labels != ("" if labels.dtype.kind == "U" else MISSING)
    return found


def real_rows(array: np.ndarray, where: str, width: int | None = None) -> np.ndarray:
    """Return the array if it holds rows of real numbers.

    Args:
      array: Array as read.
      where: Argument and name of its file, for the errors.
      width: Required number of dimensions f. Defaults to any.

    Raises:
      ValueError: If it does not.
    """
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"Expected embeddings of real numbers in {where}, got dtype {array.dtype}; save them "
            "as float32."
        )
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"Expected embeddings [n > 0, f > 0] in {where}, got shape {array.shape}; save one "
            "row a record."
        )
    if width is not None and array.shape[1] != width:
        raise ValueError(
            f"Expected embeddings of one width, got {array.shape[1]} dimensions in {where} and "
            f"{width} in --public; embed both with the same model."
        )
    return array


def plain_labels(labels: np.ndarray, where: str) -> np.ndarray:
    """Return labels as `read_labels` does.

    Args:
      labels: Array as read.
      where: Argument and name of its file, for the errors.

    Raises:
      ValueError: If the labels are neither class numbers nor text.
    """
    if labels.ndim != 1:
        raise ValueError(
            f"Expected labels [n] in {where}, got shape {labels.shape}; save one label a record, "
            "or name the most labels of a record with --labels-per-record."
        )
    kind = labels.dtype.kind
    if kind == "U":
        return np.char.strip(labels)
    if kind not in "biuf":
        raise ValueError(
            f"Expected labels as class numbers or text in {where}, got dtype {labels.dtype}; "
            "save labels.astype(str), or pass --labels-per-record for lists."
        )
    values = labels.astype(np.float64)
    foreign = (values > 0) & ((values != np.round(values)) | (values >= FOREIGN))
    return np.where(foreign, FOREIGN, np.where(values >= 0, values, MISSING)).astype(np.int64)


def _opened(names: str | Sequence[str] | Path, argument: str, columns: Columns) -> list[FileShard]:
    given = [os.fspath(names)] if isinstance(names, str | Path) else list(names)
    files = find(given, argument).files
    return with_one_order([FileShard(name, argument, columns) for name in files])


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
            with np.errstate(over="ignore", invalid="ignore"):  # such values are infinite then
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
            raise absent(name, archive.files)
        array: np.ndarray = archive[name]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"its member {name} is no .npy file")
        return array

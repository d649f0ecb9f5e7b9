"""Embeddings and labels of a user, read from files and checked before anything else happens.

The files are `.npz`, `.npy` or Parquet.

| format   | embeddings                             | labels                     | classes         |
|----------|----------------------------------------|----------------------------|-----------------|
| .npz     | array `embeddings` `[n, f]`            | array `labels` `[n]`       | array `classes` |
| .npy     | the array                              | the array of a second file | none            |
| .parquet | lists `embeddings`, or numeric columns | column `labels`            | none            |

Labels are class numbers or text. NaN, null, a negative number and the empty string mean that a
record has no label. Nothing is ever unpickled, because loading a pickle can run code.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

MISSING = -1
"""Class number of a record without a label."""

FOREIGN = 2**31 - 1
"""Class number of a label that no set of classes holds, such as 1.5."""

LARGEST = 1e15
"""Largest absolute value of a feature; squared distances of larger float32 features overflow."""

MOST_INFERRED = 10_000
"""Most classes that are inferred from class numbers.

Larger numbers are more likely to be something else, so the user has to name the classes.
"""

LONGEST_LABEL = 400
"""Most bytes of a text label that are read."""

NUMPY = (".npz", ".npy")
PARQUET = (".parquet", ".pq")
_MISSING_TEXT = {"nan", "none", "null", "<na>"}  # str() of missing values, in lower case


class AbsentError(ValueError):
    """Error for a file that has no array or column of a name."""


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


def read_embeddings(path: Path, argument: str) -> np.ndarray:
    """Read and check embeddings.

    Args:
      path: File to read.
      argument: Command-line argument that named the file, for the errors.

    Returns:
      float32 `[n, f]`, finite, with n and f at least 1.

    Raises:
      ValueError: If the file cannot be used.
    """
    where = f"{argument} {path}"
    array = _real_rows(_read(path, argument, "embeddings"), where)
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).all(axis=1)))
        raise ValueError(
            f"Expected finite embeddings in {where}, got NaN or infinity, first in row {row}; "
            "remove or repair such rows."
        )
    if max(float(array.max()), -float(array.min())) > LARGEST:
        row = int(np.argmax(np.abs(array.astype(np.float64)).max(axis=1)))
        raise ValueError(
            f"Expected embeddings within {LARGEST:g} of 0 in {where}, got larger in row {row}; "
            "rescale them."
        )
    return array.astype(np.float32)


def read_records(path: Path, argument: str, width: int | None = None) -> np.ndarray:
    """Read embeddings of private records.

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
    return usable_rows(_real_rows(_read(path, argument, "embeddings", width), f"{argument} {path}"))


def usable_rows(array: np.ndarray) -> np.ndarray:
    """Return rows as float32 `[n, f]`, and unusable rows as NaN.

    A row is unusable if it holds NaN, infinity or more than `LARGEST`.
    """
    # Overflow to infinity and signaling NaN are expected here: such rows become NaN below.
    with np.errstate(over="ignore", invalid="ignore"):
        rows = array.astype(np.float32)
    rows[~np.all(np.abs(rows) <= LARGEST, axis=1)] = np.nan
    return rows


def read_optional(path: Path, argument: str, name: str) -> np.ndarray | None:
    """Read one array or column as stored, or return None if the file has none of that name.

    Args:
      path: File to read.
      argument: Command-line argument that named the file, for the errors.
      name: Name of the array or column.

    Raises:
      ValueError: If the file cannot be read.
    """
    try:
        return _read(path, argument, name)
    except AbsentError:
        return None


def read_labels(path: Path, labels_path: Path | None) -> np.ndarray:
    """Read the labels of private records.

    Args:
      path: File of the private records.
      labels_path: Separate file of the labels, which takes precedence; None to read them from
        `path`.

    Returns:
      int64 `[n]`, `MISSING` if a record has no label, or text `[n]`, "" if a record has no label. A
      number that is no class number, such as 1.5, is `FOREIGN`. It raises no error, because an
      error would reveal one record's label.

    Raises:
      ValueError: If the file as a whole cannot be used.
    """
    if labels_path is None and path.suffix == ".npy":
        raise ValueError(
            f"Expected --private-labels beside --private {path}, got none; a .npy file holds one "
            "array."
        )
    source, argument = (
        (path, "--private") if labels_path is None else (labels_path, "--private-labels")
    )
    return _plain_labels(_read(source, argument, "labels"), f"{argument} {source}")


def read_classes(path: Path) -> Classes | None:
    """Return the classes of an .npz file's array `classes`, or None if it has none.

    The array holds text `[|Y|]` or the number of classes.
    """
    if path.suffix != ".npz":
        return None
    try:
        array = _read(path, "--private", "classes")
    except AbsentError:
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
        unclear = [name for name in names if name.lower() in _MISSING_TEXT]
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


def num_given(labels: np.ndarray) -> int:
    """Return the number of records that have a label, usable or not."""
    return int(np.sum(labels != ("" if labels.dtype.kind == "U" else MISSING)))


def _real_rows(array: np.ndarray, where: str) -> np.ndarray:
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
    return array


def _plain_labels(labels: np.ndarray, where: str) -> np.ndarray:
    if labels.ndim != 1:
        raise ValueError(
            f"Expected labels [n] in {where}, got shape {labels.shape}; save one label a record."
        )
    kind = labels.dtype.kind
    if kind == "U":
        return np.char.strip(labels)
    if kind not in "biuf":
        raise ValueError(
            f"Expected labels as class numbers or text in {where}, got dtype {labels.dtype}; "
            "save labels.astype(str)."
        )
    values = labels.astype(np.float64)
    foreign = (values > 0) & ((values != np.round(values)) | (values >= FOREIGN))
    return np.where(foreign, FOREIGN, np.where(values >= 0, values, MISSING)).astype(np.int64)


def _read(path: Path, argument: str, name: str, width: int | None = None) -> np.ndarray:
    """Read the array or the column `name`.

    If `width` is given, lists of another length become NaN.
    """
    if path.suffix in NUMPY:
        return _read_numpy(path, argument, name)
    if path.suffix in PARQUET:
        return _read_parquet(path, argument, name, width)
    raise ValueError(
        f"Expected {argument} to name a {', '.join(NUMPY + PARQUET)} file, got {argument} "
        f"{path}; save it in one of these."
    )


def _read_numpy(path: Path, argument: str, name: str) -> np.ndarray:
    with _clear_errors(path, argument):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray) and path.suffix == ".npy":
            return loaded
        with loaded:  # a plain array under the name of an archive fails here
            found = loaded.files
            array = loaded[name] if name in found else None
        if not isinstance(array, np.ndarray | None):
            raise ValueError(f"its member {name} is no .npy file")
    return _present(array, name, f"{argument} {path}", found)


def _read_parquet(path: Path, argument: str, name: str, width: int | None) -> np.ndarray:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            f"{argument} {path} needs pyarrow: pip install 'rknn-jax[parquet]', or save the data "
            "as .npz."
        ) from error
    with _clear_errors(path, argument), pyarrow.parquet.ParquetFile(path) as file:
        found = file.schema_arrow.names
        columns = (
            _numeric_columns(file.schema_arrow)
            if name == "embeddings" and name not in found
            else [name]
        )
        table = file.read(columns=columns)
    where = f"{argument} {path}"
    if columns != [name] and columns:
        _check_one_kind(table.schema, where)
        return np.stack([column.to_numpy() for column in table.columns], axis=1)
    if name not in table.column_names:
        return _present(None, name, where, found)
    with _clear_errors(path, argument):
        return (
            _label_column(table.column(name))
            if name == "labels"
            else _list_column(table.column(name), width)
        )


def _present(array: np.ndarray | None, name: str, where: str, found: Sequence[str]) -> np.ndarray:
    if array is None:
        instead = ", or name their file with --private-labels" if name == "labels" else ""
        raise AbsentError(
            f"Expected an array or column {name!r} in {where}, found "
            f"{', '.join(found) or 'none'}; rename or add it{instead}."
        )
    return array


def _numeric_columns(schema: Any) -> list[str]:
    """Return the names of the numeric columns, without labels and without the index of pandas."""
    from pyarrow import types

    index = (schema.pandas_metadata or {}).get("index_columns", [])
    number = [
        field.name
        for field in schema
        if types.is_floating(field.type) or types.is_integer(field.type)
    ]
    return [name for name in number if name != "labels" and name not in index]


def _check_one_kind(schema: Any, where: str) -> None:
    from pyarrow import types

    whole = [field.name for field in schema if types.is_integer(field.type)]
    if whole and len(whole) < len(schema):  # an id among the features would decide every distance
        raise ValueError(
            f"Expected embedding columns of one kind in {where}, got integers in {whole[:5]} "
            "among floats; drop columns that are no "
            "features, or store one list column 'embeddings'."
        )


def _list_column(column: Any, width: int | None) -> np.ndarray:
    from pyarrow import compute, types

    if not (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    ):
        raise ValueError(
            f"column 'embeddings' holds {column.type} where lists of numbers are expected"
        )
    held = column.type.value_type
    if not (
        types.is_floating(held)
        or types.is_integer(held)
        or types.is_decimal(held)
        or types.is_boolean(held)
    ):
        raise ValueError(
            f"column 'embeddings' holds lists of {held} where lists of numbers are expected"
        )
    if width is not None:
        fits = (
            compute.equal(compute.list_value_length(column), width)
            .fill_null(fill_value=False)
            .to_numpy()
        )
        rows = np.full((len(column), width), np.nan)
        kept = column.filter(fits).combine_chunks().flatten()
        rows[fits] = (
            compute.cast(kept, "float64", safe=False)
            .to_numpy(zero_copy_only=False)
            .reshape(-1, width)
        )
        return rows
    widths = set(compute.unique(compute.list_value_length(column)).to_pylist())
    if len(widths) > 1 or None in widths:
        raise ValueError(
            f"column 'embeddings' holds lists of lengths {sorted(widths, key=str)[:5]} where one "
            "length is expected"
        )
    width = widths.pop() if widths else 0
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, np.float32), *values]).reshape(len(column), width)


def _label_column(column: Any) -> np.ndarray:
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or types.is_large_string(column.type):
        # Compare bytes: one label that is no Unicode, or very long, must not raise an error, which
        # would reveal its record.
        texts: Sequence[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        return np.array(
            [(text or b"")[:LONGEST_LABEL].decode(errors="replace") for text in texts], dtype=str
        )
    if types.is_integer(column.type) or types.is_boolean(column.type) or types.is_null(column.type):
        column = column.cast(pa.float64(), safe=False)  # a number beyond 2^53 is no class
    values: np.ndarray = column.to_numpy()  # a null among floats becomes NaN
    return values


@contextmanager
def _clear_errors(path: Path, argument: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged file fails in many ways
        if isinstance(error, OSError) and error.strerror:
            raise ValueError(
                f"{argument} {path} could not be opened: {error.strerror}; name a file that can "
                "be read."
            ) from error
        if "pickle" in str(error):
            raise ValueError(
                f"{argument} {path} is no NumPy file or holds pickled Python objects, which are "
                "never loaded because that can run code; "
                "save numbers, and labels as class numbers or as text by labels.astype(str)."
            ) from error
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{argument} {path} could not be read ({reason}); it is damaged, incomplete or laid "
            "out otherwise, so write it anew."
        ) from error

"""Columns of pyarrow as NumPy arrays of features, raw records, labels, and persons."""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rknn_jax._internal.extras import MissingExtraError, install
from rknn_jax._internal.option_names import option
from rknn_jax.formats import FormatError, _hub
from rknn_jax.records import features as rules
from rknn_jax.records.classes import MOST_LABELS, cut


def pyarrow() -> Any:
    """Import pyarrow.

    Raises:
      MissingExtraError: If it is not installed, with the remedy.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Tables, Parquet and Arrow need pyarrow, which is not installed; "
            f"{install('parquet')}. rknn embed needs more: {install('embed')}."
        ) from error
    return pa


def plain(column: Any) -> Any:
    """Return a column without extension types, dictionaries, runs and views.

    Raises:
      FormatError: If it holds periods of pandas, whose numbers are none.
    """
    pa = pyarrow()
    types = pa.types
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if kind_of(column.type) == rules.NUMBER and types.is_primitive(column.type):
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        if column.type.extension_name == "pandas.period":
            raise FormatError(f"Expected numbers or text, got {column.type}; save them as text.")
        return plain(column.storage)
    if types.is_dictionary(column.type):  # cast and take have no kernels of views
        return plain(column.dictionary).take(column.indices)
    if types.is_run_end_encoded(column.type):
        return plain(pa.compute.run_end_decode(column))
    if types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if types.is_binary_view(column.type):
        return column.cast(pa.large_binary())
    return column


def storable(column: Any) -> Any:
    """Return a column that Parquet and all kernels take, whatever its values are.

    Polars writes views of text and bytes in Arrow files, in dictionaries and in lists too. Parquet
    counts times in milliseconds, and a time in seconds that is too large for these becomes another
    one: an error would reveal its record.

    Raises:
      FormatError: If Parquet has no such type.
    """
    types = pyarrow().types
    if types.is_dictionary(column.type):
        values = column.type.value_type
        return column if _storable(values) == values else storable(plain(column))
    if types.is_run_end_encoded(column.type):
        return storable(plain(column))
    kind = _storable(column.type)
    if not _parquet_has(kind):
        raise FormatError(
            f"Expected a column of a type that Parquet has, got {kind}; save it as text, or leave "
            f"it out of {option('keep')}."
        )
    return column if kind == column.type else column.cast(kind, safe=False)


@functools.cache
def _parquet_has(kind: Any) -> bool:
    pa = pyarrow()
    try:
        pa.parquet.ParquetWriter(pa.BufferOutputStream(), pa.schema([("any", kind)])).close()
    except pa.ArrowNotImplementedError:
        return False
    return True


def _storable(kind: Any) -> Any:
    """Return an Arrow type without views of text and bytes, and times in seconds, at any depth."""
    pa = pyarrow()
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return _rebuilt(kind, _storable)


def without_dictionaries(schema: Any) -> Any:
    """Return an Arrow schema with values in place of dictionaries of them, at any depth.

    How large the numbers of a dictionary may be depends on how many values its records have.
    """
    fields = [field.with_type(_undictionaried(field.type)) for field in schema]
    return pyarrow().schema(fields, schema.metadata)


def decoded(column: Any) -> Any:
    """Return an array with values in place of dictionaries of them, at any depth."""
    kind = _undictionaried(column.type)
    if kind == column.type:
        return column
    if pyarrow().types.is_dictionary(column.type):
        return plain(column)
    if hasattr(column, "offsets") and is_list(column.type):  # cast has no kernels of views
        return type(column).from_arrays(
            column.offsets, decoded(column.values), mask=column.is_null()
        )
    return column.cast(kind)


def _undictionaried(kind: Any) -> Any:
    """Return an Arrow type with values in place of dictionaries of them, at any depth."""
    if pyarrow().types.is_dictionary(kind):
        return _undictionaried(kind.value_type)
    return _rebuilt(kind, _undictionaried)


def _rebuilt(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a nested Arrow type with its inner types changed, or another type as it is."""
    pa = pyarrow()
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(one.name, change(one.type)) for one in kind])
    if types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(change(kind.value_type))
    if types.is_list(kind):
        return pa.list_(change(kind.value_type))
    return kind


def check_offsets(column: Any) -> None:
    """Raise ArrowInvalid if a column points beyond its data, which would end the process.

    What a value is, is no error, such as text that is not UTF-8, a date within a day, or a decimal
    of too many digits: it would tell which record has it.
    """
    pa = pyarrow()
    if isinstance(column.type, pa.BaseExtensionType):
        check_offsets(column.storage)
    elif pa.types.is_run_end_encoded(column.type):
        check_offsets(column.values)
    else:
        kind = _valueless(column.type)
        (column if kind == column.type else column.view(kind)).validate(full=True)


def _valueless(kind: Any) -> Any:
    """Return an Arrow type of the same layout, at any depth, in which every value is valid."""
    pa = pyarrow()
    types = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_string_view(kind):
        return pa.binary_view()
    if types.is_date64(kind) or types.is_time64(kind):
        return pa.int64()
    if types.is_time32(kind):
        return pa.int32()
    if types.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _valueless(kind.value_type), kind.ordered)
    return _rebuilt(kind, _valueless)


def unlabeled(labels: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return labels without those of records that are missing, and the others as they are.

    Args:
      labels: Labels `[b]`, or a mask `[b, l]`.
      missing: Which records are missing, bool `[b]`.
    """
    if not missing.any():
        return labels
    of_kind = {"U": "", "f": np.nan, "b": False}
    masked = labels.dtype.kind == "b" and labels.ndim == 1  # a mask has no class then
    as_objects = masked or labels.dtype.kind not in of_kind
    found = labels.astype(object) if as_objects else labels.copy()
    found[missing] = None if as_objects else of_kind[labels.dtype.kind]
    return found


def raw_column(column: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a column of text or bytes as objects `[b]`, or one of tensors or lists as an array.

    Also returns which records are missing in whole or in part, bool `[b]`. A missing text is None,
    and a missing number 0: one record must not change the dtype of the others.

    Raises:
      FormatError: If the column holds something else.
    """
    pa = pyarrow()
    types = pa.types
    shape = column.type.shape if isinstance(column.type, pa.FixedShapeTensorType) else None
    column = plain(column)
    if types.is_fixed_size_list(column.type):
        values, missing = _fixed_lists(column)
        return values if shape is None else values.reshape(len(column), *shape), missing
    if _hub.is_image(column.type):
        column = images(column)
    missing = np.array(column.is_null().to_numpy(zero_copy_only=False), bool)
    if types.is_string(column.type) or types.is_large_string(column.type):
        return text_column(column.cast(pa.large_binary())), missing
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return objects(column.to_pylist()), missing
    raise FormatError(
        f"Expected text, bytes, tensors or lists of one fixed length in column {name!r}, got "
        f"{column.type}; save it so."
    )


def images(column: Any) -> Any:
    """Return the bytes of a column of images of `datasets`. An image of a path alone is missing."""
    pa = pyarrow()
    return pa.compute.struct_field(column, _hub.IMAGE[0]).cast(pa.large_binary())


def _fixed_lists(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return lists of one length in the dtype of the schema, and which have missing values."""
    pa = pyarrow()
    width = column.type.list_size
    if kind_of(column.type.value_type) not in rules.NUMBERS:
        raise FormatError(f"Expected lists of numbers, got {column.type}; save them so.")
    if pa.types.is_boolean(column.type.value_type):
        column = column.cast(pa.list_(pa.uint8(), width))
    dtype = column.type.value_type.to_pandas_dtype()
    there = np.array(column.is_valid().to_numpy(zero_copy_only=False), bool)
    values = column.filter(column.is_valid()).flatten()
    holes = np.array(values.is_null().to_numpy(zero_copy_only=False), bool).reshape(-1, width)
    rows = np.zeros((len(column), width), dtype)
    rows[there] = values.fill_null(0).to_numpy(zero_copy_only=False).reshape(-1, width)
    missing = ~there
    missing[there] = holes.any(axis=1)
    return rows, missing


def text_column(column: Any) -> np.ndarray:
    """Return a column of bytes as text, object `[b]`; what is no Unicode is replaced."""
    texts: Sequence[bytes | None] = column.to_pylist()
    return objects([None if text is None else text.decode(errors="replace") for text in texts])


def objects(values: Sequence[Any]) -> np.ndarray:
    """Return values as an object array `[b]`, whatever they are."""
    return np.fromiter(values, object, len(values))


def list_column(column: Any, name: str, width: int | None) -> np.ndarray:
    """Return a column of lists as `[b, f]`.

    If `width` is given, lists of another length become NaN.

    Raises:
      FormatError: If the column holds no lists of numbers, or lists of several lengths.
    """
    from pyarrow import compute

    if not is_list(column.type) or kind_of(column.type.value_type) not in rules.NUMBERS:
        raise FormatError(
            f"Expected lists of numbers in column {name!r}, got {column.type}; save the embeddings "
            "as lists of float32, also if they became text, or name other columns with "
            f"{option('embedding')}."
        )
    if pyarrow().types.is_fixed_size_list(column.type):
        width = column.type.list_size  # known by type, so that another one is an error
    lengths = compute.list_value_length(column)
    found = set(compute.unique(lengths).to_pylist())
    if width is None and (len(found) > 1 or None in found):
        raise FormatError(
            f"Expected lists of one length in column {name!r}, got lengths "
            f"{sorted(found, key=str)[:5]}; embed all with the same model."
        )
    if width is None or found == {width}:
        return _flat(column).reshape(len(column), width or (found.pop() if found else 0))
    fits = compute.equal(lengths, width).fill_null(fill_value=False)
    rows = np.full((len(column), width), np.nan)
    rows[fits.to_numpy(zero_copy_only=False)] = _flat(column.filter(fits)).reshape(-1, width)
    return rows


def lengths(column: Any) -> collections.Counter[int]:
    """Return how many lists of a column have each length; none if their type has one."""
    kind = plain(column).type
    if not is_list(kind) or pyarrow().types.is_fixed_size_list(kind):
        return collections.Counter()
    found = pyarrow().compute.value_counts(pyarrow().compute.list_value_length(plain(column)))
    counts = {pair["values"]: pair["counts"] for pair in found.to_pylist()}
    return collections.Counter({size: count for size, count in counts.items() if size})


def label_column(column: Any, names: tuple[str, ...] = ()) -> np.ndarray:
    """Return a column of labels as text or numbers `[b]`, as lists `[b]`, or as a mask `[b, l]`.

    Text is compared by its bytes. One label that is no Unicode, or very long, must not raise an
    error, because the error would reveal its record.

    Args:
      column: Arrow column.
      names: Names of the class numbers, if the schema declares them. Defaults to none.
    """
    pa = pyarrow()
    types = pa.types
    column = plain(column)
    if is_list(column.type):
        return _label_lists(column, names)
    if names and kind_of(column.type) in rules.NUMBERS and not types.is_boolean(column.type):
        return _hub.named(label_column(column), names)
    if types.is_string(column.type) or types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        texts: Sequence[bytes | None] = column.to_pylist()
        return np.array([cut(text or b"") for text in texts], dtype=str)
    if kind_of(column.type) not in rules.NUMBERS:
        raise FormatError(f"Expected labels as numbers, text or lists, got {column.type}; save so.")
    if types.is_null(column.type):
        return np.full(len(column), np.nan)
    if types.is_floating(column.type):
        return numbers(column, "")
    if types.is_decimal(column.type) or column.null_count:
        # Not as floats: joined to other batches, these would round the labels there too.
        return objects(column.to_pylist())
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _label_lists(column: Any, names: tuple[str, ...] = ()) -> np.ndarray:
    """Return lists of labels as objects `[b]`, or as a mask if they are of bool.

    A list without a label holds a missing one, so that each record shows whether labels are text.
    Of a long list, one label more than `MOST_LABELS` is returned, which tells that there are more.

    Raises:
      FormatError: If lists of bool have no common length by their type, or hold something else.
    """
    from pyarrow import compute, types

    kind = column.type
    if types.is_boolean(kind.value_type) and types.is_fixed_size_list(kind):
        mask = np.zeros((len(column), kind.list_size), bool)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        said = column.flatten().fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        mask[there] = said.reshape(-1, kind.list_size)
        return mask
    labels = np.zeros(0, bool)
    if not (types.is_boolean(kind.value_type) or types.is_nested(kind.value_type)):
        labels = label_column(column.flatten(), names)
    if labels.dtype.kind == "b":
        raise FormatError(
            f"Expected lists of names or class numbers, or of bool of one fixed size, as labels, "
            f"got {kind}; save them so."
        )
    lengths = compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    nothing = [""] if labels.dtype.kind == "U" else [np.nan]
    found = np.empty(len(ends), object)
    for row, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
        found[row] = labels[start : min(end, start + MOST_LABELS + 1)].tolist() or nothing
    return found


def person_column(column: Any, name: str) -> np.ndarray:
    """Return a column that tells whose a record is, float64 or object `[b]` of bytes and None.

    Numbers and text stay whole, because two persons must not become one. A UUID is its text, as in
    CSV, because one person must not become two.

    Raises:
      FormatError: If the column holds neither numbers nor text.
    """
    pa = pyarrow()
    types = pa.types
    if isinstance(column.type, pa.UuidType):
        return objects(
            [None if value is None else str(value).encode() for value in column.to_pylist()]
        )
    column = plain(column)
    if types.is_floating(column.type):
        return numbers(column, name)
    if types.is_integer(column.type):
        column = column.cast(pa.large_string())
    if types.is_string(column.type) or types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    if (
        types.is_binary(column.type)
        or types.is_large_binary(column.type)
        or types.is_fixed_size_binary(column.type)
    ):
        return objects(column.to_pylist())
    raise FormatError(
        f"Expected numbers or text in column {name!r} of persons, got {column.type}; save it so."
    )


def _flat(column: Any) -> np.ndarray:
    """Return the values of all lists, one after another."""
    return feature_column(plain(column.flatten()), "")


def feature_column(column: Any, name: str) -> np.ndarray:
    """Return a plain column of numbers as features; see `numbers`.

    Whole numbers of 64 bits become float64 whether or not one of them is missing, because they are
    rounded on the way.
    """
    pa = pyarrow()
    if pa.types.is_integer(column.type) and column.type.bit_width == 64:
        column = column.cast(pa.float64(), safe=False)
    return numbers(column, name)


def numbers(column: Any, name: str) -> np.ndarray:
    """Return a plain column of numbers, bools or nulls, with NaN for a null.

    Raises:
      FormatError: If the column holds something else.
    """
    pa = pyarrow()
    kind = column.type
    if kind_of(kind) not in rules.NUMBERS:
        raise FormatError(
            f"Expected numbers in column {name!r}, got {kind}; name columns of numbers with "
            f"{option('embedding')}."
        )
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_decimal(kind) or pa.types.is_null(kind):
        column = column.cast(pa.float64(), safe=False)
    values: np.ndarray = np.asarray(column.to_numpy(zero_copy_only=False))
    return values


def is_list(kind: Any) -> bool:
    """Return whether a type is one of lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


@functools.lru_cache(maxsize=256)
def kind_of(kind: Any) -> str:
    """Return the kind of a type, for `records.features.choose`."""
    pa = pyarrow()
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind_of(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return kind_of(kind.value_type)
    if types.is_integer(kind):
        return rules.WHOLE
    if (
        types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    ):
        return rules.NUMBER
    return str(kind)

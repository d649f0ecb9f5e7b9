"""Features that `datasets` of Hugging Face declares in the schema of its files.

`save_to_disk` writes Arrow streams, and the hub holds Parquet files such as
`data/train-00000-of-00002.parquet`. In both, the metadata of the schema hold the features as JSON
under `huggingface`. A column of `ClassLabel` holds integers, and its feature their names. A column
of images is a struct of the file's bytes and its path.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rknn_jax.formats import FormatError
from rknn_jax.records.labels import NUMBERED, named_numbers

KEY = b"huggingface"
"""Key of the features among the metadata of a schema."""

IMAGE = ("bytes", "path")
"""Fields of a column of images. A path is never opened."""

MOST_NAMES = 100_000
"""Most names of class numbers that a file may declare."""


def class_names(schema: Any, column: str) -> tuple[str, ...]:
    """Return the names of the class numbers in a column of `ClassLabel`, or of lists of them.

    Args:
      schema: Arrow schema.
      column: Name of the column.

    Returns:
      The names in the order of their numbers; none if the schema declares none.

    Raises:
      FormatError: If nobody can tell the numbers apart by their names.
    """
    return _names((schema.metadata or {}).get(KEY, b""), column)


@functools.lru_cache(maxsize=64)
def _names(metadata: bytes, column: str) -> tuple[str, ...]:
    try:
        feature = json.loads(metadata)["info"]["features"][column]
        while "names" not in feature:  # a list of class labels
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        names = feature["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
    return () if feature.get("_type") != "ClassLabel" or names is None else distinct(names)


def distinct(names: Any) -> tuple[str, ...]:
    """Return the names that a file declares of class numbers, if they tell these apart.

    Raises:
      FormatError: If they are no list of text, numbers share a name, or there are too many.
    """
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise FormatError(
            f"Expected the names of class numbers as a list of text, got {str(names)[:80]}; name "
            "them so, or save the labels as text."
        )
    if len({*filter(None, names)}) < len([*filter(None, names)]) or len(names) > MOST_NAMES:
        raise FormatError(
            f"Expected up to {MOST_NAMES:,} names of class numbers, each of one number, got "
            f"{len(names):,} of which {len({*names}):,} differ; give each class a name of its own, "
            "or save the labels as text."
        )
    return tuple(names)


def metadata_of(columns: Mapping[str, tuple[str, ...]]) -> dict[bytes, bytes]:
    """Return metadata of a schema that declare the names of class numbers, by their columns."""
    features = {
        column: {"names": list(names), "_type": "ClassLabel"}
        for column, names in columns.items()
        if names
    }
    return {KEY: json.dumps({"info": {"features": features}}).encode()} if features else {}


def named(numbers: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return class numbers with their names, as `labels.encode` reads them.

    Args:
      numbers: Class numbers of any type of numbers, or objects with None, `[b]`.
      names: Names of the class numbers.

    Returns:
      Text `[b]`: "" for a missing or negative number, and no name for one beyond the names.
    """
    if numbers.dtype.kind == "O":
        numbers = np.array([np.nan if number is None else number for number in numbers], float)
    with np.errstate(invalid="ignore"):
        place = np.floor(np.where(np.isfinite(numbers), numbers, -1)).astype(np.int64)
    texts = np.array(["", *named_numbers(names)])
    found: np.ndarray = texts[np.clip(place + 1, 0, len(names))]
    beyond = np.flatnonzero((place >= len(names)) | ((place != numbers) & (numbers > 0)))
    if len(beyond):
        found = found.astype(object)
        found[beyond] = [f"{NUMBERED}{number}" for number in numbers[beyond].tolist()]
        found = found.astype(str)
    return found


def is_image(kind: Any) -> bool:
    """Return whether a type is that of images, a struct of bytes and perhaps a path."""
    from pyarrow import types

    if not types.is_struct(kind) or not kind.num_fields:
        return False
    fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    held = fields.get(IMAGE[0])
    return (
        set(fields) <= {*IMAGE}
        and held is not None
        and (types.is_binary(held) or types.is_large_binary(held) or types.is_null(held))
    )

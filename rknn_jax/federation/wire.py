"""Questions and answers as bytes: numbers, and names of classes that the receiver has itself.

Nothing is unpickled, and no code travels.

A question is JSON followed by arrays. A record's message has a fixed length, set by the mechanism:
the arrays of a message, each cut to the bytes that its bits need. That is 8 and 1 bytes for a hash
key and a bucket, and ceil(d/8) bytes for d packed bits. A client's answer is its records' messages
side by side.
"""

import dataclasses
import functools
import importlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import labelers
from rknn_jax.labelers import _simulation_only
from rknn_jax.mechanisms.local import LocalRandomizer

PACKAGES = (
    "rknn_jax.representations.",
    "rknn_jax.students.",
    "rknn_jax.discriminant:",
    "rknn_jax.federation.rounds:",
    "rknn_jax.federation.check_rounds:",
)
"""Places of other dataclasses than labelers that may be named in a question.

They hold configuration and numbers, of any shapes that the sender chooses. Their methods are the
receiver's own. But a representation treats each record alone only for the shapes that `fit` makes,
so `client.Client` passes one record at a time.
"""

LABELERS = f"{labelers.__name__}."
"""Place of the labelers. Those that a federation can run may be named in a question."""

FORMER = {"rknn_jax.labelers.rknn:ReverseKNN": "rknn_jax.labelers.rknn:Config"}
"""Names under which classes travel, if they had another name when the format was fixed."""

PLAIN = (bool, int, float, str)
"""Types of a labeler's settings in a question."""

DTYPES = ("bool", "uint8", "int32", "int64", "uint32", "float32", "float64")


def pack(value: Any) -> bytes:
    """Return labelers, dataclasses of `PACKAGES`, containers, arrays and plain values as bytes.

    Containers are dicts, lists and tuples. A field whose metadata has `travels=False` is left at
    its default.

    Raises:
      TypeError: If the value is of another type.
    """
    arrays: list[np.ndarray] = []
    tree = json.dumps(_flat(value, arrays)).encode()
    kinds = json.dumps([[str(array.dtype), array.shape] for array in arrays]).encode()
    sizes = b"".join(len(part).to_bytes(8, "little") for part in (tree, kinds))
    return b"".join(
        [sizes, tree, kinds, *(np.ascontiguousarray(array).tobytes() for array in arrays)]
    )


def unpack(data: bytes) -> Any:
    """Undo `pack`. Arrays come back as NumPy arrays.

    Raises:
      ValueError: If the bytes are no packed value, or name a class that this installation does not
        have or that may not travel.
    """
    try:
        ends = np.cumsum([16, *np.frombuffer(data[:16], "<u8").astype(object)])
        tree = json.loads(data[16 : ends[1]])
        kinds = json.loads(data[ends[1] : ends[2]])
        arrays = []
        at = int(ends[2])
        for dtype, shape in kinds:
            if dtype not in DTYPES or any(not isinstance(size, int) or size < 0 for size in shape):
                raise ValueError(f"an array of {dtype} {shape}")
            array = np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape)
            arrays.append(array)
            at += array.nbytes
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes too many")
        return _built(tree, arrays)
    except Exception as error:  # a labeler may refuse its settings by an error of any kind
        raise ValueError(
            f"Expected a question as rknn_jax.federation.wire packs it, got {len(data)} bytes "
            f"that are none: {error}"
        ) from error


def files_of(value: Any) -> list[tuple[str, str]]:
    """Return the paths of the files that an unpacked value reads, each with its SHA-256.

    A field of a dataclass holds such a path if its metadata has `file`, the name of the field that
    holds the SHA-256.
    """
    found: list[tuple[str, str]] = []
    inner: Iterable[Any] = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, one.name) for one in dataclasses.fields(value)]
        for one in dataclasses.fields(value):
            if "file" in one.metadata:
                found.append((getattr(value, one.name), getattr(value, one.metadata["file"])))
    elif isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
    for item in inner:
        found += files_of(item)
    return found


def message_bytes(mechanism: LocalRandomizer) -> int:
    """Return the length of one record's message, in bytes."""
    return sum(_widths(mechanism)[0])


def encode(mechanism: LocalRandomizer, messages: Any) -> bytes:
    """Return stacked messages of records as bytes."""
    widths = _widths(mechanism)[0]
    (_, leaves) = _leaves(messages)
    rows = [
        np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8)[:, :width]
        for leaf, width in zip(leaves, widths, strict=True)
    ]
    return np.concatenate(rows, axis=1).tobytes()


def decode(mechanism: LocalRandomizer, data: bytes) -> Any:
    """Undo `encode`. `LocalRandomizer.valid` checks whether the messages are in the alphabet.

    Raises:
      ValueError: If the length is no multiple of a message's length.
    """
    widths, one = _widths(mechanism)
    if len(data) % sum(widths):
        raise ValueError(
            f"Expected messages of {sum(widths)} bytes, got {len(data)} bytes; every client must "
            f"use {mechanism}."
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, sum(widths))
    structure, leaves = _leaves(one)
    found = []
    at = 0
    for leaf, width in zip(leaves, widths, strict=True):
        whole = np.zeros((len(rows), leaf.size * leaf.dtype.itemsize), np.uint8)
        whole[:, :width] = rows[:, at : at + width]
        found.append(whole.view(leaf.dtype).reshape(len(rows), *leaf.shape))
        at += width
    return jax.tree.unflatten(structure, found)


@functools.cache
def _widths(mechanism: LocalRandomizer) -> tuple[list[int], Any]:
    """Return the bytes of each array of a message, and a message's shapes.

    The last array has the mechanism's bits, and the others are whole.
    """
    cells = jax.ShapeDtypeStruct((mechanism.votes_per_record,), jnp.int32)
    one = jax.eval_shape(mechanism.randomize, jax.random.key(0), cells)
    leaves = jax.tree.leaves(one)
    return [
        *(leaf.size * leaf.dtype.itemsize for leaf in leaves[:-1]),
        -(-mechanism.message_bits // 8),
    ], one


def _leaves(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, leaves


def _flat(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray | jax.Array | np.generic):
        arrays.append(np.asarray(value))
        if str(arrays[-1].dtype) not in DTYPES:
            raise TypeError(f"Expected arrays of {DTYPES}, got {arrays[-1].dtype}.")
        return {"array": len(arrays) - 1}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        name = FORMER.get(name, name)
        try:
            known = _class(name)
        except (ValueError, AttributeError, ImportError):
            known = None
        if known is not type(value):
            raise TypeError(
                f"Expected labelers of {LABELERS[:-1]} that a federation can run, or dataclasses "
                f"of {PACKAGES}, got {name}; bring embeddings instead of images."
            )
        return {
            "class": name,
            "fields": {
                field: _flat(getattr(value, field), arrays) for field in _sent_fields(value)
            },
        }
    if isinstance(value, dict):
        return {"dict": {key: _flat(item, arrays) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {
            "list" if isinstance(value, list) else "tuple": [_flat(item, arrays) for item in value]
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"Expected arrays, plain values, labelers and dataclasses of {PACKAGES}, got {type(value)}."
    )


def _built(tree: Any, arrays: list[np.ndarray]) -> Any:
    match tree:
        case {"array": number}:
            return arrays[number]
        case {"class": name, "fields": fields}:
            kind = _class(name)
            values = {field: _built(item, arrays) for field, item in fields.items()}
            if issubclass(kind, labelers.Labeler):
                check_settings(kind, values)
            return kind(**values)
        case {"dict": items}:
            return {key: _built(item, arrays) for key, item in items.items()}
        case {"list": items}:
            return [_built(item, arrays) for item in items]
        case {"tuple": items}:
            return tuple(_built(item, arrays) for item in items)
        case dict() | list():
            raise ValueError(f"{str(tree)[:80]}")
    if type(tree) is int and not -(2**63) <= tree < 2**64:  # arithmetic of floats fails on more
        raise ValueError(f"an integer of {tree.bit_length()} bits")
    return tree


def check_settings(kind: type[labelers.Labeler[Any]], values: Mapping[str, Any]) -> None:
    """Check that values are plain settings of a labeler, of the types of its defaults.

    Raises:
      ValueError: If they are not, or if one that does not travel is not its default.
    """
    for setting in dataclasses.fields(kind):
        default = setting.default
        if type(default) not in PLAIN:
            raise ValueError(
                f"Expected a default of a plain type for {setting.name} of "
                f"labeler={kind.__name__}, got {default!r}; a setting that travels is one of "
                f"{', '.join(one.__name__ for one in PLAIN)}."
            )
        value = values.get(setting.name, default)
        if type(value) is not type(default) and not (type(default) is float and type(value) is int):
            raise ValueError(
                f"Expected {setting.name} of type {type(default).__name__}, got "
                f"{setting.name}={value!r}."
            )
        if value != default and not setting.metadata.get("travels", True):
            raise ValueError(
                f"Expected {setting.name}={default} of the labeler in a round, got "
                f"{setting.name}={value}; a round has a unit of its own."
            )


def _class(name: str) -> type[Any]:
    """Return the class that may be named so, of this installation."""
    today = {former: new for new, former in FORMER.items()}
    module, _, qualname = today.get(name, name).partition(":")
    file = module.removeprefix(LABELERS)
    if module.startswith(LABELERS) and file in labelers.names():
        found: Any = labelers.named(file)
        able = not _simulation_only.hindrance(found)
    else:
        able = name.startswith(PACKAGES)
        found = getattr(importlib.import_module(module), qualname) if able else None
    if not (
        able
        and isinstance(found, type)
        and dataclasses.is_dataclass(found)
        and (found.__module__, found.__qualname__) == (module, qualname)
    ):
        raise ValueError(f"the class {name}")
    return found


def _sent_fields(value: Any) -> list[str]:
    """Return the fields that travel. A later one, left at its default, changes no bytes."""
    later = {one.name for one in dataclasses.fields(value) if one.metadata.get("later")}
    usual = {one.name: one.default for one in dataclasses.fields(value)}
    return [
        name
        for name in _fields(type(value))
        if name not in later or getattr(value, name) != usual[name]
    ]


def _fields(cls: type[Any]) -> list[str]:
    network = any(kind.__module__.startswith("flax.") for kind in cls.__mro__)
    own = ("parent", "name") if network else ()  # set by Flax for a network inside another
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.name not in own and field.metadata.get("travels", True)
    ]

"""Fingerprint of a private data set: which data a ledger may be charged for.

A fingerprint belongs to the bits of the data, and a budget to people. `Ledger.adopt` tells
a ledger of other bits of the same people.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rknn_jax._internal.private_warnings import warn_owner

BLOCK = 2**20  # array elements hashed at once
_CANONICAL = {"f": "<f8", "i": "<i8", "u": "<i8", "b": "<i8"}  # by NumPy's kind of dtype


def fingerprint(*arrays: ArrayLike) -> str:
    """Return SHA-256 over the shapes and values of a private data set's arrays.

    The arrays are, for example, embeddings and labels. Floats are read as float64 and integers as
    int64. The same records in float32 and float64, or int32 and int64, are the same data set.

    **Protection.** The fingerprint keeps one budget per data set against mistakes: the wrong file,
    the wrong ledger, another split.

    **Limits.** One more record, another order or another encoder makes a new fingerprint, though
    the people are the same. Charge all of them to one ledger, which `Ledger.adopt` lets know of
    them. The fingerprint depends on the private data without noise.
    Anyone who guesses all the records can confirm the guess, so keep the fingerprint with the
    ledger and do not publish it.

    Raises:
      ValueError: If there is no array, or one holds neither numbers nor booleans.
    """
    if not arrays:
        raise ValueError(
            "Expected the arrays of a data set, got none; pass the private embeddings and labels."
        )
    digest = Digest()
    for array in map(np.asarray, arrays):
        if array.dtype.kind not in _CANONICAL:
            raise ValueError(
                f"Expected arrays of numbers or booleans, got dtype {array.dtype}; encode the "
                "records first."
            )
        digest.begin(array.dtype.kind, array.shape)
        digest.update(array)
    return digest.text()


class Digest:
    """`fingerprint` of arrays that are read in blocks."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._canonical = ""

    def begin(self, kind: str, shape: tuple[int, ...]) -> None:
        """Begin an array of NumPy's kind of dtype and of a shape.

        Text, bytes and other objects are items, each with its length. Images `[n, h, w]` are those
        of one channel, `[n, h, w, 1]`.
        """
        self._canonical = _CANONICAL.get(kind, "items")
        if len(shape) == 3:
            shape = (*shape, 1)
        self._hash.update(f"{self._canonical}{shape}".encode())

    def update(self, block: np.ndarray) -> None:
        """Add the next values of the array, in order."""
        flat = block.reshape(-1)
        if self._canonical == "items":
            self._update_items(flat)
            return
        for start in range(0, flat.size, BLOCK):
            # Adding 0 turns minus zero into zero.
            values = flat[start : start + BLOCK].astype(self._canonical) + 0
            self._hash.update(values.data)

    def _update_items(self, items: np.ndarray) -> None:
        for item in items.tolist():
            value: Any = "" if item is None else item  # a missing text is an empty field in CSV
            as_bytes = isinstance(value, bytes | bytearray | memoryview)  # its text is its place
            content = bytes(value) if as_bytes else str(value).encode(errors="replace")
            self._hash.update(f"{type(value).__name__} {len(content)} ".encode())
            self._hash.update(content)

    def text(self) -> str:
        """Return the fingerprint of all arrays so far."""
        return f"sha256:{self._hash.hexdigest()}"


def combined(fingerprints: Sequence[str]) -> str:
    """Return the fingerprint of a data set in shards, whatever their order and their names.

    The fingerprint of one shard is that of its array.
    """
    if len(fingerprints) == 1:
        return fingerprints[0]
    return f"sha256:{hashlib.sha256(repr(sorted(fingerprints)).encode()).hexdigest()}"


def warn_of_copies(shards: Sequence[str]) -> None:
    """Warn the owner of private files of which two hold the same records.

    No error: whether there is a release must not depend on one private record.

    Args:
      shards: Fingerprint of each file.
    """
    if len({*shards}) < len(shards):
        warn_owner(
            "Two private files hold the same records, and each record counts. If one file is a "
            "copy, the people in it add twice what epsilon covers; leave the copy out. Tell nobody "
            "of this warning.",
            stacklevel=3,
        )

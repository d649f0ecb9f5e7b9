"""Bytes of the messages of a secure sum: fields of fixed size, little-endian, in one order.

Every function that decodes refuses whatever the function that encodes does not make.
"""

import itertools
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from rknn_jax.federation.secure_sum_keys import (
    KEY_BYTES,
    LARGEST_KEY,
    MOST_CLIENTS,
    PRIME,
    SEALED_BYTES,
    SHARE_BYTES,
    Keys,
    SumRefusedError,
    agree,
)


def encode_invitation(client: int, threshold: int, clients: int) -> bytes:
    """Return the server's bytes for step 0.

    Layout: client's number, threshold, number of invited clients; each uint64.
    """
    return struct.pack("<QQQ", client, threshold, clients)


def decode_invitation(data: bytes) -> tuple[int, int, int]:
    """Undo `encode_invitation`.

    Raises:
      SumRefusedError: Unless 2 <= threshold <= clients <= `MOST_CLIENTS`.
    """
    if len(data) != 24:
        raise SumRefusedError(f"Expected an invitation of 24 bytes, got {len(data)}.")
    client, threshold, clients = struct.unpack("<QQQ", data)
    if not 2 <= threshold <= clients <= MOST_CLIENTS:
        raise SumRefusedError(
            f"Expected 2 <= threshold <= clients <= {MOST_CLIENTS}, got threshold={threshold} of "
            f"{clients} clients."
        )
    return client, threshold, clients


def encode_keys(keys: Keys) -> bytes:
    """Return a client's bytes for step 0.

    Layout: channel key, mask key, commitment; 32 bytes each.
    """
    return b"".join(keys)


def decode_keys(data: bytes) -> Keys:
    """Undo `encode_keys`.

    Raises:
      SumRefusedError: If the length is wrong, if the keys are equal or of low order, or if a key is
        not in canonical form.
    """
    keys = Keys(*_rows(data, KEY_BYTES, 3))
    _check_public(keys[:2])
    return keys


def _check_public(keys: Sequence[bytes]) -> None:
    if len(set(keys)) < len(keys):
        raise SumRefusedError("Expected distinct public keys, got one twice.")
    for key in keys:
        if int.from_bytes(key, "little") > LARGEST_KEY:
            raise SumRefusedError("Expected X25519 public keys in canonical form, got another.")
        agree(bytes(KEY_BYTES), key)  # clamped, any private key finds those of low order


def encode_key_list(keys: Mapping[int, Keys]) -> bytes:
    """Return the server's bytes for step 1, the same for all clients.

    Layout: for each client, its number as uint64, its channel key, its mask key; 72 bytes.
    """
    return b"".join(
        struct.pack("<Q", number) + keys[number].channel + keys[number].mask
        for number in sorted(keys)
    )


def decode_key_list(data: bytes) -> dict[int, tuple[bytes, bytes]]:
    """Undo `encode_key_list`.

    Raises:
      SumRefusedError: If the length is wrong, if the numbers do not ascend, or if a key is listed
        twice, of low order, or not in canonical form.
    """
    rows = [struct.unpack("<Q32s32s", row) for row in _rows(data, 8 + 2 * KEY_BYTES)]
    _check_ascending([row[0] for row in rows])
    _check_public([key for row in rows for key in row[1:]])
    return {number: (channel, mask) for number, channel, mask in rows}


def encode_sealed(sealed: Sequence[bytes]) -> bytes:
    """Return a client's bytes for step 1.

    Layout: for each other client of the key list, 82 bytes: ChaCha20-Poly1305 of two shares, of the
    mask key and of the seed (`encode_shares`), then the tag. The nonce is zero, because each key is
    used once. The associated data are the key's info (`key_info`).
    """
    return b"".join(sealed)


def decode_sealed(data: bytes, count: int) -> list[bytes]:
    """Undo `encode_sealed` for so many other clients; raise SumRefusedError if it does not fit."""
    return _rows(data, SEALED_BYTES, count)


def encode_dealt(sealed: Mapping[int, bytes]) -> bytes:
    """Return the server's bytes for step 2.

    Layout: for each other client that dealt shares, its number as uint64 and the 82 bytes that it
    sealed for this client.
    """
    return b"".join(struct.pack("<Q", number) + sealed[number] for number in sorted(sealed))


def decode_dealt(data: bytes) -> dict[int, bytes]:
    """Undo `encode_dealt`.

    Raises:
      SumRefusedError: If the length is wrong, or if the numbers do not ascend.
    """
    rows = _rows(data, 8 + SEALED_BYTES)
    numbers = [int.from_bytes(row[:8], "little") for row in rows]
    _check_ascending(numbers)
    return {number: row[8:] for number, row in zip(numbers, rows, strict=True)}


def encode_vector(masked: np.ndarray) -> bytes:
    """Return a client's bytes for step 2.

    Layout: the masked numbers, uint64 `[length]`.
    """
    return masked.astype("<u8").tobytes()


def decode_vector(data: bytes, length: int) -> np.ndarray:
    """Undo `encode_vector`; raise SumRefusedError if the length is wrong."""
    if len(data) != 8 * length:
        raise SumRefusedError(f"Expected {8 * length} bytes of a vector, got {len(data)}.")
    return np.frombuffer(data, "<u8").astype(np.uint64)


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Return the server's bytes for step 3, the same for all clients.

    Layout: the numbers of the clients whose vectors are in the sum, each uint64.
    """
    return struct.pack(f"<{len(numbers)}Q", *sorted(numbers))


def decode_numbers(data: bytes) -> list[int]:
    """Undo `encode_numbers`.

    Raises:
      SumRefusedError: If the length is wrong, or if the numbers do not ascend.
    """
    numbers = [int.from_bytes(row, "little") for row in _rows(data, 8)]
    _check_ascending(numbers)
    return numbers


def encode_shares(shares: Sequence[int]) -> bytes:
    """Return numbers of the field as 33 bytes each; in step 3 these are a client's bytes.

    Layout in step 3: for each client that dealt shares, this one included, the share of its seed if
    it is in the sum, else of its mask key.
    """
    return b"".join(share.to_bytes(SHARE_BYTES, "little") for share in shares)


def decode_shares(data: bytes) -> list[int]:
    """Undo `encode_shares`; raise SumRefusedError unless all are numbers of the field."""
    shares = [int.from_bytes(row, "little") for row in _rows(data, SHARE_BYTES)]
    if any(share >= PRIME for share in shares):
        raise SumRefusedError("Expected shares below the prime 2^256 + 297, got a larger one.")
    return shares


def _rows(data: bytes, size: int, count: int | None = None) -> list[bytes]:
    """Return rows of equal size; raise SumRefusedError if the bytes are not so many rows."""
    if len(data) % size or (count is not None and len(data) != size * count):
        expected = f"rows of {size} bytes" if count is None else f"{size * count} bytes"
        raise SumRefusedError(f"Expected {expected}, got {len(data)} bytes.")
    return [data[start : start + size] for start in range(0, len(data), size)]


def _check_ascending(numbers: Sequence[int]) -> None:
    if any(first >= second for first, second in itertools.pairwise(numbers)):
        raise SumRefusedError("Expected ascending client numbers, each once, got others.")

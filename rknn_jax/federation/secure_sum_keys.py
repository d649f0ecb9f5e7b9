"""Keys, masks and secret shares of a secure sum.

Reference: Shamir, "How to Share a Secret", 1979; `rknn_jax.federation.secure_sum` has the protocol.
"""

import functools
import hashlib
import math
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

STEPS = 4
"""Number of steps: keys, shares, masked vectors, opening."""

MOST_CLIENTS = 2000
"""Largest number of clients in a sum. Each deals as many shares."""

PRIME = 2**256 + 297
"""Order of the field in which secrets of 32 bytes are shared."""

NAME = b"rknn secure sum 1"
KEY_BYTES = 32
SHARE_BYTES = 33
SEALED_BYTES = 2 * SHARE_BYTES + 16
LARGEST_KEY = 2**255 - 20  # the largest X25519 key in canonical form


class SumRefusedError(ValueError):
    """A step that the client's owner has not agreed to, or that is malformed."""


class Keys(NamedTuple):
    """Announcement of a client in step 0.

    Attributes:
      channel: X25519 public key that shares are sealed for, 32 bytes.
      mask: X25519 public key that masks are derived from, 32 bytes.
      commitment: SHA-256 of the seed of the client's own mask, 32 bytes.
    """

    channel: bytes
    mask: bytes
    commitment: bytes


def public_keys(channel_key: bytes, mask_key: bytes, seed: bytes) -> Keys:
    """Return what a client announces of its three secrets of 32 bytes."""
    return Keys(_public(channel_key), _public(mask_key), hashlib.sha256(seed).digest())


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """Return the X25519 secret of a private and a public key, 32 bytes.

    Raises:
      SumRefusedError: If the public key is of low order, so that anybody knows the secret.
    """
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise SumRefusedError("Expected an X25519 public key, got one of low order.") from error


def transcript(round_id: str, length: int, threshold: int, clients: int, key_list: bytes) -> bytes:
    """Return the hash that all keys of a sum are bound to.

    It is SHA-256 of `NAME`, SHA-256 of the round's id in UTF-8, and three uint64 numbers: length,
    threshold, invited clients. The key list follows, as sent in step 1.
    """
    head = NAME + hashlib.sha256(round_id.encode()).digest()
    return hashlib.sha256(
        head + struct.pack("<QQQ", length, threshold, clients) + key_list
    ).digest()


def key_info(purpose: bytes, transcript: bytes, first: int, second: int) -> bytes:
    """Return the HKDF info of one key.

    It is `NAME`, a space, the purpose, the transcript, and two client numbers, uint64. For purpose
    `shares` these are sender and receiver; for `pair` the smaller and the larger; for `own` the
    client twice.
    """
    return NAME + b" " + purpose + transcript + struct.pack("<QQ", first, second)


def derived_key(secret: bytes, info: bytes) -> bytes:
    """Return 32 bytes of HKDF-SHA256 without salt."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def own_mask(seed: bytes, transcript: bytes, client: int, length: int) -> np.ndarray:
    """Return the mask that a client adds for itself, uint64 `[length]`."""
    info = key_info(b"own", transcript, client, client)
    return stream(derived_key(seed, info), length)


def pair_mask(
    private: bytes, public: bytes, transcript: bytes, client: int, peer: int, length: int
) -> np.ndarray:
    """Return the mask that a client adds for a peer, uint64 `[length]`.

    The client with the larger number adds the negative of the stream, modulo 2^64, so that the two
    cancel.
    """
    info = key_info(b"pair", transcript, min(client, peer), max(client, peer))
    words = stream(derived_key(agree(private, public), info), length)
    return words if client < peer else np.negative(words)


def stream(key: bytes, length: int) -> np.ndarray:
    """Return numbers from the ChaCha20 key stream, uint64 `[length]`.

    The nonce is zero and the block counter begins at 0 (RFC 8439). Every 8 bytes are one
    little-endian number.
    """
    encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    data = encryptor.update(bytes(8 * length))
    return np.frombuffer(data, "<u8").astype(np.uint64)


def split(secret: bytes, threshold: int, numbers: Iterable[int]) -> dict[int, int]:
    """Return Shamir's shares of a secret, by client number.

    The polynomial over the field of `PRIME` has `threshold` coefficients. The first is the secret,
    read as a little-endian number, and the others are random. A client's share is the value at its
    number plus 1.
    """
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients.insert(0, int.from_bytes(secret, "little"))
    return {number: _value_at(coefficients, number + 1) for number in numbers}


def _value_at(coefficients: Sequence[int], point: int) -> int:
    value = 0
    # Horner.
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def combine(shares: Mapping[int, int]) -> bytes | None:
    """Undo `split` from exactly a threshold of shares.

    None means that the shares do not belong to a secret of 32 bytes.
    """
    weights = _weights(tuple(shares))
    products = (weight * share for weight, share in zip(weights, shares.values(), strict=True))
    secret = sum(products) % PRIME
    return secret.to_bytes(KEY_BYTES, "little") if secret < 2**256 else None


@functools.lru_cache(maxsize=4096)
def _weights(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's weights for the value at 0."""
    points = [number + 1 for number in numbers]
    found = []
    for point in points:
        others = [other for other in points if other != point]
        # f(0) = Σ f(x_i) Π_{j≠i} x_j / (x_j - x_i).
        above = math.prod(others) % PRIME
        below = math.prod(other - point for other in others) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)

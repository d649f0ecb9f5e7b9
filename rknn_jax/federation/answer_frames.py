"""File of a round's answers: frames of whole batches, each with its hash.

A frame holds two lengths, the hash, the numbers of the clients, and their messages side by side. A
crash can only have cut the last one short.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HASH_BYTES = 32


def num_bytes(num_clients: int, payload: int) -> int:
    """Return the length of a frame.

    Args:
      num_clients: Number of clients.
      payload: Length of their messages.
    """
    return 16 + HASH_BYTES + 8 * num_clients + payload


def packed(clients: np.ndarray, payload: bytes) -> bytes:
    """Return a frame.

    Args:
      clients: Numbers of the clients, uint64 `[c]`.
      payload: Their messages side by side.
    """
    body = clients.astype("<u8").tobytes() + payload
    head = np.array([len(clients), len(payload)], "<u8").tobytes()
    return head + hashlib.sha256(head + body).digest() + body


def read(path: Path) -> Iterator[tuple[np.ndarray, bytes]]:
    """Yield the clients and messages of all frames, up to one that a crash cut short.

    Raises:
      ValueError: If a frame that is not the last is damaged.
    """
    with open(path, "rb") as file:
        while len(head := file.read(16)) == 16:
            num_clients, size = np.frombuffer(head, "<u8").tolist()
            if (
                num_clients == 0
                or file.tell() + HASH_BYTES + 8 * num_clients + size > os.path.getsize(path)
            ):
                return  # runs past the end, or holds a file system's zeros: cut short by a crash
            said = file.read(HASH_BYTES)
            body = file.read(8 * num_clients + size)
            if said != hashlib.sha256(head + body).digest():
                if file.read(1):  # a crash can only have damaged the last frame
                    raise ValueError(
                        f"A frame of {path} that is not the last does not hold what was written; "
                        "restore the file from a copy."
                    )
                return
            yield np.frombuffer(body, "<u8", num_clients), body[8 * num_clients :]

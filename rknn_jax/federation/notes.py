"""Note of a round that a client writes before it spends: the seed of its messages, sealed.

The seal binds the seed to the votes. After a crash, the note gives the same messages again if the
votes are the same, and none otherwise. The ledger's line has the note's name, because one charge
pays for the messages of one seed.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.messages import RECORDS_AT_ONCE
from rknn_jax.privacy.entropy import Entropy

NAME = ", note "
"""Words before the name of a note in a ledger."""

LETTERS = 16
"""Letters of a note's name."""


def note_name(note: Path) -> str:
    """Return the words by which a ledger names a note, and which tell nothing of its seed.

    Raises:
      RefusedError: If the note cannot be read.
    """
    return f"{NAME}{hashlib.sha256(b'name' + _kept(note)[0]).hexdigest()[:LETTERS]}"


def noted_entropy(note: Path, cells: np.ndarray, at_once: int) -> Entropy:
    """Return the entropy that a note keeps for these cells.

    Raises:
      RefusedError: If the note cannot be read, or was made for other votes.
    """
    seed, sealed = _kept(note)
    if sealed != seal(seed, cells, at_once):
        raise RefusedError(
            f"Expected the records that {note} was written for, got others; the round was "
            "charged and is not answered."
        )
    return Entropy(seed)


def _kept(note: Path) -> tuple[bytes, str]:
    """Return the seed and the seal of a note.

    Raises:
      RefusedError: If the note cannot be read.
    """
    try:
        kept = json.loads(note.read_bytes())
        seed = bytes.fromhex(kept["seed"])
        Entropy(seed)  # refuses another length
        return seed, str(kept["seal"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise RefusedError(
            f"Expected the note {note} as it was written, got something else; the round is not "
            "answered."
        ) from error


def seal(seed: bytes, cells: np.ndarray, at_once: int = RECORDS_AT_ONCE) -> str:
    """Return a hash of the votes that reveals nothing about them without the seed.

    It covers the block size too, because other blocks draw other messages from the same seed.
    """
    drawn = "" if at_once == RECORDS_AT_ONCE else f" by {at_once}"
    return hashlib.sha256(
        seed + f"{cells.shape}{drawn}".encode() + np.ascontiguousarray(cells, np.int64).tobytes()
    ).hexdigest()

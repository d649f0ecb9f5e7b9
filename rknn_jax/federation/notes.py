"""Note of a round that a client writes before it spends: the seed of its messages, sealed.

The seal binds the seed to the votes. After a crash, the note gives the same messages again if the
votes are the same, and none otherwise.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.messages import RECORDS_AT_ONCE
from rknn_jax.privacy.entropy import Entropy


def noted_entropy(note: Path, cells: np.ndarray, at_once: int) -> Entropy:
    """Return the entropy that a note keeps for these cells.

    Raises:
      RefusedError: If the note cannot be read, or was made for other votes.
    """
    try:
        kept = json.loads(note.read_bytes())
        seed = bytes.fromhex(kept["seed"])
        same = kept["seal"] == seal(seed, cells, at_once)
        entropy = Entropy(seed)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise RefusedError(
            f"Expected the note {note} as it was written, got something else; the round is not "
            "answered."
        ) from error
    if not same:
        raise RefusedError(
            f"Expected the records that {note} was written for, got others; the round was "
            "charged and is not answered."
        )
    return entropy


def seal(seed: bytes, cells: np.ndarray, at_once: int = RECORDS_AT_ONCE) -> str:
    """Return a hash of the votes that reveals nothing about them without the seed.

    It covers the block size too, because other blocks draw other messages from the same seed.
    """
    drawn = "" if at_once == RECORDS_AT_ONCE else f" by {at_once}"
    return hashlib.sha256(
        seed + f"{cells.shape}{drawn}".encode() + np.ascontiguousarray(cells, np.int64).tobytes()
    ).hexdigest()

"""Fuzzing of every reader of bytes: mutated files end in a value or in a sentence.

`targets/` holds one file for each reader: `seeds()` returns small valid inputs, and
`readers(folder)` the calls to judge on the files of a folder. A target may also have:

- `sealed(files)`: repair checksums after a mutation, so that what lies behind them is reached;
- `PATHLESS`: types of errors that need not name the file, as of readers that are given bytes.

`python -m benchmarks.fuzz` runs the targets.
"""

import functools
import io
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


def memory_disk() -> str | None:
    """Return a folder in memory, because readers that wait for a disk are tried less often."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@functools.cache
def _workplace() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory_disk())


def workplace() -> Path:
    """Return a folder of this process for what targets do not mutate. It is removed at the end."""
    return Path(_workplace().name)


def npz(compress: bool = False, **arrays: ArrayLike) -> bytes:
    """Return arrays as an .npz file."""
    buffer = io.BytesIO()
    save = np.savez_compressed if compress else np.savez
    save(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def npy(array: ArrayLike) -> bytes:
    """Return an array as an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()

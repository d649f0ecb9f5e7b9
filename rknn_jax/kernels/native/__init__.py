"""Native kernels for CPUs: C++ that the installation compiled, if there was a compiler.

`hatch_build.py` compiles each `.cc` of this folder into one library for each kind of processor.
`library` loads the best one that this processor runs. Where there is none, XLA does the work: the
results are the same.
"""

import ctypes
import functools
from pathlib import Path

PROCESSORS = ("avx512", "avx2", "any")
"""Names of the libraries, the fastest first."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the fastest library that this processor runs, or None."""
    for name in PROCESSORS:
        path = Path(__file__).with_name(f"{name}.so")
        if path.exists():
            loaded = ctypes.CDLL(str(path))
            if loaded.rknn_supported():
                return loaded
    return None

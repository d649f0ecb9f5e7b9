"""Digests of what was computed before files moved: a change of shape must not change a result.

`RKNN_RECORD=1 .venv/bin/python -m pytest -k recorded` records anew, for a change that is meant.
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np

RECORDS = Path(__file__).with_name("recorded.json")
RECORDING = "RKNN_RECORD"


def digest(*arrays: np.ndarray) -> str:
    """Return a hash of arrays of whole numbers, with their shapes.

    The width of the numbers plays no part.
    """
    total = hashlib.sha256()
    for array in arrays:
        assert array.dtype.kind in "biu", "a rounding error of another machine would change it"
        total.update(repr(array.shape).encode())
        total.update(array.astype("<i8").tobytes())
    return total.hexdigest()


def check(name: str, *arrays) -> None:
    """Fail if these are not the arrays that were recorded under a name."""
    recorded = json.loads(RECORDS.read_text())
    found = digest(*map(np.asarray, arrays))
    if os.environ.get(RECORDING):
        recorded[name] = found
        RECORDS.write_text(json.dumps(dict(sorted(recorded.items())), indent=2) + "\n")
    remedy = f"if it is new, or is to change, record it: {RECORDING}=1 pytest with this test"
    assert recorded.get(name) == found, f"{name} is not what was recorded; {remedy}"

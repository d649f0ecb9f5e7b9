"""`data._idx.read`: MNIST's files, plain and gzipped."""

from pathlib import Path

import numpy as np

from rknn_jax.data import _idx
from tests.fuzz import workplace


def seeds():
    made = []
    for name, dtype in (("x", np.uint8), ("x.gz", np.float64)):
        _idx.write(workplace() / name, np.arange(24, dtype=dtype).reshape(2, 3, 4))
        made.append({name: (workplace() / name).read_bytes()})
    return made


def readers(folder: Path):
    return [lambda: _idx.read(folder, "x")]

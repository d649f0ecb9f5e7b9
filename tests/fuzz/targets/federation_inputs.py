"""`federation.inputs.read_inputs` and labels as stored: what `rknn serve` and `rknn join` are
given.
"""

from pathlib import Path

import numpy as np

from rknn_jax.federation import inputs
from rknn_jax.release import tables
from tests.fuzz import npz
from tests.fuzz.targets.embeddings_npz import LABELS, ROWS

IMAGES = np.arange(20 * 9, dtype=np.uint8).reshape(20, 3, 3)


def seeds():
    return [
        {"x.npz": npz(embeddings=ROWS, labels=LABELS)},
        {"x.npz": npz(compress=True, images=IMAGES, labels=LABELS)},
        {"x.npz": npz(images=IMAGES[..., None], embeddings=ROWS, labels=LABELS.astype(np.uint8))},
    ]


def readers(folder: Path):
    path = folder / "x.npz"
    return [
        lambda: inputs.read_inputs(path, "--public"),
        lambda: inputs.read_inputs(path, "--private", private=True),
        lambda: tables.read_labels(path),
    ]

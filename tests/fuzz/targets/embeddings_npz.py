"""`tables` on .npz files: embeddings, records, labels and classes."""

from pathlib import Path

import numpy as np

from rknn_jax.formats import Columns
from rknn_jax.release import tables
from tests.fuzz import npz

ROWS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
LABELS = np.arange(20) % 3


def seeds():
    texts = np.array(["ant", "bee", ""])[LABELS]
    return [
        {"x.npz": npz(embeddings=ROWS, labels=LABELS)},
        {
            "x.npz": npz(
                compress=True, embeddings=ROWS.astype(">f8"), labels=texts, classes=["ant", "bee"]
            )
        },
        {"x.npz": npz(embeddings=np.asfortranarray(ROWS), labels=LABELS / 2, classes=3)},
    ]


def readers(folder: Path):
    path = folder / "x.npz"
    return [
        lambda: tables.read_embeddings(path, "--public"),
        lambda: tables.read_records(path, "--private", Columns(width=4)),
        lambda: tables.read_labels(path),
        lambda: tables.read_classes(path),
    ]

"""`tables` on .npy files: embeddings in one, labels in another."""

from pathlib import Path

from rknn_jax.release import tables
from tests.fuzz import npy
from tests.fuzz.targets.embeddings_npz import LABELS, ROWS


def seeds():
    return [
        {"x.npy": npy(ROWS), "y.npy": npy(LABELS)},
        {"x.npy": npy(ROWS.astype("<f2").T.copy().T), "y.npy": npy(LABELS.astype(str))},
    ]


def readers(folder: Path):
    return [
        lambda: tables.read_embeddings(folder / "x.npy", "--public"),
        lambda: tables.read_records(folder / "x.npy", "--private"),
        lambda: tables.read_labels(folder / "x.npy", folder / "y.npy"),
    ]

"""`train.report.read`: the run folder behind a report."""

import json
from pathlib import Path

import numpy as np

from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from tests.fuzz import npz
from train import report


def seeds():
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", (Pure(1.0),)).asdict()
    privacy = {
        "whole": guarantee,
        "rounds": [guarantee],
        "accountants": {"pure": 1.0},
        "covers": [],
        "does_not_cover": [],
    }
    number = np.arange(3)
    queries = {
        "image": np.zeros((3, 2, 2, 1), np.uint8),
        **dict.fromkeys(("public_index", "round", "size"), number),
        "label": np.array([0, 1, -1], np.int32),
        "noisy_counts": np.ones((3, 2), np.float32),
        "stddev": np.ones((3, 2), np.float32),
    }
    labels = {"label": np.array([0, 1, 1], np.int32), "query": number}
    line = {"round": 0, "epoch": 1, "epochs": 2, "loss": 1.0, "seconds": 1.5, "test_accuracy": 0.5}
    metrics = "".join(json.dumps(line | {"epoch": epoch}) + "\n" for epoch in (1, 2))
    texts = {
        "config.json": {"dataset": "digits", "classes": ["a", "b"]},
        "result.json": {"epsilon": 1.0, "delta": 0.0, "relation": "replace-one"},
        "privacy.json": privacy,
    }
    files = {name: json.dumps(text).encode() for name, text in texts.items()}
    arrays = {"queries.npz": npz(compress=True, **queries), "labels.npz": npz(**labels)}
    return [files | arrays | {"metrics.jsonl": metrics.encode()}]


def readers(folder: Path):
    return [lambda: report.read(folder)]

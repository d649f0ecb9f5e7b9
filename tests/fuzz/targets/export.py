"""`interchange`: a finished folder that `rknn export` is given."""

import json
from pathlib import Path

import numpy as np

from rknn_jax.privacy.events import SampledGaussian, ScreenedGaussian
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.release import export, networks
from tests.fuzz import npz

LABEL = np.array([0, 1, -1, 2], np.int32)


def seeds():
    probability = np.full((4, 3), 1 / 3, np.float32)
    rows = {
        "label": LABEL,
        "query": LABEL,
        "confidence": np.float32([1, 0.5, np.nan, 0]),
        "probability": probability,
    }
    events = (SampledGaussian(2.0, 3, sampling_prob=0.1), ScreenedGaussian(3.0, screen=(1.5, 4)))
    guarantee = Guarantee(1.0, 1e-5, "replace-one", "central", events).asdict()
    params = {
        "Dense_0.kernel": np.ones((5, 3), np.float32),
        "Dense_0.bias": np.zeros(3, np.float32),
    }
    head = npz(centre=np.zeros(5, np.float32), scale=np.float32(1), **params)
    label = {
        "labels.npz": npz(compress=True, **rows),
        "privacy.json": json.dumps({"guarantee": guarantee}).encode(),
    }
    released = {"guarantee": guarantee | {"sampler": "release"}, "released": ["a label"]}
    served = {
        "privacy.json": json.dumps(released).encode(),
        "labels.npz": npz(**rows, class_names=["a", "b", "c"]),
    }
    distilled = {
        "privacy.json": json.dumps({"whole": guarantee}).encode(),
        "config.json": b'{"classes": ["a", "b", "c"]}',
    }
    return [label, label | served, label | distilled | {"model/head.npz": head}]


def readers(folder: Path):
    return [
        lambda: export.write(folder, "csv"),
        lambda: export.write(folder, "parquet"),
        lambda: networks.networks(folder),
        lambda: export.write(folder, "registry"),
        lambda: export.write(folder, "label-studio"),
        lambda: export.write(folder, "argilla"),
        lambda: export.write(folder, "cleanlab", 0.5),
        lambda: export.write(folder, "safetensors"),
    ]

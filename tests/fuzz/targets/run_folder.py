"""`train.run_folder` on a run's folder: settings, result and the choice of labels to buy."""

import functools
import json
from pathlib import Path

import numpy as np

from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.representations import pixels
from tests.fuzz import npy, workplace
from train import buy, run_folder
from train.experiment import TRAINING, Experiment, plain_settings
from train.json_files import write_json

SETTINGS = {
    "dataset": "digits",
    "epsilon": 1.0,
    "representation": pixels.Config(),
    "queries": 12,
    "student": None,
}


def _experiment(folder):
    return Experiment(**SETTINGS, noise_seed=0, out=folder)


@functools.cache
def _written():
    experiment = _experiment(workplace() / "run")
    told = plain_settings(experiment)
    folder = run_folder.make_folder(experiment)
    write_json(folder / "config.json", told)
    return (folder / "config.json").read_bytes()


def seeds():
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", (Pure(1.0),)).full_dict()
    choice = json.dumps({"network": "network", "index": [3, 1], "guarantee": guarantee}).encode()
    result = json.dumps({"interrupted": False, "epsilon": 1.0, "label_accuracy": 0.9}).encode()
    labels = npy(np.arange(4))
    return [
        {
            "oracle.npy": labels,
            "config.json": _written(),
            "result.json": result,
            f"{TRAINING}/{run_folder.CHOICE}": choice,
        }
    ]


def readers(folder: Path):
    def chosen():
        if (folder / TRAINING / run_folder.CHOICE).exists():
            run_folder.choice_of(folder, "network", lambda: None)

    return [
        lambda: run_folder.find_result(_experiment(folder)),
        chosen,
        lambda: buy._read(folder / "oracle.npy"),
    ]

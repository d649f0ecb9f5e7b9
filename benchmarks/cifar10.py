"""CIFAR-10 end to end, with a split like that of Li et al.

General queries are asked at epsilon = 1 and 0.29, SCAN's clusters at 0.01 and 0.005. Without
`--tiny`, use an accelerator; the results go to `benchmarks/results/cifar10.json`. `--tiny` takes
the same path in minutes on two cores and writes no results:

    RKNN_CIFAR10_DIR=DIR python -m benchmarks.cifar10
    RKNN_CIFAR10_DIR=DIR python -m benchmarks.cifar10 --tiny

If stopped, the same command resumes. Finished runs are kept, and the training of SimCLR and SCAN,
which all runs share, is saved every few epochs. With `--standard` the private and public images are
CIFAR-10's training images, and its 10,000 test images test the student.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._measure import save
from rknn_jax.representations.scan import Config as SCAN
from rknn_jax.representations.simclr import Config as SimCLR
from train import distill, presets
from train.experiment import Experiment

RUNS = Path("runs")
EPSILONS = {"cifar10": (1.0, 0.29), "cifar10-end-to-end": (0.01, 0.005)}
SEED = 42
KEPT = (
    "epsilon",
    "delta",
    "relation",
    "trust",
    "label_accuracy",
    "test_accuracy",
    "seconds",
    "num_public",
    "num_private",
    "num_test",
)


def tiny(experiment: Experiment) -> Experiment:
    """Return the same path with a small network and hardly any training."""
    pretraining = SimCLR(epochs=2, augmentation="photo")
    clusters = SCAN(pretraining, epochs=1, self_label_epochs=1)
    student = experiment.student
    return replace(
        experiment,
        representation=clusters if experiment.representation.asks else pretraining,
        student=replace(student, student=replace(student.student, model="cnn", epochs=1)),
        queries=min(experiment.queries or 0, 50),
    )


def measure(folder: Path, data_dir: Path, split: str, scaled_down: bool) -> list[dict[str, Any]]:
    """Run the missing runs, and return all results."""
    rows = []
    for name, epsilons in EPSILONS.items():
        for epsilon in epsilons[:1] if scaled_down else epsilons:
            places = {
                "representation_dir": folder / "representation",
                "out": folder / f"{name}-{epsilon:g}",
            }
            asked = replace(
                presets.named(name),
                dataset=split,
                data_dir=data_dir,
                epsilon=epsilon,
                seed=SEED,
                **places,
            )
            result = distill.run(tiny(asked) if scaled_down else asked)
            rows.append({"preset": name} | {field: result[field] for field in KEPT})
    return rows


if __name__ == "__main__":
    if "RKNN_CIFAR10_DIR" not in os.environ:
        sys.exit(
            "Expected RKNN_CIFAR10_DIR to name a folder with train/<class>/*.jpg and "
            "test/<class>/*.jpg, got nothing; set it."
        )
    scaled_down = "--tiny" in sys.argv
    split = "cifar10" if "--standard" in sys.argv else "cifar10:pooled"
    started = time.perf_counter()
    name = "cifar10" if split == "cifar10:pooled" else "cifar10_standard"
    rows = measure(
        RUNS / (f"{name}-tiny" if scaled_down else name),
        Path(os.environ["RKNN_CIFAR10_DIR"]),
        split,
        scaled_down,
    )
    if scaled_down:
        print(json.dumps(rows, indent=2))
    else:
        save(name, rows, split=split, seeds=[SEED], seconds=time.perf_counter() - started)

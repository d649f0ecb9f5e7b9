"""The papers' representations and students on MNIST, row by row.

All parts are training images (`mnist:train`), because the settings of `spectral` and of the default
student were chosen on test images. No setting of a row was chosen by an accuracy. It is the code's
default or the paper's, but for the sizes and epochs that `options` shows, which fit a core. Only
the first row has the paper's split. Other rows have several, and a run that was stopped goes on.

    python -m benchmarks.rows                # rows.json
    python -m benchmarks.rows --only DTI     # one row of it; the others stay
    python -m benchmarks.rows networks       # CPU time of the largest networks: networks.json
"""

import argparse
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, save_part, seconds
from rknn_jax._internal.terminal import show_progress
from rknn_jax.representations import dti
from rknn_jax.students import fit as students
from train import commandline, distill, sweep

LABELS = "--dataset mnist:train --representation spectral --queries 10"
DTI = "--dataset mnist:train --representation dti --queries 10 --smoothing none"
CONTRASTIVE = "--dataset mnist:train --smoothing none --student cnn --epochs 10 --representation"
FEW = "--unlabelled 0.8"
"""Share of the images without a label: a thousand have one, about as many as in the papers."""

TABLE_1 = "Li et al., DTI's labels: 97.5%, 98.5%"

BATCH = 32
"""Images of the step that is timed."""

NETWORKS = {
    "wrn28_2": ("MixMatch on SVHN", 3 * 32 * 50 * 1024),
    "resnet18": ("SimCLR on CIFAR-10", 2 * 29_000 * 500),
    "densenet121": ("the student on CIFAR-10", 29_000 * 160),
}
"""Part of a network in Li et al., and the number of images that pass through it and back."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      name: What is measured.
      epsilon: Privacy budget of the run.
      options: Options of `train.distill`.
      trained: What is trained for how long, and the paper's number in parentheses.
      paper: Accuracies of labels and student in the paper.
      splits: Seeds of the splits: five of minutes, three of less than half an hour, else one.
    """

    name: str
    epsilon: float
    options: str
    trained: str = ""
    paper: str = ""
    splits: Sequence[int] = range(5)


def rows() -> list[Row]:
    """Return all rows, those that share a representation one after the other."""
    standard = LABELS.replace("mnist:train", "mnist")
    few = "epochs, the 1,000 surest labels and 4,000 unlabeled images"
    return [
        Row(
            "spectral, the paper's split",
            0.01,
            f"{standard} --student none",
            "no network (DTI)",
            TABLE_1,
            (42,),
        ),
        Row("spectral at 1", 1.0, f"{LABELS} --student none", "no network"),
        Row("linear", 0.01, f"{LABELS} --student linear", "30 epochs"),
        Row("cnn", 0.01, f"{LABELS} --student cnn --epochs 10", "10 epochs"),
        Row("M3", 0.01, f"{LABELS} --student m3", "6 epochs", splits=range(3)),
        Row("M5", 0.01, f"{LABELS} --student m5 --epochs 50", "50 epochs", TABLE_1, range(3)),
        Row("M7", 0.01, f"{LABELS} --student m7", "6 epochs", splits=range(3)),
        Row(
            "DTI",
            0.01,
            f"{DTI} --student m5 --epochs 50",
            "300 epochs of ResNet-20, width 16; M5 50 epochs",
            TABLE_1,
            (0,),
        ),
        Row(
            "UDA",
            0.01,
            f"{LABELS} --semi-supervised uda {FEW} --epochs 10",
            f"10 {few}",
            "Zhu et al., Private-kNN's labels: 98.8%",
        ),
        Row(
            "MixMatch",
            0.01,
            f"{LABELS} --semi-supervised mixmatch {FEW} --epochs 6",
            f"6 {few}",
            "Li et al., SVHN at 0.1: 95.6%",
        ),
        Row(
            "VAT",
            0.01,
            f"{LABELS} --semi-supervised vat {FEW} --epochs 6",
            f"6 {few}",
        ),
        *(
            Row(
                f"SimCLR, {epochs} epochs",
                0.1,
                f"{CONTRASTIVE} simclr --representation.epochs {epochs} --queries 40",
                f"`cnn` {epochs} epochs (ResNet-18, 500); `cnn` 10 epochs",
                "Li et al., CIFAR-10 at 1: 77.1%, 82.1%",
                range(splits),
            )
            for epochs, splits in ((15, 5), (60, 3), (120, 1))
        ),
        Row(
            "SCAN",
            0.01,
            f"{CONTRASTIVE} scan --queries 10",
            "SimCLR 60 epochs (500), clusters 50 (50), self-labeling 200 (200); `cnn` 10 epochs",
            "Li et al., CIFAR-10: 85.9%, 86.1%",
            (0,),
        ),
    ]


def measure(place: Path, row: Row, prepared: distill.Prepare) -> dict[str, Any]:
    """Run a row on each of its splits, or read the saved results."""
    runs = [_run(place, row, seed, prepared) for seed in row.splits]
    same = ("dataset", "epochs", "num_public", "num_private", "num_test")
    return (
        {name: value for name, value in row._asdict().items() if name != "splits"}
        | {name: runs[0][name] for name in same}
        | sweep.summary(runs)
        | {"seconds": [run["seconds"] for run in runs]}
    )


def _run(place: Path, row: Row, seed: int, prepared: distill.Prepare) -> dict[str, Any]:
    folder = place / f"{re.sub('[^a-z0-9]+', '-', row.name.lower())}-{seed}"
    experiment = commandline.parsed(
        [
            *row.options.split(),
            *("--data-dir", str(mnist_folder()), "--seed", str(seed), "--noise-seed", str(seed)),
            *("--representation-dir", str(place / "representations")),
            *("--epsilon", repr(row.epsilon), "--out", str(folder)),
        ]
    )
    student = experiment.student
    return distill.run(experiment, prepared) | {
        "dataset": experiment.dataset,
        "epochs": None if student is None else student.student.epochs,
    }


def cost(network: str) -> dict[str, Any]:
    """Return the time of a gradient on images of 32x32x3, and of the paper's training by it."""
    trains, num_images = NETWORKS[network]
    model = students.network_of(students.Config(model=network), 10)
    images = np.random.RandomState(0).rand(BATCH, 32, 32, 3).astype(np.float32)
    variables = students.drawn(model, jax.random.key(0), images[:1])

    def loss(params: Any) -> jax.Array:
        logits, _ = model.apply(
            variables | {"params": params}, images, train=True, mutable=["batch_stats"]
        )
        return -jax.nn.log_softmax(logits)[:, 0].mean()

    gradient = jax.jit(jax.grad(loss))
    step = seconds(lambda: gradient(variables["params"]), repeats=3, clock=time.process_time)
    return {
        "network": network,
        "trains": trains,
        "batch_size": BATCH,
        "step_seconds": step,
        "images": num_images,
        "days": step / BATCH * num_images / 86400,
    }


def cost_of_dti(num_images: int = 5_000) -> dict[str, Any]:
    """Return the time of a step of DTI on MNIST at the paper's size, and of its training by it."""
    config = dti.Config()
    images = np.random.RandomState(0).randint(256, size=(1_280, 28, 28, 1)).astype(np.uint8)
    steps = []
    for starts in ((1, 1, 1), (0, 1, 1), (0, 0, 1), (0, 0, 0)):
        one = replace(config, epochs=1, curriculum=starts)
        epoch = partial(_weights_of, images, one)
        cpu_seconds = seconds(epoch, repeats=1, clock=time.process_time)
        steps.append(cpu_seconds / (len(images) / config.batch_size))
    step = statistics.mean(steps[config.stage(epoch)] for epoch in range(config.epochs))
    passes = num_images * config.epochs
    return {
        "network": "dti",
        "trains": "DTI's queries on MNIST",
        "batch_size": config.batch_size,
        "step_seconds": step,
        "images": passes,
        "days": step / config.batch_size * passes / 86400,
    }


def _weights_of(images: np.ndarray, config: dti.Config) -> Any:
    return dti.fit(jax.random.key(0), images, config).params


def main() -> None:
    """Measure the rows and write the results, one row after the other."""
    names = [row.name for row in rows()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["rows", "networks"], default="rows")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW")
    chosen = parser.parse_args()
    if chosen.what == "networks":
        save("networks", [cost_of_dti(), *map(cost, NETWORKS)])
        return
    prepared = sweep.sharing(5)
    with _kept.parts("rows") as folder, show_progress():
        for row in rows():
            if row.name in chosen.only:
                save_part("rows", row.name, measure(folder, row, prepared))


if __name__ == "__main__":
    main()

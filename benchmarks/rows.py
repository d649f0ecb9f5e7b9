"""The papers' representations and students on MNIST, row by row.

All parts are training images (`mnist:train`), because the settings of `spectral` and of the default
student were chosen on test images. No setting of a row was chosen by an accuracy. It is the code's
default or the paper's, but for the sizes and epochs that `options` shows, which fit a core. Only
the first row has the paper's split. Finished runs are kept under `runs/rows`, and the results are
written after every row, so the same command resumes.

    python -m benchmarks.rows             # rows.json
    python -m benchmarks.rows networks    # seconds of a training step by network: networks.json
"""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, seconds
from benchmarks.papers import stated_epsilon
from rknn_jax.students import fit as students
from train import commandline, distill, stages, sweep

RUNS = Path("runs/rows")
LABELS = "--dataset mnist:train --seed 0 --representation spectral --queries 10"
DTI = (
    "--dataset mnist:train --seed 0 --representation dti --queries 10 --smoothing none "
    "--representation.width 8 --representation.blocks 1 --representation.epochs 45"
)
CONTRASTIVE = "--dataset mnist:train --seed 0 --smoothing none --representation"
FEW = "--unlabelled 0.8"
"""The surest thousand labels; the other 4,000 images are unlabeled, about as many as in the
papers."""

PRIVATE_KNN = (
    "--dataset mnist:train --seed 0 --delta 1e-5 --smoothing none --labeler private_knn "
    "--representation hog --rounds 2 --queries 500 --private-knn.max-answers 368 "
    "--semi-supervised uda --unlabelled 0 --epochs 10"
)
TABLE_1 = "Li et al., DTI's labels: 97.5%, 98.5%"
ELSEWHERE = "Li et al., on CIFAR-10"

# Steps of a network in its paper: records a batch, epochs, and public images.
NETWORKS = {
    "wrn28_2": (64, "MixMatch on SVHN", 50 * 1024),
    "densenet121": (128, "CIFAR-10", 160 * 227),
    "resnet18": (1024, "SimCLR on CIFAR-10", 500 * 57),
}
"""Images a step, what the paper trains, and its number of steps."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      name: What is measured.
      epsilon: Privacy budget of the run.
      options: Options of `train.distill`.
      paper: Accuracies of labels and student in the paper.
    """

    name: str
    epsilon: float
    options: str
    paper: str = ""


def rows() -> list[Row]:
    """Return all rows, those that share a representation one after the other."""
    standard = LABELS.replace("mnist:train --seed 0", "mnist --seed 42")
    return [
        Row("spectral, the paper's split", 0.01, f"{standard} --student none", TABLE_1),
        Row("spectral at 1", 1.0, f"{LABELS} --student none"),
        Row("linear", 0.01, f"{LABELS} --student linear"),
        Row("cnn", 0.01, f"{LABELS} --student cnn --epochs 15"),
        Row("M5", 0.01, f"{LABELS} --student m5", TABLE_1),
        Row("DTI, M5", 0.01, f"{DTI} --student m5", TABLE_1),
        Row(
            "UDA",
            0.01,
            f"{LABELS} --semi-supervised uda {FEW} --epochs 15",
            "Zhu et al., labels of Private-kNN: 98.8%",
        ),
        Row(
            "MixMatch",
            0.01,
            f"{LABELS} --semi-supervised mixmatch {FEW} --epochs 10",
            "Li et al., on SVHN: 95.6% at ε = 0.1",
        ),
        Row("VAT", 0.01, f"{LABELS} --semi-supervised vat {FEW} --epochs 10"),
        Row(
            "SimCLR, 40 queries, cnn",
            0.1,
            f"{CONTRASTIVE} simclr --representation.epochs 20 --representation.batch-size 128 "
            "--queries 40 --student cnn --epochs 8",
            f"{ELSEWHERE}: 77.1%, 82.1% at ε = 1",
        ),
        Row(
            "SCAN, cnn",
            0.01,
            f"{CONTRASTIVE} scan --representation.pretraining.epochs 20 "
            "--representation.pretraining.batch-size 128 --representation.epochs 8 "
            "--representation.self-label-epochs 5 --queries 10 --student cnn --epochs 8",
            f"{ELSEWHERE}: 85.9%, 86.1%",
        ),
        Row("M3", 0.01, f"{LABELS} --student m3 --epochs 3"),
        Row("M7", 0.01, f"{LABELS} --student m7 --epochs 3"),
        Row(
            "Private-kNN, two rounds, UDA",
            stated_epsilon("private_knn", 2),
            PRIVATE_KNN,
            "Zhu et al.: 98.8%",
        ),
    ]


def measure(row: Row, prepared: distill.Prepare) -> dict[str, Any]:
    """Run a row, or read its saved result."""
    folder = RUNS / re.sub("[^a-z0-9]+", "-", row.name.lower())
    experiment = commandline.parsed(
        [
            *row.options.split(),
            *("--data-dir", str(mnist_folder()), "--noise-seed", "0"),
            *("--representation-dir", str(RUNS / "representations")),
            *("--epsilon", repr(row.epsilon), "--out", str(folder)),
        ]
    )
    found = distill.run(experiment, prepared)
    student = experiment.student
    kept = ("label_accuracy", "test_accuracy", "num_public", "num_private", "num_test", "seconds")
    return row._asdict() | {
        "dataset": experiment.dataset,
        "epochs": None if student is None else student.student.epochs,
        **{name: found[name] for name in kept},
    }


def step_seconds(network: str) -> dict[str, Any]:
    """Return the time of a training step of the paper's size on images of 32x32x3."""
    batch_size, trains, num_steps = NETWORKS[network]
    config = students.Config(model=network)
    model = students.network_of(config, 10)
    images = np.random.RandomState(0).rand(batch_size, 32, 32, 3).astype(np.float32)
    variables = students.drawn(model, jax.random.key(0), images[:1])

    def loss(params: Any) -> jax.Array:
        logits, _ = model.apply(
            variables | {"params": params}, images, train=True, mutable=["batch_stats"]
        )
        return -jax.nn.log_softmax(logits)[:, 0].mean()

    gradient = jax.jit(jax.grad(loss))
    return {
        "network": network,
        "trains": trains,
        "batch_size": batch_size,
        "steps": num_steps,
        "seconds": seconds(lambda: gradient(variables["params"]), repeats=1),
    }


def main() -> None:
    """Measure all rows and write after each."""
    stages.show_progress()
    prepared = sweep.sharing(2)
    found = []
    for row in rows():
        found.append(measure(row, prepared))
        save("rows", found)


if __name__ == "__main__":
    if sys.argv[1:] == ["networks"]:
        save("networks", [step_seconds(network) for network in NETWORKS])
    else:
        main()

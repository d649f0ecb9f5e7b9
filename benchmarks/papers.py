"""Private-kNN and PATE on MNIST with the noise of their papers.

All parts are training images (`mnist:train`), because the settings of `spectral` and of the default
student were chosen on test images. Epsilon is the true cost of that noise. One row has PATE's
features, which are pixels, and a semi-supervised student (UDA). The others give both labelers the
additions of reverse k-NN labeling. These are `spectral` features, and labels that spread over the
graph of the public records. The last row is Private-kNN's iteration: half of the queries on HOG,
and half on the features of the student that those train. Its epsilon is that of both rounds
together.
"""

import functools
import math
from pathlib import Path
from typing import Any

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, summary
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import Event, Gaussian, SampledGaussian, ScreenedGaussian
from train import commandline, distill

# Runs of two minutes use all seeds; semi-supervised students take longer and use the first only.
SEEDS = (0, 1, 2)
DELTA = 1e-5
UDA = "--smoothing none --semi-supervised uda --epochs 35 --unlabelled 0"
KINDS = {
    "Private-kNN, 1,000 queries, spectral features, labels spread": (
        "private_knn --representation spectral --queries 1000 --private-knn.max-answers 735",
        "",
    ),
    "PATE, 640 queries, teachers on spectral features, labels spread": (
        "pate --representation spectral --queries 640 --pate.max-answers 286",
        "",
    ),
    "PATE, 640 queries, teachers on pixels, UDA": (
        "pate --representation pixels --queries 640 --pate.max-answers 286",
        UDA,
    ),
    "Private-kNN, two rounds of 500 queries, HOG and then the student's features, UDA": (
        "private_knn --representation hog --rounds 2 --queries 500 --private-knn.max-answers 368",
        UDA,
    ),
}


@functools.cache
def stated_epsilon(labeler: str, rounds: int) -> float:
    """Return the epsilon of all rounds at which `train.distill` draws the stated noise."""
    events: list[Event]
    if labeler == "pate":
        events = [
            ScreenedGaussian(150.0, 640, screen=(200.0, 250)),
            Gaussian(40 / math.sqrt(2), 286),
        ]
    else:
        # Two rounds of 500 queries and 368 answers have one query's worth of noise more.
        answers = 735 if rounds == 1 else 2 * 368
        events = [
            ScreenedGaussian(75.0, 1000, screen=(180.0, 300), sampling_prob=0.15, replaced=True),
            SampledGaussian(25 / math.sqrt(2), answers, sampling_prob=0.15, replaced=True),
        ]
    return min(accounting.epsilons(events, DELTA).values()) * 1.0001


def run(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """Run one kind on one split, or read the saved result."""
    labeler, student = KINDS[name]
    words = [
        "--dataset",
        "mnist:train",
        "--data-dir",
        str(mnist_folder()),
        "--labeler",
        *labeler.split(),
        *student.split(),
    ]
    words += [
        "--epsilon",
        repr(stated_epsilon(words[5], 2 if "--rounds 2" in labeler else 1)),
        "--delta",
        str(DELTA),
        "--seed",
        str(seed),
    ]
    return distill.run(
        commandline.parsed([*words, "--out", str(folder / f"{list(KINDS).index(name)}-{seed}")])
    )


def row(folder: Path, name: str) -> dict[str, Any]:
    """Return the means of one kind over its splits."""
    seeds = SEEDS[:1] if KINDS[name][1] else SEEDS
    found = [run(folder, name, seed) for seed in seeds]
    about = {
        "name": name,
        "seeds": seeds,
        "epsilon": max(one["epsilon"] for one in found),
        "relation": found[0]["relation"],
    }
    return about | {
        what: summary([one[what] for one in found])
        for what in ("label_accuracy", "test_accuracy", "seconds")
    }


if __name__ == "__main__":
    with _kept.parts("papers") as folder:
        save("papers", [row(folder, name) for name in KINDS], delta=DELTA)

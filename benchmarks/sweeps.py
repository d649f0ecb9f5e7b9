"""Studies by `train.sweep` on MNIST: queries and neighbors, rounds, and students' targets.

Queries and neighbors are Figure 2 of Li et al. Figures 3 and 4 are the same study on SVHN and
CIFAR-10, whose students need an accelerator.
"""

import shutil
from pathlib import Path

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save
from train import sweep

DOCS = Path(__file__).parent.parent / "docs"
MNIST = [
    "--dataset",
    "mnist",
    "--data-dir",
    str(mnist_folder()),
    "--student",
    "none",
    "--smoothing",
    "none",
]
QUERIES = ["10", "20", "40", "100", "200", "500"]
TARGETS = ["hard", "soft", "posterior"]
STUDIES = {
    "figure2": (
        MNIST,
        {
            "queries": QUERIES,
            "neighbors": ["1", "4"],
            "epsilon": ["0.01", "0.1"],
            "seed": ["5", "6"],
        },
    ),
    "rounds": (
        ["--dataset", "digits"],
        {"rounds": ["1", "2", "3"], "epsilon": ["0.5", "2"], "seed": [*"0123"]},
    ),
    "targets": (
        ["--queries", "40"],
        {"epsilon": ["0.2", "0.5"], "targets": TARGETS, "seed": [*"01234"]},
    ),
}

if __name__ == "__main__":
    with _kept.parts("sweeps") as folder:
        results = {
            name: sweep.main(arguments, folder / name, varied)
            for name, (arguments, varied) in STUDIES.items()
        }
        shutil.copyfile(folder / "figure2" / "sweep.png", DOCS / "figure2.png")
        save("sweeps", results)

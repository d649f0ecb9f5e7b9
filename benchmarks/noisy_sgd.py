"""Accuracy of noisy SGD's networks on MNIST.

The accuracies are those of the networks themselves on the test set, under replace-one unless a row
says otherwise.
"""

from pathlib import Path
from typing import Any

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, summary
from train import commandline, distill, sweep

DELTA = 1e-5
SEEDS = (5, 6, 7)
HEADS = (
    "--noisy-sgd.batch-size 1024 --noisy-sgd.epochs 10 --noisy-sgd.learning-rate 4 "
    "--noisy-sgd.clip 0.3"
)
PUBLISHED = (
    "--relation add-remove --noisy-sgd.batch-size 256 --noisy-sgd.sampling-prob 0.0042666667"
)
TUNED = (
    "--representation self_trained --noisy-sgd.network encoder --noisy-sgd.epochs 2 "
    "--noisy-sgd.part"
)
NETWORK = (
    "--representation pixels --noisy-sgd.network tanh_cnn --noisy-sgd.epochs 15 --noisy-sgd.clip"
)
CURVE = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
KINDS: dict[str, tuple[str, tuple[float, ...], tuple[int, ...]]] = {
    "linear, spectral features": (
        f"--representation spectral --noisy-sgd.network linear {HEADS}",
        CURVE,
        SEEDS,
    ),
    "two layers, spectral features": (
        f"--representation spectral --noisy-sgd.network mlp {HEADS}",
        (1.0,),
        SEEDS,
    ),
    "linear, HOG": (
        "--representation hog --noisy-sgd.network linear --noisy-sgd.batch-size 1024 "
        "--noisy-sgd.epochs 10 --noisy-sgd.learning-rate 0.5",
        (1.0,),
        SEEDS,
    ),
    "head of a self-trained network": (f"{TUNED} head", (1.0,), SEEDS[:1]),
    "head and normalisation of it": (f"{TUNED} norms", (1.0,), SEEDS[:1]),
    "head, normalisation and 1% of the rest": (f"{TUNED} sparse", (1.0,), SEEDS[:1]),
    "DiversePublic's network, all of it": (
        f"{NETWORK} 0.3 --noisy-sgd.learning-rate 1",
        (2.0,),
        SEEDS[:1],
    ),
    "the same with σ = 1.3, C = 1.5, batches of 256": (
        f"{NETWORK} 1.5 --noisy-sgd.noise-multiplier 1.3 --noisy-sgd.learning-rate 0.25 "
        f"--noisy-sgd.momentum 0 {PUBLISHED}",
        (1.0,),
        SEEDS[:1],
    ),
}


def run(folder: Path, name: str, epsilon: float, seed: int, prepared: Any) -> dict[str, Any]:
    """Run one kind on one split, or read the saved result."""
    words = [
        "--dataset",
        "mnist",
        "--data-dir",
        str(mnist_folder()),
        "--labeler",
        "noisy_sgd",
        *KINDS[name][0].split(),
    ]
    words += [
        "--epsilon",
        str(epsilon),
        "--delta",
        str(DELTA),
        "--seed",
        str(seed),
        "--student",
        "none",
    ]
    out = folder / f"{list(KINDS).index(name)}-{epsilon}-{seed}"
    return distill.run(commandline.parsed([*words, "--out", str(out)]), prepared)


def accuracies(folder: Path) -> list[dict[str, Any]]:
    """Return each kind's means over splits, at each epsilon."""
    prepared = sweep.sharing()
    ordered = sorted(
        (
            (kind[0].split()[1], seed, name, asked)
            for name, kind in KINDS.items()
            for asked in kind[1]
            for seed in kind[2]
        )
    )
    found = {
        (name, asked, seed): run(folder, name, asked, seed, prepared)
        for _, seed, name, asked in ordered
    }
    rows = []
    for name, (_, epsilons, seeds) in KINDS.items():
        for asked in epsilons:
            mine = [found[name, asked, seed] for seed in seeds]
            row = {
                "name": name,
                "seeds": seeds,
                "epsilon": max(one["epsilon"] for one in mine),
                "relation": mine[0]["relation"],
            }
            rows.append(
                row
                | {
                    what: summary([one[what] for one in mine])
                    for what in ("label_accuracy", "model_test_accuracy", "seconds")
                }
            )
    return rows


if __name__ == "__main__":
    with _kept.parts("noisy_sgd") as folder:
        save("noisy_sgd", {"accuracy": accuracies(folder)}, delta=DELTA)

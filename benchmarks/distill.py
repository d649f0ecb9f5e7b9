"""The whole of Algorithm 1 over seeds: labels, student, and time.

Finished runs are kept until all are, so the same command continues.
"""

import re
from dataclasses import replace
from pathlib import Path

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, summary
from train import distill, presets
from train.experiment import Experiment

SETTINGS = {
    "digits, epsilon 1": Experiment(dataset="digits", epsilon=1.0),
    "digits, epsilon 1, two rounds": Experiment(dataset="digits", epsilon=1.0, rounds=2),
    "mnist, epsilon 0.01": Experiment(dataset="mnist", data_dir=mnist_folder(), epsilon=0.01),
    "`--preset mnist-fast`, epsilon 0.01": replace(
        presets.named("mnist-fast"), data_dir=mnist_folder()
    ),
    "`--preset mnist`, epsilon 0.01": replace(presets.named("mnist"), data_dir=mnist_folder()),
}
SEEDS = {"digits": range(10), "mnist": range(5, 8)}


def measure(folder: Path, name: str, experiment: Experiment) -> dict[str, object]:
    """Return the means over the seeds."""
    seeds = list(SEEDS[experiment.dataset])
    mine = folder / re.sub("[^a-z0-9.]+", "-", name).strip("-")
    results = [distill.run(replace(experiment, seed=seed, out=mine / str(seed))) for seed in seeds]
    fields = ("label_accuracy", "test_accuracy", "seconds")
    return {"name": name, "seeds": seeds} | {
        field: summary([found[field] for found in results]) for field in fields
    }


if __name__ == "__main__":
    with _kept.parts("distill") as folder:
        save("distill", [measure(folder, name, one) for name, one in SETTINGS.items()])

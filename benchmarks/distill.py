"""The whole of Algorithm 1 over seeds: labels, student and time. Runs that are there already are kept, so it can be stopped and started."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks._measure import mnist_folder, save, summary
from train import distill
from train.experiment import Experiment

RUNS = Path("runs/benchmark")
SETTINGS = {
    "digits, epsilon 1": Experiment(dataset="digits", epsilon=1.0),
    "digits, epsilon 1, two rounds": Experiment(dataset="digits", epsilon=1.0, rounds=2),
    "mnist, epsilon 0.01": Experiment(dataset="mnist", data_dir=mnist_folder(), epsilon=0.01),
    "mnist, epsilon 0.1": Experiment(dataset="mnist", data_dir=mnist_folder(), epsilon=0.1),
    "mnist, epsilon 0.1, two rounds": Experiment(dataset="mnist", data_dir=mnist_folder(), epsilon=0.1, rounds=2),
}
SEEDS = {"digits": range(10), "mnist": (42, 0, 1)}
TWO_ROUNDS = 2  # seeds of MNIST's long runs


def result(name: str, experiment: Experiment, seed: int) -> dict[str, float]:
    """Run one experiment, or read what it left behind."""
    folder = RUNS / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    if not (folder / "result.json").exists():
        distill.main(Experiment(**asdict(experiment) | {"seed": seed, "out": folder}))
    return json.loads((folder / "result.json").read_text())


def measure(name: str, experiment: Experiment) -> dict[str, object]:
    """Return the means over the seeds."""
    seeds = list(SEEDS[experiment.dataset])
    seeds = seeds[:TWO_ROUNDS] if experiment.dataset == "mnist" and experiment.rounds > 1 else seeds
    results = [result(name, experiment, seed) for seed in seeds]
    fields = ("label_accuracy", "test_accuracy", "seconds")
    return {"name": name, "seeds": seeds} | {field: summary([found[field] for found in results]) for field in fields}


if __name__ == "__main__":
    save("distill", [measure(name, experiment) for name, experiment in SETTINGS.items()], runs=str(RUNS))

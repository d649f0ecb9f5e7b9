"""Number of runs that find each planted bug, at the default sizes of `rknn audit`.

The bugs of mechanisms are those of `tests/plants.py`. One-run auditing looks for half of noisy
SGD's noise, with more and more runs.
"""

import time
from typing import Any

import jax
import numpy as np

from benchmarks._measure import save
from rknn_jax.audit import games, games_training, one_run, verdict
from rknn_jax.cli.audit_settings import SIZES, Audit
from rknn_jax.cli.audit_subjects import CLIENTS
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.students import dpsgd
from tests.plants import Plant, plants

EPSILON = 1.0
DELTA = 1e-5
RUNS = (1000, 4000, 20_000, 200_000)
TRAININGS = (1, 2, 4, 6, 8, 12, 20)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CANARIES = 1000
SEEDS = 5


def measure_plant(plant: Plant) -> dict[str, Any]:
    """Return the first of `RUNS` at which a bug is found, and the game that finds it."""
    played = games.of_mechanism(plant.mechanism)
    guarantee = plant.honest.guarantee(CLIENTS)
    start = time.process_time()
    for runs in RUNS:
        found = verdict.audit(jax.random.key(0), played, guarantee, runs, Audit.confidence)
        if found.broken:
            break
    return {
        "plant": plant.words,
        "found": found.broken,
        "runs": runs,
        "lower_bound": found.lower_bound,
        "games": found.games,
        "inputs": found.inputs,
        "event": found.event,
        "cpu_seconds": time.process_time() - start,
    }


def measure_training(epsilon: float, factor: float) -> dict[str, Any]:
    """Return how often noisy SGD with `factor` of its noise is called broken, by number of runs."""
    honest = dpsgd.noise
    dpsgd.noise = lambda config, count: (
        factor * honest(config, count)[0],
        honest(config, count)[1],
    )
    try:
        config = NoisySGD.for_canaries(CANARIES, epsilon, DELTA)
        signs, scores, guarantee = games_training.canary_runs(
            jax.random.key(0), SEEDS * max(TRAININGS), config, CANARIES
        )
    finally:
        dpsgd.noise = honest
    shares = {}
    bounds = {}
    for runs in TRAININGS:
        parts = [
            slice(seed * max(TRAININGS), seed * max(TRAININGS) + runs) for seed in range(SEEDS)
        ]
        found = [
            one_run.judge(signs[part], scores[part], guarantee, Audit.confidence) for part in parts
        ]
        shares[runs] = float(np.mean([one.broken for one in found]))
        bounds[runs] = float(np.mean([one.lower_bound for one in found]))
    return {
        "epsilon": epsilon,
        "delta": DELTA,
        "share_of_noise": factor,
        "canaries": config.batch_size,
        "seeds": SEEDS,
        "called_broken": shares,
        "mean_lower_bound": bounds,
    }


if __name__ == "__main__":
    trained: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for epsilon in EPSILONS:
        for factor in (1.0, 0.5):
            trained.append(measure_training(epsilon, factor))
            print(trained[-1])
    for plant in plants(SIZES["queries"], SIZES["classes"], EPSILON):
        found.append(measure_plant(plant))
        print(found[-1])
        save("plants", {"noisy_sgd": trained, "plants": found})

"""Settings that noisy SGD chooses for a linear head, beside the best of a grid of each cell.

    python -m benchmarks.noisy_sgd_defaults

The constants of `rknn_jax.students.dpsgd.settled` were chosen on digits and on MNIST's training
images in 50 principal components, with 300 to 10,000 records and epsilon from 0.05 to 100. The data
sets here are others, or have other features. A cell is a data set and an epsilon. The grid is tuned
by hand for each cell: on the labels that are then reported, which no user has and no budget paid
for. Accuracy is that of labels of public rows, as a mean over splits and draws of the noise, so the
best of the grid still is a little lucky.

`benchmarks._decoding_cases` says how the two files of features are made; without them, their data
sets are left out.
"""

import functools
import itertools
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import _decoding_cases as cases
from benchmarks import _kept
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.types import Queries, Records

EPSILONS = (0.05, 0.2, 1.0, 4.0)
DELTA = 1e-5
SEEDS = (30, 31)
STEPS = (10, 60)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
CLIPS = (0.3, 1.0)
CHOSEN = "chosen"


class Case(NamedTuple):
    """Data set.

    Attributes:
      make: Function from the seed of a split to its rows.
      draws: Number of trainings with each setting, more where they are cheap.
      most: Most private records that are taken.
      file: Name in `_decoding_cases.FILES` of the file that it needs. Defaults to none.
      num_splits: Number of splits, fewer where a training takes long. Defaults to 2.
    """

    make: Callable[[int], Sides]
    draws: int
    most: int
    file: str | None = None
    num_splits: int = 2


unscaled = functools.partial(cases.breast_cancer, scaled=False)
CASES = {
    "wine": Case(cases.wine, 6, 1000),
    "breast cancer": Case(cases.breast_cancer, 6, 1000),
    "breast cancer, not scaled": Case(unscaled, 6, 1000),
    "MNIST, spectral": Case(cases.spectral, 1, 5000),
    "text": Case(cases.text, 1, 5000, "text"),
    "CIFAR-10": Case(cases.cifar10, 1, 1000, "cifar10", 1),
}


def grid() -> dict[str, dict[str, Any]]:
    """Return the settings of the trainings by their name, the chosen ones first."""
    found: dict[str, dict[str, Any]] = {CHOSEN: {}}
    for steps, rate, clip in itertools.product(STEPS, RATES, CLIPS):
        given = {"epochs": float(steps), "learning_rate": rate, "clip": clip}
        found[f"{steps} steps, rate {rate:g}, clip {clip:g}"] = given
    return found


def measured(case: Case, seed: int) -> dict[str, Any]:
    """Return the share of right labels of a split, by epsilon and setting, and its sizes."""
    sides = case.make(seed)
    classes = int(sides.truth.max()) + 1
    private = Records(sides.private[: case.most], sides.labels[: case.most].astype(np.int32))
    queries = Queries.alone(sides.public, np.arange(len(sides.public)))
    keys = jax.random.split(jax.random.key(seed), case.draws)
    right: dict[str, dict[str, float]] = {}
    for epsilon in EPSILONS:
        cell = right[f"{epsilon:g}"] = {}
        for name, given in grid().items():
            labeler = NoisySGD(epsilon=epsilon, delta=DELTA)
            if given:
                labeler = replace(labeler, **given, batch_size=len(private.labels))
            votes = labeler.contribute(keys[0], private, np.asarray, queries, classes)
            runs = [labeler.release(key, votes, queries, classes).labels for key in keys]
            cell[name] = statistics.mean(float(np.mean(run == sides.truth)) for run in runs)
    return {
        "num_records": len(private.labels),
        "num_features": sides.public.shape[1],
        "num_classes": classes,
        "right": right,
    }


def cells(name: str, splits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each epsilon, with means over the splits."""
    rows = []
    for epsilon in EPSILONS:
        each = [one["right"][f"{epsilon:g}"] for one in splits]
        right = {setting: statistics.mean(one[setting] for one in each) for setting in each[0]}
        best = max((setting for setting in right if setting != CHOSEN), key=right.__getitem__)
        sizes = {size: splits[0][size] for size in splits[0] if size.startswith("num_")}
        rows.append(
            {"case": name, **sizes, "epsilon": epsilon}
            | {"chosen": right[CHOSEN], "best": right[best], "best_setting": best, "right": right}
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far the choice, and each setting of the grid, is below the best of the cells."""
    below: dict[str, list[float]] = {}
    for row in rows:
        top = max(row["best"], row["chosen"])
        for setting, right in row["right"].items():
            below.setdefault(setting, []).append(top - right)
    told = {
        setting: {"mean": statistics.mean(gaps), "worst": max(gaps)}
        for setting, gaps in below.items()
    }
    constant = min((one for one in told if one != CHOSEN), key=lambda one: told[one]["mean"])
    return {"chosen": told[CHOSEN], "best_constant": {"setting": constant} | told[constant]}


def main() -> None:
    """Measure all splits, and write the results."""
    rows = []
    with _kept.parts("noisy_sgd_defaults") as folder:
        for name, case in CASES.items():
            missing = cases.Case(case.make, 0, case.file).missing()
            if missing:
                print(f"without {name}: {missing}")
                continue
            splits = [
                _kept.part(folder, f"{name}, {seed}", functools.partial(measured, case, seed))
                for seed in SEEDS[: case.num_splits]
            ]
            rows += cells(name, splits)
        spent = _kept.cpu_seconds(folder)
        results = {"summary": summary(rows), "cells": rows, "cpu_seconds": spent}
        save("noisy_sgd_defaults", results, delta=DELTA, seeds=SEEDS, relation="replace-one")


if __name__ == "__main__":
    main()

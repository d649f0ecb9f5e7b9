"""Clipping norm of noisy SGD where persons are protected, chosen on made-up persons.

    python -m benchmarks.noisy_sgd_persons

A person's gradient is the mean over 16 of the person's records. Where these are of several classes,
it is shorter than one record's, and a norm C of 1 adds noise for a length that no person has. The
persons here are made up of rows of scikit-learn's tables: 5 or 30 rows at random (`mixed`), or 30
of few classes (`few`). The clip that loses least to the best of each cell, in the mean of all
cells, is what `train.compare --unit person` gives to noisy SGD; of equals, the largest. MNIST's
writers judge it, in `benchmarks.persons labelers`.
"""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from sklearn.datasets import load_digits

from benchmarks import _decoding_cases as cases
from benchmarks import _kept
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.types import Queries, Records

CLIPS = (0.05, 0.1, 0.2, 0.5, 1.0)
EPSILONS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
SEEDS = (1, 2)
DRAWS = 2
PERSONS = (("mixed", 5), ("mixed", 30), ("few", 30))
"""Kinds of persons, and records of each."""

SETS: dict[str, Callable[[int], Sides]] = {
    "digits": functools.partial(cases.table, load_digits, 500),
    "wine": cases.wine,
    "breast cancer": cases.breast_cancer,
}


def persons(labels: np.ndarray, kind: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the person of each row, int `[n]`, from 0 on."""
    chance = (
        rng.permutation(len(labels)) if kind == "mixed" else labels + 2 * rng.random(len(labels))
    )
    person = np.empty(len(labels), int)
    person[np.argsort(chance)] = np.arange(len(labels)) // size
    return person


def measured(name: str, kind: str, size: int, seed: int) -> list[dict[str, Any]]:
    """Return the share of right labels of a split by epsilon and clip."""
    sides, rng = SETS[name](seed), np.random.default_rng(seed)
    classes = int(sides.truth.max()) + 1
    person = persons(sides.labels, kind, size, rng)
    private = Records(sides.private, sides.labels.astype(np.int32), clients=person)
    queries = Queries.alone(sides.public, np.arange(len(sides.public)))
    key = jax.random.key(seed)
    rows = []
    for epsilon in EPSILONS:
        right = {}
        for clip in CLIPS:
            labeler = NoisySGD(epsilon=epsilon, delta=DELTA, unit="person", clip=clip)
            votes = labeler.contribute(key, private, np.asarray, queries, classes)
            runs = [
                labeler.release(draw, votes, queries, classes).labels
                for draw in jax.random.split(key, DRAWS)
            ]
            right[f"{clip:g}"] = statistics.mean(float(np.mean(run == sides.truth)) for run in runs)
        about = {
            "case": name,
            "persons": kind,
            "records": size,
            "num_persons": int(person.max()) + 1,
        }
        rows.append(about | {"seed": seed, "epsilon": epsilon, "right": right})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how far each clip is below the best one of a cell, in the mean and at most."""
    below = {
        name: [max(row["right"].values()) - row["right"][name] for row in rows]
        for name in rows[0]["right"]
    }
    return {
        name: {"mean": statistics.mean(gaps), "worst": max(gaps)} for name, gaps in below.items()
    }


def main() -> None:
    """Measure all splits, and write the results."""
    with _kept.parts("noisy_sgd_persons") as folder:
        rows = [
            row
            for name in SETS
            for kind, size in PERSONS
            for seed in SEEDS
            for row in _kept.part(
                folder,
                f"{name}, {kind}, {size}, {seed}",
                functools.partial(measured, name, kind, size, seed),
            )
        ]
        results = {"below": summary(rows), "cells": rows}
        save("noisy_sgd_persons", results, delta=DELTA, seeds=SEEDS, draws=DRAWS)


if __name__ == "__main__":
    main()

"""Right labels by a release in one round, two and three, at the same epsilon in all.

The data sets are some of `benchmarks.measured`, three splits each that it does not use, and two
with more records. All records vote. The weights of the features that labels teach were chosen on
other splits of those with a *.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import _kept
from benchmarks import _measured_cases as cases
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks.measured import Nobody, plan_of, right
from rknn_jax.question import Before
from rknn_jax.release import label, planning, rounds

SEEDS = (100, 101, 102)
EPSILONS = (0.5, 1.0, 3.0)
ROUNDS = (1, 2, 3)
LOOKED_AT = (
    "MNIST",
    "CIFAR-10, HOG",
    "packages, 10 sections",
    "waves",
    "wrong labels",
    "lengths",
    "linear",
)


def linear(seed: int, num_private: int) -> Sides:
    """Return five linear classes in 20 dimensions, whose labels are noisy."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_private + 4000, 20))
    scores = rows @ rng.normal(size=(20, 5)) + rng.gumbel(size=(len(rows), 5))
    return cases._sides(rows, scores.argmax(axis=1), 4000)


def overlapping(seed: int, num_private: int) -> Sides:
    """Return 60 overlapping clouds of 10 classes in 10 dimensions."""
    rng = np.random.default_rng(seed)
    clouds = rng.integers(60, size=num_private + 4000)
    rows = 1.6 * rng.normal(size=(60, 10))[clouds] + rng.normal(size=(len(clouds), 10))
    return cases._sides(rows, rng.integers(10, size=60)[clouds], 4000)


DATA: dict[str, Callable[[int], Sides]] = {
    **{name: cases.CASES[name].make for name in (*LOOKED_AT, "MNIST, odd or even")},
    "linear, 50,000 records": functools.partial(linear, num_private=50_000),
    "overlapping clouds, 50,000 records": functools.partial(overlapping, num_private=50_000),
}


def released(sides: Sides, epsilon: float, num_rounds: int) -> float:
    """Return the share of right labels of one release."""
    first = plan_of(sides, epsilon, 0.0)
    settings = replace(first.settings, rounds=num_rounds)
    before: Before | None = None
    for one in rounds.of(settings):
        plan = planning.plan(one, first.data, before)
        counted = label.count(plan)
        drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
        found = plan.question.read(drawn)
        before = Before(found.probabilities, found.answers.guarantee)
    return right(found.probabilities, sides)


def cell(name: str, seed: int) -> dict[str, Any]:
    """Return the right labels of one split, for each epsilon and number of rounds."""
    sides = DATA[name](seed)
    found = {
        str(epsilon): [released(sides, epsilon, number) for number in ROUNDS]
        for epsilon in EPSILONS
    }
    print(name, seed, found)
    return {"data": name, "seed": seed, "right": found}


def main() -> None:
    """Measure all cells and save them."""
    about = {"seeds": list(SEEDS), "rounds": list(ROUNDS), "looked_at": list(LOOKED_AT)}
    with _kept.parts("rounds") as folder:
        rows = _kept.cells(folder, cell, DATA, SEEDS)
        save("rounds", rows, **about)


if __name__ == "__main__":
    main()

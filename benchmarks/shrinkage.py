"""Least squares with weights that shrink by the released sums, beside one prior for all axes.

The labels are arg maxes of the linear model, without shared rows. Data sets are those of
`benchmarks.measured`: the prior was chosen on `DEVELOPED`, among three, before the others were run.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import _kept
from benchmarks._measure import save
from benchmarks._measured_cases import CASES
from rknn_jax.labelers import least_squares
from rknn_jax.labelers.least_squares import LeastSquares
from rknn_jax.types import Queries

DEVELOPED = ("MNIST", "linear", "wrong labels", "clusters", "digits", "packages, 10 sections")
SEEDS = (0, 1, 2)
EPSILONS = (0.1, 0.5, 1.0, 3.0)
DRAWS = 3
PRIORS = {"one for all axes": (0.0,), "by the released sums": least_squares.POWERS}


def cells(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the accuracy with each prior, for each epsilon and noise, of one split."""
    sides = CASES[name].make(seed)
    truth, labels = np.asarray(sides[1]), np.asarray(sides[3], np.int32)
    num_classes = int(max(truth.max(), labels.max())) + 1
    queries = Queries.alone(sides[0], np.arange(len(truth)))
    for mechanism, epsilon in itertools.product(("laplace", "gaussian"), EPSILONS):
        labeler = LeastSquares(epsilon=epsilon, mechanism=mechanism)
        tally = labeler.tally(queries, num_classes)
        totals = tally.total(np.asarray(sides[2]), labels) * tally.grid
        right: dict[str, list[float]] = {prior: [] for prior in PRIORS}
        for number, (prior, powers) in itertools.product(range(DRAWS), PRIORS.items()):
            least_squares.POWERS = powers
            noise = labeler.simulated(jax.random.key(100 * seed + number))
            drawn = noise.draw(totals)
            found = labeler.read(drawn, noise.stddev, np.asarray, queries, noise.guarantee)
            right[prior].append(float(np.mean(found.labels[truth >= 0] == truth[truth >= 0])))
        means = {prior: float(np.mean(values)) for prior, values in right.items()}
        yield {"case": name, "seed": seed, "mechanism": mechanism, "epsilon": epsilon, **means}


def main() -> None:
    """Measure all data sets and save them."""
    with _kept.parts("shrinkage") as folder:
        rows = [row for rows in _kept.cells(folder, cells, CASES, SEEDS) for row in rows]
        save("shrinkage", {"cells": rows}, developed=DEVELOPED)


if __name__ == "__main__":
    main()

"""Labels read with the components of Gaussian mixtures among the kernels, and without.

Both read the same noisy counts, those of `rknn label` by default. Data sets are those of
`benchmarks.measured` and pairs of clouds, all of which were looked at when the rule was chosen, on
other splits, and `UNSEEN`, on which it ran once, for this table. `python -m benchmarks.components`
writes each data set as it comes, and continues.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import _decoding_cases as decoding
from benchmarks import _kept
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks._measured_cases import CASES
from benchmarks.measured import Nobody, plan_of, right
from rknn_jax.question import Question
from rknn_jax.release import label

SEEDS = (43, 44, 45)
EPSILONS = (0.1, 0.5, 1.0, 3.0)


def sides(rows: np.ndarray, classes: np.ndarray, num_public: int) -> Sides:
    """Return rows and classes as a public and a private side."""
    rows = rows.astype(np.float32)
    return Sides(rows[:num_public], classes[:num_public], rows[num_public:], classes[num_public:])


def covariances(seed: int) -> Sides:
    """Return 8 clouds in 20 dimensions, each with a covariance of its own."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(8, size=8000)
    turns = rng.normal(size=(8, 20, 20)) * np.geomspace(1.2, 0.1, 20)
    noise = np.einsum("nij,nj->ni", turns[classes], rng.normal(size=(8000, 20)))
    return sides(rng.normal(size=(8, 20))[classes] + 0.5 * noise, classes, 2000)


def clouds(
    seed: int,
    *,
    num_classes: int,
    width: int,
    spread: float,
    per_class: int = 1,
    num_rows: int = 8000,
    num_public: int = 2000,
) -> Sides:
    """Return classes of one or several clouds each, of unit variance in all directions.

    Args:
      seed: Seed of the split.
      num_classes: Number of classes.
      width: Number of dimensions.
      spread: Standard deviation of the centers in a dimension.
      per_class: Clouds of a class. Defaults to 1.
      num_rows: Number of rows. Defaults to 8,000.
      num_public: Number of public rows among them. Defaults to 2,000.
    """
    rng = np.random.default_rng(seed)
    number = rng.integers(num_classes * per_class, size=num_rows)
    centers = spread * rng.normal(size=(num_classes * per_class, width))
    rows = centers[number] + rng.normal(size=(num_rows, width))
    return sides(rows, number % num_classes, num_public)


def tails(seed: int) -> Sides:
    """Return 10 clouds in 30 dimensions with the tails of Student's t of 3 degrees of freedom."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(10, size=8000)
    rows = 0.8 * rng.normal(size=(10, 30))[classes] + rng.standard_t(3, size=(8000, 30))
    return sides(rows, classes, 2000)


def large_and_small(seed: int) -> Sides:
    """Return 8 classes of a cloud with most of their rows and one with few, in 60 dimensions."""
    rng = np.random.default_rng(seed)
    classes, small = rng.integers(8, size=8000), rng.random(8000) < 0.15
    rows = 0.4 * rng.normal(size=(16, 60))[classes + 8 * small] + rng.normal(size=(8000, 60))
    return sides(rows, classes, 2000)


def by_name(name: str, groups: int, seed: int) -> Sides:
    """Return a data set of `benchmarks.measured` whose classes are groups of its own."""
    split = CASES[name].make(seed)
    return split._replace(truth=split.truth % groups, labels=split.labels % groups)


def uneven(seed: int) -> Sides:
    """Return 15 clouds in 25 dimensions whose sizes differ by lognormal factors."""
    rng = np.random.default_rng(seed)
    share = np.exp(rng.normal(size=15))
    classes = rng.choice(15, size=8000, p=share / share.sum())
    rows = 0.7 * rng.normal(size=(15, 25))[classes] + rng.normal(size=(8000, 25))
    return sides(rows, classes, 2000)


def shells(seed: int) -> Sides:
    """Return 3 classes that are shells around one point, in 6 dimensions."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(3, size=8000)
    rows = rng.normal(size=(8000, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return sides(rows * (1 + classes + 0.15 * rng.normal(size=8000))[:, None], classes, 2000)


wide = functools.partial(
    clouds, num_classes=6, width=300, spread=0.2, num_rows=6000, num_public=1500
)
"""Six clouds that overlap in 300 dimensions."""

LOOKED_AT: dict[str, Callable[[int], Sides]] = {
    "pairs of clouds": functools.partial(clouds, num_classes=6, per_class=2, width=30, spread=0.55)
}
UNSEEN: dict[str, Callable[[int], Sides]] = {
    "covariances": covariances,
    "heavy tails": tails,
    "uneven clouds": uneven,
    "300 dimensions": wide,
    "shells": shells,
    "wine": decoding.wine,
    "breast cancer, not scaled": lambda seed: decoding.breast_cancer(seed, scaled=False),
    "three clouds a class": functools.partial(
        clouds, num_classes=5, per_class=3, width=40, spread=0.5
    ),
    "large and small clouds": large_and_small,
    "digits, five pairs": functools.partial(by_name, "digits", 5),
    "MNIST, five pairs": functools.partial(by_name, "MNIST", 5),
    "100 clouds of 50 classes": functools.partial(by_name, "100 classes", 50),
}


def without(question: Question) -> Question:
    """Return a question whose counts are read without the mixture."""
    side = question.public.side
    assert side.kernels is not None
    kernels = replace(side.kernels, components=())
    return replace(question, public=question.public._replace(side=side._replace(kernels=kernels)))


def cells(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of both readings for each epsilon of one split."""
    made = LOOKED_AT | UNSEEN
    split = made[name](seed) if name in made else CASES[name].make(seed)
    for epsilon in EPSILONS:
        plan = plan_of(split, epsilon, 0)
        counted = label.count(plan)
        drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
        found = {"with": plan.question.read(drawn), "without": without(plan.question).read(drawn)}
        told = {way: right(one.probabilities, split) for way, one in found.items()}
        said = {way: one.decoded.expected_accuracy for way, one in found.items() if one.decoded}
        yield {"case": name, "seed": seed, "epsilon": epsilon, "right": told, "said": said}


def main() -> None:
    """Measure all data sets and save them."""
    with _kept.parts("components") as folder:
        rows = [
            row
            for rows in _kept.cells(folder, cells, [*CASES, *LOOKED_AT, *UNSEEN], SEEDS)
            for row in rows
        ]
        save("components", {"cells": rows}, unseen=list(UNSEEN))


if __name__ == "__main__":
    main()

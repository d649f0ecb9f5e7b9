"""Right labels by the number of queries that `rknn label` chooses, and by 200, in many dimensions.

The rule was made on those with a *, after a first one had been wrong on lengths, whose clusters are
uneven for all rows alike. It changes no other data set of `benchmarks.measured` and
`benchmarks.components`. MNIST's pixels and text are as they are elsewhere, in all their dimensions.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks import _decoding_cases as decoding
from benchmarks import _measured_cases as cases
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks.components import clouds, sides, wide
from benchmarks.measured import Nobody, plan_of, right
from rknn_jax.queries import kmeans
from rknn_jax.release import label

SEEDS = (50, 51, 52)
EPSILONS = (0.3, 1.0, 3.0)
MOST = 200


def pixels(seed: int) -> Sides:
    """Return 1,500 public and 6,000 private digits by their 784 pixels."""
    task, rng = decoding.digits(seed), np.random.default_rng(seed)
    public = rng.permutation(len(task.public.images))[:1500]
    private = rng.permutation(len(task.private.images))[:6000]
    return Sides(
        _flat(task.public.images[public]),
        np.asarray(task.public.true_labels[public], int),
        _flat(task.private.images[private]),
        np.asarray(task.private.labels[private], int),
    )


def _flat(images: np.ndarray) -> np.ndarray:
    return np.asarray(images, np.float32).reshape(len(images), -1) / 255


def words(seed: int) -> Sides:
    """Return packages of ten sections by the TF-IDF of 1,000 words."""
    texts, sections = cases.packages_of(10)
    order = np.random.default_rng(seed).permutation(len(texts))[:8000]
    chosen = [texts[i] for i in order]
    found = TfidfVectorizer(sublinear_tf=True, max_features=1000).fit(chosen[:2000])
    return sides(found.transform(chosen).toarray(), sections[order], 2000)


def unseen(seed: int) -> Sides:
    """Return 12 clouds of three sizes in 500 dimensions, each twice as wide as the one before."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(12, size=8000)
    rows = 0.35 * rng.normal(size=(12, 500))[classes] + rng.normal(size=(8000, 500))
    return sides(rows * 2.0 ** (classes % 3)[:, None], classes, 2000)


def among_noise(seed: int) -> Sides:
    """Return digits whose pixels stand among 600 columns of noise of the same variance."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    noise = images.std() * rng.normal(size=(len(images), 600))
    return sides(np.concatenate([images, noise], axis=1)[order], digits[order], 500)


DATA: dict[str, Callable[[int], Sides]] = {
    "clouds, 300 dimensions *": wide,
    "clouds, 600 dimensions *": functools.partial(clouds, num_classes=10, width=600, spread=0.5),
    "faint clouds, 1,000 dimensions *": functools.partial(
        clouds, num_classes=4, width=1000, spread=0.12
    ),
    "MNIST, 784 pixels *": pixels,
    "packages, 1,000 words *": words,
    "lengths, 96 dimensions *": cases.lengths,
    "clouds of three sizes, 500 dimensions": unseen,
    "digits' 64 pixels among 600 of noise": among_noise,
}


def cells(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of one split by both numbers of queries, for each epsilon."""
    split = DATA[name](seed)
    reached = {str(s): kmeans.reached(split.public, s) for s in (25, 50, 100, 200)}
    for epsilon in EPSILONS:
        found = {}
        for way, queries in (("chosen", None), ("most", MOST)):
            plan = plan_of(split, epsilon, 0, queries)
            counted = label.count(plan)
            drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
            told = plan.question.read(drawn)
            asked = len(plan.question.public.queries.index)
            found[way] = {"queries": asked, "right": right(told.probabilities, split)}
        yield {"data": name, "seed": seed, "epsilon": epsilon, "reached": reached} | found


def main() -> None:
    """Measure all data sets and save them."""
    rows = []
    for name in DATA:
        for seed in SEEDS:
            rows += cells(name, seed)
        print(name, rows[-1])
    save("query_numbers", rows, seeds=list(SEEDS))


if __name__ == "__main__":
    main()

"""A person as the unit: labels of MNIST by writers, and of made-up persons of unequal size.

    python -m benchmarks.persons

`mnist` labels the public images by the digits of 539 writers, each protected as a whole. In the
central model they share a vote or m of their digits are drawn, beside the digit as the unit. In the
local and the shuffle model m digits are drawn whose messages share epsilon. `skewed` gives 2,000
made-up persons 1 to 1,000 records each. In its case `alike` every record is of any group. In
`apart` a person's records are all of one group, and persons with many favor the first groups.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import data
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.privacy import contributions
from rknn_jax.queries import kmeans
from rknn_jax.representations import spectral
from rknn_jax.types import Queries

SEEDS = (5, 6, 7)
DRAWS = 20
NUM_CLASSES = 10
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LOCAL = (1.0, 2.0, 4.0, 8.0)
MOST = (1, 10, 30, 100)
DELTA = 1e-5


def bounds(person: np.ndarray, seed: int) -> Iterator[tuple[str, contributions.Weights]]:
    """Yield each bound with the weights of the records."""
    yield "shared", contributions.shared(person)
    for most in MOST:
        yield f"{most} drawn", contributions.limited(person, person.astype(np.uint64), most, seed)


def central(
    key: jax.Array,
    cells: np.ndarray,
    weights: contributions.Weights,
    shape: tuple[int, int],
    eps: float,
) -> Iterator[tuple[np.ndarray, DiscreteLaplace]]:
    """Yield simulated noisy counts of `DRAWS` releases, in votes of persons, and the mechanism."""
    units = contributions.weighed_votes(cells, weights, shape[0] * shape[1])
    mechanism = DiscreteLaplace(eps, *shape, unit="person", grid=weights.grid)
    for draw in jax.random.split(key, DRAWS):
        yield np.asarray(mechanism.estimate(draw, units, 1)), mechanism


def mnist(seed: int) -> list[dict[str, Any]]:
    """Return the accuracy of the public labels for each unit, bound, trust and epsilon."""
    task, root = data.load("mnist", seed, mnist_folder()), jax.random.key(seed)
    config = spectral.Config(dimension=10)
    encode = spectral.fit(stage_key(root, Stage.ENCODER), task.public.images, config)
    public = np.asarray(encode(task.public.images))
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, 10)
    labels = task.private.labels
    features = encode(task.private.images)
    cells = np.asarray(rknn.connect(features, labels, queries, NUM_CLASSES, rknn.ReverseKNN()))
    _, person = np.unique(task.private.clients, return_inverse=True)
    truth = task.public.true_labels
    noise = stage_key(root, Stage.NOISE)

    def row(about: dict[str, Any], counts: list[np.ndarray], stddev: float) -> dict[str, Any]:
        right = [
            float(np.mean(_labels(each, stddev, queries)[queries.cluster] == truth))
            for each in counts
        ]
        return about | {"writers": int(person.max()) + 1, "label_accuracy": right}

    rows = []
    shape = (10, NUM_CLASSES)
    for eps in EPSILONS:
        alone = np.arange(len(cells))
        given = [("none", contributions.limited(alone, alone.astype(np.uint64), 1))]
        for name, weights in [*given, *bounds(person, seed)]:
            counts, made = zip(*central(noise, cells, weights, shape, eps), strict=True)
            unit = "record" if name == "none" else "person"
            about = {"unit": unit, "bound": name, "trust": "central", "epsilon": eps}
            rows.append(row(about, list(counts), made[0].noise_stddev))
    for trust in ("local", "shuffle"):
        for eps in LOCAL:
            for most in (1, 4):
                about = {"unit": "person", "bound": f"{most} drawn"}
                about |= {"trust": trust, "epsilon": eps}
                counts, stddev = messages(noise, cells, person, trust, eps, most)
                rows.append(row(about, counts, stddev))
    return rows


def messages(
    key: jax.Array, cells: np.ndarray, person: np.ndarray, trust: Any, eps: float, most: int
) -> tuple[list[np.ndarray], float]:
    """Return the estimates of persons who send `most` messages at epsilon / `most` each.

    In the shuffle model each message hides among those of the other persons, and a person's
    messages compose to epsilon and delta.
    """
    drawn = contributions.limited(person, person.astype(np.uint64), most).units > 0
    config = rknn.ReverseKNN(
        epsilon=eps / most, delta=DELTA / most, trust=trust, mechanism="collision"
    )
    others = int(person.max()) + 1
    mechanism = rknn.mechanism(10, NUM_CLASSES, others, config)
    keys = jax.random.split(key, DRAWS)
    counts = [np.asarray(estimate_counts(mechanism, each, cells[drawn])) for each in keys]
    return counts, float(np.mean(mechanism.stddev(counts[0], int(drawn.sum()))))


def _labels(counts: np.ndarray, stddev: float, queries: Queries) -> np.ndarray:
    spread = np.full(counts.shape, stddev, np.float32)
    return rknn.answer(counts, spread, None, queries, rknn.ReverseKNN()).labels  # type: ignore[arg-type]


def skewed(case: str, seed: int) -> list[dict[str, Any]]:
    """Return the share of queries with the right label, for 100 groups of queries in 10 classes."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.zipf(1.3, 2000), 1000)
    person = np.repeat(np.arange(2000), sizes)
    group = rng.integers(0, 100, len(person))
    if case == "apart":
        favored = np.minimum(rng.exponential(3000 / (30 + 30 * sizes)), 99).astype(int)
        group = favored[person]
    noisy = rng.random(len(person)) < 0.3
    label = np.where(noisy, rng.integers(0, NUM_CLASSES, len(person)), group % NUM_CLASSES)
    cells = (group * NUM_CLASSES + label)[:, None]
    rows = []
    for eps in EPSILONS:
        for name, weights in bounds(person, seed):
            key = stage_key(jax.random.key(seed), Stage.NOISE)
            found = [
                float(np.mean(counts.argmax(axis=1) == np.arange(100) % NUM_CLASSES))
                for counts, _ in central(key, cells, weights, (100, NUM_CLASSES), eps)
            ]
            about = {"case": case, "bound": name, "epsilon": eps, "records": len(person)}
            rows.append(about | {"queries_right": found})
    return rows


def over_seeds(parts: list[list[dict[str, Any]]], measured: str) -> list[dict[str, Any]]:
    """Return rows with the mean over splits, and the worst release of all."""
    rows = []
    for same in zip(*parts, strict=True):
        values = [value for row in same for value in row[measured]]
        means = [float(np.mean(row[measured])) for row in same]
        rows.append(same[0] | {measured: summary(means) | {"worst": min(values)}})
    return rows


def main() -> None:
    """Measure both, and write the results."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    made_up = [
        row
        for case in ("alike", "apart")
        for row in over_seeds([skewed(case, seed) for seed in SEEDS], "queries_right")
    ]
    print("skewed", file=sys.stderr)
    writers = over_seeds([mnist(seed) for seed in SEEDS], "label_accuracy")
    results = {"mnist": writers, "skewed": made_up}
    save("persons", results, seeds=SEEDS, draws=DRAWS, delta=DELTA, simulated_noise=True)


if __name__ == "__main__":
    main()

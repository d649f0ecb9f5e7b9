"""Labels of public rows by each labeler, over epsilon and the number of private records.

    python -m benchmarks.rivals

With `--resume`, a later call keeps the data sets that are measured, and goes on with the others.

All labelers have the same rows, features, splits and delta, and their default settings, which
depend on public quantities alone. `by hand` has no private record: a person names the rows that
stand for the queries, and each row shares the name of its query. That is where every comparison
starts. Labels of clusters and of sampled queries spread over the public neighbor graph, as in
`train.distill`. Labelers that answer every row are shown as they are and, as `spread`, over the
same graph, with the strength of as many queries as classes. Spreading is post-processing.

MNIST has 50 principal components of its public rows. Public and private rows are different training
images; on these images no setting was chosen. In `MNIST, private long tail`, the private classes
fall evenly from all to a hundredth, and the public ones do not.
"""

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from benchmarks._measure import RESULTS, mnist_folder, save, summary
from rknn_jax import bsvs, data, postprocessing
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.individual_knn import IndividualKNN
from rknn_jax.labelers.least_squares import LeastSquares
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.labelers.public_prototypes import PublicPrototypes
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.neighbor_graph import self_graph
from rknn_jax.queries import kmeans
from rknn_jax.types import Answers, Queries, Records

SEEDS = (30, 31, 32, 33, 34)
DRAWS = 3
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
DELTA = 1e-5
NUM_CLASSES = 10
TAIL = "MNIST, private long tail"
SIZES = {"digits": (300, 1297), "MNIST": (2000, 10_000, 50_000), TAIL: (10_000,)}
"""Numbers of private records of each data set."""
PUBLIC = {"digits": 500, "MNIST": 4000, TAIL: 4000}
ROWS_PER_QUERY = 5
MOST_QUERIES = 1000

HEADS: tuple[Labeler[Any], ...] = (
    Prototypes(delta=DELTA),
    Prototypes(delta=DELTA, mechanism="laplace"),
    PublicPrototypes(delta=DELTA),
    LeastSquares(delta=DELTA),
    LeastSquares(delta=DELTA, mechanism="laplace"),
)
"""Labelers that answer all public rows by one release."""


class Split(NamedTuple):
    """Public rows with their classes, their neighbor graph, and private records.

    Attributes:
      public: float32 `[m, f]`.
      truth: int `[m]`.
      graph: Neighbor graph of the public rows.
      private: Private records, whose images are features `[n, f]`.
    """

    public: np.ndarray
    truth: np.ndarray
    graph: Any
    private: Records


class Found(NamedTuple):
    """Labels of one release.

    Attributes:
      method: Name of the labeler and of its reading.
      epsilon: Epsilon of the release.
      labels: int `[m]`.
    """

    method: str
    epsilon: float
    labels: np.ndarray


@functools.cache
def images() -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's training images, float32 `[60000, 784]`, and their classes."""
    private = data.load("mnist", 0, mnist_folder()).private
    rows = private.images.reshape(len(private.images), -1) / np.float32(255)
    return rows, private.labels


def split(name: str, seed: int) -> Split:
    """Return a split of one data set, with as many private records as there are."""
    rows, classes = load_digits(return_X_y=True) if name == "digits" else images()
    order = np.random.default_rng(seed).permutation(len(rows))
    public, private = order[: PUBLIC[name]], order[PUBLIC[name] :]
    if name == TAIL:
        shares = 100.0 ** (-np.arange(NUM_CLASSES) / (NUM_CLASSES - 1))
        luck = np.random.default_rng(seed).random(len(private))
        private = private[luck < shares[classes[private]]]
    private = private[: max(SIZES[name])]
    encoder = StandardScaler() if name == "digits" else PCA(50, random_state=seed)
    encoder.fit(rows[public])
    features = [encoder.transform(rows[each]).astype(np.float32) for each in (public, private)]
    records = Records(features[1], classes[private].astype(np.int32))
    return Split(features[0], classes[public], self_graph(features[0]), records)


def first(sides: Split, size: int) -> Split:
    """Return the split with the first private records alone."""
    few = Records(sides.private.images[:size], sides.private.labels[:size])
    return sides._replace(private=few)


def spread(sides: Split, queries: Queries, probabilities: np.ndarray) -> np.ndarray:
    """Return labels of all rows, spread from their queries over the graph."""
    own = np.where((queries.cluster >= 0)[:, None], probabilities[queries.cluster], 0)
    size = len(queries.features)
    labels: np.ndarray = postprocessing.public_labels(sides.graph, own, size).argmax(axis=1)
    return labels


def by_hand(sides: Split, seed: int) -> Iterator[Found]:
    """Yield labels from true classes of as many queries as classes, and of four times as many."""
    for size in (NUM_CLASSES, 4 * NUM_CLASSES):
        queries = kmeans.select(jax.random.key(seed), sides.public, size)
        named = np.eye(NUM_CLASSES, dtype=np.float32)[sides.truth[queries.index]]
        yield Found(f"by hand, {size} labels", 0.0, spread(sides, queries, named))


def reverse_knn(sides: Split, seed: int) -> Iterator[Found]:
    """Yield labels of reverse k-NN labeling, with the number of queries that n and epsilon suit."""
    size = len(sides.private.labels)
    asked: dict[int, Any] = {}
    for epsilon in EPSILONS:
        labeler = ReverseKNN(epsilon=epsilon)
        count = bsvs.suggested_num_queries(size, NUM_CLASSES, 2 / epsilon, 1, shared=True)
        if count not in asked:
            queries = kmeans.select(jax.random.key(seed), sides.public, count)
            # What the records contribute does not depend on epsilon.
            asked[count] = queries, list(_runs(labeler, sides, queries, seed))
        queries, runs = asked[count]
        for key, votes in runs:
            told = labeler.release(key, votes, queries, NUM_CLASSES)
            yield Found(labeler.name, epsilon, spread(sides, queries, told.probabilities))


def heads(sides: Split, seed: int) -> Iterator[Found]:
    """Yield labels of the labelers that answer all rows by one release."""
    queries = Queries.alone(sides.public, np.arange(len(sides.public)))
    for labeler in HEADS:
        runs = list(_runs(labeler, sides, queries, seed))
        mechanism = getattr(labeler, "mechanism", "")
        name = f"{labeler.name}, {mechanism}" if mechanism else labeler.name
        for epsilon in EPSILONS:
            chosen = replace(labeler, epsilon=epsilon)
            for key, votes in runs:
                key = jax.random.fold_in(key, round(1000 * epsilon))
                told = chosen.release(key, votes, queries, NUM_CLASSES)
                yield from _alone_and_spread(name, epsilon, sides, told)


def _alone_and_spread(name: str, epsilon: float, sides: Split, told: Answers) -> Iterator[Found]:
    """Yield the labels of all rows as they are, and spread over the graph."""
    yield Found(name, epsilon, told.labels)
    shared = postprocessing.public_labels(sides.graph, told.probabilities, NUM_CLASSES)
    yield Found(f"{name}, spread", epsilon, shared.argmax(axis=1))


def individual(sides: Split, seed: int) -> Iterator[Found]:
    """Yield labels of Ind-KNN, which is asked about one row of five."""
    size = min(MOST_QUERIES, len(sides.public) // ROWS_PER_QUERY)
    index = np.random.default_rng(seed).permutation(len(sides.public))[:size]
    queries = Queries.alone(sides.public, index)
    for epsilon in EPSILONS:
        labeler = IndividualKNN(epsilon=epsilon, delta=DELTA)
        for key, votes in _runs(labeler, sides, queries, seed):
            told = labeler.release(key, votes, queries, NUM_CLASSES)
            yield Found(labeler.name, epsilon, spread(sides, queries, told.probabilities))


def noisy_sgd(sides: Split, seed: int) -> Iterator[Found]:
    """Yield labels of a linear head, trained once at each epsilon."""
    queries = Queries.alone(sides.public, np.arange(len(sides.public)))
    for epsilon in EPSILONS:
        labeler = NoisySGD(epsilon=epsilon, delta=DELTA)
        key, votes = next(_runs(labeler, sides, queries, seed))
        told = labeler.release(key, votes, queries, NUM_CLASSES)
        yield from _alone_and_spread(labeler.name, epsilon, sides, told)


def _runs(
    labeler: Labeler[Any], sides: Split, queries: Queries, seed: int
) -> Iterator[tuple[jax.Array, Any]]:
    """Yield a key of the noise for each draw, and what the private records contribute."""
    contribute_key, noise_key = jax.random.split(jax.random.key(seed))
    votes = labeler.contribute(contribute_key, sides.private, np.asarray, queries, NUM_CLASSES)
    for draw in range(DRAWS):
        yield jax.random.fold_in(noise_key, draw), votes


METHODS: tuple[Callable[[Split, int], Iterator[Found]], ...] = (
    reverse_knn,
    heads,
    individual,
    noisy_sgd,
)


def told(runs: dict[int, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return means over splits, with the worst release and the worst class of any.

    Args:
      runs: Share of right labels, of all and of the worst class, of each release, by seed.
    """
    accuracy = [float(np.mean([right for right, _ in each])) for each in runs.values()]
    every = [release for each in runs.values() for release in each]
    return {
        "label_accuracy": summary(accuracy) | {"worst": min(right for right, _ in every)},
        "worst_class": summary([float(np.mean([c for _, c in each])) for each in runs.values()])
        | {"worst": min(worst for _, worst in every)},
    }


def rights(labels: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the share of right labels, of all and of the worst class."""
    right = labels == truth
    classes = [float(right[truth == label].mean()) for label in range(NUM_CLASSES)]
    return float(right.mean()), min(classes)


def rounded(told: Any) -> Any:
    """Return a row with five digits, as a release labels a few thousand rows."""
    if isinstance(told, dict):
        return {name: rounded(value) for name, value in told.items()}
    if isinstance(told, list):
        return [rounded(value) for value in told]
    return round(told, 5) if isinstance(told, float) else told


def measured(name: str) -> list[dict[str, Any]]:
    """Return a row for each size, method and epsilon of a data set."""
    runs: dict[tuple[int, str, float], dict[int, list[tuple[float, float]]]] = {}
    for seed in SEEDS:
        whole = split(name, seed)
        found = [(0, one) for one in by_hand(whole, seed)]
        for size in SIZES[name]:
            for method in METHODS:
                start = time.perf_counter()
                found += [(size, one) for one in method(first(whole, size), seed)]
                spent = time.perf_counter() - start
                print(name, seed, size, method.__name__, f"{spent:.0f} s", file=sys.stderr)
        for size, one in found:
            cell = runs.setdefault((size, one.method, one.epsilon), {})
            cell.setdefault(seed, []).append(rights(one.labels, whole.truth))
    return [
        {"dataset": name, "num_records": size, "method": method, "epsilon": epsilon} | told(cell)
        for (size, method, epsilon), cell in runs.items()
    ]


def main() -> None:
    """Measure the data sets and write the results."""
    path = RESULTS / "rivals.json"
    resumed = "--resume" in sys.argv and path.exists()
    rows = json.loads(path.read_text())["results"] if resumed else []
    known = {row["dataset"] for row in rows}
    rows += [row for name in SIZES if name not in known for row in measured(name)]
    save("rivals", rounded(rows), seeds=SEEDS, draws=DRAWS, delta=DELTA, relation="replace-one")


if __name__ == "__main__":
    main()

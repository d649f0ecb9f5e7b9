"""Public labels by every labeler, over epsilon, private records, and how pure public clusters are.

    python -m benchmarks.rivals

All labelers have the same rows, features, splits and delta. Their settings are defaults or follow
from public quantities. Representations never met these rows, but the decoder was developed on
others of the same data sets: MNIST's test images as public rows, and 12,000 of CIFAR-10's images.

`by hand` has no private record: a person names the public row in the middle of each cluster. That
is where every comparison starts. Its labels are read by the decoder of labels without counts. So
one can say how many labels by hand give what the private records give.

Reverse k-NN and the labelers of one sum are read as in `rknn label`. Labelers that pay for every
query have one for each public row that they ask about, and their labels spread over the graph.
Private-kNN and PATE have their papers' settings where there are enough records for them.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.sparse import csr_matrix

from benchmarks import _decoding_cases as cases
from benchmarks import _kept, choosing
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save, summary
from benchmarks._rival_spaces import NUM_PUBLIC, SIZES, SPACES, WIDE
from rknn_jax import answers, bsvs, postprocessing
from rknn_jax.labelers import Labeler, _vote_mechanism
from rknn_jax.labelers.individual_knn import IndividualKNN
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels, PublicSide
from rknn_jax.queries import kmeans
from rknn_jax.records.classes import Classes
from rknn_jax.release import inputs
from rknn_jax.types import Answers, Queries, Records

NUM_CLASSES = 10
EPSILONS = choosing.EPSILONS
SEEDS = (0, 1, 2)
DRAWS = 2
DELTA = 1e-5
BY_HAND = (10, 20, 50, 100, 200, 500)
"""Numbers of labels by hand."""
MOST_QUERIES = 1000
FEW_QUERIES = 100
ENOUGH = 1.0
"""Epsilon from which on Private-kNN and PATE are asked more than a few queries."""
ONE_SUM = (
    ("class means", "prototypes", DELTA),
    ("public prototypes", "public_prototypes", 0.0),
    ("least squares", "least_squares", DELTA),
)
"""Name, labeler and delta of the labelers of one sum."""


class Split(NamedTuple):
    """Public rows with their classes and neighbor graph, and private records.

    Attributes:
      sides: Public and private rows with their classes.
      graph: Neighbor graph of the public rows.
      private: Private records, whose images are features `[n, f]`.
      seed: Seed of the split.
    """

    sides: Sides
    graph: csr_matrix
    private: Records
    seed: int


class Found(NamedTuple):
    """Labels of one release.

    Attributes:
      method: Name of the labeler.
      epsilon: Epsilon of the release.
      labels: int `[m]`.
    """

    method: str
    epsilon: float
    labels: np.ndarray


@functools.cache
def whole(space: str, seed: int) -> tuple[Sides, csr_matrix]:
    """Return the rows of a split, and the graph of the public ones."""
    sides = SPACES[space].make(seed)
    return sides, postprocessing.public_graph(sides.public, NUM_CLASSES)


def split(space: str, seed: int, size: int) -> Split:
    """Return a split with so many private records."""
    sides, graph = whole(space, seed)
    few = sides._replace(private=sides.private[:size], labels=sides.labels[:size])
    records = Records(few.private, few.labels.astype(np.int32))
    return Split(few, graph, records, seed)


def purity(space: str, seed: int) -> float:
    """Return the share of public rows in the most frequent class of their cluster, of ten."""
    sides, _ = whole(space, seed)
    queries = kmeans.select(jax.random.key(seed), sides.public, NUM_CLASSES)
    counts = np.zeros((NUM_CLASSES, NUM_CLASSES))
    np.add.at(counts, (queries.cluster, sides.truth), 1)
    return float(counts.max(axis=1).sum() / counts.sum())


def by_hand(queries: Queries, truth: np.ndarray, kernels: answers.Kernels) -> np.ndarray:
    """Return the labels of all rows from the true classes of the queries."""
    return answers.decode_labels(truth[queries.index], NUM_CLASSES, kernels).argmax(axis=1)


def one_release(one: Split) -> Iterator[Found]:
    """Yield labels of `rknn label` with each of its labelers."""
    sides = one.sides
    rows = inputs.data_of(
        sides.public, sides.private, sides.labels.astype(np.int32), Classes(NUM_CLASSES)
    )
    asked = choosing.asked(choosing.Public(rows, one.graph, one.seed), ONE_SUM)
    for number, (name, epsilon, question, totals) in enumerate(asked):
        for draw in range(DRAWS):
            key = jax.random.fold_in(jax.random.key(one.seed), 1000 * number + draw)
            drawn = choosing.drawn(question, totals, key)
            yield Found(name, epsilon, question.read(drawn).labels)


def without_curator(trust: str, one: Split) -> Iterator[Found]:
    """Yield labels of reverse k-NN labeling by randomized messages, with default mechanisms."""
    asked: dict[int, tuple[Queries, answers.Kernels]] = {}
    for epsilon in EPSILONS:
        labeler = ReverseKNN(epsilon=epsilon, delta=DELTA, trust=trust)
        count = suggested(labeler, len(one.private.labels))
        if count not in asked:
            queries = kmeans.select(jax.random.key(one.seed), one.sides.public, count)
            asked[count] = queries, answers.kernels(queries, one.sides.public, one.graph)
        queries, kernels = asked[count]
        for told in releases(labeler, one, queries):
            decoded = answers.decode(told.counts, told.stddev, kernels)
            yield Found(f"rknn, {trust}", epsilon, decoded.labels)


def suggested(labeler: ReverseKNN, size: int) -> int:
    """Return the default number of queries for so many records, as in `train.distill`.

    Without a curator, it is that of Laplace noise of the same spread.
    """
    mechanism = _vote_mechanism.calibrated(NUM_CLASSES, NUM_CLASSES, size, labeler)
    spread = mechanism.stddev(np.zeros((NUM_CLASSES, NUM_CLASSES)), size)
    scale = float(spread[0, 0]) / np.sqrt(2)
    return bsvs.suggested_num_queries(size, NUM_CLASSES, scale, 1, shared=True)


def trained(one: Split) -> Iterator[Found]:
    """Yield labels of a linear head that noisy SGD trains once, spread over the graph."""
    queries = Queries.alone(one.sides.public, np.arange(len(one.sides.public)))
    for epsilon in EPSILONS:
        yield from paid(NoisySGD(epsilon=epsilon, delta=DELTA), one, queries, 1)


def asked_rows(one: Split) -> Iterator[Found]:
    """Yield labels of labelers that pay for every query."""
    size = len(one.private.labels)
    neighbors = min(PrivateKNN.num_neighbors, size // 30)
    teachers = min(PATE.num_teachers, size // 25)
    for epsilon in EPSILONS:
        several = MOST_QUERIES if epsilon >= ENOUGH else FEW_QUERIES
        common = {"epsilon": epsilon, "delta": DELTA}
        kinds: tuple[tuple[Labeler[Any], int], ...] = (
            (IndividualKNN(**common), MOST_QUERIES),
            (PrivateKNN(**common, num_neighbors=neighbors), several),
            (PATE(**common, num_teachers=teachers), several),
        )
        for labeler, count in kinds:
            order = np.random.default_rng(one.seed).permutation(len(one.sides.public))
            yield from paid(labeler, one, Queries.alone(one.sides.public, order[:count]))


def paid(
    labeler: Labeler[Any], one: Split, queries: Queries, draws: int = DRAWS
) -> Iterator[Found]:
    """Yield labels of each draw, spread from the answered rows over the graph."""
    nothing = Labels.none(len(one.sides.public), NUM_CLASSES)
    for told in releases(labeler, one, queries, draws):
        labels = nothing.after(queries, told, 0, PublicSide(one.graph))
        yield Found(labeler.name, labeler.epsilon, labels.hard)


def releases(
    labeler: Labeler[Any], one: Split, queries: Queries, draws: int = DRAWS
) -> Iterator[Answers]:
    """Yield the answers of each draw of the noise."""
    contribute_key, noise_key = jax.random.split(jax.random.key(one.seed))
    noise_key = jax.random.fold_in(noise_key, round(1000 * labeler.epsilon))
    given = labeler.contribute(contribute_key, one.private, np.asarray, queries, NUM_CLASSES)
    for draw in range(draws):
        key = jax.random.fold_in(noise_key, draw)
        yield labeler.release(key, given, queries, NUM_CLASSES)


METHODS: dict[str, Callable[[Split], Iterator[Found]]] = {
    "one release": one_release,
    "asked rows": asked_rows,
    "local": functools.partial(without_curator, "local"),
    "shuffle": functools.partial(without_curator, "shuffle"),
    "trained": trained,
}


def seeds_of(space: str, size: int, method: str) -> tuple[int, ...]:
    """Return the splits. Noisy SGD on many wide rows has none: half an hour of CPU time each."""
    long = method == "trained" and space == WIDE and size == max(SIZES)
    return () if long else SEEDS


def rights(labels: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the share of right labels, of all and of the worst class."""
    right = labels == truth
    classes = [float(right[truth == label].mean()) for label in range(NUM_CLASSES)]
    return {"right": round(float(right.mean()), 5), "worst_class": round(min(classes), 5)}


def measured(space: str, seed: int, size: int, method: str) -> list[dict[str, Any]]:
    """Return the accuracy of every release of one part."""
    one = split(space, seed, size)
    return [
        {"method": found.method, "epsilon": found.epsilon} | rights(found.labels, one.sides.truth)
        for found in METHODS[method](one)
    ]


def nothing_private(space: str, seed: int) -> dict[str, Any]:
    """Return how pure clusters are, and the accuracy of labels by hand."""
    sides, graph = whole(space, seed)
    frequent = np.bincount(sides.truth).max() / len(sides.truth)
    hand = []
    for size in BY_HAND:
        queries = kmeans.select(jax.random.key(seed), sides.public, size)
        kernels = answers.kernels(queries, sides.public, graph)
        labels = by_hand(queries, sides.truth, kernels)
        hand.append({"labels": size} | rights(labels, sides.truth))
    return {"purity": purity(space, seed), "one_class": float(frequent), "by_hand": hand}


def part(folder: Path, space: str, seed: int, size: int, method: str) -> Any:
    """Return the accuracies of one part."""
    name = f"{space}, {seed}, {size}, {method}"
    return _kept.part(folder, name, lambda: measured(space, seed, size, method))


def free(folder: Path, space: str, seed: int) -> Any:
    """Return what a split gives with no private record."""
    return _kept.part(folder, f"{space}, {seed}", lambda: nothing_private(space, seed))


def told(runs: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Return means over splits, with the worst release and the worst class of any.

    Args:
      runs: Accuracies of each release, by split.
    """
    accuracy = [float(np.mean([run["right"] for run in each])) for each in runs]
    classes = [float(np.mean([run["worst_class"] for run in each])) for each in runs]
    every = [run for each in runs for run in each]
    return {
        "label_accuracy": summary(accuracy) | {"worst": min(run["right"] for run in every)},
        "worst_class": summary(classes) | {"worst": min(run["worst_class"] for run in every)},
    }


def rows_of(folder: Path, space: str, size: int) -> list[dict[str, Any]]:
    """Return a row for each labeler and epsilon."""
    runs: dict[tuple[str, float], list[list[dict[str, float]]]] = {}
    for method in METHODS:
        for seed in seeds_of(space, size, method):
            mine: dict[tuple[str, float], list[dict[str, float]]] = {}
            for run in part(folder, space, seed, size, method):
                mine.setdefault((run["method"], run["epsilon"]), []).append(run)
            for cell, each in mine.items():
                runs.setdefault(cell, []).append(each)
    about = {"space": space, "num_records": size}
    return [
        about | {"method": method, "epsilon": epsilon} | told(each)
        for (method, epsilon), each in runs.items()
    ]


def without_records(folder: Path, space: str) -> dict[str, Any]:
    """Return what public data give without a private record, over splits."""
    splits = [free(folder, space, seed) for seed in SEEDS]
    hand = []
    for number, size in enumerate(BY_HAND):
        runs = [[one["by_hand"][number]] for one in splits]
        hand.append({"labels": size} | told(runs))
    return {
        "purity": float(np.mean([one["purity"] for one in splits])),
        "one_class": float(np.mean([one["one_class"] for one in splits])),
        "by_hand": hand,
    }


def main() -> None:
    """Measure all parts, and write the results."""
    spaces = []
    for name, space in SPACES.items():
        if reason := cases.Case(space.make, 0, space.file).missing():
            print(f"skipped {name}: {reason}", flush=True)
        else:
            spaces.append(name)
    splits = [(name, seed) for seed in SEEDS for name in spaces]
    with _kept.parts("rivals") as folder:
        for name, seed in splits:
            free(folder, name, seed)
        for method, (name, seed), size in itertools.product(METHODS, splits, SIZES):
            if seed in seeds_of(name, size, method):
                part(folder, name, seed, size, method)
        rows = [row for name in spaces for size in SIZES for row in rows_of(folder, name, size)]
        save(
            "rivals",
            {
                "rows": rows,
                "nothing_private": {name: without_records(folder, name) for name in spaces},
            },
            seeds=SEEDS,
            draws=DRAWS,
            delta=DELTA,
            num_public=NUM_PUBLIC,
            cpu_seconds=_kept.cpu_seconds(folder),
            relation="replace-one",
            simulated_noise=True,
        )


if __name__ == "__main__":
    main()

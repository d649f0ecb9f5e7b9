"""CIFAR-10's part of Table 1 of Li et al. on features of a public network, row by row.

    RKNN_CIFAR10_FEATURES=FILE python -m benchmarks.cifar10_rows

The file is that of `_decoding_cases`, with all 60,000 images of CIFAR-10. A split by its seed has
the sizes of Li et al.: 30,000 public rows, 29,000 private records and 1,000 test rows. The protocol
is richer than theirs. Their features come from the public images alone, these from a network that
was trained on ImageNet. So the numbers do not compare with the printed ones.

The student of every row is softmax regression on the features of the public rows, with the labels
of that row. Noisy SGD trains networks itself, which are tested instead. It takes the first
principal components of the public rows, as many as the features of Li et al., because noise and
time grow with the width.

`arg max` gives each public row the class with the most votes in its query, as published. `default`
is `rknn_jax.answers`. Every split has one draw of the noise. Private-kNN and PATE have the noise of
their papers, at what it costs.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from benchmarks import _decoding_cases as cases
from benchmarks import _kept, rivals
from benchmarks._measure import save, summary
from benchmarks.rivals import NUM_CLASSES
from rknn_jax import answers, postprocessing
from rknn_jax.labelers import pate, private_knn
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy import accounting
from rknn_jax.queries import kmeans
from rknn_jax.types import Answers, Queries, Records

NUM_PUBLIC = 30_000
NUM_PRIVATE = 29_000
NUM_TEST = 1000
DELTA = 1e-5
DELTA_OF_SGD = 1 / NUM_PRIVATE
COMPONENTS = 128
"""Width of the features of noisy SGD, that of Li et al."""

GENERAL = {1.0: "labels 77.1%, student 82.1%", 0.29: "labels 73.9%, student 79.4%"}
END_TO_END = {0.01: "labels 85.9%, student 86.1%", 0.005: "labels 85.7%, student 86.0%"}
HEADS = {"linear": "student 73.7% at 4", "mlp": "student 78.5% at 4"}
"""Numbers that Li et al. print."""

EPSILONS = (0.01, 0.1, 1.0)
LOCAL = (1.0, 2.0, 4.0)
OF_SGD = (1.0, 4.0)
BY_HAND = (10, 100, 500)

PRIVATE_KNN = PrivateKNN(
    delta=DELTA,
    num_neighbors=300,
    sampling_prob=0.2,
    threshold=210 / 300,
    ratio=85 / 20,
    max_answers=3877,
)
PRIVATE_KNN_QUERIES = 18_000
PRIVATE_KNN_NOISE = (85.0, 20.0)
PATE_QUERIES = 640
PATE_NOISE = (150.0, 40.0)
TEACHERS = PATE(delta=DELTA, max_answers=286)
"""Settings and noise of the papers: Private-kNN's for CIFAR-10, and PATE's for MNIST.

PATE's paper has no CIFAR-10. The noise is that of the screen and of the counts, in votes.
"""

QUERIES = (10, 50, 100, 200, 500, 1000)
NEIGHBORS = (1, 4)
"""Queries s and neighbors k of the figure."""


class Split(NamedTuple):
    """Public, private and test rows, with the neighbor graph of the public ones.

    Attributes:
      rows: Public rows, private records, graph and seed.
      test: Features of the test rows, float32 `[1000, f]`.
      classes: Classes of the test rows, int `[1000]`.
    """

    rows: rivals.Split
    test: np.ndarray
    classes: np.ndarray


class Found(NamedTuple):
    """Labels of one release.

    Attributes:
      name: Name of the row.
      epsilon: Epsilon of the release.
      labels: int `[m]`.
      test_accuracy: Accuracy of a network of its own. Defaults to None: a student is trained.
      printed: What the paper prints. Defaults to nothing.
      queries: Number of queries. Defaults to none.
    """

    name: str
    epsilon: float
    labels: np.ndarray
    test_accuracy: float | None = None
    printed: str = ""
    queries: int | None = None


@functools.lru_cache(1)
def split(seed: int) -> Split:
    """Return a split. Raises ValueError if the file has other rows than those 60,000."""
    sides = cases.file("cifar10", NUM_PUBLIC, NUM_PRIVATE + NUM_TEST, seed)
    if len(sides.private) < NUM_PRIVATE + NUM_TEST:
        raise ValueError(
            f"Expected {NUM_PUBLIC + NUM_PRIVATE + NUM_TEST} rows in {cases.FILES['cifar10']}, got "
            f"{NUM_PUBLIC + len(sides.private)}; embed the training and the test images."
        )
    test, classes = sides.private[NUM_PRIVATE:], sides.labels[NUM_PRIVATE:]
    sides = sides._replace(private=sides.private[:NUM_PRIVATE], labels=sides.labels[:NUM_PRIVATE])
    records = Records(sides.private, sides.labels.astype(np.int32))
    graph = postprocessing.public_graph(sides.public, NUM_CLASSES)
    return Split(rivals.Split(sides, graph, records, seed), test, classes)


@functools.lru_cache(16)
def asked(seed: int, size: int) -> Queries:
    """Return so many queries of a split."""
    return kmeans.select(jax.random.key(seed), split(seed).rows.sides.public, size)


@functools.lru_cache(4)
def kernels(seed: int, size: int) -> answers.Kernels:
    """Return the public side of the decoder for so many queries."""
    one = split(seed).rows
    found = answers.kernels(asked(seed, size), one.sides.public, one.graph)
    assert found is not None  # fewer queries than `answers` can read together
    return found


def student(one: Split, labels: np.ndarray) -> float:
    """Return the test accuracy of softmax regression on the public rows with these labels."""
    public = one.rows.sides.public
    center = public.mean(axis=0)
    scale = np.sqrt(public.var(axis=0).sum())
    fitted = LogisticRegression(max_iter=200).fit((public - center) / scale, labels)
    return float(fitted.score((one.test - center) / scale, one.classes))


def released(labeler: ReverseKNN, one: Split, size: int) -> Answers:
    """Return one draw of the answers to so many queries."""
    return next(rivals.releases(labeler, one.rows, asked(one.rows.seed, size), draws=1))


def arg_max(told: Answers, one: Split, size: int) -> np.ndarray:
    """Return the label of each public row's query, as published."""
    return told.labels[asked(one.rows.seed, size).cluster]


def decoded(told: Answers, one: Split, size: int) -> np.ndarray:
    """Return the labels of the default decoder."""
    public = kernels(one.rows.seed, size)
    return answers.decode(told.counts, told.stddev, public, redraws=0).labels


def as_published(one: Split) -> Iterator[Found]:
    """Yield the paper's numbers of queries, by the arg max and by the default decoder."""
    for size, printed in ((500, GENERAL), (10, END_TO_END)):
        for epsilon, text in printed.items():
            told = released(ReverseKNN(epsilon=epsilon), one, size)
            name = f"reverse k-NN, {size} queries"
            labels = arg_max(told, one, size)
            yield Found(f"{name}, arg max", epsilon, labels, printed=text, queries=size)
            labels = decoded(told, one, size)
            yield Found(f"{name}, default", epsilon, labels, printed=text, queries=size)


def defaults(one: Split) -> Iterator[Found]:
    """Yield the default number of queries, with a curator and without."""
    labelers = [ReverseKNN(epsilon=epsilon) for epsilon in EPSILONS]
    labelers += [ReverseKNN(epsilon=epsilon, trust="local") for epsilon in LOCAL]
    for labeler in labelers:
        size = rivals.suggested(labeler, NUM_PRIVATE)
        labels = decoded(released(labeler, one, size), one, size)
        trust = "" if labeler.trust == "central" else ", local"
        yield Found(f"reverse k-NN, default{trust}", labeler.epsilon, labels, queries=size)


def stated_epsilon(noise: tuple[float, float], release: Any) -> float:
    """Return the epsilon at which a labeler draws this noise."""
    costs = accounting.epsilons(release.events(*noise), DELTA)
    return min(costs.values()) * 1.0001


def paid_for_each(
    name: str, labeler: Any, noise: tuple[float, float], release: Any, size: int, one: Split
) -> Iterator[Found]:
    """Yield labels of a labeler that pays for every query, spread over the graph."""
    priced = replace(labeler, epsilon=stated_epsilon(noise, release))
    order = np.random.default_rng(one.rows.seed).permutation(NUM_PUBLIC)
    queries = Queries.alone(one.rows.sides.public, order[:size])
    (found,) = rivals.paid(priced, one.rows, queries, draws=1)
    yield Found(name, found.epsilon, found.labels, queries=size)


def neighbors_vote(one: Split) -> Iterator[Found]:
    """Yield labels of Private-kNN with the noise that its paper has for CIFAR-10."""
    release = private_knn.release(PRIVATE_KNN_QUERIES, PRIVATE_KNN)
    yield from paid_for_each(
        "Private-kNN", PRIVATE_KNN, PRIVATE_KNN_NOISE, release, PRIVATE_KNN_QUERIES, one
    )


def teachers_vote(one: Split) -> Iterator[Found]:
    """Yield labels of PATE with the noise that its paper has for MNIST."""
    release = pate.release(PATE_QUERIES, TEACHERS.num_teachers, TEACHERS)
    yield from paid_for_each("PATE", TEACHERS, PATE_NOISE, release, PATE_QUERIES, one)


def trained(network: str, one: Split) -> Iterator[Found]:
    """Yield labels and test accuracy of a network that noisy SGD trains."""
    sides = one.rows.sides
    components = PCA(COMPONENTS, random_state=one.rows.seed).fit(sides.public)
    public, private, test = map(components.transform, (sides.public, sides.private, one.test))
    narrow = one.rows._replace(private=Records(private, one.rows.private.labels))
    queries = Queries.alone(public, np.arange(NUM_PUBLIC))
    for epsilon in OF_SGD:
        labeler = NoisySGD(epsilon=epsilon, delta=DELTA_OF_SGD, network=network)
        (told,) = rivals.releases(labeler, narrow, queries, draws=1)
        assert told.model is not None
        accuracy = float(np.mean(told.model.predict_proba(test).argmax(axis=1) == one.classes))
        name = f"noisy SGD, {network}"
        yield Found(name, epsilon, told.labels, accuracy, HEADS[network])


def no_record(one: Split) -> Iterator[Found]:
    """Yield labels by hand, and the true labels of all public rows, without a private record."""
    seed, truth = one.rows.seed, one.rows.sides.truth
    for size in BY_HAND:
        labels = rivals.by_hand(asked(seed, size), truth, kernels(seed, size))
        yield Found(f"{size} labels by hand", 0.0, labels)
    yield Found("true labels of all public rows", 0.0, truth)


def figure(one: Split) -> Iterator[Found]:
    """Yield labels by queries, neighbors and epsilon, of the arg max alone."""
    for size, neighbors, epsilon in itertools.product(QUERIES, NEIGHBORS, GENERAL):
        told = released(ReverseKNN(epsilon=epsilon, num_neighbors=neighbors), one, size)
        yield Found(f"k = {neighbors}", epsilon, arg_max(told, one, size), queries=size)


FIGURE = "queries and neighbors"
METHODS: dict[str, tuple[Callable[[Split], Iterator[Found]], int]] = {
    "as published": (as_published, 3),
    "defaults": (defaults, 2),
    "linear": (functools.partial(trained, "linear"), 3),
    "mlp": (functools.partial(trained, "mlp"), 2),
    "PATE": (teachers_vote, 3),
    "Private-kNN": (neighbors_vote, 3),
    "no record": (no_record, 3),
    FIGURE: (figure, 1),
}
"""Releases of a split, and the number of splits: fewer if they take long."""

MEASURED = ("right", "worst_class", "test_accuracy")


def measured(method: str, seed: int) -> list[dict[str, Any]]:
    """Return the accuracies of all releases of one part."""
    one = split(seed)
    rows = []
    for found in METHODS[method][0](one):
        about = found._asdict()
        labels = about.pop("labels")
        if found.test_accuracy is None:
            about["test_accuracy"] = student(one, labels)
        rows.append(about | rivals.rights(labels, one.rows.sides.truth))
    return rows


def part(folder: Path, method: str, seed: int) -> list[dict[str, Any]]:
    """Return the accuracies of one part."""
    found: list[dict[str, Any]] = _kept.part(
        folder, f"{method}, {seed}", lambda: measured(method, seed)
    )
    return found


def over_splits(folder: Path, method: str) -> list[dict[str, Any]]:
    """Return each row's accuracies over splits: mean, standard deviation, and the worst."""
    _, splits = METHODS[method]
    rows = []
    for same in zip(*(part(folder, method, seed) for seed in range(splits)), strict=True):
        about = {name: value for name, value in same[0].items() if name not in MEASURED}
        for name in MEASURED:
            values = [one[name] for one in same]
            about[name] = summary(values) | {"worst": min(values)}
        rows.append(about)
    return rows


def main() -> None:
    """Measure all parts, and write the results."""
    if reason := cases.CASES["CIFAR-10"].missing():
        sys.exit(f"Expected a file of features, got none: {reason}; set it.")
    with _kept.parts("cifar10_rows") as folder:
        for seed in range(max(splits for _, splits in METHODS.values())):
            for method, (_, splits) in METHODS.items():
                if seed < splits:
                    part(folder, method, seed)
        found = {method: over_splits(folder, method) for method in METHODS}
        figure = found.pop(FIGURE)
        save(
            "cifar10_rows",
            {"rows": [row for rows in found.values() for row in rows], "figure4": figure},
            num_public=NUM_PUBLIC,
            num_private=NUM_PRIVATE,
            num_test=NUM_TEST,
            delta=DELTA,
            delta_of_sgd=DELTA_OF_SGD,
            cpu_seconds=_kept.cpu_seconds(folder),
            relation="replace-one",
            simulated_noise=True,
        )


if __name__ == "__main__":
    main()

"""MNIST labels under balanced connections: effect of prices on query degrees and labels.

`plain` is the arg max alone. `shared` lets queries borrow votes; its sizes count public records as
they connect under the prices. `part` and `full` take 0.3 and all of the prices. Histogram prices
spend a fifth of epsilon on degrees and label with the rest. Private records are like the public
ones, or `shifted`: only 3% of the digits 0 to 4 are kept.
"""

import importlib
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from benchmarks.decoding import shared_votes
from rknn_jax import bsvs, data
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import _connections, rknn
from rknn_jax.neighbors import nearest
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.queries import kmeans
from rknn_jax.types import Array, Queries, Records

SEEDS = (42, 0, 1, 2, 3)
REPRESENTATIONS = ("pca", "spectral")
QUERIES = 100
EPSILONS = (0.01, 0.04, 0.1)
DRAWS = 5  # noise draws on each split
SHARES = {"part": 0.3, "full": 1.0}
FOR_DEGREES = 0.2  # share of epsilon
KEPT = 0.03  # share of the digits 0 to 4 in the shifted population
NAMES = ("representation", "population", "prices", "amount", "epsilon")
MEASURED = ("plain", "shared", "purity", "least", "greatest", "harmonic_mean")


def label(
    key: jax.Array, near: Array, labels: Array, queries: Queries, true_labels: Array, epsilon: float
) -> tuple[dict, Guarantee]:
    """Label the public records in both forms.

    Returns:
      The accuracy of the labels, the spread of the private degrees, and the guarantee of the
      labels.
    """
    cells = bsvs.cells(near, labels, 10)
    plain = rknn.ReverseKNN(epsilon=epsilon).release(key, cells, queries, 10)
    shared = shared_votes(queries, plain.counts, float(plain.stddev.max()))
    answers = {"plain": plain.labels, "shared": shared.argmax(axis=1)}
    votes = np.asarray(bsvs.sum_votes(cells, 10 * QUERIES)).reshape(QUERIES, 10)
    degrees = votes.sum(axis=1)
    found = {
        name: np.mean(answer[queries.cluster] == true_labels) for name, answer in answers.items()
    } | {
        "purity": votes.max(axis=1).sum() / votes.sum(),
        "least": degrees.min(),
        "greatest": degrees.max(),
        "harmonic_mean": QUERIES / np.sum(1 / np.maximum(degrees, 1)),
    }
    return {name: float(value) for name, value in found.items()}, plain.guarantee


def measure(seed: int, representation: str) -> Iterator[dict[str, object]]:
    """Label the public records of one split in every form, for both populations."""
    task = data.load("mnist", seed, mnist_folder())
    root = jax.random.key(seed)
    encode = importlib.import_module(f"rknn_jax.representations.{representation}").fit(
        stage_key(root, Stage.ENCODER), task.public.images
    )
    public = encode(task.public.images)
    private = np.asarray(encode(task.private.images))
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, QUERIES)
    free = _connections.public_prices(public, queries.features)
    thinned = (task.private.labels < 5) & (np.random.default_rng(seed).random(len(private)) >= KEPT)
    for population, kept in (("as the public", np.ones(len(thinned), bool)), ("shifted", ~thinned)):
        records = Records(private[kept], task.private.labels[kept])
        for draw, epsilon in ((draw, epsilon) for draw in range(DRAWS) for epsilon in EPSILONS):
            key = jax.random.fold_in(
                jax.random.fold_in(stage_key(root, Stage.NOISE), draw), int(1000 * epsilon)
            )
            for row in forms(key, records, task.public.true_labels, public, queries, free, epsilon):
                yield {
                    "representation": representation,
                    "population": population,
                    "epsilon": epsilon,
                    "seed": seed,
                } | row


def forms(
    key: jax.Array,
    private: Records,
    true_labels: Array,
    public: Array,
    queries: Queries,
    free: Array,
    epsilon: float,
) -> Iterator[dict[str, object]]:
    """Label once in every form.

    The `images` of the private records are features, and `free` are the public prices.
    """
    degree_key, label_key = jax.random.split(key)
    plain = nearest(private.images, queries.features, 1)
    degrees = _connections.noisy_degrees(degree_key, plain, QUERIES, FOR_DEGREES * epsilon)
    kinds = {
        "public": (free, epsilon, ()),
        "histogram": (
            _connections.histogram_prices(degrees, public, queries.features),
            (1 - FOR_DEGREES) * epsilon,
            (degrees.guarantee,),
        ),
    }
    none = "none", "none", np.zeros(QUERIES, np.float32), epsilon, ()
    priced = [
        (name, amount, share * prices, *cost)
        for name, (prices, *cost) in kinds.items()
        for amount, share in SHARES.items()
    ]
    for name, amount, prices, left, spent in (none, *priced):
        heard, _ = _connections.priced_nearest(public, queries.features, prices, 1)
        sized = replace(queries, size=np.bincount(np.ravel(heard), minlength=QUERIES))
        near, _ = _connections.priced_nearest(private.images, queries.features, prices, 1)
        found, guarantee = label(label_key, near, private.labels, sized, true_labels, left)
        assert math.isclose(accounting.compose([*spent, guarantee]).epsilon, epsilon)
        yield {"prices": name, "amount": amount} | found


def averaged(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return mean and standard deviation over the seeds, of means over noise draws."""
    groups: dict[tuple[object, ...], dict[object, list[dict[str, object]]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in NAMES), {}).setdefault(
            row["seed"], []
        ).append(row)
    return [
        dict(zip(NAMES, group, strict=True))
        | {
            name: summary(
                [float(np.mean([row[name] for row in draws])) for draws in seeds.values()]
            )
            for name in MEASURED
        }
        for group, seeds in groups.items()
    ]


if __name__ == "__main__":
    rows: list[dict[str, object]] = []
    for seed in SEEDS:
        for representation in REPRESENTATIONS:
            rows += measure(seed, representation)
            print(seed, representation, file=sys.stderr)
    save("balance", averaged(rows), seeds=SEEDS, draws=DRAWS, queries=QUERIES)

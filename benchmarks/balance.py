"""Labels of MNIST under balanced connections: what prices do to the degrees of the queries, and what that does to the labels.

Every form labels by the plain arg max. `part` and `full` take 0.3 and all of the prices. Histogram prices spend a fifth of epsilon on
degrees and label with the rest. Private records are like the public ones, or `shifted`: 3% of the digits 0 to 4 are kept.
"""

import math
import sys

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import bsvs, connections, data
from rknn_jax.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.neighbors import nearest
from rknn_jax.privacy import accounting
from rknn_jax.queries import kmeans
from rknn_jax.representations import pca
from rknn_jax.types import Array, Queries

SEEDS = (42, 0, 1)
QUERIES = 100
EPSILONS = (0.01, 0.04, 0.1)
SHARES = {"part": 0.3, "full": 1.0}
FOR_DEGREES = 0.2  # of epsilon
KEPT = 0.03  # of the digits 0 to 4 in the shifted population
MEASURED = ("label_accuracy", "purity", "least", "greatest", "harmonic_mean")


def label(key: jax.Array, near: Array, labels: Array, queries: Queries, true_labels: Array, epsilon: float) -> tuple[dict, rknn.Guarantee]:
    """Return the accuracy of the public labels, the spread of the private degrees, and what the labels cost."""
    config = rknn.Config(epsilon=epsilon, smoothing="none")
    cells = bsvs.cells(near, labels, 10)
    answers = rknn.tally(key, cells, queries, 10, config)
    votes = np.asarray(bsvs.sum_votes(cells, 10 * QUERIES)).reshape(QUERIES, 10)
    degrees = votes.sum(axis=1)
    found = {
        "label_accuracy": np.mean(answers.labels[queries.cluster] == true_labels),
        "purity": votes.max(axis=1).sum() / votes.sum(),
        "least": degrees.min(),
        "greatest": degrees.max(),
        "harmonic_mean": QUERIES / np.sum(1 / np.maximum(degrees, 1)),
    }
    return {name: float(value) for name, value in found.items()}, answers.guarantee


def measure(seed: int, population: str) -> list[dict[str, object]]:
    """Label the public records of one split by every form."""
    task, root = data.load("mnist", seed, mnist_folder()), jax.random.key(seed)
    encode = pca.fit(stage_key(root, Stage.ENCODER), task.public.images)
    public = encode(task.public.images)
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, QUERIES)
    thinned = (task.private.labels < 5) & (np.random.default_rng(seed).random(len(task.private.labels)) >= KEPT)
    kept = ~thinned if population == "shifted" else np.ones(len(thinned), bool)
    private, labels = encode(task.private.images[kept]), task.private.labels[kept]
    plain, _ = nearest(private, queries.features, 1)
    public_prices = connections.public_prices(public, queries.features)
    rows = []
    for step, epsilon in enumerate(EPSILONS):
        degree_key, label_key = jax.random.split(jax.random.fold_in(stage_key(root, Stage.NOISE), step))
        degrees = connections.noisy_degrees(degree_key, plain, QUERIES, FOR_DEGREES * epsilon)
        fitted = connections.histogram_prices(degrees, public, queries.features)
        forms = {("none", "none"): (np.zeros(QUERIES, np.float32), epsilon, ())}
        for amount, share in SHARES.items():
            forms["public", amount] = share * public_prices, epsilon, ()
            forms["histogram", amount] = share * fitted, (1 - FOR_DEGREES) * epsilon, (degrees.guarantee,)
        for (prices, amount), (price, left, spent) in forms.items():
            near, _ = connections.priced_nearest(private, queries.features, price, 1)
            found, guarantee = label(label_key, near, labels, queries, task.public.true_labels, left)
            assert math.isclose(accounting.compose([*spent, guarantee]).epsilon, epsilon)
            rows.append({"population": population, "prices": prices, "amount": amount, "epsilon": epsilon} | found)
    return rows


def averaged(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return mean and standard deviation over the seeds."""
    names = ("population", "prices", "amount", "epsilon")
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return [
        dict(zip(names, group, strict=True)) | {name: summary([float(str(row[name])) for row in found]) for name in MEASURED}
        for group, found in groups.items()
    ]


if __name__ == "__main__":
    rows = []
    for population in ("as the public", "shifted"):
        for seed in SEEDS:
            rows += measure(seed, population)
            print(population, seed, file=sys.stderr)
    save("balance", averaged(rows), seeds=SEEDS, queries=QUERIES, representation="pca")

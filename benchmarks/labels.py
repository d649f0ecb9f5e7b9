"""Accuracy of MNIST's public labels over representations, queries, and epsilons.

The rows compare labels with and without free post-processing by public data. `plain` is the paper's
arg max. `shared` lets queries borrow votes. `spread`, the default, also spreads labels over the
public graph.
"""

import math
import sys

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from benchmarks.decoding import shared_votes
from rknn_jax import data, postprocessing, representations
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.queries import kmeans

SEEDS = (42, 0, 1, 2, 3)
REPRESENTATIONS = tuple(
    name for name in representations.names() if not representations.named(name).slow
)
QUERIES = (10, 40, 100, 300)
EPSILONS = (0.005, 0.01, 0.02, 0.05, 0.1, math.inf)


def measure(seed: int, representation: str) -> list[dict[str, object]]:
    """Label the public records of one split."""
    task = data.load("mnist", seed, mnist_folder())
    root = jax.random.key(seed)
    config = representations.named(representation)().for_task(10, None)
    encode = config.fit(stage_key(root, Stage.ENCODER), task.public.images)
    public = encode(task.public.images)
    private = encode(task.private.images)
    rows = []
    for num_queries in QUERIES:
        queries = kmeans.select(stage_key(root, Stage.QUERIES), public, num_queries)
        graph = postprocessing.public_graph(public, num_queries)
        cells = rknn.vote_cells(private, task.private.labels, queries, 10, rknn.ReverseKNN())
        for step, epsilon in enumerate(EPSILONS):
            key = jax.random.fold_in(stage_key(root, Stage.NOISE), step)
            plain = rknn.ReverseKNN(epsilon=epsilon).release(key, cells, queries, 10)
            shared = shared_votes(queries, plain.counts, float(plain.stddev.max()))
            labels = {
                "plain": plain.labels[queries.cluster],
                "shared": shared.argmax(axis=1)[queries.cluster],
                "spread": postprocessing.public_labels(
                    graph, postprocessing.soft_labels(shared)[queries.cluster], num_queries
                ).argmax(axis=1),
            }
            accuracy = {
                name: float(np.mean(found == task.public.true_labels))
                for name, found in labels.items()
            }
            rows.append(
                {
                    "representation": representation,
                    "queries": num_queries,
                    "epsilon": epsilon,
                    "seed": seed,
                }
                | accuracy
            )
    return rows


def averaged(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return mean and standard deviation over the seeds."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in rows:
        groups.setdefault((row["representation"], row["queries"], row["epsilon"]), []).append(row)
    return [
        dict(zip(("representation", "queries", "epsilon"), group, strict=True))
        | {
            name: summary([float(str(row[name])) for row in found])
            for name in ("plain", "shared", "spread")
        }
        for group, found in groups.items()
    ]


if __name__ == "__main__":
    rows = []
    for seed in SEEDS:
        for representation in REPRESENTATIONS:
            rows += measure(seed, representation)
            print(seed, representation, file=sys.stderr)
    save("labels", averaged(rows), seeds=SEEDS)

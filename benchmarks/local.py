"""MNIST's labels without a trusted curator (Figure 5 of the paper).

Every private record really randomizes its own message.
"""

import sys
from typing import Any

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import data, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.answers import kernels
from rknn_jax.labelers import rknn
from rknn_jax.labels import Labels, PublicSide
from rknn_jax.queries import kmeans
from rknn_jax.representations import spectral

SEEDS = (42, 0, 1)
DRAWS = 5
QUERIES = 10
EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
KINDS = (
    ("local", "randomized_response"),
    ("local", "collision"),
    ("local", "subset_selection"),
    ("shuffle", "collision"),
    ("shuffle", "multi_message"),
    ("central", "discrete_laplace"),
)


def measure(seed: int) -> dict[tuple[str, str, float], list[float]]:
    """Return accuracies of the public labels by trust, mechanism, and epsilon, for one split."""
    task = data.load("mnist", seed, mnist_folder())
    root = jax.random.key(seed)
    encode = spectral.fit(
        stage_key(root, Stage.ENCODER), task.public.images, spectral.Config(dimension=10)
    )
    public = encode(task.public.images)
    queries = kmeans.select(stage_key(root, Stage.QUERIES), public, QUERIES)
    graph = postprocessing.public_graph(public, QUERIES)
    side = PublicSide(graph, kernels(queries, public, graph))
    nothing = Labels.none(len(public), 10)
    cells = rknn.vote_cells(
        encode(task.private.images), task.private.labels, queries, 10, rknn.ReverseKNN()
    )
    found: dict[tuple[str, str, float], list[float]] = {}
    for step, (trust, mechanism) in enumerate(KINDS):
        for epsilon in EPSILONS:
            named: dict[str, Any] = {
                "mechanism": mechanism,
                "trust": trust,
                "amplification": "general",
            }  # the paper counts this way
            config = rknn.ReverseKNN(epsilon=epsilon, delta=1e-6, **named)
            for draw in range(DRAWS):
                key = jax.random.fold_in(
                    jax.random.fold_in(stage_key(root, Stage.NOISE), step), draw
                )
                answers = config.release(key, cells, queries, 10)
                labels = nothing.after(queries, answers, 0, side).hard
                found.setdefault((trust, mechanism, epsilon), []).append(
                    float(np.mean(labels == task.public.true_labels))
                )
    return found


if __name__ == "__main__":
    every: dict[tuple[str, str, float], list[float]] = {}
    for seed in SEEDS:
        for name, accuracies in measure(seed).items():
            every.setdefault(name, []).append(float(np.mean(accuracies)))
        print(seed, file=sys.stderr)
    rows = [
        {"trust": t, "mechanism": m, "epsilon": e, "label_accuracy": summary(values)}
        for (t, m, e), values in every.items()
    ]
    save("local", rows, seeds=SEEDS, draws=DRAWS, queries=QUERIES, delta_of_shuffle=1e-6)

"""Accuracy of CIFAR-10's public labels on SimCLR's features, over queries, trust and epsilons.

The features are those of `benchmarks.cifar10`, seed 42: SimCLR of 500 epochs, trained on the 30,000
public images alone. Training wants an accelerator; this program then takes minutes on two cores.
`--features FILE` reads features that were saved earlier, `--save FILE` saves them:

    RKNN_CIFAR10_DIR=DIR python -m benchmarks.cifar10_labels --save FILE     # on an accelerator
    python -m benchmarks.cifar10_labels --features FILE
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from benchmarks import cifar10
from benchmarks._measure import save, summary
from benchmarks.decoding import shared_votes
from rknn_jax import data, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.neighbors import nearest
from rknn_jax.queries import kmeans
from train import presets, stages

DRAWS = 20
QUERIES = (10, 50, 100, 200, 500)
EPSILONS = {
    "central": (0.01, 0.05, 0.1, 0.29, 1.0, float("inf")),
    "local": (1.0, 2.0, 4.0),
}
NEIGHBORS = 20  # of the ceiling: k-NN by the true labels of the public images

Features = dict[str, np.ndarray]


def fitted() -> Features:
    """Train SimCLR, or resume its training, and encode all images."""
    asked = replace(
        presets.named("cifar10"),
        data_dir=Path(os.environ["RKNN_CIFAR10_DIR"]),
        representation_dir=cifar10.RUNS / "cifar10" / "representation",
        seed=cifar10.SEED,
    )
    task = data.load(asked.dataset, asked.seed, asked.data_dir)
    key = stage_key(jax.random.key(asked.seed), Stage.ENCODER)
    encode = stages.fit_representation(key, task, asked)
    images = {
        "public": task.public.images,
        "private": task.private.images,
        "test": task.test.images,
    }
    return {name: np.asarray(encode(each), np.float16) for name, each in images.items()} | {
        "public_labels": task.public.true_labels,
        "private_labels": task.private.labels,
        "test_labels": task.test.labels,
    }


def measure(features: Features) -> list[dict[str, object]]:
    """Label the public images with fresh noise for each of `DRAWS` draws."""
    public, private = (features[name].astype(np.float32) for name in ("public", "private"))
    truth = features["public_labels"].astype(np.int32)
    labels = features["private_labels"].astype(np.int32)
    root = jax.random.key(cifar10.SEED)
    rows: list[dict[str, object]] = []
    for num_queries in QUERIES:
        queries = kmeans.select(stage_key(root, Stage.QUERIES), public, num_queries)
        graph = postprocessing.public_graph(public, num_queries)
        cells = rknn.vote_cells(private, labels, queries, 10, rknn.ReverseKNN())
        for trust, epsilons in EPSILONS.items():
            for epsilon in epsilons:
                mechanism = {"central": "discrete_laplace", "local": "collision"}[trust]
                labeler = rknn.ReverseKNN(epsilon=epsilon, trust=trust, mechanism=mechanism)
                found: dict[str, list[float]] = {"plain": [], "shared": [], "spread": []}
                worst: list[float] = []
                for draw in range(DRAWS):
                    key = jax.random.fold_in(stage_key(root, Stage.NOISE), draw)
                    plain = labeler.release(key, cells, queries, 10)
                    shared = shared_votes(queries, plain.counts, float(plain.stddev.max()))
                    spread = postprocessing.public_labels(
                        graph, postprocessing.soft_labels(shared)[queries.cluster], num_queries
                    ).argmax(axis=1)
                    answers = {
                        "plain": plain.labels[queries.cluster],
                        "shared": shared.argmax(axis=1)[queries.cluster],
                        "spread": spread,
                    }
                    for name, answer in answers.items():
                        found[name].append(float(np.mean(answer == truth)))
                    recall = [float(np.mean(spread[truth == c] == c)) for c in range(10)]
                    worst.append(min(recall))
                rows.append(
                    {"queries": num_queries, "trust": trust, "epsilon": epsilon}
                    | {name: summary(values) for name, values in found.items()}
                    | {"worst_class": summary(worst)}
                )
                print(rows[-1]["queries"], trust, epsilon, found["spread"][0], file=sys.stderr)
    return rows


def ceiling(features: Features) -> float:
    """Return the accuracy of k-NN by the public images' true labels, on the test images."""
    index = nearest(
        features["test"].astype(np.float32), features["public"].astype(np.float32), NEIGHBORS
    )
    votes = np.eye(10)[features["public_labels"][np.asarray(index)]].sum(1)
    return float(np.mean(votes.argmax(1) == features["test_labels"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, help="file of saved features")
    parser.add_argument("--save", type=Path, help="file to save the features in")
    asked = parser.parse_args()
    features = dict(np.load(asked.features)) if asked.features else fitted()
    if asked.save:
        np.savez(asked.save, **features)
    rows = measure(features)
    save(
        "cifar10_labels",
        {"rows": rows, "knn_ceiling": ceiling(features)},
        split="cifar10:pooled",
        draws=DRAWS,
        seeds=[cifar10.SEED],
    )

"""Accuracy of the labels, which only a benchmark can know. Epsilon does not cover these numbers.

A benchmark's public labels are known, and its private records are in fact public. So accuracy
without noise and at other epsilons can be shown beside a run. For an owner's data none of this may
be computed, and `rknn label` does not.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rknn_jax import answers
from rknn_jax.algorithm import Round
from rknn_jax.labelers import Labeler
from rknn_jax.labels import Labels
from rknn_jax.postprocessing import public_graph
from rknn_jax.queries import kmeans
from rknn_jax.types import Answers, Array, Task

EPSILONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
DRAWS = 4
NOTE = (
    "Computed from the benchmark's own labels and from the private votes without privacy, to "
    "judge the method. "
    "No epsilon covers these numbers; nothing like them exists for an owner's data."
)


def label_accuracy(task: Task, labels: Labels) -> float:
    """Return the share of all public records whose label is right; no label counts as wrong."""
    return float(np.mean(labels.known & (labels.hard == task.public.true_labels)))


def by_hand(
    key: jax.Array, features: Array, truth: np.ndarray, num_classes: int, num_labels: int
) -> np.ndarray:
    """Return labels of all public records from a few true ones, int32 `[m]`: no private record.

    Clusters are those of reverse k-NN labeling. An oracle names the record in the middle of each.

    Args:
      key: Random key of the clusters, which is consumed.
      features: Public features `[m, f]`.
      truth: True classes, integers `[m]`.
      num_classes: Number of classes |Y|.
      num_labels: Number of labels that are bought.
    """
    queries = kmeans.select(key, features, num_labels)
    kernels = answers.kernels(queries, features, public_graph(features, num_labels))
    assert kernels is not None  # records share labels
    likely = answers.decode_labels(truth[queries.index], num_classes, kernels)
    labels: np.ndarray = likely.argmax(axis=1).astype(np.int32)
    return labels


def not_covered(key: jax.Array, task: Task, labeler: Labeler[Any], found: Round) -> dict[str, Any]:
    """Return the accuracy of one round's labels without noise and over epsilons.

    This reads the private votes themselves. A network is not trained again at other epsilons.

    Args:
      key: Random key, which is consumed.
      task: Data of a benchmark.
      labeler: Labeler of the run, whose epsilon is replaced.
      found: Round to judge.
    """
    num_classes = task.card.num_classes
    if found.answers.model is not None:
        return labeler.not_covered(key, found.contribution, found.answers)

    def answered(key: jax.Array, labeler: Labeler[Any]) -> Answers:
        return labeler.release(key, found.contribution, found.queries, num_classes)

    def accuracy(key: jax.Array, epsilon: float) -> float:
        answers = answered(key, replace(labeler, epsilon=epsilon))
        before = Labels.none(len(task.public.images), num_classes)
        labels = before.after(found.queries, answers, 0, found.side)
        return label_accuracy(task, labels)

    sweep = []
    for step, epsilon in enumerate(EPSILONS):
        keys = jax.random.split(jax.random.fold_in(key, step), DRAWS)
        drawn = [accuracy(draw, epsilon) for draw in keys]
        sweep.append(
            {
                "epsilon": epsilon,
                "mean": float(np.mean(drawn)),
                "stddev": float(np.std(drawn, ddof=1)),
                "draws": DRAWS,
            }
        )
    draw, release = jax.random.split(jax.random.fold_in(key, len(EPSILONS) + 1))
    told = labeler.not_covered(release, found.contribution, answered(draw, labeler))
    return told | {
        "note": NOTE,
        "nonprivate_label_accuracy": accuracy(jax.random.fold_in(key, len(EPSILONS)), float("inf")),
        "label_accuracy_by_epsilon": sweep,
    }

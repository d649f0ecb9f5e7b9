"""What only a benchmark can know: how good the labels are. Epsilon covers none of it.

A benchmark's public labels are known, and its private records are public in truth, so accuracy
without noise and at other epsilons can be shown beside a run. For an owner's data none of this may
be computed, and `rknn label` does not.
"""

from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import numpy as np
from scipy.sparse import csr_matrix

from rknn_jax import postprocessing
from rknn_jax.types import Answers, Queries, Task
from train.labels import Labels

EPSILONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
DRAWS = 10
NOTE = (
    "Computed from the benchmark's own labels and from the private votes without privacy, to "
    "judge the method. "
    "No epsilon covers these numbers; nothing like them exists for an owner's data."
)


def label_accuracy(task: Task, labels: Labels) -> float:
    """Return the share of all public records whose label is right; one without a label is wrong."""
    return float(np.mean(labels.known & (labels.hard == task.public.true_labels)))


def not_covered(
    key: jax.Array,
    task: Task,
    labeler: ModuleType,
    votes: Any,
    queries: Queries,
    answers: Answers,
    graph: csr_matrix | None,
    config: Any,
) -> dict[str, Any]:
    """Return the accuracy of one round's labels without noise and over epsilons, from the private
    votes themselves.

    Args:
      key: is consumed.
      task: a benchmark's.
      labeler: a file of `rknn_jax.labelers`.
      votes: its votes, private.
      queries: that were voted for.
      answers: of the run. Where a network was trained for them nothing is drawn again, which would
        be another training each.
      graph: of the public records; see `voting.public_graph`.
      config: of the run; its epsilon is replaced.
    """

    def accuracy(key: jax.Array, epsilon: float) -> float:
        answers = labeler.tally(
            key, votes, queries, task.card.num_classes, replace(config, epsilon=epsilon)
        )
        labels = Labels.none(len(task.public.images), task.card.num_classes).updated(
            queries, answers, 0
        )
        return label_accuracy(
            task,
            labels.spread(
                postprocessing.public_labels(graph, labels.probabilities, len(answers.labels))
            ),
        )

    if answers.model is not None:
        return (
            labeler.not_covered(key, votes, answers, config)
            if hasattr(labeler, "not_covered")
            else {}
        )
    sweep = []
    for step, epsilon in enumerate(EPSILONS):
        keys = jax.random.split(jax.random.fold_in(key, step), DRAWS)
        found = [accuracy(draw, epsilon) for draw in keys]
        sweep.append(
            {
                "epsilon": epsilon,
                "mean": float(np.mean(found)),
                "stddev": float(np.std(found, ddof=1)),
                "draws": DRAWS,
            }
        )
    told = {}
    if hasattr(labeler, "not_covered"):
        draw, release = jax.random.split(jax.random.fold_in(key, len(EPSILONS) + 1))
        told = labeler.not_covered(
            release,
            votes,
            labeler.tally(draw, votes, queries, task.card.num_classes, config),
            config,
        )
    return told | {
        "note": NOTE,
        "nonprivate_label_accuracy": accuracy(jax.random.fold_in(key, len(EPSILONS)), float("inf")),
        "label_accuracy_by_epsilon": sweep,
    }

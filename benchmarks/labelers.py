"""Accuracy of the public labels against epsilon for every labeler, on MNIST and digits.

All labelers have the same delta, neighboring relation, data, features, and neighbor graph. They
differ only in the contributions of records and their release. Private-kNN and PATE pay for every
query, so each is asked few queries and many.
"""

import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import labelers, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.answers import kernels
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels
from train import stages, truth
from train.experiment import Experiment

SEEDS = (5, 6, 7)
DRAWS = 5
DELTA = 1e-5
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
MNIST = Experiment(dataset="mnist", data_dir=mnist_folder(), delta=DELTA)
DIGITS = Experiment(delta=DELTA)
TEACHERS = PATE(num_teachers=50)
NEIGHBORS = PrivateKNN(num_neighbors=30, sampling_prob=0.5)
Kinds = tuple[tuple[Labeler[Any], int | None], ...]


def others(kinds: Kinds) -> Kinds:
    """Return every labeler that has no settings here and trains no network, with its defaults."""
    known = {labeler.name for labeler, _ in kinds}
    named = [labelers.named(name) for name in labelers.names() if name not in known]
    return tuple((labeler(), None) for labeler in named if not labeler.trains)


STUDIES: tuple[tuple[Experiment, Kinds], ...] = (
    (
        MNIST,
        (
            (ReverseKNN(), None),
            (PrivateKNN(), 100),
            (PrivateKNN(), 1000),
            (PATE(), 100),
            (PATE(), 1000),
        ),
    ),
    (
        DIGITS,
        (
            (ReverseKNN(), None),
            (NEIGHBORS, 50),
            (NEIGHBORS, 200),
            (TEACHERS, 50),
            (TEACHERS, 200),
        ),
    ),
)


def measure(experiment: Experiment, kinds: Kinds) -> list[dict[str, Any]]:
    """Return the accuracy of one split's labels by labeler, queries, and epsilon.

    The accuracy is a mean over noise draws.
    """
    task, encode, _ = stages.prepare(experiment)
    features = encode(task.public.images)
    private = encode(task.private.images)
    root = jax.random.key(experiment.seed)
    rows = []
    nothing = Labels.none(len(features), task.card.num_classes)
    for labeler, asked in kinds:
        chosen = replace(experiment, labeler=labeler)
        votes: dict[int, Any] = {}
        for epsilon in EPSILONS:
            config = replace(chosen.labeler_of_round(), epsilon=epsilon)
            num_queries = asked or stages.default_num_queries(task, config, chosen)
            if num_queries not in votes:  # the votes do not depend on epsilon
                queries = stages.select_queries(
                    stage_key(root, Stage.QUERIES),
                    task,
                    features,
                    num_queries,
                    nothing,
                    None,
                    chosen,
                )
                key = stage_key(root, Stage.SAMPLING)
                found = config.contribute(
                    key, task.private, lambda _: private, queries, task.card.num_classes
                )
                votes[num_queries] = (
                    queries,
                    found,
                    postprocessing.public_graph(features, num_queries),
                )
            queries, found, graph = votes[num_queries]
            decoder = kernels(queries, features, graph) if labeler.decodes else None
            accuracies = []
            answered = []
            for draw in range(DRAWS):
                answers = config.release(
                    jax.random.fold_in(stage_key(root, Stage.NOISE), draw),
                    found,
                    queries,
                    task.card.num_classes,
                )
                labels = nothing.after(queries, answers, 0, decoder, graph)
                accuracies.append(truth.label_accuracy(task, labels))
                answered.append(float(answers.answered.mean()))
            rows.append(
                {
                    "labeler": labeler.name,
                    "asked": asked,
                    "epsilon": epsilon,
                    "seed": experiment.seed,
                }
            )
            rows[-1] |= {
                "label_accuracy": float(np.mean(accuracies)),
                "answered": float(np.mean(answered)),
            }
            print(experiment.dataset, rows[-1], file=sys.stderr)
    return rows


def joined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the rows of all seeds."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in ("labeler", "asked", "epsilon")), []).append(
            row
        )
    return [
        dict(zip(("labeler", "asked", "epsilon"), names, strict=True))
        | {name: summary([row[name] for row in same]) for name in ("label_accuracy", "answered")}
        for names, same in found.items()
    ]


if __name__ == "__main__":
    results = {
        experiment.dataset: joined(
            [
                row
                for seed in SEEDS
                for row in measure(replace(experiment, seed=seed), (*kinds, *others(kinds)))
            ]
        )
        for experiment, kinds in STUDIES
    }
    save("labelers", results, seeds=SEEDS, draws=DRAWS, delta=DELTA, relation="replace-one")

"""Results of a finished run, written into its folder."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rknn_jax import check, mechanisms
from rknn_jax._internal.disk import write_arrays, write_whole
from rknn_jax.algorithm import Round
from rknn_jax.answers.measured import Measured
from rknn_jax.labelers import Labeler, _linear_head, noisy_sgd, public_prototypes
from rknn_jax.labelers._sum_labeler import SumLabeler
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels
from rknn_jax.privacy import accounting, roles
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import (
    Contribution,
    Statement,
    Tuning,
    as_json,
    new_release,
    page,
)
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.types import Answers, Classifier, Queries, Records, Task

from .checking import Checked
from .environment import environment, own_version
from .experiment import TRAINING, Experiment
from .json_files import write_json

HEADS = (noisy_sgd.Head, _linear_head.Head, public_prototypes.Nearest)
"""Classifiers of features that a labeler releases."""

EXPERIMENT_TUNING = Tuning(
    "uncharged",
    "An experiment's settings were chosen by accuracies on benchmark data, and epsilon does not "
    "cover that choice. What a purchase of labels cost is part of epsilon.",
)


def finish(
    folder: Path,
    experiment: Experiment,
    task: Task,
    found: Sequence[Round],
    student: ensemble.Ensemble | None,
    chosen: Guarantee | None,
    checked: Checked | None,
    benchmark: dict[str, Any],
    seconds: float,
) -> Guarantee:
    """Write everything but the report, and return the guarantee of the whole run.

    Args:
      folder: Folder of the run.
      experiment: Settings of the run.
      task: Data of the run.
      found: Results of every round.
      student: Student of the last round, or None if none was wanted or none finished an epoch.
      chosen: Guarantee of the choice of labels to buy, or None if the choice cost nothing.
      checked: Check of the labels, or None if nobody checked them.
      benchmark: Result of `truth.not_covered`.
      seconds: Duration of the run in seconds.
    """
    labels = found[-1].labels
    rounds = [(one.queries, one.answers) for one in found]
    model = rounds[-1][1].model
    parts = [answers.guarantee for _, answers in rounds]
    votes = guarantee_of_votes(found, chosen, experiment.delta)
    guarantee = votes if checked is None else roles.guarantee(votes, curves=False)[0]
    measured = checked and checked.measured
    num_units = experiment.labeler_of_round().num_units(task.private)
    result = {
        **_accuracies(task, labels, model, student),
        "measured": measured and measured.asdict(),
        **_circumstances(experiment, task, guarantee, student=student, seconds=seconds),
        "num_units": num_units,
        "num_voters": num_units if checked is None else checked.num_voters,
        "not_covered_by_epsilon": benchmark,
    }
    statement = _statement(
        experiment,
        task,
        guarantee,
        measured=measured,
        networks=_save_networks(folder, model, student),
        counted=all(answers.counted for _, answers in rounds),
    )
    # A record that checks is in none of the parts, so they say nothing of the whole.
    noise = [guarantee] if checked else [*parts, chosen] if chosen else parts
    privacy = statement.card(
        **_privacy(guarantee, parts, chosen, _accountants(guarantee, noise, experiment.delta)),
        covers=list(statement.released),
        does_not_cover=list(statement.not_covered),
    )
    write_arrays(folder / "labels.npz", _public_rows(task, labels, rounds))
    write_arrays(folder / "queries.npz", _queries(task, labels, rounds))
    write_whole(folder / "privacy.html", page(statement).encode())
    write_whole(folder / "privacy.json", as_json(privacy).encode())
    # The result comes last, because a folder that has it is a finished run.
    write_json(folder / "result.json", result)
    if not result["interrupted"]:
        shutil.rmtree(folder / TRAINING, ignore_errors=True)  # nothing is left to resume
    return guarantee


def guarantee_of_votes(found: Sequence[Round], chosen: Guarantee | None, delta: float) -> Guarantee:
    """Return the guarantee of the whole run for the records that vote.

    Args:
      found: Results of every round.
      chosen: Guarantee of the choice of labels to buy, or None if the choice cost nothing.
      delta: Probability delta of the whole run.
    """
    parts = [one.answers.guarantee for one in found]
    return accounting.compose(parts + ([chosen] if chosen else []), delta)


def _accuracies(
    task: Task, labels: Labels, model: Classifier | None, student: ensemble.Ensemble | None
) -> dict[str, float | None]:
    """Return the accuracies of labels, student and network; None for one that is not there."""
    right = labels.known & (labels.hard == task.public.true_labels)
    return {
        "label_accuracy": float(right.mean()),
        "test_accuracy": None if student is None else _accuracy(student, task.test),
        "model_test_accuracy": None if model is None else _accuracy(model, task.test),
    }


def _circumstances(
    experiment: Experiment,
    task: Task,
    guarantee: Guarantee,
    student: ensemble.Ensemble | None,
    seconds: float,
) -> dict[str, Any]:
    """Return what a run cost, took and was given."""
    student_wanted = experiment.student is not None
    return {
        "labels_bought": experiment.buy.labels,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "relation": guarantee.relation,
        "trust": guarantee.trust,
        "seed": experiment.seed,
        "seconds": seconds,
        "interrupted": student_wanted if student is None else student.interrupted,
        "num_public": len(task.public.images),
        "num_private": len(task.private.labels),
        "unit": guarantee.unit,
        "num_test": len(task.test.labels),
    }


def _privacy(
    guarantee: Guarantee,
    rounds: Sequence[Guarantee],
    chosen: Guarantee | None,
    accountants: dict[str, float],
) -> dict[str, Any]:
    """Return the whole guarantee and its parts, and epsilon by every accountant."""
    return {
        "whole": guarantee.asdict(),
        "rounds": [one.asdict() for one in rounds],
        "accountants": {
            name: "infinity" if math.isinf(value) else value  # JSON lacks infinity
            for name, value in accountants.items()
        },
        "choice_of_labels_to_buy": chosen and chosen.asdict(),
    }


def _accountants(
    guarantee: Guarantee, parts: Sequence[Guarantee], delta: float
) -> dict[str, float]:
    """Return epsilon by every accountant that can tell it, by the accountant's name."""
    own = {guarantee.accountant: guarantee.epsilon}
    # A part with a delta but no events cannot be told to another accountant.
    if not all(part.events or not part.delta for part in parts):
        return own
    events = [event for part in parts for event in part.events]
    if not events or guarantee.epsilon == math.inf:
        return own
    return accounting.epsilons(events, delta) or own


def _public_rows(
    task: Task, labels: Labels, rounds: Sequence[tuple[Queries, Answers]]
) -> dict[str, np.ndarray]:
    """Return the columns of labels.npz, one row a public record."""
    told = all(answers.counted for _, answers in rounds)  # else no number tells of the noise
    return {
        "label": np.where(labels.known, labels.hard, -1),
        "query": labels.query,
        "confidence": labels.confidence if told else np.full_like(labels.confidence, np.nan),
        "probability": labels.probabilities,
        "true_label": task.public.true_labels,
    }


def _save_networks(
    folder: Path, model: Classifier | None, student: ensemble.Ensemble | None
) -> list[str]:
    """Save the labeler's network, its generator and the student, and return which there are."""
    saved = []
    if isinstance(model, students.Student):
        students.save(model, folder / "model")
        saved.append("the network")
    elif isinstance(model, HEADS):
        model.save(folder / "model")
        saved.append("the network")
    for path in (folder / TRAINING).glob("*/generator"):
        shutil.copytree(path, folder / "generator")
        saved.append("its generator")
    if student is not None:
        ensemble.save(student, folder / "student")
        saved.append("the student")
    return saved


def _statement(
    experiment: Experiment,
    task: Task,
    guarantee: Guarantee,
    *,
    measured: Measured | None,
    networks: Sequence[str],
    counted: bool,
) -> Statement:
    about = environment()
    checked = (
        ()
        if measured is None
        else (check.released(guarantee.unit, by_class=bool(measured.recall)),)
    )
    told = "a benchmark's result.json tells"
    if guarantee.relation == "replace-one":
        count = experiment.labeler_of_round().num_units(task.private)
        records = f"{count:,} of its"
        told_by = "replace-one takes as public"
    else:
        records = "Some of its"
        told_by = told
    labeler = experiment.labeler
    votes = labeler.num_neighbors if isinstance(labeler, ReverseKNN) else None
    return Statement(
        guarantee,
        f"This is an experiment on the data set {experiment.dataset}. {records} "
        f"{guarantee.unit}s play the part of private ones, and whoever runs it "
        "holds all of them.",
        (
            "the noisy counts" if counted else "the labels of the queries",
            "the labels of the public records",
            *networks,
            *checked,
        ),
        not_covered=(
            f"the number of private {guarantee.unit}s, which {told_by}",
            *([f"the number of their records, which {told}"] * (guarantee.unit == "person")),
            "settings chosen by looking at private data or at accuracies, such as this page's",
            "everything under not_covered_by_epsilon in result.json",
        ),
        mechanism=labeler.noise,
        account="No ledger keeps account of experiments: every one of them sees the same records "
        "again.",
        date=about["date"],
        details={
            "data set": experiment.dataset,
            "labeler": labeler.name,
            "rounds": experiment.rounds,
            **({} if measured is None else {"measured": str(measured)}),
        },
        versions={"rknn-jax": own_version()} | about["versions"],
        release=new_release(),
        contribution=Contribution(_records_of_unit(labeler, guarantee.unit), votes),
        tuning=EXPERIMENT_TUNING,
    )


def _records_of_unit(labeler: Labeler[Any], unit: str) -> int | Literal["shared", "clipped", "all"]:
    """Return how many records of a unit count, for the statement."""
    if unit == "record" or not labeler.has_curator:
        return 1  # a person sends one message, of one record
    if not isinstance(labeler, SumLabeler):
        return "all"  # a teacher, a gradient or a vote takes in whatever a person has
    clips = isinstance(labeler, ReverseKNN) and mechanisms.named(labeler.noise).norm == 2
    return "clipped" if clips else "shared"


def _accuracy(model: Classifier, records: Records) -> float:
    return float(np.mean(model.predict_proba(records.images).argmax(axis=1) == records.labels))


def _queries(
    task: Task, labels: Labels, rounds: Sequence[tuple[Queries, Answers]]
) -> dict[str, np.ndarray]:
    """Return all rounds' queries with their pictures, votes and true labels.

    The true label of a query is the most frequent one of its records, for a benchmark.
    """
    index = np.concatenate([queries.index for queries, _ in rounds])
    counts = np.zeros((len(index), task.card.num_classes), np.int64)
    asked = labels.query >= 0
    np.add.at(counts, (labels.query[asked], task.public.true_labels[asked]), 1)
    size = counts.sum(axis=1)
    # A query that labels no record, such as one of a labeler that samples, has its own label.
    true_label = np.where(size > 0, counts.argmax(axis=1), task.public.true_labels[index])
    asked_by_round = [len(queries.index) for queries, _ in rounds]
    every = [answers for _, answers in rounds]
    return {
        "label": np.concatenate([answers.labels for answers in every]),
        "noisy_counts": np.concatenate([answers.counts for answers in every]),
        "stddev": np.concatenate([answers.stddev for answers in every]),
        "probability": np.concatenate([answers.probabilities for answers in every]),
        "image": task.public.images[index],
        "public_index": index,
        "round": np.repeat(np.arange(len(rounds)), asked_by_round),
        "size": size,
        "true_label": true_label.astype(np.int32),
    }

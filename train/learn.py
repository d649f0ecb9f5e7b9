"""Students of an experiment: their settings, their training, and the log of their epochs."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax._internal.disk import write_arrays
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.students import ensemble, mixmatch, uda, vat
from rknn_jax.students import fit as students
from rknn_jax.types import Task

from . import buy
from . import experiment as runs
from .experiment import Experiment
from .stages import console


def fit_student(
    key: jax.Array,
    task: Task,
    labels: Labels,
    experiment: Experiment,
    folder: Path,
    step: int,
    network: Any,
) -> ensemble.Ensemble | None:
    """Train students on all public records labeled so far, and log every epoch.

    Returns:
      Students, or None if they were stopped in the first epoch.

    Raises:
      ValueError: If semi-supervised training has no public record without a label.
    """
    learned = labels.surest(1 - experiment.unlabelled)
    config = student_config(experiment)
    unlabelled = None if isinstance(config, students.Config) else task.public.images[~learned]
    if unlabelled is not None and not len(unlabelled):
        raise ValueError(
            "Expected public records without a label with "
            f"semi_supervised={experiment.semi_supervised}, got none; pass --unlabelled 0.1, "
            "or --smoothing none where queries are declined."
        )
    try:
        return ensemble.fit(
            key,
            task.public.images[learned],
            labels.targets(experiment.targets)[learned],
            config,
            experiment.members,
            unlabelled=unlabelled,
            start=network if experiment.fine_tune else None,
            on_epoch=epoch_log(task, folder, step),
        )
    except KeyboardInterrupt:
        console.print("Stopped before the student's first epoch; keeping the labels.")
        return None


def epoch_log(task: Task, folder: Path, step: int) -> students.OnEpoch:
    """Return a callback that writes every epoch of a student to `metrics.jsonl` and prints it."""

    def log(epoch: int, epochs: int, metrics: dict[str, float], student: students.Student) -> None:
        accuracy = float(
            np.mean(student.predict_proba(task.test.images).argmax(axis=1) == task.test.labels)
        )
        runs.append_jsonl(
            folder / "metrics.jsonl",
            {"round": step, "epoch": epoch, "epochs": epochs, **metrics, "test_accuracy": accuracy},
        )
        left = metrics["seconds"] * (
            epochs - epoch
        )  # too long after the first epoch, which compiles
        console.print(
            f"  epoch {epoch:>3}/{epochs}  loss {metrics['loss']:.3f}  test {accuracy:.2%}  "
            f"{left:.0f} s left"
        )

    return log


def student_config(experiment: Experiment) -> ensemble.Config:
    """Return the training settings of each student."""
    config = students.Config(
        model=experiment.student,
        epochs=experiment.epochs or 0,
        batch_size=experiment.batch_size,
        augmentation=experiment.augmentation,
    )
    if experiment.semi_supervised == "none":
        return config
    config = replace(config, label_smoothing=0.0)
    weight: dict[str, Any] = (
        {}
        if experiment.unlabelled_weight is None
        else {"unlabelled_weight": experiment.unlabelled_weight}
    )
    if experiment.semi_supervised == "mixmatch":
        return mixmatch.Config(config, **{"unlabelled_weight": 75.0, **weight})
    module = {"uda": uda, "vat": vat}[experiment.semi_supervised]
    own = module.Config(**weight)
    changed = (
        {"strong": "photo"}
        if experiment.semi_supervised == "uda" and experiment.augmentation.startswith("crop")
        else {}
    )
    settings: ensemble.Config = replace(
        own, student=replace(config, epochs=experiment.epochs or own.student.epochs), **changed
    )
    return settings


def buy_labels(
    key: jax.Array,
    noise_key: jax.Array,
    task: Task,
    model: Any,
    experiment: Experiment,
    folder: Path,
) -> tuple[ensemble.Ensemble, Guarantee | None]:
    """Buy true labels of public records and fine-tune the private network on them.

    The choice is saved before anything is bought, so that a resumed run makes no other choice.

    Returns:
      Fine-tuned network, and the guarantee of the choice of records, None if it costs nothing.
    """
    select_key, tune_key = jax.random.split(key)
    index, chosen = runs.choice_of(
        folder,
        lambda: buy.select(
            select_key,
            noise_key,
            task,
            model,
            experiment.buy,
            experiment.relation,
            experiment.delta,
        ),
    )
    bought = buy.bought_labels(task, index, experiment.buy)
    student = buy.fine_tune(
        tune_key, task, model, index, bought, experiment.buy, epoch_log(task, folder, 0)
    )
    write_arrays(folder / "bought.npz", {"public_index": index, "label": bought})
    console.print(
        f"{len(bought)} labels bought, {np.sum(bought >= 0)} of them of one of the classes"
    )
    return ensemble.Ensemble((student,)), chosen


def resolved_settings(
    experiment: Experiment, labeler: Labeler[Any], num_queries: int, task: Task
) -> dict[str, Any]:
    """Return the content of `config.json`: resolved settings, versions and device."""
    student = None if experiment.student == "none" else asdict(student_config(experiment))
    resolved = {
        "resolved_labeler": asdict(labeler) | _mechanism(labeler),
        "resolved_queries": num_queries,
        "resolved_student": student,
        "classes": task.card.classes,
    }
    return runs.settings(experiment) | resolved | runs.environment()


def _mechanism(labeler: Labeler[Any]) -> dict[str, str]:
    return {"mechanism": labeler.noise} if isinstance(labeler, ReverseKNN) else {}

"""Students of an experiment: their settings, their training, and the log of their epochs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax._internal.disk import write_arrays
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.option_files import OPTIONS
from rknn_jax.algorithm import Fit, Keys, Round
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.labels import Labels
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from rknn_jax.types import Queries, Task

from . import buy, commandline, run_folder
from .environment import environment
from .experiment import Experiment, plain_settings
from .json_files import append_jsonl, write_json
from .stages import console


def student_fit(experiment: Experiment, task: Task, folder: Path, network: Any) -> Fit | None:
    """Return the training of the student, or None if the labels alone or bought labels are wanted.

    Args:
      experiment: Settings of the run.
      task: Data of the run.
      folder: Folder of the run, in which every epoch is logged.
      network: Layers of the representation's network, from which fine-tuning starts, or None.
    """
    settings = experiment.student
    if settings is None or experiment.buy.labels:
        return None

    def fit(key: jax.Array, step: int, labels: Labels) -> ensemble.Ensemble | None:
        log = epoch_log(task, folder, step)
        try:
            return settings.fit(key, task.public.images, labels, start=network, on_epoch=log)
        except KeyboardInterrupt:
            console.print("Stopped before the student's first epoch; keeping the labels.")
            return None

    return fit


def epoch_log(task: Task, folder: Path, step: int) -> students.OnEpoch:
    """Return a callback that writes every epoch of a student to `metrics.jsonl` and prints it."""

    def log(epoch: int, epochs: int, metrics: dict[str, float], student: students.Student) -> None:
        accuracy = float(
            np.mean(student.predict_proba(task.test.images).argmax(axis=1) == task.test.labels)
        )
        append_jsonl(
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


def final_student(
    keys: Keys, task: Task, rounds: Sequence[Round], experiment: Experiment, folder: Path
) -> tuple[ensemble.Ensemble | None, Guarantee | None]:
    """Return the student of the last round, or buy labels and fine-tune the private network.

    The choice of labels is saved before anything is bought, so that a resumed run makes no other
    choice.

    Returns:
      Student, and the guarantee of the choice of labels, None if it costs nothing.
    """
    config = experiment.buy
    if not config.labels:
        student = rounds[-1].student
        assert student is None or isinstance(student, ensemble.Ensemble)
        return student, None
    model = rounds[-1].answers.model
    assert isinstance(model, students.Student)  # `Config.check_labeler` refused all others
    noise_key = stage_key(keys.noise, Stage.NOISE, experiment.rounds)
    select_key, tune_key = jax.random.split(stage_key(keys.public, Stage.STUDENT))

    def select() -> tuple[Queries, Guarantee | None]:
        relation = experiment.relation
        keys = (select_key, noise_key)
        delta = experiment.delta
        return buy.select(*keys, task, model, config=config, relation=relation, delta=delta)

    network = fingerprint(*jax.tree.leaves((model.params, model.batch_stats)))
    index, chosen = run_folder.choice_of(folder, network, select)
    bought = buy.bought_labels(task, index, config)
    log = epoch_log(task, folder, 0)
    tuned = buy.fine_tune(
        tune_key, task, model, index=index, labels=bought, config=config, on_epoch=log
    )
    write_arrays(folder / "bought.npz", {"public_index": index, "label": bought})
    console.print(
        f"{len(bought)} labels bought, {np.sum(bought >= 0)} of them of one of the classes"
    )
    return ensemble.Ensemble((tuned,)), chosen


def write_settings(
    experiment: Experiment, labeler: Labeler[Any], num_queries: int, task: Task, folder: Path
) -> None:
    """Write `config.json`: resolved settings, versions, device, and options for `--config`."""
    resolved = {
        "resolved_labeler": asdict(labeler) | _mechanism(labeler),
        "resolved_queries": num_queries,
        "classes": task.card.classes,
    }
    options = {OPTIONS: commandline.options(experiment)}
    told = plain_settings(experiment) | resolved | environment() | options
    write_json(folder / "config.json", told)


def _mechanism(labeler: Labeler[Any]) -> dict[str, str]:
    return {"mechanism": labeler.noise} if isinstance(labeler, ReverseKNN) else {}

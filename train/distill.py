"""Label public data with private records at epsilon, and train a student on the labels.

    python -m train.distill --dataset digits --epsilon 1
    python -m train.distill --dataset mnist --data-dir DIR --epsilon 0.1
    python -m train.distill --preset mnist-fast --data-dir DIR
    python -m train.distill --preset mnist-fast --data-dir DIR --labeler noisy_sgd --delta 1e-5

The run folder also gets the privacy guarantee and a report. `rknn_jax.algorithm` is Algorithm 1.
This file adds the run folder, the messages, and the accuracies that only a benchmark can know.
Everything is a simulation on benchmark data. `rknn label` releases.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from rknn_jax._internal import compilation
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.algorithm import Round, Student
from rknn_jax.algorithm import distill as algorithm_1
from rknn_jax.labels import Labels
from rknn_jax.privacy import accounting
from rknn_jax.students import ensemble
from rknn_jax.types import Array, Queries

from . import buy, commandline, learn, report, stages, truth
from . import experiment as runs
from .experiment import Experiment


def main(
    experiment: Experiment,
    prepared: Callable[[Experiment], stages.Prepared] | None = None,
    *,
    benchmark: bool = True,
    again: bool = False,
) -> Path:
    """Run Algorithm 1 in a folder of its own and return the folder.

    Args:
      experiment: Settings of the run.
      prepared: Replacement of `prepare`, which may share its results among experiments. Defaults to
        none.
      benchmark: Whether to measure accuracies that only a benchmark can know, and to write the
        report. Labels and guarantee do not depend on it. Defaults to True.
      again: Whether a run that was interrupted begins again in its folder. Defaults to False, which
        keeps its results.

    Raises:
      ValueError: If settings or data cannot be used.
    """
    folder = runs.make_folder(experiment)
    with runs.held(folder):
        runs.begin(experiment, folder, again=again)
        distill(experiment, folder, prepared, benchmark=benchmark)
    return folder


def distill(
    experiment: Experiment,
    folder: Path,
    prepared: Callable[[Experiment], stages.Prepared] | None = None,
    *,
    benchmark: bool = True,
) -> None:
    """Run Algorithm 1 in a folder that is held by `runs.held`, with the arguments of `main`."""
    started = time.perf_counter()
    try:
        task, encode, network = (prepared or stages.prepare)(experiment)
        buy.check(task, experiment.buy, experiment.delta)
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()  # leave no empty folder of a failed run
        raise
    keys = stages.keys_of(experiment)
    labeler = experiment.labeler_of_round(folder)
    num_queries = experiment.queries or stages.default_num_queries(task, labeler, experiment)
    resolved = learn.resolved_settings(experiment, labeler, num_queries, task)
    runs.write_json(folder / "config.json", resolved)

    def ask(key: jax.Array, features: Array, labels: Labels, student: Student | None) -> Queries:
        return stages.select_queries(key, task, features, num_queries, labels, student, experiment)

    def fit(key: jax.Array, step: int, labels: Labels) -> ensemble.Ensemble | None:
        return learn.fit_student(key, task, labels, experiment, folder, step, network)

    without_student = experiment.student == "none" or experiment.buy.labels
    rounds: list[Round] = []
    for one in algorithm_1(
        labeler,
        ask,
        encode,
        None if without_student else fit,
        task,
        keys,
        experiment.rounds,
        experiment.smoothing,
    ):
        rounds.append(one)
        stages.console.print(
            f"round {len(rounds)}: {one.answers.answered.sum()} of {num_queries} queries "
            f"answered, {truth.label_accuracy(task, one.labels):.2%} of the public labels right"
        )
    noise_key = stage_key(keys.noise, Stage.BENCHMARK)
    not_covered = truth.not_covered(noise_key, task, labeler, rounds[0]) if benchmark else {}
    student, chosen = rounds[-1].student, None
    if experiment.buy.labels:
        noise_key = stage_key(keys.noise, Stage.NOISE, experiment.rounds)
        model = rounds[-1].answers.model
        tune_key = stage_key(keys.public, Stage.STUDENT)
        student, chosen = learn.buy_labels(tune_key, noise_key, task, model, experiment, folder)
    guarantees = [one.answers.guarantee for one in rounds] + ([chosen] if chosen else [])
    guarantee = accounting.compose(guarantees, experiment.delta)
    seconds = time.perf_counter() - started
    assert student is None or isinstance(student, ensemble.Ensemble)
    labels = rounds[-1].labels
    asked = [(one.queries, one.answers) for one in rounds]
    runs.finish(
        folder, experiment, task, labels, asked, student, guarantee, chosen, not_covered, seconds
    )
    stages.console.print(f"\n{guarantee}\n")
    if benchmark:
        stages.console.print(f"The report: {report.write(folder)}")


def run(
    experiment: Experiment, prepared: Callable[[Experiment], stages.Prepared] | None = None
) -> dict[str, Any]:
    """Return the experiment's result, from its folder if it is finished, otherwise from `main`.

    Raises:
      KeyboardInterrupt: If the run was stopped, even during the student's training, whose state
        `main` keeps.
      ValueError: If the folder is that of another run, and for the errors of `main`.
    """
    result = runs.find_result(experiment)
    if result is None:
        main(experiment, prepared, again=True)
        result = runs.find_result(experiment)
    if result is None:
        raise KeyboardInterrupt
    return result


def cli() -> int:
    """Run from the command line.

    Exit status 2 means bad input, and 130 that the run was stopped with nothing to keep.
    """
    compilation.keep()
    progress = logging.getLogger("rknn_jax")
    progress.addHandler(logging.StreamHandler())
    progress.setLevel(logging.INFO)
    progress.propagate = False
    try:
        main(commandline.parsed(sys.argv[1:], __doc__))
    except (ValueError, OSError) as error:
        stages.console.print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        stages.console.print("Stopped before anything was labeled.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(cli())

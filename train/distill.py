"""Label public data with private records at epsilon, and train a student on the labels.

    python -m train.distill --dataset digits --epsilon 1
    python -m train.distill --dataset mnist --data-dir DIR --epsilon 0.1
    python -m train.distill --preset mnist-fast --data-dir DIR
    python -m train.distill --preset mnist-fast --data-dir DIR --labeler noisy_sgd --delta 1e-5

The run folder also gets the privacy guarantee and a report. `rknn_jax.algorithm` is Algorithm 1.
This file adds the run folder, the messages, and the accuracies that only a benchmark can know.
Everything is a simulation on benchmark data. `rknn label` releases.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from rknn_jax._internal import compilation, progress
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.terminal import run_program
from rknn_jax.algorithm import Round, Student
from rknn_jax.algorithm import distill as algorithm_1
from rknn_jax.labels import Labels
from rknn_jax.types import Array, Queries

from . import buy, checking, commandline, learn, report, run_folder, stages, truth
from .experiment import Experiment
from .results import finish, guarantee_of_votes

Prepare = Callable[[Experiment], stages.Prepared]


def main(
    experiment: Experiment,
    prepared: Prepare = stages.prepare,
    *,
    benchmark: bool = True,
    again: bool = False,
) -> Path:
    """Run Algorithm 1 in a folder of its own and return the folder.

    Args:
      experiment: Settings of the run.
      prepared: Replacement of `stages.prepare`, which may share its results among experiments.
      benchmark: Whether to measure accuracies that only a benchmark can know, and to write the
        report. Labels and guarantee do not depend on it. Defaults to True.
      again: Whether an interrupted run begins again. Defaults to False, which keeps its results.

    Raises:
      ValueError: If settings or data cannot be used.
    """
    with run_folder.opened(experiment, again=again) as folder:
        started = time.perf_counter()
        task, encode, network = prepared(experiment)
        buy.check(task, experiment.buy, experiment.delta)
        keys = stages.keys_of(experiment)
        labeler = experiment.labeler_of_round(folder)
        sides = checking.sides(keys.noise, task, labeler, experiment=experiment, folder=folder)
        everybody = task
        task = sides.task  # the voters alone, from here to the check
        size = experiment.queries or stages.default_num_queries(task, labeler, experiment)
        labeler = stages.sharing(labeler, task, size, experiment)
        learn.write_settings(experiment, labeler, size, task=task, folder=folder)

        def ask(key: jax.Array, features: Array, labels: Labels, known: Student | None) -> Queries:
            return stages.select_queries(
                key,
                task,
                features,
                num_queries=size,
                labels=labels,
                student=known,
                experiment=experiment,
            )

        fit = learn.student_fit(experiment, task, folder, network)
        rounds: list[Round] = []
        for one in algorithm_1(
            labeler,
            ask,
            encode,
            fit=fit,
            task=task,
            keys=keys,
            num_rounds=experiment.rounds,
            smoothing=experiment.smoothing,
        ):
            rounds.append(one)
            stages.console.print(
                f"round {len(rounds)}: {one.answers.answered.sum()} of {size} queries answered, "
                f"{truth.label_accuracy(task, one.labels):.2%} of the public labels right"
            )
        key = stage_key(keys.noise, Stage.BENCHMARK)
        not_covered = truth.not_covered(key, task, labeler, rounds[0]) if benchmark else {}
        student, chosen = learn.final_student(
            keys, task, rounds, experiment=experiment, folder=folder
        )
        votes = guarantee_of_votes(rounds, chosen, experiment.delta)
        checked = checking.check(
            keys.noise, sides, rounds[-1], votes=votes, labeler=labeler, experiment=experiment
        )
        if checked is not None and checked.measured is not None:
            stages.console.print(f"{checked.measured}.")
        seconds = time.perf_counter() - started
        whole = finish(
            folder,
            experiment,
            everybody,
            found=rounds,
            student=student,
            chosen=chosen,
            checked=checked,
            benchmark=not_covered,
            seconds=seconds,
        )
        stages.console.print(f"\n{whole}\n")
        if benchmark:
            with progress.phase("writing the report"):
                path = report.write(folder)
            stages.console.print(f"The report: {path}")
    return folder


def run(experiment: Experiment, prepared: Prepare = stages.prepare) -> dict[str, Any]:
    """Return the experiment's result, from its folder if it is finished, otherwise from `main`.

    Raises:
      KeyboardInterrupt: If the run was stopped, even during the student's training, whose state
        `main` keeps.
      ValueError: If the folder is that of another run, and for the errors of `main`.
    """
    result = run_folder.find_result(experiment)
    if result is None:
        main(experiment, prepared, again=True)
        result = run_folder.find_result(experiment)
    if result is None:
        raise KeyboardInterrupt
    return result


def cli() -> int:
    """Run from the command line. Exit status 2 means bad input, and 130 a run that was stopped."""
    compilation.keep()
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
    run_program(cli)

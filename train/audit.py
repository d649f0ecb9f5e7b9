r"""Audit a whole run: try to break its guarantee with a canary among the private records.

    python -m train.audit --dataset digits --epsilon 1
    python -m train.audit --dataset mnist --data-dir DIR --epsilon 1 --delta 1e-5 \
        --labeler private_knn --runs 200

Every option of `train.distill` is also an option here. The canary is the picture of a query in the
place of a private record. It has its own label in one data set, and that of another class in the
other. Under add-remove, it is present in one and absent in the other. With `--unit person`, all
records of the last record's person take its place. Every run is one of `train.distill`, from data
to files, with fresh noise of the operating system's entropy. The audit reads `queries.npz` and
`labels.npz` in the run's folder and, where records check, the measures in `result.json`. No student
is trained: it is post-processing of these files and reveals nothing more.

    OUT/audit.json    the result, a `rknn_jax.audit.finding.Finding`

Exit status: 0 not broken, 4 broken, 2 bad input, 130 stopped.
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax._internal import compilation, ranges
from rknn_jax._internal.disk import new_path
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax._internal.terminal import run_program
from rknn_jax.audit import games_labeler, verdict
from rknn_jax.audit.finding import Finding
from rknn_jax.audit.game import Game
from rknn_jax.cli.audit import BROKEN
from rknn_jax.labels import Labels
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Records, Task

from . import commandline, distill, stages, sweep
from .environment import environment
from .experiment import Experiment, plain_settings
from .json_files import write_json
from .stages import Prepared

RELEASED = {
    "queries.npz": ("label", "noisy_counts", "stddev", "probability"),
    "labels.npz": ("label", "confidence", "probability"),
}
"""Released arrays of a run's folder. The rest of these files is public, or a benchmark's."""

MEASURED = ("right", "low", "high", "checkers", "majority")
"""Released numbers of what records that check measure, beside those of each class."""


def main(experiment: Experiment, num_runs: int, confidence: float = 0.9999) -> Finding:
    """Audit runs of `experiment`.

    Args:
      experiment: Settings without a student.
      num_runs: Number of runs of each data set. Half of them are used once, for the bound.
      confidence: Confidence of the bound. Defaults to 0.9999.

    Raises:
      ValueError: If epsilon is infinite, if there is a noise seed, if the labeler trains a network,
        and for the errors of `train.distill.main`.
    """
    if not math.isfinite(experiment.epsilon):
        raise ValueError("Expected a finite epsilon, got infinity; there is no guarantee to break.")
    if experiment.noise_seed is not None:
        raise ValueError(
            f"Expected no noise seed, got noise_seed={experiment.noise_seed}; the same noise in "
            "every run hides nothing."
        )
    if experiment.labeler.trains:
        raise ValueError(
            f"Expected a labeler that counts votes, got labeler={experiment.labeler.name}; its "
            "network is released too, and looked at by "
            f"`rknn audit --labeler {experiment.labeler.name}`."
        )
    stages.console.quiet = True
    try:
        with tempfile.TemporaryDirectory() as folder:
            worlds, sizes = neighbours(experiment)
            guarantee = released(experiment, worlds[0], Path(folder) / "first", sizes)[1]
            started = time.perf_counter()
            numbers = itertools.count(1)

            def observe(key: jax.Array, world: int, count: int) -> np.ndarray:
                del key  # the run draws its own noise
                rows = [
                    released(experiment, worlds[world], Path(folder) / str(next(numbers)), sizes)[0]
                    for _ in range(count)
                ]
                done = len(list(Path(folder).iterdir())) - 1
                sys.stderr.write(
                    f"{done} of 2 x {num_runs} runs, {time.perf_counter() - started:.0f} s\n"
                )
                return np.stack(rows)

            game = Game(
                "the picture of a query among the private records, with its label or another's, "
                "or there or not",
                observe,
            )
            return verdict.audit(
                jax.random.key(0), [game], guarantee, runs=num_runs, confidence=confidence
            )
    finally:
        stages.console.quiet = False


def neighbours(experiment: Experiment) -> tuple[tuple[Prepared, Prepared], dict[str, int]]:
    """Return two neighboring data sets, with the representation learned from public data.

    They differ in a canary, the last private record.

    Returns:
      Both data sets, and the most rows of each file of `RELEASED` and of the recall of classes.
    """
    task, encode, network = sweep.sharing()(experiment)
    config = experiment.labeler_of_round()
    num_queries = experiment.queries or stages.default_num_queries(task, config, experiment)
    nothing = Labels.none(len(task.public.images), task.card.num_classes)
    key = stage_key(jax.random.key(experiment.seed), Stage.QUERIES, 0)
    queries = stages.select_queries(
        key,
        task,
        encode(task.public.images),
        num_queries=num_queries,
        labels=nothing,
        student=None,
        experiment=experiment,
    )
    canary = games_labeler.canaries(task, queries)[0]
    both = [
        games_labeler.with_record(
            task.private, canary.images[world], int(canary.labels[world]), experiment.unit
        )
        for world in (0, 1)
    ]
    if experiment.relation == "add-remove":
        both = [games_labeler.without_canary(task.private, experiment.unit), both[0]]
    first, second = (Prepared(_with_private(task, private), encode, network) for private in both)
    most = experiment.rounds * num_queries
    sizes = {"queries.npz": most, "labels.npz": len(task.public.images)}
    return (first, second), sizes | {"recall": task.card.num_classes}


def released(
    experiment: Experiment, prepared: Prepared, folder: Path, sizes: Mapping[str, int]
) -> tuple[np.ndarray, Guarantee]:
    """Run `train.distill` without its report, and return its release and its guarantee.

    Args:
      experiment: Settings of the run.
      prepared: Data of the run.
      folder: Folder of the run.
      sizes: As `neighbours` returns them. A run may answer fewer queries.

    Returns:
      Released values, float64 `[f]`, and the guarantee that the run states.
    """
    distill.main(replace(experiment, out=folder), lambda _: prepared, benchmark=False)
    arrays = []
    for name, wanted in RELEASED.items():
        with np.load(folder / name) as saved:
            arrays += [_of_size(saved[array], sizes[name]) for array in wanted]
    told = json.loads((folder / "result.json").read_text())["measured"] or {}
    arrays.append(np.array([told.get(name) or 0 for name in MEASURED], np.float64))
    arrays.append(_of_size(np.reshape(told.get("recall") or (), (-1, 3)), sizes["recall"]))
    return np.concatenate(arrays), Guarantee.of(
        json.loads((folder / "privacy.json").read_text())["whole"]
    )


def _of_size(rows: np.ndarray, size: int) -> np.ndarray:
    """Return an array `[k, ...]` as a vector of `size` rows, the last ones 0, float64."""
    whole = np.zeros((size, *rows.shape[1:]))
    whole[: len(rows)] = rows
    return whole.ravel()


def _with_private(task: Task, private: Records) -> Task:
    return replace(task, private=private, private_index=task.private_index[: len(private.labels)])


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, Experiment]:
    """Return the options of the audit, and the experiment of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--runs", type=int, default=400, help="of each data set")
    parser.add_argument("--confidence", type=float, default=0.9999, help="of the bound")
    parser.add_argument(
        "--out", type=Path, help="folder of audit.json; the default is a new one under runs/"
    )
    known, others = parser.parse_known_args(arguments)
    ranges.check_number("runs", known.runs, ranges.Runs)
    ranges.check_number("confidence", known.confidence, ranges.Confidence)
    ranges.check_local("out", known.out)
    return known, replace(commandline.parsed(others), student=None)


def cli() -> int:
    """Run from the command line."""
    compilation.keep()
    try:
        known, experiment = parsed(sys.argv[1:])
        found = main(experiment, known.runs, known.confidence)
        out = known.out or new_path(Path("runs"), "audit")
        out.mkdir(parents=True, exist_ok=True)
        told: dict[str, Any] = {
            "finding": found.asdict(),
            "experiment": plain_settings(experiment),
            **environment(),
        }
        write_json(out / "audit.json", told)
    except (ValueError, OSError) as error:
        stages.console.print(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        stages.console.print("Stopped; nothing was found.")
        return 130
    stages.console.print(f"{found}\n{found.event}\n{out / 'audit.json'}")
    return BROKEN if found.broken else 0


if __name__ == "__main__":
    run_program(cli)

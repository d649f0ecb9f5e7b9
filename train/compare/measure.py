"""Measurements of finished cells, and the comparison's content as JSON holds it."""

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rknn_jax.federation import wire
from rknn_jax.labelers import _vote_mechanism
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.mechanisms.local import LocalRandomizer

from .. import report, sweep
from ..experiment import Experiment
from ..papers import Claim
from ..papers.claims import claims
from ..report.page import time_spent
from .methods import INF, Method, Plan
from .plan import DELTA, RELATION, Cell, Config, settings_of

ACCURACIES = ("label_accuracy", "model_test_accuracy", "test_accuracy")

INFINITY = "infinity"
"""Infinity in JSON, which has no number for it."""


class Measured(NamedTuple):
    """Measurements of a finished cell.

    Attributes:
      result: Content of its result.json.
      whole: Guarantee of the whole run.
      sent: Number of bytes that one client sends.
      student_seconds: Seconds of the student's epochs.
      where: Device, cores and versions.
      date: Date of the start.
    """

    result: dict[str, Any]
    whole: dict[str, Any]
    sent: int
    student_seconds: float
    where: dict[str, Any]
    date: str


def read(cell: Cell) -> Measured:
    """Return the measurements in a finished cell's folder."""
    run = report.read(Path(str(cell.experiment.out)))
    spent = time_spent(run)
    where = {name: run.config[name] for name in ("device", "cores", "python", "versions")}
    student = spent["student"] if spent else 0.0
    return Measured(
        run.result,
        run.privacy["whole"],
        bytes_sent(run, cell.experiment),
        student_seconds=student,
        where=where,
        date=run.config["date"],
    )


def bytes_sent(run: report.Run, experiment: Experiment) -> int:
    """Return the number of bytes that one client with one record hands over.

    They are votes, a message, or an image with its label.
    """
    labeler = experiment.labeler_of_round()
    if not isinstance(labeler, ReverseKNN):
        return math.prod(run.queries["image"].shape[1:]) + 1
    num_queries = int(run.config["resolved_queries"])
    num_classes = len(run.classes)
    if labeler.has_curator:
        return -(-labeler.num_neighbors * math.ceil(math.log2(num_queries * num_classes)) // 8)
    # Folders that are older than checks do not tell voters from other records.
    num_voters = run.result.get("num_voters", run.result["num_units"])
    mechanism = _vote_mechanism.calibrated(num_queries, num_classes, num_voters, labeler)
    # Other mechanisms send several messages, and none is used here.
    assert isinstance(mechanism, LocalRandomizer)
    return wire.message_bytes(mechanism)


def summary(
    config: Config,
    chosen: Plan,
    cells: Sequence[Cell],
    measured: dict[Cell, Measured],
    failed: dict[Cell, str],
) -> dict[str, Any]:
    """Return the content of the page, ready for JSON, from finished cells alone."""
    rows = _rows(chosen, cells, measured)
    costs = []
    for name, method in chosen.methods.items():
        own = [one for cell, one in measured.items() if cell.method == name]
        if own:
            costs.append(cost(name, method, own))
    failures = {}
    for cell, why in failed.items():
        place = f"{cell.method}, epsilon {cell.epsilon:g}, seed {cell.experiment.seed}"
        failures[place] = why
    # Papers state the epsilon of a record.
    published = claims(config.dataset) if config.unit == "record" else ()
    comparable = [claim for claim in published if claim.method in chosen.methods]
    return {
        "dataset": config.dataset,
        "delta": DELTA,
        "relation": RELATION,
        "unit": config.unit,
        "check_share": config.check_share,
        "seeds": list(chosen.seeds),
        "command": _command(config),
        "machines": machines(measured.values()),
        "runs": len(cells),
        "measured": len(measured),
        "failed": failures,
        "rows": rows,
        "claims": [beside(claim, rows) for claim in comparable],
        "costs": costs,
        "settings": {name: settings_of(config, chosen, name) for name in chosen.methods},
    }


def _rows(
    chosen: Plan, cells: Sequence[Cell], measured: dict[Cell, Measured]
) -> list[dict[str, Any]]:
    """Return a row for every method at every of its epsilons, finished or not."""
    rows = []
    for name, method in chosen.methods.items():
        for epsilon in method.epsilons:
            mine = [cell for cell in cells if (cell.method, cell.epsilon) == (name, epsilon)]
            student = mine[0].experiment.student
            about = {
                "method": name,
                "title": method.title,
                "kind": method.kind,
                "trust": method.trust,
                "student": "none" if student is None else student.student.model,
                "told": method.told,
                "runs": len(mine),
            }
            finished = [measured[cell] for cell in mine if cell in measured]
            rows.append(about | joined(epsilon, finished))
    return rows


def _command(config: Config) -> str:
    """Return the command that makes the comparison, without the names of anybody's folders."""
    options: dict[str, Any] = {
        "dataset": config.dataset,
        "data-dir": config.data_dir and "DIR",
        "noise-seed": config.noise_seed,
        "methods": config.methods,
        "epsilons": config.epsilons,
        "seeds": config.seeds,
    }
    if config.student != Config.student:
        options["student"] = config.student
    for name in ("unit", "check_share"):
        if getattr(config, name) != getattr(Config, name):
            options[name.replace("_", "-")] = getattr(config, name)
    words = ["python -m train.compare"]
    for name, given in options.items():
        if given is None or given == ():
            continue
        many = given if isinstance(given, tuple) else (given,)
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in many]
        words.append(f"--{name} {shlex.join(values)}")
    return " ".join(words)


def joined(asked: float, found: Sequence[Measured]) -> dict[str, Any]:
    """Combine cells that differ by their seeds alone.

    Their epsilon is the requested one, or a higher one if a choice of labels costs extra.
    """
    if not found:
        return {
            "epsilon": jsonable(asked),
            "seeds": [],
            "guarantee": None,
            "statement": None,
        } | dict.fromkeys((*ACCURACIES, "measured"))
    whole = max((one.whole for one in found), key=lambda whole: float(whole["epsilon"]))
    return sweep.summary([one.result for one in found], ACCURACIES) | {
        "epsilon": jsonable(max(asked, float(whole["epsilon"]))),
        "guarantee": {
            name: whole[name] for name in ("epsilon", "delta", "relation", "accountant", "unit")
        },
        "statement": whole["statement"],
        "measured": _measured([one.result.get("measured") for one in found]),
    }


def _measured(found: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return mean and deviation of what records measured that did not vote, if all runs did."""
    rights = [one["right"] for one in found if one is not None]
    return sweep.mean_of(rights) if len(rights) == len(found) else None


def cost(name: str, method: Method, found: Sequence[Measured]) -> dict[str, Any]:
    """Return the seconds of a method's runs, student apart, and the bytes of one client."""
    rest = [one.result["seconds"] - one.student_seconds for one in found]
    students = [one.student_seconds for one in found if one.student_seconds]
    return {
        "method": name,
        "title": method.title,
        "runs": len(found),
        "labels_seconds": statistics.median(rest),
        "longest_seconds": max(rest),
        "student_seconds": statistics.median(students) if students else None,
        "bytes": max(one.sent for one in found),
        "sends": method.sends,
    }


def machines(found: Iterable[Measured]) -> list[dict[str, Any]]:
    """Return the machines on which cells were run, with the first and the last day of each."""
    days: dict[str, list[str]] = {}
    for one in found:
        days.setdefault(json.dumps(one.where), []).append(one.date[:10])
    return [
        json.loads(where) | {"first": min(dates), "last": max(dates)}
        for where, dates in days.items()
    ]


def beside(claim: Claim, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a claim with its cost, and the comparable one of our rows.

    Among our rows that cost no more, this is the one of the epsilon nearest to the claimed one.
    """
    costs = claim.recomputed() if claim.recomputed else claim.epsilon or INF
    ours = [row for row in rows if row["method"] == claim.method and row[row["told"]]]
    if claim.epsilon == INF:
        ours = [row for row in ours if row["epsilon"] == INFINITY]
    ours = [row for row in ours if float(row["epsilon"]) <= costs * (1 + 1e-9)]
    # Infinity has no distance to anything, so a large epsilon takes its place.
    asked = math.log(min(claim.epsilon or 1.0, 1e9))
    best = min(ours, key=lambda row: abs(math.log(float(row["epsilon"])) - asked), default=None)
    return {
        "method": claim.method,
        "system": claim.system,
        "epsilon": jsonable(claim.epsilon),
        "delta": claim.delta,
        "label": claim.label,
        "student": claim.student,
        "recomputed": jsonable(claim.recomputed()) if claim.recomputed else None,
        "ours": best
        and {
            "epsilon": best["epsilon"],
            "label": best["label_accuracy"],
            "student": best[best["told"]],
        },
        "differs": claim.differs,
    }


def jsonable(epsilon: float | None) -> float | str | None:
    """Return an epsilon in the form that JSON can hold."""
    return INFINITY if epsilon == INF else epsilon

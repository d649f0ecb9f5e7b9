"""What labels are worth as a release measures it, beside what they are worth.

Each cell is a release by `rknn_jax.release`: its plan, its sum, exact noise, the check by records
that did not vote, and a second release in which all records vote. The truth, which no release sees,
is the share of right labels among the public rows with a class, and the agreement of all private
records. `_measured_cases` has the data sets.

- `covered`: the interval holds the agreement of all private records.
- `off`: measured less the share of right public labels.
- `chosen`, `best`, `usual`: right labels by the chosen labeling, by the best of those that were
  offered, and by the usual one; `without` is that of the release in which all vote.
- `said`: expected accuracy in the decoder's opinion.
- `calibration error`: expected calibration error of the released probabilities, of ten bins.
- `warned`, `true`: kinds of warnings that the release gives, and those that are true (`_warnings`).
"""

import dataclasses
import functools
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks import _kept
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks._measured_cases import CASES, LOOKED_AT, Case
from benchmarks._warnings import EVENTS, Facts
from rknn_jax.answers.concern import Concern
from rknn_jax.check import Checkers, Checks
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.privacy.roles import MEASURE, Roles
from rknn_jax.records.classes import Classes
from rknn_jax.release import choosing, inputs, label, planning
from rknn_jax.release.planning import Plan
from rknn_jax.release.settings import Settings
from rknn_jax.settings import Spending

SEEDS = (20, 21, 22)
EPSILONS = (0.1, 0.5, 1.0, 3.0)
EXAMPLES = 20


class Nobody:
    """Payer of a release that is only measured."""

    def charge(self, guarantee: Any, purpose: str) -> None:
        """Charge nothing: the records are public benchmarks."""


def plan_of(sides: Sides, epsilon: float, share: float | None, queries: int | None = None) -> Plan:
    """Return the plan of a release, with the number of queries that it chooses if none is given."""
    num_classes = int(max(sides.truth.max(), sides.labels.max())) + 1
    settings = Settings(
        public="public",
        private="private",
        epsilon=epsilon,
        check_share=share,
        spending=Spending(ledger=Path("none")),
        queries=queries,
    )
    inputs.check(settings)
    choosing.check(settings)
    classes = Classes(num_classes)
    data = inputs.data_of(sides.public, sides.private, sides.labels, classes, None)
    return planning.plan(settings, data)


def right(probabilities: np.ndarray, sides: Sides) -> float:
    """Return the share of public rows with a class whose label is right."""
    known = sides.truth >= 0
    return float(np.mean(probabilities.argmax(axis=1)[known] == sides.truth[known]))


def calibration_error(probabilities: np.ndarray, sides: Sides) -> float:
    """Return the expected calibration error of ten bins, over public rows with a class."""
    known = sides.truth >= 0
    sure = probabilities.max(axis=1)[known]
    correct = probabilities.argmax(axis=1)[known] == sides.truth[known]
    bins = np.minimum((10 * sure).astype(int), 9)
    gaps = [abs(np.sum(correct[bins == one]) - np.sum(sure[bins == one])) for one in range(10)]
    return float(np.sum(gaps) / len(sure))


def agreement(checkers: Checkers, labeling: Labeling, sides: Sides) -> np.ndarray:
    """Return whether each private record agrees with the labels at its place, bool `[n]`."""
    role = np.full(len(sides.labels), MEASURE, np.int8)
    ones = np.ones(len(role), np.int64)
    everyone = Checks(
        role, sides.private, np.asarray(sides.labels, np.int32), ones, np.bincount(role)
    )
    return checkers.agrees(everyone, labeling)


def cell(case: Case, sides: Sides, epsilon: float) -> dict[str, Any]:
    """Return one cell."""
    checked = plan_of(sides, epsilon, None)
    plan = dataclasses.replace(checked, checkers=None)
    started = time.perf_counter()
    counted = label.count(plan)
    counting = time.perf_counter() - started
    drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    started = time.perf_counter()
    whole = plan.question.read(drawn)
    reading = time.perf_counter() - started
    found: dict[str, Any] = {
        "kind": case.kind,
        "num_records": len(sides.labels),
        "num_public": len(sides.public),
        "num_classes": whole.probabilities.shape[1],
        "without": right(whole.probabilities, sides),
        "calibration error without": calibration_error(whole.probabilities, sides),
        "said": None if whole.decoded is None else whole.decoded.expected_accuracy,
        "majority": float(np.bincount(sides.truth[sides.truth >= 0]).max() / len(sides.truth)),
        "seconds": {"counting": counting, "reading": reading},
        "measured": None,
    }
    again = plan.question.read(plan.question.draw(counted.counts, counted.units, Nobody(), ""))
    facts = Facts(
        sides,
        counted.counts,
        plan.question.public.queries.size,
        whole.probabilities.argmax(axis=1),
        again.probabilities.argmax(axis=1),
        np.zeros(0, bool),
    )
    checkers = checked.checkers
    if checkers is None:
        everyone = Checkers(
            Roles.drawn(0.0, 0.5, 0.0),
            sides.public,
            plan.question.labeler.metric,
            whole.probabilities.shape[1],
            epsilon,
            "replace-one",
            "record",
        )
        labeling = Labeling("", whole.probabilities, lambda: whole)
        facts = facts._replace(agrees=agreement(everyone, labeling, sides))
        return found | told(facts, label.judged(plan, whole, None)[1])
    plan = checked
    started = time.perf_counter()
    counted = label.count(plan)
    counting = time.perf_counter() - started
    assert counted.checks is not None
    drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    started = time.perf_counter()
    labelings = plan.question.labelings(drawn)
    chosen = checkers.draw(counted.checks, labelings)
    labels = labelings[chosen.choice].labels()
    reading = time.perf_counter() - started
    measured = checkers.measured(chosen, [one.name for one in labelings], labels.counts)
    assert measured is not None
    labels, warned = label.judged(plan, labels, measured)
    offered = [right(one.probabilities, sides) for one in labelings]
    agrees = agreement(checkers, labelings[chosen.choice], sides)
    truth = float(agrees.mean())
    facts = facts._replace(labels=labels.probabilities.argmax(axis=1), agrees=agrees)
    found["seconds"] |= {"counting with checks": counting, "reading with checks": reading}
    return (
        found
        | {
            "measured": dataclasses.asdict(measured)
            | {"recall": [list(one) for one in measured.recall]},
            "check": list(dataclasses.astuple(checkers.roles)[1:]),
            "agreement": truth,
            "covered": measured.low <= truth <= measured.high,
            "off": measured.right - offered[chosen.choice],
            "half": (measured.high - measured.low) / 2,
            "chosen": offered[chosen.choice],
            "calibration error": calibration_error(labels.probabilities, sides),
            "usual": offered[0],
            "best": max(offered),
            "offered": dict(zip([one.name for one in labelings], offered, strict=True)),
        }
        | told(facts, warned)
    )


def told(facts: Facts, warned: Iterable[Concern]) -> dict[str, list[str]]:
    """Return the kinds of warnings that a release gives, and those that are true."""
    return {
        "warned": sorted({one.kind for one in warned}),
        "true": [kind for kind, happens in EVENTS.items() if happens(facts)],
    }


def example(seed: int) -> dict[str, Any]:
    """Return a release of README's example, in which a fifth of the records check.

    Args:
      seed: Number of the release. Its noise has no seed.
    """
    images, digits = load_digits(return_X_y=True)
    rows = images.astype(np.float32)
    sides = Sides(rows[:500], digits[:500], rows[500:], digits[500:])
    plan = plan_of(sides, 0.5, 0.2)
    counted = label.count(plan)
    checkers = plan.checkers
    assert counted.checks is not None
    assert checkers is not None
    noisy = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    labelings = plan.question.labelings(noisy)
    drawn = checkers.draw(counted.checks, labelings)
    measured = checkers.measured(drawn, [one.name for one in labelings])
    chosen = labelings[drawn.choice]
    return {
        "release": seed,
        "words": str(measured),
        "agreement": float(agreement(checkers, chosen, sides).mean()),
        "right": right(chosen.probabilities, sides),
    }


def split(name: str, seed: int) -> list[dict[str, Any]]:
    """Return the cells of a split."""
    sides = CASES[name].make(seed)
    return [
        {"name": name, "seed": seed, "epsilon": epsilon} | cell(CASES[name], sides, epsilon)
        for epsilon in EPSILONS
    ]


def main() -> None:
    """Measure all cells and save them."""
    about = {"cases": {name: case._asdict() | {"make": None} for name, case in CASES.items()}}
    with _kept.parts("measured") as folder:
        # Public digits need no budget, and a reader may have a ledger of those in the README.
        os.environ["RKNN_STATE_DIR"] = str((folder / "state").resolve())
        cells = [
            cell
            for name in CASES
            for seed in SEEDS
            for cell in _kept.part(folder, f"{name}, {seed}", functools.partial(split, name, seed))
        ]
        examples = [example(number) for number in range(EXAMPLES)]
        save(
            "measured",
            {"cells": cells, "example": examples, "warnings": list(EVENTS)},
            looked_at=list(LOOKED_AT),
            seeds=list(SEEDS),
            **about,
        )


if __name__ == "__main__":
    main()

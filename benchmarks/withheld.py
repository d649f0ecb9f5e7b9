"""Cost of the records that check: right labels with them, beside those if all records vote.

    python -m benchmarks.withheld [--resume]

`benchmarks.measured` has one pair of releases in each cell, and the noise of one release is more
than what a few votes are worth. Here each cell of it that is measured has six pairs, each with
roles and noise of its own. A cell is kept in `runs/withheld` once it is done.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks._measured_cases import CASES, LOOKED_AT
from benchmarks.measured import EPSILONS, SEEDS, Nobody, plan_of, right
from rknn_jax.release import label
from train.json_files import write_json

PAIRS = 6
PARTS = Path("runs/withheld")


def pair(sides: Sides, epsilon: float) -> tuple[float, float] | None:
    """Return right labels if all vote and if some check, or None if too few records could check."""
    plan = plan_of(sides, epsilon, None)
    if plan.checkers is None:
        return None
    counted = label.count(dataclasses.replace(plan, checkers=None))
    drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    voted = plan.question.read(drawn).probabilities
    counted = label.count(plan)
    assert counted.checks is not None
    drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    labelings = plan.question.labelings(drawn)
    chosen = labelings[plan.checkers.draw(counted.checks, labelings).choice]
    return right(voted, sides), right(chosen.probabilities, sides)


def pairs(sides: Sides, epsilon: float) -> Iterator[tuple[float, float]]:
    """Yield the pairs of a cell: none if too few records could check."""
    for _ in range(PAIRS):
        found = pair(sides, epsilon)
        if found is None:
            return
        yield found


def main() -> None:
    """Measure all cells and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep the cells that are there")
    given = parser.parse_args()
    PARTS.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        for seed in SEEDS:
            sides = case.make(seed)
            for epsilon in EPSILONS:
                path = PARTS / f"{name.replace(' ', '_')}-{seed}-{epsilon:g}.json"
                if given.resume and path.exists():
                    continue
                found = list(pairs(sides, epsilon))
                about = {"name": name, "seed": seed, "epsilon": epsilon}
                kinds = {"shifted": case.shifted, "wrong": case.wrong}
                write_json(path, about | kinds | {"pairs": found})
    cells = [json.loads(path.read_text()) for path in sorted(PARTS.glob("*.json"))]
    cells = [one for one in cells if one["pairs"]]
    save("withheld", cells, looked_at=list(LOOKED_AT), seeds=list(SEEDS))


if __name__ == "__main__":
    main()

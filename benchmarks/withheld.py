"""Cost of the records that check: right labels with them, beside those if all records vote.

`benchmarks.measured` has one pair of releases in each cell, and the noise of one release is more
than what a few votes are worth. Here each cell of it that is measured has six pairs, each with
roles and noise of its own.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from benchmarks import _kept
from benchmarks._decoding_cases import Sides
from benchmarks._measure import save
from benchmarks._measured_cases import CASES, LOOKED_AT
from benchmarks.measured import EPSILONS, SEEDS, Nobody, plan_of, right
from rknn_jax.release import label

PAIRS = 6


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


@functools.lru_cache(maxsize=1)
def sides_of(name: str, seed: int) -> Sides:
    """Return the data of the cells of one split."""
    return CASES[name].make(seed)


def cell(name: str, seed: int, epsilon: float) -> dict[str, Any]:
    """Return the pairs of one cell."""
    case = CASES[name]
    about = {"name": name, "seed": seed, "epsilon": epsilon}
    kinds = {"shifted": case.shifted, "wrong": case.wrong}
    return about | kinds | {"pairs": list(pairs(sides_of(name, seed), epsilon))}


def main() -> None:
    """Measure all cells and save them."""
    with _kept.parts("withheld") as folder:
        cells = _kept.cells(folder, cell, CASES, SEEDS, EPSILONS)
        rows = [one for one in cells if one["pairs"]]
        save("withheld", rows, looked_at=list(LOOKED_AT), seeds=list(SEEDS))


if __name__ == "__main__":
    main()

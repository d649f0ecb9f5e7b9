"""Histories from seed to seed: how many break a promise, and which seed finds a planted fault."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks._histories import BrokenError
from benchmarks._measure import RESULTS, save
from benchmarks._tables._format import load

Ran = tuple[Counter[str], BrokenError | None]
"""How often what happened in a history, and the promise that it broke."""


def options(about: str) -> argparse.Namespace:
    """Return the options of a program of histories.

    Args:
      about: One line about the program.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--only", default="", help="planted faults whose words contain this")
    parser.add_argument("--save", action="store_true")
    return parser.parse_args()


def run_all(
    name: str, run: Callable[[int], Ran], first: int, unit: str, most: int, *, keep: bool
) -> bool:
    """Run histories, and return True if one broke a promise.

    Args:
      name: Name of the results.
      run: Function that runs the history of a seed.
      first: First seed.
      unit: What is counted until there is enough of it, such as steps.
      most: How many are enough.
      keep: True if the results are saved.
    """
    total: Counter[str] = Counter()
    broken = []
    began = time.monotonic()
    seed = first
    while total[unit] < most:
        found, error = run(seed)
        total += found
        if error:
            broken.append({"seed": seed, "words": str(error)})
            print(f"seed {seed}: {error}", *error.__notes__, sep="\n", flush=True)
        seed += 1
    results: dict[str, Any] = {
        "seeds": seed - first,
        **total,
        "broken": broken,
        "seconds": time.monotonic() - began,
    }
    print(results)
    if keep:
        save(name, results)
    return bool(broken)


def find_all(
    name: str,
    find: Callable[[str], tuple[int, str]],
    words: Sequence[str],
    only: str,
    *,
    keep: bool,
) -> bool:
    """Plant faults, one at a time, and return True if one of them is not found.

    Args:
      name: Name of the results.
      find: Function of a fault's words that returns the first seed that finds it, -1 if none does,
        and the promise that it breaks.
      words: Words of all faults.
      only: Words of the faults that are planted contain this. The results of others are kept.
      keep: True if the results are saved.
    """
    rows = []
    for fault in (one for one in words if only in one):
        seed, broken = find(fault)
        print(f"{fault}: seed {seed}, {broken}", flush=True)
        rows.append({"words": fault, "seed": seed, "broken": broken})
    if keep:
        kept = load(name)["results"] if only and (RESULTS / f"{name}.json").exists() else []
        found = {row["words"]: row for row in kept + rows}
        save(name, [found[one] for one in words if one in found])
    return any(row["seed"] < 0 for row in rows)

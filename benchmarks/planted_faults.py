"""Faults planted by hand, and the tests that find them.

Each fault of `benchmarks/_faults/` breaks a promise. It is planted in a copy of the project,
and the tests named for it run until the first failure. The results are written as they come, and
the same command continues: a result is used again while the file and its tests are the same.

`python -m benchmarks.planted_faults --only keys` plants one kind.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks._faults import FAULTS, Known
from benchmarks._planting import Fault, at_work, check_finders, state

ROOT = Path(__file__).parents[1]
SAVED = Path(__file__).parent / "results" / "planted_faults.json"
CPU_SECONDS = 120


def fault_of(known: Known, root: Path) -> Fault:
    """Return a fault as it is planted.

    Raises:
      ValueError: If the text that it replaces does not occur once.
    """
    source = (root / known.path).read_text()
    if source.count(known.before) != 1:
        raise ValueError(
            f"Expected the text of {known.words!r} once in {known.path}, got it "
            f"{source.count(known.before)} times; write the fault anew."
        )
    line = source[: source.index(known.before)].count("\n") + 1
    code = source.replace(known.before, known.after)
    return Fault(known.path, line, known.before.strip(), known.after.strip(), code)


def last_rows() -> dict[str, dict[str, Any]]:
    """Return the last results by the words of their faults."""
    if not SAVED.exists():
        return {}
    return {row["words"]: row for row in json.loads(SAVED.read_text())["results"]}


def is_current(known: Known, row: dict[str, Any], root: Path) -> bool:
    """Return True if the fault, its file and its tests are as they were."""
    same = (row["before"], row["after"]) == (known.before.strip(), known.after.strip())
    return same and row["state"] == state(root, known.path, known.tests, row["by"])


def main() -> None:
    """Plant all faults and write the results as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="kinds that contain this")
    parser.add_argument("--workers", type=int, default=1, help="faults at a time")
    settings = parser.parse_args()
    # Imported late: a process forked for a fault must not hold the project's modules.
    from benchmarks._measure import git, save

    last = last_rows()
    found = {
        known.words: last[known.words]
        for known in FAULTS
        if known.words in last and is_current(known, last[known.words], ROOT)
    }
    todo = [known for known in FAULTS if settings.only in known.kind and known.words not in found]
    faults = [fault_of(known, ROOT) for known in todo]
    finders = [row["by"] for row in last.values() if row["by"]]
    commit = git("rev-parse", "HEAD")
    with at_work(ROOT, settings.workers, CPU_SECONDS, finders) as plant:
        results = plant(faults, [known.tests for known in todo])
        for known, row in zip(todo, results, strict=True):
            found[known.words] = {"kind": known.kind, "words": known.words} | row
            print(row["outcome"], row["seconds"], known.kind, known.words, row["by"], flush=True)
            ordered = [found[known.words] for known in FAULTS if known.words in found]
            load = os.getloadavg()[0]
            save("planted_faults", ordered, planned=len(FAULTS), commit=commit, load=load)
        check_finders(plant, ROOT, list(found.values()))


if __name__ == "__main__":
    main()

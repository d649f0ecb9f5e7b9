"""Faults planted by hand, and the tests that find them.

Each fault of `benchmarks/_faults.py` breaks a guarantee. It is planted in a copy of the project,
and the tests named for it run until the first failure. The results are written as they come, and
the same command continues: a result is used again as long as the file and its tests are as they
were.

`python -m benchmarks.planted_faults --only keys` plants one kind.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks._faults import FAULTS, Known
from benchmarks._planting import Fault, at_work, state

ROOT = Path(__file__).parents[1]
SAVED = Path(__file__).parent / "results" / "planted_faults.json"
CPU_SECONDS = 400


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


def kept(root: Path) -> dict[str, dict[str, Any]]:
    """Return the last results of faults whose file and tests are as they were, by their words."""
    if not SAVED.exists():
        return {}
    rows = {row["words"]: row for row in json.loads(SAVED.read_text())["results"]}
    same = {known.words: state(root, known.path, known.tests) for known in FAULTS}
    return {
        words: row for words, row in rows.items() if words in same and row["state"] == same[words]
    }


def main() -> None:
    """Plant all faults and write the results as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="kinds that contain this")
    parser.add_argument("--workers", type=int, default=1, help="faults at a time")
    settings = parser.parse_args()
    # Imported late: a process forked for a fault must not hold the project's modules.
    from benchmarks._measure import save

    found = kept(ROOT)
    todo = [known for known in FAULTS if settings.only in known.kind and known.words not in found]
    faults = [fault_of(known, ROOT) for known in todo]
    with at_work(ROOT, settings.workers, CPU_SECONDS) as plant:
        results = plant(faults, [known.tests for known in todo])
        for known, row in zip(todo, results, strict=True):
            found[known.words] = {"kind": known.kind, "words": known.words} | row
            print(row["outcome"], known.kind, known.words, row["by"], flush=True)
            ordered = [found[known.words] for known in FAULTS if known.words in found]
            save("planted_faults", ordered, planned=len(FAULTS), load=os.getloadavg()[0])


if __name__ == "__main__":
    main()

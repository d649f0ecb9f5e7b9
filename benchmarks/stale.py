"""Results that are older than the code that they measure, and those measured again.

    python -m benchmarks.stale                            # what has changed since each result
    python -m benchmarks.stale --measure NAME [NAME ...]  # again, where anything has changed

A result names the source files that its program had imported, with their digests; comments and
docstrings do not count. A result is stale if code that decides its labels (`_sources.MEASURED`)
says something else now: its table of the docs says so, and a test fails until it does. Other files
that have changed are told beside it. A result that is measured in parts has files and date for each
part. Results of before 2026-11-26 name no files, and their tables say that; beside them stands what
they take, by docs/reproducing.md. The native kernels are no part of it.

`--measure` runs the programs of these names whose result is not as all of the code is, in this
order. A result just measured is, so the same command continues.
"""

import argparse
import subprocess
import sys
from typing import Any

from benchmarks import _sources
from benchmarks._measure import RESULTS
from benchmarks._tables._format import load

MOST_NAMED = 3
AS_IT_IS = "as the code is"
SAME = "labels by the same code"


def state(found: dict[str, Any]) -> str:
    """Return a few words for what has changed since a result, and in which of its parts.

    Args:
      found: Content of its file.
    """
    states = _states(found)
    if len(states) == 1:
        return next(iter(states))
    return "; ".join(f"{_named(parts)}: {words}" for words, parts in states.items())


def _states(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the parts of a result by what has changed since."""
    states: dict[str, list[str]] = {}
    for name, measured in _sources.parts(found).items():
        states.setdefault(_state(measured), []).append(name)
    return states


def _state(measured: dict[str, Any]) -> str:
    sources = measured.get("sources")
    if sources is None:
        return f"names no sources; measured {measured['date'][:10]}"
    changed = _sources.changed(sources)
    if not changed:
        return AS_IT_IS
    decide = [path for path in changed if path.startswith(_sources.MEASURED)]
    if not decide:
        return f"{SAME}; {_named(changed)} changed"
    return f"stale: {_named(decide)} changed"


def needs(name: str) -> str:
    """Return what data and how much time a result takes, by docs/reproducing.md; empty if none is.

    Args:
      name: Name of the result's file, without suffix.
    """
    lines = (_sources.ROOT / "docs/reproducing.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if f"`{name}.json`" in line]
    return "; ".join(f"data: {data}; time: {time}" for _, _, data, time, _ in rows[:1])


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return ", ".join(paths[:MOST_NAMED]) + more


def measure(names: list[str]) -> None:
    """Run the programs whose result is missing or not of the present code.

    Args:
      names: Names of the programs, first ones first.

    Raises:
      subprocess.CalledProcessError: If a program fails.
    """
    for name in names:
        if not (RESULTS / f"{name}.json").exists() or state(load(name)) != AS_IT_IS:
            print(f"python -m benchmarks.{name}", flush=True)
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


def main() -> None:
    """Print the state of each result, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs="+", default=[], help="programs to run again")
    if names := parser.parse_args().measure:
        measure(names)
        return
    for path in sorted(RESULTS.glob("*.json")):
        found = load(path.stem)
        holds = all(words.startswith((AS_IT_IS, SAME)) for words in _states(found))
        print(f"{path.stem:24} {state(found)}{'' if holds else f'; {needs(path.stem)}'}")


if __name__ == "__main__":
    main()

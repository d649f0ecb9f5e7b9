"""Parts of a long benchmark, kept until its result is saved, so that the same command continues."""

import contextlib
import functools
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import _sources
from train.json_files import write_json

RUNS = Path("runs")


@contextlib.contextmanager
def parts(name: str) -> Iterator[Path]:
    """Keep the parts of a benchmark in `runs/<name>` until it has finished.

    A benchmark that was stopped finds them there. If the project's code says something else by
    then, they are removed first: a result is of one code.
    """
    folder = RUNS / name
    stamp = folder / "sources"
    code = json.dumps(_sources.deciding())
    if folder.exists() and not (stamp.exists() and stamp.read_text() == code):
        print(f"The code has changed since the parts in {folder}; measuring them again.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(code)
    yield folder
    shutil.rmtree(folder)


def part(folder: Path, name: str, measure: Callable[[], Any]) -> Any:
    """Return what a part found, as JSON has it, from its file or measured now.

    Args:
      folder: Folder of the parts.
      name: Name of the part.
      measure: Function that measures it, or yields its rows.
    """
    path = folder / f"{name.replace(', ', '-').replace(' ', '_')}.json"
    if not path.exists():
        started = time.process_time()
        found = measure()
        found = list(found) if isinstance(found, Iterator) else found
        spent = time.process_time() - started
        write_json(path, {"cpu_seconds": spent, "load": os.getloadavg()[0], "found": found})
        print(f"measured {name}: {spent:.0f} s of CPU time", flush=True)
    return json.loads(path.read_text())["found"]


def cells(folder: Path, measure: Callable[..., Any], *axes: Iterable[Any]) -> list[Any]:
    """Return what each cell of a grid found, the last axis fastest.

    Args:
      folder: Folder of the parts.
      measure: Function of a value of each axis.
      *axes: Values, by whose words the parts are named.
    """
    return [
        part(folder, ", ".join(map(str, values)), functools.partial(measure, *values))
        for values in itertools.product(*axes)
    ]


def cpu_seconds(folder: Path) -> int:
    """Return the CPU time of all parts."""
    files = folder.glob("*.json")
    return round(sum(json.loads(path.read_text())["cpu_seconds"] for path in files))

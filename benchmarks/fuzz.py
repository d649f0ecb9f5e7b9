"""Fuzz every reader of bytes: mutated files end in a value or in a helpful error.

Hypothesis draws the inputs. A target of `tests/fuzz/targets` fails in these cases:

- an exception that `rknn` would not turn into a readable error,
- a message that does not name the file,
- a broken promise, such as budget that comes back,
- a call of more than 5 seconds, or 1 GiB of memory.

Each target runs in its own process, which is replaced when it dies or stops answering.

    make fuzz                                         # 20 seconds for each target
    make fuzz SECONDS=3600                            # fresh inputs each time
    python -m benchmarks.fuzz --only ledger           # targets whose name contains this
    python -m benchmarks.fuzz --replay runs/fuzz      # try failing inputs again, or one of them

Failing inputs are kept in `runs/fuzz/<target>/`, each in a folder with its error.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import multiprocessing
import os
import pkgutil
import resource
import secrets
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks._fuzz_attempts import MARK, Tally, attempt, write_files
from tests.fuzz import memory_disk, targets
from tests.fuzz.mutations import Files, mutated

ROOT = Path(__file__).parents[1]
FAILURES = ROOT / "runs" / "fuzz"

ADDRESS_SPACE = 2**34
"""Bytes of address space beyond the process's initial size, to protect the machine."""

SILENCE = 60.0
"""Seconds without a report after which a process counts as dead: it hangs outside Python."""

BATCH = 200
"""Inputs that Hypothesis draws from one seed."""

MOST_KEPT = 20
"""Failing inputs of one kind that are kept."""

REPORT_EVERY = 1.0
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
ERROR = "error.txt"


def names() -> list[str]:
    """Return the targets: the files of their folder."""
    return [module.name for module in pkgutil.iter_modules(targets.__path__)]


def named(name: str) -> ModuleType:
    """Return a target."""
    return importlib.import_module(f"{targets.__name__}.{name}")


def keep(folder: Path, name: str, files: Files, kind: str, shown: str) -> None:
    """Keep a failing input with its error, unless there are many of its kind."""
    mine = hashlib.sha256(kind.encode()).hexdigest()[:8]
    if len(list((folder / name).glob(f"{mine}-*"))) >= MOST_KEPT:
        return
    own = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:8]
    place = folder / name / f"{mine}-{own}"
    write_files(place, files)
    (place / ERROR).write_text(f"{kind}\n\n{shown}", errors="backslashreplace")


def _work(
    name: str,
    seconds: float,
    inputs: float,
    seed: int,
    scratch: Path,
    failures: Path,
    told: Connection,
) -> None:
    """Try inputs of one target in a process, and send counts every second."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed

    target = named(name)
    seeds = target.seeds()
    folder = scratch / name
    attempt(target, seeds[0], folder, Tally())  # compile, and import lazily imported modules
    _limit_address_space()
    told.send(Tally())
    end = time.monotonic() + seconds
    tally = Tally()
    sent = time.monotonic()
    left = inputs

    def one(files: Files) -> None:
        nonlocal tally, sent, left
        if time.monotonic() > end or left <= 0:
            return
        left -= 1
        for kind, shown in attempt(target, files, folder, tally).items():
            keep(failures, name, files, kind, shown)
        if time.monotonic() - sent > REPORT_EVERY:
            told.send(tally)
            tally = Tally()
            sent = time.monotonic()

    for number in range(2**32):
        if time.monotonic() > end or left <= 0:
            break
        draw = settings(
            max_examples=BATCH,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        with_seed(seed * 2**32 + number)(draw(given(mutated(seeds))(one)))()
    told.send(tally)


def _limit_address_space() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def fuzz(
    name: str,
    seconds: float,
    seed: int,
    failures: Path = FAILURES,
    inputs: float = math.inf,
) -> Tally:
    """Fuzz one target in its own processes.

    Args:
      name: Name of the target.
      seconds: Time to try inputs for, not counting imports.
      seed: Seed of the inputs.
      failures: Folder of failing inputs. Defaults to `runs/fuzz`.
      inputs: Maximum number of inputs; those of one seed are always the same. Defaults to no limit.
    """
    context = multiprocessing.get_context("spawn")
    total = Tally()
    left = seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory_disk()) as scratch:
        while left > 0 and total.inputs < inputs:
            mine, theirs = context.Pipe(duplex=False)
            most = inputs - total.inputs
            arguments = (name, left, most, seed, Path(scratch), failures, theirs)
            process = context.Process(target=_work, args=arguments)
            process.start()
            theirs.close()
            started = time.monotonic()
            fault = _listen(process, mine, total)
            if fault is None:
                return total
            total.inputs += 1
            total.failures[fault] += 1
            last = Path(scratch) / name
            keep(failures, name, _files(last), fault, "The process ended or hung here.")
            left -= time.monotonic() - started
            seed += 1
    return total


def _listen(process: Any, mine: Connection, total: Tally) -> str | None:
    """Add up a process's counts. Return how the process died, or None if it finished."""
    with contextlib.suppress(EOFError):
        while mine.poll(SILENCE):
            total.add(mine.recv())
        process.kill()
    process.join(SILENCE)
    if process.exitcode in (None, -signal.SIGKILL):
        process.kill()
        process.join()
        return "a hang outside Python, or no memory"
    return f"a crash of status {process.exitcode}" if process.exitcode else None


def _files(folder: Path) -> Files:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ERROR]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def replay(place: Path) -> bool:
    """Try kept inputs again and print the outcomes. Return True if none fails."""
    well = True
    found = [place] if (place / ERROR).exists() else [path.parent for path in place.rglob(ERROR)]
    for kept in sorted(found):
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            target = named(kept.parent.name)
            failures = attempt(target, _files(kept), Path(scratch) / "files", Tally())
        print(f"{kept}: {'well' if not failures else ', '.join(failures)}")
        for shown in failures.values() if len(found) == 1 else ():
            print(shown)
        well = well and not failures
    return well


def row(name: str, tally: Tally) -> dict[str, Any]:
    """Return the counts of a target, JSON-ready."""
    failures = dict(tally.failures.most_common())
    outcomes = dict(tally.outcomes.most_common())
    counts = {"target": name, "inputs": tally.inputs, "outcomes": outcomes, "failures": failures}
    return counts | {"worst_seconds": round(tally.worst, 3), "most_bytes": tally.memory}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table of the targets, and their failures."""
    print(f"{'target':20} {'inputs':>9} {'read':>9} {'worst':>8} {'memory':>8}  errors by type")
    for one in rows:
        outcomes = dict(one["outcomes"])
        read = outcomes.pop(MARK, 0)
        errors = ", ".join(f"{name} {count:,}" for name, count in outcomes.items())
        worst = f"{one['worst_seconds']:.2f} s"
        memory = f"{one['most_bytes'] / 2**20:.0f} MiB"
        print(f"{one['target']:20} {one['inputs']:9,} {read:9,} {worst:>8} {memory:>8}  {errors}")
    for one in rows:
        for kind, count in one["failures"].items():
            print(f"FAILED {one['target']}, {count:,} times: {kind}")
    print(f"{sum(one['inputs'] for one in rows):,} inputs, {num_failures(rows):,} failures")


def num_failures(rows: list[dict[str, Any]]) -> int:
    """Return the number of failed calls of readers."""
    return sum(sum(one["failures"].values()) for one in rows)


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, and the saved rows of targets that were not run."""
    path = ROOT / "benchmarks" / "results" / "fuzz.json"
    saved = json.loads(path.read_text())["results"] if path.exists() else []
    every = {one["target"]: one for one in (*saved, *rows)}
    return [every[name] for name in names() if name in every]


def main() -> None:
    """Run all targets, two at a time, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each target")
    parser.add_argument("--inputs", type=float, default=math.inf, help="most for each target")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--workers", type=int, default=2, help="targets at a time")
    parser.add_argument("--seed", type=int, default=None, help="of the inputs; fresh by default")
    parser.add_argument("--replay", type=Path, default=None, help="kept input, or a folder of them")
    parser.add_argument("--save", action="store_true", help="into benchmarks/results/fuzz.json")
    settings = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    if settings.replay is not None:
        sys.exit(0 if replay(settings.replay) else 1)
    seed = secrets.randbelow(2**32) if settings.seed is None else settings.seed
    chosen = [name for name in names() if settings.only in name]
    print(f"{len(chosen)} targets, {settings.seconds:g} s each, --seed {seed}", flush=True)
    with ThreadPoolExecutor(settings.workers) as pool:
        one = partial(fuzz, seconds=settings.seconds, seed=seed, inputs=settings.inputs)
        tallies = list(pool.map(one, chosen))
    how = {"seconds": settings.seconds, "seed": seed}
    rows = [row(name, tally) | how for name, tally in zip(chosen, tallies, strict=True)]
    show(rows)
    if settings.save:
        from benchmarks._measure import save

        save("fuzz", merged(rows))
    if failed := num_failures(rows):
        sys.exit(
            f"{failed:,} failures; python -m benchmarks.fuzz --replay "
            f"{FAILURES.relative_to(ROOT)} tries them again"
        )


if __name__ == "__main__":
    main()

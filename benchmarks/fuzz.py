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
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from tests.fuzz import memory_disk, targets
from tests.fuzz.mutations import Files, mutated

ROOT = Path(__file__).parents[1]
FAILURES = ROOT / "runs" / "fuzz"

LONGEST = 5.0
"""Seconds that a reader may take."""

MOST_MEMORY = 2**30
"""Bytes that the process may grow by while it reads."""

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
MARK = "read"


class Slow(BaseException):
    """Error of a reader that took too long, which no `except Exception` catches."""


@dataclass
class Tally:
    """Counts of one target.

    Attributes:
      inputs: Files, or sets of files, that were tried.
      outcomes: Calls of readers by outcome, `read` or the type of the error.
      failures: Calls that failed, by kind and place.
      worst: Longest call, in seconds.
      memory: Greatest growth of the process in one call, in bytes.
    """

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    memory: int = 0

    def add(self, other: "Tally") -> None:
        """Add the counts of another process."""
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.worst = max(self.worst, other.worst)
        self.memory = max(self.memory, other.memory)


def names() -> list[str]:
    """Return the targets: the files of their folder."""
    return [module.name for module in pkgutil.iter_modules(targets.__path__)]


def named(name: str) -> ModuleType:
    """Return a target."""
    return importlib.import_module(f"{targets.__name__}.{name}")


def write_files(folder: Path, files: Files) -> None:
    """Make a folder hold these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def attempt(target: ModuleType, files: Files, folder: Path, tally: Tally) -> dict[str, str]:
    """Let each reader of a target read the files, and count the outcomes.

    Returns:
      Failures: the shown text of each, by kind and place.
    """
    failures: dict[str, str] = {}
    tally.inputs += 1
    if hasattr(target, "sealed"):
        files = target.sealed(files)
    write_files(folder, files)
    for number in range(len(target.readers(folder))):
        error, seconds = _read(target, files, folder, number, tally)
        # Try once more, because other programs may have slowed the machine.
        if isinstance(error, Slow):
            error, seconds = _read(target, files, folder, number, tally)
        tally.worst = max(tally.worst, seconds)
        tally.outcomes[MARK if error is None else type(error).__name__] += 1
        if error is not None and (fault := _fault(error, folder, getattr(target, "PATHLESS", ()))):
            kind = f"{fault} at {_place(error)}"
            failures[kind] = "".join(traceback.format_exception(error))
            tally.failures[kind] += 1
    return failures


def _read(
    target: ModuleType, files: Files, folder: Path, number: int, tally: Tally
) -> tuple[BaseException | None, float]:
    """Call one reader on fresh files. Return its error, if any, and the seconds that it took."""
    if number:
        write_files(folder, files)
    reader = target.readers(folder)[number]
    before = _peak_memory()
    start = time.perf_counter()
    error: BaseException | None = None
    try:
        with _limited(LONGEST):
            reader()
    except (Exception, Slow) as caught:
        error = caught
    seconds = time.perf_counter() - start
    grown = _peak_memory() - before
    tally.memory = max(tally.memory, grown)
    if grown > MOST_MEMORY:
        error = MemoryError(f"{grown / 2**30:.1f} GiB")
    if grown > MOST_MEMORY // 16:
        _forget_peak()
    return error, seconds


def _fault(
    error: BaseException, folder: Path, pathless: tuple[type[BaseException], ...]
) -> str | None:
    """Return the fault of an error, or None if its message helps a user."""
    if not isinstance(error, ValueError | OSError):
        return type(error).__name__
    words = str(error)
    if not words.strip():
        return f"{type(error).__name__} without a message"
    if not isinstance(error, pathless) and str(folder) not in words:
        return f"{type(error).__name__} that names no file"
    return None


def _place(error: BaseException) -> str:
    """Return the innermost line of the project in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if "/site-packages/" not in frame.filename]
    mine = [frame for frame in mine if frame.filename.startswith(str(ROOT))] or list(frames)
    if not mine:
        return "nowhere"
    path = mine[-1].filename.removeprefix(f"{ROOT}/")
    return f"{path}:{mine[-1].lineno}"


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `Slow` in a block that takes longer."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Slow(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    """Reset the peak to the current memory of the process, on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


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

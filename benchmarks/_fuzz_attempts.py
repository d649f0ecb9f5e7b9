"""Calls of a target's readers on mutated files: their outcomes, time, and memory."""

import contextlib
import resource
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType

from tests.fuzz.mutations import Files

ROOT = Path(__file__).parents[1]

LONGEST = 5.0
"""Seconds that a reader may take."""

MOST_MEMORY = 2**30
"""Bytes that the process may grow by while it reads."""

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

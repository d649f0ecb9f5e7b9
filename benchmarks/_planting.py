"""Planting of faults in a copy of the project, and the tests that notice them.

Each fault is planted in a fresh process. The tests run until the first failure, and those that
have found a fault before run first. The processes of one run share JAX's compiled programs: they
are found by a hash of the program, so that a program which a fault changes is compiled anew.
"""

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._sources import digest

XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # as in make test
)
MEMORY = Path("/dev/shm")  # Linux's folder in memory, where the copies are if it exists
UNFIT = 99  # status of a process in which a fault cannot be planted
WALL = 4  # seconds on the clock for each CPU second, after which a process hangs
TOGETHER = 60  # tests that are run at once without a fault, in the seconds of a process
PRELOADED = (
    "jax",
    "flax.linen",
    "optax",
    "orbax.checkpoint",
    "scipy.stats",
    "scipy.signal",
    "sklearn.cluster",
    "sklearn.datasets",
    "dp_accounting.pld",
    "matplotlib.figure",
    "jsonschema",
    "pytest",
    "hypothesis",
    "tyro",
    "chex",
)
"""Modules imported once for all processes.

None of them starts JAX's threads, so that forks are safe. OpenDP starts threads of its own.
"""


@dataclass(frozen=True)
class Fault:
    """One fault: `line` of `path` reads `after` instead of `before`.

    `code` is the whole file.
    """

    path: str
    line: int
    before: str
    after: str
    code: str

    @property
    def name(self) -> str:
        """Name of the fault, the same while the line stays as it is."""
        return f"{self.path}: {self.before} -> {self.after}"


Planted = Callable[[Sequence[Fault], Sequence[Sequence[str]]], Iterator[dict[str, Any]]]
"""Function that plants faults, each with its tests, and yields the results."""


@contextlib.contextmanager
def at_work(
    root: Path, workers: int, cpu_seconds: int, finders: Sequence[str] = ()
) -> Iterator[Planted]:
    """Copy the project for each worker, and yield the function that plants faults there.

    Args:
      root: Folder of the project.
      workers: Faults at a time.
      cpu_seconds: Limit of the tests of one fault.
      finders: Tests that have found faults, the last one last. They run first.
    """
    os.environ["XLA_FLAGS"] = XLA_FLAGS
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    found = list(finders)
    memory = MEMORY if MEMORY.is_dir() else None
    folders = [tempfile.TemporaryDirectory(prefix="mutants-", dir=memory) for _ in range(workers)]
    with contextlib.ExitStack() as stack:
        free = [_copy(root, Path(stack.enter_context(folder))) for folder in folders]
        pool = ThreadPoolExecutor(workers)
        stack.callback(pool.shutdown, cancel_futures=True)

        def one(fault: Fault, words: Sequence[str]) -> dict[str, Any]:
            project = free.pop()
            try:
                row = _run(context, project, fault, words, cpu_seconds, found)
                if row["by"] is not None and row["by"] not in found:
                    alone = _run(context, project, fault, [row["by"]], cpu_seconds, ())
                    _check_alone(row["by"], alone["outcome"])
                    found.append(row["by"])
            finally:
                free.append(project)
            return row

        yield lambda faults, words: pool.map(one, faults, words)


def _check_alone(finder: str, outcome: str) -> None:
    """Raise RuntimeError if a test does not find a fault by itself, but after other tests."""
    if outcome == "survived":
        raise RuntimeError(
            f"Expected {finder} to fail alone as it does after others, got that it passes; mend "
            "the test, which depends on those before it."
        )


def check_finders(plant: Planted, root: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Run the tests that have found a fault once more, without any fault.

    Raises:
      RuntimeError: If one fails.
    """
    tests = sorted({row["by"] for row in rows if "::" in (row["by"] or "")})
    if not tests:
        return
    path = rows[0]["path"]
    none = Fault(path, 0, "", "", (root / path).read_text())
    parts = [tests[start : start + TOGETHER] for start in range(0, len(tests), TOGETHER)]
    for row in plant([none] * len(parts), parts):
        if row["outcome"] != "survived":
            raise RuntimeError(
                f"Expected {row['by']} to pass without a fault, got {row['outcome']}; mend the "
                "test, and plant again the faults that it has found."
            )


def state(root: Path, path: str, words: Sequence[str], finder: str | None = None) -> str:
    """Return the digests of a module and of the tests that run for it.

    The file of a test that has found the fault stands for all of them.

    Args:
      root: Folder of the project.
      path: Path of the module.
      words: Tests, and options of pytest.
      finder: Test that has found the fault. Defaults to None.
    """
    tests = [finder.partition("::")[0]] if finder else words
    return " ".join(digest(root / file) for file in (path, *tests) if file.endswith(".py"))


def _copy(root: Path, folder: Path) -> Path:
    """Copy the parts of the project that tests need."""
    target = folder / "project"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "runs", "site", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(root, target, ignore=ignored)
    return target


class _Hooks:
    """Pytest's hooks in the process of a fault.

    Args:
      folder: Folder of the compiled programs and of the name of the test that failed.
      finders: Tests to run first, the last one first.
    """

    def __init__(self, folder: Path, finders: Sequence[str]):
        self._folder = folder
        self._places = {name: place for place, name in enumerate(finders)}

    def pytest_sessionstart(self) -> None:
        """Keep compiled programs, now that `tests/conftest.py` has switched this off."""
        import jax

        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", str(self._folder / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Put tests first that have found faults."""
        items.sort(key=lambda item: -self._places.get(item.nodeid, -1))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the name of a test that fails, and the first line of its error."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            error = crash.message.splitlines()[0] if crash and crash.message else ""
            (self._folder / "finder").write_text(f"{report.nodeid}\n{error[:160]}")

    pytest_collectreport = pytest_runtest_logreport


def _child(project: Path, arguments: list[str], finders: Sequence[str], cpu_seconds: int) -> None:
    """Run pytest in the copy, in its own process group, and exit with pytest's status."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    output = os.open(project.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(project)
    os.environ["PYTHONPATH"] = str(project)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(project.parent / "programs")
    sys.path.insert(0, str(project))
    sys.dont_write_bytecode = False
    status = UNFIT
    try:
        import pytest

        if "rknn_jax" in sys.modules:
            raise RuntimeError("Expected no module of the project, which would be tested instead.")
        status = int(pytest.main(arguments, [_Hooks(project.parent, finders)]))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def outcome(status: int, finder: str | None, log: str) -> str:
    """Return what a fault came to: killed, timeout, or survived.

    Args:
      status: Exit status of the process, negative for a signal.
      finder: Test that failed.
      log: What pytest printed.

    Raises:
      RuntimeError: If the tests did not run, and not because of the fault.
    """
    # 1: a test failed; 2: a file of tests did; 4: conftest.py did, or the arguments are wrong;
    # 5: no test was chosen.
    unnamed = status in (1, 2) and finder is None
    unread = status == 4 and "conftest" not in log
    if status in (5, UNFIT) or unnamed or unread:
        raise RuntimeError(
            f"Expected the tests to run, got status {status}; mend the harness. The last lines:\n"
            + log[-2000:]
        )
    if status == 0:
        return "survived"
    return "timeout" if status in (-signal.SIGXCPU, -signal.SIGKILL) else "killed"


def _run(
    context: Any,
    project: Path,
    fault: Fault,
    words: Sequence[str],
    cpu_seconds: int,
    finders: Sequence[str],
) -> dict[str, Any]:
    """Plant a fault, run the tests, and remove the fault again.

    Returns:
      The fault, `outcome` (killed, timeout, or survived), the failed test with its error, and the
      seconds of the run.
    """
    file = project / fault.path
    original = file.read_text()
    log, finder = project.parent / "log", project.parent / "finder"
    log.write_text("")
    finder.unlink(missing_ok=True)
    tests = [word for word in words if not word.endswith(".py") or (project / word).exists()]
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    arguments += ["--basetemp", str(project.parent / "tmp"), *tests]
    start = time.perf_counter()
    _replace(file, fault.code)
    try:
        process = context.Process(target=_child, args=(project, arguments, finders, cpu_seconds))
        process.start()
        process.join(WALL * cpu_seconds)
        process.kill()  # if it hangs
        # End the processes that tests have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    finally:
        _replace(file, original)
    found, error = finder.read_text().split("\n") if finder.exists() else (None, None)
    told = outcome(process.exitcode, found, log.read_text(errors="replace"))
    if told == "timeout":  # while it wrote a program, perhaps
        shutil.rmtree(project.parent / "programs", ignore_errors=True)
    return {
        "path": fault.path,
        "line": fault.line,
        "before": fault.before,
        "after": fault.after,
        "outcome": told,
        "state": state(project, fault.path, words, found),
        "by": found,
        "error": error,
        "seconds": round(time.perf_counter() - start, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _replace(file: Path, text: str) -> None:
    """Write a file and delete its compiled code.

    Two faults may have the same size and time stamp in seconds.
    """
    file.write_text(text)
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()

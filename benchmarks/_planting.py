"""Planting of faults in a copy of the project, and the tests that notice them.

Each fault is planted in a fresh process. The tests run until the first failure.
"""

import contextlib
import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # as in make test
)
OUTCOMES = {
    0: "survived",
    1: "killed",
    2: "killed",
    3: "killed",
    4: "killed",
}  # statuses of pytest: a test failed, or pytest could not even begin
OUTCOMES |= {-signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}
UNFIT = 99  # status of a process in which a fault cannot be planted
PRELOADED = (
    "jax",
    "flax.linen",
    "optax",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.datasets",
    "pytest",
    "hypothesis",
    "tyro",
    "chex",
)
"""Modules imported once for all processes.

None of them starts JAX's threads, so that forks are safe.
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
def at_work(root: Path, workers: int, cpu_seconds: int) -> Iterator[Planted]:
    """Copy the project for each worker, and yield the function that plants faults there."""
    os.environ["XLA_FLAGS"] = XLA_FLAGS
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with contextlib.ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
            for _ in range(workers)
        ]
        free = [_copy(root, folder) for folder in folders]
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def one(fault: Fault, words: Sequence[str]) -> dict[str, Any]:
            project = free.pop()
            try:
                return _run(context, project, fault, words, cpu_seconds)
            finally:
                free.append(project)

        yield lambda faults, words: pool.map(one, faults, words)


def state(root: Path, path: str, words: Sequence[str]) -> str:
    """Return a hash of a module and of the tests that run for it."""
    files = [path, *(word for word in words if word.endswith(".py"))]
    return hashlib.sha256(b"\0".join((root / file).read_bytes() for file in files)).hexdigest()


def _copy(root: Path, folder: Path) -> Path:
    """Copy the parts of the project that tests need."""
    target = folder / "project"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "runs", "site", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(root, target, ignore=ignored)
    return target


def _child(project: str, arguments: list[str], log: str, cpu_seconds: int) -> None:
    """Run pytest in the copy, in its own process group, and exit with pytest's status."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(project)
    os.environ["PYTHONPATH"] = project
    sys.path.insert(0, project)
    import pytest

    if "rknn_jax" in sys.modules:
        os._exit(UNFIT)  # the project itself would be tested, without the fault
    status = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(status)


def _run(
    context: Any, project: Path, fault: Fault, words: Sequence[str], cpu_seconds: int
) -> dict[str, Any]:
    """Plant a fault, run the tests, and remove the fault again.

    Returns:
      The fault, `outcome` (killed, timeout, or survived), the failed test, and the seconds of the
      run.
    """
    file = project / fault.path
    original = file.read_text()
    log = project.parent / "log"
    tests = [word for word in words if not word.endswith(".py") or (project / word).exists()]
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    unplanted = state(project, fault.path, words)
    start = time.perf_counter()
    _replace(file, fault.code)
    try:
        process = context.Process(
            target=_child, args=(str(project), arguments, str(log), cpu_seconds)
        )
        process.start()
        process.join()
        outcome = OUTCOMES[process.exitcode]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # end the processes that tests have started
    finally:
        _replace(file, original)
    killer = [
        line
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    told = {
        "path": fault.path,
        "line": fault.line,
        "before": fault.before,
        "after": fault.after,
        "outcome": outcome,
        "state": unplanted,
    }
    return told | {
        "by": killer[0][:160] if killer else None,
        "seconds": round(time.perf_counter() - start, 1),
    }


def _replace(file: Path, text: str) -> None:
    """Write a file and delete its compiled code.

    Two faults may have the same size and time stamp in seconds.
    """
    file.write_text(text)
    shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)

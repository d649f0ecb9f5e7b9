"""Timing and saving, shared by all benchmarks."""

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks import _sources
from train.environment import environment
from train.json_files import write_json

RESULTS = Path(__file__).parent / "results"

LEAST_SECONDS = 0.02
"""Time that a measurement takes at least. Shorter ones are off by what other threads still do."""


def mnist_folder() -> Path:
    """Return the folder of MNIST's idx files from the environment, as for the slow tests."""
    if "RKNN_MNIST_DIR" not in os.environ:
        sys.exit(
            "Expected RKNN_MNIST_DIR to name a folder of MNIST's four idx files, got nothing; "
            "set it."
        )
    return Path(os.environ["RKNN_MNIST_DIR"])


def seconds(
    run: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the median time of `run`, after one call that compiles.

    With `time.process_time`, this is the CPU time of all threads together.
    """
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        start = clock()
        jax.block_until_ready(run())
        times.append(clock() - start)
    return statistics.median(times)


def least(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Return each run's least seconds and CPU seconds of this process, measured in turn.

    Short runs are repeated within a measurement. No time includes compilation, or freeing the
    memory of the run before.
    """
    times = {}
    for name, run in runs.items():
        jax.block_until_ready(run())
        start = time.perf_counter()
        jax.block_until_ready(run())
        times[name] = math.ceil(LEAST_SECONDS / (time.perf_counter() - start))
    found = {name: {"seconds": math.inf, "cpu_seconds": math.inf} for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            jax.block_until_ready(run())
            wall = time.perf_counter()
            cpu = time.process_time()
            for _ in range(times[name]):
                jax.block_until_ready(run())
            took = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
            found[name] = {
                kind: min(found[name][kind], value / times[name]) for kind, value in took.items()
            }
    return found


def peak_memory() -> int:
    """Return the peak resident size of this process so far, in bytes.

    On Linux, `getrusage` counts what the parent process had when it started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summary(values: list[float]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds, with the values."""
    return {
        "mean": statistics.mean(values),
        "stddev": statistics.stdev(values) if len(values) > 1 else None,
        "values": values,
    }


def git(*arguments: str) -> str:
    """Return what a git command prints."""
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def save(name: str, results: Any, **about: Any) -> None:
    """Write `benchmarks/results/<name>.json`.

    The file holds the results, with device, date, versions, command, the machine's load, and the
    digests of the source files that were imported (`benchmarks.stale`).
    """
    command = f"python -m benchmarks.{Path(sys.argv[0]).stem} {' '.join(sys.argv[1:])}".strip()
    _write(name, results, {"command": command, **_provenance(), **about})


def save_part(name: str, part: str, result: Any, **about: Any) -> None:
    """Write a part of `benchmarks/results/<name>.json`, and keep the parts measured before.

    Each part has its own date, load, and digests of source files.
    """
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {"results": {}}
    whole = {key: before[key] for key in ("date", "load", "sources") if key in before}
    parts = before.get("parts", dict.fromkeys(before["results"], whole))
    parts[part] = {"date": environment()["date"], **_provenance()}
    command = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    results = before["results"] | {part: result}
    _write(name, results, {"command": command, **about, "parts": parts})


def _provenance() -> dict[str, Any]:
    return {"load": os.getloadavg()[0], "sources": _sources.loaded()}


def _write(name: str, results: Any, about: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", {**about, **environment(), "results": results})
    print(f"wrote {RESULTS / name}.json")

"""Every system call of a command fails once: what is told is true, and another run finishes.

A library that is loaded before all others (`_calls.c`) counts the calls by which a command
touches its folder, and lets the n-th one fail: opening, reading, writing, syncing, renaming,
linking, removing, locking, closing, asking for a file's size, and drawing random numbers. The
command runs in a fork of a process that has imported everything. Then it runs once more, and
nothing fails. It is wrong if

- it shows a traceback, ends by a signal or with a status that is not documented, or does not end,
- it says that nothing was paid after a charge, or does not say that something was,
- something is released without a charge on disk, a file is there in part, or a spend is lost,
- the next run fails, pays again, or shows other draws than those that were kept.

    make faults                                     # every call of every command: an hour
    python -m benchmarks.faults --step 20           # every twentieth call
    python -m benchmarks.faults --only label        # commands whose name contains this
    python -m benchmarks.faults --only label --first 57 --step 1000    # one call again
"""

import argparse
import ctypes
import errno
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._calls import run_under
from benchmarks._fault_cases import Command, Ended, cases, wait_until
from benchmarks._measure import RESULTS, save
from benchmarks._tables._format import load

ERRORS = ("EIO", "ENOSPC")
"""Errors that are tried: of a damaged disk, and of a full one."""

NO_ROOM = "create write pwrite64 posix_fallocate mkdir link rename"
"""Calls that can fail because a disk is full."""

FAULT = 70
"""Exit status of a fork that fails by a fault of this program."""

HUNG = 180.0
"""Seconds after which a command is taken to hang."""


def import_all() -> None:
    """Import what the commands do, so that a fork does not."""
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401

    import rknn_jax.cli.main
    import rknn_jax.embedding.run
    import rknn_jax.embedding.table
    import rknn_jax.federation.joining
    import rknn_jax.federation.listener
    import rknn_jax.federation.monitor
    import rknn_jax.federation.publish
    import rknn_jax.release.adoption
    import rknn_jax.release.class_selection
    import rknn_jax.release.export
    import rknn_jax.release.label
    import rknn_jax.release.usability  # noqa: F401


class Runner:
    """Starts commands in a folder, each in a fork of this process.

    Args:
      root: Folder for outputs of the commands.
      folder: Folder in which they run.
      error: Name of the error that a call fails with.
    """

    def __init__(self, root: Path, folder: Path, error: str) -> None:
        self.root = root
        self.folder = folder
        self.error = error
        self.number = 0
        self.children = 0

    def start(self, *words: str, fails: bool = False) -> Callable[[], Ended]:
        """Start a command, whose call of the number `number` fails if `fails`."""
        self.children += 1
        logs = [self.root / f"{self.children}.{name}" for name in ("out", "err", "call")]
        child = os.fork()
        if not child:
            try:
                self._become(words, logs, fails=fails)
            finally:
                traceback.print_exc()
                os._exit(FAULT)
        return lambda: self._wait(child, logs)

    def _become(self, words: tuple[str, ...], logs: list[Path], *, fails: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for place, log in enumerate(logs[:2], start=1):
            os.dup2(os.open(log, flags), place)
        report = os.open(logs[2], flags)
        os.chdir(self.folder)
        os.environ["RKNN_STATE_DIR"] = str(self.folder / "state")
        sys.argv = ["rknn", *words]
        from rknn_jax.cli import main as cli

        number = self.number if fails else 0
        place, error = os.fsencode(self.folder), getattr(errno, self.error)
        names = NO_ROOM.encode() if self.error == "ENOSPC" else b""
        ctypes.CDLL(None).fail_call(place, number, error, names, report)
        cli.command()

    def _wait(self, child: int, logs: list[Path]) -> Ended:
        status: list[int] = []

        def ended() -> bool:
            number, found = os.waitpid(child, os.WNOHANG)
            status.extend([found] * (number == child))
            return bool(status)

        if not wait_until(ended, HUNG):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        out, err, call = (log.read_text(errors="replace") for log in logs)
        for log in logs:
            log.unlink()
        return Ended(os.waitstatus_to_exitcode(status[0]) if status else None, out, err, call)


def tried(root: Path, command: Command, error: str, *, first: int, step: int) -> dict[str, Any]:
    """Let calls of a command fail, one in each run; return counts and the broken promises."""
    template, folder = root / "template", root / "work"
    for made in (template, folder):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    runner = Runner(root, folder, error)
    command.prepare(folder, runner.start)
    shutil.copytree(folder, template, dirs_exist_ok=True)
    statuses, calls, broken = Counter[str](), Counter[str](), []
    runner.number = first
    began = time.monotonic()
    while True:
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        ended, wrong = command.run(folder, runner.start)
        if not ended.call:
            break
        calls[ended.call] += 1
        statuses[str(ended.status)] += 1
        for words in wrong:
            told = f"{command.name}: {error} at call {runner.number}, {ended.call}: {words}"
            print(f"{told}\n{ended.err[-1500:]}", flush=True)
            broken.append(told)
        runner.number += step
    assert (ended.status, wrong) == (0, []), f"{command.name}: {wrong}\n{ended.err}"
    row = {
        "command": command.name,
        "error": error,
        "step": step,
        "calls": dict(calls.most_common()),
        "statuses": dict(sorted(statuses.items())),
        "broken": broken,
        "seconds": time.monotonic() - began,
    }
    print({name: row[name] for name in row if name != "calls"}, flush=True)
    return row


def main() -> None:
    """Let calls fail, and say which promises were broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--errors", nargs="+", default=ERRORS, choices=ERRORS)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    run_under("benchmarks.faults")
    import_all()
    span = {"first": options.first, "step": options.step}
    root = Path(tempfile.mkdtemp())  # a fork would remove a `TemporaryDirectory` when it ends
    try:
        rows = [
            tried(root, command, error, **span)
            for command in cases()
            for error in options.errors
            if options.only in command.name
        ]
    finally:
        shutil.rmtree(root)
    if options.save:
        done = {(row["command"], row["error"]) for row in rows}
        kept = load("faults")["results"] if (RESULTS / "faults.json").exists() else []
        rows = [row for row in kept if (row["command"], row["error"]) not in done] + rows
        save("faults", rows)
    sys.exit(any(row["broken"] for row in rows))


if __name__ == "__main__":
    main()

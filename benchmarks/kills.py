"""Kills of `rknn label`: SIGKILL at lines of the program, and recovery by the same command.

A process is forked for each kill. It traces the lines of the release (`TRACED`) and kills itself at
one of them. Another process then runs the same command. Nothing may be forgotten (a result without
its spend), overspent (two spends for one release), or lost (a spend whose release cannot be
finished). XLA's threads do not survive a fork, so neighbors, sums, and the arg max use NumPy here.
Each process gets its own noise by OpenDP.
"""

import argparse
import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks._measure import save
from rknn_jax import postprocessing, question
from rknn_jax._internal import disk
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.mechanisms import base
from rknn_jax.privacy import exact_noise, ledger_file, ledger_index, ledger_lines
from rknn_jax.privacy import ledger as ledgers
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import (
    accounts,
    label,
    planning,
    release_folder,
)
from rknn_jax.release.accounts import open_ledger
from rknn_jax.release.release_folder import RESULTS
from rknn_jax.release.settings import Settings
from rknn_jax.settings import GivenClasses

TRACED = {
    module.__file__
    for module in (
        label,
        accounts,
        planning,
        question,
        release_folder,
        disk,
        ledgers,
        ledger_file,
        ledger_lines,
        ledger_index,
        base,
        exact_noise,
    )
}
SETTINGS = Settings(
    "P.npz", "R.npz", 1.0, classes=GivenClasses("2"), queries=2, out=Path("new"), smoothing="none"
)


def make_files(folder: Path) -> None:
    """Write public and private rows of two clusters."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 90)
    embeddings = (rng.normal(size=(90, 3)) + 20 * labels[:, None]).astype(np.float32)
    np.savez(folder / "P.npz", embeddings=embeddings[:30])
    np.savez(folder / "R.npz", embeddings=embeddings[30:], labels=labels[30:])


def without_xla() -> None:
    """Let a release run on NumPy alone, in a forked process."""

    def total(tally: VoteTally, points: np.ndarray, ids: np.ndarray) -> np.ndarray:
        distances = ((points[:, None] - np.asarray(tally.queries)[None]) ** 2).sum(axis=2)
        cells = (distances.argmin(axis=1) * tally.num_classes + ids)[ids >= 0]
        return np.bincount(cells, minlength=np.prod(tally.shape)).reshape(tally.shape)

    VoteTally.total = total  # type: ignore[method-assign]
    postprocessing.noisy_max = lambda counts: np.argmax(counts, axis=1).astype(np.int32)


def forked(work: Callable[[], None], seconds: float = 20) -> int:
    """Run `work` in a forked process, for at most so many seconds.

    Returns:
      The status: 0, 1 after an exception, or minus a signal.
    """
    number = os.fork()
    if number == 0:
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def run(plan: planning.Plan, kill_at: int | None, count: Any = None) -> None:
    """Release, and stop at the traced line of number `kill_at`.

    The number of traced lines is written to `count`.
    """
    lines = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            lines += 1
            if lines == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    sys.settrace(line)
    release_of(plan)
    sys.settrace(None)
    if count:
        Path(count).write_text(str(lines))


def release_of(plan: planning.Plan) -> None:
    """Release with a ledger and a folder that are opened anew."""
    wanted = planning.request(plan.settings, plan.data)
    paid = release_folder.is_paid(plan.folder, wanted, plan.settings.ledger_path)
    ledger = open_ledger(plan.settings, [plan.cost], paid=paid)
    label.release(replace(plan, ledger=ledger, paid=paid))


def fate(folder: Path) -> dict[str, Any]:
    """Return the state of the disk after a kill."""
    path = folder / "R.npz.ledger.jsonl"
    kinds = (
        Counter(entry.kind for entry in Ledger.open(path).entries()) if path.exists() else Counter()
    )
    shown = [name for name in RESULTS if (folder / "new" / name).exists()]
    return {"spends": kinds["spend"], "drawn": kinds["drawn"], "shown": len(shown)}


def main() -> None:
    """Kill and finish, and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    kills = parser.parse_args().kills
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        os.chdir(folder)
        os.environ["RKNN_STATE_DIR"] = os.devnull  # every run begins with a new ledger
        make_files(folder)
        plan = planning.prepare(SETTINGS)
        # A fork cannot read JAX arrays.
        asked = plan.question
        features = np.asarray(asked.queries.features)
        queries = replace(asked.queries, features=features)
        public = asked.public._replace(queries=queries)
        tally = replace(asked.tally, queries=features)  # type: ignore[type-var]
        plan = replace(plan, question=replace(asked, public=public, tally=tally))
        without_xla()
        exact_noise.safe_scale(2, 1.0)  # load OpenDP, which a fork may be unable to load
        inputs = {path.name for path in folder.iterdir()}
        assert forked(lambda: run(plan, None, "lines")) == 0
        lines = int(Path("lines").read_text())
        for number in range(kills):
            for path in folder.iterdir():
                if path.name not in inputs:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            at = 1 + number * lines // kills if kills <= lines else 1 + number % lines
            status = forked(lambda at=at: run(plan, at))  # type: ignore[misc]
            if status != -signal.SIGKILL:
                # The fork waits for a lock that another thread held before the line was reached.
                told["forks that hung"] += 1
                continue
            before = fate(folder)
            told["killed"] += 1
            told["after the charge"] += before["spends"]
            told["forgotten"] += before["shown"] > 0 and not before["spends"]
            complete = (folder / "new" / RESULTS[-1]).exists()
            finished = complete or forked(lambda: run(plan, None)) == 0
            after = fate(folder)
            told["finished by the same command"] += finished and not complete
            told["complete before"] += complete
            told["overspent"] += after["spends"] > 1
            told["drawn twice"] += after["drawn"] > 1
            told["lost"] += not finished or after["shown"] < len(RESULTS)
        os.chdir("/")
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    save("kills", dict(told), lines=lines)


if __name__ == "__main__":
    main()

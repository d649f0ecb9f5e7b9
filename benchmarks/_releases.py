"""Histories of releases: two folders get one each, by processes that may run at once.

Two processes want the release of one folder. Another one sets the budget of the ledger that they
share.
"""

import hashlib
import importlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import kills
from benchmarks._histories import LEDGER, BrokenError, History, ThereError, identity
from benchmarks._world import Process
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.release import planning
from rknn_jax.release.release_folder import RESULTS, STAGING
from rknn_jax.settings import Spending

BUDGET = 20

FOLDERS = ("a", "b")


def write_plan(folder: Path) -> None:
    """Write the data of the releases, and a plan of one; this process uses XLA."""
    os.chdir(folder)
    os.environ["RKNN_STATE_DIR"] = os.devnull
    kills.make_files(folder)
    plan = planning.prepare(replace(kills.SETTINGS, spending=Spending(budget=float(BUDGET))))
    asked = plan.question
    features = np.asarray(asked.queries.features)
    queries = replace(asked.queries, features=features)
    public = asked.public._replace(queries=queries)
    tally = replace(asked.tally, queries=features)  # type: ignore[type-var]
    plan = replace(plan, question=replace(asked, public=public, tally=tally))
    (folder / "plan").write_bytes(pickle.dumps(plan))


def read_plan(folder: Path) -> planning.Plan:
    """Read a plan, and import what a release by it imports; no thread is started."""
    kills.without_xla()
    exact_noise._drawn = _noisy
    plan: planning.Plan = pickle.loads((folder / "plan").read_bytes())
    jax.default_backend = lambda: "cpu"  # XLA's threads would not survive a fork
    os.chdir(folder)
    listed = folder / "modules"
    made = folder / "made"
    made.mkdir()
    for name in ("P.npz", "R.npz"):
        shutil.copy(folder / name, made)

    def import_by_releasing() -> None:
        os.chdir(made)
        os.environ["RKNN_STATE_DIR"] = str(made / "state")
        kills.release_of(plan)
        listed.write_text("\n".join(sys.modules))

    assert kills.forked(import_by_releasing) == 0
    for name in listed.read_text().split():
        with suppress(ImportError):  # a name that no import has, such as of Cython's parts
            importlib.import_module(name)
    return plan


def _noisy(_: Any, counts: np.ndarray) -> np.ndarray:
    """Return counts with a noise of the operating system's, which the world's seed fixes.

    OpenDP's noise is on OpenSSL's generator, which no seed fixes.
    """
    noise = np.frombuffer(os.urandom(counts.size), np.uint8).astype(np.int64) - 128
    return counts + noise.reshape(counts.shape)


def release(plan: planning.Plan, out: str) -> None:
    """Release into a folder."""
    if (Path(out) / RESULTS[-1]).exists():
        raise ThereError
    settings = replace(plan.settings, out=Path(out))
    kills.release_of(replace(plan, settings=settings))


def raise_budget() -> None:
    """Set the budget on the record, to what it is, unless that was done."""
    ledger = Ledger.open(LEDGER)
    if not any(entry.kind == "budget" for entry in ledger.entries()):
        ledger.raise_budget(BUDGET, 0, "a history")


@dataclass
class Releases(History):
    """History of releases.

    Attributes:
      plan: Plan of the releases.
      drawn: Hash of the noisy counts that a release has shown, by its id.
    """

    plan: planning.Plan = field(kw_only=True)
    drawn: dict[str, str] = field(default_factory=dict)

    def works(self) -> dict[str, Callable[[], None]]:
        """Return the releases, and who sets the budget."""
        return {
            "a": lambda: release(self.plan, "a"),
            "again a": lambda: release(self.plan, "a"),
            "b": lambda: release(self.plan, "b"),
            "raise": raise_budget,
        }

    def check(self) -> None:
        """Check the ledger, and what the folders show."""
        super().check()
        for name in FOLDERS:
            self._check_shown(name)

    def _shown(self, name: str) -> list[str]:
        return [one for one in RESULTS if (self.folder / name / one).exists()]

    def _check_shown(self, name: str) -> None:
        """Check what a folder shows: paid for, one draw, whole."""
        folder = self.folder / name
        shown = self._shown(name)
        if not shown:
            return
        changed = self.world.changed
        if changed is not None and not any(folder in path.parents for path in changed):
            return
        if RESULTS[-1] in shown:
            if missing := set(RESULTS) - set(shown):
                raise BrokenError(f"{name} is complete and lacks {sorted(missing)}")
            number = str(_json(folder / RESULTS[-1])["release"])
        else:
            number = identity(str(_json(folder / STAGING / "note.json")["purpose"]))
        if number.encode() not in self.durable():
            raise BrokenError(f"{name} shows {shown}, and no charge is on disk")
        if "queries.npz" in shown:
            counts = hashlib.sha256(_arrays(folder / "queries.npz")["noisy_counts"].tobytes())
            if self.drawn.setdefault(number, counts.hexdigest()) != counts.hexdigest():
                raise BrokenError(f"{name} shows a second draw of one charge")
        if "labels.npz" in shown:
            _arrays(folder / "labels.npz")

    def check_done(self, process: Process) -> None:
        """Check that what a process has done stays, whatever comes."""
        name = process.name.split()[-1]
        if name not in FOLDERS or process.fault:
            return
        for one in RESULTS:
            durable = self.world.disk.durable_content(f"{name}/{one}")
            if durable != (self.folder / name / one).read_bytes():
                raise BrokenError(f"{name} is done, and a loss of power would take {one}")

    def check_end(self, ledger: Ledger) -> None:
        """Check that everything is there, and was paid for once."""
        if ledger.num_spends != len(FOLDERS):
            raise BrokenError(f"{ledger.num_spends} charges for {len(FOLDERS)} releases")
        for name in FOLDERS:
            if len(self._shown(name)) != len(RESULTS):
                raise BrokenError(f"{name} has {self._shown(name)}")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BrokenError(f"{path.name} is shown and not whole: {error}") from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except Exception as error:  # a torn file fails in many ways
        raise BrokenError(f"{path.name} is shown and not whole: {error}") from error

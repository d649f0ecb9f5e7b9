"""Histories of a world: releases, and a ledger that they share, and what must hold after each step.

Two folders get a release each, by processes that may run at once, twice for one folder. Another
one sets the budget. Whatever ends early is started again by the same command. After the faults
comes a calm time, in which all of it must be finished.
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
from random import Random
from typing import Any

import jax
import numpy as np

from benchmarks import kills
from benchmarks._world import Process, Rates, World
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.release import planning
from rknn_jax.release.release_folder import RESULTS, STAGING

LEDGER = "R.npz.ledger.jsonl"
BUDGET = 20

FOLDERS = ("a", "b")
CALM = 6_000
"""Calls after which a calm world must have finished."""


class BrokenError(Exception):
    """A promise that a history broke."""


class ThereError(Exception):
    """End of a process that finds its work done by another one."""


def write_plan(folder: Path) -> None:
    """Write the data of the releases, and a plan of one; this process uses XLA."""
    os.chdir(folder)
    os.environ["RKNN_STATE_DIR"] = os.devnull
    kills.make_files(folder)
    plan = planning.prepare(replace(kills.SETTINGS, budget=float(BUDGET)))
    asked = plan.question
    features = np.asarray(asked.queries.features)
    queries = replace(asked.queries, features=features)
    public = asked.public._replace(queries=queries)
    total = replace(asked.sum, queries=features)  # type: ignore[type-var]
    plan = replace(plan, question=replace(asked, public=public, sum=total))
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
class History:
    """History of one seed.

    Attributes:
      folder: Folder of the world.
      inputs: Folder with the private and the public rows.
      plan: Plan of the releases.
      seed: Seed of everything.
      steps: Calls before the calm time.
    """

    folder: Path
    inputs: Path
    plan: planning.Plan
    seed: int
    steps: int = 1200
    drawn: dict[str, str] = field(default_factory=dict)
    charged: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    def run(self) -> World:
        """Run the history.

        Raises:
          BrokenError: If a promise is broken; its notes tell the last calls.
        """
        self.folder.mkdir()
        for name in ("P.npz", "R.npz"):
            os.link(self.inputs / name, self.folder / name)
        random = Random(self.seed)
        self.world = World(self.folder, random, Rates.drawn(random))
        os.environ["RKNN_STATE_DIR"] = str(self.folder / "state")
        works: dict[str, Callable[[], None]] = {
            "a": lambda: release(self.plan, "a"),
            "again a": lambda: release(self.plan, "a"),
            "b": lambda: release(self.plan, "b"),
            "raise": raise_budget,
        }
        try:
            self._go(works, self.steps)
            self.world.rates = Rates()
            self._go(works, CALM)
            if missing := set(works) - self.done:
                raise BrokenError(f"{sorted(missing)} did not finish in a calm world")
            self._check_end()
        except BrokenError as error:
            error.add_note("\n".join(self.world.trace[-60:]))
            raise
        finally:
            self.world.end()
        return self.world

    def _go(self, works: dict[str, Callable[[], None]], steps: int) -> None:
        world = self.world
        for _ in range(steps):
            here = {one.name for one in world.processes}
            left = [name for name in works if name not in self.done | here]
            if not left and not here:
                return
            if left and (not here or world.random.random() < 0.02):
                name = world.random.choice(left)
                world.start(name, works[name])
                continue
            ended = world.step()
            if ended and ended.end in ("", ThereError.__name__):
                self.done.add(ended.name)
                if not ended.end:
                    self._check_done(ended)
            if world.changed != []:
                self._check()

    def _check(self) -> None:
        """Check what must hold at every step."""
        path = self.folder / LEDGER
        if path.exists():
            try:
                self._check_ledger(Ledger.open(path))
            except LedgerError as error:
                raise BrokenError(f"the ledger cannot be read: {error}") from error
        elif self.charged:
            raise BrokenError("a ledger with charges is gone")
        for name in FOLDERS:
            self._check_shown(name)

    def _check_ledger(self, ledger: Ledger) -> None:
        if ledger.spent.epsilon > ledger.budget.epsilon:
            raise BrokenError(f"{ledger.spent} of {ledger.budget} is spent")
        entries = ledger.entries()
        for kind in ("spend", "drawn"):
            ids = [_id(entry.purpose) for entry in entries if entry.kind == kind]
            if len(set(ids)) < len(ids):
                raise BrokenError(f"a release has two lines of {kind}")
        charges = {_id(entry.purpose) for entry in entries if entry.kind == "spend"}
        if lost := self.charged - charges:
            raise BrokenError(f"charges that were on disk are forgotten: {lost}")
        durable = self._durable()
        self.charged |= {one for one in charges if one.encode() in durable}

    def _durable(self) -> bytes:
        """Return what no loss of power takes from the ledger."""
        return self.world.disk.durable_content(LEDGER) or b""

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
            identity = str(_json(folder / RESULTS[-1])["release"])
        else:
            identity = _id(str(_json(folder / STAGING / "note.json")["purpose"]))
        if identity.encode() not in self._durable():
            raise BrokenError(f"{name} shows {shown}, and no charge is on disk")
        if "queries.npz" in shown:
            counts = hashlib.sha256(_arrays(folder / "queries.npz")["noisy_counts"].tobytes())
            if self.drawn.setdefault(identity, counts.hexdigest()) != counts.hexdigest():
                raise BrokenError(f"{name} shows a second draw of one charge")
        if "labels.npz" in shown:
            _arrays(folder / "labels.npz")

    def _check_done(self, process: Process) -> None:
        """Check that what a process has done stays, whatever comes."""
        name = process.name.split()[-1]
        if name not in FOLDERS or process.fault:
            return
        for one in RESULTS:
            durable = self.world.disk.durable_content(f"{name}/{one}")
            if durable != (self.folder / name / one).read_bytes():
                raise BrokenError(f"{name} is done, and a loss of power would take {one}")

    def _check_end(self) -> None:
        """Check that everything is there, and was paid for once."""
        self.world.changed = None
        self._check()
        ledger = Ledger.open(self.folder / LEDGER)
        if ledger.num_spends != len(FOLDERS):
            raise BrokenError(f"{ledger.num_spends} charges for {len(FOLDERS)} releases")
        for name in FOLDERS:
            if len(self._shown(name)) != len(RESULTS):
                raise BrokenError(f"{name} has {self._shown(name)}")


def _id(purpose: str) -> str:
    return purpose.rpartition(" ")[2]


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

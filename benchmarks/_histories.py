"""Histories of a world: processes that share a ledger, and what must hold after each step.

A subclass has its works (`_releases`, `_charges`). Whatever ends early is started again by the same
command. After the faults comes a calm time, in which all of it must be finished.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks._world import Process, Rates, World
from rknn_jax.privacy.ledger import Ledger, LedgerError

LEDGER = "R.npz.ledger.jsonl"

CALM = 6_000
"""Calls after which a calm world must have finished."""

STUBBORN = 40
"""Most times that a work may be started in a calm world."""


class BrokenError(Exception):
    """A promise that a history broke."""


class ThereError(Exception):
    """End of a process that finds its work done, or that nothing is left for it."""


@dataclass
class History:
    """History of one seed.

    Attributes:
      folder: Folder of the world.
      inputs: Files that are there at the beginning.
      seed: Seed of everything.
      steps: Calls before the calm time.
      charged: Charges that a loss of power cannot take.
      done: Works that are done.
    """

    folder: Path
    inputs: tuple[Path, ...]
    seed: int
    steps: int = 1200
    charged: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)

    def works(self) -> dict[str, Callable[[], None]]:
        """Return what processes do, by name."""
        raise NotImplementedError

    def check_done(self, process: Process) -> None:
        """Check what must hold once a work is done."""

    def check_end(self, ledger: Ledger) -> None:
        """Check what must hold once all works are done."""
        raise NotImplementedError

    def run(self) -> World:
        """Run the history.

        Raises:
          BrokenError: If a promise is broken; its notes tell the last calls.
        """
        self.folder.mkdir()
        for path in self.inputs:
            os.link(path, self.folder / path.name)
        random = Random(self.seed)
        self.world = World(self.folder, random, Rates.drawn(random))
        os.environ["RKNN_STATE_DIR"] = str(self.folder / "state")
        works = self.works()
        try:
            self._go(works, self.steps)
            self.world.rates = Rates()
            self._go(works, CALM, most_starts=STUBBORN)
            if missing := set(works) - self.done:
                raise BrokenError(f"{sorted(missing)} did not finish in a calm world")
            self.world.changed = None
            self.check()
            self.check_end(Ledger.open(self.folder / LEDGER))
        except BrokenError as error:
            error.add_note("\n".join(self.world.trace[-60:]))
            raise
        finally:
            self.world.end()
        return self.world

    def _go(
        self, works: dict[str, Callable[[], None]], steps: int, most_starts: int | None = None
    ) -> None:
        world = self.world
        starts = Counter[str]()
        for _ in range(steps):
            here = {one.name for one in world.processes}
            left = [name for name in works if name not in self.done | here]
            if not left and not here:
                return
            if left and (not here or world.random.random() < 0.02):
                name = world.random.choice(left)
                starts[name] += 1
                if most_starts and starts[name] > most_starts:
                    return
                world.start(name, works[name])
                continue
            ended = world.step()
            if ended and ended.end in ("", ThereError.__name__):
                self.done.add(ended.name)
                if not ended.end:
                    self.check_done(ended)
            if world.changed != []:
                self.check()

    def check(self) -> None:
        """Check what must hold at every step."""
        path = self.folder / LEDGER
        if path.exists():
            try:
                self._check_ledger(Ledger.open(path))
            except LedgerError as error:
                raise BrokenError(f"the ledger cannot be read: {error}") from error
        elif self.charged:
            raise BrokenError("a ledger with charges is gone")

    def _check_ledger(self, ledger: Ledger) -> None:
        if ledger.spent.epsilon > ledger.budget.epsilon:
            raise BrokenError(f"{ledger.spent} of {ledger.budget} is spent")
        entries = ledger.entries()
        for kind in ("spend", "drawn"):
            ids = [identity(entry.purpose) for entry in entries if entry.kind == kind]
            if len(set(ids)) < len(ids):
                raise BrokenError(f"a release has two lines of {kind}")
        charges = {identity(entry.purpose) for entry in entries if entry.kind == "spend"}
        if lost := self.charged - charges:
            raise BrokenError(f"charges that were on disk are forgotten: {sorted(lost)}")
        durable = self.durable()
        self.charged |= {one for one in charges if one.encode() in durable}

    def durable(self) -> bytes:
        """Return what no loss of power takes from the ledger."""
        return self.world.disk.durable_content(LEDGER) or b""


def identity(purpose: str) -> str:
    """Return the last word of a charge's purpose, which names its release."""
    return purpose.rpartition(" ")[2]

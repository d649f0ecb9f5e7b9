"""Program that runs histories of a federation in a network, for each kind of history."""

import gc
import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import _seeds
from benchmarks._histories import BrokenError
from benchmarks._network_history import NetworkHistory, write_inputs
from benchmarks._network_world import NetworkWorld
from benchmarks._world_faults import WorldFault

MOST_SEEDS = 150
"""Seeds in which a planted fault must be found."""


def run(
    kind: type[NetworkHistory], root: Path, seed: int
) -> tuple[NetworkHistory, BrokenError | None]:
    """Return the history of a seed, and the promise that it broke.

    Args:
      kind: Kind of the history.
      root: Folder of the world's folder.
      seed: Seed.
    """
    folder = root / "world"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_inputs(folder, kind.clients)
    os.environ["RKNN_STATE_DIR"] = str(folder / "state")
    history = kind(folder, seed)
    try:
        history.run()
    except BrokenError as error:
        return history, error
    return history, None


def _counted(world: NetworkWorld) -> Counter[str]:
    """Return how often what happened."""
    found = Counter[str](steps=world.steps, connections=world.connections)
    for line in world.trace:
        found["kills"] += line.endswith(": is killed")
        found["refused"] += line.endswith((": is refused", ": connects to nobody"))
        found["cut"] += line.startswith("connection ") and line.endswith(": cut")
        found["mute"] += line.startswith("connection ") and line.endswith(": mute")
        found["repeated"] += line == "proxy: starts"
        found["strangers"] += line == "stranger: starts"
        found["jumps of the clock"] += line.startswith("the clock jumps")
        found["partitions"] += line == "the network is parted"
    return found


@dataclass(frozen=True)
class Program:
    """Program of one kind of history.

    Attributes:
      name: Name of the program in `benchmarks`, and of its results.
      about: One line about it.
      kind: Kind of the histories.
      faults: Faults that can be planted.
    """

    name: str
    about: str
    kind: type[NetworkHistory]
    faults: Sequence[WorldFault]

    def main(self) -> None:
        """Run histories, or one of them with all that happens."""
        options = _seeds.options(self.about)
        if os.environ.get("PYTHONHASHSEED") != "0":
            words = [sys.executable, "-m", f"benchmarks.{self.name}", *sys.argv[1:]]
            os.execve(sys.executable, words, os.environ | {"PYTHONHASHSEED": "0"})
        logging.disable(logging.CRITICAL)  # of servers that are killed
        sys.unraisablehook = lambda _: None
        gc.freeze()
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        root = Path(tempfile.mkdtemp(dir=shared))
        try:
            if options.seed is not None:
                sys.exit(self._tell(root, options.seed))
            if options.planted:
                words = [one.words for one in self.faults]
                shown = (f"{self.name}_planted", partial(self._find, root), words, options.only)
                sys.exit(_seeds.find_all(*shown, keep=options.save))
            told = (self.name, partial(self._count, root), options.first, "steps", options.steps)
            sys.exit(_seeds.run_all(*told, keep=options.save))
        finally:
            shutil.rmtree(root)

    def _tell(self, root: Path, seed: int) -> bool:
        history, broken = run(self.kind, root, seed)
        trace = history.world.trace
        print("\n".join(trace))
        digest = hashlib.sha256("\n".join(trace).encode()).hexdigest()[:16]
        print(f"seed {seed}: {broken or 'every promise was kept'}; {digest}")
        return broken is not None

    def _count(self, root: Path, seed: int) -> _seeds.Ran:
        history, broken = run(self.kind, root, seed)
        return _counted(history.world) + history.found(), broken

    def _find(self, root: Path, words: str) -> tuple[int, str]:
        """Return the first seed that finds a fault, and what it breaks; -1 if none does."""
        [fault] = [one for one in self.faults if one.words == words]
        with fault.planted():
            for seed in range(MOST_SEEDS):
                if broken := run(self.kind, root, seed)[1]:
                    return seed, str(broken)
        return -1, ""

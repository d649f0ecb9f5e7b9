"""A world in a seed: releases, and their ledger, under faults of disk, processes and power.

The code is that of `rknn label` and `rknn budget`, and its calls are the system's own. A seed
decides which process makes the next call, which calls fail or write a part, when a process is
killed, and when the power is lost, with what is left on the disk (`_world`, `_disk_model`). What
must hold is checked after each call that changes the disk (`_histories`). Even seeds have releases
and odd ones charges alone.

    make simulate                                  # a million calls
    make simulate SEED=17                          # the history of one seed, call by call
    python -m benchmarks.simulate --steps 10000    # so many calls, from seed 0 on
    python -m benchmarks.simulate --planted        # faults in the code, which must be found
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks import _releases, _seeds
from benchmarks._calls import run_under
from benchmarks._charges import Charges
from benchmarks._histories import BrokenError, History
from benchmarks._releases import Releases
from benchmarks._world_faults import FAULTS
from benchmarks.kills import forked

MOST_SEEDS = 100
"""Seeds in which a planted fault must be found."""

PLAN = """
import pathlib, sys
from benchmarks._releases import write_plan
write_plan(pathlib.Path(sys.argv[1]))
"""


class Simulation:
    """Histories in a folder.

    Args:
      root: Folder for the inputs and the world.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs = root / "inputs"
        self.inputs.mkdir()
        # A process of its own, because the plan takes XLA, whose threads do not survive forks.
        subprocess.run([sys.executable, "-c", PLAN, self.inputs], check=True)
        self.plan = _releases.read_plan(self.inputs)
        self.files = (self.inputs / "P.npz", self.inputs / "R.npz")

    def run(self, seed: int) -> tuple[list[str], BrokenError | None]:
        """Return what happened in the history of a seed, and the promise that it broke."""
        folder = self.root / "world"
        shutil.rmtree(folder, ignore_errors=True)
        history: History
        if seed % 2:
            history = Charges(folder, self.files, seed, guarantee=self.plan.cost)
        else:
            history = Releases(folder, self.files, seed, plan=self.plan)
        try:
            history.run()
        except BrokenError as error:
            return history.world.trace, error
        return history.world.trace, None

    def count(self, seed: int) -> _seeds.Ran:
        """Return how often calls were made and faults came in a history, and what it broke."""
        trace, error = self.run(seed)
        return counted(trace), error

    def find(self, words: str) -> tuple[int, str]:
        """Return the first seed that finds a planted fault, and what it breaks; -1 if none does."""
        [fault] = [one for one in FAULTS if one.words == words]
        told = self.root / "found"
        told.unlink(missing_ok=True)

        def search() -> None:
            fault.plant()
            for seed in range(MOST_SEEDS):
                if broken := self.run(seed)[1]:
                    told.write_text(f"{seed}\n{broken}")
                    return

        forked(search, seconds=3600)
        if not told.exists():
            return -1, ""
        seed, _, broken = told.read_text().partition("\n")
        return int(seed), broken


def counted(trace: list[str]) -> Counter[str]:
    """Return how often calls were made, and faults came."""
    found = Counter[str]()
    for line in trace:
        found["calls"] += " = " in line
        found["errors"] += line.endswith(") FAULT")
        found["short writes"] += line.endswith(" FAULT") and not line.endswith(") FAULT")
        found["kills"] += line.endswith(": ends: killed")
        found["losses of power"] += line == "power is lost"
        found["processes"] += ": starts as " in line
    return found


def digest(trace: list[str]) -> str:
    """Return a hash of what happened."""
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()[:16]


def main() -> None:
    """Run histories, one of them call by call, or those that find planted faults."""
    options = _seeds.options(__doc__.splitlines()[0])
    run_under("benchmarks.simulate")
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    root = Path(tempfile.mkdtemp(dir=shared))
    try:
        simulation = Simulation(root)
        if options.seed is not None:
            sys.exit(_tell(simulation, options.seed))
        if options.planted:
            words = [one.words for one in FAULTS]
            shown = ("simulate_planted", simulation.find, words, options.only)
            sys.exit(_seeds.find_all(*shown, keep=options.save))
        told = ("simulate", simulation.count, options.first, "calls", options.steps)
        sys.exit(_seeds.run_all(*told, keep=options.save))
    finally:
        os.chdir("/")
        shutil.rmtree(root)


def _tell(simulation: Simulation, seed: int) -> bool:
    trace, broken = simulation.run(seed)
    print("\n".join(trace))
    print(f"seed {seed}: {broken or 'every promise was kept'}; {digest(trace)}")
    return broken is not None


if __name__ == "__main__":
    main()

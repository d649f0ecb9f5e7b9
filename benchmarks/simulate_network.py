"""A network in a seed: rounds of a federation under faults of network, clocks and processes.

The code is that of `rknn serve` and `rknn join`. A seed decides which of their threads goes on,
when which bytes arrive, which connections end and how, who is killed, and how the wall clock jumps
(`_network_world`). What must hold is checked after each step (`_rounds`).

    make simulate                                          # a million steps
    make simulate NETWORK_SEED=17                          # the history of one seed
    python -m benchmarks.simulate_network --steps 10000    # so many steps, from seed 0 on
    python -m benchmarks.simulate_network --planted        # faults in the code, which must be found
"""

import argparse
import gc
import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from benchmarks import _seeds
from benchmarks._histories import BrokenError
from benchmarks._network_faults import FAULTS
from benchmarks._network_world import NetworkWorld
from benchmarks._rounds import CLIENTS, RoundHistory, write_inputs

MOST_SEEDS = 150
"""Seeds in which a planted fault must be found."""


def run(root: Path, seed: int) -> tuple[NetworkWorld, RoundHistory, BrokenError | None]:
    """Return the world of a seed, its history, and the promise that it broke."""
    folder = root / "world"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_inputs(folder)
    for number in range(CLIENTS):
        (folder / str(number)).mkdir()
        os.rename(folder / f"R{number}.npz", folder / str(number) / f"R{number}.npz")
    os.environ["RKNN_STATE_DIR"] = str(folder / "state")
    history = RoundHistory(folder, seed)
    broken = None
    try:
        history.run()
    except BrokenError as error:
        broken = error
    return history.world, history, broken


def counted(world: NetworkWorld) -> Counter[str]:
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


def main() -> None:
    """Run histories, or one of them with all that happens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--only", default="", help="planted faults whose words contain this")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        words = [sys.executable, "-m", "benchmarks.simulate_network", *sys.argv[1:]]
        os.execve(sys.executable, words, os.environ | {"PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)  # of servers that are killed
    sys.unraisablehook = lambda _: None
    gc.freeze()
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    root = Path(tempfile.mkdtemp(dir=shared))
    try:
        if options.seed is not None:
            sys.exit(_tell(root, options.seed))
        if options.planted:
            words = [one.words for one in FAULTS]
            shown = ("simulate_network_planted", partial(_find, root), words, options.only)
            sys.exit(_seeds.find_all(*shown, keep=options.save))
        told = ("simulate_network", partial(_count, root), options.first, "steps", options.steps)
        sys.exit(_seeds.run_all(*told, keep=options.save))
    finally:
        shutil.rmtree(root)


def _tell(root: Path, seed: int) -> bool:
    world, _, broken = run(root, seed)
    print("\n".join(world.trace))
    digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()[:16]
    print(f"seed {seed}: {broken or 'every promise was kept'}; {digest}")
    return broken is not None


def _count(root: Path, seed: int) -> _seeds.Ran:
    world, history, error = run(root, seed)
    return counted(world) + Counter({"answers counted": len(history.counted)}), error


def _find(root: Path, words: str) -> tuple[int, str]:
    """Return the first seed that finds a planted fault, and what it breaks; -1 if none does."""
    [fault] = [one for one in FAULTS if one.words == words]
    with fault.planted():
        for seed in range(MOST_SEEDS):
            if broken := run(root, seed)[2]:
                return seed, str(broken)
    return -1, ""


if __name__ == "__main__":
    main()

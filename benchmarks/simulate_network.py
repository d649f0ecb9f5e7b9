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
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks._histories import BrokenError
from benchmarks._measure import save
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
            sys.exit(_plant(root, options.only, keep=options.save))
        sys.exit(_run(root, options.first, options.steps, keep=options.save))
    finally:
        shutil.rmtree(root)


def _tell(root: Path, seed: int) -> bool:
    world, _, broken = run(root, seed)
    print("\n".join(world.trace))
    digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()[:16]
    print(f"seed {seed}: {broken or 'every promise was kept'}; {digest}")
    return broken is not None


def _run(root: Path, first: int, steps: int, *, keep: bool) -> bool:
    total: Counter[str] = Counter()
    broken = []
    began = time.monotonic()
    seed = first
    while total["steps"] < steps:
        world, history, error = run(root, seed)
        total += counted(world)
        total["answers counted"] += len(history.counted)
        if error:
            broken.append({"seed": seed, "words": str(error)})
            print(f"seed {seed}: {error}", *error.__notes__, sep="\n", flush=True)
        seed += 1
    results: dict[str, Any] = {
        "seeds": seed - first,
        **total,
        "broken": broken,
        "seconds": time.monotonic() - began,
    }
    print(results)
    if keep:
        save("simulate_network", results)
    return bool(broken)


def _plant(root: Path, only: str, *, keep: bool) -> bool:
    """Plant faults, one at a time, and tell which seed finds each first."""
    rows = []
    for fault in (one for one in FAULTS if only in one.words):
        with fault.planted():
            tried = ((seed, run(root, seed)[2]) for seed in range(MOST_SEEDS))
            seed, broken = next(((seed, str(found)) for seed, found in tried if found), (-1, ""))
        print(f"{fault.words}: seed {seed}, {broken}", flush=True)
        rows.append({"words": fault.words, "seed": seed, "broken": broken})
    if keep:
        save("simulate_network_planted", rows)
    return any(row["seed"] < 0 for row in rows)


if __name__ == "__main__":
    main()

"""Waiting times of a first run: a release from a cold start, the demo's compilation, noisy SGD.

`rknn label` runs as README's quickstart does, each time in a new process, without any compiled
program on the disk. Its compilation and the demo's are what JAX reports. The clipped sum of noisy
SGD is compared with torch's `vmap` of `grad`, on the same weights and images, in turns, by CPU
time; torch has one thread. `RKNN_PEERS_PYTHON` names the interpreter that has torch.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from benchmarks._measure import save
from rknn_jax.students import clipped_gradients
from rknn_jax.students import fit as students

HERE = Path(__file__).parent
ROOT = HERE.parent
REPEATS = 5
TURNS = 15
BATCH = 256
LABEL = "label --public public.npz --private private.npz --epsilon 0.5 --classes 10 --budget 1"
DEMO = "--dataset digits --epsilon 1 --out demo"

COUNTED = """
import json, sys
import jax
found = []
def told(event, seconds, fun_name="", **others):
    if event == "/jax/core/compile/backend_compile_duration":
        found.append((fun_name, seconds))
jax.monitoring.register_event_duration_secs_listener(told)
if sys.argv[1] == "label":
    from rknn_jax.cli.main import main
    assert main(sys.argv[1:]) == 0
else:
    from train import commandline, distill
    distill.main(commandline.parsed(sys.argv[1:], "The demo."))
with open("programs.json", "w") as file:
    json.dump(found, file)
"""
"""A command that tells which programs it compiled, and for how long."""


def started(command: list[str], folder: Path) -> dict[str, float]:
    """Run a command in a folder, as a user without any cache, and return its times."""
    home = folder / "home"
    names = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment = {"HOME": str(home), "PYTHONPATH": str(ROOT), "JAX_ENABLE_COMPILATION_CACHE": "0"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=names | environment, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu_seconds": cpu}


def quickstart(folder: Path) -> None:
    """Write README's files."""
    images, digits = load_digits(return_X_y=True)
    (folder / "home").mkdir()
    np.savez(folder / "public.npz", embeddings=images[:500])
    np.savez(folder / "private.npz", embeddings=images[500:], labels=digits[500:])


def shortest(command: list[str]) -> dict[str, float]:
    """Return the times of the shortest of several cold starts, and the load before them."""
    load = os.getloadavg()[0]
    found = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as name:
            quickstart(Path(name))
            found.append(started(command, Path(name)))
    return min(found, key=lambda one: one["seconds"]) | {"load": load}


def compiled(words: str) -> dict[str, Any]:
    """Return the numbers and seconds of compiled programs, the shortest of several runs."""
    runs = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as name:
            quickstart(Path(name))
            started([sys.executable, "-c", COUNTED, *words.split()], Path(name))
            runs.append(json.loads((Path(name) / "programs.json").read_text()))
    programs = min(runs, key=lambda run: sum(seconds for _, seconds in run))
    return {
        "programs": len(programs),
        "seconds": sum(seconds for _, seconds in programs),
        "longest": sorted(programs, key=lambda one: -one[1])[:6],
    }


def noisy_sum(python: str) -> dict[str, Any]:
    """Return CPU seconds of the clipped sum over a batch, beside torch's."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (BATCH, 28, 28, 1)).astype(np.uint8)
    labels = rng.integers(0, 10, BATCH).astype(np.int32)
    network = students.network_of(students.Config(model="tanh_cnn"), 10)
    params = students.drawn(network, jax.random.key(0), images[:1])["params"]
    trained, fixed, mask = clipped_gradients.parted(params, "all", 0.5)
    records = (jnp.asarray(images), jnp.asarray(labels))
    everyone = (np.arange(BATCH, dtype=np.int32), np.ones(BATCH, bool))

    def summed() -> dict[str, jax.Array]:
        zeros = jax.block_until_ready(jax.tree.map(jnp.zeros_like, trained))
        start = time.process_time()
        total = clipped_gradients.add_clipped(
            network, 1.0, zeros, trained, fixed, mask, {}, records, *everyone
        )
        jax.block_until_ready(total)
        ours.append(time.process_time() - start)
        return dict(total)

    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "problem.npz"
        np.savez(file, images=images, labels=labels, **trained)  # type: ignore[arg-type]
        command = [python, str(HERE / "_torch_worker.py")]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(f"{file}\n")
        worker.stdin.flush()
        first = json.loads(worker.stdout.readline())
    total = summed()
    ours.clear()  # that call compiled
    mine = sum(float(np.sum(np.asarray(leaf, np.float64) ** 2)) for leaf in total.values())
    np.testing.assert_allclose(mine, sum(first["squares"].values()), rtol=1e-4)
    for _ in range(TURNS):
        summed()
        worker.stdin.write("again\n")
        worker.stdin.flush()
        theirs.append(json.loads(worker.stdout.readline()))
    worker.communicate()
    return {
        "network": "tanh_cnn",
        "batch_size": BATCH,
        "torch": first["version"],
        "cpu_seconds": {"ours": ours, "torch": theirs},
        "ratio": float(np.median(theirs) / np.median(ours)),
        "ratio_of_shortest": min(theirs) / min(ours),
    }


def main() -> None:
    """Measure and write `benchmarks/results/first_calls.json`."""
    if "RKNN_PEERS_PYTHON" not in os.environ:
        sys.exit("Expected RKNN_PEERS_PYTHON to name a Python that has torch, got nothing; set it.")
    rknn = [sys.executable, "-m", "rknn_jax.cli.main", *LABEL.split()]
    found = {
        "label": shortest(rknn) | {"compiled": compiled(LABEL)},
        "demo": compiled(DEMO),
        "noisy_sum": noisy_sum(os.environ["RKNN_PEERS_PYTHON"]),
    }
    save("first_calls", found)


if __name__ == "__main__":
    main()

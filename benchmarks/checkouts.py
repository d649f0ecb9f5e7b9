"""CPU time and memory of whole commands in another checkout and in this one, in turns.

    python -m benchmarks.checkouts --before ../before

The other checkout, such as a worktree of an earlier commit, has its own compiled kernels. Commands
run in new processes with the same interpreter, and files of their own. CPU time is that of all
processes of a command; memory is the peak of the largest one.
"""

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks._measure import git, save

HERE = Path(__file__).parents[1]
TURNS = 5
LABEL = "rknn_jax.cli.main label --epsilon 0.5 --classes 10 --budget 1"
SERVE = (
    "rknn_jax.cli.main serve --public public.npz --classes 10 --epsilon 4 --clients 2 --out round"
)
DISTILL = "train.distill --dataset digits --epsilon 1 --out run"


def write(folder: Path) -> None:
    """Write digits, parties of them, and 200,000 rows in clusters."""
    images, labels = load_digits(return_X_y=True)
    np.savez(folder / "public.npz", embeddings=images[:500])
    parts = {"private": slice(500, None), "north": slice(500, 1150), "south": slice(1150, None)}
    for name, rows in parts.items():
        np.savez(folder / f"{name}.npz", embeddings=images[rows], labels=labels[rows])
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 10, 205_000)
    rows = rng.normal(size=(10, 64))[classes] + rng.normal(size=(len(classes), 64))
    rows = rows.astype(np.float32)
    np.savez(folder / "many_public.npz", embeddings=rows[:5000])
    np.savez(folder / "many.npz", embeddings=rows[5000:], labels=classes[5000:])


def command(words: str, *more: str) -> list[str]:
    """Return the words of a command that runs a module."""
    return [sys.executable, "-m", *words.split(), *more]


def label(folder: Path, public: str, private: str) -> None:
    """Run one release."""
    named = ("--public", f"{public}.npz", "--private", f"{private}.npz", "--out", "label")
    subprocess.run(command(LABEL, *named), cwd=folder, check=True, capture_output=True)


def federate(folder: Path) -> None:
    """Run one round of a server and two clients, all of which end by themselves."""
    server = subprocess.Popen(
        command(SERVE), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    clients = [
        subprocess.Popen(
            command(f"rknn_jax.cli.main join --private {name}.npz --budget 4"),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in ("north", "south")
    ]
    for process in (*clients, server):
        if process.wait(300):
            raise RuntimeError(f"{process.args} ended with status {process.returncode}")


def distill(folder: Path) -> None:
    """Run one experiment with a student."""
    subprocess.run(command(DISTILL), cwd=folder, check=True, capture_output=True)


COMMANDS: dict[str, Callable[[Path], None]] = {
    "`rknn label`, digits": lambda folder: label(folder, "public", "private"),
    "`rknn label`, 200,000 records": lambda folder: label(folder, "many_public", "many"),
    "`rknn serve` and two `rknn join`, digits": federate,
    "`train.distill`, digits": distill,
}


def measured(checkout: Path, run: Callable[[Path], None]) -> tuple[float, float]:
    """Return CPU seconds and peak memory in bytes of a command in a checkout."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:  # its own children alone are counted
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.environ |= {
                "PYTHONPATH": str(checkout),
                "HOME": made,
                "XDG_STATE_HOME": made,
                "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            }
            status = 1
            try:
                run(folder)
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                told = f"{used.ru_utime + used.ru_stime} {used.ru_maxrss * 1024}"
                os.write(writer, told.encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reader) as found:
            words = found.read().split()
    if status or len(words) != 2:
        raise RuntimeError(f"a command in {checkout} failed")
    return float(words[0]), float(words[1])


def main() -> None:
    """Measure all commands, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="another checkout")
    before = parser.parse_args().before.resolve()
    rows: list[dict[str, Any]] = []
    for name, run in COMMANDS.items():
        found: dict[Path, list[tuple[float, float]]] = {before: [], HERE: []}
        for _ in range(TURNS):
            for checkout, values in found.items():
                values.append(measured(checkout, run))
        row: dict[str, Any] = {"command": name}
        for word, values in zip(("before", "now"), found.values(), strict=True):
            row[f"cpu_seconds_{word}"] = statistics.median(one[0] for one in values)
            row[f"bytes_{word}"] = statistics.median(one[1] for one in values)
        print(row, flush=True)
        rows.append(row)
    commit = git("-C", str(before), "rev-parse", "HEAD")[:7]
    sys.argv[1:] = ["--before", "CHECKOUT"]
    save("checkouts", rows, before=commit, turns=TURNS, load=os.getloadavg()[0])


if __name__ == "__main__":
    main()

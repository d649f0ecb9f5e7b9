"""Longest silence of long commands whose output goes into a pipe.

    RKNN_MNIST_DIR=... python -m benchmarks.silence

Each command runs for at most 30 seconds, then gets Ctrl-C: what counts is the longest time without
a byte of output, from its start to its end. Loading of libraries and compilation count too. A
command must not be silent for 10 seconds.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import mnist_folder, save

LIMIT = 30.0
PATIENCE = 60.0
"""Seconds for a command that got Ctrl-C, which saves its work first."""

DISTILL = "train.distill --dataset mnist --student none --out run --data-dir"
COMMANDS = {
    "label, 100,000 public rows": (
        "rknn_jax.cli.main label --public public.npz --private private.npz --epsilon 1 --classes 10"
    ),
    "label, dry run": (
        "rknn_jax.cli.main label --public public.npz --private private.npz --epsilon 1 --classes 10"
        " --dry-run"
    ),
    "simulate, messages of 1e7 clients": "rknn_jax.cli.main simulate --clients 1e7",
    "audit": "rknn_jax.cli.main audit --mechanism subset_selection --epsilon 1 --runs 1e7",
    "serve, nobody comes": (
        "rknn_jax.cli.main serve --public few.npz --epsilon 1 --classes 10 --clients 2 --out round"
        " --port 9179"
    ),
    "compare": "train.compare --dataset digits --out compared",
    "sweep": "train.sweep --dataset digits --student none --vary seed=0,1,2 --out swept",
    "distill, spectral and graph": f"{DISTILL} MNIST --representation spectral",
    "distill, DTI": f"{DISTILL} MNIST --representation dti --representation.epochs 2",
    "distill, SimCLR": f"{DISTILL} MNIST --representation simclr --representation.epochs 2",
    "distill, SCAN": (
        f"{DISTILL} MNIST --representation scan --representation.epochs 1"
        " --representation.self-label-epochs 1 --representation.pretraining.epochs 1"
    ),
}


def write(folder: Path) -> None:
    """Write rows in clusters: many public ones, few public ones, private ones."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 10, 120_000)
    rows = rng.normal(size=(10, 64))[classes] + rng.normal(size=(len(classes), 64))
    rows = rows.astype(np.float32)
    np.savez(folder / "public.npz", embeddings=rows[:100_000])
    np.savez(folder / "few.npz", embeddings=rows[:1000])
    np.savez(folder / "private.npz", embeddings=rows[100_000:], labels=classes[100_000:])


def measure(words: list[str], folder: Path) -> dict[str, Any]:
    """Run a command and return its longest silence, in seconds, with the line before it."""
    reader, writer = os.pipe()
    started = last = time.monotonic()
    told, before, longest, stopped = b"", "", 0.0, False
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        stdout=writer,
        stderr=writer,
        env=os.environ | {"RKNN_STATE_DIR": str(folder / "state")},
    )
    os.close(writer)
    while True:
        ready, _, _ = select.select([reader], [], [], 0.1)
        now = time.monotonic()
        if ready or now - last > longest:
            if now - last > longest and not stopped:
                longest, before = now - last, _last_line(told)
        if ready:
            data = os.read(reader, 2**16)
            if not data:
                break
            told, last = (told + data)[-4096:], now
        if now - started > LIMIT and not stopped:
            process.send_signal(signal.SIGINT)
            stopped = True
        if now - started > LIMIT + PATIENCE:
            process.kill()
    os.close(reader)
    status = process.wait()
    assert stopped or status == 0, told.decode(errors="replace")
    return {
        "seconds": time.monotonic() - started,
        "longest silence": longest,
        "after": before,
        "stopped": stopped,
    }


def _last_line(told: bytes) -> str:
    lines = told.decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "the start")


def main() -> None:
    """Measure each command, or those that are named, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="part of the names of commands; nothing is saved then")
    given = parser.parse_args()
    digits = str(mnist_folder().resolve())
    results = []
    for name, text in COMMANDS.items():
        if given.only is not None and given.only not in name:
            continue
        words = [digits if word == "MNIST" else word for word in text.split()]
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            found = measure(words, Path(folder))
        results.append({"command": name} | found)
        print(results[-1], flush=True)
    if given.only is None:
        save("silence", results)


if __name__ == "__main__":
    main()

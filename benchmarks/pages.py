"""What a reader of the tutorial and of the federation's page gets: shares of right labels.

    python -m benchmarks.pages

Runs the blocks of the pages several times. Noise comes from the operating system's entropy.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from benchmarks._measure import save, summary

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"python": ("python", "-c"), "bash": ("bash", "-ec")}
RUNS = 12


def blocks(page: str, *words: str) -> list[tuple[str, str]]:
    """Return the blocks of a page that hold these words, one for each, with their languages."""
    found = BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())
    return [next(one for one in found if word in one[1]) for word in words]


def run(folder: Path, parts: list[tuple[str, str]]) -> None:
    """Run blocks in a folder, each as a program, with an index of ledgers of their own."""
    own = {"RKNN_STATE_DIR": str(folder / "state"), "PYTHONPATH": str(ROOT)}
    own["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    for language, text in parts:
        ends = "\nwait" if language == "bash" else ""
        command = [*PROGRAMS[language], text + ends]
        subprocess.run(command, cwd=folder, env=os.environ | own, check=True, capture_output=True)


def tutorial(folder: Path) -> dict[str, float]:
    """Return what a release of the tutorial and its classifier have right."""
    run(folder, blocks("tutorial", 'np.savez("public.npz"', "--budget 1 --out labels"))
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    public, _, test = np.split(order, [500, 1500])
    released = np.load(folder / "labels/labels.npz")
    kept = SVC().fit(images[public], released["label"], sample_weight=released["confidence"])
    full = SVC().fit(images[public], digits[public])
    return {
        "labels": float(np.mean(released["label"] == digits[public])),
        "classifier": kept.score(images[test], digits[test]),
        "classifier of true labels": full.score(images[test], digits[test]),
    }


def federation(folder: Path) -> dict[str, float]:
    """Return what the labels of the first round of the federation's page have right."""
    run(folder, blocks("federation", 'np.savez("public.npz"', "--out round &"))
    _, digits = load_digits(return_X_y=True)
    return {"labels": float(np.mean(np.load(folder / "round/labels.npz")["label"] == digits[:500]))}


def measure(page: Callable[[Path], dict[str, float]]) -> dict[str, Any]:
    """Return the shares over all runs of a page."""
    found = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(page(Path(folder)))
        print(page.__name__, found[-1], flush=True)
    return {name: summary([one[name] for one in found]) for name in found[0]}


if __name__ == "__main__":
    save("pages", {page.__name__: measure(page) for page in (tutorial, federation)})

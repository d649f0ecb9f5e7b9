"""Records a second of each encoder, beside the code that encoded blocks of records.

A block's program gave a record other bits in another place, which is why it went. The earlier code
is a checkout of `BEFORE` from the history of this repository. Both encode the same images, by turns
in fresh processes. Above 1, today's is faster.

    python -m benchmarks.encoders      # encoders.json
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import _encoders_worker
from benchmarks._measure import save

BEFORE = "daa34a1"
ROOT = Path(__file__).parents[1]
NATIVE = "rknn_jax/kernels/native"
PAIRS = 3


def rate(name: str, folder: Path) -> float:
    """Return the records a second of one encoder in a checkout."""
    program = [sys.executable, _encoders_worker.__file__, name]
    done = subprocess.run(program, cwd=folder, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure(name: str, before: Path) -> dict[str, float | str]:
    """Return the median rates of both checkouts, and the median ratio of the pairs."""
    pairs = [(rate(name, before), rate(name, ROOT)) for _ in range(PAIRS)]
    row = {
        "before": statistics.median(old for old, _ in pairs),
        "after": statistics.median(new for _, new in pairs),
        "ratio": statistics.median(new / old for old, new in pairs),
    }
    print(name, row, flush=True)
    return {"encoder": name} | row


def main() -> None:
    """Measure all encoders."""
    load = os.getloadavg()
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    with TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run([*git, "worktree", "add", "--detach", str(before), BEFORE], check=True)
        try:
            for library in (ROOT / NATIVE).glob("*.so"):
                shutil.copy(library, before / NATIVE)
            rows = [measure(name, before) for name in _encoders_worker.RECORDS]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(before)], check=True)
    about = {
        "before": BEFORE,
        "commit": commit.stdout.strip(),
        "load": load,
        "shape": _encoders_worker.SHAPE,
        "public": _encoders_worker.PUBLIC,
        "pairs": PAIRS,
        "seed": _encoders_worker.SEED,
    }
    save("encoders", rows, **about)


if __name__ == "__main__":
    main()

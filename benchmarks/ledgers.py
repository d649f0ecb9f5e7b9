"""Time and memory of a ledger over the number of its spends.

    python -m benchmarks.ledgers

A ledger of an earlier version has no summary, so it is read line by line. Its first charge writes
one. Then another process opens the ledger, which verifies every byte, and charges it.
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks._measure import peak_memory, save
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.filters import Amount
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.privacy.ledger_lines import body_of, sealed

SIZES = (1_000, 10_000, 100_000, 1_000_000)
DATA = "sha256:of-some-records"
COST = Guarantee(0.001, 0, "replace-one", "central", (Pure(0.001),), sampler="release")


def write(path: Path, num_spends: int) -> None:
    """Write a ledger without summaries, as earlier versions did."""
    ledger = Ledger.create(path, DATA, 10_000)
    head = ledger.head
    with path.open("ab") as file:
        for number in range(num_spends):
            body = body_of("spend", Amount(Fraction(1, 1000), Fraction()), f"release {number}")
            line = sealed(body | {"guarantee": COST.full_dict()}, head)
            head = line[-66:-2].decode()
            file.write(line + b"\n")


def timed(path: Path) -> dict[str, float]:
    """Return the seconds of an open, of a charge and of the note of its draw, and the memory."""
    start = time.perf_counter()
    ledger = Ledger.open(path, DATA)
    opened = time.perf_counter()
    purpose = f"release {secrets.token_hex(8)}"
    ledger.charge(COST, purpose)
    charged = time.perf_counter()
    ledger.mark_drawn(purpose, "ab" * 32)
    marked = time.perf_counter()
    return {
        "open": opened - start,
        "charge": charged - opened,
        "mark_drawn": marked - charged,
        "megabytes": peak_memory() / 1e6,
    }


def rows() -> list[dict[str, Any]]:
    """Measure every size, and each ledger twice: without a summary and with its first one."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            path = Path(folder) / f"{size}.ledger"
            write(path, size)
            words = [sys.executable, "-m", "benchmarks.ledgers", "--one", str(path)]
            first, later = (
                json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
                for _ in range(2)
            )
            row = {"spends": size, "file_megabytes": path.stat().st_size / 1e6}
            found.append(row | {"without_summary": first, "with_summary": later})
            print(found[-1], file=sys.stderr)
            path.unlink()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", type=Path, help="measure this ledger and print the result")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(timed(asked.one)))
    else:
        save("ledgers", {"rows": rows()})

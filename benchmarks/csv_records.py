"""Speed of the CSV reader beside the one before it, which took a line for a record.

The earlier reader is taken from the history of this repository. Both read the same files in one
process, by turns, and the median of the ratios is what counts: above 1, today's is faster.

    python -m benchmarks.csv_records      # csv_records.json
"""

import csv
import io
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks._measure import git, save
from rknn_jax import formats
from rknn_jax.formats import Columns

BEFORE = "daa34a1"
"""Commit of the earlier reader."""

ROWS = 50_000
WIDTH = 16
REPEATS = 7
SEED = 0


class Both(Columns):
    """Columns of both readers; the earlier one asks for classes, which no file of today names."""

    classes = None


def main() -> None:
    """Time both readers on files without quotes and with."""
    before = earlier_reader()
    today = formats.of(".csv")
    assert today is not None
    results = {}
    load = os.getloadavg()
    with TemporaryDirectory() as folder:
        for name, (content, columns) in files().items():
            path = Path(folder) / f"{name}.csv"
            path.write_bytes(content)
            results[name] = {
                "bytes": len(content),
                "num_rows": compare(partial(rows, path, columns), before, today),
                "blocks": compare(partial(blocks, path, columns), before, today),
                "both": compare(partial(both, path, columns), before, today),
            }
            print(name, results[name])
    about = {
        "before": BEFORE,
        "commit": git("rev-parse", "HEAD"),
        "load": load,
        "rows": ROWS,
        "repeats": REPEATS,
        "seed": SEED,
    }
    save("csv_records", results, **about)


def earlier_reader() -> ModuleType:
    """Return the reader of `BEFORE`."""
    module = ModuleType("rknn_jax.formats.earlier_csv")
    exec(git("show", f"{BEFORE}:rknn_jax/formats/csv.py"), module.__dict__)
    return module


def files() -> dict[str, tuple[bytes, Columns]]:
    """Return files of numbers and of text, and what is read of them."""
    random = np.random.default_rng(SEED)
    numbers = random.normal(size=(ROWS, WIDTH)).round(6)
    labels = random.integers(0, 10, ROWS)
    texts = [" ".join(["word"] * n) for n in random.integers(5, 40, ROWS)]
    raw = Both(("text",), raw=True)
    header = [*(f"e{i}" for i in range(WIDTH)), "labels"]
    plain = list(zip(texts, labels, strict=True))
    commas = [(text.replace(" word", ", word", 1), label) for text, label in plain]
    table = [[*row, label] for row, label in zip(numbers, labels, strict=True)]
    return {
        "numbers": (written(header, table), Both()),
        "text": (written(["text", "labels"], plain), raw),
        "text with commas": (written(["text", "labels"], commas), raw),
    }


def written(header: list[str], table: list[Any]) -> bytes:
    """Return a table as CSV."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([header, *table])
    return buffer.getvalue().encode()


def blocks(path: Path, columns: Columns, reader: ModuleType) -> None:
    """Read all blocks."""
    with path.open("rb") as file:
        for _ in reader.blocks(file, columns, 8192):
            pass


def rows(path: Path, columns: Columns, reader: ModuleType) -> None:
    """Count the rows."""
    with path.open("rb") as file:
        reader.num_rows(file, columns)


def both(path: Path, columns: Columns, reader: ModuleType) -> None:
    """Count the rows and read all blocks, as a release does."""
    rows(path, columns, reader)
    blocks(path, columns, reader)


def compare(
    run: Callable[[ModuleType], None], before: ModuleType, today: ModuleType
) -> dict[str, Any]:
    """Return the median CPU seconds of both readers, by turns, and the median of the ratios."""
    times = []
    for turn in range(REPEATS + 1):
        spent = {}
        for reader in (before, today) if turn % 2 else (today, before):
            start = time.process_time()
            run(reader)
            spent[reader is today] = time.process_time() - start
        times.append((spent[False], spent[True]))
    times = times[1:]  # the first turn loads modules and fills the cache
    return {
        "seconds_before": statistics.median(before for before, _ in times),
        "seconds": statistics.median(now for _, now in times),
        "ratio": statistics.median(before / now for before, now in times),
        "ratios": [before / now for before, now in times],
    }


if __name__ == "__main__":
    main()

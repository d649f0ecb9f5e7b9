"""CPU time and memory of the decoder's public side, beside the code before kernels were rewritten.

Rows are of ten groups, each along eight directions of its own. One thread works. Mixtures are new,
so that labels are no longer the same. Clustering and graph are the same in both; each measures the
rest in a process of its own, in turns. Memory is what a step takes beyond its inputs.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks._measure import save
from rknn_jax.answers.covariance import MOST_CELLS

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).with_name("_public_side_worker.py")
BEFORE = "dfb55d6"
ROWS = (3_000, 10_000, 30_000, 100_000)
QUERIES = (200, 1_000)
FEATURES = 64


def rows(count: int) -> np.ndarray:
    """Return public rows, float32 `[m, f]`."""
    rng = np.random.default_rng(0)
    centers = np.sqrt(72 / FEATURES) * rng.normal(size=(10, FEATURES))
    directions = rng.normal(size=(10, 8, FEATURES)) / np.sqrt(8)
    group = rng.integers(0, 10, count)
    along = rng.normal(size=(count, 1, 8)) @ directions[group]
    noise = 0.2 * rng.normal(size=(count, FEATURES))
    return np.asarray(centers[group] + along[:, 0] + noise, np.float32)


def inputs(features: np.ndarray, num_queries: int, file: Path) -> dict[str, float]:
    """Write rows, queries and graph of a problem, and return the CPU seconds of the last two."""
    from rknn_jax.neighbor_graph import self_graph
    from rknn_jax.queries import kmeans

    start = time.process_time()
    queries = kmeans.select(jax.random.key(0), features, num_queries)
    clustered = time.process_time()
    graph = self_graph(features)
    joined = time.process_time()
    np.savez(
        file,
        features=features,
        centers=np.asarray(queries.features),
        index=queries.index,
        cluster=queries.cluster,
        size=queries.size,
        **{name: getattr(graph, name) for name in ("data", "indices", "indptr")},
    )
    return {"clustering": clustered - start, "graph": joined - clustered}


def measured(folder: Path, file: Path) -> dict[str, Any]:
    """Return what a tree of the code takes for a problem."""
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    names = os.environ | one | {"PYTHONPATH": str(folder)}
    command = [sys.executable, str(WORKER), str(file)]
    done = subprocess.run(command, cwd=folder, env=names, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cases(before: Path, place: Path) -> list[dict[str, Any]]:
    """Return the measurements of all sizes, the smallest first."""
    found = []
    for count in ROWS:
        features = rows(count)
        for num_queries in QUERIES:
            if count * num_queries > MOST_CELLS:
                continue  # there are no walks
            file = place / "problem.npz"
            stages = inputs(features, num_queries, file)
            old = measured(before, file)
            new = measured(ROOT, file)
            alike = [
                float(np.mean(np.equal(one, other)))
                for one, other in zip(old.pop("labels"), new.pop("labels"), strict=True)
            ]
            case = {"rows": count, "queries": num_queries, "same": stages} | {
                "before": old,
                "after": new,
                "equal_labels": alike,
            }
            print(case, flush=True)
            found.append(case)
    return found


def main() -> None:
    """Measure and write `benchmarks/results/public_side.json`."""
    with tempfile.TemporaryDirectory() as name:
        before = Path(name) / "before"
        archive = subprocess.run(
            ["git", "archive", BEFORE, "rknn_jax"], cwd=ROOT, check=True, capture_output=True
        )
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(before, filter="data")
        save("public_side", cases(before, Path(name)), before=BEFORE, features=FEATURES)


if __name__ == "__main__":
    main()

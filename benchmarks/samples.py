"""Neighbor search of Private-kNN against FAISS: the k nearest of a fresh Poisson sample.

There is one sample for each of two steps. FAISS has no samples per query, so it searches for enough
neighbors that such a sample holds k of them. That number is k/g plus eight standard deviations.
With g = 1 both search for the k nearest of all. Both are measured in turn, and the least time
counts.
"""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks._measure import save
from benchmarks._neighbors_worker import data
from benchmarks.neighbors import HOW, WORKER, ask, blas
from rknn_jax._internal.cores import num_cores
from rknn_jax.kernels import native
from rknn_jax.labelers._sampled_neighbors import nearest_in_samples

SIZE = (6_000, 600_000, 324)
KINDS = ((800, 0.03, 2), (300, 0.15, 2), (300, 1.0, 1))  # k, g, and samples of each query
REPEATS = 2


def speed(
    peers: subprocess.Popen[str], num_neighbors: int, sampling_prob: float, num_samples: int
) -> dict[str, object]:
    """Measure both at one setting."""
    queries, records = jax.device_put(data(*SIZE))
    needed = (
        math.ceil((num_neighbors + 8 * math.sqrt(num_neighbors)) / sampling_prob)
        if sampling_prob < 1
        else num_neighbors
    )
    took = {"ours": np.inf, "faiss-cpu": np.inf}
    for repeat in range(REPEATS):
        start = time.perf_counter()
        nearest_in_samples(
            jax.random.key(repeat), queries, records, num_neighbors, sampling_prob, num_samples
        )
        took["ours"] = min(took["ours"], time.perf_counter() - start)
        found = ask(peers, {"peer": "faiss-cpu", "size": SIZE, "num_neighbors": needed, "rows": 1})
        took["faiss-cpu"] = min(took["faiss-cpu"], found["seconds"])
    about = {
        "num_neighbors": num_neighbors,
        "sampling_prob": sampling_prob,
        "num_samples": num_samples,
        "needed": needed,
    }
    return about | {"size": SIZE, "seconds": took, "ratio": took["faiss-cpu"] / took["ours"]}


if __name__ == "__main__":
    if "RKNN_PEERS_PYTHON" not in os.environ:
        print(
            "skipped benchmarks.samples: RKNN_PEERS_PYTHON does not name an interpreter that "
            f"has FAISS; {HOW}"
        )
        sys.exit()
    with subprocess.Popen(
        [os.environ["RKNN_PEERS_PYTHON"], Path(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | blas(num_cores()),
    ) as worker:
        assert worker.stdout
        versions = worker.stdout.readline().strip()
        rows = []
        for kind in KINDS:
            rows.append(speed(worker, *kind))
            print(rows[-1], file=sys.stderr)
        assert worker.stdin
        worker.stdin.close()
    save(
        "samples",
        rows,
        peers=versions,
        peers_environment=blas(num_cores()),
        kernel=native.processor(),
        seed=0,
    )

"""Neighbors of one to ten among few or many queries, beside FAISS: a grid of shapes.

Both take NumPy arrays and return ids. The same is measured in a compiled function (`jit`) of arrays
of JAX. The calls are measured in turns in two processes on the same cores. On one core the least
CPU time counts, on two the least wall time. FAISS is `IndexFlatL2`, with the fastest kernels of its
OpenBLAS (`benchmarks.neighbors.blas`). The interpreter that has FAISS is named by
RKNN_PEERS_PYTHON.

The first call is the first of its shape. From NumPy, it compiles nothing if the installation
compiled the native kernel.

`--processor avx2` stands for a processor without AVX-512: neither side uses it.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import save
from benchmarks._neighbors_worker import data
from benchmarks.neighbors import HOW, WORKER, ask, blas
from rknn_jax import neighbors
from rknn_jax.kernels import native

QUERIES = (10, 40, 100, 200, 500, 1_000, 4_000)
FEATURES = (10, 64, 128, 324, 768, 1_024)
NEIGHBORS = (1, 4, 10)
REPEATS = 3
GRIDS = (  # cores, records, queries, features, neighbors
    (1, 100_000, QUERIES, FEATURES, NEIGHBORS),
    (1, 1_000_000, (10, 100, 1_000), (64, 324), (1, 10)),
    (2, 100_000, (40, 200, 1_000), (64, 324, 768), (1, 10)),
)


def measure(
    processor: str | None,
    num_cores: int,
    num_records: int,
    num_queries: tuple[int, ...],
    widths: tuple[int, ...],
    num_neighbors: tuple[int, ...],
) -> list[dict[str, Any]]:
    """Measure a grid in this process, which keeps to its first cores and a kernel from now on."""
    rows = []
    if processor:
        library = ctypes.CDLL(str(Path(native.__file__).with_name(f"{processor}.so")))
        native.load = lambda: library
    with peer(num_cores, processor) as worker:
        for size in itertools.product([num_records], num_queries, widths):
            arrays = data(*size)
            for count in num_neighbors:
                rows.append({"cores": num_cores, **cell(worker, size, arrays, count)})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


@contextlib.contextmanager
def peer(num_cores: int, processor: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start the peers' interpreter on the first cores, to which this process keeps as well."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    jax.block_until_ready(jax.numpy.zeros(1) + 1)
    with subprocess.Popen(
        [os.environ["RKNN_PEERS_PYTHON"], WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | blas(num_cores, processor),
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        worker.stdout.readline()
        yield worker
        worker.stdin.close()


def cell(
    worker: subprocess.Popen[str],
    size: tuple[int, int, int],
    arrays: tuple[np.ndarray, np.ndarray],
    num_neighbors: int,
    file: str | None = None,
) -> dict[str, Any]:
    """Measure one shape, of Gaussian arrays or of a file's."""
    clock = "cpu" if len(os.sched_getaffinity(0)) == 1 else "seconds"
    took: dict[str, list[float]] = {"ours": [], "jit": [], "faiss": []}
    jax.clear_caches()
    compiled = jax.jit(neighbors.nearest, static_argnums=2)
    # Copied before the clock starts, as JAX copies beside the caller.
    copies = jax.block_until_ready(tuple(map(jnp.asarray, arrays)))
    runs = {"ours": (neighbors.nearest, arrays), "jit": (compiled, copies)}
    first = {name: timed(*run, num_neighbors)[clock] for name, run in runs.items()}
    question = {
        "peer": "faiss-cpu",
        "size": size,
        "num_neighbors": num_neighbors,
        "rows": 1,
        "file": file,
    }
    ask(worker, question)
    for _ in range(REPEATS):
        for name, run in runs.items():
            took[name].append(timed(*run, num_neighbors)[clock])
        took["faiss"].append(ask(worker, question)[clock])
    least = {name: min(values) for name, values in took.items()}
    return {
        "size": size,
        "num_neighbors": num_neighbors,
        "seconds": least,
        "ratio": least["faiss"] / least["ours"],
        "ratio_of_jit": least["faiss"] / least["jit"],
        "first_call": first["ours"],
        "first_call_of_jit": first["jit"],
    }


def timed(run: Any, arrays: tuple[Any, Any], num_neighbors: int) -> dict[str, float]:
    """Return the wall and CPU time of one call."""
    start = time.perf_counter()
    cpu = time.process_time()
    jax.block_until_ready(run(*arrays, num_neighbors))
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}


if __name__ == "__main__":
    if "RKNN_PEERS_PYTHON" not in os.environ:
        sys.exit(f"Expected RKNN_PEERS_PYTHON to name an interpreter that has FAISS; {HOW}")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--processor", choices=native.PROCESSORS, help="kind of processor to stand for"
    )
    processor = parser.parse_args().processor
    found = []
    for grid in GRIDS[:1] if processor else GRIDS:
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawned) as pool:
            found += pool.submit(measure, processor, *grid).result()
    save(
        f"assignment_{processor}" if processor else "assignment",
        found,
        peer=blas(1, processor),
        kernel=processor or native.processor(),
        load=os.getloadavg()[0],
        seed=0,
    )

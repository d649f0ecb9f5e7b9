"""The k nearest queries of many records: time, growth, and memory.

Time is compared with FAISS, torch, and scikit-learn on the same cores; memory counts beyond the
inputs. Peers run in their own interpreter, named by RKNN_PEERS_PYTHON. All libraries are measured
in turn, several times, so that other load on the machine slows all of them. The least time counts.
Each library's ids of the first thousand records are compared with float64's. An id of another query
counts as the same if the distances agree to 1e-5.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import peak_memory, save
from benchmarks._neighbors_worker import data
from rknn_jax import neighbors
from rknn_jax.kernels import native, shapes

WORKER = Path(__file__).parent / "_neighbors_worker.py"
PEERS = ("faiss-cpu", "torch", "scikit-learn")
REPEATS = 5
COMPILING: list[float] = []  # seconds of tracing, lowering, and compiling
GROWTH = (100_000, 1_000_000, 10_000_000)  # records
GROWTH_REPEATS = 9
GROWTH_QUERIES = 500
GROWTH_WIDTH = 64
GROWTH_NEIGHBORS = 4
GROWTH_CLASSES = 10
HOW = (
    "make one with `python3 -m venv PEERS && PEERS/bin/pip install faiss-cpu torch scikit-learn` "
    "and name PEERS/bin/python."
)


@jax.monitoring.register_event_duration_secs_listener
def listen(event: str, duration: float, **about: Any) -> None:
    """Record the compile times that JAX reports."""
    if event.startswith("/jax/core/compile/"):
        COMPILING.append(duration)


def growth(num_records: int) -> dict[str, float]:
    """Sum the votes of the records.

    Returns:
      Seconds, and bytes of peak resident memory beyond the inputs.
    """
    labels = jnp.arange(num_records, dtype=jnp.int32) % GROWTH_CLASSES
    points, references = jax.block_until_ready(
        jax.device_put(data(num_records, GROWTH_QUERIES, GROWTH_WIDTH))
    )
    before = peak_memory()
    took = []
    for _ in range(1 + GROWTH_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(
            neighbors.nearest_votes(points, references, labels, GROWTH_NEIGHBORS, GROWTH_CLASSES)
        )
        took.append(time.perf_counter() - start)
    return {"records": num_records, "seconds": min(took[1:]), "over": peak_memory() - before}


def speed(peers: subprocess.Popen[str], name: str, num_neighbors: int) -> dict[str, Any]:
    """Measure all libraries at one size."""
    size = shapes.NEAREST[name]
    points, references = data(*size)
    sample = points[:1000].astype(np.float64)
    distances = (
        (sample**2).sum(1)[:, None]
        + (references.astype(np.float64) ** 2).sum(1)[None]
        - 2 * sample @ references.T.astype(np.float64)
    )
    device = jax.device_put((points, references))  # arrays are on the device, as after an encoder
    jax.clear_caches()
    COMPILING.clear()
    index = neighbors.nearest(*device, num_neighbors)
    compiling = sum(COMPILING)
    took = {"ours": np.inf}
    same = {"ours": agreement(distances, np.asarray(index[:1000]))}
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(neighbors.nearest(*device, num_neighbors))
        took["ours"] = min(took["ours"], time.perf_counter() - start)
        for peer in PEERS:
            found = ask(peers, {"peer": peer, "size": size, "num_neighbors": num_neighbors})
            took[peer] = min(took.get(peer, np.inf), found["seconds"])
            same[peer] = agreement(distances, np.array(found["some"]))
    ratio = {peer: took[peer] / took["ours"] for peer in PEERS}
    return {
        "name": name,
        "size": size,
        "num_neighbors": num_neighbors,
        "seconds": took,
        "ratio": ratio,
        "same": same,
        "compiling": compiling,
    }


def agreement(distances: np.ndarray, index: np.ndarray) -> float:
    """Return the share of rows whose neighbors, in order, are as close as those of float64."""
    near = np.take_along_axis(distances, index, axis=1)
    return float(
        np.isclose(near, np.sort(distances, axis=1)[:, : index.shape[1]], rtol=1e-5, atol=0)
        .all(axis=1)
        .mean()
    )


def blas(num_cores: int, processor: str | None = None) -> dict[str, str]:
    """Return the environment in which FAISS and NumPy are fastest on these cores.

    OpenBLAS chooses kernels by the processor's name, and unknown ones get those of an old
    processor. So it is told to use those for AVX-512 where there is AVX-512. To stand for a
    processor without it (`avx2`), FAISS is kept from it, too.
    """
    threads = {"OMP_NUM_THREADS": str(num_cores), "OPENBLAS_NUM_THREADS": str(num_cores)}
    if processor == "avx2":
        return threads | {"OPENBLAS_CORETYPE": "Haswell", "FAISS_SIMD_LEVEL": "AVX2"}
    wide = "avx512f" in Path("/proc/cpuinfo").read_text().split()
    return threads | ({"OPENBLAS_CORETYPE": "SkylakeX"} if wide else {})


def ask(peers: subprocess.Popen[str], question: dict[str, Any]) -> dict[str, Any]:
    """Send a line and return the answer."""
    assert peers.stdin
    assert peers.stdout
    print(json.dumps(question), file=peers.stdin, flush=True)
    return json.loads(peers.stdout.readline())


if __name__ == "__main__":
    if "RKNN_PEERS_PYTHON" not in os.environ:
        print(
            "skipped benchmarks.neighbors: RKNN_PEERS_PYTHON does not name an interpreter that "
            f"has FAISS and torch; {HOW}"
        )
        sys.exit()
    linear = [growth(num_records) for num_records in GROWTH]
    with subprocess.Popen(
        [os.environ["RKNN_PEERS_PYTHON"], WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | blas(neighbors.num_cores()),
    ) as worker:
        assert worker.stdout
        versions = json.loads(worker.stdout.readline())
        rows = []
        for name in shapes.NEAREST:
            for num_neighbors in shapes.NEIGHBORS[name]:
                rows.append(speed(worker, name, num_neighbors))
                print(rows[-1], file=sys.stderr)
        assert worker.stdin
        worker.stdin.close()
    save(
        "neighbors",
        {"growth": linear, "speed": rows},
        peers=versions,
        peers_environment=blas(neighbors.num_cores()),
        kernel=native.processor(),
        seed=0,
    )

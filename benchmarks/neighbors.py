"""The k nearest queries of many records: time against scikit-learn's brute force, and memory over the inputs.

The greatest size runs first, because the resident memory of a process only grows.
"""

import jax
import numpy as np
from sklearn.neighbors import NearestNeighbors

from benchmarks._measure import peak_memory, save, seconds
from rknn_jax.neighbors import nearest

LARGE = (600_000, 500, 324)
SIZES = ((60_000, 40, 784), (100_000, 500, 324), (100_000, 1_000, 128))
NEIGHBORS = (1, 4, 10)


def data(num_records: int, num_queries: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gaussian records and queries, float32."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((num_records, width), np.float32), rng.standard_normal((num_queries, width), np.float32)


def memory() -> dict[str, float]:
    """Return bytes of peak resident memory over what the inputs take."""
    points, references = data(*LARGE)
    before = peak_memory()
    nearest(points, references, 4)[0].block_until_ready()
    return {"size": LARGE, "inputs": points.nbytes + references.nbytes, "before": before, "over": peak_memory() - before}


def speed(size: tuple[int, int, int], num_neighbors: int) -> dict[str, object]:
    """Time both, and count the records for which they name the same neighbours in the same order."""
    points, references = data(*size)
    brute = NearestNeighbors(n_neighbors=num_neighbors, algorithm="brute").fit(references)
    device = jax.device_put((points, references))  # where an encoder leaves them
    ours = seconds(lambda: nearest(*device, num_neighbors))
    peer = seconds(lambda: brute.kneighbors(points), repeats=3)
    same = np.all(np.asarray(nearest(points, references, num_neighbors)[0]) == brute.kneighbors(points)[1], axis=1).mean()
    return {"size": size, "num_neighbors": num_neighbors, "seconds": ours, "peer_seconds": peer, "ratio": peer / ours, "same": float(same)}


if __name__ == "__main__":
    over = memory()
    save("neighbors", {"memory": over, "speed": [speed(size, k) for size in SIZES for k in NEIGHBORS]}, peer="sklearn brute", seed=0)

"""k-means of the queries beside scikit-learn's: CPU time, inertia, and how many rows agree.

`rknn_jax.lloyd` draws what scikit-learn draws, so that both have the same clusters up to rounding.
Both have five starts and one thread, and take turns.
"""

import json
import sys
import time

import jax
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from benchmarks._measure import mnist_folder, save
from rknn_jax import data, lloyd
from rknn_jax.representations import spectral

STARTS = 5
ITERATIONS = 100
REPEATS = 2
SIZES = {  # queries
    "digits, pixels": (10, 50, 200),
    "MNIST, pixels": (40, 200),
    "MNIST, spectral": (10, 100, 500),
}


def features() -> dict[str, np.ndarray]:
    """Return public features by name, float32 `[m, f]`."""
    task = data.load("mnist", 42, mnist_folder())
    encode = spectral.fit(jax.random.key(0), task.public.images, spectral.Config(dimension=10))
    pixels = task.public.images.reshape(len(task.public.images), -1).astype(np.float32) / 255
    return {
        "digits, pixels": load_digits().data.astype(np.float32),
        "MNIST, pixels": pixels[:3000],
        "MNIST, spectral": np.asarray(encode(task.public.images)),
    }


def measure(name: str, points: np.ndarray, num_clusters: int) -> dict[str, object]:
    """Measure one size."""
    shortest = {"ours": np.inf, "scikit-learn": np.inf}
    for _ in range(REPEATS):
        start = time.process_time()
        ours = lloyd.fit(points, num_clusters, 0, num_starts=STARTS, max_iterations=ITERATIONS)
        middle = time.process_time()
        theirs = KMeans(num_clusters, n_init=STARTS, max_iter=ITERATIONS, random_state=0)
        theirs.fit(points)
        took = {"ours": middle - start, "scikit-learn": time.process_time() - middle}
        shortest = {library: min(shortest[library], took[library]) for library in took}
    return {
        "features": name,
        "size": points.shape,
        "queries": num_clusters,
        "cpu_seconds": shortest,
        "ratio": shortest["scikit-learn"] / shortest["ours"],
        "inertia": ours.inertia / float(theirs.inertia_),
        "same_cluster": float(np.mean(ours.labels == theirs.labels_)),
    }


if __name__ == "__main__":
    rows = []
    with threadpool_limits(1):
        for name, points in features().items():
            for num_clusters in SIZES[name]:
                rows.append(measure(name, points, num_clusters))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    save("clustering", rows, starts=STARTS, iterations=ITERATIONS, seed=0)

"""k-means++ with Lloyd's iterations: scikit-learn against ott-jax.

`queries/kmeans.py` uses scikit-learn. ott-jax is measured if installed (`pip install ott-jax`).
"""

import importlib.util
import time

import jax
import numpy as np
from sklearn.cluster import KMeans

from benchmarks._measure import mnist_folder, save
from rknn_jax import data
from rknn_jax.representations import spectral

STARTS = 5
ITERATIONS = 100


def features() -> dict[str, np.ndarray]:
    """Return public MNIST as pixels and as the spectral representation."""
    task = data.load("mnist", 42, mnist_folder())
    encode = spectral.fit(jax.random.key(0), task.public.images, spectral.Config(dimension=10))
    return {
        "pixels": task.public.images.reshape(len(task.public.images), -1).astype(np.float32) / 255,
        "spectral": np.asarray(encode(task.public.images)),
    }


def scikit_learn(points: np.ndarray, num_clusters: int, seed: int) -> float:
    """Return the inertia."""
    return float(
        KMeans(num_clusters, n_init=STARTS, max_iter=ITERATIONS, random_state=seed)
        .fit(points)
        .inertia_
    )


def ott(points: np.ndarray, num_clusters: int, seed: int) -> float:
    """Return the inertia."""
    from ott.tools.k_means import k_means

    return float(
        k_means(
            jax.numpy.asarray(points),
            num_clusters,
            n_init=STARTS,
            max_iterations=ITERATIONS,
            rng=jax.random.key(seed),
        ).error
    )


def measure(name: str, points: np.ndarray, num_clusters: int) -> list[dict[str, object]]:
    """Time the first call, with compilation, and later calls with other seeds."""
    rows = []
    for fit in (scikit_learn, ott) if importlib.util.find_spec("ott") else (scikit_learn,):
        times = []
        inertia = []
        for seed in range(3):
            start = time.perf_counter()
            inertia.append(fit(points, num_clusters, seed))
            times.append(time.perf_counter() - start)
        best = float(np.mean(inertia))
        rows.append(
            {
                "library": fit.__name__,
                "features": name,
                "queries": num_clusters,
                "seconds": times,
                "inertia": best,
            }
        )
    return rows


if __name__ == "__main__":
    rows = [
        row
        for name, points in features().items()
        for s in (10, 100, 500)
        for row in measure(name, points, s)
    ]
    save("clustering", rows, starts=STARTS, iterations=ITERATIONS, seeds=[0, 1, 2])

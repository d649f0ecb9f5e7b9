"""Speed check for CI: hot functions against peers that every checkout has, at small sizes.

Results are ratios of CPU time in one run, never seconds. Both sides are timed in turns, and their
shortest times are compared, so that a neighbor on the same processor slows neither alone. The
ratios differ among processors. A floor lies below all that were seen. Only a real loss falls below
it.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from skimage.feature import hog as skimage_hog
from sklearn.cluster import KMeans
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from benchmarks._measure import least
from benchmarks._neighbors_worker import data
from benchmarks.assignment_data import clusters, copies, dominant
from rknn_jax import lloyd, neighbors
from rknn_jax.kernels import native
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.hadamard_response import HadamardResponse
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.representations.hog import hog

TURNS = 9


def times_as_fast(ours: Callable[[], Any], peer: Callable[[], Any]) -> float:
    """Return the ratio of the least CPU times, peer to ours."""
    took = least({"ours": ours, "peer": peer}, TURNS)
    return took["peer"]["cpu_seconds"] / took["ours"]["cpu_seconds"]


def assignment(size: tuple[int, int, int], num_neighbors: int) -> float:
    """Return the speed ratio to scikit-learn's brute force, both from NumPy arrays."""
    return beside_brute_force(*data(*size), num_neighbors)


def beside_brute_force(points: np.ndarray, queries: np.ndarray, num_neighbors: int) -> float:
    """Return the speed ratio to scikit-learn's brute force."""
    brute = NearestNeighbors(n_neighbors=num_neighbors, algorithm="brute").fit(queries)
    return times_as_fast(
        lambda: neighbors.nearest(points, queries, num_neighbors),
        lambda: brute.kneighbors(points, return_distance=False),
    )


def skewed(change: Callable[[np.ndarray, np.ndarray], Any], num_neighbors: int) -> float:
    """Return the speed ratio to scikit-learn's brute force on data that are not Gaussian."""
    return beside_brute_force(*change(*data(20_000, 500, 128)), num_neighbors)


def compiled(size: tuple[int, int, int], num_neighbors: int) -> float:
    """Return the ratio of the times of a compiled function and of a call with NumPy arrays."""
    arrays = data(*size)
    given = tuple(map(jnp.asarray, arrays))
    inside = jax.jit(neighbors.nearest, static_argnums=2)
    return times_as_fast(
        lambda: inside(*given, num_neighbors), lambda: neighbors.nearest(*arrays, num_neighbors)
    )


def clustering() -> float:
    """Return the speed ratio of k-means to scikit-learn."""
    rows = data(3_000, 1, 64)[0]
    return times_as_fast(
        lambda: lloyd.fit(rows, 100, 0, num_starts=1, max_iterations=20).centers,
        lambda: KMeans(100, n_init=1, max_iter=20, random_state=0).fit(rows).cluster_centers_,
    )


def decoding(mechanism: LocalRandomizer) -> float:
    """Return the speed ratio to a test of every cell in every message."""
    made = jax.vmap(mechanism.randomize)(
        jax.random.split(jax.random.key(0), 20_000), jnp.zeros((20_000, 1), jnp.int32)
    )
    plain = jax.jit(
        lambda messages: jnp.sum(jax.vmap(mechanism.support)(messages), axis=0, dtype=jnp.int32)
    )
    ours = jax.jit(mechanism.aggregate)
    np.testing.assert_array_equal(ours(made), plain(made))
    return times_as_fast(lambda: ours(made), lambda: plain(made))


def description() -> float:
    """Return the speed ratio of HOG to scikit-image."""
    images = np.random.default_rng(0).integers(0, 256, (500, 32, 32, 3)).astype(np.float64)
    settings = {"pixels_per_cell": (8, 8), "cells_per_block": (2, 2)}
    device = jnp.asarray(images, jnp.float32)
    return times_as_fast(
        lambda: hog(device, **settings),
        lambda: [skimage_hog(image, channel_axis=-1, **settings) for image in images],
    )


# The native kernel has 1.7 and more with AVX2, XLA as little as 0.6.
NEIGHBORS_FLOOR = 1.0 if native.processor() else 0.4

CHECKS: dict[str, tuple[Callable[[], float], float]] = {
    "assignment, 500 x 324, k = 1": (lambda: assignment((20_000, 500, 324), 1), NEIGHBORS_FLOOR),
    "assignment, 500 x 324, k = 4": (lambda: assignment((20_000, 500, 324), 4), NEIGHBORS_FLOOR),
    "assignment, 10 x 128, k = 1": (lambda: assignment((40_000, 10, 128), 1), NEIGHBORS_FLOOR),
    "assignment, 40 x 784, k = 10": (lambda: assignment((20_000, 40, 784), 10), NEIGHBORS_FLOOR),
    "assignment, 100 x 64, k = 4": (lambda: assignment((40_000, 100, 64), 4), NEIGHBORS_FLOOR),
    "assignment, 200 x 768, k = 10": (lambda: assignment((20_000, 200, 768), 10), NEIGHBORS_FLOOR),
    "assignment, clusters": (
        lambda: skewed(functools.partial(clusters, spread=0.1), 1),
        NEIGHBORS_FLOOR,
    ),
    "assignment, a dominant feature": (lambda: skewed(dominant, 4), NEIGHBORS_FLOOR),
    "assignment, copies": (lambda: skewed(copies, 4), 2 * NEIGHBORS_FLOOR),
    "assignment in jit beside NumPy": (lambda: compiled((20_000, 100, 64), 4), 0.5),
    "k-means": (clustering, 0.7),
    "decode": (lambda: decoding(Collision(1.0, 100, 10)), 2.5),
    "Hadamard transform": (lambda: decoding(HadamardResponse(1.0, 100, 10)), 4.0),
    "hog": (description, 5.0),
}

if __name__ == "__main__":
    failed = False
    for name, (measure, floor) in CHECKS.items():
        with threadpool_limits(1):  # threads of BLAS go on spinning, at the cost of who comes next
            ratio = measure()
        failed |= ratio < floor
        print(
            f"{name}: {ratio:.1f} times as fast as its peer, at least {floor} "
            f"expected{' FAILED' if ratio < floor else ''}"
        )
    sys.exit(failed)

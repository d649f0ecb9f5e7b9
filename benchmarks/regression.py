"""Speed check for CI: hot functions against peers that every checkout has, at small sizes.

Results are ratios of CPU time in one run, never seconds. A floor is about half of the ratio on a
machine with two cores and AVX512-BF16. Only a real loss falls below it.
"""

import functools
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from skimage.feature import hog as skimage_hog
from sklearn.neighbors import NearestNeighbors

from benchmarks._measure import seconds
from rknn_jax import neighbors
from rknn_jax.mechanisms import collision
from rknn_jax.representations.hog import hog

cpu_seconds = functools.partial(seconds, repeats=7, clock=time.process_time)


def assignment(num_neighbors: int) -> float:
    """Return the speed ratio to scikit-learn's brute force."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((20_000, 324), np.float32)
    queries = rng.standard_normal((500, 324), np.float32)
    brute = NearestNeighbors(n_neighbors=num_neighbors, algorithm="brute").fit(queries)
    device = jax.device_put((points, queries))
    return cpu_seconds(lambda: brute.kneighbors(points)) / cpu_seconds(
        lambda: neighbors.nearest(*device, num_neighbors)
    )


def decoding() -> float:
    """Return the speed ratio to a test of every cell in every message."""
    mechanism = collision.Collision(1.0, 100, 10)
    made = jax.vmap(mechanism.randomize)(
        jax.random.split(jax.random.key(0), 20_000), jnp.zeros((20_000, 1), jnp.int32)
    )
    plain = jax.jit(
        lambda messages: jnp.sum(jax.vmap(mechanism.support)(messages), axis=0, dtype=jnp.int32)
    )
    ours = jax.jit(mechanism.aggregate)
    np.testing.assert_array_equal(ours(made), plain(made))
    return cpu_seconds(lambda: plain(made)) / cpu_seconds(lambda: ours(made))


def description() -> float:
    """Return the speed ratio of HOG to scikit-image."""
    images = np.random.default_rng(0).integers(0, 256, (500, 32, 32, 3)).astype(np.float64)
    settings = {"pixels_per_cell": (8, 8), "cells_per_block": (2, 2)}
    device = jnp.asarray(images, jnp.float32)
    peer = cpu_seconds(
        lambda: [skimage_hog(image, channel_axis=-1, **settings) for image in images]
    )
    return peer / cpu_seconds(lambda: hog(device, **settings))


CHECKS: dict[str, tuple[Callable[[], float], float]] = {
    "assignment, k = 1": (lambda: assignment(1), 1.5),
    "assignment, k = 4": (lambda: assignment(4), 1.5),
    "decode": (decoding, 2.5),
    "hog": (description, 5.0),
}

if __name__ == "__main__":
    failed = False
    for name, (measure, floor) in CHECKS.items():
        ratio = measure()
        failed |= ratio < floor
        print(
            f"{name}: {ratio:.1f} times as fast as its peer, at least {floor} "
            f"expected{' FAILED' if ratio < floor else ''}"
        )
    sys.exit(failed)

"""Speed of every local mechanism with messages: a client's draw, its message's count, and both.

    python -m benchmarks.randomizers

The peer of a count is its definition: masks of the cells that a few messages support, summed.
Both sides run in turns on one core, and their shortest CPU times are compared. `clients` is clients
in a second of CPU time of draw and count together, as `rknn simulate` runs them.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import save
from benchmarks.regression import times_as_fast
from rknn_jax import mechanisms
from rknn_jax._internal import compilation
from rknn_jax.mechanisms import _distributed
from rknn_jax.mechanisms.local import LocalRandomizer

EPSILON = 1.0
NUM_CLASSES = 10
NUM_QUERIES = (10, 500)
CLIENTS = 16_384
AT_ONCE = 16
"""Messages whose masks the peer holds at once, which is the fastest."""


def shortest(run: Any, turns: int = 3) -> float:
    """Return the shortest CPU time of some calls, after one that compiles."""
    times = []
    for _ in range(1 + turns):
        start = time.process_time()
        jax.block_until_ready(run())
        times.append(time.process_time() - start)
    return min(times[1:])


def measure(name: str, num_queries: int) -> dict[str, Any]:
    """Return clients a second of CPU time, and the ratio of the count to its definition."""
    mechanism = mechanisms.make(
        name, epsilon=EPSILON, num_queries=num_queries, num_classes=NUM_CLASSES
    )
    assert isinstance(mechanism, LocalRandomizer)
    rng = np.random.default_rng(0)
    cells = jnp.asarray(rng.integers(0, mechanism.num_cells, (CLIENTS, 1)), jnp.int32)
    keys = jax.random.split(jax.random.key(0), CLIENTS)
    messages = jax.jit(jax.vmap(mechanism.randomize))(keys, cells)

    def masks(messages: Any) -> jax.Array:
        def add(totals: jax.Array, part: Any) -> tuple[jax.Array, None]:
            return totals + jax.vmap(mechanism.support)(part).sum(axis=0, dtype=jnp.int32), None

        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, AT_ONCE, *leaf.shape[1:]), messages)
        return jax.lax.scan(add, jnp.zeros(mechanism.num_totals, jnp.int32), parts)[0]

    wide = compilation.wide_vectors()
    plain = jax.jit(masks, compiler_options=wide)
    ours = jax.jit(mechanism.aggregate, compiler_options=wide)
    np.testing.assert_array_equal(ours(messages), plain(messages))
    key = jax.random.key(1)
    mesh = _distributed.all_devices()
    return {
        "mechanism": name,
        "cells": mechanism.num_cells,
        "clients": CLIENTS
        / shortest(lambda: _distributed.client_totals(mechanism, key, cells, 0, mesh=mesh)),
        "count": times_as_fast(lambda: ours(messages), lambda: plain(messages)),
    }


if __name__ == "__main__":
    results = []
    for name in mechanisms.names("local"):
        for num_queries in NUM_QUERIES:
            results.append(measure(name, num_queries))
            print(results[-1], flush=True)
    save("randomizers", results, epsilon=EPSILON, load=os.getloadavg()[0])

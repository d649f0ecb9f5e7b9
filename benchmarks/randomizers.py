"""Speed of every local mechanism with messages: a client's draw, its message's count, and both.

    python -m benchmarks.randomizers

The peer of a count is its definition: masks of the cells that a few messages support, summed.
Both sides run in turns on one core, and their shortest CPU times are compared. `clients` is clients
in a second of CPU time of draw and count together, as `rknn simulate` runs them; `xla` is the same
without native kernels.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._measure import least, save
from benchmarks.regression import TURNS, times_as_fast
from rknn_jax import mechanisms
from rknn_jax._internal import compilation
from rknn_jax.kernels import native
from rknn_jax.mechanisms import _distributed
from rknn_jax.mechanisms.local import LocalRandomizer

OTHERS: tuple[dict[str, Any], ...] = (
    {"name": "wheel", "num_neighbors": 4},
    {"name": "concatenation_as_published"},
    {"name": "multi_message", "num_clients": 1_000_000},
)
"""Settings that are measured beside each local mechanism at one vote."""

EPSILON = 1.0
NUM_CLASSES = 10
NUM_QUERIES = (10, 500)
CLIENTS = 16_384
AT_ONCE = 16
"""Messages whose masks the peer holds at once, which is the fastest."""


def clients_a_second(mechanism: Any, cells: jax.Array) -> float:
    """Return the clients whose messages are drawn and counted in a second of CPU time."""
    key = jax.random.key(1)
    mesh = _distributed.all_devices()
    runs = {"clients": lambda: _distributed.client_totals(mechanism, key, cells, 0, mesh=mesh)}
    return CLIENTS / least(runs, TURNS)["clients"]["cpu_seconds"]


def count_ratio(mechanism: LocalRandomizer, cells: jax.Array) -> float:
    """Return how many times as fast as its definition the count of messages is."""
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
    return times_as_fast(lambda: ours(messages), lambda: plain(messages))


def measure(name: str, num_queries: int, **settings: Any) -> dict[str, Any]:
    """Return clients a second of CPU time, and the ratio of the count to its definition."""
    mechanism = mechanisms.make(
        name, epsilon=EPSILON, num_queries=num_queries, num_classes=NUM_CLASSES, **settings
    )
    rng = np.random.default_rng(0)
    votes = rng.integers(0, mechanism.num_cells, (CLIENTS, mechanism.votes_per_record))
    cells = jnp.asarray(votes, jnp.int32)
    with mock.patch.object(native, "load", return_value=None):
        xla = clients_a_second(mechanism, cells)
    jax.clear_caches()
    # The messages of other mechanisms are no sets of cells.
    is_local = isinstance(mechanism, LocalRandomizer)
    return {
        "mechanism": name,
        "num_neighbors": mechanism.num_neighbors,
        "cells": mechanism.num_cells,
        "clients": clients_a_second(mechanism, cells),
        "xla": xla,
        "count": count_ratio(mechanism, cells) if is_local else None,
    }


if __name__ == "__main__":
    results = []
    for settings in [*({"name": name} for name in mechanisms.names("local")), *OTHERS]:
        for num_queries in NUM_QUERIES:
            results.append(measure(num_queries=num_queries, **settings))
            print(results[-1], flush=True)
    save("randomizers", results, epsilon=EPSILON, load=os.getloadavg()[0])

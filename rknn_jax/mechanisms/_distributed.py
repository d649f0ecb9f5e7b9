"""Clients spread over the devices of one or many hosts.

Client i draws from `fold_in(key, i)` on any device, and totals are integers that add up. One seed
therefore gives one result, bit for bit, on any number of devices. With several hosts, every process
calls `jax.distributed.initialize` and then the same functions in the same order.
"""

import functools
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rknn_jax import bsvs
from rknn_jax._internal import compilation
from rknn_jax.mechanisms import base

CLIENTS = "clients"


def all_devices() -> Mesh:
    """Return the devices of all processes as one axis of clients."""
    return Mesh(np.array(jax.devices()), (CLIENTS,))


def over_clients(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array whose first axis is clients, equally many for each device."""
    return NamedSharding(mesh, PartitionSpec(CLIENTS))


@functools.partial(jax.jit, static_argnames="mesh", compiler_options=compilation.wide_vectors())
def client_totals(
    mechanism: base.Mechanism, key: jax.Array, cells: jax.Array, first_client: Any, *, mesh: Mesh
) -> jax.Array:
    """Randomize and aggregate on all devices at once; equal to `base.client_totals`.

    Args:
      mechanism: Any mechanism.
      key: Key of all clients. Client i draws from `fold_in(key, i)`.
      cells: Votes as cells, int32 `[num_clients, k·r]`, with equally many clients for each device
        of the mesh.
      first_client: Number of the first client.
      mesh: Mesh of one axis, `clients`.

    Returns:
      int32 totals, on every device.
    """
    share = len(cells) // mesh.size

    def on_device(
        mechanism: base.Mechanism, key: jax.Array, cells: jax.Array, first_client: Any
    ) -> jax.Array:
        first = first_client + jax.lax.axis_index(CLIENTS) * share
        totals: jax.Array = jax.lax.psum(base.client_totals(mechanism, key, cells, first), CLIENTS)
        return totals

    everywhere = PartitionSpec()
    spread = PartitionSpec(CLIENTS)
    specs = (everywhere, everywhere, spread, everywhere)
    return jax.shard_map(
        on_device, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False
    )(mechanism, key, cells, first_client)


@functools.partial(jax.jit, static_argnames=("num_cells", "mesh"))
def count_votes(cells: jax.Array, num_cells: int, *, mesh: Mesh) -> jax.Array:
    """Return `bsvs.sum_votes` of cells that are spread over clients, on every device."""
    counts: jax.Array = jax.lax.with_sharding_constraint(
        bsvs.sum_votes(cells, num_cells), NamedSharding(mesh, PartitionSpec())
    )
    return counts


def my_share(parts: list[int]) -> list[int]:
    """Return the numbered parts of the work that this process does."""
    return parts[jax.process_index() :: jax.process_count()]


def sum_over_processes(totals: np.ndarray) -> np.ndarray:
    """Add int64 totals of all processes; int32, the devices' integer type, would overflow."""
    summed: np.ndarray = (
        multihost_utils.process_allgather(totals.view(np.uint32)).view(np.int64).sum(axis=0)
    )
    return summed

"""Millions of one-record clients against the exact answer: what error a local mechanism really
makes, and how fast it is simulated.

Clients vote for k neighbouring queries, for the class that most of the query's clients have or for
any. At the `message` level every client really randomizes, in blocks and constant memory; at the
`count` level the totals are drawn from their exact joint law (`LocalRandomizer.sample_totals`), and
a billion clients take no time. Both estimate the same counts in distribution. Both run on all
devices of all processes (`rknn_jax._internal.distributed`), and one seed gives one result on any
number of them.
"""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rknn_jax import mechanisms
from rknn_jax._internal import distributed
from rknn_jax.mechanisms.local import LocalRandomizer

CLIENTS_AT_ONCE = 2**20  # on each device
# of the clients at the count level; the result depends on their number, so it is not that of the
# devices
PARTS = 8
MOST_MESSAGES = 2**31 - 1
MAJORITY = 0.7  # of a query's clients that have its class


@dataclass(frozen=True)
class Simulation:
    """What came out.

    Attributes:
      clients: n.
      level: message or count.
      seconds: of randomizing and aggregating, compilation left out.
      clients_per_second: n over that.
      mse: mean squared error of a cell's count.
      predicted_mse: as the exact variances say.
      bias_z: mean error over cells in standard errors of independent cells; within 4 of 0 unless
        something is wrong.
    """

    clients: int
    level: str
    seconds: float
    clients_per_second: float
    mse: float
    predicted_mse: float
    bias_z: float


def simulate(
    mechanism: LocalRandomizer,
    clients: int,
    level: Literal["message", "count"] = "message",
    seed: int = 0,
    mesh: Mesh | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Simulation:
    """Simulate one collection.

    Args:
      mechanism: local.
      clients: n, one record each.
      level: see above.
      seed: of votes and messages.
      mesh: devices of the message level; all of them where it is not given.
      on_progress: is told the share that is done, at the message level.

    Raises:
      ValueError: for fewer than one client, for more than fit a message's number, and for
        mechanisms without an exact law at the count level.
    """
    if clients < 1:
        raise ValueError(f"Expected clients >= 1, got clients={clients}.")
    if level == "message" and clients > MOST_MESSAGES:
        raise ValueError(
            f"Expected clients <= {MOST_MESSAGES} with level=message, got clients={clients}; use "
            "level=count."
        )
    votes_key, message_key = jax.random.split(jax.random.key(seed))
    if level == "count":
        rng = np.random.default_rng(np.asarray(jax.random.key_data(votes_key)))
        return _counts(mechanism, clients, rng)
    return _messages(
        mechanism, clients, votes_key, message_key, mesh or distributed.all_devices(), on_progress
    )


def _messages(
    mechanism: LocalRandomizer,
    clients: int,
    votes_key: jax.Array,
    message_key: jax.Array,
    mesh: Mesh,
    on_progress: Callable[[float], None],
) -> Simulation:
    """Let all clients vote and randomize: blocks of as many as fit all devices, then what is
    left for each, then the last few.
    """
    block = CLIENTS_AT_ONCE * mesh.size
    left = clients % block
    spread = left // mesh.size * mesh.size
    mine = Mesh(
        np.array(jax.local_devices()[:1]), mesh.axis_names
    )  # every process adds the last few by itself
    totals = np.zeros(mechanism.num_totals, np.int64)
    counts = np.zeros(mechanism.num_cells, np.int64)
    seconds = 0.0
    first = 0
    for size, times, devices in (
        (block, clients // block, mesh),
        (spread, 1, mesh),
        (left - spread, 1, mine),
    ):
        for i in range(times if size else 0):
            cells = jax.block_until_ready(_votes(mechanism, votes_key, first, size, devices))
            if i == 0:  # compiles
                jax.block_until_ready(
                    distributed.client_totals(mechanism, message_key, cells, first, mesh=devices)
                )
            started = time.perf_counter()
            totals += np.asarray(
                distributed.client_totals(mechanism, message_key, cells, first, mesh=devices)
            )
            seconds += time.perf_counter() - started
            counts += np.asarray(distributed.count_votes(cells, mechanism.num_cells, mesh=devices))
            first += size
            on_progress(first / clients)
    return _compared(mechanism, clients, "message", seconds, totals, counts)


def _counts(mechanism: LocalRandomizer, clients: int, rng: np.random.Generator) -> Simulation:
    """Draw the totals of parts of the clients, each with its own generator, over the processes
    and their threads, and add them.
    """
    votes, groups = population(mechanism)
    voters = rng.multinomial(clients, groups)
    generators = rng.spawn(PARTS)
    started = time.perf_counter()

    def part(i: int) -> np.ndarray:
        return mechanism.sample_totals(generators[i], votes[i::PARTS], voters[i::PARTS])

    try:
        with ThreadPoolExecutor() as threads:
            parts = list(threads.map(part, distributed.my_share(list(range(PARTS)))))
    except NotImplementedError as error:
        raise ValueError(f"{error} Use level=message.") from error
    totals = distributed.sum_over_processes(
        sum(parts, start=np.zeros(mechanism.num_totals, np.int64))
    )
    seconds = time.perf_counter() - started
    counts = np.zeros(mechanism.num_cells, np.int64)
    np.add.at(counts, votes, np.broadcast_to(voters[:, None], votes.shape))
    return _compared(mechanism, clients, "count", seconds, totals, counts)


def population(mechanism: LocalRandomizer) -> tuple[np.ndarray, np.ndarray]:
    """Return all ways to vote, int `[s·|Y|, k·r]`, and the share of clients that vote so: query
    and class of the first vote.
    """
    s = mechanism.num_queries
    num_classes = mechanism.num_classes
    query, label = np.divmod(np.arange(mechanism.num_cells), num_classes)
    share = (1 - MAJORITY) / num_classes + MAJORITY * (label == query % num_classes)
    return np.asarray(_cells(mechanism, query, label)), share / s


@functools.partial(jax.jit, static_argnames=("size", "mesh"))
def _votes(
    mechanism: LocalRandomizer, key: jax.Array, first: int | jax.Array, size: int, mesh: Mesh
) -> jax.Array:
    def one(client: jax.Array) -> tuple[jax.Array, jax.Array]:
        query_key, label_key, kind_key = jax.random.split(jax.random.fold_in(key, client), 3)
        query = jax.random.randint(query_key, (), 0, mechanism.num_queries)
        label = jax.random.randint(label_key, (), 0, mechanism.num_classes)
        return query, jnp.where(
            jax.random.uniform(kind_key) < MAJORITY, query % mechanism.num_classes, label
        )

    cells = _cells(mechanism, *jax.vmap(one)(first + jnp.arange(size)))
    return jax.lax.with_sharding_constraint(cells, distributed.over_clients(mesh))


@jax.jit
def _cells(mechanism: LocalRandomizer, query: Any, label: Any) -> jax.Array:
    """Return the cells of k queries from the first on, in a ring, with r classes from the first
    on.
    """
    near = (
        jnp.asarray(query)[:, None] + jnp.arange(mechanism.num_neighbors)[None]
    ) % mechanism.num_queries
    labels = (
        jnp.asarray(label)[:, None] + jnp.arange(mechanism.labels_per_record)[None]
    ) % mechanism.num_classes
    return (
        (near[:, :, None] * mechanism.num_classes + labels[:, None, :])
        .reshape(len(near), -1)
        .astype(jnp.int32)
    )


def _compared(
    mechanism: LocalRandomizer,
    clients: int,
    level: str,
    seconds: float,
    totals: np.ndarray,
    counts: np.ndarray,
) -> Simulation:
    counts = counts.reshape(mechanism.shape)
    error = mechanism.estimate(jax.random.key(0), totals, clients) - counts
    predicted = float(np.mean(mechanism.stddev(counts, clients) ** 2))
    bias_z = float(error.mean() / np.sqrt(predicted / error.size))
    return Simulation(
        clients, level, seconds, clients / seconds, float(np.mean(error**2)), predicted, bias_z
    )


def make(name: str, **fields: Any) -> LocalRandomizer:
    """Return the local mechanism `name`.

    Raises:
      ValueError: for a name that is none.
    """
    if name not in mechanisms.names("local"):
        raise ValueError(
            f"Expected mechanism to be one of {mechanisms.names('local')}, got mechanism={name!r}."
        )
    return mechanisms.make(name, **fields)

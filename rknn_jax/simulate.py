"""Millions of one-record clients against the exact answer: what error a local mechanism really makes, and how fast it is simulated.

Clients vote for k neighbouring queries, for the class that most of the query's clients have or for any. At the `message` level every client
really randomizes, in blocks and constant memory; at the `count` level the totals are drawn from their exact joint law
(`LocalRandomizer.sample_totals`), and a billion clients take seconds. Both estimate the same counts in distribution.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import mechanisms
from rknn_jax.mechanisms.base import client_totals
from rknn_jax.mechanisms.local import LocalRandomizer

CLIENTS_AT_ONCE = 2**20
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
      bias_z: mean error over cells in standard errors of independent cells; within 4 of 0 unless something is wrong.
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
    on_progress: Callable[[float], None] = lambda share: None,
) -> Simulation:
    """Simulate one collection.

    Args:
      mechanism: local.
      clients: n, one record each.
      level: see above.
      seed: of votes and messages.
      on_progress: is told the share that is done, at the message level.

    Raises:
      ValueError: for fewer than one client, and for mechanisms without an exact law at the count level.
    """
    if clients < 1:
        raise ValueError(f"Expected clients >= 1, got clients={clients}.")
    votes_key, message_key = jax.random.split(jax.random.key(seed))
    if level == "count":
        votes, groups = population(mechanism)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(votes_key)))
        voters = rng.multinomial(clients, groups)
        started = time.perf_counter()
        try:
            totals = mechanism.sample_totals(rng, votes, voters)
        except NotImplementedError as error:
            raise ValueError(f"{error} Use level=message.") from error
        seconds = time.perf_counter() - started
        counts = np.zeros(mechanism.num_cells, np.int64)
        np.add.at(counts, votes, np.broadcast_to(voters[:, None], votes.shape))
        return _compared(mechanism, clients, level, seconds, totals, counts)
    size = min(CLIENTS_AT_ONCE, clients)
    draw = jax.jit(lambda first: _votes(mechanism, votes_key, first + jnp.arange(size)))
    client_totals(mechanism, message_key, draw(0), 0).block_until_ready()  # compiles
    totals, counts = np.zeros((2, mechanism.num_cells), np.int64)
    seconds = 0.0
    for first in range(0, clients, size):
        cells = draw(first)[: clients - first]
        counts += np.bincount(np.ravel(cells), minlength=mechanism.num_cells)
        started = time.perf_counter()
        totals += np.asarray(client_totals(mechanism, message_key, cells, first))
        seconds += time.perf_counter() - started
        on_progress(min(first + size, clients) / clients)
    return _compared(mechanism, clients, level, seconds, totals, counts)


def population(mechanism: LocalRandomizer) -> tuple[np.ndarray, np.ndarray]:
    """Return all ways to vote, int `[s·|Y|, k·r]`, and the share of clients that vote so: query and class of the first vote."""
    s, num_classes = mechanism.num_queries, mechanism.num_classes
    query, label = np.divmod(np.arange(mechanism.num_cells), num_classes)
    share = (1 - MAJORITY) / num_classes + MAJORITY * (label == query % num_classes)
    return np.asarray(_cells(mechanism, query, label)), share / s


def _votes(mechanism: LocalRandomizer, key: jax.Array, clients: jax.Array) -> jax.Array:
    def one(client: jax.Array) -> tuple[jax.Array, jax.Array]:
        query_key, label_key, kind_key = jax.random.split(jax.random.fold_in(key, client), 3)
        query = jax.random.randint(query_key, (), 0, mechanism.num_queries)
        label = jax.random.randint(label_key, (), 0, mechanism.num_classes)
        return query, jnp.where(jax.random.uniform(kind_key) < MAJORITY, query % mechanism.num_classes, label)

    return _cells(mechanism, *jax.vmap(one)(clients))


def _cells(mechanism: LocalRandomizer, query: Any, label: Any) -> jax.Array:
    """Return the cells of k queries from the first on, in a ring, with r classes from the first on."""
    near = (jnp.asarray(query)[:, None] + jnp.arange(mechanism.num_neighbors)[None]) % mechanism.num_queries
    labels = (jnp.asarray(label)[:, None] + jnp.arange(mechanism.labels_per_record)[None]) % mechanism.num_classes
    return (near[:, :, None] * mechanism.num_classes + labels[:, None, :]).reshape(len(near), -1).astype(jnp.int32)


def _compared(mechanism: LocalRandomizer, clients: int, level: str, seconds: float, totals: np.ndarray, counts: np.ndarray) -> Simulation:
    error = mechanism.estimate(jax.random.key(0), totals, clients).ravel() - counts
    predicted = float(np.mean(mechanism.stddev(counts, clients) ** 2))
    bias_z = float(error.mean() / np.sqrt(predicted / len(error)))
    return Simulation(clients, level, seconds, clients / seconds, float(np.mean(error**2)), predicted, bias_z)


def make(name: str, **fields: Any) -> LocalRandomizer:
    """Return the local mechanism `name`.

    Raises:
      ValueError: for a name that is none.
    """
    if name not in mechanisms.names("local"):
        raise ValueError(f"Expected mechanism to be one of {mechanisms.names('local')}, got mechanism={name!r}.")
    return mechanisms.make(name, **fields)

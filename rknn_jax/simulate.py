"""Error and speed of a local mechanism, measured on millions of one-record clients.

Clients vote for k neighboring queries. Most vote for their query's majority class, the others for
any class. A person with any number of records who draws one and sends one message is such a client,
and epsilon is then the person's. At the `message` level every client randomizes its votes, in
blocks and constant memory. At the `count` level the totals are drawn from their exact joint law
(`LocalRandomizer.sample_totals`), and a billion clients take no time. Both levels estimate the same
counts in distribution. Both run on all devices of all processes (`mechanisms._distributed`), and
one seed gives one result on any number of them. The message level also runs on a Ray cluster, with
the same result.
"""

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rknn_jax import mechanisms
from rknn_jax._internal import progress, ray_map
from rknn_jax.mechanisms import _distributed
from rknn_jax.mechanisms.local import LocalRandomizer

CLIENTS_AT_ONCE = 2**20  # on each device
# Parts of the clients at the count level. The result depends on the number of parts, so it is
# fixed and not the number of devices.
PARTS = 8
MOST_MESSAGES = 2**31 - 1
MAJORITY = 0.7  # share of a query's clients that vote for its majority class for certain


@dataclass(frozen=True)
class Simulation:
    """Results of a simulation.

    Attributes:
      clients: Number of clients n.
      level: Level of the simulation, message or count.
      seconds: Time of randomizing and aggregating, in seconds, without compilation.
      clients_per_second: Number of clients per second of that time.
      mse: Mean squared error of a cell's count.
      predicted_mse: Mean squared error that the exact variances predict.
      bias_z: Mean error over cells, in standard errors of independent cells. A value beyond 4 from
        0 means that something is wrong.
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
) -> Simulation:
    """Simulate one collection.

    Args:
      mechanism: Local mechanism.
      clients: Number of clients n, one record each.
      level: Level of the module's docstring, message or count. Defaults to message.
      seed: Seed of votes and messages. Defaults to 0.
      mesh: Devices of the message level. Defaults to all.

    Raises:
      ValueError: If there are fewer than one client, or more than a message's number can hold. Also
        if a mechanism has no exact law at the count level.
    """
    _check(clients, level)
    if level == "message":
        mesh = mesh or _distributed.all_devices()
        return _messages(mechanism, clients, seed, mesh)
    votes_key, _ = jax.random.split(jax.random.key(seed))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(votes_key)))
    with progress.phase("drawing totals"):
        return _counts(mechanism, clients, rng)


def simulate_on_ray(
    mechanism: LocalRandomizer,
    clients: int,
    seed: int = 0,
    address: str | None = None,
) -> Simulation:
    """Simulate one collection at the message level on a Ray cluster, as `simulate` does.

    The time is that of the whole job, with the start of its processes.

    Args:
      mechanism: Local mechanism.
      clients: Number of clients n, one record each.
      seed: Seed of votes and messages. Defaults to 0.
      address: Address of a cluster. Defaults to none, for one that is started on this machine.

    Raises:
      ValueError: As in `simulate`, and if the cluster cannot be reached or ends the job.
    """
    _check(clients, "message")
    # Blocks are numbered from 0 on, and the last one may hold fewer clients.
    count = -(-clients // CLIENTS_AT_ONCE)
    whole = Block.zero(mechanism)
    started = time.perf_counter()
    with progress.phase("simulating on Ray", clients, "clients") as done:
        for row in ray_map.results(_Messages, (mechanism, clients, seed), count, address):
            block = Block(**{name: row[name] for name in Block.__dataclass_fields__})
            whole += block
            done.advance(block.clients)
    seconds = time.perf_counter() - started
    return replace(whole, seconds=seconds).compared(mechanism, "message")


class _Messages:
    """Block of clients after block, in a process of a cluster that keeps compiled programs."""

    def __init__(self, mechanism: LocalRandomizer, clients: int, seed: int) -> None:
        self._mechanism = mechanism
        self._clients = clients
        self._seed = seed
        self._sizes = set[int]()

    def __call__(self, row: dict[str, int]) -> dict[str, Any]:
        first = int(row["number"]) * CLIENTS_AT_ONCE
        size = min(CLIENTS_AT_ONCE, self._clients - first)
        mesh = Mesh(np.array(jax.local_devices()[:1]), (_distributed.CLIENTS,))
        known = size in self._sizes
        self._sizes.add(size)
        return vars(
            messages(self._mechanism, self._seed, first, size=size, mesh=mesh, compiled=known)
        )


def _check(clients: int, level: str) -> None:
    """Refuse numbers of clients that cannot be simulated."""
    if clients < 1:
        raise ValueError(f"Expected clients >= 1, got clients={clients}.")
    if level == "message" and clients > MOST_MESSAGES:
        raise ValueError(
            f"Expected clients <= {MOST_MESSAGES} with level=message, got clients={clients}; use "
            "level=count."
        )


def _messages(mechanism: LocalRandomizer, clients: int, seed: int, mesh: Mesh) -> Simulation:
    """Let all clients vote and randomize, in three kinds of blocks.

    The first blocks fill all devices. The next one holds an equal share of the rest for each
    device, and the last one holds the few left.
    """
    block = CLIENTS_AT_ONCE * mesh.size
    left = clients % block
    spread = left // mesh.size * mesh.size
    # Every process adds the last few clients by itself.
    mine = Mesh(np.array(jax.local_devices()[:1]), mesh.axis_names)
    whole = Block.zero(mechanism)
    # Three sizes, so that three programs are compiled, whatever the number of clients.
    kinds = ((block, clients // block, mesh), (spread, 1, mesh), (left - spread, 1, mine))
    with progress.phase("simulating", clients, "clients") as done:
        for size, times, devices in kinds:
            for i in range(times if size else 0):
                whole += messages(
                    mechanism, seed, whole.clients, size=size, mesh=devices, compiled=i > 0
                )
                done.advance(size)
    return whole.compared(mechanism, "message")


@dataclass(frozen=True)
class Block:
    """Clients that have voted and randomized.

    Attributes:
      clients: Number of clients.
      totals: int64 `[num_totals]`, as in `LocalRandomizer.aggregate`.
      counts: int64 `[s·|Y|]`, votes without noise.
      seconds: Time of randomizing and aggregating, without compilation.
    """

    clients: int
    totals: np.ndarray
    counts: np.ndarray
    seconds: float

    @classmethod
    def zero(cls, mechanism: LocalRandomizer) -> "Block":
        """Return no clients."""
        totals = np.zeros(mechanism.num_totals, np.int64)
        return cls(0, totals, np.zeros(mechanism.num_cells, np.int64), 0.0)

    def __add__(self, other: "Block") -> "Block":
        """Return both."""
        return Block(
            self.clients + other.clients,
            self.totals + other.totals,
            self.counts + other.counts,
            self.seconds + other.seconds,
        )

    def compared(self, mechanism: LocalRandomizer, level: str) -> Simulation:
        """Return the error of the estimate, beside what the exact variances predict."""
        counts = self.counts.reshape(mechanism.shape)
        # Against the true counts, which a simulation knows and a server never does.
        error = mechanism.estimate(jax.random.key(0), self.totals, self.clients) - counts
        predicted = float(np.mean(mechanism.stddev(counts, self.clients) ** 2))
        return Simulation(
            clients=self.clients,
            level=level,
            seconds=self.seconds,
            clients_per_second=self.clients / self.seconds,
            mse=float(np.mean(error**2)),
            predicted_mse=predicted,
            # The mean error over all cells, in its standard deviations: within ±3 for an unbiased
            # estimate.
            bias_z=float(error.mean() / np.sqrt(predicted / error.size)),
        )


def messages(
    mechanism: LocalRandomizer, seed: int, first: int, size: int, mesh: Mesh, *, compiled: bool
) -> Block:
    """Return the votes and totals of `size` clients from number `first` on.

    They depend on the seed and the clients' numbers alone, so lost work can be done again.

    Args:
      mechanism: Local mechanism.
      seed: Seed of votes and messages.
      first: Number of the first client.
      size: Number of clients, equally many for each device of the mesh.
      mesh: Mesh of one axis, `clients`.
      compiled: Flag for a size that this process has had before. Otherwise the clock starts after
        the compilation.
    """
    votes_key, message_key = jax.random.split(jax.random.key(seed))
    cells = jax.block_until_ready(_votes(mechanism, votes_key, first, size=size, mesh=mesh))
    totals = functools.partial(
        _distributed.client_totals, mechanism, message_key, cells, first, mesh=mesh
    )
    if not compiled:
        # Once without the clock, to compile.
        jax.block_until_ready(totals())
    started = time.perf_counter()
    summed = np.asarray(totals(), np.int64)
    seconds = time.perf_counter() - started
    counts = np.asarray(_distributed.count_votes(cells, mechanism.num_cells, mesh=mesh), np.int64)
    return Block(size, summed, counts, seconds)


def _counts(mechanism: LocalRandomizer, clients: int, rng: np.random.Generator) -> Simulation:
    """Draw the totals of parts of the clients, and add them.

    Each part has its own generator, and the parts are spread over the processes and their threads.
    """
    votes, groups = population(mechanism)
    # Clients are independent, so that the numbers of equal ones are multinomial.
    voters = rng.multinomial(clients, groups)
    # Spawned before the parts are dealt out: the result is the same on any number of processes.
    generators = rng.spawn(PARTS)
    started = time.perf_counter()

    def part(i: int) -> np.ndarray:
        return mechanism.sample_totals(generators[i], votes[i::PARTS], voters[i::PARTS])

    try:
        with ThreadPoolExecutor() as threads:
            parts = list(threads.map(part, _distributed.my_share(list(range(PARTS)))))
    except NotImplementedError as error:
        raise ValueError(f"{error} Use level=message.") from error
    totals = _distributed.sum_over_processes(
        sum(parts, start=np.zeros(mechanism.num_totals, np.int64))
    )
    seconds = time.perf_counter() - started
    counts = np.zeros(mechanism.num_cells, np.int64)
    np.add.at(counts, votes, np.broadcast_to(voters[:, None], votes.shape))
    return Block(clients, totals, counts, seconds).compared(mechanism, "count")


def population(mechanism: LocalRandomizer) -> tuple[np.ndarray, np.ndarray]:
    """Return all ways to vote, and the share of clients that vote so.

    Returns:
      `(votes, share)`, int `[s·|Y|, k·r]` and float `[s·|Y|]`, in the order of the first vote's
      cell.
    """
    s = mechanism.num_queries
    num_classes = mechanism.num_classes
    # One group of clients for each cell of a first vote; the others follow in a ring.
    query, label = np.divmod(np.arange(mechanism.num_cells), num_classes)
    # Queries have a majority class, as clusters of public records do.
    share = (1 - MAJORITY) / num_classes + MAJORITY * (label == query % num_classes)
    return np.asarray(_cells(mechanism, query, label)), share / s


@functools.partial(jax.jit, static_argnames=("size", "mesh"))
def _votes(
    mechanism: LocalRandomizer, key: jax.Array, first: int | jax.Array, size: int, mesh: Mesh
) -> jax.Array:
    def one(client: jax.Array) -> tuple[jax.Array, jax.Array]:
        # By the client's number, as its message: a block that is lost is drawn again alike.
        query_key, label_key, kind_key = jax.random.split(jax.random.fold_in(key, client), 3)
        query = jax.random.randint(query_key, (), 0, mechanism.num_queries)
        label = jax.random.randint(label_key, (), 0, mechanism.num_classes)
        return query, jnp.where(
            jax.random.uniform(kind_key) < MAJORITY, query % mechanism.num_classes, label
        )

    cells = _cells(mechanism, *jax.vmap(one)(first + jnp.arange(size)))
    placed: jax.Array = jax.lax.with_sharding_constraint(cells, _distributed.over_clients(mesh))
    return placed


@jax.jit
def _cells(mechanism: LocalRandomizer, query: Any, label: Any) -> jax.Array:
    """Return the cells of k queries and r classes, counted on from the given ones in a ring."""
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


def make(name: str, **fields: Any) -> LocalRandomizer:
    """Return the local mechanism `name`.

    Raises:
      ValueError: If no local mechanism has that name.
    """
    mechanism: LocalRandomizer = mechanisms.chosen(name, mechanisms.is_local)(**fields)
    return mechanism

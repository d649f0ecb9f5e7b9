"""Games of a mechanism: neighboring inputs and an adversary's view of them, for audits.

The inputs come from `rknn_jax.audit.neighboring`, in crowds of up to `MOST_RECORDS`.

A view holds all that a mechanism reveals, and functions of it that anyone who knows both inputs can
compute. For counts, these are their parity, the number of cells in which they equal the true counts
of either input, and their distance from those. For a client's message, they are the bits of its
integers (public coins included), its supported cells, and its likelihood from either input under
the stated law. The audited code draws the messages and the noise.

`exact` also enumerates the law of a local randomizer with few cells: every input, missing votes
included, and every message. That checks the mathematics that a file states, and no more.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.audit.finding import Bound, Finding
from rknn_jax.audit.game import Game
from rknn_jax.audit.neighboring import SEVERAL, cell_words, changes, crowd_words, crowds, inputs
from rknn_jax.mechanisms.base import CentralMechanism, Mechanism, estimate_counts
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Sampler
from rknn_jax.types import Array

Observe = Callable[[jax.Array, int, int], np.ndarray]

RUNS_AT_ONCE = 2000
"""Number of runs drawn together, so that one program serves searches and long runs."""

MOST_RECORDS = 1000
"""Size of the largest crowd: other records beside the one in which two inputs differ."""

COINS = 4
"""Number of draws of the public coins under which a law is enumerated."""

MOST_CELLS = 12
"""Largest number of cells of an enumerated law, whose messages may be all sets of cells."""

ROUNDING = 1e-9
"""Relative error of epsilon that an enumeration in float64 may have."""

LOG_ROUNDING = 1e-14
"""Error that it may have besides, because it subtracts logarithms."""

BITS = 32
"""Number of bits of an integer in a message that become columns."""


def of_mechanism(mechanism: Any, sampler: Sampler = "simulation", seed: int = 0) -> list[Game]:
    """Return games of a mechanism, between random neighboring inputs.

    Args:
      mechanism: Any mechanism.
      sampler: `simulation` for the noise of `jax.random`, `release` for exact noise from the
        operating system's entropy. Defaults to `simulation`.
      seed: Seed of the inputs. Defaults to 0.
    """
    rng = np.random.default_rng(seed)
    pairs = list(changes(rng, mechanism))
    if isinstance(mechanism, LocalRandomizer):
        return [_of_client(mechanism, a, b, sampler) for a, b in pairs]
    if not isinstance(mechanism, CentralMechanism):
        if sampler == "release":
            raise ValueError(
                f"Expected sampler=simulation for {type(mechanism).__name__}, got release; it is "
                "simulated, and has no exact form."
            )
        size = mechanism.num_clients - 1
        return [
            _of_shuffled(mechanism, others, a, b)
            for a, b in pairs[:SEVERAL]
            for others in crowds(rng, mechanism, a, size)[1:]
        ]
    games = []
    for a, b in pairs:
        for others in crowds(rng, mechanism, a, MOST_RECORDS):
            words = f"{crowd_words(others)}, and one "
            if mechanism.relation == "replace-one":
                worlds = [np.stack([*others, a]), np.stack([*others, b])]
                games.append(
                    of_cells(
                        f"{words}for {cell_words(a)} or {cell_words(b)}", mechanism, worlds, sampler
                    )
                )
                continue
            for votes in (a, b) if (b >= 0).any() else (a,):
                worlds = [others, np.stack([*others, votes])]
                games.append(
                    of_cells(
                        f"{words}more for {cell_words(votes)} or none", mechanism, worlds, sampler
                    )
                )
    return games


def exact(mechanism: Any) -> Finding | None:
    """Return the largest log ratio of any message's probabilities from any two inputs.

    The probabilities are those of the stated law. Only laws of local randomizers with at most
    `MOST_CELLS` cells are enumerated; return None for all others. Inputs are every choice of up to
    k·r cells. Messages are all that share public coins, under `COINS` draws of the coins.
    """
    if not isinstance(mechanism, LocalRandomizer) or mechanism.num_cells > MOST_CELLS:
        return None
    votes = inputs(mechanism)
    epsilon = 0.0
    words = ""
    claimed = mechanism.guarantee(1).epsilon
    for coin in range(COINS):
        messages = mechanism.alphabet(jax.random.key(coin))
        law = np.stack([mechanism.log_prob(messages, cells) for cells in votes])
        law = law[:, law.max(axis=0) > -np.inf]  # A message that nobody sends tells nothing.
        spread = law.max(axis=0) - law.min(axis=0)
        if (largest := float(spread.max())) > epsilon:
            pair = [votes[int(order(law[:, spread.argmax()]))] for order in (np.argmin, np.argmax)]
            epsilon = largest
            words = f"a client that votes for {cell_words(pair[0])} or for {cell_words(pair[1])}"
    broken = epsilon > claimed * (1 + ROUNDING) + LOG_ROUNDING
    bound = Bound(0.0, claimed, epsilon)
    event = f"the most telling of all messages, under {COINS} draws of public coins"
    return Finding(
        claimed,
        0.0,
        epsilon,
        1.0,
        exact=True,
        broken=broken,
        evidence=bound,
        inputs=words,
        event=event,
        runs=0,
    )


def of_cells(
    words: str,
    mechanism: CentralMechanism,
    worlds: Sequence[Array],
    sampler: Sampler = "simulation",
) -> Game:
    """Return the game of a central mechanism between two tables of votes, int32 `[n, k·r]` each."""
    longest = max(len(world) for world in worlds)
    tables = [
        np.pad(np.asarray(world, np.int32), ((0, longest - len(world)), (0, 0)), constant_values=-1)
        for world in worlds
    ]
    totals = [
        np.asarray(mechanism.aggregate(jnp.asarray(table)), np.int64).ravel() for table in tables
    ]

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        if sampler == "release":
            counts = mechanism.releases(totals[world], runs).reshape(runs, -1)
        else:
            cells = jnp.asarray(tables[world])
            counts = np.concatenate(
                [np.asarray(_noisy(mechanism, k, cells))[:size] for k, size in _blocks(key, runs)]
            )
        return described_counts(counts, totals)

    d = len(totals[0])
    names = [f"cell {cell}" for cell in range(d)] + [
        f"the parity of cell {cell}" for cell in range(d)
    ]
    names += [
        f"{what} input {world}"
        for world in (0, 1)
        for what in ("the number of cells as in", "the distance from")
    ]
    return Game(words, observe, tuple(names), tuple(range(2 * d, 2 * d + 4)))


def described_counts(counts: np.ndarray, totals: Sequence[np.ndarray]) -> np.ndarray:
    """Return counts `[n, d]`, their parities, and comparisons with either input's true counts.

    The comparisons are the number of equal counts and the L1 distance.
    """
    counts = counts.astype(np.float64)
    told = [counts, np.floor(counts) % 2]
    for true in totals:
        apart = np.abs(counts - true[None])
        told += [np.sum(apart == 0, axis=1)[:, None], np.sum(apart, axis=1)[:, None]]
    return np.concatenate(told, axis=1)


def bits(array: np.ndarray) -> np.ndarray:
    """Return every bit of integers `[n, ...]` and their parity, float64 `[n, f]`."""
    words = np.asarray(array).reshape(len(array), -1).astype(np.int64)
    apart = words[:, :, None] >> np.arange(BITS)[None, None] & 1
    return (
        np.concatenate([apart, apart.sum(axis=2, keepdims=True) % 2], axis=2)
        .reshape(len(words), -1)
        .astype(np.float64)
    )


def described_messages(
    mechanism: LocalRandomizer, messages: Any, support: Any, cells: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the view of clients' messages, float64 `[n, f]`; the module describes it.

    Args:
      mechanism: Mechanism of the messages.
      messages: Messages of n clients.
      support: Cells that they support, bool `[n, num_cells]`.
      cells: Votes of either input, int32 `[k·r]` each.
    """
    laws = np.stack([mechanism.log_prob(messages, votes) for votes in cells], axis=1)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(messages)]
    values = [leaf.reshape(len(laws), -1).astype(np.float64) for leaf in leaves]
    apart = [bits(leaf) for leaf in leaves if leaf.dtype.kind in "iu"]
    return np.concatenate(
        [laws[:, 1:] - laws[:, :1], laws, np.asarray(support, np.float64), *values, *apart],
        axis=1,
    )


def _blocks(key: jax.Array, runs: int) -> list[tuple[jax.Array, int]]:
    """Return a key and a size for each block of runs; the last block may be smaller."""
    sizes = [min(RUNS_AT_ONCE, runs - start) for start in range(0, runs, RUNS_AT_ONCE)]
    return [(jax.random.fold_in(key, block), size) for block, size in enumerate(sizes)]


@jax.jit
def _noisy(mechanism: CentralMechanism, key: jax.Array, cells: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: estimate_counts(mechanism, key, cells).ravel())(
        jax.random.split(key, RUNS_AT_ONCE)
    )


@jax.jit
def _randomized(mechanism: LocalRandomizer, key: jax.Array, cells: jax.Array) -> Any:
    messages = jax.vmap(lambda key: mechanism.randomize(key, cells))(
        jax.random.split(key, RUNS_AT_ONCE)
    )
    return messages, jax.vmap(mechanism.support)(messages)


@jax.jit
def supported(mechanism: LocalRandomizer, messages: Any) -> jax.Array:
    """Return the cells that each message supports, bool `[n, num_cells]`."""
    return jax.vmap(mechanism.support)(messages)


@jax.jit
def _sent(mechanism: Mechanism, key: jax.Array, votes: jax.Array) -> jax.Array:
    def run(key: jax.Array) -> jax.Array:
        return jnp.sum(
            jax.vmap(mechanism.randomize)(jax.random.split(key, len(votes)), votes), axis=0
        ).ravel()

    sent: jax.Array = jax.lax.map(run, jax.random.split(key, RUNS_AT_ONCE), batch_size=100)
    return sent


def _of_client(
    mechanism: LocalRandomizer, first: np.ndarray, second: np.ndarray, sampler: Sampler
) -> Game:
    """Return the game of a client's message; the module describes the view."""

    def described(messages: Any, support: Any) -> np.ndarray:
        return described_messages(mechanism, messages, support, (first, second))

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        cells = (first, second)[world]
        if sampler == "release":
            messages = mechanism.respond(Entropy.fresh(), np.repeat(cells[None], runs, axis=0))
            return described(messages, supported(mechanism, messages))
        parts = [
            (_randomized(mechanism, k, jnp.asarray(cells)), size) for k, size in _blocks(key, runs)
        ]
        return np.concatenate([described(*drawn)[:size] for drawn, size in parts])

    words = f"a client that votes for {cell_words(first)} or for {cell_words(second)}"
    return Game(words, observe, message_names(mechanism, first), always=(0,))


def message_names(mechanism: LocalRandomizer, cells: np.ndarray) -> tuple[str, ...]:
    """Return the names of the columns of `described_messages`."""
    message, support = jax.eval_shape(
        lambda key: (
            drawn := mechanism.randomize(key, jnp.asarray(cells)),
            mechanism.support(drawn),
        ),
        jax.random.key(0),
    )
    leaves = [(f"leaf {number}", leaf) for number, leaf in enumerate(jax.tree.leaves(message))]
    words = [
        (f"{name}[{i}]", leaf.dtype.kind in "iu") for name, leaf in leaves for i in range(leaf.size)
    ]
    names = [
        "the log ratio of the stated laws",
        "the stated law of input 0",
        "the stated law of input 1",
    ]
    names += [f"support {cell}" for cell in range(support.size)] + [name for name, _ in words]
    for name, has_bits in words:
        names += (
            [*(f"bit {bit} of {name}" for bit in range(BITS)), f"the parity of {name}"]
            if has_bits
            else []
        )
    return tuple(names)


def _of_shuffled(mechanism: Any, others: np.ndarray, first: np.ndarray, second: np.ndarray) -> Game:
    """Return the game of all clients' messages, shuffled.

    The view is the number of times that each cell came with either sign.
    """
    worlds = [np.stack([*others, votes]) for votes in (first, second)]

    def observe(key: jax.Array, world: int, runs: int) -> np.ndarray:
        return np.concatenate(
            [
                np.asarray(_sent(mechanism, k, jnp.asarray(worlds[world])))[:size]
                for k, size in _blocks(key, runs)
            ]
        )

    words = (
        f"a client among {mechanism.num_clients}, {crowd_words(others)}, and one for "
        f"{cell_words(first)} or {cell_words(second)}"
    )
    return Game(words, observe)

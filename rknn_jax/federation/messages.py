"""Messages of a client: the cells of its records, randomized block by block."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.federation import wire
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers._vote_shares import drawn_records
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy.entropy import Entropy

# Limits on the records, and on the bits of their messages, that are drawn together.
RECORDS_AT_ONCE = 4096
BITS_AT_ONCE = 2**22


def messages(round: Round, cells: np.ndarray, entropy: Entropy) -> bytes:
    """Return the messages of all records, with real noise.

    Args:
      round: Round that asks for messages.
      cells: Cells of every record, int32 `[n, k·r]`.
      entropy: Entropy of the noise, consumed.
    """
    if round.unit == "client":
        cells = drawn_records(entropy, cells, round.records_per_client)
    block_size = records_at_once(round)
    parts = []
    for start in range(0, len(cells), block_size):
        block = cells[start : start + block_size]
        parts.append(wire.encode(round.mechanism, round.mechanism.respond(entropy, block)))
    return b"".join(parts)


def records_at_once(round: Round) -> int:
    """Return the number of records whose messages are drawn together.

    It is small for long messages, so that memory is bounded.
    """
    if round.summed:
        return RECORDS_AT_ONCE
    return max(1, min(RECORDS_AT_ONCE, BITS_AT_ONCE // round.mechanism.message_bits))


def simulated_messages(round: Round, cells: np.ndarray, first: int) -> object:
    """Return messages with simulated noise, for records numbered from `first` on.

    They are the messages that `mechanisms.base.client_totals` aggregates.
    """
    root = jax.random.key(round.simulated or 0)
    numbers = first + jnp.arange(len(cells))
    keys = jax.vmap(lambda number: jax.random.fold_in(root, number))(numbers)
    return jax.tree.map(
        np.asarray, _randomized(round.mechanism, keys, jnp.asarray(cells, jnp.int32))
    )


@functools.partial(jax.jit, static_argnames="mechanism")
def _randomized(mechanism: LocalRandomizer, keys: jax.Array, cells: jax.Array) -> object:
    """Randomize each record; one compiled program serves all virtual clients of a process."""
    return jax.vmap(mechanism.randomize)(keys, cells)

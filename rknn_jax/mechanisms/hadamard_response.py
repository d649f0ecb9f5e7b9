"""Hadamard response with one block: one bit of a random row of a Hadamard matrix.

A client publishes the row and its own entry in that row, flipped with probability 1/(e^ε + 1). This
is local hashing with two buckets and the matrix as the hash. The entries of two cells agree in
exactly half of the rows, so q = 1/2. The error is ε²-optimal for ε up to 1, at one bit beside the
row. At larger ε the error stays at that of one bit. A client with several votes sends only one of
them.

Reference: Acharya, Sun & Zhang, "Hadamard Response: Estimating Distributions Privately,
Efficiently, and with Little Communication", 2019.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.local import PureProtocol, exp, expm1, happens


class Message(NamedTuple):
    """Message: `row`, int32, and `bit`, int32 0 or 1."""

    row: jax.Array
    bit: jax.Array


@pytree.register
@dataclass(frozen=True)
class HadamardResponse(PureProtocol):
    """Sylvester's matrix of the least order above the number of cells; cell v has column v + 1."""

    @property
    def order(self) -> int:
        """Number of rows of the matrix, a power of two."""
        return 1 << self.num_cells.bit_length()

    @property
    def kept(self) -> float:
        """Probability e^ε/(e^ε + 1) that an entry is published as it is."""
        return 1 / (1 + exp(-self.epsilon))

    @property
    def p(self) -> float:
        """Probability (kept + (kr - 1)/2)/kr that a vote's cell is supported."""
        return (self.kept + (self.votes_per_record - 1) / 2) / self.votes_per_record

    @property
    def q(self) -> float:
        """Probability 1/2 that any other cell is supported."""
        return 0.5

    @property
    def advantage(self) -> float:
        """Difference p - q = (kept - 1/2)/kr."""
        return -expm1(-self.epsilon) * self.kept / (2 * self.votes_per_record)

    @property
    def total_variation(self) -> float:
        """Total variation bound, `kept` - 1/2, averaged over the row; see `LocalRandomizer`.

        It holds for one vote, and by convexity for one of many.
        """
        return self.votes_per_record * self.advantage

    @property
    def message_bits(self) -> int:
        """One bit; the row takes log2(order) more."""
        return 1

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return a row and a bit. `key` is consumed."""
        draws = jax.random.bits(key, (4,), jnp.uint32)
        row = (draws[0] & jnp.uint32(self.order - 1)).astype(jnp.int32)
        vote = cells[hashing.bucket(draws[1], len(cells))]
        flip = ~happens(draws[2], self.kept)
        entry = entries(row, vote + 1) ^ flip.astype(jnp.int32)
        return Message(row, jnp.where(vote < 0, (draws[3] >> 31).astype(jnp.int32), entry))

    def support(self, message: Message) -> jax.Array:
        """Return the cells whose entry is the bit."""
        return entries(message.row, jnp.arange(1, self.num_cells + 1)) == message.bit

    def aggregate(self, messages: Message) -> jax.Array:
        """Count the messages that support each cell, int32 `[num_totals]`.

        A message supports a cell if its sign is that of the cell's entry. So the signs of each row
        are summed, and one transform gives for every column how many more messages agree with it
        than not.
        """
        signs = 1 - 2 * messages.bit.astype(jnp.int32)
        by_row = jnp.zeros(self.order, jnp.int32).at[messages.row].add(signs)
        more = walsh_hadamard(by_row)[1 : self.num_cells + 1]
        totals: jax.Array = (len(signs) + more) // 2
        return totals

    def sample_totals(
        self, rng: np.random.Generator, votes: np.ndarray, clients: np.ndarray
    ) -> np.ndarray:
        """Draw the totals exactly; see `LocalRandomizer`.

        A client tells the truth with probability 2·`kept` - 1, and else sends a uniform bit, as
        without a vote. Truthful clients of one vote spread over the rows as a multinomial, so the
        time grows with cells times rows, not with clients.
        """
        width = self.votes_per_record
        sent = rng.multinomial(clients, np.full(width, 1 / width))  # [g, k·r]
        told = rng.binomial(np.where(votes < 0, 0, sent), math.tanh(self.epsilon / 2))
        evenly = np.full(self.order, 1 / self.order)
        drawn = rng.multinomial(clients.sum() - told.sum(), evenly)
        by_row = 2 * rng.binomial(drawn, 0.5) - drawn
        rows = np.arange(self.order)
        for vote in np.unique(votes[told > 0]):
            signs = 1 - 2 * (np.bitwise_count(rows & (vote + 1)).astype(np.int64) & 1)
            by_row += signs * rng.multinomial(told[votes == vote].sum(), evenly)
        more = walsh_hadamard(by_row)[1 : self.num_cells + 1]
        totals: np.ndarray = (clients.sum() + more) // 2
        return totals

    def valid(self, message: Message) -> jax.Array:
        """Return True if the row is in the matrix and the bit is 0 or 1."""
        return (
            (message.row >= 0)
            & (message.row < self.order)
            & (message.bit >= 0)
            & (message.bit <= 1)
        )

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its row; see `LocalRandomizer`."""
        agree = (
            np.asarray(entries(np.asarray(messages.row)[:, None], np.asarray(cells)[None] + 1))
            == np.asarray(messages.bit)[:, None]
        )
        told = np.where(agree, self.kept, 1 - self.kept)
        law: np.ndarray = np.log(np.where(np.asarray(cells)[None] < 0, 0.5, told).mean(axis=1))
        return law

    def alphabet(self, key: jax.Array) -> Message:
        """Return both bits under one row."""
        row = jax.random.randint(key, (), 0, self.order)
        return Message(jnp.tile(row, 2), jnp.arange(2))


def entries(row: Any, column: Any) -> jax.Array:
    """Return entries of Sylvester's matrix as 0 (for 1) and 1 (for -1).

    An entry is the parity of the bits that row and column share.
    """
    return (
        jax.lax.population_count(jnp.asarray(row, jnp.int32) & jnp.asarray(column, jnp.int32)) & 1
    )


def walsh_hadamard(values: Any) -> Any:
    """Return Sylvester's matrix times integers `[order]`, in order·log2(order) additions.

    NumPy integers stay so, of 64 bits.
    """
    library: Any = jnp if isinstance(values, jax.Array) else np
    half = 1
    while half < len(values):
        first, second = values.reshape(-1, 2, half).swapaxes(0, 1)
        values = library.stack([first + second, first - second], axis=1).reshape(-1)
        half *= 2
    return values


EXAMPLES = (HadamardResponse(1.0, 2, 3), HadamardResponse(2.0, 3, 2, num_neighbors=2))

"""Optimized unary encoding: one bit for every cell, set with probability 1/2 for a vote.

Any other bit is set with q = 1/(e^(ε/kr) + 1). A replaced record loses kr votes and gains kr. A
lost and a gained vote together change the odds by at most e^(ε/kr). Few cells are voted for, so it
pays to spend the budget on the zeros. The mechanism is never worse than randomized response at
equal epsilon.

Reference: Wang et al., "Locally Differentially Private Protocols for Frequency Estimation", 2017.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax._internal import pytree
from rknn_jax.mechanisms.local import (
    PureProtocol,
    all_bits,
    count_bits,
    exp,
    expm1,
    fits,
    packed,
    unpack,
    unpacked,
    voted_bits,
    voted_words,
)
from rknn_jax.mechanisms.randomized_response import bernoulli_bits, bits_total_variation
from rknn_jax.privacy.entropy import Entropy, at_least


@pytree.register
@dataclass(frozen=True)
class OptimizedUnaryEncoding(PureProtocol):
    """Asymmetric flips; a message is d bits, packed."""

    @property
    def q(self) -> float:
        """Probability that the bit of a cell without a vote is set."""
        return 1 / (exp(self.epsilon / self.votes_per_record) + 1)

    @property
    def p(self) -> float:
        """Probability 1/2 that the bit of a vote's cell is set."""
        return 0.5

    @property
    def advantage(self) -> float:
        """Difference p - q = 1/2 - q."""
        return expm1(self.epsilon / self.votes_per_record) * self.q / 2

    @property
    def total_variation(self) -> float:
        """Total variation distance for disjoint votes; see `LocalRandomizer`.

        Disjoint votes suffice, as all other bits are alike.
        """
        return bits_total_variation(self.p, self.q, self.votes_per_record)

    @property
    def message_bits(self) -> int:
        """One bit for every cell."""
        return self.num_cells

    def randomize(self, key: jax.Array, cells: jax.Array) -> jax.Array:
        """Return bits, uint32 `[ceil(d / 32)]`. `key` is consumed."""
        votes_key, other_key = jax.random.split(key)
        cells = bsvs.once(cells)
        kept = (cells >= 0) & (jax.random.bits(votes_key, cells.shape, jnp.uint32) >> 31 == 1)
        voted, set_bits = (
            voted_words(votes, self.num_cells) for votes in (cells, jnp.where(kept, cells, -1))
        )
        return set_bits | ~voted & bernoulli_bits(other_key, self.q, self.num_cells)

    def respond(self, entropy: Entropy, cells: np.ndarray) -> np.ndarray:
        """Return exact messages, with other bits set at q rounded up; see `LocalRandomizer`."""
        words = entropy.words(len(cells), self.num_cells)
        return packed(
            words
            < np.where(
                voted_bits(cells, self.num_cells), np.uint64(2**63), np.uint64(at_least(self.q))
            )
        )

    def support(self, message: jax.Array) -> jax.Array:
        """Return a mask of the supported cells: the message's bits."""
        return unpack(message, self.num_cells)

    def aggregate(self, messages: jax.Array) -> jax.Array:
        """Count the messages that support each cell; see `LocalRandomizer`."""
        return count_bits(messages, self.num_cells)

    def valid(self, message: jax.Array) -> jax.Array:
        """Return True if no bit is set but those of the cells."""
        return fits(message, self.num_cells)

    def hit_law(self, hits: np.ndarray) -> np.ndarray:
        """Return the law of independent bits; see `LocalRandomizer`."""
        law: np.ndarray = np.prod(np.where(hits, self.p, 1 - self.p), axis=1)
        return law

    def log_prob(self, messages: jax.Array, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message; see `LocalRandomizer`."""
        voted = np.isin(np.arange(self.num_cells), cells)
        chance = np.where(voted, self.p, self.q)
        law: np.ndarray = np.where(
            unpacked(messages, self.num_cells), np.log(chance), np.log1p(-chance)
        ).sum(axis=-1)
        return law

    def alphabet(self, key: jax.Array) -> jax.Array:
        """Return all 2^d messages."""
        del key
        return all_bits(self.num_cells)


EXAMPLES = (OptimizedUnaryEncoding(1.0, 2, 3), OptimizedUnaryEncoding(2.0, 3, 2, num_neighbors=2))

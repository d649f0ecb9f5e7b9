"""Randomized response: one bit for every cell, each flipped with probability q = 1/(e^(ε/2kr) + 1).

Replacing a record changes at most 2kr bits, by a factor of at most e^(ε/2kr) each, and two records of disjoint votes reach e^ε. Bits are
drawn 32 at a time: a word of Bernoulli(q) bits combines one uniform word for each binary digit of q.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", section on local mechanisms.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import hashing, pytree
from rknn_jax.mechanisms.local import WORD, PureProtocol, all_bits, exp, expm1, one_hot, pack, unpack

DIGITS = 24  # binary ones of a simulated probability


@pytree.register
@dataclass(frozen=True)
class RandomizedResponse(PureProtocol):
    """Symmetric flips; a message is d bits, packed."""

    @property
    def q(self) -> float:
        """Probability of a flip."""
        return 1 / (exp(self.epsilon / (2 * self.votes_per_record)) + 1)

    @property
    def p(self) -> float:
        """1 - q."""
        return 1 - self.q

    @property
    def advantage(self) -> float:
        """1 - 2q."""
        return expm1(self.epsilon / (2 * self.votes_per_record)) * self.q

    @property
    def message_bits(self) -> int:
        """One for every cell."""
        return self.num_cells

    def randomize(self, key: jax.Array, cells: jax.Array) -> jax.Array:
        """Return flipped bits, uint32 `[ceil(d / 32)]`. `key` is consumed."""
        return pack(one_hot(cells, self.num_cells)) ^ bernoulli_bits(key, self.q, self.num_cells)

    def support(self, message: jax.Array) -> jax.Array:
        """Return the bits."""
        return unpack(message, self.num_cells)

    def hit_law(self, hits: np.ndarray) -> np.ndarray:
        """Return the law of independent bits; see `LocalRandomizer`."""
        return np.prod(np.where(hits, self.p, 1 - self.p), axis=1)

    def log_prob(self, messages: jax.Array, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message; see `LocalRandomizer`."""
        flipped = np.asarray(jax.vmap(self.support)(messages)) != np.isin(np.arange(self.num_cells), cells)
        return np.sum(np.where(flipped, np.log(self.q), np.log(self.p)), axis=-1)

    def alphabet(self, key: jax.Array) -> jax.Array:
        """Return all 2^d messages."""
        del key
        return all_bits(self.num_cells)


def bernoulli_bits(key: jax.Array, probability: Any, count: int) -> jax.Array:
    """Return independent Bernoulli bits, packed, uint32 `[ceil(count / 32)]`, of a probability rounded to 2^-24. `key` is consumed.

    Uniform words come from a counter hash, good enough to simulate with and never to release with. A bit is 1 iff a uniform number is below
    the probability, compared digit by digit from the last: where the digit is 1, OR with a uniform bit, else AND.
    """
    num_words = -(-count // WORD)
    seed = jax.random.bits(key, (2,), jnp.uint32)
    uniform = hashing.mix(seed, jnp.arange(DIGITS * num_words)).reshape(DIGITS, num_words)
    digits = jnp.round(jnp.asarray(probability, jnp.float32) * 2**DIGITS).astype(jnp.uint32) >> jnp.arange(
        DIGITS, dtype=jnp.uint32
    ) & jnp.uint32(1)
    words = jnp.zeros(num_words, jnp.uint32)
    for digit in range(DIGITS):
        words = jnp.where(digits[digit] == 1, uniform[digit] | words, uniform[digit] & words)
    return words & pack(jnp.ones(count, bool))


EXAMPLES = (RandomizedResponse(1.0, 2, 3), RandomizedResponse(2.0, 3, 2, num_neighbors=2))

"""Randomized response: one bit for every cell, each flipped with probability q.

q = 1/(e^(ε/2kr) + 1). Replacing a record changes at most 2kr bits, by a factor of at most e^(ε/2kr)
each, and two records of disjoint votes reach e^ε. Bits are drawn 32 at a time: a word of
Bernoulli(q) bits combines one uniform word for each binary digit of q.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", section on local mechanisms.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import kernels
from rknn_jax._internal import pytree
from rknn_jax.kernels import hashing, native
from rknn_jax.mechanisms.local import (
    WORD,
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
from rknn_jax.privacy.entropy import Entropy, at_least

DIGITS = 24  # binary digits of a simulated probability
FEWEST_WORDS = 8  # fewer words of a client do not fill the vectors of the native kernel


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
        """Probability 1 - q that a vote's bit is set."""
        return 1 - self.q

    @property
    def advantage(self) -> float:
        """Difference p - q = 1 - 2q."""
        return expm1(self.epsilon / (2 * self.votes_per_record)) * self.q

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
        """Return flipped bits, uint32 `[ceil(d / 32)]`. `key` is consumed."""
        return voted_words(cells, self.num_cells) ^ bernoulli_bits(key, self.q, self.num_cells)

    def respond(self, entropy: Entropy, cells: np.ndarray) -> np.ndarray:
        """Return exact messages, with flips at q rounded up; see `LocalRandomizer`."""
        flips = entropy.words(len(cells), self.num_cells) < np.uint64(at_least(self.q))
        return packed(voted_bits(cells, self.num_cells) ^ flips)

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
        flipped = unpacked(messages, self.num_cells) != np.isin(np.arange(self.num_cells), cells)
        law: np.ndarray = np.sum(np.where(flipped, np.log(self.q), np.log(self.p)), axis=-1)
        return law

    def alphabet(self, key: jax.Array) -> jax.Array:
        """Return all 2^d messages."""
        del key
        return all_bits(self.num_cells)


def bernoulli_bits(key: jax.Array, probability: Any, count: int, digits: int = DIGITS) -> jax.Array:
    """Return independent Bernoulli bits, packed, uint32 `[ceil(count / 32)]`. `key` is consumed.

    The probability is rounded up to a multiple of 2^-digits. Uniform words come from a counter
    hash, which is good enough for simulation and never for release. At the default of 24 digits,
    probabilities are resolved twice as finely as by `jax.random.bernoulli`, which spends a word on
    every bit.
    """
    seed = jax.random.bits(key, (2,), jnp.uint32)
    # The flip probability is rounded up, so that no bit is safe from a flip.
    share = jnp.ceil(jnp.asarray(probability, jnp.float32) * 2**digits)
    threshold = jnp.minimum(share, 2**digits - 1).astype(jnp.uint32)
    return bits_below(seed, threshold, count, digits)


def bits_below(
    seed: jax.Array,
    threshold: jax.Array,
    count: int,
    digits: int,
    *,
    implementation: kernels.Implementation | None = None,
) -> jax.Array:
    """Compare random numbers with a threshold, and pack the results.

    Args:
      seed: Seed of the numbers, uint32 `[2]`.
      threshold: Threshold, a uint32 scalar below 2^digits.
      count: Number of numbers.
      digits: Number of binary digits of a number.
      implementation: Name of the kernel, as `kernels.chosen` takes it; there is none for GPUs.
        Defaults to the platform's best. The native kernel leaves out the digits of numbers that are
        decided.

    Returns:
      Bits that are 1 iff their number is below the threshold, uint32 `[ceil(count / 32)]`.
    """
    num_words = -(-count // WORD)
    if implementation is None and num_words < FEWEST_WORDS:
        implementation = "xla"
    if kernels.chosen(implementation, None, _native_agrees) == "native":
        bits = jax.ShapeDtypeStruct((num_words,), jnp.uint32)
        settings = {"count": np.int64(count), "digits": np.int64(digits)}
        drawn: jax.Array = native.call("rknn_bernoulli", bits, seed, threshold, **settings)
        return drawn
    uniform = [
        hashing.mix(seed, jnp.arange(num_words) + digit * num_words) for digit in range(digits)
    ]
    used = np.full(num_words, 2**WORD - 1, np.uint32)
    used[-1] >>= -count % WORD
    return below(uniform, threshold) & used


def _native_agrees() -> bool:
    """Compare the native kernel with XLA on the bits of a few seeds."""
    seeds = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (3, 2), np.uint32))
    thresholds = jnp.asarray([0, 0x123456, 2**DIGITS - 1], jnp.uint32)

    def run(form: kernels.Implementation) -> jax.Array:
        draw = functools.partial(bits_below, count=999, digits=DIGITS, implementation=form)
        drawn: jax.Array = jax.vmap(draw)(seeds, thresholds)
        return drawn

    return kernels.native_agrees(run)


def below(uniform: Sequence[jax.Array], threshold: jax.Array) -> jax.Array:
    """Compare 32 numbers a word with a threshold, digit by digit from the last.

    Args:
      uniform: Words, uint32, one array for each digit, the last digit first. A word holds one digit
        of 32 numbers, complemented.
      threshold: Threshold, a uint32 scalar below 2^len(uniform).

    Returns:
      Words of bits that are 1 iff their number is below the threshold.
    """
    words = jnp.zeros_like(uniform[0])
    for position, ones in enumerate(uniform):
        digit = jnp.uint32(0) - (threshold >> position & jnp.uint32(1))  # all ones for digit 1
        # OR for digit 1 of the threshold, AND for digit 0.
        words = ones & words | digit & (ones | words)
    return words


def bits_total_variation(p: float, q: float, count: int) -> float:
    """Return the total variation distance of two laws of independent bits.

    One sets bits with p at `count` places and with q at as many others; the other law swaps p and
    q. The odds of the two depend on A - B alone. A ~ Bin(count, p) counts bits set at the first
    places, and B ~ Bin(count, q) those at the others. The distance is P(A > B) - P(A < B).
    """
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, [q * (1 - p), p * q + (1 - p) * (1 - q), p * (1 - q)])
    return float(law[count + 1 :].sum() - law[:count].sum())


EXAMPLES = (RandomizedResponse(1.0, 2, 3), RandomizedResponse(2.0, 3, 2, num_neighbors=2))

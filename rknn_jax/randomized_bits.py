"""One randomized bit of each record that checks labels, where nobody is trusted.

A bit says whether a record agrees with the labels near it. Randomized response makes it
epsilon-DP by itself, before it leaves the record. `randomized` simulates it. A client of a
federation sends the message of `RandomizedBit`, which is exact.

Reference: Warner, "Randomized Response", 1965.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import betaincinv

from rknn_jax._internal import pytree
from rknn_jax.answers.measured import CONFIDENCE, Interval
from rknn_jax.mechanisms.local import PureProtocol, exp
from rknn_jax.privacy.entropy import Entropy, at_most

AGREES, DIFFERS = range(2)
"""Cells of a bit: the labels near a record have its class, or they do not."""


def keep_probability(epsilon: float) -> float:
    """Return the probability e^epsilon/(1 + e^epsilon) that randomized response keeps a bit."""
    return 1 / (1 + math.exp(-epsilon))


def randomized(key: jax.Array, bits: np.ndarray, epsilon: float) -> np.ndarray:
    """Return bits by randomized response, bool `[c]`, in simulation: each is epsilon-DP by itself.

    Args:
      key: Random key, which is consumed.
      bits: True bits, bool `[c]`.
      epsilon: Epsilon of a bit; infinity keeps all.
    """
    size = 1 << len(bits).bit_length()  # few sizes make few programs
    kept = np.asarray(jax.random.bernoulli(key, keep_probability(epsilon), (size,)))[: len(bits)]
    sent: np.ndarray = kept == bits
    return sent


def debiased(share: float, epsilon: float) -> float:
    """Return the share of true bits that gives a share of randomized ones on average.

    It is an unbiased estimate if `share` was counted, and may then be below 0 or above 1.

    Args:
      share: Share of randomized bits that are 1.
      epsilon: Epsilon of a bit.
    """
    return (share - 1 + keep_probability(epsilon)) / math.tanh(epsilon / 2)


def interval_of_bits(ones: int, size: int, epsilon: float) -> Interval:
    """Return a share with its 95% interval, from randomized bits.

    If records that agree have a share p, each bit is 1 with the probability that `debiased` maps
    back to p, and bits are independent. So their sum is binomial, and Clopper and Pearson's
    interval, mapped back, has chance and noise in one law.

    Args:
      ones: Number of randomized bits that are 1.
      size: Number of bits, at least 1.
      epsilon: Epsilon of a bit.
    """
    tail = (1 - CONFIDENCE) / 2
    low = betaincinv(ones, size - ones + 1, tail) if ones else 0.0
    high = betaincinv(ones + 1, size - ones, 1 - tail) if ones < size else 1.0
    found = (min(max(debiased(share, epsilon), 0.0), 1.0) for share in (ones / size, low, high))
    return Interval(*map(float, found))


@pytree.register
@dataclass(frozen=True)
class RandomizedBit(PureProtocol):
    """Randomized response on the cells `AGREES` and `DIFFERS`: one query of two classes.

    A record without a vote, which cannot be used, is one that differs. So a message is one of two,
    and not of three as under `mechanisms.generalized_randomized_response`.
    """

    independent_elsewhere: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_cells, self.votes_per_record) != (2, 1):
            raise ValueError(
                f"Expected one vote of a record for one of two cells, got {self.votes_per_record} "
                f"for one of {self.num_cells}; use mechanisms.generalized_randomized_response."
            )

    @property
    def p(self) -> float:
        """Probability e^ε/(e^ε + 1) that the cell is published."""
        return 1 / (1 + exp(-self.epsilon))

    @property
    def q(self) -> float:
        """Probability 1/(e^ε + 1) of the other cell."""
        return self.p * exp(-self.epsilon)

    @property
    def advantage(self) -> float:
        """Difference p - q = tanh(ε/2)."""
        return self.total_variation

    @property
    def message_bits(self) -> int:
        """One."""
        return 1

    def randomize(self, key: jax.Array, cells: jax.Array) -> jax.Array:
        """Return a cell, int32. `key` is consumed."""
        kept = jax.random.bernoulli(key, self.p)
        return jnp.where(kept, _cell(cells[0]), 1 - _cell(cells[0])).astype(jnp.int32)

    def respond(self, entropy: Entropy, cells: np.ndarray) -> np.ndarray:
        """Return exact messages, the cell at p rounded down; see `LocalRandomizer`."""
        kept = entropy.words(len(cells)) < np.uint64(at_most(self.p))
        true = np.where(cells[:, 0] == AGREES, AGREES, DIFFERS)
        return np.where(kept, true, 1 - true).astype(np.int32)

    def support(self, message: jax.Array) -> jax.Array:
        """Return the published cell."""
        return message == jnp.arange(self.num_cells)

    def valid(self, message: jax.Array) -> jax.Array:
        """Return True if the message is a cell."""
        return (message >= 0) & (message < self.num_cells)

    def log_prob(self, messages: jax.Array, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message; see `LocalRandomizer`."""
        true = AGREES if cells[0] == AGREES else DIFFERS
        return np.log(np.where(np.asarray(messages) == true, self.p, self.q))

    def alphabet(self, key: jax.Array) -> jax.Array:
        """Return both cells."""
        del key
        return jnp.arange(self.num_cells)


def _cell(cell: jax.Array) -> jax.Array:
    return jnp.where(cell == AGREES, AGREES, DIFFERS)

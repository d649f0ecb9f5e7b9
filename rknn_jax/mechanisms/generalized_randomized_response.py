"""Generalized randomized response: publish the vote with probability p, or any other cell.

A record has one vote. A message is one of d + 1 symbols, the last one for "no vote": p = e^ε/(e^ε +
d) and q = 1/(e^ε + d). It is the simplest randomizer, and a good one if e^ε exceeds the number of
cells.

Reference: Kairouz, Oh & Viswanath, "Extremal Mechanisms for Local Differential Privacy", 2016.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.mechanisms.local import PureProtocol, exp, expm1
from rknn_jax.privacy.entropy import Entropy, at_most


@pytree.register
@dataclass(frozen=True)
class GeneralizedRandomizedResponse(PureProtocol):
    """Generalized randomized response, for one vote a record: k = r = 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.votes_per_record != 1:
            raise ValueError(
                f"Expected num_neighbors = labels_per_record = 1, got {self.votes_per_record} "
                "votes a record; use SubsetSelection."
            )

    @property
    def p(self) -> float:
        """Probability e^ε/(e^ε + d) that the vote is published."""
        return 1 / (1 + self.num_cells * exp(-self.epsilon))

    @property
    def q(self) -> float:
        """Probability 1/(e^ε + d) of any other symbol."""
        return self.p * exp(-self.epsilon)

    @property
    def advantage(self) -> float:
        """Difference p - q = p(1 - e^-ε)."""
        return -expm1(-self.epsilon) * self.p

    @property
    def total_variation(self) -> float:
        """Total variation distance p - q of any two inputs; see `LocalRandomizer`."""
        return self.advantage

    @property
    def message_bits(self) -> int:
        """Bits of a cell or none."""
        return math.ceil(math.log2(self.num_cells + 1))

    def randomize(self, key: jax.Array, cells: jax.Array) -> jax.Array:
        """Return a cell, int32, or d for none. `key` is consumed."""
        keep_key, step_key = jax.random.split(key)
        vote = jnp.where(cells[0] < 0, self.num_cells, cells[0])
        step = jax.random.randint(step_key, (), 1, self.num_cells + 1)
        lie = jnp.minimum(
            jnp.ceil(self.num_cells * self.q * jnp.float32(2.0**32)), 2.0**32 - 2.0**8
        ).astype(jnp.uint32)
        # The lie's probability is rounded up, so it is never 0.
        keep = jax.random.bits(keep_key, (), jnp.uint32) >= lie
        return jnp.where(keep, vote, (vote + step) % (self.num_cells + 1)).astype(jnp.int32)

    def respond(self, entropy: Entropy, cells: np.ndarray) -> np.ndarray:
        """Return exact messages, the vote at p rounded down; see `LocalRandomizer`."""
        vote = np.where(cells[:, 0] < 0, self.num_cells, cells[:, 0])
        keep = entropy.words(len(cells)) < np.uint64(at_most(self.p))
        step = 1 + entropy.below(np.full(len(cells), self.num_cells))
        return np.where(keep, vote, (vote + step) % (self.num_cells + 1)).astype(np.int32)

    def support(self, message: jax.Array) -> jax.Array:
        """Return the published cell."""
        return message == jnp.arange(self.num_cells)

    def aggregate(self, messages: jax.Array) -> jax.Array:
        """Count the messages of each cell, int32 `[num_totals]`."""
        counts = jnp.zeros(self.num_cells + 1, jnp.int32).at[messages].add(1)
        return counts[:-1]

    def valid(self, message: jax.Array) -> jax.Array:
        """Return True if the symbol is a cell or none."""
        return (message >= 0) & (message <= self.num_cells)

    def sample_totals(
        self, rng: np.random.Generator, votes: np.ndarray, clients: np.ndarray
    ) -> np.ndarray:
        """Draw the totals exactly; see `LocalRandomizer`.

        A message that is not surely the vote is a uniform symbol, the vote's included.
        """
        symbols = np.where(votes[:, 0] < 0, self.num_cells, votes[:, 0])
        told = rng.binomial(clients, self.advantage)
        totals = rng.multinomial(
            clients.sum() - told.sum(), np.full(self.num_cells + 1, 1 / (self.num_cells + 1))
        )
        np.add.at(totals, symbols, told)
        return totals[:-1]

    def log_prob(self, messages: jax.Array, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message; see `LocalRandomizer`."""
        vote = cells[0] if cells[0] >= 0 else self.num_cells
        return np.log(np.where(np.asarray(messages) == vote, self.p, self.q))

    def alphabet(self, key: jax.Array) -> jax.Array:
        """Return all symbols."""
        del key
        return jnp.arange(self.num_cells + 1)


EXAMPLES = (GeneralizedRandomizedResponse(1.0, 2, 3),)

"""Binomial noise on every cell, which clients can add in shares: each tosses coins of its own, and
only the sum is ever seen.

The heads of N fair coins hide a vote, and it does not matter who tosses them: of `shares` clients
each adds the heads of ceil(N/`shares`) coins to its own counts. Secure aggregation shows their sum
alone, which then is (epsilon, delta)-DP without a curator, as long as so many clients toss as told;
more clients add more noise, no risk. Coins are exact, sums of shares are binomial again, and the
privacy loss is that of N coins, composed over the cells that a neighbour changes: no approximation
by a Gaussian, whose noise it has otherwise.

References: Dwork et al., "Our Data, Ourselves: Privacy via Distributed Noise Generation", 2006;
Agarwal et al., "cpSGD: Communication-efficient and differentially-private distributed SGD", 2018.
"""

import functools
import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import accounting
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Event, Guarantee
from rknn_jax.types import Array

WORD = 64
BYTES_AT_ONCE = 2**25


@pytree.register
@dataclass(frozen=True)
class Binomial(CentralMechanism):
    """(epsilon, delta)-DP on integers.

    Guarantee: as long as `shares` clients toss their coins, whatever all others send, for whoever
    sees nothing but the sum.

    Attributes:
      delta: in (0, 1).
      shares: clients whose coins suffice; 1 is a curator.
      records: whose votes a neighbour changes, each cell by 1 at most; more than 1 where all that a
        client holds is protected.
      coins: N, a multiple of `shares`; computed, what is passed is overwritten wherever epsilon and
        delta are numbers.
    """

    delta: float = field(default=1e-6, metadata=pytree.STATIC)
    shares: int = field(default=1, metadata=pytree.STATIC)
    records: int = field(default=1, metadata=pytree.STATIC)
    coins: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.delta < 1:
            raise ValueError(
                f"Expected 0 < delta < 1, got delta={self.delta}; coins hide a vote at a "
                "positive delta only, such as 1e-6."
            )
        for name in ("shares", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if isinstance(self.epsilon, int | float):
            needed = (
                0
                if self.epsilon == math.inf
                else _coins(self.epsilon, self.delta, self.changed_cells)
            )
            object.__setattr__(self, "coins", -(-needed // self.shares) * self.shares)

    @property
    def changed_cells(self) -> int:
        """How many cells a neighbour changes, each by at most 1."""
        return self.records * super().changed_cells

    @property
    def coins_per_share(self) -> int:
        """Of one client and cell."""
        return (self.coins or 0) // self.shares

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add the noise of all shares, less its mean, float32 `[num_queries, num_classes]`.

        `key` is consumed.
        """
        del num_records
        heads = jax.random.binomial(key, jnp.float32(self.coins), 0.5, self.shape, jnp.float32)
        return totals.reshape(self.shape).astype(jnp.float32) + heads - jnp.float32(self.coins) / 2

    def share(self, entropy: Entropy) -> np.ndarray:
        """Return one client's noise, int64 `[num_queries·num_classes]`: heads of
        `coins_per_share` coins a cell, its mean not taken off.
        """
        return heads(entropy, self.coins_per_share, self.num_cells)

    def without_mean(self, totals: np.ndarray, clients: int) -> np.ndarray:
        """Return the noisy counts, float64 `[num_queries, num_classes]`, from the sum of so many
        clients' counts and shares.
        """
        return (totals - clients * self.coins_per_share / 2).reshape(self.shape)

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Add exact noise; see `CentralMechanism.release`.

        Half a vote is cut off where the number of coins is odd.
        """
        noise = heads(Entropy.fresh(), self.coins or 0, self.num_cells).reshape(self.shape)
        return np.asarray(totals, np.int64) + noise - (self.coins or 0) // 2

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return sqrt(N)/2 for every cell, of `shares` clients; sqrt of their number over that,
        times this, where more toss.
        """
        del num_records
        return np.broadcast_to(math.sqrt(self.coins or 0) / 2, np.shape(counts))

    def guarantee(self, num_records: int) -> Guarantee:
        """Return (epsilon, delta)-DP."""
        del num_records
        if not self.coins:
            return Guarantee(math.inf, 0.0, self.relation, "central", ())
        event = Event("binomial", math.sqrt(self.coins) / 2, self.changed_cells)
        return Guarantee(
            self.epsilon, self.delta, self.relation, "central", (event,), accountant="PLD"
        )


def heads(entropy: Entropy, coins: int, count: int) -> np.ndarray:
    """Return how many of so many fair coins show heads, exactly, int64 `[count]`."""
    found = np.zeros(count, np.int64)
    words = -(-coins // WORD)
    at_once = max(1, BYTES_AT_ONCE // (8 * count))
    for start in range(0, words, at_once):
        drawn = entropy.words(count, min(at_once, words - start))
        if start + drawn.shape[1] == words and coins % WORD:
            drawn = np.concatenate(
                [drawn[:, :-1], drawn[:, -1:] >> np.uint64(WORD - coins % WORD)], axis=1
            )
        found += np.bitwise_count(drawn).sum(axis=1, dtype=np.int64)
    return found


@functools.cache
def _coins(epsilon: float, delta: float, count: int) -> int:
    return accounting.binomial_coins(epsilon, delta, count)


EXAMPLES = (
    Binomial(1.0, 4, 3, delta=1e-3),
    Binomial(0.5, 4, 2, num_neighbors=2, relation="add-remove", delta=1e-4, shares=7),
)

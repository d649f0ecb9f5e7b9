"""Binomial noise on every cell, which clients can add in shares.

The heads of N fair coins hide a vote, and it does not matter who tosses the coins. Each of `shares`
clients adds the heads of ceil(N/`shares`) coins to its own counts. Secure aggregation reveals only
their sum, which is then (epsilon, delta)-DP without a curator, as long as that many clients toss as
told. More clients add more noise and no risk. Coins are exact, and sums of shares are binomial
again. The privacy loss is that of N coins, composed over the cells that a neighbor changes. It is
no approximation by a Gaussian, though the noise is about as large.

References: Dwork et al., "Our Data, Ourselves: Privacy via Distributed Noise Generation", 2006;
Agarwal et al., "cpSGD: Communication-efficient and differentially-private distributed SGD", 2018.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import calibration, events
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array

WORD = 64
BYTES_AT_ONCE = 2**25

MOST_COINS = 2**27
"""Most coins of a client and cell, so that counts and coins fit into a secure sum."""

MOST_COINS_OF_ALL_CELLS = 2**36
"""Most coins of a client, who tosses a billion in a second."""

MOST_COINS_IN_FLOAT32 = 2**20
"""Most coins in a simulation: of more, the float32 of `jax.random.binomial` are other numbers."""


@pytree.register
@dataclass(frozen=True)
class Binomial(CentralMechanism):
    """(epsilon, delta)-DP on integers.

    Guarantee: holds against everyone who sees only the sum, as long as `shares` clients toss their
    coins, whatever all others send.

    Attributes:
      delta: Delta, in (0, 1). Defaults to 1e-6.
      shares: Number of clients whose coins suffice; 1 is a curator. Defaults to 1.
      records: Number of records whose votes a neighbor changes, each cell by at most 1. More than 1
        protects all that a client holds. Defaults to 1.
      coins: Number of coins N, a multiple of `shares`. It is computed, and overwrites a given value
        if epsilon and delta are numbers.
    """

    needs_delta: ClassVar[bool] = True
    adds_shares: ClassVar[bool] = True

    delta: float = field(default=1e-6, metadata=pytree.STATIC)
    shares: int = field(default=1, metadata=pytree.STATIC)
    records: int = field(default=1, metadata=pytree.STATIC)
    coins: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit != "record":
            raise ValueError(
                f"Expected unit=record for coins, which hide whole votes, got unit={self.unit}; "
                "use discrete_laplace."
            )
        if not 0 < self.delta < 1:
            raise ValueError(
                f"Expected 0 < delta < 1, got delta={self.delta}; coins hide a vote at a "
                "positive delta only, such as 1e-6."
            )
        for name in ("shares", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if not isinstance(self.epsilon, int | float):
            return  # it is traced, and so is the number of coins
        needed = 0
        if self.epsilon < math.inf:
            needed = _coins(self.epsilon, self.delta, self.changed_cells)
        object.__setattr__(self, "coins", -(-needed // self.shares) * self.shares)
        most = min(MOST_COINS, MOST_COINS_OF_ALL_CELLS // self.num_cells)
        if self.coins_per_share > most:
            raise ValueError(
                f"Expected at most {most} coins of a client and cell, got {self.coins_per_share} "
                f"for epsilon={self.epsilon}; raise epsilon, delta, or the number of honest "
                "clients, or use another mechanism."
            )

    @property
    def changed_cells(self) -> int:
        """Number of cells that a neighbor changes, each by at most 1."""
        return self.records * super().changed_cells

    @property
    def coins_per_share(self) -> int:
        """Number of coins of one client for one cell."""
        return (self.coins or 0) // self.shares

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add the noise of all shares, less its mean, float32 `[num_queries, num_classes]`.

        Of more than a million coins, it is the noise of a million, made as wide.

        `key` is consumed.
        """
        del num_records
        coins = jnp.float32(self.coins)
        tossed = jnp.minimum(coins, MOST_COINS_IN_FLOAT32)
        noise = jax.random.binomial(key, tossed, 0.5, self.shape, jnp.float32) - tossed / 2
        wide = jnp.round(noise * jnp.sqrt(coins / jnp.maximum(tossed, 1)))
        noise = jnp.where(coins > tossed, wide, noise)
        counts: jax.Array = totals.reshape(self.shape).astype(jnp.float32) + noise
        return counts

    def share(self, entropy: Entropy) -> np.ndarray:
        """Return one client's noise, int64 `[num_queries·num_classes]`.

        The noise is the heads of `coins_per_share` coins a cell; its mean is not subtracted.
        """
        return heads(entropy, self.coins_per_share, self.num_cells)

    def without_mean(self, totals: np.ndarray, clients: int) -> np.ndarray:
        """Subtract the mean of the noise, float64 `[num_queries, num_classes]`.

        Args:
          totals: Sum of the clients' counts and shares.
          clients: Number of clients that sent a share.
        """
        return (totals - clients * self.coins_per_share / 2).reshape(self.shape)

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Add exact noise; see `CentralMechanism.release`.

        Half a vote of the noise's mean remains if the number of coins is odd.
        """
        noise = heads(Entropy.fresh(), self.coins or 0, self.num_cells).reshape(self.shape)
        counts: np.ndarray = np.asarray(totals, np.int64) + noise - (self.coins or 0) // 2
        return counts

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return sqrt(N)/2 for every cell, for `shares` clients.

        If c clients toss coins, multiply by sqrt(c/`shares`).
        """
        del num_records
        return np.broadcast_to(math.sqrt(self.coins or 0) / 2, np.shape(counts))

    def guarantee(self, num_records: int) -> Guarantee:
        """Return (epsilon, delta)-DP."""
        del num_records
        if not self.coins:
            return Guarantee(math.inf, 0.0, self.relation, trust="central", events=())
        event = events.Binomial(math.sqrt(self.coins) / 2, self.changed_cells)
        return Guarantee(
            self.epsilon,
            self.delta,
            self.relation,
            trust="central",
            events=(event,),
            accountant="PLD",
        )


def heads(entropy: Entropy, coins: int, count: int) -> np.ndarray:
    """Return exact numbers of heads among `coins` fair coins, int64 `[count]`."""
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
    return calibration.binomial_coins(epsilon, delta, count)


def __getattr__(name: str) -> tuple[Binomial, ...]:
    """Return `EXAMPLES`, made late: their calibration takes a second."""
    if name != "EXAMPLES":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return (
        Binomial(1.0, 4, 3, delta=1e-3),
        Binomial(0.5, 4, 2, num_neighbors=2, relation="add-remove", delta=1e-4, shares=7),
    )

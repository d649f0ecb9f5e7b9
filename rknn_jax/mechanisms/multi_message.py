"""Multi-message counting: clients' anonymous noise messages add up to a curator's noise.

A message is a cell and a sign. A client sends (+) for each of its votes. For every cell it also
sends n₁ + n₃ further (+) and n₂ + n₃ (-). The server counts (+) less (-). The noise relies on h =
κ·n clients. Over them, shares of NB(1/h, a) sum to geometric n₁ and n₂ of ratio a = e^-ε_c. Their
difference is exactly discrete Laplace noise of scale 1/ε_c. n₃ ~ NB(r/h, p) cancels, and hides how
large n₁ and n₂ were (`privacy.flooding`). Messages of more clients are independent noise, and add
no risk.

Neighbors move 2kr cells by at most 1. Each cell has ε/(2kr) = ε_c + ε₁ and δ/(2kr), of which ε₁, a
share γ, belongs to the flooding. The noise is 1/(1 - γ) times a curator's, and the number of
messages grows as 1/γ. At n = 60,000, d = 100, ε = 1 and δ = 1e-6, γ = 0.1 gives up 11% of accuracy
for 3 messages a client. γ = 0.05 saves 5% of the noise and sends 5. Adding up over the cells is
loose, since the worst losses of two cells seldom coincide.

Trust: the shuffler mixes all messages of all clients, so that nobody learns who sent a message or
how many a client sent. κ·n clients draw their noise as told.

Reference: Ghazi et al., "Private Counting from Anonymous Messages: Near-Optimal Accuracy with
Vanishing Communication Overhead", 2020.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CalibratedMechanism
from rknn_jax.privacy.flooding import NONE, Flooding, above, law, odds, published, tight
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array

CLUSTERS_AT_ONCE = 2  # With a million clients, most send fewer at 5,000 cells.
RULES: dict[str, Callable[[float, float, float], Flooding]] = {
    "tight": tight,
    "published": published,
}


@pytree.register
@dataclass(frozen=True)
class MultiMessage(CalibratedMechanism):
    """(epsilon, delta)-DP of all shuffled messages together.

    A client's message is int32 `[2, num_queries·num_classes]`: how often it sends each cell with
    (+) and with (-).

    Guarantee: holds as long as `honest_clients` clients take part, whatever all others send.

    Attributes:
      num_clients: Number of clients n for which the shares of noise are made.
      delta: Delta, in (0, 1). Defaults to 1e-6.
      gamma: Share γ of epsilon for the flooding, in (0, 1). Defaults to 0.1.
      honest_share: Share κ of the clients whose noise suffices; the rest may drop out or collude.
        Defaults to 1.
      flooding: `tight` for the exact δ; `published` for the reference's formula, which sends 6
        times as many messages or more. Defaults to `tight`.
      flooding_shape: Shape r of the flooding. It is computed, and overwrites a given value if
        epsilon, delta and gamma are numbers.
      flooding_decay: Decay -ln p of the flooding, computed as `flooding_shape` is.
    """

    trusts: ClassVar[tuple[str, ...]] = ("shuffle",)

    num_clients: int = field(kw_only=True, metadata=pytree.STATIC)
    delta: float = 1e-6
    gamma: float = 0.1
    honest_share: float = field(default=1.0, metadata=pytree.STATIC)
    flooding: Literal["tight", "published"] = field(default="tight", metadata=pytree.STATIC)
    flooding_shape: Any = None  # A float, or a tracer under jit.
    flooding_decay: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_clients < 1:
            raise ValueError(f"Expected num_clients >= 1, got num_clients={self.num_clients}.")
        if not 0 < self.honest_share <= 1:
            raise ValueError(
                f"Expected 0 < honest_share <= 1, got honest_share={self.honest_share}; 1 relies "
                "on all clients."
            )
        if self.flooding not in RULES:
            raise ValueError(
                f"Expected flooding to be one of {tuple(RULES)}, got flooding={self.flooding!r}."
            )
        if not all(
            isinstance(value, int | float) for value in (self.epsilon, self.delta, self.gamma)
        ):
            return
        if not 0 < self.delta < 1:
            raise ValueError(
                f"Expected 0 < delta < 1, got delta={self.delta}; messages hide a vote at a "
                "positive delta only, such as 1e-6."
            )
        if not 0 < self.gamma < 1:
            raise ValueError(
                f"Expected 0 < gamma < 1, got gamma={self.gamma}; 0.1 is a good choice."
            )
        found = NONE
        if self.epsilon < math.inf:
            found = RULES[self.flooding](
                self.gamma * self.cell_epsilon, self.count_epsilon, self.delta / self.changed_cells
            )
        object.__setattr__(self, "flooding_shape", found.shape)
        object.__setattr__(self, "flooding_decay", found.decay)

    @property
    def changed_cells(self) -> int:
        """Number of cells 2kr that a neighbor changes, each by at most 1."""
        return 2 * self.votes_per_record

    @property
    def cell_epsilon(self) -> float:
        """Epsilon ε/(2kr) of a cell."""
        return self.epsilon / self.changed_cells

    @property
    def count_epsilon(self) -> float:
        """Epsilon ε_c of a count; the noise of a cell has the scale 1/ε_c, in votes."""
        return (1 - self.gamma) * self.cell_epsilon

    @property
    def honest_clients(self) -> int:
        """Number of honest clients h = κ·n, rounded down, so that their shares are rounded up."""
        return max(1, math.floor(self.honest_share * self.num_clients))

    @property
    def message_bits(self) -> int:
        """Bits of one message: a cell and a sign."""
        return math.ceil(math.log2(self.num_cells)) + 1

    @property
    def expected_messages(self) -> float:
        """Mean of a client that casts all its votes: kr + (d/h)·(2a/(1 - a) + 2rp/(1 - p))."""
        pairs = Flooding(self.flooding_shape, self.flooding_decay).mean
        return self.votes_per_record + 2 * self.num_cells / self.honest_clients * (
            odds(self.count_epsilon) + pairs
        )

    def most_messages(self, failure_prob: float) -> int:
        """Return a number of messages that no client exceeds, except with `failure_prob`.

        The probability is over all n clients, by the exact law.

        Raises:
          ValueError: If the probability is outside (0, 1).
        """
        if not 0 < failure_prob < 1:
            raise ValueError(
                f"Expected 0 < failure_prob < 1, got failure_prob={failure_prob}; 1e-6 is a "
                "common choice."
            )
        one_client = -math.expm1(math.log1p(-failure_prob) / self.num_clients)
        share = self.num_cells / self.honest_clients
        paired = share * self.flooding_shape, self.flooding_decay

        def exceeds(noise: int) -> bool:
            most = noise // 2
            lone_exceed = above(2 * share, self.count_epsilon, noise - 2 * np.arange(most + 1))
            return bool(law(*paired, most) @ lone_exceed + above(*paired, most) > one_client)

        high = 1
        while exceeds(high):
            high *= 2
        low = high // 2
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if exceeds(middle) else (low, middle)
        return self.votes_per_record + high

    def randomize(self, key: jax.Array, cells: jax.Array) -> jax.Array:
        """Return how often a client sends each cell with (+) and with (-). `key` is consumed.

        The result is int32 `[2, num_queries·num_classes]`. A negative binomial is a Poisson number
        of clusters of logarithmic size. All cells and kinds of noise together are therefore a
        Poisson process of clusters, each of one kind at one random cell. A client's work grows with
        its own messages and not with the number of cells. Clusters arrive until the rate is used
        up, however many they are.
        """
        rate = self._rate()

        def step(
            state: tuple[jax.Array, jax.Array, jax.Array],
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            number, time, counts = state
            time, where, sent = self._clusters(jax.random.fold_in(key, number), time)
            return number + 1, time, counts.at[:, where].add(sent)

        cells = bsvs.once(cells)
        votes = (
            jnp.zeros((2, self.num_cells), jnp.int32)
            .at[0, jnp.where(cells < 0, self.num_cells, cells)]
            .add(1, mode="drop")
        )
        return jax.lax.while_loop(
            lambda state: state[1] < rate, step, (jnp.int32(0), jnp.float32(0), votes)
        )[2]

    def totals_of_clients(self, keys: jax.Array, cells: jax.Array) -> jax.Array:
        """Return `aggregate` of the messages of many clients; see `Mechanism`.

        A client's message has two numbers for each cell, almost all of which are 0. So clusters are
        added to the totals as they are drawn. Clients whose rate is used up draw empty clusters
        until the last client is done.
        """
        rate = self._rate()

        def step(
            state: tuple[jax.Array, jax.Array, jax.Array],
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            number, times, totals = state
            now = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number)
            times, where, sent = jax.vmap(self._clusters)(now, times)
            more = sent[:, 0] - sent[:, 1]
            return number + 1, times, totals.at[where.ravel()].add(more.ravel())

        votes = bsvs.sum_votes(jax.vmap(bsvs.once)(cells), self.num_cells)
        start = (jnp.int32(0), jnp.zeros(len(keys), jnp.float32), votes)
        end = jax.lax.while_loop(lambda state: jnp.any(state[1] < rate), step, start)
        totals: jax.Array = end[2]
        return totals

    def _log_rests(self) -> jax.Array:
        """Return ln(1 - p) of either kind of noise, float32 `[2]`."""
        decays = jnp.stack([jnp.float32(self.count_epsilon), jnp.float32(self.flooding_decay)])
        return jnp.log(-jnp.expm1(-decays))

    def _rates(self) -> tuple[jax.Array, jax.Array]:
        """Return the rates of clusters of n₁, or of n₂, and of n₃."""
        share = self.num_cells / self.honest_clients
        rest = self._log_rests()
        return -share * rest[0], -share * self.flooding_shape * rest[1]

    def _rate(self) -> jax.Array:
        """Return the rate of a client's clusters."""
        lone, paired = self._rates()
        return 2 * lone + paired

    def _clusters(self, key: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the next few clusters of a client's Poisson process. `key` is consumed.

        Args:
          key: Key of the clusters.
          time: Time of the cluster before; clusters beyond the rate are empty.

        Returns:
          Time of the last cluster; cells, uint32 `[CLUSTERS_AT_ONCE]`; sizes in (+) and in (-),
          int32 `[2, CLUSTERS_AT_ONCE]`.
        """
        rest = self._log_rests()
        lone, paired = self._rates()
        rate = 2 * lone + paired
        bits = jax.random.bits(key, (5, CLUSTERS_AT_ONCE), jnp.uint32)
        wait, kind, spread, size = _uniform(bits[:4])
        times = time + jnp.cumsum(-jnp.log1p(-wait))
        kind = kind * rate
        # A logarithmic variable of parameter p is geometric of ratio q = 1 - (1 - p)^U.
        sizes = 1 + jnp.floor(
            jnp.log(size) / jax.nn.log1mexp(-spread * jnp.where(kind < 2 * lone, rest[0], rest[1]))
        )
        sizes = jnp.where(times < rate, sizes, 0).astype(jnp.int32)
        sent = jnp.stack(
            [
                jnp.where(kind >= lone, sizes, 0),
                jnp.where((kind < lone) | (kind >= 2 * lone), sizes, 0),
            ]
        )
        where = bits[4] % jnp.uint32(self.num_cells)  # Bias: d/2³² of a cell's probability.
        return times[-1], where, sent

    def aggregate(self, messages: jax.Array) -> jax.Array:
        """Count (+) less (-), int32 `[num_queries·num_classes]`."""
        return jnp.sum(messages[:, 0] - messages[:, 1], axis=0, dtype=jnp.int32)

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Return the totals, float32 `[num_queries, num_classes]`.

        The clients have added the noise. `key` is not needed.
        """
        del key, num_records
        return totals.reshape(self.shape).astype(jnp.float32)

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return sqrt(2a·n'/h)/(1 - a) for every cell, if n' clients send."""
        shares = 2 * math.exp(-self.count_epsilon) * num_records / self.honest_clients
        return np.broadcast_to(
            math.sqrt(shares) / -math.expm1(-self.count_epsilon), np.shape(counts)
        )

    def guarantee(self, num_records: int) -> Guarantee:
        """Return (epsilon, delta)-DP.

        Raises:
          ValueError: If fewer clients take part than the noise relies on.
        """
        if num_records < self.honest_clients:
            raise ValueError(
                f"Expected at least honest_share * num_clients = {self.honest_clients} clients, "
                f"got {num_records}; their noise does not "
                "suffice. Set num_clients to those that take part, or lower honest_share."
            )
        accountant = (
            f"Ghazi et al. 2020, exact delta of a cell, added up over {self.changed_cells} cells"
        )
        return Guarantee(
            self.epsilon,
            self.delta,
            "replace-one",
            trust="shuffle",
            events=(),
            accountant=accountant,
        )


def messages(counts: Array) -> np.ndarray:
    """Return the messages that clients send, in order, uint32 `[m]`.

    A message is 2·cell, plus 1 for (-).

    Args:
      counts: Numbers of messages, int32 `[2, d]` of one client or `[n, 2, d]` of n clients, from
        `MultiMessage.randomize`.
    """
    often = np.swapaxes(counts, -1, -2)
    every = np.arange(2 * often.shape[-2], dtype=np.uint32)
    return np.repeat(
        np.broadcast_to(every.reshape(often.shape[-2:]), often.shape).ravel(), often.ravel()
    )


def shuffle(rng: np.random.Generator, messages: np.ndarray) -> np.ndarray:
    """Return the messages of all clients in uniformly random order."""
    return rng.permutation(messages)


def decode(messages: np.ndarray, num_cells: int) -> np.ndarray:
    """Return the totals of messages in any order, int64 `[num_cells]`.

    They equal those of `MultiMessage.aggregate`.
    """
    plus, minus = np.bincount(messages, minlength=2 * num_cells).reshape(num_cells, 2).T
    return plus - minus


def _uniform(bits: jax.Array) -> jax.Array:
    """Return numbers in (0, 1), float32, as fine near 0 as 32 bits are.

    The fineness matters because a client among many sends with a small probability.
    """
    return jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)


EXAMPLES = (
    MultiMessage(1.0, 4, 3, num_clients=50),
    MultiMessage(
        6.0,
        4,
        2,
        num_neighbors=2,
        num_clients=60,
        honest_share=0.8,
        delta=0.01,
        gamma=0.5,
        flooding="published",
    ),
)

"""Collision: a client publishes a random hash and one bucket z, which likely holds one of its
votes.

With Ω = kr·e^ε + l - kr, every bucket that holds a vote has probability e^ε/Ω, and the m of them
leave (Ω - m·e^ε)/((l - m)Ω) for each of the others, which lies between 1/Ω and e^ε/Ω: the message
is ε-DP for any hash, also one that collides. A cell is supported where its bucket is z, so p =
e^ε/Ω and q = 1/l. A record with fewer than kr votes needs no padding.

The number of buckets is the integer of least variance v0, found by evaluating both neighbours of
the optimum l = kr + (kr·e^ε + sqrt((kr)²e^{2ε} + 8kr(kr - 1)e^ε))/2; the published kr·e^ε + 2kr -
1, rounded down, costs up to 2% at kr = 1.

Reference: Wang et al., "Hiding Numerical Vectors in Local Private and Shuffled Messages", IJCAI
2021; Li et al., Definition 5.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import kernels
from rknn_jax._internal import pytree
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.local import PureProtocol, exp, expm1, happens, real
from rknn_jax.privacy.entropy import Entropy, at_most

# messages that are decoded at once; XLA's CPU compiler vectorizes sums of 16 and 32, but not of 8
# or 64
ROUNDS = 16
LANES = 64


class Message(NamedTuple):
    """`seed`, uint32 `[2]`, of the hash; `bucket`, int32."""

    seed: jax.Array
    bucket: jax.Array


@pytree.register
@dataclass(frozen=True)
class Collision(PureProtocol):
    """Hash to `num_buckets` buckets, l; chosen where it is not given."""

    num_buckets: Any = None  # an int; a tracer under jit

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets is None:
            object.__setattr__(
                self, "num_buckets", best_num_buckets(self.epsilon, self.votes_per_record)
            )
        if (
            isinstance(self.num_buckets, int)
            and not self.votes_per_record < self.num_buckets <= hashing.MOST_BUCKETS
        ):
            raise ValueError(
                f"Expected votes of a record < num_buckets <= {hashing.MOST_BUCKETS}, got "
                f"num_buckets={self.num_buckets} for "
                f"{self.votes_per_record} votes; leave it out to have the best one."
            )

    @property
    def omega(self) -> Any:
        """Ω, over e^ε so that it stays finite."""
        return self.votes_per_record + (real(self.num_buckets) - self.votes_per_record) * exp(
            -self.epsilon
        )

    @property
    def p(self) -> float:
        """e^ε/Ω."""
        return 1 / self.omega

    @property
    def q(self) -> float:
        """1/l."""
        return 1 / real(self.num_buckets)

    @property
    def advantage(self) -> float:
        """(l - kr)(1 - e^-ε)/l times p."""
        return -(1 - self.votes_per_record * self.q) * expm1(-self.epsilon) * self.p

    @property
    def total_variation(self) -> float:
        """(1 - 1/l)(e^ε - 1)/Ω for one vote, averaged over an ideal hash; min(kr, l - kr)(e^ε -
        1)/Ω for several, by the worst hash.

        Let the first input hold no fewer buckets than the second, which holds m. The first is
        likelier in the i that it holds alone, by i(e^ε - 1)/Ω·(l - kr)/(l - m) in all, where i <=
        kr and i <= l - m; without a vote, m = 0. See `LocalRandomizer`.
        """
        if self.votes_per_record == 1:
            return self.advantage
        return (
            -min(self.votes_per_record, 1 / self.q - self.votes_per_record)
            * expm1(-self.epsilon)
            * self.p
        )

    @property
    def averages_over_hashes(self) -> bool:
        """True if `total_variation` is the ideal hash's average: of a single vote."""
        return self.votes_per_record == 1

    @property
    def message_bits(self) -> int:
        """Of the bucket; the seed is 64 more."""
        return math.ceil(math.log2(self.num_buckets))

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return a seed and a bucket. `key` is consumed."""
        seed, draws = jnp.split(jax.random.bits(key, (5,), jnp.uint32), [2])
        held, distinct = distinct_buckets(seed, cells, self.num_buckets)
        num_held = jnp.sum(distinct)
        hit = happens(draws[0], num_held.astype(jnp.float32) * self.p)
        # The i-th distinct bucket that is held, or the i-th that is not: step over every held one
        # at or below.
        rank = jnp.cumsum(distinct) - 1
        inside = jnp.sum(
            jnp.where(
                distinct & (rank == hashing.bucket(draws[1], jnp.maximum(num_held, 1))), held, 0
            )
        )
        outside = hashing.bucket(draws[2], self.num_buckets - num_held)
        for i in range(len(cells)):
            outside = outside + (distinct[i] & (held[i] <= outside)).astype(jnp.int32)
        return Message(seed, jnp.where(hit, inside, outside).astype(jnp.int32))

    def respond(self, entropy: Entropy, cells: np.ndarray) -> Message:
        """Return exact messages; see `LocalRandomizer`.

        A bucket that is held has probability t/2^64 with t = p·2^64 rounded down, however many are.
        As t rises towards that, so do the odds of it against any other bucket, towards e^ε.
        """
        seed: Any = entropy.words(len(cells)).view("<u4").reshape(-1, 2)
        held, distinct = map(
            np.asarray, _all_distinct(seed, jnp.asarray(cells, jnp.int32), self.num_buckets)
        )
        num_held = distinct.sum(axis=1)
        hit = entropy.words(len(cells)) < num_held.astype(np.uint64) * np.uint64(at_most(self.p))
        rank = np.cumsum(distinct, axis=1) - 1
        chosen = entropy.below(np.maximum(num_held, 1))
        inside = np.where(distinct & (rank == chosen[:, None]), held, 0).sum(axis=1)
        outside = entropy.below(self.num_buckets - num_held)
        for i in range(cells.shape[1]):
            outside = outside + (distinct[:, i] & (held[:, i] <= outside))
        bucket: Any = np.where(hit, inside, outside).astype(np.int32)
        return Message(seed, bucket)

    def support(self, message: Message) -> jax.Array:
        """Return the cells that hash into the bucket."""
        first, width = hashing.interval(message.bucket, self.num_buckets)
        words = hashing.mix(message.seed, jnp.arange(self.num_cells))
        return words - first < width

    def valid(self, message: Message) -> jax.Array:
        """Return whether the bucket is one."""
        return (message.bucket >= 0) & (message.bucket < self.num_buckets)

    def aggregate(self, messages: Message) -> jax.Array:
        """Count the messages that support each cell; see `LocalRandomizer`."""
        return count_support(messages, self.num_buckets, self.num_cells)

    def hit_law(self, hits: np.ndarray) -> np.ndarray:
        """Return p·(1/l)^(|A| - 1)·(1 - 1/l)^(c - |A|) for a set A of hits, and the rest for none;
        see `LocalRandomizer`.

        Summed over the hashes that send exactly A to a bucket, which then has probability p, and
        over the l buckets. With fewer votes the same law holds for those that there are.
        """
        size = hits.sum(axis=1)
        c = self.votes_per_record
        law = self.p * self.q ** (size - 1.0) * (1 - self.q) ** (c - size)
        return np.where(size > 0, law, 1 - law[size > 0].sum())

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its seed; see `LocalRandomizer`."""
        cells = np.asarray(cells)
        held = np.asarray(buckets(messages.seed, np.maximum(cells, 0), self.num_buckets))[
            :, cells >= 0
        ]  # of one shape
        repeated = np.diff(np.sort(held, axis=1), axis=1) == 0
        num_held = held.shape[1] - repeated.sum(axis=1)
        other = (1 - num_held * self.p) / (self.num_buckets - num_held)
        return np.log(
            np.where((held == np.asarray(messages.bucket)[:, None]).any(axis=1), self.p, other)
        )

    def alphabet(self, key: jax.Array) -> Message:
        """Return every bucket under one seed."""
        seed = jax.random.bits(key, (2,), jnp.uint32)
        return Message(jnp.tile(seed, (self.num_buckets, 1)), jnp.arange(self.num_buckets))


@jax.jit
def buckets(seeds: jax.Array, cells: jax.Array, num_buckets: Any) -> jax.Array:
    """Return each cell's bucket under each seed, int32 `[n, m]` from `[n, 2]` and `[m]`."""
    return hashing.bucket(jax.vmap(hashing.mix, in_axes=(0, None))(seeds, cells), num_buckets)


def count_support(
    messages: Message,
    num_buckets: Any,
    num_cells: int,
    *,
    implementation: kernels.Implementation | None = None,
) -> jax.Array:
    """Count the messages that support each cell.

    Args:
      messages: `[n, 2]` and `[n]`.
      num_buckets: l.
      num_cells: d.
      implementation: see `kernels.chosen`.

    Returns:
      int32 `[d]`.
    """
    count = count_in_intervals
    if kernels.chosen(implementation) == "pallas":
        from rknn_jax.kernels.decode import (
            count_in_intervals as count,
        )  # late: Pallas takes a second to import
    return count(messages.seed, *hashing.interval(messages.bucket, num_buckets), num_cells)


def count_in_intervals(
    seed: jax.Array, first: jax.Array, width: jax.Array, num_cells: int
) -> jax.Array:
    """Count the messages in whose interval each cell's word lies.

    Messages lie side by side in vector registers, a row for each cell, and `ROUNDS` of them are
    summed before memory is written.

    Args:
      seed: uint32 `[n, 2]`.
      first: uint32 `[n]`, as from `hashing.interval`.
      width: uint32 `[n]`.
      num_cells: d.

    Returns:
      int32 `[d]`.
    """
    at_once = ROUNDS * LANES
    padding = max(0, at_once - len(first))
    words = [
        jnp.pad(word, (0, padding)) for word in (seed[:, 0], seed[:, 1], first, width)
    ]  # an interval of width 0 holds nothing
    num_messages = len(words[0])

    def add(i: Any, totals: jax.Array) -> jax.Array:
        start = jnp.minimum(
            i * at_once, num_messages - at_once
        )  # the last ones may overlap with those before
        one, two, first, width = (
            jax.lax.dynamic_slice_in_dim(word, start, at_once) for word in words
        )
        width = jnp.where(start + jnp.arange(at_once) >= i * at_once, width, 0)
        terms = jax.lax.optimization_barrier(
            tuple(term.reshape(ROUNDS, LANES) for term in (one, two, first, width))
        )
        for one, two, first, width in zip(*terms, strict=True):
            words_of_cells = hashing.mix((one[None], two[None]), jnp.arange(num_cells)[:, None])
            totals = totals + (words_of_cells - first[None] < width[None]).astype(jnp.int32)
        return totals

    return jnp.sum(
        jax.lax.fori_loop(
            0, -(-num_messages // at_once), add, jnp.zeros((num_cells, LANES), jnp.int32)
        ),
        axis=1,
    )


def distinct_buckets(
    seed: jax.Array, cells: jax.Array, num_buckets: Any
) -> tuple[jax.Array, jax.Array]:
    """Return the buckets of the votes in ascending order, int32 `[k·r]`, and which of them is
    the first of its kind.
    """
    held = jnp.where(
        cells < 0,
        hashing.MOST_BUCKETS + 1,
        hashing.bucket(hashing.mix(seed, jnp.maximum(cells, 0)), num_buckets),
    )
    held = jnp.sort(held)
    fresh = jnp.concatenate([jnp.ones(1, bool), held[1:] != held[:-1]])
    return held, fresh & (held <= hashing.MOST_BUCKETS)


@jax.jit
def _all_distinct(
    seeds: jax.Array, cells: jax.Array, num_buckets: Any
) -> tuple[jax.Array, jax.Array]:
    return jax.vmap(distinct_buckets, in_axes=(0, 0, None))(seeds, cells, num_buckets)


def best_num_buckets(epsilon: float, votes: int) -> int:
    """Return the integer l of least v0 = (l - 1)Ω²/((l - kr)²(e^ε - 1)²), at most
    `hashing.MOST_BUCKETS`.
    """
    odds = math.exp(min(epsilon, 40.0))
    optimum = best_real_buckets(epsilon, votes)

    def variance(count: int) -> float:
        return (count - 1) * ((votes * odds + count - votes) / (count - votes)) ** 2

    neighbours = (max(votes + 1, 2, math.floor(optimum)), math.floor(optimum) + 1)
    return min(min(neighbours, key=variance), hashing.MOST_BUCKETS)


def best_real_buckets(epsilon: float, votes: int) -> float:
    """Return the real l of least v0."""
    odds = math.exp(min(epsilon, 40.0))  # beyond, the message's size decides
    return (
        votes + (votes * odds + math.sqrt((votes * odds) ** 2 + 8 * votes * (votes - 1) * odds)) / 2
    )


EXAMPLES = (
    Collision(1.0, 2, 3),
    Collision(2.0, 3, 2, num_neighbors=2),
    Collision(0.5, 4, 3, num_neighbors=3, num_buckets=5),
)

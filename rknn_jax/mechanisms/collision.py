"""Collision: a client publishes a random hash and one bucket, which likely holds one of its votes.

Let Ω = kr·e^ε + l - kr, and let z be the published bucket. Every bucket that holds a vote has
probability e^ε/Ω. If m buckets hold a vote, each of the others has (Ω - m·e^ε)/((l - m)Ω), which
lies between 1/Ω and e^ε/Ω. The message is therefore ε-DP for any hash, even one that collides. A
cell is supported if its bucket is z, so p = e^ε/Ω and q = 1/l. A record with fewer than kr votes
needs no padding.

The number of buckets l is the integer of least variance v0. Both neighbors of the optimum l = kr +
(kr·e^ε + sqrt((kr)²e^{2ε} + 8kr(kr - 1)e^ε))/2 are evaluated. The published kr·e^ε + 2kr - 1,
rounded down, costs up to 2% at kr = 1.

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
from rknn_jax.kernels import hashing, native
from rknn_jax.mechanisms.local import PureProtocol, exp, expm1, happens, real
from rknn_jax.privacy.entropy import Entropy, at_most

# Number of messages decoded at once. XLA's CPU compiler vectorizes sums of 16 and 32, but not of
# 8 or 64.
ROUNDS = 16
LANES = 64


class Message(NamedTuple):
    """Message: `seed`, uint32 `[2]`, of the hash; `bucket`, int32."""

    seed: jax.Array
    bucket: jax.Array


@pytree.register
@dataclass(frozen=True)
class Collision(PureProtocol):
    """Hash to `num_buckets` buckets, l. Defaults to the best number."""

    num_buckets: Any = None  # An int, or a tracer under jit.

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
    def omega(self) -> float:
        """Normalizer Ω divided by e^ε, so that it stays finite."""
        return self.votes_per_record + (real(self.num_buckets) - self.votes_per_record) * exp(
            -self.epsilon
        )

    @property
    def p(self) -> float:
        """Probability e^ε/Ω that a vote's cell is supported."""
        return 1 / self.omega

    @property
    def q(self) -> float:
        """Probability 1/l that any other cell is supported."""
        return 1 / real(self.num_buckets)

    @property
    def advantage(self) -> float:
        """Difference p - q = (l - kr)(1 - e^-ε)/l times p."""
        return -(1 - self.votes_per_record * self.q) * expm1(-self.epsilon) * self.p

    @property
    def total_variation(self) -> float:
        """Total variation bound: averaged over an ideal hash for one vote, worst-case for several.

        It is (1 - 1/l)(e^ε - 1)/Ω for one vote, and min(kr, l - kr)(e^ε - 1)/Ω for several. See
        `LocalRandomizer`.

        Let the first input hold no fewer buckets than the second, which holds m. The first is more
        likely in the i buckets that it holds alone, by i(e^ε - 1)/Ω·(l - kr)/(l - m) in total. Here
        i <= kr and i <= l - m; without a vote, m = 0.
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
        """True if `total_variation` is the ideal hash's average, which applies to a single vote."""
        return self.votes_per_record == 1

    @property
    def message_bits(self) -> int:
        """Bits of the bucket; the seed takes 64 more."""
        return math.ceil(math.log2(self.num_buckets))

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return a seed and a bucket. `key` is consumed."""
        seed, draws = jnp.split(jax.random.bits(key, (5,), jnp.uint32), [2])
        held, distinct = distinct_buckets(seed, cells, self.num_buckets)
        num_held = jnp.sum(distinct)
        hit = happens(draws[0], num_held.astype(jnp.float32) * self.p)
        # The i-th distinct bucket that is held, or the i-th that is not. For the latter, step over
        # every held bucket at or below.
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

        Each held bucket has probability t/2^64 with t = p·2^64 rounded down, for any number of held
        buckets. As t rises to p·2^64, the odds of a held bucket against any other rise to e^ε.
        Rounding down therefore costs no privacy.
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
        """Return True if the bucket exists."""
        known: jax.Array = (message.bucket >= 0) & (message.bucket < self.num_buckets)
        return known

    def aggregate(self, messages: Message) -> jax.Array:
        """Count the messages that support each cell; see `LocalRandomizer`."""
        return count_support(messages, self.num_buckets, self.num_cells)

    def hit_law(self, hits: np.ndarray) -> np.ndarray:
        """Return the law of hits, with a set A of hits among c votes; see `LocalRandomizer`.

        Its probability is p·(1/l)^(|A| - 1)·(1 - 1/l)^(c - |A|), and the rest for no hit. It sums
        over the l buckets and the hashes that send exactly A to a bucket, which then has
        probability p. With fewer votes, the same law holds for the votes that exist.
        """
        return hits_of_one_bucket(self.p, self.q, hits)

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its seed; see `LocalRandomizer`."""
        cells = np.asarray(cells)
        held = np.asarray(buckets(messages.seed, np.maximum(cells, 0), self.num_buckets))[
            :, cells >= 0
        ]  # All arrays have one shape.
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
      messages: Messages with seeds `[n, 2]` and buckets `[n]`.
      num_buckets: Number of buckets l.
      num_cells: Number of cells d.
      implementation: Name of the kernel, as `kernels.chosen` takes it. Defaults to the platform's
        best.

    Returns:
      int32 `[d]`.
    """
    intervals = hashing.interval(messages.bucket, num_buckets)
    return count_held(messages.seed, *intervals, num_cells, implementation=implementation)


def count_held(
    seed: jax.Array,
    first: jax.Array,
    width: jax.Array,
    num_cells: int,
    *,
    implementation: kernels.Implementation | None = None,
) -> jax.Array:
    """Count as `count_in_intervals` does, with the kernel that `count_support` would use."""
    count = count_in_intervals
    form = kernels.chosen(implementation, _kernel_agrees, _native_agrees)
    if form == "native":
        totals = jax.ShapeDtypeStruct((num_cells,), jnp.int32)
        counts: jax.Array = native.call("rknn_count_in_intervals", totals, seed, first, width)
        return counts
    if form == "pallas":
        from rknn_jax.kernels.decode import (
            count_in_intervals as count,
        )  # Late: Pallas takes a second to import.
    return count(seed, first, width, num_cells)


def _native_agrees() -> bool:
    """Compare the native kernel with XLA on random intervals.

    The first block of them has whole multiples of 2^16, for which the kernel has another form.
    """
    rng = np.random.default_rng(0)
    seed = rng.integers(0, 2**32, (5_000, 2), np.uint32)
    first, width = rng.integers(0, 2**32, (2, 5_000), np.uint32)
    first[:2_048] &= 0xFFFF0000
    width[:2_048] &= 0xFFFF0000
    messages = jnp.asarray(seed), jnp.asarray(first), jnp.asarray(width)
    return kernels.native_agrees(lambda form: count_held(*messages, 1_500, implementation=form))


def _kernel_agrees() -> bool:
    """Compare the Pallas kernel with XLA on random messages."""
    rng = np.random.default_rng(0)
    messages = Message(
        jnp.asarray(rng.integers(0, 2**32, (5_000, 2), np.uint32)),
        jnp.asarray(rng.integers(0, 5, 5_000, np.int32)),
    )
    pallas, xla = (
        count_support(messages, 5, 1_500, implementation=form) for form in ("pallas", "xla")
    )
    return np.array_equal(pallas, xla)


def count_in_intervals(
    seed: jax.Array, first: jax.Array, width: jax.Array, num_cells: int
) -> jax.Array:
    """Count the messages whose interval holds each cell's word.

    Messages lie side by side in vector registers, a row for each cell. `ROUNDS` of them are summed
    before memory is written.

    Args:
      seed: Seeds, uint32 `[n, 2]`.
      first: Starts of the intervals, uint32 `[n]`, from `hashing.interval`.
      width: Widths of the intervals, uint32 `[n]`.
      num_cells: Number of cells d.

    Returns:
      int32 `[d]`.
    """
    at_once = ROUNDS * LANES
    padding = max(0, at_once - len(first))
    # Padding has width 0, so its interval holds nothing.
    words = [jnp.pad(word, (0, padding)) for word in (seed[:, 0], seed[:, 1], first, width)]
    num_messages = len(words[0])

    def add(i: Any, totals: jax.Array) -> jax.Array:
        # The last block may overlap with the one before.
        start = jnp.minimum(i * at_once, num_messages - at_once)
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
    """Return the buckets of the votes and a mask of each bucket's first occurrence.

    The buckets are in ascending order, int32 `[k·r]`.
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


def hits_of_one_bucket(p: float, q: float, hits: np.ndarray) -> np.ndarray:
    """Return the law of `Collision.hit_law`: p·q^(|A| - 1)·(1 - q)^(c - |A|), the rest for none."""
    size = hits.sum(axis=1)
    law = p * q ** (size - 1.0) * (1 - q) ** (hits.shape[1] - size)
    chances: np.ndarray = np.where(size > 0, law, 1 - law[size > 0].sum())
    return chances


def best_num_buckets(epsilon: float, votes: int) -> int:
    """Return the integer l of least v0, at most `hashing.MOST_BUCKETS`.

    v0 = (l - 1)Ω²/((l - kr)²(e^ε - 1)²).
    """
    odds = math.exp(min(epsilon, 40.0))
    optimum = best_real_buckets(epsilon, votes)

    def variance(count: int) -> float:
        return (count - 1) * ((votes * odds + count - votes) / (count - votes)) ** 2

    neighbours = (max(votes + 1, 2, math.floor(optimum)), math.floor(optimum) + 1)
    return min(min(neighbours, key=variance), hashing.MOST_BUCKETS)


def best_real_buckets(epsilon: float, votes: int) -> float:
    """Return the real l of least v0."""
    odds = math.exp(min(epsilon, 40.0))  # Beyond 40, the message's size decides.
    return (
        votes + (votes * odds + math.sqrt((votes * odds) ** 2 + 8 * votes * (votes - 1) * odds)) / 2
    )


EXAMPLES = (
    Collision(1.0, 2, 3),
    Collision(2.0, 3, 2, num_neighbors=2),
    Collision(0.5, 4, 3, num_neighbors=3, num_buckets=5),
)

"""Optimized local hashing: hash one random vote to l = e^ε + 1 buckets and randomize the bucket.

For kr = 1 this is the Collision mechanism. A client with more votes sends only one of them, p = (p₁
+ (kr - 1)/l)/kr, and the server scales up. Collision's joint randomization is better then. This
mechanism exists because other libraries have it.

Reference: Wang et al., "Locally Differentially Private Protocols for Frequency Estimation", 2017.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.collision import Message, best_num_buckets, buckets, count_support
from rknn_jax.mechanisms.local import PureProtocol, exp, expm1, happens, real


@pytree.register
@dataclass(frozen=True)
class LocalHashing(PureProtocol):
    """Hash to `num_buckets` buckets, l. Defaults to the best number."""

    num_buckets: Any = None  # An int, or a tracer under jit.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets is None:
            object.__setattr__(self, "num_buckets", best_num_buckets(self.epsilon, 1))
        if isinstance(self.num_buckets, int) and not 2 <= self.num_buckets <= hashing.MOST_BUCKETS:
            raise ValueError(
                f"Expected 2 <= num_buckets <= {hashing.MOST_BUCKETS}, got "
                f"num_buckets={self.num_buckets}; leave it out for the best."
            )

    @property
    def kept(self) -> float:
        """Probability p₁ = e^ε/(e^ε + l - 1) that a bucket is published as it is."""
        return 1 / (1 + (real(self.num_buckets) - 1) * exp(-self.epsilon))

    @property
    def p(self) -> float:
        """Probability (p₁ + (kr - 1)/l)/kr that a vote's cell is supported."""
        return (self.kept + (self.votes_per_record - 1) * self.q) / self.votes_per_record

    @property
    def q(self) -> float:
        """Probability 1/l that any other cell is supported."""
        return 1 / real(self.num_buckets)

    @property
    def advantage(self) -> float:
        """Difference p - q = (p₁ - 1/l)/kr."""
        return -(1 - self.q) * expm1(-self.epsilon) * self.kept / self.votes_per_record

    @property
    def total_variation(self) -> float:
        """Total variation bound p₁ - 1/l, averaged over an ideal hash; see `LocalRandomizer`.

        It holds for one vote, and by convexity for one of many.
        """
        return self.votes_per_record * self.advantage

    @property
    def averages_over_hashes(self) -> bool:
        """Always True: `total_variation` is the ideal hash's average."""
        return True

    @property
    def message_bits(self) -> int:
        """Bits of the bucket; the seed takes 64 more."""
        return math.ceil(math.log2(self.num_buckets))

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return a seed and a bucket. `key` is consumed."""
        seed, draws = jnp.split(jax.random.bits(key, (5,), jnp.uint32), [2])
        vote = cells[hashing.bucket(draws[0], len(cells))]
        held = hashing.bucket(hashing.mix(seed, jnp.maximum(vote, 0)[None]), self.num_buckets)[0]
        # A random step reaches one of the l - 1 other buckets. Without a vote, a step of 0 to
        # l - 1 reaches any bucket.
        keep = (vote >= 0) & happens(draws[1], self.kept)
        step = jnp.where(
            vote >= 0,
            1 + hashing.bucket(draws[2], self.num_buckets - 1),
            hashing.bucket(draws[2], self.num_buckets),
        )
        return Message(
            seed, jnp.where(keep, held, (held + step) % self.num_buckets).astype(jnp.int32)
        )

    def support(self, message: Message) -> jax.Array:
        """Return the cells that hash into the bucket."""
        first, width = hashing.interval(message.bucket, self.num_buckets)
        return hashing.mix(message.seed, jnp.arange(self.num_cells)) - first < width

    def valid(self, message: Message) -> jax.Array:
        """Return True if the bucket exists."""
        known: jax.Array = (message.bucket >= 0) & (message.bucket < self.num_buckets)
        return known

    def aggregate(self, messages: Message) -> jax.Array:
        """Count the messages that support each cell; see `LocalRandomizer`."""
        return count_support(messages, self.num_buckets, self.num_cells)

    def hit_law(self, hits: np.ndarray) -> np.ndarray:
        """Return the law of one vote sent with p₁, and of others that collide with 1/l.

        See `LocalRandomizer`.
        """
        told = np.where(hits, self.kept, 1 - self.kept)
        collides = np.where(hits, self.q, 1 - self.q)
        law: np.ndarray = np.mean(
            np.prod(collides, axis=1, keepdims=True) / collides * told, axis=1
        )
        return law

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its seed; see `LocalRandomizer`."""
        held = np.asarray(buckets(messages.seed, np.maximum(cells, 0), self.num_buckets))
        told = np.where(
            held == np.asarray(messages.bucket)[:, None],
            self.kept,
            (1 - self.kept) / (self.num_buckets - 1),
        )
        law: np.ndarray = np.log(np.where(np.asarray(cells)[None] < 0, self.q, told).mean(axis=1))
        return law

    def alphabet(self, key: jax.Array) -> Message:
        """Return every bucket under one seed."""
        return Message(
            jnp.tile(jax.random.bits(key, (2,), jnp.uint32), (self.num_buckets, 1)),
            jnp.arange(self.num_buckets),
        )


EXAMPLES = (LocalHashing(1.0, 2, 3), LocalHashing(2.0, 3, 2, num_neighbors=2))

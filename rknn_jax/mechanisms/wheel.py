"""Wheel: Collision with a real number of buckets.

Votes hash to arcs of a circle, and a client publishes a point that likely lies in one.

The circle has 2^b points and an arc `arc_length` of them, the share q = 1/l. Let Ω = 1 + kr·q·(e^ε
- 1). Every point of the union of a client's arcs has e^ε/Ω times the probability of a uniform
point. The union has share U <= kr·q, so points outside have the factor (1 - U·e^ε/Ω)/(1 - U), which
lies between 1/Ω and e^ε/Ω. The message is therefore ε-DP for any hash, even if arcs overlap. A cell
is supported if the point lies in its arc, so p = q·e^ε/Ω. Collision loses up to 2% by an integer l.
Here, l is only rounded to arcs of whole points.

Reference: Wang et al., "Hiding Numerical Vectors in Local Private and Shuffled Messages", IJCAI
2021.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.collision import best_real_buckets, count_held, hits_of_one_bucket
from rknn_jax.mechanisms.local import WORD, PureProtocol, exp, expm1, happens, real

MOST_BITS = 16


class Message(NamedTuple):
    """Message: `seed`, uint32 `[2]`, of the hash; `point` of the circle, int32."""

    seed: jax.Array
    point: jax.Array


@pytree.register
@dataclass(frozen=True)
class Wheel(PureProtocol):
    """Arcs of `arc_length` points, by default the best, on a circle of 2^`circle_bits` points."""

    circle_bits: int = field(default=MOST_BITS, metadata=pytree.STATIC)
    arc_length: Any = None  # An int, or a tracer under jit.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.circle_bits <= MOST_BITS:
            raise ValueError(
                f"Expected 1 <= circle_bits <= {MOST_BITS}, got circle_bits={self.circle_bits}."
            )
        if self.arc_length is None:
            object.__setattr__(self, "arc_length", self._best_arc_length())
        if (
            isinstance(self.arc_length, int)
            and not 1 <= self.arc_length * self.votes_per_record < self.circle
        ):
            raise ValueError(
                f"Expected 1 <= votes of a record * arc_length < {self.circle}, got "
                f"arc_length={self.arc_length} for "
                f"{self.votes_per_record} votes; leave it out to have the best one."
            )

    @property
    def circle(self) -> int:
        """Number of points of the circle."""
        return 1 << self.circle_bits

    @property
    def p(self) -> float:
        """Probability q·e^ε/Ω that a vote's cell is supported."""
        return self.q / self._omega(self.q)

    @property
    def q(self) -> float:
        """Probability q = 1/l that any other cell is supported: the share of an arc."""
        return real(self.arc_length) / self.circle

    @property
    def advantage(self) -> float:
        """Difference p - q = (1 - kr·q)(1 - e^-ε) times p."""
        return -(1 - self.votes_per_record * self.q) * expm1(-self.epsilon) * self.p

    @property
    def total_variation(self) -> float:
        """Total variation bound: averaged over an ideal hash for one vote, worst-case for several.

        It is (1 - q)q(e^ε - 1)/Ω for one vote, and min(kr, l - kr)q(e^ε - 1)/Ω for several. See
        `LocalRandomizer`.

        Let the first input hold no less of the circle than the second, which holds the share m/l.
        The first is more likely in the i/l that it holds alone, by i(e^ε - 1)/(lΩ)·(l - kr)/(l - m)
        in total. Here i <= kr and i <= l - m; without a vote, m = 0.
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
        """Bits of the point; the seed takes 64 more."""
        return self.circle_bits

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return a seed and a point. `key` is consumed."""
        seed, draws = jnp.split(jax.random.bits(key, (5,), jnp.uint32), [2])
        starts = jnp.sort(starts_of(seed, cells, self.circle_bits))
        gaps = (
            jnp.roll(starts, -1)
            - starts
            + jnp.where(jnp.arange(len(cells)) == len(cells) - 1, self.circle, 0)
        )
        held = jnp.where(jnp.any(cells >= 0), jnp.minimum(gaps, self.arc_length), 0)
        covered = jnp.sum(held)
        hit = happens(draws[0], covered.astype(jnp.float32) * (self.p / real(self.arc_length)))
        # The i-th point of the union, or the i-th outside: walk along the arcs, or along the gaps
        # between them.
        inside = place(hashing.bucket(draws[1], covered), held, starts)
        outside = place(hashing.bucket(draws[2], self.circle - covered), gaps - held, starts + held)
        return Message(seed, jnp.where(hit, inside, outside) & (self.circle - 1))

    def support(self, message: Message) -> jax.Array:
        """Return the cells whose arc holds the point."""
        first, width = self._interval(message.point)
        words = hashing.mix(message.seed, jnp.arange(self.num_cells))
        supported: jax.Array = words - first < width
        return supported

    def aggregate(self, messages: Message) -> jax.Array:
        """Count the messages that support each cell; see `LocalRandomizer`."""
        first, width = self._interval(messages.point)
        widths = jnp.broadcast_to(width, first.shape)
        return count_held(messages.seed, first, widths, self.num_cells)

    def hit_law(self, hits: np.ndarray) -> np.ndarray:
        """Return the law of hits; see `LocalRandomizer`.

        A point of the union has one probability, whatever the arcs that hold it. Exactly the arcs A
        of c hold a point in the share q^|A|·(1 - q)^(c - |A|) of the hashes. So the law is that of
        `Collision`.
        """
        return hits_of_one_bucket(self.p, self.q, hits)

    def valid(self, message: Message) -> jax.Array:
        """Return True if the point is on the circle."""
        return (message.point >= 0) & (message.point < self.circle)

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its seed; see `LocalRandomizer`."""
        cells = np.asarray(cells)
        starts = np.asarray(all_starts(messages.seed, np.maximum(cells, 0), self.circle_bits))[
            :, cells >= 0
        ]  # All arrays have one shape.
        starts = np.sort(starts, axis=1)
        gaps = np.diff(starts, append=starts[:, :1] + self.circle, axis=1)
        share = np.minimum(gaps, self.arc_length).sum(axis=1) / self.circle
        inside = (
            (np.asarray(messages.point)[:, None] - starts) % self.circle < self.arc_length
        ).any(axis=1)
        dense = self.p / self.q
        return np.log(np.where(inside, dense, (1 - share * dense) / (1 - share)) / self.circle)

    def alphabet(self, key: jax.Array) -> Message:
        """Return every point under one seed."""
        seed = jax.random.bits(key, (2,), jnp.uint32)
        return Message(jnp.tile(seed, (self.circle, 1)), jnp.arange(self.circle))

    def _interval(self, point: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return `(first, width)`, uint32, of the words whose arcs hold a point."""
        shift = jnp.uint32(WORD - self.circle_bits)
        first = (point - self.arc_length + 1).astype(jnp.uint32) << shift
        return first, jnp.asarray(self.arc_length).astype(jnp.uint32) << shift

    def _omega(self, share: float) -> float:
        """Normalizer Ω for arcs of a share, divided by e^ε so that it stays finite."""
        return exp(-self.epsilon) - self.votes_per_record * share * expm1(-self.epsilon)

    def _best_arc_length(self) -> int:
        """Return the arc of least v0, which is proportional to (1 - q)Ω²/(q(1 - kr·q)²)."""
        most = (self.circle - 1) // self.votes_per_record
        optimum = self.circle / best_real_buckets(self.epsilon, self.votes_per_record)

        def variance(length: int) -> float:
            share = length / self.circle
            return float(
                (1 - share)
                / share
                * (self._omega(share) / (1 - self.votes_per_record * share)) ** 2
            )

        return min(
            (
                min(max(length, 1), most)
                for length in (math.floor(optimum), math.floor(optimum) + 1)
            ),
            key=variance,
        )


@functools.partial(jax.jit, static_argnames="circle_bits")
def all_starts(seeds: jax.Array, cells: jax.Array, circle_bits: int) -> jax.Array:
    """Return `starts_of` the votes under each seed, int32 `[n, m]` from `[n, 2]` and `[m]`."""
    return jax.vmap(starts_of, in_axes=(0, None, None))(seeds, cells, circle_bits)


def starts_of(seed: jax.Array, cells: jax.Array, circle_bits: int) -> jax.Array:
    """Return the start of the arc of each vote, int32 `[k·r]`.

    A missing vote takes another vote's arc, so that it adds nothing to the union.
    """
    cells = jnp.where(cells < 0, jnp.max(cells, keepdims=True, initial=-1), cells)
    starts: jax.Array = (
        hashing.mix(seed, jnp.maximum(cells, 0)) >> jnp.uint32(WORD - circle_bits)
    ).astype(jnp.int32)
    return starts


def place(rank: jax.Array, lengths: jax.Array, starts: jax.Array) -> jax.Array:
    """Return the point of a rank, counted along segments given by their lengths and starts."""
    before = jnp.cumsum(lengths) - lengths
    segment = jnp.sum(rank >= before + lengths)
    segment = jnp.minimum(segment, len(lengths) - 1)
    return starts[segment] + rank - before[segment]


EXAMPLES = (
    Wheel(1.0, 2, 3, circle_bits=5),
    Wheel(2.0, 3, 2, num_neighbors=2, circle_bits=6),
    Wheel(0.5, 4, 3, num_neighbors=3, circle_bits=5),
)

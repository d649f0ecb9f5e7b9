"""Local randomizers: every client randomizes its own votes, so nobody has to be trusted.

The messages of a pure protocol support some of the d = s·|Y| cells. A cell that the client votes
for is supported with probability p, any other with q < p, so

    count of a cell  ~  (support - n·q) / (p - q)

is unbiased. If a of n clients voted for the cell, its variance is a·v1 + (n - a)·v0, with v1 = p(1
- p)/(p - q)² and v0 = q(1 - q)/(p - q)². A mechanism's file adds the law of a message and the cells
that it supports. `log_prob` is that law in float64, by which the tests enumerate the privacy loss
over all inputs and outputs.

The guarantee protects each record, whatever all the others do. Epsilon is the privacy of one
message, under replace-one.

Reference: Wang et al., "Locally Differentially Private Protocols for Frequency Estimation", 2017
(pure protocols).
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import kernels
from rknn_jax.kernels import native
from rknn_jax.mechanisms.base import CalibratedMechanism
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array

WORD = 32

MOST_EPSILON = 700.0
"""Largest finite epsilon of a message, whose exponential is a float64."""


@dataclass(frozen=True)
class LocalRandomizer(CalibratedMechanism):
    """Client whose message is epsilon-DP by itself; see `CalibratedMechanism` for the fields.

    Attributes:
      messages_at_once: Number of messages of a block; more than a few masks of cells would not fit
        the registers and the cache of a CPU core.
    """

    trusts: ClassVar[tuple[str, ...]] = ("local", "shuffle")
    messages_at_once: ClassVar[int] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.epsilon, int | float) and MOST_EPSILON < self.epsilon < math.inf:
            raise ValueError(
                f"Expected epsilon <= {MOST_EPSILON:g} of a message, got epsilon={self.epsilon}, "
                "which protects nothing; choose less."
            )
        if self.votes_per_record >= self.num_cells:
            raise ValueError(
                "Expected num_neighbors * labels_per_record < num_queries * num_classes, got "
                f"{self.votes_per_record} votes for "
                f"{self.num_cells} cells; ask more queries."
            )

    @property
    @abc.abstractmethod
    def message_bits(self) -> int:
        """Size of a message in bits, without public coins.

        Public coins are the seed of a hash or the row of a matrix.
        """

    @property
    @abc.abstractmethod
    def mean_variance(self) -> float:
        """Variance that one client adds to a cell, on average over all cells."""

    @property
    def total_variation(self) -> float:
        """Bound on the total variation distance of the messages of any two inputs.

        Missing votes are inputs too, and public coins count as known. At (e^ε - 1)/(e^ε + 1), the
        most that epsilon allows, shuffling gives its general bound. A smaller distance gives a
        better bound. See `privacy.amplification`, whose proof has every client draw its own coins.
        """
        # Randomized response has (e^ε - 1)/(e^ε + 1) = tanh(ε/2), and no ε-DP mechanism has more.
        return math.tanh(self.epsilon / 2)

    @property
    def averages_over_hashes(self) -> bool:
        """True if `total_variation` is an average that holds for an ideal hash."""
        return False

    @property
    def num_totals(self) -> int:
        """Length of what `support` returns and `aggregate` sums."""
        return self.num_cells

    @abc.abstractmethod
    def randomize(self, key: jax.Array, cells: jax.Array) -> Any:
        """Return one client's message from its cells, int32 `[k·r]`. `key` is consumed."""

    def respond(self, entropy: Entropy, cells: np.ndarray) -> Any:
        """Return exact messages of many records, as they are really sent.

        The messages are those of `randomize`, but exact and from the operating system's entropy.

        Args:
          entropy: Stream of random words, which continues.
          cells: Votes as cells, int32 `[n, k·r]`; negative for a missing vote.

        Returns:
          Stacked messages, NumPy arrays of the dtypes that `randomize` has.

        Raises:
          NotImplementedError: If the mechanism has no exact form.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no exact form, so it can be simulated but not deployed; "
            "use Collision, SubsetSelection, "
            "RandomizedResponse or OptimizedUnaryEncoding."
        )

    @classmethod
    def is_exact(cls) -> bool:
        """Return False: a server could not bound what a liar's message does to an estimate."""
        return False

    @abc.abstractmethod
    def support(self, message: Any) -> jax.Array:
        """Return a mask of the cells that one message supports, bool `[num_totals]`."""

    @abc.abstractmethod
    def valid(self, message: Any) -> jax.Array:
        """Return True if one message of the right shape and type is in the alphabet."""

    @abc.abstractmethod
    def log_prob(self, messages: Any, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each of many messages given its public coins, float64.

        `cells` `[k·r]` are the client's votes.
        """

    @abc.abstractmethod
    def alphabet(self, key: jax.Array) -> Any:
        """Return all messages that share public coins drawn from `key`.

        For small d only: proofs and audits enumerate the messages.
        """

    @abc.abstractmethod
    def estimate(self, key: jax.Array, totals: Any, num_records: int) -> Any:
        """Return counts `[num_queries, num_classes]`.

        They are float64 from NumPy totals and float32 from JAX totals. `key` is not needed.
        """

    @abc.abstractmethod
    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return the estimate's standard deviation, float64 `[num_queries, num_classes]`.

        `counts` are the true counts, or noisy ones where those are private.
        """

    def aggregate(self, messages: Any) -> jax.Array:
        """Count the messages that support each cell, int32 `[num_totals]`."""
        return sum_of_blocks(self.block_totals, messages, self.messages_at_once, self.num_totals)

    def block_totals(self, messages: Any) -> jax.Array:
        """Return `aggregate` of a block of messages, of which all may be held in memory."""
        return jnp.sum(jax.vmap(self.support)(messages), axis=0, dtype=jnp.int32)

    def sample_totals(
        self, rng: np.random.Generator, votes: np.ndarray, clients: np.ndarray
    ) -> np.ndarray:
        """Draw the totals of messages from their exact joint law, without messages.

        The time does not grow with the number of clients.

        Args:
          rng: Generator of the draws.
          votes: Different sets of votes, int `[g, k·r]`; negative for a missing vote.
          clients: Number of clients with each set of votes, int `[g]`.

        Returns:
          int64 `[num_totals]`.

        Raises:
          NotImplementedError: If the law is known for single cells only.
        """
        raise NotImplementedError(
            f"{type(self).__name__} with {self.votes_per_record} votes a record has no exact law "
            "of totals; simulate its messages instead."
        )

    def guarantee(self, num_records: int) -> Guarantee:
        """Return the privacy of one message."""
        del num_records
        return Guarantee(
            self.epsilon, 0.0, "replace-one", trust="local", events=(Pure(self.epsilon, 1),)
        )


@dataclass(frozen=True)
class PureProtocol(LocalRandomizer):
    """Protocol whose message supports a voted cell with probability p, and any other with q."""

    independent_elsewhere: ClassVar[bool] = True
    """True if a message is independent over the cells without a vote."""

    @classmethod
    def is_exact(cls) -> bool:
        """Return True if the mechanism has a `respond` of its own."""
        return cls.respond is not LocalRandomizer.respond

    @property
    @abc.abstractmethod
    def p(self) -> float:
        """Probability that a message supports a cell that its client votes for."""

    @property
    @abc.abstractmethod
    def q(self) -> float:
        """Probability that a message supports any other cell."""

    @property
    @abc.abstractmethod
    def advantage(self) -> float:
        """Difference p - q, without cancellation at a small epsilon."""

    @property
    def variances(self) -> tuple[float, float]:
        """Variances `(v1, v0)` that one client adds to a cell with its vote and to any other."""
        p = self.p
        q = self.q
        # Support of a cell is a coin of probability p or q; debiasing divides it by p - q.
        return p * (1 - p) / self.advantage**2, q * (1 - q) / self.advantage**2

    @property
    def mean_variance(self) -> float:
        """Variance that one client adds to a cell, on average over all cells."""
        member, other = self.variances
        # Of the d cells, a client votes for kr.
        return other + (member - other) * self.votes_per_record / self.num_cells

    def hit_law(self, hits: np.ndarray) -> np.ndarray | None:
        """Return the probability that a message supports exactly the marked votes of its client.

        Return None if the law is not known.

        Args:
          hits: Masks of the votes, bool `[2^(k·r), k·r]`, all patterns.
        """
        del hits
        return None

    def sample_totals(
        self, rng: np.random.Generator, votes: np.ndarray, clients: np.ndarray
    ) -> np.ndarray:
        """Draw the totals of messages from their exact joint law; see `LocalRandomizer`.

        A message is independent over the cells that its client does not vote for, and supports each
        with probability q. The votes that the message supports follow `hit_law`. Both hold for an
        ideal hash, drawn anew by every client.
        """
        width = self.votes_per_record
        # All 2^(kr) patterns of which votes a message supports, `[2^(kr), kr]`.
        hits = (np.arange(2**width)[:, None] >> np.arange(width)[None]) & 1 == 1
        law = np.array([1 - self.p, self.p]) if width == 1 else self.hit_law(hits)
        if law is None or not self.independent_elsewhere:
            return super().sample_totals(rng, votes, clients)
        # `[g, kr]`: messages that support each vote, among the clients who vote so.
        supported = rng.multinomial(clients, law) @ hits
        named = votes >= 0
        counts, totals = np.zeros((2, self.num_cells), np.int64)
        np.add.at(counts, votes[named], np.broadcast_to(clients[:, None], votes.shape)[named])
        np.add.at(totals, votes[named], supported[named])
        # Everybody who does not vote for a cell supports it with probability q, each by itself.
        drawn: np.ndarray = totals + rng.binomial(clients.sum() - counts, self.q)
        return drawn

    def estimate(self, key: jax.Array, totals: Any, num_records: int) -> Any:
        """Return unbiased counts; see `LocalRandomizer`."""
        del key
        # E[total] = a·p + (n - a)·q for a voters, solved for a.
        return ((totals.astype(float) - num_records * self.q) / self.advantage).reshape(self.shape)

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return the estimate's standard deviation; see `LocalRandomizer`."""
        member, other = self.variances
        # Estimates may lie outside of [0, n], where no number of voters is.
        voted = np.clip(np.asarray(counts, np.float64), 0, num_records)
        return np.sqrt(voted * member + (num_records - voted) * other)


def sum_of_blocks(
    block_totals: Callable[[Any], jax.Array], messages: Any, size: int, num_totals: int
) -> jax.Array:
    """Add up the totals of blocks of `size` messages, int32 `[num_totals]`."""
    # A scan holds one block of masks at a time; the rest, fewer than a block, is added once.
    whole = len(jax.tree.leaves(messages)[0]) // size * size

    def add(totals: jax.Array, part: Any) -> tuple[jax.Array, None]:
        return totals + block_totals(part), None

    parts = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), messages)
    totals, _ = jax.lax.scan(add, jnp.zeros(num_totals, jnp.int32), parts)
    return add(totals, jax.tree.map(lambda x: x[whole:], messages))[0]


def exp(x: Any) -> float:
    """Return e^x, in float64 for a number and as traced for a tracer."""
    library: Any = jnp if isinstance(x, jax.Array) else math
    power: float = library.exp(x)
    return power


def real(x: Any) -> float:
    """Return an integer field as a floating-point number, a tracer if the field is one."""
    traced = isinstance(x, jax.Array)
    number: float = x.astype(float) if traced else float(x)
    return number


def expm1(x: Any) -> float:
    """Return e^x - 1, in float64 for a number and as traced for a tracer."""
    library: Any = jnp if isinstance(x, jax.Array) else math
    power: float = library.expm1(x)
    return power


def happens(word: jax.Array, probability: Any) -> jax.Array:
    """Return True with a given probability, from a uniform uint32 word.

    The word is compared with an integer threshold of 24 binary digits, which some words always
    exceed.
    """
    # The threshold of probability 1 would be 2^32, which no uint32 holds.
    share = jnp.minimum(jnp.asarray(probability, jnp.float32), 1 - 2.0**-24)
    return word < (share * 2.0**32).astype(jnp.uint32)


def pack(bits: jax.Array) -> jax.Array:
    """Pack bool `[d]` into uint32 `[ceil(d / 32)]`, cell 0 in the lowest bit."""
    padded = jnp.pad(bits, (0, -len(bits) % WORD)).reshape(-1, WORD)
    return jnp.sum(
        padded.astype(jnp.uint32) << jnp.arange(WORD, dtype=jnp.uint32)[None],
        axis=1,
        dtype=jnp.uint32,
    )


def voted_words(cells: jax.Array, num_cells: int) -> jax.Array:
    """Return a mask of the cells with a vote, packed as by `pack`, uint32 `[ceil(d / 32)]`.

    Negative entries of the cells `[k·r]` are no votes.
    """
    words = jnp.arange(-(-num_cells // WORD))[None]
    # A vote sets one bit of one word. Or, not sum, so that a repeated vote counts once.
    bits = jnp.uint32(1) << (cells % WORD).astype(jnp.uint32)
    return jax.lax.reduce_or(
        jnp.where(cells[:, None] // WORD == words, bits[:, None], jnp.uint32(0)), (0,)
    )


def packed(bits: np.ndarray) -> np.ndarray:
    """Pack rows of bool `[n, d]` as `pack` does, uint32 `[n, ceil(d / 32)]`, on the host."""
    padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % WORD)))
    return np.packbits(padded, axis=1, bitorder="little").view("<u4")


def unpacked(words: Array, count: int) -> np.ndarray:
    """Undo `packed`, bool `[n, count]`, on the host."""
    octets = np.ascontiguousarray(words, "<u4").view(np.uint8)
    return np.unpackbits(octets, axis=1, count=count, bitorder="little").astype(bool)


def voted_bits(cells: np.ndarray, num_cells: int) -> np.ndarray:
    """Return a mask of the cells with a vote for each record, bool `[n, num_cells]`.

    Negative entries of the cells `[n, k·r]` are no votes.
    """
    # Missing votes mark a column of their own, which is cut off.
    bits = np.zeros((len(cells), num_cells + 1), bool)
    np.put_along_axis(bits, np.where(cells < 0, num_cells, cells), True, axis=1)
    return bits[:, :num_cells]


def unpack(words: Array, num_cells: int) -> jax.Array:
    """Undo `pack`, bool `[num_cells]`."""
    bits = jnp.asarray(words)[:, None] >> jnp.arange(WORD, dtype=jnp.uint32)[None] & jnp.uint32(1)
    mask: jax.Array = bits.ravel()[:num_cells].astype(bool)
    return mask


def count_bits(
    messages: jax.Array,
    num_cells: int,
    *,
    implementation: kernels.Implementation | None = None,
) -> jax.Array:
    """Count the messages that have each of the first bits set.

    Args:
      messages: Messages, packed as by `pack`, uint32 `[n, w]`.
      num_cells: Number of cells d, at most 32·w.
      implementation: Name of the kernel, as `kernels.chosen` takes it; there is none for GPUs.
        Defaults to the platform's best.

    Returns:
      int32 `[d]`.
    """
    if kernels.chosen(implementation, None, _native_agrees) == "native":
        totals = jax.ShapeDtypeStruct((num_cells,), jnp.int32)
        counts: jax.Array = native.call("rknn_count_bits", totals, messages)
        return counts

    def block_totals(part: jax.Array) -> jax.Array:
        masks = jax.vmap(unpack, in_axes=(0, None))(part, num_cells)
        return jnp.sum(masks, axis=0, dtype=jnp.int32)

    return sum_of_blocks(block_totals, messages, LocalRandomizer.messages_at_once, num_cells)


def _native_agrees() -> bool:
    """Compare the native kernel with XLA on random messages."""
    messages = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (2_000, 20), np.uint32))
    return kernels.native_agrees(lambda form: count_bits(messages, 631, implementation=form))


def fits(words: jax.Array, count: int) -> jax.Array:
    """Return True if only the first `count` bits are set, as `pack` sets them."""
    return jnp.all(words == words & pack(jnp.ones(count, bool)))


def all_bits(num_cells: int) -> jax.Array:
    """Return every pattern of bits, packed, uint32 `[2^d, ceil(d / 32)]`."""
    return jnp.asarray(
        packed(np.arange(2**num_cells)[:, None] >> np.arange(num_cells)[None] & 1 == 1)
    )

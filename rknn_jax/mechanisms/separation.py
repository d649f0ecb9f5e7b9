"""Separation: two Collision messages at ε/2 each, on queries and on labels, multiplied.

Let A be 1 if one message supports query t, and B be 1 if the other supports label y. The product (A
- q₁)(B - q₂)/((p₁ - q₁)(p₂ - q₂)) has mean 1 if the record votes for both and 0 otherwise, as the
two messages are independent. The sum over clients is therefore unbiased. Its variance is a product
too. For 200 queries, 50 labels and k = r = 2, it is 7.5 times that of the flat `Collision` for
one record at ε = 8, and 86 times at ε = 1. The mechanism is therefore an ablation. A record must
vote for all pairs of its queries and labels; one that votes for some pairs only has no such
message. Votes that are missing altogether are no problem.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Appendix B.
"""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax._internal import pytree
from rknn_jax.mechanisms import collision
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.local import LocalRandomizer, PureProtocol
from rknn_jax.types import Array

MOST_PATTERN_LABELS = 10  # 2^10 patterns, for which totals are drawn in seconds


class Message(NamedTuple):
    """Message: `seeds`, uint32 `[2, 2]`, and `buckets`, int32 `[2]`, of queries and labels."""

    seeds: jax.Array
    buckets: jax.Array


class Moments(NamedTuple):
    """Second moments of the product that one client adds to a cell.

    One moment for each case: votes for both query and label, for one of them, for neither.
    """

    both: float
    query: float
    label: float
    neither: float


@dataclass(frozen=True)
class ProductOfEstimates(LocalRandomizer):
    """Protocol whose estimate of a cell is the product of a query's and a label's estimates."""

    messages_at_once: ClassVar[int] = 1024  # a product of large matrices is fast

    @property
    @abc.abstractmethod
    def factors(self) -> tuple[PureProtocol, PureProtocol]:
        """Mechanisms with p and q for queries and for labels."""

    @property
    @abc.abstractmethod
    def moments(self) -> Moments:
        """Second moments of the product of estimates."""

    @property
    def mean(self) -> float:
        """Mean of the product if a client votes for both query and label.

        The mean is 0 otherwise. The estimate is unbiased if this mean is 1.
        """
        return 1.0

    @property
    def num_totals(self) -> int:
        """Number of totals: cells, then queries, then labels."""
        return self.num_cells + self.num_queries + self.num_classes

    @abc.abstractmethod
    def supported(self, message: Any) -> tuple[jax.Array, jax.Array]:
        """Return the supported queries and labels, bool `[num_queries]` and `[num_classes]`."""

    def support(self, message: Any) -> jax.Array:
        """Return a mask of the supported cells, queries and labels; see `LocalRandomizer`."""
        queries, labels = self.supported(message)
        return jnp.concatenate([(queries[:, None] & labels[None]).ravel(), queries, labels])

    def block_totals(self, messages: Any) -> jax.Array:
        """Return the totals of a block of messages; see `LocalRandomizer`.

        One product of matrices counts all pairs. Its entries are numbers of messages, which float32
        holds exactly.
        """
        queries, labels = jax.vmap(self.supported)(messages)
        pairs = queries.astype(jnp.float32).T @ labels.astype(jnp.float32)
        parts = (pairs.ravel(), queries.sum(axis=0), labels.sum(axis=0))
        return jnp.concatenate([part.astype(jnp.int32) for part in parts])

    def estimate(self, key: jax.Array, totals: Any, num_records: int) -> Any:
        """Return sums of products; see `LocalRandomizer`."""
        del key
        one, other = self.factors
        d = self.num_cells
        s = self.num_queries
        pairs, queries, labels = (
            x.astype(float)
            for x in (totals[:d].reshape(self.shape), totals[d : d + s], totals[d + s :])
        )
        products = (
            pairs
            - other.q * queries[:, None]
            - one.q * labels[None]
            + num_records * one.q * other.q
        )
        return products / one.advantage / other.advantage

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return the estimate's standard deviation; see `LocalRandomizer`.

        Every record is assumed to have all of its votes.
        """
        both = np.clip(np.asarray(counts, np.float64), 0, num_records)
        queries = both.sum(axis=1, keepdims=True) / self.labels_per_record - both
        labels = both.sum(axis=0, keepdims=True) / self.num_neighbors - both
        clients = (both, queries, labels, np.maximum(num_records - both - queries - labels, 0))
        deviation: np.ndarray = np.sqrt(
            sum(number * moment for number, moment in zip(clients, self.moments, strict=True))
            - both * self.mean**2
        )
        return deviation

    @property
    def mean_variance(self) -> float:
        """Variance that one client adds to a cell, on average over all cells."""
        k = self.num_neighbors
        r = self.labels_per_record
        s = self.num_queries
        labels = self.num_classes
        cells = (k * r, k * (labels - r), (s - k) * r, (s - k) * (labels - r))
        return (
            sum(number * moment for number, moment in zip(cells, self.moments, strict=True))
            - k * r * self.mean**2
        ) / self.num_cells

    def queries_and_labels(self, cells: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the queries and labels of a client's votes, int32 `[k]` and `[r]`.

        Negative entries are missing votes. Excess entries are cut, so that any cells are safe.
        """
        queries, labels = (
            -jnp.sort(-bsvs.once(jnp.where(cells < 0, bsvs.NO_CELL, part)))[:size]
            for part, size in (
                (cells // self.num_classes, self.num_neighbors),
                (cells % self.num_classes, self.labels_per_record),
            )
        )
        return queries, labels


@pytree.register
@dataclass(frozen=True)
class Separation(ProductOfEstimates):
    """Hash to `query_buckets` and `label_buckets`. They default to the best numbers."""

    query_buckets: Any = None  # An int or a tracer under jit, as is the next.
    label_buckets: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, factor in zip(("query_buckets", "label_buckets"), self.factors, strict=True):
            object.__setattr__(self, name, factor.num_buckets)

    @property
    def factors(self) -> tuple[Collision, Collision]:
        """Collision on the queries and on the labels."""
        return (
            Collision(
                self.epsilon / 2,
                self.num_queries,
                1,
                self.num_neighbors,
                num_buckets=self.query_buckets,
            ),
            Collision(
                self.epsilon / 2,
                self.num_classes,
                1,
                self.labels_per_record,
                num_buckets=self.label_buckets,
            ),
        )

    @property
    def moments(self) -> Moments:
        """Products of the two second moments."""
        (vote, none), (label_vote, no_label) = (factor.variances for factor in self.factors)
        return Moments(
            (vote + 1) * (label_vote + 1),
            (vote + 1) * no_label,
            none * (label_vote + 1),
            none * no_label,
        )

    @property
    def message_bits(self) -> int:
        """Bits of both buckets; the seeds take 128 more."""
        return sum(factor.message_bits for factor in self.factors)

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return two seeds and buckets. `key` is consumed."""
        keys = jax.random.split(key)
        one, other = (
            factor.randomize(key, votes)
            for factor, key, votes in zip(
                self.factors, keys, self.queries_and_labels(cells), strict=True
            )
        )
        return Message(jnp.stack([one.seed, other.seed]), jnp.stack([one.bucket, other.bucket]))

    def supported(self, message: Message) -> tuple[jax.Array, jax.Array]:
        """Return the supported queries and labels; see `ProductOfEstimates`."""
        queries, labels = (
            factor.support(collision.Message(message.seeds[i], message.buckets[i]))
            for i, factor in enumerate(self.factors)
        )
        return queries, labels

    def sample_totals(
        self, rng: np.random.Generator, votes: np.ndarray, clients: np.ndarray
    ) -> np.ndarray:
        """Draw the totals exactly; see `LocalRandomizer`.

        The clients are split by the labels that their messages support. Each part then draws its
        totals of queries. The time grows with 2^|Y|.

        Raises:
          NotImplementedError: If there are more than `MOST_PATTERN_LABELS` classes, or a vote is
            missing.
        """
        if self.num_classes > MOST_PATTERN_LABELS or np.any(votes < 0):
            return super().sample_totals(rng, votes, clients)
        one, other = self.factors
        width = self.labels_per_record
        queries = votes.reshape(len(votes), -1, width)[:, :, 0] // self.num_classes
        labels = votes[:, :width] % self.num_classes
        patterns = np.arange(2**self.num_classes)[:, None] >> np.arange(self.num_classes) & 1
        hits = (np.arange(2**width)[:, None] >> np.arange(width)) & 1 == 1
        law = other.hit_law(hits)
        pairs = np.zeros(self.shape, np.int64)
        totals = np.zeros(self.num_queries + self.num_classes, np.int64)
        held = np.zeros((len(votes), len(patterns)), np.int64)
        for voted in np.unique(labels, axis=0):
            rest = np.delete(patterns, voted, axis=1).sum(axis=1)
            free = self.num_classes - width
            chance = law[patterns[:, voted] @ (1 << np.arange(width))]
            chance = chance * other.q**rest * (1 - other.q) ** (free - rest)
            mine = np.all(labels == voted, axis=1)
            held[mine] = rng.multinomial(clients[mine], chance / chance.sum())
        for pattern, number in zip(patterns, held.T, strict=True):
            supported = one.sample_totals(rng, queries, number)
            pairs += supported[:, None] * pattern
            totals += np.concatenate([supported, number.sum() * pattern])
        return np.concatenate([pairs.ravel(), totals])

    def valid(self, message: Message) -> jax.Array:
        """Return True if both buckets exist."""
        return jnp.all(
            (message.buckets >= 0)
            & (message.buckets < jnp.asarray([factor.num_buckets for factor in self.factors]))
        )

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its seeds; see `LocalRandomizer`."""
        parts = (collision.Message(messages.seeds[:, i], messages.buckets[:, i]) for i in range(2))
        named = np.asarray(cells)[np.asarray(cells) >= 0]
        votes = (
            np.unique(named // self.num_classes)[-self.num_neighbors :],
            np.unique(named % self.num_classes)[-self.labels_per_record :],
        )
        one, other = (
            factor.log_prob(part, vote)
            for factor, part, vote in zip(self.factors, parts, votes, strict=True)
        )
        law: np.ndarray = one + other
        return law

    def alphabet(self, key: jax.Array) -> Message:
        """Return every pair of buckets under one pair of seeds."""
        one, other = (factor.num_buckets for factor in self.factors)
        seeds = jnp.tile(jax.random.bits(key, (1, 2, 2), jnp.uint32), (one * other, 1, 1))
        return Message(seeds, jnp.stack(jnp.divmod(jnp.arange(one * other), other), axis=1))


EXAMPLES = (Separation(1.0, 3, 3), Separation(2.0, 3, 2, num_neighbors=2))

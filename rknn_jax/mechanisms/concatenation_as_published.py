"""Concatenation, as published and repaired: one Collision message on queries and labels together.

Neither form can be chosen for labeling.

A record's k queries and r labels are k + r votes among s + |Y| cells. The published estimate of a
pair multiplies the two estimates that the one bucket z gives. But z hits either the query t or the
label y, and hits both only if they hash to the same bucket. With p the probability of a hit, l
buckets and q = 1/l, a record that votes for t and y has

    E[(A - q)(B - q)]/(p - q)²  =  (p/l - 2p/l + 1/l²)/(p - 1/l)²  =  -1/(lp - 1)

and any other record has 0. The mean should be 1. It is negative at every ε, so the arg max of the
sum avoids the right label. Figure 6 of the paper shows a small squared error beyond ε = 3.5,
because the estimate then hardly ever differs from 0. Multiplied by -(lp - 1), the estimate is
unbiased. Its variance is then l - 1 times that of Collision on as many cells
(`benchmarks/results/appendix_b.json`).

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Appendix B.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.collision import Collision, Message
from rknn_jax.mechanisms.separation import Moments, ProductOfEstimates


@pytree.register
@dataclass(frozen=True)
class ConcatenationAsPublished(ProductOfEstimates):
    """Hash to `num_buckets` buckets. Defaults to the published ⌊2(k + r) - 1 + (k + r)e^ε⌋."""

    trusts: ClassVar[tuple[str, ...]] = ()
    unbiased: ClassVar[bool] = False

    num_buckets: Any = None  # An int, or a tracer under jit.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_buckets is None:
            votes = self.num_neighbors + self.labels_per_record
            published = math.floor(2 * votes - 1 + votes * math.exp(min(self.epsilon, 40.0)))
            object.__setattr__(self, "num_buckets", min(published, hashing.MOST_BUCKETS))
        self.collision  # noqa: B018 - The property checks the number of buckets.

    @property
    def collision(self) -> Collision:
        """Collision on s + |Y| cells with k + r votes."""
        cells = self.num_queries + self.num_classes
        votes = self.num_neighbors + self.labels_per_record
        return Collision(self.epsilon, cells, 1, votes, num_buckets=self.num_buckets)

    @property
    def factors(self) -> tuple[Collision, Collision]:
        """The same Collision for a query and for a label."""
        return self.collision, self.collision

    @property
    def mean(self) -> float:
        """Mean -1/(lp - 1) of the product for a record that votes for both."""
        return -self.collision.q / self.collision.advantage

    @property
    def moments(self) -> Moments:
        """Second moments of the product.

        With a vote for one of query and label, the two hits are independent. With votes for both,
        both hit with probability p/l.
        """
        one = self.collision
        p = one.p
        q = one.q
        (vote, none) = one.variances
        hit = (1 - q) / one.advantage
        miss = q / one.advantage
        both = p * q * hit**4 + 2 * p * (1 - q) * (hit * miss) ** 2 + (1 - 2 * p + p * q) * miss**4
        return Moments(both, (vote + 1) * none, none * (vote + 1), none**2)

    @property
    def message_bits(self) -> int:
        """Bits of the bucket; the seed takes 64 more."""
        return self.collision.message_bits

    def randomize(self, key: jax.Array, cells: jax.Array) -> Message:
        """Return a seed and a bucket. `key` is consumed."""
        queries, labels = self.queries_and_labels(cells)
        return self.collision.randomize(
            key, jnp.concatenate([queries, jnp.where(labels < 0, -1, labels + self.num_queries)])
        )

    def supported(self, message: Message) -> tuple[jax.Array, jax.Array]:
        """Return the supported queries and labels; see `ProductOfEstimates`."""
        support = self.collision.support(message)
        return support[: self.num_queries], support[self.num_queries :]

    def valid(self, message: Message) -> jax.Array:
        """Return True if the bucket exists."""
        return self.collision.valid(message)

    def log_prob(self, messages: Message, cells: np.ndarray) -> np.ndarray:
        """Return the log probability of each message given its seed; see `LocalRandomizer`."""
        named = np.asarray(cells)[np.asarray(cells) >= 0]
        queries = np.unique(named // self.num_classes)[-self.num_neighbors :]
        labels = np.unique(named % self.num_classes)[-self.labels_per_record :]
        return self.collision.log_prob(
            messages, np.concatenate([queries, labels + self.num_queries])
        )

    def alphabet(self, key: jax.Array) -> Message:
        """Return every bucket under one seed."""
        return self.collision.alphabet(key)


@pytree.register
@dataclass(frozen=True)
class RescaledConcatenation(ConcatenationAsPublished):
    """The published estimate times -(lp - 1): unbiased, and far too noisy."""

    unbiased: ClassVar[bool] = True

    def estimate(self, key: jax.Array, totals: Any, num_records: int) -> Any:
        """Return unbiased counts; see `LocalRandomizer`."""
        return super().estimate(key, totals, num_records) / super().mean

    @property
    def mean(self) -> float:
        """Mean of the product for a record that votes for both: 1."""
        return 1.0

    @property
    def moments(self) -> Moments:
        """Published second moments times (lp - 1)²."""
        return Moments(
            *(moment / super(RescaledConcatenation, self).mean ** 2 for moment in super().moments)
        )


EXAMPLES = (
    ConcatenationAsPublished(2.0, 3, 3),
    RescaledConcatenation(2.0, 3, 3),
    RescaledConcatenation(1.5, 4, 3, num_neighbors=2, num_buckets=7),
)

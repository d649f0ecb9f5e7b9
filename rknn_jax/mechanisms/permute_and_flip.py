"""Permute-and-flip per query: hard labels alone.

It needs 17% less epsilon than Laplace noise for the same share of wrong labels. The label of a
query is the arg max of its counts plus one-sided exponential noise of mean 2k/epsilon (replace-one)
or k/epsilon (add-remove). That is the law of permute-and-flip. Only the winner is released, as a
one-hot row: no soft labels and no smoothing.

**Why the scale is that of the Laplace histogram.** A vote more or less moves one count of one
query, for which permute-and-flip is monotone and (1/t)-DP. Under add-remove that happens in k
queries: k/t in total. Replacing a record either does that in up to 2k queries, or moves two counts
by 1 each, at 2/t, in k queries. Both cost 2k/t. A person whose votes are bounded by weights moves
counts in one direction by k in all, joining or leaving, and costs the same. With r > 1 labels a
record there is no single winner to release.

References: McKenna & Sheldon, "Permute-and-Flip", 2020; Ding et al., "The Permute-and-Flip
Mechanism is Identical to Report-Noisy-Max with Exponential Noise", 2021.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array


@pytree.register
@dataclass(frozen=True)
class PermuteAndFlip(CentralMechanism):
    """epsilon-DP release of each query's label as a one-hot row. Needs `labels_per_record` = 1."""

    unbiased: ClassVar[bool] = False
    releases_counts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels_per_record != 1:
            raise ValueError(
                f"Expected labels_per_record=1, got labels_per_record={self.labels_per_record}; "
                "several labels a record have no single "
                "winner, use DiscreteLaplace."
            )

    @property
    def scale(self) -> float:
        """Mean of the exponential noise, in votes."""
        return self.changed_cells / self.epsilon

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Return the winners as one-hot rows, float32 `[num_queries, num_classes]`.

        `key` is consumed.
        """
        del num_records
        votes = totals.reshape(self.shape).astype(jnp.float32) / self.grid
        noisy = votes + self.scale * jax.random.exponential(key, self.shape, jnp.float32)
        return jax.nn.one_hot(jnp.argmax(noisy, axis=1), self.num_classes)

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Return the winners as one-hot rows, drawn exactly; see `CentralMechanism.release`."""
        winners = exact_noise.permute_and_flip(
            totals, exact_noise.safe_scale(self.changed_cells * self.grid, self.epsilon)
        )
        chosen: np.ndarray = (np.arange(self.num_classes) == winners[:, None]).astype(np.int64)
        return chosen

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the exponential noise, in votes; the noisy counts stay secret."""
        return float(self.scale)

    @property
    def laplace_scale(self) -> float:
        """Mean of the exponential noise, in votes."""
        return float(self.scale)

    def flip_prob(self, gap: float) -> float:
        """Return the flip probability of permute-and-flip; see `CentralMechanism.flip_prob`.

        It is 1 less the integral of (1 - v·q)^(C-1) over v in [0, 1], with q = exp(-gap/scale).
        """
        behind = min(max(math.exp(-gap / self.noise_scale), 1e-300), 1 - 2**-53)
        wins = -math.expm1(self.num_classes * math.log1p(-behind)) / (self.num_classes * behind)
        return 1 - wins

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return 0: the released labels are not estimates of the counts."""
        del num_records
        return np.zeros(np.shape(counts))

    def guarantee(self, num_records: int) -> Guarantee:
        """Return pure epsilon-DP: k queries at epsilon/k each is the worst case."""
        del num_records
        event = Pure(self.epsilon / self.num_neighbors, self.num_neighbors)
        return Guarantee(self.epsilon, 0.0, self.relation, trust="central", events=(event,))


EXAMPLES = (
    PermuteAndFlip(1.0, 4, 3),
    PermuteAndFlip(0.5, 5, 4, num_neighbors=3, relation="add-remove"),
)

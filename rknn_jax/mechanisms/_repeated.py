"""Noise of a mechanism that several parties add, each all of it and by itself."""

import math
from dataclasses import dataclass, field, fields, replace

import jax
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array


@pytree.register
@dataclass(frozen=True)
class Repeated(CentralMechanism):
    """Central mechanism whose noise is added several times, independently.

    Guarantee: that of `each`, for everybody who lacks one of the noises. The result is a noisy sum
    by that one, plus noises that depend on no record (post-processing).

    Attributes:
      each: Mechanism of one party.
      times: Number of parties.
      trust: Name of the trust model.
    """

    each: CentralMechanism = field(kw_only=True)
    times: int = field(kw_only=True, metadata=pytree.STATIC)
    trust: str = field(kw_only=True, metadata=pytree.STATIC)

    @classmethod
    def of(cls, each: CentralMechanism, times: int, trust: str) -> "Repeated":
        """Return the mechanism of all parties, from that of one."""
        shared = {one.name: getattr(each, one.name) for one in fields(CentralMechanism)}
        return cls(**shared, each=each, times=times, trust=trust)

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add all noises in simulation, float32 `[num_queries, num_classes]`.

        `key` is consumed.
        """
        first, *others = jax.random.split(key, self.times)
        counts = self.each.estimate(first, totals, num_records)
        for other in others:
            counts = counts + self.each.estimate(other, 0 * totals, num_records)
        return counts

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Add all noises exactly; see `CentralMechanism.release`."""
        counts = self.each.release(totals)
        for _ in range(self.times - 1):
            counts = counts + self.each.release(np.zeros_like(totals))
        return counts

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of what a release draws, √times that of one party."""
        return math.sqrt(self.times) * self.each.noise_stddev

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return √times that of one party's noise."""
        found: np.ndarray = np.sqrt(self.times) * self.each.stddev(counts, num_records)
        return found

    def guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one party's noise, under the trust model."""
        return replace(self.each.guarantee(num_records), trust=self.trust)

    def release_guarantee(self, num_records: int) -> Guarantee:
        """Return the guarantee of one party's exact noise, under the trust model."""
        return replace(self.each.release_guarantee(num_records), trust=self.trust)

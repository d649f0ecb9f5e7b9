"""Discrete Laplace (two-sided geometric) noise on every cell: the default, used for releases.

P[x] = (1 - a)/(1 + a)·a^|x| with a = exp(-1/b), b = 2kr/epsilon under replace-one and kr/epsilon
under add-remove. Integer counts stay integers, so pure epsilon-DP holds exactly. Its variance,
2a/(1 - a)², is below continuous Laplace's 2b².

Reference: Ghosh, Roughgarden & Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms",
2009.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import events, exact_noise
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array


@pytree.register
@dataclass(frozen=True)
class DiscreteLaplace(CentralMechanism):
    """epsilon-DP on integers.

    Guarantee: neighbors move `changed_cells` counts by at most 1 each. Each count changes its
    probability by a factor of at most exp(1/scale) = exp(epsilon/changed_cells).
    """

    @property
    def scale(self) -> float:
        """Scale b of the noise, in votes."""
        return self.changed_cells / self.epsilon

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add the noise, float32 `[num_queries, num_classes]`, integers in units of 1 / `grid`.

        `key` is consumed.
        """
        del num_records
        # A geometric is the floor of an exponential. The difference of two geometrics is the
        # two-sided one.
        up, down = jnp.floor(
            self.scale * self.grid * jax.random.exponential(key, (2, *self.shape), jnp.float32)
        )
        counts: jax.Array = totals.reshape(self.shape).astype(jnp.float32) + up - down
        return counts if self.grid == 1 else counts / self.grid

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Add exact noise; see `CentralMechanism.release`."""
        scale = exact_noise.safe_scale(self.changed_cells * self.grid, self.epsilon)
        noisy = exact_noise.discrete_laplace(totals, scale)
        return noisy if self.grid == 1 else noisy / self.grid

    @property
    def noise_scale(self) -> float:
        """Scale b of the noise, in votes."""
        return float(self.scale)

    @property
    def laplace_scale(self) -> float:
        """Scale b of the noise, in votes."""
        return float(self.scale)

    def flip_prob(self, gap: float) -> float:
        """Return the flip probability of the noise; see `CentralMechanism.flip_prob`."""
        return bsvs.flip_prob(gap, self.noise_scale, self.num_classes)

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return sqrt(2a)/(1 - a) for every cell, in votes."""
        del num_records
        scale = float(self.scale) * self.grid
        stddev = np.sqrt(2 * np.exp(-1 / scale)) / -np.expm1(-1 / scale) if scale > 0 else 0.0
        return np.broadcast_to(stddev / self.grid, np.shape(counts))

    def guarantee(self, num_records: int) -> Guarantee:
        """Return pure epsilon-DP."""
        del num_records
        return Guarantee(
            self.epsilon,
            0.0,
            self.relation,
            trust="central",
            events=(events.DiscreteLaplace(self.scale, self.changed_cells),),
        )


EXAMPLES = (
    DiscreteLaplace(1.0, 4, 3),
    DiscreteLaplace(0.5, 5, 4, num_neighbors=3, labels_per_record=2, relation="add-remove"),
)

"""Continuous Laplace noise on every cell, as in the paper, for simulation only.

The scale is 2kr/epsilon under replace-one and kr/epsilon under add-remove. In float32, most outputs
for count 0 are impossible for count 1 (Mironov 2012). A release therefore uses `discrete_laplace`,
which also has the lower variance.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Section "Centralized
mechanism".
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import events
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array


@pytree.register
@dataclass(frozen=True)
class Laplace(CentralMechanism):
    """epsilon-DP. The variance of each cell is 2·scale².

    Guarantee: the L1 sensitivity of the counts is `changed_cells`, so
    Laplace(changed_cells/epsilon) on every cell is epsilon-DP. As `changed_cells` values move by 1
    each, several releases compose as that many unit shifts.
    """

    @property
    def scale(self) -> float:
        """Scale b of the noise, in votes."""
        return self.changed_cells / self.epsilon

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add the noise, float32 `[num_queries, num_classes]`. `key` is consumed."""
        del num_records
        votes = totals.reshape(self.shape).astype(jnp.float32) / self.grid
        return votes + self.scale * jax.random.laplace(key, self.shape, jnp.float32)

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return sqrt(2)·scale for every cell."""
        del num_records
        return np.broadcast_to(np.sqrt(2) * self.scale, np.shape(counts))

    def guarantee(self, num_records: int) -> Guarantee:
        """Return pure epsilon-DP."""
        del num_records
        return Guarantee(
            self.epsilon,
            0.0,
            self.relation,
            trust="central",
            events=(events.Laplace(self.scale, self.changed_cells),),
        )


EXAMPLES = (
    Laplace(1.0, 4, 3),
    Laplace(0.5, 5, 4, num_neighbors=3, labels_per_record=2, relation="add-remove"),
)

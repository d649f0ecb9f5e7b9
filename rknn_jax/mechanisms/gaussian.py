"""Gaussian noise on every cell, calibrated analytically to (epsilon, delta).

sigma = sqrt(2kr)·z under replace-one and sqrt(kr)·z under add-remove, with z the analytic noise
multiplier. It beats Laplace noise from about kr·T = 4 on, for T rounds. A release draws the
discrete Gaussian, whose standard deviation is calibrated anew, since the analytic formula holds
only for the continuous one.

References: Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, Theorem
8; Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax._internal import pytree
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import analytic_gaussian, calibration, events, exact_noise
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array

WIDE = 3.0
"""Parameter of a discrete Gaussian above which it is the standard deviation up to 10^-70."""


@pytree.register
@dataclass(frozen=True)
class Gaussian(CentralMechanism):
    """(epsilon, delta)-DP.

    Guarantee: the L2 sensitivity of the counts is sqrt(changed_cells). Noise of `noise_multiplier`
    times that sensitivity on every cell is (epsilon, delta)-DP.

    Attributes:
      delta: Delta, in (0, 1). Defaults to 1e-5.
      noise_multiplier: Noise multiplier z(epsilon, delta). It is computed, and overwrites a given
        value if epsilon and delta are numbers.
    """

    needs_delta: ClassVar[bool] = True
    norm: ClassVar[Literal[1, 2]] = 2

    delta: float = 1e-5
    noise_multiplier: float = math.nan

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.epsilon, int | float) and isinstance(self.delta, float):
            if not 0 < self.delta < 1:
                raise ValueError(
                    f"Expected 0 < delta < 1, got delta={self.delta}; for pure differential "
                    "privacy use DiscreteLaplace."
                )
            multiplier = 0.0 if self.epsilon == math.inf else self._calibrated()
            object.__setattr__(self, "noise_multiplier", multiplier)

    def _calibrated(self) -> float:
        """Return z: by the analytic formula, or by concentrated DP if persons move fractions."""
        if self.unit == "person":
            return calibration.zcdp_noise_multiplier(self.epsilon, self.delta)
        return analytic_gaussian.gaussian_noise_multiplier(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in votes."""
        return self.noise_multiplier * math.sqrt(self.changed_cells)

    def estimate(self, key: jax.Array, totals: jax.Array, num_records: int) -> jax.Array:
        """Add the noise, float32 `[num_queries, num_classes]`. `key` is consumed."""
        del num_records
        votes = totals.reshape(self.shape).astype(jnp.float32) / self.grid
        return votes + self.sigma * jax.random.normal(key, self.shape, jnp.float32)

    def release(self, totals: np.ndarray) -> np.ndarray:
        """Add exact discrete Gaussian noise; see `CentralMechanism.release`."""
        noisy = exact_noise.discrete_gaussian(totals, self._release_stddev())
        return noisy if self.grid == 1 else noisy / self.grid

    def release_guarantee(self, num_records: int) -> Guarantee:
        """Return (epsilon, delta)-DP of the discrete Gaussian."""
        if self.unit == "person":
            return replace(super().release_guarantee(num_records), accountant="zCDP")
        event = events.DiscreteGaussian(self._release_stddev(), self.changed_cells)
        return replace(
            self.guarantee(num_records), events=(event,), accountant="PLD", sampler="release"
        )

    @property
    def noise_scale(self) -> float:
        """Parameter of the discrete Gaussian that a release draws, in votes."""
        return self._release_stddev() / self.grid

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of what a release draws, in votes: less than a small parameter."""
        parameter = self._release_stddev()
        if parameter > WIDE or parameter == 0:
            return parameter / self.grid
        squares = np.arange(1, math.ceil(20 * WIDE)) ** 2.0
        weights = np.exp(-squares / 2 / parameter**2)
        return math.sqrt(2 * weights @ squares / (1 + 2 * weights.sum())) / self.grid

    def flip_prob(self, gap: float) -> float:
        """Return the probability that what a release draws changes a label; see the base class."""
        return bsvs.gaussian_flip_prob(gap, self.noise_scale, self.num_classes)

    def stddev(self, counts: Array, num_records: int) -> np.ndarray:
        """Return sigma for every cell."""
        del num_records
        return np.broadcast_to(self.sigma, np.shape(counts))

    def guarantee(self, num_records: int) -> Guarantee:
        """Return (epsilon, delta)-DP by the analytic formula."""
        del num_records
        event = events.Gaussian(self.noise_multiplier)
        return Guarantee(
            self.epsilon,
            self.delta,
            self.relation,
            trust="central",
            events=(event,),
            accountant="analytic Gaussian",
        )

    def _release_stddev(self) -> float:
        """Return the parameter of the discrete Gaussian, in units of 1 / `grid` votes."""
        if self.unit == "person" or not self.noise_multiplier:
            return self.sigma * self.grid * (1 + 1e-12)
        return calibration.discrete_gaussian_stddev(self.epsilon, self.delta, self.changed_cells)


EXAMPLES = (
    Gaussian(1.0, 4, 3),
    Gaussian(0.5, 5, 4, num_neighbors=3, labels_per_record=2, delta=1e-6, relation="add-remove"),
)

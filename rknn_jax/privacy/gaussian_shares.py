"""Discrete Gaussian noise that clients add in shares.

Each of h clients adds discrete Gaussian noise of standard deviation s to every integer of its own
vector. The sum then has noise of standard deviation s·√h, whatever other clients add. It is
(epsilon, delta)-DP, as long as the noise of those h clients is unknown.

**The noise of a sum is almost the discrete Gaussian.** Suppose that j shares add up to z with
probability C·u·exp(-z²/(2js²)), where u is within a factor exp(±t) of 1. One share more adds up to

    exp(-z²/(2(j+1)s²)) · sum over integers x of u·exp(-(x - m)²/(2c)),  c = s²·j/(j+1) >= s²/2,

for some m. By Poisson summation, the last sum without u is √(2πc)·(1 + r) with
|r| <= 2·exp(-2π²c)/(1 - exp(-2π²c)), whatever m is. So t grows by at most -log(1 - |r|). With
s >= `SMALLEST_SHARE`, |r| < 2.1·exp(-π²s²) < 10^-1000. The law of the sum, which is normalized too,
is within a factor exp(±2t) of the discrete Gaussian of variance hs². For 2^23 integers and 2^12
clients, epsilon is larger by less than 10^-980, and delta by as small a factor. Both are below the
rounding of the standard deviation, which is taken one float larger.

Kairouz, Liu & Steinke prove the same for concentrated DP: for d integers, the square root of twice
rho is larger than that of Gaussian noise by less than √d·10·h·exp(-π²s²). So sums compose as
Gaussian noise does.

Reference: Kairouz, Liu & Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
Learning with Secure Aggregation", ICML 2021.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rknn_jax.privacy import calibration, exact_noise
from rknn_jax.privacy.events import Concentrated
from rknn_jax.privacy.guarantee import Guarantee

SMALLEST_SHARE = 16.0
"""Least standard deviation of a share, for which the sum is a discrete Gaussian to 10^-1000."""

LARGEST_SHARE = 2.0**40
"""Most standard deviation of a share, so that sums of thousands fit into 64 bits."""


@dataclass(frozen=True)
class GaussianShares:
    """(epsilon, delta)-DP of a sum, by the noise of `shares` clients.

    Attributes:
      epsilon: Privacy budget of the sum, positive and finite.
      delta: Delta, in (0, 1).
      sensitivity: Largest L2 change of the sum between neighbors.
      shares: Number h of clients whose noise suffices.
    """

    epsilon: float
    delta: float
    sensitivity: float
    shares: int

    def __post_init__(self) -> None:
        if self.shares < 1 or not 0 < self.sensitivity < math.inf:
            raise ValueError(
                f"Expected shares >= 1 and 0 < sensitivity < infinity, got shares={self.shares} "
                f"and sensitivity={self.sensitivity}."
            )
        if not SMALLEST_SHARE <= self.share_stddev <= LARGEST_SHARE:
            raise ValueError(
                f"Expected noise of standard deviation {SMALLEST_SHARE:g} to {LARGEST_SHARE:.2g} "
                f"of a client, got {self.share_stddev:.4g}; change epsilon={self.epsilon} or the "
                f"number of clients that add it, {self.shares}."
            )

    @cached_property
    def multiplier(self) -> float:
        """Standard deviation of the noise of `shares` clients, in units of the sensitivity."""
        return calibration.zcdp_noise_multiplier(self.epsilon, self.delta)

    @property
    def share_stddev(self) -> float:
        """Standard deviation s of one client's noise, rounded up."""
        exact = self.multiplier * self.sensitivity / math.sqrt(self.shares)
        return exact * (1 + 2.0**-50)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the sum, if the noise of `shares` clients is unknown."""
        event = Concentrated(self.multiplier)
        return Guarantee(
            self.epsilon,
            self.delta,
            "replace-one",
            trust="aggregate",
            events=(event,),
            accountant="zCDP",
            sampler="release",
        )

    def stddev(self, clients: int) -> float:
        """Return the standard deviation of the noise of a sum over so many clients."""
        return self.share_stddev * math.sqrt(clients)

    def share(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw one client's noise, int64 `shape`, on the operating system's entropy."""
        return exact_noise.discrete_gaussian(np.zeros(shape, np.int64), self.share_stddev)

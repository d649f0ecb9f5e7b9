"""Sum of a labeler over clients with noise in shares, by `privacy.gaussian_shares`."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rknn_jax.labelers._client_sum import ClientSum
from rknn_jax.labelers._tally import Tally
from rknn_jax.privacy.clipping import CLIP_SLACK
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.gaussian_shares import GaussianShares
from rknn_jax.privacy.guarantee import Guarantee, Unit
from rknn_jax.types import Array

MOST_NUMBERS = 2**24
"""Most numbers in the public rows of a sum, from which each client finds what a record adds."""


class Reach(NamedTuple):
    """Distances of a sum, in units of weight and L2 norm.

    Attributes:
      norm: Largest norm of what a record adds.
      change: Largest distance of two sums over records that are scaled to that norm.
    """

    norm: float
    change: float


@dataclass(frozen=True)
class SumShares(ClientSum):
    """Sum of a labeler of one noisy sum, with discrete Gaussian noise.

    With unit=client, the sum over all records of a client is scaled to the norm of one, and then
    moves the sum no more than a record does (`Reach`). If its records shared the weight of one
    instead, those of different classes would have a smaller norm, and so more noise.

    Scaled numbers are cut toward zero, which moves each by less than 1, and so two vectors of d
    numbers by less than 2·sqrt(d). The norm is smaller in the same ratio as the change has to be.

    Attributes:
      tally: What a record adds. If a client is protected, its unit is a person: its grid keeps
        scaled numbers fine.
      reach: How far a record moves the sum, which is the sensitivity.
      shares: Noise of all honest clients but one.
      unit: Privacy unit: record, or client.
    """

    tally: Tally
    reach: Reach
    shares: GaussianShares
    unit: Unit

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of `privacy.json`: the size and the noise of the sum."""
        return {
            "sum_shape": list(self.shape),
            "sensitivity": self.shares.sensitivity,
            "stddev_of_a_client": self.shares.share_stddev,
            "clients_whose_noise_suffices": self.shares.shares,
        }

    @property
    def details(self) -> dict[str, Any]:
        """Lines of `privacy.html`: the size and the noise of the sum."""
        return {
            "numbers in the sum": math.prod(self.shape),
            f"most change of the sum by a {self.unit}": f"{self.shares.sensitivity:,.0f}",
            "noise of each client": f"{self.shares.share_stddev:,.0f}",
        }

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the labeler's sum."""
        return self.tally.shape

    @property
    def noise(self) -> str:
        """Name of the noise."""
        return "discrete_gaussian"

    @cached_property
    def guarantee(self) -> Guarantee:
        """Guarantee of the sum, which does not depend on n."""
        return replace(self.shares.guarantee, unit=self.unit)

    def terms(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return the sum over the client's records, int64 `shape`."""
        total = self.tally.total(np.asarray(features), labels)
        if self.unit == "record":
            return total
        units = total.astype(np.float64) * self.tally.grid
        rounding = 2 * math.sqrt(units.size)
        most = self.reach.norm * (1 - rounding / self.reach.change) * CLIP_SLACK
        scaled = units * (most / max(float(np.linalg.norm(units)), most))
        return np.trunc(scaled).astype(np.int64)

    def vector(self, terms: np.ndarray, entropy: Entropy) -> np.ndarray:
        """Return the client's sum with its share of the noise, int64, flat.

        The noise is of the operating system's entropy: it is drawn once, and never again.
        """
        del entropy
        noisy: np.ndarray = terms + self.shares.share(self.shape)
        return noisy.ravel()

    def estimate(self, totals: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy sum, in units."""
        noisy = totals.reshape(self.shape).astype(np.float64)
        return noisy, np.full(self.shape, self.shares.stddev(clients))

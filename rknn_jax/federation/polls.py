"""Sums of a round with trust=central: what each client adds, with which noise, and what comes out.

`Poll` is what clients, the secure sum and the collector know of a labeler. Votes of reverse k-NN
labeling are one, with the coins of `mechanisms.binomial`. The sum of any labeler of `_one_sum` is
another, with the shares of `privacy.gaussian_shares`. All of a poll is public and follows from the
round, so that client and server have the same one.
"""

import abc
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rknn_jax import labelers
from rknn_jax.bsvs import NO_CELL
from rknn_jax.labelers import _simulation_only, rknn
from rknn_jax.labelers._one_sum import OneSumLabeler, Reach
from rknn_jax.labelers._tally import Tally
from rknn_jax.mechanisms.binomial import Binomial
from rknn_jax.privacy.clipping import CLIP_SLACK
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.gaussian_shares import GaussianShares
from rknn_jax.privacy.guarantee import Guarantee, Unit
from rknn_jax.types import Array, Queries

MOST_COINS = 2**27
"""Most coins of a client and cell, so that counts and coins fit into a secure sum."""

MOST_NUMBERS = 2**24
"""Most numbers in the public rows of a sum, from which each client finds what a record adds."""


class Poll(abc.ABC):
    """Sum over the records of all clients, with noise in shares. All of it is public."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of the sum."""

    @property
    @abc.abstractmethod
    def noise(self) -> str:
        """Name of the noise."""

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """Guarantee of the sum, by the noise of all honest clients but one."""

    @property
    def draws_a_record(self) -> int:
        """Cost of a client's noise for one number, in record-equivalents."""
        return 1

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of `privacy.json` about the sum. Defaults to none."""
        return {}

    @property
    def details(self) -> dict[str, Any]:
        """Lines of `privacy.html` about the sum. Defaults to none."""
        return {}

    @abc.abstractmethod
    def tell(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return what a client's records say, without noise: private, a function of them alone.

        Args:
          features: Finite features, float32 `[n, f]`.
          labels: Classes, int32 `[n]`. A record with a negative one says nothing.
        """

    @abc.abstractmethod
    def vector(self, told: np.ndarray, entropy: Entropy) -> np.ndarray:
        """Return a client's part with its share of the noise, int64, for a secure sum to hide.

        Args:
          told: Result of `tell`.
          entropy: Entropy of draws, consumed.
        """

    @abc.abstractmethod
    def opened(self, totals: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy sum and its standard deviations, float64 `shape`.

        Args:
          totals: Sum of the clients' vectors, int64.
          clients: Number of clients in it.
        """


@dataclass(frozen=True)
class VotePoll(Poll):
    """Votes of reverse k-NN labeling, with binomial noise.

    Attributes:
      queries: float32 `[s, f]`.
      config: Settings of the labeler.
      coins: Noise of all honest clients but one.
      records_per_client: Number of records of a client that vote, drawn at random; 0 if all do.
    """

    queries: np.ndarray
    config: rknn.ReverseKNN
    coins: Binomial
    records_per_client: int

    def __post_init__(self) -> None:
        if self.coins.coins_per_share > MOST_COINS:
            raise ValueError(
                f"Expected at most {MOST_COINS} coins of a client and cell, got "
                f"{self.coins.coins_per_share}; raise epsilon or honest."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(s, num_classes)` of the votes."""
        return self.coins.shape

    @property
    def noise(self) -> str:
        """Name of the mechanism."""
        return self.config.noise

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the votes, which does not depend on n."""
        return replace(self.coins.guarantee(0), trust="aggregate")

    @property
    def draws_a_record(self) -> int:
        """Number of words of coins."""
        return -(-self.coins.coins_per_share // 64)

    def tell(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return the cells that the records vote for, int32 `[n, k·r]`."""
        return votes(self.queries, self.coins.num_classes, self.config, features, labels)

    def vector(self, told: np.ndarray, entropy: Entropy) -> np.ndarray:
        """Return the client's counts and coins, int64 `[s·|Y|]`."""
        cells = told
        if self.records_per_client:
            cells = np.unique(drawn_records(entropy, cells, self.records_per_client))
        counts = np.bincount(cells[cells >= 0].ravel(), minlength=self.coins.num_cells)
        noisy: np.ndarray = counts + self.coins.share(entropy)
        return noisy

    def opened(self, totals: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy votes, without the mean of the coins."""
        counts = self.coins.without_mean(totals, clients)
        return counts, self.coins.stddev(counts, 0) * np.sqrt(clients / self.coins.shares)


@dataclass(frozen=True)
class SumPoll(Poll):
    """Sum of a labeler of one noisy sum, with discrete Gaussian noise.

    With unit=client, the sum over all records of a client is scaled to the norm of one, and then
    moves the sum no more than a record does (`Reach`). If its records shared the weight of one
    instead, those of different classes would have a smaller norm, and so more noise.

    Scaled numbers are cut toward zero, which moves each by less than 1, and so two vectors of d
    numbers by less than 2·sqrt(d). The norm is smaller in the same ratio as the change has to be.

    Attributes:
      labeler: Labeler, whose unit is a person if a client is protected. Its grid keeps scaled
        numbers fine.
      tally: What a record adds.
      reach: How far a record moves the sum, which is the sensitivity.
      shares: Noise of all honest clients but one.
      unit: Privacy unit: record, or client.
    """

    labeler: OneSumLabeler
    tally: Tally
    reach: Reach
    shares: GaussianShares
    unit: Unit

    @classmethod
    def of(
        cls, config: OneSumLabeler, queries: np.ndarray, num_classes: int, unit: Unit, honest: int
    ) -> "SumPoll":
        """Return the poll of a round.

        Args:
          config: Labeler that travels.
          queries: Public rows that determine what a record adds, float32 `[s, f]`.
          num_classes: Number of classes |Y|.
          unit: Privacy unit: record, or client.
          honest: Number of clients that follow the protocol.

        Raises:
          ValueError: If the labeler has no Gaussian noise, or another relation than replace-one, or
            if there are too many rows.
        """
        if queries.size > MOST_NUMBERS:
            raise ValueError(
                f"Expected public rows of at most {MOST_NUMBERS:,} numbers for a sum, got "
                f"{len(queries):,} of {queries.shape[1]:,}; pass fewer --queries."
            )
        if config.relation != "replace-one":
            raise ValueError(
                f"Expected relation=replace-one in a round, got relation={config.relation}."
            )
        labeler = cls.labeler_of(config, unit)
        tally = labeler.aggregate_tally(public_rows(queries), num_classes)
        reach = labeler.aggregate_reach(tally)
        shares = GaussianShares(config.epsilon, config.delta, reach.change, honest - 1)
        return cls(labeler, tally, reach, shares, unit)

    @staticmethod
    def labeler_of(config: OneSumLabeler, unit: Unit) -> OneSumLabeler:
        """Return the labeler of a round, whose unit is a person if a client is protected."""
        return replace(config, unit="person" if unit == "client" else "record")

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

    def tell(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return the sum over the client's records, int64 `shape`."""
        total = self.tally.total(np.asarray(features), labels)
        if self.unit == "record":
            return total
        units = total.astype(np.float64) * self.tally.grid
        rounding = 2 * math.sqrt(units.size)
        most = self.reach.norm * (1 - rounding / self.reach.change) * CLIP_SLACK
        scaled = units * (most / max(float(np.linalg.norm(units)), most))
        return np.trunc(scaled).astype(np.int64)

    def vector(self, told: np.ndarray, entropy: Entropy) -> np.ndarray:
        """Return the client's sum with its share of the noise, int64, flat.

        The noise is of the operating system's entropy: it is drawn once, and never again.
        """
        del entropy
        noisy: np.ndarray = told + self.shares.share(self.shape)
        return noisy.ravel()

    def opened(self, totals: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy sum, in units."""
        noisy = totals.reshape(self.shape).astype(np.float64)
        return noisy, np.full(self.shape, self.shares.stddev(clients))


def sum_labelers() -> dict[str, type[OneSumLabeler]]:
    """Return the labelers whose sums clients can add up, beside those of votes, by name."""
    found = {name: labelers.named(name) for name in labelers.names()}
    return {
        name: kind
        for name, kind in found.items()
        if issubclass(kind, OneSumLabeler) and not _simulation_only.hindrance(kind)
    }


def public_rows(queries: np.ndarray) -> Queries:
    """Return the rows of a question, float32 `[s, f]`, each of which stands for itself."""
    return Queries.alone(queries, np.arange(len(queries)))


def votes(
    queries: np.ndarray,
    num_classes: int,
    config: rknn.ReverseKNN,
    features: Array,
    labels: np.ndarray,
) -> np.ndarray:
    """Return the cells that records vote for, int32 `[n, k·r]`, private.

    Each record's cells depend on that record alone.
    """
    return np.asarray(rknn.connect(features, labels, public_rows(queries), num_classes, config))


def drawn_records(entropy: Entropy, cells: np.ndarray, count: int) -> np.ndarray:
    """Return the cells of `count` records, drawn without replacement.

    If there are fewer records, records that cast no vote make up the rest.
    """
    missing = np.full((max(0, count - len(cells)), cells.shape[1]), NO_CELL, np.int32)
    every = np.concatenate([cells, missing])
    drawn: np.ndarray = every[entropy.subset(len(every), count, 1)[0]]
    return drawn

"""Sums over clients, of which nobody sees a part: what each client adds, with which noise.

`ClientSum` is what clients, the secure sum and the collector of a round with trust=central know of
a labeler. All of it is public and follows from the round, so that client and server have the same
one.
"""

import abc
from typing import Any, NamedTuple

import numpy as np

from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Guarantee, Unit
from rknn_jax.types import Array


class Clients(NamedTuple):
    """Clients of a round, as its question says.

    Attributes:
      unit: Privacy unit: record, or client.
      honest: Number of clients that follow the protocol. The noise of all but one suffices.
      records: Number of records of a client that vote; 0 if all do.
    """

    unit: Unit
    honest: int
    records: int


class ClientSum(abc.ABC):
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
    def terms(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return what a client's records add, without noise: private, a function of them alone.

        Args:
          features: Finite features, float32 `[n, f]`.
          labels: Classes, int32 `[n]`. A record with a negative one adds nothing.
        """

    @abc.abstractmethod
    def vector(self, terms: np.ndarray, entropy: Entropy) -> np.ndarray:
        """Return a client's part with its share of the noise, int64, for a secure sum to hide.

        Args:
          terms: Result of `terms`.
          entropy: Entropy of draws, consumed.
        """

    @abc.abstractmethod
    def estimate(self, totals: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy sum and its standard deviations, float64 `shape`.

        Args:
          totals: Sum of the clients' vectors, int64.
          clients: Number of clients in it.
        """

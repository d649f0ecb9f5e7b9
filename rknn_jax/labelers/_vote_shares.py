"""Votes of clients with noise in shares, by the coins of `mechanisms.binomial`."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax.bsvs import NO_CELL
from rknn_jax.labelers._client_sum import ClientSum
from rknn_jax.labelers._votes import VoteTally, cells_of
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array

# It takes a second to import, and a release needs none of it.
if TYPE_CHECKING:
    from rknn_jax.mechanisms.binomial import Binomial


@dataclass(frozen=True)
class VoteShares(ClientSum):
    """Votes of reverse k-NN labeling, with binomial noise.

    Attributes:
      tally: Votes of the records.
      coins: Noise of all honest clients but one.
      records_per_client: Number of records of a client that vote, drawn at random; 0 if all do.
    """

    tally: VoteTally
    coins: "Binomial"
    records_per_client: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(s, num_classes)` of the votes."""
        return self.coins.shape

    @property
    def noise(self) -> str:
        """Name of the mechanism."""
        return type(self.coins).__module__.rsplit(".", 1)[-1]

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the votes, which does not depend on n."""
        return replace(self.coins.guarantee(0), trust="aggregate")

    @property
    def draws_a_record(self) -> int:
        """Number of words of coins."""
        return -(-self.coins.coins_per_share // 64)

    def terms(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return the cells that the records vote for, int32 `[n, k·r]`."""
        return cells_of(self.tally, features, labels)

    def vector(self, terms: np.ndarray, entropy: Entropy) -> np.ndarray:
        """Return the client's counts and coins, int64 `[s·|Y|]`."""
        cells = terms
        if self.records_per_client:
            cells = np.unique(drawn_records(entropy, cells, self.records_per_client))
        counts = np.bincount(cells[cells >= 0].ravel(), minlength=self.coins.num_cells)
        noisy: np.ndarray = counts + self.coins.share(entropy)
        return noisy

    def estimate(self, totals: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy votes, without the mean of the coins."""
        counts = self.coins.without_mean(totals, clients)
        return counts, self.coins.stddev(counts, 0) * np.sqrt(clients / self.coins.shares)


def drawn_records(entropy: Entropy, cells: np.ndarray, count: int) -> np.ndarray:
    """Return the cells of `count` records, drawn without replacement.

    If there are fewer records, records that cast no vote make up the rest.
    """
    missing = np.full((max(0, count - len(cells)), cells.shape[1]), NO_CELL, np.int32)
    every = np.concatenate([cells, missing])
    drawn: np.ndarray = every[entropy.subset(len(every), count, 1)[0]]
    return drawn

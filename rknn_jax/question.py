"""Question to private records, and the reading of the answer.

A `Question` is a labeler with its public rows, its sum and the noise of a curator. All of it is
public. `Question.draw` is where the private sum of a release ends: all that follows is
post-processing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rknn_jax.labelers._sum_labeler import (
    CuratorNoise,
    Labeling,
    NoisySum,
    PublicRows,
    SumLabeler,
    Words,
)
from rknn_jax.labelers._tally import Tally
from rknn_jax.labels import PublicLabels
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Queries


@dataclass(frozen=True)
class Question:
    """Question of a curator to private records, and the reading of its answer. All of it is public.

    Attributes:
      labeler: Labeler that is planned, that runs, and that a statement names.
      mechanism: Name of its noise.
      public: Public rows that get labels.
      sum: Sum over the private records.
      noise: Noise of the sum.
      guarantee: Guarantee of what is released: of the noisy sum, and of a check beside it.
    """

    labeler: SumLabeler[Any]
    mechanism: str
    public: PublicRows
    sum: Tally
    noise: CuratorNoise
    guarantee: Guarantee

    @property
    def queries(self) -> Queries:
        """Public queries."""
        return self.public.queries

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what `draw` returns."""
        return self.labeler.drawn(self.sum)

    def draw(self, totals: np.ndarray, num_units: int, payer: Payer, purpose: str) -> np.ndarray:
        """Charge a ledger, then draw exact noise, int64 or float64 of the shape `shape`.

        Args:
          totals: Sum over the private records, int64, of the shape of `sum`.
          num_units: Number of private records, or of persons.
          payer: Ledger to charge.
          purpose: A few words for it.

        Raises:
          LedgerError: If the budget does not allow it; nothing is drawn then.
          ValueError: If so many units cannot have this sum; nothing is charged then.
        """
        totals = np.asarray(totals)
        self.noise.check(totals, num_units)
        payer.charge(self.guarantee, purpose)
        return self.noise.draw(totals)

    def read(self, drawn: np.ndarray) -> PublicLabels:
        """Return the labels of the public rows: post-processing of what was drawn."""
        return self.labeler.public_labels(self._noisy(drawn), self.public)

    def labelings(self, drawn: np.ndarray) -> tuple[Labeling, ...]:
        """Return the labelings to choose from, by post-processing; the usual one is first."""
        return self.labeler.labelings(self._noisy(drawn), self.public)

    @property
    def words(self) -> Words:
        """The labeler's part of a statement."""
        public = self.public
        sizes = (len(public.queries.index), len(public.names), len(public.features))
        return self.labeler.words(*sizes)

    @property
    def subject(self) -> str:
        """A few words for a ledger."""
        sizes = (len(self.queries.index), len(self.public.names))
        return self.labeler.subject(*sizes)

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines for the terminal, each a word and a text."""
        return self.labeler.lines(self.mechanism, self.queries, self.sum, self.noise)

    def _noisy(self, drawn: np.ndarray) -> NoisySum:
        return NoisySum(drawn, self.noise.stddev, self.guarantee)

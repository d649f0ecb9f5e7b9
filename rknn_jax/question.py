"""Question to private records, and the reading of the answer.

A `Question` is a labeler with its public rows, its sum and the noise of a curator. All of it is
public. `Question.draw` is where the private sum of a release ends: what is read off it is
post-processing. Records that did not add to it may check what was read (`check.Checkers.draw`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

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
from rknn_jax.labels import PublicLabels, product
from rknn_jax.mechanisms.base import Payer
from rknn_jax.neighbors import Metric
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.accounting import compose, sum_up
from rknn_jax.privacy.charges import exact_fraction
from rknn_jax.privacy.filters import Amount
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Queries


class Before(NamedTuple):
    """Labels of the rounds before, which were released.

    Attributes:
      probabilities: Soft labels of the public rows, float32 `[m, num_classes]`.
      guarantee: Guarantee of all rounds before.
      metric: Metric of the features that they teach others from. Defaults to squared Euclidean.
      not_covered: Sentences on the risks that the guarantees of these rounds do not cover. Defaults
        to none.
    """

    probabilities: np.ndarray
    guarantee: Guarantee
    metric: Metric = "sqeuclidean"
    not_covered: tuple[str, ...] = ()

    def whole(self, cost: Guarantee) -> Guarantee:
        """Return the guarantee of a round and of those before it together.

        Args:
          cost: Guarantee of the round alone.
        """
        # Sequential composition: the queries of a round depend on what the rounds before released.
        parts = (self.guarantee, cost)
        return compose(parts, sum_up(one.delta for one in parts))

    def details(self, cost: Guarantee) -> dict[str, str]:
        """Return the line of a statement about the rounds before.

        Args:
          cost: Guarantee of the round alone.
        """
        now, earlier = (
            # What a ledger would not charge is told too: together, rounds may have an epsilon of 0.
            Amount(exact_fraction(one.epsilon, "epsilon"), exact_fraction(one.delta, "delta"))
            for one in (cost, self.guarantee)
        )
        return {
            "rounds": f"{earlier} for the rounds before, whose labels teach this one its features, "
            f"and {now} for this one; the guarantee is that of all of them together"
        }


RELEASED_BEFORE = (
    "all that the statements of the rounds before list; these labels are made of it too"
)
"""Item of what a round after others releases."""


@dataclass(frozen=True)
class Question:
    """Question of a curator to private records, and the reading of its answer. All of it is public.

    Attributes:
      labeler: Labeler that is planned, that runs, and that a statement names.
      mechanism: Name of its noise.
      public: Public rows that get labels.
      tally: Public side of their sum: what a record adds.
      noise: Noise of the sum.
      guarantee: Guarantee of what is released: of the noisy sum, and of a check beside it.
      before: Labels of the rounds before. Defaults to None, in a first round.
    """

    labeler: SumLabeler[Any]
    mechanism: str
    public: PublicRows
    tally: Tally
    noise: CuratorNoise
    guarantee: Guarantee
    before: Before | None = None

    @property
    def whole(self) -> Guarantee:
        """Guarantee of this round and of those before it together."""
        return self.guarantee if self.before is None else self.before.whole(self.guarantee)

    @property
    def queries(self) -> Queries:
        """Public queries."""
        return self.public.queries

    @property
    def asked(self) -> str:
        """Fingerprint of the public rows and the queries, which an encoder makes."""
        queries = self.public.queries
        return fingerprint(self.public.features, queries.features, queries.cluster)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what `draw` returns."""
        return self.labeler.drawn(self.tally)

    def draw(self, totals: np.ndarray, num_units: int, payer: Payer, purpose: str) -> np.ndarray:
        """Charge a ledger, then draw exact noise, int64 or float64 of the shape `shape`.

        Arguments and errors are those of `charge_and_draw`; `totals` has the shape of `tally`.
        """
        return charge_and_draw(self.noise, self.guarantee, totals, num_units, payer, purpose)

    def read(self, drawn: np.ndarray) -> PublicLabels:
        """Return the labels of the public rows: post-processing of what was drawn."""
        found = self.labeler.public_labels(self._noisy(drawn), self.public)
        # Two noisy views of one row: beside each other, their probabilities multiply
        # (`labels.product`).
        return found if self.before is None else found.beside(self.before.probabilities)

    def labelings(self, drawn: np.ndarray) -> tuple[Labeling, ...]:
        """Return the labelings to choose from, by post-processing; the usual one is first.

        After a round before, that is the product of its probabilities and this one's.
        """
        found = self.labeler.labelings(self._noisy(drawn), self.public)
        if self.before is None:
            return found
        # A check may still find that this round alone is better than all rounds together.
        usual, before = found[0], self.before.probabilities
        both = usual._replace(
            name=f"all rounds, the last by {usual.name}",
            probabilities=product(usual.probabilities, before),
            labels=lambda: usual.labels().beside(before),
        )
        return (both, usual._replace(weights=None), *found[1:])

    @property
    def words(self) -> Words:
        """The labeler's part of a statement."""
        public = self.public
        # By the labeler that runs, from what is public: statement, page and terminal say the same.
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
        return self.labeler.lines(self.mechanism, self.queries, self.tally, self.noise)

    def _noisy(self, drawn: np.ndarray) -> NoisySum:
        return NoisySum(drawn, self.noise.stddev, self.whole)


def charge_and_draw(
    noise: CuratorNoise,
    guarantee: Guarantee,
    totals: np.ndarray,
    num_units: int,
    payer: Payer,
    purpose: str,
) -> np.ndarray:
    """Charge a ledger, then draw exact noise: here the sum of `rknn label` becomes public.

    Args:
      noise: Noise of the sum.
      guarantee: Guarantee to charge.
      totals: Sum over the private records, int64.
      num_units: Number of private records, or of persons.
      payer: Ledger to charge.
      purpose: A few words for it.

    Raises:
      LedgerError: If the budget does not allow it; nothing is drawn then.
      ValueError: If so many units cannot have this sum; nothing is charged then.
    """
    totals = np.asarray(totals)
    noise.check(totals, num_units)
    exact_noise.try_once()
    # A crash after this line costs epsilon and releases nothing; one before it costs nothing.
    payer.charge(guarantee, purpose)
    return noise.draw(totals)

"""One release by one labeler: the sum over the records, its noise, and labels from the noisy sum.

`Survey` is what `planning` and `label` know of a labeler. Reverse k-NN labeling is one
(`vote_survey`), and every labeler of one noisy sum is another (`sum_survey`). Nothing in a survey
depends on private records, but for their number, if that is public.
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from rknn_jax.answers.concerns import Concern
from rknn_jax.check import Checkers
from rknn_jax.labelers._sum_labeler import Labeling, NoisySum, PublicRows, SumLabeler, Words
from rknn_jax.labelers._tally import Tally
from rknn_jax.labels import PublicLabels, PublicSide
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.release.counting import Counted
from rknn_jax.release.inputs import Data
from rknn_jax.release.preview import Expected
from rknn_jax.types import Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings


@dataclass(frozen=True)
class Survey(abc.ABC):
    """Public side of a release by one labeler.

    Attributes:
      settings: Settings of the release, with a labeler and a mechanism.
      data: Public and private input.
      labeler: Labeler that is planned, that runs, and that the statement names.
      queries: Public queries.
      side: Public side of the reading; without a graph in a dry run, which spreads nothing.
      checkers: Check by records that do not add to the sum. Defaults to None: all add to it.
      charged: Guarantee of the release and its check, which the ledger is charged for. Defaults to
        None, `cost`.
    """

    settings: "Settings"
    data: Data
    labeler: SumLabeler[Any]
    queries: Queries
    side: PublicSide
    checkers: Checkers | None = field(default=None, kw_only=True)
    charged: Guarantee | None = field(default=None, kw_only=True)

    @staticmethod
    @abc.abstractmethod
    def usual_mechanism(settings: "Settings") -> str:
        """Return the mechanism of settings that name none."""

    @staticmethod
    @abc.abstractmethod
    def check(settings: "Settings") -> None:
        """Raise ValueError for settings that do not suit the labeler, whatever the data."""

    @staticmethod
    @abc.abstractmethod
    def cost_of(settings: "Settings", data: Data) -> Guarantee:
        """Return the guarantee of the release, before the long work on public rows.

        Raises:
          ValueError: If the data do not suit the settings.
        """

    @classmethod
    @abc.abstractmethod
    def of(cls, settings: "Settings", data: Data) -> Self:
        """Return the survey of checked settings, after the long work on public rows.

        Raises:
          ValueError: If the data do not suit the settings.
        """

    @property
    @abc.abstractmethod
    def tally(self) -> Tally:
        """Sum over the private records."""

    @property
    @abc.abstractmethod
    def cost(self) -> Guarantee:
        """Guarantee of the noisy sum."""

    @final
    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the release, which its ledger is charged for."""
        return self.charged or self.cost

    @property
    @abc.abstractmethod
    def drawn(self) -> tuple[int, ...]:
        """Shape of what `draw` returns."""

    @property
    @abc.abstractmethod
    def purpose(self) -> str:
        """A few words for the ledger."""

    @abc.abstractmethod
    def draw(self, counted: Counted, payer: Payer, purpose: str) -> np.ndarray:
        """Charge the ledger, then draw exact noise, int64 or float64 of the shape `drawn`.

        Args:
          counted: Sum over the private records.
          payer: Ledger to charge.
          purpose: A few words for it.

        Raises:
          LedgerError: If the budget does not allow it; nothing is drawn then.
        """

    @property
    @abc.abstractmethod
    def stddev(self) -> float:
        """Standard deviation of the noise of one number of the sum, in the units of `draw`."""

    @property
    def num_votes(self) -> int | None:
        """Number of votes of all records, or None if it is private or there are none."""
        return None

    @property
    def rows(self) -> PublicRows:
        """Public rows that get labels."""
        classes = self.data.classes
        names = [classes.name(number) for number in range(classes.count)]
        return PublicRows(self.queries, self.data.public, names, self.side)

    @final
    def read(self, drawn: np.ndarray) -> PublicLabels:
        """Return the labels of the public rows: post-processing of what was drawn."""
        return self.labeler.public_labels(self._noisy(drawn), self.rows)

    @final
    def labelings(self, drawn: np.ndarray) -> tuple[Labeling, ...]:
        """Return the labelings to choose from, by post-processing; the usual one is first."""
        return self.labeler.labelings(self._noisy(drawn), self.rows)

    def _noisy(self, drawn: np.ndarray) -> NoisySum:
        return NoisySum(drawn, self.stddev, self.guarantee)

    def concerns(self, found: PublicLabels) -> tuple[Concern, ...]:
        """Return the reasons to doubt the labels, from them and public data alone."""
        return tuple(self.labeler.concerns(found, self.rows, self.num_votes))

    @property
    def words(self) -> Words:
        """The labeler's part of the statement."""
        sizes = (len(self.queries.index), self.data.classes.count, len(self.data.public))
        return self.labeler.words(*sizes)

    @abc.abstractmethod
    def expect(self) -> Expected:
        """Return the error to expect, by simulation on public quantities."""

    @abc.abstractmethod
    def accuracy(self, agreement: float) -> float | None:
        """Return the expected accuracy if so much of the records near a query agrees.

        None if n is private, or if nothing is simulated. This takes less time than `expect`.
        """

    @property
    @abc.abstractmethod
    def contribution(self) -> Contribution:
        """Largest part that a record or a person has in the release."""

    @property
    @abc.abstractmethod
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines for the terminal: a word and a text."""

    @property
    def ignored(self) -> str:
        """Words for private records that are counted in part or not at all."""
        return "labeled private records that cannot be used add nothing"

    @property
    def num_records(self) -> int | None:
        """Number n of private records, or of persons if they are protected; None if private."""
        return public_size(self.settings, self.data)

    @property
    def reading_memory(self) -> int:
        """Most bytes that reading the labels takes, beside the sum and the labels themselves."""
        return 0

    @property
    def room(self) -> int:
        """Most bytes that the results take on disk, beside labels and statement."""
        return 20 * int(np.prod(self.drawn))

    def arrays(self, found: PublicLabels) -> dict[str, Mapping[str, np.ndarray]]:
        """Return the arrays of each file of results: `labels.npz`, and others if there are any."""
        return {"labels.npz": found.rows}


def public_size(settings: "Settings", data: Data) -> int | None:
    """Return the number n of private records or persons, or None if it is private."""
    if settings.relation != "replace-one":
        return None
    return len(data.private) if settings.person is None else data.num_persons


def refuse_given(settings: "Settings", names: tuple[str, ...], owner: str) -> None:
    """Raise ValueError for a setting that is not as it was, because the labeler does not use it.

    Args:
      settings: Settings of the release.
      names: Names of settings that the labeler does not use.
      owner: Words for the labelers that use them.
    """
    usual = {one.name: one.default for one in fields(settings)}
    for name in names:
        found = getattr(settings, name)
        if found != usual[name]:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"Expected no {flag} with --labeler {settings.labeler}, got {flag} {found}; it is "
                f"a setting of {owner}, leave it out or choose that labeler."
            )

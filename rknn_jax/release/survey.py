"""One release by one labeler: the sum over the records, its noise, and labels from the noisy sum.

`Survey` is what `planning` and `label` know of a labeler. Reverse k-NN labeling is one
(`vote_survey`), and every labeler of one noisy sum is another (`sum_survey`). Nothing in a survey
depends on private records, but for their number, if that is public.
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rknn_jax.answers import Decoded
from rknn_jax.answers.concerns import Concern
from rknn_jax.label_sets import LabelSets
from rknn_jax.labelers import Labeler
from rknn_jax.labelers._one_sum import Tally
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.release.counting import Counted
from rknn_jax.release.inputs import Data
from rknn_jax.release.preview import Expected
from rknn_jax.types import Answers

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings


@dataclass(frozen=True)
class Reading:
    """Labels of the public rows, read off what was drawn: post-processing.

    Attributes:
      answers: Answers of the labeler.
      probabilities: float32 `[m, num_classes]`, soft labels.
      confidence: float32 `[m]`, probability that noise did not change the label; NaN if unknown.
      counts: int64 `[s, num_classes]`, noisy counts to show. Defaults to none.
      decoded: Result of the decoder of noisy counts. Defaults to None, if it did not run.
      sets: Sets of classes of the rows. Defaults to None, if each row has one label.
    """

    answers: Answers
    probabilities: np.ndarray
    confidence: np.ndarray
    counts: np.ndarray | None = None
    decoded: Decoded | None = None
    sets: LabelSets | None = None

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each row, int32 `[m]`; -1 for a row with an empty set."""
        return labels_of(self.probabilities) if self.sets is None else self.sets.labels

    @property
    def rows_of_classes(self) -> np.ndarray:
        """Number of rows with each class, int64 `[num_classes]`."""
        if self.sets is not None:
            return np.asarray(self.sets.present.sum(axis=0))
        return np.bincount(self.labels, minlength=self.probabilities.shape[1])


@dataclass(frozen=True)
class Survey(abc.ABC):
    """Public side of a release by one labeler.

    Attributes:
      settings: Settings of the release, with a labeler and a mechanism.
      data: Public and private input.
      labeler: Labeler that is planned, that runs, and that the statement names.
    """

    settings: "Settings"
    data: Data
    labeler: Labeler[Any]

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
        """Guarantee of the release, which its ledger is charged for."""

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

    @abc.abstractmethod
    def read(self, drawn: np.ndarray) -> Reading:
        """Return the labels of the public rows: post-processing of what was drawn."""

    @abc.abstractmethod
    def concerns(self, reading: Reading) -> tuple[Concern, ...]:
        """Return the reasons to doubt the labels, from the reading and public data alone."""

    @abc.abstractmethod
    def expect(self) -> Expected:
        """Return the error to expect, by simulation on public quantities."""

    @property
    @abc.abstractmethod
    def released(self) -> tuple[str, ...]:
        """Released items, in words for the statement."""

    @property
    @abc.abstractmethod
    def contribution(self) -> Contribution:
        """Largest part that a record or a person has in the release."""

    @property
    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Entries of `privacy.json` of this labeler."""

    @property
    @abc.abstractmethod
    def details(self) -> dict[str, Any]:
        """Lines of `privacy.html` of this labeler."""

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

    def arrays(self, reading: Reading) -> Mapping[str, Mapping[str, np.ndarray]]:
        """Return the arrays of each file of results: `labels.npz`, and others if there are any."""
        rows = {
            "label": reading.labels,
            "query": np.full(len(reading.probabilities), -1, np.int32),
            "confidence": reading.confidence,
            "probability": reading.probabilities,
        }
        return {"labels.npz": rows}


def labels_of(probabilities: np.ndarray) -> np.ndarray:
    """Return the most probable class of each row, int32 `[m]`."""
    labels: np.ndarray = probabilities.argmax(axis=1).astype(np.int32)
    return labels


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

"""Server's part of any labeler in a federation, and the labels that it reads."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from rknn_jax.answers import Decoded
from rknn_jax.answers.concerns import Concern
from rknn_jax.federation.collector import Collector, Sum
from rknn_jax.federation.request import Asked
from rknn_jax.federation.rounds import Round
from rknn_jax.label_sets import LabelSets
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.types import Queries


class Read(NamedTuple):
    """Labels of the public rows.

    Attributes:
      probabilities: float32 `[m, num_classes]`, soft labels.
      confidence: float32 `[m]`, probability that noise did not change the label; NaN if unknown.
      query: int32 `[m]`, query that stands for each row; -1 for none.
      answered: Arrays of `queries.npz`; none if no queries were answered.
      decoded: Result of the decoder of noisy counts; None if it did not run.
      sets: Sets of classes; None if each row has one label.
    """

    probabilities: np.ndarray
    confidence: np.ndarray
    query: np.ndarray
    answered: Mapping[str, np.ndarray]
    decoded: Decoded | None = None
    sets: LabelSets | None = None

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each row, int32 `[m]`; -1 for a row with an empty set."""
        if self.sets is not None:
            return self.sets.labels
        found: np.ndarray = self.probabilities.argmax(axis=1).astype(np.int32)
        return found

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Arrays of `labels.npz`, without the names of the classes."""
        rows = {
            "label": self.labels,
            "query": self.query,
            "confidence": self.confidence,
            "probability": self.probabilities,
        }
        if self.sets is None:
            return rows
        return rows | {"present": self.sets.present, "stability": self.sets.stability}


@dataclass(frozen=True)
class Reader(abc.ABC):
    """Server's part of a labeler.

    Attributes:
      asked: Request of the server's owner.
    """

    asked: Asked

    @abc.abstractmethod
    def select(self, key: jax.Array, features: np.ndarray) -> Queries:
        """Return the public rows to ask about.

        Args:
          key: Random key, consumed.
          features: Features of the public rows, float32 `[m, f]`.

        Raises:
          ValueError: If there are not enough public rows.
        """

    @abc.abstractmethod
    def read(
        self,
        collector: Collector | Sum,
        guarantee: Guarantee,
        queries: Queries,
        features: np.ndarray,
    ) -> Read:
        """Return the labels of the public rows.

        Args:
          collector: What the clients sent, together.
          guarantee: Guarantee of it.
          queries: Result of `select`.
          features: Features of the public rows, float32 `[m, f]`.
        """

    @abc.abstractmethod
    def concerns(self, found: Read, queries: Queries, features: np.ndarray) -> Sequence[Concern]:
        """Return the reasons to doubt the labels, but for the scale of columns."""

    @property
    @abc.abstractmethod
    def released(self) -> tuple[str, ...]:
        """Released items, in words for the statement."""

    @property
    @abc.abstractmethod
    def contribution(self) -> Contribution:
        """Largest part that a record or a client has in the release."""

    @abc.abstractmethod
    def question(self, round: Round) -> str:
        """Return the question in words, for the report."""

    @abc.abstractmethod
    def facts(self, round: Round) -> dict[str, Any]:
        """Return entries of `privacy.json`."""

    @abc.abstractmethod
    def details(self, round: Round) -> dict[str, Any]:
        """Return lines of `privacy.html`."""


def enough(number: int, features: np.ndarray) -> int:
    """Return a number of queries for which there are enough public rows, or raise ValueError."""
    if number > len(features):
        raise ValueError(
            f"Expected at most {len(features)} queries, one a public record, got {number}; "
            "pass --queries."
        )
    return number

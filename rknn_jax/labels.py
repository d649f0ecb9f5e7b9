"""Labels of the public records over the rounds, by post-processing of the answers alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np
import scipy.sparse

from rknn_jax import answers as decoder
from rknn_jax import postprocessing
from rknn_jax.answers import calibration, concerns
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.measured import Measured
from rknn_jax.label_sets import LabelSets
from rknn_jax.types import Answers, Queries

Targets = Literal["posterior", "hard", "soft"]
"""Kinds of training targets: the label with its confidence, the label alone, or the votes."""


class PublicSide(NamedTuple):
    """Public data from which, with the answers, the labels of public rows are read.

    Attributes:
      graph: Neighbor graph of the rows, along which labels spread. Defaults to None: none do.
      kernels: Public side of the decoder of noisy counts. Defaults to None: each row takes its
        query's label, spread along the graph.
      num_answers: Number of answers that sets how far labels spread. Defaults to None, the number
        of answered queries.
    """

    graph: scipy.sparse.csr_matrix | None = None
    kernels: decoder.Kernels | None = None
    num_answers: int | None = None


def product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the product of soft labels, float32 `[m, num_classes]`, rows summing to 1."""
    # No probability is 0 (`calibration.doubted`), so that one round alone rules no class out.
    found = np.asarray(one, np.float64) * other
    both: np.ndarray = found / found.sum(axis=1, keepdims=True)
    return both.astype(np.float32)


@dataclass(frozen=True)
class PublicLabels:
    """Labels of the public rows after a release or a federation's round.

    Attributes:
      answers: Answers to the queries, with their guarantee.
      probabilities: float32 `[m, num_classes]`, soft labels; none is 0 or 1, if there are several
        classes.
      confidence: float32 `[m]`, probability that noise did not change the label; NaN if unknown.
      query: int32 `[m]`, query that stands for each row; -1 for none.
      counts: Noisy counts `[s, num_classes]`, as they were drawn. Defaults to None: none to show.
      stddev: Standard deviations of their noise, of the same shape. Defaults to None, with counts.
      decoded: Result of the decoder of noisy counts. Defaults to None, if it did not run.
      sets: Sets of classes of the rows. Defaults to None, if each row has one label.
    """

    answers: Answers
    probabilities: np.ndarray
    confidence: np.ndarray
    query: np.ndarray
    counts: np.ndarray | None = None
    stddev: np.ndarray | None = None
    decoded: decoder.Decoded | None = None
    sets: LabelSets | None = None

    def __post_init__(self) -> None:
        if self.sets is None:
            object.__setattr__(self, "probabilities", calibration.doubted(self.probabilities))

    def calibrated(self, share: float) -> Self:
        """Return the same labels, as probable as a measured share of them is right.

        It was measured on private records. If classes have other shares among the public rows, or a
        row has a set of classes, it says nothing of the probabilities, and they stay as they are.

        Args:
          share: Measured share of right labels.
        """
        if self._other_shares or self.sets is not None:
            return self
        return replace(self, probabilities=calibration.measured(self.probabilities, share))

    def beside(self, before: np.ndarray) -> Self:
        """Return labels by this round and those before, which saw the same records.

        A label that this round alone would not give counts as decided by noise.

        Args:
          before: Soft labels of the rounds before, `[m, num_classes]`.
        """
        # Rounds draw independent noise on the votes of one set of records, and their likelihoods
        # multiply.
        both = product(self.probabilities, before)
        same = both.argmax(axis=1) == self.probabilities.argmax(axis=1)
        decoded = self.decoded and replace(self.decoded, probabilities=both)
        # The confidence is of this round's noise, and says nothing of a label that others decided.
        sure = np.where(same, self.confidence, np.float32(0))
        return replace(self, probabilities=both, confidence=sure, decoded=decoded)

    def judged(
        self, listed: Sequence[Concern], measured: Measured | None, names: Sequence[str]
    ) -> tuple[Self, tuple[Concern, ...]]:
        """Return the labels, as sure as was measured, and the reasons to doubt them.

        Args:
          listed: Concerns about the labels and their public side.
          measured: Agreement with records that did not vote; None if it was not measured.
          names: Names of the classes.
        """
        found = self
        if measured is not None:
            # Agreement was measured near private records, and says little of public rows far from
            # them.
            if not concerns.shifted(listed):
                found = self.calibrated(measured.right)
            listed = measured.beside(listed, names)
        told = measured is not None and measured.recall
        alone = any(one.kind == concerns.NOISE_ALONE for one in listed)
        if self.decoded is None or told or alone:
            return found, tuple(listed)
        recall = calibration.expected_recall(found.probabilities, self._least_share)
        return found, (*listed, *concerns.low_recall(recall, found.labels, names))

    @property
    def _least_share(self) -> np.ndarray | float:
        """Least share of each class among the rows, by the votes, if it is that of the records."""
        if self.counts is None or self.stddev is None or self._other_shares:
            return 0.0
        # Votes of each class in all, of which noise may have added `WITHIN_NOISE` standard
        # deviations.
        totals = np.sum(self.counts, axis=0, dtype=np.float64)
        noise = np.sqrt(np.sum(np.square(self.stddev, dtype=np.float64), axis=0))
        least: np.ndarray = np.maximum(totals - concerns.WITHIN_NOISE * noise, 0)
        return least / max(float(totals.sum()), 1.0)

    @property
    def _other_shares(self) -> bool:
        """True if classes have other shares among the public rows than among private records."""
        # Equal ratios, whatever they are, leave all shares as they are.
        return self.decoded is not None and bool(np.ptp(self.decoded.ratio) > 0)

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each row, int32 `[m]`; -1 for a row with an empty set."""
        if self.sets is not None:
            return self.sets.labels
        labels: np.ndarray = self.probabilities.argmax(axis=1).astype(np.int32)
        return labels

    @property
    def noise(self) -> float:
        """Mean standard deviation of the noise of a count, in votes; 0 without counts."""
        return 0.0 if self.stddev is None else float(self.stddev.mean())

    @property
    def rows_of_classes(self) -> np.ndarray:
        """Number of rows with each class, int64 `[num_classes]`."""
        if self.sets is not None:
            return np.asarray(self.sets.present.sum(axis=0))
        return np.bincount(self.labels, minlength=self.probabilities.shape[1])

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
class Labels:
    """Labels of the public records so far.

    Attributes:
      probabilities: float32 `[m, num_classes]`, soft labels; 0 for a record without a label.
      confidence: float32 `[m]`, posterior probability that the noise did not change the query's
        label.
      query: int32 `[m]`, query that labeled each record, counted over all rounds; -1 if no query
        has, so that any label comes from neighbors alone.
      decoded: Result of the decoder of noisy counts. Defaults to None, if it did not run.
    """

    probabilities: np.ndarray
    confidence: np.ndarray
    query: np.ndarray
    decoded: decoder.Decoded | None = None

    @classmethod
    def none(cls, num_public: int, num_classes: int) -> "Labels":
        """Return the labels before the first round."""
        unknown = np.zeros(num_public, np.float32)
        return cls(
            np.zeros((num_public, num_classes), np.float32),
            unknown,
            np.full(num_public, -1, np.int32),
        )

    @property
    def known(self) -> np.ndarray:
        """Mask of the records that have a label, bool `[m]`."""
        known: np.ndarray = self.probabilities.sum(axis=1) > 0
        return known

    @property
    def hard(self) -> np.ndarray:
        """Most probable class of each record, int32 `[m]`."""
        labels: np.ndarray = self.probabilities.argmax(axis=1).astype(np.int32)
        return labels

    def surest(self, share: float) -> np.ndarray:
        """Return a mask of the known records whose labels are surest, bool `[m]`.

        A label is sure as far as the noise and the record's neighbors leave it: confidence times
        greatest probability.

        Args:
          share: Share of the known records that are kept, from 0 to 1.
        """
        # -1 puts rows without a label behind all others.
        sure = np.where(self.known, self.confidence * self.probabilities.max(axis=1), -1)
        chosen = np.zeros(len(sure), bool)
        chosen[np.argsort(-sure, kind="stable")[: round(share * self.known.sum())]] = True
        return chosen

    def targets(self, kind: Targets) -> np.ndarray:
        """Return the training targets of a student, float32 `[m, num_classes]`."""
        if kind == "soft":
            return self.probabilities
        num_classes = self.probabilities.shape[1]
        # The rest of the probability is even over all classes, as nothing is known of it.
        share = (self.confidence if kind == "posterior" else np.ones_like(self.confidence))[:, None]
        mixed: np.ndarray = (
            share * np.eye(num_classes, dtype=np.float32)[self.hard] + (1 - share) / num_classes
        )
        return mixed

    def spread(self, probabilities: np.ndarray) -> "Labels":
        """Return the labels with new probabilities, which include the neighbors' shares.

        A label that changes is at most as sure as its new probability. A record that no query
        labeled gets its greatest probability as confidence.

        Args:
          probabilities: float32 `[m, num_classes]`, soft labels after spreading.
        """
        changed = probabilities.argmax(axis=1) != self.hard
        likely = probabilities.max(axis=1)
        confidence = np.where(changed, np.minimum(self.confidence, likely), self.confidence)
        # No query of its own: the shares of its neighbors are all that is known.
        confidence = np.where(self.query < 0, likely, confidence)
        return Labels(probabilities, confidence.astype(np.float32), self.query)

    def after(
        self, queries: Queries, answers: Answers, first_query: int, side: PublicSide
    ) -> "Labels":
        """Return the labels of all records after a round, by post-processing alone.

        Args:
          queries: Queries of the round.
          answers: Answers to the queries.
          first_query: Number of queries in all earlier rounds, from which this round's are counted.
          side: Public side of the reading; see `Labeler.public_side`.
        """
        updated = self.updated(queries, answers, first_query)
        if side.kernels is None:
            # Few answers reach far along the graph, and many need not.
            count = side.num_answers or int(answers.answered.sum())
            known = updated.probabilities
            return updated.spread(postprocessing.public_labels(side.graph, known, count))
        if not answers.counted:
            num_classes = answers.counts.shape[1]
            likely = decoder.decode_labels(answers.labels, num_classes, side.kernels)
            return updated.spread(likely)
        # The decoder reads all rows off all counts at once, so that nothing of earlier labels is
        # kept.
        found = decoder.decode(answers.counts, answers.stddev, side.kernels)
        return Labels(found.probabilities, found.stability, updated.query, found)

    def updated(self, queries: Queries, answers: Answers, first_query: int) -> "Labels":
        """Return the labels after a round. A later answer replaces an earlier one.

        Args:
          queries: Queries of the round.
          answers: Answers to the queries.
          first_query: Number of queries in all earlier rounds, from which this round's are counted.
        """
        # `cluster` is -1 for a row without a query, and would read the last answer if it were not
        # masked.
        asked = (queries.cluster >= 0) & answers.answered[queries.cluster]
        return Labels(
            np.where(asked[:, None], answers.probabilities[queries.cluster], self.probabilities),
            np.where(asked, answers.confidence[queries.cluster], self.confidence),
            np.where(asked, first_query + queries.cluster, self.query),
        )

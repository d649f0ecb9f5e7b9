"""What the public records are called, as rounds answer and neighbours speak up: post-processing
of the answers alone.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rknn_jax.types import Answers, Queries


@dataclass(frozen=True)
class Labels:
    """What the public records are called so far.

    Attributes:
      probabilities: float32 `[m, num_classes]`, soft labels; 0 where there is none.
      confidence: float32 `[m]`, the posterior probability that the noise did not change the query's
        label.
      query: int32 `[m]`, the query that named each record, counted over all rounds; -1 where none
        has, or neighbours alone.
    """

    probabilities: np.ndarray
    confidence: np.ndarray
    query: np.ndarray

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
        """Bool `[m]`."""
        return self.probabilities.sum(axis=1) > 0

    @property
    def hard(self) -> np.ndarray:
        """Int32 `[m]`, the most probable class."""
        return self.probabilities.argmax(axis=1).astype(np.int32)

    def surest(self, share: float) -> np.ndarray:
        """Return the known records but those whose labels the noise and their neighbours leave
        least sure, bool `[m]`.
        """
        sure = np.where(self.known, self.confidence * self.probabilities.max(axis=1), -1)
        chosen = np.zeros(len(sure), bool)
        chosen[np.argsort(-sure, kind="stable")[: round(share * self.known.sum())]] = True
        return chosen

    def targets(self, kind: Literal["posterior", "hard", "soft"]) -> np.ndarray:
        """Return what a student is trained on, float32 `[m, num_classes]`."""
        if kind == "soft":
            return self.probabilities
        num_classes = self.probabilities.shape[1]
        share = (self.confidence if kind == "posterior" else np.ones_like(self.confidence))[:, None]
        return share * np.eye(num_classes, dtype=np.float32)[self.hard] + (1 - share) / num_classes

    def spread(self, probabilities: np.ndarray) -> "Labels":
        """Return the labels with others' share in them, float32 `[m, num_classes]`; a changed
        one is as sure as they are at most.
        """
        changed = probabilities.argmax(axis=1) != self.hard
        likely = probabilities.max(axis=1)
        confidence = np.where(changed, np.minimum(self.confidence, likely), self.confidence)
        confidence = np.where(self.query < 0, likely, confidence)
        return Labels(probabilities, confidence.astype(np.float32), self.query)

    def updated(self, queries: Queries, answers: Answers, first_query: int) -> "Labels":
        """Return the labels after a round whose queries are counted from `first_query` on: a
        later answer takes an earlier one's place.
        """
        asked = (queries.cluster >= 0) & answers.answered[queries.cluster]
        return Labels(
            np.where(asked[:, None], answers.probabilities[queries.cluster], self.probabilities),
            np.where(asked, answers.confidence[queries.cluster], self.confidence),
            np.where(asked, first_query + queries.cluster, self.query),
        )

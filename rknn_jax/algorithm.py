"""Algorithm 1: label public data with private records, round by round.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Algorithm 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax

from rknn_jax._internal import progress
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import Labeler
from rknn_jax.labels import Labels, PublicSide
from rknn_jax.types import Answers, Array, Classifier, Encoder, Queries, Smoothing, Task


class Student(Classifier, Protocol):
    """Network that was trained on the labels.

    Attributes:
      interrupted: Whether the training was stopped before its end.
      features: Encoder that the student has learned, for the queries of the next round.
    """

    @property
    def interrupted(self) -> bool: ...  # noqa: D102

    @property
    def features(self) -> Encoder: ...  # noqa: D102


Ask = Callable[[jax.Array, Array, Labels, Student | None], Queries]
"""Choice of a round's queries, from public data alone.

The arguments are a key, the features of the public records, their labels so far, and the student of
the round before.
"""

Fit = Callable[[jax.Array, int, Labels], Student | None]
"""Training of a student on the labels of a round.

The arguments are a key, the number of the round, and the labels. The result is None if the training
was stopped in its first epoch.
"""


@dataclass(frozen=True)
class Keys:
    """Random keys of a run, one stream for each stage.

    Attributes:
      public: Key of the stages that need no secret: the queries and the students.
      noise: Key that must stay secret: it draws the samples of private records and the noise.
    """

    public: jax.Array
    noise: jax.Array


@dataclass(frozen=True)
class Round:
    """Results of one round.

    Attributes:
      queries: Public queries.
      contribution: Contribution of the private records, which is private.
      answers: Released answers, with their guarantee.
      side: Public side of the reading of the answers.
      labels: Labels of the public records so far.
      student: Student of this round. If its training left nothing, student of the round before.
      encode: Representation of this round, which its queries and votes are made in.
    """

    queries: Queries
    contribution: Any
    answers: Answers
    side: PublicSide
    labels: Labels
    student: Student | None
    encode: Encoder


def distill(
    labeler: Labeler[Any],
    ask: Ask,
    encode: Encoder,
    fit: Fit | None,
    task: Task,
    keys: Keys,
    num_rounds: int,
    smoothing: Smoothing = "auto",
) -> Iterator[Round]:
    """Run Algorithm 1. Private records enter in one line, `labeler.contribute`.

    Args:
      labeler: System that labels the queries, with its share of the budget for one round.
      ask: Choice of the queries, from public data.
      encode: Representation that was learned on public images.
      fit: Training of the student. None trains no student and ends after one round.
      task: Public and private records.
      keys: Random keys.
      num_rounds: Number of rounds T. Fewer are run if a student is interrupted.
      smoothing: "auto" labels each public record by what all noisy counts tell, or where there
        are none, spreads labels between similar records. "none" leaves each the label of its
        query. Defaults to "auto".

    Yields:
      Each round, as soon as it is complete.

    Raises:
      ValueError: If no query was answered.
    """
    images = task.public.images
    num_classes = task.card.num_classes
    labels = Labels.none(len(images), num_classes)
    student: Student | None = None
    num_asked = 0
    for step in range(num_rounds):
        with progress.phase("encoding public records"):
            # [m, f]. Round 1 sees the representation of public images, later rounds that of the
            # last student, so the metric in which records vote improves without a private record.
            features = encode(images)
        queries = ask(stage_key(keys.public, Stage.QUERIES, step), features, labels, student)
        # A student of the next round reads images, not features.
        queries = replace(queries, images=images[queries.index])
        predicted = None if student is None else student.predict_proba(images[queries.index])
        with progress.phase(f"labeling by {labeler.name}"):
            # `contribute` alone sees records, each by itself, so that one of them moves its own
            # terms and no others. `release` adds up what it returned, and adds the noise.
            key = stage_key(keys.noise, Stage.SAMPLING, step)
            contribution = labeler.contribute(
                key, task.private, encode, queries=queries, num_classes=num_classes
            )
            key = stage_key(keys.noise, Stage.NOISE, step)
            answers = labeler.release(
                key, contribution, queries, num_classes=num_classes, predicted=predicted
            )
        # Everything from here on is post-processing.
        with progress.phase("joining similar public records"):
            side = labeler.public_side(queries, features, num_classes, smoothing)
        with progress.phase("reading labels"):
            # Earlier rounds are paid for, so a row keeps its label where this one gives none.
            labels = labels.after(queries, answers, num_asked, side)
        num_asked += len(queries.index)
        if not labels.known.any():
            raise ValueError(
                f"Expected an answer, got none to {len(queries.index)} queries; ask fewer, lower "
                "the threshold or raise epsilon."
            )
        # A student that was stopped in its first epoch is none; the one of the round before stays.
        trained = fit and fit(stage_key(keys.public, Stage.STUDENT, step), step, labels)
        student = trained or student
        yield Round(
            queries, contribution, answers, side=side, labels=labels, student=student, encode=encode
        )
        if trained is None or trained.interrupted:
            return
        encode = trained.features

"""Error to expect of a labeler of one noisy sum, by releases that are simulated on the public rows.

Private records are assumed to be as the public rows, in as many groups as classes. Each group is a
class, and the rest of the records, by their agreement, are of any class.
"""

from typing import NamedTuple

import jax
import numpy as np

from rknn_jax import lloyd
from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.planned_concerns import concerns_before
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.labels import Labels, PublicSide
from rknn_jax.question import Question
from rknn_jax.release.preview import AGREEMENTS, LOSS, MOST_ROWS, QUICK, Expected
from rknn_jax.types import Queries, Smoothing

MOST_FEATURES = 2048
"""Most features at which a release is simulated: of thousands more, reading takes minutes."""

DRAWS = 6
"""Simulated releases behind an expected accuracy."""


class _Stage(NamedTuple):
    """Public side of simulated releases.

    Attributes:
      labeler: Labeler of the release.
      num_classes: Number of classes |Y|.
      queries: Public rows, each of which stands for the private records like it.
      groups: Group of each row, which is taken for its class, int `[m]`.
      side: Public side of the reading.
    """

    labeler: OneSumLabeler
    num_classes: int
    queries: Queries
    groups: np.ndarray
    side: PublicSide


def expect(question: Question, num_records: int | None, smoothing: Smoothing) -> Expected:
    """Return the error to expect.

    Args:
      question: Question of the release.
      num_records: Number of records or persons n; None if it is private.
      smoothing: Use of similar rows.
    """
    found = None
    if num_records is not None and _is_quick(question):
        stage = _stage(question, smoothing)
        found = {agreement: _accuracy(stage, num_records, agreement) for agreement in AGREEMENTS}
    public = question.public
    sizes = (public.queries.size, len(public.names))
    before = concerns_before(public.features, *sizes, None, 0.0)
    doubts = noise_decides(None if found is None else found[AGREEMENTS[0]])
    return Expected(
        noise=question.noise.stddev,
        stddev=question.noise.stddev,
        expected=found,
        advice="no other labeler is expected to be much better",
        concerns=(*doubts, *before),
    )


def accuracy(
    question: Question, num_records: int, smoothing: Smoothing, agreement: float
) -> float | None:
    """Return the expected accuracy at one agreement, or None if a simulation takes too long."""
    if not _is_quick(question):
        return None
    return _accuracy(_stage(question, smoothing), num_records, agreement)


def noise_decides(right: float | None) -> tuple[Concern, ...]:
    """Return a concern if many labels are wrong even where all records agree.

    Args:
      right: Expected share of right labels then; None if it is not known.
    """
    if right is None or right >= 1 - LOSS:
        return ()
    sentence = (
        f"noise decides: of records that all agree, about {right:.0%} of the labels would be right"
    )
    remedy = (
        f"use a larger {option('epsilon')} or more private records, or {option('labeler')} rknn"
    )
    return (Concern("noise_decides", right, sentence, remedy),)


def _is_quick(question: Question) -> bool:
    width = question.public.features.shape[1]
    return bool(width <= MOST_FEATURES)


def _stage(question: Question, smoothing: Smoothing) -> _Stage:
    # A fixed seed is safe: these records are made up, and no private one is counted.
    every = question.public.features
    order = np.random.default_rng(0).permutation(len(every))
    public = every[np.sort(order[:MOST_ROWS])]
    num_classes = len(question.public.names)
    groups = lloyd.fit(public, min(num_classes, len(public)), 0, num_starts=1).labels
    queries = Queries.alone(public, np.arange(len(public)))
    labeler = question.labeler
    assert isinstance(labeler, OneSumLabeler)
    side = labeler.public_side(queries, public, num_classes, smoothing)
    return _Stage(labeler, num_classes, queries, groups=groups, side=side)


def _accuracy(stage: _Stage, num_records: int, agreement: float) -> float:
    """Return the expected accuracy at an agreement, of so many records."""
    labeler, num_classes, queries, groups, side = stage
    num_rows = len(groups)
    rng = np.random.default_rng(0)  # as in `_stage`
    # The labels of the rest include the right one by chance.
    kept = (agreement * num_classes - 1) / max(num_classes - 1, 1)
    others = rng.random(num_rows) >= kept
    assumed = np.where(others, rng.integers(num_classes, size=num_rows), groups)
    tally = labeler.tally(queries, num_classes)
    totals = tally.total(np.asarray(queries.features), assumed.astype(np.int32))
    totals = totals * num_records // num_rows * tally.grid
    before = Labels.none(num_rows, num_classes)
    right = []
    for draw in range(DRAWS):
        noise = labeler.simulated(jax.random.key(draw, impl=QUICK))
        noisy = noise.draw(totals)
        answers = labeler.read(
            noisy, noise.stddev, np.asarray, queries=queries, guarantee=noise.guarantee
        )
        right.append(np.mean(before.after(queries, answers, 0, side).hard == groups))
    share = float(np.mean(right))
    by_chance = (1 - agreement) / max(num_classes - 1, 1)
    return share * agreement + (1 - share) * by_chance

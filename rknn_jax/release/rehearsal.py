"""Error to expect of a release, by simulation on public quantities.

For votes, `preview` simulates, on the public side that `rehearsal` makes. `rehearsal_of_sets` and
`rehearsal_of_sums` are for other sums. Nothing private is read but the number of records, if that
is public.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax import lloyd, mechanisms
from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.neighbors import in_metric
from rknn_jax.queries import kmeans
from rknn_jax.question import Question
from rknn_jax.release import preview, rehearsal_of_sets, rehearsal_of_sums
from rknn_jax.release.inputs import Data
from rknn_jax.release.labeler_settings import labeler_of
from rknn_jax.release.questions import calibrated, cluster
from rknn_jax.types import Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

ONE_START = kmeans.Config(num_starts=1)
"""Clustering into another number of queries: what is expected of it hardly depends on the start."""


def expect(
    settings: "Settings", data: Data, question: Question, num_records: int | None
) -> preview.Expected:
    """Return the error to expect of a release.

    Args:
      settings: Settings of the release.
      data: Public rows.
      question: Question of the release.
      num_records: Number of records, or persons, that add to the sum; None if n is private.
    """
    known, labeler = num_records, question.labeler
    if labeler.votes_per_record is None:
        return rehearsal_of_sums.expect(question, known, settings.smoothing)
    if settings.labels_per_record is not None:
        return rehearsal_of_sets.expect(question, known, settings.labels_per_record)
    mechanism = mechanism_of(question)
    if type(labeler) is not ReverseKNN:
        return preview.Expected(
            noise=mechanism.noise_scale,
            stddev=mechanism.noise_stddev,
            expected=None,
            advice=f"no release by {labeler.name} is simulated here: try python -m train.distill "
            f"--labeler {labeler.name}",
        )
    public = np.asarray(in_metric(data.public, settings.metric))
    mine = None
    others: dict[str, preview.Rehearsal] = {}
    if known is not None and preview.is_quick(mechanism):
        mine = rehearsal(settings, public, question.queries, mechanism)
        others = dict(_others(settings, data, question.queries, mine))
    sizes = question.queries.size
    return preview.preview(mechanism, sizes, known, rehearsal=mine, others=others, features=public)


def accuracy(
    settings: "Settings",
    data: Data,
    question: Question,
    num_records: int | None,
    agreement: float,
) -> float | None:
    """Return the expected accuracy if so much of the records near a query agrees.

    This takes less time than `expect`. None if n is private, or if nothing is simulated.

    Args:
      settings: Settings of the release.
      data: Public rows.
      question: Question of the release.
      num_records: As in `expect`.
      agreement: Part of the records near a query that agree.
    """
    known, labeler = num_records, question.labeler
    if known is None:
        return None
    if labeler.votes_per_record is None:
        return rehearsal_of_sums.accuracy(question, known, settings.smoothing, agreement)
    if type(labeler) is not ReverseKNN:
        return None
    public = np.asarray(in_metric(data.public, settings.metric))
    mine = rehearsal(settings, public, question.queries, mechanism_of(question))
    if not mine.num_draws:
        return None
    truth = preview.class_shares(mine, agreement)[mine.cluster]
    return float(preview.simulated_accuracy(mine, known, truth).mean())


def concerns(
    settings: "Settings", data: Data, question: Question, num_records: int | None
) -> tuple[Concern, ...]:
    """Return the reasons to doubt labels of such a release that a simulation of it finds."""
    if question.labeler.votes_per_record is not None:
        return ()
    right = accuracy(
        settings, data, question, num_records=num_records, agreement=preview.AGREEMENTS[0]
    )
    return rehearsal_of_sums.noise_decides(right)


def mechanism_of(question: Question) -> CentralMechanism:
    """Return the mechanism of a question to which records vote."""
    assert isinstance(question.noise, VoteNoise)
    return question.noise.mechanism


def _others(
    settings: "Settings", data: Data, queries: Queries, mine: preview.Rehearsal
) -> Iterator[tuple[str, preview.Rehearsal]]:
    """Yield the flags and the public sides of releases with one other setting."""
    num_queries = len(queries.size)
    asked = replace(settings, queries=num_queries)
    for name in mechanisms.names("central"):
        kind = mechanisms.named(name)
        fits = mechanisms.can_release(kind) and (settings.delta > 0 or not kind.needs_delta)
        if not fits or name == settings.mechanism:
            continue
        other = replace(asked, mechanism=name)
        with suppress(ValueError):  # not every mechanism takes these settings
            mechanism = calibrated(other, data)
            without = (
                "" if kind.needs_delta or not settings.delta else f" without {option('delta')}"
            )
            flags = f"{option('mechanism')} {name}{without}"
            yield flags, replace(mine, mechanism=mechanism)
    public = np.asarray(in_metric(data.public, settings.metric))
    if len(public) > preview.MOST_ROWS or num_queries > preview.FEW_QUERIES:
        return
    for number in (num_queries // 2, 2 * num_queries):
        fewest = max(settings.neighbors, data.classes.count)
        if not fewest <= number <= len(public):
            continue
        other = replace(settings, queries=number)
        with suppress(ValueError):  # too few distinct rows
            fewer = cluster(other, data.public, number, ONE_START)
            mechanism = calibrated(other, data)
            yield f"{option('queries')} {number}", rehearsal(other, public, fewer, mechanism)


def rehearsal(
    settings: "Settings", public: np.ndarray, queries: Queries, mechanism: CentralMechanism
) -> preview.Rehearsal:
    """Return the public side of a release, with a sample of the rows if there are many.

    Args:
      settings: Settings of the release.
      public: Public rows, of unit length under the cosine metric.
      queries: Public queries.
      mechanism: Calibrated mechanism.
    """
    rows = _sample(queries)
    sampled = replace(queries, cluster=np.asarray(queries.cluster)[rows])
    public_side = labeler_of(settings).public_side
    shown = (sampled, public[rows], mechanism.num_classes)
    side = public_side(*shown, "none")  # without a graph, which takes long
    if side.kernels is None:
        side = public_side(*shown, settings.smoothing)
    rows_of_queries = np.asarray(queries.features)
    num_groups = min(mechanism.num_classes, len(queries.size))
    groups = lloyd.fit(rows_of_queries, num_groups, 0, num_starts=5, weights=queries.size)
    apart = lloyd.sq_distances(rows_of_queries, groups.centers)
    return preview.Rehearsal(
        mechanism,
        queries.size,
        apart,
        cluster=sampled.cluster,
        kernels=side.kernels,
        graph=side.graph,
    )


def _sample(queries: Queries) -> np.ndarray:
    """Return the positions of about `preview.MOST_ROWS` rows, in proportion of each query.

    A fixed seed is safe: the rows are public.
    """
    of_query = np.asarray(queries.cluster)
    if len(of_query) <= preview.MOST_ROWS:
        return np.arange(len(of_query))
    order = np.random.default_rng(0).permutation(len(of_query))
    order = order[np.argsort(of_query[order], kind="stable")]
    held = np.bincount(of_query, minlength=len(queries.size))
    rank = np.arange(len(order)) - (np.cumsum(held) - held)[of_query[order]]
    most = np.ceil(held * preview.MOST_ROWS / len(of_query))
    return np.sort(order[rank < most[of_query[order]]])

"""Labels of the public rows from what clients sent: post-processing, and words about it.

All of it is the labeler's own, as in simulation and in a release. A round adds which public rows it
asks about, and what the noise of its clients is.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from rknn_jax.answers.concern import Concern
from rknn_jax.federation.collector import Collector, Sum
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers._sum_labeler import Labeling, NoisySum, PublicRows, Words
from rknn_jax.labels import PublicLabels
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.statement import Contribution
from rknn_jax.types import Queries


def rows_of(round: Round, queries: Queries, features: np.ndarray) -> PublicRows:
    """Return the public rows that get labels.

    Args:
      round: Round of the labels.
      queries: Public rows that were asked about.
      features: Features of the public rows, float32 `[m, f]`.
    """
    labeler = round.labeler
    if not round.votes:
        # Clients see the rows of a question, and not how many others each of them stands for.
        queries = replace(queries, size=np.ones_like(queries.size))
    shown = (features, len(round.classes), labeler.smoothing)
    side = labeler.public_side(labeler.predicted(queries, features), *shown)
    return PublicRows(queries, features, round.classes, side)


def read(collector: Collector | Sum, guarantee: Guarantee, public: PublicRows) -> PublicLabels:
    """Return the labels of the public rows.

    Args:
      collector: Messages of the clients, together.
      guarantee: Guarantee of them.
      public: Public rows.
    """
    values, stddev = collector.counts()
    labeler = collector.round.labeler
    noisy = NoisySum(labeler.of_aggregate(values), stddev, guarantee)
    return labeler.public_labels(noisy, public)


def labeling(round: Round, found: PublicLabels, public: PublicRows) -> Labeling:
    """Return the published labels as private records check them.

    Args:
      round: Round of the labels.
      found: Result of `read`.
      public: Public rows.
    """
    spread = public.side.graph is not None or public.side.kernels is not None
    probabilities = np.clip(found.probabilities, 0, 1)
    return Labeling("the usual one", probabilities, lambda: found, spread or not round.votes)


def concerns(round: Round, found: PublicLabels, public: PublicRows) -> list[Concern]:
    """Return the reasons to doubt the labels, but for the scale of columns, which is set before.

    Args:
      round: Round of the labels.
      found: Result of `read`.
      public: Public rows.
    """
    listed = round.labeler.concerns(found, public, None)
    return [one for one in listed if one.kind != "unscaled_columns"]


def arrays(found: PublicLabels, queries: Queries) -> dict[str, np.ndarray]:
    """Return the arrays of `queries.npz`; none if no noisy votes can be shown."""
    if found.counts is None or found.stddev is None:
        return {}
    shown = {
        "index": queries.index,
        "label": found.answers.labels,
        "votes": found.counts,
        "stddev": found.stddev,
    }
    return shown if found.sets is None else shown | {"noisy_voters": found.sets.voters}


def words(round: Round, num_public: int) -> Words:
    """Return the part of a statement that is about the labeler and the clients' noise.

    Args:
      round: Round of the labels.
      num_public: Number of public rows m.
    """
    found = round.labeler.words(len(round.queries), len(round.classes), num_public)
    facts: dict[str, Any] = {"labeler": round.labeler.name, **found.facts}
    details: dict[str, Any] = {"labeler": round.labeler.name, **found.details}
    if not round.summed:
        return Words(found.released, facts, details)
    seen = (*found.released, "the noisy sum itself, which the server sees")
    return Words(seen, facts | round.sum.facts, details | round.sum.details)


def contribution(round: Round) -> Contribution:
    """Return the largest part that a record or a client has in the release."""
    if round.unit == "record" or round.votes:
        return Contribution(max(1, round.records_per_client), round.labeler.votes_per_record)
    return Contribution("clipped")


def question(round: Round) -> str:
    """Return the question in words, for the report."""
    votes = round.labeler.votes_per_record
    if votes is None:
        return f"one sum of {round.num_cells:,} numbers, for {round.labeler.name}"
    return f"{len(round.queries)} queries, {votes} {'vote' if votes == 1 else 'votes'} a record"

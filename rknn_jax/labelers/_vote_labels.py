"""Labels of the public rows from noisy votes: post-processing, and what is said of it."""

from typing import Literal

import numpy as np

from rknn_jax import answers as decoder
from rknn_jax import label_sets, postprocessing
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.concerns import Evidence, concerns, set_concerns
from rknn_jax.labelers import _confidence
from rknn_jax.labelers._sum_labeler import Labeling, NoisySum, PublicRows
from rknn_jax.labels import Labels, PublicLabels, PublicSide
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Answers, Array, Queries

LARGEST_WEIGHT = 4.0
"""Ratio of a class from which on its records weigh 1 in a choice, lest the others weigh nothing."""


def answer(
    counts: Array,
    stddev: Array,
    guarantee: Guarantee,
    queries: Queries,
    decode: Literal["argmax", "assignment"],
    *,
    counted: bool,
) -> Answers:
    """Turn noisy counts into answers to the queries.

    Args:
      counts: float32 `[s, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, float32 `[s, num_classes]`, in votes.
      guarantee: Guarantee of the counts.
      queries: Public queries `[s, f]`.
      decode: Decoder of the counts; see `ReverseKNN`.
      counted: False if labels alone were released, as one-hot rows.
    """
    counts = np.asarray(counts, np.float32)
    stddev = np.asarray(stddev, np.float32)
    # The noisy counts give the number of votes, because n itself is private under add-remove.
    num_votes = float(max(counts.sum(), 0))
    expected = num_votes * queries.size / np.sum(queries.size)
    if decode == "assignment":
        labels = postprocessing.assignment(counts)
        probabilities = (np.arange(counts.shape[1]) == labels[:, None]).astype(np.float32)
        sure = _confidence.of_assignment(counts, stddev, expected, labels)
    else:
        labels = postprocessing.noisy_max(counts)
        probabilities = postprocessing.soft_labels(counts)
        sure = _confidence.of_argmax(counts, stddev, expected, labels)
    everyone = np.ones(len(counts), bool)
    return Answers(
        labels,
        everyone,
        probabilities,
        confidence=sure,
        counts=counts,
        stddev=stddev,
        guarantee=guarantee,
        counted=counted,
    )


def of_answers(answers: Answers, noisy: NoisySum, public: PublicRows) -> PublicLabels:
    """Return the label of each public row, by what all noisy counts tell.

    Args:
      answers: Result of `answer`.
      noisy: Noisy counts `[s, num_classes]`, in votes.
      public: Public rows, of which the queries are clusters.
    """
    query = public.queries.cluster
    before = Labels.none(len(query), noisy.values.shape[1])
    found = before.after(public.queries, answers, 0, public.side)
    if answers.counted:
        stddev = np.broadcast_to(noisy.stddev, noisy.values.shape)
        shown = (noisy.values, stddev, found.decoded)
        return PublicLabels(answers, found.probabilities, found.confidence, query, *shown)
    # Labels alone have no counts to show.
    unknown = np.full(len(query), np.nan, np.float32)
    return PublicLabels(answers, found.probabilities, unknown, query, decoded=found.decoded)


def labelings(answers: Answers, noisy: NoisySum, public: PublicRows) -> tuple[Labeling, ...]:
    """Return the ways to read noisy votes, the usual one first.

    They are the decoder with the ratios of the classes that it finds, the decoder without, and the
    label of each row's query.

    Args:
      answers: Result of `answer`.
      noisy: Noisy counts `[s, num_classes]`, in votes.
      public: Public rows, of which the queries are clusters, with the kernels of the decoder.
    """
    alone = of_answers(answers, noisy, public._replace(side=PublicSide()))
    own = Labeling("the label of each query", alone.probabilities, lambda: alone, smooth=False)
    if not answers.counted:
        usual = of_answers(answers, noisy, public)
        return Labeling("the decoder of labels", usual.probabilities, lambda: usual), own
    assert public.side.kernels is not None
    fits = decoder.fits(answers.counts, answers.stddev, public.side.kernels)

    def read(name: str, fit: decoder.Fit) -> Labeling:
        quick = fits.read(fit, redraws=0).probabilities
        return Labeling(name, quick, lambda: _decoded(answers, noisy, public, fits.read(fit)))

    same = read("the decoder, with equal shares of the classes", fits.equal)
    if fits.corrected is fits.equal:
        return same, own
    corrected = read("the decoder, with ratios of the classes", fits.corrected)
    if not fits.supported:
        return same, corrected, own
    ratio = fits.corrected.seen.ratio
    weights = np.minimum(ratio / min(float(ratio.max()), LARGEST_WEIGHT), 1)
    return corrected._replace(weights=weights), same, own


def _decoded(
    answers: Answers, noisy: NoisySum, public: PublicRows, found: decoder.Decoded
) -> PublicLabels:
    """Return the labels of the public rows, as the decoder of counts reads them."""
    stddev = np.broadcast_to(noisy.stddev, noisy.values.shape)
    query = public.queries.cluster
    shown = (query, noisy.values, stddev, found)
    return PublicLabels(answers, found.probabilities, found.stability, *shown)


def of_sets(noisy: NoisySum, public: PublicRows) -> PublicLabels:
    """Return the set of classes of each public row; see `rknn_jax.label_sets`.

    Args:
      noisy: Noisy counts `[s, num_classes + 1]`, in votes, the last one of the records that voted.
      public: Public rows, of which the queries are clusters.
    """
    values, stddev, guarantee = noisy
    queries = public.queries
    found = label_sets.read(values, stddev, queries, public.side.kernels)
    alone = Queries.alone(queries.features, np.arange(len(values)))
    of_queries = label_sets.read(values, stddev, alone)
    counts = values[:, :-1]
    spread = np.broadcast_to(stddev, values.shape)[:, :-1]
    answers = Answers(
        counts.argmax(axis=1).astype(np.int32),
        np.ones(len(counts), bool),
        of_queries.probabilities,
        confidence=of_queries.stability.min(axis=1),
        counts=counts.astype(np.float32),
        stddev=spread.astype(np.float32),
        guarantee=guarantee,
    )
    sure = found.stability.min(axis=1)
    shown = (counts, spread, None, found)
    return PublicLabels(answers, found.probabilities, sure, queries.cluster, *shown)


def doubts(found: PublicLabels, public: PublicRows, num_votes: int | None) -> list[Concern]:
    """Return the reasons to doubt labels or sets; see `SumLabeler.concerns`."""
    size = public.queries.size
    if found.sets is not None:
        assert found.counts is not None
        sets = (found.sets.present, public.names, size, found.counts)
        return set_concerns(public.features, *sets, found.noise, num_votes)
    answers = found.answers
    evidence = Evidence(
        public.features,
        found.labels,
        public.names,
        size=size,
        noise=float(np.mean(answers.stddev)),  # also that of labels alone, which show no counts
        num_votes=num_votes,
        counts=answers.counts if answers.counted else None,
        stddev=answers.stddev if answers.counted else None,
        decoded=found.decoded,
    )
    return concerns(evidence)


def released(
    num_queries: int, num_classes: int, num_public: int, *, sets: bool, counted: bool
) -> tuple[str, ...]:
    """Return the released items, in words for a statement.

    Args:
      num_queries: Number of queries s.
      num_classes: Number of classes |Y|.
      num_public: Number of public rows m.
      sets: True if each row gets a set of classes.
      counted: False if labels alone are released, without counts.
    """
    near = f"each of {num_queries} queries, which stand for groups of public records"
    query = "for each of them the query that stands for it, and how sure that is"
    if sets:
        return (
            f"the noisy number of records with each of {num_classes} classes, and of all records, "
            f"near {near}",
            f"whether each of {num_public:,} public records has each class, and how probably, "
            "made from that",
            query,
        )
    votes = f"the noisy number of votes for each of {num_classes} classes, and " if counted else ""
    return (
        f"{votes}the label of {near}",
        f"a label, and the probability of each class, for each of {num_public:,} public records, "
        "made from that",
        query,
    )

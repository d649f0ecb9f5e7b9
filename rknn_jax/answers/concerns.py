"""Concerns about released labels, each with a number and a remedy.

They are read off the noisy counts, the decoder's result and public data, so they cost no privacy.
What is known before a release has concerns of its own, see `planned_concerns`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, ndtr, pdtrc

from rknn_jax._internal.option_names import option
from rknn_jax.answers import Decoded
from rknn_jax.answers.concern import Concern, named
from rknn_jax.answers.planned_concerns import concerns_before
from rknn_jax.types import Array

WITHIN_NOISE = 2.0
"""Standard deviations of its noise below which a class total may be noise alone."""

LOW_ACCURACY = 0.7
"""Expected accuracy below which the embeddings are said not to separate the classes."""

LOW_AGREEMENT = 0.6
"""Expected agreement below which the embeddings are said not to separate the classes."""

LOW_STABILITY = 0.8
"""Mean stability below which noise is said to decide."""

NOISE_ALONE = "noise_alone"
"""Kind of the concern about counts that cannot be told from their noise."""

LOW_STABILITY_KIND = "low_stability"
"""Kind of the concern about labels that noise decides."""

DISTANT = "distant_rows"
"""Kind of the concern about public rows with hardly a private record near them."""

CROWDED = "crowded_rows"
"""Kind of the concern about private records that are near few public rows."""

HEARD = 3.0
"""Standard deviations by which the squares of counts exceed those of noise, if votes are heard."""

LOW_RECALL = 0.5
"""Recall of a class below which there is a warning."""

HIGH_STABILITY = 0.9
"""Mean stability from which on a low accuracy is not due to noise."""

FEW_VOTES = 0.2
"""Votes of a query, as a part of what its public rows let expect, that are few."""

MANY_VOTES = 5.0
"""Votes of a query, as a part of what its public rows let expect, that are many."""

SIGNIFICANT = 4.0
"""Standard deviations of the noise that many votes may have from it."""

CHANCE = 1e-3
"""Chance of so many queries with few votes, or of one with many, below which they count."""

FEWEST_ROWS = 0.01
"""Share of the public rows, or of the votes, from which on a concern about them is worth a line."""

FAR_RATIO = 3.0
"""Factor by which a class is rarer or more frequent among private records than public rows."""


@dataclass(frozen=True)
class Evidence:
    """Public data and results of a release, which its concerns are read off.

    Attributes:
      features: float32 `[m, f]`, of the public rows.
      labels: int `[m]`, released label of each row.
      names: Names of the classes.
      size: `[s]`, public rows of each query.
      noise: Standard deviation of a cell's noise, in votes.
      num_votes: Number of votes of all records, or None if it is private.
      counts: `[s, num_classes]`, noisy counts. Defaults to None, if labels alone were released.
      stddev: `[s, num_classes]`, standard deviation of the noise. Defaults to None, with `counts`.
      decoded: Result of the decoder. Defaults to None, if it did not run.
    """

    features: np.ndarray
    labels: np.ndarray
    names: Sequence[str]
    size: np.ndarray
    noise: float
    num_votes: float | None
    counts: Array | None = None
    stddev: Array | None = None
    decoded: Decoded | None = None


def concerns(found: Evidence) -> list[Concern]:
    """Return the concerns about released labels.

    Args:
      found: Results of the release.
    """
    num_votes = found.num_votes
    listed = []
    alone = False
    if found.counts is None or found.stddev is None:
        remedy = (
            f"use more {option('queries')}, a larger {option('epsilon')}, or a mechanism that "
            "releases counts"
        )
        listed += no_row(found.labels, found.names, remedy)
    else:
        counts = np.asarray(found.counts, np.float64)
        variance = np.asarray(found.stddev, np.float64) ** 2
        num_votes = max(float(counts.sum()), 0)
        listed += _noise_alone(counts, variance)
        alone = bool(listed)
        listed += _missing_classes(found.labels, found.names, counts, variance)
        listed += _distant(found.size, counts, variance, found.decoded)
    if found.decoded is not None:
        listed += [] if alone else _accuracy(found.decoded)
        listed += _ratios(found.decoded.ratio, found.names)
    return [
        *listed,
        *concerns_before(
            found.features, found.size, len(found.names), num_votes=num_votes, noise=found.noise
        ),
    ]


def opinions_hidden(listed: Sequence[Concern]) -> set[str]:
    """Return the opinions of the decoder that say nothing, because noise decides them.

    Without votes that are heard, it says what it took for likely before them.

    Args:
      listed: Concerns about a release.
    """
    kinds = {one.kind for one in listed}
    if NOISE_ALONE in kinds:
        return {"agreement", "expected_accuracy"}
    return {"agreement"} if LOW_STABILITY_KIND in kinds else set()


def shifted(listed: Sequence[Concern]) -> bool:
    """Return whether votes are missing from some public rows, or crowd at others.

    Then private records are unlike public rows, and what they measure says less of the latter.

    Args:
      listed: Concerns about a release.
    """
    return any(one.kind in (DISTANT, CROWDED) for one in listed)


def low_recall(recall: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> list[Concern]:
    """Return a concern about classes of which most rows are expected to have another label.

    A class that no row got has a concern of its own.

    Args:
      recall: Expected recall of each class, `[num_classes]`.
      labels: Label of each public row, int `[m]`.
      names: Names of the classes.
    """
    held = np.bincount(labels, minlength=len(names)) > 0
    low = np.flatnonzero((recall < LOW_RECALL) & held)
    if not len(low):
        return []
    worst = low[recall[low].argmin()]
    sentence = (
        f"most rows of {named(names, low)} are expected to have another label; of "
        f"{names[worst]}, {recall[worst]:.0%} are expected to be found"
    )
    remedy = (
        f"rank the rows by the released probability of the class, or ask more {option('queries')}"
    )
    return [Concern("low_expected_recall", len(low), sentence, remedy, opinion=True)]


def set_concerns(
    features: np.ndarray,
    present: np.ndarray,
    names: Sequence[str],
    size: np.ndarray,
    counts: np.ndarray,
    noise: float,
    num_votes: float | None,
) -> list[Concern]:
    """Return the concerns about released sets of classes.

    Args:
      features: float32 `[m, f]`, of the public rows.
      present: bool `[m, num_classes]`, released classes of each row.
      names: Names of the classes.
      size: `[s]`, public rows of each query.
      counts: `[s, num_classes]`, noisy counts.
      noise: Standard deviation of a cell's noise, in votes.
      num_votes: Number of votes of all records, or None if it is private.
    """
    variance = np.full(counts.shape, noise**2)
    labels = np.nonzero(present)[1]
    # A query may speak for any number of classes.
    before = concerns_before(features, size, 1, num_votes=num_votes, noise=noise)
    return [
        *_noise_alone(np.asarray(counts), variance),
        *_missing_classes(labels, names, np.asarray(counts), variance),
        *before,
    ]


def _noise_alone(counts: np.ndarray, variance: np.ndarray) -> list[Concern]:
    """Return a concern about counts that are no larger than noise alone would be.

    The squares of Laplace noise, in units of its variance, have variance 5, and other noise less.
    """
    if not variance.all():  # noise that rounds to none
        return []
    squares = float(np.sum(np.square(counts) / variance))
    if squares > counts.size + HEARD * np.sqrt(5 * counts.size):
        return []
    sentence = (
        "the noisy counts cannot be told from noise alone, so that the labels may say no more than "
        "the public rows do, and nothing tells how many are right"
    )
    remedy = f"use a larger {option('epsilon')}, fewer {option('queries')} or more private records"
    return [Concern(NOISE_ALONE, squares / counts.size, sentence, remedy)]


def no_row(labels: np.ndarray, names: Sequence[str], remedy: str) -> list[Concern]:
    """Return a concern about classes that no row got, if there are no counts that tell why.

    Args:
      labels: Label of each public row, int `[m]`.
      names: Names of the classes.
      remedy: Words for what to do about it.
    """
    held = np.bincount(labels, minlength=len(names))
    missing = np.flatnonzero(held == 0)
    if not len(missing):
        return []
    sentence = f"no row got {named(names, missing)}"
    return [Concern("missing_classes", len(missing), sentence, remedy)]


def _missing_classes(
    labels: np.ndarray, names: Sequence[str], counts: np.ndarray, variance: np.ndarray
) -> list[Concern]:
    """Return concerns about classes that no row got, or whose votes may be noise."""
    held = np.bincount(labels, minlength=len(names))
    totals = counts.sum(axis=0)
    noise = np.sqrt(variance.sum(axis=0))
    hidden = totals <= WITHIN_NOISE * noise
    rank = (
        "or rank the rows by the released probability of the class; rknn check tells the curator "
        "whether labels are spelled as the classes"
    )

    def votes(chosen: np.ndarray) -> str:
        if len(chosen) == 1:
            return f"its {totals[chosen[0]]:,.0f} noisy votes"
        least, most = totals[chosen].min(), totals[chosen].max()
        return f"their {least:,.0f} to {most:,.0f} noisy votes"

    listed = []
    for kind, mask, start, end, remedy in (
        (
            "missing_classes",
            (held == 0) & hidden,
            "no row got {}; ",
            "within",
            f"raise {option('epsilon')}",
        ),
        (
            "missing_classes",
            (held == 0) & ~hidden,
            "no row got {}; ",
            "above",
            f"ask more {option('queries')}",
        ),
        (
            "doubtful_classes",
            (held > 0) & hidden,
            "rows got {}, but ",
            "within",
            f"raise {option('epsilon')}",
        ),
    ):
        chosen = np.flatnonzero(mask)
        if len(chosen):
            words = start.format(named(names, chosen)) + votes(chosen)
            sentence = f"{words} are {end} twice the noise of ±{noise[chosen].max():,.0f}"
            listed.append(Concern(kind, len(chosen), sentence, f"{remedy}, {rank}"))
    return listed


def _accuracy(decoded: Decoded) -> list[Concern]:
    """Return a concern about labels that noise decides, or that embeddings do not separate."""
    stability = float(decoded.stability.mean())
    accuracy = decoded.expected_accuracy
    agreement = decoded.agreement
    if stability < LOW_STABILITY:
        sentence = (
            f"noise decides many labels: without it, {stability:.0%} of the public rows would keep "
            "theirs"
        )
        remedy = (
            f"use a larger {option('epsilon')}, fewer {option('queries')} or more private records"
        )
        return [Concern(LOW_STABILITY_KIND, stability, sentence, remedy)]
    if stability < HIGH_STABILITY and accuracy < LOW_ACCURACY:
        sentence = (
            f"expected accuracy {accuracy:.0%}, and noise hides whether these embeddings separate "
            "these classes"
        )
        remedy = (
            f"use a larger {option('epsilon')} or more private records, or embeddings of a better "
            "model"
        )
        return [Concern("low_accuracy", accuracy, sentence, remedy, opinion=True)]
    if stability >= HIGH_STABILITY and min(accuracy - LOW_ACCURACY, agreement - LOW_AGREEMENT) < 0:
        sentence = (
            f"these embeddings do not separate these classes: expected accuracy {accuracy:.0%}, "
            f"and {agreement:.0%} of the records near a row agree"
        )
        remedy = f"use embeddings of a better model, or more {option('queries')}"
        return [Concern("low_agreement", accuracy, sentence, remedy, opinion=True)]
    return []


def _distant(
    size: np.ndarray, counts: np.ndarray, variance: np.ndarray, decoded: Decoded | None
) -> list[Concern]:
    """Return concerns about queries with far fewer or more votes than their rows let expect."""
    votes = counts.sum(axis=1)
    # Each query lies at a row, or among rows that drew it. The others fall to it as records do.
    others = np.maximum(np.asarray(size) - 1, 0).astype(np.int64)
    if not others.any():
        return []
    # A query of rare classes has fewer votes, without being far from the records.
    factor = np.ones(len(size)) if decoded is None else decoded.shares @ (1 / decoded.ratio)
    votes_a_row = max(float(votes.sum()), 0) * factor / (others @ factor)
    expected = others * votes_a_row
    # Votes vary by noise and by which records vote, and so do the rows of a cluster.
    noise = np.sqrt(variance.sum(axis=1))
    spread = np.sqrt(noise**2 + expected + expected**2 / np.maximum(others, 1))
    few = votes < FEW_VOTES * expected
    by_chance = ndtr((FEW_VOTES - 1) * expected / np.maximum(spread, 1e-9))
    sure = np.maximum(votes - SIGNIFICANT * noise, 0).astype(np.int64)
    # Given the rows and votes of a query together, its rows are binomial.
    by_chance_many = bdtr(others, others + sure, 1 / (1 + votes_a_row))
    many = (votes > MANY_VOTES * expected) & (len(size) * by_chance_many < CHANCE)
    listed = []
    rows = float(size[few].sum() / size.sum())
    if rows >= FEWEST_ROWS and pdtrc(few.sum() - 1, by_chance.sum()) < CHANCE:
        sentence = (
            f"{rows:.0%} of the public rows have hardly a private record near them: {few.sum()} of "
            f"{len(size)} queries got less than {FEW_VOTES:.0%} of the votes that their rows let "
            "expect"
        )
        remedy = "leave such public rows out, and do not trust their labels"
        listed.append(Concern(DISTANT, rows, sentence, remedy))
    if not many.any():
        return listed
    share = min(float(votes[many].sum() / votes.sum()), 1.0)
    if share >= FEWEST_ROWS:
        held = float(size[many].sum() / size.sum())
        sentence = (
            f"{share:.0%} of the votes went to {held:.1%} of the public rows, in {many.sum()} of "
            f"{len(size)} queries"
        )
        remedy = "bring more public rows like those private records"
        listed.append(Concern(CROWDED, share, sentence, remedy))
    return listed


def _ratios(ratio: np.ndarray, names: Sequence[str]) -> list[Concern]:
    """Return concerns about classes of other frequency among private records."""
    listed = []
    for kind, word, factor in (
        ("rarer_classes", "rarer", ratio),
        ("more_frequent_classes", "more frequent", 1 / ratio),
    ):
        chosen = np.flatnonzero(factor > FAR_RATIO)
        if not len(chosen):
            continue
        largest = float(factor[chosen].max())
        verb = "is" if len(chosen) == 1 else "are"
        upto = "" if len(chosen) == 1 else "up to "
        sentence = (
            f"{named(names, chosen)} {verb} {upto}{largest:.1f} times {word} among "
            "the private records than among the public rows"
        )
        remedy = (
            f"the labels are corrected for it; {option('smoothing')} none labels without a "
            "correction"
        )
        listed.append(Concern(kind, largest, sentence, remedy))
    return listed

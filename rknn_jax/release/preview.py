"""Expected error of a release, computed from public quantities before anything is spent.

Two things are expected. The noise sets the lead that a query's first class needs (`required_gap`).
The accuracy is that of simulated releases (`expected_accuracy`): the queries fall into as many
groups as there are classes, each group is a class, and a part of the private records near a query
agrees with it. The mechanism's noise and the release's own decoder follow. Private records are
assumed to fall into the clusters as public ones do. Nothing private is read or drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from rknn_jax import answers, bsvs, postprocessing
from rknn_jax.answers.concerns import Concern, concerns_before
from rknn_jax.mechanisms.base import CentralMechanism

FLIPS = (0.05, 0.01, 0.001)
LINE = FLIPS[0]
"""Largest probability of a flip at which a query's label still counts as clear."""

AGREEMENTS = (1.0, 0.9, 0.7)
"""Parts of the records near a query that agree, for which an accuracy is expected."""

USUAL = 0.9
"""Agreement at which settings are compared."""

BETTER = 0.03
"""Expected accuracy by which other settings must be better to be advised."""

LOSS = 0.2
"""Part of the agreement that noise may take before more votes are advised."""

DRAWS = 12
"""Most simulated releases behind an expected accuracy."""

FEW_QUERIES = 120
"""Queries that are simulated in all draws together, or in a single one."""

MOST_QUERIES = 600
"""Most queries that are simulated, which takes some seconds a release."""


@dataclass(frozen=True)
class Rehearsal:
    """Public side of a release that is simulated.

    Attributes:
      mechanism: Calibrated mechanism.
      size: int `[s]`, public rows of each query.
      group: int `[s]`, the class that each query is taken for.
      cluster: int `[m]`, query of each public row, or of a sample of the rows.
      kernels: Public side of the decoder for the same rows; None if rows take their query's label.
      graph: Graph of the same rows along which labels spread then, or None.
    """

    mechanism: CentralMechanism
    size: np.ndarray
    group: np.ndarray
    cluster: np.ndarray
    kernels: answers.Kernels | None
    graph: csr_matrix | None

    @property
    def num_draws(self) -> int:
        """Number of simulated releases; 0 if there are too many queries."""
        num_queries = len(self.size)
        if num_queries > MOST_QUERIES:
            return 0
        return min(DRAWS, max(1, FEW_QUERIES // num_queries))


@dataclass(frozen=True)
class Preview:
    """Expected error of a release.

    Attributes:
      noise: Scale of the noise, in votes; its standard deviation for Gaussian noise.
      stddev: Standard deviation of one cell's noise, in votes.
      required_gaps: For each probability of `FLIPS`, the least lead, in votes, that the noise turns
        over no more often.
      expected_votes: Votes of the smallest and of the median query; None if n is private.
      expected: For each of `AGREEMENTS`, the expected accuracy of the public rows' labels; None if
        n is private, or if nothing was simulated.
      alternatives: Expected accuracy at the agreement `USUAL` with other settings, by their flags.
      records_needed: Least number of private records at which a median query of 90% purity is
        clear.
      suggested_queries: Suggested number of queries s for this noise; None if n is private.
      advice: Suggested change, in one line.
      concerns: Reasons to doubt the labels of such a release, from public data.
    """

    noise: float
    stddev: float
    required_gaps: dict[float, int]
    expected_votes: tuple[float, float] | None
    expected: dict[float, float] | None
    alternatives: dict[str, float]
    records_needed: int
    suggested_queries: int | None
    advice: str
    concerns: tuple[Concern, ...] = ()


def preview(
    mechanism: CentralMechanism,
    sizes: np.ndarray,
    num_records: int | None,
    *,
    rehearsal: Rehearsal | None = None,
    others: Mapping[str, Rehearsal] | None = None,
    features: np.ndarray | None = None,
) -> Preview:
    """Return the expected error of one release.

    Args:
      mechanism: Calibrated mechanism.
      sizes: int `[num_queries]`, public records of each query.
      num_records: Number of private records n, or None if n is private.
      rehearsal: Public side of the release. Defaults to None, which simulates nothing.
      others: Public sides of releases with other settings, by their flags. Defaults to none.
      features: float32 `[m, f]`, of the public rows, for the concerns. Defaults to None, which
        looks for none.
    """
    gaps = {flips: required_gap(mechanism, flips) for flips in FLIPS}
    share = sizes * mechanism.num_neighbors / sizes.sum()  # votes per private record
    needed = math.ceil(gaps[LINE] / (0.8 * np.median(share)))
    noise = mechanism.noise_scale
    stddev = mechanism.noise_stddev
    if num_records is None:
        advice = (
            f"n is private under {mechanism.relation}: go on if there are well over {needed:,} "
            "private records"
        )
        found = _concerns(mechanism, sizes, None, features)
        return Preview(noise, stddev, gaps, None, None, {}, needed, None, advice, found)
    votes = num_records * share
    clear = float(sizes[votes * (2 * USUAL - 1) >= gaps[LINE]].sum() / sizes.sum())
    expected = None
    alternatives = {}
    if rehearsal is not None and rehearsal.num_draws:
        expected = {
            agreement: expected_accuracy(rehearsal, num_records, agreement)
            for agreement in AGREEMENTS
        }
        alternatives = {
            flags: expected_accuracy(other, num_records, USUAL)
            for flags, other in (others or {}).items()
            if other.num_draws
        }
    suggested = min(
        suggested_num_queries(mechanism, num_records, shared=bool(mechanism.releases_counts)),
        int(sizes.sum()),
    )
    advice = _better(expected, alternatives)
    if not advice:
        # Without a simulation, a clear label stands for a right one.
        enough = clear >= 1 - LOSS if expected is None else expected[USUAL] >= (1 - LOSS) * USUAL
        advice = _advice(mechanism, enough, suggested, needed, simulated=bool(alternatives))
    return Preview(
        noise,
        stddev,
        gaps,
        (float(votes.min()), float(np.median(votes))),
        expected,
        alternatives,
        needed,
        suggested,
        advice,
        _concerns(mechanism, sizes, num_records, features),
    )


def expected_accuracy(rehearsal: Rehearsal, num_records: int, agreement: float) -> float:
    """Return the mean accuracy of the public rows' labels over simulated releases.

    A row is of its group's class with the probability `agreement`, and else of any other class.

    Args:
      rehearsal: Public side of the release.
      num_records: Number of private records n.
      agreement: Part of the records near a query that are of its group's class.
    """
    mechanism = rehearsal.mechanism
    num_classes = mechanism.num_classes
    other = (1 - agreement) / max(num_classes - 1, 1)
    shares = np.where(np.arange(num_classes) == rehearsal.group[:, None], agreement, other)
    votes = num_records * mechanism.num_neighbors * rehearsal.size / rehearsal.size.sum()
    of_row = rehearsal.group[rehearsal.cluster]
    # A fixed seed is safe: these records are made up, and no private one is counted.
    rng = np.random.default_rng(0)
    right = []
    for draw in range(rehearsal.num_draws):
        totals = rng.poisson(votes[:, None] * shares) * mechanism.grid
        noisy = mechanism.estimate(jax.random.key(draw), totals.astype(np.int32), num_records)
        right.append(np.mean(_labels(rehearsal, np.asarray(noisy), num_records) == of_row))
    found = float(np.mean(right))
    return agreement * found + other * (1 - found)


def _labels(rehearsal: Rehearsal, counts: np.ndarray, num_records: int) -> np.ndarray:
    """Return the labels that a release gives the rows, int `[m]`."""
    if rehearsal.kernels is not None:
        stddev = rehearsal.mechanism.stddev(counts, num_records)
        # Small matrices are slower with many threads, and much slower on a busy machine.
        with threadpool_limits(1, "blas"):
            return answers.decode(counts, stddev, rehearsal.kernels).labels
    hot = np.eye(counts.shape[1], dtype=np.float32)[postprocessing.noisy_max(counts)]
    own = hot[rehearsal.cluster]
    spread = postprocessing.public_labels(rehearsal.graph, own, len(counts))
    labels: np.ndarray = spread.argmax(axis=1)
    return labels


def _concerns(
    mechanism: CentralMechanism,
    sizes: np.ndarray,
    num_records: int | None,
    features: np.ndarray | None,
) -> tuple[Concern, ...]:
    if features is None:
        return ()
    num_votes = None if num_records is None else num_records * mechanism.num_neighbors
    return tuple(
        concerns_before(features, sizes, mechanism.num_classes, num_votes, mechanism.noise_stddev)
    )


def required_gap(mechanism: CentralMechanism, failure_prob: float) -> int:
    """Return the least lead, in votes, that the mechanism turns over rarely enough.

    Args:
      mechanism: Calibrated mechanism.
      failure_prob: Largest probability of a flip, whatever the rivals' votes are.
    """
    high = 1
    while mechanism.flip_prob(high) > failure_prob:
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if mechanism.flip_prob(middle) <= failure_prob else (middle + 1, high)
        )
    return low


def suggested_num_queries(mechanism: CentralMechanism, num_records: int, *, shared: bool) -> int:
    """Suggest the number of queries s for n records, by `bsvs.suggested_num_queries`.

    The mechanism's own s plays no part.
    """
    return bsvs.suggested_num_queries(
        num_records,
        mechanism.num_classes,
        mechanism.laplace_scale,
        mechanism.num_neighbors,
        shared=shared,
    )


def _better(expected: Mapping[float, float] | None, alternatives: Mapping[str, float]) -> str:
    """Return the advice to take the best other settings, or an empty string."""
    if expected is None or not alternatives:
        return ""
    best = max(alternatives, key=lambda flags: alternatives[flags])
    if alternatives[best] <= expected[USUAL] + BETTER:
        return ""
    return (
        f"{best} is expected to give {alternatives[best]:.0%} at {USUAL:.0%} agreement, where this "
        f"gives {expected[USUAL]:.0%}"
    )


def _advice(
    mechanism: CentralMechanism, enough: bool, suggested: int, needed: int, *, simulated: bool
) -> str:
    """Return what to change.

    Args:
      mechanism: Calibrated mechanism.
      enough: True if noise leaves most labels as they are.
      suggested: Suggested number of queries.
      needed: Number of private records that are needed.
      simulated: True if other settings were simulated, and are no better.
    """
    if not enough and suggested < mechanism.num_queries and not simulated:
        return f"the votes are thin for this noise: use fewer queries, about --queries {suggested}"
    if not enough:
        return (
            f"the votes are thin for this noise: raise --epsilon, or bring about {needed:,} "
            "private records"
        )
    if suggested > 2 * mechanism.num_queries:
        return (
            f"epsilon is ample: try more queries, about --queries {suggested}, which "
            "follow the data more finely"
        )
    return "the number of queries suits this epsilon"

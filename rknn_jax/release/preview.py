"""Expected error of a release, computed from public quantities before anything is spent.

A query keeps its label if its first class leads the second by enough votes. The noise sets the
required lead (`required_gap`), and n, k and the public clusters set the number of votes. There are
three assumptions. Private records fall into the clusters as public ones do. All of a query's
dissenting votes go to one rival. Similar queries that share votes are of one class.
"""

import math
from dataclasses import dataclass

import numpy as np

from rknn_jax import bsvs
from rknn_jax.mechanisms.base import CentralMechanism

FLIPS = (0.05, 0.01, 0.001)
PURITIES = (1.0, 0.9, 0.7)
LINE = FLIPS[0]
"""Largest probability of a flip at which a query's label still counts as clear."""


@dataclass(frozen=True)
class Preview:
    """Expected error of a release.

    Attributes:
      noise: Scale of the noise, in votes; its standard deviation for Gaussian noise.
      stddev: Standard deviation of one cell's noise, in votes.
      required_gaps: For each probability of `FLIPS`, the least lead, in votes, that the noise turns
        over no more often.
      expected_votes: Votes of the smallest and of the median query; None if n is private.
      clear: For each of `PURITIES`, the share of public records whose query has a clear label; None
        if n is private.
      records_needed: Least number of private records at which a median query of 90% purity is
        clear.
      suggested_queries: Suggested number of queries s for this noise; None if n is private.
      advice: Suggested change, in one line.
    """

    noise: float
    stddev: float
    required_gaps: dict[float, int]
    expected_votes: tuple[float, float] | None
    clear: dict[float, float] | None
    records_needed: int
    suggested_queries: int | None
    advice: str


def preview(
    mechanism: CentralMechanism,
    sizes: np.ndarray,
    num_records: int | None,
) -> Preview:
    """Return the expected error of one release.

    Args:
      mechanism: Calibrated mechanism.
      sizes: int `[num_queries]`, public records of each query.
      num_records: Number of private records n, or None if n is private.
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
        return Preview(noise, stddev, gaps, None, None, needed, None, advice)
    votes = num_records * share
    clear = {
        purity: float(sizes[votes * (2 * purity - 1) >= gaps[LINE]].sum() / sizes.sum())
        for purity in PURITIES
    }
    suggested = min(
        suggested_num_queries(mechanism, num_records, shared=bool(mechanism.releases_counts)),
        int(sizes.sum()),
    )
    advice = _advice(mechanism, clear[0.9], suggested, needed)
    return Preview(
        noise,
        stddev,
        gaps,
        (float(votes.min()), float(np.median(votes))),
        clear,
        needed,
        suggested,
        advice,
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


def _advice(mechanism: CentralMechanism, clear: float, suggested: int, needed: int) -> str:
    if clear < 0.8 and suggested < mechanism.num_queries:
        return f"the votes are thin for this noise: use fewer queries, about --queries {suggested}"
    if clear < 0.8:
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

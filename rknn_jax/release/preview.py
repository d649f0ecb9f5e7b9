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
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.mechanisms.permute_and_flip import PermuteAndFlip

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
    weights: np.ndarray | None = None,
) -> Preview:
    """Return the expected error of one release.

    Args:
      mechanism: Calibrated mechanism.
      sizes: int `[num_queries]`, public records of each query.
      num_records: Number of private records n, or None if n is private.
      weights: `[num_queries, num_queries]`, weight of each query's votes in each other query's
        label. Defaults to none: queries do not share votes.
    """
    listens = np.eye(len(sizes)) if weights is None else weights
    gaps = {flips: required_gap(mechanism, flips) for flips in FLIPS}
    share = sizes * mechanism.num_neighbors / sizes.sum()  # votes per private record
    heard = listens @ share / np.linalg.norm(listens, axis=1)  # relative to the gathered noise
    needed = math.ceil(gaps[LINE] / (0.8 * np.median(heard)))
    noise = noise_scale(mechanism)
    stddev = noise_stddev(mechanism)
    if num_records is None:
        advice = (
            f"n is private under {mechanism.relation}: go on if there are well over {needed:,} "
            "private records"
        )
        return Preview(noise, stddev, gaps, None, None, needed, None, advice)
    votes = num_records * share
    clear = {
        purity: float(
            sizes[num_records * heard * (2 * purity - 1) >= gaps[LINE]].sum() / sizes.sum()
        )
        for purity in PURITIES
    }
    suggested = min(
        suggested_num_queries(mechanism, num_records, shared=weights is not None), int(sizes.sum())
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
    while flip_prob(mechanism, high) > failure_prob:
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if flip_prob(mechanism, middle) <= failure_prob else (middle + 1, high)
        )
    return low


def flip_prob(mechanism: CentralMechanism, gap: float) -> float:
    """Return the probability that the mechanism changes a label if every rival trails by `gap`.

    A tie counts as a change.

    Args:
      mechanism: Calibrated mechanism.
      gap: Lead of the label, in votes.
    """
    noise = noise_scale(mechanism)
    num_classes = mechanism.num_classes
    if isinstance(mechanism, PermuteAndFlip):
        return _exponential_flip_prob(gap, noise, num_classes)
    if isinstance(mechanism, Gaussian):
        return _gaussian_flip_prob(gap, noise, num_classes)
    return bsvs.flip_prob(gap, noise, num_classes)


def suggested_num_queries(mechanism: CentralMechanism, num_records: int, *, shared: bool) -> int:
    """Suggest the number of queries s for n records, by `bsvs.suggested_num_queries`.

    The mechanism's own s plays no part.
    """
    # For Gaussian noise, the scale of Laplace noise with the same standard deviation.
    scale = noise_scale(mechanism) / (math.sqrt(2) if isinstance(mechanism, Gaussian) else 1)
    return bsvs.suggested_num_queries(
        num_records, mechanism.num_classes, scale, mechanism.num_neighbors, shared=shared
    )


def noise_scale(mechanism: CentralMechanism) -> float:
    """Return the scale of the noise, in votes; the standard deviation of Gaussian noise."""
    return float(mechanism.sigma if isinstance(mechanism, Gaussian) else mechanism.scale)  # type: ignore[attr-defined]


def noise_stddev(mechanism: CentralMechanism) -> float:
    """Return the standard deviation of one cell's noise, in votes.

    Permute-and-flip has one too, although its noisy cells are not released.
    """
    return (
        noise_scale(mechanism)
        if isinstance(mechanism, PermuteAndFlip)
        else float(mechanism.stddev(np.zeros(1), 1)[0])
    )


def _exponential_flip_prob(gap: float, scale: float, num_classes: int) -> float:
    """Return the flip probability of permute-and-flip.

    Permute-and-flip is the arg max of counts plus exponential noise. The result is 1 less the
    integral of (1 - v·q)^(C-1) over v in [0, 1].
    """
    behind = min(max(math.exp(-gap / scale), 1e-300), 1 - 2**-53)
    return 1 + math.expm1(num_classes * math.log1p(-behind)) / (num_classes * behind)


def _gaussian_flip_prob(gap: float, stddev: float, num_classes: int) -> float:
    """Return the flip probability of discrete Gaussian noise, by enumeration."""
    coarse = max(1.0, stddev / bsvs.LARGE_SCALE)
    gap = gap / coarse
    stddev = stddev / coarse
    reach = math.ceil(10 * stddev) + 1
    noise = np.arange(-reach, reach + 1)
    pmf = np.exp(-((noise / stddev) ** 2) / 2)
    pmf /= pmf.sum()
    # A rival's noise must not exceed this to lose strictly.
    below = np.clip(np.arange(len(noise)) + math.ceil(gap) - 1, -1, len(noise) - 1)
    cdf = np.where(below < 0, 0.0, np.cumsum(pmf)[below])
    return float(max(0.0, 1 - np.sum(pmf * cdf ** (num_classes - 1))))


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

"""What error to expect of a release, told before anything is spent, from public quantities alone.

A query keeps its label where its first class leads the second by enough votes. The noise says how
many are enough (`required_gap`), and n, k and the public clusters say how many votes there are.
Three assumptions: private records fall into the clusters as public ones do, all of a query's
dissenting votes go to one rival, and similar queries that share votes are of one class.
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
"""A query stands clear where the noise changes its label with at most this probability."""


@dataclass(frozen=True)
class Preview:
    """What to expect.

    Attributes:
      noise: scale of the noise, in votes; its standard deviation for Gaussian noise.
      stddev: of the noise of one cell, in votes.
      required_gaps: for each of `FLIPS`, the least lead, in votes, that the noise turns over no
        more often.
      expected_votes: of the smallest and of the median query; None where n is private.
      clear: for each of `PURITIES`, the share of public records whose query stands clear; None
        where n is private.
      records_needed: private records from which on a median query of 90% purity stands clear.
      suggested_queries: s for this noise; None where n is private.
      advice: what to change, in one line.
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
    """Tell what to expect of one release.

    Args:
      mechanism: calibrated.
      sizes: int `[num_queries]`, public records of each query.
      num_records: n, or None where it is private.
      weights: `[num_queries, num_queries]`, how much each query listens to each; None for to itself
        alone.
    """
    listens = np.eye(len(sizes)) if weights is None else weights
    gaps = {flips: required_gap(mechanism, flips) for flips in FLIPS}
    share = sizes * mechanism.num_neighbors / sizes.sum()  # of n
    heard = listens @ share / np.linalg.norm(listens, axis=1)  # over the noise that comes along
    needed = math.ceil(gaps[LINE] / (0.8 * np.median(heard)))
    noise = noise_scale(mechanism)
    stddev = noise_stddev(mechanism)
    if num_records is None:
        advice = f"n is private under {mechanism.relation}: go on if there are well over {needed:,} private records"
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
    """Return the least lead, in votes, that the mechanism turns over with at most this
    probability, whatever the rivals have.
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
    """Return how probably the mechanism changes a label where every rival trails by `gap`; a tie
    counts as a change.

    Args:
      mechanism: calibrated.
      gap: in votes.
    """
    noise = noise_scale(mechanism)
    num_classes = mechanism.num_classes
    if isinstance(mechanism, PermuteAndFlip):
        return _exponential_flip_prob(gap, noise, num_classes)
    if isinstance(mechanism, Gaussian):
        return _gaussian_flip_prob(gap, noise, num_classes)
    return bsvs.flip_prob(gap, noise, num_classes)


def suggested_num_queries(mechanism: CentralMechanism, num_records: int, *, shared: bool) -> int:
    """Suggest s for n records; see `bsvs.suggested_num_queries`.

    The mechanism's own s plays no part.
    """
    scale = noise_scale(mechanism) / (
        math.sqrt(2) if isinstance(mechanism, Gaussian) else 1
    )  # Laplace of the same spread
    return bsvs.suggested_num_queries(
        num_records, mechanism.num_classes, scale, mechanism.num_neighbors, shared=shared
    )


def noise_scale(mechanism: CentralMechanism) -> float:
    """Return the scale of the noise, in votes; the standard deviation of Gaussian noise."""
    return float(mechanism.sigma if isinstance(mechanism, Gaussian) else mechanism.scale)  # type: ignore[attr-defined]


def noise_stddev(mechanism: CentralMechanism) -> float:
    """Return the standard deviation of the noise on one cell, in votes, also where the noisy
    cells are not released.
    """
    return (
        noise_scale(mechanism)
        if isinstance(mechanism, PermuteAndFlip)
        else float(mechanism.stddev(np.zeros(1), 1)[0])
    )


def _exponential_flip_prob(gap: float, scale: float, num_classes: int) -> float:
    """Permute-and-flip is the arg max of counts plus exponential noise: 1 less the integral of
    (1 - v·q)^(C-1) over v in [0, 1].
    """
    behind = min(max(math.exp(-gap / scale), 1e-300), 1 - 2**-53)
    return 1 + math.expm1(num_classes * math.log1p(-behind)) / (num_classes * behind)


def _gaussian_flip_prob(gap: float, stddev: float, num_classes: int) -> float:
    """Enumerate the discrete Gaussian."""
    coarse = max(1.0, stddev / bsvs.LARGE_SCALE)
    gap = gap / coarse
    stddev = stddev / coarse
    reach = math.ceil(10 * stddev) + 1
    noise = np.arange(-reach, reach + 1)
    pmf = np.exp(-((noise / stddev) ** 2) / 2)
    pmf /= pmf.sum()
    below = np.clip(
        np.arange(len(noise)) + math.ceil(gap) - 1, -1, len(noise) - 1
    )  # a rival must stay at or below this to lose strictly
    cdf = np.where(below < 0, 0.0, np.cumsum(pmf)[below])
    return float(max(0.0, 1 - np.sum(pmf * cdf ** (num_classes - 1))))


def _advice(mechanism: CentralMechanism, clear: float, suggested: int, needed: int) -> str:
    if clear < 0.8 and suggested < mechanism.num_queries:
        return f"the votes are thin for this noise: use fewer queries, about --queries {suggested}"
    if clear < 0.8:
        return f"the votes are thin for this noise: raise --epsilon, or bring about {needed:,} private records"
    if suggested > 2 * mechanism.num_queries:
        return f"epsilon is ample: try more queries, about --queries {suggested}, which follow the data more finely"
    return "the number of queries suits this epsilon"

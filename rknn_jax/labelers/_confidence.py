"""Confidence of a label: the probability that the same votes without noise give the same label.

Two models of the true counts give the confidence. Both use noisy counts and public quantities only,
so they cost no privacy.

- **Any counts** are equally likely before the release. The true counts then are normal around the
  noisy ones. This is right for queries that stand out of the noise. For others the confidence is
  too high: the greatest of ten noises looks like a lead.
- **One class leads.** A query has about as many votes as its share of the public records. One class
  has more of the votes than the others, which have equal parts. The leader's share is the same in
  all queries. Its prior is uniform from an equal part to all votes. This model gives 1/|Y| if the
  counts tell nothing.

A query gets the smaller of the two if its votes are expected to stand out of the noise by less than
`postprocessing.STANDS_OUT`. `benchmarks/calibration.py` compares these confidences with the true
rates.
"""

import numpy as np
from scipy.special import logsumexp

from rknn_jax import postprocessing
from rknn_jax.types import Array

SHARES = 20
"""Number of shares of the leading class that are tried, evenly from an equal part to all."""

DRAWS = 100
"""Number of redrawn counts behind the confidence of an assignment, a multiple of 1/100."""


def of_argmax(heard: Array, stddev: Array, expected: Array, labels: np.ndarray) -> np.ndarray:
    """Return the confidence of each query's arg max.

    Args:
      heard: float32 `[num_queries, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, of the same shape, in votes.
      expected: `[num_queries]`, expected number of votes of each query.
      labels: int32 `[num_queries]`, arg max of each query.

    Returns:
      float32 `[num_queries]`.
    """
    said: np.ndarray = postprocessing.posterior(heard, stddev)[np.arange(len(labels)), labels]
    weak = _is_weak(stddev, expected)
    if weak.any():
        blocks = _blocks(heard, stddev, expected)
        others = np.split(_of_others(blocks), np.cumsum([len(block[0]) for block in blocks])[:-1])
        led = np.concatenate(
            [_leader(*block, of).sum(axis=2) for block, of in zip(blocks, others, strict=True)]
        )
        said = np.where(weak, np.minimum(said, led[np.arange(len(labels)), labels]), said)
    return said.astype(np.float32)


def of_assignment(counts: Array, stddev: Array, expected: Array, labels: np.ndarray) -> np.ndarray:
    """Return the confidence of labels by `postprocessing.assignment`.

    Counts are redrawn around the noisy ones and assigned again.

    Args:
      counts: float32 `[num_classes, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, of the same shape, in votes.
      expected: `[num_classes]`, expected number of votes of each query.
      labels: int32 `[num_classes]`, assigned class of each query.

    Returns:
      float32 `[num_classes]`.
    """
    # A fixed seed is safe: this is an estimate after the release, and draws none of its noise.
    rng = np.random.default_rng(0)
    counts = np.asarray(counts, np.float64)
    stddev = np.asarray(stddev, np.float64)
    redrawn = counts + stddev * rng.normal(size=(DRAWS, *counts.shape))
    said = _agreement(redrawn, labels)
    weak = _is_weak(stddev, expected)
    if weak.any():
        led = _agreement(_led(rng, counts, stddev, expected), labels)
        said = np.where(weak, np.minimum(said, led), said)
    return said.astype(np.float32)


def _is_weak(stddev: Array, expected: Array) -> np.ndarray:
    """Return a mask of the queries that are not expected to stand out of the noise.

    The noise here is that of the difference of two cells.
    """
    least = postprocessing.STANDS_OUT * np.sqrt(2) * np.max(stddev, axis=1)
    mask: np.ndarray = np.asarray(expected) < least
    return mask


def _shares(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the leading class and of each other class, `[SHARES]` each."""
    leading = np.linspace(1 / num_classes, 1, SHARES + 1)[1:]
    return leading, (1 - leading) / (num_classes - 1)


def _blocks(
    heard: Array, stddev: Array, expected: Array
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Split the queries into blocks whose tables of leaders and shares fit into memory."""
    heard = np.asarray(heard, np.float64)
    parts = min(-(-heard.size * SHARES // postprocessing.LARGEST_GRID), len(heard))
    scale = np.where(np.asarray(stddev) > 0, stddev, 1).astype(np.float64)
    arrays = (
        np.array_split(array, parts) for array in (heard, scale, np.asarray(expected, np.float64))
    )
    return list(zip(*arrays, strict=True))


def _log_likely(heard: np.ndarray, scale: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of each leader and share, `[num_queries, num_classes, SHARES]`.

    A constant is left out.
    """
    heard = heard[..., None]
    scale = scale[..., None]
    leading, other = (expected[:, None, None] * share for share in _shares(heard.shape[1]))
    # Sum the other classes' terms once: for each leader only the leader's own term differs.
    found: np.ndarray = ((heard - other) / scale) ** 2
    rest = -np.sum(found, axis=1, keepdims=True)
    found -= ((heard - leading) / scale) ** 2
    found += rest
    found *= 0.5
    return found


def _of_others(blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the log-likelihood of each share by all other queries, `[num_queries, SHARES]`.

    Any class may lead in the other queries.
    """
    of_share = np.concatenate([logsumexp(_log_likely(*block), axis=1) for block in blocks])
    of_share -= of_share.max(axis=1, keepdims=True)
    others: np.ndarray = of_share.sum(axis=0) - of_share
    return others


def _leader(
    heard: np.ndarray, scale: np.ndarray, expected: np.ndarray, of_others: np.ndarray
) -> np.ndarray:
    """Return the probability of each leader and share, `[num_queries, num_classes, SHARES]`.

    One class is assumed to lead. All queries have the same share, so each query uses the others'
    counts to estimate it.
    """
    likely = _log_likely(heard, scale, expected)
    likely += of_others[:, None]
    likely -= likely.max(axis=(1, 2), keepdims=True)
    np.exp(likely, out=likely)
    likely /= likely.sum(axis=(1, 2), keepdims=True)
    return likely


def _led(
    rng: np.random.Generator, counts: np.ndarray, stddev: np.ndarray, expected: Array
) -> np.ndarray:
    """Draw true counts, `[DRAWS, num_queries, num_classes]`. One class leads in each query."""
    num_queries, num_classes = counts.shape
    blocks = _blocks(counts, stddev, expected)
    others = np.split(_of_others(blocks), np.cumsum([len(block[0]) for block in blocks])[:-1])
    likely = np.concatenate([_leader(*block, of) for block, of in zip(blocks, others, strict=True)])
    below = np.cumsum(likely.reshape(num_queries, -1), axis=1)
    drawn = rng.random((num_queries, DRAWS)) * below[:, -1:]
    picked = np.stack(
        [np.searchsorted(row, at) for row, at in zip(below, drawn, strict=True)], axis=1
    )
    leader, share = np.divmod(picked, SHARES)
    leading, other = _shares(num_classes)
    leads = np.arange(num_classes) == leader[..., None]
    shares = np.where(leads, leading[share][..., None], other[share][..., None])
    return np.asarray(expected)[:, None] * shares


def _agreement(drawn: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the fraction of drawn counts whose assignment gives each query its label."""
    fraction: np.ndarray = np.mean(
        [postprocessing.assignment(counts) == labels for counts in drawn], axis=0
    )
    return fraction

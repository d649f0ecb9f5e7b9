"""Confidence of a label: the probability that it is the one that the same votes give without noise.

Two models of the true counts say it, and both use noisy counts and public quantities only, so they
cost no privacy.

- **Any counts** are as likely before the release. The true counts then are normal around the noisy
  ones. This is right for queries that stand out of the noise. For others it says too much: the
  greatest of ten noises looks like a lead.
- **One class leads.** A query has about as many votes as its share of the public records. One class
  has more of them than the others, which have equal parts. The leader's share is the same in all
  queries, and before the release it was anything from an equal part to all. This says 1/|Y| if
  nothing is heard.

A query whose votes are expected to stand out of the noise by less than `voting.STANDS_OUT` gets the
smaller of the two. `benchmarks/calibration.py` compares what is said with what is true.
"""

from typing import Any

import numpy as np
from scipy.special import logsumexp

from rknn_jax import postprocessing
from rknn_jax.types import Array

SHARES = 20
"""Shares of the leading class that are tried, evenly from an equal part to all."""

DRAWS = 100
"""Redrawn counts from which the confidence of an assignment is told, so that it is a multiple of
1/100.
"""


def of_argmax(heard: Array, stddev: Array, expected: Array, labels: np.ndarray) -> np.ndarray:
    """Return the confidence of each query's arg max.

    Args:
      heard: float32 `[num_queries, num_classes]`, noisy counts.
      stddev: Standard deviation of the noise, of the same shape.
      expected: `[num_queries]`, votes that each query is expected to have.
      labels: int32 `[num_queries]`.

    Returns:
      float32 `[num_queries]`.
    """
    said = postprocessing.posterior(heard, stddev)[np.arange(len(labels)), labels]
    weak = _is_weak(stddev, expected)
    if weak.any():
        blocks = _blocks(heard, stddev, expected)
        others = np.split(_of_others(blocks), np.cumsum([len(block[0]) for block in blocks])[:-1])
        led = np.concatenate(
            [_leader(*block, of).sum(axis=2) for block, of in zip(blocks, others, strict=True)]
        )
        said = np.where(weak, np.minimum(said, led[np.arange(len(labels)), labels]), said)
    return said.astype(np.float32)


def of_assignment(
    counts: Array, stddev: Array, expected: Array, weights: Any, labels: np.ndarray
) -> np.ndarray:
    """Return the confidence of labels by `voting.assignment`, for which counts are drawn around the
    noisy ones again.

    Args:
      counts: float32 `[num_classes, num_classes]`, noisy.
      stddev: Standard deviation of the noise, of the same shape.
      expected: `[num_classes]`, votes that each query is expected to have.
      weights: `[num_classes, num_classes]`, what each query takes of each before the assignment.
      labels: int32 `[num_classes]`.

    Returns:
      float32 `[num_classes]`.
    """
    rng = np.random.default_rng(
        0
    )  # for an estimate after the release; no noise of a release comes from here
    counts = np.asarray(counts, np.float64)
    stddev = np.asarray(stddev, np.float64)
    redrawn = counts + stddev * rng.normal(size=(DRAWS, *counts.shape))
    said = _agreement(redrawn, weights, labels)
    weak = _is_weak(stddev, expected)
    if weak.any():
        led = _agreement(_led(rng, counts, stddev, expected), weights, labels)
        said = np.where(weak, np.minimum(said, led), said)
    return said.astype(np.float32)


def _is_weak(stddev: Array, expected: Array) -> np.ndarray:
    """Return which queries are not expected to stand out of the noise, for the difference of two
    cells.
    """
    return np.asarray(expected) < postprocessing.STANDS_OUT * np.sqrt(2) * np.max(stddev, axis=1)


def _shares(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shares of the leading class and of each other class, `[SHARES]`."""
    leading = np.linspace(1 / num_classes, 1, SHARES + 1)[1:]
    return leading, (1 - leading) / (num_classes - 1)


def _blocks(
    heard: Array, stddev: Array, expected: Array
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the queries in blocks whose tables of leaders and shares fit into memory."""
    heard = np.asarray(heard, np.float64)
    parts = min(-(-heard.size * SHARES // postprocessing.LARGEST_GRID), len(heard))
    scale = np.where(np.asarray(stddev) > 0, stddev, 1).astype(np.float64)
    arrays = (
        np.array_split(array, parts) for array in (heard, scale, np.asarray(expected, np.float64))
    )
    return list(zip(*arrays, strict=True))


def _log_likely(heard: np.ndarray, scale: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of each leader and share, but for a constant, `[num_queries,
    num_classes, SHARES]`.
    """
    heard = heard[..., None]
    scale = scale[..., None]
    leading, other = (expected[:, None, None] * share for share in _shares(heard.shape[1]))
    # The other classes' terms are the same for all leaders but for the leader's own.
    found = ((heard - other) / scale) ** 2
    rest = -np.sum(found, axis=1, keepdims=True)
    found -= ((heard - leading) / scale) ** 2
    found += rest
    found *= 0.5
    return found


def _of_others(blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the log-likelihood of each share by all other queries, whichever class leads there,
    `[num_queries, SHARES]`.
    """
    of_share = np.concatenate([logsumexp(_log_likely(*block), axis=1) for block in blocks])
    of_share -= of_share.max(axis=1, keepdims=True)
    return of_share.sum(axis=0) - of_share


def _leader(
    heard: np.ndarray, scale: np.ndarray, expected: np.ndarray, of_others: np.ndarray
) -> np.ndarray:
    """Return how probably each class leads with each share, `[num_queries, num_classes, SHARES]`,
    if one class leads.

    All queries have one share, so each learns it from the others too.
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
    """Return drawn true counts of which one class leads in each query, `[DRAWS, num_queries,
    num_classes]`.
    """
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


def _agreement(drawn: np.ndarray, weights: Any, labels: np.ndarray) -> np.ndarray:
    """Return the part of drawn counts whose assignment gives each query its label."""
    return np.mean(
        [postprocessing.assignment(weights @ counts) == labels for counts in drawn], axis=0
    )

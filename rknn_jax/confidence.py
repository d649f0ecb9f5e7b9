"""Confidence of a label: the probability that it is the one that the same votes give without noise.

Two models of the true counts say it, and both use noisy counts and public quantities only, so they cost no privacy.

- **Any counts** are as likely before the release. The true counts then are normal around the noisy ones. This is right for
  queries that stand out of the noise. For others it says too much: the greatest of ten noises looks like a lead.
- **One class leads.** A query has about as many votes as its share of the public records. One class has more of them than
  the others, which have equal parts. The leader's share is the same in all queries, and before the release it was anything
  from an equal part to all. This says 1/|Y| if nothing is heard.

A query whose votes are expected to stand out of the noise by less than `voting.STANDS_OUT` gets the smaller of the two.
`benchmarks/calibration.py` compares what is said with what is true.
"""

from typing import Any

import numpy as np
from scipy.special import logsumexp

from rknn_jax import voting
from rknn_jax.types import Array

SHARES = 20
"""Shares of the leading class that are tried, evenly from an equal part to all."""

DRAWS = 100
"""Redrawn counts from which the confidence of an assignment is told, so that it is a multiple of 1/100."""


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
    queries = np.arange(len(labels))
    said = voting.posterior(heard, stddev)[queries, labels]
    weak = _is_weak(stddev, expected)
    if weak.any():
        led = _leader(heard, stddev, expected).sum(axis=2)[queries, labels]
        said = np.where(weak, np.minimum(said, led), said)
    return said.astype(np.float32)


def of_assignment(counts: Array, stddev: Array, expected: Array, weights: Any, labels: np.ndarray) -> np.ndarray:
    """Return the confidence of labels by `voting.assignment`, for which counts are drawn around the noisy ones again.

    Args:
      counts: float32 `[num_classes, num_classes]`, noisy.
      stddev: Standard deviation of the noise, of the same shape.
      expected: `[num_classes]`, votes that each query is expected to have.
      weights: `[num_classes, num_classes]`, what each query takes of each before the assignment.
      labels: int32 `[num_classes]`.

    Returns:
      float32 `[num_classes]`.
    """
    rng = np.random.default_rng(0)  # for an estimate after the release; no noise of a release comes from here
    counts, stddev = np.asarray(counts, np.float64), np.asarray(stddev, np.float64)
    redrawn = counts + stddev * rng.normal(size=(DRAWS, *counts.shape))
    said = _agreement(redrawn, weights, labels)
    weak = _is_weak(stddev, expected)
    if weak.any():
        led = _agreement(_led(rng, counts, stddev, expected), weights, labels)
        said = np.where(weak, np.minimum(said, led), said)
    return said.astype(np.float32)


def _is_weak(stddev: Array, expected: Array) -> np.ndarray:
    """Return which queries are not expected to stand out of the noise, for the difference of two cells."""
    return np.asarray(expected) < voting.STANDS_OUT * np.sqrt(2) * np.max(stddev, axis=1)


def _shares(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shares of the leading class and of each other class, `[SHARES]`."""
    leading = np.linspace(1 / num_classes, 1, SHARES + 1)[1:]
    return leading, (1 - leading) / (num_classes - 1)


def _leader(heard: Array, stddev: Array, expected: Array) -> np.ndarray:
    """Return how probably each class leads with each share, `[num_queries, num_classes, SHARES]`, if one class leads."""
    heard = np.asarray(heard, np.float64)[..., None]
    scale = np.where(np.asarray(stddev) > 0, stddev, 1).astype(np.float64)[..., None]
    leading, other = (np.asarray(expected)[:, None, None] * share for share in _shares(heard.shape[1]))
    # The other classes' terms are the same for all leaders but for the leader's own.
    gain = ((heard - other) / scale) ** 2 - ((heard - leading) / scale) ** 2
    rest = -np.sum(((heard - other) / scale) ** 2, axis=1, keepdims=True)
    log_likely = 0.5 * (rest + gain)
    # All queries have one share, so each learns it from the others too, whichever class leads there.
    of_share = logsumexp(log_likely, axis=1)
    of_share -= of_share.max(axis=1, keepdims=True)
    others = of_share.sum(axis=0) - of_share
    log_likely += others[:, None]
    likely = np.exp(log_likely - log_likely.max(axis=(1, 2), keepdims=True))
    return likely / likely.sum(axis=(1, 2), keepdims=True)


def _led(rng: np.random.Generator, counts: np.ndarray, stddev: np.ndarray, expected: Array) -> np.ndarray:
    """Return drawn true counts of which one class leads in each query, `[DRAWS, num_queries, num_classes]`."""
    num_queries, num_classes = counts.shape
    below = np.cumsum(_leader(counts, stddev, expected).reshape(num_queries, -1), axis=1)
    drawn = rng.random((num_queries, DRAWS)) * below[:, -1:]
    picked = np.stack([np.searchsorted(row, at) for row, at in zip(below, drawn, strict=True)], axis=1)
    leader, share = np.divmod(picked, SHARES)
    leading, other = _shares(num_classes)
    leads = np.arange(num_classes) == leader[..., None]
    shares = np.where(leads, leading[share][..., None], other[share][..., None])
    return np.asarray(expected)[:, None] * shares


def _agreement(drawn: np.ndarray, weights: Any, labels: np.ndarray) -> np.ndarray:
    """Return the part of drawn counts whose assignment gives each query its label."""
    return np.mean([voting.assignment(weights @ counts) == labels for counts in drawn], axis=0)

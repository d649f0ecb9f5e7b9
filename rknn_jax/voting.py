"""From noisy counts to answers: arg max, soft labels, and what public data alone can add for free.

Everything here takes noisy counts, so by post-processing none of it costs privacy, as long as its strength is chosen from n, s, epsilon and
public data only. `smooth_counts` borrows votes from similar queries; `propagate` spreads labels over the public neighbour graph.

References: Zhou et al., "Learning with Local and Global Consistency", 2003 (`propagate`).
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from rknn_jax.neighbors import pairwise_sq_distances
from rknn_jax.types import Array

BANDWIDTHS = (0.0, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0)
"""Kernel bandwidths tried by `smoothing_bandwidth`, in units of the median squared distance between queries."""


def noisy_max(counts: Array) -> np.ndarray:
    """Return the label of each query, int32 `[num_queries]`: the arg max of its noisy counts `[num_queries, num_classes]`."""
    return np.asarray(jnp.argmax(jnp.asarray(counts), axis=1), np.int32)


def soft_labels(counts: Array) -> np.ndarray:
    """Return each query's noisy counts as probabilities, float32 `[num_queries, num_classes]`.

    Negative counts are taken as 0, and a query without a positive count is uniform.
    """
    positive = np.maximum(np.asarray(counts, np.float32), 0)
    total = positive.sum(axis=1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1), np.float32(1 / positive.shape[1]))


def smoothing_kernel(features: Array, bandwidth: float) -> np.ndarray:
    """Return exp(-|q_i - q_j|² / (bandwidth·median)) between queries, float32 `[num_queries, num_queries]`; identity at bandwidth 0.

    Args:
      features: float32 `[num_queries, f]`, of public queries.
      bandwidth: in units of the median squared distance between two queries.
    """
    distances = np.asarray(pairwise_sq_distances(jnp.asarray(features, jnp.float32), jnp.asarray(features, jnp.float32)))
    others = distances[~np.eye(len(distances), dtype=bool)]
    width = bandwidth * (np.median(others) if len(others) else 0.0)
    return np.exp(-distances / width).astype(np.float32) if width > 0 else np.eye(len(distances), dtype=np.float32)


def smoothing_bandwidth(features: Array, sizes: Array, votes: float, stddev: float, target: float = 3.5) -> float:
    """Choose how strongly to smooth, from public quantities only.

    A query's votes should be about in proportion to the public records that it stands for. The least bandwidth is taken at which, for the
    queries of 95% of the public records, the votes that the kernel gathers are `target` times the noise that it gathers: more smoothing would
    only blur labels. No smoothing where the votes already stand out, the strongest where nothing does.

    Args:
      features: float32 `[num_queries, f]`.
      sizes: `[num_queries]`, public records of each query.
      votes: how many votes were cast, as the noisy counts tell.
      stddev: of the noise of one cell, in votes.
      target: votes over noise, at the difference of two cells. At 3.5 each rival of a pure query wins with a probability below 0.1%.

    Returns:
      One of `BANDWIDTHS`.
    """
    sizes = np.asarray(sizes, np.float64)
    expected = votes * sizes / sizes.sum()
    for bandwidth in BANDWIDTHS:
        kernel = smoothing_kernel(features, bandwidth)
        ratio = kernel @ expected / np.maximum(np.sqrt(2) * stddev * np.linalg.norm(kernel, axis=1), 1e-30)
        if sizes[ratio >= target].sum() >= 0.95 * sizes.sum():
            return bandwidth
    return BANDWIDTHS[-1]


def smooth_counts(counts: Array, kernel: np.ndarray) -> np.ndarray:
    """Return `kernel @ counts`, float32 `[num_queries, num_classes]`: every query hears its neighbours too."""
    return np.asarray(kernel @ np.asarray(counts, np.float32))


def propagate(graph: scipy.sparse.spmatrix, probabilities: Array, strength: float = 0.9) -> np.ndarray:
    """Spread soft labels over a public neighbour graph: solve F = (1 - strength)·Y + strength·S·F.

    Args:
      graph: symmetric non-negative similarities `[m, m]` of the public records.
      probabilities: float32 `[m, num_classes]`, Y, each public record's soft label from its query.
      strength: in [0, 1); 0 returns Y.

    Returns:
      float32 `[m, num_classes]`, rows summing to 1.
    """
    if not 0 <= strength < 1:
        raise ValueError(f"Expected 0 <= strength < 1, got strength={strength}; 0 leaves the labels as they are.")
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
    similarity = scale @ graph @ scale
    system = scipy.sparse.identity(len(degree)) - strength * similarity
    columns: Sequence[np.ndarray] = [
        scipy.sparse.linalg.cg(system, (1 - strength) * column, rtol=1e-6)[0] for column in np.asarray(probabilities, np.float64).T
    ]
    return soft_labels(np.stack(columns, axis=1))

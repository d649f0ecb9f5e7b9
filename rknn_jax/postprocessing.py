"""From noisy counts to answers: arg max, soft labels, and what public data alone can add for free.

`noisy_screen` sees counts and releases one noisy bit of each query. Everything else here takes
noisy counts, so by post-processing it costs no privacy, as long as its strength is chosen from n,
s, epsilon and public data only. `smoothing_weights` borrows votes from similar queries;
`public_labels` spreads labels over the public neighbour graph.

References: Zhou et al., "Learning with Local and Global Consistency", 2003 (`propagate`).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg
import scipy.special

from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import Metric, pairwise_sq_distances
from rknn_jax.types import Array

BANDWIDTHS = (0.0, *np.geomspace(0.01, 0.35, 14))
"""Kernel widths that `smoothing_weights` chooses from, in units of the median squared distance
between queries; wider ones mix labels.
"""

STANDS_OUT = 5.0
"""Expected votes over the noise's standard deviation, for the difference of two cells, at which
a query needs no more help.
"""

REACH = 6.0
GRID = 200
"""Standard deviations around the greatest count that `posterior` looks at, and its points."""

LARGEST_GRAPH = 100_000
"""Public records between which labels are spread; the graph of more would take hours."""

LARGEST_GRID = 10**7
"""Numbers that it holds at a time."""


def noisy_max(counts: Array) -> np.ndarray:
    """Return the label of each query, int32 `[num_queries]`: the arg max of its noisy counts
    `[num_queries, num_classes]`.
    """
    return np.asarray(jnp.argmax(jnp.asarray(counts), axis=1), np.int32)


def noisy_screen(key: jax.Array, counts: Array, threshold: float, stddev: float) -> np.ndarray:
    """Return which queries' greatest count reaches the threshold once it is noisy, in simulation,
    bool `[num_queries]`.

    Args:
      key: is consumed.
      counts: `[num_queries, num_classes]`, private.
      threshold: T.
      stddev: of the Gaussian noise.
    """
    largest = np.asarray(counts, np.float32).max(axis=1)
    return largest + stddev * np.asarray(jax.random.normal(key, largest.shape)) >= threshold


def assignment(counts: Array) -> np.ndarray:
    """Return another label for each query, int32 `[num_classes]`, such that their noisy counts
    `[num_classes, num_classes]` sum to most.

    Where every query is a cluster of one class, the counts of the others help to tell which.

    Raises:
      ValueError: for another number of queries than classes.
    """
    counts = np.asarray(counts)
    if counts.shape[0] != counts.shape[1]:
        raise ValueError(
            f"Expected as many queries as classes to assign one to each, got {counts.shape[0]} "
            f"queries and {counts.shape[1]} classes; "
            "set the number of queries or use decode=argmax."
        )
    return scipy.optimize.linear_sum_assignment(counts, maximize=True)[1].astype(np.int32)


def posterior(counts: Array, stddev: Array) -> np.ndarray:
    """Return how probably each class has the most votes of all, given its noisy counts.

    Noise is taken as normal and independent between cells, and before anything was heard all counts
    were as likely, so that count j is normal around what was heard. The integral over it of the
    probability that all others are less is summed over a grid.

    Args:
      counts: float32 `[num_queries, num_classes]`, noisy.
      stddev: of the noise, `[num_queries, num_classes]`; where a query has none, its arg max is
        certain.

    Returns:
      float32 `[num_queries, num_classes]`, rows summing to 1.
    """
    parts = min(-(-counts.shape[0] * counts.shape[1] * GRID // LARGEST_GRID), len(counts))
    blocks = zip(
        np.array_split(np.asarray(counts, np.float64), parts),
        np.array_split(np.asarray(stddev, np.float64), parts),
        strict=True,
    )
    return np.concatenate([_posterior(*block) for block in blocks])


def _posterior(counts: np.ndarray, stddev: np.ndarray) -> np.ndarray:
    certain = np.arange(counts.shape[1]) == counts.argmax(axis=1)[:, None]
    scale = np.where(stddev > 0, stddev, 1)
    points = round(
        GRID * float((scale.max(axis=1) / scale.min(axis=1)).max())
    )  # as fine as the sharpest cell asks for
    low, high = ((counts + reach * scale).max(axis=1) for reach in (-REACH, REACH))
    values = np.linspace(low, high, points, axis=1)[
        :, None
    ]  # below `low` some other count is almost surely greater
    standard = (values - counts[..., None]) / scale[..., None]
    log_below = scipy.special.log_ndtr(standard)
    log_density = -0.5 * standard**2 - np.log(scale)[..., None]
    mass = np.exp(log_density + log_below.sum(axis=1, keepdims=True) - log_below).sum(axis=2)
    return np.where(
        (stddev > 0).all(axis=1, keepdims=True), mass / mass.sum(axis=1, keepdims=True), certain
    ).astype(np.float32)


def soft_labels(counts: Array) -> np.ndarray:
    """Return each query's noisy counts as probabilities, float32 `[num_queries, num_classes]`.

    Negative counts are taken as 0, and a query without a positive count is uniform.
    """
    positive = np.maximum(np.asarray(counts, np.float32), 0)
    total = positive.sum(axis=1, keepdims=True)
    return np.where(
        total > 0, positive / np.where(total > 0, total, 1), np.float32(1 / positive.shape[1])
    )


def smoothing_weights(features: Array, sizes: Array, votes: float, stddev: float) -> np.ndarray:
    """Choose how much each query listens to similar ones, from public quantities only.

    A query's votes should be about in proportion to the public records that it stands for. Each
    query takes the narrowest kernel exp(-|q_i - q_j|² / width) that gathers enough of them to stand
    out of the noise that it gathers along (`STANDS_OUT`), since more smoothing would only blur
    labels; where none does, the one that comes nearest.

    Args:
      features: float32 `[num_queries, f]`.
      sizes: `[num_queries]`, public records of each query.
      votes: how many votes were cast, as the noisy counts tell.
      stddev: of the noise of one cell, in votes; 0 needs no help.

    Returns:
      float32 `[num_queries, num_queries]`, the weight of query j's votes in query i's label; the
      identity where no query needs help.
    """
    if stddev <= 0:
        return np.eye(len(sizes), dtype=np.float32)
    features = jnp.asarray(features, jnp.float32)
    sizes = np.asarray(sizes, np.float64)
    distances = np.asarray(pairwise_sq_distances(features, features), np.float64)
    others = distances[~np.eye(len(distances), dtype=bool)]
    if np.any(others > 0) and np.ptp(others) <= 1e-6 * others.max():
        return np.eye(
            len(sizes), dtype=np.float32
        )  # none is more similar than another, as where queries are prototypes
    unit = np.median(others[others > 0]) if np.any(others > 0) else 1.0
    expected = votes * sizes / sizes.sum()
    chosen = np.eye(len(sizes))
    best = np.full(len(sizes), -np.inf)
    for bandwidth in BANDWIDTHS:
        kernel = np.exp(-distances / (bandwidth * unit)) if bandwidth else np.eye(len(sizes))
        stands_out = kernel @ expected / (np.sqrt(2) * stddev * np.linalg.norm(kernel, axis=1))
        better = (best < STANDS_OUT) & (stands_out > best)
        chosen = np.where(better[:, None], kernel, chosen)
        best = np.where(better, stands_out, best)
    return chosen.astype(np.float32)


def public_graph(
    features: Array, num_queries: int, *, metric: Metric = "sqeuclidean", smoothing: str = "auto"
) -> scipy.sparse.csr_matrix | None:
    """Return the neighbour graph along which `public_labels` spreads.

    Args:
      features: float32 `[m, f]`, of the public records.
      num_queries: s.
      metric: of the features.
      smoothing: `none` spreads nothing.

    Returns:
      `[m, m]`, or None where nothing is to be spread: with `smoothing` none, where every record is
      a query, and beyond `LARGEST_GRAPH` records.
    """
    if smoothing == "none" or not num_queries < len(features) <= LARGEST_GRAPH:
        return None
    return self_graph(features, metric=metric)


def public_labels(
    graph: scipy.sparse.csr_matrix | None, probabilities: Array, num_queries: int
) -> np.ndarray:
    """Spread the public records' labels over their neighbour graph, by post-processing alone.

    Args:
      graph: from `public_graph`; None leaves the labels as they are.
      probabilities: float32 `[m, num_classes]`, each record's own query's soft label; 0 where none
        was answered.
      num_queries: answered ones, from which the strength follows.

    Returns:
      float32 `[m, num_classes]`.
    """
    probabilities = np.asarray(probabilities, np.float32)
    if graph is None or num_queries == 0:
        return probabilities
    return propagate(graph, probabilities, propagation_strength(num_queries, len(probabilities)))


def propagation_strength(num_queries: int, num_public: int) -> float:
    """Return how far labels should travel, 1 - (s/m)^0.6: the farther, the more public records
    share a query.

    The exponent was chosen on MNIST; what it gives there is in `benchmarks/results/labels.json`.
    """
    return 1 - (num_queries / num_public) ** 0.6


def propagate(graph: scipy.sparse.spmatrix, probabilities: Array, strength: float) -> np.ndarray:
    """Spread soft labels over a public neighbour graph: solve F = (1 - strength)·Y + strength·S·F,
    S = D^-1/2 W D^-1/2.

    Args:
      graph: symmetric non-negative similarities `[m, m]` of the public records.
      probabilities: float32 `[m, num_classes]`, Y, each public record's soft label from its query.
      strength: in [0, 1); 0 returns Y.

    Returns:
      float32 `[m, num_classes]`, rows summing to 1.
    """
    if not 0 <= strength < 1:
        raise ValueError(
            f"Expected 0 <= strength < 1, got strength={strength}; 0 leaves the labels as they are."
        )
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
    similarity = scale @ graph @ scale
    system = scipy.sparse.identity(len(degree)) - strength * similarity
    columns: Sequence[np.ndarray] = [
        scipy.sparse.linalg.cg(system, (1 - strength) * column, rtol=1e-6)[0]
        for column in np.asarray(probabilities, np.float64).T
    ]
    return soft_labels(np.stack(columns, axis=1))

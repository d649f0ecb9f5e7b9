"""Labels of queries from noisy counts: arg max, assignment, soft labels; labels spread by a graph.

`noisy_screen` reads private counts and releases one noisy bit per query. Everything else here takes
noisy counts, so by post-processing it costs no privacy. `rknn_jax.answers` reads labels of all
public rows from noisy counts. Where there are none, `public_labels` spreads the labels of queries
over the public neighbor graph, with a strength that is chosen from s and public data only.

References: Zhou et al., "Learning with Local and Global Consistency", 2003 (`propagate`).
"""

from collections.abc import Sequence

import jax
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.special

from rknn_jax.neighbor_graph import self_graph
from rknn_jax.neighbors import Metric
from rknn_jax.types import Array

STANDS_OUT = 5.0
"""Signal-to-noise ratio at which a query's own counts tell how sure its label is.

The ratio is a query's expected votes over the standard deviation of the noise of the difference of
two cells.
"""

REACH = 6.0
GRID = 200
"""Half width in standard deviations, and number of points, of the grid of `posterior`."""

LARGEST_GRID = 10**7
"""Most numbers that `posterior` holds at a time."""


def noisy_max(counts: Array) -> np.ndarray:
    """Return the label of each query: the arg max of its noisy counts.

    Args:
      counts: `[num_queries, num_classes]`, noisy.

    Returns:
      int32 `[num_queries]`.
    """
    labels: np.ndarray = np.asarray(counts).argmax(axis=1).astype(np.int32)
    return labels


def noisy_screen(key: jax.Array, counts: Array, threshold: float, stddev: float) -> np.ndarray:
    """Return which queries' greatest count, once noisy, reaches the threshold, in simulation.

    Args:
      key: Random key, consumed.
      counts: `[num_queries, num_classes]`, private.
      threshold: Threshold T, in votes.
      stddev: Standard deviation of the Gaussian noise, in votes.

    Returns:
      bool `[num_queries]`.
    """
    largest = np.asarray(counts, np.float32).max(axis=1)
    passes: np.ndarray = (
        largest + stddev * np.asarray(jax.random.normal(key, largest.shape)) >= threshold
    )
    return passes


def assignment(counts: Array) -> np.ndarray:
    """Give each query a different label, such that their noisy counts have the greatest sum.

    If every query is a cluster of one class, the counts of the other queries help to tell which.

    Args:
      counts: `[num_classes, num_classes]`, noisy.

    Returns:
      int32 `[num_classes]`.

    Raises:
      ValueError: If the numbers of queries and classes differ.
    """
    counts = np.asarray(counts)
    if counts.shape[0] != counts.shape[1]:
        raise ValueError(
            f"Expected as many queries as classes to assign one to each, got {counts.shape[0]} "
            f"queries and {counts.shape[1]} classes; "
            "set the number of queries or use decode=argmax."
        )
    import scipy.optimize  # imported late: it takes half a second

    labels: np.ndarray = scipy.optimize.linear_sum_assignment(counts, maximize=True)[1].astype(
        np.int32
    )
    return labels


def posterior(counts: Array, stddev: Array) -> np.ndarray:
    """Return the probability that each class has the most votes of all, given its noisy counts.

    Noise is taken as normal and independent between cells, and the prior of the counts as flat. So
    count j is normal around its noisy count. Its density, times the probability that all other
    counts are less, is integrated over a grid.

    Args:
      counts: float32 `[num_queries, num_classes]`, noisy.
      stddev: Standard deviation of the noise, in votes, `[num_queries, num_classes]`. If a query
        has a 0 here, its arg max is certain.

    Returns:
      float32 `[num_queries, num_classes]`, rows summing to 1.
    """
    parts = min(-(-counts.size * counts.shape[1] * 2 * GRID // LARGEST_GRID), len(counts))
    blocks = zip(
        np.array_split(np.asarray(counts, np.float64), parts),
        np.array_split(np.asarray(stddev, np.float64), parts),
        strict=True,
    )
    return np.concatenate([_posterior(*block) for block in blocks])


def _posterior(counts: np.ndarray, stddev: np.ndarray) -> np.ndarray:
    certain = np.arange(counts.shape[1]) == counts.argmax(axis=1)[:, None]
    # Less is less than a grid of float64 can tell.
    least = np.abs(counts).max(axis=1, keepdims=True) * 2.0**-40
    scale = np.where(stddev > 0, np.maximum(stddev, least), 1)
    values, widths = _grid(counts, scale)
    parts = -(-counts.size * values.shape[1] // LARGEST_GRID)  # several if one row has many points
    split = (np.array_split(one, parts, axis=1) for one in (values, widths))
    mass = np.sum([_mass(counts, scale, *part) for part in zip(*split, strict=True)], axis=0)
    posterior: np.ndarray = np.where(
        (stddev > 0).all(axis=1, keepdims=True), mass / mass.sum(axis=1, keepdims=True), certain
    ).astype(np.float32)
    return posterior


def _mass(
    counts: np.ndarray, scale: np.ndarray, values: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Return a part of ∫ φ_j(x) Π_{i≠j} Φ_i(x) dx = P[j is greatest], for all j on one grid."""
    standard = (values[:, None] - counts[..., None]) / scale[..., None]
    log_below = scipy.special.log_ndtr(standard)
    with np.errstate(over="ignore"):  # far from a sharp cell
        log_density = -0.5 * standard**2 - np.log(scale)[..., None]
    others = log_below.sum(axis=1, keepdims=True) - log_below
    mass: np.ndarray = (np.exp(log_density + others) * widths[:, None]).sum(axis=2)
    return mass


def _grid(counts: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points as fine as each cell needs, and the width of each, `[num_queries, points]`."""
    # Below `low` some other count is almost surely greater.
    low, high = ((counts + reach * scale).max(axis=1) for reach in (-REACH, REACH))
    finest = float((scale.max(axis=1) / scale.min(axis=1)).max())
    if finest < 2 * counts.shape[1]:
        values = np.linspace(low, high, round(GRID * finest), axis=1)
    else:  # points around each cell are fewer, and reach to where float64 has no density
        around = np.sinh(np.linspace(-1, 1, 2 * GRID) * np.arcsinh(40))
        each = counts[..., None] + scale[..., None] * around
        values = np.sort(each.reshape(len(counts), -1)).clip(low[:, None], high[:, None])
    return values, np.gradient(values, axis=1)


def soft_labels(counts: Array) -> np.ndarray:
    """Return each query's noisy counts as probabilities, float32 `[num_queries, num_classes]`.

    Negative counts are taken as 0, and a query without a positive count is uniform.
    """
    # Noise makes counts negative, and no share is.
    positive = np.maximum(np.asarray(counts, np.float32), 0)
    total = positive.sum(axis=1, keepdims=True)
    return np.where(
        total > 0, positive / np.where(total > 0, total, 1), np.float32(1 / positive.shape[1])
    )


def public_graph(
    features: Array, num_queries: int, *, metric: Metric = "sqeuclidean", smoothing: str = "auto"
) -> scipy.sparse.csr_matrix | None:
    """Return the neighbor graph along which `public_labels` spreads.

    Args:
      features: float32 `[m, f]`, of the public records.
      num_queries: Number of queries s.
      metric: Metric of the features. Defaults to squared Euclidean.
      smoothing: Choice of smoothing; `none` spreads nothing. Defaults to `auto`.

    Returns:
      `[m, m]`, or None if nothing is to be spread: if `smoothing` is `none`, or if every record is
      a query. Above `neighbor_graph.LARGEST_EXACT` records, a few neighbors are missed.
    """
    if smoothing == "none" or num_queries >= len(features):
        return None
    return self_graph(features, metric=metric)


def public_labels(
    graph: scipy.sparse.csr_matrix | None, probabilities: Array, num_queries: int
) -> np.ndarray:
    """Spread the public records' labels over their neighbor graph, by post-processing alone.

    Args:
      graph: Graph from `public_graph`; None leaves the labels as they are.
      probabilities: float32 `[m, num_classes]`, the soft label of each record's own query; 0 if
        that query was not answered.
      num_queries: Number of answered queries, which sets the strength.

    Returns:
      float32 `[m, num_classes]`.
    """
    probabilities = np.asarray(probabilities, np.float32)
    if graph is None or num_queries == 0:
        return probabilities
    return propagate(graph, probabilities, propagation_strength(num_queries, len(probabilities)))


def propagation_strength(num_queries: int, num_public: int) -> float:
    """Return the strength of propagation, 1 - (s/m)^0.6.

    Labels travel farther when more public records share a query. The exponent was chosen on MNIST;
    `benchmarks/results/labels.json` holds its results there.
    """
    strength: float = 1 - (num_queries / num_public) ** 0.6
    return strength


def propagate(graph: scipy.sparse.spmatrix, probabilities: Array, strength: float) -> np.ndarray:
    """Spread soft labels over a public neighbor graph.

    Solves F = (1 - strength)·Y + strength·S·F with S = D^-1/2 W D^-1/2.

    Args:
      graph: Symmetric non-negative similarities W `[m, m]` of the public records.
      probabilities: float32 `[m, num_classes]`, Y, each public record's soft label from its query.
      strength: Strength in [0, 1); 0 returns Y.

    Returns:
      float32 `[m, num_classes]`, rows summing to 1.
    """
    if not 0 <= strength < 1:
        raise ValueError(
            f"Expected 0 <= strength < 1, got strength={strength}; 0 leaves the labels as they are."
        )
    # I - strength · S is positive definite for strength < 1, so that conjugate gradients solve it.
    degree = np.asarray(graph.sum(axis=1)).ravel()
    scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
    similarity = scale @ graph @ scale
    system = scipy.sparse.identity(len(degree)) - strength * similarity
    columns: Sequence[np.ndarray] = [
        scipy.sparse.linalg.cg(system, (1 - strength) * column, rtol=1e-6)[0]
        for column in np.asarray(probabilities, np.float64).T
    ]
    return soft_labels(np.stack(columns, axis=1))

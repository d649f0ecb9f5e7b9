"""Bucketized sparse vector summation (BSVS): the votes of the private records, summed per query and
label.

A record that is connected to k queries and carries r labels adds 1 to k·r of the d = s·|Y| cells
`query · |Y| + label`. Votes stay sparse (`cells`, int32 `[num_records, k·r]`) and counts stay
int32: float32 stops counting at 2^24.

**Sensitivity.** Replacing one record moves at most 2kr cells by at most 1 each, adding or removing
one at most kr, because the cells of a record depend on that record and on public data alone.
Everything in `rknn_jax.mechanisms` stands on this.

References: Li et al., "Fine-grained Private Knowledge Distillation", Definition 2, Proposition 1,
Remark 1 and Theorems 1 and 2.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.types import Array

NO_CELL = -1
"""A vote that is not cast: a missing neighbor or label. It is dropped by `sum_votes`."""

MARGIN = 4
"""Average votes of a query over the gap that it needs alone: clusters differ in size, and impure
ones have smaller gaps.
"""

SHARED_MARGIN = 1
"""The same where similar queries share votes: at epsilon 0.01 MNIST's pixels and HOG gain 18 and
14 points by 40 queries instead of 10.
"""

MOST_QUERIES = 200
"""More gave less than a point on MNIST's pixels, and cost as much of what better representations
have. The paper asks up to 500.
"""

LARGE_SCALE = 1000.0
"""Noise beyond this many votes is scale free to 0.1%, and enumerating it vote by vote would only
cost memory.
"""


def voting_labels(labels: Array, num_classes: Any) -> Any:
    """Replace each label that no class has by `NO_CELL`: its record casts no vote, and changes no
    other's.

    Args:
      labels: Integers of any shape, private.
      num_classes: |Y|.
    """
    where = jnp.where if isinstance(labels, jax.Array) else np.where
    return where((labels >= 0) & (labels < num_classes), labels, NO_CELL)


def cells(near: Array, labels: Array, num_classes: int) -> jax.Array:
    """Return the cells that every record votes for.

    Args:
      near: int32 `[n, k]`, queries of each record; negative where a record has fewer than k.
      labels: int32 `[n]` or, for several labels a record, `[n, r]`; negative where a record has
        fewer than r.
      num_classes: |Y|. A label that no class has casts no vote.

    Returns:
      int32 `[n, k·r]`, ascending in each row; `NO_CELL` where a query or a label is missing or
      named twice, because a record may add at most 1 to a cell.
    """
    return _cells(jnp.asarray(near, jnp.int32), jnp.asarray(labels, jnp.int32), num_classes)


@jax.jit
def _cells(near: jax.Array, labels: jax.Array, num_classes: Any) -> jax.Array:
    labels = voting_labels(labels[:, None] if labels.ndim == 1 else labels, num_classes)
    query = near[:, :, None]
    label = labels[:, None, :]
    cell = jnp.where((query >= 0) & (label >= 0), query * num_classes + label, NO_CELL)
    return once(cell.reshape(len(near), -1))


def once(cells: jax.Array) -> jax.Array:
    """Leave one of equal cells in each row, int32 `[..., k·r]`, ascending: `NO_CELL` first, in
    place of the others.

    Mechanisms are calibrated for votes of at most 1 a cell, so it is done wherever cells may come
    from elsewhere.
    """
    return cells if cells.shape[-1] == 1 else _once(cells)


@jax.jit
def _once(cells: jax.Array) -> jax.Array:
    cells = jnp.sort(cells, axis=-1)
    repeated = jnp.concatenate(
        [jnp.zeros_like(cells[..., :1], bool), cells[..., 1:] == cells[..., :-1]], axis=-1
    )
    return jnp.sort(jnp.where(repeated, NO_CELL, cells), axis=-1)


@functools.partial(jax.jit, static_argnames="num_cells")
def sum_votes(cells: Array, num_cells: int) -> jax.Array:
    """Count the votes of each cell.

    Args:
      cells: int32, any shape.
      num_cells: d.

    Returns:
      int32 `[num_cells]`; cells outside [0, num_cells) are not counted.
    """
    flat = jnp.ravel(cells)
    return jax.ops.segment_sum(
        jnp.ones(flat.shape, jnp.int32), jnp.where(flat < 0, num_cells, flat), num_cells
    )


@jax.jit
def gap(counts: Array) -> jax.Array:
    """Return how far each query's first label leads its second: `[num_queries]` from
    `[num_queries, num_classes]`.
    """
    top = jax.lax.top_k(jnp.asarray(counts), 2)[0]
    return top[:, 0] - top[:, 1]


def error_radius(scale: float, num_classes: int, failure_prob: float) -> int:
    """Bound discrete Laplace noise on all cells of one query (Proposition 1).

    Args:
      scale: b of the noise, in votes.
      num_classes: |Y|.
      failure_prob: beta.

    Returns:
      The least m such that all |Y| noises are below m in absolute value with probability at least 1
      - beta. The paper's real-valued b·ln(|Y|/beta) fails for integer noise: it reaches .050041 for
      beta = .05, |Y| = 2, b = 20.
    """
    alpha = math.exp(-1 / scale)
    return max(1, math.ceil(scale * math.log(2 * num_classes / (failure_prob * (1 + alpha)))))


def flip_prob(gap: float, scale: float, num_classes: int) -> float:
    """Return how probably discrete Laplace noise changes a query's label, in the worst case.

    Every rival trails by `gap`, which is the worst case for a given gap, and a tie counts as a
    flip. Remark 1's sufficient condition, gap >= 2·error_radius, asks for about twice the gap that
    this needs.

    Args:
      gap: lead of the true label, in votes.
      scale: b of the noise, in votes.
      num_classes: |Y|.
    """
    coarse = max(1.0, scale / LARGE_SCALE)  # votes that are counted as one
    gap = gap / coarse
    scale = scale / coarse
    alpha = math.exp(-1 / scale)
    reach = math.ceil(40 * scale) + 1
    noise = np.arange(-reach, reach + 1)
    pmf = (1 - alpha) / (1 + alpha) * alpha ** np.abs(noise)
    below = noise + math.ceil(gap) - 1  # a rival must stay at or below this to lose strictly
    cdf = np.where(
        below < 0,
        alpha ** (-np.minimum(below, 0).astype(float)) / (1 + alpha),
        1 - alpha ** (np.maximum(below, 0) + 1.0) / (1 + alpha),
    )
    return float(max(0.0, 1 - np.sum(pmf * cdf ** (num_classes - 1))))


def required_gap(scale: float, num_classes: int, failure_prob: float) -> int:
    """Return the least gap, in votes, whose `flip_prob` is at most `failure_prob`."""
    low = 0
    high = 4 * error_radius(scale, num_classes, failure_prob)
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if flip_prob(middle, scale, num_classes) <= failure_prob
            else (middle + 1, high)
        )
    return low


def suggested_num_queries(
    num_records: int, num_classes: int, scale: float, num_neighbors: int, *, shared: bool
) -> int:
    """Suggest s: as many queries as leave each an average share of votes a margin times the gap
    that flips 1% of the labels.

    More queries follow the data more finely and are answered less surely. Never fewer than the
    classes.

    Args:
      num_records: n.
      num_classes: |Y|.
      scale: b of the noise, in votes.
      num_neighbors: k.
      shared: whether similar queries share their votes, `SHARED_MARGIN`, or not, `MARGIN`.
    """
    gap = required_gap(scale, num_classes, 0.01) if scale > 0 else 1
    return int(
        np.clip(
            num_records * num_neighbors / ((SHARED_MARGIN if shared else MARGIN) * max(gap, 1)),
            num_classes,
            MOST_QUERIES,
        )
    )


def theorem_1_radius(
    epsilon: float, votes_per_record: int, num_records: int, num_classes: int, failure_prob: float
) -> float:
    """Bound the errors of randomized response on all cells of one query, as published (Theorem 1).

    sqrt(3·n·q·ln(|Y|/beta))/(1 - 2q) with q = 1/(e^(ε/2kr) + 1). The proof bounds one tail, around
    n·q. By exact tails of both sides the claim held in every case tried, with a factor of 2 to
    spare, where n·q >= 3·ln(|Y|/beta). Elsewhere it can fail: at n = 100, ε = 12 and 50 voters a
    cell errs by more with probability .0123 instead of .005. `bernstein_radius` is proved without a
    condition, and smaller at n = 60000 by a fifth to two fifths.

    Args:
      epsilon: ε of one message.
      votes_per_record: k·r.
      num_records: n.
      num_classes: |Y|.
      failure_prob: beta.

    Returns:
      Votes that all |Y| estimates are closer to their counts than, with probability at least 1 -
      beta.

    Raises:
      ValueError: where n·q < 3·ln(|Y|/beta); it names the least n.
    """
    half = epsilon / (2 * votes_per_record)
    q = math.exp(-half) / (1 + math.exp(-half))
    log_ratio = math.log(num_classes / failure_prob)
    if num_records * q < 3 * log_ratio:
        raise ValueError(
            f"Expected n >= {math.ceil(3 * log_ratio / q)} for Theorem 1 to hold at "
            f"epsilon={epsilon} and {votes_per_record} votes a "
            f"record, got {num_records}; use bernstein_radius, which holds for any n."
        )
    return math.sqrt(3 * num_records * q * log_ratio) / math.tanh(half / 2)


def theorem_2_radius_as_published(
    epsilon: float,
    votes_per_record: int,
    num_records: int,
    num_classes: int,
    failure_prob: float,
    num_buckets: float | None = None,
) -> float:
    """Return the radius published for Collision (Theorem 2), which is **too small** where many
    clients vote for a cell.

    It fails from ε = 1.5 on, with two votes a record from ε = 0.9.

    sqrt(2·n·ln(|Y|/beta)/l)/(p - q): one tail, with the constant of the lower one, and without the
    larger variance v1 of those who vote. At n = 60000 and beta/|Y| = .005, a cell that a share of
    the clients votes for fails with probability

        ε   k·r   none     a tenth  half     all
        1   1     .00014   .00017   .00035   .00074
        2   1     .00052   .0011    .0076    .0245
        4   1     .0010    .031     .232     .385
        1   4     .0008    .0013    .0050    .0139
        4   4     .0011    .076     .363     .512

    For comparison with the paper only; `bernstein_radius` holds everywhere.

    Args:
      epsilon: ε of one message.
      votes_per_record: k·r.
      num_records: n.
      num_classes: |Y|.
      failure_prob: beta.
      num_buckets: l; where it is not given, the published kr·e^ε + 2kr - 1, not rounded.

    Returns:
      Votes.
    """
    odds = math.exp(epsilon)
    buckets = votes_per_record * (odds + 2) - 1 if num_buckets is None else num_buckets
    advantage = odds / (votes_per_record * odds + buckets - votes_per_record) - 1 / buckets
    return math.sqrt(2 * num_records * math.log(num_classes / failure_prob) / buckets) / advantage


def bernstein_radius(
    p: float, q: float, num_voters: int, num_records: int, num_classes: int, failure_prob: float
) -> float:
    """Bound the error of a pure local protocol's estimate of one cell: what Theorems 1 and 2 are
    for, at any p, q and n.

    The estimate errs by a sum of n independent terms of mean 0, variance V = a·v1 + (n - a)·v0
    together, and size at most M = max(p, 1 - q)/(p - q). Bernstein: P(|error| >= η) <=
    2·exp(-η²/(2V + 2Mη/3)), which is beta/|Y| at the root η = ML/3 + sqrt((ML/3)² + 2VL), where L =
    ln(2|Y|/beta).

    Args:
      p: probability that a message supports a cell that its client votes for; see
        `rknn_jax.mechanisms.local`.
      q: the same for any other cell.
      num_voters: a, clients that vote for the cell.
      num_records: n.
      num_classes: |Y|.
      failure_prob: beta.

    Returns:
      Votes that the estimate is closer to its count than, with probability at least 1 - beta/|Y|;
      thus all cells of a query, each within its own radius, with probability at least 1 - beta.

    Raises:
      ValueError: unless 0 <= q < p <= 1 and 0 <= num_voters <= num_records.
    """
    if not 0 <= q < p <= 1:
        raise ValueError(f"Expected 0 <= q < p <= 1, got p={p}, q={q}.")
    if not 0 <= num_voters <= num_records:
        raise ValueError(
            f"Expected 0 <= num_voters <= num_records, got {num_voters} of {num_records}."
        )
    log_ratio = math.log(2 * num_classes / failure_prob)
    variance = (num_voters * p * (1 - p) + (num_records - num_voters) * q * (1 - q)) / (p - q) ** 2
    linear = max(p, 1 - q) / (p - q) * log_ratio / 3
    return linear + math.sqrt(linear**2 + 2 * variance * log_ratio)

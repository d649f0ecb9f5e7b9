"""Bucketized sparse vector summation (BSVS): private votes, summed per query and label.

A record with k queries and r labels adds 1 to k·r of the d = s·|Y| cells `query · |Y| + label`.
Votes stay sparse (`cells`, int32 `[num_records, k·r]`) and counts stay int32: float32 stops
counting at 2^24.

**Sensitivity.** Replacing one record changes at most 2kr cells by at most 1 each. Adding or
removing one changes at most kr. The reason is that a record's cells depend on that record and on
public data alone. Everything in `rknn_jax.mechanisms` stands on this.

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
"""Mark of a vote that is not cast: a missing neighbor or label. `sum_votes` drops it."""

MARGIN = 4
"""Average votes per query, in units of the required gap, if queries do not share votes.

The margin is above 1 because clusters differ in size and impure clusters have smaller gaps.
"""

SHARED_MARGIN = 1
"""Average votes per query, in units of the required gap, if similar queries share votes.

At epsilon 0.01, MNIST's pixels and HOG gain 18 and 14 points by 40 queries instead of 10.
"""

MOST_QUERIES = 200
"""Largest number of queries that is suggested.

More queries gained less than a point on MNIST's pixels, and lost as much on better representations.
The paper asks up to 500.
"""

LARGE_SCALE = 1000.0
"""Noise scale, in votes, above which several votes are counted as one.

Larger noise is scale free to 0.1%, and enumerating it vote by vote would only cost memory.
"""


def voting_labels(labels: Array, num_classes: Any) -> Any:
    """Replace each label outside [0, num_classes) by `NO_CELL`.

    A record with such a label casts no vote, and other records' votes stay the same.

    Args:
      labels: Integers of any shape and size, private.
      num_classes: Number of classes |Y|.

    Returns:
      int32, of the shape of the labels.
    """
    where = jnp.where if isinstance(labels, jax.Array) else np.where
    known = (labels >= 0) & (labels < num_classes)
    # Cast what is known alone: a cast of 2^32 is class 0.
    return where(known, where(known, labels, 0).astype(np.int32), np.int32(NO_CELL))


def cells(near: Array, labels: Array, num_classes: int) -> jax.Array:
    """Return the cells that every record votes for.

    Args:
      near: int32 `[n, k]`, queries of each record; negative if a record has fewer than k.
      labels: int32 `[n]` or, for several labels per record, `[n, r]`; negative if a record has
        fewer than r.
      num_classes: Number of classes |Y|. A label outside [0, |Y|) casts no vote.

    Returns:
      int32 `[n, k·r]`, ascending in each row. `NO_CELL` stands for a query or a label that is
      missing or repeated, because a record may add at most 1 to a cell.
    """
    known = jnp.asarray(voting_labels(labels, num_classes), jnp.int32)
    found: jax.Array = _cells(jnp.asarray(near, jnp.int32), known, num_classes)
    return found


@jax.jit
def _cells(near: jax.Array, labels: jax.Array, num_classes: Any) -> jax.Array:
    labels = labels[:, None] if labels.ndim == 1 else labels
    query = near[:, :, None]
    label = labels[:, None, :]
    # [n, k, r]: every query of a record with every label of it.
    cell = jnp.where((query >= 0) & (label >= 0), query * num_classes + label, NO_CELL)
    return once(cell.reshape(len(near), near.shape[1] * labels.shape[1]))


def once(cells: jax.Array) -> jax.Array:
    """Keep one of equal cells in each row, int32 `[..., k·r]`, ascending.

    `NO_CELL` replaces the repeats and comes first. Mechanisms are calibrated for votes of at most 1
    per cell, so every path whose cells may come from elsewhere calls this function.
    """
    return cells if cells.shape[-1] == 1 else _once(cells)


@jax.jit
def _once(cells: jax.Array) -> jax.Array:
    # Equal cells stand side by side once sorted. The second sort puts what was dropped in front, so
    # that rows are equal wherever their sets of cells are.
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
      num_cells: Number of cells d.

    Returns:
      int32 `[num_cells]`; cells outside [0, num_cells) are not counted.
    """
    flat = jnp.ravel(cells)
    return jax.ops.segment_sum(
        # Segment d collects the votes that are not cast, and `segment_sum` drops it.
        jnp.ones(flat.shape, jnp.int32),
        jnp.where(flat < 0, num_cells, flat),
        num_cells,
    )


@jax.jit
def gap(counts: Array) -> jax.Array:
    """Return each query's lead of the first label over the second.

    Args:
      counts: `[num_queries, num_classes]`.

    Returns:
      `[num_queries]`, in votes.
    """
    top = jax.lax.top_k(jnp.asarray(counts), 2)[0]
    return top[:, 0] - top[:, 1]


def error_radius(scale: float, num_classes: int, failure_prob: float) -> int:
    """Bound discrete Laplace noise on all cells of one query (Proposition 1).

    Args:
      scale: Scale b of the noise, in votes.
      num_classes: Number of classes |Y|.
      failure_prob: Failure probability beta.

    Returns:
      The least m such that all |Y| noises are below m in absolute value with probability at least 1
      - beta. The paper's real-valued b·ln(|Y|/beta) fails for integer noise: its failure
      probability is .050041 for beta = .05, |Y| = 2, b = 20.
    """
    alpha = math.exp(-1 / scale)
    return max(1, math.ceil(scale * math.log(2 * num_classes / (failure_prob * (1 + alpha)))))


def flip_prob(gap: float, scale: float, num_classes: int) -> float:
    """Return the probability that discrete Laplace noise changes a query's label, at worst.

    In the worst case for a given gap, every rival trails by exactly `gap`. A tie counts as a flip.
    Remark 1's sufficient condition, gap >= 2·error_radius, asks for about twice the gap that this
    probability needs.

    Args:
      gap: Lead of the true label, in votes.
      scale: Scale b of the noise, in votes.
      num_classes: Number of classes |Y|.
    """
    # P[flip] = 1 - sum over x of P[X = x] P[X_j < gap + x]^(|Y|-1), X and X_j discrete Laplace.
    coarse = max(1.0, scale / LARGE_SCALE)  # votes that are counted as one
    gap = gap / coarse
    scale = scale / coarse
    alpha = math.exp(-1 / scale)
    # exp(-40) of the mass lies farther out, below the rounding of float64.
    reach = math.ceil(40 * scale) + 1
    noise = np.arange(-reach, reach + 1)
    pmf = (1 - alpha) / (1 + alpha) * alpha ** np.abs(noise)
    # Rivals tie with the label at `gap + noise`, which counts as a flip.
    below = noise + math.ceil(gap) - 1  # a rival's noise must not exceed this to lose strictly
    cdf = np.where(
        below < 0,
        alpha ** (-np.minimum(below, 0).astype(float)) / (1 + alpha),
        1 - alpha ** (np.maximum(below, 0) + 1.0) / (1 + alpha),
    )
    return float(max(0.0, 1 - np.sum(pmf * cdf ** (num_classes - 1))))


def gaussian_flip_prob(gap: float, stddev: float, num_classes: int) -> float:
    """Return the probability that discrete Gaussian noise changes a query's label, at worst.

    The worst case is that of `flip_prob`. The noise is enumerated.

    Args:
      gap: Lead of the true label, in votes.
      stddev: Standard deviation of the noise, in votes.
      num_classes: Number of classes |Y|.
    """
    coarse = max(1.0, stddev / LARGE_SCALE)
    gap = gap / coarse
    stddev = stddev / coarse
    # 10 standard deviations leave 10^-23 of a Gaussian outside.
    reach = math.ceil(10 * stddev) + 1
    noise = np.arange(-reach, reach + 1)
    pmf = np.exp(-((noise / stddev) ** 2) / 2)
    pmf /= pmf.sum()
    # A rival's noise must not exceed this to lose strictly.
    below = np.clip(np.arange(len(noise)) + math.ceil(gap) - 1, -1, len(noise) - 1)
    cdf = np.where(below < 0, 0.0, np.cumsum(pmf)[below])
    return float(max(0.0, 1 - np.sum(pmf * cdf ** (num_classes - 1))))


def required_gap(scale: float, num_classes: int, failure_prob: float) -> int:
    """Return the least gap, in votes, whose `flip_prob` is at most `failure_prob`."""
    low = 0
    # Remark 1: twice the radius is always enough, and twice that is a safe upper end. The
    # probability falls as the gap grows, so halving finds the least gap.
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
    """Suggest the number of queries s.

    Each query gets, on average, a margin times the gap at which noise flips 1% of the labels. More
    queries follow the data more finely, but their answers are less certain. The result is never
    below the number of classes.

    Args:
      num_records: Number of private records n.
      num_classes: Number of classes |Y|.
      scale: Scale b of the noise, in votes.
      num_neighbors: Number of neighbors k.
      shared: Choice of margin: `SHARED_MARGIN` if similar queries share their votes, else `MARGIN`.
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

    The radius is sqrt(3·n·q·ln(|Y|/beta))/(1 - 2q) with q = 1/(e^(ε/2kr) + 1). The proof bounds one
    tail, around n·q. By exact tails of both sides, the claim held in every case tried with n·q >=
    3·ln(|Y|/beta), with a factor of 2 to spare. Elsewhere the claim can fail: at n = 100, ε = 12
    and 50 voters, a cell errs by more with probability .0123 instead of .005. `bernstein_radius` is
    proved without a condition, and is smaller at n = 60000 by a fifth to two fifths.

    Args:
      epsilon: Privacy loss ε of one message.
      votes_per_record: Votes of a record k·r.
      num_records: Number of private records n.
      num_classes: Number of classes |Y|.
      failure_prob: Failure probability beta.

    Returns:
      Radius in votes. All |Y| estimates are closer than that to their counts, with probability at
      least 1 - beta.

    Raises:
      ValueError: If n·q < 3·ln(|Y|/beta); the message names the least n.
    """
    # A replaced record moves 2kr bits, so each of them may tell ε/2kr.
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
    """Return the radius published for Collision (Theorem 2), **too small** for popular cells.

    It fails when many clients vote for a cell, from ε = 1.5 on, and with two votes per record from
    ε = 0.9 on.

    The radius is sqrt(2·n·ln(|Y|/beta)/l)/(p - q). It covers one tail, with the constant of the
    lower tail, and omits the larger variance v1 of the clients that vote for the cell. The table
    shows failure probabilities at n = 60000 and beta/|Y| = .005, by the share of the clients that
    vote for a cell:

        ε   k·r   none     a tenth  half     all
        1   1     .00014   .00017   .00035   .00074
        2   1     .00052   .0011    .0076    .0245
        4   1     .0010    .031     .232     .385
        1   4     .0008    .0013    .0050    .0139
        4   4     .0011    .076     .363     .512

    For comparison with the paper only; `bernstein_radius` holds everywhere.

    Args:
      epsilon: Privacy loss ε of one message.
      votes_per_record: Votes of a record k·r.
      num_records: Number of private records n.
      num_classes: Number of classes |Y|.
      failure_prob: Failure probability beta.
      num_buckets: Number of buckets l. Defaults to the published kr·e^ε + 2kr - 1, not rounded.

    Returns:
      Radius in votes.
    """
    # p = e^ε/(kr·e^ε + l - kr) and q = 1/l, as the paper has them.
    odds = math.exp(epsilon)
    buckets = votes_per_record * (odds + 2) - 1 if num_buckets is None else num_buckets
    advantage = odds / (votes_per_record * odds + buckets - votes_per_record) - 1 / buckets
    return math.sqrt(2 * num_records * math.log(num_classes / failure_prob) / buckets) / advantage


def bernstein_radius(
    p: float, q: float, num_voters: int, num_records: int, num_classes: int, failure_prob: float
) -> float:
    """Bound the error of a pure local protocol's estimate of one cell, at any p, q and n.

    Use it in place of Theorems 1 and 2. The estimate errs by a sum of n independent terms of mean
    0. Their total variance is V = a·v1 + (n - a)·v0. Each is at most M = max(p, 1 - q)/(p - q) in
    size. Bernstein: P(|error| >= η) <= 2·exp(-η²/(2V + 2Mη/3)). This bound is beta/|Y| at the root
    η = ML/3 + sqrt((ML/3)² + 2VL), with L = ln(2|Y|/beta).

    Args:
      p: Probability that a message supports a cell that its client votes for, as in
        `rknn_jax.mechanisms.local`.
      q: Probability that a message supports any other cell.
      num_voters: Number a of clients that vote for the cell.
      num_records: Number of private records n.
      num_classes: Number of classes |Y|.
      failure_prob: Failure probability beta.

    Returns:
      Radius in votes. The estimate is closer than that to its count with probability at least 1 -
      beta/|Y|. So all cells of a query are within their own radii with probability at least 1 -
      beta.

    Raises:
      ValueError: Unless 0 <= q < p <= 1 and 0 <= num_voters <= num_records.
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

"""Balanced connections: prices spread private records evenly over the queries.

Plain reverse k-NN gives some queries many votes and others few. Appendix C of the paper balances
them by choosing all connections together. It keeps the plain rule's sensitivity 2kr, because every
record still connects to at most k queries. That does not follow: k bounds a record's own
connections, but not the connections of others that the record changes. Take a chain of records,
each equally similar to two queries. Replacing the first record shifts all the others by one, and 2s
votes move with k = 1 (`tests/test_connections.py`). So there are two forms:

| form                       | a record connects to            | votes that one record moves |
|----------------------------|---------------------------------|-----------------------------|
| `priced_nearest`           | the k least of distance + price | 2kr, as without prices      |
| `max_min`, `harmonic_mean` | what is best for all records    | grows with n; not released  |

Prices that fit public records cost no privacy (`public_prices`). Prices that fit the private
records cost a histogram of their connections (`noisy_degrees`, then `histogram_prices`). Given the
histogram, each record again chooses for itself, so the two guarantees compose. A multiple of the
prices balances more or less: 0 is plain reverse k-NN. Balance costs purity, because records connect
to queries that they resemble less. That did not pay on MNIST (`benchmarks/results/balance.json`).
If queries share votes, their `size` should count public records as they are connected under the
prices.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Appendix C.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.neighbors import distances, nearest
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.types import Array

STEPS = 400  # number of updates of the prices
# Unit: mean distance to the first query that a record does not connect to.
FIRST_STEP = 0.1
# Factors of a price's step if its direction stays, and if it turns.
GROW = 1.2
SHRINK = 0.5

LARGEST_ENUMERATION = 500_000  # numbers held in memory to try all joint connections one by one
MAX_SWEEPS = 100  # bound on the local search, which ends by itself long before
# Least total before it is raised to a negative power, in units of the greatest similarity. A query
# without records has a total of 0.
FLOOR = 1e-9


def priced_nearest(
    points: Array, references: Array, prices: Array, num_neighbors: int
) -> tuple[jax.Array, jax.Array]:
    """Connect every point to the k references of least squared distance plus price.

    Without prices this is `neighbors.nearest`. Row i depends on point i, the references and the
    prices alone. A price is one more coordinate: with p >= 0, |x - q|² + p is the squared distance
    of (x, 0) and (q, √p). The memory needed is one copy of the points.

    Args:
      points: float32 `[n, f]`.
      references: float32 `[s, f]`. For cosine distances pass unit vectors: their squared distance
        is twice the cosine distance.
      prices: float32 `[s]`, finite, of either sign. Only their differences matter. They must never
        come from unreleased private data.
      num_neighbors: Number of references k of each point, between 1 and s.

    Returns:
      `(index, cost)`, int32 and float32 `[n, k]`, cheapest first; ties go to the lowest index.

    Raises:
      ValueError: If prices are not finite or of another shape, and for the errors of
        `neighbors.nearest`.
    """
    points, references, prices = (
        jnp.asarray(array, jnp.float32) for array in (points, references, prices)
    )
    if prices.shape != (len(references),) or not np.isfinite(prices).all():
        raise ValueError(
            f"Expected one price for each of {len(references)} references, all finite, got "
            f"{prices} of shape {prices.shape}."
        )
    found: tuple[jax.Array, jax.Array] = _priced_nearest(points, references, prices, num_neighbors)
    return found


def public_prices(features: Array, queries: Array, num_neighbors: int = 1) -> jax.Array:
    """Find prices under which public records connect evenly to the queries.

    This costs no privacy, because it reads no private data.

    Args:
      features: float32 `[m, f]`, features of public records.
      queries: float32 `[s, f]`.
      num_neighbors: Number of queries k of each record. Defaults to 1.

    Returns:
      float32 `[s]`, the lowest 0, for `priced_nearest` of private records.
    """
    prices: jax.Array = _even_prices(features, queries, np.ones(len(features)), num_neighbors)
    return prices


@dataclass(frozen=True)
class NoisyDegrees:
    """Released numbers of private records that are connected to each query.

    Attributes:
      counts: float32 `[s]`, noisy counts.
      stddev: Standard deviation of the noise of each count, in records.
      guarantee: Guarantee of the counts.
    """

    counts: np.ndarray
    stddev: float
    guarantee: Guarantee


def noisy_degrees(
    key: jax.Array,
    near: Array,
    num_queries: int,
    epsilon: float,
    *,
    relation: Relation = "replace-one",
) -> NoisyDegrees:
    """Count the private records of each query, with discrete Laplace noise, in simulation.

    Guarantee: a record adds 1 to at most k degrees. So replacing one changes them by at most 2k in
    all, adding one by at most k, and the degrees are epsilon-DP. Later labeling costs extra: pass
    both guarantees to `accounting.compose`. A release takes the same mechanism and cells through
    `question.charge_and_draw`.

    Args:
      key: Random key of the noise, which is consumed.
      near: int32 `[n, k]`, private, from `neighbors.nearest`; negative if a record has fewer than
        k.
      num_queries: Number of queries s.
      epsilon: Privacy budget of the degrees alone.
      relation: Neighboring relation of the data sets. Defaults to "replace-one".
    """
    cells = bsvs.cells(near, jnp.zeros(np.shape(near)[:1], jnp.int32), num_classes=1)
    mechanism = DiscreteLaplace(
        epsilon, num_queries, num_classes=1, num_neighbors=cells.shape[1], relation=relation
    )
    counts = np.asarray(estimate_counts(mechanism, key, cells))[:, 0]
    return NoisyDegrees(
        counts, float(mechanism.stddev(counts, len(cells))[0]), mechanism.guarantee(len(cells))
    )


def histogram_prices(
    degrees: NoisyDegrees, features: Array, queries: Array, num_neighbors: int = 1
) -> jax.Array:
    """Find prices for private records, from their noisy degrees and public data alone.

    This is post-processing. Public records stand in for the private ones. Each is weighted such
    that the weights of a query's public records add up to its noisy degree. Before that,
    positive-part James-Stein shrinkage removes the part of the degrees' deviation from the public
    shares that noise explains. If noise explains everything, these are the public prices.

    Args:
      degrees: Noisy degrees of connections without prices, with the same queries and k.
      features: float32 `[m, f]`, features of public records.
      queries: float32 `[s, f]`.
      num_neighbors: Number of queries k of each record. Defaults to 1.

    Returns:
      float32 `[s]`, the lowest 0, for `priced_nearest` of private records.
    """
    near = np.asarray(nearest(features, queries, num_neighbors))
    size = np.bincount(near.ravel(), minlength=len(queries))
    expected = max(float(degrees.counts.sum()), 1.0) * size / size.sum()
    excess = degrees.counts - expected
    believed = max(0.0, 1 - degrees.stddev**2 / max(float(np.mean(excess**2)), 1e-12))
    counts = np.maximum(expected + believed * excess, 0)
    weight = np.mean((counts / np.maximum(size, 1))[near], axis=1)
    prices: jax.Array = _even_prices(features, queries, weight, num_neighbors)
    return prices


@dataclass(frozen=True, eq=False)
class JointConnections:
    """Connections chosen over all records together, for analysis of non-private data.

    This is not an array, so that nobody turns it into votes.

    Attributes:
      near: int32 `[n, k]`, queries of each record, ascending. This is a plain array, and no release
        may depend on it.
      totals: float64 `[s]`, summed similarity of each query's records.
      score: Score that was maximized.
      exact: True if no other connections score higher, False for the end of a local search.
    """

    near: np.ndarray
    totals: np.ndarray
    score: float
    exact: bool

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise TypeError(
            "Joint connections cannot be made into private votes: they are chosen over all "
            "records together, so replacing one record may "
            "re-connect every other one, and the votes that move grow with n (2s along a chain "
            "with k = 1), not with k; connect each "
            "record by priced_nearest, with public_prices or histogram_prices, where one record "
            "moves at most 2k votes."
        )


def max_min(similarity: Array, num_neighbors: int = 1) -> JointConnections:
    """Connect records such that the query of least summed similarity has as much as possible.

    Ties go to the greatest sum over all queries.

    Guarantee: none, as the head of this module explains.

    Args:
      similarity: float `[n, s]`, non-negative.
      num_neighbors: Number of queries k that each record connects to. Defaults to 1.

    Raises:
      ValueError: If similarities are negative, not finite or not of two dimensions, or if k is
        outside [1, s].
    """
    return _jointly(similarity, num_neighbors, _least, powers=(1.0, 4.0, 16.0))


def harmonic_mean(similarity: Array, num_neighbors: int = 1) -> JointConnections:
    """Connect records such that the harmonic mean over queries of summed similarity is greatest.

    Arguments, errors and the missing guarantee are those of `max_min`.
    """
    return _jointly(similarity, num_neighbors, _harmonic, powers=(1.0,))


@functools.partial(jax.jit, static_argnames="num_neighbors")
def _priced_nearest(
    points: jax.Array, references: jax.Array, prices: jax.Array, num_neighbors: int
) -> tuple[jax.Array, jax.Array]:
    lowest = jnp.min(prices)
    priced = jnp.concatenate([references, jnp.sqrt(prices - lowest)[:, None]], axis=1)
    points = jnp.pad(points, ((0, 0), (0, 1)))
    index = nearest(points, priced, num_neighbors)
    return index, distances(points, priced, index) + lowest


@functools.partial(jax.jit, static_argnames="num_neighbors")
def _even_prices(features: Array, queries: Array, weight: Array, num_neighbors: int) -> jax.Array:
    """Find the most even prices by raising those of queries with more than their share of weight.

    The prices of the other queries are lowered. The prices are the dual variables of the transport
    of m records, with weights `[m]`, to s queries of equal capacity. Degree minus capacity is the
    supergradient of the dual. Distances span orders of magnitude if clusters are tight. So each
    price has a step of its own, which follows from the signs alone (Riedmiller & Braun, "RPROP",
    1993).
    """
    features, queries, weight = (
        jnp.asarray(array, jnp.float32) for array in (features, queries, weight)
    )
    num_queries = len(queries)
    capacity = num_neighbors * jnp.sum(weight) / num_queries
    next_one = nearest(features, queries, min(num_neighbors + 1, num_queries))[:, -1:]
    unit = jnp.mean(distances(features, queries, next_one))
    free = jnp.zeros(num_queries, jnp.float32)

    def step(_: int, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        prices, size, direction, best, least = state
        near, _ = _priced_nearest(features, queries, prices, num_neighbors)
        excess = (
            jax.ops.segment_sum(jnp.repeat(weight, num_neighbors), near.ravel(), num_queries)
            / capacity
            - 1
        )
        uneven = jnp.sum(excess**2)
        best = jnp.where(uneven < least, prices, best)
        least = jnp.minimum(uneven, least)
        turned = jnp.sign(excess) * direction
        size = size * jnp.where(turned > 0, GROW, jnp.where(turned < 0, SHRINK, 1.0))
        return prices + size * jnp.sign(excess), size, jnp.sign(excess), best, least

    best = jax.lax.fori_loop(
        0, STEPS, step, (free, free + FIRST_STEP * unit, free, free, jnp.float32(jnp.inf))
    )[3]
    prices: jax.Array = best - jnp.min(best)
    return prices


def _least(totals: np.ndarray) -> np.ndarray:
    least: np.ndarray = totals.min(axis=-1)
    return least


def _harmonic(totals: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        mean: np.ndarray = totals.shape[-1] / np.sum(1 / totals, axis=-1)
        return mean


def _jointly(
    similarity: Array,
    num_neighbors: int,
    score: Callable[[np.ndarray], np.ndarray],
    powers: Sequence[float],
) -> JointConnections:
    similarity = np.asarray(similarity, np.float64)
    if (
        similarity.ndim != 2
        or not similarity.size
        or not np.isfinite(similarity).all()
        or similarity.min() < 0
    ):
        raise ValueError(
            "Expected similarities [n, s] that are finite and at least 0, got shape "
            f"{similarity.shape}; turn distances into such first."
        )
    num_records, num_queries = similarity.shape
    if not 1 <= num_neighbors <= num_queries:
        raise ValueError(
            f"Expected 1 <= num_neighbors <= {num_queries} queries, got "
            f"num_neighbors={num_neighbors}."
        )
    exact = num_records * math.log(math.comb(num_queries, num_neighbors)) + math.log(
        num_queries
    ) <= math.log(LARGEST_ENUMERATION)
    scaled = similarity / (similarity.max() or 1)
    near = (
        _best_of_all(scaled, num_neighbors, score)
        if exact
        else _local_search(scaled, num_neighbors, powers)
    )
    totals = np.bincount(
        near.ravel(), np.take_along_axis(similarity, near, axis=1).ravel(), num_queries
    )
    return JointConnections(near.astype(np.int32), totals, float(score(totals)), exact)


def _best_of_all(
    similarity: np.ndarray, num_neighbors: int, score: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Try all choices of k queries for each record, and return the first of greatest score.

    Among equal scores, the greatest sum wins.
    """
    num_records, num_queries = similarity.shape
    choices = np.array(list(itertools.combinations(range(num_queries), num_neighbors)))
    member = np.zeros((len(choices), num_queries))
    np.put_along_axis(member, choices, 1, axis=1)
    totals = np.zeros((1, num_queries))
    for row in similarity:
        totals = (totals[:, None] + member[None] * row).reshape(-1, num_queries)
    # Round, because sums of equal terms in another order differ in their last digits. That must not
    # break a tie.
    winner = np.lexsort((-np.round(totals.sum(axis=1), 12), -np.round(score(totals), 12)))[0]
    best: np.ndarray = choices[
        winner // len(choices) ** np.arange(num_records)[::-1] % len(choices)
    ]
    return best


def _local_search(
    similarity: np.ndarray, num_neighbors: int, powers: Sequence[float]
) -> np.ndarray:
    """Give each record in turn its best queries while all others stay, until no record moves.

    The search is repeated for the next power. The power mean of the totals at -power is the
    harmonic mean at 1, and tends to the minimum. It is greatest if the sum of totals^-power is
    least. That is a sum over queries, so a record's best k queries are the k of greatest gain. The
    minimum alone would show a gain at the least query only, so the powers lead up to it.
    """
    near = np.argsort(-similarity, axis=1, kind="stable")[:, :num_neighbors]
    totals = np.bincount(
        near.ravel(), np.take_along_axis(similarity, near, axis=1).ravel(), similarity.shape[1]
    )
    for power in powers:
        for _ in range(MAX_SWEEPS):
            before = near.copy()
            for record, row in enumerate(similarity):
                totals[near[record]] -= row[near[record]]
                heard = np.maximum(totals, FLOOR)
                gain = heard**-power - (heard + row) ** -power
                near[record] = np.lexsort((-row, -gain))[:num_neighbors]
                totals[near[record]] += row[near[record]]
            if np.array_equal(before, near):
                break
    return np.sort(near, axis=1)

"""K-means queries: clusters of public features.

The seeding is k-means++, followed by Lloyd's iterations (`lloyd`). It takes as many records as
`LARGE` allows. More are seeded in float32 on a sample, which takes a twentieth of the time. Every
public record takes the label of its cluster's query. The query itself is the cluster's center or
its medoid. The medoid is the public record nearest to the center and can be shown to a data owner.

Reference: Arthur & Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import lloyd
from rknn_jax._internal import compilation, progress
from rknn_jax.neighbors import nearest
from rknn_jax.types import Array, Queries

LARGE = 2**31
"""Most multiplications of records, features and queries for a seeding of all records."""

ROWS_A_QUERY = 100
SPLITS = 3
"""Rows a query that tell how many queries other rows reach, and times that they are split."""

MOST_OF = 0.9
"""Part of the rows whose queries are counted. A few rows far from all others are left out."""

ROUNDING = 1e-6
"""Difference of two distances to a center, relative to its norm, that rounding may have made."""

ROWS_SEEDED = 32
ROWS_TRAINED = 256
"""Records for each query that are sampled for the seeding, and for Lloyd's iterations.

The second number is that of FAISS.
"""


@dataclass(frozen=True)
class Config:
    """Settings of k-means.

    Attributes:
      query: Point that private records are compared with. `centre` is the cluster center, `medoid`
        the public record nearest to the center. Defaults to `centre`.
      num_starts: Number of seedings; the one of least inertia is kept. Defaults to 5.
      max_iterations: Maximum number of Lloyd's iterations per start. Defaults to 100.
    """

    query: Literal["centre", "medoid"] = "centre"
    num_starts: int = 5
    max_iterations: int = 100

    def __post_init__(self) -> None:
        if self.query not in ("centre", "medoid"):
            raise ValueError(
                f"Expected query to be 'centre' or 'medoid', got query={self.query!r}."
            )
        if self.num_starts < 1 or self.max_iterations < 1:
            raise ValueError(
                f"Expected num_starts and max_iterations >= 1, got {self.num_starts} and "
                f"{self.max_iterations}."
            )


def select(key: jax.Array, features: Array, num_queries: int, config: Config = Config()) -> Queries:
    """Cluster public features into queries.

    Args:
      key: Random key, consumed by the call.
      features: Features of public records, float32 `[m, f]`.
      num_queries: Number of queries s, at most m.
      config: Settings of k-means.

    Returns:
      Queries whose clusters cover every public record.

    Raises:
      ValueError: For num_queries outside [1, m].
    """
    features = np.asarray(features, np.float32)
    if not 1 <= num_queries <= len(features):
        raise ValueError(
            "Expected 1 <= num_queries <= number of public records, got "
            f"num_queries={num_queries} with {len(features)} public records; "
            "ask fewer queries or bring more public records."
        )
    seed = int(_seed(key))
    with progress.phase(f"clustering {len(features):,} public rows into {num_queries:,} queries"):
        if features.size * num_queries <= LARGE:
            found = _fit(features, num_queries, seed, config)
            index = _medoids(found.centers, features)
        else:
            found = _fit_sample(features, num_queries, seed, config)
            if len(np.unique(found.labels)) < num_queries:  # a sample may miss rare rows
                found = _fit(features, num_queries, seed, config)
            index = np.asarray(nearest(found.centers, features, 1))[:, 0]
    centers = jnp.asarray(found.centers, jnp.float32)
    cluster = found.labels
    index = index.astype(np.int32)
    chosen = jnp.asarray(features[index], jnp.float32) if config.query == "medoid" else centers
    return Queries(chosen, index, cluster, np.bincount(cluster, minlength=num_queries))


def reached(features: Array, num_queries: int) -> float:
    """Return which share of the queries other rows like these would reach, by public rows alone.

    In many dimensions, clusters fit the rows that they were made of. Other rows, as private records
    are, mostly lie nearest to the centers of the few largest ones. So half of the rows are
    clustered into half of the queries, and the others fall to them. The fewest queries that hold
    nine tenths of the latter are compared with the fewest that hold as many of the former: about
    1 where rows are many enough, however uneven the clusters are, and less where they are not.

    Args:
      features: Features of public records, float32 `[m, f]`, as their metric sees them.
      num_queries: Number of queries s.
    """
    found = np.zeros((SPLITS, 2))
    for seed in range(SPLITS):  # fixed seeds are safe: the rows are public
        order = np.random.default_rng(seed).permutation(len(features))
        chosen = np.asarray(features, np.float32)[order[: ROWS_A_QUERY * num_queries]]
        fitted, others = np.array_split(chosen, 2)
        own = _fit(fitted, max(1, num_queries // 2), seed, Config(num_starts=1))
        found[seed] = _fewest(lloyd.assigned(others, own.centers)), _fewest(own.labels)
    others_use, own_use = found.mean(axis=0)
    return float(others_use / own_use)


def _fewest(labels: np.ndarray) -> int:
    """Return the fewest clusters that hold `MOST_OF` the rows."""
    held = np.cumsum(-np.sort(-np.bincount(labels)))
    return int(np.searchsorted(held, MOST_OF * len(labels))) + 1


def _medoids(centers: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return the row nearest to each center, int32 `[s]`, ties by the lowest.

    Distances that differ by rounding alone are ties. The two rows of a small cluster are equally
    far from their mean, and which one a processor rounds down must not matter.
    """
    near = np.asarray(nearest(centers, features, min(2, len(features))))
    apart = np.linalg.norm(centers[:, None].astype(np.float64) - features[near], axis=2)
    slack = ROUNDING * (apart[:, 0] + np.linalg.norm(centers, axis=1))
    tied = apart[:, -1] <= apart[:, 0] + slack
    return np.where(tied, near.min(axis=1), near[:, 0])


@functools.partial(jax.jit, compiler_options=compilation.brief())
def _seed(key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (), 0, np.iinfo(np.int32).max)


def _fit(features: np.ndarray, num_queries: int, seed: int, config: Config) -> lloyd.Clusters:
    return lloyd.fit(
        features,
        num_queries,
        seed,
        num_starts=config.num_starts,
        max_iterations=config.max_iterations,
    )


def _fit_sample(
    features: np.ndarray, num_queries: int, seed: int, config: Config
) -> lloyd.Clusters:
    """Train on a sample from the best seeds of a smaller one, then do one iteration over all."""
    order = np.random.default_rng(seed).permutation(len(features))
    seeded = jnp.asarray(features[order[: ROWS_SEEDED * num_queries]], jnp.float32)
    trained = features
    if len(features) > ROWS_TRAINED * num_queries:
        trained = features[order[: ROWS_TRAINED * num_queries]]
    trials = 2 + int(np.log(num_queries))
    starts = []
    with progress.phase(f"choosing {num_queries:,} seeds", config.num_starts, "starts") as done:
        for start in jax.random.split(jax.random.key(seed), config.num_starts):
            starts.append(jax.block_until_ready(plus_plus(start, seeded, num_queries, trials)))
            done.advance()
    seeds, _ = min(starts, key=lambda start: float(start[1]))
    with progress.phase(f"clustering a sample of {len(trained):,} public rows"):
        found = lloyd.fit_from(trained, np.asarray(seeded[seeds]), config.max_iterations)
    if trained is features:
        return found
    with progress.phase(f"assigning {len(features):,} public rows to {num_queries:,} queries"):
        return lloyd.fit_from(features, found.centers, 1)


@functools.partial(jax.jit, static_argnames=("count", "trials"))
def plus_plus(
    key: jax.Array, points: jax.Array, count: int, trials: int
) -> tuple[jax.Array, jax.Array]:
    """Choose seeds by greedy k-means++.

    Each seed is the best of a few points, which are drawn in proportion to the squared distance to
    the nearest seed so far.

    Args:
      key: Random key, consumed by the call.
      points: float32 `[m, f]`.
      count: Number of seeds s.
      trials: Number of points drawn for each seed.

    Returns:
      `(seeds, inertia)`: numbers of points, int32 `[s]`, and the sum of the points' squared
      distances to their nearest seeds.
    """
    sq_norms = jnp.sum(points**2, axis=1)

    def to(seeds: jax.Array) -> jax.Array:
        products = jnp.matmul(points, seeds.T, precision=jax.lax.Precision.HIGHEST)
        apart = sq_norms[:, None] - 2 * products + jnp.sum(seeds**2, axis=1)[None]
        return jnp.maximum(apart, 0)

    def step(closest: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.cumsum(closest)
        drawn = jnp.searchsorted(total, total[-1] * jax.random.uniform(key, (trials,)))
        drawn = jnp.minimum(drawn, len(points) - 1)
        left = jnp.minimum(closest[:, None], to(points[drawn]))
        best = jnp.argmin(jnp.sum(left, axis=0))
        return left[:, best], drawn[best]

    keys = jax.random.split(key, count)
    first = jax.random.randint(keys[0], (), 0, len(points))
    closest = to(points[first][None])[:, 0]
    closest, rest = jax.lax.scan(step, closest, keys[1:])
    return jnp.concatenate([first[None], rest]).astype(jnp.int32), jnp.sum(closest)


EXAMPLES = (select, functools.partial(select, config=Config(query="medoid", num_starts=1)))

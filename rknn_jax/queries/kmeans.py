"""K-means queries: clusters of public features, by scikit-learn.

The seeding is k-means++, followed by Lloyd's iterations. Scikit-learn seeds as many records as
`LARGE` allows. More are seeded in float32 on a sample, which takes a twentieth of the time. Every
public record takes the label of its cluster's query. The query itself is the cluster's center or
its medoid. The medoid is the public record nearest to the center and can be shown to a data owner.

Reference: Arthur & Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007.
"""

import functools
import logging
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from rknn_jax.neighbors import nearest
from rknn_jax.types import Array, Queries

LARGE = 2**31
"""Most multiplications of records, features and queries for scikit-learn's seeding."""

ROWS_SEEDED = 32
ROWS_TRAINED = 256
"""Records for each query that are sampled for the seeding, and for Lloyd's iterations.

The second number is that of FAISS.
"""

_log = logging.getLogger(__name__)


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
    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    fit = _fit if features.size * num_queries <= LARGE else _fit_sample
    centres, cluster = fit(features, num_queries, seed, config)
    index = np.asarray(nearest(centres, features, 1)[0])[:, 0]
    chosen = jnp.asarray(features[index]) if config.query == "medoid" else centres
    return Queries(chosen, index, cluster, np.bincount(cluster, minlength=num_queries))


def _fit(
    features: np.ndarray, num_queries: int, seed: int, config: Config
) -> tuple[jax.Array, np.ndarray]:
    """Return the centers `[s, f]` and the cluster of each record, int32 `[m]`."""
    from sklearn.cluster import KMeans  # imported late, because the import takes over a second

    model = KMeans(
        num_queries, n_init=config.num_starts, max_iter=config.max_iterations, random_state=seed
    ).fit(features)
    return jnp.asarray(model.cluster_centers_, jnp.float32), model.labels_.astype(np.int32)


def _fit_sample(
    features: np.ndarray, num_queries: int, seed: int, config: Config
) -> tuple[jax.Array, np.ndarray]:
    """Return what `_fit` does, by centers of a sample and one of Lloyd's iterations over all.

    The sample is trained from the seeds of least inertia.
    """
    from sklearn.cluster import KMeans

    order = np.random.default_rng(seed).permutation(len(features))[: ROWS_TRAINED * num_queries]
    sample = features[order]
    _log.info(
        "clustering %s of %s public rows into %s queries",
        f"{len(sample):,}",
        f"{len(features):,}",
        f"{num_queries:,}",
    )
    seeded = jnp.asarray(sample[: ROWS_SEEDED * num_queries])
    keys = jax.random.split(jax.random.key(seed), config.num_starts)
    trials = 2 + int(np.log(num_queries))  # as scikit-learn
    starts = [plus_plus(start, seeded, num_queries, trials) for start in keys]
    seeds, _ = min(starts, key=lambda start: float(start[1]))
    best = KMeans(
        num_queries,
        init=np.asarray(seeded[seeds]),
        n_init=1,
        max_iter=config.max_iterations,
    ).fit(sample)
    centres = np.asarray(best.cluster_centers_, np.float32)
    cluster = np.asarray(nearest(features, centres, 1)[0])[:, 0]
    if len(sample) < len(features):
        sums = scipy.sparse.csr_array(
            (np.ones(len(cluster), np.float32), cluster, np.arange(len(cluster) + 1)),
            shape=(len(cluster), num_queries),
        )
        sizes = np.bincount(cluster, minlength=num_queries)[:, None]
        centres = np.where(sizes > 0, (sums.T @ features) / np.maximum(sizes, 1), centres)
        centres = centres.astype(np.float32)
        cluster = np.asarray(nearest(features, centres, 1)[0])[:, 0]
    return jnp.asarray(centres), cluster.astype(np.int32)


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

"""K-means queries: clusters of public features, by scikit-learn.

The seeding is k-means++, followed by Lloyd's iterations. Every public record takes the label of its
cluster's query. The query itself is the cluster's center or its medoid. The medoid is the public
record nearest to the center and can be shown to a data owner.

Reference: Arthur & Vassilvitskii, "k-means++: The Advantages of Careful Seeding", 2007.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.neighbors import nearest
from rknn_jax.types import Array, Queries


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
    from sklearn.cluster import KMeans  # imported late, because the import takes over a second

    seed = int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
    model = KMeans(
        num_queries, n_init=config.num_starts, max_iter=config.max_iterations, random_state=seed
    ).fit(features)
    centres = jnp.asarray(model.cluster_centers_, jnp.float32)
    index = np.asarray(nearest(centres, features, 1)[0])[:, 0]
    chosen = jnp.asarray(features[index]) if config.query == "medoid" else centres
    cluster = model.labels_.astype(np.int32)
    return Queries(chosen, index, cluster, np.bincount(cluster, minlength=num_queries))


EXAMPLES = (select, functools.partial(select, config=Config(query="medoid", num_starts=1)))

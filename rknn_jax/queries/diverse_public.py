"""DiversePublic: queries that are uncertain for a model and differ from each other.

The selector sees public records only. The `num_queries + candidates` most uncertain public records
are projected on the principal components of all public features and clustered. The center of the
projection is the mean of all public features. Each cluster gives the `per_cluster` records nearest
to its center. If clusters are smaller, the remaining queries are drawn from the other uncertain
records.

Only the model has seen private records, so the model's guarantee is the whole privacy cost. Labels
are bought from an oracle, and private records have no vote.

Published code centers by the mean of the uncertain records and projects other records by theirs.
This code uses one center.

Reference: Zhao, Papernot, Singh, Polyzotis & Odena, "Improving Differentially Private Models with
Active Learning", 2019.
"""

from dataclasses import dataclass, field
from typing import get_args

import jax
import numpy as np

from rknn_jax.queries import _dp_pca, kmeans, uncertainty
from rknn_jax.types import Array, Queries


@dataclass(frozen=True)
class Config:
    """Settings of DiversePublic.

    Attributes:
      candidates: Uncertain records in addition to the queries. Defaults to 1000.
      components: Number of principal components for the clustering. Defaults to 16.
      per_cluster: Queries per cluster; there are `num_queries // per_cluster` clusters. Defaults to
        10.
      measure: Measure of uncertainty, `entropy` or `difference`. Defaults to `entropy`.
      clustering: Settings of k-means. Defaults to one start.
    """

    candidates: int = 1000
    components: int = 16
    per_cluster: int = 10
    measure: uncertainty.Measure = "entropy"
    clustering: kmeans.Config = field(default_factory=lambda: kmeans.Config(num_starts=1))

    def __post_init__(self) -> None:
        if self.candidates < 0:
            raise ValueError(
                f"Expected candidates >= 0, got candidates={self.candidates}; 0 asks about the "
                "most uncertain."
            )
        for name in ("components", "per_cluster"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if self.measure not in get_args(uncertainty.Measure):
            raise ValueError(
                f"Expected measure to be one of {', '.join(get_args(uncertainty.Measure))}, got "
                f"measure={self.measure!r}."
            )


def select(
    key: jax.Array,
    features: Array,
    probabilities: Array,
    num_queries: int,
    config: Config = Config(),
) -> Queries:
    """Choose public records that are uncertain and diverse.

    Args:
      key: Random key, consumed by the call.
      features: The model's features of public records, `[m, f]`.
      probabilities: The model's predictions, `[m, num_classes]`.
      num_queries: Number of queries s; s + `candidates` is at most m.
      config: Settings of DiversePublic.

    Returns:
      Queries that each label only their own record. Those of the clusters come first, cluster by
      cluster, then the drawn ones.

    Raises:
      ValueError: For too few public records, fewer queries than `per_cluster`, or fewer features
        than `components`.
    """
    features = np.asarray(features, np.float32)
    uncertain = uncertainty.candidates(
        features, probabilities, num_queries, extra=config.candidates, measure=config.measure
    )
    if num_queries < config.per_cluster:
        raise ValueError(
            f"Expected num_queries >= per_cluster, got num_queries={num_queries} and "
            f"per_cluster={config.per_cluster}; "
            "ask about more or take fewer of a cluster."
        )
    cluster_key, fill_key = jax.random.split(key)
    points = projected(features, config.components)[uncertain]
    found = kmeans.select(cluster_key, points, num_queries // config.per_cluster, config.clustering)
    near = nearest_of_clusters(
        points, found.cluster, np.asarray(found.features), config.per_cluster
    )
    others = np.setdiff1d(np.arange(len(points)), near)
    drawn = others[np.asarray(jax.random.permutation(fill_key, len(others)))][
        : num_queries - len(near)
    ]
    return Queries.alone(features, uncertain[np.concatenate([near, drawn])])


def projected(features: Array, num_components: int) -> np.ndarray:
    """Project public features on their own principal components, in float64.

    Returns:
      Float64 `[m, num_components]`.
    """
    features = np.asarray(features, np.float64)
    if num_components > features.shape[1]:
        raise ValueError(
            f"Expected components <= {features.shape[1]}, the number of features, got "
            f"components={num_components}; take fewer components."
        )
    centered = features - features.mean(axis=0)
    found: np.ndarray = centered @ _dp_pca.leading(centered.T @ centered, num_components).T
    return found


def nearest_of_clusters(
    points: np.ndarray, cluster: np.ndarray, centers: np.ndarray, count: int
) -> np.ndarray:
    """Return the `count` points of each cluster that are nearest to its center.

    A smaller cluster gives all of its points. The result goes cluster by cluster.
    """
    distance = np.square(points - centers[cluster]).sum(axis=1)
    order = np.lexsort((distance, cluster))
    # Position of the first point of the same cluster.
    first = np.searchsorted(cluster[order], cluster[order])
    return order[np.arange(len(order)) - first < count]


def _example(key: jax.Array, features: Array, num_queries: int) -> Queries:
    scores = np.abs(np.asarray(features)[:, :3]) + 0.1  # any prediction will do
    config = Config(candidates=20, components=3, per_cluster=2)
    return select(
        key,
        features,
        scores / scores.sum(axis=1, keepdims=True),
        num_queries=num_queries,
        config=config,
    )


EXAMPLES = (_example,)

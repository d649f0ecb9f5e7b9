"""DiversePublic: queries that a model is unsure of and that differ from each other.

It looks at public records alone.

The `num_queries + candidates` most uncertain public records are projected on the principal
components of all public features, centred by the mean of these, and clustered. Each cluster gives
the `per_cluster` records nearest its centre; where clusters are smaller than that, the rest is
drawn from the other uncertain records.

Only the model has seen private records, so its guarantee is all that there is to pay. Labels are
bought from somebody who knows them, and private records have no vote.

Published code centres by the mean of the uncertain records and projects others by theirs; here
there is one centre.

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
    """Which records are asked about.

    Attributes:
      candidates: uncertain records beside those that will be asked about.
      components: principal components that they are clustered in.
      per_cluster: records of a cluster; there are `num_queries // per_cluster` clusters.
      measure: of uncertainty, `entropy` or `difference`.
      clustering: how.
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
      key: is consumed.
      features: `[m, f]`, the model's, of public records.
      probabilities: `[m, num_classes]`, the model's prediction.
      num_queries: s; s + `candidates` is at most m.
      config: see `Config`.

    Returns:
      Queries, each of which stands for itself alone: cluster by cluster, and then those that were
        drawn.

    Raises:
      ValueError: where public records are too few, queries fewer than `per_cluster`, or features
        fewer than `components`.
    """
    features = np.asarray(features, np.float32)
    uncertain = uncertainty.candidates(
        features, probabilities, num_queries, config.candidates, config.measure
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
    """Project public features on their own principal components, in float64: `[m,
    num_components]`.
    """
    features = np.asarray(features, np.float64)
    if num_components > features.shape[1]:
        raise ValueError(
            f"Expected components <= {features.shape[1]}, the number of features, got "
            f"components={num_components}; take fewer components."
        )
    centred = features - features.mean(axis=0)
    return centred @ _dp_pca.leading(centred.T @ centred, num_components).T


def nearest_of_clusters(
    points: np.ndarray, cluster: np.ndarray, centres: np.ndarray, count: int
) -> np.ndarray:
    """Return the `count` points of each cluster that are nearest its centre, or all of a smaller
    one; cluster by cluster.
    """
    distance = np.square(points - centres[cluster]).sum(axis=1)
    order = np.lexsort((distance, cluster))
    first = np.searchsorted(cluster[order], cluster[order])  # of the same cluster
    return order[np.arange(len(order)) - first < count]


def _example(key: jax.Array, features: Array, num_queries: int) -> Queries:
    scores = np.abs(np.asarray(features)[:, :3]) + 0.1  # any prediction will do
    config = Config(candidates=20, components=3, per_cluster=2)
    return select(key, features, scores / scores.sum(axis=1, keepdims=True), num_queries, config)


EXAMPLES = (_example,)

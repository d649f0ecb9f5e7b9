"""Queries for later rounds: the public records that the student is least sure of, clustered in the student's own features.

Algorithm 1 spends the next round's budget where it helps. The most uncertain share of the public records, by the entropy of the
student's prediction, is clustered by k-means; all other records keep the label that they have.

**Bystanders.** If only uncertain records were queries, every private record would have to vote for one of them, however far, and the bulk
of the data would outvote those that are really near. So half of the queries are clusters of the other records. They take the votes of
the bulk and name nobody. This stays record-local and costs no privacy, which depends on k and not on the number of queries.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Algorithm 1.
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr

from rknn_jax.queries import kmeans
from rknn_jax.types import Array, Queries


@dataclass(frozen=True)
class Config:
    """Which records are asked about.

    Attributes:
      fraction: share of the public records, most uncertain first.
      clustering: of these records.
    """

    fraction: float = 0.1
    clustering: kmeans.Config = field(default_factory=kmeans.Config)

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"Expected 0 < fraction <= 1, got fraction={self.fraction}.")


def select(key: jax.Array, features: Array, probabilities: Array, num_queries: int, config: Config = Config()) -> Queries:
    """Cluster the most uncertain public records into queries.

    Args:
      key: is consumed.
      features: float32 `[m, f]`, the student's, of public records.
      probabilities: float32 `[m, num_classes]`, the student's prediction.
      num_queries: s, at most the number of uncertain records.
      config: see `Config`.

    Returns:
      Queries, those that name uncertain records first; `cluster` is -1 for every record that is not asked about.

    Raises:
      ValueError: where there are fewer uncertain records than queries.
    """
    entropy = entr(np.asarray(probabilities, np.float64)).sum(axis=1)
    asked = np.sort(np.argsort(-entropy, kind="stable")[: max(1, round(config.fraction * len(entropy)))])
    others = np.setdiff1d(np.arange(len(entropy)), asked)
    num_bystanders = min(num_queries // 2, len(others))
    asked_key, other_key = jax.random.split(key)
    chosen = kmeans.select(asked_key, np.asarray(features)[asked], num_queries - num_bystanders, config.clustering)
    cluster = np.full(len(entropy), -1, np.int32)
    cluster[asked] = chosen.cluster
    if not num_bystanders:
        return Queries(chosen.features, asked[chosen.index].astype(np.int32), cluster, chosen.size)
    standing_by = kmeans.select(other_key, np.asarray(features)[others], num_bystanders, config.clustering)
    index = np.concatenate([asked[chosen.index], others[standing_by.index]]).astype(np.int32)
    size = np.concatenate([chosen.size, standing_by.size])
    return Queries(jnp.concatenate([chosen.features, standing_by.features]), index, cluster, size)


def _example(key: jax.Array, features: Array, num_queries: int, fraction: float) -> Queries:
    scores = np.abs(np.asarray(features)[:, :3]) + 0.1  # any prediction will do
    return select(key, features, scores / scores.sum(axis=1, keepdims=True), num_queries, Config(fraction))


EXAMPLES = (functools.partial(_example, fraction=0.5), functools.partial(_example, fraction=1.0))

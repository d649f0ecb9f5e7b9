"""Queries for later rounds: the public records that the student is least sure of, clustered in the
student's own features.

Algorithm 1 spends the next round's budget where it helps. The most uncertain share of the public
records, by the entropy of the student's prediction, is clustered by k-means; all other records keep
the label that they have.

**Bystanders.** If only uncertain records were queries, every private record would have to vote for
one of them, however far, and the bulk of the data would outvote those that are really near. So half
of the queries are clusters of the other records. They take the votes of the bulk and name nobody.
This stays record-local and costs no privacy, which depends on k and not on the number of queries.

How unsure a prediction is, `score`, is also what the selectors of labels to be bought begin with.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Algorithm 1.
"""

import functools
from dataclasses import dataclass, field
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr

from rknn_jax.queries import kmeans
from rknn_jax.types import Array, Queries

Measure = Literal["entropy", "difference"]
"""Of a prediction's uncertainty: its entropy, or how little its most probable class is ahead of
the next one.
"""


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


def select(
    key: jax.Array,
    features: Array,
    probabilities: Array,
    num_queries: int,
    config: Config = Config(),
) -> Queries:
    """Cluster the most uncertain public records into queries.

    Args:
      key: is consumed.
      features: float32 `[m, f]`, the student's, of public records.
      probabilities: float32 `[m, num_classes]`, the student's prediction.
      num_queries: s, at most the number of uncertain records.
      config: see `Config`.

    Returns:
      Queries, those that name uncertain records first; `cluster` is -1 for every record that is not
      asked about.

    Raises:
      ValueError: where there are fewer uncertain records than queries.
    """
    entropy = score(probabilities)
    asked = np.sort(most(entropy, max(1, round(config.fraction * len(entropy)))))
    others = np.setdiff1d(np.arange(len(entropy)), asked)
    num_bystanders = min(num_queries // 2, len(others))
    asked_key, other_key = jax.random.split(key)
    chosen = kmeans.select(
        asked_key, np.asarray(features)[asked], num_queries - num_bystanders, config.clustering
    )
    cluster = np.full(len(entropy), -1, np.int32)
    cluster[asked] = chosen.cluster
    if not num_bystanders:
        return Queries(chosen.features, asked[chosen.index].astype(np.int32), cluster, chosen.size)
    standing_by = kmeans.select(
        other_key, np.asarray(features)[others], num_bystanders, config.clustering
    )
    index = np.concatenate([asked[chosen.index], others[standing_by.index]]).astype(np.int32)
    size = np.concatenate([chosen.size, standing_by.size])
    return Queries(jnp.concatenate([chosen.features, standing_by.features]), index, cluster, size)


def score(probabilities: Array, measure: Measure = "entropy") -> np.ndarray:
    """Tell how unsure predictions are.

    Args:
      probabilities: `[n, num_classes]`, rows that sum to 1.
      measure: see `Measure`.

    Returns:
      float64 `[n]`, the larger the less sure: entropy in nats, or minus the difference of the two
      largest probabilities.

    Raises:
      ValueError: for another measure, and for what are no probabilities.
    """
    if measure not in get_args(Measure):
        raise ValueError(
            f"Expected measure to be one of {', '.join(get_args(Measure))}, got "
            f"measure={measure!r}."
        )
    probabilities = np.asarray(probabilities, np.float64)
    if probabilities.ndim != 2 or probabilities.shape[1] < 2 or not (probabilities >= 0).all():
        raise ValueError(
            "Expected probabilities >= 0 [n, num_classes >= 2], got shape "
            f"{probabilities.shape}; pass predictions."
        )
    if measure == "entropy":
        return entr(probabilities).sum(axis=1)
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return second - first


def most(scores: np.ndarray, count: int) -> np.ndarray:
    """Return which records have the largest scores, int `[min(count, n)]`, largest first and the
    first of equals.
    """
    return np.argsort(-scores, kind="stable")[:count]


def candidates(
    features: Array,
    probabilities: Array,
    num_queries: int,
    extra: int = 0,
    measure: Measure = "entropy",
) -> np.ndarray:
    """Return the `num_queries + extra` most uncertain public records, among which `num_queries` are
    to be chosen.

    Args:
      features: `[m, f]`, of public records.
      probabilities: `[m, num_classes]`, of the same.
      num_queries: 1 or more.
      extra: 0 or more.
      measure: see `score`.

    Returns:
      int `[num_queries + extra]`, the most uncertain first.

    Raises:
      ValueError: where there are fewer public records, and for arrays of other lengths.
    """
    num_records = len(features)
    if len(probabilities) != num_records:
        raise ValueError(
            f"Expected a prediction for each public record, got {len(probabilities)} for "
            f"{num_records} features."
        )
    if num_queries < 1 or extra < 0 or num_queries + extra > num_records:
        raise ValueError(
            "Expected num_queries >= 1, candidates >= 0 and num_queries + candidates <= number "
            "of public records, got "
            f"num_queries={num_queries} and candidates={extra} with {num_records} public "
            "records; ask about fewer, lower candidates or "
            "bring more public records."
        )
    return most(score(probabilities, measure), num_queries + extra)


def _example(key: jax.Array, features: Array, num_queries: int, fraction: float) -> Queries:
    scores = np.abs(np.asarray(features)[:, :3]) + 0.1  # any prediction will do
    return select(
        key, features, scores / scores.sum(axis=1, keepdims=True), num_queries, Config(fraction)
    )


EXAMPLES = (functools.partial(_example, fraction=0.5), functools.partial(_example, fraction=1.0))

"""Queries of later rounds: clusters of the public records that are most uncertain for the student.

Algorithm 1 spends the next round's budget on them. The most uncertain share of the public records,
by the entropy of the student's prediction, is clustered by k-means in the student's features. All
other records keep their labels.

**Bystanders.** Suppose only uncertain records were queries. Every private record would have to vote
for one of them, however distant, and the bulk of the data would outvote the close records. Half of
the queries are therefore clusters of the other records. They take the votes of the bulk and label
nothing. The selection stays record-local and costs no privacy, which depends on k and not on the
number of queries.

The selectors of labels to be bought use `score` too.

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
"""Measure of a prediction's uncertainty.

`entropy` is the entropy. `difference` is minus the lead of the most probable class over the next
one.
"""


@dataclass(frozen=True)
class Config:
    """Settings of the selection.

    Attributes:
      fraction: Share of the public records that are clustered, most uncertain first. Defaults to
        0.1.
      clustering: Settings of k-means.
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
      key: Random key, consumed by the call.
      features: The student's features of public records, float32 `[m, f]`.
      probabilities: The student's predictions, float32 `[m, num_classes]`.
      num_queries: Number of queries s, at most `most_queries`.
      config: Settings of the selection.

    Returns:
      Queries, those that label uncertain records first. `cluster` is -1 for every other record.

    Raises:
      ValueError: For fewer uncertain records than queries.
    """
    entropy = score(probabilities)
    asked = np.sort(most(entropy, _num_asked(len(entropy), config)))
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


def most_queries(num_rows: int, config: Config = Config()) -> int:
    """Return the largest number of queries that `select` finds among public records.

    Args:
      num_rows: Number of public records m.
      config: Settings of the selection.
    """
    asked = _num_asked(num_rows, config)
    return asked + min(asked, num_rows - asked)


def _num_asked(num_rows: int, config: Config) -> int:
    """Return the number of uncertain records."""
    return max(1, round(config.fraction * num_rows))


def score(probabilities: Array, measure: Measure = "entropy") -> np.ndarray:
    """Score the uncertainty of predictions.

    Args:
      probabilities: Predictions `[n, num_classes]`, rows that sum to 1.
      measure: Measure of uncertainty. Defaults to `entropy`.

    Returns:
      Float64 `[n]`, larger for less certain predictions. The score is the entropy in nats, or minus
      the difference of the two largest probabilities.

    Raises:
      ValueError: For another measure, and for values that are not probabilities.
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
        entropy: np.ndarray = entr(probabilities).sum(axis=1)
        return entropy
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    lead: np.ndarray = second - first
    return lead


def most(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the largest scores, int `[min(count, n)]`.

    The largest score comes first; equal scores keep their order.
    """
    return np.argsort(-scores, kind="stable")[:count]


def candidates(
    features: Array,
    probabilities: Array,
    num_queries: int,
    extra: int = 0,
    measure: Measure = "entropy",
) -> np.ndarray:
    """Return the `num_queries + extra` most uncertain public records.

    The queries are chosen among them.

    Args:
      features: Features of public records, `[m, f]`.
      probabilities: Predictions for public records, `[m, num_classes]`.
      num_queries: Number of queries, 1 or more.
      extra: Number of further candidates, 0 or more. Defaults to 0.
      measure: Measure of uncertainty, as for `score`. Defaults to `entropy`.

    Returns:
      Indices, int `[num_queries + extra]`, most uncertain first.

    Raises:
      ValueError: For fewer public records, and for arrays of other lengths.
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
        key,
        features,
        scores / scores.sum(axis=1, keepdims=True),
        num_queries=num_queries,
        config=Config(fraction),
    )


EXAMPLES = (functools.partial(_example, fraction=0.5), functools.partial(_example, fraction=1.0))

"""Most uncertain queries: the first choice of active learning.

Each query labels only its own record. Similar records are uncertain together, so the most uncertain
records are much alike. If the public pool holds records of no class, these come first.
`diverse_public` and `near_private` avoid both.

Reference: Lewis & Gale, "A Sequential Algorithm for Training Text Classifiers", 1994.
"""

import functools
from dataclasses import dataclass
from typing import get_args

import jax
import numpy as np

from rknn_jax.queries import uncertainty
from rknn_jax.types import Array, Queries


@dataclass(frozen=True)
class Config:
    """Settings of the uncertainty.

    Attributes:
      measure: Measure of uncertainty: `entropy`, or `difference` of the two largest probabilities.
        Defaults to `entropy`.
    """

    measure: uncertainty.Measure = "entropy"

    def __post_init__(self) -> None:
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
    """Choose the public records with the most uncertain predictions, in this order.

    Args:
      key: Not needed.
      features: Features of public records, float32 `[m, f]`.
      probabilities: Predictions for public records, float32 `[m, num_classes]`.
      num_queries: Number of queries s, at most m.
      config: Settings of the uncertainty.

    Raises:
      ValueError: For num_queries outside [1, m].
    """
    return Queries.alone(
        features,
        uncertainty.candidates(features, probabilities, num_queries, measure=config.measure),
    )


def _example(
    key: jax.Array, features: Array, num_queries: int, measure: uncertainty.Measure
) -> Queries:
    scores = np.abs(np.asarray(features)[:, :3]) + 0.1  # any prediction will do
    return select(
        key,
        features,
        scores / scores.sum(axis=1, keepdims=True),
        num_queries=num_queries,
        config=Config(measure),
    )


EXAMPLES = (
    functools.partial(_example, measure="entropy"),
    functools.partial(_example, measure="difference"),
)

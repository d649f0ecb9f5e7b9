"""Queries that a model is least sure of, each of which stands for itself alone: what active
learning asks about first.

Records of one kind are unsure together, so the most uncertain are much alike, and a pool that holds
other things than the classes puts these first. `diverse_public` and `near_private` are answers to
that.

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
    """How uncertainty is told.

    Attributes:
      measure: entropy, or the difference of the two largest probabilities.
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
    """Take the public records that are predicted least surely, in this order.

    Args:
      key: is not needed.
      features: float32 `[m, f]`, of public records.
      probabilities: float32 `[m, num_classes]`, their prediction.
      num_queries: s, at most m.
      config: see `Config`.

    Raises:
      ValueError: for num_queries outside [1, m].
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
        key, features, scores / scores.sum(axis=1, keepdims=True), num_queries, Config(measure)
    )


EXAMPLES = (
    functools.partial(_example, measure="entropy"),
    functools.partial(_example, measure="difference"),
)

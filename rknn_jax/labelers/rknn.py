"""Reverse k-NN labeling: private records vote for their k nearest queries, the votes are summed
privately, the arg max is the label.

Steps 3 to 6 of Algorithm 1. What happens to a private record before the mechanism (`encode`,
`nearest`, `cells`) depends on that record and on public data alone, so one record changes at most
2kr cells by 1 however many queries there are. All that follows the mechanism is post-processing.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Algorithm 1.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import jax
import numpy as np
import scipy.sparse

from rknn_jax import bsvs, mechanisms, postprocessing
from rknn_jax.labelers import Labeler, _confidence
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.neighbors import Metric, nearest
from rknn_jax.privacy import amplification
from rknn_jax.privacy.guarantee import Guarantee, Relation, Trust
from rknn_jax.types import Answers, Array, Encoder, Queries, Records

Amplification = Literal["variation ratio", "general"]


@dataclass(frozen=True)
class ReverseKNN(Labeler[jax.Array]):
    """How to vote.

    Attributes:
      epsilon: privacy of this round; infinity for no noise and no privacy.
      delta: for mechanisms that need one.
      num_neighbors: k.
      mechanism: a file of `rknn_jax.mechanisms`.
      trust: `central`, a curator sees the votes; `local`, every record randomizes its own and
        epsilon is that of one message; `shuffle`, likewise, and epsilon and delta are those of all
        messages once they are shuffled, of a local mechanism by `amplification`.
      amplification: bound that tells how private each message must be; `variation ratio` looks at
        the mechanism and lets messages say more, `general` holds for all of them alike. See
        `privacy.amplification`.
      relation: which data sets are neighbours.
      metric: of the features.
      smoothing: `auto` borrows votes from similar queries as far as the noise asks for it, and
        spreads labels over the neighbour graph of the public records; `none` does neither.
      decode: `argmax` of each query's counts; or `assignment`, which gives every query another
        class such that the sum of their counts is greatest, for as many queries as classes that are
        clusters of one class each.
    """

    epsilon: float = 0.1
    delta: float = 1e-5
    num_neighbors: int = 1
    mechanism: str = "discrete_laplace"
    trust: Trust = "central"
    amplification: Amplification = "variation ratio"
    relation: Relation = "replace-one"
    metric: Metric = "sqeuclidean"
    smoothing: Literal["auto", "none"] = "auto"
    decode: Literal["argmax", "assignment"] = "argmax"

    telling: ClassVar[Mapping[str, Any]] = {"num_neighbors": 2}

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> jax.Array:
        """Let every private record vote: `connect`, of encoded records.

        `key` is not used, nothing is drawn.
        """
        del key
        return connect(encode(private.images), private.labels, queries, num_classes, self)

    def release(
        self,
        key: jax.Array,
        votes: Array,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Sum the votes, make the sum private, in simulation, and take the arg max.

        Args:
          key: of the noise; is consumed.
          votes: int32 `[n, k·r]` from `votes`, the cells of every record.
          queries: that were voted for.
          num_classes: |Y|.
          predicted: what a student thinks of the queries; not used.

        Returns:
          Answers that carry their guarantee.
        """
        del predicted
        private_step = mechanism(len(queries.features), num_classes, len(votes), self)
        counts = estimate_counts(private_step, key, votes)
        stddev = private_step.stddev(np.asarray(counts), len(votes))
        return answer(counts, stddev, guarantee(private_step, len(votes), self), queries, self)


def mechanism(
    num_queries: int, num_classes: int, num_records: int, config: ReverseKNN
) -> mechanisms.base.Mechanism:
    """Return the mechanism that `config` names, calibrated.

    Args:
      num_queries: s.
      num_classes: |Y|.
      num_records: n; only shuffling depends on it.
      config: see `Config`.
    """
    named = mechanisms.named(config.mechanism)
    takes = {field.name for field in fields(named)}
    if config.trust not in named.trusts:
        raise ValueError(
            f"Expected a mechanism for trust={config.trust}, got mechanism={config.mechanism}; "
            f"choose one of {mechanisms.names(config.trust)}."
        )
    if config.trust != "central" and config.relation != "replace-one":
        raise ValueError(
            f"Expected relation=replace-one with trust={config.trust}, got "
            f"relation={config.relation}; the messages are counted."
        )
    optional = {"delta": config.delta, "relation": config.relation, "num_clients": num_records}
    sizes = {
        "num_queries": num_queries,
        "num_classes": num_classes,
        "num_neighbors": config.num_neighbors,
    }
    fields_of: dict[str, Any] = sizes | {
        name: value for name, value in optional.items() if name in takes
    }
    epsilon = config.epsilon
    if config.trust == "shuffle" and issubclass(named, LocalRandomizer) and epsilon < math.inf:
        variation = (
            (lambda e: named(epsilon=e, **fields_of).total_variation)
            if config.amplification == "variation ratio"
            else None
        )
        epsilon = amplification.local_epsilon(
            epsilon, num_records, config.delta, config.amplification, variation
        )
    return named(epsilon=epsilon, **fields_of)


def guarantee(
    private_step: mechanisms.base.Mechanism, num_records: int, config: ReverseKNN
) -> Guarantee:
    """Return what the mechanism's run costs: its own guarantee, or after shuffling the amplified
    one that it was calibrated for.
    """
    if (
        config.trust != "shuffle"
        or not isinstance(private_step, LocalRandomizer)
        or config.epsilon == math.inf
    ):
        return private_step.guarantee(num_records)
    variation = private_step.total_variation if config.amplification == "variation ratio" else None
    cost = amplification.hockey_stick(
        config.epsilon,
        private_step.epsilon,
        num_records,
        variation,
        amplification.TAIL * config.delta,
    )
    if cost > config.delta:
        raise ValueError(
            f"Expected enough records for epsilon={config.epsilon} and delta={config.delta} once "
            f"messages of {private_step} are shuffled, "
            f"got {num_records}; calibrate the mechanism for them."
        )
    averaged = variation is not None and private_step.averages_over_hashes
    ideal = " for an ideal hash" if averaged else ""
    accountant = f"amplification by shuffling, {config.amplification} bound{ideal}"
    return Guarantee(
        config.epsilon, config.delta, "replace-one", "shuffle", (), accountant=accountant
    )


def connect(
    features: Array, labels: Array, queries: Queries, num_classes: int, config: ReverseKNN
) -> jax.Array:
    """Connect private records to their k nearest queries and return the cells that they vote for.

    Args:
      features: float32 `[n, f]`, encoded private records.
      labels: int32 `[n]`, or `[n, r]`.
      queries: `[s, f]`.
      num_classes: |Y|.
      config: see `Config`.

    Returns:
      int32 `[n, k·r]`, private.
    """
    near, _ = nearest(features, queries.features, config.num_neighbors, metric=config.metric)
    return bsvs.cells(near, labels, num_classes)


def answer(
    counts: Array, stddev: Array, guarantee: Guarantee, queries: Queries, config: ReverseKNN
) -> Answers:
    """Turn noisy counts into answers, by post-processing alone.

    Args:
      counts: float32 `[s, num_classes]`, noisy.
      stddev: of the noise, `[s, num_classes]`.
      guarantee: of the counts.
      queries: public.
      config: see `Config`.
    """
    counts = np.asarray(counts, np.float32)
    stddev = np.asarray(stddev, np.float32)
    # The number of votes is read off the noisy counts: under add-remove n itself is private.
    num_votes = float(max(counts.sum(), 0))
    expected = num_votes * queries.size / np.sum(queries.size)
    weights: Any = scipy.sparse.eye_array(len(counts), dtype=np.float32, format="csr")
    if config.smoothing == "auto":
        weights = postprocessing.smoothing_weights(
            queries.features, queries.size, num_votes, float(stddev.max())
        )
    heard = weights @ counts
    if config.decode == "assignment":
        labels = postprocessing.assignment(heard)
        probabilities = (np.arange(counts.shape[1]) == labels[:, None]).astype(np.float32)
        sure = _confidence.of_assignment(counts, stddev, expected, weights, labels)
    else:
        labels = postprocessing.noisy_max(heard)
        probabilities = postprocessing.soft_labels(heard)
        spread = np.sqrt(weights**2 @ stddev**2)
        sure = _confidence.of_argmax(heard, spread, weights @ expected, labels)
    return Answers(
        labels, np.ones(len(counts), bool), probabilities, sure, counts, stddev, guarantee
    )


def __getattr__(name: str) -> type[ReverseKNN]:
    if name == "Config":
        words = "labelers.rknn.Config is now labelers.rknn.ReverseKNN."
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return ReverseKNN
    raise AttributeError(f"module {__name__} has no attribute {name}")


EXAMPLES = (
    ReverseKNN(epsilon=1.0, num_neighbors=2),
    ReverseKNN(
        epsilon=2.0, num_neighbors=2, mechanism="gaussian", relation="add-remove", smoothing="none"
    ),
)

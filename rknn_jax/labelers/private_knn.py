"""Private-kNN: every query asks its k nearest private records, in a fresh random sample of them,
and screens what they say.

For each query and each of its two steps a Poisson sample of the private records is drawn, the k
nearest in it vote, and `rknn_jax.labelers._screening` makes the votes private: the first sample's
tell whether the query is answered, the second's how. A record that comes, goes or changes moves one
vote of a query that samples it, so unlike in reverse k-NN labeling the price grows with the number
of queries, and sampling is what keeps it low. Features may be those of the last round's student.

Where the mathematics differs from the paper and its code:

- Samples are Poisson and new for each step, as the accountant assumes; the code draws a fixed
  number with replacement, once for both, and a record may then vote twice.
- A sample may hold fewer than k records. The screen, which then sees few votes, declines such a
  query, and its price counts from 0 votes on. Declining it outright would tell whether the k-th
  record is there.
- The number of answers is capped beforehand and charged in full, because a number that is counted
  afterwards is an outcome.
- Attributes are clipped in everything that is released (`multi_label`): the code clips ones and
  releases zeros unclipped.

References: Zhu, Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer
Vision", 2020, Algorithm 1, Theorem 7 and section 4.3. What its stated parameters cost: `rknn
account private-knn`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from rknn_jax import bsvs
from rknn_jax.labelers import Labeler, _screening
from rknn_jax.labelers._sampled_neighbors import nearest_in_samples
from rknn_jax.labelers._screening import Noise, Release
from rknn_jax.privacy.guarantee import RELATIONS, Guarantee, Relation
from rknn_jax.types import Answers, Array, Encoder, Queries, Records


class Votes(NamedTuple):
    """What was asked: private.

    Attributes:
      screened: int32 `[s, num_classes]`, votes of the first samples.
      counted: int32 `[s, num_classes]`, votes of the second ones.
      short: of all samples, those that held fewer than k records.
    """

    screened: np.ndarray
    counted: np.ndarray
    short: int


@dataclass(frozen=True)
class PrivateKNN(Labeler[Votes]):
    """How to ask. The defaults are those of the paper for MNIST, but for epsilon.

    Attributes:
      epsilon: privacy of all queries together; infinity for no noise and no privacy.
      delta: of the same.
      relation: which data sets are neighbours.
      num_neighbors: k.
      sampling_prob: with which a record takes part in one step of one query.
      threshold: share of the k votes that the largest class must reach, with noise.
      ratio: how much stronger the screen's noise is than that of the counts.
      max_answers: queries that are answered at most; all that are asked where it is not given.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    num_neighbors: int = 300
    sampling_prob: float = 0.15
    threshold: float = 0.6
    ratio: float = 3.0
    max_answers: int | None = None

    telling: ClassVar[Mapping[str, Any]] = {
        "num_neighbors": 3,
        "sampling_prob": 0.5,
        "threshold": 0.5,
    }

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(
                f"Expected relation to be one of {RELATIONS}, got relation={self.relation!r}."
            )
        if not 0 < self.sampling_prob <= 1:
            raise ValueError(
                f"Expected 0 < sampling_prob <= 1, got sampling_prob={self.sampling_prob}; 1 "
                "asks all records."
            )
        for name in ("num_neighbors", "max_answers"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={value}.")
        if not math.isfinite(self.threshold):
            raise ValueError(
                f"Expected a finite threshold, got threshold={self.threshold}; a very low one "
                "lets every query pass."
            )

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Votes:
        """Let the nearest private records of a sample vote, for each query and each step.

        Args:
          key: of the samples, which must stay secret; is consumed.
          private: records.
          encode: of the queries' features.
          queries: `[s, f]`.
          num_classes: |Y|.

        Raises:
          ValueError: where there are fewer private records than neighbours and their number is public,
            or fewer neighbours than classes.
        """
        if self.num_neighbors < num_classes:
            raise ValueError(
                "Expected as many votes as classes or more, got "
                f"num_neighbors={self.num_neighbors} with {num_classes} classes; ask more."
            )
        near = _neighbors(key, encode(private.images), queries, self, 2)
        screened, counted = (
            counts_of(near[:, step], private.labels, num_classes) for step in range(2)
        )
        return Votes(screened, counted, int(np.sum(near[:, :, -1] < 0)))

    def release(
        self,
        key: jax.Array,
        votes: Votes,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Screen and count the votes, in simulation.

        Args:
          key: of the noise; is consumed.
          votes: from `votes`.
          queries: that were asked.
          num_classes: |Y|.
          predicted: what a student thinks of the queries; not used.
        """
        del queries, num_classes, predicted
        calibrated = noise(len(votes.screened), self)
        screen_key, count_key = jax.random.split(key)
        answered = _screening.passed(
            screen_key,
            votes.screened,
            self.threshold * self.num_neighbors,
            calibrated,
            self.max_answers,
        )
        return _screening.aggregated(
            count_key, votes.counted, answered, calibrated.aggregation_stddev, calibrated.guarantee
        )

    def not_covered(self, key: jax.Array, votes: Votes, answers: Answers) -> dict[str, int]:
        """Return, for a benchmark, how many samples held fewer than k records.

        `key`, `answers` and `config` are not used.
        """
        del key, answers, self
        return {"samples_of_fewer_than_k": votes.short}


def release(num_queries: int, config: PrivateKNN) -> Release:
    """Return what a run of `num_queries` queries releases, for `screening.calibrated` and
    accountants.
    """
    return Release(
        num_queries,
        min(config.max_answers or num_queries, num_queries),
        sampling_prob=config.sampling_prob,
        replaced=config.relation == "replace-one",
        screen=(config.threshold * config.num_neighbors, config.num_neighbors),
    )


def noise(num_queries: int, config: PrivateKNN) -> Noise:
    """Return the noise that `config` asks for, and its guarantee."""
    return _screening.calibrated(
        release(num_queries, config), config.ratio, config.epsilon, config.delta, config.relation
    )


def counts_of(near: np.ndarray, labels: Array, num_classes: int) -> np.ndarray:
    """Count the labels of neighbors.

    Args:
      near: Indices of records, int `[s, k]`; -1 casts no vote.
      labels: Integers `[n]`. A label that no class has casts no vote.
      num_classes: |Y|.

    Returns:
      int32 `[s, num_classes]`.
    """
    known = bsvs.voting_labels(np.asarray(labels, np.int64), num_classes)
    voted = np.append(np.where(known < 0, num_classes, known), num_classes)[near]
    rows = np.arange(len(near))[:, None] * (num_classes + 1)
    counts = np.bincount((rows + voted).ravel(), minlength=len(near) * (num_classes + 1))
    return counts.reshape(len(near), num_classes + 1)[:, :num_classes].astype(np.int32)


class Attributes(NamedTuple):
    """Answers for records of several attributes each.

    Attributes:
      present: bool `[s, num_attributes]`, whether half of the k neighbours have it, as far as the
        noise tells.
      counts: float32 `[s, num_attributes]`, how many do, noisy.
      guarantee: of both.
    """

    present: np.ndarray
    counts: np.ndarray
    guarantee: Guarantee


def multi_label(
    key: jax.Array,
    features: Array,
    attributes: Array,
    queries: Queries,
    config: PrivateKNN,
    clip: float,
) -> Attributes:
    """Ask which attributes the nearest records have: the tau approximation, without a screen, in
    simulation.

    Every neighbour's attributes are scaled to a sum of tau at most, and their noisy sum is all that
    is released. Zeros are not counted: of k neighbours, an attribute has the majority where its own
    count reaches k/2.

    Guarantee: two clipped vectors are at most `multi_label_change` apart, and a neighbouring data
    set swaps one.

    Args:
      key: of the samples and of the noise; is consumed.
      features: float32 `[n, f]`, encoded private records.
      attributes: 0 or 1, `[n, num_attributes]`.
      queries: `[s, f]`.
      config: threshold, ratio and max_answers are not used: every query is answered.
      clip: tau > 0.

    Raises:
      ValueError: for attributes that are not 0 or 1, and as `votes`.
    """
    attributes = np.asarray(attributes)
    if attributes.ndim != 2 or not np.isin(attributes, (0, 1)).all():
        raise ValueError(
            f"Expected attributes of 0 and 1 [n, num_attributes], got shape {attributes.shape}."
        )
    sample_key, noise_key = jax.random.split(key)
    near = _neighbors(sample_key, features, queries, config, 1)[:, 0]
    clipped = np.vstack([clipped_attributes(attributes, clip), np.zeros(attributes.shape[1])])
    sums = np.stack([clipped[index].sum(axis=0) for index in near])
    change = multi_label_change(attributes.shape[1], clip)
    replaced = config.relation == "replace-one"
    released = Release(0, len(sums), change, config.sampling_prob, replaced)
    calibrated = _screening.calibrated(released, 1.0, config.epsilon, config.delta, config.relation)
    counts = sums + calibrated.aggregation_stddev * np.asarray(
        jax.random.normal(noise_key, sums.shape)
    )
    return Attributes(
        counts >= config.num_neighbors / 2, counts.astype(np.float32), calibrated.guarantee
    )


def clipped_attributes(attributes: Array, clip: float) -> np.ndarray:
    """Scale rows of 0 and 1 to a sum of at most tau, float64: sums of a few hundred are then
    exact to what noise hides.
    """
    if not 0 < clip < math.inf:
        raise ValueError(f"Expected a finite clip > 0, got clip={clip}.")
    attributes = np.asarray(attributes, np.float64)
    return attributes * np.minimum(1, clip / np.maximum(attributes.sum(axis=1, keepdims=True), 1))


def multi_label_change(num_attributes: int, clip: float) -> float:
    """Return the largest L2 distance of two clipped vectors of 0 and 1.

    Such a vector of m ones has squared length m where m <= tau and tau²/m beyond. Two of the
    longest without a one in common are farthest apart, where there is room for them; else the
    distance is found by going through how many ones each has, and in common.

    >>> round(multi_label_change(40, 10) ** 2, 9)
    20.0
    """
    ones = np.arange(num_attributes + 1)
    squares = ones * np.minimum(1, clip / np.maximum(ones, 1)) ** 2
    if 2 * squares.argmax() <= num_attributes:
        return math.sqrt(2 * float(squares.max()))
    own, other, both = np.meshgrid(ones, ones, ones, indexing="ij")
    possible = (both <= np.minimum(own, other)) & (own + other - both <= num_attributes)
    own_size, other_size = (np.minimum(1, clip / np.maximum(count, 1)) for count in (own, other))
    squared = (
        (own - both) * own_size**2
        + (other - both) * other_size**2
        + both * (own_size - other_size) ** 2
    )
    return math.sqrt(float(np.where(possible, squared, 0).max()))


def _neighbors(
    key: jax.Array, features: Array, queries: Queries, config: PrivateKNN, num_samples: int
) -> np.ndarray:
    if (
        config.num_neighbors > len(features) and config.relation == "replace-one"
    ):  # else their number is private
        raise ValueError(
            "Expected num_neighbors <= number of private records, got "
            f"num_neighbors={config.num_neighbors} with {len(features)}; "
            "ask fewer neighbours."
        )
    return nearest_in_samples(
        key, queries.features, features, config.num_neighbors, config.sampling_prob, num_samples
    )


EXAMPLES = (
    PrivateKNN(epsilon=8.0, num_neighbors=15, sampling_prob=0.3),
    PrivateKNN(num_neighbors=15, relation="add-remove", max_answers=4, sampling_prob=0.3),
)

"""Private-kNN: the k nearest sampled private records vote on every query, and votes are screened.

Each query has two steps, and each step draws a fresh Poisson sample of the private records. The k
nearest records in the sample vote. `rknn_jax.labelers._screening` makes the votes private: the
first sample's votes decide if the query is answered, and the second sample's votes give the label.
A record that is added, removed or replaced moves one vote of every query that samples it. So the
price grows with the number of queries, unlike in reverse k-NN labeling, and sampling keeps the
price low. Features may be those of the last round's student.

**Persons.** With unit=person, each step samples persons. A sampled person takes part with one
record, the one nearest to the query. The k nearest persons vote, each with that record's label.

*Proof of the sensitivity.* For a query, a person's record and its distance depend on the query and
on that person's records alone. So the votes are those of a data set with one record for each
person, and a neighboring data set adds, removes or replaces one of these. A record more takes one
of the k places and pushes at most one other out. So one vote moves, whatever number of records a
person has, and the coins are independent. The change, the screen and the accountant are those for
records. Votes of all k nearest records with a cap for each person would not do: a person with k
near records would push out k others.

The implementation differs from the paper and its code:

- Samples are Poisson and new for each step, as the accountant assumes. The code draws a fixed
  number with replacement, once for both steps, and a record may then vote twice.
- A sample may hold fewer than k records. The screen then sees few votes and declines the query, and
  its price counts from 0 votes on. Declining the query outright would reveal if the k-th record is
  present.
- The number of answers is capped beforehand and charged in full, because a number that is counted
  afterwards is an outcome.
- Attributes are clipped in everything that is released (`multi_label`). The code clips ones and
  releases zeros unclipped.

References: Zhu, Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer
Vision", 2020, Algorithm 1, Theorem 7 and section 4.3. `rknn account private-knn` prints the cost of
its stated parameters.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from rknn_jax import bsvs
from rknn_jax.labelers import Labeler, _persons, _screening
from rknn_jax.labelers._sampled_neighbors import nearest_in_samples
from rknn_jax.labelers._screening import Noise, Release
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.parameters import PrivacyParameters
from rknn_jax.types import Answers, Array, Encoder, Queries, Records


class Votes(NamedTuple):
    """Votes of the nearest sampled records: private.

    Attributes:
      screened: int32 `[s, num_classes]`, votes of the first samples.
      counted: int32 `[s, num_classes]`, votes of the second samples.
      short: Number of samples that held fewer than k records.
    """

    screened: np.ndarray
    counted: np.ndarray
    short: int


@dataclass(frozen=True)
class PrivateKNN(PrivacyParameters, Labeler[Votes]):
    """Private-kNN and its settings: those of `PrivacyParameters`, and these.

    The defaults are those of the paper for MNIST, but for epsilon.

    Attributes:
      num_neighbors: Number of neighbors k, records or persons, that vote on a query.
      sampling_prob: Probability that a record, or a person, takes part in one step of one query.
      threshold: Share of the k votes that the largest class must reach, with noise.
      ratio: Ratio of the screen's noise to the noise of the counts.
      max_answers: Greatest number of queries that are answered. None answers all.
    """

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
        super().__post_init__()
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

    @property
    def needs_delta(self) -> bool:
        """Always, because the noise is Gaussian."""
        return True

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Votes:
        """Count the votes of the nearest sampled records, for each query and each step.

        Args:
          key: Random key of the samples, which is consumed. The key must stay secret.
          private: Private records.
          encode: Encoder of the queries' features.
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.

        Raises:
          ValueError: If there are fewer private records, or persons, than neighbors and their
            number is public, if there are fewer neighbors than classes, or if persons are the unit
            and the records name none.
        """
        if self.num_neighbors < num_classes:
            raise ValueError(
                "Expected as many votes as classes or more, got "
                f"num_neighbors={self.num_neighbors} with {num_classes} classes; ask more."
            )
        person = _persons.numbered(private) if self.unit == "person" else None
        near = _neighbors(
            key, encode(private.images), queries, config=self, num_samples=2, person=person
        )
        screened, counted = (
            counts_of(near[:, step], private.labels, num_classes) for step in range(2)
        )
        return Votes(screened, counted, int(np.sum(near[:, :, -1] < 0)))

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee of one round, from public numbers alone."""
        del num_units, num_classes
        return noise(num_queries, self).guarantee

    def release(
        self,
        key: jax.Array,
        contribution: Votes,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Screen and count the contribution, in simulation.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Result of `contribute`.
          queries: Public queries, which are not used.
          num_classes: Number of classes |Y|, which is not used.
          predicted: Probabilities of a student, which are not used. Defaults to none.
        """
        del queries, num_classes, predicted
        calibrated = noise(len(contribution.screened), self)
        screen_key, count_key = jax.random.split(key)
        answered = _screening.passed(
            screen_key,
            contribution.screened,
            self.threshold * self.num_neighbors,
            noise=calibrated,
            max_answers=self.max_answers,
        )
        return _screening.aggregated(
            count_key,
            contribution.counted,
            answered,
            stddev=calibrated.aggregation_stddev,
            guarantee=calibrated.guarantee,
        )

    def not_covered(self, key: jax.Array, contribution: Votes, answers: Answers) -> dict[str, int]:
        """Return the number of samples that held fewer than k records, for a benchmark.

        `key` and `answers` are not used.
        """
        del key, answers
        return {"samples_of_fewer_than_k": contribution.short}


def release(num_queries: int, config: PrivateKNN) -> Release:
    """Return the released quantities of `num_queries` queries.

    They are for `_screening.calibrated` and for accountants.
    """
    return Release(
        num_queries,
        min(config.max_answers or num_queries, num_queries),
        sampling_prob=config.sampling_prob,
        replaced=config.relation == "replace-one",
        screen=(config.threshold * config.num_neighbors, config.num_neighbors),
    )


def noise(num_queries: int, config: PrivateKNN) -> Noise:
    """Return the noise that `config` requires, and its guarantee."""
    return _screening.calibrated(
        release(num_queries, config),
        config.ratio,
        config.epsilon,
        delta=config.delta,
        relation=config.relation,
        unit=config.unit,
    )


def counts_of(near: np.ndarray, labels: Array, num_classes: int) -> np.ndarray:
    """Count the labels of neighbors.

    Args:
      near: int `[s, k]`, indices of records; -1 casts no vote.
      labels: Integers `[n]`. A label that is not a class casts no vote.
      num_classes: Number of classes |Y|.

    Returns:
      int32 `[s, num_classes]`.
    """
    known = bsvs.voting_labels(np.asarray(labels), num_classes)
    voted = np.append(np.where(known < 0, num_classes, known), num_classes)[near]
    rows = np.arange(len(near))[:, None] * (num_classes + 1)
    counts = np.bincount((rows + voted).ravel(), minlength=len(near) * (num_classes + 1))
    return counts.reshape(len(near), num_classes + 1)[:, :num_classes].astype(np.int32)


class Attributes(NamedTuple):
    """Answers for records of several attributes each.

    Attributes:
      present: bool `[s, num_attributes]`, True if half of the k neighbors have the attribute,
        judged by noisy counts.
      counts: float32 `[s, num_attributes]`, noisy number of neighbors with the attribute.
      guarantee: Guarantee of both.
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
    """Release the attributes of the nearest records, without a screen, in simulation.

    This is the tau approximation: every neighbor's attributes are scaled to a sum of tau at most,
    and only their noisy sum is released. Zeros are not counted: an attribute has the majority of k
    neighbors if its own count reaches k/2.

    Guarantee: two clipped vectors are at most `multi_label_change` apart, and a neighboring data
    set swaps one.

    Args:
      key: Random key of the samples and of the noise, which is consumed.
      features: float32 `[n, f]`, encoded private records.
      attributes: `[n, num_attributes]`, 1 where a record has one. Any other value counts as 0: an
        error would tell of its record.
      queries: Public queries `[s, f]`.
      config: Settings. Every query is answered, so threshold, ratio and max_answers are not used.
      clip: Greatest sum tau > 0 of a record's attributes.

    Raises:
      ValueError: If attributes have another shape, if persons are the unit, and for the errors of
        `contribute` about the number of records.
    """
    if config.unit != "record":
        raise ValueError(
            f"Expected unit=record for attributes, got unit={config.unit}; nothing names the "
            "person of a row here."
        )
    attributes = np.asarray(attributes) == 1
    if attributes.ndim != 2:
        raise ValueError(
            f"Expected attributes of 0 and 1 [n, num_attributes], got shape {attributes.shape}."
        )
    sample_key, noise_key = jax.random.split(key)
    near = _neighbors(sample_key, features, queries, config=config, num_samples=1)[:, 0]
    clipped = np.vstack([clipped_attributes(attributes, clip), np.zeros(attributes.shape[1])])
    sums = np.stack([clipped[index].sum(axis=0) for index in near])
    change = multi_label_change(attributes.shape[1], clip)
    replaced = config.relation == "replace-one"
    released = Release(0, len(sums), change, sampling_prob=config.sampling_prob, replaced=replaced)
    calibrated = _screening.calibrated(
        released, 1.0, config.epsilon, delta=config.delta, relation=config.relation
    )
    counts = sums + calibrated.aggregation_stddev * np.asarray(
        jax.random.normal(noise_key, sums.shape)
    )
    return Attributes(
        counts >= config.num_neighbors / 2, counts.astype(np.float32), calibrated.guarantee
    )


def clipped_attributes(attributes: Array, clip: float) -> np.ndarray:
    """Scale rows of 0 and 1 to a sum of at most tau, float64.

    In float64, rounding of sums of a few hundred is far below the noise.

    Args:
      attributes: `[n, num_attributes]`, 0 or 1.
      clip: Greatest sum tau > 0.
    """
    if not 0 < clip < math.inf:
        raise ValueError(f"Expected a finite clip > 0, got clip={clip}.")
    attributes = np.asarray(attributes, np.float64)
    sums = np.maximum(attributes.sum(axis=1, keepdims=True), 1)
    clipped: np.ndarray = attributes * np.minimum(1, clip / sums)
    return clipped


def multi_label_change(num_attributes: int, clip: float) -> float:
    """Return the largest L2 distance of two clipped vectors of 0 and 1.

    Such a vector of m ones has squared length m if m <= tau, and tau²/m beyond. Two of the longest
    without a common one are farthest apart, if there is room for them. Otherwise the distance is
    found by trying all numbers of ones of each, and in common.

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
    key: jax.Array,
    features: Array,
    queries: Queries,
    config: PrivateKNN,
    num_samples: int,
    person: np.ndarray | None = None,
) -> np.ndarray:
    num_units = len(features) if person is None else int(person.max(initial=-1)) + 1
    # Under add-remove the number of records is private, so no error may depend on it.
    if config.num_neighbors > num_units and config.relation == "replace-one":
        raise ValueError(
            f"Expected num_neighbors <= number of private {config.unit}s, got "
            f"num_neighbors={config.num_neighbors} with {num_units}; "
            "ask fewer neighbors."
        )
    return nearest_in_samples(
        key,
        queries.features,
        features,
        num_neighbors=config.num_neighbors,
        sampling_prob=config.sampling_prob,
        num_samples=num_samples,
        person=person,
    )


EXAMPLES = (
    PrivateKNN(epsilon=8.0, num_neighbors=15, sampling_prob=0.3),
    PrivateKNN(num_neighbors=15, relation="add-remove", max_answers=4, sampling_prob=0.3),
)

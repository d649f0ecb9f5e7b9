"""PATE: teachers vote on every query, each trained on its own part of the private records.

A record is in one part, so it moves the vote of one teacher for any query, and no sampling is
needed. But every query costs anew.

| aggregator        | answer to a query                                 | queries answered  |
|-------------------|---------------------------------------------------|-------------------|
| `lnmax`           | arg max of votes + Laplace(b)                     | all               |
| `gnmax`           | arg max of votes + N(0, s2²)                      | all               |
| `confident_gnmax` | as `gnmax`, if greatest count + N(0, s1²) >= T    | teachers agree on |
| `interactive`     | as `gnmax`, if votes less the student's pass      | the student lacks |

`interactive` takes effect once there is a student. The student's probabilities times the number of
teachers are subtracted from the votes before the screen. If a query is declined and the student is
sure of it, the student answers. Without a student, `interactive` is `confident_gnmax`.

Guarantee: noise is calibrated independently of the votes, for the whole noisy counts and for all
queries together. The cost that depends on the votes is smaller, but private. `not_covered` returns
it, for the arg max alone.

**The teachers** are small networks on the features of `encode`; see `_pate_teachers`.

Parts are drawn at random, with equal sizes if the number of records is public. If it is private
(add-remove), every record draws its own part, so that one more record moves no other.

**Persons.** With unit=person, parts are drawn for persons, and each person is in one part with all
records. So a person with any number of records moves the vote of one teacher, and the noise is that
for records. Parts then have equal numbers of persons. With as many teachers as persons, each
teacher learns from one person.

References: Papernot et al., "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data", 2017 (`lnmax`); Papernot et al., "Scalable Private Learning with PATE", 2018,
Algorithms 1 and 2.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import jax
import numpy as np

from rknn_jax.labelers import Labeler, _pate_teachers, _persons, _screening
from rknn_jax.labelers._screening import Noise, Release
from rknn_jax.privacy import accounting, calibration, smooth_sensitivity
from rknn_jax.privacy import pate as accounts
from rknn_jax.privacy.events import Event, Laplace
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.parameters import PrivacyParameters
from rknn_jax.types import Answers, Encoder, Queries, Records

Aggregator = Literal["lnmax", "gnmax", "confident_gnmax", "interactive"]

SURE = 0.9
"""Least probability at which a student answers a query that the screen declined (`interactive`)."""


@dataclass(frozen=True)
class PATE(PrivacyParameters, Labeler[np.ndarray]):
    """PATE and its settings: those of `PrivacyParameters`, and these. `lnmax` accepts a delta of 0.

    The defaults are those of the 2018 paper for MNIST, but for epsilon and the teachers.

    Attributes:
      num_teachers: Number of teachers, each with its part of the private records.
      aggregator: `lnmax` and `gnmax` answer all queries, with Laplace or Gaussian noise.
        `confident_gnmax` answers those on which teachers agree, and `interactive` those that the
        student lacks.
      threshold: Share of the teachers that the largest class must reach, with noise.
      ratio: Ratio of the screen's noise to the noise of the counts.
      max_answers: Greatest number of queries that are answered. None answers all.
      hidden: Number of units of a teacher's hidden layer; 0 for no hidden layer.
      steps: Number of training steps of a teacher, each on all its records.
      learning_rate: Learning rate at the first step; it falls to 0 along a cosine.
      weight_decay: Weight decay of AdamW.
    """

    num_teachers: int = 250
    aggregator: Aggregator = "confident_gnmax"
    threshold: float = 0.8
    ratio: float = 3.75
    max_answers: int | None = None
    hidden: int = 64
    steps: int = 100
    learning_rate: float = 0.02
    weight_decay: float = 0.1

    telling: ClassVar[Mapping[str, Any]] = {
        "num_teachers": 12,
        "hidden": 0,
        "steps": 20,
        "threshold": 0.5,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregator not in (choices := get_args(Aggregator)):
            raise ValueError(
                f"Expected aggregator to be one of {', '.join(choices)}, got "
                f"aggregator={self.aggregator!r}."
            )
        for name, least in (("num_teachers", 1), ("max_answers", 1), ("hidden", 0), ("steps", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"Expected {name} >= {least}, got {name}={value}.")
        if not math.isfinite(self.threshold):
            raise ValueError(
                f"Expected a finite threshold, got threshold={self.threshold}; a very low one "
                "lets every query pass."
            )
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise ValueError(
                f"Expected learning_rate > 0 and weight_decay >= 0, got {self.learning_rate} and "
                f"{self.weight_decay}."
            )

    @property
    def training(self) -> _pate_teachers.Training:
        """Settings of the teachers' training."""
        return _pate_teachers.Training(
            self.hidden, self.steps, self.learning_rate, self.weight_decay
        )

    @property
    def screens(self) -> bool:
        """True if queries are screened."""
        return self.aggregator in ("confident_gnmax", "interactive")

    @property
    def noise(self) -> str:
        """Laplace noise for `lnmax`, and Gaussian noise for the others."""
        return "laplace" if self.aggregator == "lnmax" else "gaussian"

    def check(self, num_units: int) -> None:
        """Check that every teacher has a record, or a person, if they are shared out evenly.

        Args:
          num_units: Number of private records, or of persons.

        Raises:
          ValueError: If there are more teachers than records or persons.
        """
        if self.relation == "replace-one" and self.num_teachers > num_units:
            raise ValueError(
                f"Expected a {self.unit} for every teacher, got num_teachers={self.num_teachers} "
                f"with {num_units} private {self.unit}s, which "
                f"leaves {self.num_teachers - num_units} without; ask fewer teachers."
            )

    @property
    def needs_delta(self) -> bool:
        """For all aggregators but `lnmax`, because their noise is Gaussian."""
        return self.aggregator != "lnmax"

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> np.ndarray:
        """Train the teachers and count their votes on the queries.

        Args:
          key: Random key of the parts and the teachers, which is consumed.
          private: Private records.
          encode: Encoder of the queries' features.
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.

        Returns:
          int32 `[s, num_classes]`, private.

        Raises:
          ValueError: If a teacher would have no record and the number of records is public, if
            there are fewer teachers than classes, or if persons are the unit and the records name
            none.
        """
        part_key, teacher_key = jax.random.split(key)
        part = parts_of(part_key, private, self)
        if self.num_teachers < num_classes:
            raise ValueError(
                f"Expected as many votes as classes or more, got {self.num_teachers} teachers with "
                f"{num_classes} classes; ask more."
            )
        votes = _pate_teachers.predictions(
            teacher_key,
            encode(private.images),
            private.labels,
            part=part,
            num_teachers=self.num_teachers,
            asked=queries.features,
            num_classes=num_classes,
            training=self.training,
        )
        return np.stack(
            [(votes == label).sum(axis=0) for label in range(num_classes)], axis=1
        ).astype(np.int32)

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee of one round, from public numbers alone."""
        del num_units, num_classes
        return noise(num_queries, self.num_teachers, self).guarantee

    def release(
        self,
        key: jax.Array,
        contribution: np.ndarray,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Release the votes with noise, in simulation.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Votes from `contribute`, int32 `[s, num_classes]`.
          queries: Public queries, which are not used.
          num_classes: Number of classes |Y|, which is not used.
          predicted: float32 `[s, num_classes]`, probabilities of a student, for `interactive`.
            Defaults to none.
        """
        del queries, num_classes
        num_teachers = int(contribution[0].sum())
        calibrated = noise(len(contribution), num_teachers, self)
        screen_key, count_key = jax.random.split(key)
        if self.aggregator == "lnmax":
            drawn = (
                calibrated.aggregation_stddev
                / math.sqrt(2)
                * np.asarray(jax.random.laplace(count_key, contribution.shape))
            )
            spread = np.full(contribution.shape, calibrated.aggregation_stddev, np.float32)
            return _screening.answers_of(
                (contribution + drawn).astype(np.float32),
                spread,
                np.ones(len(contribution), bool),
                calibrated.guarantee,
            )
        answered = np.ones(len(contribution), bool)
        known = self.aggregator == "interactive" and predicted is not None
        if self.screens:
            news = (
                contribution - num_teachers * predicted
                if known and predicted is not None
                else contribution
            )
            answered = _screening.passed(
                screen_key,
                news,
                self.threshold * num_teachers,
                noise=calibrated,
                max_answers=self.max_answers,
            )
        answers = _screening.aggregated(
            count_key,
            contribution,
            answered,
            stddev=calibrated.aggregation_stddev,
            guarantee=calibrated.guarantee,
        )
        return (
            _screening.confirmed(answers, predicted, SURE)
            if known and predicted is not None
            else answers
        )

    def not_covered(
        self, key: jax.Array, contribution: np.ndarray, answers: Answers
    ) -> dict[str, dict[str, float]]:
        """Return costs of the labels that depend on the votes themselves, for a benchmark.

        All but the sanitized bound are private, and none is `answers.guarantee`.

        Args:
          key: Random key of the noise of the sanitized values, which is consumed.
          contribution: Result of `contribute`.
          answers: Answers from `release`.
        """
        if self.epsilon == math.inf or self.aggregator == "interactive" or not self.delta:
            return {"epsilons_that_look_at_the_votes": {}}
        num_queries, num_classes = contribution.shape
        num_teachers = int(contribution[0].sum())
        calibrated = noise(num_queries, num_teachers, self)
        if self.aggregator == "lnmax":
            found = accounts.report(
                contribution,
                accounts.LNMax(calibrated.aggregation_stddev / math.sqrt(2)),
                self.delta,
            )
            return {"epsilons_that_look_at_the_votes": found}
        screen = (
            accounts.Screen(self.threshold * num_teachers, calibrated.screening_stddev)
            if self.screens
            else None
        )
        mechanism = accounts.GNMax(calibrated.aggregation_stddev, screen)
        found = accounts.report(
            contribution, mechanism, self.delta, answered=answers.answered if screen else None
        )
        plan = smooth_sensitivity.plan_release(
            smooth_sensitivity.expected_votes(num_queries, num_teachers, num_classes),
            mechanism,
            self.delta,
        )
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        found |= smooth_sensitivity.sanitize(
            rng, contribution, mechanism, plan=plan, delta=self.delta
        ).facts()
        return {"epsilons_that_look_at_the_votes": found}


def release(num_queries: int, num_teachers: int, config: PATE) -> Release:
    """Return the released quantities of `num_queries` queries.

    They are for `_screening.calibrated` and for accountants.
    """
    # Counts less a student's probabilities are no whole numbers.
    whole = config.aggregator == "confident_gnmax"
    return Release(
        num_queries if config.screens else 0,
        min(config.max_answers or num_queries, num_queries) if config.screens else num_queries,
        screen=(config.threshold * num_teachers, num_teachers) if whole else None,
    )


def noise(num_queries: int, num_teachers: int, config: PATE) -> Noise:
    """Return the noise that `config` requires, and its guarantee.

    For `lnmax` the standard deviation is that of Laplace noise.
    """
    if config.aggregator == "lnmax":
        return _laplace(num_queries, config)
    released = release(num_queries, num_teachers, config)
    return _screening.calibrated(
        released,
        config.ratio,
        config.epsilon,
        delta=config.delta,
        relation=config.relation,
        unit=config.unit,
    )


@functools.lru_cache(maxsize=64)
def _laplace(num_queries: int, config: PATE) -> Noise:
    """Calibrate Laplace noise. A teacher that changes moves two counts of every query by 1 each."""
    if not config.epsilon > 0:
        raise ValueError(
            f"Expected epsilon > 0, got epsilon={config.epsilon}; choose a positive privacy budget."
        )
    if config.epsilon == math.inf:
        return Noise(
            0.0,
            0.0,
            Guarantee(math.inf, 0.0, config.relation, trust="central", events=(), unit=config.unit),
        )

    def events(scale: float) -> tuple[Event, ...]:
        return (Laplace(scale, 2 * num_queries),)

    pure = 2 * num_queries / config.epsilon
    scale = (
        calibration.calibrate(events, config.epsilon, config.delta, start=pure)
        if config.delta
        else pure
    )
    found = accounting.epsilons(events(scale), config.delta)
    accountant = min((cost, name) for name, cost in found.items())[1]
    delta = 0.0 if accountant == "pure" else config.delta
    guarantee = Guarantee(
        config.epsilon,
        delta,
        config.relation,
        trust="central",
        events=events(scale),
        unit=config.unit,
        accountant=accountant,
    )
    return Noise(0.0, math.sqrt(2) * scale, guarantee)


def parts_of(key: jax.Array, private: Records, config: PATE) -> np.ndarray:
    """Return the teacher of each record, int64 `[n]`, as the head of this module describes.

    `key` is consumed.

    Raises:
      ValueError: If persons are the unit and the records name none, or if the number of records or
        persons is public and a teacher would have none.
    """
    if config.unit == "person":
        person = _persons.numbered(private)
        part = _dealt(key, int(person.max(initial=-1)) + 1, config)
        return np.asarray(part[person])
    return _dealt(key, len(private.labels), config)


def _dealt(key: jax.Array, n: int, config: PATE) -> np.ndarray:
    """Return the teacher of each of n records or persons, int64 `[n]`. `key` is consumed."""
    num_teachers = config.num_teachers
    if config.relation == "replace-one":
        part = np.empty(n, np.int64)
        part[np.asarray(jax.random.permutation(key, n))] = np.arange(n) % num_teachers
    else:
        part = np.asarray(jax.random.randint(key, (n,), 0, num_teachers), np.int64)
    if config.relation == "replace-one" and (empty := num_teachers - len(np.unique(part))):
        raise ValueError(
            f"Expected a {config.unit} for every teacher, got num_teachers={num_teachers} with {n} "
            f"private {config.unit}s, which leaves {empty} "
            "without; ask fewer teachers."
        )
    return part


EXAMPLES = (
    PATE(epsilon=20.0, num_teachers=30, steps=30, hidden=0),
    PATE(epsilon=8.0, num_teachers=30, steps=30, hidden=0, aggregator="lnmax"),
    PATE(
        epsilon=10.0, num_teachers=30, steps=30, hidden=0, aggregator="gnmax", relation="add-remove"
    ),
)

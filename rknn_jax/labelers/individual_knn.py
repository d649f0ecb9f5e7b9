"""Ind-KNN: private records near a query vote, and each record has a privacy budget of its own.

Queries are answered in order. For each query:

1. Records are neighbors if their cosine with the query reaches a public threshold, and if they can
   pay for a count. The number of neighbors is released with Gaussian noise. Each neighbor pays
   1/(2σ1²), and nobody else pays.
2. Each neighbor votes for its class with its cosine as weight w, or with less if it cannot pay. The
   sums are released with Gaussian noise of variance σ², which grows with the noisy number of
   neighbors. Each neighbor pays w²/(2σ²).

A record that cannot pay for a count takes no part any more. So a record far from all queries keeps
its budget, and the noise is made for records that answer an average number of queries.

**Proof.** A record's budget is B. Fix a history: all results that are released before a step. Given
the history, a step's noise is fixed, and it is known who takes part: for each record, this depends
on that record, on the history, and on public data alone. Then two neighboring data sets release two
Gaussians of equal variance, whose means differ by what the replaced record adds. So the step's
Rényi divergence of order a is a·|difference|²/(2σ²), in both directions.

- *What is charged to whom.* The square of what a record adds to a result, over twice the variance.
  On every history the charges of a record add up to at most B: a record that has less left adds
  less, or nothing.
- *One record more or less.* The difference is what that record adds. So on every history the
  divergences add up to at most a·B.
- *Another record in its place.* The difference is that of what two records add. Both are
  nonnegative vectors, so its square is at most the sum of both squares. On every history the
  divergences add up to at most 2·a·B. So B is half as large.
- *Why adaptivity is covered.* Let L be the privacy loss of all results, and D the sum of the
  divergences at the steps of the history that occurred. Each step multiplies
  E exp((a - 1)(L - D)) by at most 1, whatever came before. D is at most a·rho on all histories,
  with rho = B or 2B. So the divergence of all results is at most a·rho, for all orders a: the
  release is rho-zCDP. This is the argument of an individual Rényi filter. It needs no bound on the
  steps beforehand, only that a record stops in time.
- *What a record has spent is private*, as it depends on the record. Spent budgets and the number of
  records that still take part are not released.

**Persons.** All votes of a person for a query are summed and scaled to a length of at most 1. The
person is counted once and pays for the whole, out of one budget. What a person adds is nonnegative,
and the proof holds with persons for records.

The implementation differs from the paper and its code:

- A record pays for a count before it is counted. The code counts a record that has less left than a
  count costs.
- σ is public: records are expected to be neighbors as often as public rows are, and to spend their
  budgets on all queries. The paper tunes it. The threshold is the cosine that a share of 1/|Y| of
  public pairs exceeds, and at least 0.
- Cosines are taken around the center of the public features.

References: Zhu, Zhao, Guo & Wang, "Private Prediction Strikes Back! Private Kernelized Nearest
Neighbors with Individual Rényi Filter", UAI 2023, Algorithm 1; Feldman & Zrnic, "Individual Privacy
Accounting via a Rényi Filter", 2021.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from rknn_jax import postprocessing
from rknn_jax.labelers import Labeler, _persons
from rknn_jax.labelers._cosines import PublicCosines
from rknn_jax.privacy import calibration
from rknn_jax.privacy.events import Concentrated
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.parameters import PrivacyParameters
from rknn_jax.types import Answers, Encoder, Queries, Records

BLOCK = 2**24
"""Cosines that are held at a time."""

SLACK = 1 - 1e-9
"""Factor of a budget that leaves room for rounding."""


class Votes(NamedTuple):
    """Private records, each of which votes when a query is near: private.

    Attributes:
      rows: Directions of the records' features, float64 `[n, f]`, whose cosines are exact.
      labels: int64 `[n]`, -1 for a record that casts no vote.
      person: Number of each record's privacy unit, int64 `[n]`.
      num_units: Number of privacy units.
    """

    rows: np.ndarray
    labels: np.ndarray
    person: np.ndarray
    num_units: int


class Plan(NamedTuple):
    """Public settings of the noise and of the neighbors.

    Attributes:
      budget: Budget B of a record; infinity without privacy.
      threshold: Least cosine of a neighbor.
      count_stddev: Standard deviation σ1 of a count.
      vote_stddev: Standard deviation σ of the votes for an average number of neighbors.
    """

    budget: float
    threshold: float
    count_stddev: float
    vote_stddev: float

    @property
    def count_cost(self) -> float:
        """Charge for a count."""
        return 1 / (2 * self.count_stddev**2) if self.count_stddev else 0.0


class Step(NamedTuple):
    """One query, before the noise: private.

    Attributes:
      neighbors: Number of neighbors.
      votes: float64 `[num_classes]`, sums of the neighbors' weights.
      stddev: Standard deviation of the votes' noise, which is public.
    """

    neighbors: int
    votes: np.ndarray
    stddev: float


@dataclass(frozen=True)
class IndividualKNN(PrivacyParameters, Labeler[Votes]):
    """Ind-KNN and its settings: those of `PrivacyParameters`, and one more.

    Attributes:
      count_share: Share of a budget that is planned for counts.
    """

    count_share: float = 0.1

    telling: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.count_share < 1:
            raise ValueError(
                f"Expected 0 < count_share < 1, got count_share={self.count_share}; 0.1 leaves "
                "nine tenths for the votes."
            )

    @property
    def needs_delta(self) -> bool:
        """Always, because the noise is Gaussian."""
        return True

    @property
    def budget(self) -> float:
        """Budget B of a record, or of a person, as rho of concentrated DP."""
        if self.epsilon == math.inf:
            return math.inf
        rho = 1 / (2 * self._multiplier() ** 2)
        return rho / 2 if self.relation == "replace-one" else rho

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee of one round, which depends on no number."""
        del num_units, num_queries, num_classes
        return Guarantee(
            self.epsilon,
            self.delta,
            self.relation,
            trust="central",
            events=(Concentrated(self._multiplier()),),
            unit=self.unit,
            accountant="individual RDP",
        )

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Votes:
        """Encode each private record by itself, as a direction around the public center.

        Nothing is drawn; see `Labeler.contribute`.
        """
        del key
        rows = _cosines(queries, num_classes).directions(encode(private.images))
        labels = np.asarray(private.labels, np.int64)
        labels = np.where((labels >= 0) & (labels < num_classes), labels, -1)
        known = self.unit == "person"
        person = _persons.numbered(private) if known else np.arange(len(labels))
        return Votes(rows, labels, person, self.num_units(private))

    def plan(self, queries: Queries, num_classes: int) -> Plan:
        """Return the noise and the threshold, from public quantities alone.

        Args:
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.
        """
        cosines = _cosines(queries, num_classes)
        threshold = max(cosines.low, 0.0)
        near = cosines.pairs[cosines.pairs >= threshold]
        share = len(near) / len(cosines.pairs)
        square = float(np.mean(near**2)) if len(near) else 1.0
        asked = max(share * len(queries.features), 1.0)
        if self.epsilon == math.inf:
            return Plan(math.inf, threshold, 0.0, 0.0)
        budget = self.budget
        count_stddev = math.sqrt(asked / (2 * self.count_share * budget))
        vote_stddev = math.sqrt(asked * square / (2 * (1 - self.count_share) * budget))
        return Plan(budget * SLACK, threshold, count_stddev, vote_stddev)

    def release(
        self,
        key: jax.Array,
        contribution: Votes,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Answer the queries in order, in simulation; see `Labeler.release`."""
        del predicted
        plan = self.plan(queries, num_classes)
        count_key, vote_key = jax.random.split(key)
        size = len(queries.features)
        count_noise = plan.count_stddev * np.asarray(jax.random.normal(count_key, (size,)))
        noise = np.asarray(jax.random.normal(vote_key, (size, num_classes)), np.float64)
        found = list(
            steps(
                contribution,
                queries,
                plan,
                num_classes=num_classes,
                release_count=lambda i, n: n + count_noise[i],
            )
        )
        spread = np.array([step.stddev for step in found])[:, None]
        counts = np.stack([step.votes for step in found]) + spread * noise
        stddev = np.broadcast_to(spread, counts.shape).astype(np.float32)
        guarantee = self.guarantee_of(contribution.num_units, size, num_classes)
        return _answer(counts.astype(np.float32), stddev, guarantee)

    def _multiplier(self) -> float:
        if self.epsilon == math.inf:
            return 0.0
        return _noise_multiplier(self.epsilon, self.delta)


# The search for the multiplier takes longer than a small release.
_noise_multiplier = functools.cache(calibration.zcdp_noise_multiplier)


def steps(
    contribution: Votes,
    queries: Queries,
    plan: Plan,
    num_classes: int,
    release_count: Callable[[int, int], float],
) -> Iterator[Step]:
    """Yield the queries in order, and charge those who answer.

    Args:
      contribution: Private records.
      queries: Public queries `[s, f]`.
      plan: Noise and threshold.
      num_classes: Number of classes |Y|.
      release_count: Function from a query's place and its number of neighbors to the noisy number.
        Of the two arguments, the mechanism releases the result alone.
    """
    left = np.full(contribution.num_units, plan.budget)
    directions = _cosines(queries, num_classes).directions(queries.features)
    size = max(1, BLOCK // max(len(contribution.rows), 1))
    floor = max(plan.count_stddev, 1.0)
    released: list[float] = []
    for start in range(0, len(directions), size):
        for cosines in directions[start : start + size] @ contribution.rows.T:
            near = (cosines >= plan.threshold) & (contribution.labels >= 0)
            near &= left[contribution.person] >= plan.count_cost
            rows = np.flatnonzero(near)
            units, owner = np.unique(contribution.person[rows], return_inverse=True)
            released.append(max(release_count(len(released), len(units)), floor))
            ratio = math.sqrt(released[-1] / np.mean(released))
            stddev = plan.vote_stddev * ratio
            left[units] -= plan.count_cost
            votes = np.zeros((len(units), num_classes))
            np.add.at(votes, (owner, contribution.labels[rows]), cosines[rows])
            lengths = np.linalg.norm(votes, axis=1)
            # The longest vector that a unit can pay for, and at most that of one full vote.
            most = np.ones(len(units))
            if stddev:
                most = np.minimum(1.0, np.sqrt(2 * np.maximum(left[units], 0)) * stddev)
            votes *= np.minimum(1.0, most / np.maximum(lengths, 1e-12))[:, None]
            if stddev:
                left[units] -= (votes**2).sum(axis=1) / (2 * stddev**2)
            yield Step(len(units), votes.sum(axis=0), stddev)


def _cosines(queries: Queries, num_classes: int) -> PublicCosines:
    return PublicCosines.of(queries, 1 - 1 / num_classes, 1.0)


def _answer(counts: np.ndarray, stddev: np.ndarray, guarantee: Guarantee) -> Answers:
    """Return the arg max of noisy votes: post-processing."""
    labels = postprocessing.noisy_max(counts)
    probabilities = postprocessing.soft_labels(counts)
    sure = postprocessing.posterior(counts, stddev)[np.arange(len(labels)), labels]
    answered = np.ones(len(labels), bool)
    return Answers(
        labels,
        answered,
        probabilities,
        confidence=sure,
        counts=counts,
        stddev=stddev,
        guarantee=guarantee,
    )


EXAMPLES = (
    IndividualKNN(epsilon=2.0),
    IndividualKNN(epsilon=4.0, relation="add-remove", count_share=0.2),
)

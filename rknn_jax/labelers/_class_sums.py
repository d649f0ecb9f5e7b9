"""Noisy sums of private features, one for each class: the private step of linear labelers.

Each record is clipped to a ball around a public center and added to the sum of its class. A last
column counts the records. One release of these sums is all that the labelers of `prototypes` and
`least_squares` read, so what follows it is post-processing.

**Sums are integers.** A clipped coordinate is cut toward zero to a multiple of 1/`GRID` of the
radius, which makes no norm larger. So integer noise from `privacy.exact_noise` makes the release
exact (`SumsLabeler.exact`), and `SumsLabeler.simulated` simulates it.

**Sensitivity.** Let R be the radius and c <= R what a record adds to the count of its class. A
record is a vector (x, c) in the block of its class, with |x| <= R.

- Without the record, the sums move by one such vector: by sqrt(R² + c²) in L2 norm, and by R + c in
  L1 norm.
- With another record in its place, the sums move by the difference of two. In one class, the
  counts agree, and x moves by 2R. In two classes, the L2 norm is sqrt(2(R² + c²)) <= 2R, and the L1
  norm is 2(R + c). So with c = R the counts are free in L2 norm.
- Sums over any records, scaled to the norm of one, sqrt(2)·R for c = R, differ by 2R at most. In
  each class, the sum of points is no longer than the count. So the product of two such vectors is
  not negative, and the square of their distance is at most 2R² + 2R².
- All records of a person have weights of at most 1 in sum (`privacy.contributions.shared`). So a
  person adds a point of the convex hull of such vectors and 0. The hull's longest vector and its
  diameter are those of the vectors themselves. So both bounds hold for persons.

Gaussian noise covers the L2 norm. Laplace noise covers the L1 norm, to which features are then
clipped. The discrete Gaussian protects whichever integers move, by concentrated DP.
"""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np

from rknn_jax.labelers._linear_head import Head, Link
from rknn_jax.labelers._one_sum import Noise, OneSumLabeler
from rknn_jax.labelers._public_ball import Ball, Spectrum
from rknn_jax.labelers._sum_shares import Reach
from rknn_jax.labelers._tally import ClassTally, Tally
from rknn_jax.privacy import analytic_gaussian, calibration, exact_noise
from rknn_jax.privacy.events import Concentrated, Event, Gaussian, Pure
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.types import Answers, Array, Encoder, Queries

Kind = Literal["gaussian", "laplace"]

GRID = 4096
"""Units of the radius, in which sums are counted."""

NORMS: dict[str, Literal[1, 2]] = {"gaussian": 2, "laplace": 1}
"""Norm in which features are clipped for each kind of noise."""

COUNT_UNITS: dict[tuple[Kind, Relation], int] = {
    ("gaussian", "replace-one"): GRID,
    ("gaussian", "add-remove"): GRID // 2,
    ("laplace", "replace-one"): GRID // 8,
    ("laplace", "add-remove"): GRID // 8,
}
"""Units that a record adds to the count of its class.

More units leave less noise on the counts and more on the sums.
"""


@dataclass(frozen=True)
class ClassSums(ClassTally):
    """Public side of the class sums: what a record adds, in units of the radius.

    A part is the record's clipped features, int32, and its class as the last column.

    Attributes:
      ball: Public ball to which features are clipped.
      count_units: Units that a record adds to the count of its class.
    """

    ball: Ball
    count_units: int

    @property
    def width(self) -> int:
        """Number of features f."""
        return len(self.ball.center)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(num_classes, f + 1)` of the sums and counts."""
        return self.num_classes, self.width + 1

    def parts(self, points: Array, ids: np.ndarray) -> np.ndarray:
        """Return the parts of records; see `Tally.parts`."""
        # Towards zero, so that rounding makes no norm larger.
        rows = np.trunc(self.ball.clip(points) * GRID).astype(np.int32)
        return np.hstack([rows, np.asarray(ids, np.int32)[:, None]])

    def fits(self, totals: np.ndarray, num_records: int) -> bool:
        """Return whether so many records can have these sums; see `Tally.fits`."""
        counts = totals[:, -1]
        small = bool((np.abs(totals[:, :-1]) * self.count_units <= counts[:, None] * GRID).all())
        return small and int(counts.sum()) == num_records * self.count_units

    def terms(self, parts: np.ndarray) -> np.ndarray:
        """Return the clipped features and the count of records; see `ClassTally.terms`."""
        terms = parts.astype(np.int64)
        terms[:, -1] = self.count_units
        return terms

    def bounds(self, terms: np.ndarray) -> np.ndarray:
        """Return which features are in the ball; see `ClassTally.bounds`."""
        sizes = np.abs(terms[:, :-1])
        # Single coordinates first, as the squares of larger ones may overflow.
        small: np.ndarray = (sizes <= GRID).all(axis=1) & (sizes >= 0).all(axis=1)
        norms = (np.where(small[:, None], sizes, 0) ** self.ball.norm).sum(axis=1)
        within: np.ndarray = small & (norms <= GRID**self.ball.norm)
        return within


class NoisySums(NamedTuple):
    """Released sums, in records and in units of the radius.

    Attributes:
      sums: float64 `[num_classes, f]`.
      counts: float64 `[num_classes]`.
      sum_stddev: Standard deviation of the noise of a sum's coordinate.
      count_stddev: Standard deviation of the noise of a count, in records.
    """

    sums: np.ndarray
    counts: np.ndarray
    sum_stddev: float
    count_stddev: float

    @property
    def sizes(self) -> np.ndarray:
        """Estimated number of records of each class, at least 1, float64 `[num_classes]`."""
        sizes: np.ndarray = np.maximum(self.counts, 1)
        return sizes


@dataclass(frozen=True)
class SumsLabeler(OneSumLabeler):
    """Labeler that reads the private records by one release of their class sums.

    Attributes:
      mechanism: `gaussian` clips features in L2 norm and needs a delta. `laplace` clips them in L1
        norm and is pure.
    """

    mechanism: Kind = "gaussian"

    exact_mechanisms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "discrete_laplace": {"mechanism": "laplace"},
        "gaussian": {"mechanism": "gaussian"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism not in NORMS:
            raise ValueError(
                "Expected mechanism to be gaussian or laplace, got "
                f"mechanism={self.mechanism!r}; laplace needs no delta."
            )

    @property
    def noise(self) -> str:
        """Name of the noise."""
        return self.mechanism

    @property
    def needs_delta(self) -> bool:
        """True with Gaussian noise."""
        return self.norm == 2

    @property
    def norm(self) -> Literal[1, 2]:
        """Norm to which features are clipped."""
        return NORMS[self.mechanism]

    @property
    def count_units(self) -> int:
        """Units that a record of weight 1 adds to the count of its class."""
        return COUNT_UNITS[self.mechanism, self.relation] * self.grid

    @property
    def sensitivity(self) -> float:
        """Largest change of the sums between neighbors, in units, in the norm of the ball."""
        radius = GRID * self.grid
        if self.norm == 1:
            moved = radius + self.count_units
            return float(moved if self.relation == "add-remove" else 2 * moved)
        # Replaced, a record leaves one class and may join another; the proof above bounds both by
        # 2R.
        return math.hypot(radius, self.count_units) if self.relation == "add-remove" else 2 * radius

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee of the simulated release, which depends on no number."""
        del num_units, num_queries, num_classes
        if self.norm == 1:
            return self._guarantee(Pure(self.epsilon), "pure")
        return self._guarantee(Gaussian(self._multiplier()), "analytic Gaussian")

    def tally(self, queries: Queries, num_classes: int) -> ClassSums:
        """Return the public side of the sums; see `OneSumLabeler.tally`."""
        count_units = COUNT_UNITS[self.mechanism, self.relation]
        ball = Ball.around(queries, self.norm)
        return ClassSums(num_classes, self.unit, self.grid, ball=ball, count_units=count_units)

    def aggregate_reach(self, tally: Tally) -> Reach:
        """Return the reach with counts as heavy as the radius; see the proof above."""
        del tally
        if not self.needs_delta:
            raise ValueError(
                "Expected mechanism=gaussian for a sum of clients, who add such noise in shares, "
                f"got mechanism={self.mechanism}."
            )
        return Reach(math.sqrt(2) * GRID * self.grid, 2.0 * GRID * self.grid)

    def simulated(self, key: jax.Array) -> Noise:
        """Return simulated noise: normal, or discrete Laplace."""
        guarantee = self.guarantee_of(0, 0, 0)
        return Noise(
            guarantee,
            self.stddev,
            lambda totals: totals + self.simulated_noise(key, totals.shape),
        )

    def exact_noise(self) -> Noise:
        """Return exact noise: the discrete Gaussian, or discrete Laplace noise."""
        if self.norm == 1:
            # All in integers: features, counts and noise, as floats would show in their last
            # places.
            scale = exact_noise.safe_scale(round(self.sensitivity), self.epsilon)
            guarantee = self._guarantee(Pure(self.epsilon), "pure")
            draw = partial(exact_noise.discrete_laplace, scale=scale)
            return Noise(replace(guarantee, sampler="release"), math.sqrt(2) * scale, draw)
        multiplier = calibration.zcdp_noise_multiplier(self.epsilon, self.delta)
        # One float more makes up for the rounding of the product.
        stddev = math.nextafter(multiplier * self.sensitivity, math.inf)
        guarantee = self._guarantee(Concentrated(multiplier), "zCDP")
        draw = partial(exact_noise.discrete_gaussian, stddev=stddev)
        return Noise(replace(guarantee, sampler="release"), stddev, draw)

    def read(
        self,
        noisy: np.ndarray,
        stddev: float,
        encode: Encoder,
        queries: Queries,
        guarantee: Guarantee,
    ) -> Answers:
        """Classify the queries by noisy sums and counts; see `OneSumLabeler.read`."""
        ball = Ball.around(queries, self.norm)
        radius = GRID * self.grid
        noisy = np.asarray(noisy, np.float64)
        sums = NoisySums(
            # From units to records, and to features of a ball of radius 1.
            noisy[:, :-1] / radius,
            noisy[:, -1] / self.count_units,
            stddev / radius,
            stddev / self.count_units,
        )
        spectrum = Spectrum.of(ball.clip(queries.features), np.asarray(queries.size, np.float64))
        weights, bias, link = self.solve(sums, spectrum)
        head = Head(weights, bias, ball, encode=encode, link=link)
        return Answers.predicted(head.of_features(queries.features), guarantee, head)

    @abc.abstractmethod
    def solve(self, noisy: NoisySums, spectrum: Spectrum) -> tuple[np.ndarray, np.ndarray, Link]:
        """Return the linear classifier of clipped features.

        Args:
          noisy: Noisy sums and counts of the classes.
          spectrum: Second moment of the clipped public features.

        Returns:
          Weights `[f, num_classes]`, bias `[num_classes]`, and link of `Head`.
        """

    def _multiplier(self) -> float:
        if self.epsilon == math.inf:
            return 0.0
        return analytic_gaussian.gaussian_noise_multiplier(self.epsilon, self.delta)

    @property
    def stddev(self) -> float:
        """Standard deviation of the simulated noise, in units."""
        if self.norm == 1:
            return math.sqrt(2) * self.sensitivity / self.epsilon
        return self._multiplier() * self.sensitivity

    def simulated_noise(self, key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
        """Draw the simulated noise, float64, in units. `key` is consumed."""
        if self.norm == 2:
            return self.stddev * np.asarray(jax.random.normal(key, shape), np.float64)
        draws = np.asarray(jax.random.exponential(key, (2, *shape)), np.float64)
        up, down = np.floor(self.sensitivity / self.epsilon * draws)
        noise: np.ndarray = up - down
        return noise

    def _guarantee(self, event: Event, accountant: str) -> Guarantee:
        delta = self.delta if self.needs_delta else 0.0
        return Guarantee(
            self.epsilon,
            delta,
            self.relation,
            trust="central",
            events=(event,),
            unit=self.unit,
            accountant=accountant,
        )

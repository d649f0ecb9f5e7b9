"""Noisy sums of private features, one for each class: the private step of linear labelers.

Each record is clipped to a ball around a public center and added to the sum of its class. A last
column counts the records. One release of these sums is all that the labelers of `prototypes` and
`least_squares` read, so what follows it is post-processing.

**Sums are integers.** A clipped coordinate is cut toward zero to a multiple of 1/`GRID` of the
radius, which makes no norm larger. So integer noise from `privacy.exact_noise` makes the release
exact (`SumsLabeler.release_sums`), and `SumsLabeler.release` simulates it.

**Sensitivity.** Let R be the radius and c <= R what a record adds to the count of its class. A
record is a vector (x, c) in the block of its class, with |x| <= R.

- Without the record, the sums move by one such vector: by sqrt(R² + c²) in L2 norm, and by R + c in
  L1 norm.
- With another record in its place, the sums move by the difference of two. In one class, the
  counts agree, and x moves by 2R. In two classes, the L2 norm is sqrt(2(R² + c²)) <= 2R, and the L1
  norm is 2(R + c). So with c = R the counts are free in L2 norm.
- All records of a person have weights of at most 1 in sum (`privacy.contributions.shared`). So a
  person adds a point of the convex hull of such vectors and 0. The hull's longest vector and its
  diameter are those of the vectors themselves. So both bounds hold for persons.

Gaussian noise covers the L2 norm. Laplace noise covers the L1 norm, to which features are then
clipped. The discrete Gaussian protects whichever integers move, by concentrated DP.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal.disk import write_arrays
from rknn_jax.labelers import Labeler, _persons
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy import accounting, contributions, exact_noise
from rknn_jax.privacy.contributions import SIMULATED_GRID, Protected
from rknn_jax.privacy.guarantee import RELATIONS, Event, Guarantee, Relation
from rknn_jax.types import Answers, Array, Encoder, Queries, Records

Noise = Literal["gaussian", "laplace"]

GRID = 4096
"""Units of the radius, in which sums are counted."""

NORMS: dict[str, Literal[1, 2]] = {"gaussian": 2, "laplace": 1}
"""Norm in which features are clipped for each kind of noise."""

COUNT_UNITS: dict[tuple[Noise, Relation], int] = {
    ("gaussian", "replace-one"): GRID,
    ("gaussian", "add-remove"): GRID // 2,
    ("laplace", "replace-one"): GRID // 8,
    ("laplace", "add-remove"): GRID // 8,
}
"""Units that a record adds to the count of its class.

More units leave less noise on the counts and more on the sums.
"""

CLIP_SLACK = 1 - 1e-12
"""Factor that keeps a clipped norm below the radius in spite of rounding."""


@dataclass(frozen=True, eq=False)
class Ball:
    """Public ball to which features are clipped.

    Attributes:
      center: Center of the public features, float64 `[f]`.
      radius: Radius, positive.
      norm: Norm of the ball, 1 or 2.
    """

    center: np.ndarray
    radius: float
    norm: Literal[1, 2]

    @classmethod
    def around(cls, queries: Queries, norm: Literal[1, 2]) -> "Ball":
        """Return the ball around the mean of the public rows that holds half of them.

        Args:
          queries: Public queries, each of which counts as often as its size.
          norm: Norm of the ball.
        """
        features = np.asarray(queries.features, np.float64)
        center = np.average(features, axis=0, weights=queries.size)
        lengths = np.linalg.norm(features - center, ord=norm, axis=1)
        radius = float(np.median(np.repeat(lengths, queries.size)))
        return cls(center, radius if radius > 0 else 1.0, norm)

    def clip(self, features: Array) -> np.ndarray:
        """Return features relative to the center, clipped, in units of the radius.

        Each row depends on that row and the ball alone. A row with NaN or infinity becomes 0.

        Args:
          features: `[n, f]`.

        Returns:
          float64 `[n, f]`, whose rows have a norm of at most 1.
        """
        rows = np.asarray(features, np.float64)
        rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, self.center)
        rows = (rows - self.center) / self.radius
        lengths = np.linalg.norm(rows, ord=self.norm, axis=1, keepdims=True)
        clipped: np.ndarray = rows * (CLIP_SLACK / np.maximum(lengths, 1))
        return clipped


class Sums(NamedTuple):
    """Sums of the private features: private.

    Attributes:
      totals: int64 `[num_classes, f + 1]`, sums and counts, in units.
      encode: Encoder of the run, which is public.
    """

    totals: np.ndarray
    encode: Encoder


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


class Spectrum(NamedTuple):
    """Second moment of the clipped public features, by its eigenvectors.

    Attributes:
      directions: float64 `[f, f]`, one eigenvector in each column.
      variances: float64 `[f]`, eigenvalues, at least 0.
      mean: float64 `[f]`, mean of the clipped public features.
    """

    directions: np.ndarray
    variances: np.ndarray
    mean: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, weights: np.ndarray) -> "Spectrum":
        """Return the spectrum of clipped public rows `[s, f]` with weights `[s]`."""
        mean = np.average(rows, axis=0, weights=weights)
        centered = (rows - mean) * np.sqrt(weights / weights.sum())[:, None]
        variances, directions = np.linalg.eigh(centered.T @ centered)
        return cls(directions, np.maximum(variances, 0), mean)


@dataclass(frozen=True, eq=False)
class Head:
    """Linear classifier of clipped features.

    Attributes:
      weights: float64 `[f, num_classes]`.
      bias: float64 `[num_classes]`.
      ball: Public ball to which features are clipped.
      encode: Map of images to features.
      link: `softmax` if scores are logarithms of odds, or `linear` if they are probabilities.
    """

    weights: np.ndarray
    bias: np.ndarray
    ball: Ball
    encode: Encoder
    link: Literal["softmax", "linear"]

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Weights and bias by name."""
        return {"weights": self.weights, "bias": self.bias}

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`.

        Args:
          images: uint8 `[n, height, width, channels]`.
        """
        return self.of_features(self.encode(images))

    def of_features(self, features: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of features `[n, f]`."""
        scores = self.ball.clip(features) @ self.weights + self.bias
        if self.link == "softmax":
            return np.asarray(jax.nn.softmax(jnp.asarray(scores, jnp.float32)))
        # The largest score keeps its lead if all scores are negative.
        lifted = scores - np.minimum(scores.max(axis=1, keepdims=True), 0)
        positive = np.maximum(lifted, 0) + 1e-9 * (scores >= scores.max(axis=1, keepdims=True))
        shares: np.ndarray = positive / positive.sum(axis=1, keepdims=True)
        return shares.astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write `linear.npz`: weights, bias, and the ball."""
        folder.mkdir(parents=True)
        radius = np.array(self.ball.radius)
        ball = {"center": self.ball.center, "radius": radius, "norm": np.array(self.ball.norm)}
        write_arrays(folder / "linear.npz", self.params | ball, compress=False)


@dataclass(frozen=True)
class SumsLabeler(Labeler[Sums]):
    """Labeler that reads the private records by one release of their class sums.

    Attributes:
      epsilon: Privacy budget of the sums; infinity means no noise and no privacy.
      delta: Probability delta, for Gaussian noise.
      relation: Neighboring relation of the data sets.
      unit: Privacy unit: record, or person. A person's records share a weight of 1.
      mechanism: `gaussian` clips features in L2 norm and needs a delta. `laplace` clips them in L1
        norm and is pure.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    unit: Protected = "record"
    mechanism: Noise = "gaussian"

    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_unit()
        if self.relation not in RELATIONS:
            raise ValueError(
                f"Expected relation to be one of {RELATIONS}, got relation={self.relation!r}."
            )
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
    def grid(self) -> int:
        """Units of weight of a record, or of a person."""
        return 1 if self.unit == "record" else SIMULATED_GRID

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
        return math.hypot(radius, self.count_units) if self.relation == "add-remove" else 2 * radius

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee of the simulated release, which depends on no number."""
        del num_units, num_queries, num_classes
        if self.norm == 1:
            return self._guarantee(Event("pure", self.epsilon), "pure")
        return self._guarantee(Event("gaussian", self._multiplier()), "analytic Gaussian")

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Sums:
        """Sum the clipped features of the private records, class by class.

        Args:
          key: Random key, which is not used, because nothing is drawn.
          private: Private records.
          encode: Encoder of the queries' features.
          queries: Public queries, which determine the ball.
          num_classes: Number of classes |Y|.
        """
        del key
        ball = Ball.around(queries, self.norm)
        person = _persons.numbered(private) if self.unit == "person" else None
        units = class_units(private.labels, person, num_classes, self.grid)
        clipped = ball.clip(encode(private.images))
        rows = np.trunc(clipped * GRID).astype(np.int64)
        one = np.full((len(rows), 1), COUNT_UNITS[self.mechanism, self.relation], np.int64)
        weighed = np.hstack([rows, one]) * units[:, None]
        totals = np.zeros((num_classes, weighed.shape[1]), np.int64)
        for label in range(num_classes):
            totals[label] = weighed[np.asarray(private.labels) == label].sum(axis=0)
        return Sums(totals, encode)

    def release(
        self,
        key: jax.Array,
        contribution: Sums,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Add the noise, in simulation, and classify the queries.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, which are not used. Defaults to none.
        """
        del predicted
        guarantee = self.guarantee_of(0, len(queries.features), num_classes)
        noisy = contribution.totals + self.simulated_noise(key, contribution.totals.shape)
        return self.answer(noisy, self.stddev, contribution.encode, queries, guarantee)

    def release_sums(
        self, contribution: Sums, queries: Queries, ledger: Payer, purpose: str
    ) -> Answers:
        """Charge a ledger, add exact integer noise, and classify the queries.

        The noise comes from the operating system's entropy: the discrete Gaussian, or discrete
        Laplace noise.

        Args:
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          ledger: Budget of the private records.
          purpose: A few words for the ledger.

        Raises:
          LedgerError: If the budget does not allow the charge; nothing is drawn then.
          ValueError: If epsilon is infinite.
        """
        if self.epsilon == math.inf:
            raise ValueError(
                "Expected a finite epsilon for a release, got epsilon=inf; use `release`, which "
                "simulates."
            )
        draw: Callable[[np.ndarray], np.ndarray]
        if self.norm == 1:
            scale = exact_noise.safe_scale(round(self.sensitivity), self.epsilon)
            stddev = math.sqrt(2) * scale
            guarantee = self._guarantee(Event("pure", self.epsilon), "pure")
            draw = partial(exact_noise.discrete_laplace, scale=scale)
        else:
            multiplier = accounting.zcdp_noise_multiplier(self.epsilon, self.delta)
            # One float more makes up for the rounding of the product.
            stddev = math.nextafter(multiplier * self.sensitivity, math.inf)
            guarantee = self._guarantee(Event("concentrated", multiplier), "zCDP")
            draw = partial(exact_noise.discrete_gaussian, stddev=stddev)
        guarantee = replace(guarantee, sampler="release")
        ledger.charge(guarantee, purpose)
        noisy = draw(contribution.totals)
        return self.answer(noisy, stddev, contribution.encode, queries, guarantee)

    def answer(
        self,
        noisy: np.ndarray,
        stddev: float,
        encode: Encoder,
        queries: Queries,
        guarantee: Guarantee,
    ) -> Answers:
        """Classify the queries by noisy sums: post-processing.

        Args:
          noisy: Noisy sums and counts, `[num_classes, f + 1]`, in units.
          stddev: Standard deviation of their noise, in units.
          encode: Encoder of the queries' features.
          queries: Public queries `[s, f]`.
          guarantee: Guarantee of the noisy sums.
        """
        ball = Ball.around(queries, self.norm)
        radius = GRID * self.grid
        noisy = np.asarray(noisy, np.float64)
        sums = NoisySums(
            noisy[:, :-1] / radius,
            noisy[:, -1] / self.count_units,
            stddev / radius,
            stddev / self.count_units,
        )
        spectrum = Spectrum.of(ball.clip(queries.features), np.asarray(queries.size, np.float64))
        weights, bias, link = self.solve(sums, spectrum)
        head = Head(weights, bias, ball, encode, link)
        return Answers.predicted(head.of_features(queries.features), guarantee, head)

    @abc.abstractmethod
    def solve(
        self, noisy: NoisySums, spectrum: Spectrum
    ) -> tuple[np.ndarray, np.ndarray, Literal["softmax", "linear"]]:
        """Return weights, bias, and link of `Head`, from noisy sums and the public spectrum."""

    def _multiplier(self) -> float:
        if self.epsilon == math.inf:
            return 0.0
        return accounting.gaussian_noise_multiplier(self.epsilon, self.delta)

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
            "central",
            (event,),
            unit=self.unit,
            accountant=accountant,
        )


def class_units(
    labels: Array, person: np.ndarray | None, num_classes: int, grid: int
) -> np.ndarray:
    """Return the weight of each record in units, int64 `[n]`.

    Args:
      labels: Integers `[n]`. A record whose label is not a class has weight 0.
      person: Number of each record's person, int64 `[n]`, whose records share the weight. None
        gives each record one unit.
      num_classes: Number of classes |Y|.
      grid: Units of a person.
    """
    labels = np.asarray(labels)
    known = (labels >= 0) & (labels < num_classes)
    units = known.astype(np.int64)
    if person is not None and known.any():
        owner = np.unique(person[known], return_inverse=True)[1]
        units[known] = contributions.shared(owner, grid).units
    return units

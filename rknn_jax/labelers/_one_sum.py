"""Labelers that read the private records by one sum of integers, with noise added once.

Such a labeler says what a record adds (`Tally`), which noise hides a record (`Noise`), and how the
noisy sum becomes answers (`OneSumLabeler.read`). The sum can be taken in one pass over records that
do not fit into memory, and exact noise is drawn on integers. `OneSumLabeler` makes the rest of a
labeler from these.
"""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, final

import jax
import numpy as np

from rknn_jax import postprocessing
from rknn_jax.labelers import Labeler, _persons, overridden
from rknn_jax.labels import PublicSide
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy import contributions
from rknn_jax.privacy.contributions import SIMULATED_GRID, Protected
from rknn_jax.privacy.guarantee import RELATIONS, Guarantee, Relation
from rknn_jax.types import Answers, Array, Encoder, Queries, Records

BLOCK = 2**24
"""Terms that are held at a time."""

ROWS_OF_AN_ANSWER = 10
"""Public rows that share one answer, which sets how far rows share their labels.

Each row has a prediction of its own. On six data sets it was within 5 points of the best of four
strengths. As far as if there were one answer a class, 15 points of text's labels were lost.
"""


class Persons(NamedTuple):
    """Persons of records.

    Attributes:
      number: Number of each record's person, int `[n]`, from 0 on without gaps.
      name: Name of each record's person as a number, uint64 `[n]`, the same whatever other persons
        there are.
    """

    number: np.ndarray
    name: np.ndarray


class Tally(Protocol):
    """Public side of one sum over private records.

    A record becomes a part by itself, whatever other records there are. Parts are added with
    integer weights, which bound a person's.

    Attributes:
      unit: Privacy unit: record, or person.
      grid: Units of weight of a record, or of a person.
      width: Number of features f.
      shape: Shape of the sum.
    """

    @property
    def unit(self) -> Protected: ...

    @property
    def grid(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def parts(self, points: Array, ids: np.ndarray) -> np.ndarray:
        """Return the parts of records, `[n, c]`, one row each.

        Args:
          points: Features `[n, f]`.
          ids: Classes, int `[n]` in `[0, num_classes)`.
        """

    def total(self, points: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the sum over records of one unit of weight each, int64 `shape`.

        Args:
          points: Finite features, float32 `[n, f]`.
          ids: Classes, int32 `[n]`. A record with a negative one adds nothing.
        """

    def bounded(self, parts: np.ndarray, persons: Persons) -> np.ndarray:
        """Return the sum over persons, int64 `shape`, each of whom adds no more than a record may.

        Args:
          parts: Parts of the records, `[n, c]`.
          persons: Persons of the records.
        """

    def fits(self, totals: np.ndarray, num_records: int) -> bool:
        """Return whether so many records of one unit of weight can have this sum."""


@dataclass(frozen=True, eq=False)
class ClassTally(abc.ABC):
    """Tally that adds what a record gives its class, with weights; see `Tally`.

    The last column of a part is the class of its record.

    Attributes:
      num_classes: Number of classes |Y|.
      unit: Privacy unit: record, or person.
      grid: Units of weight of a record, or of a person.
    """

    num_classes: int
    unit: Protected
    grid: int

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of the sum."""

    @abc.abstractmethod
    def parts(self, points: Array, ids: np.ndarray) -> np.ndarray:
        """Return the parts of records; see `Tally.parts`."""

    @abc.abstractmethod
    def terms(self, parts: np.ndarray) -> np.ndarray:
        """Return what records add to the sum of their class, int64 `[n, shape[1]]`.

        Args:
          parts: Parts of the records, `[n, c]`.
        """

    @abc.abstractmethod
    def bounds(self, terms: np.ndarray) -> np.ndarray:
        """Return which terms are within what the sensitivity assumes, bool `[n]`."""

    def weighted(self, parts: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Return the sum of the parts times their weights, int64.

        Args:
          parts: Parts of the records, `[n, c]`.
          units: Weights of the records, int64 `[n]`.

        Raises:
          AssertionError: If a term is beyond what the noise is made for, which no record can cause.
        """
        totals = np.zeros(self.shape, np.int64)
        size = max(1, BLOCK // self.shape[1])
        for label in range(self.num_classes):
            mine = np.flatnonzero(parts[:, -1] == label)
            for block in np.split(mine, range(size, len(mine), size)):
                terms = self.terms(parts[block])
                if terms.dtype != np.int64 or not self.bounds(terms).all():
                    raise AssertionError(
                        "Expected terms within the sensitivity, got others; nothing was released, "
                        "report this as a bug."
                    )
                totals[label] += units[block] @ terms
        return totals

    def total(self, points: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the sum over records; see `Tally.total`."""
        used = ids >= 0
        return self.weighted(self.parts(points[used], ids[used]), np.ones(used.sum(), np.int64))

    def bounded(self, parts: np.ndarray, persons: Persons) -> np.ndarray:
        """Return the sum over persons, whose records share a weight; see `Tally.bounded`."""
        return self.weighted(parts, contributions.shared(persons.number, self.grid).units)


class Noise(NamedTuple):
    """Noise of a sum.

    Attributes:
      guarantee: Guarantee of what `draw` returns.
      stddev: Standard deviation of the noise of one total, in units.
      draw: Function that draws: int64 totals to what is released.
    """

    guarantee: Guarantee
    stddev: float
    draw: Callable[[np.ndarray], np.ndarray]


class Sums(NamedTuple):
    """Sum over the private records: private.

    Attributes:
      totals: int64, of the shape of the tally, in units.
      encode: Encoder of the run, which is public.
    """

    totals: np.ndarray
    encode: Encoder


class Reach(NamedTuple):
    """Distances of a sum, in units of weight and L2 norm.

    Attributes:
      norm: Largest norm of what a record adds.
      change: Largest distance of two sums over records that are scaled to that norm.
    """

    norm: float
    change: float


@dataclass(frozen=True)
class OneSumLabeler(Labeler[Sums]):
    """Labeler of one noisy sum.

    Attributes:
      epsilon: Privacy budget of the sum; infinity means no noise and no privacy.
      delta: Probability delta, for Gaussian noise.
      relation: Neighboring relation of the data sets.
      unit: Privacy unit: record, or person. A person's records share a weight of 1.
      exact_mechanisms: Settings of the labeler with each mechanism that it can draw exactly, by the
        mechanism's name. The first one is used if none is named.
      candidates: True if queries are candidates of a choice, of which few are better in a sum of
        clients.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    unit: Protected = field(default="record", metadata={"travels": False})

    trains: ClassVar[bool] = True
    exact_mechanisms: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    candidates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_unit()
        if self.relation not in RELATIONS:
            raise ValueError(
                f"Expected relation to be one of {RELATIONS}, got relation={self.relation!r}."
            )

    @property
    def grid(self) -> int:
        """Units of weight of a record, or of a person."""
        return 1 if self.unit == "record" else SIMULATED_GRID

    @property
    @abc.abstractmethod
    def sensitivity(self) -> float:
        """Largest change of the sum between neighbors, in units, as the noise measures it."""

    @abc.abstractmethod
    def tally(self, queries: Queries, num_classes: int) -> Tally:
        """Return the public side of the sum.

        Args:
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.
        """

    def aggregate_tally(self, queries: Queries, num_classes: int) -> Tally:
        """Return the public side of a sum that is seen with Gaussian noise; see `tally`."""
        return self.tally(queries, num_classes)

    @abc.abstractmethod
    def aggregate_reach(self, tally: Tally) -> Reach:
        """Return how far a record moves such a sum.

        Args:
          tally: Result of `aggregate_tally`.

        Raises:
          ValueError: If the labeler's settings are for other noise than Gaussian.
        """

    def drawn(self, tally: Tally) -> tuple[int, ...]:
        """Return the shape of what `Noise.draw` returns. Defaults to that of the sum."""
        return tally.shape

    @abc.abstractmethod
    def simulated(self, key: jax.Array) -> Noise:
        """Return simulated noise. `key` is consumed by its one draw."""

    @abc.abstractmethod
    def exact(self) -> Noise:
        """Return exact integer noise, on the operating system's entropy. Epsilon is finite."""

    @abc.abstractmethod
    def read(
        self,
        noisy: np.ndarray,
        stddev: float,
        encode: Encoder,
        queries: Queries,
        guarantee: Guarantee,
    ) -> Answers:
        """Classify the queries by what was drawn: post-processing.

        Args:
          noisy: Result of `Noise.draw`.
          stddev: Standard deviation of the noise, in units.
          encode: Encoder of the queries' features.
          queries: Public queries `[s, f]`, as in `tally`.
          guarantee: Guarantee of what was drawn.
        """

    def of_aggregate(self, noisy: np.ndarray) -> np.ndarray:
        """Return what `read` takes, from a noisy sum that is seen whole. Defaults to the sum.

        Args:
          noisy: Noisy sum, of the shape of `aggregate_tally`.
        """
        return noisy

    def public_side(
        self,
        queries: Queries,
        features: Array,
        num_classes: int,
        smoothing: Literal["auto", "none"] = "auto",
    ) -> PublicSide:
        """Return the graph of the public rows, along which similar rows share predictions."""
        num_rows = len(features)
        if len(queries.index) < num_rows:
            return super().public_side(queries, features, num_classes, smoothing)
        graph = postprocessing.public_graph(
            features, num_classes, metric=self.metric, smoothing=smoothing
        )
        return PublicSide(graph, None, max(num_classes, num_rows // ROWS_OF_AN_ANSWER))

    @final
    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Sums:
        """Sum what the private records add; see `Labeler.contribute`. Nothing is drawn."""
        del key
        tally = self.tally(queries, num_classes)
        labels = np.asarray(private.labels)
        known = (labels >= 0) & (labels < num_classes)
        points = np.asarray(encode(private.images))
        if self.unit == "record":
            return Sums(tally.total(points, np.where(known, labels, -1)), encode)
        person = np.unique(_persons.numbered(private)[known], return_inverse=True)[1]
        parts = tally.parts(points[known], labels[known])
        return Sums(tally.bounded(parts, Persons(person, person.astype(np.uint64))), encode)

    @final
    def release(
        self,
        key: jax.Array,
        contribution: Sums,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Draw the noise in simulation, and classify the queries; see `Labeler.release`."""
        del num_classes, predicted
        return self._answered(self.simulated(key), contribution, queries)

    @final
    def release_exact(
        self, contribution: Sums, queries: Queries, ledger: Payer, purpose: str
    ) -> Answers:
        """Charge a ledger, draw exact integer noise, and classify the queries.

        The noise comes from the operating system's entropy.

        Args:
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          ledger: Budget of the private records.
          purpose: A few words for the ledger.

        Raises:
          LedgerError: If the budget does not allow the charge; nothing is drawn then.
          ValueError: If epsilon is infinite, or if this class has its own `contribute` or
            `release`, which the noise is not made for.
        """
        if own := overridden(type(self)):
            raise ValueError(
                f"Expected a labeler whose sum is released, got {type(self).__name__}, which has "
                f"its own {' and '.join(own)}; nothing was charged, use `release`, which simulates."
            )
        if self.epsilon == math.inf:
            raise ValueError(
                "Expected a finite epsilon for a release, got epsilon=inf; use `release`, which "
                "simulates."
            )
        noise = self.exact()
        ledger.charge(noise.guarantee, purpose)
        return self._answered(noise, contribution, queries)

    @final
    def _answered(self, noise: Noise, contribution: Sums, queries: Queries) -> Answers:
        noisy = noise.draw(contribution.totals)
        return self.read(noisy, noise.stddev, contribution.encode, queries, noise.guarantee)

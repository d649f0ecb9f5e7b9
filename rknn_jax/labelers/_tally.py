"""Sums of integers over private records: the part of each record, and the sum itself.

A record's part depends on that record and on public data alone. Parts are added with integer
weights, so that the sum is the same bits in whatever order and blocks the records come.
"""

import abc
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from rknn_jax.privacy import contributions
from rknn_jax.privacy.contributions import Protected
from rknn_jax.types import Array

BLOCK = 2**24
"""Terms that are held at a time."""


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
      counted: Number of a unit's records that count; `shared` if all of a person do with a weight
        of 1 in sum, and `clipped` if their sum is clipped to the norm of one.
      width: Number of features f.
      shape: Shape of the sum.
    """

    @property
    def unit(self) -> Protected: ...

    @property
    def counted(self) -> int | Literal["shared", "clipped"]: ...

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
          ids: Classes, int `[n]`, or ballots `[n, r + 1]`. Those out of range add nothing.
        """

    def total(self, points: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the sum over records of one unit of weight each, int64 `shape`.

        Args:
          points: Finite features, float32 `[n, f]`.
          ids: Classes, int32 `[n]`, or ballots `[n, r + 1]`. A record with a negative class adds
            nothing.
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
    def counted(self) -> Literal[1, "shared"]:
        """Number of a unit's records that count; see `Tally`."""
        return 1 if self.unit == "record" else "shared"

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

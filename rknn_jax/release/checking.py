"""Records that check labels, kept shard by shard while the others are counted: private.

`rknn_jax.check` says what becomes of them.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.check import Checkers, Checks
from rknn_jax.privacy import contributions
from rknn_jax.privacy.roles import VOTE
from rknn_jax.records.classes import MISSING
from rknn_jax.records.persons import person_names


class Checking(NamedTuple):
    """Records of a shard that check.

    Attributes:
      role: Role of each record, int8 `[c]`.
      points: Its features, float32 `[c, f]`; zeros if it cannot be used.
      ids: Class or ballot, int32 `[c]` or `[c, r + 1]`; `MISSING` if the record cannot be used.
      person: Name of its person, uint64 `[c, 2]`; of no columns if records are protected.
      sizes: Number of records of the shard with each role, int64 `[4]`.
      names: Hash of the names of all persons of the shard, in the order of the records, on which
        their roles depend. Defaults to "", if records are protected.
    """

    role: np.ndarray
    points: np.ndarray
    ids: np.ndarray
    person: np.ndarray
    sizes: np.ndarray
    names: str = ""


class Gathered:
    """Records of one shard that check, as its blocks are read."""

    def __init__(self, checkers: Checkers | None, number: int, width: int, ids: np.ndarray) -> None:
        """Begin with no record.

        Args:
          checkers: Public side of the check; None if no record checks.
          number: Number of the shard.
          width: Number of features f.
          ids: Classes or ballots of no record.
        """
        self._checkers = checkers
        self._number = number
        self._sizes = np.zeros(4, np.int64)
        self._points = [np.zeros((0, width), np.float32)]
        self._roles = [np.zeros(0, np.int8)]
        self._ids = [ids.astype(np.int32)]
        self._persons: list[np.ndarray] = []
        self._names = hashlib.sha256()

    def take(
        self,
        points: np.ndarray,
        ids: np.ndarray,
        persons: np.ndarray | None,
        first: int,
        where: str,
    ) -> np.ndarray:
        """Keep the records of a block that check, and return `ids` with them missing.

        Args:
          points: Features, float32 `[b, f]`.
          ids: Classes or ballots, int32 `[b]` or `[b, r + 1]`.
          persons: Persons as read, `[b]`, or None if records are protected.
          first: Number of the block's first row in its shard.
          where: Name of the shard, for the errors.
        """
        if self._checkers is None:
            return ids
        roles, names = self._of(self._checkers, persons, first, len(points), where)
        checks = roles != VOTE
        mine = ids[checks]
        usable = casts(mine)
        self._sizes += np.bincount(roles, minlength=4)
        self._roles.append(roles[checks])
        self._ids.append(mine.astype(np.int32))
        self._persons.append(names[checks])
        self._points.append(np.where(usable[:, None], points[checks], np.float32(0)))
        votes: np.ndarray = ids.copy()
        votes[checks] = MISSING
        return votes

    def found(self) -> Checking | None:
        """Return the records that were kept, or None if no record checks."""
        if self._checkers is None:
            return None
        by_person = self._checkers.unit == "person"
        names = np.zeros((0, 2 if by_person else 0), np.uint64)
        return Checking(
            np.concatenate(self._roles),
            np.concatenate(self._points),
            np.concatenate(self._ids),
            person=np.concatenate([names, *self._persons]),
            sizes=self._sizes,
            names=self._names.hexdigest() if by_person else "",
        )

    def _of(
        self,
        checkers: Checkers,
        persons: np.ndarray | None,
        first: int,
        count: int,
        where: str,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the roles of a block and the names of its persons.

        A record that names no person votes, and is not counted.
        """
        roles = checkers.roles
        if checkers.unit == "record":
            return roles.of_rows(self._number, first, count), np.zeros((count, 0), np.uint64)
        if persons is None:
            raise ValueError(
                f"Expected a person for each record in {where}, got none; name {option('person')}."
            )
        names, known = person_names(persons, where)
        self._names.update(names.tobytes())
        distinct, number = np.unique(names, axis=0, return_inverse=True)
        found = roles.of_persons(distinct)[number.ravel()]
        return np.where(known, found, np.int8(VOTE)), names


def together(parts: Sequence[Checking], checkers: Checkers) -> Checks:
    """Return the records of all shards that check, with their weights.

    Args:
      parts: Records of each shard, in the order of the shards.
      checkers: Public side of the check.
    """
    role = np.concatenate([one.role for one in parts])
    points = np.concatenate([one.points for one in parts])
    ids = np.concatenate([one.ids for one in parts])
    usable = casts(ids)
    units = usable.astype(np.int64)
    sizes = np.sum([one.sizes for one in parts], axis=0)
    if checkers.unit == "person":
        persons = np.concatenate([one.person for one in parts])
        _, first, number = np.unique(persons, axis=0, return_index=True, return_inverse=True)
        sizes = np.bincount(role[first], minlength=4)
        mine = np.unique(number.ravel()[usable], return_inverse=True)[1]
        units[usable] = contributions.shared(mine, checkers.grid).units
    return Checks(role, points, ids, units=units, sizes=sizes)


def casts(ids: np.ndarray) -> np.ndarray:
    """Return which records can be used, bool `[b]`, by classes or ballots as `encode` makes them.

    Args:
      ids: Classes int `[b]`, or ballots `[b, r + 1]`; `MISSING` for a record that cannot be used.
    """
    counts: np.ndarray = (ids != MISSING).any(axis=tuple(range(1, ids.ndim)))
    return counts

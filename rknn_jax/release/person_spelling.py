"""Persons whose names differ in capitals or spaces alone: private, for the curator's eyes alone."""

from collections.abc import Iterator

import numpy as np

from rknn_jax.records.persons import bare_names, person_names


class Spellings:
    """Names of persons, 32 bytes a name, beside what they are without capitals and spaces."""

    def __init__(self) -> None:
        self._pairs = np.zeros((0, 4), np.uint64)

    def add(self, persons: np.ndarray, where: str) -> None:
        """Add the persons of a block.

        Args:
          persons: Persons as read, `[b]`.
          where: Name of the shard, for the errors.
        """
        names, known = person_names(persons, where)
        pairs = np.concatenate([bare_names(persons, where), names], axis=1)[known]
        self._pairs = np.unique(np.concatenate([self._pairs, pairs]), axis=0)

    @property
    def num_persons(self) -> int:
        """Number of persons with a name."""
        return len(np.unique(self._pairs[:, 2:], axis=0))

    def advice(self) -> Iterator[str]:
        """Yield how many names are alike."""
        counts = np.unique(self._pairs[:, :2], axis=0, return_counts=True)[1]
        alike = counts[counts > 1]
        if len(alike):
            yield (
                f"{alike.sum():,} names of persons are {len(alike):,}, but for capitals or spaces, "
                "and each counts as a person of its own. If they are the same people, more is "
                "revealed of them than epsilon covers; write each person's name in one way."
            )

"""Votes of private records for their nearest queries, as a sum that one pass can take.

`VoteNoise` is the exact noise of a curator on that sum.
"""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax.bsvs import NO_CELL
from rknn_jax.labelers._tally import Persons
from rknn_jax.mechanisms.base import CentralMechanism, check_counts
from rknn_jax.neighbors import Metric, nearest, nearest_votes, usable_rows
from rknn_jax.privacy import contributions
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Array


@dataclass(frozen=True)
class Bound:
    """Bound on the votes of a person; see `rknn_jax.privacy.contributions`.

    Attributes:
      most: Most records of a person, drawn at random. Defaults to None: all of them share a vote.
      seed: Seed of the draw, public. Defaults to 0.
      norm: Norm of a person's votes that is bounded, if all records count: 1 shares a vote, 2 clips
        for Gaussian noise. Defaults to 1.
      grid: Units of a vote that all records of a person share. Defaults to `contributions.GRID`.
    """

    most: int | None = None
    seed: int = 0
    norm: Literal[1, 2] = 1
    grid: int = contributions.GRID


@dataclass(frozen=True)
class VoteTally:
    """Public side of the votes: each record votes for the k queries nearest to it.

    A part holds the cells that a record votes for, int32 `[k]`, or `[k·c]` if it votes for c
    classes at each query. A negative one stands for a missing vote.

    Attributes:
      queries: Features of the queries, float32 `[s, f]`.
      num_classes: Number of classes |Y|.
      num_neighbors: Number of queries k that each record votes for. Defaults to 1.
      metric: Distance between features. Defaults to squared Euclidean.
      bound: Bound on the votes of a person. Defaults to None, for records of persons of their own.
    """

    queries: Array
    num_classes: int
    num_neighbors: int = 1
    metric: Metric = "sqeuclidean"
    bound: Bound | None = None

    @property
    def unit(self) -> Protected:
        """Privacy unit: person if the votes of one are bounded."""
        return "record" if self.bound is None else "person"

    @property
    def grid(self) -> int:
        """Units of a vote."""
        if self.bound is None:
            return 1
        return self.bound.most or self.bound.grid

    @property
    def counted(self) -> int | Literal["shared", "clipped"]:
        """Number of a unit's records that vote; see `Tally`."""
        if self.bound is None:
            return 1
        whole: Literal["shared", "clipped"] = "clipped" if self.bound.norm == 2 else "shared"
        return self.bound.most or whole

    @property
    def width(self) -> int:
        """Number of features f."""
        return int(self.queries.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(s, num_classes)` of the counts."""
        return len(self.queries), self.num_classes

    def parts(self, points: Array, ids: np.ndarray) -> np.ndarray:
        """Return the cells that records vote for, int32 `[n, k]`; see `Tally.parts`."""
        # Exact and by float64's order, so that a record votes alike at every door.
        near = nearest(points, self._queries, self.num_neighbors, metric=self.metric)
        return np.asarray(bsvs.cells(near, ids, self.num_classes))

    def total(self, points: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the votes of records; see `Tally.total`."""
        votes = nearest_votes(
            points,
            self._queries,
            ids,
            num_neighbors=self.num_neighbors,
            num_classes=self.num_classes,
            metric=self.metric,
        )
        return np.asarray(votes, np.int64)

    def bounded(self, parts: np.ndarray, persons: Persons) -> np.ndarray:
        """Return the bounded votes of persons; see `Tally.bounded`."""
        assert self.bound is not None
        size = len(self.queries) * self.num_classes
        if self.bound.most is not None:
            # By a public seed, the person's name and the order of their own records: other persons
            # change nothing in it.
            weights = contributions.limited(
                persons.number, persons.name, self.bound.most, self.bound.seed
            )
            # Votes that are not cast go to a cell beyond the last, which is cut off.
            cast = np.where(parts < 0, size, parts)
            return contributions.weighed_votes(cast, weights, size + 1)[:size].reshape(self.shape)
        # L1: a person's records share one record's vote. L2: they are clipped to its length, for
        # Gaussian noise.
        clipped = self.bound.norm == 2
        count = contributions.clipped_votes if clipped else contributions.shared_votes
        return count(parts, persons.number, size, self.grid).reshape(self.shape)

    def fits(self, totals: np.ndarray, num_records: int) -> bool:
        """Return whether these are k votes of each record; see `Tally.fits`."""
        # A sum that so many records cannot have is of other records, or damaged: nothing is spent
        # on it.
        return bool(totals.min(initial=0) >= 0 and totals.sum() == num_records * self.num_neighbors)

    @property
    def _queries(self) -> Array:
        return jnp.asarray(self.queries, jnp.float32)


@dataclass(frozen=True)
class SetTally(VoteTally):
    """Public side of the votes for sets of labels; see `rknn_jax.label_sets`.

    A record votes at each of its queries for up to r classes, and once for having voted, which is
    the last class.

    Attributes:
      labels_per_record: Most labels of a record that count, r. Defaults to 1.
    """

    labels_per_record: int = 1

    def fits(self, totals: np.ndarray, num_records: int) -> bool:
        """Return whether so many records can have these votes; see `Tally.fits`."""
        voted = totals[:, -1]
        named = totals[:, :-1]
        return bool(
            totals.min(initial=0) >= 0
            and voted.sum() == num_records * self.num_neighbors
            and (named <= voted[:, None]).all()
            and (named.sum(axis=1) <= self.labels_per_record * voted).all()
        )


def cells_of(tally: VoteTally, features: Array, labels: Array) -> np.ndarray:
    """Return the cells that records vote for, int32 `[n, k·r]`, private.

    A row that cannot be used votes for `NO_CELL`, as an error would tell of it. Each record's cells
    depend on that record alone.

    Args:
      tally: Votes of the records.
      features: Features of the records, float32 `[n, f]`.
      labels: Class numbers or ballots.
    """
    rows = usable_rows(np.asarray(features))
    usable = ~np.isnan(rows).any(axis=1)
    rows = np.where(usable[:, None], rows, np.float32(0))
    # Transposed, as labels are [n] or [n, r].
    return tally.parts(rows, np.where(usable, np.asarray(labels).T, NO_CELL).T)


@dataclass(frozen=True)
class VoteNoise:
    """Exact noise of a curator on votes; see `_sum_labeler.CuratorNoise`.

    Attributes:
      mechanism: Calibrated mechanism.
    """

    mechanism: CentralMechanism

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the noisy votes, which does not depend on n."""
        return self.mechanism.release_guarantee(1)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise, in votes."""
        return self.mechanism.noise_stddev

    def check(self, totals: np.ndarray, num_units: int) -> None:
        """Raise ValueError for votes that so many units cannot have cast."""
        check_counts(self.mechanism, totals, num_units)

    def draw(self, totals: np.ndarray) -> np.ndarray:
        """Return noisy votes, int64, or float64 multiples of 1 / `mechanism.grid` if it is not 1.

        Args:
          totals: Votes, int64 `[s, num_classes]`, in units of 1 / `mechanism.grid`.
        """
        return self.mechanism.release(totals.astype(np.int64))

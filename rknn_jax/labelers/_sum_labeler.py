"""Labelers whose private step is one sum of integers, which every door can run.

Such a labeler says once what a record adds (`tally`) and how the noisy sum is read (`read`):
simulation, a release and a federation call both. A release takes its exact noise too (`exact`), and
a release and a federation the labels of the public rows (`public_labels`), which of them to doubt
(`concerns`), and what is said of it in words.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike

from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern
from rknn_jax.labelers import Labeler
from rknn_jax.labelers._client_sum import Clients, ClientSum
from rknn_jax.labelers._tally import Tally
from rknn_jax.labels import PublicLabels, PublicSide
from rknn_jax.privacy.guarantee import Guarantee, Unit
from rknn_jax.types import Queries, Smoothing

Contribution = TypeVar("Contribution")


class Words(NamedTuple):
    """Part of a statement that is about the labeler.

    Attributes:
      released: Released items.
      facts: Entries of `privacy.json`.
      details: Lines of `privacy.html`.
    """

    released: tuple[str, ...]
    facts: dict[str, Any]
    details: dict[str, Any]


class NoisySum(NamedTuple):
    """Sum as it was released, or what was drawn from it.

    Attributes:
      values: Noisy sum.
      stddev: Standard deviation of its noise, a number or of the shape of `values`.
      guarantee: Guarantee of it.
    """

    values: np.ndarray
    stddev: ArrayLike
    guarantee: Guarantee


class PublicRows(NamedTuple):
    """Public rows that get labels.

    Attributes:
      queries: Public queries.
      features: Features of the rows, float32 `[m, f]`.
      names: Names of the classes.
      side: Public side of the reading; see `Labeler.public_side`.
    """

    queries: Queries
    features: np.ndarray
    names: Sequence[str]
    side: PublicSide


class Labeling(NamedTuple):
    """One way to read a noisy sum, of which private records may choose one (`rknn_jax.check`).

    Attributes:
      name: A few words.
      probabilities: Soft labels of the public rows, float32 `[m, num_classes]`.
      labels: Function that returns all that is said of them.
      smooth: True if labels change smoothly from row to row, and False if all rows of a query have
        its label. Defaults to True.
      weights: Weights of the private records' classes in a choice, float64 `[num_classes]` in
        (0, 1]; of the first labeling alone. Defaults to None: all weigh 1. The classes may have
        other shares among the public rows, whose labels are to be right.
    """

    name: str
    probabilities: np.ndarray
    labels: Callable[[], PublicLabels]
    smooth: bool = True
    weights: np.ndarray | None = None


class CuratorNoise(Protocol):
    """Exact integer noise of a trusted curator, on the operating system's entropy."""

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of what `draw` returns."""

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise of one number, in the units of `draw`."""

    def check(self, totals: np.ndarray, num_units: int) -> None:
        """Raise ValueError for a sum that so many units cannot have.

        Args:
          totals: Sum over the private records.
          num_units: Number of private records, or of persons.
        """

    @property
    def draw(self) -> Callable[[np.ndarray], np.ndarray]:
        """Function that draws: int64 totals to int64 or float64, of `SumLabeler.drawn`."""


class SumLabeler(Labeler[Contribution]):
    """Labeler of one integer sum over the private records.

    Attributes:
      smoothing: Use of similar rows in the reading. Defaults to `auto`, for labelers without this
        setting.
    """

    smoothing: Smoothing = "auto"

    @property
    def votes_per_record(self) -> int | None:
        """Number of queries that a record votes for. Defaults to None: records do not vote."""
        return None

    @abc.abstractmethod
    def ask(
        self, key: jax.Array, features: np.ndarray, num_classes: int, num_queries: int | None = None
    ) -> Queries:
        """Return the public rows that clients are asked about.

        Args:
          key: Random key, consumed.
          features: Features of the public rows, float32 `[m, f]`.
          num_classes: Number of classes |Y|.
          num_queries: Number of queries s. Defaults to None, the labeler's usual number.

        Raises:
          ValueError: If there are fewer public rows.
        """

    @abc.abstractmethod
    def tally(self, queries: Queries, num_classes: int) -> Tally:
        """Return the public side of the sum: what a record adds.

        Args:
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.
        """

    def bounded_tally(
        self, queries: Queries, num_classes: int, records_per_person: int | None, seed: int
    ) -> Tally:
        """Return `tally`, in which a person adds no more than a record, for unit=person.

        Args:
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.
          records_per_person: Most records of a person, drawn at random. None: all of them.
          seed: Seed of the draw, public.
        """
        # `tally` knows the unit, and shares one record's weight among all records of a person.
        del records_per_person, seed
        return self.tally(queries, num_classes)

    def drawn(self, tally: Tally) -> tuple[int, ...]:
        """Return the shape of what a curator's noise leaves. Defaults to that of the sum."""
        return tally.shape

    @abc.abstractmethod
    def usual_mechanism(self, delta: float) -> str:
        """Return the name of the mechanism of a release that names none.

        Args:
          delta: Probability delta of the release.
        """

    @abc.abstractmethod
    def with_mechanism(self, name: str) -> Self:
        """Return the labeler of a release with a mechanism whose noise is exact.

        Args:
          name: Name of the mechanism.

        Raises:
          ValueError: If it has none of that name.
        """

    @abc.abstractmethod
    def exact(
        self, num_queries: int, num_classes: int, records_per_person: int | None = None
    ) -> CuratorNoise:
        """Return exact noise for a sum. Epsilon is finite.

        Args:
          num_queries: Number of queries s.
          num_classes: Number of classes |Y|.
          records_per_person: As in `bounded_tally`. Defaults to None.
        """

    @abc.abstractmethod
    def in_round(self, unit: Unit, labels_per_record: int) -> Self:
        """Return the labeler of a federation's round, with settings that do not travel.

        Args:
          unit: Privacy unit: record, or client.
          labels_per_record: Most labels of a record that count, r; 0 if each has one.
        """

    @abc.abstractmethod
    def client_sum(self, queries: np.ndarray, num_classes: int, clients: Clients) -> ClientSum:
        """Return a sum over clients who add the noise in shares, with trust=central.

        Args:
          queries: Public rows that are asked about, float32 `[s, f]`.
          num_classes: Number of classes |Y|.
          clients: Clients of the round.

        Raises:
          ValueError: If the labeler's noise has no shares.
        """

    def of_aggregate(self, noisy: np.ndarray) -> np.ndarray:
        """Return what is read, from a noisy sum that is seen whole. Defaults to the sum.

        Args:
          noisy: Noisy sum over the clients.
        """
        return noisy

    def predicted(self, queries: Queries, features: np.ndarray) -> Queries:
        """Return the queries whose answers label the public rows. Defaults to those asked.

        A classifier of the private records predicts every row, whether it was asked about or not.

        Args:
          queries: Public queries.
          features: Features of the public rows, float32 `[m, f]`.
        """
        del features
        return queries

    @abc.abstractmethod
    def public_labels(self, noisy: NoisySum, public: PublicRows) -> PublicLabels:
        """Return the labels of the public rows: post-processing of the noisy sum."""

    @property
    def chooses(self) -> bool:
        """True if there are several labelings to choose from."""
        return self.smoothing == "auto"

    def labelings(self, noisy: NoisySum, public: PublicRows) -> tuple[Labeling, ...]:
        """Return the labelings to choose from, by post-processing alone; the usual one is first.

        Defaults to that of `public_labels`, and if similar rows share labels, one without that.

        Args:
          noisy: Noisy sum.
          public: Public rows.
        """
        # Each is a function of released numbers and public rows, so that any number of them is
        # free.
        usual = self.public_labels(noisy, public)
        found = [Labeling("the usual one", usual.probabilities, lambda: usual)]
        if self.chooses:
            # Sharing labels helps where neighbors agree and harms where they do not. Records that
            # did not vote know which.
            alone = public._replace(side=PublicSide())
            each = self.public_labels(noisy, alone)
            found.append(Labeling("each row by itself", each.probabilities, lambda: each))
        return tuple(found)

    @abc.abstractmethod
    def concerns(
        self, found: PublicLabels, public: PublicRows, num_votes: int | None
    ) -> list[Concern]:
        """Return the reasons to doubt the labels, from them and public data alone.

        Args:
          found: Result of `public_labels`.
          public: Public rows.
          num_votes: Number of votes of all records, or None if it is private or there are none.
        """

    @abc.abstractmethod
    def words(self, num_queries: int, num_classes: int, num_public: int) -> Words:
        """Return the labeler's part of a statement.

        Args:
          num_queries: Number of queries s.
          num_classes: Number of classes |Y|.
          num_public: Number of public rows m.
        """

    def subject(self, num_queries: int, num_classes: int) -> str:
        """Return a few words for a ledger, without those on the noise.

        Args:
          num_queries: Number of queries s.
          num_classes: Number of classes |Y|.
        """
        del num_queries
        return f"{self.name}, {num_classes} classes"

    @abc.abstractmethod
    def lines(
        self, mechanism: str, queries: Queries, tally: Tally, noise: CuratorNoise
    ) -> tuple[tuple[str, str], ...]:
        """Return what the terminal says of a release, each a word and a text.

        Args:
          mechanism: Name of the mechanism.
          queries: Public queries.
          tally: Sum over the private records.
          noise: Noise of the sum.
        """

    @property
    def ignored(self) -> str:
        """Words for private records that are counted in part or not at all."""
        return "labeled private records that cannot be used add nothing"

    def reading_memory(self, shape: tuple[int, ...]) -> int:
        """Return the most bytes that reading takes, beside the sum and the labels. Defaults to 0.

        Args:
          shape: Shape of the sum.
        """
        del shape
        return 0


def check_rows(num_queries: int, features: np.ndarray) -> int:
    """Return a number of queries for which there are enough public rows, or raise ValueError."""
    if num_queries > len(features):
        raise ValueError(
            f"Expected at most {len(features)} queries, one a public record, got {num_queries}; "
            f"pass {option('queries')}."
        )
    return num_queries

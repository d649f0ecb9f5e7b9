"""Labelers that read the private records by one sum of integers, with noise added once.

Such a labeler says what a record adds (`Tally`), which noise hides a record (`Noise`), and how the
noisy sum becomes answers (`OneSumLabeler.read`). The sum can be taken in one pass over records that
do not fit into memory, and exact noise is drawn on integers. `OneSumLabeler` makes the rest of a
labeler from these.
"""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, final

import jax
import numpy as np

from rknn_jax import postprocessing
from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.concerns import no_row
from rknn_jax.answers.planned_concerns import concerns_before
from rknn_jax.labelers import _persons, overridden
from rknn_jax.labelers._client_sum import Clients
from rknn_jax.labelers._sum_labeler import (
    CuratorNoise,
    NoisySum,
    PublicRows,
    SumLabeler,
    Words,
    check_rows,
)
from rknn_jax.labelers._sum_shares import MOST_NUMBERS, Reach, SumShares
from rknn_jax.labelers._tally import Persons, Tally
from rknn_jax.labels import Labels, PublicLabels, PublicSide
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.contributions import SIMULATED_GRID
from rknn_jax.privacy.gaussian_shares import GaussianShares
from rknn_jax.privacy.guarantee import Guarantee, Unit
from rknn_jax.privacy.parameters import PrivacyParameters
from rknn_jax.queries import kmeans, sample
from rknn_jax.types import Answers, Array, Encoder, Queries, Records, Smoothing

MOST_ROWS = 4096
"""Public rows of a question, if none of them is a candidate: their center and spread are needed."""

CANDIDATES_OF_A_CLASS = 3
"""Public rows of a question for each class, if they are candidates.

The noise grows with the square root of their number, and mixed clusters need more than one a class.
On MNIST at epsilon = 0.02, 10 always had 98% of the labels right and 30 in most of the runs, while
1,000 lost half of the labels.
"""

ROWS_OF_AN_ANSWER = 10
"""Public rows that share one answer, which sets how far rows share their labels.

Each row has a prediction of its own. On six data sets it was within 5 points of the best of four
strengths. As far as if there were one answer a class, 15 points of text's labels were lost.
"""


class Noise(NamedTuple):
    """Noise of a sum; see `_sum_labeler.CuratorNoise`.

    Attributes:
      guarantee: Guarantee of what `draw` returns.
      stddev: Standard deviation of the noise of one total, in units.
      draw: Function that draws: int64 totals to what is released.
    """

    guarantee: Guarantee
    stddev: float
    draw: Callable[[np.ndarray], np.ndarray]

    def check(self, totals: np.ndarray, num_units: int) -> None:
        """Raise ValueError for totals that are not int64: `Tally` bounds what each unit adds."""
        del num_units
        if totals.dtype != np.int64:
            raise ValueError(f"Expected totals of int64, got {totals.dtype}; sum integers.")


class Sums(NamedTuple):
    """Sum over the private records: private.

    Attributes:
      totals: int64, of the shape of the tally, in units.
      encode: Encoder of the run, which is public.
    """

    totals: np.ndarray
    encode: Encoder


@dataclass(frozen=True)
class OneSumLabeler(PrivacyParameters, SumLabeler[Sums]):
    """Labeler of one noisy sum, with the settings of `PrivacyParameters`.

    If persons are the unit, a person's records share a weight of 1.

    Attributes:
      exact_mechanisms: Settings of the labeler with each mechanism that it can draw exactly, by the
        mechanism's name. The first one is used if none is named.
      candidates: True if queries are candidates of a choice, of which few are better in a sum of
        clients.
    """

    trains: ClassVar[bool] = True
    exact_mechanisms: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    candidates: ClassVar[bool] = False

    @property
    def grid(self) -> int:
        """Units of weight of a record, or of a person."""
        return 1 if self.unit == "record" else SIMULATED_GRID

    @property
    @abc.abstractmethod
    def sensitivity(self) -> float:
        """Largest change of the sum between neighbors, in units, as the noise measures it."""

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

    @abc.abstractmethod
    def simulated(self, key: jax.Array) -> Noise:
        """Return simulated noise. `key` is consumed by its one draw."""

    @abc.abstractmethod
    def exact_noise(self) -> Noise:
        """Return exact integer noise, on the operating system's entropy. Epsilon is finite."""

    def exact(
        self, num_queries: int, num_classes: int, records_per_person: int | None = None
    ) -> Noise:
        """Return `exact_noise`, which depends on no number; see `SumLabeler.exact`."""
        del num_queries, num_classes, records_per_person
        return self.exact_noise()

    def usual_mechanism(self, delta: float) -> str:
        """Return the first mechanism that suits delta, or the first one; see `SumLabeler`."""
        kinds = {name: replace(self, **kind) for name, kind in self.exact_mechanisms.items()}
        suited = [name for name, kind in kinds.items() if kind.needs_delta == (delta > 0)]
        return (suited or list(kinds))[0]

    def with_mechanism(self, name: str) -> Self:
        """Return the labeler with a mechanism of `exact_mechanisms`; see `SumLabeler`."""
        if name not in self.exact_mechanisms:
            raise ValueError(
                f"Expected {option('mechanism')} of {', '.join(self.exact_mechanisms)} with "
                f"{option('labeler')} {self.name}, got {option('mechanism')} {name}; leave it out "
                "for the one that suits delta."
            )
        return replace(self, **self.exact_mechanisms[name])

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

    def in_round(self, unit: Unit, labels_per_record: int) -> Self:
        """Return the labeler whose unit is a person if a client is protected; see `SumLabeler`."""
        del labels_per_record
        return replace(self, unit="person" if unit == "client" else "record")

    def client_sum(self, queries: np.ndarray, num_classes: int, clients: Clients) -> SumShares:
        """Return the sum with discrete Gaussian noise in shares; see `SumLabeler.client_sum`.

        Raises:
          ValueError: If the labeler has no Gaussian noise, or another relation than replace-one, or
            if there are too many rows.
        """
        if queries.size > MOST_NUMBERS:
            raise ValueError(
                f"Expected public rows of at most {MOST_NUMBERS:,} numbers for a sum, got "
                f"{len(queries):,} of {queries.shape[1]:,}; pass fewer {option('queries')}."
            )
        if self.relation != "replace-one":
            raise ValueError(
                f"Expected relation=replace-one in a round, got relation={self.relation}."
            )
        rows = Queries.alone(queries, np.arange(len(queries)))
        tally = self.aggregate_tally(rows, num_classes)
        reach = self.aggregate_reach(tally)
        shares = GaussianShares(self.epsilon, self.delta, reach.change, clients.honest - 1)
        return SumShares(tally, reach, shares, clients.unit)

    def ask(
        self, key: jax.Array, features: np.ndarray, num_classes: int, num_queries: int | None = None
    ) -> Queries:
        """Return clusters of the public rows as candidates, or else a sample of them."""
        if self.candidates:
            number = num_queries or min(CANDIDATES_OF_A_CLASS * num_classes, len(features))
            return kmeans.select(key, features, check_rows(number, features))
        number = num_queries or min(MOST_ROWS, len(features))
        return sample.select(key, features, check_rows(number, features))

    def predicted(self, queries: Queries, features: np.ndarray) -> Queries:
        """Return all public rows; see `SumLabeler.predicted`."""
        every = np.arange(len(features))
        return queries if np.array_equal(queries.index, every) else Queries.alone(features, every)

    def public_side(
        self,
        queries: Queries,
        features: Array,
        num_classes: int,
        smoothing: Smoothing = "auto",
    ) -> PublicSide:
        """Return the graph of the public rows, along which similar rows share predictions."""
        num_rows = len(features)
        if len(queries.index) < num_rows:
            return super().public_side(queries, features, num_classes, smoothing)
        graph = postprocessing.public_graph(
            features, num_classes, metric=self.metric, smoothing=smoothing
        )
        return PublicSide(graph, None, max(num_classes, num_rows // ROWS_OF_AN_ANSWER))

    def public_labels(self, noisy: NoisySum, public: PublicRows) -> PublicLabels:
        """Return the labels of the public rows; see `SumLabeler.public_labels`.

        The probability that noise did not change a label is not known.
        """
        queries, features = public.queries, public.features
        stddev = float(np.max(noisy.stddev))
        answers = self.read(
            noisy.values, stddev, np.asarray, queries=queries, guarantee=noisy.guarantee
        )
        num_public = len(features)
        rows = self.predicted(queries, features)
        if rows is not queries and answers.model is not None:
            predicted = answers.model.predict_proba(features)
            answers = Answers.predicted(predicted, noisy.guarantee, answers.model)
        before = Labels.none(num_public, answers.probabilities.shape[1])
        found = before.after(rows, answers, 0, public.side)
        unknown = np.full(num_public, np.nan, np.float32)
        nobody = np.full(num_public, -1, np.int32)
        return PublicLabels(answers, found.probabilities, unknown, nobody)

    def concerns(
        self, found: PublicLabels, public: PublicRows, num_votes: int | None
    ) -> list[Concern]:
        """Return the reasons to doubt the labels; see `SumLabeler.concerns`."""
        del num_votes  # there are none
        remedy = (
            "let rknn check tell their curator whether labels are spelled as the classes; if they "
            f"are, use a larger {option('epsilon')}, more private records, or {option('labeler')} "
            "rknn"
        )
        sizes = (public.queries.size, len(public.names))
        before = concerns_before(public.features, *sizes, None, 0.0)
        return [*no_row(found.labels, public.names, remedy), *before]

    def words(self, num_queries: int, num_classes: int, num_public: int) -> Words:
        """Return the sum's part of a statement; see `SumLabeler.words`."""
        del num_queries, num_classes
        # Not of the noisy sum: prototypes that are chosen show none of theirs.
        released = (
            f"a label, and the probability of each class, for each of {num_public:,} public "
            f"records, made by {self.name} from one sum, with noise",
        )
        return Words(released, {}, {})

    def lines(
        self, mechanism: str, queries: Queries, tally: Tally, noise: CuratorNoise
    ) -> tuple[tuple[str, str], ...]:
        """Return the lines of the sum and its noise; see `SumLabeler.lines`."""
        del queries
        shape = " by ".join(f"{size:,}" for size in tally.shape)
        stddev = noise.stddev / self.grid
        moved = f"one {self.unit} moves the sum by {self.sensitivity / self.grid:,.0f} at most"
        return (
            ("labeler", f"{self.name}, by one sum of {shape} numbers"),
            ("noise", f"{mechanism} of standard deviation {stddev:.4g}, where {moved}"),
        )

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
        noise = self.exact_noise()
        exact_noise.try_once()
        ledger.charge(noise.guarantee, purpose)
        return self._answered(noise, contribution, queries)

    @final
    def _answered(self, noise: Noise, contribution: Sums, queries: Queries) -> Answers:
        noisy = noise.draw(contribution.totals)
        return self.read(
            noisy, noise.stddev, contribution.encode, queries=queries, guarantee=noise.guarantee
        )

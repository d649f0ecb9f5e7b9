"""Reverse k-NN labeling: each private record votes for its k nearest public queries.

The votes are summed, the sums are released with noise, and the arg max of each query is its label.
These are steps 3 to 6 of Algorithm 1. Before the mechanism, a private record passes `encode`
and `VoteTally`. They depend on that record and on public data alone. So one record changes at
most 2kr cells by 1, whatever the number of queries. All that follows the mechanism is
post-processing.

**Persons.** With unit=person and a curator, a person's records share a vote, and the mechanism's
noise is that for records (`privacy.contributions` has the proof). Without a curator, each person
draws one record and sends one message. The draw is the person's own, so a message depends on that
person alone. The guarantee of a record's message is then the person's, and n is the number of
persons.

Reference: Li et al., "Fine-grained Private Knowledge Distillation", Algorithm 1.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, final

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import answers as decoder
from rknn_jax import label_sets, mechanisms
from rknn_jax import trust as trusts
from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern
from rknn_jax.labelers import Labeler, _persons, _vote_labels, _vote_mechanism
from rknn_jax.labelers._client_sum import Clients
from rknn_jax.labelers._sum_labeler import (
    CuratorNoise,
    Labeling,
    NoisySum,
    PublicRows,
    SumLabeler,
    Words,
    check_rows,
)
from rknn_jax.labelers._tally import Persons, Tally
from rknn_jax.labelers._vote_mechanism import Amplification
from rknn_jax.labelers._vote_shares import VoteShares
from rknn_jax.labelers._votes import Bound, SetTally, VoteNoise, VoteTally, cells_of
from rknn_jax.labels import PublicLabels, PublicSide
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.neighbors import Metric, in_metric
from rknn_jax.privacy import contributions
from rknn_jax.privacy.contributions import SIMULATED_GRID, Protected
from rknn_jax.privacy.guarantee import Guarantee, Relation, Unit
from rknn_jax.privacy.parameters import settle
from rknn_jax.queries import kmeans
from rknn_jax.types import Answers, Array, Encoder, Queries, Records, Smoothing

REDRAWN_BYTES = 1500
"""Memory of the decoder for each cell, in bytes.

With the other terms of `release.label.memory`, this exceeds the measured 0.5 to 1.6 GB, for
2 * 10^5 to 8 * 10^5 cells of up to 10^5 classes.
"""


class PersonVotes(NamedTuple):
    """Sums of the votes of persons, which are bounded as one record's: private.

    Attributes:
      totals: int64 `[s·num_classes]`, in units of 1 / `SIMULATED_GRID` votes.
      num_persons: Number of persons.
    """

    totals: np.ndarray
    num_persons: int


@dataclass(frozen=True)
class ReverseKNN(SumLabeler[jax.Array | PersonVotes]):
    """Reverse k-NN labeling and its settings.

    A subclass may have another `tally`, `read` or `public_side`: simulation, a release and a
    federation all run these. The mechanism is calibrated for votes: a record adds at most 1 to each
    of at most k·r cells.

    Attributes:
      epsilon: Privacy budget of this round; infinity means no noise and no privacy.
      delta: Probability delta, for mechanisms that need one.
      num_neighbors: Number of queries k that each record votes for.
      mechanism: Name of a file of `rknn_jax.mechanisms`. Defaults to "", for `mechanisms.default`
        for the trust model.
      trust: `central`: a curator sees the votes. `local`: every record randomizes its own votes,
        and epsilon is that of one message. `shuffle`: the same messages are shuffled, and epsilon
        and delta are those of all messages after shuffling. For a local mechanism they follow from
        `amplification`.
      amplification: Bound that determines the privacy of each message before shuffling. `variation
        ratio` uses the mechanism and allows less noise; `general` holds for all mechanisms alike.
        `privacy.amplification` has both.
      relation: Neighboring relation of the data sets.
      unit: Privacy unit: record, or person.
      metric: Distance between features.
      smoothing: `auto` labels each public record by what all noisy counts tell, with
        `rknn_jax.answers`; labels by assignment, or without counts, are spread over the neighbor
        graph of the public records. `none` gives each record the arg max of its query.
      decode: `argmax` of each query's counts, or `assignment`. The latter gives every query a
        different class such that the sum of their counts is greatest. It fits as many queries as
        classes, if each query is a cluster of one class.
      labels_per_record: Most labels of a record that count, r, in a release or a round; see
        `rknn_jax.label_sets`. Each public row then gets a set of classes. Defaults to 0: each
        record and each row has one label.
    """

    epsilon: float = 0.1
    delta: float = 1e-5
    num_neighbors: int = 1
    mechanism: str = ""
    trust: str = "central"
    amplification: Amplification = "variation ratio"
    relation: Relation = "replace-one"
    unit: Protected = field(default="record", metadata={"travels": False})
    metric: Metric = "sqeuclidean"
    smoothing: Smoothing = "auto"
    decode: Literal["argmax", "assignment"] = "argmax"
    labels_per_record: int = field(default=0, metadata={"travels": False})

    telling: ClassVar[Mapping[str, Any]] = {"num_neighbors": 2}
    clusters: ClassVar[bool] = True
    given: ClassVar[frozenset[str]] = Labeler.given | {"labels_per_record"}

    def __post_init__(self) -> None:
        settle(self)
        if self.num_neighbors < 1:
            raise ValueError(
                f"Expected num_neighbors >= 1, got num_neighbors={self.num_neighbors}."
            )
        model = trusts.named(self.trust)
        if not model.labels:
            able = ", ".join(trusts.names(lambda one: one.labels))
            raise ValueError(f"Expected trust to be one of {able}, got trust={self.trust}.")
        if not model.takes(mechanisms.named(self.noise)):
            # Imports all mechanisms, which takes seconds, so that only the error does it.
            choices = mechanisms.names(self.trust)
            raise ValueError(
                f"Expected mechanism to be one of {choices} with trust={self.trust}, got "
                f"mechanism={self.mechanism}."
            )
        # A server sees how many messages come in, so that their number cannot be hidden.
        if not self.has_curator and self.relation != "replace-one":
            raise ValueError(
                f"Expected relation=replace-one with trust={self.trust}, got "
                f"relation={self.relation}; the messages are counted."
            )

    def check_queries(self, num_queries: int | None) -> None:
        """Check that there are as many queries as neighbors, in addition to the general check."""
        super().check_queries(num_queries)
        if num_queries is not None and self.num_neighbors > num_queries:
            raise ValueError(
                f"Expected neighbors <= queries, got neighbors={self.num_neighbors}, "
                f"queries={num_queries}; use fewer neighbors or more queries."
            )

    @property
    def noise(self) -> str:
        """Name of the mechanism, given or the default of the trust model."""
        return self.mechanism or mechanisms.default(self.trust)

    @property
    def decodes(self) -> bool:
        """If neither an arg max nor an assignment is asked for."""
        return self.smoothing == "auto" and self.decode == "argmax"

    @property
    def needs_delta(self) -> bool:
        """After shuffling, and if the mechanism has no pure guarantee."""
        return self.is_shuffled or bool(mechanisms.named(self.noise).needs_delta)

    def tally(self, queries: Queries, num_classes: int, bound: Bound | None = None) -> VoteTally:
        """Return the public side of the votes: what a record adds.

        Args:
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|, and one more for sets of labels; see `label_sets`.
          bound: Bound on the votes of a person. Defaults to None, for records.
        """
        # The queries and their metric are all that a record is compared with: both are public.
        shape = (queries.features, num_classes, self.num_neighbors, self.metric, bound)
        several = self.labels_per_record
        return SetTally(*shape, several) if several else VoteTally(*shape)

    def bounded_tally(
        self, queries: Queries, num_classes: int, records_per_person: int | None, seed: int
    ) -> VoteTally:
        """Return the public side of the votes, or of ballots; see `SumLabeler.bounded_tally`."""
        bound = None
        if self.unit == "person":
            bound = Bound(records_per_person, seed, mechanisms.named(self.noise).norm)
        # For sets, the last class counts the records that voted at all; see `label_sets`.
        return self.tally(queries, num_classes + bool(self.labels_per_record), bound)

    def usual_mechanism(self, delta: float) -> str:
        """Return the mechanism of the trust model, whatever delta is; see `SumLabeler`."""
        del delta
        return self.noise

    def with_mechanism(self, name: str) -> Self:
        """Return the labeler with a mechanism of its own noise; see `SumLabeler`."""
        mechanisms.chosen(name, mechanisms.can_release)
        # A subclass may fix its noise, and then what is asked for is not what would run.
        found = replace(self, mechanism=name)
        if found.noise != name:
            raise ValueError(
                f"Expected {option('mechanism')} {found.noise} with {option('labeler')} "
                f"{self.name}, got {option('mechanism')} {name}; leave it out."
            )
        return found

    def exact(
        self, num_queries: int, num_classes: int, records_per_person: int | None = None
    ) -> VoteNoise:
        """Return exact noise of the mechanism; see `SumLabeler.exact`."""
        grid = records_per_person or contributions.GRID  # of a person; a record has none
        found: Any = _vote_mechanism.calibrated(num_queries, num_classes, 1, config=self, grid=grid)
        return VoteNoise(found)

    def in_round(self, unit: Unit, labels_per_record: int) -> Self:
        """Return the labeler for so many labels of a record; see `SumLabeler.in_round`."""
        del unit
        return replace(self, labels_per_record=labels_per_record)

    def sizes(self, num_queries: int, num_classes: int) -> dict[str, int]:
        """Return the sizes of a mechanism that is calibrated for the votes; see `label_sets`."""
        several = self.labels_per_record
        return label_sets.sizes(num_queries, num_classes, several, self.num_neighbors)

    def client_sum(self, queries: np.ndarray, num_classes: int, clients: Clients) -> VoteShares:
        """Return the votes with coins in shares; see `SumLabeler.client_sum`."""
        coins = mechanisms.named(self.noise)(
            self.epsilon,
            **self.sizes(len(queries), num_classes),
            delta=self.delta,
            # One share less than honest clients: to a client that knows its own, the rest is noise.
            shares=clients.honest - 1,
            records=max(1, clients.records),
        )
        rows = Queries.alone(queries, np.arange(len(queries)))
        return VoteShares(self.tally(rows, coins.num_classes), coins, clients.records)

    @final
    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> jax.Array | PersonVotes:
        """Return the cells that every private record votes for, int32 `[n, k·r]`.

        With unit=person, return the sums of shared votes, or the cells of one record of each person
        who sends a message.

        Args:
          key: Random key of the records that are drawn, which is consumed.
          private: Private records.
          encode: Encoder of the queries' features.
          queries: Public queries `[s, f]`.
          num_classes: Number of classes |Y|.
        """
        bound = None
        if self.unit == "person" and self.has_curator:
            bound = Bound(norm=mechanisms.named(self.noise).norm, grid=SIMULATED_GRID)
        # Without a curator nobody could bound a person's records together, so that one of them
        # speaks.
        elif self.unit == "person":
            drawn = _persons.one_each(key, private)
            private = Records(private.images[drawn], private.labels[drawn])
        tally = self.tally(queries, num_classes, bound)
        # int32 [n, k·r]. From here to the sum, each row is one record's alone.
        cells = cells_of(tally, encode(private.images), private.labels)
        if bound is None:
            return jnp.asarray(cells, jnp.int32)
        person = _persons.numbered(private)
        # A person's records share one vote or are clipped together, to the sensitivity of a record.
        totals = tally.bounded(cells, Persons(person, person.astype(np.uint64)))
        return PersonVotes(totals.ravel(), _persons.num_persons(private))

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee of one round, from public numbers alone."""
        private_step = _vote_mechanism.calibrated(num_queries, num_classes, num_units, self)
        return _vote_mechanism.guarantee(private_step, num_units, self)

    @final
    def release(
        self,
        key: jax.Array,
        contribution: Array | PersonVotes,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Sum the contribution, add the mechanism's noise in simulation, and take the arg max.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Contribution from `contribute`: the cells of every record, int32 `[n, k·r]`,
            or sums of persons' votes.
          queries: Public queries `[s, f]`, as in `contribute`.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, which are not used. Defaults to none.

        Returns:
          Answers that carry their guarantee.
        """
        del predicted
        num_queries = len(queries.features)
        if isinstance(contribution, PersonVotes):
            # Persons' votes are fractions on a grid and are summed already; only noise is missing.
            num_units = contribution.num_persons
            private_step = _vote_mechanism.calibrated(num_queries, num_classes, num_units, self)
            totals: Any = contribution.totals
            counts = private_step.estimate(key, totals, num_units)
        else:
            num_units = len(contribution)
            private_step = _vote_mechanism.calibrated(num_queries, num_classes, num_units, self)
            # Messages of clients, or a curator's noise: both are drawn here, in constant memory.
            counts = estimate_counts(private_step, key, contribution)
        # Of noisy counts, which are all that is public; of true ones it would tell of records.
        stddev = private_step.stddev(np.asarray(counts), num_units)
        paid = _vote_mechanism.guarantee(private_step, num_units, self)
        return self.read(counts, stddev, paid, queries)

    def read(self, counts: Array, stddev: Array, guarantee: Guarantee, queries: Queries) -> Answers:
        """Turn noisy counts into answers, by post-processing alone; see `_vote_labels.answer`."""
        counted = self._releases_counts
        return _vote_labels.answer(
            counts, stddev, guarantee, queries=queries, decode=self.decode, counted=counted
        )

    def ask(
        self, key: jax.Array, features: np.ndarray, num_classes: int, num_queries: int | None = None
    ) -> Queries:
        """Return clusters of the public rows, by default as many as classes."""
        number = check_rows(num_queries or num_classes, features)
        return kmeans.select(key, np.asarray(in_metric(features, self.metric)), number)

    @property
    def votes_per_record(self) -> int:
        """Number of queries that a record votes for."""
        return self.num_neighbors

    def public_labels(self, noisy: NoisySum, public: PublicRows) -> PublicLabels:
        """Return the labels of the public rows, or their sets; see `SumLabeler.public_labels`."""
        if self.labels_per_record:
            return _vote_labels.of_sets(noisy, public)
        return _vote_labels.of_answers(self._answers(noisy, public), noisy, public)

    @property
    def chooses(self) -> bool:
        """True if the noisy votes are decoded: there are other ways to read them."""
        return self.decodes and not self.labels_per_record

    def labelings(self, noisy: NoisySum, public: PublicRows) -> tuple[Labeling, ...]:
        """Return the labelings to choose from; see `_vote_labels.labelings`."""
        # Sets and arg maxes are read in one way, so that there is nothing to choose.
        if not self.chooses or public.side.kernels is None:
            usual = self.public_labels(noisy, public)
            smooth = any(part is not None for part in (public.side.graph, public.side.kernels))
            return (Labeling("the usual one", usual.probabilities, lambda: usual, smooth),)
        return _vote_labels.labelings(self._answers(noisy, public), noisy, public)

    def _answers(self, noisy: NoisySum, public: PublicRows) -> Answers:
        # A curator's noise is alike in all cells; a federation's may differ.
        stddev = np.broadcast_to(noisy.stddev, noisy.values.shape)
        return self.read(noisy.values, stddev, noisy.guarantee, public.queries)

    def concerns(
        self, found: PublicLabels, public: PublicRows, num_votes: int | None
    ) -> list[Concern]:
        """Return the reasons to doubt the labels; see `SumLabeler.concerns`."""
        features = np.asarray(in_metric(public.features, self.metric))
        return _vote_labels.doubts(found, public._replace(features=features), num_votes)

    def words(self, num_queries: int, num_classes: int, num_public: int) -> Words:
        """Return the votes' part of a statement; see `SumLabeler.words`."""
        several = self.labels_per_record
        released = _vote_labels.released(
            num_queries,
            num_classes,
            num_public,
            sets=bool(several),
            counted=self._releases_counts,
        )
        facts = {
            "num_queries": num_queries,
            "num_neighbors": self.num_neighbors,
            "metric": self.metric,
        }
        details = {f"votes of a {self.unit}": self.num_neighbors, "queries": num_queries}
        if several:
            facts["labels_per_record"] = several
            details["labels of a record, at most"] = several
        return Words(released, facts, details)

    def subject(self, num_queries: int, num_classes: int) -> str:
        """Return the numbers of queries and classes; see `SumLabeler.subject`."""
        return f"{num_queries} queries, {num_classes} classes"

    def lines(
        self, mechanism: str, queries: Queries, tally: Tally, noise: CuratorNoise
    ) -> tuple[tuple[str, str], ...]:
        """Return the lines of the queries, the noise and the sets; see `SumLabeler.lines`."""
        del tally
        size = queries.size
        every = " (no more public rows than that)" if np.all(size == 1) else ""
        assert isinstance(noise, VoteNoise)
        scale = noise.mechanism.noise_scale
        spread = f"of scale {scale:.4g}, standard deviation {noise.stddev:.4g}"
        lines = (
            (
                "queries",
                f"{len(size)}{every}, of {size.min()} to {size.max()} public rows each; each "
                f"private record votes for {self.num_neighbors}",
            ),
            ("noise", f"{mechanism} {spread} votes"),
        )
        if not self.labels_per_record:
            return lines
        first = f"the first {self.labels_per_record} of a record count"
        return (*lines, ("sets", f"{first}; a row gets the classes of half of those near"))

    @property
    def ignored(self) -> str:
        """Words for private records that are counted in part or not; see `SumLabeler.ignored`."""
        if not self.labels_per_record:
            return super().ignored
        return (
            f"private records have more than {self.labels_per_record} labels, a label that is none "
            "of the classes, or an embedding that cannot be used; only the rest of them counts"
        )

    def reading_memory(self, shape: tuple[int, ...]) -> int:
        """Return the most bytes of the decoder's redrawn counts; see `SumLabeler`."""
        return REDRAWN_BYTES * math.prod(shape) if self._releases_counts else 0

    @property
    def _releases_counts(self) -> bool:
        return bool(mechanisms.named(self.noise).releases_counts)

    def public_side(
        self,
        queries: Queries,
        features: Array,
        num_classes: int,
        smoothing: Smoothing = "auto",
    ) -> PublicSide:
        """Return the graph of the public rows, and their side of the decoder of noisy counts."""
        # [m] rows, their neighbors and the kernels of the decoder: public, and so computed once.
        side = super().public_side(queries, features, num_classes, smoothing)
        if not self.decodes:
            return side
        # A dry run takes clusters of the rows for classes, which a mixture would find again.
        clouds = None if side.graph is None else num_classes
        found = decoder.kernels(
            queries, features, side.graph, metric=self.metric, num_classes=clouds
        )
        return side._replace(kernels=found)


def vote_cells(
    features: Array, labels: Array, queries: Queries, num_classes: int, config: ReverseKNN
) -> np.ndarray:
    """Return the cells that private records vote for, int32 `[n, k·r]`, private.

    Args:
      features: Encoded private records, `[n, f]`. A record that `usable_rows` marks casts no vote,
        as an error would tell of it.
      labels: Integers `[n]`, or `[n, r]`.
      queries: Public queries `[s, f]`.
      num_classes: Number of classes |Y|.
      config: Labeler.
    """
    return cells_of(config.tally(queries, num_classes), features, labels)


def __getattr__(name: str) -> type[ReverseKNN]:
    if name == "Config":
        words = "labelers.rknn.Config is now labelers.rknn.ReverseKNN."
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return ReverseKNN
    raise AttributeError(f"module {__name__} has no attribute {name}")


EXAMPLES = (
    ReverseKNN(epsilon=1.0, num_neighbors=2),
    ReverseKNN(
        epsilon=2.0, num_neighbors=2, mechanism="gaussian", relation="add-remove", smoothing="none"
    ),
)

"""Question of one round, and the guarantee of an answer to it.

Client and server compute both from the same bytes. A round's id is the SHA-256 of those bytes, so
nobody can ask another question under the same id.

**Units.** With `unit=record` every record of a client sends its own message, and the number of
records is revealed. With `unit=client` each client sends `records_per_client` messages, of records
drawn at random or of none. Each message is epsilon/`records_per_client`-private, so that all
records of a client may be replaced. No message reveals the client's number of records, but the time
of the answer may.

**Trust.** `local` and `shuffle` send messages of a local mechanism. With `central` no message is
sent: clients' numbers are summed by secure aggregation (`secure_sum`), and each client adds a share
of the noise (`labelers._client_sum`). The numbers are the votes of reverse k-NN labeling, or the
sum of another labeler. Under unit=client, such a sum has all records of a client, scaled to the
norm of one.
"""

import hashlib
import math
import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rknn_jax.discriminant import Discriminant
from rknn_jax.federation import wire
from rknn_jax.federation.round_validation import (
    check_costs,
    check_privacy,
    check_public,
    check_types,
)
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.labelers._client_sum import Clients, ClientSum
from rknn_jax.labelers._sum_labeler import SumLabeler
from rknn_jax.labelers._votes import cells_of
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy import roles
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee, Sampler, Unit
from rknn_jax.records.classes import Classes
from rknn_jax.records.labels import Encoded, encode
from rknn_jax.types import Encoder, Queries


@dataclass(frozen=True)
class Round:
    """Question of one round, sent to all clients. All of it is public.

    Attributes:
      queries: float32 `[s, f]`; for a sum, public rows that determine what a record adds.
      classes: Names of the classes, in the order of their numbers.
      config: Labeler as it travels: for votes epsilon, neighbors, mechanism, trust and metric.
        Epsilon is per unit. The property `labeler` knows the unit and sets of labels too.
      encode: Representation that makes features of images. Defaults to None, for clients with
        features.
      unit: Privacy unit. Defaults to record.
      records_per_client: Number of messages, or of records that vote, of a client under
        unit=client. Defaults to 0, for unit=record and for sums other than votes.
      honest: With trust=shuffle, number of messages, from clients that follow the protocol, among
        which one hides. With trust=central, number of clients that follow the protocol. The noise
        of all but one suffices, since each client knows its own. Nothing is published of fewer.
        Defaults to 0.
      simulated: Seed of simulated noise, for experiments. Defaults to None, the operating system's
        entropy.
      labels_per_record: Most labels of a record that count, r, if a record may have several, whose
        votes are those of `label_sets`. Defaults to 0: each record has one label.
      nonce: Random text that distinguishes rounds of equal questions. Defaults to a new one.
      features: Names of the features, in the order of the queries' columns. A client whose records
        have named columns reads them in this order. Defaults to none.
      check_share: Share of the units that do not vote, but check the labels in a second question,
        `check_rounds.CheckRound`. Each client draws who does. Defaults to 0: all vote.
      taught: Map of the features that the labels of the round before taught, in whose image the
        queries are. Defaults to None, in a first round.
      after: Id of the first round of several, in a later one. A record has one role in all of them,
        so that nobody checks labels that it voted for. Defaults to none.
    """

    queries: np.ndarray
    classes: tuple[str, ...]
    config: SumLabeler[Any]
    encode: Encoder | None = None
    unit: Unit = "record"
    records_per_client: int = 0
    honest: int = 0
    simulated: int | None = None
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    labels_per_record: int = field(default=0, metadata={"later": True})
    features: tuple[str, ...] = field(default=(), metadata={"later": True})
    check_share: float = field(default=0.0, metadata={"later": True})
    taught: Discriminant | None = field(default=None, metadata={"later": True})
    after: str = field(default="", metadata={"later": True})

    def __post_init__(self) -> None:
        check_types(self)
        check_public(self)
        check_privacy(self)
        check_costs(self)

    @property
    def width(self) -> int:
        """Number of features of a record, before they are mapped by `taught`."""
        width: int = self.queries.shape[1] if self.taught is None else self.taught.width
        return width

    def mapped(self, features: np.ndarray) -> np.ndarray:
        """Return the features that are compared with queries, each record's by itself.

        Args:
          features: float32 `[n, width]`.
        """
        return features if self.taught is None else self.taught(features)

    @property
    def shuffled(self) -> bool:
        """True if each message hides among the others, with trust=shuffle."""
        return self.config.is_shuffled

    @property
    def summed(self) -> bool:
        """True if clients' counts are added under masks, with trust=central."""
        return self.config.has_curator

    @property
    def votes(self) -> bool:
        """True if records vote for queries, and False for the sum of another labeler."""
        return self.config.votes_per_record is not None

    @cached_property
    def labeler(self) -> SumLabeler[Any]:
        """Labeler that clients answer to, and that reads what they sent."""
        return self.config.in_round(self.unit, self.labels_per_record)

    @cached_property
    def data(self) -> bytes:
        """Bytes that are sent."""
        return wire.pack(self)

    @cached_property
    def id(self) -> str:
        """SHA-256 of the bytes that are sent."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def has_roles(self) -> bool:
        """True if a client may have no record that a question is for: its answer has no message."""
        return self.check_share > 0

    @property
    def asks(self) -> str:
        """A few words for a client's owner."""
        share = f", {self.check_share:.1%} check the labels instead" if self.check_share else ""
        before = f", after round {self.after[:12]}" if self.after else ""
        return f"labeler={self.config.name}{share}{before}"

    @property
    def account(self) -> str:
        """Id of the round whose charge pays for this one: its own."""
        return self.id

    @classmethod
    def of(cls, data: bytes) -> "Round":
        """Return the round of these bytes, with their id.

        Raises:
          ValueError: If the bytes are no round.
        """
        round = wire.unpack(data)
        if not isinstance(round, cls):
            raise ValueError(f"Expected a round, got {type(round).__name__}.")
        round.__dict__.update(data=data, id=hashlib.sha256(data).hexdigest())
        return round

    @property
    def clients(self) -> Clients:
        """Clients of the round, as its sum knows them."""
        return Clients(self.unit, self.honest, self.records_per_client)

    @cached_property
    def sum(self) -> ClientSum:
        """Sum of the clients and its noise, with trust=central."""
        return self.labeler.client_sum(self.queries, len(self.classes), self.clients)

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of queries, classes, neighbors and labels that a mechanism of votes covers."""
        assert isinstance(self.labeler, rknn.ReverseKNN)
        return self.labeler.sizes(len(self.queries), len(self.classes))

    @cached_property
    def mechanism(self) -> LocalRandomizer:
        """Mechanism that randomizes each message, except with trust=central."""
        assert isinstance(self.config, rknn.ReverseKNN), "a sum has no messages"
        share = (
            self.config.epsilon / self.records_per_client * (1 - 1e-12)
            if self.records_per_client > 1
            else self.config.epsilon
        )
        made = _vote_mechanism.calibrated(
            len(self.queries),
            len(self.classes),
            self.honest,
            replace(self.config, epsilon=share, labels_per_record=self.labels_per_record),
        )
        if not isinstance(made, LocalRandomizer):
            raise ValueError(
                f"Expected a local mechanism, got mechanism={self.config.noise}; collision "
                "is a good choice."
            )
        return made

    @property
    def num_cells(self) -> int:
        """Number of queries times classes, or numbers in the sum of another labeler."""
        if self.votes:
            return self.sizes["num_queries"] * self.sizes["num_classes"]
        return math.prod(self.sum.shape)

    @property
    def subject(self) -> str:
        """A few words for the ledger of a client, by which it knows the round's charge."""
        asked = f"{len(self.queries)} queries" if self.votes else self.config.name
        several = self.labels_per_record
        sets = f", up to {several} labels a record" if several else ""
        return f"{asked}, {len(self.classes)} classes, {self.noise}{sets}"

    @property
    def noise(self) -> str:
        """Name of the mechanism, or of the noise of a sum."""
        return self.sum.noise if self.summed else self.config.noise

    def answer_bytes(self, num_records: int) -> int:
        """Return the length of a client's answer in bytes, without transport and masks.

        With unit=client it does not depend on the number of records, which is private then.
        """
        if self.summed:
            return 8 * self.num_cells
        return (self.records_per_client or num_records) * wire.message_bytes(self.mechanism)

    def work(self, num_records: int) -> int:
        """Return cells times records that answer, a bound on an answer's time, up to a constant.

        A map of features counts as as many cells as it has numbers.

        With trust=central, the noise of a cell counts as records (`ClientSum.draws_a_record`). With
        unit=client, the client's number of records is private: `records_per_client` records answer,
        or one.
        """
        answering = num_records if self.unit == "record" else max(1, self.records_per_client)
        if self.summed:
            answering = max(answering, self.sum.draws_a_record)
        mapping = 0 if self.taught is None else self.taught.directions.size * answering
        return self.num_cells * answering + mapping

    @property
    def message_epsilon(self) -> float:
        """Epsilon of a unit's messages, against everyone, even if all others collude."""
        return self.mechanism.epsilon if self.shuffled else self.config.epsilon

    def guarantee(self, honest: int | None = None) -> Guarantee:
        """Return the privacy cost of a unit, whether it votes or checks the labels.

        It has one of both roles, so it pays the larger cost, and not the sum (`privacy.roles`).

        Args:
          honest: With trust=shuffle, number of messages, from clients that follow the protocol,
            among which one hides. Defaults to None, which trusts nobody.

        Raises:
          ValueError: If so few messages cannot hide one at the round's epsilon and delta.
        """
        votes = self._guarantee_of_votes(honest)
        return roles.guarantee(votes, curves=False)[0] if self.check_share else votes

    def _guarantee_of_votes(self, honest: int | None) -> Guarantee:
        """Return the privacy cost of a unit's messages."""
        sampler: Sampler = "release" if self.simulated is None else "simulation"
        if self.summed:
            return replace(self.sum.guarantee, unit=self.unit, sampler=sampler)
        if honest is None or not self.shuffled:
            epsilon = self.message_epsilon
            count = max(1, self.records_per_client)
            events = (Pure(self.mechanism.epsilon, count),)
            return Guarantee(
                epsilon,
                0.0,
                "replace-one",
                trust="local" if self.shuffled else self.config.trust,
                events=events,
                unit=self.unit,
                sampler=sampler,
            )
        assert isinstance(self.config, rknn.ReverseKNN)
        shuffled = _vote_mechanism.guarantee(self.mechanism, honest, self.config)
        return replace(shuffled, unit=self.unit, sampler=sampler)

    def contribute(self, features: Any, labels: np.ndarray) -> np.ndarray:
        """Return what a client's records say, private: cells int32 `[n, k·r]`, or a sum.

        Each record's cells, and its part of a sum, depend on that record alone.

        Args:
          features: Finite features, float32 `[n, f]`.
          labels: Class numbers or ballots, from `encoded`.

        Raises:
          ValueError: If there are no records.
        """
        self.check_some(labels)
        if self.summed:
            return self.sum.terms(features, labels)
        assert isinstance(self.config, rknn.ReverseKNN)
        rows = Queries.alone(self.queries, np.arange(len(self.queries)))
        return cells_of(self.config.tally(rows, self.sizes["num_classes"]), features, labels)

    def check_some(self, labels: np.ndarray) -> None:
        """Raise ValueError if there are no records."""
        if not len(labels):
            raise ValueError(
                "Expected a client with at least one private record, got none; take no more "
                "clients than there are records."
            )

    def encoded(self, labels: np.ndarray) -> Encoded:
        """Return a client's labels as they vote, each record's by itself: private.

        Args:
          labels: Labels as stored, one a record or several.

        Returns:
          Class numbers int32 `[n]`, `NO_CELL` for none of the classes, or ballots `[n, r + 1]`; and
          which records have a label.

        Raises:
          ValueError: If the records have several labels and the round asks for one, or if a mask
            has another number of classes.
        """
        classes = Classes(len(self.classes), self.classes)
        return encode(labels, classes, self.labels_per_record or None, "the private records")

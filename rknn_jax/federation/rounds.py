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
of the noise (`polls`). The numbers are the votes of reverse k-NN labeling, or the sum of another
labeler. Under unit=client, such a sum has all records of a client, scaled to the norm of one.
"""

import hashlib
import math
import secrets
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from rknn_jax import label_sets, mechanisms
from rknn_jax.federation import polls, wire
from rknn_jax.federation.polls import Poll, SumPoll, VotePoll
from rknn_jax.labelers import rknn
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.labelers._sum_labeler import SumLabeler
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.neighbors import LARGEST, Metric
from rknn_jax.privacy import roles
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee, Sampler, Unit
from rknn_jax.records.classes import Classes
from rknn_jax.records.labels import Encoded, encode
from rknn_jax.types import Encoder

SMALLEST_EPSILON = 2.0**-30
LARGEST_EPSILON = 1000.0
"""Bounds of epsilon: below, thresholds of 64 digits are too coarse; above, nothing is protected."""

MOST_CELLS = 2**22
"""Most queries times classes, checked first because huge mechanisms take minutes to make."""

MOST_RECORDS = 2**20
"""Most messages of one client; a client with more records joins as several."""

MOST_CHECK = 0.5
"""Most of the units that check labels."""


@dataclass(frozen=True)
class Round:
    """Question of one round, sent to all clients. All of it is public.

    Attributes:
      queries: float32 `[s, f]`; for a sum, public rows that determine what a record adds.
      classes: Names of the classes, in the order of their numbers.
      config: Labeler, with its settings: for votes epsilon, neighbors, mechanism, trust and metric.
        Epsilon is per unit.
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
    """

    queries: np.ndarray
    classes: tuple[str, ...]
    config: rknn.ReverseKNN | OneSumLabeler
    encode: Encoder | None = None
    unit: Unit = "record"
    records_per_client: int = 0
    honest: int = 0
    simulated: int | None = None
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    labels_per_record: int = field(default=0, metadata={"later": True})
    features: tuple[str, ...] = field(default=(), metadata={"later": True})
    check_share: float = field(default=0.0, metadata={"later": True})

    def __post_init__(self) -> None:
        self._check_types()
        self._check_public()
        self._check_privacy()
        self._check_costs()

    def _check_types(self) -> None:
        """Refuse what a hostile server may write in the place of settings."""
        for name in ("records_per_client", "honest", "labels_per_record"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ValueError(
                    f"Expected an integer {name} >= 0, got {name}={getattr(self, name)!r}."
                )
        if self.records_per_client > MOST_RECORDS:
            raise ValueError(
                f"Expected records_per_client <= {MOST_RECORDS}, got "
                f"records_per_client={self.records_per_client}."
            )
        if self.simulated is not None and type(self.simulated) is not int:
            raise ValueError(f"Expected an integer seed or None, got simulated={self.simulated!r}.")
        if not isinstance(self.config, rknn.ReverseKNN | OneSumLabeler):
            raise ValueError(f"Expected the labeler's config, got config={self.config!r}.")
        wire.check_settings(type(self.config), vars(self.config))
        try:
            wire.pack(self.config)
        except TypeError as error:
            raise ValueError(f"Expected a labeler that can travel: {error}") from error
        named = {"metric": get_args(Metric), "amplification": get_args(rknn.Amplification)}
        for name in named.keys() & {setting.name for setting in fields(self.config)}:
            if getattr(self.config, name) not in named[name]:
                raise ValueError(
                    f"Expected {name} to be one of {named[name]}, got "
                    f"{name}={getattr(self.config, name)!r}."
                )

    def _check_public(self) -> None:
        """Refuse classes and queries that nobody can be asked about."""
        if not isinstance(self.classes, tuple) or not all(
            isinstance(name, str) for name in self.classes
        ):
            raise ValueError(f"Expected the names of the classes, got classes={self.classes!r}.")
        if len(self.classes) < 2:
            raise ValueError(f"Expected at least 2 classes, got classes={self.classes!r}.")
        queries = np.asarray(self.queries)
        if (
            queries.ndim != 2
            or queries.dtype != np.float32
            or not len(queries)
            or not (np.abs(queries) <= LARGEST).all()
        ):
            raise ValueError(
                f"Expected queries float32 [s > 0, f] of at most {LARGEST:g}, got "
                f"{queries.dtype} {queries.shape}."
            )
        named = isinstance(self.features, tuple) and all(type(one) is str for one in self.features)
        if not named or len(self.features) not in (0, queries.shape[1]):
            raise ValueError(
                f"Expected names of {queries.shape[1]} features, or none, got "
                f"features={self.features!r}."
            )

    def _check_privacy(self) -> None:
        """Refuse settings that promise nothing, or contradict each other."""
        shared = not self.votes or mechanisms.named(self.config.noise).adds_shares
        if self.summed != shared:
            raise ValueError(
                "Expected a mechanism whose noise clients can add in shares with trust=central, "
                f"and only there, got trust={self.config.trust} and "
                f"mechanism={self.config.noise}; binomial is one."
            )
        if not SMALLEST_EPSILON < self.config.epsilon < LARGEST_EPSILON:
            raise ValueError(
                f"Expected {SMALLEST_EPSILON:.2g} < epsilon < {LARGEST_EPSILON:g}, got "
                f"epsilon={self.config.epsilon}."
            )
        drawn = self.votes and self.unit == "client"
        if self.unit not in ("record", "client") or drawn != (self.records_per_client > 0):
            raise ValueError(
                "Expected records_per_client > 0 with unit=client and 0 with unit=record, or 0 "
                f"without votes, got labeler={self.config.name}, unit={self.unit} and "
                f"records_per_client={self.records_per_client}."
            )
        if self.labels_per_record > (len(self.classes) if self.votes else 0):
            raise ValueError(
                f"Expected labels_per_record <= {len(self.classes)}, the number of classes, and 0 "
                f"without votes, got labeler={self.config.name} and "
                f"labels_per_record={self.labels_per_record}."
            )
        if self.labels_per_record and type(self.config) is not rknn.ReverseKNN:
            raise ValueError(
                f"Expected labeler=rknn with labels_per_record={self.labels_per_record}, got "
                f"labeler={self.config.name}; sets are read as rknn reads them."
            )
        if self.config.trust != "local" and self.honest < 2:
            raise ValueError(
                f"Expected honest >= 2 with trust={self.config.trust}, got honest={self.honest}; "
                "say how many "
                f"{'clients' if self.summed else 'messages'} follow the "
                "protocol."
            )
        if type(self.check_share) is not float or not 0 <= self.check_share <= MOST_CHECK:
            raise ValueError(
                f"Expected 0 <= check_share <= {MOST_CHECK}, got check_share={self.check_share!r}; "
                "half has to vote."
            )
        if self.check_share and self.simulated is not None:
            raise ValueError(
                "Expected real noise with check_share, got simulated noise; pass check_share=0."
            )
        if self.summed and self.simulated is not None:
            raise ValueError("Expected real noise with trust=central, got simulated noise.")
        if self.shuffled and self.records_per_client > 1:
            raise ValueError(
                "Expected one message of what is protected with trust=shuffle, got "
                f"records_per_client={self.records_per_client}; pass 1, or unit=record."
            )

    def _check_costs(self) -> None:
        """Refuse what takes too much work, and mechanisms without an exact form."""
        if self.num_cells > MOST_CELLS:
            raise ValueError(
                f"Expected queries times classes <= {MOST_CELLS}, got {len(self.classes)} classes, "
                f"{len(self.queries)} queries and {self.num_cells} numbers."
            )
        if self.summed:
            _ = self.poll  # it refuses what its noise cannot protect
        elif self.simulated is None and not self.mechanism.is_exact():
            raise ValueError(
                "Expected a mechanism with an exact form, got "
                f"mechanism={self.config.noise}; collision is a good choice."
            )

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
        return isinstance(self.config, rknn.ReverseKNN)

    @cached_property
    def labeler(self) -> SumLabeler[Any]:
        """Labeler that clients answer to, and that reads what they sent."""
        if isinstance(self.config, rknn.ReverseKNN):
            return replace(self.config, labels_per_record=self.labels_per_record)
        return SumPoll.labeler_of(self.config, self.unit)

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
        return f"labeler={self.config.name}{share}"

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

    @cached_property
    def poll(self) -> Poll:
        """Sum of the clients and its noise, with trust=central."""
        config = self.config
        if isinstance(config, OneSumLabeler):
            return SumPoll.of(config, self.queries, len(self.classes), self.unit, self.honest)
        coins = mechanisms.named(config.noise)(
            config.epsilon,
            **self.sizes,
            delta=config.delta,
            shares=self.honest - 1,
            records=max(1, self.records_per_client),
        )
        return VotePoll(self.queries, config, coins, self.records_per_client)

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of queries, classes, neighbors and labels that a mechanism of votes covers."""
        assert isinstance(self.config, rknn.ReverseKNN)
        sizes = (len(self.queries), len(self.classes), self.labels_per_record)
        return label_sets.sizes(*sizes, self.config.num_neighbors)

    @cached_property
    def mechanism(self) -> LocalRandomizer:
        """Mechanism that randomizes each message, except with trust=central."""
        assert isinstance(self.config, rknn.ReverseKNN), "a sum has no messages"
        share = (
            self.config.epsilon / self.records_per_client * (1 - 1e-12)
            if self.records_per_client > 1
            else self.config.epsilon
        )
        made = rknn.mechanism(
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
        return math.prod(self.poll.shape)

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
        return self.poll.noise if self.summed else self.config.noise

    def answer_bytes(self, num_records: int) -> int:
        """Return the length of a client's answer in bytes, without transport and masks.

        With unit=client it does not depend on the number of records, which is private then.
        """
        if self.summed:
            return 8 * self.num_cells
        return (self.records_per_client or num_records) * wire.message_bytes(self.mechanism)

    def work(self, num_records: int) -> int:
        """Return cells times records that answer, a bound on an answer's time, up to a constant.

        With trust=central, the noise of a cell counts as records (`Poll.draws_a_record`). With
        unit=client, the client's number of records is private: `records_per_client` records answer,
        or one.
        """
        answering = num_records if self.unit == "record" else max(1, self.records_per_client)
        if self.summed:
            answering = max(answering, self.poll.draws_a_record)
        return self.num_cells * answering

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
            return replace(self.poll.guarantee, unit=self.unit, sampler=sampler)
        if honest is None or self.config.trust == "local":
            epsilon = self.message_epsilon
            count = max(1, self.records_per_client)
            events = (Pure(self.mechanism.epsilon, count),)
            return Guarantee(
                epsilon, 0.0, "replace-one", "local", events, unit=self.unit, sampler=sampler
            )
        assert isinstance(self.config, rknn.ReverseKNN)
        shuffled = rknn.guarantee(self.mechanism, honest, self.config)
        return replace(shuffled, unit=self.unit, sampler=sampler)

    def connect(self, features: Any, labels: np.ndarray) -> np.ndarray:
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
            return self.poll.tell(features, labels)
        assert isinstance(self.config, rknn.ReverseKNN)
        return polls.votes(self.queries, self.sizes["num_classes"], self.config, features, labels)

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

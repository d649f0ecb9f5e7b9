"""Second question of a round: do the labels agree with the records that did not vote?

A check is a round of its own, so that messages, sums, collectors and ledgers treat it as any other.
Its queries are public rows with their labels. A record has two cells: the labels near it have its
class, or they do not (`rknn_jax.interpolation`). It votes for one of them.

**Who answers.** `Round.check_share` of the units, by coins that each client draws before it says
anything, and keeps (`client_roles`). No unit answers both questions, so both together cost what one
of them costs: `privacy.roles` has the proof. One check is answered for each round of votes.

**Mechanism.** With trust=central the two cells are summed under masks with binomial coins. Else
each unit sends one randomized bit (`randomized_bits`), which is epsilon-DP by itself. With
trust=shuffle, too: few bits could not hide among each other. With unit=client, one record of a
client is drawn.

**Terms.** All but the rows and their labels follows from the round of votes. A client compares
`CheckRound.terms` with those that it agreed to when it voted.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rknn_jax import label_sets
from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation import wire
from rknn_jax.federation.round_validation import ROUND_ID
from rknn_jax.federation.rounds import Round
from rknn_jax.interpolation import Interpolator
from rknn_jax.labelers import rknn
from rknn_jax.labelers._client_sum import ClientSum
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.labelers._sum_shares import MOST_NUMBERS
from rknn_jax.randomized_bits import AGREES, DIFFERS, RandomizedBit
from rknn_jax.types import Array

MOST_ROWS = 2**14
"""Most public rows of a check, so that each record is soon compared with all of them.

Rows that are all equal take a hundred times as long, and a hostile server may send them.
"""


class _Kind(NamedTuple):
    """Trust and mechanism of a check, as its configuration names them."""

    trust: str
    mechanism: str


_SUMMED = _Kind("central", "binomial")
_SENT = _Kind("local", "")  # `CheckRound.mechanism` is for two cells, and has no other name


@dataclass(frozen=True)
class CheckRound(Round):
    """Question about labels; see `Round` for the other fields.

    Attributes:
      queries: Features of public rows, float32 `[m, f]`.
      voted: Id of the round that gave the labels.
      probabilities: Soft labels of the rows, float32 `[m, num_classes]`.
      smooth: False if the row nearest to a record says its class, and True if several rows do.
    """

    voted: str = field(kw_only=True)
    probabilities: np.ndarray = field(kw_only=True)
    smooth: bool = field(kw_only=True)

    @classmethod
    def of_votes(cls, votes: Round, rows: np.ndarray, labeling: Labeling) -> "CheckRound":
        """Return the check of a labeling.

        Args:
          votes: Round that gave the labels.
          rows: Features of the public rows, float32 `[m, f]`. If there are too many for a
            question, evenly spaced ones are asked about.
          labeling: Labels of the rows.
        """
        width = max(rows.shape[1], labeling.probabilities.shape[1])
        most = min(MOST_ROWS, max(1, MOST_NUMBERS // width), len(rows))
        chosen = np.linspace(0, len(rows) - 1, most).astype(np.int64)
        return cls(
            np.ascontiguousarray(rows[chosen], np.float32),
            **_settings(votes),
            voted=votes.id,
            probabilities=np.ascontiguousarray(labeling.probabilities[chosen], np.float32),
            smooth=bool(labeling.smooth),
        )

    def __post_init__(self) -> None:
        self._check_labels()
        super().__post_init__()

    def _check_labels(self) -> None:
        """Refuse labels that are none, from a hostile server."""
        if self.check_share or self.simulated is not None:
            raise ValueError(
                "Expected a check of real noise that is not checked again, got "
                f"check_share={self.check_share!r} and simulated={self.simulated!r}."
            )
        if type(self.voted) is not str or not ROUND_ID.fullmatch(self.voted):
            raise ValueError(f"Expected the id of a round of votes, got voted={self.voted!r}.")
        if type(self.smooth) is not bool:
            raise ValueError(f"Expected smooth to be true or false, got smooth={self.smooth!r}.")
        found = np.asarray(self.probabilities)
        shape = (len(np.asarray(self.queries)), len(self.classes))
        if (
            found.shape != shape
            or found.dtype != np.float32
            or not ((found >= 0) & (found <= 1)).all()
            or max(found.size, np.asarray(self.queries).size) > MOST_NUMBERS
            or len(found) > MOST_ROWS
        ):
            raise ValueError(
                f"Expected probabilities float32 {shape} from 0 to 1 for at most {MOST_ROWS:,} "
                f"rows, and at most {MOST_NUMBERS:,} of them and of features, got {found.dtype} "
                f"{found.shape}."
            )

    @cached_property
    def terms(self) -> str:
        """Hash of all but the rows, their labels and the nonce."""
        return _hash({name: getattr(self, name) for name in _SETTINGS})

    @property
    def has_roles(self) -> bool:
        """True: most clients vote, and have no record that checks."""
        return True

    @property
    def asks(self) -> str:
        """A few words for a client's owner."""
        return f"check of the labels of round {self.voted[:12]}"

    @property
    def account(self) -> str:
        """Id of the round of votes, whose charge pays for the check too."""
        return self.voted

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of a mechanism on two cells, whatever the classes are."""
        return label_sets.sizes(1, 2, 0)

    @cached_property
    def sum(self) -> ClientSum:
        """Sum of two cells, with trust=central."""
        one = np.zeros((1, self.queries.shape[1]), np.float32)  # records are compared with rows
        return self.config.client_sum(one, 2, self.clients)

    @cached_property
    def mechanism(self) -> RandomizedBit:
        """Randomized response, except with trust=central."""
        return RandomizedBit(self.config.epsilon, **self.sizes)

    @cached_property
    def _between(self) -> Interpolator:
        return Interpolator(np.asarray(self.queries), self.config.metric)

    @property
    def noise(self) -> str:
        """Name of the mechanism."""
        return self.sum.noise if self.summed else "randomized_bit"

    @property
    def subject(self) -> str:
        """A few words for the ledger of a client."""
        return f"check of its labels, {len(self.classes)} classes, {self.noise}"

    def work(self, num_records: int) -> int:
        """Return public rows times records that answer; see `Round.work`."""
        return len(self.queries) * super().work(num_records) // self.num_cells

    def contribute(self, features: Array, labels: np.ndarray) -> np.ndarray:
        """Return the cell of each record, private, int32 `[n, 1]`; `NO_CELL` if it is unusable.

        Each record's cell depends on that record alone.

        Args:
          features: Finite features, float32 `[n, f]`.
          labels: Class numbers or ballots, from `encoded`.
        """
        self.check_some(labels)
        agree = self._between.agreement(
            np.asarray(features), labels, self.probabilities, smooth=self.smooth
        )
        told = labels != NO_CELL
        usable = told if told.ndim == 1 else told.any(axis=1)
        cells = np.where(usable, np.where(agree, AGREES, DIFFERS), NO_CELL)
        return cells[:, None].astype(np.int32)


def terms_of(votes: Round) -> str:
    """Return the terms of the check that belongs to a round of votes."""
    return _hash(_settings(votes))


_SETTINGS = (
    "classes",
    "config",
    "encode",
    "unit",
    "records_per_client",
    "honest",
    "labels_per_record",
    "features",
    "taught",
)


def _settings(votes: Round) -> dict[str, Any]:
    """Return the settings of a check, which follow from the round of votes."""
    kind = _SUMMED if votes.summed else _SENT
    delta = getattr(votes.config, "delta", 0.0)
    config = rknn.ReverseKNN(
        votes.config.epsilon,
        delta,
        mechanism=kind.mechanism,
        trust=kind.trust,
        metric=votes.labeler.metric,
    )
    return {
        "classes": votes.classes,
        "config": config,
        "encode": votes.encode,
        "unit": votes.unit,
        "records_per_client": int(votes.unit == "client"),
        "honest": votes.honest if votes.summed else 0,
        "labels_per_record": votes.labels_per_record,
        "features": votes.features,
        "taught": votes.taught,
    }


def _hash(settings: Mapping[str, Any]) -> str:
    told = dict(settings)
    if told["taught"] is None:  # as before there was such a setting
        del told["taught"]
    return hashlib.sha256(wire.pack(told)).hexdigest()

"""Roles of a client's records in a round whose labels are checked, kept on the client's disk.

The coins are of the operating system's entropy, by a fresh key, before the client says anything.
They depend on no data: one for each place of a record, or one for the client. In a later round of
several they are those of the round before, so that no record checks labels that it voted for while
it keeps its place. The note is written before the first answer, so a client that was killed goes
on with its roles. Otherwise a record that voted before could check afterwards, and would spend
twice. For the same reason, records in another order are refused, and so is a second check of one
round of votes. The charge of the round of votes names the roles, the records and the terms of the
check (`Note.mark`): neither another question nor another process of the client changes what was
paid for.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from rknn_jax._internal import disk
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.check_rounds import CheckRound, terms_of
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.roles import VOTE, Roles

MARK = 16
"""Letters of the roles' mark in a ledger."""

ROLES = "roles"
"""Suffix of the note, beside a client's other notes of the round of votes."""


@dataclass(frozen=True)
class Note:
    """Note of the roles.

    Attributes:
      roles: Roles as `Roles.words` says them.
      records: Salted fingerprint of the records in their order.
      terms: Terms of the check, as in `check_rounds.terms_of`.
      check: Id of the check that was begun; empty if none was.
    """

    roles: str
    records: str
    terms: str
    check: str = ""

    @classmethod
    def drawn(cls, votes: Round) -> "Note":
        """Draw the roles of a client's records for a round of votes, whose terms it has.

        Args:
          votes: Round with a check share.
        """
        return cls(Roles.drawn(0.0, votes.check_share, 0.0).words(), "", terms_of(votes))

    @classmethod
    def read(cls, path: Path) -> "Note | None":
        """Return the note in a file; None if there is no file.

        Raises:
          RefusedError: If the file is damaged.
        """
        if not path.exists():
            return None
        try:
            kept = json.loads(path.read_bytes())
            if set(map(type, kept.values())) != {str}:
                raise TypeError
            note = cls(**kept)
            Roles.of(note.roles)
        except (ValueError, TypeError, AttributeError, RecursionError):  # no words: they hold a key
            raise RefusedError(
                f"Expected the note {path} as it was written, got something else; the round is "
                "not answered."
            ) from None
        return note

    def write(self, path: Path) -> None:
        """Write the note for its owner alone."""
        disk.write_whole(path, json.dumps(asdict(self)).encode(), disk.OWNER)

    def votes(self, round: Round, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return which records vote, bool `[n]`; all others check.

        Args:
          round: Round of votes, or its check.
          inputs: Records.
          labels: Their labels, as stored.

        Raises:
          RefusedError: If the records are others than the roles were drawn for, or in another
            order.
        """
        roles = Roles.of(self.roles)
        if _sealed(roles, inputs, labels) != self.records:
            raise RefusedError(
                "Expected the records that the roles of this round were drawn for, in their order, "
                "got others; bring them as they were."
            )
        if round.unit == "client":
            return np.repeat(roles.of_rows(0, 0, 1) == VOTE, len(inputs))
        voting: np.ndarray = roles.of_rows(0, 0, len(inputs)) == VOTE
        return voting

    @property
    def mark(self) -> str:
        """Words for the ledger, which knows roles, records and terms by them, and nobody else."""
        told = json.dumps([self.roles, self.records, self.terms])
        return f", roles {hashlib.sha256(told.encode()).hexdigest()[:MARK]}"

    def check_asked(self, check: CheckRound) -> None:
        """Check that a check is the one that belongs to the round of votes.

        Raises:
          RefusedError: If its terms are others, or if another check of the round was begun.
        """
        if check.terms != self.terms:
            raise RefusedError(
                "Expected a check by the terms of its round of votes, got others; nothing was sent."
            )
        same_check(check, self.check)


def asked(
    folder: Path, round: Round, inputs: np.ndarray, labels: np.ndarray, *, paid: bool
) -> tuple[np.ndarray, str]:
    """Return which records answer a round, bool `[n]`, and the mark of the note that says so.

    The roles are drawn at the first question, and noted before anything is said. Until the round
    is paid for, the note is of the question and the records at hand.

    Args:
      folder: Folder of the client's rounds.
      round: Round of votes with a check share, or its check.
      inputs: Records, whose values tell no role.
      labels: Their labels, as stored, which tell none either.
      paid: True if the ledger was charged for the round of votes.

    Raises:
      RefusedError: If the roles are missing or are others', or if the check is not the round's.
    """
    if isinstance(round, CheckRound):
        note = _note_of(folder, round)
        return ~note.votes(round, inputs, labels), note.mark
    path = _path(folder, round)
    known = Note.read(path)
    if known is None and paid:
        raise RefusedError(
            f"Expected the roles {path} of a round that the ledger was charged for, got none; "
            "not again."
        )
    if not paid:
        # All rounds of a sequence have the roles that were drawn in the first one answered here.
        shared = folder / f"{round.after or round.id}.{ROLES}"
        first = known or Note.read(shared)
        if first is None:
            first = Note.drawn(round)
            first.write(shared)
        # If records have changed since, each place keeps its role. A refusal would tell of them.
        sealed = _sealed(Roles.of(first.roles), inputs, labels)
        known = replace(first, records=sealed, terms=terms_of(round), check="")
        known.write(path)
    assert known is not None
    return known.votes(round, inputs, labels), known.mark


def same_check(check: CheckRound, known: str) -> bool:
    """Return whether a check is the one of its round of votes that was begun; False if none was.

    Args:
      check: Check that is asked.
      known: Id of the check that was begun; empty if none was.

    Raises:
      RefusedError: If another one was.
    """
    if known not in ("", check.id):
        raise RefusedError(
            f"Expected one check of round {check.voted[:12]}, got another one; its records have "
            "checked."
        )
    return known != ""


def clear(folder: Path, round_id: str) -> None:
    """Remove the roles of rounds that are over. No check of them is answered from then on.

    Args:
      folder: Folder of the client's rounds.
      round_id: Id of one of these rounds of votes, which have the same roles, or of a check.
    """
    notes = {}
    for path in folder.glob(f"*.{ROLES}"):
        with suppress(RefusedError):  # a damaged note answers nothing
            if note := Note.read(path):
                notes[path] = note
    over = {note.roles for path, note in notes.items() if round_id in (path.stem, note.check)}
    for path, note in notes.items():
        if note.roles in over:
            path.unlink(missing_ok=True)


def begun(folder: Path, check: CheckRound) -> bool:
    """Return whether this check was begun.

    Raises:
      RefusedError: If another one was, or if the check is not one of a round that has roles here.
    """
    return same_check(check, _note_of(folder, check).check)


def begin(folder: Path, check: CheckRound) -> None:
    """Note that a check is about to be answered, and no other one of its round will be."""
    replace(_note_of(folder, check), check=check.id).write(_path(folder, check))


def _note_of(folder: Path, check: CheckRound) -> Note:
    """Return the note of the round of votes that a check belongs to."""
    note = Note.read(_path(folder, check))
    if note is None:
        raise RefusedError(
            "Expected a check of a round that this client was asked to vote in, got one of round "
            f"{check.voted[:12]}, of which {folder} has no roles."
        )
    note.check_asked(check)
    return note


def _path(folder: Path, round: Round) -> Path:
    return folder / f"{round.account}.{ROLES}"


def _sealed(roles: Roles, inputs: np.ndarray, labels: np.ndarray) -> str:
    """Return a fingerprint of records and labels that reveals nothing without the roles' key."""
    told = f"{fingerprint(inputs)} {labels.tolist()!r}"
    return hashlib.sha256(roles.key + told.encode(errors="surrogatepass")).hexdigest()

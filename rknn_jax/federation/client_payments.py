"""Payment of a client for a round: its note, the charge of its ledger, and the seed of its noise.

`client` has the order of steps and the reasons.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from rknn_jax._internal import disk
from rknn_jax._internal.option_names import option
from rknn_jax.federation import client_roles
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.check_rounds import CheckRound
from rknn_jax.federation.messages import records_at_once
from rknn_jax.federation.notes import NAME, note_name, noted_entropy, seal
from rknn_jax.federation.rounds import Round
from rknn_jax.privacy.entropy import SEED_BYTES, Entropy
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Amount, BudgetExceededError, Entry, Ledger, LedgerError

NOTED = "noted"
"""Suffix of the file of a round that is noted and not yet answered."""


@dataclass(frozen=True)
class Payments:
    """Payments of a client's rounds.

    Attributes:
      ledger: Ledger of its records; None for simulated noise alone.
      folder: Folder of the rounds' notes.
    """

    ledger: Ledger | None
    folder: Path

    def check_affordable(self, cost: Guarantee, round: Round) -> None:
        """Raise an error if the ledger would refuse the charge, before the data is read."""
        if self.ledger is None:
            raise RefusedError(
                "Expected a ledger, got none, and real noise is not drawn without one."
            )
        if not self.charge_of(round) and not self.ledger.affords(cost):
            asked = Amount(Fraction(str(cost.epsilon)), Fraction(str(cost.delta)))
            raise BudgetExceededError(
                f"The round costs {asked}, and {self.ledger.path} has {self.ledger.remaining} "
                f"left; {self.ledger.advice(cost)}"
            )

    def check_paid(self, round: Round, messages: bytes) -> None:
        """Refuse to send messages again that this client's ledger has not paid for.

        They are another client's, which has the same folder.
        """
        if messages and not self.charge_of(round):
            raise RefusedError(
                f"Expected the answers of this client in {self.folder}, got those of another, "
                f"whose ledger was charged; name a folder of its own by {option('rounds')}."
            )

    def charge_of(self, round: Round, subject: str = "") -> str:
        """Return the purpose of a round's charge, or of its part of a subject; empty if none."""
        return self._entry(round, "spend", lambda one: one.purpose, subject)

    def _entry(
        self, round: Round, kind: str, told: Callable[[Entry], str], subject: str = ""
    ) -> str:
        """Return what the ledger's first line of a kind tells about a round; empty if none."""
        # The purpose of the charge names the round: the ledger is what remembers, also if the
        # folder is lost.
        begins = f"round {round.account}: {subject}"
        found = self.ledger.entries_of(begins) if self.ledger else ()
        return next((told(one) for one in found if one.kind == kind), "")

    def begun(self, round: Round) -> bool:
        """Return whether an answer may have been sent, so that none is made without its note."""
        if not isinstance(round, CheckRound):
            return self.charge_of(round) != ""
        noted = client_roles.begun(self.folder, round)
        known = self._entry(round, "drawn", lambda one: one.result).partition(NAME)[0]
        paid = client_roles.same_check(round, known)
        return noted or paid or self.charge_of(round, round.subject) != ""

    def _pay(self, round: Round, cost: Guarantee, name: str, roles: str) -> None:
        """Charge the ledger, unless the round of votes was charged for this check too.

        The charge names the roles, so that no record votes by some and checks by others, and the
        terms of the check, which is not asked by others than were paid for.

        Args:
          round: Round that nothing has been said to.
          cost: Privacy cost of the round.
          name: Name of the round's note.
          roles: Mark of the roles by which the records answer; empty if it has none.

        Raises:
          RefusedError: If another folder of this client was paid for.
          LedgerError: If the budget does not allow the round.
        """
        assert self.ledger is not None
        charged = self.charge_of(round)
        if not charged:
            # Another folder may be answering: what nobody was seen to pay is paid by one alone.
            once = f"round {round.account}: "
            self.ledger.charge(cost, f"{once}{round.subject}{roles}{name}", once=once)
        elif not isinstance(round, CheckRound):  # by another process, since `begun` was asked
            raise self._elsewhere()
        else:
            self._check_roles(round, roles)

    def _check_roles(self, round: Round, roles: str) -> None:
        """Refuse roles, records or terms that the charge does not name."""
        assert self.ledger is not None
        if roles not in self.charge_of(round):
            raise RefusedError(
                f"Expected the roles, records and terms that {self.ledger.path} was charged for, "
                f"got others in {self.folder}; answer from the folder that answered first."
            )

    def _check_named(self, round: Round, name: str) -> None:
        """Refuse a note that is not the one that was paid for: its messages would be second ones.

        Args:
          round: Round that the ledger was charged for.
          name: Name of the round's note.
        """
        assert self.ledger is not None
        lines = self.ledger.entries_of(f"round {round.account}: ")
        told = [one.purpose for one in lines if one.kind == "spend"]
        if isinstance(round, CheckRound):
            told.append(self._entry(round, "drawn", lambda one: one.result))
        # Lines of earlier versions name no note.
        if any(NAME in one for one in told) and not any(one.endswith(name) for one in told):
            raise self._elsewhere()

    def _elsewhere(self) -> RefusedError:
        assert self.ledger is not None
        return RefusedError(
            f"Expected the note of the answer that {self.ledger.path} was charged for, got another "
            f"one in {self.folder}; answer from the folder that answered first."
        )

    def entropy(self, round: Round, cost: Guarantee, cells: np.ndarray, roles: str) -> Entropy:
        """Note the round and charge the ledger, unless both were done before a crash.

        The note is sealed with the votes, because two messages from one seed with different votes
        would reveal more than one.

        Args:
          round: Round that is answered.
          cost: Its privacy cost.
          cells: What the records say, private.
          roles: Mark of the roles by which they say it; empty if the round has none.

        Returns:
          The entropy that the note has for these cells.
        """
        assert self.ledger is not None
        note = self.path(round, NOTED)
        begun = self.begun(round)
        # Charged, and the seed is gone: another draw would be a second message for one charge.
        if begun and not note.exists():
            raise RefusedError(
                f"Expected the answer to a round that {self.ledger.path} was charged for, got "
                f"none in {self.folder}; not again."
            )
        if begun:
            self._check_roles(round, roles)
        else:
            # Note, charge, draw, in this order. A crash before the charge costs nothing, and one
            # after it is finished from the note with the same seed.
            seed = secrets.token_bytes(SEED_BYTES)
            noted = {
                "round": round.id,
                "seed": seed.hex(),
                "seal": seal(seed, cells, records_at_once(round)),
            }
            disk.write_whole(note, json.dumps(noted).encode(), disk.OWNER)
            try:
                self._pay(round, cost, note_name(note), roles)
            except (LedgerError, RefusedError):
                note.unlink()  # it is useless, and a server may ask any number of times
                raise
            if isinstance(round, CheckRound):
                self.ledger.mark_drawn(self.charge_of(round), round.id + note_name(note))
                client_roles.begin(self.folder, round)
        self._check_named(round, note_name(note))
        return noted_entropy(note, cells, records_at_once(round))

    def path(self, round: Round, suffix: str) -> Path:
        """Return the file of a round with a suffix."""
        return self.folder / f"{round.id}.{suffix}"

    @contextmanager
    def says_if_paid(self, round: Round, words: str) -> Iterator[None]:
        """Add words to an error of the operating system if the round is paid for."""
        try:
            yield
        except OSError as error:
            if self.charge_of(round):
                error.add_note(words)
            raise

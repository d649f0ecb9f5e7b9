"""Client side of a round: check the agreement, spend, randomize, and answer.

The order of steps is fixed. The round is noted on disk, with a fresh seed of the operating system's
entropy. The ledger is charged. Messages are drawn from the seed and written to disk. The note is
removed, and the messages are sent. After a crash at any step, either nothing was sent, or the same
bytes are sent again. No second message is made from one spend:

- The id is the hash of the question, so another question is another round, with its own spend.
- An answer on disk is sent as is, even if the data have changed since.
- A note without its answer, as after a crash or from a backup, gives the same messages
  from its seed. If the votes have changed, it gives none. Nor does a note that the ledger's line
  does not name, because another folder of this client, or a later note, was paid for.
- A spend without its note or its answer, because somebody removed it, is refused.

**Roles.** If labels are checked, a record answers the round of votes or its check, and the ledger
is charged once for both (`client_roles`). A `drawn` line of the ledger names the check that the
charge has paid for, and the check's note. So a folder that comes back from a backup answers no
check twice.

**Free information for the server.** Whether a client answers depends on the question, the ledger,
the owner's agreement and the data's shape. The first three are checked before the data is read, and
no value in the data matters. A record that cannot vote sends a message without votes: its label is
none of the classes, or its features are not numbers. A representation that the server sent sees one
record at a time. A representation that mixed several records could let one of them move the
messages of all. The time of an answer reveals the number of records.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rknn_jax import trust
from rknn_jax._internal import disk
from rknn_jax._internal.arithmetic import quiet
from rknn_jax._internal.option_names import option
from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation import client_roles, wire
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.certificate_errors import printable
from rknn_jax.federation.client_payments import NOTED, Payments
from rknn_jax.federation.messages import messages, simulated_messages
from rknn_jax.federation.rounds import Round
from rknn_jax.neighbors import LARGEST
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.records.classes import Classes
from rknn_jax.records.features import MOST_NAMED
from rknn_jax.records.labels import agree

# Suffixes of a round's file: after the answer, and from the server's word that it counts until the
# end of the round is known. `client_payments` has that of before.
ANSWERED = "answer"
COUNTED = "counted"
SERVER = "server"

SENT_AGAIN = (
    "The round is paid for, and nothing is lost: the same command answers and pays nothing."
)
TAKEN_ONCE = "The round is paid for, and its sum goes on without this client: it is joined once."
"""Words for a file of a round that cannot be written or read after the charge."""


@dataclass(frozen=True)
class Client:
    """Party with private records.

    Attributes:
      inputs: uint8 images `[n, h, w, c]`, or float32 features `[n, f]`.
      labels: Labels as stored, one a record or several, for `records.labels.encode`.
      ledger: Ledger of these records; None for simulated noise alone.
      folder: Folder of the rounds, kept beside the ledger and as safe.
      agreement: Limits on the server's questions. Defaults to trusting nobody.
      first: Number of the first record among those of all clients, for simulated noise. Defaults to
        0.
      features: Names of the features, in the order of `inputs`. Defaults to none.
      classes: Names that the file gives the class numbers among the labels. Defaults to none.
    """

    inputs: np.ndarray
    labels: np.ndarray
    ledger: Ledger | None
    folder: Path
    agreement: Agreement = field(default_factory=Agreement)
    first: int = 0
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def _payments(self) -> Payments:
        return Payments(self.ledger, self.folder)

    @quiet()
    def answer(self, question: bytes, server: str = "") -> tuple[str, int, bytes]:
        """Return the round's id, this client's ticket in the round, and its messages.

        The ticket is a random number below 2^64. It is the same when the client is asked again, and
        different in each round.

        Guarantee: `Round.guarantee`, charged to the ledger before anything is drawn. The charge is
        made once, however often the question is repeated.

        Args:
          question: Question of the round.
          server: Address of the server that asks, with its root certificate and the key by which
            it knows this client. A round that it shuffles is answered to no other. Defaults to a
            caller without one.

        Raises:
          RefusedError: If the owner has not agreed to such a question, if it does not fit the data,
            or if another server was answered.
          LedgerError: If the budget does not allow the round.
        """
        round = self.parsed(question)
        if round.summed:
            raise RefusedError(
                "Expected a round of messages, got trust=central, which asks for a sum."
            )
        cost = self.agreement.cost(round)
        # Simulated noise protects nobody, and the agreement allows it only where the owner said so.
        if round.simulated is not None:
            made = simulated_messages(round, self._contribution(round), self.first)
            return round.id, self.first, wire.encode(round.mechanism, made)
        with self._locked(), self._payments.says_if_paid(round, SENT_AGAIN):
            said = self._payments.path(round, ANSWERED)
            # An answer is made once: a server that asks again gets the same bytes.
            answer = self.said(round.id)
            if answer is None:
                self._payments.check_affordable(cost, round)
            else:
                self._payments.check_paid(round, answer[1])
            self._bind(round, server)
            if answer is None:
                asked, roles = self._asked(round)
                cells = self._contribution(round, asked)
                disk.write_whole(said, self._made(round, cost, cells, roles), disk.OWNER)
                self._payments.path(round, NOTED).unlink(missing_ok=True)
                answer = self.said(round.id)
        assert answer is not None
        return round.id, *answer

    def _bind(self, round: Round, server: str) -> None:
        """Let a round that one server shuffles be answered to no other, before anything is spent.

        Two servers that shuffle the same messages among others would show whose they are, and so
        would one that counts this client twice, by two keys.
        """
        if not trust.named(round.config.trust).is_shuffled:
            return
        path = self._payments.path(round, SERVER)
        if not path.exists():
            disk.write_whole(path, server.encode(), disk.OWNER)
        known = path.read_text(errors="replace")
        if known != server:
            raise RefusedError(
                f"Expected the server of this round, {printable(known)}, got {server}: messages "
                f"that are shuffled twice show whose they are. Pass {option('server')}, "
                f"{option('ca')} and {option('key')} as then; if that server has moved or has a "
                f"new root certificate, remove {path}."
            )

    def _made(self, round: Round, cost: Guarantee, cells: np.ndarray, roles: str) -> bytes:
        """Return the ticket and the messages, which are paid before they are drawn.

        A client none of whose records is asked by this round sends none, and pays nothing.
        """
        if not len(cells):
            return secrets.token_bytes(8)
        entropy = self._payments.entropy(round, cost, cells, roles)
        # The ticket comes from the sealed seed too, so that it is the same after a crash.
        return entropy.words(1).tobytes() + messages(round, cells, entropy)

    @quiet()
    def ready(self, question: bytes) -> "Prepared":
        """Return this client's contribution to a sum, still without noise; nothing is spent.

        Raises:
          RefusedError: If the owner has not agreed to such a question, or if it does not fit the
            data.
          LedgerError: If the budget does not allow the round.
        """
        round = self.parsed(question)
        if not round.summed:
            raise RefusedError("Expected a round with trust=central, got one of messages.")
        cost = self.agreement.cost(round)
        with self._locked():
            if self._payments.path(round, NOTED).exists() or self._payments.begun(round):
                raise RefusedError(
                    "Expected a new round, got one whose sum this client has had its part in; it "
                    "takes part once."
                )
            self._payments.check_affordable(cost, round)
            asked, roles = self._asked(round)
        return Prepared(self, round, cost, self._contribution(round, asked), roles)

    def _asked(self, round: Round) -> tuple[np.ndarray, str]:
        """Return which records answer a round, those that vote or those that check, and by what.

        Returns:
          `(asked, roles)`: bool `[n]`, and the mark of their roles, empty if the round has none.
        """
        if not round.has_roles:
            return np.ones(len(self.inputs), bool), ""
        paid = self._payments.charge_of(round) != ""
        return client_roles.asked(self.folder, round, self.inputs, self.labels, paid=paid)

    def _order(self, round: Round) -> list[int]:
        """Return the place of each feature of the round among this client's.

        Features without names, here or in the round, are taken in the order that they have.
        """
        if not (self.features and round.features):
            return list(range(self.inputs.shape[1]))
        if other := sorted(set(self.features) ^ set(round.features)):
            raise RefusedError(
                f"Expected a round about this client's columns of features, got others: {other[:5]}"
                f"; name them as the server does, or leave columns out with {option('drop')}."
            )
        return [self.features.index(name) for name in round.features]

    def said(self, round_id: str) -> tuple[int, bytes] | None:
        """Return the ticket and the messages of a round that this client has answered, if any.

        Args:
          round_id: Id of the round, 64 lower-case hexadecimal digits.
        """
        path = self.folder / f"{round_id}.{ANSWERED}"
        if not path.exists():
            return None
        data = path.read_bytes()
        return int.from_bytes(data[:8], "little"), data[8:]

    @contextmanager
    def in_sum(self) -> Iterator[None]:
        """Keep other processes of this client out of a sum; its server would count them too.

        Raises:
          RefusedError: If another process is in a sum.
        """
        disk.make_folder(self.folder, 0o700)
        with disk.opened(self.folder / ".sum", os.O_RDWR | os.O_CREAT) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(
                    f"Expected one process that takes part in a sum from {self.folder}, got "
                    "another one; let it end."
                ) from None
            yield

    def has_paid(self, round_id: str) -> bool:
        """Return True if the ledger was charged for a round of this id."""
        lines = self.ledger.entries_of(f"round {round_id}:") if self.ledger else ()
        return any(line.kind == "spend" for line in lines)

    @property
    def has_roles(self) -> bool:
        """Flag for a round of votes that may be checked, whose id no check shows once it closed."""
        return any(self.folder.glob(f"*.{client_roles.ROLES}"))

    def note_counted(self, round_id: str, server: str) -> None:
        """Note that a round of a server counts this client, whose end is not known yet."""
        disk.make_folder(self.folder, 0o700)
        disk.write_whole(self.folder / f"{round_id}.{COUNTED}", server.encode(), disk.OWNER)

    def counted(self, server: str | None = None) -> list[str]:
        """Return the ids of rounds that count this client, and whose end is not known.

        Args:
          server: Server of the rounds, as in `answer`. Defaults to all servers.
        """
        notes = sorted(self.folder.glob(f"*.{COUNTED}"))
        return [note.stem for note in notes if server in (None, note.read_text(errors="replace"))]

    def clear_counted(self, round_id: str) -> None:
        """Remove the note of `note_counted`, since the round does not go on."""
        (self.folder / f"{round_id}.{COUNTED}").unlink(missing_ok=True)

    def clear_roles(self, round_id: str) -> None:
        """Remove the roles of published rounds, known by the id of one or of a check."""
        with self._locked():
            client_roles.clear(self.folder, round_id)

    @quiet()
    def parsed(self, question: bytes) -> Round:
        """Return the round of a question that is within the owner's bounds.

        Raises:
          RefusedError: If the bytes are no question, or if the question or its answer is too large.
        """
        return self.agreement.parsed(question, len(self.inputs))

    def _contribution(self, round: Round, mine: np.ndarray | None = None) -> np.ndarray:
        """Return what the records say, each by itself, as `Round.contribute` does: private.

        It never fails because of values in the data. To a sum, records that are not asked add
        nothing. Of messages, they have none.

        Args:
          round: Round of the question.
          mine: Records that answer, bool `[n]`. Defaults to all.
        """
        mine = np.ones(len(self.inputs), bool) if mine is None else mine
        try:
            said = round.encoded(self.labels).ids
        except ValueError as error:
            raise RefusedError(str(error)) from error
        # Types, shapes and declared names may refuse a round, as they are no record's own.
        if not agree(Classes(len(round.classes), round.classes), self.classes):
            raise RefusedError(
                "Expected a round about some of the names of class numbers in "
                f"{option('private')}, {', '.join(self.classes[:MOST_NAMED])}, got one about "
                f"{printable(', '.join(round.classes[:MOST_NAMED]))}; write them alike, or leave "
                "the names out there."
            )
        images = self.inputs.dtype == np.uint8
        if images != (round.encode is not None):
            held, asked = ("images", "features") if images else ("features", "images")
            raise RefusedError(
                f"Expected a round about {held}, which this client has, got one about {asked}; "
                "agree on one with the server."
            )
        width = round.width
        features = np.full((len(self.inputs), width), np.nan, np.float32)
        if images:
            if _encoded(round, np.zeros_like(self.inputs[:1])) is None:
                raise RefusedError(
                    f"Expected a representation of such images in {width} dimensions, got one "
                    "that makes something else."
                )
            for i in range(len(self.inputs)):
                # One record at a time: what an encoder does to a batch could depend on all of it.
                one = _encoded(round, self.inputs[i : i + 1])
                features[i] = np.nan if one is None else one
        elif self.inputs.shape[1:] != (width,):
            raise RefusedError(
                f"Expected {option('private')} with embeddings of {width} dimensions, as the "
                f"round's queries have, got {' × '.join(map(str, self.inputs.shape[1:]))}; embed "
                "the records with the server's model."
            )
        else:
            features[:] = self.inputs[:, self._order(round)]
        features = round.mapped(features)
        # A record that cannot be used says nothing. An error would tell the server of it.
        able = np.all(np.abs(features) <= LARGEST, axis=1)
        usable = np.where(able[:, None], features, np.float32(0))
        told = round.contribute(usable, np.where(able & mine, said.T, NO_CELL).T)
        return told if round.summed else told[mine]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this client out.

        The lock ends with the process, even on `kill -9`.
        """
        disk.make_folder(self.folder, 0o700)
        with disk.opened(self.folder / ".lock", os.O_RDWR | os.O_CREAT) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class Prepared:
    """Contribution of a client to a sum.

    Attributes:
      client: Client that contributes.
      round: Round with trust=central.
      cost: Privacy cost of the round.
      contribution: What the client's records say, private; see `ClientSum.terms`.
      roles: Mark of the roles by which they say it; empty if the round has none.
    """

    client: Client
    round: Round
    cost: Guarantee
    contribution: np.ndarray
    roles: str

    def vector(self) -> np.ndarray:
        """Charge the ledger and return this client's part with its share of the noise.

        It works only once. Two sums that hold one vector among different others would reveal the
        vector, protected by its own share of the noise alone.

        Returns:
          int64 `[num_cells]`, for secure aggregation to hide.

        Raises:
          RefusedError: If the client already took part in this round.
          LedgerError: If the budget does not allow the round.
        """
        payments = self.client._payments
        with self.client._locked():
            if payments.path(self.round, NOTED).exists() or payments.begun(self.round):
                raise RefusedError(
                    "Expected a new round, got one whose sum this client has had its part in; it "
                    "takes part once."
                )
            # Called by step 2 of the sum, after all else was checked: whoever drops out earlier
            # pays nothing.
            with payments.says_if_paid(self.round, TAKEN_ONCE):
                entropy = payments.entropy(self.round, self.cost, self.contribution, self.roles)
                note = payments.path(self.round, NOTED)
                # The note stays without its seed, since nothing on disk may unmask a sum.
                disk.write_whole(note, json.dumps({"round": self.round.id}).encode(), disk.OWNER)
        return self.round.sum.vector(self.contribution, entropy)

    def least_threshold(self, clients: int) -> int:
        """Return the least number of clients that must open a sum, out of `clients`.

        Enough of the clients in the sum are then honest. No two sums can be opened without an
        honest client that would open both.
        """
        dishonest = self.client.agreement.dishonest
        return max(self.round.honest + dishonest, (clients + dishonest) // 2 + 1)


def _encoded(round: Round, image: np.ndarray) -> np.ndarray | None:
    """Return one record's features, float32 `[f]`, or None if the representation fails on it."""
    assert round.encode is not None
    try:
        made = np.asarray(round.encode(image))
    # Catch every error of the server's representation: one record must not decide whether there
    # is an answer.
    except Exception:
        return None
    fits = made.shape == (1, round.width) and made.dtype == np.float32
    return made[0] if fits else None

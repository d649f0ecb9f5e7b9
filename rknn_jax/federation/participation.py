"""Course of a round for a client: take its question, answer it, and wait for its end.

What a client has said, and what its server counts, are notes on disk. So a client that was stopped
goes on where it was, and learns the end of a round that it answered before.
"""

import random
import secrets
import time
from typing import NamedTuple

from rknn_jax._internal.option_names import option
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.certificate_errors import printable
from rknn_jax.federation.client import Client
from rknn_jax.federation.connection import Connection, UnreachableError
from rknn_jax.federation.question_notice import tell_question
from rknn_jax.federation.round_folder import Tell
from rknn_jax.federation.secure_sum import Participant
from rknn_jax.federation.secure_sum_keys import STEPS, SumRefusedError
from rknn_jax.federation.server import STATUSES
from rknn_jax.privacy.ledger import LedgerError

CLOSED_SECONDS = 1.0
"""Seconds between two looks for another round."""

GONE = "The server has gone. The answer was counted; how the round ended is not known."
"""Statement of a round whose server ends before this client hears of it."""

APART = "takes no more answers, and this client was not in it. Nothing was spent"
PAID = (
    "takes no more answers. This client has paid for it and was stopped in its sum; whether its "
    "numbers are in it is not known"
)
CHECKED = (
    "takes no more answers. If it checks the labels of a round of votes, this client's ledger was "
    "charged for both when it voted; whether the check counts this client is not known"
)
"""What a closed round does, for a client that does not know itself to be in it."""

UNSHOWN = b""
"""Question of a round that its server does not show."""

MASKED = 2
"""Step of a sum in which a client sends its vector."""

ELSEWHERE = "another round"
"""Fate at a server that is at another round, if only for a moment: a check begins after a restart.

The client looks again which round that is. It would wait in vain for the statement of a round that
came back meanwhile, and that waits for this client.
"""


class Outcome(NamedTuple):
    """End of a round for a client.

    Attributes:
      statement: Statement of the server, of printable letters.
      took_part: True if the client's answer counts.
    """

    statement: str
    took_part: bool


class FailedError(ValueError):
    """Round that its server gave up."""


def take_part(client: Client, connection: Connection, tell: Tell) -> Outcome:
    """Take part in the server's round, and wait for its end.

    Args:
      client: Client that answers.
      connection: Connection to the server.
      tell: Function that is called with each event.

    Raises:
      FailedError: If the server gives the round up.
      ValueError: If a certificate does not fit.
    """
    while True:
        try:
            round_id, question = _question(client, connection, tell)
        except UnreachableError as error:
            counted = client.counted(connection.ends)  # before this client was stopped
            if not counted:
                raise
            _clear(client, counted)
            tell("warning", str(error))
            tell("over", GONE)
            return Outcome(GONE, True)
        account, first = _related(client, round_id, question)
        counted = client.counted(connection.ends)
        if not {round_id, account, first} & set(counted):
            _clear(client, counted)
        took_part = bool({account, first} & set(counted) - {round_id})
        counts = _answer(client, connection, round_id, question=question, tell=tell)
        if counts is None:
            time.sleep(random.uniform(0.5, 1.5) * CLOSED_SECONDS)
            continue
        took_part |= counts
        try:
            statement = _statement(connection, round_id)
        except UnreachableError as error:
            if not took_part:
                raise
            statement = GONE
            tell("warning", str(error))
        except FailedError:
            _clear(client, client.counted(connection.ends))
            raise
        if statement is not None:
            over = set() if statement == GONE else {account, first} - {""}
            _forget(client, connection, over, tell=tell)
            tell("over", statement)
            return Outcome(statement, took_part)
        tell("waiting", f"round {round_id[:12]} takes no more; for a check of it, or the next one")


def _related(client: Client, round_id: str, question: bytes | None) -> tuple[str, str]:
    """Return the ids of the round that pays for this one, and of the first of several.

    A check is paid for by its round of votes, any other round by itself. The second id is empty in
    a first round.
    """
    try:
        round = client.parsed(question or b"")
    except RefusedError:
        return round_id, ""
    return round.account, round.after


def _clear(client: Client, round_ids: list[str]) -> None:
    for round_id in round_ids:
        client.clear_counted(round_id)


def _forget(client: Client, connection: Connection, over: set[str], tell: Tell) -> None:
    """Remove what a round has left that does not go on, and the roles of rounds that are over."""
    try:
        _clear(client, client.counted(connection.ends))
        for round_id in over:
            client.clear_roles(round_id)
    except OSError as error:
        tell("warning", f"the round is over, and not all that it left could be removed ({error})")


def _note_counted(client: Client, connection: Connection, round_id: str, tell: Tell) -> None:
    """Note that the round counts this client, so that it knows after it was stopped."""
    try:
        client.note_counted(round_id, connection.ends)
    except OSError as error:
        tell("warning", f"the server counts the answer, which could not be noted ({error})")


def _question(client: Client, connection: Connection, tell: Tell) -> tuple[str, bytes | None]:
    """Return the id of the server's round, and its question; None if it is too long.

    If the round takes no more answers, wait for another one, unless this client has answered it;
    the question then is `UNSHOWN`.
    """
    told = ""
    while True:
        received = connection.get("/v1/round", client.agreement.most_bytes, by_id=True)
        if received.status == 200:
            return received.round, received.data
        if client.said(received.round) or received.round in client.counted(connection.ends):
            return received.round, UNSHOWN
        if received.round != told:
            told = received.round
            part = CHECKED if client.has_roles else APART
            part = PAID if client.has_paid(told) else part
            tell(
                "too late",
                f"round {told[:12]} {part}. Waiting for the next round; Ctrl-C leaves",
            )
        time.sleep(random.uniform(0.5, 1.5) * CLOSED_SECONDS)


def _answer(
    client: Client, connection: Connection, round_id: str, question: bytes | None, tell: Tell
) -> bool | None:
    """Answer a question, or refuse it without a reason; return True if the answer counts.

    Return None if the server is at another round. An answer on disk is sent again only to a server
    that shows its question, and only if the owner agrees to that question now: a shuffled message
    is safe with those alone whom the owner trusts to shuffle it. Where the question is not shown,
    the client's ticket asks whether it counts.
    """
    path = f"/v1/rounds/{round_id}"
    kept = client.said(round_id)
    if kept is None and round_id in client.counted(connection.ends):
        tell("added", f"to the sum of round {round_id[:12]} before; waiting for its end")
        return True
    try:
        if question == UNSHOWN and kept is not None:
            connection.ticket, payload = kept[0], b""
        else:
            if question is None:
                raise RefusedError(
                    f"Expected a question of at most {client.agreement.most_bytes:,} bytes, got a "
                    f"longer one; agree to more with {option('most_bytes')}."
                )
            if kept is None:
                tell_question(question, client, tell)
            round = client.parsed(question)
            if round.summed:
                with client.in_sum():
                    return _add(client, connection, round_id, question=question, tell=tell)
            if kept is None:
                tell("answering", f"round {round_id[:12]}")
            _, connection.ticket, payload = client.answer(question, connection.ends)
    except (RefusedError, LedgerError, SumRefusedError) as error:
        tell("refused", str(error))
        connection.ticket = connection.ticket or secrets.randbits(64)
        if connection.post(f"{path}/refusal") == ELSEWHERE:
            return None
        tell(
            "waiting",
            f"for the end of round {round_id[:12]}. Ctrl-C leaves; run the command again with the "
            "cause mended to be asked again",
        )
        return False
    fate = connection.post(f"{path}/answers", payload)
    if fate == ELSEWHERE:
        return None
    if fate == "again" and payload and kept is None and connection.attempts == 1:
        tell(
            "warning",
            "the server counted an answer by this key before. Unless something on the way repeats "
            "requests, it was another data set's, and this one was charged and does not count; "
            "give each data set a certificate of its own",
        )
    if fate in ("counted", "again"):
        _note_counted(client, connection, round_id, tell)
        sent = f"with {len(payload):,} bytes" if payload else "before"
        tell("answered", f"round {round_id[:12]} {sent}; waiting for its end")
        return True
    spent = "it was charged" if kept or payload else "it says nothing, and cost nothing"
    tell("not counted", f"the server calls the answer {printable(fate)}; {spent}")
    return False


def _add(
    client: Client, connection: Connection, round_id: str, question: bytes, tell: Tell
) -> bool | None:
    """Add this client's counts to a sum; return True if they are in it.

    Return None if the server is at another round.
    """
    prepared = client.ready(question)
    connection.ticket = secrets.randbits(64)
    length = prepared.round.num_cells
    participant = Participant(round_id, length, prepared.least_threshold, prepared.vector)
    tell("ready", f"for the sum of round {round_id[:12]}")
    added = False
    for step in range(STEPS):
        path = f"/v1/rounds/{round_id}/sum/{step}"
        received = connection.poll(path, client.agreement.most_bytes)
        if received.status == STATUSES[ELSEWHERE] and not added:
            return None
        if received.status != 200 or received.data is None:
            break
        fate = connection.post(path, participant.step(step, received.data))
        if fate == ELSEWHERE and not added:
            return None
        if fate not in ("counted", "again"):
            break
        if step == MASKED:
            tell("added", f"{length:,} numbers under masks")
            added = True
            # At once: the sum may be opened without this client, which then is in it all the same.
            _note_counted(client, connection, round_id, tell)
    if not added:
        tell("not counted", "the sum was taken without this client")
    return added


def _statement(connection: Connection, round_id: str) -> str | None:
    """Wait for the statement of a round, and return it; None if the server has another round.

    Raises:
      FailedError: If the server gives the round up.
    """
    received = connection.poll(f"/v1/rounds/{round_id}/statement")
    text = (received.data or b"").decode(errors="replace")
    if received.status == 200:
        return printable(text)
    if received.status == 410:
        raise FailedError(f"The server gave the round up: {printable(text)}")
    return None

"""Client's side of the connection: ask for the round, answer it, and wait for its end.

A request that is lost on the way is sent again, for as long as the client's owner waits: the client
gives the same answer, and the server counts the client once. A certificate that does not fit ends
the client at once. What a server sends is bounded, is never decompressed, and is taken for the
server's only if it names its round.
"""

import hashlib
import json
import math
import random
import re
import secrets
import ssl
import time
from contextlib import AbstractContextManager
from typing import NamedTuple

import httpx

from rknn_jax._internal.option_names import option
from rknn_jax.federation.agreement import RefusedError
from rknn_jax.federation.certificate_errors import check_certificates, printable
from rknn_jax.federation.client import Client
from rknn_jax.federation.question_notice import tell_question
from rknn_jax.federation.round_folder import Tell
from rknn_jax.federation.secure_sum import Participant
from rknn_jax.federation.secure_sum_keys import STEPS, SumRefusedError
from rknn_jax.federation.server import OCTETS, POLL_SECONDS, ROUND_HEADER, TICKET_HEADER
from rknn_jax.privacy.ledger import LedgerError

FIRST_WAIT = 0.1
LONGEST_WAIT = 4.0
"""Seconds between two attempts."""

CLOSED_SECONDS = 1.0
"""Seconds between two looks for another round."""

LONGEST_PAUSE = 60.0
"""Most seconds that a server, or a proxy before it, may ask a client to wait."""

CONNECT_SECONDS = 20.0
SILENT_SECONDS = POLL_SECONDS + 20.0
"""Longest silence of a server in the middle of a request."""

MOST_TEXT = 2**16
NOTHING_YET = 204

GONE = "The server has gone. The answer was counted; how the round ended is not known."
"""Statement of a round whose server ends before this client hears of it."""

MASKED = 2
"""Step of a sum in which a client sends its vector."""

ROUND_ID = re.compile(r"[0-9a-f]{64}")


class Received(NamedTuple):
    """Response of a server.

    Attributes:
      status: HTTP status.
      round: Id of the round that the server serves.
      data: Body; None if it is longer than allowed.
    """

    status: int
    round: str
    data: bytes | None


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


class UnreachableError(ValueError):
    """Server that did not answer for as long as the client's owner waits."""


class Connection:
    """Requests to one server, repeated until they arrive.

    Args:
      server: URL of the server.
      context: TLS settings. None for plain HTTP on this host, which uses no proxy.
      tell: Function that is called when the server cannot be reached, once for each reason.
      patience: Seconds to try to reach a server that does not answer. Defaults to no end.

    Attributes:
      ticket: Number by which a server without TLS knows this client. None until it has one.
    """

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext | None,
        tell: Tell,
        patience: float = math.inf,
    ) -> None:
        self.tell = tell
        self.patience = patience
        self.ticket: int | None = None
        self._reason = ""
        self._http = httpx.Client(
            base_url=server,
            verify=context or False,
            trust_env=context is not None,
            timeout=httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS),
            headers={"user-agent": "rknn", "accept-encoding": "identity"},
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, most: int = MOST_TEXT) -> Received:
        """Return the response to a request, with a body of at most `most` bytes.

        Raises:
          UnreachableError: If the server does not answer.
          ValueError: If a certificate does not fit.
        """
        return self._repeat("GET", path, None, most)

    def post(self, path: str, data: bytes = b"") -> str:
        """Send data, and return its fate.

        Raises:
          ValueError: If a certificate does not fit.
        """
        received = self._repeat("POST", path, data, MOST_TEXT)
        try:
            return str(json.loads(received.data or b"")["fate"])
        except (ValueError, LookupError, TypeError):
            return f"status {received.status}"

    def poll(self, path: str, most: int = MOST_TEXT) -> Received:
        """Return the response to a request for news, as soon as there are any."""
        while (received := self.get(path, most)).status == NOTHING_YET:
            pass
        return received

    def _repeat(self, method: str, path: str, data: bytes | None, most: int) -> Received:
        wait = FIRST_WAIT
        ends = time.monotonic() + self.patience
        while True:
            pause = 0.0
            try:
                with self._sent(method, path, data) as response:
                    asked = _seconds(response.headers.get("retry-after", ""))
                    pause = min(asked, LONGEST_PAUSE, max(0.0, ends - time.monotonic()))
                    if received := self._received(response, most):
                        break
            except httpx.TransportError as error:
                check_certificates(error)
                self._tell_waiting(str(error) or type(error).__name__)
            if time.monotonic() >= ends:
                raise UnreachableError(
                    f"Expected a server at {self._http.base_url}, got none for {self.patience:g} s "
                    f"({printable(self._reason)}); check {option('server')}, and that rknn serve "
                    "still runs there, which ends with its round. What was answered is kept: the "
                    "same command sends it again and spends nothing. Wait longer with "
                    f"{option('wait')}."
                )
            # Random, so that the clients of a server that comes back do not come all at once.
            time.sleep(max(pause, wait * random.uniform(0.5, 1.5)))
            wait = min(2 * wait, LONGEST_WAIT)
        self._reason = ""
        time.sleep(pause)
        return received

    def _sent(
        self, method: str, path: str, data: bytes | None
    ) -> AbstractContextManager[httpx.Response]:
        headers = {} if self.ticket is None else {TICKET_HEADER: str(self.ticket)}
        if data is not None:
            headers["content-type"] = OCTETS
        return self._http.stream(method, path, content=data, headers=headers)

    def _received(self, response: httpx.Response, most: int) -> Received | None:
        """Return a response, or None if another attempt is due."""
        status = response.status_code
        round_id = response.headers.get(ROUND_HEADER, "")
        known = ROUND_ID.fullmatch(round_id) is not None
        if status in (408, 429) or status >= 500 or not known:
            self._tell_waiting(f"status {status}" + ("" if known else ", of no rknn server"))
            return None
        data = b"" if status == NOTHING_YET else _body(response, most)
        return Received(status, round_id, data)

    def _tell_waiting(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            self.tell(
                "waiting",
                f"for {self._http.base_url}, which does not answer ({printable(reason)}): it may "
                "not run yet, or its round may be over",
            )


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
    took_part = False
    while True:
        try:
            round_id, question = _question(client, connection, tell)
        except UnreachableError as error:
            counted = client.counted()  # before this client was stopped
            if not counted:
                raise
            _clear(client, counted)
            tell("warning", str(error))
            tell("over", GONE)
            return Outcome(GONE, True)
        account, first = _related(client, round_id, question)
        counted = client.counted()
        if not {round_id, account, first} & set(counted):
            _clear(client, counted)
            took_part = False
        took_part = took_part or bool({account, first} & set(counted) - {round_id})
        took_part |= _answer(client, connection, round_id, question=question, tell=tell)
        try:
            statement = _statement(connection, round_id)
        except UnreachableError as error:
            if not took_part:
                raise
            statement = GONE
            tell("warning", str(error))
        except FailedError:
            _clear(client, client.counted())
            raise
        if statement is not None:
            _clear(client, client.counted())
            if statement != GONE:
                client.clear_roles({account, first} - {""})
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


def _note_counted(client: Client, round_id: str, tell: Tell) -> None:
    """Note that the round counts this client, so that it knows after it was stopped."""
    try:
        client.note_counted(round_id)
    except OSError as error:
        tell("warning", f"the server counts the answer, which could not be noted ({error})")


def _question(client: Client, connection: Connection, tell: Tell) -> tuple[str, bytes | None]:
    """Return the id of the server's round, and its question; None if it is too long.

    If the round takes no more answers, wait for another one, unless this client has answered it.
    """
    told = ""
    while True:
        received = connection.get("/v1/round", client.agreement.most_bytes)
        data = received.data
        if received.status == 200 and _is_whole(received):
            return received.round, data
        if client.said(received.round) or received.round in client.counted():
            return received.round, b""
        if received.status != 200 and received.round != told:
            told = received.round
            tell(
                "too late",
                f"round {told[:12]} takes no more answers, and this client was not in it. Nothing "
                "was spent. Waiting for the next round; Ctrl-C leaves",
            )
        time.sleep(random.uniform(0.5, 1.5) * CLOSED_SECONDS)


def _answer(
    client: Client, connection: Connection, round_id: str, question: bytes | None, tell: Tell
) -> bool:
    """Answer a question, or refuse it without a reason; return True if the answer counts."""
    path = f"/v1/rounds/{round_id}"
    try:
        said = client.said(round_id)
        if said is None and round_id in client.counted():
            tell("added", f"to the sum of round {round_id[:12]} before; waiting for its end")
            return True
        if said is None:
            if question is None:
                raise RefusedError(
                    f"Expected a question of at most {client.agreement.most_bytes:,} bytes, got a "
                    f"longer one; agree to more with {option('most_bytes')}."
                )
            tell_question(question, client, tell)
            if client.parsed(question).summed:
                return _add(client, connection, round_id, question=question, tell=tell)
            tell("answering", f"round {round_id[:12]}")
            said = client.answer(question)[1:]
    except (RefusedError, LedgerError, SumRefusedError) as error:
        tell("refused", str(error))
        connection.ticket = connection.ticket or secrets.randbits(64)
        connection.post(f"{path}/refusal")
        return False
    connection.ticket, payload = said
    fate = connection.post(f"{path}/answers", payload)
    if fate in ("counted", "again"):
        _note_counted(client, round_id, tell)
        tell("answered", f"round {round_id[:12]} with {len(payload):,} bytes; waiting for its end")
        return True
    tell("not counted", f"the server calls the answer {printable(fate)}; it was charged")
    return False


def _add(
    client: Client, connection: Connection, round_id: str, question: bytes, tell: Tell
) -> bool:
    """Add this client's counts to a sum; return True if they are in it."""
    prepared = client.ready(question)
    connection.ticket = secrets.randbits(64)
    length = prepared.round.num_cells
    participant = Participant(round_id, length, prepared.least_threshold, prepared.vector)
    tell("ready", f"for the sum of round {round_id[:12]}")
    added = False
    for step in range(STEPS):
        path = f"/v1/rounds/{round_id}/sum/{step}"
        received = connection.poll(path, client.agreement.most_bytes)
        if received.status != 200 or received.data is None:
            break
        fate = connection.post(path, participant.step(step, received.data))
        if fate not in ("counted", "again"):
            break
        if step == MASKED:
            tell("added", f"{length:,} numbers under masks")
            added = True
    if added:
        _note_counted(client, round_id, tell)
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


def _is_whole(received: Received) -> bool:
    """Return True if a question is the one that its id names, or too long to be read."""
    data = received.data
    return data is None or hashlib.sha256(data).hexdigest() == received.round


def _body(response: httpx.Response, most: int) -> bytes | None:
    """Return a body as it came, or None if it is longer than `most`."""
    if _seconds(response.headers.get("content-length", "")) > most:
        return None
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > most:
            return None
    return bytes(body)


def _seconds(text: str) -> float:
    """Return a header's number, or 0 if it holds none."""
    return float(text) if text.isascii() and text.isdecimal() else 0.0

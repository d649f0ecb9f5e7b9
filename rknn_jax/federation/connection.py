"""Client's requests to a server, repeated until they arrive.

A request that is lost on the way is sent again, for as long as the client's owner waits: the client
gives the same answer, and the server counts the client once. A certificate that does not fit ends
the client at once. What a server sends is bounded, is never decompressed, and is taken for the
server's only if it names its round.
"""

import hashlib
import json
import math
import os
import random
import re
import ssl
import time
from contextlib import AbstractContextManager
from typing import NamedTuple

import httpx

from rknn_jax._internal.option_names import option
from rknn_jax.federation.certificate_errors import check_certificates, printable
from rknn_jax.federation.round_folder import Tell
from rknn_jax.federation.server import OCTETS, POLL_SECONDS, ROUND_HEADER, TICKET_HEADER
from rknn_jax.federation.tls import ClientContext

FIRST_WAIT = 0.1
LONGEST_WAIT = 4.0
"""Seconds between two attempts."""

LONGEST_PAUSE = 60.0
"""Most seconds that a server, or a proxy before it, may ask a client to wait."""

CONNECT_SECONDS = 20.0
SILENT_SECONDS = POLL_SECONDS + 20.0
"""Longest silence of a server in the middle of a request."""

MOST_TEXT = 2**16
NOTHING_YET = 204

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""Variables of the environment by which proxies are named, in any case."""

CHANGED = "another question than its id names"
"""Reason to ask again: something between client and server has changed the question."""

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


class UnreachableError(ValueError):
    """Server that did not answer for as long as the client's owner waits."""


class Connection:
    """Requests to one server, repeated until they arrive.

    Args:
      server: URL of the server.
      context: TLS settings. None for plain HTTP on this host, which uses no proxy.
      tell: Function that is called when the server cannot be reached, once for each reason.
      patience: Seconds to try to reach a server that does not answer. Defaults to no end.

    Raises:
      ValueError: If the environment names a proxy that cannot be used.

    Attributes:
      ticket: Number by which a server without TLS knows this client. None until it has one.
      attempts: Number of times that the last request was sent.
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
        self.attempts = 0
        self._reason = ""
        self._secured = context is not None
        self._client = ""
        if isinstance(context, ClientContext):
            self._client = f" by the key {context.number:016x} and the root {context.root}"
        try:
            self._http = httpx.Client(
                base_url=server,
                verify=context or False,
                trust_env=context is not None,
                timeout=httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS),
                headers={"user-agent": "rknn", "accept-encoding": "identity"},
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            named = sorted(name for name in os.environ if name.upper() in PROXIES)
            if not named:
                raise
            raise ValueError(
                f"Expected a proxy of HTTP in {', '.join(named)}, got one that cannot be used "
                f"({error}); name one of HTTP, or unset the variables."
            ) from error

    @property
    def ends(self) -> str:
        """Address of the server, its root certificate, and the key by which it knows a client."""
        return f"{self._http.base_url}{self._client}"

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, most: int = MOST_TEXT, *, by_id: bool = False) -> Received:
        """Return the response to a request, with a body of at most `most` bytes.

        Args:
          path: Path of the request.
          most: Most bytes of a body.
          by_id: Flag for a body whose hash is the id of its round. Another one did not arrive.
            Defaults to False.

        Raises:
          UnreachableError: If the server does not answer.
          ValueError: If a certificate does not fit, or if no body has the id.
        """
        return self._repeat("GET", path, None, most, by_id=by_id)

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

    def _repeat(
        self, method: str, path: str, data: bytes | None, most: int, *, by_id: bool = False
    ) -> Received:
        wait = FIRST_WAIT
        self.attempts = 0
        ends = time.monotonic() + self.patience
        while True:
            pause = 0.0
            self.attempts += 1
            try:
                with self._sent(method, path, data) as response:
                    asked = _seconds(response.headers.get("retry-after", ""))
                    pause = min(asked, LONGEST_PAUSE, max(0.0, ends - time.monotonic()))
                    if received := self._received(response, most, by_id=by_id):
                        break
            except httpx.TransportError as error:
                check_certificates(error)
                self._tell_waiting((str(error) or type(error).__name__) + self._hint(error))
            if time.monotonic() >= ends and self._reason == CHANGED:
                raise ValueError(
                    f"Expected the question that its id names from {self._http.base_url}, got "
                    f"another one for {self.patience:g} s; see what changes it on the way, such as "
                    "a proxy that compresses."
                )
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

    def _received(self, response: httpx.Response, most: int, *, by_id: bool) -> Received | None:
        """Return a response, or None if another attempt is due."""
        status = response.status_code
        round_id = response.headers.get(ROUND_HEADER, "")
        known = ROUND_ID.fullmatch(round_id) is not None
        if status in (408, 429) or status >= 500 or not known:
            self._tell_waiting(f"status {status}" + ("" if known else ", of no rknn server"))
            return None
        data = b"" if status == NOTHING_YET else _body(response, most)
        own = data is None or hashlib.sha256(data).hexdigest() == round_id
        if by_id and status == 200 and not own:
            self._tell_waiting(CHANGED)
            return None
        return Received(status, round_id, data)

    def _hint(self, error: httpx.TransportError) -> str:
        """Return what may mend an error: a server with TLS hangs up on a client without it."""
        if self._secured or not isinstance(error, httpx.ProtocolError | httpx.ReadError):
            return ""
        needed = ", ".join(option(name) for name in ("ca", "certificate", "key"))
        return f" If it was started with {option('certificates')}, pass {needed}"

    def _tell_waiting(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            self.tell(
                "waiting",
                f"for {self._http.base_url}, which does not answer ({printable(reason)}): it may "
                "not run yet, or its round may be over",
            )


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

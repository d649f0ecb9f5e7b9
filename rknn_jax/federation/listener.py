"""HTTP server of a process, in a thread of its own, with bounds on every connection.

Uvicorn parses HTTP by h11, whose headers are bounded. Three things are added. An application finds
the number of the client that TLS has identified in `scope["state"]["client"]`. A connection is
closed if its client stops in the middle of a request or a response. One client holds only so many
connections, and so do those who are not identified yet (`gate`).
"""

import asyncio
import contextlib
import functools
import logging
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rknn_jax.federation.gate import Gate, Rarely, quiet, quiet_requests

CHECK_SECONDS = 20.0
"""Time between two checks of a connection's progress."""

LEAST_BYTES = 2**14
"""Bytes that a client must have sent from one check to the next if it is to send more."""

MOST_CONNECTIONS = 4096
CONNECTIONS_OF_A_CLIENT = 8
OTHER_FILES = 64
"""Open files that are not connections."""

MOST_HEADERS = 2**14
SHUTDOWN_SECONDS = 2
POLL = 0.01  # seconds


class Protocol(H11Protocol):
    """HTTP/1.1 connection of a known client, or of anybody without TLS.

    Args:
      gate: Listening socket, which is told of each connection that is identified.
      clients: Numbers of the clients that may connect, by certificate, DER. None without TLS.
      connected: Number of connections of each client, shared by all connections.
      **uvicorn_arguments: Arguments of uvicorn's protocol.
    """

    def __init__(
        self,
        gate: Gate,
        clients: Mapping[bytes, int] | None,
        connected: Counter[int],
        **uvicorn_arguments: Any,
    ) -> None:
        super().__init__(**uvicorn_arguments)
        self.gate = gate
        self.clients = clients
        self.connected = connected
        self.number: int | None = None
        self.received = 0
        self.last_check: tuple[object, int, int] = (None, 0, 0)
        self.next_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a known client with few connections, and close any other connection."""
        super().connection_made(transport)
        self.gate.admit(transport.get_extra_info("peername"))
        if self.clients is not None:
            secured = transport.get_extra_info("ssl_object")
            number = self.clients.get(secured.getpeercert(binary_form=True))
            # A listed certificate may be an authority's, and the peer's one signed by it.
            if number is None or self.connected[number] >= CONNECTIONS_OF_A_CLIENT:
                unknown = number is None
                self.gate.turn_away(
                    "an unknown certificate" if unknown else "too many of one client"
                )
                transport.abort()
                return
            self.number = number
            self.connected[number] += 1
        self.app_state = {**self.app_state, "client": self.number}
        self.next_check = self.loop.call_later(CHECK_SECONDS, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.gate.leave()
        if self.next_check is not None:
            # A timer would keep the connection's buffers until it is over.
            self.next_check.cancel()
        if self.number is not None:
            self.connected[self.number] -= 1
            self.number = None

    def data_received(self, data: bytes) -> None:
        """Count and parse what came."""
        self.received += len(data)
        super().data_received(data)

    def _check_progress(self) -> None:
        """Close the connection if its client neither sends nor reads what it should."""
        buffered = self.transport.get_write_buffer_size()
        if self.transport.is_closing():
            # What is still to be sent has to move, or the connection would stay open.
            if buffered and self.last_check == (self.transport, 0, buffered):
                self.transport.abort()
            elif buffered:
                self.last_check = (self.transport, 0, buffered)
                self.next_check = self.loop.call_later(CHECK_SECONDS, self._check_progress)
            return
        cycle = self.cycle
        working = cycle is not None and not cycle.response_complete
        sending = working and self.flow.write_paused
        check: tuple[object, int, int] = (None, 0, 0)
        # Otherwise it is the server's turn.
        if not working or cycle.more_body or sending:
            check = (cycle or self, self.received, buffered)
            last = self.last_check
            slow = check[1] - last[1] < LEAST_BYTES and not (sending and check[2] != last[2])
            if check[0] is last[0] and slow:
                self.transport.abort()
                return
        self.last_check = check
        self.next_check = self.loop.call_later(CHECK_SECONDS, self._check_progress)


@contextlib.contextmanager
def listening(
    app: Callable[..., Any],
    host: str,
    port: int,
    context: ssl.SSLContext | None = None,
    clients: Mapping[bytes, int] | None = None,
    most: int | None = None,
) -> Iterator[Gate]:
    """Serve an ASGI application beside the caller, and yield the gate, which knows the port.

    Args:
      app: ASGI application.
      host: Name or address to listen at.
      port: Port to listen at; 0 for a free one.
      context: TLS settings. Defaults to none, plain HTTP.
      clients: Numbers of the clients that may connect, by certificate, DER; required with
        TLS.
      most: Most connections at once. Defaults to as many as this process may have.

    Raises:
      OSError: If the address cannot be used.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    listener = socket.create_server(address[:2], family=family, backlog=2048)
    most = most or _connections()
    log = Rarely()
    gate = Gate(listener, most, context is not None, log)
    protocol: Any = functools.partial(Protocol, gate, clients, Counter())
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=most,
        h11_max_incomplete_event_size=MOST_HEADERS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_context_factory=None if context is None else lambda config, default: context,
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(quiet(log))
        await server.serve([gate])

    keeps, errors = quiet_requests(log), logging.getLogger("uvicorn.error")
    errors.addFilter(keeps)
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(POLL)
        yield gate
    finally:
        server.should_exit = True
        thread.join()
        errors.removeFilter(keeps)


def _connections() -> int:
    """Return the number of connections at once, for which this process may open more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(MOST_CONNECTIONS, soft - OTHER_FILES))

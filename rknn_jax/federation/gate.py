"""Bounds on connections before TLS has told whose they are.

A listening socket accepts whoever comes, and a handshake may take as long as its peer likes. So
`Gate` closes a connection at once if too many are open, and one that has not identified itself in
time. A client that is turned away comes again by itself.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

STRANGERS = 256
STRANGERS_OF_AN_ADDRESS = 32
"""Most connections that have not identified themselves: of all addresses, and of each one."""

HANDSHAKE_SECONDS = 10.0
"""Time in which a connection must identify itself."""

QUIET_SECONDS = 60.0
"""Least time between two lines of the log."""

IPV6_NETWORK = 64
"""Bits of an IPv6 address that count as one address, as one subscriber has all others."""

_log = logging.getLogger(__name__)


class Rarely:
    """Log of what anybody may cause: one line in `QUIET_SECONDS`, with the number of events."""

    def __init__(self) -> None:
        self._next = 0.0
        self._events = 0

    def warn(self, words: str) -> None:
        """Log the words, or only count them if a line was written a moment ago."""
        self._events += 1
        if (now := time.monotonic()) < self._next:
            return
        _log.warning("%s (%s such events since the last line)", words, f"{self._events:,}")
        self._next = now + QUIET_SECONDS
        self._events = 0


class Gate(socket.socket):
    """Listening socket with bounds on what it accepts, for one event loop.

    Args:
      listener: Listening socket, which is taken over.
      most: Most connections at once, whoever has them.
      secured: False without TLS, where whoever connects has identified itself.
      log: Log of the connections that are turned away.
    """

    def __init__(self, listener: socket.socket, most: int, secured: bool, log: Rarely) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self._most = most
        self._secured = secured
        self._log = log
        self._open: WeakSet[socket.socket] = WeakSet()
        self._strangers: dict[Any, socket.socket] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
          ConnectionAbortedError: If there are too many connections; this one is closed.
        """
        connection, address = super().accept()
        self._strangers = _still_open(self._strangers)
        if len(self._open) >= self._most:
            self._open = WeakSet(one for one in self._open if one.fileno() >= 0)
        mine = _network(address[0])
        here = sum(_network(other[0]) == mine for other in self._strangers)
        full = len(self._open) >= self._most or len(self._strangers) >= STRANGERS
        if full or here >= STRANGERS_OF_AN_ADDRESS:
            connection.close()
            self._log.warn("too many connections: the last ones were closed at once")
            raise ConnectionAbortedError("too many connections")
        self._open.add(connection)
        if self._secured:
            self._strangers[address] = connection
            loop = asyncio.get_running_loop()
            loop.call_later(HANDSHAKE_SECONDS, self._expire, address, connection)
        return connection, address

    def admit(self, address: Any) -> None:
        """Take the connection from an address as identified."""
        self._strangers.pop(address, None)

    def _expire(self, address: Any, connection: socket.socket) -> None:
        """End a connection that is still a stranger's; its transport then closes it."""
        if self._strangers.get(address) is connection and connection.fileno() >= 0:
            self._log.warn(f"a connection did not identify itself in {HANDSHAKE_SECONDS:g} s")
            with contextlib.suppress(OSError):  # its peer may have left
                connection.shutdown(socket.SHUT_RDWR)


def quiet(log: Rarely) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler of an event loop's errors, which anybody may cause, without tracebacks."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        error = context.get("exception")
        kind = "" if error is None else f": {type(error).__name__}"
        log.warn(f"a connection failed, {context['message']}{kind}")

    return handle


def _still_open(connections: dict[Any, socket.socket]) -> dict[Any, socket.socket]:
    return {address: one for address, one in connections.items() if one.fileno() >= 0}


def _network(host: str) -> str:
    """Return the text of an address, or of its network for IPv6."""
    if ":" not in host:
        return host
    bits = int(ipaddress.IPv6Address(host.partition("%")[0])) >> (128 - IPV6_NETWORK)
    return f"{bits:x}"

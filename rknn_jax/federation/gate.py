"""Bounds on connections before TLS has told whose they are.

A listening socket accepts whoever comes, and a handshake may take as long as its peer likes. So
`Gate` closes a connection at once if too many are open or have come in a short time, and one that
has not identified itself in time. A client that is turned away comes again by itself.

Bytes have a bound too: a handshake that is not over holds at most what OpenSSL reads of one
message, 128 KiB, and one buffer of asyncio's, 256 KiB.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

STRANGERS = 256
STRANGERS_OF_AN_ADDRESS = 32
"""Most connections that have not identified themselves: of all addresses, and of each one."""

HANDSHAKE_SECONDS = 10.0
"""Time in which a connection must identify itself."""

HANDSHAKES = 4096
HANDSHAKES_OF_AN_ADDRESS = 512
"""Most connections that begin in `HANDSHAKE_SECONDS`: of all addresses, and of each one."""

QUIET_SECONDS = 60.0
"""Least time between two lines of the log."""

IPV6_NETWORK = 64
"""Bits of an IPv6 address that count as one address, as one subscriber has all others."""

_log = logging.getLogger(__name__)


class Rarely:
    """Log of what anybody may cause: one line in `QUIET_SECONDS`, with the number of events.

    Args:
      write: Function that writes a line. Defaults to a warning in the log of this module.
    """

    def __init__(self, write: Callable[[str], None] = _log.warning) -> None:
        self._write = write
        self._next = 0.0
        self._events = 0

    def warn(self, words: str) -> None:
        """Write the words, or only count them if a line was written a moment ago."""
        self._events += 1
        if (now := time.monotonic()) < self._next:
            return
        more = f" ({self._events:,} such events since the last line)" * (self._events > 1)
        self._write(words + more)
        self._next = now + QUIET_SECONDS
        self._events = 0


class Gate(socket.socket):
    """Listening socket with bounds on what it accepts, for one event loop.

    Args:
      listener: Listening socket, which is taken over.
      most: Most connections at once, whoever has them.
      secured: False without TLS, where whoever connects has identified itself.
      log: Log of the connections that are turned away.

    Attributes:
      port: Port that is listened at.
      identified: Number of connections that TLS has identified, or of all without TLS.
      turned_away: Number of connections that were closed without an answer, by reason.
    """

    def __init__(self, listener: socket.socket, most: int, secured: bool, log: Rarely) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self.port: int = self.getsockname()[1]
        self.identified = 0
        self.turned_away = Counter[str]()
        self._most = most
        self._secured = secured
        self._log = log
        self._open: WeakSet[socket.socket] = WeakSet()
        self._strangers: dict[Any, socket.socket] = {}
        self._handshakes = Counter[str]()
        self._handshakes_since = 0.0

    @property
    def unidentified(self) -> int:
        """Number of connections that have not identified themselves."""
        return len(_still_open(self._strangers.copy()))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
          ConnectionAbortedError: If there are too many connections; this one is closed.
        """
        connection, address = super().accept()
        if reason := self._beyond(_network(address[0])):
            connection.close()
            self.turn_away(f"too many {reason}")
            raise ConnectionAbortedError(f"too many {reason}")
        self._open.add(connection)
        if self._secured:
            self._handshakes[_network(address[0])] += 1
            self._strangers[address] = connection
            loop = asyncio.get_running_loop()
            loop.call_later(HANDSHAKE_SECONDS, self._expire, address, connection)
        return connection, address

    def _beyond(self, network: str) -> str:
        """Return what a network, or all together, would have too many of; empty if nothing."""
        self._strangers = _still_open(self._strangers)
        if len(self._open) >= self._most:
            self._open = WeakSet(one for one in self._open if one.fileno() >= 0)
        if (now := time.monotonic()) >= self._handshakes_since + HANDSHAKE_SECONDS:
            self._handshakes.clear()
            self._handshakes_since = now
        here = sum(_network(address[0]) == network for address in self._strangers)
        if len(self._open) >= self._most:
            return "connections"
        if len(self._strangers) >= STRANGERS or here >= STRANGERS_OF_AN_ADDRESS:
            return "strangers"
        many = self._handshakes.total() >= HANDSHAKES
        if many or self._handshakes[network] >= HANDSHAKES_OF_AN_ADDRESS:
            return "handshakes"
        return ""

    def turn_away(self, reason: str) -> None:
        """Count a connection that is closed, and log it."""
        self.turned_away[reason] += 1
        self._log.warn(f"connections are closed: {reason}")

    def admit(self, address: Any) -> None:
        """Take the connection from an address as identified."""
        self._strangers.pop(address, None)
        self.identified += 1

    def leave(self) -> None:
        """Note that an identified connection has ended."""
        self.identified -= 1

    def _expire(self, address: Any, connection: socket.socket) -> None:
        """End a connection that is still a stranger's; its transport then closes it."""
        if self._strangers.get(address) is connection and connection.fileno() >= 0:
            self.turn_away(f"not identified in {HANDSHAKE_SECONDS:g} s")
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


def quiet_requests(log: Rarely) -> Callable[[logging.LogRecord], bool]:
    """Return a filter of Uvicorn's log that leaves out tracebacks, which anybody may cause."""

    def keeps(record: logging.LogRecord) -> bool:
        if record.exc_info is None or record.exc_info[1] is None:
            return True
        _log.debug("a request failed", exc_info=record.exc_info)
        log.warn(f"a request failed: {type(record.exc_info[1]).__name__}")
        return False

    return keeps


def _still_open(connections: dict[Any, socket.socket]) -> dict[Any, socket.socket]:
    return {address: one for address, one in connections.items() if one.fileno() >= 0}


def _network(host: str) -> str:
    """Return the text of an address, or of its network for IPv6."""
    if ":" not in host:
        return host
    bits = int(ipaddress.IPv6Address(host.partition("%")[0])) >> (128 - IPV6_NETWORK)
    return f"{bits:x}"

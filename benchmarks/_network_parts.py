"""What stands in for the system's connections, threads, queues and clocks in a network of a seed.

Each of them lets the world (`_network_world`) decide who goes on and what arrives.
"""

import asyncio
import queue
import selectors
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import httpcore

from rknn_jax.federation.gate import Gate

if TYPE_CHECKING:
    from benchmarks._network_world import NetworkWorld

MOST_WAITING_BYTES = 2**16
"""Bytes of one direction after which who writes has to wait."""


class Stream(httpcore.NetworkStream):
    """Client's end of a connection, for httpcore."""

    def __init__(self, world: "NetworkWorld", timeout: float | None) -> None:
        self.world = world
        try:
            self.wire = world.connect(timeout)
        except ConnectionRefusedError as error:
            raise httpcore.ConnectError("connection refused") from error
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("timed out") from error

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has come."""
        wire = self.wire
        until = self.world.now + (timeout or float("inf"))
        if not self.world.wait(lambda: bool(wire.arrived) or wire.broken or wire.over, until):
            raise httpcore.ReadTimeout("the read operation timed out")
        if wire.broken:
            raise httpcore.ReadError("connection reset by peer")
        data = bytes(wire.arrived[:max_bytes])
        del wire.arrived[: len(data)]
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all bytes."""
        wire = self.wire
        until = self.world.now + (timeout or float("inf"))

        def room() -> bool:
            return wire.broken or len(wire.up.waiting) < MOST_WAITING_BYTES

        if not self.world.wait(room, until):
            raise httpcore.WriteTimeout("the write operation timed out")
        if wire.broken:
            raise httpcore.WriteError("broken pipe")
        self.world.send(wire, buffer)

    def close(self) -> None:
        """Close this end."""
        self.world.hang_up(self.wire)

    def get_extra_info(self, info: str) -> Any:
        """Return whether the connection can be read, as a server's end can."""
        wire = self.wire
        return (bool(wire.arrived) or wire.broken or wire.over) if info == "is_readable" else None


class Listener(socket.socket):
    """Listening socket to which the world brings connections."""

    world: "NetworkWorld"

    def offer(self, theirs: socket.socket, address: tuple[str, int]) -> None:
        """Bring a connection."""
        self.came.append((theirs, address))
        self.bell.send(b"!")

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection that was brought."""
        self.recv(1)
        theirs, address = self.came.pop(0)
        theirs.setblocking(False)
        return theirs, address

    def getsockname(self) -> tuple[str, int]:
        """Return an address."""
        return "127.0.0.1", 80

    def listen(self, backlog: int = 0) -> None:
        """Do nothing, as the world listens."""

    def ring_by(self, bell: socket.socket) -> None:
        """Take the socket that wakes this one."""
        self.came: list[tuple[socket.socket, Any]] = []
        self.bell = bell


class WorldGate(Gate, Listener):
    """The gate, on a listener of the world."""

    def __init__(self, world: "NetworkWorld", listener: socket.socket, *arguments: Any) -> None:
        listener.close()
        ours, bell = socket.socketpair()
        ours.setblocking(False)
        super().__init__(ours, *arguments)
        self.ring_by(bell)
        world.gates = [self]


class WorldEvent:
    """Event between actors."""

    def __init__(self, world: "NetworkWorld") -> None:
        self.world = world
        self.happened = False

    def set(self) -> None:
        """Let it happen."""
        self.happened = True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it happens."""
        until = float("inf") if timeout is None else self.world.now + timeout
        return self.world.wait(lambda: self.happened, until)


class WorldQueue:
    """Queue between actors."""

    def __init__(self, world: "NetworkWorld") -> None:
        self.world = world
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        """Put an item at the end."""
        self.items.append(item)

    def get(self, timeout: float) -> Any:
        """Take the first item, after a wait."""
        if not self.world.wait(lambda: bool(self.items), self.world.now + timeout):
            raise queue.Empty
        return self.items.pop(0)

    def get_nowait(self) -> Any:
        """Take the first item, if there is one."""
        if not self.items:
            raise queue.Empty
        return self.items.pop(0)


class WorldThread:
    """Thread that is an actor of the process that starts it."""

    def __init__(
        self, world: "NetworkWorld", target: Callable[..., Any], args: tuple[Any, ...], daemon: bool
    ) -> None:
        del daemon
        self.world = world
        self.work = partial(target, *args)

    def start(self) -> None:
        """Start the actor."""
        mine = self.world.actor
        assert mine is not None
        self.actor = self.world.start(f"{mine.name}'s loop", mine.group, self.work)

    def is_alive(self) -> bool:
        """Return True if the actor has not ended."""
        return not self.actor.ended

    def join(self) -> None:
        """Wait for the actor's end."""
        self.world.wait(lambda: self.actor.ended)


class WorldSelector(selectors.SelectSelector):
    """Selector that lets others go on while nothing is ready."""

    def __init__(self, world: "NetworkWorld") -> None:
        super().__init__()
        self.world = world

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the files that are ready, in order, after a wait."""
        if timeout is None or timeout > 0:
            until = float("inf") if timeout is None else self.world.now + timeout
            self.world.wait(lambda: bool(super(WorldSelector, self).select(0)), until)
        return sorted(super().select(0), key=lambda found: found[0].fd)


class WorldPolicy(asyncio.DefaultEventLoopPolicy):
    """Event loops that wait in the world."""

    def __init__(self, world: "NetworkWorld") -> None:
        super().__init__()
        self.world = world

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop."""
        return asyncio.SelectorEventLoop(WorldSelector(self.world))

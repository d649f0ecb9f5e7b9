"""A network and clocks in a seed: threads of one process, of which the world lets one go on.

The code is that of `rknn serve` and `rknn join`. Each of its threads is an actor that stops
wherever it waits: for the network, a clock, a queue, another thread, or the disk. The world, chosen
by its seed, lets one of them go on, or moves some bytes. Two places of the code meet the world in
place of the operating system: where httpcore connects, and where the gate accepts. Behind the
latter are sockets of the system's own, so that asyncio, uvicorn and h11 are as they are.

Whatever a connection does, TCP permits: it is refused, is slow, in small pieces, ends at any byte,
in one direction or both, with or without a sign. A proxy that repeats requests makes duplicates.
"""

import asyncio
import fcntl
import gc
import os
import queue
import random as random_module
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from httpcore._backends.sync import SyncBackend

from benchmarks._network_parts import (
    MOST_WAITING_BYTES,
    Stream,
    WorldEvent,
    WorldGate,
    WorldPolicy,
    WorldQueue,
    WorldThread,
)
from rknn_jax.federation import desk, listener

BEGINS = 1_800_000_000.0
"""Wall clock at the beginning, in seconds."""

SERVER = "server"
"""Name of the process that listens."""

STEP_TIME = 1e-4
HANGS = 60.0
"""Seconds of the real clock in which an actor must wait for something again."""

DISK_SECONDS = (0.0, 0.0, 0.0, 0.5)
"""Times that a call of the disk may take."""

UNTIL_FAULTS = (0, 40, 300, 2000)
"""Most bytes in one direction until a connection's fault comes."""

LOCK_SECONDS = 0.005
"""Seconds between two tries to lock a file."""


class KilledError(BaseException):
    """End of an actor that is killed."""


class DeadlockError(Exception):
    """World in which nobody can go on."""


class Rates(NamedTuple):
    """Probabilities of faults: at a connection, but for the last four, which are at a step."""

    refuse: float = 0.0
    cut: float = 0.0
    mute: float = 0.0
    slow: float = 0.0
    repeat: float = 0.0
    kill_client: float = 0.0
    kill_server: float = 0.0
    jump: float = 0.0
    part: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> "Rates":
        """Draw which faults a history has, so that each is also seen without the others."""
        return cls(
            refuse=random.choice((0.0, 0.2)),
            cut=random.choice((0.0, 0.2, 0.6)),
            mute=random.choice((0.0, 0.1, 0.3)),
            slow=random.choice((0.0, 0.3)),
            repeat=random.choice((0.0, 0.3)),
            kill_client=random.choice((0.0, 0.002, 0.01)),
            kill_server=random.choice((0.0, 0.0005, 0.003)),
            jump=random.choice((0.0, 0.002)),
            part=random.choice((0.0, 0.001)),
        )


@dataclass(eq=False)
class Actor:
    """Thread that the world lets go on.

    Attributes:
      name: Name of what it does.
      group: Name of the process that it belongs to.
      ready: Function that returns True if it may go on.
      until: Time at which it goes on anyway.
      killed: True if it ends where it waits.
      ended: True once it has ended.
      error: What it ended with; None after success.
    """

    name: str
    group: str
    ready: Callable[[], bool] = lambda: True
    until: float = float("inf")
    killed: bool = False
    ended: bool = False
    error: BaseException | None = None
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


@dataclass
class Direction:
    """Bytes on their way, in one direction of a connection.

    Attributes:
      waiting: Bytes that were sent and have not arrived.
      due: Time of the next arrival.
      left: Bytes that arrive until the fault comes.
      ends: True if the sender has closed.
      moved: Time of the last arrival.
    """

    waiting: bytearray = field(default_factory=bytearray)
    due: float = 0.0
    left: float = float("inf")
    ends: bool = False
    moved: float = 0.0


@dataclass(eq=False)
class Wire:
    """Connection of a client to the server.

    Attributes:
      number: Number of the connection.
      owner: Name of the client's process.
      theirs: The server's socket.
      peer: End of the server's socket; None once it is closed.
      fault: What happens at the end of `left`: `cut` or `mute`.
      slow: Longest time between two arrivals, in seconds.
      up: Bytes to the server.
      down: Bytes to the client.
      arrived: Bytes that the client may read.
      over: True once the server's end arrived.
      broken: True if the client's next call fails.
      sent: All that the client sent.
    """

    number: int
    owner: str
    theirs: socket.socket
    peer: socket.socket | None
    fault: str
    slow: float
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    arrived: bytearray = field(default_factory=bytearray)
    over: bool = False
    broken: bool = False
    sent: bytearray = field(default_factory=bytearray)


class NetworkWorld:
    """World that a seed decides.

    Args:
      random: Random numbers of all decisions.
      rates: Faults that it has.

    Attributes:
      now: Monotonic clock, in seconds.
      wall: Wall clock minus monotonic clock.
      trace: What happened, in order.
      steps: Number of actors that were let go on, and of pieces that arrived.
      ended: Actors that have ended, until somebody takes note.
      wires: Connections whose server's end is open.
      until_faults: Most bytes in one direction until a connection's fault comes.
    """

    def __init__(self, random: Random, rates: Rates) -> None:
        self.random = random
        self.rates = rates
        self.now = 1000.0
        self.wall = BEGINS - self.now
        self.trace: list[str] = []
        self.steps = 0
        self.actors: list[Actor] = []
        self.ended: list[Actor] = []
        self.wires: list[Wire] = []
        self.gates: list[WorldGate] = []
        self.parted_until = 0.0
        self.until_faults: Sequence[int] = UNTIL_FAULTS
        self.connections = 0
        self._back = threading.Semaphore(0)
        self._local = threading.local()
        self._poll = select.poll()
        self._by_file: dict[int, Wire] = {}

    # Actors

    def start(self, name: str, group: str, work: Callable[[], Any]) -> Actor:
        """Start an actor, which waits for its turn."""
        actor = Actor(name, group)
        self.actors.append(actor)

        def run() -> None:
            self._local.actor = actor
            actor.baton.acquire()
            try:
                if not actor.killed:
                    work()
            except KilledError:
                pass  # its frames, which hold open files, go with it
            except BaseException as error:
                actor.error = error
            actor.ended = True
            self._back.release()

        threading.Thread(target=run, daemon=True).start()
        self.note(f"{name}: starts")
        return actor

    @property
    def actor(self) -> Actor | None:
        """Actor of this thread; None for the world's own."""
        return getattr(self._local, "actor", None)

    def wait(self, ready: Callable[[], bool], until: float = float("inf")) -> bool:
        """Let others go on until something is ready, or a time has come; return if it is ready."""
        actor = self.actor
        if actor is None:
            return ready()
        if actor.killed:
            raise KilledError
        actor.ready, actor.until = ready, until
        self._back.release()
        actor.baton.acquire()
        if actor.killed:
            raise KilledError
        return ready()

    def _grant(self, actor: Actor) -> None:
        actor.baton.release()
        if not self._back.acquire(timeout=HANGS):
            raise DeadlockError(f"{actor.name} did not come back in {HANGS:g} s")
        if actor.ended:
            self.actors.remove(actor)
            self.ended.append(actor)
            self.note(f"{actor.name}: ends{_words(actor.error)}")
        self._collect()

    def kill(self, group: str) -> None:
        """End all actors of a process where they wait, and its connections."""
        self.note(f"{group}: is killed")
        for actor in [one for one in self.actors if one.group == group]:
            actor.killed = True
        while here := [one for one in self.actors if one.group == group]:
            here[0].killed = True
            self._grant(here[0])
        gc.collect()  # what a process has open ends with it
        if group == SERVER:
            for gate in self.gates:
                gate.close()
            self.gates = []
        for wire in [one for one in self.wires if group in (one.owner, SERVER)]:
            told = self.random.random() < 0.5  # or its machine is gone, and says nothing
            if group == SERVER:
                wire.theirs.close()
                wire.down.ends = True
                wire.down.due = self.now if told else float("inf")
                wire.up.due = float("inf")
            else:
                wire.up.ends = told

    def step(self) -> None:
        """Let one actor go on, or some bytes arrive; move the clock if nothing can happen."""
        while not (possible := self._possible()):
            times = [one.until for one in self.actors]
            times += [one.due for wire in self.wires for one in _moving(wire)]
            later = min(times, default=float("inf"))
            if later == float("inf"):
                raise DeadlockError(f"nobody goes on: {[one.name for one in self.actors]}")
            self.now = max(self.now + STEP_TIME, later, self.parted_until * (not self.actors))
        self.steps += 1
        self.now += STEP_TIME
        if self.random.random() < self.rates.jump:
            jump = self.random.choice((-600, -60, -5, 5, 60))
            self.wall += jump
            self.note(f"the clock jumps by {jump} s")
        if self.random.random() < self.rates.part:
            self.parted_until = self.now + self.random.choice((5, 60))
            self.note("the network is parted")
        self.random.choice(possible)()

    def _possible(self) -> list[Callable[[], None]]:
        found = [
            partial(self._grant, one) for one in self.actors if one.until <= self.now or one.ready()
        ]
        if self.now >= self.parted_until:
            found += [
                partial(self._arrive, wire, one)
                for wire in self.wires
                for one in _moving(wire)
                if one.due <= self.now
            ]
        return found

    def note(self, words: str) -> None:
        """Note what happened."""
        self.trace.append(words)

    # Network

    def connect(self, timeout: float | None) -> Wire:
        """Connect to the server.

        Raises:
          ConnectionRefusedError: If nobody listens, or by chance.
          TimeoutError: If the network does not say so.
        """
        actor = self.actor
        name = actor.name if actor else "world"
        self.wait(lambda: True)
        gate = next((one for one in self.gates if one.fileno() >= 0), None)
        if self.random.random() < self.rates.refuse / 2:
            self.note(f"{name}: connects to nobody")
            self.wait(lambda: False, self.now + (timeout or 60))
            raise TimeoutError
        if gate is None or self.random.random() < self.rates.refuse:
            self.note(f"{name}: is refused")
            raise ConnectionRefusedError
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.connections += 1
        fault = ""
        chance = self.random.random()
        if chance < self.rates.cut + self.rates.mute:
            fault = "cut" if chance < self.rates.cut else "mute"
        slow = self.random.choice((0.01, 0.3, 8.0)) if self.random.random() < self.rates.slow else 0
        owner = actor.group if actor else name
        wire = Wire(self.connections, owner, theirs, ours, fault=fault, slow=slow)
        if fault:
            struck = self.random.choice((wire.up, wire.down))
            struck.left = self.random.choice(self.until_faults) * self.random.random()
        wire.up.moved = wire.down.moved = self.now
        self.wires.append(wire)
        self._by_file[ours.fileno()] = wire
        self._poll.register(ours, select.POLLIN)
        gate.offer(theirs, ("10.0.0.1", 10_000 + wire.number))
        self.note(f"{name}: connects as {wire.number} {fault}".rstrip())
        return wire

    def send(self, wire: Wire, data: bytes) -> None:
        """Send bytes to the server."""
        wire.sent += data
        if wire.peer is not None:
            self._put(wire, wire.up, data)

    def _put(self, wire: Wire, way: Direction, data: bytes) -> None:
        if not way.waiting:
            way.due = self.now + self.random.random() * (wire.slow or 0.02)
        way.waiting += data

    def hang_up(self, wire: Wire) -> None:
        """Close the client's end."""
        wire.up.ends = True

    def cut(self, owner: str) -> None:
        """Cut the connections of a process."""
        for wire in [one for one in self.wires if one.owner == owner]:
            self.note(f"connection {wire.number}: cut")
            self._end(wire, broken=True)

    def _arrive(self, wire: Wire, way: Direction) -> None:
        """Let a piece arrive, or the end, or the fault."""
        size = len(way.waiting)
        if size and (wire.slow or self.random.random() < 0.3):
            size = self.random.randint(1, size)
        size = int(min(size, way.left))
        piece = bytes(way.waiting[:size])
        if piece and way is wire.up:
            assert wire.peer is not None
            try:
                piece = piece[: wire.peer.send(piece)]
            except BlockingIOError:
                way.due = self.now + 0.05
                return
            except OSError:
                self._end(wire, broken=True)
                return
        if piece:
            del way.waiting[: len(piece)]
            way.left -= len(piece)
            way.moved = self.now
            way.due = self.now + self.random.random() * (wire.slow or 0.02)
            if way is wire.down:
                wire.arrived += piece
            return
        if way.left < 1 and way.waiting:
            self.note(f"connection {wire.number}: {wire.fault}")
            if wire.fault == "cut":
                self._end(wire, broken=True)
            else:
                way.due = float("inf")  # whatever comes is lost, and nobody is told
            return
        if way is wire.up:
            assert wire.peer is not None
            if wire.down.ends:
                self._end(wire, broken=False)
            else:
                wire.peer.shutdown(socket.SHUT_WR)
                way.due = float("inf")
        else:
            wire.over = True
            self._end(wire, broken=False)

    def _end(self, wire: Wire, *, broken: bool) -> None:
        """Close the server's end."""
        wire.broken |= broken
        wire.over = True
        if wire.peer is not None:
            self._poll.unregister(wire.peer)
            del self._by_file[wire.peer.fileno()]
            wire.peer.close()
            wire.peer = None
            self.wires.remove(wire)

    def _collect(self) -> None:
        """Take what the server has sent."""
        for file, _ in sorted(self._poll.poll(0)):
            wire = self._by_file[file]
            assert wire.peer is not None
            if wire.down.ends or len(wire.down.waiting) >= MOST_WAITING_BYTES:
                continue
            try:
                data = wire.peer.recv(MOST_WAITING_BYTES)
            except OSError:
                data = b""
            if data:
                self._put(wire, wire.down, data)
            else:
                wire.down.ends = True
                wire.down.due = max(wire.down.due, self.now)

    def close(self) -> None:
        """End all actors and connections."""
        for group in sorted({one.group for one in self.actors}):
            self.kill(group)
        for wire in list(self.wires):
            self._end(wire, broken=True)

    # What stands in place of the operating system

    def sleep(self, seconds: float) -> None:
        """Sleep by the world's clock."""
        self.wait(lambda: False, self.now + max(0.0, seconds))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let this process stand on the world: clocks, threads, network, and random numbers."""
        flock = fcntl.flock

        def yielding(call: Callable[..., Any]) -> Callable[..., Any]:
            def made(*arguments: Any, **named: Any) -> Any:
                self.sleep(self.random.choice(DISK_SECONDS))
                return call(*arguments, **named)

            return made

        def lock(file: Any, operation: int) -> None:
            while True:
                try:
                    return flock(file, operation | fcntl.LOCK_NB)
                except BlockingIOError:
                    if operation & fcntl.LOCK_NB or self.actor is None:
                        raise
                self.sleep(LOCK_SECONDS)

        def event() -> WorldEvent:
            return WorldEvent(self)

        def create_server(*_: Any, **__: Any) -> socket.socket:
            return socket.socketpair()[0]

        changes: list[tuple[Any, str, Any]] = [
            (time, "time", lambda: self.now + self.wall),
            (time, "monotonic", lambda: self.now),
            (time, "sleep", self.sleep),
            (os, "write", yielding(os.write)),
            (os, "fsync", yielding(os.fsync)),
            (os, "replace", yielding(os.replace)),
            (os, "urandom", self.random.randbytes),
            (random_module, "_urandom", self.random.randbytes),
            (fcntl, "flock", lock),
            (SyncBackend, "connect_tcp", lambda *_, timeout=None, **__: Stream(self, timeout)),
            (desk, "threading", SimpleNamespace(Event=event)),
            (desk, "queue", SimpleNamespace(SimpleQueue=None, Empty=queue.Empty)),
            (listener, "threading", SimpleNamespace(Thread=partial(WorldThread, self))),
            (listener, "Gate", partial(WorldGate, self)),
            (
                listener,
                "socket",
                SimpleNamespace(
                    getaddrinfo=socket.getaddrinfo,
                    create_server=create_server,
                    SOCK_STREAM=socket.SOCK_STREAM,
                ),
            ),
        ]
        made_before = desk.Desk.__init__

        def made(one: Any, *arguments: Any, **named: Any) -> None:
            made_before(one, *arguments, **named)
            one._arrivals = WorldQueue(self)

        changes.append((desk.Desk, "__init__", made))
        kept = [(place, name, getattr(place, name)) for place, name, _ in changes]
        policy = asyncio.get_event_loop_policy()
        random_module.seed(self.random.getrandbits(64))
        for place, name, value in changes:
            setattr(place, name, value)
        asyncio.set_event_loop_policy(WorldPolicy(self))
        try:
            yield
        finally:
            asyncio.set_event_loop_policy(policy)
            for place, name, value in kept:
                setattr(place, name, value)


def _moving(wire: Wire) -> Iterator[Direction]:
    """Yield the directions in which something moves."""
    for way in (wire.up, wire.down):
        if way.waiting or way.ends:
            yield way


def _words(error: BaseException | None) -> str:
    if error is None:
        return ""
    return f": {type(error).__name__}: {str(error)[:200]}"

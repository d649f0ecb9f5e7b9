"""Histories of a federation in a network: `rknn serve`, its clients, strangers, and their faults.

A subclass has the settings of both sides, and what must hold (`_rounds`, `_sums`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np

from benchmarks._histories import BrokenError
from benchmarks._hostile import flood, mutated
from benchmarks._network_world import SERVER, Actor, DeadlockError, NetworkWorld, Rates, Wire
from rknn_jax.cli import federation, serving
from rknn_jax.federation import listener
from rknn_jax.federation.connection import UnreachableError
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.listener import CHECK_SECONDS
from rknn_jax.federation.participation import FailedError
from rknn_jax.federation.server import POLL_SECONDS, Resources
from rknn_jax.federation.settings import Serve

PATIENCE = 60.0
FAULTY_STEPS = 1500
CALM_STEPS = 60_000

SILENT = 4 * CHECK_SECONDS + POLL_SECONDS
"""Seconds without a byte after which a server has closed a connection."""

LINES = 40
LINES_OF_A_CLIENT = 8
LINES_A_MINUTE = 12
"""Most lines that a server tells: at a start, of each client, and in a minute."""


def write_inputs(folder: Path, clients: int) -> None:
    """Write the public rows, and each client's private ones in a folder of its own."""
    rng = np.random.default_rng(0)
    np.savez(folder / "public.npz", embeddings=rng.normal(size=(9, 4)).astype(np.float32))
    for number in range(clients):
        features = rng.normal(size=(1 + number % 3, 4)).astype(np.float32)
        labels = rng.integers(0, 3, len(features)).astype(np.int32)
        (folder / f"{number}").mkdir()
        np.savez(private_file(folder, number), embeddings=features, labels=labels)


def private_file(folder: Path, number: int) -> Path:
    """Return the path of a client's private records."""
    return folder / f"{number}" / f"R{number}.npz"


@dataclass
class NetworkHistory:
    """History of one seed.

    Attributes:
      folder: Folder of the world.
      seed: Seed of everything.
      world: World.
      lost: Clients that never come back once they are killed.
      over: True once the server has ended.
      outcomes: What clients ended with, by number.
      told: Lines that the server and clients told, by who.
      counted: Clients that were told that their answer counts.
      results: What the server returned.
    """

    clients: ClassVar[int]
    counts: ClassVar[str]
    """Word of a client for an answer that counts."""
    faulty_steps: ClassVar[int] = FAULTY_STEPS
    start: ClassVar[float] = 0.01
    """Probability that a process that is missing starts, at a step."""

    folder: Path
    seed: int
    lost: set[int] = field(default_factory=set)
    over: bool = False
    outcomes: dict[int, Any] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    results: dict[str, Any] | None = None
    starts: int = 0
    held_since: float = 0.0
    resources: list[Resources] = field(default_factory=list)

    def run(self) -> NetworkWorld:
        """Run the history.

        Raises:
          BrokenError: If a promise is broken; its notes tell what happened last.
        """
        random = Random(self.seed)
        self.world = world = NetworkWorld(random, Rates.drawn(random))
        if random.random() < 0.3:
            self.lost = {random.randrange(self.clients)}
        self.gone: set[int] = set()
        self._draw(random)
        try:
            with world.installed(), self._watched():
                try:
                    self._go(self.faulty_steps)
                    world.rates = Rates()
                    self._go(CALM_STEPS)
                    self._check_end()
                finally:
                    world.close()
        except DeadlockError as error:
            broken = BrokenError(str(error))
            broken.add_note("\n".join(world.trace[-60:]))
            raise broken from error
        except BrokenError as error:
            error.add_note("\n".join(world.trace[-60:]))
            raise
        return world

    def _draw(self, random: Random) -> None:
        """Draw what else a history has."""

    def _watched(self) -> Any:
        """Return a context in which the server's resources and all words are known."""
        return Replaced(*self._changes())

    def _changes(self) -> list[tuple[Any, str, Any]]:
        """Return places, names and what they mean in this history."""
        return [
            (serving, "tell", lambda _, name, text: self._tell(name, text)),
            (listener, "listening", self._listening(listener.listening)),
            (listener, "SHUTDOWN_SECONDS", 0),
        ]

    def _listening(self, listening: Callable[..., Any]) -> Callable[..., Any]:
        def made(app: Any, *arguments: Any, **named: Any) -> Any:
            self.resources = [app.routes[0].endpoint.__self__]
            return listening(app, *arguments, **named)

        return made

    def _tell(self, name: str, text: str) -> None:
        actor = self.world.actor
        assert actor is not None
        self.told[actor.group] = self.told.get(actor.group, 0) + 1
        self.world.note(f"{actor.name}: tells {name}: {text.replace(str(self.folder), '.')[:150]}")
        if name == self.counts:
            self.counted.add(number_of(actor.group))
            self._check_counted()

    # Processes

    def _out(self) -> Path:
        """Return the server's folder."""
        return self.folder / "out"

    def _serve_settings(self) -> Serve:
        raise NotImplementedError

    def _join_settings(self, number: int) -> Join:
        raise NotImplementedError

    def _serve(self) -> None:
        self.results = federation.serve(self._serve_settings())

    def _join(self, number: int) -> None:
        self.outcomes[number] = federation.join(self._join_settings(number))

    def _strange(self) -> None:
        """Bring what no client does."""
        world = self.world
        for _ in range(3):
            world.sleep(world.random.random() * 20)
            try:
                wire = world.connect(60)
            except (OSError, TimeoutError):
                continue
            if world.random.random() < 0.2:
                world.send(wire, flood(self._round_id()))
            for _ in range(world.random.randrange(4)):
                world.send(wire, self._strange_bytes())
                world.sleep(world.random.random() * world.random.choice((0.1, 30)))
            if world.random.random() < 0.7:
                world.hang_up(wire)

    def _strange_bytes(self) -> bytes:
        return mutated(self.world.random, self._round_id())

    def repeated_after(self) -> float:
        """Return the most seconds until a proxy repeats a request."""
        return 40.0

    def _repeat(self, data: bytes) -> None:
        """Send a request once more, later, as a proxy may that heard no answer."""
        self.world.sleep(self.world.random.random() * self.repeated_after())
        try:
            wire = self.world.connect(60)
        except (OSError, TimeoutError):
            return
        self.world.send(wire, data)
        self.world.sleep(5)
        self.world.hang_up(wire)

    # Course

    def _go(self, steps: int) -> None:
        world = self.world
        for _ in range(steps):
            if self._start_missing():
                return
            self._fail()
            if not world.actors:
                continue
            wires = set(world.wires)
            world.step()
            self._repeat_some(wires)
            self._note_ends()
            self._check()
        if steps == CALM_STEPS:
            raise BrokenError("the round is not over in a calm world")

    def _start_missing(self) -> bool:
        """Start what does not run, sooner or later; return True if nothing is left to do."""
        world = self.world
        here = {one.group for one in world.actors}
        left: list[tuple[str, Callable[[], None]]] = []
        if not self.over and SERVER not in here:
            left.append((SERVER, self._serve))
        for number in range(self.clients):
            name = f"client {number}"
            if number not in self.outcomes and number not in self.gone and name not in here:
                if not (self.over and number not in self.counted):
                    left.append((name, lambda number=number: self._join(number)))
        if not left and not here - {"stranger", "proxy"}:
            return True
        if "stranger" not in here and world.rates.cut and world.random.random() < 0.01:
            world.start("stranger", "stranger", self._strange)
        if left and (not world.actors or world.random.random() < self.start):
            name, work = world.random.choice(left)
            self.starts += name == SERVER
            world.start(name, name, work)
        return False

    def _fail(self) -> None:
        """Kill somebody, by chance."""
        world = self.world
        for group in sorted({one.group for one in world.actors} - {"stranger", "proxy"}):
            client = group != SERVER
            if world.random.random() >= (
                world.rates.kill_client if client else world.rates.kill_server
            ):
                continue
            self._kill(group)

    def _kill(self, group: str) -> None:
        """Kill a process, which writes nothing more."""
        client = group != SERVER
        folder = self.folder / f"{number_of(group)}" if client else self._out()
        kept = _files(folder)
        self.world.kill(group)
        _restore(folder, kept)
        if client and number_of(group) in self.lost:
            self.gone.add(number_of(group))

    def _repeat_some(self, before: set[Wire]) -> None:
        world = self.world
        for wire in before - set(world.wires):
            if wire.sent and wire.owner.startswith("client"):
                if world.random.random() < world.rates.repeat:
                    data = bytes(wire.sent)
                    world.start("proxy", "proxy", lambda data=data: self._repeat(data))

    def _note_ends(self) -> None:
        for actor in self.world.ended:
            self._note_end(actor)
        self.world.ended.clear()

    def _note_end(self, actor: Actor) -> None:
        error = actor.error
        if isinstance(error, BrokenError):
            raise error
        if actor.group == SERVER and actor.name == SERVER and not actor.killed:
            if error is None or "got a finished one" in str(error):
                self.over = True
            elif not self._goes_on(error):
                raise BrokenError(f"the server ends: {type(error).__name__}: {error}")
        if actor.group.startswith("client") and not actor.killed and error is not None:
            if not isinstance(error, UnreachableError | FailedError):
                raise BrokenError(f"{actor.name} ends: {type(error).__name__}: {error}")
            if self.over:
                self.outcomes[number_of(actor.group)] = None

    def _goes_on(self, error: BaseException) -> bool:
        """Return True if the server's owner knows how to go on after an error of the server."""
        del error
        return False

    # Promises

    def _round_id(self) -> str:
        path = self._out() / "question.bin"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "0" * 64

    def _check_connections(self) -> None:
        """Check that no connection is held, and that the log has a bound."""
        world = self.world
        for gate in world.gates:
            open_wires = sum(not wire.down.ends for wire in world.wires)
            # The server's loop sees the end of several connections when it runs next.
            if gate.identified <= open_wires + 1:
                self.held_since = world.now
            elif world.now - self.held_since > CHECK_SECONDS:
                raise BrokenError(f"{gate.identified} connections are held, {open_wires} are open")
        for wire in world.wires:
            if not wire.down.ends and world.now - max(wire.up.moved, wire.down.moved) > SILENT:
                raise BrokenError(f"connection {wire.number} is silent and is not closed")
        minutes = (world.now - 1000) / 60
        most = LINES * self.starts + LINES_OF_A_CLIENT * self.clients + LINES_A_MINUTE * minutes
        if self.told.get(SERVER, 0) > most:
            raise BrokenError(f"the server tells {self.told[SERVER]} lines")

    def found(self) -> Counter[str]:
        """Return how often what happened, beyond faults of the network."""
        raise NotImplementedError

    def _check_counted(self) -> None:
        """Check that who was told so counts."""
        raise NotImplementedError

    def _check(self) -> None:
        """Check what must hold at every step."""
        raise NotImplementedError

    def _check_end(self) -> None:
        """Check what must hold once all is over."""
        raise NotImplementedError

    def _check_held(self) -> None:
        """Check that the server that ran last holds no bytes of requests."""
        [resources] = self.resources
        if resources.unfinished or resources.waiting:
            raise BrokenError(f"{resources.unfinished} bytes are held at the end")


def number_of(group: str) -> int:
    """Return the number of a client from the name of its process."""
    return int(group.split()[-1])


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _restore(folder: Path, kept: dict[Path, bytes]) -> None:
    """Undo what a process wrote that was killed before."""
    for path in _files(folder):
        if path not in kept:
            path.unlink()
    for path, data in kept.items():
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


class Replaced:
    """Context in which names of modules mean something else."""

    def __init__(self, *changes: tuple[Any, str, Any]) -> None:
        self.changes = changes

    def __enter__(self) -> None:
        self.kept = [(place, name, getattr(place, name)) for place, name, _ in self.changes]
        for place, name, value in self.changes:
            setattr(place, name, value)

    def __exit__(self, *_: Any) -> None:
        for place, name, value in self.kept:
            setattr(place, name, value)

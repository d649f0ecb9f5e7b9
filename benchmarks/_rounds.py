"""Histories of rounds in a network: `rknn serve`, its clients, strangers, and what must hold."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks._histories import BrokenError
from benchmarks._hostile import flood, mutated
from benchmarks._network_world import SERVER, Actor, DeadlockError, NetworkWorld, Rates, Wire
from rknn_jax.cli import federation, serving
from rknn_jax.federation import answer_frames, hosting, listener
from rknn_jax.federation.collector import ANSWERS
from rknn_jax.federation.connection import UnreachableError
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.listener import CHECK_SECONDS
from rknn_jax.federation.participation import FailedError
from rknn_jax.federation.server import POLL_SECONDS, Resources
from rknn_jax.federation.settings import Serve
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.settings import GivenClasses, Spending

CLIENTS = 4
DEADLINE = 180.0
PATIENCE = 60.0
FAULTY_STEPS = 1500
CALM_STEPS = 60_000

SLACK = 30.0
"""Seconds that a server may need beyond its own waits."""

SILENT = 4 * CHECK_SECONDS + POLL_SECONDS
"""Seconds without a byte after which a server has closed a connection."""

LINES = 40
LINES_OF_A_CLIENT = 8
LINES_A_MINUTE = 12
"""Most lines that a server tells: at a start, of each client, and in a minute."""


def write_inputs(folder: Path) -> None:
    """Write the public rows, and each client's private ones."""
    rng = np.random.default_rng(0)
    np.savez(folder / "public.npz", embeddings=rng.normal(size=(9, 4)).astype(np.float32))
    for number in range(CLIENTS):
        features = rng.normal(size=(1 + number % 3, 4)).astype(np.float32)
        labels = rng.integers(0, 3, len(features)).astype(np.int32)
        np.savez(folder / f"R{number}.npz", embeddings=features, labels=labels)


@dataclass
class RoundHistory:
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

    folder: Path
    seed: int
    lost: set[int] = field(default_factory=set)
    over: bool = False
    outcomes: dict[int, Any] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    results: dict[str, Any] | None = None
    starts: int = 0
    late_since: float | None = None
    held_since: float = 0.0
    resources: list[Resources] = field(default_factory=list)
    known: dict[int, bytes] = field(default_factory=dict)

    def run(self) -> NetworkWorld:
        """Run the history.

        Raises:
          BrokenError: If a promise is broken; its notes tell what happened last.
        """
        random = Random(self.seed)
        self.world = world = NetworkWorld(random, Rates.drawn(random))
        if random.random() < 0.3:
            self.lost = {random.randrange(CLIENTS)}
        self.gone: set[int] = set()
        self.size = -1
        try:
            with world.installed(), self._watched():
                try:
                    self._go(FAULTY_STEPS)
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

    def _watched(self) -> Any:
        """Return a context in which the server's resources and all words are known."""
        return _replaced(
            (serving, "tell", lambda _, name, text: self._tell(name, text)),
            (listener, "listening", self._listening(listener.listening)),
            (listener, "SHUTDOWN_SECONDS", 0),
        )

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
        if name == "answered":
            self.counted.add(int(actor.group.split()[-1]))
            self._check_counted()

    # Processes

    def _serve(self) -> None:
        settings = Serve(
            public=self.folder / "public.npz",
            epsilon=1.0,
            classes=GivenClasses("3"),
            clients=CLIENTS,
            quorum=1,
            deadline=DEADLINE,
            out=self.folder / "out",
            port=80,
            collect_only=True,
        )
        self.results = federation.serve(settings)

    def _join(self, number: int) -> None:
        settings = Join(
            self.folder / f"{number}" / f"R{number}.npz",
            "127.0.0.1:80",
            spending=Spending(budget=2),
            wait=PATIENCE,
        )
        self.outcomes[number] = federation.join(settings)

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
                world.send(wire, mutated(world.random, self._round_id()))
                world.sleep(world.random.random() * world.random.choice((0.1, 30)))
            if world.random.random() < 0.7:
                world.hang_up(wire)

    def _repeat(self, data: bytes) -> None:
        """Send a request once more, later, as a proxy may that heard no answer."""
        self.world.sleep(self.world.random.random() * 40)
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
        for number in range(CLIENTS):
            name = f"client {number}"
            if number not in self.outcomes and number not in self.gone and name not in here:
                if not (self.over and number not in self.counted):
                    left.append((name, lambda number=number: self._join(number)))
        if not left and not here - {"stranger", "proxy"}:
            return True
        if "stranger" not in here and world.rates.cut and world.random.random() < 0.01:
            world.start("stranger", "stranger", self._strange)
        if left and (not world.actors or world.random.random() < 0.01):
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
            folder = self.folder / (group.split()[-1] if client else "out")
            kept = _files(folder)
            world.kill(group)
            _restore(folder, kept)
            if client and int(group.split()[-1]) in self.lost:
                self.gone.add(int(group.split()[-1]))

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
            else:
                raise BrokenError(f"the server ends: {type(error).__name__}: {error}")
        if actor.group.startswith("client") and not actor.killed and error is not None:
            if not isinstance(error, UnreachableError | FailedError):
                raise BrokenError(f"{actor.name} ends: {type(error).__name__}: {error}")
            if self.over:
                self.outcomes[int(actor.group.split()[-1])] = None

    # Promises

    def _round_id(self) -> str:
        path = self.folder / "out" / "question.bin"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "0" * 64

    def _frames(self) -> dict[int, bytes]:
        """Return the frame on disk that each counted client is in."""
        path = self.folder / "out" / ANSWERS
        found: dict[int, bytes] = {}
        for clients, payload in answer_frames.read(path) if path.exists() else ():
            for client in clients.tolist():
                if client in found:
                    raise BrokenError(f"client {client} is counted twice")
                found[client] = payload
        return found

    def _tickets(self) -> dict[int, int]:
        """Return each client's ticket, of those that have an answer."""
        found = {}
        for number in range(CLIENTS):
            answers = list((self.folder / str(number)).glob("*rounds/*.answer"))
            if len(answers) > 1:
                raise BrokenError(f"client {number} has two answers")
            if answers:
                found[number] = int.from_bytes(answers[0].read_bytes()[:8], "little")
        return found

    def _check_counted(self) -> None:
        """Check that who was told so counts, and that nobody else does."""
        on_disk = self._frames()
        tickets = self._tickets()
        for number in self.counted:
            if tickets.get(number) not in on_disk:
                raise BrokenError(f"client {number} was told that it counts, and is not on disk")
        if strangers := set(on_disk) - set(tickets.values()):
            raise BrokenError(f"answers count that no client sent: {sorted(strangers)}")

    def _check(self) -> None:
        """Check what must hold at every step."""
        path = self.folder / "out" / ANSWERS
        size = path.stat().st_size if path.exists() else 0
        if size != self.size:
            self.size = size
            self._check_counted()
        world = self.world
        self._check_deadline()
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
        most = LINES * self.starts + LINES_OF_A_CLIENT * CLIENTS + LINES_A_MINUTE * minutes
        if self.told.get(SERVER, 0) > most:
            raise BrokenError(f"the server tells {self.told[SERVER]} lines")

    def _check_deadline(self) -> None:
        """Check that a round ends a little after its deadline, whoever is missing."""
        world = self.world
        opened = self.folder / "out" / "opened.json"
        runs = any(one.name == SERVER for one in world.actors)
        if self.over or not runs or not opened.exists():
            self.late_since = None
            return
        began = json.loads(opened.read_bytes())["opened"]
        if world.now + world.wall < began + DEADLINE:
            self.late_since = None
            return
        self.late_since = self.late_since or world.now
        if world.now - self.late_since > hosting.GOODBYE + SLACK:
            raise BrokenError(f"the round is not over {SLACK:g} s after its deadline")

    def _check_end(self) -> None:
        """Check that everybody counts once, and heard the end."""
        self._check_counted()
        on_disk = self._frames()
        tickets = self._tickets()
        # A server that is killed when all is on disk returns nothing, and is not started again.
        if self.results and self.results["clients"] != len(on_disk):
            raise BrokenError(f"{len(on_disk)} clients count, and the server says {self.results}")
        for number, outcome in self.outcomes.items():
            took_part = outcome is not None and outcome["exit_status"] == 0
            if took_part and tickets.get(number) not in on_disk:
                raise BrokenError(f"client {number} took part and does not count")
        for number in range(CLIENTS):
            path = self.folder / str(number) / f"R{number}.npz.ledger.jsonl"
            spends = Ledger.open(path).num_spends if path.exists() else 0
            if spends > 1 or (number in tickets and spends != 1):
                raise BrokenError(f"client {number} has paid {spends} times")
        [resources] = self.resources
        if resources.unfinished or resources.waiting:
            raise BrokenError(f"{resources.unfinished} bytes are held at the end")


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


class _replaced:
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

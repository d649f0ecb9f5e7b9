"""Histories of rounds of messages in a network, and what must hold."""

import json
from collections import Counter
from dataclasses import dataclass

from benchmarks._histories import BrokenError
from benchmarks._network_history import PATIENCE, NetworkHistory, private_file
from benchmarks._network_world import SERVER
from rknn_jax.federation import answer_frames, hosting
from rknn_jax.federation.collector import ANSWERS
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.settings import Serve
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.settings import GivenClasses, Spending

DEADLINE = 180.0

LATEST = hosting.GOODBYE + 30.0
"""Seconds after its deadline when a round is over: the server's goodbye, and what it may need."""


@dataclass
class RoundHistory(NetworkHistory):
    """History of a round of messages, which trusts nobody."""

    clients = 4
    counts = "answered"

    late_since: float | None = None
    size: int = -1
    """Bytes of the answers when they were checked last."""

    def found(self) -> Counter[str]:
        """Return how many answers count."""
        return Counter({"answers counted": len(self.counted)})

    def _serve_settings(self) -> Serve:
        return Serve(
            public=self.folder / "public.npz",
            epsilon=1.0,
            classes=GivenClasses("3"),
            clients=self.clients,
            quorum=1,
            deadline=DEADLINE,
            out=self._out(),
            port=80,
            collect_only=True,
        )

    def _join_settings(self, number: int) -> Join:
        path = private_file(self.folder, number)
        return Join(path, "127.0.0.1:80", spending=Spending(budget=2), wait=PATIENCE)

    def _frames(self) -> dict[int, bytes]:
        """Return the frame on disk that each counted client is in."""
        path = self._out() / ANSWERS
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
        for number in range(self.clients):
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
        path = self._out() / ANSWERS
        size = path.stat().st_size if path.exists() else 0
        if size != self.size:
            self.size = size
            self._check_counted()
        self._check_deadline()
        self._check_connections()

    def _check_deadline(self) -> None:
        """Check that a round ends a little after its deadline, whoever is missing."""
        world = self.world
        opened = self._out() / "opened.json"
        runs = any(one.name == SERVER for one in world.actors)
        if self.over or not runs or not opened.exists():
            self.late_since = None
            return
        began = json.loads(opened.read_bytes())["opened"]
        if world.now + world.wall < began + DEADLINE:
            self.late_since = None
            return
        self.late_since = self.late_since or world.now
        if world.now - self.late_since > LATEST:
            raise BrokenError(f"the round is not over {LATEST:g} s after its deadline")

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
        for number in range(self.clients):
            path = private_file(self.folder, number).with_name(f"R{number}.npz.ledger.jsonl")
            spends = Ledger.open(path).num_spends if path.exists() else 0
            if spends > 1 or (number in tickets and spends != 1):
                raise BrokenError(f"client {number} has paid {spends} times")
        self._check_held()

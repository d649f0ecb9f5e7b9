"""Histories of secure sums in a network, one or several rounds of them, and what must hold.

Clients leave at each step of a sum, and come back with another ticket. A server that is killed
before its sum is on disk cannot go on, so that its owner begins again in a new folder.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._histories import BrokenError
from benchmarks._network_history import PATIENCE, NetworkHistory, number_of, private_file
from benchmarks._network_world import SERVER, Rates
from benchmarks._sum_watch import SumWatch, spends
from rknn_jax._internal.disk import read_arrays, read_json
from rknn_jax.federation import hosting, participation
from rknn_jax.federation.collector import QUESTION
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.participation import GONE
from rknn_jax.federation.round_folder import BEGUN, OVER, SUM
from rknn_jax.federation.secure_sum_keys import SEALED_BYTES, STEPS
from rknn_jax.federation.settings import Serve
from rknn_jax.settings import GivenClasses, Spending

DEADLINE = 60.0
EPSILON = 1.0
BUDGET = 100.0
DELTA_BUDGET = 0.01

SLACK = 40.0
"""Seconds that a server may need beyond its own waits."""

LEAST = ((3, 3, 0), (4, 3, 1), (4, 4, 0))
"""Quorum and honest clients of the server, and dishonest clients by the clients' agreement."""

CARELESS = 2
"""Quorum of a server that no client agrees to."""

OPENED = "opened.json"

LATER = ("labels.npz", "queries.npz", "privacy.json", "report.html")
"""Files that are there only after a sum."""

UNTIL_FAULTS = (0, 300, 1000, 3000, 6000)
"""Most bytes in one direction until a connection's fault comes, at any step of a sum."""

MOST_MOMENT = 40
"""Most steps of the world from a client's step of a sum until it is killed."""


@dataclass
class SumHistory(NetworkHistory):
    """History of secure sums.

    Attributes:
      attempt: Number of folders that the server had before.
      deadline: Deadline of the server, which its owner may move.
      moved: True if the server's owner will give the round more time.
      quorum: Least clients of a sum, by the server.
      honest: Honest clients, by the server.
      dishonest: Dishonest clients, by the clients.
      rounds: Number of rounds.
      careless: True if the server's first quorum is one that no client agrees to.
      leave: Probability that a process is killed at a moment of a sum.
      loss: Probability that a client's connection is cut as the server counts its message, so that
        it sends the message again.
      unheard: Clients whose connection is cut next.
      leavers: Clients that are killed once the server has counted their message of a step.
      doomed: Processes that are killed in so many steps of the world.
      stage: Files of the server's folder that tell how far it is.
      since: Time at which that stage began, or at which it could have ended.
      added: Clients that were told that they are in a sum, and its round.
      kept: Digests of sums, and when they were written, by path.
      paid: Charges of each client.
      sizes: Bytes of each client's ledger.
    """

    clients = 5
    counts = "added"
    faulty_steps = 3000
    start = 0.05

    attempt: int = 0
    deadline: float = DEADLINE
    quorum: int = 0
    honest: int = 0
    dishonest: int = 0
    rounds: int = 1
    careless: bool = False
    leave: float = 0.0
    loss: float = 0.0
    moved: bool = False
    unheard: set[str] = field(default_factory=set)
    leavers: dict[int, int] = field(default_factory=dict)
    doomed: dict[str, int] = field(default_factory=dict)
    stage: tuple[Any, ...] = ()
    since: float = 0.0
    added: set[tuple[int, str]] = field(default_factory=set)
    kept: dict[Path, tuple[str, int]] = field(default_factory=dict)
    paid: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def _draw(self, random: Random) -> None:
        self.quorum, self.honest, self.dishonest = random.choice(LEAST)
        self.rounds = random.choice((1, 1, 2))
        self.careless = random.random() < 0.1
        self.leave = random.choice((0.0, 0.0, 0.04))
        self.loss = random.choice((0.0, 0.2))
        for number in random.sample(self._all(), random.randrange(3)):
            self.leavers[number] = random.randrange(STEPS)
        # A sum takes hundreds of steps, in which not everybody should be killed.
        rates = self.world.rates
        self.world.rates = rates._replace(
            kill_client=rates.kill_client / 20, kill_server=rates.kill_server / 10
        )
        self.world.until_faults = UNTIL_FAULTS
        least = self.honest + self.dishonest
        self.watch = SumWatch(self.world, self.folder, least, self._noted, self._moment)

    def _changes(self) -> list[tuple[Any, str, Any]]:
        # Steps are for what clients and the server do, and not for looks at the clock.
        ticks = [
            (hosting, "SHORT_TICK", hosting.TICK),
            (hosting, "POLL", hosting.TICK),
            (participation, "CLOSED_SECONDS", 20 * participation.CLOSED_SECONDS),
        ]
        return super()._changes() + ticks + self.watch.changes()

    def _tell(self, name: str, text: str) -> None:
        super()._tell(name, text)
        if name == "too late" and "Nothing was spent" in text:
            number = number_of(self.watch.group())
            if any(paid[:12] in text for paid in self._spends(number)):
                raise BrokenError(f"client {number} is told that it spent nothing, and has paid")
        if name == self.counts:
            group = self.watch.group()
            self.added.add((number_of(group), self.watch.parts[group]))

    def found(self) -> Counter[str]:
        """Return how often what happened in sums."""
        watch = self.watch
        opened = watch.opened.values()
        counts = Counter(
            {
                "sums begun": len(watch.begun),
                "sums opened": len(opened),
                "vectors in sums": sum(len(clients) for _, clients in opened),
                "vectors paid": sum(self.paid.values()),
            }
        )
        names = ("keys", "shares", "vectors", "openings")
        return counts + Counter({f"left before {names[one]}": n for one, n in watch.stages.items()})

    # Processes

    def _out(self) -> Path:
        return self.folder / f"out{self.attempt}"

    def _rounds(self) -> list[Path]:
        """Return the folders of all rounds, in order."""
        earlier = [self._out() / f"round-{number}" for number in range(1, self.rounds)]
        return [*earlier, self._out()]

    def _serve_settings(self) -> Serve:
        if self.moved:
            self.deadline = self.world.now + self.world.wall - self._opened_at() + DEADLINE
            self.moved = False
        careless = self.careless and not self.attempt
        return Serve(
            public=self.folder / "public.npz",
            epsilon=EPSILON,
            classes=GivenClasses("3"),
            clients=self.clients,
            quorum=CARELESS if careless else self.quorum,
            honest=self.honest,
            trust="central",
            rounds=self.rounds,
            deadline=self.deadline,
            out=self._out(),
            port=80,
        )

    def _join_settings(self, number: int) -> Join:
        return Join(
            private_file(self.folder, number),
            "127.0.0.1:80",
            spending=Spending(budget=BUDGET, budget_delta=DELTA_BUDGET),
            trust="central",
            dishonest=self.dishonest,
            wait=PATIENCE,
        )

    def _join(self, number: int) -> None:
        super()._join(number)
        # Its owner begins again if the server was gone for a while.
        if self.outcomes[number]["statement"] == GONE and not self.over:
            del self.outcomes[number]

    def _strange_bytes(self) -> bytes:
        random = self.world.random
        if random.random() < 0.5:
            return super()._strange_bytes()
        path = f"/v1/rounds/{self._round_id()}/sum/{random.randrange(STEPS)}"
        body = random.randbytes(random.choice((0, 96, 4 * SEALED_BYTES, 8 * 9)))
        post = random.random() < 0.5
        head = f"{'POST' if post else 'GET'} {path} HTTP/1.1\r\nhost: a\r\nrknn-ticket: 7\r\n"
        return head.encode() + f"content-length: {len(body) * post}\r\n\r\n".encode() + body * post

    def _current(self) -> Path:
        """Return the folder of the round that is not over, or else of the last one."""
        return next((one for one in self._rounds() if not (one / OVER).exists()), self._out())

    def _opened_at(self) -> float:
        """Return when the current round was opened, by the wall clock."""
        return float(read_json(self._current() / OPENED)["opened"])

    def _round_id(self) -> str:
        begun = [one for one in self._rounds() if (one / QUESTION).exists()]
        return _id_of(begun[-1]) if begun else "0" * 64

    def repeated_after(self) -> float:
        """Return the most seconds until a proxy repeats a request: often within a step."""
        return self.world.random.choice((1.0, 40.0))

    # Course

    def _moment(self, group: str, step: int, *, counted: bool) -> None:
        """Doom a process to be killed a little after a step of a sum.

        Args:
          group: Name of the process.
          step: Step of the sum.
          counted: True if the server has counted this client's message of the step.
        """
        if group != SERVER and self.leavers.get(number_of(group)) == step and counted:
            del self.leavers[number_of(group)]
            self.doomed[group] = 0
            return
        if self.world.rates == Rates():
            return
        if counted and self.world.random.random() < self.loss:
            self.unheard.add(group)
        if self.world.random.random() < self.leave:
            self.world.note(f"{group}: will be killed in step {step}")
            self.doomed[group] = self.world.random.randrange(MOST_MOMENT)

    def _fail(self) -> None:
        super()._fail()
        for group in sorted(self.unheard):
            self.world.cut(group)
        self.unheard.clear()
        here = {one.group for one in self.world.actors}
        for group in sorted(self.doomed):
            self.doomed[group] -= 1
            if self.doomed[group] < 0 or group not in here:
                del self.doomed[group]
                if group in here:
                    self._kill(group)

    def _goes_on(self, error: BaseException) -> bool:
        if "nothing was spent, nothing is published" in str(error):
            current = self._current()
            round_id = _id_of(current)
            if (current / BEGUN).exists() or any(round_id in self._spends(k) for k in self._all()):
                raise BrokenError("clients spent on a round of which the server says they did not")
            self.moved = True
            return True
        if "could not be opened" in str(error) or "begun and not opened" in str(error):
            if self.careless and not self.attempt and self.watch.added[self._round_id()]:
                raise BrokenError("clients add to a sum that too few may open")
            self.attempt += 1
            self.deadline = DEADLINE
            return True
        return False

    # Promises

    def _all(self) -> range:
        return range(self.clients)

    def _spends(self, number: int) -> list[str]:
        return spends(private_file(self.folder, number))

    def _noted(self, round_id: str) -> bool:
        """Return True if a server has noted that clients spend on a round."""
        return any(_id_of(one) == round_id for one in self._rounds() if (one / BEGUN).exists())

    def _check_counted(self) -> None:
        """Check that who is told that it was added has paid, and was counted."""
        watch = self.watch
        added = {watch.clients[one] for tickets in watch.added.values() for one in tickets}
        if apart := self.counted - added:
            raise BrokenError(
                f"clients {sorted(apart)} were told that they were added, and are not"
            )

    def _check(self) -> None:
        if self.watch.broken:
            raise BrokenError(self.watch.broken[0])
        self._check_paid()
        for folder in self._rounds():
            self._check_folder(folder)
        self._check_time()
        self._check_connections()

    def _check_paid(self) -> None:
        """Check that no round is paid for twice, and no charge is forgotten."""
        for number in self._all():
            path = private_file(self.folder, number)
            ledger = path.with_name(f"{path.name}.ledger.jsonl")
            size = ledger.stat().st_size if ledger.exists() else 0
            if size == self.sizes.get(number, 0):
                continue
            self.sizes[number] = size
            paid = self._spends(number)
            if len(set(paid)) < len(paid):
                raise BrokenError(f"client {number} pays for a round twice")
            if len(paid) < self.paid.get(number, 0):
                raise BrokenError(f"a charge of client {number} is forgotten")
            self.paid[number] = len(paid)

    def _check_folder(self, folder: Path) -> None:
        """Check that nothing is shown without a sum on disk, and that the sum stays."""
        path = folder / SUM
        if not path.exists():
            if shown := [name for name in LATER if (folder / name).exists()]:
                raise BrokenError(f"{shown[0]} is there before the sum is on disk")
            return
        stamp = path.stat().st_mtime_ns
        if self.kept.get(path, ("", 0))[1] == stamp:
            return
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if self.kept.get(path, (digest, 0))[0] != digest:
            raise BrokenError("a sum on disk becomes another one")
        self.kept[path] = digest, stamp
        round_id = _id_of(folder)
        arrays = read_arrays(path)
        totals, clients = self.watch.opened[round_id]
        if (arrays["totals"] != totals).any() or arrays["num_clients"] != len(clients):
            raise BrokenError("the sum on disk is not the one that was opened")
        if len(clients) < max(self.quorum, self.honest):
            raise BrokenError(f"a sum of {len(clients)} clients is kept")

    def _check_time(self) -> None:
        """Check that no step of the server takes longer than it may, whoever is missing."""
        world = self.world
        if self.over or not any(one.name == SERVER for one in world.actors):
            self.stage = ()
            return
        folder = self._current()
        opened = (folder / OPENED).exists()
        marks = tuple((folder / name).exists() for name in (BEGUN, SUM))
        stage = (self.starts, folder, opened, *marks)
        waits = 0.0
        if marks == (True, False):
            waits = STEPS * hosting.STEP_SECONDS
        elif marks == (False, False) and opened:
            if world.now + world.wall < self._opened_at() + self.deadline:
                stage = ()
        if stage != self.stage:
            self.stage, self.since = stage, world.now
        if stage and world.now - self.since > waits + hosting.GOODBYE + SLACK:
            raise BrokenError(f"the server stays {world.now - self.since:.0f} s in one stage")

    def _check_end(self) -> None:
        """Check that what was published is of the clients that took part."""
        self._check_counted()
        inside: set[int] = set()
        for folder in self._rounds():
            round_id = _id_of(folder)
            card = read_json(folder / "privacy.json")
            clients = self.watch.opened[round_id][1]
            inside |= clients
            if card["clients"] != len(clients) or card["round"] != round_id:
                raise BrokenError(f"{len(clients)} clients are in a sum, and {card['clients']} say")
            if card["guarantee"]["epsilon"] > EPSILON or not (folder / OVER).exists():
                raise BrokenError("the rounds are not over, or promise less than was asked")
        if self.results and self.results["round"] != round_id:
            raise BrokenError("the server returns another round than the last one")
        for number, outcome in self.outcomes.items():
            took_part = outcome is not None and outcome["exit_status"] == 0
            if took_part and number not in inside and outcome["statement"] != GONE:
                raise BrokenError(f"client {number} took part and is in no sum")
            told_so = any((number, _id_of(folder)) in self.added for folder in self._rounds())
            if outcome is not None and told_so and not took_part:
                raise BrokenError(f"client {number} is told that it took no part in its sum")
        for number, round_id in self.watch.drawn:
            if round_id not in self._spends(number):
                raise BrokenError(f"client {number} has not paid for what it gave away")
        self._check_held()


def _id_of(folder: Path) -> str:
    """Return the id of the round in a folder."""
    return hashlib.sha256((folder / QUESTION).read_bytes()).hexdigest()

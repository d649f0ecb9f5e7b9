"""What clients and servers of secure sums do, seen where the code calls it, and what must hold.

A client's vector is made anew here, from its file and the seed of its noise. So a sum has to be
that of the clients in it, number by number.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats  # noqa: F401 it draws random numbers as it is imported, which are the world's

from benchmarks._network_history import number_of, private_file
from benchmarks._network_world import NetworkWorld
from rknn_jax.federation import hosting, participation
from rknn_jax.federation.client import Prepared
from rknn_jax.federation.client_payments import NOTED, Payments
from rknn_jax.federation.participation import MASKED
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.secure_sum import Participant
from rknn_jax.federation.secure_sum_keys import STEPS
from rknn_jax.federation.secure_sum_layout import decode_numbers, decode_shares
from rknn_jax.federation.secure_sum_server import Summation
from rknn_jax.labelers._vote_shares import VoteShares
from rknn_jax.privacy.entropy import Entropy

MASK, SEED = range(2)
"""Kinds of shares, as a client has them of each peer."""


@dataclass
class SumWatch:
    """Record of all sums of a history.

    Attributes:
      world: World of the history.
      folder: Folder of the world.
      honest: Number of clients that must be in a sum, by the clients' agreement.
      noted: Function that returns True if a server has noted that clients spend on a round.
      moments: Function of a process, the step of a sum that it has taken, and `counted`, whether
        the server has its message.
      broken: Promises that were seen to be broken.
      clients: Clients by their tickets.
      seeds: Seed of the noise, by client and round.
      drawn: Vectors that clients have given away, by client and round, made anew.
      added: Clients whose masked vectors a server has counted, by round.
      opened: Open sums and the clients in them, by round.
      begun: Rounds whose sums were begun.
      shown: Kinds of the shares that a client has shown of a peer, by round and both tickets.
      parts: Round of the sum that a process has its part in.
      stages: How many clients had left when a step ended, by step.
    """

    world: NetworkWorld
    folder: Path
    honest: int
    noted: Callable[[str], bool]
    moments: Callable[..., None]
    broken: list[str] = field(default_factory=list)
    clients: dict[int, int] = field(default_factory=dict)
    seeds: dict[tuple[int, str], bytes] = field(default_factory=dict)
    drawn: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)
    added: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    opened: dict[str, tuple[np.ndarray, set[int]]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    shown: dict[tuple[str, int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    stages: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    parts: dict[str, str] = field(default_factory=dict)
    _steps: dict[str, int] = field(default_factory=dict)

    def changes(self) -> list[tuple[Any, str, Any]]:
        """Return places, names and what they mean while this watches."""
        watch = self

        class WatchedParticipant(Participant):
            """Client's part in a sum."""

            def step(self, number: int, data: bytes) -> bytes:
                group = watch.group()
                watch._steps[group] = number
                watch.parts[group] = self._round_id
                reply = super().step(number, data)
                watch.clients[self._number] = number_of(group)
                if number == STEPS - 1:
                    watch._check_shares(self, data, reply)
                watch.moments(group, number, counted=False)
                return reply

        class WatchedSummation(Summation):
            """Server's side of a sum."""

            def __init__(self, round_id: str, *arguments: Any) -> None:
                super().__init__(round_id, *arguments)
                if round_id in watch.begun:
                    watch.broken.append("a sum is begun twice")
                watch.begun.add(round_id)

            def receive(self, client: int, step: int, data: bytes) -> str:
                fate = super().receive(client, step, data)
                if fate == "counted" and client in watch.clients:
                    watch.moments(f"client {watch.clients[client]}", step, counted=True)
                if fate == "counted" and step == MASKED:
                    watch.added[self._round_id].add(client)
                return fate

            def advance(self) -> None:
                step, left = self.step, len(self.waiting())
                super().advance()
                watch.stages[step] += left
                watch.moments(watch.group(), step, counted=False)
                if self.result is not None:
                    watch._check_sum(self._round_id, *self.result, self._members[STEPS - 1])

        return [
            (participation, "Participant", WatchedParticipant),
            (hosting, "Summation", WatchedSummation),
            (Payments, "entropy", self._spending(Payments.entropy)),
            (Prepared, "vector", self._drawing(Prepared.vector)),
        ]

    def group(self) -> str:
        """Return the name of the process that runs."""
        assert self.world.actor is not None
        return self.world.actor.group

    def _spending(self, spend: Callable[..., Entropy]) -> Callable[..., Entropy]:
        def made(payments: Payments, round: Round, *arguments: Any) -> Entropy:
            entropy = spend(payments, round, *arguments)
            note = json.loads(payments.path(round, NOTED).read_bytes())
            self.seeds[number_of(self.group()), round.id] = bytes.fromhex(note["seed"])
            return entropy

        return made

    def _drawing(self, vector: Callable[[Prepared], np.ndarray]) -> Callable[..., np.ndarray]:
        def made(prepared: Prepared) -> np.ndarray:
            round = prepared.round
            number = number_of(self.group())
            self._check_spends(number, round, 0, "before its vector is asked for")
            if not self.noted(round.id):
                self.broken.append(f"client {number} spends on a sum that its server has not noted")
            if self._steps.get(self.group()) != MASKED:
                self.broken.append(f"client {number} spends before all else was checked")
            found = vector(prepared)
            self._check_spends(number, round, 1, "for its vector")
            if (number, round.id) in self.drawn:
                self.broken.append(f"client {number} draws twice for one charge")
            self.drawn[number, round.id] = self._expected(number, round)
            return found

        return made

    def _check_spends(self, number: int, round: Round, most: int, when: str) -> None:
        paid = spends(private_file(self.folder, number)).count(round.id)
        if paid != most:
            self.broken.append(f"client {number} has paid {paid} times {when}")

    def _expected(self, number: int, round: Round) -> np.ndarray:
        """Return a client's votes and noise, int64 `[s·|Y|]`, by definition."""
        assert isinstance(round.sum, VoteShares)
        with np.load(private_file(self.folder, number)) as held:
            features, labels = round.mapped(held["embeddings"]), held["labels"]
        votes = np.zeros((len(round.queries), len(round.classes)), np.int64)
        for record, label in zip(features.astype(np.float64), labels, strict=True):
            distances = np.sum((round.queries.astype(np.float64) - record) ** 2, axis=1)
            votes[np.argsort(distances)[: round.config.num_neighbors], label] += 1
        return votes.ravel() + round.sum.coins.share(Entropy(self.seeds[number, round.id]))

    def _check_shares(self, part: Participant, data: bytes, reply: bytes) -> None:
        """Check what a client shows of its peers, and of how many it opens the sum."""
        inside = decode_numbers(data)
        who = f"client {self.clients[part._number]}"
        if len(inside) < self.honest:
            self.broken.append(f"{who} opens a sum of {len(inside)} clients")
        for peer, share in zip(sorted(part._shares), decode_shares(reply), strict=True):
            shown = self.shown[part._round_id, part._number, peer]
            shown.add(part._shares[peer].index(share))
            if len(shown) > 1:
                self.broken.append(f"{who} shows both shares of a peer")
            if MASK in shown and peer in inside:
                self.broken.append(f"{who} shows a share of the mask key of a client in the sum")

    def _check_sum(self, round_id: str, totals: np.ndarray, count: int, inside: list[int]) -> None:
        """Check that a sum is that of its clients, each once."""
        if round_id in self.opened:
            self.broken.append("a second sum of a round is opened")
        owners = [self.clients.get(ticket, -1) for ticket in inside]
        if -1 in owners or len(set(owners)) < len(owners):
            self.broken.append(f"the sum has clients {owners}")
            return
        if count != len(owners) or count < self.honest:
            self.broken.append(f"a sum of {len(owners)} clients is opened as one of {count}")
        expected = sum(self.drawn[owner, round_id] for owner in owners)
        if not np.array_equal(totals, expected):
            self.broken.append(f"the sum of clients {sorted(owners)} is another one")
        self.opened[round_id] = totals, set(owners)


def spends(private: Path) -> list[str]:
    """Return the rounds that a client's ledger was charged for, in order."""
    path = private.with_name(f"{private.name}.ledger.jsonl")
    if not path.exists():
        return []
    lines = map(json.loads, path.read_bytes().splitlines())
    charges = [one["purpose"] for one in lines if one["kind"] == "spend"]
    return [purpose.removeprefix("round ").partition(":")[0] for purpose in charges]

"""What a server does with answers: check them, have them on disk, add them up.

Killed at any time, it goes on from its folder.

One process has the folder at a time: the file of the answers is locked until the collector is
closed, because two that count from one file would count a client twice.

Answers come in batches. Of a batch, those that can be counted are appended to one file in one frame
and are on disk before they count, so that what a server has added up is what its file holds, each
client once. A frame that a crash cut short was not acknowledged. It is cut off, and whoever is
missing is asked again and says the same. Who is rejected is told, by the client's number, and
counted by reason.

**What a liar can do.** A message in the alphabet moves the estimate of a cell by `most_shift` at
most and no client sends more of them than the round allows, so f messages of liars move it by f
times that: as far as f honest ones may, and no further. At a small epsilon that is many votes,
which is the price of noise that nobody can see through. Who may send at all is the transport's to
say: without keys anybody who reaches the server is a client, as often as he likes.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rknn_jax._internal.disk import lock, read_json, write_whole
from rknn_jax.federation import wire
from rknn_jax.federation.rounds import MOST_RECORDS, Round
from rknn_jax.mechanisms.local import LocalRandomizer

MESSAGES_AT_ONCE = 2**16
HASH_BYTES = 32

ANSWERS = "answers.bin"
QUESTION = "question.bin"
REJECTED = "rejected.json"


class Reply(NamedTuple):
    """One client's answer.

    Attributes:
      client: its number, below 2^64: its node's, where the transport has seen to its key, else its
        ticket, which a liar makes up.
      round: id of the round that it answers.
      payload: its messages.
    """

    client: int
    round: str
    payload: bytes


class Collector:
    """The answers of one round, in a folder.

    Attributes:
      round: that is answered.
      totals: int64 `[num_totals]`, as `LocalRandomizer.aggregate`.
      num_messages: that were counted.
      clients: that were counted.
      rejected: how many answers were not counted, by reason.
      cut: bytes of an unfinished batch that were cut off when the folder was opened.
    """

    def __init__(self, folder: Path, round: Round, most_records: int = MOST_RECORDS) -> None:
        """Open the folder of a round; a new one keeps the question, an old one must hold the same
        and is gone through.

        Raises:
          ValueError: If it holds another round or a damaged file, or another collector has it.
        """
        self.round = round
        self._path = folder / ANSWERS
        self._most = most_records
        self._size = wire.message_bytes(round.mechanism)
        self.totals = np.zeros(round.mechanism.num_totals, np.int64)
        self.num_messages = 0
        self.clients = set[int]()
        self._rejected_path = folder / REJECTED
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a+b")
        try:
            lock(
                self._file.fileno(),
                f"Expected a folder that no other server counts in, got {folder}; stop it, or "
                "name a new folder.",
            )
            self.rejected = self._rejected()
            self.cut = 0
            self._go_through(folder)
        except BaseException:
            self._file.close()
            raise

    def _rejected(self) -> Counter[str]:
        found = read_json(self._rejected_path) if self._rejected_path.exists() else {}
        if not isinstance(found, dict) or any(
            type(count) is not int or count < 0 for count in found.values()
        ):
            raise ValueError(
                f"Expected a number for each reason in {self._rejected_path}, got {found!r}; "
                "restore the file from a copy."
            )
        return Counter(found)

    def _go_through(self, folder: Path) -> None:
        """Keep the question, or see that it is the same, and count what the file holds."""
        if not (folder / QUESTION).exists():
            write_whole(folder / QUESTION, self.round.data)
        elif (folder / QUESTION).read_bytes() != self.round.data:
            raise ValueError(
                f"Expected the folder of this round, got another round in {folder}; name a new "
                "folder."
            )
        size = 0
        for clients, payload in _frames(self._path):
            if len(payload) % self._size or len(self.clients.union(clients.tolist())) < len(
                self.clients
            ) + len(clients):
                raise ValueError(
                    f"Expected whole messages, of each client once, in {self._path}, got other "
                    "frames; restore the file from a copy."
                )
            self._count(clients, _parts(self.round.mechanism, payload))
            size += _frame_bytes(len(clients), len(payload))
        self.cut = os.path.getsize(self._path) - size
        self._file.truncate(size)

    def receive(self, replies: Sequence[Reply], *, late: bool = False) -> list[str]:
        """Count a batch of answers, which is on disk when this returns.

        Args:
          replies: in any order, from clients that may be broken or lie.
          late: whether the round is over.

        Returns:
          For each what became of it: `counted`, or why not: `late`, `another round`, `again`
            (whatever it says the second time),
          `malformed` for a length that no number of messages has, `too many` messages, `outside the
          alphabet`.
        """
        if not replies:
            return []
        clients: Sequence[int]
        payloads: Sequence[bytes]
        clients, rounds, payloads = zip(*replies, strict=True)
        sound = (
            not late
            and rounds.count(self.round.id) == len(replies)
            and all(self._wrong(size) is None for size in set(map(len, payloads)))
        )
        if (
            sound and len(fresh := set(clients)) == len(replies) and fresh.isdisjoint(self.clients)
        ):  # a million a second come through here
            fates = ["counted"] * len(replies)
        else:
            fates = []
            fresh = set()
            for reply in replies:
                fates.append("late" if late else self._fate(reply, fresh))
                if fates[-1] == "counted":
                    fresh.add(reply.client)
            clients = _kept(fates, clients)
            payloads = _kept(fates, payloads)
        payload = b"".join(payloads)
        messages = list(_parts(self.round.mechanism, payload))
        fair = self._fair(payloads, messages)
        if not fair.all():
            judged = iter(fair)
            fates = [
                "outside the alphabet" if fate == "counted" and not next(judged) else fate
                for fate in fates
            ]
            clients = [client for client, good in zip(clients, fair, strict=True) if good]
            payload = b"".join(
                payload for payload, good in zip(payloads, fair, strict=True) if good
            )
            messages = list(_parts(self.round.mechanism, payload))
        if clients:
            numbers = np.array(clients, np.uint64)
            self._append(numbers, payload)
            self._count(numbers, messages)
        if refused := Counter(fate for fate in fates if fate != "counted"):
            self.rejected += refused
            write_whole(self._rejected_path, json.dumps(self.rejected).encode())
        return fates

    def _fate(self, reply: Reply, fresh: set[int]) -> str:
        if reply.round != self.round.id:
            return "another round"
        if reply.client in self.clients or reply.client in fresh:
            return "again"
        return self._wrong(len(reply.payload)) or "counted"

    def _wrong(self, num_bytes: int) -> str | None:
        """Return what is wrong with an answer of so many bytes, if anything."""
        many, odd = divmod(num_bytes, self._size)
        wanted = self.round.records_per_client
        if odd or many < max(1, wanted):
            return "malformed"
        return "too many" if many > (wanted or self._most) else None

    @property
    def num_clients(self) -> int:
        """That were counted."""
        return len(self.clients)

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the estimated votes and their standard deviations, float64 `[s, |Y|]`."""
        mechanism = self.round.mechanism
        counts = np.asarray(
            mechanism.estimate(jax.random.key(0), self.totals, self.num_messages), np.float64
        )
        return counts, mechanism.stddev(counts, self.num_messages)

    def close(self) -> None:
        """Close the file, so that another collector may open the folder."""
        self._file.close()

    def _fair(self, payloads: Sequence[bytes], messages: Sequence[tuple[Any, int]]) -> np.ndarray:
        """Return which of the payloads are messages of the alphabet alone, bool; `messages` are
        they all.
        """
        valid = [np.asarray(_valid(self.round.mechanism, part))[:count] for part, count in messages]
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads)) // self._size
        return (
            np.logical_and.reduceat(np.concatenate(valid), np.cumsum(lengths) - lengths)
            if valid
            else np.zeros(0, bool)
        )

    def _count(self, clients: np.ndarray, messages: Iterable[tuple[Any, int]]) -> None:
        for part, count in messages:
            self.totals += np.asarray(
                _totals(self.round.mechanism, part, count)
            )  # int64, whatever JAX counts in
            self.num_messages += count
        self.clients.update(clients.tolist())

    def _append(self, clients: np.ndarray, payload: bytes) -> None:
        body = clients.astype("<u8").tobytes() + payload
        head = np.array([len(clients), len(payload)], "<u8").tobytes()
        self._file.write(head + hashlib.sha256(head + body).digest() + body)
        self._file.flush()
        os.fsync(self._file.fileno())


@dataclass(frozen=True)
class Sum:
    """What secure aggregation has shown of a round with trust=central.

    Attributes:
      round: that is answered.
      totals: int64 `[s·|Y|]`, counts with the noise of all, its mean not taken off.
      num_clients: that are in the sum.
      rejected: how many refused.
    """

    round: Round
    totals: np.ndarray
    num_clients: int
    rejected: Counter[str]

    @property
    def num_messages(self) -> int:
        """One vector from each client."""
        return self.num_clients

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy votes and their standard deviations, float64 `[s, |Y|]`."""
        noise = self.round.shares
        counts = noise.without_mean(self.totals, self.num_clients)
        return counts, noise.stddev(counts, 0) * np.sqrt(self.num_clients / noise.shares)


def most_shift(mechanism: LocalRandomizer) -> float:
    """Return how far one message, of a liar too, may move the estimate of a cell: a support
    more, over p - q.
    """
    return 1 / mechanism.advantage  # type: ignore[attr-defined]


@jax.jit
def _valid(mechanism: LocalRandomizer, messages: Any) -> jax.Array:
    return jax.vmap(mechanism.valid)(messages)


@jax.jit
def _totals(mechanism: LocalRandomizer, messages: Any, count: int) -> jax.Array:
    """Aggregate the first `count` messages; all behind them are copies of the first."""
    first = jax.tree.map(lambda leaf: leaf[:1], messages)
    return mechanism.aggregate(messages) - (
        len(jax.tree.leaves(messages)[0]) - count
    ) * mechanism.aggregate(first)


def _parts(mechanism: LocalRandomizer, payload: bytes) -> Iterator[tuple[Any, int]]:
    """Yield messages and how many they are, filled up to a power of two with copies of the
    first, so that few sizes are compiled for.
    """
    size = wire.message_bytes(mechanism)
    for start in range(0, len(payload), size * MESSAGES_AT_ONCE):
        part = payload[start : start + size * MESSAGES_AT_ONCE]
        count = len(part) // size
        yield (
            wire.decode(mechanism, part + part[:size] * (2 ** (count - 1).bit_length() - count)),
            count,
        )


def _kept(fates: Sequence[str], values: Sequence[Any]) -> list[Any]:
    return [value for fate, value in zip(fates, values, strict=True) if fate == "counted"]


def _frame_bytes(num_clients: int, payload: int) -> int:
    return 16 + HASH_BYTES + 8 * num_clients + payload


def _frames(path: Path) -> Iterator[tuple[np.ndarray, bytes]]:
    """Yield the sound frames of a file."""
    with open(path, "rb") as file:
        while len(head := file.read(16)) == 16:
            num_clients, size = np.frombuffer(head, "<u8").tolist()
            if (
                num_clients == 0
                or file.tell() + HASH_BYTES + 8 * num_clients + size > os.path.getsize(path)
            ):
                return  # runs past the end, or zeros that a file system put there: cut short
            said = file.read(HASH_BYTES)
            body = file.read(8 * num_clients + size)
            if said != hashlib.sha256(head + body).digest():
                if file.read(1):  # a crash can only have hurt the last frame
                    raise ValueError(
                        f"A frame of {path} that is not the last does not hold what was written; "
                        "restore the file from a copy."
                    )
                return
            yield np.frombuffer(body, "<u8", num_clients), body[8 * num_clients :]

"""Server side of the answers: check them, write them to disk, and add them up.

A killed server continues from its folder.

One process holds the folder at a time: the file of the answers is locked until the collector is
closed. Two collectors that count from one file would count a client twice.

Once results are begun, no further answer counts: `Collector.seal` comes before the first of them.
The difference of two results would show the messages of the few clients between them.

Answers come in batches. Of each batch, the countable answers are appended to one file in one frame,
and are on disk before they count. So the server's totals are the content of its file, with each
client once. A frame that a crash cut short was not acknowledged. It is cut off, and the missing
clients are asked again and give the same answers. A rejection is reported with the client's number,
and counted by reason.

**Power of a dishonest client.** A message in the alphabet moves the estimate of a cell by
`most_shift` at most. No client sends more messages than the round allows. So f messages of
dishonest clients move the estimate by f times that, as f honest ones may. At a small epsilon that
is many votes, the price of strong noise. The transport decides who may send. Without keys, anybody
who reaches the server is a client, any number of times.
"""

import errno
import functools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rknn_jax._internal import compilation
from rknn_jax._internal.disk import free_bytes, is_full, lock, make_folder, read_json, write_whole
from rknn_jax.federation import answer_frames, wire
from rknn_jax.federation.round_validation import MOST_RECORDS
from rknn_jax.federation.rounds import Round
from rknn_jax.mechanisms.local import LocalRandomizer, PureProtocol

MESSAGES_AT_ONCE = 2**16
LEAST_AT_ONCE = 2**6
"""Most messages of a program, and of the smallest one; each has four times those of the last."""

ANSWERS = "answers.bin"
QUESTION = "question.bin"
REJECTED = "rejected.json"
PUBLISHED = "privacy.json"
SEALED = "sealed.json"
OWNER_ONLY = 0o600

LEAST_FREE = 2**26
"""Bytes of the disk that answers leave free, for the results of their round."""


class Reply(NamedTuple):
    """Answer of one client.

    Attributes:
      client: Number of the client, below 2^64: its node's number if the transport has checked its
        key, else its ticket. A dishonest client can make up a ticket.
      round: Id of the round that it answers.
      payload: Messages of the client.
    """

    client: int
    round: str
    payload: bytes


class Collector:
    """Answers of one round, in a folder.

    Attributes:
      round: Round that is answered.
      totals: int64 `[num_totals]`, as in `LocalRandomizer.aggregate`.
      num_messages: Number of counted messages.
      clients: Numbers of the counted clients.
      rejected: Number of answers that were not counted, by reason.
      cut: Bytes of an unfinished batch that were cut off when the folder was opened.
      full: File that had no room for the last batch, none of which counts; None if it had.
    """

    def __init__(self, folder: Path, round: Round, most_records: int = MOST_RECORDS) -> None:
        """Open the folder of a round, and count the answers in it.

        A new folder keeps the question; an old one must hold the same question.

        Args:
          folder: Folder of the round.
          round: Round that is answered.
          most_records: Most messages of one client. Defaults to `MOST_RECORDS`.

        Raises:
          ValueError: If the folder holds another round or a damaged file, or if another collector
            holds it.
        """
        self.round = round
        self._path = folder / ANSWERS
        self._folder = folder
        self._most = most_records
        self._size = wire.message_bytes(round.mechanism)
        self.totals = np.zeros(round.mechanism.num_totals, np.int64)
        self.num_messages = 0
        self.clients = set[int]()
        self.full: Path | None = None
        self._rejected_path = folder / REJECTED
        make_folder(folder)
        # One append-only file: whatever a crash leaves, all but its last frame is whole.
        self._file = open(self._path, "a+b", opener=for_owner)
        try:
            lock(
                self._file.fileno(),
                f"Expected a folder that no other server counts in, got {folder}; stop it, or "
                "name a new folder.",
            )
            self.rejected = self._rejected()
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
        """Keep the question, or check that it is the same, and count the file's answers."""
        if not (folder / QUESTION).exists():
            # The bytes themselves, since answers belong to this question and to no other.
            write_whole(folder / QUESTION, self.round.data)
        elif (folder / QUESTION).read_bytes() != self.round.data:
            raise ValueError(
                f"Expected the folder of this round, got another round in {folder}; name a new "
                "folder."
            )
        size = 0
        # After a crash the file is the truth: totals are counted again from it.
        for clients, payload in answer_frames.read(self._path):
            if len(payload) % self._size or len(self.clients.union(clients.tolist())) < len(
                self.clients
            ) + len(clients):
                raise ValueError(
                    f"Expected whole messages, of each client once, in {self._path}, got other "
                    "frames; restore the file from a copy."
                )
            self._count(clients, _parts(self.round.mechanism, payload))
            size += answer_frames.num_bytes(len(clients), len(payload))
        self.cut = os.path.getsize(self._path) - size
        # A batch that was cut was never told to count, so that its clients send it again.
        self._file.truncate(size)

    def receive(self, replies: Sequence[Reply], *, late: bool = False) -> list[str]:
        """Count a batch of answers, which is on disk when this returns.

        Args:
          replies: Answers in any order, from clients that may be broken or dishonest.
          late: Flag for answers after the end of the round. Defaults to False. All are late once
            the collector is sealed.

        Returns:
          The fate of each answer: `counted`, `busy` if the disk has no room for it, so that it may
        come again, or the reason for a rejection. The reasons are
        `late`, `another round`, `again`, `malformed`, `too many` and `outside the alphabet`. A
        second answer is `again`, whatever its content. A `malformed` answer has a length that no
        number of messages has. An answer without any counts if the round has roles.
        """
        if not replies:
            return []
        # Results were begun: an answer that came in later would be in one and not in the other.
        late = late or self.is_sealed
        clients: Sequence[int]
        payloads: Sequence[bytes]
        clients, rounds, payloads = zip(*replies, strict=True)
        sound = (
            not late
            and rounds.count(self.round.id) == len(replies)
            and all(self._wrong(size) is None for size in set(map(len, payloads)))
        )
        # A short path, because a million answers per second take it.
        if sound and len(fresh := set(clients)) == len(replies) and fresh.isdisjoint(self.clients):
            fates = ["counted"] * len(replies)
        else:
            fates = []
            fresh = set()
            for reply in replies:
                fates.append(self._fate(reply, fresh, late))
                if fates[-1] == "counted":
                    fresh.add(reply.client)
            clients = _kept(fates, clients)
            payloads = _kept(fates, payloads)
        payload = b"".join(payloads)
        messages = list(_parts(self.round.mechanism, payload))
        # A message outside the alphabet could move an estimate by more than one client may.
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
            try:
                # On disk before it counts, and before its clients hear so.
                self._append(numbers, payload)
            except OSError as error:
                if not is_full(error):
                    raise
                # Nothing of the batch was written. The clients come again when there is room.
                self.full = self._path
                fates = ["busy" if fate == "counted" else fate for fate in fates]
            else:
                self.full = None
                self._count(numbers, messages)
        if refused := Counter(fate for fate in fates if fate not in ("counted", "busy")):
            self._note_rejected(refused)
        return fates

    def reject(self, reason: str, count: int) -> None:
        """Count clients whose answers do not count, for a reason that the transport knows."""
        self._note_rejected(Counter({reason: count}))

    def _note_rejected(self, counts: Counter[str]) -> None:
        """Add up rejections. If the disk has no room, the numbers are written at the next one."""
        self.rejected += counts
        try:
            write_whole(self._rejected_path, json.dumps(self.rejected).encode())
        except OSError as error:
            if not is_full(error):
                raise

    def _fate(self, reply: Reply, fresh: set[int], late: bool) -> str:
        if reply.round != self.round.id:
            return "another round"
        # Before the payload is looked at: a second answer of a client never counts, whatever it
        # holds.
        if reply.client in self.clients or reply.client in fresh:
            return "again"
        if late:
            return "late"
        return self._wrong(len(reply.payload)) or "counted"

    def _wrong(self, num_bytes: int) -> str | None:
        """Return the fault of an answer of so many bytes, or None."""
        # Messages have one size, so that a length tells how many there are.
        many, odd = divmod(num_bytes, self._size)
        wanted = self.round.records_per_client
        if not num_bytes and self.round.has_roles:
            return None  # the other question is that client's
        if odd or many < max(1, wanted):
            return "malformed"
        return "too many" if many > (wanted or self._most) else None

    @property
    def num_clients(self) -> int:
        """Number of counted clients."""
        return len(self.clients)

    @property
    def is_sealed(self) -> bool:
        """True if results of these answers were begun, so that all further ones are late."""
        return is_sealed(self._folder)

    def seal(self) -> None:
        """Let no further answer count, in this process or a later one."""
        write_whole(self._folder / SEALED, b"{}")

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the estimated votes and their standard deviations, float64 `[s, |Y|]`."""
        mechanism = self.round.mechanism
        # A local estimate draws nothing, so that any key will do.
        counts = np.asarray(
            mechanism.estimate(jax.random.key(0), self.totals, self.num_messages), np.float64
        )
        return counts, mechanism.stddev(counts, self.num_messages)

    def close(self) -> None:
        """Close the file, so that another collector may open the folder."""
        self._file.close()

    def _fair(self, payloads: Sequence[bytes], messages: Sequence[tuple[Any, int]]) -> np.ndarray:
        """Return which payloads hold messages of the alphabet alone, bool.

        Args:
          payloads: Payloads to check.
          messages: Decoded messages of all payloads, in order.
        """
        valid = [np.asarray(_valid(self.round.mechanism, part))[:count] for part, count in messages]
        lengths = np.fromiter(map(len, payloads), np.int64, len(payloads)) // self._size
        fair = np.ones(len(payloads), bool)
        if valid:
            # Where the messages of each payload begin; `reduceat` takes no empty ones.
            starts = (np.cumsum(lengths) - lengths)[lengths > 0]
            fair[lengths > 0] = np.logical_and.reduceat(np.concatenate(valid), starts)
        return fair

    def _count(self, clients: np.ndarray, messages: Iterable[tuple[Any, int]]) -> None:
        for part, count in messages:
            # Add in int64, whatever type JAX counts in.
            self.totals += np.asarray(_totals(self.round.mechanism, part, count))
            self.num_messages += count
        self.clients.update(clients.tolist())

    def _append(self, clients: np.ndarray, payload: bytes) -> None:
        """Write a frame, if the disk has room. The file is as before if that fails."""
        frame = memoryview(answer_frames.packed(clients, payload))
        before = os.fstat(self._file.fileno()).st_size
        if free_bytes(self._folder) < len(frame) + LEAST_FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        try:
            while frame:
                frame = frame[os.write(self._file.fileno(), frame) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(before)
            error.filename = str(self._path)
            raise


@dataclass(frozen=True)
class Sum:
    """Result of secure aggregation in a round with trust=central.

    Attributes:
      round: Round that is answered.
      totals: int64 `[num_cells]`, the sum of the clients' vectors, which hold their noise.
      num_clients: Number of clients in the sum.
      rejected: Number of clients that refused, by reason.
    """

    round: Round
    totals: np.ndarray
    num_clients: int
    rejected: Counter[str]

    @property
    def num_messages(self) -> int:
        """Number of vectors, one from each client."""
        return self.num_clients

    def seal(self) -> None:
        """Do nothing: a sum is opened once."""

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy sum and its standard deviations, float64; see `ClientSum.estimate`."""
        return self.round.sum.estimate(self.totals, self.num_clients)


def is_sealed(folder: Path) -> bool:
    """Return True if results of the answers in a round's folder were begun."""
    # Earlier versions marked the end of the results alone.
    return (folder / SEALED).exists() or (folder / PUBLISHED).exists()


def for_owner(path: str, flags: int) -> int:
    """Open a file that nobody else on this machine may read: messages, each by its client."""
    return os.open(path, flags, OWNER_ONLY)


def most_shift(mechanism: PureProtocol) -> float:
    """Return the most votes by which one message may move the estimate of a cell.

    The bound, one support over p - q, also holds for dishonest clients.
    """
    return 1 / mechanism.advantage


@jax.jit
def _valid(mechanism: LocalRandomizer, messages: Any) -> jax.Array:
    return jax.vmap(mechanism.valid)(messages)


@functools.partial(jax.jit, compiler_options=compilation.wide_vectors())
def _totals(mechanism: LocalRandomizer, messages: Any, count: int) -> jax.Array:
    """Aggregate the first `count` messages; all later ones are copies of the first."""
    first = jax.tree.map(lambda leaf: leaf[:1], messages)
    return mechanism.aggregate(messages) - (
        len(jax.tree.leaves(messages)[0]) - count
    ) * mechanism.aggregate(first)


def _parts(mechanism: LocalRandomizer, payload: bytes) -> Iterator[tuple[Any, int]]:
    """Yield messages and their number.

    The messages are padded with copies of the first, because each size is compiled, and clients
    wait meanwhile.
    """
    size = wire.message_bytes(mechanism)
    for start in range(0, len(payload), size * MESSAGES_AT_ONCE):
        part = payload[start : start + size * MESSAGES_AT_ONCE]
        count = len(part) // size
        padded = LEAST_AT_ONCE
        while padded < count:
            padded *= 4
        yield wire.decode(mechanism, part + part[:size] * (padded - count)), count


def _kept(fates: Sequence[str], values: Sequence[Any]) -> list[Any]:
    return [value for fate, value in zip(fates, values, strict=True) if fate == "counted"]

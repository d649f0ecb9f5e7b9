"""Summaries in a ledger, so that reading it takes the time of its last hundreds of lines.

After every `EVERY` lines the ledger appends one more, which costs nothing:

    {"kind": "summary", "lines": n, "prefix": p, "state": {...}, ..., "hash": h}

The state is what the n lines before it add up to: the budget, what is spent, and the data that may
be charged. p is the SHA-256 of all bytes before it. A reader hashes these bytes, and reads the
lines after the last summary one by one. If the hash is another, a byte before the summary was
changed. Then nothing is taken from the summary, and the whole file is read, line by line.

A ledger without summaries, as earlier versions wrote it, is read whole until its next charge.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from fractions import Fraction
from io import BufferedReader, FileIO
from typing import Any, NamedTuple

from rknn_jax.privacy.filters import NOTHING, Amount, Cost, total

EVERY = 250
"""Lines between two summaries."""

BLOCK = 2**20
"""Bytes that are read at a time."""

_MARK = b'"kind":"summary"'  # inside of a text, its quotation marks would have backslashes

File = BufferedReader | FileIO


class DataSet(NamedTuple):
    """Data that may be charged to a ledger: private, because a guess of them can be confirmed.

    Attributes:
      fingerprint: Fingerprint of all records.
      rows: Number of records. Defaults to None, for unknown.
      shards: Fingerprints of some shards, in order. Defaults to none.
    """

    fingerprint: str
    rows: int | None = None
    shards: tuple[str, ...] = ()

    @property
    def prints(self) -> tuple[str, ...]:
        """Fingerprints of all records and of each shard; none without a record."""
        return () if self.rows == 0 else (self.fingerprint, *self.shards)

    def resembles(self, others: "tuple[DataSet, ...]") -> bool:
        """Return True if another data set has as many rows, or a shard in common."""
        mine = {self.fingerprint, *self.shards}
        counts = [other.rows for other in others if other.rows is not None]
        return self.rows in counts or any(
            not mine.isdisjoint((other.fingerprint, *other.shards)) for other in others
        )


class Past(NamedTuple):
    """Sum of the lines before a summary.

    Attributes:
      lines: Number of these lines. Defaults to 0, for a ledger that is read whole.
      spends: Number of spends among them.
      id: Hash of the first line.
      budget: Budget that is in force.
      cost: Sum of what they cost, or None if nothing was spent.
      datasets: Data that may be charged, oldest first.
      repaired: True if damage was closed, so that some bytes are no lines.
    """

    lines: int = 0
    spends: int = 0
    id: str = ""
    budget: Amount = NOTHING
    cost: Cost | None = None
    datasets: tuple[DataSet, ...] = ()
    repaired: bool = False

    def state(self) -> dict[str, Any]:
        """Return the fields as a summary has them."""
        cost = self.cost or Cost(NOTHING, Fraction())
        return {
            "spends": self.spends,
            "id": self.id,
            "budget": [str(one) for one in self.budget],
            "cost": None if self.cost is None else [str(one) for one in cost.amount],
            "divergence": None if cost.divergence is None else str(cost.divergence),
            "datasets": [[one.fingerprint, one.rows, list(one.shards)] for one in self.datasets],
            "repaired": self.repaired,
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Past":
        """Return the past that a summary tells.

        Raises:
          LookupError, TypeError, ValueError: If this library writes no such summary.
        """
        state = record["state"]
        cost = None
        if state["cost"] is not None:
            divergence = state["divergence"]
            cost = Cost(
                Amount(*map(Fraction, state["cost"])),
                None if divergence is None else Fraction(divergence),
            )
        datasets = tuple(
            DataSet(name, rows, tuple(shards)) for name, rows, shards in state["datasets"]
        )
        return cls(
            int(record["lines"]),
            int(state["spends"]),
            str(state["id"]),
            budget=Amount(*map(Fraction, state["budget"])),
            cost=cost,
            datasets=datasets,
            repaired=bool(state["repaired"]),
        )


NO_PAST = Past()
"""Past of a ledger that is read whole."""


def added_up(costs: tuple[Cost, ...]) -> Cost | None:
    """Return the sum of costs, or None if there are none.

    Its divergence is unknown if one of theirs is.
    """
    if not costs:
        return None
    divergences = [cost.divergence for cost in costs if cost.divergence is not None]
    known = len(divergences) == len(costs)
    return Cost(total(costs), sum(divergences, Fraction()) if known else None)


def find(file: File) -> tuple[int, str] | None:
    """Return where the last summary of a file begins, and the hash of the line before it.

    Nothing is verified. None if there is no summary, or it does not follow a line.
    """
    end = file.seek(0, os.SEEK_END)
    after = b""  # beginning of the block after, as a mark may lie on the border
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        block = file.read(end - start) + after
        at = block.rfind(_MARK)
        if at >= 0:
            return _line_around(file, start + at)
        after = block[: len(_MARK) - 1]
        end = start
    return None


def _line_around(file: File, at: int) -> tuple[int, str] | None:
    """Return where the line around a byte begins, and the hash at the end of the line before it."""
    start = max(0, at - BLOCK)
    file.seek(start)
    before = file.read(at - start)
    begin = before.rfind(b"\n") + 1
    previous = before[: max(begin - 1, 0)][-66:]
    if begin == 0 or not previous.endswith(b'"}'):
        return None
    return start + begin, previous[:64].decode("latin-1")


def prefix(file: File, size: int) -> str:
    """Return the SHA-256 of the first bytes of a file, a block at a time."""
    digest = hashlib.sha256()
    for block in _blocks(file, size):
        digest.update(block)
    return digest.hexdigest()


def lines_with(file: File, begins: str, size: int) -> Iterator[bytes]:
    """Yield those of a file's first lines, of `size` bytes, whose purpose begins so."""
    mark = b'"purpose":' + json.dumps(begins).encode()[:-1]
    rest = b""
    for block in _blocks(file, size):
        whole, _, rest = (rest + block).rpartition(b"\n")
        if mark in whole:
            yield from (line for line in whole.split(b"\n") if mark in line)


def _blocks(file: File, size: int) -> Iterator[bytes]:
    """Yield the first bytes of a file, a block at a time."""
    file.seek(0)
    while size > 0 and (block := file.read(min(BLOCK, size))):
        yield block
        size -= len(block)

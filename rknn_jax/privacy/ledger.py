"""A privacy budget on disk, one append-only file per private data set: what was spent is never forgotten and never refunded.

Every private release charges the ledger before it draws any noise. If the process dies in between, the budget is burnt and nothing is
released; the other order could release without a record. The file holds one JSON object a line:

    {"kind": "create", ..., "hash": h0}     data set, relation, unit, budget and a random salt
    {"kind": "spend",  ..., "hash": h1}     h1 = SHA-256(h0 and the line without its hash), and so on

- **Never overspent.** A charge reads, decides and appends under an exclusive lock, in exact fractions: ten times 0.1 is 1.
- **Never forgotten.** A charge returns once its line has reached the disk (fsync). A last line cut short by a crash was never
  acknowledged, so it is dropped; anything else that does not fit the chain refuses all spending.
- **Not tamper-proof.** Who can write the file can also replace it. A rollback shows only against a `head` that was published: print it
  with every release.

Epsilons and deltas add up here (basic composition). That holds for releases that are chosen in view of earlier results, which is how
people work; `rknn_jax.privacy.accounting.compose` over the entries' guarantees tells what they cost more tightly, but buys nothing back.
"""

import fcntl
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from io import FileIO
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rknn_jax.privacy.guarantee import RELATIONS, UNITS, Guarantee, Relation, Unit

FORMAT = "rknn-jax privacy ledger 1"
BLOCK = 2**20  # array elements hashed at once
_CORRUPT = "it is no ledger, or something else has changed it. Nothing can be spent until the last good copy is back."
_SUFFIX = len(',"hash":""}') + 64  # what closes every line
_CANONICAL = {"f": "<f8", "i": "<i8", "u": "<i8", "b": "<i8"}  # by NumPy's kind of dtype

Number = int | float | str | Decimal | Fraction


class LedgerError(ValueError):
    """The ledger cannot be used; nothing was charged, so nothing may be released."""


class BudgetExceededError(LedgerError):
    """The budget does not allow the charge."""


class LedgerMismatchError(LedgerError):
    """The ledger is of another data set, relation or unit."""


class LedgerCorruptError(LedgerError):
    """The file is no ledger, or was changed by something else than this library."""


class Amount(NamedTuple):
    """Exact epsilon and delta."""

    epsilon: Fraction
    delta: Fraction

    def __str__(self) -> str:
        return f"epsilon={float(self.epsilon)}, delta={float(self.delta)}"


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Attributes:
      kind: `spend`, or `create` and `budget`, which set the budget.
      time: UTC, ISO 8601.
      amount: spent, or the whole budget from here on.
      purpose: why.
      guarantee: what was spent on; None for a budget.
      hash: of this line and all before it.
    """

    kind: Literal["create", "spend", "budget"]
    time: str
    amount: Amount
    purpose: str
    guarantee: Guarantee | None
    hash: str


@dataclass(frozen=True)
class _Chain:
    """The verified content of a ledger file, of which the first `size` bytes are sound."""

    dataset: str
    relation: Relation
    unit: Unit
    entries: tuple[Entry, ...]
    size: int

    @property
    def head(self) -> str:
        return self.entries[-1].hash

    @property
    def budget(self) -> Amount:
        return next(entry.amount for entry in reversed(self.entries) if entry.kind != "spend")

    @property
    def spent(self) -> Amount:
        amounts = [entry.amount for entry in self.entries if entry.kind == "spend"]
        return Amount(sum((a.epsilon for a in amounts), Fraction()), sum((a.delta for a in amounts), Fraction()))

    @property
    def remaining(self) -> Amount:
        return Amount(self.budget.epsilon - self.spent.epsilon, self.budget.delta - self.spent.delta)


@dataclass(frozen=True)
class Ledger:
    """The budget of one private data set. Reading never changes the file, and every property reads it anew.

    Attributes:
      path: of the file.
      dataset: `fingerprint` of the private data set; None where the ledger was opened to look at, which cannot be charged.
    """

    path: Path
    dataset: str | None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        dataset: str,
        budget_epsilon: Number,
        budget_delta: Number = 0,
        *,
        relation: Relation = "replace-one",
        unit: Unit = "record",
    ) -> "Ledger":
        """Make a new ledger file, all or nothing.

        Args:
          path: of a file that does not exist yet, in a folder that does.
          dataset: `fingerprint` of the private data set.
          budget_epsilon: what may be spent in all; positive. A float counts as its shortest decimal: 0.1 is 1/10.
          budget_delta: likewise, in [0, 1); 0 allows pure releases only.
          relation: of every guarantee that may be charged.
          unit: likewise.

        Raises:
          LedgerError: where there is a file already, the folder cannot be written, or an amount is out of range.
        """
        if relation not in RELATIONS or unit not in UNITS:
            raise LedgerError(f"Expected relation in {RELATIONS} and unit in {UNITS}, got relation={relation!r}, unit={unit!r}.")
        if not dataset:
            raise LedgerError("Expected the fingerprint of a data set, got an empty dataset; use fingerprint(embeddings, labels).")
        header = {"format": FORMAT, "dataset": dataset, "relation": relation, "unit": unit, "salt": secrets.token_hex(16)}
        line = _sealed(header | _body("create", _amount(budget_epsilon, budget_delta), "the first budget"), "")
        _write_new(Path(path), line)
        return cls.open(path, dataset)

    @classmethod
    def open(cls, path: str | os.PathLike[str], dataset: str | None = None) -> "Ledger":
        """Open a ledger and check its whole chain.

        Args:
          path: of the file.
          dataset: `fingerprint` of the private data set that is about to be used; None only to look at the ledger or to raise its budget.

        Raises:
          LedgerMismatchError: where the ledger is of another data set.
          LedgerCorruptError: where the file is no ledger or its chain is broken.
          LedgerError: where it cannot be read.
        """
        ledger = cls(Path(path), dataset)
        ledger._check_dataset(ledger._chain())
        return ledger

    @property
    def budget(self) -> Amount:
        """What may be spent in all."""
        return self._chain().budget

    @property
    def spent(self) -> Amount:
        """The exact sum of all charges."""
        return self._chain().spent

    @property
    def remaining(self) -> Amount:
        """Budget less spent."""
        return self._chain().remaining

    @property
    def head(self) -> str:
        """Hash of the last line, which commits to all of them. The salt keeps it from confirming a guess of the data."""
        return self._chain().head

    def entries(self) -> tuple[Entry, ...]:
        """Return all lines, oldest first."""
        return self._chain().entries

    def charge(self, guarantee: Guarantee, purpose: str) -> Entry:
        """Spend what a release is about to cost. Draw no noise before this returns, and never run one charge's release twice.

        Args:
          guarantee: of a release (`sampler="release"`), with a finite, positive epsilon that does not depend on private data.
          purpose: a few words for whoever reads the ledger later.

        Returns:
          The entry, which is on disk.

        Raises:
          BudgetExceededError: where less than that is left.
          LedgerMismatchError: where relation, unit or data set are not the ledger's.
          LedgerError: where the guarantee cannot be charged or the file cannot be written.
        """
        amount = _chargeable(guarantee)

        def body(chain: _Chain) -> dict[str, Any]:
            if self.dataset is None:
                raise LedgerMismatchError(f"{self.path} was opened without a data set, to look at; open it with the data's fingerprint.")
            for name in ("relation", "unit"):
                mine, theirs = getattr(chain, name), getattr(guarantee, name)
                if mine != theirs:
                    raise LedgerMismatchError(f"{self.path} keeps {name}={mine!r}, got {name}={theirs!r}; use one {name} throughout.")
            if amount.epsilon > chain.remaining.epsilon or amount.delta > chain.remaining.delta:
                raise BudgetExceededError(
                    f"This release costs {amount}, and {self.path} has {chain.remaining} left of {chain.budget}; ask for less, or raise "
                    "the budget, which the ledger records."
                )
            return _body("spend", amount, purpose) | {"guarantee": asdict(guarantee)}

        return self._append(body)

    def raise_budget(self, epsilon: Number, delta: Number, reason: str) -> Entry:
        """Set the whole budget anew, on the record. It can be lowered too, down to what was spent.

        Args:
          epsilon: of the new budget in all, not of what is added.
          delta: likewise.
          reason: why more privacy may be spent on these people's data than was promised at first.

        Raises:
          LedgerError: where the reason is empty or the budget would be below what was spent.
        """
        amount = _amount(epsilon, delta)
        if not reason.strip():
            raise LedgerError("Expected a reason for the new budget, got an empty one; say who decided it and why.")

        def body(chain: _Chain) -> dict[str, Any]:
            if amount.epsilon < chain.spent.epsilon or amount.delta < chain.spent.delta:
                raise LedgerError(f"Expected a budget of at least the {chain.spent} that {self.path} has spent, got {amount}.")
            return _body("budget", amount, reason)

        return self._append(body)

    def _chain(self) -> _Chain:
        with _clear_errors(self.path, "read"), open(self.path, "rb") as file:
            return _parsed(file.read(), self.path)

    def _append(self, body: Callable[[_Chain], dict[str, Any]]) -> Entry:
        """Append what `body` makes of the chain, or nothing if it raises. The lock goes with the file handle, also on `kill -9`."""
        with _clear_errors(self.path, "written"), FileIO(self.path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            data = file.read()
            chain = _parsed(data, self.path)
            self._check_dataset(chain)
            line = _sealed(body(chain), chain.head)
            _append_line(file, data[: chain.size], line)
            return _entry(json.loads(line))

    def _check_dataset(self, chain: _Chain) -> None:
        if self.dataset not in (None, chain.dataset):
            raise LedgerMismatchError(
                f"{self.path} is the ledger of {chain.dataset}, and this data set is {self.dataset}; name its own ledger, or create one."
            )


def fingerprint(*arrays: ArrayLike) -> str:
    """Return SHA-256 over shapes and values of the arrays that make up a private data set, such as embeddings and labels.

    Floats are read as float64 and integers as int64, so the same records in float32 and float64, or int32 and int64, are the same data set.

    **What it protects.** It keeps one budget per data set against mistakes: the wrong file, the wrong ledger, another split.
    **What it does not.** One more record, another order or another encoder makes a new fingerprint, though the people are the same. Charge
    all of them to one ledger, kept under the fingerprint of the records as they were collected. And it depends on the private data without
    noise: who guesses all the records can confirm the guess, so it stays with the ledger and is not published.

    Raises:
      ValueError: where there is no array, or one holds neither numbers nor booleans.
    """
    if not arrays:
        raise ValueError("Expected the arrays of a data set, got none; pass the private embeddings and labels.")
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        if array.dtype.kind not in _CANONICAL:
            raise ValueError(f"Expected arrays of numbers or booleans, got dtype {array.dtype}; encode the records first.")
        canonical = _CANONICAL[array.dtype.kind]
        digest.update(f"{canonical}{array.shape}".encode())
        flat = array.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            digest.update((flat[start : start + BLOCK].astype(canonical) + 0).tobytes())  # + 0: minus zero is zero
    return f"sha256:{digest.hexdigest()}"


def _chargeable(guarantee: Guarantee) -> Amount:
    if guarantee.sampler != "release":
        raise LedgerError(f"Expected a guarantee with sampler='release', got {guarantee.sampler!r}; simulated noise is not charged.")
    if guarantee.data_dependent:
        raise LedgerError("Expected an epsilon that does not depend on private data; charge the bound that holds for all data.")
    return _amount(guarantee.epsilon, guarantee.delta)


def _amount(epsilon: Number, delta: Number) -> Amount:
    amount = Amount(_exact(epsilon, "epsilon"), _exact(delta, "delta"))
    if amount.epsilon <= 0 or not 0 <= amount.delta < 1:
        raise LedgerError(f"Expected epsilon > 0 and 0 <= delta < 1, got epsilon={epsilon}, delta={delta}.")
    return amount


def _exact(value: Number, name: str) -> Fraction:
    try:
        return Fraction(str(value))  # a float by its shortest decimal
    except (ValueError, ZeroDivisionError) as error:
        raise LedgerError(f"Expected a finite number or fraction as {name}, got {name}={value}; no budget covers it.") from error


def _body(kind: str, amount: Amount, purpose: str) -> dict[str, Any]:
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return {"kind": kind, "time": time, "epsilon": str(amount.epsilon), "delta": str(amount.delta), "purpose": purpose}


def _sealed(record: dict[str, Any], previous: str) -> bytes:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False, default=methodcaller("item"))
    return _seal(text.encode(), previous)


def _seal(body: bytes, previous: str) -> bytes:
    """Close a JSON object with the hash of its bytes and of the line before it."""
    return body[:-1] + f',"hash":"{hashlib.sha256(previous.encode() + body).hexdigest()}"}}'.encode()


def _parsed(data: bytes, path: Path) -> _Chain:
    *lines, tail = data.split(b"\n")
    torn = _is_torn(tail)
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines if torn else [*lines, tail], 1):
        if line != _seal(line[:-_SUFFIX] + b"}", records[-1]["hash"] if records else ""):
            raise LedgerCorruptError(f"Line {number} of {path} does not follow from those before it: {_CORRUPT}")
        records.append(json.loads(line))
    header = records[0] if records else {}
    if header.get("format") != FORMAT:
        raise LedgerCorruptError(f"{path} does not begin as a {FORMAT!r} does: {_CORRUPT}")
    size = len(data) - (len(tail) if torn else 0)
    return _Chain(header["dataset"], header["relation"], header["unit"], tuple(map(_entry, records)), size)


def _is_torn(tail: bytes) -> bool:
    """Whether what follows the last newline is nothing, or a line that a crash cut short and nobody was told of.

    A whole object lost its newline, not its place in the chain; with anything behind it, the newline itself was changed.
    """
    try:
        json.JSONDecoder().raw_decode(tail.decode("latin-1"))
    except ValueError:
        return True
    return False


def _entry(record: dict[str, Any]) -> Entry:
    amount = Amount(Fraction(record["epsilon"]), Fraction(record["delta"]))
    told = record.get("guarantee")
    return Entry(record["kind"], record["time"], amount, record["purpose"], Guarantee.of(told) if told else None, record["hash"])


def _append_line(file: FileIO, sound: bytes, line: bytes) -> None:
    """Write the line behind the sound bytes and wait for the disk; leave the sound bytes alone if that fails."""
    line = (b"" if sound.endswith(b"\n") else b"\n") + line + b"\n"
    try:
        file.truncate(len(sound))
        file.seek(len(sound))
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(len(sound))
        raise


def _write_new(path: Path, line: bytes) -> None:
    """Make a file that holds the line, or none: it gets its name, which must be free, once it is whole."""
    with _clear_errors(path, "created"):
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _clear_errors(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise LedgerError(f"{path} exists already and was left as it is; open it with Ledger.open, or name another file.") from error
    except FileNotFoundError as error:
        raise LedgerError(f"{path} could not be {what}: no such file or folder; make the folder, or Ledger.create the file.") from error
    except OSError as error:
        raise LedgerError(
            f"{path} could not be {what} ({error.strerror}), so nothing was charged and nothing may be released; name a ledger file in a "
            "folder that can be written."
        ) from error

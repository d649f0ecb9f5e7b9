"""Privacy budget on disk: one append-only file for the people of a private data set.

Spending is never forgotten and never refunded. Every private release charges the ledger before it
draws any noise. If the process dies in between, the budget is spent and nothing is released. The
reverse order could release without a record. The file holds one JSON object a line:

    {"kind": "create", ..., "hash": h0}   data set, relation, unit and budget
    {"kind": "spend",  ..., "hash": h1}   h1 = SHA-256(h0 and the line without its hash)
    {"kind": "drawn",  ..., "hash": h2}   the noise of that spend exists; never draw it again
    {"kind": "adopt",  ..., "hash": h3}   other data of the same people share the budget
    {"kind": "summary",...,  "hash": h4}  all lines before, added up; see `ledger_summary`

Every line has a random salt, so that no published hash confirms a guess of the data.

A budget belongs to people, while a fingerprint belongs to the bits of their data. Data that were
embedded anew, or have records added or removed, are adopted before they are charged. An adoption
costs nothing and cannot be undone.

- **Never overspent.** A charge reads, decides and appends under an exclusive lock, in exact
  fractions: ten times 0.1 is 1.
- **Never forgotten.** A charge returns once its line has reached the disk (fsync), and the first
  one also once the file's name has. What the ledger
  cannot read counts as spent. Delta and epsilon come first in a line, so a last line that was cut
  short usually still shows them, and they count. If they cannot be read, all that remained counts
  as spent. Any other line that does not fit the chain blocks all spending, from the next time that
  the ledger is opened if a summary stands between. `Ledger.repair`
  counts such damage as spent and logs it. Nothing is ever removed from the file.
- **Not tamper-proof.** Anyone who can write the file can also replace it. A rollback is detectable
  only against a published `head`, so print the head with every release.

Epsilons and deltas add up (basic composition), or Rényi divergences do (`accounting="renyi"`).
Then many small releases cost less than their sum. Both remain valid if releases are chosen after
seeing earlier results (`filters`). `rknn_jax.privacy.accounting.compose` gives a tighter total of
the entries' guarantees, but returns no budget.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from rknn_jax._internal import disk
from rknn_jax._internal.option_names import option
from rknn_jax.privacy import ledger_summary
from rknn_jax.privacy.charges import (
    Number,
    chargeable_amount,
    decimal_above,
    exact_amount,
    exact_fraction,
    new_rule,
    release_cost,
    release_costs,
)
from rknn_jax.privacy.filters import NOTHING, Accounting, Amount, Cost, Renyi
from rknn_jax.privacy.guarantee import RELATIONS, UNITS, Guarantee, Relation, Unit
from rknn_jax.privacy.ledger_file import append, clear_errors, locked, write_new
from rknn_jax.privacy.ledger_lines import (
    MOST_SHARDS,
    BudgetExceededError,
    Chain,
    Entry,
    LedgerCorruptError,
    LedgerError,
    LedgerMismatchError,
    adopted,
    body_of,
    entry_of,
    parse,
    repaired,
    rule_fields,
    sealed,
    sound_part,
    summarized,
)
from rknn_jax.privacy.ledger_summary import DataSet

__all__ = [
    "PATIENCE",
    "Amount",
    "BudgetExceededError",
    "DataSet",
    "Entry",
    "Ledger",
    "LedgerCorruptError",
    "LedgerError",
    "LedgerMismatchError",
    "charges_here",
]

PATIENCE = 60.0  # seconds to wait for another process that holds the ledger

UNCHARGED = "nothing was charged"
UNREAD = "nothing can be charged"
"""Words for a charge that did not happen, and for a ledger that cannot be read."""

_CHARGED: ContextVar[list[Path]] = ContextVar("charged")


@contextmanager
def charges_here() -> Iterator[list[Path]]:
    """Yield the ledgers that the code inside has charged, or could not write a charge to.

    Charges of other threads and processes are not among them.
    """
    here: list[Path] = []
    token = _CHARGED.set(here)
    try:
        yield here
    finally:
        _CHARGED.reset(token)
        _CHARGED.get([]).extend(here)  # of the code around


@dataclass(frozen=True)
class Ledger:
    """Privacy budget of the people of a private data set.

    Reading never changes the file, and every property reads it anew, from its last summary on. The
    bytes before a summary are hashed once by each object.

    Attributes:
      path: Path of the ledger file.
      dataset: `fingerprint` of the private data set; None if the ledger was opened for reading
        only, without charges.
      patience: Seconds to wait for another process that holds the ledger. Defaults to 60.
      person: Name of the persons whom the caller protects, such as the column that tells whose a
        record is. Defaults to "", for persons without a name. Guarantees of another unit have none.
    """

    path: Path
    dataset: str | None
    patience: float = PATIENCE
    person: str = ""
    _verified: set[tuple[int, str]] = field(
        default_factory=set, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not self.patience >= 0:
            raise LedgerError(
                f"Expected patience >= 0, got patience={self.patience}; give seconds, such as 60."
            )

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
        name: str | None = None,
        rows: int | None = None,
        shards: Sequence[str] = (),
        accounting: Accounting = "sum",
        person: str = "",
    ) -> "Ledger":
        """Make a new ledger file, all or nothing.

        The index of the user's ledgers is not asked: `rknn label`, the estimator and a session do.

        Args:
          path: Path of a file that does not exist yet, in a folder that does.
          dataset: `fingerprint` of the private data set.
          budget_epsilon: Total epsilon that may be spent, positive. A float counts as its shortest
            decimal: 0.1 is 1/10.
          budget_delta: Total delta that may be spent, in [0, 1). 0 allows pure releases only.
            Defaults to 0.
          relation: Relation of every guarantee that may be charged. Defaults to `replace-one`.
          unit: Privacy unit of every guarantee that may be charged. Defaults to `record`.
          name: Name of the ledger, which it keeps if the file is renamed. Defaults to that of the
            file, without its suffixes.
          rows: Number of private records. Defaults to None, for unknown.
          shards: Fingerprints of the shards, of which the first `MOST_SHARDS` in order are kept.
            Defaults to none.
          accounting: `sum` adds epsilons up. `renyi` adds Rényi divergences up, so that many small
            releases cost less; the budget needs a delta, which pays for no single release. The
            choice is final. Defaults to `sum`.
          person: Name of the column that tells whose a record is. The ledger pays for no other
            persons. Defaults to "", for records, and for persons without a name.

        Raises:
          LedgerError: If the file exists already, the folder cannot be written, or an amount is out
            of range.
        """
        if relation not in RELATIONS or unit not in UNITS:
            raise LedgerError(
                f"Expected relation in {RELATIONS} and unit in {UNITS}, got "
                f"relation={relation!r}, unit={unit!r}."
            )
        if not dataset:
            raise LedgerError(
                "Expected the fingerprint of a data set, got an empty dataset; use "
                "fingerprint(embeddings, labels)."
            )
        budget = exact_amount(budget_epsilon, budget_delta)
        # The rule is in the first line, which all later hashes commit to: it cannot change.
        header = rule_fields(new_rule(accounting, budget)) | {
            "name": _stem(Path(path)) if name is None else name,
            "dataset": dataset,
            "rows": rows,
            "shards": sorted(shards)[:MOST_SHARDS],
            "relation": relation,
            "unit": unit,
        }
        if person:
            header["person"] = person
        line = sealed(
            header | body_of("create", budget, "the first budget"),
            "",
        )
        write_new(Path(path), line, UNCHARGED)
        return cls.open(path, dataset, person=person)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        dataset: str | None = None,
        patience: float = PATIENCE,
        person: str = "",
    ) -> "Ledger":
        """Open a ledger and check its whole chain.

        Args:
          path: Path of the ledger file.
          dataset: `fingerprint` of the private data set to be used. Defaults to None, which allows
            only to read the ledger or raise its budget.
          patience: Seconds that a charge waits for another process that holds the ledger. Defaults
            to 60.
          person: Name of the persons whom the caller protects. A ledger of persons is charged under
            the name that it was made with, and can be read under any. Defaults to "", no name.

        Raises:
          LedgerMismatchError: If the ledger belongs to another data set.
          LedgerCorruptError: If the file is no ledger or its chain is broken.
          LedgerError: If the file cannot be read.
        """
        ledger = cls(Path(path), dataset, patience, person)
        # The whole chain is checked here, so that a damaged ledger is known before anything is
        # counted.
        ledger._check_dataset(ledger._chain())
        return ledger

    @property
    def name(self) -> str:
        """Name of the ledger, or of its file if the ledger was made without a name."""
        return self._chain().name or _stem(self.path)

    @property
    def id(self) -> str:
        """Public id: 16 digits of the hash of the first line, whose salt hides its content."""
        return self.head_of_first_line[:16]

    @property
    def head_of_first_line(self) -> str:
        """Hash of the first line, which no other ledger has."""
        return self._chain().id

    @property
    def num_lines(self) -> int:
        """Number of lines that are sound."""
        return self._chain().num_lines

    @property
    def num_spends(self) -> int:
        """Number of charges."""
        return self._chain().num_spends

    @property
    def datasets(self) -> tuple[DataSet, ...]:
        """Data sets that may be charged, oldest first."""
        return self._chain().datasets

    @property
    def budget(self) -> Amount:
        """Total amount that may be spent."""
        return self._chain().budget

    @property
    def relation(self) -> Relation:
        """Relation of every guarantee that may be charged."""
        found: Relation = self._chain().relation
        return found

    @property
    def unit(self) -> Unit:
        """Privacy unit of every guarantee that may be charged."""
        found: Unit = self._chain().unit
        return found

    @property
    def accounting(self) -> Accounting:
        """Rule of the ledger: `sum` or `renyi`."""
        return "renyi" if isinstance(self._chain().rule, Renyi) else "sum"

    @property
    def spent(self) -> Amount:
        """Amount of the budget that is used up, damage included: the exact sum of all charges.

        If Rényi divergences add up, it is the budget less what remains.
        """
        return self._chain().spent

    @property
    def is_overspent(self) -> bool:
        """True if all charges, damage included, are more than the budget, as a repair may say."""
        return self._chain().is_overspent

    @property
    def unread(self) -> Amount:
        """Part of `spent` that a damaged last line counts as; zero if the ledger is sound."""
        return self._chain().unread

    @property
    def remaining(self) -> Amount:
        """Amount that one more release may cost: budget less the amount spent.

        If Rényi divergences add up, a release whose noise is known may cost more: see `affords`.
        """
        return self._chain().remaining

    @property
    def head(self) -> str:
        """Hash of the last line, which commits to all lines.

        The line's salt keeps the hash from confirming a guess of the data.
        """
        return self._chain().head

    def entries(self) -> tuple[Entry, ...]:
        """Return all lines, oldest first. This reads the whole file, line by line."""
        with self._opened() as file:
            return parse(file.read(), self.path).entries

    def entries_of(self, begins: str) -> tuple[Entry, ...]:
        """Return the lines whose purpose begins so, oldest first."""
        with self._opened() as file:
            return self._entries_of(file, self._read(file), begins)

    def check_person(self, name: str | None) -> None:
        """Refuse other persons than those of the ledger. Nothing is charged.

        Epsilon for each visit is more for a patient with many visits, and does not add up with that
        of patients. Persons without a name may be any, so they share no ledger with named ones.

        Args:
          name: Name of the column that tells whose a record is; "" for persons without a name, or
            None if no person is protected.

        Raises:
          LedgerMismatchError: If the ledger was made for another column.
        """
        chain = self._chain()
        if name is not None and chain.unit == "person":
            _check_person(chain, name, self.path)

    def affords(self, *guarantees: Guarantee, within: Amount | None = None, since: int = 0) -> bool:
        """Return True if releases would fit the budget together. Nothing is charged.

        Args:
          guarantees: Guarantee of each release, which may be that of a simulation.
          within: Amount that the releases and all charges since then may cost. Defaults to the
            budget.
          since: Number of the first line that counts. Defaults to 0, the first of all.

        Raises:
          LedgerMismatchError: If relation or unit differ from the ledger's.
          LedgerError: If the guarantee cannot be charged.
        """
        chain = self._chain(since)
        for guarantee in guarantees:
            _check_kind(chain, guarantee, self.path)
        # The same filter that a charge asks, and the same costs: whether releases fit must not
        # differ between the two, or the second of them would be refused once the first is paid for.
        costs = (*chain.costs_since(since), *release_costs(chain.rule, guarantees))
        return chain.rule.fits(within or chain.budget, costs)

    def advice(self, *guarantees: Guarantee) -> str:
        """Return what can be done if releases do not fit the budget.

        Args:
          guarantees: As for `affords`.
        """
        chain = self._chain()
        return _advice(self.path, chain, *release_costs(chain.rule, guarantees))

    def left(self, *, within: Amount, since: int) -> Amount:
        """Return what is left of an amount after all charges since a line.

        Args:
          within: Amount that all of them may cost.
          since: Number of the first line that counts.
        """
        chain = self._chain(since)
        return chain.rule.left(within, chain.costs_since(since))

    def charge(self, guarantee: Guarantee, purpose: str, *, once: str = "") -> Entry:
        """Spend the cost of a release that is about to happen.

        Draw no noise before this returns, and never run one charge's release twice.

        Args:
          guarantee: Guarantee of a release (`sampler="release"`), with a finite, positive epsilon
            that does not depend on private data.
          purpose: A few words for later readers of the ledger.
          once: Beginning of the purpose that no other charge may have, for what happens once though
            several processes ask. Defaults to no such beginning.

        Returns:
          The entry, which is on disk.

        Raises:
          BudgetExceededError: If less than the cost remains.
          LedgerMismatchError: If relation, unit or data set differ from the ledger's.
          LedgerError: If the guarantee cannot be charged, if it was charged once before, or if the
            file cannot be written.
        """
        # A simulation, an epsilon that looked at the data, or none at all is refused here.
        amount = chargeable_amount(guarantee)

        # Runs under the file's lock, on the chain as it is then: two processes cannot both see room
        # for the last release.
        def body(chain: Chain, file: FileIO) -> dict[str, Any]:
            if self.dataset is None:
                raise LedgerMismatchError(
                    f"{self.path} was opened without a data set, to look at; open it with the "
                    "data's fingerprint."
                )
            before = self._entries_of(file, chain, once) if once else ()
            if any(entry.kind == "spend" for entry in before):
                raise LedgerError(
                    f"Expected the first charge on {once!r} in {self.path}, got another process's "
                    "before it; let that one go on."
                )
            _check_kind(chain, guarantee, self.path)
            if chain.unit == "person":
                _check_person(chain, self.person, self.path)
            cost = release_cost(chain.rule, guarantee, amount)
            # A filter, asked before the release: a refusal costs nothing and reveals public numbers
            # alone.
            if not chain.rule.fits(chain.budget, (*chain.costs, cost)):
                raise BudgetExceededError(
                    f"This release costs {amount}, and {self.path} has {chain.remaining} left of "
                    f"{chain.budget}; {_advice(self.path, chain, cost)}"
                )
            _CHARGED.get([]).append(self.path)
            told = {} if cost.divergence is None else {"renyi": str(cost.divergence)}
            return body_of("spend", amount, purpose) | told | {"guarantee": guarantee.full_dict()}

        return self._append(body, UNCHARGED)

    def raise_budget(self, epsilon: Number, delta: Number | None, reason: str) -> Entry:
        """Set the whole budget anew, and log the reason.

        The budget can also be lowered, down to the amount spent.

        Args:
          epsilon: Total epsilon of the new budget, not the increase.
          delta: Total delta of the new budget, not the increase. If None, it stays as it is.
          reason: Reason why more privacy may be spent on these people's data than was first
            promised.

        Raises:
          LedgerError: If the reason is empty or the budget would be below the amount spent.
        """
        if not reason.strip():
            raise LedgerError(
                "Expected a reason for the new budget, got an empty one; say who decided it and "
                "why."
            )

        def body(chain: Chain, _: FileIO) -> dict[str, Any]:
            # The delta that stays is the one under the lock: another process may have changed it.
            amount = exact_amount(epsilon, chain.budget.delta if delta is None else delta)
            if not chain.rule.fits(amount, chain.costs):
                none = NOTHING
                if isinstance(chain.rule, Renyi):  # whose epsilon goes with a delta
                    none = NOTHING._replace(delta=amount.delta or chain.budget.delta)
                least = f"of at least {chain.rule.enough(none, chain.costs)}"
                if isinstance(chain.rule, Renyi) and not none.delta:
                    least = "with a delta"
                raise LedgerError(
                    f"Expected a budget {least}, which all that {self.path} has spent fits into, "
                    f"got {amount}."
                )
            return body_of("budget", amount, reason)

        return self._append(body, "the budget is as it was")

    def adopt(self, data: DataSet, reason: str, *, unrelated: bool = False) -> Entry:
        """Let other data of the same people be charged to this budget, and log it.

        Such data are another embedding, or the records after some were added or removed. Data that
        the ledger has already are not recorded twice. The index of the user's ledgers is not asked
        whether another one has them: `rknn budget adopt` does.

        Args:
          data: Data set to adopt. Releases take the `fingerprint` of embeddings in float32.
          reason: Reason why these are the same people's data.
          unrelated: Flag for data that share neither a shard nor the number of rows with those
            that the ledger has. Defaults to False, which refuses them as a likely mistake.

        Returns:
          The entry, which is on disk.

        Raises:
          LedgerMismatchError: If the data share nothing with those that the ledger has.
          LedgerError: If the reason is empty, or the file cannot be written.
        """
        if not reason.strip():
            raise LedgerError(
                "Expected a reason for the adoption, got an empty one; say why these are the same "
                "people's data."
            )
        if not data.fingerprint:
            raise LedgerError("Expected the fingerprint of a data set, got an empty one.")
        kept = data._replace(shards=tuple(sorted(data.shards)[:MOST_SHARDS]))

        def body(chain: Chain, file: FileIO) -> dict[str, Any] | Entry:
            # Adopted before: its entry, so that an adoption that is repeated changes nothing.
            if kept.fingerprint in [one.fingerprint for one in chain.datasets]:
                return next(
                    entry
                    for entry in self._entries_of(file, chain, "")
                    if entry.data is not None and entry.data.fingerprint == kept.fingerprint
                )
            if not unrelated and not data.resembles(chain.datasets):
                raise LedgerMismatchError(
                    f"Expected data that share a shard or the number of rows with those of "
                    f"{self.path}, got data that share neither; if they are the same people's, "
                    f"pass {option('unrelated')}, and say in the reason what became of the records."
                )
            return adopted(kept, reason)

        return self._append(body, "nothing was adopted")

    def mark_drawn(self, purpose: str, result: str) -> Entry:
        """Record that the noise of a charge was drawn.

        After that, the charge pays for no second draw.

        Args:
          purpose: Purpose of the charge, which names one release.
          result: SHA-256 of what was drawn. No other result belongs to the charge.

        Raises:
          LedgerError: If no charge has this purpose, its noise was drawn before, or the file cannot
            be written.
        """

        def body(chain: Chain, file: FileIO) -> dict[str, Any]:
            found = self._entries_of(file, chain, purpose)
            # A spend and a draw have one purpose, which names one release: so a second draw is
            # noticed.
            kinds = [entry.kind for entry in found if entry.purpose == purpose]
            if kinds != ["spend"]:
                got = ", ".join(kinds) or "none"
                raise LedgerError(
                    f"Expected one spend on {purpose!r} in {self.path}, got {got}; nothing was "
                    "marked."
                )
            return body_of("drawn", NOTHING, purpose) | {"result": result}

        return self._append(body, "the draw is not on record")

    def repair(
        self, reason: str, epsilon: Number | None = None, delta: Number | None = None
    ) -> Entry:
        """Close damage with a line that counts the damage as spent.

        The damaged bytes stay in the file, and the line commits to them.

        Args:
          reason: Event that damaged the file, and the person who decided the amount.
          epsilon: Epsilon that the damaged bytes count as. Defaults to the epsilon that they show,
            or to all that remains of the largest budget that can be read if they show none. Damage
            that hides a raised budget, and charges of it, may have cost more.
          delta: Delta that the damaged bytes count as. Defaults to the delta that they show, or to
            all that remains if they show none.

        Returns:
          The entry, which is on disk.

        Raises:
          LedgerError: If there is no damage, the reason is empty, or an amount is out of range.
          LedgerCorruptError: If not even the first line can be read.
        """
        if not reason.strip():
            raise LedgerError(
                "Expected a reason for the repair, got an empty one; say what happened to the file."
            )
        undone = "nothing was repaired"
        with locked(self.path, self.patience, undone) as file:
            data = file.read()
            chain = sound_part(data, self.path)
            self._check_dataset(chain)
            if not chain.damage:
                raise LedgerError(
                    f"Expected damage in {self.path}, found none; there is nothing to repair."
                )
            told = chain.unread
            amount = Amount(
                told.epsilon if epsilon is None else exact_fraction(epsilon, "epsilon"),
                told.delta if delta is None else exact_fraction(delta, "delta"),
            )
            if amount.epsilon < 0 or not 0 <= amount.delta < 1:
                raise LedgerError(
                    f"Expected epsilon >= 0 and 0 <= delta < 1 for damage to {self.path}, got "
                    f"{amount}; say what it was with {option('epsilon')} and {option('delta')}."
                )
            # The budget's delta pays for all divergences together, and for no single entry.
            if amount.delta and isinstance(chain.rule, Renyi):
                raise LedgerError(
                    f"Expected delta=0 in {self.path}, which adds divergences up, got "
                    f"delta={float(amount.delta)}; give an epsilon that is large enough."
                )
            less_told = isinstance(chain.rule, Renyi) and amount.epsilon < told.epsilon
            if less_told and chain.shows_delta:
                raise LedgerError(
                    f"Expected epsilon >= {float(told.epsilon)} for damage to {self.path}, which "
                    f"shows a release with a delta, got epsilon={float(amount.epsilon)}; its "
                    "divergence is not known from epsilon, so leave epsilon out."
                )
            line = repaired(chain, amount, reason)
            # The damaged bytes end with a line break of ours, and stay for whoever examines them.
            append(file, len(data), b"\n" + line + b"\n")
            return entry_of(json.loads(line), self.path)

    def _chain(self, since: int = 0) -> Chain:
        """Read the file from its last summary on, or from an earlier one if a line is asked for."""
        with self._opened() as file:
            chain = self._read(file)
            if 0 < since < chain.past.lines:
                file.seek(0)
                chain = parse(file.read(), self.path)
            return chain

    @contextmanager
    def _opened(self) -> Iterator[FileIO]:
        with clear_errors(self.path, "read", UNREAD), FileIO(self.path) as file:
            yield file

    def _read(self, file: FileIO) -> Chain:
        """Return the chain from the last summary on, if what is before it is as the summary says.

        Otherwise the whole file is read. It tells whether what is before was changed, or repaired.
        """
        found = ledger_summary.find(file)
        if found is not None:
            start, previous = found
            file.seek(start)
            # A summary that cannot be parsed is no reason to refuse: the lines that it sums up are
            # all there.
            with suppress(LedgerCorruptError):
                chain = parse(file.read(), self.path, previous)
                summary = chain.entries[0]
                # The lines before it were hashed once in this process, and lines are only appended.
                if (start, summary.hash) in self._verified:
                    return chain
                if ledger_summary.prefix(file, start) == summary.result:
                    self._verified.add((start, summary.hash))
                    return chain
        file.seek(0)
        return parse(file.read(), self.path)

    def _entries_of(self, file: FileIO, chain: Chain, begins: str) -> tuple[Entry, ...]:
        """Return the lines of a chain whose purpose begins so, also those before its summary."""
        later = tuple(entry for entry in chain.entries if entry.purpose.startswith(begins))
        if not chain.past.lines:
            return later
        if chain.past.repaired:  # some bytes are no lines
            file.seek(0)
            every = parse(file.read(), self.path).entries
            return tuple(entry for entry in every if entry.purpose.startswith(begins))
        found = ledger_summary.find(file)
        assert found is not None  # the chain was read from it
        lines = ledger_summary.lines_with(file, begins, found[0])
        return (*(entry_of(json.loads(line), self.path) for line in lines), *later)

    def _append(
        self, body: Callable[[Chain, FileIO], dict[str, Any] | Entry], undone: str
    ) -> Entry:
        """Append the record that `body` makes from the chain, and a summary after many lines.

        Nothing is appended if `body` raises, or returns an entry that the chain has already.

        Args:
          body: Function of the chain and its file.
          undone: Words for what did not happen if the file cannot be written.
        """
        with locked(self.path, self.patience, undone) as file:
            chain = self._read(file)
            self._check_dataset(chain)
            # Read again under the lock: what was seen before it may have been spent by another
            # process.
            record = body(chain, file)
            if isinstance(record, Entry):
                return record
            size = file.seek(0, os.SEEK_END)
            file.seek(size - 1)
            # A line that was cut has no line break; the next one must not continue it.
            text = b"" if file.read(1) == b"\n" else b"\n"
            head = chain.head
            if chain.may_hide_lines:
                raise LedgerCorruptError(
                    f"The end of {self.path} is no line that was cut, and may hide charges and a "
                    f"raised budget; {undone}. Say what was lost: {_repair(self.path)}, with "
                    f"{option('epsilon')} if it is known."
                )
            if chain.damage:
                # Damage counts as spent first, so that no later line is charged to a budget that it
                # overlooks.
                closing = repaired(chain, chain.unread, "an unfinished last line counts as spent")
                text = b"\n" + closing + b"\n"
                head = json.loads(closing)["hash"]
            # Each line holds the hash of the one before: whoever changes one has to change all
            # later ones.
            line = sealed(record, head)
            if not chain.num_spends:
                # Its maker may have been stopped before the file's name was on disk.
                disk.sync_folder(self.path.resolve().parent)
            append(file, size, text + line + b"\n")
            if len(chain.entries) >= ledger_summary.EVERY:
                self._sum_up(file)
            return entry_of(json.loads(line), self.path)

    def _sum_up(self, file: FileIO) -> None:
        """Append a summary. The charge before it stands, so one that fails is left out."""
        with suppress(OSError, LedgerError):
            chain = self._read(file)
            size = file.seek(0, os.SEEK_END)
            line = summarized(chain, ledger_summary.prefix(file, size))
            append(file, size, line + b"\n")

    def _check_dataset(self, chain: Chain) -> None:
        known = [data.fingerprint for data in chain.datasets]
        if self.dataset is not None and self.dataset not in known:
            raise LedgerMismatchError(
                f"Expected the ledger of these people's records, got {self.path}, which is the "
                "ledger of another data set; name the ledger of these people. If this is it, let "
                f"it adopt the records: `rknn budget adopt {shlex.quote(str(self.path))} "
                "--private FILE --reason TEXT`, or Ledger.adopt."
            )


def _stem(path: Path) -> str:
    """Return the name of a ledger's file without its suffixes."""
    return path.name.removesuffix(".jsonl").removesuffix(".ledger")


def _check_kind(chain: Chain, guarantee: Guarantee, path: Path) -> None:
    """Raise LedgerMismatchError if a guarantee is of another relation or unit than the ledger's.

    Args:
      chain: Content of the ledger.
      guarantee: Guarantee of a release.
      path: Path of the ledger.
    """
    for name in ("relation", "unit"):
        mine, theirs = getattr(chain, name), getattr(guarantee, name)
        if mine != theirs:
            raise LedgerMismatchError(
                f"{path} keeps {name}={mine!r}, got {name}={theirs!r}; use one {name} throughout, "
                f"which {option(name)} sets where a ledger is made. If nothing was charged to it, "
                "remove the file."
            )


def _check_person(chain: Chain, name: str, path: Path) -> None:
    """Raise LedgerMismatchError if a ledger of persons was made under another name, or under none.

    Args:
      chain: Content of the ledger.
      name: Name of the persons whom the caller protects, or "".
      path: Path of the ledger.
    """
    known = chain.person
    if name == known:
        return
    if not known:
        raise LedgerMismatchError(
            f"Expected persons without a name, as {path} keeps none, got {option('person')} "
            f"{name}; name another {option('ledger')}, or pass the persons as an array to "
            "ReverseKNNLabeler without a person_name if they are those of this ledger."
        )
    got = f"{option('person')} {name}" if name else "persons without a name"
    remedy = (
        "if both columns name the same people, rename it"
        if name
        else f"pass person_name={known!r} to ReverseKNNLabeler, or person={known!r} to "
        "Ledger.open, if they are the same people"
    )
    raise LedgerMismatchError(
        f"Expected {option('person')} {known}, whose epsilon {path} keeps, got {got}; {remedy}."
    )


def _repair(path: Path) -> str:
    return f"rknn budget repair {shlex.quote(str(path))} --reason TEXT"


def _advice(path: Path, chain: Chain, *costs: Cost) -> str:
    """Return what can be done if releases do not fit the budget."""
    name = shlex.quote(str(path))
    if chain.damage:
        return f"its damaged last line counts as {chain.unread}; say what it was: {_repair(path)}"
    enough = chain.rule.enough(chain.budget, (*chain.costs, *costs))
    delta = f" --delta {decimal_above(enough.delta)}" if enough.delta > chain.budget.delta else ""
    return (
        "ask for less, or let those who answer for the data decide: rknn budget raise "
        f"{name} --epsilon {decimal_above(enough.epsilon)}{delta} --reason TEXT"
    )

"""`rknn budget`: show, raise or repair budgets, share one, or say what several cost together."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, subcommand

from rknn_jax._internal.ranges import Delta, Epsilon, Seconds, Spent
from rknn_jax._internal.terminal import err, one_line, out, tell
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.disjoint import compose_disjoint
from rknn_jax.privacy.guarantee import RELATION_WORDS, Relation
from rknn_jax.privacy.ledger import PATIENCE, DataSet, Entry, Ledger, LedgerCorruptError
from rknn_jax.settings import NamedColumns

MEANINGS = {
    "budget": ", for all releases of these records together",
    "spent": ", by all releases so far",
    "remaining": ", for further releases",
}
"""What amounts of a ledger are, after each of them."""

RENYI_SPENT = ", the budget less what remains; all releases so far are promised the budget alone"


@dataclass(frozen=True)
class Show:
    """Show the budget of a private data set, what was spent of it and on what.

    Attributes:
      ledger: file of the budget.
      expect_head: a head that you noted earlier. The exit status is 5 if the ledger no longer has
        it.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    expect_head: str | None = None
    json: bool = False


@dataclass(frozen=True)
class Repair:
    """Count the damage at the end of a ledger as spent, and log it there.

    Attributes:
      ledger: file of the budget.
      reason: what happened to the file, and who decided how much it counts as.
      epsilon: epsilon that the damaged bytes count as. Defaults to what they say, or to all that
        remained of the largest budget that can be read. Name it if they may hide a raised budget
        and what was spent of it.
      delta: delta that the damaged bytes count as, with the same default.
      patience: seconds to wait while another process uses the ledger.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    reason: str
    epsilon: Spent | None = None
    delta: Delta | None = None
    patience: Seconds = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Raise:
    """Set the whole budget of a private data set anew. The ledger records it, with the reason.

    Attributes:
      ledger: file of the budget.
      epsilon: new total that may be spent, including what was spent before.
      reason: why more may be spent on these people's data than was promised at first, and who
        decided it.
      delta: new total that may be spent. By default it stays as it is.
      patience: seconds to wait while another process uses the ledger.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    epsilon: Epsilon
    reason: str
    delta: Delta | None = None
    patience: Seconds = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Adopt:
    """Let other data of the same people share the budget: another embedding, or records added or removed.

    It costs nothing, cannot be undone, and the ledger records it with the reason. Name the data as in `rknn label`.

    Attributes:
      ledger: file of the budget.
      private: private records, in files, folders, patterns or URLs.
      reason: why these are the same people's data, such as "March export, embedded by model 2".
      public: public embeddings, if their columns are in another order.
      columns: columns of the records. Labels and persons are not read.
      representation: encoder as in `rknn label`, for raw records instead of embeddings. The raw records are adopted, and with them every later representation of them.
      unrelated: adopt data that share neither a file nor the number of rows with the data of the ledger.
      patience: seconds to wait while another process uses the ledger.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    ledger: Positional[Path]
    private: str | tuple[str, ...]
    reason: str
    public: str | tuple[str, ...] | None = None
    columns: NamedColumns = field(default_factory=NamedColumns)
    representation: str | None = None
    unrelated: bool = False
    patience: Seconds = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Disjoint:
    """Show what releases on disjoint groups of records, each with a ledger, cost one record together: the largest amount.

    Persons are refused, who may have records in several groups.

    Attributes:
      ledgers: files of the budgets, one for each group.
      told_apart_by: public fact that puts a record into one group, and that no neighbor changes, such as "hospital that made the record".
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    ledgers: Positional[tuple[Path, ...]]
    told_apart_by: str
    json: bool = False


@dataclass(frozen=True)
class Budget:
    """Show, raise or repair budgets, share one, or say what several cost together."""

    action: (
        Annotated[Show, subcommand("show")]
        | Annotated[Raise, subcommand("raise")]
        | Annotated[Adopt, subcommand("adopt")]
        | Annotated[Repair, subcommand("repair")]
        | Annotated[Disjoint, subcommand("disjoint")]
    )


def show(settings: Show) -> dict[str, Any]:
    """Print a ledger, and return what `--json` prints."""
    ledger = Ledger.open(settings.ledger)
    told = err if settings.json else out
    _tell_account(told, ledger)
    entries = ledger.entries()
    if settings.expect_head is not None and settings.expect_head not in [
        entry.hash for entry in entries
    ]:
        raise LedgerCorruptError(
            f"Expected {settings.ledger} to have had the head {settings.expect_head}, and it has "
            "not: lines were removed, or the file was "
            "replaced by an older one. Put the last good copy back before anything is spent."
        )
    for entry in _of_data(entries):
        tell(told, "data set", f"{_reason(entry)}, since {entry.time}")
    for entry in entries:
        why = one_line(entry.purpose)
        told.print(f"  {entry.time}  {entry.kind:<7}  {entry.amount!s:<28}  {why}")
    lines = [
        {"time": e.time, "kind": e.kind, **e.amount._asdict(), "purpose": e.purpose, "hash": e.hash}
        for e in entries
    ]
    datasets = [{"time": e.time, "reason": _reason(e)} for e in _of_data(entries)]
    return _account(ledger) | {"datasets": datasets, "entries": lines}


def repair(settings: Repair) -> dict[str, Any]:
    """Log the damage of a ledger, print it, and return what `--json` prints."""
    ledger = Ledger(settings.ledger, None, settings.patience)
    ledger.repair(settings.reason, settings.epsilon, settings.delta)
    _tell_account(err if settings.json else out, ledger)
    return _account(ledger)


def set_anew(settings: Raise) -> dict[str, Any]:
    """Set the budget anew, print it, and return what `--json` prints."""
    ledger = Ledger.open(settings.ledger, patience=settings.patience)
    ledger.raise_budget(settings.epsilon, settings.delta, settings.reason)
    _tell_account(err if settings.json else out, ledger)
    return _account(ledger)


def adopt(settings: Adopt) -> dict[str, Any]:
    """Let a ledger adopt other data, print it, and return what `--json` prints.

    Raises:
      LedgerMismatchError: If another ledger on this machine has these data already.
      LedgerError: If the ledger cannot be used, or the data share nothing with its own.
      ValueError: If the records cannot be read.
    """
    before = Ledger.open(settings.ledger)
    before.check_person(settings.columns.person)  # refuse before long work
    data = _data_set(settings, before.relation)
    from rknn_jax.formats._data_files import find  # late, as fsspec takes a while

    files = find(_listed(settings.private), "--private").files
    ledger = Ledger(settings.ledger, None, settings.patience)
    told = err if settings.json else out
    private = _listed(settings.private)
    adopts = data.fingerprint not in [one.fingerprint for one in before.datasets]
    with warnings.catch_warnings(record=True) as caught:
        ledger_index.check(settings.ledger, data.prints)
        known = (settings.ledger, data.prints, private, files)
        with ledger_index.held(*known, adopts=adopts, patience=settings.patience):
            ledger.adopt(data, settings.reason, unrelated=settings.unrelated)
    for one in caught:
        tell(err, "warning", str(one.message))
    _tell_account(told, ledger)
    return _account(ledger)


def disjoint(settings: Disjoint) -> dict[str, Any]:
    """Print what several ledgers cost together, and return what `--json` prints.

    Raises:
      ValueError: If nothing tells the groups apart, or fewer than two ledgers are named.
      LedgerError: If the records of the ledgers are not known to be disjoint.
    """
    if not settings.told_apart_by.strip():
        raise ValueError(
            "Expected --told-apart-by to say which group a record is in, got an empty text; name "
            'the public fact, such as "hospital that made the record".'
        )
    ledgers = [Ledger.open(path) for path in settings.ledgers]
    together = compose_disjoint(ledgers)
    told = err if settings.json else out
    for ledger in ledgers:
        tell(told, ledger.name, f"{ledger.budget} in all; {ledger.path}")
    tell(told, "together", f"{together.budget} in all, {together.spent} spent")
    neighbors = RELATION_WORDS[together.relation].format(unit=together.unit)
    holds = (
        f"if {neighbors}, and each {together.unit} is in the data of one of these ledgers, which "
        f"is public and the same for neighbors: {settings.told_apart_by}"
    )
    tell(told, "holds", holds)
    return {
        "ledgers": [_account(ledger) for ledger in ledgers],
        "budget": together.budget._asdict(),
        "spent": together.spent._asdict(),
        "relation": together.relation,
        "unit": together.unit,
        "holds": holds,
    }


def _data_set(settings: Adopt, relation: Relation) -> DataSet:
    from rknn_jax.release import adoption  # late, as JAX takes seconds to import

    columns = settings.columns.read(raw=settings.representation is not None)
    public = None if settings.public is None else _listed(settings.public)
    return adoption.data_set(_listed(settings.private), columns, public, relation)


def _listed(names: str | tuple[str, ...]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _of_data(entries: Sequence[Entry]) -> list[Entry]:
    """Return the lines that name a data set."""
    return [entry for entry in entries if entry.data is not None]


def _reason(entry: Entry) -> str:
    return "the first one" if entry.kind == "create" else entry.purpose


def _account(ledger: Ledger) -> dict[str, Any]:
    amounts = {name: getattr(ledger, name)._asdict() for name in ("budget", "spent", "remaining")}
    words = {name: getattr(ledger, name) for name in ("name", "id", "head", "accounting")}
    return {"path": str(ledger.path), **words, **amounts}


def _tell_account(told: Console, ledger: Ledger) -> None:
    for name in ("name", "id", "accounting", "budget", "spent", "remaining", "head"):
        promised = name == "spent" and ledger.accounting == "renyi" and not ledger.is_overspent
        meaning = RENYI_SPENT if promised else ""
        tell(told, name, f"{getattr(ledger, name)}{meaning or MEANINGS.get(name, '')}")
    if any(ledger.unread):
        tell(
            told,
            "damaged",
            f"the last line; {ledger.unread} of what is spent is on its account; see `rknn "
            "budget repair`",
        )

"""`rknn budget`: show, raise or repair the budget of a private data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, subcommand

from rknn_jax._internal.terminal import err, out, tell
from rknn_jax.privacy.ledger import PATIENCE, Ledger, LedgerCorruptError


@dataclass(frozen=True)
class Show:
    """Show the budget of a private data set, what was spent of it and on what.

    Attributes:
      ledger: file of the budget.
      expect_head: a head that was noted elsewhere. The exit status is 5 if the ledger has forgotten
        it.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    expect_head: str | None = None
    json: bool = False


@dataclass(frozen=True)
class Repair:
    """Close the damage at the end of a ledger: count it as spent, on the record.

    Attributes:
      ledger: file of the budget.
      reason: what happened to the file, and who decided what it counts as.
      epsilon: what the damaged bytes count as. Defaults to what they tell, or to all that remained.
      delta: likewise for delta.
      patience: seconds to wait for another process that holds the ledger.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    reason: str
    epsilon: float | None = None
    delta: float | None = None
    patience: float = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Raise:
    """Set the whole budget of a private data set anew. The ledger records it, with the reason.

    Attributes:
      ledger: file of the budget.
      epsilon: that may be spent in all, what was spent before counted in.
      reason: why more may be spent on these people's data than was promised at first, and who
        decided it.
      delta: that may be spent in all; left as it is where it is not given.
      patience: seconds to wait for another process that holds the ledger.
      json: end with one line of JSON on stdout.
    """

    ledger: Positional[Path]
    epsilon: float
    reason: str
    delta: float | None = None
    patience: float = PATIENCE
    json: bool = False


@dataclass(frozen=True)
class Budget:
    """Show, raise or repair the budget of a private data set."""

    action: (
        Annotated[Show, subcommand("show")]
        | Annotated[Raise, subcommand("raise")]
        | Annotated[Repair, subcommand("repair")]
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
    for entry in entries:
        told.print(f"  {entry.time}  {entry.kind:<6}  {entry.amount!s:<28}  {entry.purpose}")
    lines = [
        {"time": e.time, "kind": e.kind, **e.amount._asdict(), "purpose": e.purpose, "hash": e.hash}
        for e in entries
    ]
    return _account(ledger) | {"entries": lines}


def repair(settings: Repair) -> dict[str, Any]:
    """Close the damage of a ledger, print it, and return what `--json` prints."""
    ledger = Ledger(settings.ledger, None, settings.patience)
    ledger.repair(settings.reason, settings.epsilon, settings.delta)
    _tell_account(err if settings.json else out, ledger)
    return _account(ledger)


def set_anew(settings: Raise) -> dict[str, Any]:
    """Set the budget anew, print it, and return what `--json` prints."""
    ledger = Ledger.open(settings.ledger, patience=settings.patience)
    delta = ledger.budget.delta if settings.delta is None else settings.delta
    ledger.raise_budget(settings.epsilon, delta, settings.reason)
    _tell_account(err if settings.json else out, ledger)
    return _account(ledger)


def _account(ledger: Ledger) -> dict[str, Any]:
    amounts = {name: getattr(ledger, name)._asdict() for name in ("budget", "spent", "remaining")}
    return {"path": str(ledger.path), "head": ledger.head, **amounts}


def _tell_account(told: Console, ledger: Ledger) -> None:
    for name in ("budget", "spent", "remaining", "head"):
        tell(told, name, str(getattr(ledger, name)))
    if any(ledger.unread):
        tell(
            told,
            "damaged",
            f"the last line; {ledger.unread} of what is spent is on its account; see `rknn "
            "budget repair`",
        )

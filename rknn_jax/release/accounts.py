"""Ledger of a release: found, checked, or made for people who have none."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rknn_jax._internal.option_names import option
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.charges import exact_amount, new_ledger_affords
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    Amount,
    BudgetExceededError,
    Ledger,
    LedgerError,
    LedgerMismatchError,
    charges_here,
)
from rknn_jax.release import adoption
from rknn_jax.release.counting import Counted
from rknn_jax.settings import Spending

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings


def open_ledger(
    settings: "Settings",
    costs: Sequence[Guarantee],
    dataset: str | None = None,
    *,
    paid: bool = False,
) -> Ledger | None:
    """Open and check the ledger of this release; return None if there is none yet.

    Args:
      settings: Settings of the release.
      costs: Guarantee of the release, or that of each round that is left.
      dataset: Fingerprint of the private records. Defaults to None, before they are read, to check
        the budget alone.
      paid: Flag for a release that a stopped process has already paid for. Defaults to False.

    Raises:
      LedgerError: If the ledger belongs to another data set, is damaged, or has not enough left. A
        dry run does not need enough left.
    """
    asked, person = settings.spending, settings.columns.person
    path = settings.ledger_path
    budget = first_budget(settings)
    if not os.path.lexists(path):
        if not new_ledger_affords(budget, settings.spending.rule, *costs):
            raise BudgetExceededError(
                f"This release costs {cost_of(settings)}, and the first budget is to be {budget}; "
                f"ask for less, or set a larger {option('budget')}."
            )
        return None
    try:
        ledger = Ledger.open(path, dataset, asked.patience, person or "")
    except LedgerMismatchError as error:
        named = (settings.private, settings.columns, settings.public, settings.representation)
        raise LedgerMismatchError(adoption.advice(path, *named)) from error
    if not paid:
        ledger.check_person(person)
    check_recorded(asked, ledger)
    if not settings.dry_run and not paid and not ledger.affords(*costs):
        raise BudgetExceededError(
            f"This release costs {cost_of(settings)}, and {path} has {ledger.remaining} left of "
            f"{ledger.budget}; {ledger.advice(*costs)}"
        )
    return ledger


def check_recorded(asked: Spending, ledger: Ledger) -> None:
    """Refuse a budget, or a rule of accounting, that is named otherwise than a ledger has it.

    Raises:
      LedgerError: If one is.
    """
    path = ledger.path
    for flag, given, recorded in (
        (option("budget"), asked.budget, ledger.budget.epsilon),
        (option("budget_delta"), asked.budget_delta, ledger.budget.delta),
    ):
        if given is not None and given != float(recorded):
            raise LedgerError(
                f"Expected {flag} {float(recorded)} as {path} has it, got {flag} {given}; leave "
                f"it out, or set the whole budget: rknn budget raise {shlex.quote(str(path))} "
                "--epsilon E [--delta D] --reason TEXT"
            )
    if asked.accounting not in (None, ledger.accounting):
        raise LedgerError(
            f"Expected {option('accounting')} {ledger.accounting} as {path} has it, got "
            f"{option('accounting')} {asked.accounting}; leave it out, because a ledger keeps "
            "the rule that it was made with."
        )


def open_or_make(
    settings: "Settings",
    cost: Guarantee,
    counted: Counted,
    shards: Sequence[str] = (),
    *,
    paid: bool = False,
) -> Ledger:
    """Open the ledger of these people, or make their first one, and note it in the index.

    A release that is paid for is finished whatever the index says.

    Args:
      settings: Settings of the release.
      cost: Guarantee of the release.
      counted: Sum over the private records, with their fingerprints.
      shards: Names of the private shards, for `ledger_index.held`. Defaults to none.
      paid: As for `open_ledger`. Defaults to False.
    """
    path = settings.ledger_path
    files = [settings.private] if isinstance(settings.private, str) else settings.private
    patience = settings.spending.patience
    noted = ledger_index.held(path, counted.prints, files, shards, patience=patience)
    with nullcontext() if paid else noted:
        return open_ledger(settings, [cost], counted.dataset, paid=paid) or Ledger.create(
            path,
            counted.dataset,
            *first_budget(settings),
            accounting=settings.spending.rule,
            relation=settings.relation,
            unit=settings.unit,
            rows=counted.rows,
            shards=counted.shards,
            person=settings.columns.person or "",
        )


LABELS_LOST = "The labels did not reach the caller"
"""Words for `spend_stands`, of a call that returns labels."""


@contextmanager
def spend_stands(ledger: Path, loss: str) -> Iterator[None]:
    """Add a note to errors after the ledger was charged.

    Args:
      ledger: File of the ledger.
      loss: Words for what an error loses.
    """
    before = _num_spends(ledger)
    with charges_here() as charged:
        try:
            yield
        except BaseException as error:
            # Without a charge here, what was recorded meanwhile is another process's.
            if charged and _has_more_spends(ledger, before):
                note = f"{loss}, and the spend stands: {ledger} has recorded it."
                if note not in getattr(error, "__notes__", ()):  # by a call within this one
                    error.add_note(note)
            raise


def _has_more_spends(path: Path, before: int) -> bool:
    try:
        return _num_spends(path) > before
    except LedgerError:  # what a ledger cannot read counts as spent
        return True


def _num_spends(path: Path) -> int:
    if not os.path.lexists(path):
        return 0
    return Ledger.open(path).num_spends


def first_budget(settings: "Settings") -> Amount:
    """Return the budget of a ledger that these settings make."""
    return settings.spending.first_budget(settings.epsilon, settings.delta)


def cost_of(settings: "Settings") -> Amount:
    """Return what a release of these settings costs."""
    return exact_amount(settings.epsilon, settings.delta)

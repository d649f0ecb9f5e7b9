"""Histories of charges: processes that charge one ledger again and again, and more than it has."""

import functools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._histories import LEDGER, BrokenError, History, ThereError
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger

BUDGET = 11
PAYERS = ("first", "second", "third")
CHARGES = 4
"""Charges of each payer, each of epsilon 1: one more in all than the budget has room for."""

DATASET = "0" * 64


def pay(payer: str, guarantee: Guarantee) -> None:
    """Make all charges of a payer that are not made, in a ledger that any payer may make first."""
    if not Path(LEDGER).exists():
        Ledger.create(LEDGER, DATASET, BUDGET, 0, relation=guarantee.relation)
    ledger = Ledger.open(LEDGER, DATASET)
    for number in range(CHARGES):
        purpose = f"a history: charge {payer}{number}"
        if not any(entry.kind == "spend" for entry in ledger.entries_of(purpose)):
            try:
                ledger.charge(guarantee, purpose)
            except BudgetExceededError as error:
                raise ThereError from error
        time.sleep(secrets.randbelow(20) / 1e3)


@dataclass
class Charges(History):
    """History of charges.

    Attributes:
      guarantee: Guarantee of each charge.
    """

    guarantee: Guarantee = field(kw_only=True)

    def works(self) -> dict[str, Callable[[], None]]:
        """Return the payers."""
        return {payer: functools.partial(pay, payer, self.guarantee) for payer in PAYERS}

    def check_end(self, ledger: Ledger) -> None:
        """Check that as much was charged as the budget has room for.

        A last line that a loss of power tore counts as spent, so that less room is left.
        """
        if ledger.remaining.epsilon >= 1:
            raise BrokenError(f"{ledger.num_spends} charges of {BUDGET}, {ledger.remaining} left")

"""What releases on disjoint groups of records cost together: parallel composition of ledgers.

Two hospitals hold other records, and each has a ledger. Whoever has a record at one of them pays
that one's epsilon, whatever the other spends. So both together cost the larger amount, and not the
sum. This holds if every record is in the data of one ledger only, which a public fact decides, such
as the hospital that made the record. `docs/method/ledger.md` has the proof.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from rknn_jax.privacy.filters import NOTHING, Amount
from rknn_jax.privacy.guarantee import Relation, Unit
from rknn_jax.privacy.ledger import Ledger, LedgerError, LedgerMismatchError


class Together(NamedTuple):
    """Cost to any one unit of all releases that several ledgers pay for.

    Attributes:
      budget: Amount that all releases may cost one unit, those to come included.
      spent: Amount that the releases so far cost one unit; of a ledger where divergences add up,
        the whole budget, which alone is promised.
      relation: Relation of the ledgers. Neighbors differ in the data of one ledger.
      unit: Unit of the ledgers.
    """

    budget: Amount
    spent: Amount
    relation: Relation
    unit: Unit


def compose_disjoint(ledgers: Sequence[Ledger]) -> Together:
    """Return what the releases of ledgers on disjoint records cost together.

    Args:
      ledgers: Two or more ledgers of one relation and one unit, no record of one being in the data
        of another.

    Raises:
      LedgerMismatchError: If a person is protected, who may have records in the data of several
        ledgers; if relations or units differ; or if two ledgers have a data set or a shard in
        common.
      LedgerCorruptError: If a ledger cannot be read.
      LedgerError: If damage of a ledger was repaired as more than its budget.
      ValueError: If there are fewer than two ledgers.
    """
    if len(ledgers) < 2:
        raise ValueError(
            f"Expected two ledgers or more, got {len(ledgers)}; name one for each group of records."
        )
    for first, second in combinations(ledgers, 2):
        _check_disjoint(first, second)
    for ledger in ledgers:
        if ledger.is_overspent:
            raise LedgerError(
                f"Expected ledgers within their budgets, got {ledger.path}, whose damage was "
                "repaired as more than its budget; no amount is promised of it."
            )
    relation, unit = ledgers[0].relation, ledgers[0].unit
    if unit != "record":
        raise LedgerMismatchError(
            f"Expected ledgers of records, got unit={unit} in {ledgers[0].path}; a {unit} may have "
            "records in the data of each ledger, and pays for all of them: add the amounts up."
        )
    return Together(
        _largest([ledger.budget for ledger in ledgers]),
        _largest([_promised(ledger) for ledger in ledgers]),
        relation,
        unit,
    )


def _largest(amounts: Sequence[Amount]) -> Amount:
    """Return the largest epsilon and the largest delta, which may be of two ledgers."""
    return Amount(*map(max, zip(*amounts, strict=True)))


def _promised(ledger: Ledger) -> Amount:
    """Return what all charges so far cost together."""
    if ledger.accounting == "sum":
        return ledger.spent
    is_new = ledger.num_lines == 1 and not any(ledger.unread)
    return NOTHING if is_new else ledger.budget


def _check_disjoint(first: Ledger, second: Ledger) -> None:
    for name in ("relation", "unit"):
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            raise LedgerMismatchError(
                f"Expected ledgers of one {name}, got {name}={one} in {first.path} and "
                f"{name}={other} in {second.path}; their amounts mean different things."
            )
    if first.id == second.id:
        raise LedgerMismatchError(
            f"Expected different ledgers, got {first.path} and {second.path}, which are one; name "
            "each ledger once."
        )
    if not _prints(first).isdisjoint(_prints(second)):
        raise LedgerMismatchError(
            f"Expected ledgers of disjoint records, got {first.path} and {second.path}, which have "
            "data in common; add their amounts up."
        )


def _prints(ledger: Ledger) -> set[str]:
    return {name for data in ledger.datasets for name in data.prints}

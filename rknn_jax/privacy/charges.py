"""Cost of a release on a ledger: exact epsilon and delta, and the divergence if divergences add up.

`ledger` decides with it whether a charge fits the budget. Everything here is a function of values,
and touches no file.
"""

from collections.abc import Iterable
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import get_args

from rknn_jax._internal.ranges import LEAST_EPSILON
from rknn_jax.privacy.filters import Accounting, Amount, Cost, Renyi, Rule, Sum
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger_lines import LedgerError

MOST_EPSILON = 1e300  # a float can hold sums of these

Number = int | float | str | Decimal | Fraction
"""Amount as a caller may give it; a text is a decimal or a fraction."""


def exact_amount(epsilon: Number, delta: Number) -> Amount:
    """Return an amount as a ledger charges it: floats by their shortest decimals.

    Raises:
      LedgerError: If epsilon is not positive, is above `MOST_EPSILON`, or delta is outside [0, 1).
    """
    amount = Amount(exact_fraction(epsilon, "epsilon"), exact_fraction(delta, "delta"))
    if not 0 < amount.epsilon <= MOST_EPSILON or not 0 <= amount.delta < 1:
        raise LedgerError(
            f"Expected 0 < epsilon <= {MOST_EPSILON:g} and 0 <= delta < 1, got epsilon={epsilon}, "
            f"delta={delta}."
        )
    return amount


def exact_fraction(value: Number, name: str) -> Fraction:
    """Return a number as a ledger charges it: a float by its shortest decimal.

    Args:
      value: Finite number, or a text that tells one.
      name: Name of the number, for the error.

    Raises:
      LedgerError: If the value is not a finite number.
    """
    if isinstance(value, Fraction):  # whose digits may be more than a text may have
        return value
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise LedgerError(
            f"Expected a finite number or fraction as {name}, got {name}={value}; no budget "
            "covers it."
        ) from error


def decimal_above(value: Fraction, digits: int = 6) -> str:
    """Return the least decimal of so many significant digits that is not below a value.

    Args:
      value: Positive amount.
      digits: Number of digits. Defaults to 6.

    >>> decimal_above(Fraction("0.2345672")), decimal_above(Fraction(3))
    ('0.234568', '3')
    """
    context = Context(prec=digits, rounding=ROUND_CEILING)
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)):g}"


def chargeable_amount(guarantee: Guarantee) -> Amount:
    """Return the epsilon and delta of a release that may be charged.

    Raises:
      LedgerError: If the guarantee is of a simulation, depends on private data, or has an epsilon
        without noise of finite size.
    """
    if guarantee.sampler != "release":
        raise LedgerError(
            f"Expected a guarantee with sampler='release', got {guarantee.sampler!r}; simulated "
            "noise is not charged."
        )
    if guarantee.data_dependent:
        raise LedgerError(
            "Expected an epsilon that does not depend on private data; charge the bound that "
            "holds for all data."
        )
    if guarantee.epsilon < LEAST_EPSILON:
        raise LedgerError(
            f"Expected epsilon >= {LEAST_EPSILON:g} of a release, got "
            f"epsilon={guarantee.epsilon:g}, whose noise has no finite size; ask for more."
        )
    return exact_amount(guarantee.epsilon, guarantee.delta)


def release_cost(rule: Rule, guarantee: Guarantee, amount: Amount) -> Cost:
    """Return the cost of a release under a rule.

    Raises:
      LedgerError: If the rule cannot tell the cost.
    """
    try:
        return rule.cost(guarantee, amount)
    except ValueError as error:
        raise LedgerError(str(error)) from error


def release_costs(rule: Rule, guarantees: Iterable[Guarantee]) -> list[Cost]:
    """Return the cost of each release under a rule, each by what its charge would say.

    Raises:
      LedgerError: If a guarantee cannot be charged, or the rule cannot tell its cost.
    """
    return [release_cost(rule, one, exact_amount(one.epsilon, one.delta)) for one in guarantees]


def new_rule(accounting: Accounting, budget: Amount) -> Rule:
    """Return the rule of a new ledger.

    Raises:
      LedgerError: If the accounting is unknown, or the budget does not suit it.
    """
    if accounting not in get_args(Accounting):
        raise LedgerError(
            f"Expected accounting to be one of {get_args(Accounting)}, got "
            f"accounting={accounting!r}."
        )
    try:
        return Sum() if accounting == "sum" else Renyi.best(budget)
    except ValueError as error:
        raise LedgerError(str(error)) from error


def new_ledger_affords(budget: Amount, accounting: Accounting, *guarantees: Guarantee) -> bool:
    """Return True if releases would fit the budget of a ledger that is yet to be made.

    Raises:
      LedgerError: If the budget does not suit the accounting, or a guarantee cannot be charged.
    """
    rule = new_rule(accounting, budget)
    return rule.fits(budget, release_costs(rule, guarantees))

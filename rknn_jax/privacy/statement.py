"""The statement of a release as a page for a person: who holds the data, what was released, and
what is promised to one record.

`page` makes one HTML file that loads nothing; `privacy.json` beside it is for programs. Its numbers
are those of hypothesis testing. Let P and Q be the laws of all that was released, on two
neighbouring data sets, where for every set S of outcomes, and with P and Q exchanged,

    P(S) <= e^ε Q(S) + δ

- Who guesses which of the two it was, equally likely beforehand, is right with probability (e^ε +
  δ) / (e^ε + 1) at most: `right_guesses`.
- A belief of p in P becomes p c e^ε / (1 - p + p c e^ε) at most, `belief`, but with probability δ c
  / (c - 1), `exception`, for any c > 1, whichever is true: where S is the set on which P > c e^ε Q,
  P(S) <= e^ε Q(S) + δ < P(S) / c + δ, and Q(S) < P(S). Without a delta c = 1, and no outcome is an
  exception.

That e^ε itself holds but with probability δ is often said and false: a Gaussian mechanism exceeds
it more often. As c grows, what is left is that somebody becomes certain with probability δ at most.
All of it holds for beliefs in any property of a record, mixtures of outputs included. Two records,
or another content under add-remove, are two steps: `two_steps`.

References: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential Privacy", 2015;
Kasiviswanathan & Smith, "On the 'Semantics' of Differential Privacy: A Bayesian Formulation", 2014.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from importlib import metadata, resources
from typing import Any, NamedTuple

import jinja2

from rknn_jax.privacy.guarantee import Guarantee, _round_up
from rknn_jax.privacy.ledger import Amount

BELIEFS = (0.01, 0.1, 0.5, 0.9)
"""Beforehand, that the page follows."""

FACTORS = (1.1, 2.0)
"""c, beyond which the page tells how rare a larger belief is, where there is a delta."""

MOST_DECIMALS = 6
"""Of a percentage. One that needs more to differ from 100 promises nothing."""

PACKAGES = ("rknn-jax", "jax", "numpy", "opendp", "dp-accounting")


class Account(NamedTuple):
    """What the ledger says after the release.

    Attributes:
      path: of the ledger.
      head: hash of its last entry.
      budget, spent, remaining: in all.
    """

    path: str
    head: str
    budget: Amount
    spent: Amount
    remaining: Amount


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True)
class Statement:
    """What the page says. All words are shown as text, whatever they hold.

    Attributes:
      guarantee: of everything that was released, together.
      holders: who holds the private data, in a sentence or two.
      released: what was released.
      not_covered: what the guarantee says nothing about.
      mechanism: that made the noise.
      account: what the ledger says, or in words who keeps account.
      date: of the release, UTC.
      trusted_with: whom else to trust with what, in a sentence.
      details: settings by name.
      versions: of the software.
    """

    guarantee: Guarantee
    holders: str
    released: tuple[str, ...]
    not_covered: tuple[str, ...]
    mechanism: str
    account: Account | str
    date: str
    trusted_with: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=_versions)


def page(statement: Statement) -> str:
    """Return the page, HTML that loads nothing and prints well. Depends on the statement alone."""
    guarantee = statement.guarantee
    account = None if isinstance(statement.account, str) else statement.account
    epsilon = guarantee.epsilon
    delta = guarantee.delta
    right = right_guesses(epsilon, delta)
    columns = [(factor, exception(delta, factor)) for factor in FACTORS] if delta else [(1.0, 0.0)]
    columns = [(factor, rare) for factor, rare in columns if rare < 1]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "one_in": one_in}
    text = (
        resources.files("rknn_jax.privacy")
        .joinpath("statement.html.j2")
        .read_text(encoding="utf-8")
    )
    made = environment.from_string(text).render(
        statement=statement,
        guarantee=guarantee,
        unit=guarantee.unit,
        account=account,
        protects=percent(right) != "100%",
        epsilon=None if math.isinf(epsilon) else _round_up(epsilon, 6),
        delta=_round_up(delta, 3) if delta else None,
        odds=_round_up(math.exp(min(epsilon, 700.0)), 4),
        right=right,
        right_of_two=right_guesses(*two_steps(epsilon, delta)),
        right_in_all=account and right_guesses(*map(float, account.spent)),
        columns=columns,
        beliefs=[
            (before, [belief(before, epsilon, factor) for factor, _ in columns])
            for before in BELIEFS
        ],
    )
    return made.encode(errors="replace").decode()  # a file's name may hold bytes that are no text


def right_guesses(epsilon: float, delta: float) -> float:
    """Return how likely a guess between two equally likely neighbours is right at most, (e^ε +
    δ) / (e^ε + 1).
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def belief(before: float, epsilon: float, factor: float = 1.0) -> float:
    """Return the belief that odds `factor` e^ε times as large make of one of 0 < `before` < 1."""
    return 1 / (1 + (1 - before) / before * math.exp(-epsilon) / factor)


def exception(delta: float, factor: float) -> float:
    """Return how likely odds grow by more than `factor` e^ε at most, δ c / (c - 1); for a factor
    above 1, and infinity for certainty.
    """
    return delta / (1 - 1 / factor)


def two_steps(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the epsilon and delta of neighbours of neighbours, 2ε and (1 + e^ε) δ."""
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


def percent(value: float) -> str:
    """Write a bound in percent, rounded up, with two decimals or as many as keep it below 100."""
    exact = 100 * Decimal(f"{value:.15g}")
    for decimals in range(2, MOST_DECIMALS + 1):
        rounded = exact.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING)
        if rounded < 100:
            return f"{rounded}%"
    return "100%"


def one_in(probability: float) -> str:
    """Write a small probability, never as less than it is: 1e-6 as "1 in 1,000,000"."""
    return f"1 in {math.floor(1 / probability * (1 + 1e-12)):,}"

"""Privacy statement of a release, as JSON for programs and as a page for people.

A `Statement` tells who holds the data, what was released, and what is promised to one record.
`Statement.card` is the content of `privacy.json`, in the shape of `statement.schema.json`, and
`as_json` writes it. `page` makes one HTML file that loads nothing.

The page's numbers are those of hypothesis testing. Let P and Q be the laws of all that was
released, on two neighboring data sets. For every set S of outcomes, and also with P and Q
exchanged,

    P(S) <= e^ε Q(S) + δ

- A guess between the two data sets, equally likely beforehand, is right with probability at most
  (e^ε + δ) / (e^ε + 1): `right_guesses`.
- A belief of p in P becomes at most p c e^ε / (1 - p + p c e^ε), `belief`, except with probability
  δ c / (c - 1), `exception`. This holds for any c > 1, whichever data set is true. For a proof, let
  S be the set on which P > c e^ε Q. Then P(S) <= e^ε Q(S) + δ < P(S) / c + δ, and Q(S) < P(S).
  Without a delta, c = 1 and no outcome is an exception.

That e^ε itself holds except with probability δ is often said, and false: a Gaussian mechanism
exceeds it more often. As c grows, what remains is that somebody becomes certain with probability at
most δ. All of it holds for beliefs in any property of a record, mixtures of outputs included. Two
records, or changed content under add-remove, are two steps: `two_steps`.

References: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential Privacy", 2015;
Kasiviswanathan & Smith, "On the 'Semantics' of Differential Privacy: A Bayesian Formulation", 2014.
"""

import functools
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import metadata, resources
from typing import Any, Literal, NamedTuple

import jinja2

from rknn_jax import trust
from rknn_jax.privacy import checklists, profile
from rknn_jax.privacy.filters import Accounting, Amount
from rknn_jax.privacy.guarantee import Guarantee, rounded_up
from rknn_jax.privacy.responsible import Responsible

VERSION = 2
"""Version of the shape of `privacy.json`. It grows when a key changes its meaning or goes away."""

BELIEFS = (0.01, 0.1, 0.5, 0.9)
"""Prior beliefs that the page updates."""

FACTORS = (1.1, 2.0)
"""Factors c for which the page shows how rare a larger belief is, used if there is a delta."""

MOST_DECIMALS = 6
"""Largest number of decimals of a percentage.

A percentage that needs more decimals to differ from 100 promises nothing.
"""

PACKAGES = ("rknn-jax", "jax", "numpy", "opendp", "dp-accounting")


class Account(NamedTuple):
    """Content of the ledger after the release.

    Attributes:
      id: Public id of the ledger. Its file's name may name a person, so it stays with the owner.
      head: Hash of its last entry.
      budget, spent, remaining: Total amounts of epsilon and delta.
      accounting: Rule of the ledger. Defaults to `sum`.
    """

    id: str
    head: str
    budget: Amount
    spent: Amount
    remaining: Amount
    accounting: Accounting = "sum"

    @property
    def guaranteed(self) -> Amount:
        """Epsilon and delta of everything that was charged so far, together.

        If divergences add up, only the whole budget is a guarantee, or more if a repair says so.
        """
        if self.accounting == "sum":
            return self.spent
        return Amount(*map(max, self.budget, self.spent))


ONE_LEDGER = (
    "everything that is released of the same people is charged to the same ledger, also after "
    "their records have changed: no program sees that two data sets are the same people's"
)
"""Assumption of every ledger, for the statement."""

UNKNOWN_MODEL = (
    "the embedding model or other preprocessing, if private data had a part in training or "
    "choosing it"
)
"""What is not covered of embeddings without a card of their model."""

CHOSEN_SETTINGS = (
    "the choice of these settings, if it was made in view of private data, or of results that were "
    "never charged to the budget"
)
"""What is not covered of settings that somebody gave."""


class Contribution(NamedTuple):
    """Largest part that one unit has in a release.

    Attributes:
      records: Number of the unit's records that count; `shared` if all of them together count as
        one record; `clipped` if all of them have the L2 norm of one record's votes; `all` if
        nothing bounds how many count, and the labeler bounds what they do together. Defaults to 1.
      votes: Number of queries that a record votes for, in each round of several; None if records do
        not vote. Defaults to None.
    """

    records: int | Literal["shared", "clipped", "all"] = 1
    votes: int | None = None


ONE_RECORD = Contribution()


class Tuning(NamedTuple):
    """Choice of the settings of a release.

    Attributes:
      private_data: `none` if the program chose on public quantities alone; `charged` if a private
        choice is part of epsilon; `uncharged` if settings were chosen with private data or with
        accuracies, and epsilon does not cover that.
      words: Sentence that explains it.
    """

    private_data: Literal["none", "charged", "uncharged"]
    words: str


PUBLIC_TUNING = Tuning(
    "none",
    "The program chose settings on public quantities alone. Settings that were given to it are not "
    "covered if they were chosen in view of private data.",
)


CHOSEN_BY_RECORDS = Tuning(
    "charged",
    "Records that did not vote chose how the noisy sum is read, which is part of epsilon. "
    + PUBLIC_TUNING.words,
)


class AuditBound(NamedTuple):
    """Lower bound on epsilon that an audit found.

    Attributes:
      epsilon: Epsilon that the release has at least.
      confidence: Probability with which the bound holds.
      command: Command that computed it.
    """

    epsilon: float
    confidence: float
    command: str


def new_release() -> str:
    """Return a fresh id of a release, drawn on the operating system's entropy."""
    return secrets.token_hex(8)


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True)
class Statement:
    """Content of the page and of `privacy.json`.

    The page shows its words as plain text, whatever they hold.

    Attributes:
      guarantee: Guarantee of everything that was released, together.
      holders: Holders of the private data, in a sentence or two.
      released: Released items.
      not_covered: Items that the guarantee does not cover.
      mechanism: Mechanism that made the noise.
      account: Content of the ledger, or words that name who keeps account.
      date: Date of the release, UTC.
      trusted_with: Sentence that names who else must be trusted, and with what. Defaults to none.
      details: Settings by name. Defaults to none.
      versions: Software versions by package. Defaults to those that are installed.
      release: Id of the release.
      responsible: Party that answers for the release, in its own public words. Defaults to not
        stated; so is what is an empty text.
      contribution: Largest part that one unit has. Defaults to one record.
      tuning: Choice of the settings. Defaults to None, which leaves the question unanswered.
      audit: Lower bound of an audit. Defaults to None, which leaves the question unanswered.
      assumptions: Assumptions of the accountant, beside those that the guarantee itself tells.
        Defaults to none.
      remark: Sentence that belongs to the guarantee's. Defaults to none.
      class_names: Names of the classes, if they are public. Defaults to none.
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
    release: str = field(kw_only=True)
    responsible: Responsible = field(default_factory=Responsible)
    contribution: Contribution = ONE_RECORD
    tuning: Tuning | None = None
    audit: AuditBound | None = None
    assumptions: tuple[str, ...] = ()
    remark: str = ""
    class_names: tuple[str, ...] = ()

    def card(self, **others: Any) -> dict[str, Any]:
        """Return the content of `privacy.json`, in the shape of `schema`.

        Args:
          **others: Further entries of one kind of release, which the schema leaves open.
        """
        return _core(self) | others


def _core(statement: Statement) -> dict[str, Any]:
    """Return the entries that every statement has."""
    guarantee = statement.guarantee
    remark = f" {statement.remark}" if statement.remark else ""
    return {
        "version": VERSION,
        "release": statement.release,
        "statement": f"{guarantee}{remark}",
        "controller": statement.responsible.controller,
        "contact": statement.responsible.contact,
        "purpose": statement.responsible.purpose,
        "justification": statement.responsible.justification,
        "class_names": list(statement.class_names),
        "time": statement.date,
        "holders": statement.holders,
        "released": list(statement.released),
        "mechanism": statement.mechanism,
        "guarantee": guarantee.asdict(),
        "contribution": statement.contribution._asdict(),
        "profile": profile.of(guarantee).asdict(),
        "assumptions": [*_assumptions(guarantee), *statement.assumptions],
        "tuning": statement.tuning and statement.tuning._asdict(),
        "audit": statement.audit and statement.audit._asdict(),
        "trusted_with": statement.trusted_with,
        "not_covered": list(statement.not_covered),
        **_account(statement.account),
        "versions": dict(statement.versions),
    }


def _account(account: Account | str) -> dict[str, Any]:
    """Return the entries of the card on the ledger, or on who keeps account."""
    if isinstance(account, str):
        return {"account": account}
    amounts = {name: getattr(account, name) for name in ("budget", "spent", "remaining")}
    return {
        "ledger": {
            "id": account.id,
            "head": account.head,
            "accounting": account.accounting,
            **{name: amount._asdict() for name, amount in amounts.items()},
        }
    }


def _assumptions(guarantee: Guarantee) -> list[str]:
    """Return the assumptions under which the guarantee's epsilon holds."""
    events = guarantee.events
    if guarantee.sampler == "release":
        noise = "the noise was exact and came from the operating system's entropy, which is secret"
    else:
        noise = "the noise was simulated, so the epsilon is that of a release by these settings"
    own = [words for event in events for words in event.assumptions]
    told = [] if events or not guarantee.delta else ["epsilon and delta are all that is known"]
    return [trust.named(guarantee.trust).words, noise, *own, *told]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of `privacy.json`, with the trust models of this installation."""
    loaded: dict[str, Any] = json.loads(_resource("statement.schema.json"))
    loaded["$defs"]["guarantee"]["properties"]["trust"]["enum"] = trust.names()
    return loaded


def as_json(card: Mapping[str, Any]) -> str:
    """Return a card as the text of `privacy.json`.

    Raises:
      ValueError: If a number of it is NaN or infinite, which JSON lacks.
    """
    return json.dumps(card, indent=2, allow_nan=False, default=float) + "\n"


def _resource(name: str) -> str:
    return resources.files("rknn_jax.privacy").joinpath(name).read_text(encoding="utf-8")


@functools.cache  # compiling the template takes far longer than rendering it
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "one_in": one_in}
    return environment.from_string(_resource("statement.html.j2"))


def page(statement: Statement) -> str:
    """Return the page: HTML that loads nothing, prints well and depends on the statement alone."""
    guarantee = statement.guarantee
    account = None if isinstance(statement.account, str) else statement.account
    epsilon = guarantee.epsilon
    delta = guarantee.delta
    right = right_guesses(epsilon, delta)
    columns = [(factor, exception(delta, factor)) for factor in FACTORS] if delta else [(1.0, 0.0)]
    columns = [(factor, rare) for factor, rare in columns if rare < 1]
    card = _core(statement)
    made = _template().render(
        statement=statement,
        card=card,
        checklists=checklists.answered(card),
        guarantee=guarantee,
        unit=guarantee.unit,
        account=account,
        protects=percent(right) != "100%",
        epsilon=None if math.isinf(epsilon) else rounded_up(epsilon, 6),
        delta=rounded_up(delta, 3) if delta else None,
        odds=rounded_up(math.exp(min(epsilon, 700.0)), 4),
        right=right,
        right_of_two=right_guesses(*two_steps(epsilon, delta)),
        right_in_all=account and right_guesses(*map(float, account.guaranteed)),
        columns=columns,
        beliefs=[
            (before, [belief(before, epsilon, factor) for factor, _ in columns])
            for before in BELIEFS
        ],
    )
    return made.encode(errors="replace").decode()  # A file's name may hold bytes that are not text.


def right_guesses(epsilon: float, delta: float) -> float:
    """Return the largest probability (e^ε + δ) / (e^ε + 1) of a right guess.

    The guess is between two equally likely neighbors.
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def belief(before: float, epsilon: float, factor: float = 1.0) -> float:
    """Return the belief that odds `factor` e^ε times as large make of 0 < `before` < 1."""
    return 1 / (1 + (1 - before) / before * math.exp(-epsilon) / factor)


def exception(delta: float, factor: float) -> float:
    """Return the largest probability δ c / (c - 1) that odds grow by more than `factor` e^ε.

    `factor` c is above 1; infinity stands for certainty.
    """
    return delta / (1 - 1 / factor)


def two_steps(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the epsilon and delta of neighbors of neighbors, 2ε and (1 + e^ε) δ."""
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


def percent(value: float) -> str:
    """Write a bound in percent, rounded up, with two decimals or as many as keep it below 100."""
    exact = 100 * Fraction(f"{value:.15g}")
    for decimals in range(2, MOST_DECIMALS + 1):
        unit = 10**decimals
        whole, part = divmod(math.ceil(exact * unit), unit)
        if whole < 100:
            return f"{whole}.{part:0{decimals}}%"
    return "100%"


def one_in(probability: float) -> str:
    """Write a small probability, rounded up: 1e-6 as "1 in 1,000,000"."""
    return f"1 in {math.floor(1 / probability * (1 + 1e-12)):,}"

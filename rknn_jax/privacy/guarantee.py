"""Privacy guarantees: one value that travels with each release.

An epsilon alone says nothing. It needs its delta, the neighboring relation, the unit that is
protected, the trust model, and whether the noise was real or simulated. `Guarantee` holds them
together, and `str()` is the sentence for a paper or a data-protection officer. `events` describes
the noise (`rknn_jax.privacy.events`), so that several guarantees compose tightly
(`rknn_jax.privacy.accounting.compose`).
"""

import html
import math
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, Literal, get_args

from rknn_jax import trust as trusts
from rknn_jax._internal.ranges import make_plain
from rknn_jax.privacy.events import PLAIN, Event, event_of

Relation = Literal["replace-one", "add-remove"]
Unit = Literal["record", "client", "person"]
Sampler = Literal["simulation", "release"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
UNITS: tuple[Unit, ...] = get_args(Unit)

LARGE_EPSILON = 50.0
"""Epsilon above which a release asks for a flag that confirms it.

Above it, one record may change the odds of a result by a factor of 10^21.
"""
_CHOICES = {
    "relation": RELATIONS,
    "unit": UNITS,
    "sampler": get_args(Sampler),
}
RELATION_WORDS = {
    "replace-one": "one {unit}'s content is replaced by any other",
    "add-remove": "one {unit} is added or removed",
}


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of a release, with everything that gives it meaning.

    Attributes:
      epsilon: Epsilon of the release; infinity if nothing is guaranteed.
      delta: Delta of the release; 0 for pure differential privacy.
      relation: Neighboring relation.
      unit: Privacy unit that is protected. Defaults to `record`.
      trust: Trust model under which the guarantee holds.
      events: All the noise that was added, for tight composition; empty if only (epsilon, delta) is
        known.
      accountant: Name of the accountant that computed epsilon. Defaults to `pure`.
      data_dependent: True if epsilon itself depends on private data, and so may not be published as
        it is. Defaults to False.
      sampler: `release` for exact integer noise from the operating system's entropy, `simulation`
        for anything else. Defaults to `simulation`.
    """

    epsilon: float
    delta: float
    relation: Relation
    trust: str
    events: tuple[Event, ...]
    unit: Unit = "record"
    accountant: str = "pure"
    data_dependent: bool = False
    sampler: Sampler = "simulation"

    def __post_init__(self) -> None:
        make_plain(self)
        if not self.epsilon >= 0:
            raise ValueError(
                f"Expected epsilon >= 0, got epsilon={self.epsilon}; infinity says that nothing "
                "is guaranteed."
            )
        if not 0 <= self.delta < 1:
            raise ValueError(
                f"Expected 0 <= delta < 1, got delta={self.delta}; 0 is pure differential privacy."
            )
        trusts.named(str(self.trust))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Expected {name} to be one of {choices}, got {name}={getattr(self, name)!r}."
                )

    def __le__(self, other: "Guarantee") -> bool:
        """Return True if this guarantee is at least as strong.

        Raises:
          ValueError: If relation, unit or trust differ.
        """
        for name in ("relation", "unit", "trust"):
            mine = getattr(self, name)
            theirs = getattr(other, name)
            if mine != theirs:
                raise ValueError(
                    f"Guarantees with {name}={mine!r} and {name}={theirs!r} cannot be compared; "
                    "convert one of them first"
                )
        return self.epsilon <= other.epsilon and self.delta <= other.delta

    def __lt__(self, other: "Guarantee") -> bool:
        return self <= other and (self.epsilon, self.delta) != (other.epsilon, other.delta)

    def __str__(self) -> str:
        if self.epsilon == float("inf"):
            return "No privacy is guaranteed (epsilon is infinite)."
        amount = f"epsilon = {rounded_up(self.epsilon, 6)}" + (
            f", delta = {rounded_up(self.delta, 3)}" if self.delta else " (pure)"
        )
        neighbours = RELATION_WORDS[self.relation].format(unit=self.unit)
        sentence = (
            f"Differential privacy with {amount}, for neighboring data sets where {neighbours}; "
            f"{trusts.named(self.trust).words} (accountant: {self.accountant})."
        )
        if self.data_dependent:
            sentence += (
                " This epsilon depends on the private data and may not be published as it is."
            )
        if self.sampler == "simulation":
            sentence += (
                " The noise is simulated: the number tells what a release would cost, and this "
                "is not a private release."
            )
        return sentence

    def _repr_html_(self) -> str:
        """Return the guarantee as notebooks show it."""
        shown = {
            "epsilon": rounded_up(self.epsilon, 6),
            "delta": rounded_up(self.delta, 3) if self.delta else "0",
            "neighbors": RELATION_WORDS[self.relation].format(unit=self.unit),
            "trust": trusts.named(self.trust).words,
            "accountant": self.accountant,
        }
        rows = "".join(
            f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in shown.items()
        )
        return f"<table>{rows}</table><p>{html.escape(str(self))}</p>"

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Guarantee":
        """Return the guarantee from a dict of its fields.

        The dict comes from `asdict` or `full_dict`, perhaps by way of JSON.

        Raises:
          AttributeError, LookupError, TypeError: If fields are missing or of another type.
          ValueError: If fields are out of range, or an event is of an unknown kind.
        """
        known = {field.name: _number(told[field.name]) for field in fields(cls)}
        events = tuple(
            event_of({name: _number(value) for name, value in event.items()})
            for event in told["events"]
        )
        return cls(**known | {"events": events})

    def full_dict(self) -> dict[str, Any]:
        """Return all fields, also those of events that are at their defaults, as ledgers do."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"events": tuple(event.asdict() for event in self.events)}

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, with the sentence as `statement`.

        Infinity, which JSON lacks, becomes "infinity". Fields of events that only sampled and
        screened ones have are left out of others.
        """
        values: dict[str, Any] = _jsonable(self.full_dict())
        events = [
            {name: value for name, value in event.items() if (name, value) not in PLAIN.items()}
            for event in values["events"]
        ]
        return values | {"events": events, "statement": str(self)}


def _number(value: Any) -> Any:
    return math.inf if value == "infinity" else value


def rounded_up(value: float, digits: int) -> str:
    """Return a cost with some significant digits, rounded up from its first 12 digits."""
    return _rounded(value, Context(prec=digits, rounding=ROUND_CEILING))


def rounded_down(value: float, digits: int) -> str:
    """Return the most that is allowed, rounded down from its first 12 digits."""
    return _rounded(value, Context(prec=digits, rounding=ROUND_FLOOR))


def _rounded(value: float, context: Context) -> str:
    return f"{float(context.create_decimal(f'{value:.12g}')):.{context.prec}g}"


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    return "infinity" if isinstance(value, float) and math.isinf(value) else value

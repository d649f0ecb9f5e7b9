"""Privacy guarantees: one value that travels with each release.

An epsilon alone says nothing. It needs its delta, the neighboring relation, the unit that is
protected, the trust model, and whether the noise was real or simulated. `Guarantee` holds them
together, and `str()` is the sentence for a paper or a data-protection officer. `events` describes
the noise, so that several guarantees compose tightly (`rknn_jax.privacy.accounting.compose`).
"""

import math
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_CEILING, Context
from typing import Any, Literal, get_args

Relation = Literal["replace-one", "add-remove"]
Trust = Literal["central", "local", "shuffle"]
Protection = Trust | Literal["aggregate"]
"""Trust model of a guarantee.

A labeler's `Trust`, or `aggregate`: a server sums for clients who add the noise.
"""

Unit = Literal["record", "client", "person"]
Sampler = Literal["simulation", "release"]
EventKind = Literal[
    "laplace",
    "discrete_laplace",
    "gaussian",
    "discrete_gaussian",
    "concentrated",
    "binomial",
    "pure",
]

RELATIONS: tuple[Relation, ...] = get_args(Relation)
UNITS: tuple[Unit, ...] = get_args(Unit)

LARGE_EPSILON = 50.0
"""Epsilon above which a release asks for a flag that confirms it.

Above it, one record may change the odds of a result by a factor of 10^21.
"""
_CHOICES = {
    "relation": RELATIONS,
    "unit": UNITS,
    "trust": (*get_args(Trust), "aggregate"),
    "sampler": get_args(Sampler),
}
RELATION_WORDS = {
    "replace-one": "one {unit}'s content is replaced by any other",
    "add-remove": "one {unit} is added or removed",
}
TRUST_WORDS = {
    "central": "a trusted curator sees what the records say, without noise, and adds it",
    "local": "every client randomizes its own message and trusts nobody",
    "aggregate": "clients add the noise in shares, and a server that follows the protocol of "
    "secure aggregation sees their sum alone",
    "shuffle": "a trusted shuffler hides which client sent which message, among those of all "
    "clients that follow the protocol",
}


@dataclass(frozen=True)
class Event:
    """`count` independent releases of one noise, as a neighboring data set can change them.

    Attributes:
      kind: Kind of the noise. `pure` is any mechanism that is known to be `epsilon`-DP, and no
        more. `concentrated` is any that is known to be rho-zCDP, and no more, with
        rho = 1 / (2 `parameter`²).
      parameter: The noise's scale (Laplace) or standard deviation (Gaussian, binomial), divided by
        the change of the value that the noise hides. For `pure`, the epsilon.
      count: Number of such values that one neighbor changes. A record of reverse k-NN labeling
        changes up to 2kr cells by 1 each. Defaults to 1.
      sampling_prob: For Gaussian noise, the probability that a record takes part, drawn anew for
        each value (Poisson sampling). Defaults to 1.
      replaced: For sampled noise, True if a neighbor holds another record in place of one, and
        False if the neighbor lacks the record. Without sampling, `parameter` already covers both
        cases. Defaults to False.
      screen: For Gaussian noise, `(threshold, most)` if the release only tells whether a noisy
        count passes the threshold. The count lies in 0 to `most` and changes by at most 1. Defaults
        to None.
      opposite: For replaced records, True if each record moves the value by at most half of that
        change. The two are then farthest apart in opposite directions, as clipped gradients are. If
        False, each record may move the value by all of that change. Defaults to False.
    """

    kind: EventKind
    parameter: float
    count: int = 1
    sampling_prob: float = 1.0
    replaced: bool = False
    screen: tuple[float, int] | None = None
    opposite: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(EventKind):
            raise ValueError(
                f"Expected kind to be one of {get_args(EventKind)}, got kind={self.kind!r}."
            )
        if not self.parameter >= 0:
            raise ValueError(
                f"Expected parameter >= 0, got parameter={self.parameter}; it is the noise "
                "divided by what it hides."
            )
        if self.count < 1:
            raise ValueError(
                f"Expected count >= 1, got count={self.count}; leave an event out where nothing "
                "was released."
            )
        if not 0 < self.sampling_prob <= 1:
            raise ValueError(
                f"Expected 0 < sampling_prob <= 1, got sampling_prob={self.sampling_prob}; 1 "
                "samples every record."
            )
        if (self.sampling_prob < 1 or self.screen) and self.kind != "gaussian":
            raise ValueError(
                "Expected kind=gaussian where records are sampled or counts screened, got "
                f"kind={self.kind!r}."
            )
        if self.opposite and (not self.replaced or self.screen):
            raise ValueError(
                "Expected opposite=True only where records are replaced and nothing is screened."
            )
        if self.screen:  # JSON turns the tuple into a list.
            object.__setattr__(self, "screen", tuple(self.screen))


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
    trust: Protection
    events: tuple[Event, ...]
    unit: Unit = "record"
    accountant: str = "pure"
    data_dependent: bool = False
    sampler: Sampler = "simulation"

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(
                f"Expected epsilon >= 0, got epsilon={self.epsilon}; infinity says that nothing "
                "is guaranteed."
            )
        if not 0 <= self.delta < 1:
            raise ValueError(
                f"Expected 0 <= delta < 1, got delta={self.delta}; 0 is pure differential privacy."
            )
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
        amount = f"epsilon = {_round_up(self.epsilon, 6)}" + (
            f", delta = {_round_up(self.delta, 3)}" if self.delta else " (pure)"
        )
        neighbours = RELATION_WORDS[self.relation].format(unit=self.unit)
        sentence = (
            f"Differential privacy with {amount}, for neighboring data sets where {neighbours}; "
            f"{TRUST_WORDS[self.trust]} (accountant: {self.accountant})."
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

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Guarantee":
        """Return the guarantee from a dict of its fields.

        The dict comes from `asdict` or `dataclasses.asdict`, perhaps by way of JSON.
        """
        known = {field.name: _number(told[field.name]) for field in fields(cls)}
        events = tuple(
            Event(**{name: _number(value) for name, value in event.items()})
            for event in told["events"]
        )
        return cls(**known | {"events": events})

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, with the sentence as `statement`.

        Infinity, which JSON lacks, becomes "infinity".
        """
        values: dict[str, Any] = _jsonable(asdict(self)) | {
            "events": [_told(event) for event in self.events],
            "statement": str(self),
        }
        return values


def _told(event: Event) -> dict[str, Any]:
    """Return the event as JSON-ready values, without sampling and screening fields at defaults."""
    plain = {
        field.name: field.default
        for field in fields(Event)
        if field.name in ("sampling_prob", "replaced", "opposite", "screen")
    }
    return {
        name: value
        for name, value in _jsonable(asdict(event)).items()
        if name not in plain or value != plain[name]
    }


def _number(value: Any) -> Any:
    return math.inf if value == "infinity" else value


def _round_up(value: float, digits: int) -> str:
    """Write `value` with `digits` significant digits, rounded up from its first 12 digits."""
    context = Context(prec=digits, rounding=ROUND_CEILING)
    return f"{float(context.create_decimal(f'{value:.12g}')):.{digits}g}"


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_jsonable(item) for item in value]
    return "infinity" if isinstance(value, float) and math.isinf(value) else value

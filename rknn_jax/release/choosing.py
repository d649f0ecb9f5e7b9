"""Labelers that a release may use, and the choice of one: `--labeler auto`.

A `SumLabeler` counts in one pass over private files and draws exact noise. Others need the records
many times, or have no exact noise.

`benchmarks.choosing` fits the thresholds of the choice on data sets of its own and judges the rule
on others.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from rknn_jax import labelers, trust
from rknn_jax._internal.option_names import option
from rknn_jax.labelers import Labeler, _simulation_only
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.release import labeler_settings, questions, rehearsal
from rknn_jax.release.inputs import Data
from rknn_jax.release.labeler_settings import OF_VOTES, public_size, refuse_given
from rknn_jax.release.preview import USUAL
from rknn_jax.release.settings import AUTO, Settings

OTHER = "public_prototypes"
"""Labeler for few classes and a weak signal. All others take reverse k-NN labeling."""

FEW_CLASSES = 2
"""Most classes for which `OTHER` is chosen."""

WEAK = 10.0
"""Records of a class, times epsilon, from which on `OTHER` is chosen."""

STRONG = 20.0
"""Records of a class, times epsilon, from which on it is not."""


@dataclass(frozen=True)
class Choice:
    """Settings with a labeler and a mechanism.

    Attributes:
      settings: Settings of the release.
      reason: Reason for the labeler, with the numbers; "" if the settings named it.
    """

    settings: Settings
    reason: str = ""


@dataclass(frozen=True)
class Quantities:
    """Public quantities that decide.

    Attributes:
      num_records: Number of private records n, or of persons.
      num_classes: Number of classes |Y|.
      epsilon: Epsilon of the release.
    """

    num_records: int
    num_classes: int
    epsilon: float

    @property
    def signal(self) -> float:
        """Number n·epsilon/|Y| of records of a class, times epsilon."""
        return self.num_records * self.epsilon / self.num_classes


class Chosen(NamedTuple):
    """Labeler that was chosen.

    Attributes:
      labeler: Name of the labeler.
      reason: Reason with the numbers, in one line.
    """

    labeler: str
    reason: str


def rule(found: Quantities) -> Chosen:
    """Return the labeler to take.

    Args:
      found: Public quantities.
    """
    few = found.num_classes <= FEW_CLASSES
    weak = WEAK <= found.signal < STRONG
    labeler = OTHER if few and weak else "rknn"
    numbers = (
        f"n·epsilon/classes = {found.signal:,.3g}, and {found.num_classes} classes; {OTHER} is for "
        f"{WEAK:g} to {STRONG:g}, and at most {FEW_CLASSES} classes"
    )
    return Chosen(labeler, f"{labeler}, for {numbers}")


def names() -> list[str]:
    """Return the names of the labelers that a release may use."""
    return [name for name in labelers.names() if not _hindrance(labelers.named(name))]


def _check_name(name: str) -> None:
    """Raise ValueError if there is no such labeler, or a release cannot run it."""
    found = labelers.named(name) if name in labelers.names() else None
    hindrance = _hindrance(found) if found else ""
    if found and not hindrance:
        return
    possible = f"{', '.join(names())} or {AUTO}"
    if not found:
        raise ValueError(
            f"Expected {option('labeler')} to be one of {possible}, got {option('labeler')} {name}."
        )
    raise ValueError(
        f"Expected {option('labeler')} to be one of {possible}, which read private files in one "
        f"pass and draw exact noise once, got {option('labeler')} {name}, which {hindrance}; "
        f"simulate it on benchmark data with python -m train.distill --labeler {name}."
    )


def _hindrance(kind: type[Labeler[Any]]) -> str:
    """Return why a release cannot run a labeler class, or "" if it can."""
    if issubclass(kind, OneSumLabeler) and not kind.exact_mechanisms:
        return "names no exact_mechanisms"
    if found := _simulation_only.hindrance(kind):
        return found
    needed = kind().trust
    return "" if trust.named(needed).one_party else f"needs other parties, with trust={needed}"


def check(settings: Settings) -> None:
    """Raise ValueError for settings that do not suit the labeler, whatever the data."""
    if settings.chooses_labeler:
        refuse_given(settings, (*OF_VOTES, "mechanism", "delta"), "one labeler alone")
        if settings.relation != "replace-one":
            raise ValueError(
                f"Expected {option('relation')} replace-one with {option('labeler')} {AUTO}, got "
                f"{option('relation')} {settings.relation}; the choice depends on n, which is "
                "private then. Name a labeler."
            )
        return
    _check_name(settings.labeler)
    labeler_settings.check(_completed(settings))


def choose(settings: Settings, data: Data) -> Choice:
    """Return the settings with a labeler and a mechanism, chosen on public quantities alone.

    Args:
      settings: Settings that `check` has passed.
      data: Public rows, classes, and number of private records.

    Raises:
      ValueError: If a choice is asked for, and the classes are not known yet.
    """
    if not settings.chooses_labeler:
        return Choice(_completed(settings))
    if data.classes.source == "assumed":
        raise ValueError(
            f"Expected {option('classes')} with {option('labeler')} {AUTO} before the labels are "
            "read, got none; the choice depends on their number. Name the classes, or a labeler."
        )
    known = public_size(settings, data)
    assert known is not None
    labeler, reason = rule(Quantities(known, data.classes.count, settings.epsilon))
    return Choice(_completed(replace(settings, labeler=labeler)), reason)


def expected_of_others(settings: Settings, data: Data, num_records: int | None) -> dict[str, float]:
    """Return the expected accuracy of releases by the other labelers, by their flags.

    For sets of labels there is no other one.

    Every labeler is simulated under the assumption that private records are as the public rows, in
    groups of which each is a class. Nothing private is read but the number of records.

    Args:
      settings: Settings of the release, with a labeler and a mechanism.
      data: Public rows and classes.
      num_records: Number of records, or persons, that add to the sum; None if n is private.
    """
    found: dict[str, float] = {}
    if settings.labels_per_record is not None:
        return found
    for name in names():
        if name == settings.labeler:
            continue
        asked = _by(name, settings)
        expected = rehearsal.accuracy(
            asked, data, questions.ask(asked, data), num_records=num_records, agreement=USUAL
        )
        without = f" without {option('delta')}" if asked.delta < settings.delta else ""
        if expected is not None:
            found[f"{option('labeler')} {name}{without}"] = expected
    return found


def _by(name: str, settings: Settings) -> Settings:
    """Return the settings of a dry run by another labeler, with a delta if it takes one."""
    usual: dict[str, Any] = {one.name: one.default for one in fields(settings)}
    usual = {setting: usual[setting] for setting in OF_VOTES}
    asked = replace(settings, **usual, labeler=name, mechanism=None, dry_run=True)
    try:
        labeler_settings.check(_completed(asked))
    except ValueError:
        asked = replace(asked, delta=0.0)
    return _completed(asked)


def _completed(settings: Settings) -> Settings:
    """Return the settings with the usual mechanism of their labeler, if they name none."""
    if settings.mechanism is not None:
        return settings
    return replace(settings, mechanism=labeler_settings.usual_mechanism(settings))

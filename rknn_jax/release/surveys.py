"""Labelers that a release may use, and the choice of one.

Reverse k-NN labeling and every labeler of one noisy sum count in one pass over private files and
draw exact noise. Others need the records many times, or have no exact noise.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from rknn_jax import labelers
from rknn_jax.labelers import Labeler, _simulation_only
from rknn_jax.labelers._one_sum import OneSumLabeler
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.release import choosing
from rknn_jax.release.inputs import Data
from rknn_jax.release.preview import USUAL
from rknn_jax.release.set_survey import SetSurvey
from rknn_jax.release.settings import AUTO, Settings
from rknn_jax.release.sum_survey import OF_VOTES, SumSurvey
from rknn_jax.release.survey import Survey, public_size, refuse_given
from rknn_jax.release.vote_survey import VoteSurvey


@dataclass(frozen=True)
class Choice:
    """Settings with a labeler and a mechanism.

    Attributes:
      settings: Settings of the release.
      reason: Reason for the labeler, with the numbers; "" if the settings named it.
    """

    settings: Settings
    reason: str = ""


def names() -> list[str]:
    """Return the names of the labelers that a release may use."""
    return [name for name in labelers.names() if not _hindrance(labelers.named(name))]


def of_labeler(name: str) -> type[Survey]:
    """Return the survey of a labeler.

    Raises:
      ValueError: If there is no such labeler, or a release cannot run it.
    """
    found = labelers.named(name) if name in labelers.names() else None
    hindrance = _hindrance(found) if found else ""
    if found and not hindrance:
        return VoteSurvey if issubclass(found, ReverseKNN) else SumSurvey
    possible = f"{', '.join(names())} or {AUTO}"
    if not found:
        raise ValueError(f"Expected --labeler to be one of {possible}, got --labeler {name}.")
    raise ValueError(
        f"Expected --labeler to be one of {possible}, which read private files in one pass and "
        f"draw exact noise once, got --labeler {name}, which {hindrance}; simulate it on "
        f"benchmark data with python -m train.distill --labeler {name}."
    )


def _hindrance(kind: type[Labeler[Any]]) -> str:
    """Return why a release cannot run a labeler class, or "" if it can."""
    if issubclass(kind, OneSumLabeler) and not kind.exact_mechanisms:
        return "names no exact_mechanisms"
    return _simulation_only.hindrance(kind)


def of(settings: Settings) -> type[Survey]:
    """Return the survey of settings that name a labeler.

    Raises:
      ValueError: As in `of_labeler`.
    """
    found = of_labeler(settings.labeler)
    sets = settings.labels_per_record is not None and found is VoteSurvey
    return SetSurvey if sets else found


def check(settings: Settings) -> None:
    """Raise ValueError for settings that do not suit the labeler, whatever the data."""
    if settings.chooses_labeler:
        refuse_given(settings, (*OF_VOTES, "mechanism", "delta"), "one labeler alone")
        if settings.relation != "replace-one":
            raise ValueError(
                f"Expected --relation replace-one with --labeler {AUTO}, got --relation "
                f"{settings.relation}; the choice depends on n, which is private then. Name a "
                "labeler."
            )
        return
    of(settings).check(_completed(settings))


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
            f"Expected --classes with --labeler {AUTO} before the labels are read, got none; the "
            "choice depends on their number. Name the classes, or a labeler."
        )
    known = public_size(settings, data)
    assert known is not None
    quantities = choosing.Quantities(known, data.classes.count, settings.epsilon)
    labeler, reason = choosing.choose(quantities)
    return Choice(_completed(replace(settings, labeler=labeler)), reason)


def expected_of_others(settings: Settings, data: Data) -> dict[str, float]:
    """Return the expected accuracy of releases by the other labelers, by their flags.

    For sets of labels there is no other one.

    Every labeler is simulated under the assumption that private records are as the public rows, in
    groups of which each is a class. Nothing private is read but the number of records.

    Args:
      settings: Settings of the release, with a labeler and a mechanism.
      data: Public rows, classes, and number of private records.
    """
    found: dict[str, float] = {}
    if settings.labels_per_record is not None:
        return found
    for name in names():
        if name == settings.labeler:
            continue
        asked = _by(name, settings)
        expected = of_labeler(name).of(asked, data).accuracy(USUAL)
        without = " without --delta" if asked.delta < settings.delta else ""
        if expected is not None:
            found[f"--labeler {name}{without}"] = expected
    return found


def _by(name: str, settings: Settings) -> Settings:
    """Return the settings of a dry run by another labeler, with a delta if it takes one."""
    usual: dict[str, Any] = {one.name: one.default for one in fields(settings)}
    usual = {setting: usual[setting] for setting in OF_VOTES}
    asked = replace(settings, **usual, labeler=name, mechanism=None, dry_run=True)
    try:
        of_labeler(name).check(_completed(asked))
    except ValueError:
        asked = replace(asked, delta=0.0)
    return _completed(asked)


def _completed(settings: Settings) -> Settings:
    """Return the settings with the usual mechanism of their labeler, if they name none."""
    if settings.mechanism is not None:
        return settings
    kind = of(settings)
    return replace(settings, mechanism=kind.usual_mechanism(settings))

"""Labeler that the settings of a release name, and what suits it."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from rknn_jax import labelers, mechanisms
from rknn_jax._internal.option_names import option
from rknn_jax.labelers._sum_labeler import SumLabeler
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy import contributions
from rknn_jax.records.labels import SEPARATOR
from rknn_jax.release.inputs import Data

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

OF_VOTES = (
    "queries",
    "neighbors",
    "records_per_person",
    "labels_per_record",
    "metric",
    "seed",
)
"""Settings that only labelers have whose records vote for queries."""


def public_size(settings: "Settings", data: Data) -> int | None:
    """Return the number n of private records or persons, or None if it is private."""
    if settings.relation != "replace-one":
        return None
    return len(data.private) if settings.columns.person is None else data.num_persons


def usual_mechanism(settings: "Settings") -> str:
    """Return the mechanism of settings that name none."""
    return _usual(settings).usual_mechanism(settings.delta)


def labeler_of(settings: "Settings") -> SumLabeler[Any]:
    """Return the labeler that settings with a mechanism name.

    Raises:
      ValueError: If the settings do not suit it.
    """
    assert settings.mechanism is not None
    labeler = _usual(settings).with_mechanism(settings.mechanism)
    takes = {one.name for one in fields(labeler)}
    names = ("epsilon", "relation", "unit", "metric", "smoothing")
    given: dict[str, Any] = {name: getattr(settings, name) for name in names}
    if labeler.needs_delta:
        given["delta"] = settings.delta
    given["num_neighbors"] = settings.neighbors
    given["labels_per_record"] = settings.labels_per_record or 0
    return replace(labeler, **{name: value for name, value in given.items() if name in takes})


def check(settings: "Settings") -> None:
    """Raise ValueError for settings with a mechanism that do not suit the labeler, for any data."""
    labeler = _usual(settings)
    votes = labeler.votes_per_record is not None
    if not votes:
        refuse_given(settings, OF_VOTES, f"{option('labeler')} rknn")
    assert settings.mechanism is not None
    _check_delta(settings, labeler.with_mechanism(settings.mechanism))
    if votes:
        _check_votes(settings)
    if settings.labels_per_record is not None:
        _check_sets(settings, settings.labels_per_record)


def refuse_given(settings: "Settings", names: tuple[str, ...], owner: str) -> None:
    """Raise ValueError for a setting that is not as it was, because the labeler does not use it.

    Args:
      settings: Settings of the release.
      names: Names of settings that the labeler does not use.
      owner: Words for the labelers that use them.
    """
    usual = {one.name: one.default for one in fields(settings)}
    for name in names:
        found = getattr(settings, name)
        if found != usual[name]:
            flag = option(name)
            raise ValueError(
                f"Expected no {flag} with {option('labeler')} {settings.labeler}, got {flag} "
                f"{found}; it is a setting of {owner}, leave it out or choose that labeler."
            )


def _usual(settings: "Settings") -> SumLabeler[Any]:
    found = labelers.named(settings.labeler)()
    assert isinstance(found, SumLabeler)  # `choosing.check` has refused others
    return found


def _check_delta(settings: "Settings", labeler: SumLabeler[Any]) -> None:
    """Refuse a delta that the mechanism does not use, or the lack of one that it needs."""
    named = f"{option('labeler')} {settings.labeler} {option('mechanism')} {settings.mechanism}"
    if labeler.needs_delta and settings.delta == 0:
        raise ValueError(
            f"Expected delta > 0 with {named}, got {option('delta')} 0; pass {option('delta')} "
            f"1e-5, or leave {option('mechanism')} out."
        )
    if not labeler.needs_delta and settings.delta > 0:
        raise ValueError(
            f"Expected no delta with {named}, got {option('delta')} {settings.delta}; it is pure, "
            "leave it out."
        )


def _check_votes(settings: "Settings") -> None:
    """Refuse settings of votes that are wrong for any data."""
    if settings.neighbors < 1 or (
        settings.queries is not None and settings.queries < settings.neighbors
    ):
        raise ValueError(
            f"Expected 1 <= neighbors <= queries, got {option('neighbors')} {settings.neighbors} "
            f"and {option('queries')} {settings.queries}; use fewer neighbors or more queries."
        )
    most = settings.records_per_person
    if most is not None and settings.columns.person is None:
        raise ValueError(
            f"Expected {option('person')} with {option('records_per_person')} {most}, got none; "
            "name the column that tells whose a record is."
        )
    if most is not None and not 1 <= most <= contributions.GRID:
        raise ValueError(
            f"Expected 1 <= records_per_person <= {contributions.GRID}, got "
            f"{option('records_per_person')} {most}."
        )
    if settings.relation == "add-remove" and settings.queries is None:
        raise ValueError(
            f"Expected {option('queries')} with {option('relation')} add-remove, got none; the "
            "default depends on n, which is private then."
        )


def _check_sets(settings: "Settings", most: int) -> None:
    """Refuse settings of sets of labels that are wrong for any data."""
    assert settings.mechanism is not None
    if labelers.named(settings.labeler) is not ReverseKNN:
        raise ValueError(
            f"Expected {option('labeler')} rknn with {option('labels_per_record')} {most}, got "
            f"{option('labeler')} {settings.labeler}; sets are read as rknn reads them."
        )
    if most < 1:
        raise ValueError(
            f"Expected labels_per_record >= 1, got {option('labels_per_record')} {most}; name the "
            "most labels that a record can have, or leave it out for one label a record."
        )
    if not mechanisms.named(settings.mechanism).releases_counts:
        raise ValueError(
            f"Expected a mechanism that releases counts with {option('labels_per_record')}, got "
            f"{option('mechanism')} {settings.mechanism}; use discrete_laplace, or gaussian with "
            f"{option('delta')}."
        )
    if settings.infer_classes:
        raise ValueError(
            f"Expected {option('classes')} with {option('labels_per_record')}, got "
            f"{option('infer_classes')}; name all classes."
        )
    if settings.representation is not None:
        raise ValueError(
            f"Expected embeddings with {option('labels_per_record')}, got "
            f"{option('representation')} {settings.representation}; embed the records first, as "
            "rknn embed does."
        )


def check_classes(most: int, data: Data) -> None:
    """Raise ValueError for classes that sets of up to `most` labels cannot have."""
    classes = data.classes
    if most > classes.count:
        raise ValueError(
            f"Expected labels_per_record <= {classes.count}, the number of classes, got "
            f"{option('labels_per_record')} {most}; name the most labels that a record can "
            "have."
        )
    odd = [name for name in classes.names or () if SEPARATOR in name]
    if odd:
        raise ValueError(
            f"Expected {option('classes')} without {SEPARATOR!r}, which stands between the classes "
            f"of a record, got {odd[0]!r}; rename it."
        )

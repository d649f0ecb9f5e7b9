"""Command line of an experiment: names first, then the settings that belong to them.

`--labeler NAME` and `--representation NAME` choose a file of a folder, and `--preset NAME` a file
of `train/presets`. The settings of a chosen part have its field in front, as in
`--labeler.num-teachers 250`. The prefix, and a leading `num-`, may be left out: `--trust local`,
`--neighbors 4`. The part's name serves as a prefix too: `--pate.num-teachers 250`.
"""

import argparse
import dataclasses
import warnings
from types import ModuleType
from typing import Annotated, Any

import tyro

from rknn_jax import labelers, representations
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.representations import Representation

from . import presets
from .buy import Config as Buy
from .experiment import GIVEN, Experiment
from .stages import OF_REPRESENTATION

ROOMS: dict[str, ModuleType] = {"labeler": labelers, "representation": representations}
"""Folder of the choices for each field of an experiment that is chosen by name."""


def parsed(arguments: list[str], description: str | None = None) -> Experiment:
    """Return the experiment of a command line.

    Its options replace a preset's settings or the defaults.

    Args:
      arguments: Words of the command line, without the program.
      description: Text above the options in the help. Defaults to none.

    Raises:
      ValueError: If a name is unknown, or settings do not go together.
      SystemExit: If an option is unknown, or help was asked for.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", *ROOMS):
        first.add_argument(f"--{name}")
    names, rest = first.parse_known_args(arguments)
    begun = presets.named(names.preset) if names.preset else Experiment()
    given = {one.name: getattr(begun, one.name) for one in dataclasses.fields(Experiment)}
    for field, room in ROOMS.items():
        asked = getattr(names, field)
        if asked is not None and asked != given[field].name:
            kept = presets.also(names.preset) if names.preset else ()
            known_as = {each.name: each for each in kept}
            given[field] = known_as.get(asked) or room.named(asked)()
    kinds = {field: _without_given(type(given[field])) for field in ROOMS}
    asked_for = [(field, kind, dataclasses.field()) for field, kind in kinds.items()]
    if not isinstance(given["labeler"], NoisySGD):
        hidden = Annotated[Buy, tyro.conf.Suppress]
        asked_for.append(("buy", hidden, dataclasses.field(default_factory=Buy)))
    narrowed = dataclasses.make_dataclass(
        "Experiment", asked_for, bases=(_Settings,), frozen=True, kw_only=True
    )
    shown = {
        field: kinds[field](**_values(given[field], kinds[field])) if field in ROOMS else value
        for field, value in given.items()
    }
    with warnings.catch_warnings():
        # A labeler need not say the type of its contribution.
        warnings.filterwarnings("ignore", message="Could not resolve type parameter")
        found = tyro.cli(
            narrowed,
            description=f"{description or __doc__}\n\n{_choices(given)}",
            args=[spelled(word, given) for word in rest],
            default=narrowed(**shown),
        )
    values = {name: getattr(found, name) for name in given}
    for field in ROOMS:
        kind = type(given[field])
        values[field] = kind(**_values(values[field], kind))
    return Experiment(**values)


def spelled(word: str, chosen: dict[str, Any]) -> str:
    """Return an option with the field of its part in front.

    Args:
      word: Word of a command line. Values are returned as they are.
      chosen: Fields of the experiment.

    Raises:
      ValueError: If the option belongs to a part that was not chosen.
    """
    if not word.startswith("--") or word == "--help":
        return word
    option, equals, value = word.removeprefix("--").partition("=")
    head, dot, tail = option.partition(".")
    name = head.replace("-", "_")
    if name == "buy" and not isinstance(chosen["labeler"], NoisySGD):
        raise ValueError(f"Expected labeler=noisy_sgd with --{option}; pass --labeler noisy_sgd.")
    for field, room in ROOMS.items():
        own = chosen[field]
        if dot and name in (field, own.name):
            inner, _, rest = tail.partition(".")
            full = _setting(type(own), inner) or inner.replace("-", "_")
            return f"--{field}.{full.replace('_', '-')}{'.' if rest else ''}{rest}{equals}{value}"
        if dot and name in room.names() and name not in chosen:
            raise ValueError(
                f"Expected settings of {field}={own.name}, got --{option}; pass --{field} {name}."
            )
    if name in chosen or name.removeprefix("no_") in chosen:
        return word
    for field, room in ROOMS.items():
        if setting := _setting(type(chosen[field]), head):
            return f"--{field}.{setting.replace('_', '-')}{dot}{tail}{equals}{value}"
        # Imports every file of the folder, so only an option that is not found gets here.
        if owners := [each for each in room.names() if _setting(room.named(each), head)]:
            raise ValueError(
                f"Expected settings of {field}={chosen[field].name}, got --{option}, which is one "
                f"of {field}={' or '.join(owners)}; pass --{field} {owners[0]}, or put the part "
                "that is meant in front, as in --representation.num-neighbors."
            )
    return word


def _setting(kind: type[Any], option: str) -> str | None:
    """Return the setting that an option without its prefix means, or None if there is none."""
    name = option.replace("-", "_")
    plain = name.removeprefix("no_")
    inner = {one.name for one in dataclasses.fields(kind)} - _given(kind)
    if plain in inner:
        return name
    return f"num_{name}" if f"num_{name}" in inner else None


def _given(kind: type[Any]) -> frozenset[str]:
    """Return the settings that are those of the run."""
    return kind.given if issubclass(kind, Representation) else frozenset(GIVEN)


def shapes_features(option: str) -> bool:
    """Return whether an option changes the data or the representation, whose fit takes longest."""
    head = option.split(".")[0]
    name = head.replace("-", "_")
    if name in OF_REPRESENTATION or name in representations.names():
        return True
    others = {one.name for one in dataclasses.fields(Experiment)}
    kinds = [labelers.named(each) for each in labelers.names()]
    if name in others or any(_setting(kind, head) for kind in kinds):
        return False
    return any(_setting(representations.named(each), head) for each in representations.names())


def known(option: str) -> bool:
    """Return whether an option, such as `labeler.trust`, is a setting of any choice of parts."""
    name = option.replace("-", "_").split(".")[0]
    own = {one.name for one in dataclasses.fields(Experiment)}
    parts = [room.named(each) for room in ROOMS.values() for each in room.names()]
    inner = {one.name for part in parts for one in dataclasses.fields(part)} - GIVEN
    every = own | inner | {each for room in ROOMS.values() for each in room.names()}
    return name in every or f"num_{name}" in every


def _choices(given: dict[str, Any]) -> str:
    lines = [f"--preset: {', '.join(presets.NAMES)}"]
    for field, room in ROOMS.items():
        lines.append(f"--{field}: {', '.join(room.names())} (shown here: {given[field].name})")
    return "\n".join(lines)


def _values(value: Any, kind: type[Any]) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(kind) if one.init}


def _without_given(kind: type[Any]) -> type[Any]:
    """Return a dataclass like `kind` whose settings of the run are not shown in the help."""
    hidden = [
        (one.name, Annotated[one.type, tyro.conf.Suppress], dataclasses.field(default=one.default))
        for one in dataclasses.fields(kind)
        if one.name in _given(kind)
    ]
    return dataclasses.make_dataclass(kind.__name__, hidden, bases=(kind,), frozen=True)


class _Settings(Experiment):
    """Experiment that is checked once, when all its options are known."""

    def __post_init__(self) -> None:
        pass

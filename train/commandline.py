"""Command line of an experiment: names first, then the settings that belong to them.

`--labeler NAME` and `--representation NAME` choose a file of a folder, and `--preset NAME` a file
of `train/presets`. `--student NAME` chooses a network, or `none` for the labels alone, and
`--semi-supervised NAME` a way to learn from public records without labels too. The settings of a
chosen part have its field in front, as in `--labeler.num-teachers 250`. The prefix, and a leading
`num-`, may be left out: `--trust local`, `--neighbors 4`. The part's name serves as a prefix too:
`--pate.num-teachers 250`.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import tyro

from rknn_jax import labelers, representations
from rknn_jax._internal import option_files, ranges
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.students import base as students
from rknn_jax.students import fit
from rknn_jax.students.base import StudentSettings
from rknn_jax.students.supervised import Config as Supervised

from . import presets
from .buy import Config as Buy
from .experiment import Experiment
from .stages import OF_REPRESENTATION

ROOMS: dict[str, ModuleType] = {
    "labeler": labelers,
    "representation": representations,
    "student": students,
}
"""Folder of the choices for each field of an experiment that is chosen by name."""

OF_STUDENT = ("epochs", "batch_size", "augmentation")
"""Options that mean the student if another part has them too."""


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
    names, rest = _names(option_files.expanded(arguments, pairs=True))
    given = _begun(names)
    chosen = {field: given[field] for field in ROOMS if given[field] is not None}
    kinds = {field: _narrowed(type(part)) for field, part in chosen.items()}
    asked_for: list[Any] = [(field, kind, dataclasses.field()) for field, kind in kinds.items()]
    if given["student"] is None:
        asked_for.append(("student", Annotated[None, tyro.conf.Suppress], None))
    if not isinstance(given["labeler"], NoisySGD):
        hidden = Annotated[Buy, tyro.conf.Suppress]
        asked_for.append(("buy", hidden, dataclasses.field(default_factory=Buy)))
    narrowed = dataclasses.make_dataclass(
        "Experiment", asked_for, bases=(_Settings,), frozen=True, kw_only=True
    )
    shown = given | {field: _cast(part, kinds[field]) for field, part in chosen.items()}
    with warnings.catch_warnings():
        # A labeler need not say the type of its contribution.
        warnings.filterwarnings("ignore", message="Could not resolve type parameter")
        found = tyro.cli(
            narrowed,
            description=f"{description or __doc__}\n\n{_choices(given)}",
            args=[spelled(word, given) for word in rest],
            default=narrowed(**shown),
            compact_help=True,
        )
    values = {name: getattr(found, name) for name in given}
    values |= {field: _cast(values[field], type(part)) for field, part in chosen.items()}
    experiment = Experiment(**values)
    ranges.check_parts(experiment)
    return experiment


def options(experiment: Experiment) -> dict[str, Any]:
    """Return the options that make an experiment, as a file of options has them.

    The names of the parts are always there, and other settings if they are no defaults. The folder
    is left out, so that a repeated run gets a folder of its own.
    """
    student = experiment.student
    names = {
        "preset": experiment.preset,
        "labeler": experiment.labeler.name,
        "representation": experiment.representation.name,
        "student": "none" if student is None else student.student.model,
        "semi-supervised": None if student is None else student.semi_supervised,
    }
    begun = _begun(_names([f"--{name}={one}" for name, one in names.items() if one])[0])
    told = {name: one for name, one in names.items() if one}
    for name, default in begun.items():
        if name not in ("preset", "out"):
            told |= _changed(name, getattr(experiment, name), default)
    return told


def _changed(name: str, value: Any, default: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a setting that is no default, or of those in a part."""
    if value == default:
        return
    if dataclasses.is_dataclass(value):
        prefix = "student" if name == "student.student" else name
        for key in _values(value, type(value)):
            yield from _changed(f"{prefix}.{key}", getattr(value, key), getattr(default, key))
    elif value is False:
        part, dot, last = name.rpartition(".")
        yield f"{part}{dot}no-{last}", True
    else:
        yield name, str(value) if value is None or isinstance(value, Path) else value


def _names(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the names that choose parts, and all other words."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", *ROOMS, "semi-supervised"):
        first.add_argument(f"--{name}")
    return first.parse_known_args(arguments)


def _begun(names: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the preset or of the defaults, with the parts that are named."""
    begun = presets.named(names.preset) if names.preset else Experiment()
    given = {one.name: getattr(begun, one.name) for one in dataclasses.fields(Experiment)}
    kept = {each.name: each for each in (presets.also(names.preset) if names.preset else ())}
    for field in ("labeler", "representation"):
        asked = getattr(names, field)
        if asked is not None and asked != given[field].name:
            given[field] = kept.get(asked) or ROOMS[field].named(asked)()
    given["student"] = _student(begun.student, names.student, names.semi_supervised)
    return given


def _student(
    begun: StudentSettings | None, model: str | None, method: str | None
) -> StudentSettings | None:
    """Return the student with another network and kind of training, if they are asked for.

    Args:
      begun: Student of the preset or of the defaults.
      model: Name of a network, or none for the labels alone. Defaults to that of `begun`.
      method: Name of a semi-supervised method, or none. Defaults to that of `begun`.
    """
    if model not in (None, "none", *fit.MODELS):
        raise ValueError(
            f"Expected student to be one of none, {', '.join(fit.MODELS)}, got student={model!r}."
        )
    if method not in (None, *_methods()):
        raise ValueError(
            f"Expected semi_supervised to be one of {', '.join(_methods())}, got "
            f"semi_supervised={method!r}."
        )
    if model == "none" or (begun is None and model is None):
        if method not in (None, "none"):
            raise ValueError(
                f"Expected a student with --semi-supervised {method}, got student=none; pass "
                f"--student {fit.Config.model}."
            )
        return None
    student = Supervised() if begun is None else begun
    if model is not None:
        student = student.with_model(model)
    if method is not None and method != student.semi_supervised:
        student = student.as_kind(_methods()[method])
    return student


def _methods() -> dict[str, type[StudentSettings]]:
    """Return the kinds of training by their word after `--semi-supervised`."""
    kinds = [students.named(name) for name in students.names()]
    others = {kind().name: kind for kind in kinds if kind is not Supervised}
    return {Supervised().semi_supervised: Supervised} | others


def spelled(word: str, chosen: dict[str, Any]) -> str:
    """Return an option with the field of its part in front.

    Args:
      word: Word of a command line. Values are returned as they are.
      chosen: Fields of the experiment.

    Raises:
      ValueError: If the option belongs to a part that was not chosen.
    """
    if not word.startswith("--") or word in ("--help", "--help-verbose"):
        return word
    option, equals, value = word.removeprefix("--").partition("=")
    head, dot, tail = option.partition(".")
    name = head.replace("-", "_")
    if name == "buy" and not isinstance(chosen["labeler"], NoisySGD):
        raise ValueError(f"Expected labeler=noisy_sgd with --{option}; pass --labeler noisy_sgd.")
    part = _part_of(option, chosen) if dot else None
    if part is not None:
        inner, _, rest = tail.partition(".")
        full = _setting(type(chosen[part]), inner) or inner.replace("-", "_")
        return f"--{part}.{full.replace('_', '-')}{'.' if rest else ''}{rest}{equals}{value}"
    if name in chosen or name.removeprefix("no_") in chosen:
        return word
    for field in ("student",) if name in OF_STUDENT else ROOMS:
        if chosen[field] is not None and (setting := _setting(type(chosen[field]), head)):
            return f"--{field}.{setting.replace('_', '-')}{dot}{tail}{equals}{value}"
        room = ROOMS[field]
        # Imports every file of the folder, so only an option that is not found gets here.
        if owners := [each for each in room.names() if _setting(room.named(each), head)]:
            raise ValueError(
                f"Expected settings of {_told(field, chosen[field])}, got --{option}, which is one "
                f"of {field}={' or '.join(owners)}; pass {_choice(field, owners[0], chosen)}, or "
                "put the part that is meant in front, as in --representation.num-neighbors."
            )
    return word


def _part_of(option: str, chosen: dict[str, Any]) -> str | None:
    """Return the field that an option's prefix means, or None if it means none.

    Raises:
      ValueError: If the prefix means a part that was not chosen.
    """
    name = option.partition(".")[0].replace("-", "_")
    for field, room in ROOMS.items():
        own = chosen[field]
        if own is not None and name in (field, own.name):
            return field
        if name == field or (name in room.names() and name not in chosen):
            raise ValueError(
                f"Expected settings of {_told(field, own)}, got --{option}; pass "
                f"{_choice(field, name, chosen)}."
            )
    return None


def _told(field: str, part: Any) -> str:
    """Return a field and the name of its part."""
    return f"{field}={'none' if part is None else part.name}"


def _choice(field: str, name: str, chosen: dict[str, Any]) -> str:
    """Return the options that choose a part."""
    if field != "student":
        return f"--{field} {name}"
    network = f"--student {fit.Config.model}" if chosen["student"] is None else ""
    word = {kind().name: word for word, kind in _methods().items()}.get(name, "none")
    method = f"--semi-supervised {word}" if word != "none" or not network else ""
    return f"{network} {method}".strip()


def _setting(kind: type[Any], option: str) -> str | None:
    """Return the setting that an option without its prefix means, or None if there is none."""
    name = option.replace("-", "_")
    plain = name.removeprefix("no_")
    inner = _inner(kind)
    if plain in inner:
        return name
    return f"num_{name}" if f"num_{name}" in inner else None


def _inner(kind: type[Any]) -> set[str]:
    """Return the settings of a part that are not those of the run."""
    own = {one.name for one in dataclasses.fields(kind)}
    if not issubclass(kind, StudentSettings):
        return own.difference(kind.given)
    network = {one.name for one in dataclasses.fields(fit.Config)}
    return (own - {"student"}) | (network - {"model"})


def shapes_features(option: str) -> bool:
    """Return whether an option changes the data or the representation, whose fit takes longest."""
    head = option.split(".")[0]
    name = head.replace("-", "_")
    if name in OF_REPRESENTATION or name in representations.names():
        return True
    others = {one.name for one in dataclasses.fields(Experiment)}
    kinds = [labelers.named(each) for each in labelers.names()]
    if name in others or name in OF_STUDENT or any(_setting(kind, head) for kind in kinds):
        return False
    return any(_setting(representations.named(each), head) for each in representations.names())


def known(option: str) -> bool:
    """Return whether an option, such as `labeler.trust`, is a setting of any choice of parts."""
    name = option.replace("-", "_").split(".")[0]
    own = {one.name for one in dataclasses.fields(Experiment)}
    parts = [room.named(each) for room in ROOMS.values() for each in room.names()]
    inner = {setting for part in parts for setting in _inner(part)}
    every = (
        own
        | {"semi_supervised"}
        | inner
        | {each for room in ROOMS.values() for each in room.names()}
    )
    return name in every or f"num_{name}" in every


def _choices(given: dict[str, Any]) -> str:
    student = given["student"]
    words = {
        "preset": (presets.NAMES, given["preset"] or "none"),
        "labeler": (labelers.names(), given["labeler"].name),
        "representation": (representations.names(), given["representation"].name),
        "student": (("none", *fit.MODELS), "none" if student is None else student.student.model),
        "semi-supervised": (_methods(), "none" if student is None else student.semi_supervised),
    }
    lines = [
        f"--{name}: {', '.join(choices)} (shown here: {shown})"
        for name, (choices, shown) in words.items()
    ]
    hint = "Prefixes may be left out, as in --members 3. -H says what each option means."
    return "\n".join([*lines, "", hint])


def _values(value: Any, kind: type[Any]) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(kind) if one.init}


def _cast(part: Any, kind: type[Any]) -> Any:
    """Return a part as an instance of its narrowed class, or of its own class."""
    values = _values(part, kind)
    if issubclass(kind, StudentSettings):
        network = kind().student
        values["student"] = type(network)(**_values(part.student, type(network)))
    return kind(**values)


def _narrowed(kind: type[Any]) -> type[Any]:
    """Return a dataclass like `kind` whose settings of the run are no options.

    A student's network is chosen by `--student`, and the network's settings are the student's.
    """
    if issubclass(kind, StudentSettings):
        network = _without(fit.Config, {"model"})
        inline = Annotated[network, tyro.conf.arg(name="")]  # type: ignore[valid-type]
        field: Any = dataclasses.field(default_factory=network)
        return dataclasses.make_dataclass(
            kind.__name__, [("student", inline, field)], bases=(kind,), frozen=True, kw_only=True
        )
    return _without(kind, kind.given)


def _without(kind: type[Any], names: Iterable[str]) -> type[Any]:
    """Return a dataclass like `kind` that does not show some of its fields in the help."""
    hidden = [
        (one.name, Annotated[one.type, tyro.conf.Suppress], dataclasses.field(default=one.default))
        for one in dataclasses.fields(kind)
        if one.name in names
    ]
    return dataclasses.make_dataclass(kind.__name__, hidden, bases=(kind,), frozen=True)


class _Settings(Experiment):
    """Experiment that is checked once, when all its options are known."""

    def __post_init__(self) -> None:
        pass

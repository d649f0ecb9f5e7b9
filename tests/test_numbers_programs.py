"""Numbers of the programs of `rknn experiment`, as tests/test_numbers.py has those of commands."""

import dataclasses
import math
import sys
import typing

import pytest

from rknn_jax._internal import ranges
from rknn_jax.cli import main
from tests.test_numbers import is_number, numbers
from train import commandline
from train.attributes import Attributes
from train.compare.plan import Config as Comparison
from train.experiment import Experiment
from train.parties import Parties

ODD = ("nan", "inf", "-inf", "-1", "1e300", str(2**63))
PROGRAMS = {
    "distill": (Experiment, ()),
    "parties": (Parties, ("--dataset", "digits", "--out", "o")),
    "attributes": (
        Attributes,
        ("--dataset", "digits", "--attributes", "odd=1,3,5,7,9", "--out", "o"),
    ),
    "compare": (Comparison, ("--dataset", "digits", "--out", "o")),
}
FIELDS = [(name, field) for name, (kind, _) in PROGRAMS.items() for field in numbers(kind)]
PARTS = [(f"--{field}", name) for field, room in commandline.ROOMS.items() for name in room.names()]


def test_every_number_of_every_program_has_a_range():
    assert len(FIELDS) > 15
    for name, (kind, _) in PROGRAMS.items():
        for field, allowed in numbers(kind).items():
            assert allowed is not None, f"{name}: {field}"
            assert not allowed.has(math.nan)


def refused(monkeypatch, capfd, *words: str) -> str:
    """Run a program that is to refuse its settings, and return what it printed."""
    monkeypatch.setattr(sys, "argv", ["rknn"])
    try:
        status = main.main(["experiment", *words])
    except SystemExit as end:
        status = end.code
    told = capfd.readouterr()
    assert status == 2, (words, status)
    return " ".join((told.out + told.err).split())


@pytest.mark.long
@pytest.mark.parametrize(("program", "field"), FIELDS)
def test_a_number_out_of_range_is_refused_by_name(monkeypatch, capfd, tmp_path, program, field):
    monkeypatch.chdir(tmp_path)
    kind, words = PROGRAMS[program]
    allowed = numbers(kind)[field]
    flag = f"--{field.replace('_', '-')}"
    for value in ODD:
        number = float(value)
        if not allowed.has(number):
            told = refused(monkeypatch, capfd, program, *words, flag, value)
            assert flag.strip("-") in told or field in told, (value, told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["nan", str(2**63)])
def test_numbers_of_an_audit_are_refused_by_name(monkeypatch, capfd, tmp_path, value):
    monkeypatch.chdir(tmp_path)
    for flag in ("--runs", "--confidence"):
        assert flag in refused(monkeypatch, capfd, "audit", flag, value)


@pytest.mark.parametrize("program", [*PROGRAMS, "audit"])
def test_no_program_takes_a_url_for_a_folder(monkeypatch, capfd, tmp_path, program):
    monkeypatch.chdir(tmp_path)
    _, words = PROGRAMS.get(program, (None, ()))
    given = [*(word for word in words if word not in ("--out", "o")), "--out", "s3://b/x"]
    told = refused(monkeypatch, capfd, program, *given)
    assert "got --out s3://b/x; name another, or" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_numbers_of_parts_are_finite_and_of_use():
    """Without a range of their own, in every labeler and representation."""
    checked = set()
    for flag, name in PARTS:
        if flag == "--student":
            continue
        words = [flag, name] if flag != "--labeler" else [flag, name, "--epsilon", "1"]
        try:
            experiment = commandline.parsed([*words, "--delta", "1e-5"])
        except ValueError:
            continue  # needs other settings
        part = getattr(experiment, flag.strip("-"))
        hints = typing.get_type_hints(type(part), include_extras=True)
        for one in dataclasses.fields(part):
            if one.name in part.given or not is_number(hints[one.name]):
                continue
            for odd in (math.nan, 2**63):
                try:
                    changed = dataclasses.replace(part, **{one.name: odd})
                except (ValueError, TypeError, OverflowError):
                    continue  # refused by the part itself
                own = dataclasses.replace(experiment)
                object.__setattr__(own, flag.strip("-"), changed)
                with pytest.raises(ValueError, match=f"{flag.strip('-')}.{one.name} "):
                    ranges.check_parts(own)
                checked.add((flag, name, one.name))
    assert {flag for flag, *_ in checked} == {"--labeler", "--representation"}
    assert len(checked) > 50, "most are refused here, not by the part itself"

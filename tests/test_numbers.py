"""Every number of every command: in its range, or refused by an error that names it."""

import dataclasses
import json
import math
import os
import signal
import typing
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax import labelers, mechanisms
from rknn_jax._internal.ranges import check, range_of
from rknn_jax.cli import main
from rknn_jax.federation import participation
from rknn_jax.privacy import events
from rknn_jax.privacy.exact_noise import safe_scale
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, LedgerError
from rknn_jax.release import label as job
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.session import Session
from rknn_jax.release.settings import Settings
from tests.conftest import modules
from tests.options import with_options
from tests.test_budget import released
from tests.test_release_folder import FLAGS, files

__all__ = ["files"]  # a fixture

ODD = ("nan", "inf", "-inf", "0", "-1", "1e-300", "1e300", str(2**63))
SECONDS = 60
"""Seconds after which a command counts as endless. Ten are promised, to a machine that is idle."""

WORDS = {
    "label": FLAGS,
    "check": ("R.npz", "--classes", 2),
    "classes": ("--private", "R.npz", "--epsilon", 20, "--delta", 1e-3),
    "budget raise": ("L", "--epsilon", 2, "--reason", "why"),
    "budget adopt": ("L", "--private", "R.npz", "--reason", "why"),
    "budget repair": ("L", "--reason", "why"),
    "serve": (
        *("--public", "P.npz", "--epsilon", 1, "--classes", 2, "--clients", 3),
        *("--out", "round", "--dry-run"),
    ),
    "join": ("--private", "R.npz", "--budget", 1, "--server", "127.0.0.1:9"),
    "simulate": ("--clients", 100, "--queries", 4, "--classes", 2, "--level", "count"),
    "audit": (
        *("--mechanism", "discrete_laplace", "--epsilon", 1, "--runs", 200, "--skip-power"),
        *("--queries", 3, "--classes", 2),
    ),
    "export": ("out", "--format", "csv", "--threshold", 0.5),
    "account shuffle": ("--clients", 60000, "--delta", 1e-6, "--epsilon", 1),
    "account rounds": ("--epsilon", 0.1, "--rounds", 10, "--delta", 1e-5),
    "account private-knn": ("--delta", 1e-5),
    "account gnmax": ("--delta", 1e-5),
    "account lnmax": ("--delta", 1e-5),
}
"""Words of a command that runs, for each command with numbers."""


def leaves(kind, name=""):
    """Return the settings of every command that the parser knows, by its words."""
    found = {}
    for part in typing.get_args(kind):
        settings, command = typing.get_args(part)[0], part.__metadata__[0].name
        hints = typing.get_type_hints(settings, include_extras=True)
        words = f"{name} {command}".strip()
        found |= leaves(hints["action"], words) if "action" in hints else {words: settings}
    return found


def is_number(hint):
    return hint in (int, float) or any(map(is_number, typing.get_args(hint)))


def numbers(settings):
    """Return the fields of a command that hold one number, with their ranges."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {
        one.name: range_of(hints[one.name])
        for one in dataclasses.fields(settings)
        if is_number(hints[one.name])
    }


def with_parts(settings):
    """Return `numbers` of a command and of the parts of its settings."""
    parts = [one.type for one in dataclasses.fields(settings) if dataclasses.is_dataclass(one.type)]
    return {name: allowed for kind in (settings, *parts) for name, allowed in numbers(kind).items()}


COMMANDS = leaves(main.COMMANDS)
FIELDS = [(words, name) for words, kind in COMMANDS.items() for name in with_parts(kind)]


def test_every_number_of_every_command_has_a_range():
    assert len(FIELDS) > 70
    assert {words for words, _ in FIELDS} == set(WORDS)
    for words, kind in COMMANDS.items():
        for name, allowed in with_parts(kind).items():
            assert allowed is not None, f"rknn {words}: {name}"
            assert not allowed.has(math.nan)
            assert not allowed.has(-1) or not allowed.has(-math.inf)


def run(files, rknn, words, name, value):
    """Run a command with another value of one number."""
    ledger = files / "L"
    ledger.unlink(missing_ok=True)
    Ledger.create(ledger, "sha256:0", 1.0, rows=60)
    if words == "budget repair":
        with open(ledger, "a") as file:
            file.write('{"kind": "spend", "delta": "0", "epsilon": "1/2"')
    flag = f"--{name.replace('_', '-')}"
    given = list(WORDS[words])
    if flag in given:
        del given[given.index(flag) : given.index(flag) + 2]
    return flag, rknn(*words.split(), *given, flag, value)


@pytest.mark.long
@pytest.mark.parametrize(("words", "name"), FIELDS)
def test_a_number_that_is_none_is_refused_by_name(files, rknn, words, name):
    flag, done = run(files, rknn, words, name, "nan")
    told = " ".join(done.err.split())
    assert done.status == 2
    assert flag in told
    assert "nan" in told
    assert not (files / "R.npz.ledger.jsonl").exists()


def is_path(hint):
    return hint is Path or any(map(is_path, typing.get_args(hint)))


def paths(settings):
    """Return the flags of a command, and of the parts of its settings, that name files."""
    parts = [one.type for one in dataclasses.fields(settings) if dataclasses.is_dataclass(one.type)]
    return [
        one.name
        for kind in (settings, *parts)
        for one in dataclasses.fields(kind)
        if is_path(hint := typing.get_type_hints(kind, include_extras=True)[one.name])
        and "Positional" not in str(hint)
    ]


PATHS = [(words, name) for words, kind in COMMANDS.items() for name in paths(kind)]


@pytest.mark.parametrize(("words", "name"), PATHS)
def test_a_url_is_no_path(files, rknn, words, name):
    """It would be a folder named `s3:` beside the program."""
    before = {*os.listdir()}
    given = {"embed": ("--table", "P.csv", "--out", "O.npz"), "inspect": ("new",)}
    flag = f"--{name.replace('_', '-')}"
    done = rknn(*words.split(), *{**WORDS, **given}[words], flag, "s3://bucket/a.npz")
    assert done.status == 2
    assert f"got {flag} s3://bucket/a.npz; name another, or" in done.err
    assert {*os.listdir()} == before


def test_a_session_has_no_ledger_behind_a_url():
    for url in ("s3://bucket/ledger.jsonl", "simplecache::s3://bucket/ledger.jsonl"):
        with pytest.raises(ValueError, match=f"got ledger {url}"):
            Session(url, 1.0)


@pytest.mark.long
@pytest.mark.parametrize(("words", "name"), FIELDS)
def test_any_number_is_taken_or_refused_by_name(files, rknn, monkeypatch, words, name):
    outcome = participation.Outcome("over", took_part=True)
    monkeypatch.setattr(participation, "take_part", lambda *_: outcome)

    def end(*_):
        raise TimeoutError(f"more than {SECONDS} s")

    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)  # the alarm stays ours
    signal.signal(signal.SIGALRM, end)
    for value in ODD:
        signal.alarm(SECONDS)
        flag, done = run(files, rknn, words, name, value)
        signal.alarm(0)
        told = " ".join(done.err.split())
        if done.status:
            assert done.status in (2, 3), f"{value}: {told}"
            assert flag in told or "Expected a finished folder" in told, f"{value}: {told}"
        ledger = files / "R.npz.ledger.jsonl"
        if done.status == 2 and ledger.exists():
            assert not Ledger.open(ledger).spent.epsilon
        ledger.unlink(missing_ok=True)
        for path in (files / "new").glob("*"):
            path.unlink()


def test_an_epsilon_without_finite_noise_is_charged_at_no_door(files, rknn):
    tiny = 1e-300
    done = rknn("label", *FLAGS[:-4], "--epsilon", tiny)
    assert done.status == 2
    assert "1e-09 <= epsilon < infinity, got --epsilon 1e-300" in done.err
    rows = np.load(files / "R.npz")
    labeler = ReverseKNNLabeler(
        epsilon=tiny, classes=[0, 1], ledger=files / "L", budget=1.0, n_queries=2
    )
    with pytest.raises(ValueError, match="epsilon"):
        labeler.fit(np.load(files / "P.npz")["embeddings"]).label(
            rows["embeddings"], rows["labels"]
        )
    ledger = Ledger.create(files / "L", "sha256:0", 1)
    with pytest.raises(LedgerError, match="finite size"):
        ledger.charge(released(tiny), "nothing")
    assert not ledger.spent.epsilon


@pytest.mark.parametrize("count", [1e6, 1e12])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("account rounds", ("rounds",)),
        ("account private-knn", ("screens", "answers")),
        ("account gnmax", ("screens", "answers")),
        ("account lnmax", ("answers",)),
    ],
)
def test_any_number_of_queries_has_a_cost_by_a_named_bound(rknn, words, names, count):
    given = [word for name in names for word in (f"--{name}", count)]
    kept = list(WORDS[words])
    if "--rounds" in kept:
        del kept[kept.index("--rounds") : kept.index("--rounds") + 2]
    done = rknn(*words.split(), *kept, *given, "--json")
    assert done.status == 0, done.err
    assert done.json["accountant"] in done.json["accountants"]
    assert "RDP" in done.json["accountants"]
    assert "PLD" not in done.json["accountants"], "its memory grows with the number"
    assert math.isfinite(json.loads(done.out)["epsilon"])


@pytest.mark.long
def test_many_clients_are_shuffled_by_a_named_bound(rknn):
    given = ("--clients", 1e12, "--delta", 1e-14, "--local-epsilon", 1)
    done = rknn("account", "shuffle", *given, "--mechanism", "collision", "--json")
    assert done.json["bound"] == "general"
    assert done.json["epsilon"] == rknn("account", "shuffle", *given, "--json").json["epsilon"]


def test_the_settings_of_a_release_are_checked_without_a_command(files):
    from rknn_jax.release import planning
    from tests.test_release_folder import SETTINGS

    with pytest.raises(ValueError, match="got patience nan"):
        job.release(planning.prepare(with_options(SETTINGS, patience=math.nan)))


SHORTEST = [np.float32(0.3), np.float16(0.3), np.float64(0.3), np.longdouble("0.3")]
"""0.3 in the types of NumPy, none but float64 equal to Python's."""

ARRAYS = [np.array(0.3, np.float32), jnp.asarray(0.3, jnp.float32)]
"""0.3 as a file of arrays holds it, and as JAX computes it."""


@pytest.mark.parametrize(
    "number", [*SHORTEST, *ARRAYS, Fraction(3, 10)], ids=lambda one: str(type(one))
)
def test_a_number_of_another_type_counts_as_what_ledgers_charge(number):
    """float32 noise was off by 1e-7, and its exact scale was sought for hours after the charge."""
    assert safe_scale(2, number) == safe_scale(2, 0.3)
    for module in (*modules(mechanisms), *modules(labelers)):
        for example in getattr(module, "EXAMPLES", ()):
            found, wanted = (dataclasses.replace(example, epsilon=one) for one in (number, 0.3))
            assert repr(found) == repr(wanted)
            assert type(found.epsilon) is float
    assert repr(events.Gaussian(number)) == repr(events.Gaussian(0.3))
    made = Guarantee(number, 0.0, "replace-one", trust="central", events=())
    assert json.dumps(made.asdict()) == json.dumps(dataclasses.replace(made, epsilon=0.3).asdict())


@pytest.mark.parametrize(
    "sized", [np.uint8, lambda size: np.array(size, np.uint8), jnp.uint8], ids=["0", "1", "2"]
)
def test_a_size_of_another_type_counts_as_what_it_is(sized):
    """Of 100 neighbors and 3 labels in uint8, a record moved 88 votes in place of 600."""
    made = mechanisms.discrete_laplace.DiscreteLaplace(1.0, 200, 5, sized(100), sized(3))
    assert made.changed_cells == 600
    for module in (*modules(mechanisms), *modules(labelers)):
        for example in getattr(module, "EXAMPLES", ()):
            sizes = {
                one.name: sized(size)
                for one in dataclasses.fields(example)
                if type(size := getattr(example, one.name)) is int and 0 <= size < 256
            }
            assert repr(dataclasses.replace(example, **sizes)) == repr(example)


def test_a_number_of_another_type_is_in_its_range():
    for wrong in (np.float32(-1), np.float32("nan"), np.int64(0)):
        with pytest.raises(ValueError, match="got epsilon|got --epsilon"):
            check(Settings("P.npz", "R.npz", wrong))
        with pytest.raises(ValueError, match="epsilon > 0"):
            mechanisms.discrete_laplace.DiscreteLaplace(wrong, 4, 3)
    with pytest.raises(ValueError, match="got epsilon"):
        check(Settings("P.npz", "R.npz", Fraction(10**400)))


@pytest.mark.parametrize("number", SHORTEST[:2], ids=lambda one: str(type(one)))
def test_the_estimator_takes_numbers_of_numpy(number, tmp_path):
    rng = np.random.default_rng(0)
    labeler = ReverseKNNLabeler(
        number, classes=[0, 1], n_queries=4, check_share=0.0, ledger=tmp_path / "ledger.jsonl"
    ).fit(rng.normal(size=(20, 2)))
    labeler.label(rng.normal(size=(50, 2)), rng.integers(2, size=50))
    assert labeler.guarantee_.epsilon == 0.3
    assert Ledger.open(tmp_path / "ledger.jsonl").spent.epsilon == Fraction(3, 10)

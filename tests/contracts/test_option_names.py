"""Each message names a setting as the door does through which the user came."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import rknn_jax
from rknn_jax._internal.option_names import as_flag, option, option_names
from rknn_jax.cli.main import main
from rknn_jax.federation.settings import Serve, asked
from rknn_jax.release import planning
from rknn_jax.release.estimator import ReverseKNNLabeler, _as_parameter
from rknn_jax.release.settings import Settings
from tests.options import named_settings
from train import experiment

FOLDER = Path(rknn_jax.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(FOLDER.rglob("*.py"))}
PROGRAMS = ast.parse(Path(experiment.__file__).read_text())
COMMAND = re.compile(r"rknn [a-z]+|python -m|tfds build|flower-supernode|--node-config|--reason")
ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)

OF_LABEL = [
    {"epsilon": -1.0},
    {"epsilon": 51.0},
    {"delta": 0.5},
    {"neighbors": 0},
    {"neighbors": 5, "queries": 4},
    {"queries": 41},
    {"check_share": 0.7},
    {"rounds": 0},
    {"patience": -1.0},
    {"labeler": "nobody"},
    {"labeler": "prototypes", "neighbors": 2},
    {"labeler": "prototypes", "labels_per_record": 2},
    {"labeler": "auto", "relation": "add-remove"},
    {"mechanism": "gaussian"},
    {"mechanism": "collision"},
    {"labels_per_record": 3},
    {"labels_per_record": 2, "mechanism": "permute_and_flip"},
    {"relation": "add-remove"},
    {"budget": 0.5},
    {"records_per_person": 2},
]
OF_SERVE = [
    {"epsilon": 51.0},
    {"clients": 2, "quorum": 3},
    {"labels_per_record": 2, "student": "cnn"},
    {"labeler": "prototypes"},
    {"labeler": "prototypes", "trust": "central", "neighbors": 2},
    {"mechanism": "gaussian"},
]
"""Settings that no door takes."""


def _literals(tree):
    """Yield the texts of a file, each whole, without docstrings."""
    held = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            held.add(node.value)
        if isinstance(node, ast.JoinedStr):
            held.update(node.values)
            yield "".join(one.value for one in node.values if isinstance(one, ast.Constant))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in held:
            yield node.value


def test_no_message_writes_a_flag_but_in_a_command():
    found = [
        (path.name, text)
        for path, tree in TREES.items()
        for text in _literals(tree)
        if "cli" not in path.parts and re.search(r"--[a-z]", text)
        if " " in text.strip() and not COMMAND.search(text)
    ]
    assert found == []


def test_messages_name_fields_that_some_settings_have():
    nodes = [node for tree in (PROGRAMS, *TREES.values()) for node in ast.walk(tree)]
    declared = {
        line.target.id
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    named = {
        node.args[0].value
        for node in nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "option"
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(named) > 30
    assert {name.split(".")[-1] for name in named} - declared == set()


def _message(settings, names):
    """Return the error for the settings of a release, where a door has these names."""
    with option_names(names), pytest.raises(ValueError, match="costs|Expected") as caught:
        planning.prepare(settings)
    return str(caught.value)


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "public.npz", embeddings=ROWS)
    np.savez(tmp_path / "private.npz", embeddings=ROWS, labels=np.arange(40) % 2)
    return tmp_path


def _flags(changes):
    return [word for name, value in changes.items() for word in (as_flag(name), str(value))]


@pytest.mark.parametrize("changes", OF_LABEL, ids=str)
def test_a_release_is_refused_in_the_names_of_its_door(files, capsys, changes):
    data = {"public": str(files / "public.npz"), "private": str(files / "private.npz")}
    data |= {"classes": "2", "epsilon": 1.0} | changes
    with pytest.raises(ValueError, match="costs|Expected") as caught:
        planning.prepare(named_settings(Settings, **data, dry_run=True))
    in_python = str(caught.value)
    assert main(["label", *_flags(data), "--dry-run"]) in (2, 3)
    told = " ".join(capsys.readouterr().err.split())
    assert "--" not in in_python
    template = _message(named_settings(Settings, **data, dry_run=True), "<{}>".format)
    assert in_python == re.sub(r"<(\w+)>", r"\1", template)
    at_command_line = re.sub(r"<(\w+)>", lambda one: as_flag(one[1]), template)
    assert told.endswith(" ".join(f"error: {at_command_line}".split()))


@pytest.mark.parametrize("changes", OF_LABEL, ids=str)
def test_the_estimator_refuses_in_its_own_parameters(files, changes):
    given = {_as_parameter(name): value for name, value in changes.items()}
    labeler = ReverseKNNLabeler(ledger=files / "ledger.jsonl", classes=[0, 1]).set_params(**given)
    private = [[0, 1]] * 40 if "labels_per_record" in changes else np.arange(40) % 2
    with pytest.raises(ValueError, match=r"costs|Expected|must be|Unknown") as caught:
        labeler.fit(ROWS).label(ROWS, private)
    assert not re.search(r"--[a-z]", str(caught.value))
    assert any(name in str(caught.value) for name in given)


@pytest.mark.parametrize("changes", OF_SERVE, ids=str)
def test_a_round_is_refused_in_the_names_of_its_door(files, capsys, changes):
    data = {"public": files / "public.npz", "epsilon": 1.0, "classes": "2", "clients": 3}
    data |= {"out": files / "round"} | changes
    with option_names("<{}>".format), pytest.raises(ValueError, match="Expected") as caught:
        asked(named_settings(Serve, **data))
    template = str(caught.value)
    with pytest.raises(ValueError, match="Expected") as caught:
        asked(named_settings(Serve, **data))
    assert str(caught.value) == re.sub(r"<(\w+)>", r"\1", template)
    assert main(["serve", *_flags(data), "--dry-run"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.sub(r"<(\w+)>", lambda one: as_flag(one[1]), template) in told


def test_names_end_with_their_door():
    with pytest.raises(ValueError, match="--epsilon"), option_names(as_flag):
        raise ValueError(option("epsilon"))
    assert option("private_labels") == "private_labels"

"""Options of a file are those of the command line, which replace them."""

import json

import pytest

from rknn_jax.cli import config
from rknn_jax.cli.main import main


def test_options_of_a_file_come_before_those_of_the_command_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'epsilon = 0.5\ndry_run = true\njson = false\nclasses = "cat,dog"\n'
        'seed = -3\nvary = ["a=1", "b=2"]\n[labeler]\nmax-answers = 7\n'
    )
    expected = ["--epsilon=0.5", "--dry-run", "--classes=cat,dog", "--seed=-3", "--vary"]
    expected += ["a=1", "b=2", "--labeler.max-answers=7"]
    for words in (["--config", str(path)], [f"--config={path}"]):
        found = config.expanded(["label", "--epsilon", "1", *words, "--json"])
        assert found == ["label", *expected, "--epsilon", "1", "--json"]
    (tmp_path / "run.json").write_text(json.dumps({"epsilon": 0.5, "queries": None}))
    found = config.expanded(["label", "--config", str(tmp_path / "run.json")])
    assert found == ["label", "--epsilon=0.5"]
    assert config.expanded(["label", "--epsilon", "1"]) == ["label", "--epsilon", "1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.toml", "epsilon 1", "Expected TOML"),
        ("run.json", "{", "Expected JSON"),
        ("run.json", "[1]", "Expected options by name"),
        ("run.json", "[" * 100_000, "Expected JSON"),
        ("run.toml", "a = \udcff", "Expected TOML"),
        ("run.toml", 'config = "other.toml"', "Expected no option --config"),
        ("none.toml", None, "No such file"),
    ],
)
def test_a_file_that_is_no_options_is_refused(tmp_path, capsys, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert main(["label", "--config", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_config_needs_one_file(capsys):
    assert main(["label", "--config"]) == 2
    assert "Expected --config FILE" in capsys.readouterr().err
    assert main(["label", "--config", "a", "--config", "b"]) == 2
    assert "Expected one --config" in capsys.readouterr().err


def test_a_command_runs_by_its_file_and_says_its_version(tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text("epsilon = 0.1\nrounds = 10\ndelta = 1e-5\njson = true\n")
    assert main(["account", "rounds", "--config", str(path)]) == 0
    by_file = capsys.readouterr().out
    words = ["--epsilon", "0.1", "--rounds", "10", "--delta", "1e-5", "--json"]
    assert main(["account", "rounds", *words]) == 0
    assert capsys.readouterr().out == by_file
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rknn 0.")

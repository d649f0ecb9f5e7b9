"""Options of a file are those of the command line, which replace them."""

import dataclasses
import json
from pathlib import Path

import pytest

from rknn_jax._internal import option_files
from rknn_jax.cli import label
from rknn_jax.cli import main as cli
from rknn_jax.cli.main import main
from rknn_jax.release.settings import Settings
from tests.options import named_settings
from train import commandline, presets
from train.experiment import Experiment


def test_options_of_a_file_come_before_those_of_the_command_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'epsilon = 0.5\ndry_run = true\njson = false\nclasses = "cat,dog"\n'
        'seed = -3\nvary = ["a=1", "b=2"]\n[labeler]\nmax-answers = 7\n'
    )
    expected = ["--epsilon=0.5", "--dry-run", "--classes=cat,dog", "--seed=-3", "--vary"]
    expected += ["a=1", "b=2", "--labeler.max-answers=7"]
    for words in (["--config", str(path)], [f"--config={path}"]):
        found = option_files.expanded(["label", "--epsilon", "1", *words, "--json"])
        assert found == ["label", *expected, "--epsilon", "1", "--json"]
    (tmp_path / "run.json").write_text(json.dumps({"epsilon": 0.5, "queries": None}))
    found = option_files.expanded(["label", "--config", str(tmp_path / "run.json")])
    assert found == ["label", "--epsilon=0.5"]
    assert option_files.expanded(["label", "--epsilon", "1"]) == ["label", "--epsilon", "1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.toml", "epsilon 1", "Expected TOML"),
        ("run.toml", "check-share = 0.1\ncheck_share = 0.3", "got check-share and check_share"),
        ("run.toml", 'classes = ["-a", "b"]', "Expected no '-a' in the list classes"),
        ("run.json", "{", "Expected JSON"),
        ("run.json", '{"epsilon": 1, "epsilon": 9}', "'epsilon' twice"),
        ("run.json", "[1]", "Expected options by name"),
        ("run.json", "[" * 100_000, "Expected JSON"),
        ("run.toml", "a = \udcff", "Expected TOML"),
        ("run.toml", 'config = "other.toml"', "Expected no option --config"),
        ("run.json", '{"options": 3}', "Expected a table options"),
        ("none.toml", None, "No such file"),
    ],
)
def test_a_file_that_is_no_options_is_refused(tmp_path, capsys, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert main(["label", "--config", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "a" + ".a" * 30_000 + " = 1"),
        ("a.toml", "[a" + " . a" * 30_000 + "]"),
        ("a.toml", 'x = {"a"' + '."a"' * 30_000 + " = 1}"),
        ("a.json", '{"a": ' * 300 + "1" + "}" * 300),
    ],
)
def test_a_key_of_many_parts_is_refused_before_it_takes_memory(tmp_path, capsys, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert main(["label", "--config", str(path)]) == 2
    assert "a key of more than 32 parts" in " ".join(capsys.readouterr().err.split())


def test_endless_options_are_refused(capsys):
    assert main(["label", "--config", "/dev/zero"]) == 2
    assert "at most 17 MB of options in /dev/zero" in " ".join(capsys.readouterr().err.split())


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


@pytest.mark.parametrize(
    "line",
    [
        "--dataset digits --epsilon 1 --student none --out a",
        "--labeler pate --num-teachers 25 --delta 1e-5 --epsilon 2 --queries 90 --noise-seed -3",
        "--representation self_trained --members 3 --student mlp --semi-supervised uda --seed 3",
        "--epsilon inf --no-deskew --student linear --epochs 3 --data-dir some/where",
        "--labeler noisy_sgd --network tanh_cnn --epsilon 2 --delta 1e-5 --buy.labels 10 "
        "--buy.oracle benchmark",
        *(f"--preset {name}" for name in presets.NAMES),
    ],
)
def test_the_options_that_a_run_keeps_make_its_settings_again(line, tmp_path):
    experiment = commandline.parsed(line.split())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"epsilon": 7, "options": commandline.options(experiment)}))
    again = commandline.parsed(["--config", str(path), "--out", "a"])
    assert again == dataclasses.replace(experiment, out=Path("a"))


@pytest.mark.parametrize("text", ["false", "true"])
def test_a_flag_of_a_file_is_what_the_file_says(text, tmp_path):
    """A false was left out, also where the default is true."""
    path = tmp_path / "c.toml"
    path.write_text(f"[representation]\ndeskew = {text}\n[student]\nfine_tune = false\n")
    found = commandline.parsed(["--epsilon", "1", "--config", str(path)])
    assert (found.representation.deskew, found.student.fine_tune) == (text == "true", False)


def test_settings_that_only_a_program_writes_are_kept_too():
    """A command line has no word for a preset's number of queries taken back, but a file does."""
    preset = presets.named("mnist-fast")
    told = commandline.options(dataclasses.replace(preset, queries=None))
    assert preset.queries
    assert told["queries"] == "None"
    assert commandline.options(Experiment())["labeler"] == "rknn"


def test_a_release_keeps_its_options_for_the_owner_alone(tmp_path, monkeypatch):
    given = {"private": ("a.npz", "b.npz"), "ledger": Path("own.jsonl"), "standardize": True}
    settings = named_settings(
        Settings, "p.npz", epsilon=0.5, classes="cat,dog", out=tmp_path, **given
    )
    label.keep_options(settings, tmp_path)
    path = tmp_path / "config.json"
    assert path.stat().st_mode & 0o077 == 0
    found = []
    monkeypatch.setattr(cli, "_run", lambda action: found.append(action) or {})
    assert main(["label", "--config", str(path), "--out", str(tmp_path)]) == 0
    assert found == [settings]

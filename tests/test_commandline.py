"""Options of an experiment: names first, then what belongs to the chosen parts."""

import contextlib
import dataclasses
import doctest
import importlib
import io
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import rknn_jax
from rknn_jax import labelers, students
from rknn_jax.cli import main
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.representations import pca, scan, spectral
from rknn_jax.representations.simclr import Config as SimCLR
from rknn_jax.students import mixmatch, supervised, uda, vat
from rknn_jax.students.fit import Config as Network
from train import commandline, presets
from train.experiment import Experiment

PACKAGE = Path(rknn_jax.__file__).parent
M5 = Network(model="m5")
MIXMATCH = mixmatch.Config(replace(M5, label_smoothing=0.0), unlabelled=0.3, unlabelled_weight=5)


def test_nothing_asked_is_the_default():
    assert commandline.parsed([]) == Experiment()


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--labeler.trust local", {"labeler": ReverseKNN(trust="local")}),
        ("--trust local", {"labeler": ReverseKNN(trust="local")}),
        ("--rknn.trust=local", {"labeler": ReverseKNN(trust="local")}),
        (
            "--labeler.neighbors 3 --queries 5",
            {"labeler": ReverseKNN(num_neighbors=3), "queries": 5},
        ),
        ("--no-deskew", {"representation": spectral.Config(deskew=False)}),
        ("--neighbors 3 --queries 5", {"labeler": ReverseKNN(num_neighbors=3), "queries": 5}),
        (
            "--labeler pate --num-teachers 9 --delta 1e-5",
            {"labeler": PATE(num_teachers=9), "delta": 1e-5},
        ),
        (
            "--labeler pate --pate.teachers 9 --delta 1e-5",
            {"labeler": PATE(num_teachers=9), "delta": 1e-5},
        ),
        ("--representation pca --components 7", {"representation": pca.Config(num_components=7)}),
        (
            "--representation scan --scan.pretraining.epochs 3",
            {"representation": scan.Config(SimCLR(epochs=3))},
        ),
        (
            "--representation simclr --epochs 3",
            {"representation": SimCLR(), "student": supervised.Config(Network(epochs=3))},
        ),
        ("--student none", {"student": None}),
        ("--members 3", {"student": supervised.Config(members=3)}),
        ("--student.members 3", {"student": supervised.Config(members=3)}),
        ("--student m5 --targets soft", {"student": supervised.Config(M5, targets="soft")}),
        (
            "--representation simclr --fine-tune --augmentation crop",
            {
                "representation": SimCLR(),
                "student": supervised.Config(Network(augmentation="crop"), fine_tune=True),
            },
        ),
        ("--semi-supervised none", {}),
        ("--semi-supervised vat", {"student": vat.Config()}),
        (
            "--semi-supervised mixmatch --student m5 --unlabelled 0.3 --unlabelled-weight 5",
            {"student": MIXMATCH},
        ),
        (
            "--semi-supervised uda --uda.confidence 0.9 --batch-size 8",
            {"student": uda.Config(replace(uda.Config().student, batch_size=8), confidence=0.9)},
        ),
    ],
)
def test_a_prefix_may_be_left_out_and_a_name_serves_as_one(words, changes):
    assert commandline.parsed(words.split()) == dataclasses.replace(Experiment(), **changes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--pate.num-teachers 9", "pass --labeler pate"),
        ("--simclr.epochs 9", "pass --representation simclr"),
        ("--labeler votes", "labeler to be one of"),
        ("--labeler=", "labeler to be one of"),
        ("--labeler pate --delta 1e-5 --neighbors 4", "one of labeler=.*rknn; pass"),
        ("--labeler pate --delta 1e-5 --trust local", "one of labeler=rknn; pass --labeler rknn"),
        ("--num-components 4 --representation pixels", "one of representation=pca"),
        ("--buy.labels 10", "pass --labeler noisy_sgd"),
        ("--labeler pate", "delta > 0 with labeler=pate"),
        ("--student m8", "student to be one of none, cnn, .*got student='m8'"),
        ("--semi-supervised pl", "one of none, mixmatch, uda, vat, got semi_supervised='pl'"),
        ("--student none --semi-supervised uda", "got student=none; pass --student cnn"),
        ("--student none --members 3", "got --members.*pass --student cnn"),
        ("--student none --student.members 3", "got --student.members; pass --student cnn"),
        ("--student none --epochs 3 --labeler noisy_sgd", "--epochs.*pass --student cnn"),
        ("--unlabelled 0.1", "got --unlabelled.*pass --semi-supervised mixmatch"),
        ("--semi-supervised vat --fine-tune", "got --fine-tune.*pass --semi-supervised none"),
        ("--semi-supervised vat --no-fine-tune", "got --no-fine-tune.*pass"),
        ("--uda.confidence 0.9", "got --uda.confidence; pass --semi-supervised uda"),
        ("--semi-supervised uda --unlabelled 0", "unlabelled=0.0; pass unlabelled 0.1"),
        ("--fine-tune", "with fine_tune, got student=cnn and backbone=None"),
    ],
)
def test_what_belongs_to_no_chosen_part_is_refused_by_name(words, message):
    with pytest.raises(ValueError, match=message):
        commandline.parsed(words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--representation spectral --representation.dimension 7", "--representation.dimension"),
        ("--labeler.epsilon 3", "--labeler.epsilon"),
        ("--trust local --mechanism laplace", "mechanism=laplace"),
        ("--student.model m5", "--student.model"),
        ("--members 0", "members=0"),
        ("--semi-supervised uda --unlabelled 1", "unlabelled=1.0"),
    ],
)
def test_what_the_labeler_lacks_or_the_run_sets_is_no_option(words, message, capsys):
    with pytest.raises(SystemExit):
        commandline.parsed([*words.split(), "--delta", "1e-5"])
    assert message in capsys.readouterr().err


def test_help_fits_two_screens(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert len(help_of().splitlines()) <= 110


def help_of(*words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit):
        commandline.parsed([*words, "--help"], "Label.")
    return shown.getvalue()


def test_help_shows_what_belongs_to_the_chosen_parts():
    usual = help_of()
    assert "--labeler.trust" in usual
    assert f"--labeler: {', '.join(labelers.names())} (shown here: rknn)" in usual
    assert not re.search(r"num-teachers|buy\.labels|pretraining|--labeler\.epsilon", usual)
    assert "--student.fine-tune" in usual
    assert "--student.unlabelled" not in usual
    other = help_of("--labeler", "noisy_sgd", "--representation", "pca", "--student", "none")
    assert not re.search(r"--student\.", other)
    assert "--student.unlabelled" in help_of("--semi-supervised", "vat")
    assert "--buy.labels" in other
    assert "--labeler.clip" in other
    assert "--representation.num-components" in other
    assert "--labeler.trust" not in other


def test_the_examples_in_docstrings_hold():
    """Every module with an example is run by doctest."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in sorted(PACKAGE.rglob("*.py"))
        if ">>> " in path.read_text()
    ]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert len(results) >= 3
    assert sum(found.failed for found in results) == 0
    assert sum(found.attempted for found in results) >= 3


def test_programs_are_commands_too(tmp_path, capsys):
    out = tmp_path / "parties"
    arguments = ["experiment", "parties", "--dataset", "digits", "--out", str(out)]
    assert main.main(arguments) == 0
    assert "3 parties of 333 to 334 records" in capsys.readouterr().out
    assert len(list(out.iterdir())) == 5
    assert main.main(["experiment", "distil"]) == 2
    assert main.main([*arguments, "--parties", "9999"]) == 2
    assert "parties=9999" in capsys.readouterr().err


def test_a_preset_has_settings_for_the_representation_that_is_chosen_instead():
    general = presets.named("cifar10")
    switched = commandline.parsed(
        "--preset cifar10-end-to-end --representation simclr --epsilon 1 --queries 500".split()
    )
    assert switched == dataclasses.replace(general, preset="cifar10-end-to-end")


@pytest.mark.parametrize(
    ("option", "slow"),
    [
        ("seed", True),
        ("representation.epochs", True),
        ("simclr.epochs", True),
        ("components", True),
        ("epochs", False),
        ("student.epochs", False),
        ("unlabelled", False),
        ("semi_supervised", False),
        ("neighbors", False),
        ("labeler.clip", False),
    ],
)
def test_what_changes_the_representation_is_varied_slowest(option, slow):
    assert commandline.shapes_features(option) == slow


def test_what_the_run_sets_cannot_be_set_in_a_representation():
    with pytest.raises(ValueError, match="dimension of representation=spectral"):
        Experiment(representation=spectral.Config(dimension=7))


def test_another_network_or_kind_of_training_keeps_what_both_have():
    general = presets.named("cifar10")
    other = commandline.parsed("--preset cifar10 --student cnn --no-fine-tune".split())
    network = replace(general.student.student, model="cnn")
    assert other.student == supervised.Config(network), "its 30 epochs were asked for"
    quick = commandline.parsed("--preset mnist --student m5".split())
    assert (quick.student.members, quick.student.student.epochs) == (3, 6), "m5's own epochs"
    learns = commandline.parsed("--preset mnist --semi-supervised uda".split()).student
    assert (learns.name, learns.members, learns.student.epochs) == ("uda", 3, 50)


def test_there_is_one_version():
    root = Path(__file__).parents[1]
    stated = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    cited = yaml.safe_load((root / "CITATION.cff").read_text())["version"]
    assert rknn_jax.__version__ == stated == cited


NEWCOMER = """
from dataclasses import dataclass

from rknn_jax.students import mixmatch


@dataclass(frozen=True, kw_only=True)
class Config(mixmatch.Config):
    patience: int = 2
"""


def test_a_kind_of_training_that_is_dropped_into_the_folder_is_taken(tmp_path, monkeypatch):
    (tmp_path / "pseudo_labels.py").write_text(NEWCOMER)
    monkeypatch.setattr(students, "__path__", [*students.__path__, str(tmp_path)])
    words = "--semi-supervised pseudo_labels --patience 5 --student m5 --unlabelled 0.2"
    student = commandline.parsed(words.split()).student
    assert (student.name, student.patience, student.student.model) == ("pseudo_labels", 5, "m5")
    assert student.unlabelled == 0.2
    assert commandline.known("patience")
    with pytest.raises(ValueError, match="pass --semi-supervised pseudo_labels"):
        commandline.parsed(["--patience", "5"])

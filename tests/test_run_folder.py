"""Folders of runs: a question changes nothing, only what a run wrote is removed, and a killed
run begins again.
"""

import dataclasses
import fcntl
import functools
import os
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rknn_jax._internal import checkpoints, progress
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.representations import pixels
from train import buy, distill, environment, run_folder
from train.experiment import TRAINING, Experiment, plain_settings
from train.json_files import write_json

SETTINGS = Experiment(
    dataset="digits",
    epsilon=1.0,
    representation=pixels.Config(),
    queries=12,
    student=None,
    noise_seed=0,
)


@pytest.fixture
def experiment(tmp_path):
    return dataclasses.replace(SETTINGS, out=tmp_path / "run")


@pytest.fixture
def started(experiment):
    """A folder in which a run was killed early, with a user's files."""
    folder = run_folder.make_folder(experiment)
    told = plain_settings(experiment)
    write_json(folder / "config.json", told)
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "student").mkdir()
    (folder / ".labels.npz.new").write_text("half")
    (folder / "report.html.partial").write_text("half")
    (folder / "notes.txt").write_text("mine")
    (folder / "my_notes").mkdir()
    (folder / "my_notes/idea.txt").write_text("mine too")
    return folder


def held_files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


def test_a_question_changes_nothing(experiment, started):
    before = held_files(started)
    assert run_folder.find_result(experiment) is None
    assert held_files(started) == before


def test_clearing_removes_only_what_a_run_writes(started):
    run_folder.clear_partial_run(started)
    assert held_files(started) == ["my_notes", "my_notes/idea.txt", "notes.txt"]


def test_a_run_that_was_killed_before_its_settings_were_written_begins_again(experiment):
    folder = run_folder.make_folder(experiment)
    with progress.listening(functools.partial(run_folder._write_event, folder / "events.jsonl")):
        with progress.phase("loading"):
            pass
    assert run_folder.find_result(experiment) is None
    with run_folder.opened(experiment, again=False):
        assert not held_files(folder)


def test_a_run_that_fails_before_its_settings_are_written_leaves_no_folder(experiment):
    def fail():
        with run_folder.opened(experiment, again=False), progress.phase("loading"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not experiment.out.exists()


def test_events_of_another_program_are_left_alone(experiment):
    folder = run_folder.make_folder(experiment)
    (folder / "events.jsonl").write_text('{"event": "mine"}\n')
    with pytest.raises(ValueError, match="got other files"):
        run_folder.find_result(experiment)
    run_folder.clear_partial_run(folder)
    assert held_files(folder) == ["events.jsonl"]


@pytest.mark.long  # what is cleared is tested without a run, and a run's files in test_distill
def test_every_file_of_a_run_is_known_to_be_one_and_a_killed_run_begins_again_by_the_same_command(
    experiment, started
):
    distill.main(experiment)
    mine = {"notes.txt", "my_notes"}
    written = {path.name for path in started.iterdir()} - mine
    assert written <= {*run_folder.FILES, *run_folder.FOLDERS, run_folder.EVENTS}
    assert run_folder.find_result(experiment)["epsilon"] == 1.0
    assert (started / "my_notes/idea.txt").read_text() == "mine too"
    with pytest.raises(ValueError, match="already holds a run"):
        distill.main(experiment)


def test_a_run_that_was_interrupted_keeps_its_results_unless_it_is_asked_to_begin_again(
    experiment, started
):
    write_json(started / "result.json", {"interrupted": True})
    with pytest.raises(ValueError, match="already holds a run"):
        run_folder.begin(experiment, started, again=False)
    assert (started / "result.json").exists()
    run_folder.begin(experiment, started, again=True)
    assert not (started / "result.json").exists()


def test_a_folder_in_which_another_process_runs_is_refused_and_left_alone(experiment, started):
    before = held_files(started)
    handle = os.open(started, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match="Another process runs in"):
        distill.main(experiment)
    os.close(handle)
    assert held_files(started) == before


@pytest.mark.parametrize("name", ["config.json", "result.json"])
@pytest.mark.parametrize("text", ["", "[]", "null", '{"epsilon', "[" * 100_000])
def test_a_damaged_file_is_named_with_its_path(experiment, started, name, text):
    (started / name).write_text(text)
    with pytest.raises(ValueError, match=str(started / name)):
        run_folder.find_result(experiment)


def test_a_result_of_something_else_is_named(experiment, started):
    write_json(started / "result.json", {})
    with pytest.raises(ValueError, match="result.json, got something else"):
        run_folder.find_result(experiment)


def test_what_a_full_disk_left_of_the_settings_is_no_run(experiment):
    folder = run_folder.make_folder(experiment)
    (folder / ".config.json.new").write_text("")
    assert run_folder.find_result(experiment) is None
    run_folder.begin(experiment, folder, again=False)
    assert held_files(folder) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"index": [1], "guarantee": null}',
        '{"index": {}, "guarantee": {}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_choice_of_labels_names_its_file(tmp_path, text):
    """It was paid for, so that it is not made anew."""
    path = tmp_path / TRAINING / run_folder.CHOICE
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=run_folder.CHOICE):
        run_folder.choice_of(tmp_path, "network", lambda: pytest.fail("chosen anew"))


def test_every_process_finds_the_state_of_a_training():
    """The order of a set differs from process to process."""
    # Their order in memory differs: 0 and 8 begin at one place of a small table.
    one, other = {"dense": 1, "bias": (2, {0, 8})}, {"bias": (2, {8, 0}), "dense": 1}
    assert repr(one["bias"]) != repr(other["bias"])
    assert checkpoints.named("noisy_sgd", (one, 3)) == checkpoints.named("noisy_sgd", (other, 3))
    assert checkpoints.named("noisy_sgd", (one, 3)) != checkpoints.named("noisy_sgd", (one, 4))


def test_what_is_bought_may_change_until_it_was_chosen_with_noise(experiment, started):
    """Another choice would cost anew."""
    other = dataclasses.replace(experiment, buy=buy.Config(epochs=3))
    assert run_folder.find_result(other) is None
    (started / TRAINING).mkdir()
    assert run_folder.find_result(other) is None
    (started / TRAINING / run_folder.CHOICE).write_text("{}")
    with pytest.raises(ValueError, match=r"other settings: buy\.epochs=100 for 3"):
        run_folder.find_result(other)
    assert run_folder.find_result(experiment) is None


def test_a_choice_of_labels_belongs_to_the_network_that_made_it(tmp_path):
    """With another network, both would be released."""
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", (Pure(1.0),))
    chosen = SimpleNamespace(index=np.array([3, 1])), guarantee
    for select in (lambda: chosen, lambda: pytest.fail("chosen anew")):
        index, cost = run_folder.choice_of(tmp_path, "network", select)
        assert index.tolist() == [3, 1]
        assert cost == guarantee
    with pytest.raises(ValueError, match="got another one"):
        run_folder.choice_of(tmp_path, "other", lambda: pytest.fail("chosen anew"))


def test_a_checkout_that_is_not_installed_has_a_version_for_its_results(monkeypatch):
    """The lack of one ended a run after its training."""

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    assert environment.own_version() == metadata.version("rknn-jax")
    monkeypatch.setattr(metadata, "version", absent)
    assert environment.own_version() == "not installed"

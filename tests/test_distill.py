"""Algorithm 1 as a program: what it leaves behind is true, private records enter on one line, and nothing is lost where it stops."""

import dataclasses
import json
import re
import sys
import typing

import numpy as np
import pytest

from rknn_jax import bsvs, data, mechanisms
from rknn_jax.labelers import rknn
from rknn_jax.privacy import accounting
from rknn_jax.representations.dti import Config as DTI
from rknn_jax.representations.scan import Config as SCAN
from rknn_jax.representations.simclr import Config as SimCLR
from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from train import distill
from train.experiment import Experiment, Mechanism
from train.labels import Labels

TINY = Experiment(dataset="digits", epsilon=4.0, queries=20, epochs=1, noise_seed=0, representation="pca")
FILES = {
    "config.json",
    "result.json",
    "privacy.json",
    "metrics.jsonl",
    "labels.npz",
    "queries.npz",
    "student",
    "report.html",
    "privacy.html",
}


def run(folder, **changes):
    return distill.main(dataclasses.replace(TINY, out=folder, **changes))


def told(folder, name):
    return json.loads((folder / name).read_text())


def arrays(folder, name):
    with np.load(folder / name) as file:
        return dict(file)


def epochs(folder):
    return [json.loads(line) | {"seconds": None} for line in (folder / "metrics.jsonl").open()]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return run(tmp_path_factory.mktemp("once") / "run")


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    return run(tmp_path_factory.mktemp("twice") / "run", rounds=2, neighbors=2, uncertain=0.3)


def test_every_file_is_there_and_the_accuracies_are_those_of_the_files(once):
    assert {path.name for path in once.iterdir()} == FILES
    result, labels, task = told(once, "result.json"), arrays(once, "labels.npz"), data.load("digits", TINY.seed)
    assert result["label_accuracy"] == pytest.approx(np.mean(labels["label"] == task.public.true_labels))
    student = ensemble.load(once / "student")
    assert result["test_accuracy"] == pytest.approx(np.mean(student.predict_proba(task.test.images).argmax(1) == task.test.labels))
    assert [json.loads(line)["test_accuracy"] for line in (once / "metrics.jsonl").open()] == [pytest.approx(result["test_accuracy"])]
    assert result["label_accuracy"] > 0.7  # chance is 0.1
    assert (result["epsilon"], result["delta"], result["relation"], result["trust"]) == (4.0, 0.0, "replace-one", "central")
    assert not result["interrupted"]
    assert "nonprivate_label_accuracy" in result["not_covered_by_epsilon"]
    assert not any("nonprivate" in name for name in result)


def test_the_rounds_share_epsilon_and_later_ones_ask_about_less(twice):
    privacy, labels, queries = told(twice, "privacy.json"), arrays(twice, "labels.npz"), arrays(twice, "queries.npz")
    assert [one["epsilon"] for one in privacy["rounds"]] == [2.0, 2.0]
    assert privacy["whole"]["epsilon"] == pytest.approx(4.0)
    assert queries["stddev"] == pytest.approx(np.sqrt(2 * np.exp(-0.5)) / (1 - np.exp(-0.5)))  # scale 2k / (epsilon / 2) = 2
    assert queries["round"].tolist() == [0] * 20 + [1] * 20
    assert np.mean(labels["query"] >= 20) == pytest.approx(0.3)
    assert len((twice / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_noise_seed_repeats_a_run_and_without_one_the_noise_is_new(once, tmp_path):
    again, fresh = run(tmp_path / "again"), run(tmp_path / "fresh", noise_seed=None)
    for name, array in arrays(once, "queries.npz").items():
        np.testing.assert_array_equal(arrays(again, "queries.npz")[name], array, err_msg=name)
    np.testing.assert_array_equal(arrays(again, "labels.npz")["probability"], arrays(once, "labels.npz")["probability"])
    assert np.any(arrays(fresh, "queries.npz")["noisy_counts"] != arrays(once, "queries.npz")["noisy_counts"])


def test_private_records_enter_by_their_votes_alone(once, tmp_path, monkeypatch):
    """With the votes held fixed, replacing every private record changes nothing that epsilon covers."""
    task = data.load("digits", TINY.seed)
    cells = []
    votes = rknn.votes
    monkeypatch.setattr(rknn, "votes", lambda *given: cells.append(votes(*given)) or cells[-1])
    run(tmp_path / "true", rounds=2)

    other = np.random.default_rng(1)
    private = dataclasses.replace(
        task.private, images=other.integers(0, 256, task.private.images.shape, np.uint8), labels=other.integers(0, 10, 1000, np.int32)
    )
    monkeypatch.setattr(data, "load", lambda *_: dataclasses.replace(task, private=private))
    held = iter(cells)
    monkeypatch.setattr(rknn, "votes", lambda *_: next(held))
    run(tmp_path / "other", rounds=2)
    for name in ("labels.npz", "queries.npz"):
        for field, array in arrays(tmp_path / "true", name).items():
            np.testing.assert_array_equal(arrays(tmp_path / "other", name)[field], array, err_msg=field)
    assert epochs(tmp_path / "other") == epochs(tmp_path / "true")
    assert told(tmp_path / "other", "privacy.json") == told(tmp_path / "true", "privacy.json")


def test_one_private_record_moves_at_most_2k_votes_of_a_run(tmp_path, monkeypatch):
    """The whole program at infinite epsilon, with one record replaced by one of the opposite kind."""
    task = data.load("digits", TINY.seed)
    run(tmp_path / "before", epsilon=float("inf"), neighbors=3, smoothing="none")
    images, labels = task.private.images.copy(), task.private.labels.copy()
    images[17], labels[17] = 255 - images[17], (labels[17] + 1) % 10
    private = dataclasses.replace(task.private, images=images, labels=labels)
    monkeypatch.setattr(data, "load", lambda *_: dataclasses.replace(task, private=private))
    run(tmp_path / "after", epsilon=float("inf"), neighbors=3, smoothing="none")
    before, after = (arrays(tmp_path / name, "queries.npz")["noisy_counts"] for name in ("before", "after"))
    assert 0 < np.abs(before - after).sum() <= 6
    assert np.abs(before - after).max() == 1


def test_stopped_in_its_first_epoch_a_run_keeps_the_labels(once, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(students, "fit", stop)
    folder = run(tmp_path / "run", rounds=2)
    result = told(folder, "result.json")
    assert result["interrupted"]
    assert result["test_accuracy"] is None
    assert result["epsilon"] == 2.0, "the second round was not asked and cost nothing"
    assert {path.name for path in folder.iterdir()} == FILES - {"student", "metrics.jsonl"}


@pytest.mark.parametrize(("trust", "delta"), [pytest.param("local", 0.0, marks=pytest.mark.slow), ("shuffle", 1e-6)])
def test_nobody_has_to_be_trusted(trust, delta, tmp_path):
    folder = run(tmp_path / "run", trust=trust, delta=delta, mechanism=None, queries=None, rounds=2)
    result, privacy = told(folder, "result.json"), told(folder, "privacy.json")
    assert (result["trust"], result["epsilon"]) == (trust, pytest.approx(4.0))
    assert result["delta"] == pytest.approx(delta)
    assert result["label_accuracy"] > 0.4
    assert told(folder, "config.json")["mechanism"] == "collision"
    assert [one["trust"] for one in privacy["rounds"]] == [trust] * 2


def test_every_mechanism_that_can_label_is_offered():
    assert set(typing.get_args(Mechanism)) == {name for trust in ("central", "local", "shuffle") for name in mechanisms.names(trust)}


def test_33_rounds_of_a_delta_of_their_own_add_up_to_no_more_than_it():
    experiment = Experiment(epsilon=1.0, delta=1e-6, rounds=33, trust="shuffle")
    one = rknn.guarantee(rknn.mechanism(4, 4, 1000, distill.round_config(experiment)), 1000, distill.round_config(experiment))
    assert accounting.compose([one] * 33, experiment.delta).delta <= 1e-6


def test_the_default_number_of_queries_follows_the_noise(tmp_path, monkeypatch):
    task = data.load("digits", 42)
    few, many = (distill.default_num_queries(task, rknn.Config(epsilon=e), TINY) for e in (1e-9, 100.0))
    assert few == 10, "never fewer than the classes"
    assert many > 100
    assert bsvs.required_gap(2 / 100.0, 10, 0.01) * many * bsvs.SHARED_MARGIN <= 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "0"], "epsilon=0.0"),
        (["--epsilon", "nan"], "epsilon=nan"),
        (["--delta", "1"], "delta=1.0"),
        (["--mechanism", "gaussian"], "delta > 0"),
        (["--trust", "local", "--mechanism", "laplace"], "trust=local, got mechanism=laplace"),
        (["--trust", "shuffle"], "delta > 0"),
        (["--trust", "local", "--relation", "add-remove"], "relation=add-remove"),
        (["--queries", "3", "--neighbors", "4"], "neighbors=4, queries=3"),
        (["--rounds", "0"], "rounds=0"),
        (["--unlabelled", "0.2"], "semi_supervised=mixmatch, uda or vat with unlabelled=0.2"),
        (["--semi-supervised", "vat", "--representation", "pca"], "pass --unlabelled 0.1"),
        (["--labeler", "pate", "--mechanism", "laplace"], "they are those of labeler=rknn"),
        (["--labeler", "private_knn", "--trust", "local"], "got trust=local"),
        (["--labeler", "private_knn", "--representation", "pca"], "delta=0.0"),
        (["--labeler", "private_knn", "--delta", "1e-5", "--private-knn.sampling-prob", "0"], "sampling_prob=0.0"),
        (["--labeler", "pate", "--delta", "1e-5", "--representation", "pca", "--pate.num-teachers", "2000"], "leaves 1000 without"),
        (["--labeler", "private_knn", "--delta", "1e-5", "--representation", "pca", "--queries", "600"], "num_queries=600"),
        (["--dataset", "nowhere"], "nowhere"),
        (["--dataset", "mnist"], "data_dir"),
        (["--dataset", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["--queries", "501"], "num_queries=501"),
        (["--preset", "nothing"], "preset='nothing'"),
        (["--student", "m8"], "student='m8'"),
        (["--student", "none", "--rounds", "2"], "student=none"),
        (["--unlabelled", "1"], "unlabelled=1.0"),
        (["--fine-tune"], "fine_tune"),
        (["--members", "0"], "members=0"),
    ],
)
def test_bad_settings_are_named_and_exit_with_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["distill", "--representation", "pixels", *arguments])
    with pytest.raises(SystemExit, match="^2$"):
        sys.exit(distill.cli())
    error = capsys.readouterr().err
    assert words in re.sub(r"[\s│]+", " ", error), error
    assert "Traceback" not in error
    assert all((folder / "config.json").exists() for folder in tmp_path.glob("runs/*")), "no empty folder looks like a run"


def test_files_beside_a_run_that_fails_stay_and_do_not_hide_its_error(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="data_dir"):
        run(tmp_path, dataset="mnist")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(once):
    before = {path: path.read_bytes() for path in once.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="already holds a run"):
        run(once)
    assert {path: path.read_bytes() for path in once.rglob("*") if path.is_file()} == before


def test_labels_alone_need_no_student(tmp_path):
    folder = run(tmp_path / "run", student="none")
    assert {path.name for path in folder.iterdir()} == FILES - {"metrics.jsonl", "student"}
    result = told(folder, "result.json")
    assert result["test_accuracy"] is None
    assert not result["interrupted"]
    assert result["label_accuracy"] > 0.7


def test_members_differ_and_the_result_is_that_of_their_mean(once, tmp_path):
    folder = run(tmp_path / "run", members=2)
    both, task = ensemble.load(folder / "student"), data.load("digits", TINY.seed)
    each = [member.predict_proba(task.test.images) for member in both.members]
    assert told(folder, "result.json")["test_accuracy"] == pytest.approx(np.mean(sum(each).argmax(1) == task.test.labels))
    assert [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").open()] == [1, 2]


def test_neighbours_that_change_a_label_make_it_no_surer():
    labels = Labels(np.float32([[0.9, 0.1], [0.9, 0.1], [0.8, 0.2]]), np.float32([0.95, 0.95, 0.3]), np.int32([0, 0, 1]))
    spread = labels.spread(np.float32([[0.7, 0.3], [0.4, 0.6], [0.1, 0.9]]))
    np.testing.assert_allclose(spread.confidence, [0.95, 0.6, 0.3], rtol=1e-6)


def test_the_surest_records_are_those_that_noise_and_neighbours_leave_sure():
    probabilities = np.float32([[0.9, 0.1], [0.6, 0.4], [1, 0], [0, 0]])
    labels = Labels(probabilities, np.float32([1, 1, 0.7, 1]), np.int32([0, 0, 1, -1]))
    assert labels.surest(2 / 3).tolist() == [True, False, True, False]
    assert labels.surest(1.0).tolist() == [True, True, True, False], "what has no label is never learned"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"representation": "simclr", "fine_tune": True},
        {"representation": "scan", "fine_tune": True, "queries": None, "epochs": 5},
        {"representation": "dti", "queries": 12},
        {"semi_supervised": "mixmatch", "unlabelled": 0.3},
        {"semi_supervised": "uda", "unlabelled": 0.3, "epochs": 2},
        {"semi_supervised": "vat", "unlabelled": 0.3, "epochs": 2},
    ],
    ids=["simclr", "scan", "dti", "mixmatch", "uda", "vat"],
)
def test_trained_representations_and_other_ways_to_learn_run_through(changes, tmp_path):
    simclr = SimCLR(epochs=5, batch_size=128)
    settings = {"simclr": simclr, "scan": SCAN(simclr, epochs=2, self_label_epochs=1), "dti": DTI(epochs=2, width=4, blocks=1)}
    folder = run(tmp_path / "run", **settings | changes | {"representation_dir": tmp_path / "representation"})
    result = told(folder, "result.json")
    assert result["label_accuracy"] > 0.2  # chance is 0.1
    assert result["test_accuracy"] > 0.2


def test_targets_are_as_sure_as_the_noise_leaves_the_label():
    labels = Labels(np.float32([[0.6, 0.4, 0], [0.1, 0.2, 0.7]]), np.float32([1, 0.4]), np.int32([0, 1]))
    np.testing.assert_allclose(labels.targets("hard"), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(labels.targets("soft"), labels.probabilities)
    np.testing.assert_allclose(labels.targets("posterior"), [[1, 0, 0], [0.2, 0.2, 0.6]], rtol=1e-6)


def test_settings_reach_the_mechanism_and_the_student(tmp_path):
    config = distill.round_config(dataclasses.replace(TINY, mechanism="gaussian", delta=1e-6, rounds=2, relation="add-remove", neighbors=3))
    assert config == rknn.Config(2.0, config.delta, 3, "gaussian", "central", relation="add-remove")
    assert config.delta == pytest.approx(5e-7)
    assert distill.student_config(dataclasses.replace(TINY, student="m5", epochs=None)).epochs == 6
    uda = distill.student_config(dataclasses.replace(TINY, semi_supervised="uda", unlabelled_weight=3.0, augmentation="crop"))
    assert (uda.student.epochs, uda.student.augmentation, uda.unlabelled_weight, uda.strong) == (1, "crop", 3.0, "photo")
    vat = distill.student_config(dataclasses.replace(TINY, semi_supervised="vat", epochs=None, student="m5"))
    assert (vat.student.epochs, vat.student.model, vat.unlabelled_weight) == (25, "m5", 1.0), "its own epochs, and not the network's"

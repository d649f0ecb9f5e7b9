"""Algorithm 1 as a program: what it leaves behind is true, private records enter on one line,
and nothing is lost where it stops.
"""

import dataclasses
import functools
import json
import re
import sys
import types

import jax
import numpy as np
import pytest

from rknn_jax import bsvs, data, mechanisms
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labels import Labels
from rknn_jax.privacy import accounting
from rknn_jax.representations import pca
from rknn_jax.representations.dti import Config as DTI
from rknn_jax.representations.scan import Config as SCAN
from rknn_jax.representations.simclr import Config as SimCLR
from rknn_jax.students import ensemble, mixmatch, supervised, uda, vat
from rknn_jax.students import fit as students
from tests import recorded, tiny
from train import commandline, distill, stages, truth
from train.experiment import Experiment

# Every run has the shapes of the first, and so compiles next to nothing.
TINY = Experiment(
    dataset="digits",
    epsilon=4.0,
    queries=20,
    labeler=rknn.ReverseKNN(num_neighbors=2),
    student=supervised.Config(students.Config(epochs=1, batch_size=24, augmentation="none")),
    noise_seed=0,
    representation=pca.Config(),
)
SIMCLR = SimCLR(epochs=5, batch_size=128)
NUM_PUBLIC = 120
NUM_TEST = 60
FILES = {
    "config.json",
    "result.json",
    "privacy.json",
    "metrics.jsonl",
    "events.jsonl",
    "labels.npz",
    "queries.npz",
    "student",
    "report.html",
    "privacy.html",
}


def run(folder, *, benchmark=False, **changes):
    return distill.main(tiny.changed(TINY, out=folder, **changes), benchmark=benchmark)


def told(folder, name):
    return json.loads((folder / name).read_text())


def arrays(folder, name):
    with np.load(folder / name) as file:
        return dict(file)


def epochs(folder):
    return [json.loads(line) | {"seconds": None} for line in (folder / "metrics.jsonl").open()]


load_all = data.load


@functools.cache
def digits(seed):
    """The digits with few public and test records."""
    task = load_all("digits", seed)
    public = dataclasses.replace(
        task.public,
        images=task.public.images[:NUM_PUBLIC],
        true_labels=task.public.true_labels[:NUM_PUBLIC],
    )
    test = dataclasses.replace(
        task.test, images=task.test.images[:NUM_TEST], labels=task.test.labels[:NUM_TEST]
    )
    return dataclasses.replace(task, public=public, test=test)


def load(name, seed, data_dir=None):
    return digits(seed) if name == "digits" else load_all(name, seed, data_dir)


def model_of(config):
    """A student that compiles in no time in the place of the default one; jitted steps tell it
    apart by its unusual batch size.
    """
    known = TINY.student.student
    if (config.model, config.batch_size) == (known.model, known.batch_size):
        return types.SimpleNamespace(Model=tiny.Linear, MIN_SIZE=2)
    return network_of_name(config)


network_of_name = students._model


@pytest.fixture(scope="module", autouse=True)
def small_runs():
    """Few records, a linear student, and few draws of what only a benchmark can know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", load)
        patch.setattr(students, "_model", model_of)
        patch.setattr(truth, "EPSILONS", (0.1, 2.0))
        patch.setattr(truth, "DRAWS", 2)
        yield


@pytest.fixture(scope="module")
def once(tmp_path_factory, small_runs):
    return run(tmp_path_factory.mktemp("once") / "run", benchmark=True)


@pytest.fixture(scope="module")
def twice(tmp_path_factory, small_runs):
    """A run of two rounds, and the votes of each."""
    cells = []
    votes = rknn.ReverseKNN.contribute

    def remembered(*given, **named):
        cells.append(votes(*given, **named))
        return cells[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rknn.ReverseKNN, "contribute", remembered)
        folder = run(tmp_path_factory.mktemp("twice") / "run", rounds=2, uncertain=0.3)
    return folder, tuple(cells)


def accuracies_are_those_of_the_files(folder, task):
    result = told(folder, "result.json")
    labels = arrays(folder, "labels.npz")
    assert result["label_accuracy"] == pytest.approx(
        np.mean(labels["label"] == task.public.true_labels)
    )
    student = ensemble.load(folder / "student")
    assert result["test_accuracy"] == pytest.approx(
        np.mean(student.predict_proba(task.test.images).argmax(1) == task.test.labels)
    )
    assert epochs(folder)[-1]["test_accuracy"] == pytest.approx(result["test_accuracy"])


def test_every_file_is_there_and_the_accuracies_are_those_of_the_files(once):
    assert {path.name for path in once.iterdir()} == FILES
    accuracies_are_those_of_the_files(once, digits(TINY.seed))
    result = told(once, "result.json")
    assert len(epochs(once)) == 1
    assert result["label_accuracy"] > 0.7  # chance is 0.1
    assert (result["epsilon"], result["delta"], result["relation"], result["trust"]) == (
        4.0,
        0.0,
        "replace-one",
        "central",
    )
    assert not result["interrupted"]
    assert "nonprivate_label_accuracy" in result["not_covered_by_epsilon"]
    assert not any("nonprivate" in name for name in result)


WHOLE = {
    "batch_size": students.Config.batch_size,
    "augmentation": "warp",
    "num_neighbors": 1,
    "benchmark": True,
}


def test_labels_and_queries_are_those_that_were_recorded(once):
    labels = arrays(once, "labels.npz")
    queries = arrays(once, "queries.npz")
    recorded.check("labels of a run", labels["label"], labels["query"])
    recorded.check("queries of a run", queries["label"], queries["public_index"])


@pytest.mark.slow
def test_the_default_student_learns_from_all_public_records(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", load_all)
    folder = run(tmp_path / "run", rounds=2, **WHOLE)
    accuracies_are_those_of_the_files(folder, load_all("digits", TINY.seed))
    assert told(folder, "result.json")["label_accuracy"] > 0.7
    assert told(folder, "result.json")["num_public"] == 500


@pytest.mark.long
def test_the_rounds_share_epsilon_and_later_ones_ask_about_less(twice):
    folder, _ = twice
    privacy = told(folder, "privacy.json")
    labels = arrays(folder, "labels.npz")
    queries = arrays(folder, "queries.npz")
    assert [one["epsilon"] for one in privacy["rounds"]] == [2.0, 2.0]
    assert privacy["whole"]["epsilon"] == pytest.approx(4.0)
    assert queries["stddev"] == pytest.approx(
        np.sqrt(2 * np.exp(-0.5)) / (1 - np.exp(-0.5))
    )  # scale 2k / (epsilon / 2) = 2
    assert queries["round"].tolist() == [0] * 20 + [1] * 20
    assert np.mean(labels["query"] >= 20) == pytest.approx(0.3)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.long
def test_a_noise_seed_repeats_a_run_and_without_one_the_noise_is_new(once, tmp_path):
    again = run(tmp_path / "again")
    fresh = run(tmp_path / "fresh", noise_seed=None, student=None)
    for name in ("queries.npz", "labels.npz"):
        for field, array in arrays(once, name).items():
            np.testing.assert_array_equal(arrays(again, name)[field], array, err_msg=field)
    assert epochs(again) == epochs(once)
    assert np.any(
        arrays(fresh, "queries.npz")["noisy_counts"] != arrays(once, "queries.npz")["noisy_counts"]
    )


def test_no_two_runs_without_a_noise_seed_have_the_same_noise():
    """Whoever repeats such a run could subtract the noise."""
    keys = [stages.keys_of(dataclasses.replace(TINY, noise_seed=None)) for _ in range(3)]
    assert len({tuple(jax.random.key_data(key.noise).tolist()) for key in keys}) == 3
    assert len({tuple(jax.random.key_data(key.public).tolist()) for key in keys}) == 1


@pytest.mark.long
def test_private_records_enter_by_their_votes_alone(twice, tmp_path, monkeypatch):
    """With the votes held fixed, replacing every private record changes nothing that epsilon
    covers.
    """
    folder, cells = twice
    task = digits(TINY.seed)
    other = np.random.default_rng(1)
    private = dataclasses.replace(
        task.private,
        images=other.integers(0, 256, task.private.images.shape, np.uint8),
        labels=other.integers(0, 10, 1000, np.int32),
    )
    monkeypatch.setattr(data, "load", lambda *_: dataclasses.replace(task, private=private))
    held = iter(cells)
    monkeypatch.setattr(rknn.ReverseKNN, "contribute", lambda *_, **__: next(held))
    run(tmp_path / "other", rounds=2, uncertain=0.3)
    assert len(cells) == 2
    for name in ("labels.npz", "queries.npz"):
        for field, array in arrays(folder, name).items():
            np.testing.assert_array_equal(
                arrays(tmp_path / "other", name)[field], array, err_msg=field
            )
    assert epochs(tmp_path / "other") == epochs(folder)
    one, other = (told(path, "privacy.json") for path in (folder, tmp_path / "other"))
    assert {name for name in one if one[name] != other[name]} <= {"release", "time"}


@pytest.mark.long
def test_one_private_record_moves_at_most_2k_votes_of_a_run(tmp_path, monkeypatch):
    """The whole program at infinite epsilon, with one record replaced by one of the opposite
    kind.
    """
    task = digits(TINY.seed)
    settings = {"epsilon": float("inf"), "smoothing": "none", "student": None}
    run(tmp_path / "before", **settings)
    images = task.private.images.copy()
    labels = task.private.labels.copy()
    images[17] = 255 - images[17]
    labels[17] = (labels[17] + 1) % 10
    private = dataclasses.replace(task.private, images=images, labels=labels)
    monkeypatch.setattr(data, "load", lambda *_: dataclasses.replace(task, private=private))
    run(tmp_path / "after", **settings)
    before, after = (
        arrays(tmp_path / name, "queries.npz")["noisy_counts"] for name in ("before", "after")
    )
    assert 0 < np.abs(before - after).sum() <= 2 * TINY.labeler.num_neighbors
    assert np.abs(before - after).max() == 1
    assert "the student" not in told(tmp_path / "after", "privacy.json")["released"]


@pytest.mark.long
def test_stopped_in_its_first_epoch_a_run_keeps_the_labels(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(students, "fit", stop)
    folder = run(tmp_path / "run", rounds=2, benchmark=True)
    result = told(folder, "result.json")
    assert result["interrupted"]
    assert result["test_accuracy"] is None
    assert result["epsilon"] == 2.0, "the second round was not asked and cost nothing"
    assert {path.name for path in folder.iterdir()} == FILES - {"student", "metrics.jsonl"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("trust", "delta"),
    [
        pytest.param("local", 0.0, marks=pytest.mark.slow),
        pytest.param("shuffle", 1e-6, marks=pytest.mark.long),
    ],
)
def test_nobody_has_to_be_trusted(trust, delta, tmp_path):
    folder = run(
        tmp_path / "run", trust=trust, delta=delta, mechanism=None, rounds=2, uncertain=0.3
    )
    result = told(folder, "result.json")
    privacy = told(folder, "privacy.json")
    assert (result["trust"], result["epsilon"]) == (trust, pytest.approx(4.0))
    assert result["delta"] == pytest.approx(delta)
    assert result["label_accuracy"] > 0.4
    assert told(folder, "config.json")["mechanism"] == "collision"
    assert [one["trust"] for one in privacy["rounds"]] == [trust] * 2


@pytest.mark.long
def test_every_mechanism_that_can_label_is_offered_and_no_other():
    for trust in ("central", "local", "shuffle"):
        for name in mechanisms.names():
            settings = {"mechanism": name, "trust": trust, "delta": 1e-6}
            if name in mechanisms.names(trust):
                assert tiny.changed(Experiment(), **settings).labeler.noise == name
            else:
                with pytest.raises(ValueError, match="mechanism to be one of"):
                    tiny.changed(Experiment(), **settings)
    with pytest.raises(ValueError, match="representation to be one of dti, hog"):
        commandline.parsed(["--representation", "unheard"])


def test_33_rounds_of_a_delta_of_their_own_add_up_to_no_more_than_it():
    shuffled = rknn.ReverseKNN(trust="shuffle")
    experiment = Experiment(epsilon=1.0, delta=1e-6, rounds=33, labeler=shuffled)
    labeler = experiment.labeler_of_round()
    one = _vote_mechanism.guarantee(
        _vote_mechanism.calibrated(4, 4, 1000, labeler),
        1000,
        labeler,
    )
    assert accounting.compose([one] * 33, experiment.delta).delta <= 1e-6


def test_the_default_number_of_queries_follows_the_noise():
    task = digits(42)
    few, many = (
        stages.default_num_queries(task, rknn.ReverseKNN(epsilon=e), TINY) for e in (1e-9, 100.0)
    )
    assert few == 10, "never fewer than the classes"
    assert many > 100
    shuffled, local = (
        rknn.ReverseKNN(2.0, 1e-6, mechanism="collision", trust=trust)
        for trust in ("shuffle", "local")
    )
    central = stages.default_num_queries(task, rknn.ReverseKNN(epsilon=2.0), TINY)
    assert (
        10
        <= stages.default_num_queries(task, local, TINY)
        < stages.default_num_queries(task, shuffled, TINY)
        < central
    )
    assert bsvs.required_gap(2 / 100.0, 10, 0.01) * many * bsvs.SHARED_MARGIN <= 1000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"mechanism": "gaussian"}, "delta > 0"),
        ({"trust": "local", "mechanism": "laplace"}, "trust=local, got mechanism=laplace"),
        ({"trust": "shuffle"}, "delta > 0"),
        ({"trust": "local", "relation": "add-remove"}, "relation=add-remove"),
        ({"queries": 3, "num_neighbors": 4}, "neighbors=4, queries=3"),
        ({"rounds": 0}, "rounds=0"),
        ({"student": vat.Config(unlabelled=0.0)}, "got unlabelled=0.0; pass unlabelled 0.1"),
        (
            {"labeler": PrivateKNN()},
            "labeler=private_knn, trust=central and noise=gaussian, got delta=0.0",
        ),
        ({"labeler": PATE()}, "labeler=pate, trust=central and noise=gaussian, got delta=0.0"),
        (
            {"labeler": NoisySGD()},
            "labeler=noisy_sgd, trust=central and noise=gaussian, got delta=0.0",
        ),
        ({"student": None, "rounds": 2}, "student=none"),
        ({"fine_tune": True}, "with fine_tune, got student=cnn and backbone=None"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        tiny.changed(Experiment(), **settings)


def test_what_has_no_gaussian_noise_needs_no_delta():
    assert Experiment(labeler=PrivateKNN(), epsilon=float("inf")).delta == 0
    assert Experiment(labeler=PATE(aggregator="lnmax")).delta == 0
    declines = Experiment(labeler=PATE(), student=vat.Config(unlabelled=0.0), delta=1e-5)
    assert declines.student.unlabelled == 0, "records that were not asked about are unlabeled"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "0"], "epsilon=0.0"),
        (
            ["--labeler", "private_knn", "--delta", "1e-5", "--private-knn.sampling-prob", "0"],
            "sampling_prob=0.0",
        ),
        (
            ["--labeler", "pate", "--delta", "1e-5", "--pate.num-teachers", "1001"],
            "leaves 1 without",
        ),
        (["--labeler", "private_knn", "--delta", "1e-5", "--queries", "121"], "num_queries=121"),
        (["--dataset", "nowhere"], "nowhere"),
        (["--dataset", "mnist"], "data_dir"),
        (["--dataset", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["--queries", "121"], "num_queries=121"),
        (["--queries", "25", "--rounds", "2"], "later rounds ask about the --uncertain share"),
        (["--preset", "nothing"], "preset='nothing'"),
    ],
)
def test_bad_settings_exit_with_2_before_anything_is_learned(
    arguments, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["distill", "--representation", "pixels", *arguments])
    monkeypatch.setattr(stages, "fit_representation", None)
    with pytest.raises(SystemExit, match="^2$"):
        sys.exit(distill.cli())
    error = capsys.readouterr().err
    assert words in re.sub(r"[\s│]+", " ", error), error
    assert "Traceback" not in error
    assert all((folder / "config.json").exists() for folder in tmp_path.glob("runs/*")), (
        "no empty folder looks like a run"
    )


def test_as_many_queries_as_public_records_and_teachers_as_private_ones_will_do():
    stages.check(digits(TINY.seed), dataclasses.replace(TINY, queries=NUM_PUBLIC))
    later = dataclasses.replace(TINY, rounds=2, uncertain=0.1, epsilon=30.0)
    stages.check(digits(TINY.seed), dataclasses.replace(later, queries=24))
    assert stages.default_num_queries(digits(TINY.seed), later.labeler_of_round(), later) == 24
    teachers = dataclasses.replace(TINY, labeler=PATE(num_teachers=1000), delta=1e-5)
    stages.check(digits(TINY.seed), teachers)
    more = dataclasses.replace(teachers, labeler=PATE(num_teachers=1001), relation="add-remove")
    stages.check(digits(TINY.seed), more)


def test_who_learns_from_unlabelled_records_needs_some():
    student = vat.Config(unlabelled=0.0)
    images = digits(TINY.seed).public.images
    everything = np.eye(10, dtype=np.float32)[digits(TINY.seed).public.true_labels]
    labels = Labels(everything, np.ones(NUM_PUBLIC, np.float32), np.zeros(NUM_PUBLIC, np.int32))
    with pytest.raises(
        ValueError,
        match="semi_supervised=vat, got none; pass unlabelled 0.1, or smoothing none",
    ):
        student.fit(None, images, labels)


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


@pytest.mark.long
def test_labels_alone_need_no_student(tmp_path):
    folder = run(tmp_path / "run", student=None, benchmark=True)
    assert {path.name for path in folder.iterdir()} == FILES - {"metrics.jsonl", "student"}
    result = told(folder, "result.json")
    assert result["test_accuracy"] is None
    assert not result["interrupted"]
    assert result["label_accuracy"] > 0.7


@pytest.mark.long
def test_members_differ_and_the_result_is_that_of_their_mean(tmp_path):
    folder = run(tmp_path / "run", members=2)
    both = ensemble.load(folder / "student")
    task = digits(TINY.seed)
    each = [member.predict_proba(task.test.images) for member in both.members]
    assert np.abs(each[0] - each[1]).max() > 0.01
    assert told(folder, "result.json")["test_accuracy"] == pytest.approx(
        np.mean(sum(each).argmax(1) == task.test.labels)
    )
    assert [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").open()] == [1, 2]


def test_neighbours_that_change_a_label_make_it_no_surer():
    labels = Labels(
        np.float32([[0.9, 0.1], [0.9, 0.1], [0.8, 0.2]]),
        np.float32([0.95, 0.95, 0.3]),
        np.int32([0, 0, 1]),
    )
    spread = labels.spread(np.float32([[0.7, 0.3], [0.4, 0.6], [0.1, 0.9]]))
    np.testing.assert_allclose(spread.confidence, [0.95, 0.6, 0.3], rtol=1e-6)


def test_the_surest_records_are_those_that_noise_and_neighbours_leave_sure():
    probabilities = np.float32([[0.9, 0.1], [0.6, 0.4], [1, 0], [0, 0]])
    labels = Labels(probabilities, np.float32([1, 1, 0.7, 1]), np.int32([0, 0, 1, -1]))
    assert labels.surest(2 / 3).tolist() == [True, False, True, False]
    assert labels.surest(1.0).tolist() == [True, True, True, False], (
        "what has no label is never learned"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"representation": SIMCLR, "fine_tune": True},
        {
            "representation": SCAN(SIMCLR, epochs=2, self_label_epochs=1),
            "fine_tune": True,
            "queries": None,
            "epochs": 5,
        },
        {"representation": DTI(epochs=2, width=4, blocks=1), "queries": 12},
        {"student": mixmatch.Config(unlabelled=0.3), "epochs": 1},
        {"student": uda.Config(unlabelled=0.3), "epochs": 2},
        {"student": vat.Config(unlabelled=0.3), "epochs": 2},
    ],
    ids=["simclr", "scan", "dti", "mixmatch", "uda", "vat"],
)
def test_trained_representations_and_other_ways_to_learn_run_through(
    changes, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "load", load_all)
    folder = run(
        tmp_path / "run",
        **WHOLE | changes | {"representation_dir": tmp_path / "representation"},
    )
    result = told(folder, "result.json")
    assert result["label_accuracy"] > 0.2  # chance is 0.1
    assert result["test_accuracy"] > 0.2


def test_targets_are_as_sure_as_the_noise_leaves_the_label():
    labels = Labels(
        np.float32([[0.6, 0.4, 0], [0.1, 0.2, 0.7]]), np.float32([1, 0.4]), np.int32([0, 1])
    )
    np.testing.assert_allclose(labels.targets("hard"), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_allclose(labels.targets("soft"), labels.probabilities)
    np.testing.assert_allclose(labels.targets("posterior"), [[1, 0, 0], [0.2, 0.2, 0.6]], rtol=1e-6)


def test_settings_reach_the_mechanism():
    asked = tiny.changed(
        TINY, mechanism="gaussian", delta=1e-6, rounds=2, relation="add-remove", num_neighbors=3
    )
    config = asked.labeler_of_round()
    assert config == rknn.ReverseKNN(
        2.0, config.delta, 3, "gaussian", "central", relation="add-remove"
    )
    assert config.delta == pytest.approx(5e-7)

"""The whole program with labelers that train a network, and with labels that are bought: what is
spent, kept, and gone on with.
"""

import dataclasses
import json
import shlex
import shutil

import jax
import numpy as np
import pytest

from rknn_jax import data
from rknn_jax.labelers import dpdfd
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.representations import pca
from rknn_jax.students import dpsgd, supervised
from rknn_jax.students import fit as students
from rknn_jax.students import generator as generators
from train import buy, commandline, distill, learn, report, run_folder
from train.experiment import TRAINING, Experiment
from train.report.settings import command

HEAD = NoisySGD(network="linear", batch_size=250, epochs=6, learning_rate=2.0)
IMAGES = NoisySGD(network="datalens", batch_size=250, epochs=1)
LINEAR = supervised.Config(students.Config(model="linear", epochs=1))
BOUGHT = buy.Config(labels=20, oracle="benchmark", select="entropy", epochs=1)
TINY = Experiment(
    labeler=HEAD,
    epsilon=8.0,
    delta=1e-5,
    representation=pca.Config(),
    student=None,
    seed=3,
    noise_seed=0,
)


def run(out, **changes):
    return distill.main(dataclasses.replace(TINY, out=out, **changes))


def told(folder, name):
    return json.loads((folder / name).read_text())


def weights(folder):
    with np.load(folder / "model" / "head.npz") as head:
        return head["Dense_0.kernel"]


def counted(monkeypatch, steps):
    """Have every private step that is taken add to `steps`."""
    real = dpsgd._descend
    monkeypatch.setattr(
        dpsgd, "_descend", lambda *given, **named: steps.append(1) or real(*given, **named)
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of `TINY`."""
    return run(tmp_path_factory.mktemp("finished") / "run")


@pytest.mark.long
def test_a_student_that_is_stopped_leaves_the_private_network_and_its_run_is_told_of(
    tmp_path, monkeypatch
):
    """The same command goes on: no private step is taken again, and no other noise is drawn."""
    steps = []
    counted(monkeypatch, steps)

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(learn.ensemble, "fit", stopped)
        first = run(tmp_path / "run", student=LINEAR)
    assert told(first, "result.json")["interrupted"]
    before = weights(first)
    taken = len(steps)
    folder = run(tmp_path / "run", student=LINEAR)
    assert len(steps) == taken
    np.testing.assert_array_equal(weights(folder), before)
    result = told(folder, "result.json")
    privacy = told(folder, "privacy.json")
    assert not result["interrupted"]
    assert result["label_accuracy"] > 0.7
    assert result["model_test_accuracy"] > 0.7
    assert result["test_accuracy"] is not None
    assert result["epsilon"] <= 8.0
    [event] = privacy["whole"]["events"]
    assert (event["replaced"], event["opposite"], event["count"], event["sampling_prob"]) == (
        True,
        True,
        24,
        0.25,
    )
    assert "the network" in privacy["covers"]
    assert "label_accuracy_by_epsilon" not in result["not_covered_by_epsilon"], (
        "each point would be another training"
    )
    words = " ".join(command(report.read(folder)))
    assert "--labeler.network linear" in words
    again = commandline.parsed(shlex.split(words)[3:])
    assert dataclasses.replace(again, out=None, queries=None) == dataclasses.replace(
        TINY, student=LINEAR
    )
    with np.load(folder / "labels.npz") as labels:
        assert (labels["label"] >= 0).all(), "all public records are predicted"
    assert before.shape[1] == 10


@pytest.mark.long
def test_a_run_that_was_killed_in_training_goes_on_there(tmp_path, monkeypatch, finished):
    steps = []
    real = dpsgd._descend

    def killed(*arguments, **named):
        steps.append(1)
        if len(steps) == 7:
            raise RuntimeError("killed")
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(dpsgd, "_descend", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path / "run")
    with pytest.raises(ValueError, match="holds a run of other settings"):
        run(tmp_path / "run", seed=4)
    counted(monkeypatch, steps)
    again = run(tmp_path / "run")
    assert len(steps) == 7 + 20, "the first epoch is not run again"
    np.testing.assert_array_equal(weights(finished), weights(again))
    with pytest.raises(ValueError, match="already holds a run"):
        run(tmp_path / "run")


def bought_labels_are_told_apart(folder, labels):
    """Of a finished run that has bought so many: what was paid for is true, beside what was
    learned, and in the report.
    """
    result = told(folder, "result.json")
    assert result["labels_bought"] == labels
    truth = data.load("digits", TINY.seed).public.true_labels
    with np.load(folder / "bought.npz") as paid, np.load(folder / "labels.npz") as predicted:
        np.testing.assert_array_equal(paid["label"], truth[paid["public_index"]])
        assert len(paid["label"]) == labels
        assert result["label_accuracy"] == pytest.approx(np.mean(predicted["label"] == truth)), (
            "what was bought is not counted as a label"
        )
    assert (
        f"{labels} true labels of public records were bought"
        in (folder / "report.html").read_text()
    )
    assert (folder / "student").exists()
    assert f"--buy.labels {labels}" in " ".join(command(report.read(folder)))


def choosing_cost_nothing(folder):
    """Where public records alone were looked at."""
    privacy = told(folder, "privacy.json")
    assert told(folder, "result.json")["epsilon"] <= privacy["rounds"][0]["epsilon"]
    assert privacy["choice_of_labels_to_buy"] is None


def choosing_cost_two(folder):
    """Where an epsilon of 1 was spent on components and one on support, as its event says."""
    result = told(folder, "result.json")
    privacy = told(folder, "privacy.json")
    trained = privacy["rounds"][0]["epsilon"]
    kinds = sorted(event["kind"] for event in privacy["whole"]["events"])
    assert kinds == ["gaussian", "gaussian", "laplace"]
    assert trained < result["epsilon"] < trained + 2.0 + 1e-6
    assert privacy["choice_of_labels_to_buy"]["epsilon"] <= 2.0 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("select", ["entropy", "near_private"])
def test_bought_labels_are_told_apart_and_what_choosing_them_costs_is_added(tmp_path, select):
    bought = buy.Config(
        labels=60,
        oracle="benchmark",
        select=select,
        candidates=40,
        components=4,
        epochs=3,
        epsilon_pca=1.0,
        epsilon_support=1.0,
    )
    folder = run(tmp_path / select, labeler=IMAGES, buy=bought)
    bought_labels_are_told_apart(folder, 60)
    if select == "near_private":
        choosing_cost_two(folder)
    else:
        choosing_cost_nothing(folder)


@pytest.mark.slow  # beside a student that is stopped
def test_a_finished_private_network_is_kept_where_buying_fails_and_what_choosing_costs_is_added(
    tmp_path, monkeypatch
):
    near = dataclasses.replace(
        BOUGHT,
        select="near_private",
        candidates=40,
        components=4,
        epsilon_pca=1.0,
        epsilon_support=1.0,
    )
    steps = []
    counted(monkeypatch, steps)
    chosen: list[np.ndarray] = []

    def killed(key, task, model, index, *rest):
        chosen.append(index)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(buy, "fine_tune", killed)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="killed"):
                run(tmp_path / "run", labeler=IMAGES, buy=near, noise_seed=None)
    np.testing.assert_array_equal(
        *chosen
    )  # a choice that was made is not made again with other noise
    taken = len(steps)
    with pytest.raises(
        ValueError, match="other settings: buy"
    ):  # the noise of that choice is drawn
        run(
            tmp_path / "run",
            labeler=IMAGES,
            buy=dataclasses.replace(near, labels=30),
            noise_seed=None,
        )
    folder = run(tmp_path / "run", labeler=IMAGES, buy=near, noise_seed=None)
    assert len(steps) == taken
    bought_labels_are_told_apart(folder, 20)
    choosing_cost_two(folder)


@pytest.mark.slow
def test_what_is_bought_may_change_until_something_was_chosen_with_noise(tmp_path, monkeypatch):
    steps = []
    counted(monkeypatch, steps)
    with monkeypatch.context() as patched:
        patched.setattr(buy, "fine_tune", lambda *_: [].pop())
        with pytest.raises(IndexError):
            run(tmp_path / "run", labeler=IMAGES, buy=dataclasses.replace(BOUGHT, select="random"))
    taken = len(steps)
    folder = run(tmp_path / "run", labeler=IMAGES, buy=BOUGHT)
    assert len(steps) == taken
    bought_labels_are_told_apart(folder, 20)
    choosing_cost_nothing(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 2}, "rounds=2"),
        ({"relation": "add-remove"}, "sampling_prob"),
        ({"labeler": dataclasses.replace(HEAD, epsilon=0.5)}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"buy": buy.Config(labels=10, oracle="benchmark")}, "network=linear"),
        (
            {"labeler": ReverseKNN(), "buy": buy.Config(labels=10, oracle="benchmark")},
            "labeler=rknn",
        ),
        (
            {"labeler": dataclasses.replace(HEAD, network="encoder", part="norms")},
            "self_trained, simclr or scan",
        ),
        ({"labeler": dataclasses.replace(HEAD, network="m5")}, "21x21"),
        ({"labeler": dataclasses.replace(HEAD, batch_size=5000)}, "batch_size=5000"),
        (
            {
                "labeler": dataclasses.replace(IMAGES, epochs=0.25),
                "buy": buy.Config(labels=499, oracle="benchmark", candidates=5),
            },
            "candidates",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, changes, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_label_is_only_bought_from_somebody():
    with pytest.raises(ValueError, match=r"--buy\.oracle"):
        buy.Config(labels=10)


@pytest.mark.long
def test_a_stopped_run_without_training_is_refused_or_begun_again(tmp_path, finished):
    """Of a run that was stopped after its training nothing is kept but what a training may go on
    from.
    """
    folder = shutil.copytree(finished, tmp_path / "run")
    assert not (folder / TRAINING).exists()
    (folder / "result.json").unlink()
    (folder / TRAINING).mkdir()
    stopped = dataclasses.replace(TINY, out=folder)
    assert run_folder.find_result(stopped) is None
    run_folder.begin(stopped, folder, again=False)
    assert {path.name for path in folder.iterdir()} == {"config.json", TRAINING}


# the labelers' contract runs DPDFD, and tests/test_dpdfd.py its student and generator
@pytest.mark.slow
def test_dpdfd_hands_over_student_and_generator(tmp_path):
    quick = {"steps": 4, "updates": 1, "student": "linear", "generator_learning_rate": 0.0}
    small = dataclasses.replace(dpdfd.SMALL, epsilon=10.0, num_teachers=40, **quick)
    folder = run(tmp_path / "run", labeler=small, epsilon=5.0)
    privacy = told(folder, "privacy.json")
    result = told(folder, "result.json")
    [event] = privacy["whole"]["events"]
    assert (event["kind"], event["count"]) == ("gaussian", 4 * small.batch_size)
    assert result["epsilon"] == pytest.approx(5.0, rel=1e-6)
    assert result["not_covered_by_epsilon"]["epsilon_as_published"] > 0
    images = generators.load(folder / "generator")(jax.random.key(0), 3)
    assert (images.shape, images.dtype) == ((3, 8, 8, 1), np.uint8)
    assert students.load(folder / "model").num_classes == 10

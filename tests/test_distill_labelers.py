"""Other labelers in the place of reverse k-NN labeling, a newcomer's among them: one program,
one folder, one report.
"""

import dataclasses

import numpy as np
import pytest

from rknn_jax import data, labelers
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.report.results import read
from tests.test_distill import TINY, arrays, digits, run, small_runs, told  # noqa: F401 (a fixture)
from tests.test_statement import RELEASE
from train import commandline, distill, results, truth
from train.buy import Config as Buy
from train.experiment import Experiment

NEWCOMER = '''
"""Every query gets the class that is most frequent among all records."""

import dataclasses

import jax
import numpy as np

from rknn_jax.labelers import Labeler
from rknn_jax.privacy.events import Laplace
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.types import Answers


@dataclasses.dataclass(frozen=True)
class Commonest(Labeler):
    epsilon: float = 1.0
    delta: float = 0.0
    relation: Relation = "replace-one"

    def contribute(self, key, private, encode, queries, num_classes):
        return np.bincount(private.labels, minlength=num_classes)

    def release(self, key, contribution, queries, num_classes, predicted=None):
        scale = (2 if self.relation == "replace-one" else 1) / self.epsilon
        noise = scale * np.asarray(jax.random.laplace(key, contribution.shape))
        counts = np.float32(contribution + noise)
        size = len(queries.index)
        every = np.tile(counts, (size, 1))
        likely = np.tile(np.eye(num_classes, dtype=np.float32)[counts.argmax()], (size, 1))
        events = (Laplace(scale, 2),)
        guarantee = Guarantee(self.epsilon, 0.0, self.relation, "central", events)
        ones = np.ones(size, np.float32)
        labels = every.argmax(1).astype(np.int32)
        stddev = np.full_like(every, scale)
        return Answers(labels, ones > 0, likely, ones, every, stddev, guarantee)


EXAMPLES = (Commonest(),)
'''


@pytest.mark.long
def test_a_newcomers_labeler_is_one_file(tmp_path, monkeypatch):
    """Written into a folder of labelers, it takes the place of any other: the same data and
    report, and no other line of code.
    """
    (tmp_path / "commonest.py").write_text(NEWCOMER)
    monkeypatch.setattr(labelers, "__path__", [*labelers.__path__, str(tmp_path)])
    experiment = commandline.parsed(
        [
            "--labeler",
            "commonest",
            "--epsilon",
            "0.5",
            "--student",
            "none",
            "--representation",
            "pca",
            "--queries",
            "20",
        ]
    )
    folder = distill.main(dataclasses.replace(experiment, noise_seed=0, out=tmp_path / "run"))
    result = told(folder, "result.json")
    privacy = told(folder, "privacy.json")
    truth = digits(experiment.seed).public.true_labels
    assert result["label_accuracy"] == pytest.approx(
        np.bincount(truth).max() / len(truth), abs=0.03
    )
    assert (result["epsilon"], privacy["whole"]["events"][0]["parameter"]) == (0.5, 4.0)
    assert (folder / "report.html").exists()
    with pytest.raises(
        ValueError, match=r"labeler to be one of \['commonest', .*'rknn'\], got labeler='unheard'"
    ):
        commandline.parsed(["--labeler", "unheard"])
    with pytest.raises(ValueError, match="unit=record with labeler=commonest, got unit=person"):
        commandline.parsed(["--labeler", "commonest", "--unit", "person"])


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {
                "labeler": PrivateKNN(num_neighbors=30, sampling_prob=0.5),
                "rounds": 2,
            },
            marks=pytest.mark.slow,
        ),
        {
            "labeler": PATE(num_teachers=40, steps=30, hidden=0),
            "smoothing": "none",
            "student": None,
        },
    ],
    ids=["private_knn", "pate"],
)
def test_other_labelers_take_the_place_of_reverse_knn(changes, tmp_path, monkeypatch):
    """One signature: the same folder and report.

    Each round's queries are new, and declined ones are told apart.
    """
    settings = {"epsilon": 30.0, "delta": 1e-5, "queries": 40} | changes
    monkeypatch.setattr(truth, "EPSILONS", (30.0,))  # whose noise is calibrated anyway
    folder = run(tmp_path / "run", benchmark=True, **settings)
    result = told(folder, "result.json")
    privacy = told(folder, "privacy.json")
    queries = arrays(folder, "queries.npz")
    labels = arrays(folder, "labels.npz")
    rounds = settings.get("rounds", 1)
    assert result["epsilon"] <= 30.0
    assert result["delta"] == pytest.approx(1e-5)
    assert privacy["whole"]["relation"] == "replace-one"
    assert len(privacy["rounds"]) == rounds
    assert len(queries["label"]) == 40 * rounds
    answered = queries["label"] >= 0
    assert 0 < answered.sum() < len(answered)
    assert not queries["noisy_counts"][~answered].any()
    assert len(set(queries["public_index"][answered].tolist())) == answered.sum(), (
        "no record is answered twice"
    )
    if settings.get("smoothing") == "none":
        assert np.sum(labels["label"] >= 0) == answered.sum(), "only what was answered has a label"
    else:
        assert result["label_accuracy"] > 0.6
    page = (folder / "report.html").read_text()
    assert f"{np.sum(~answered)} more were asked and declined" in page
    assert "label_accuracy_by_epsilon" in result["not_covered_by_epsilon"]
    told_apart = {
        "pate": "epsilons_that_look_at_the_votes",
        "private_knn": "samples_of_fewer_than_k",
    }[settings["labeler"].name]
    assert told_apart in result["not_covered_by_epsilon"]
    assert told_apart not in result


@pytest.mark.long
def test_nobody_is_told_that_labels_without_counts_are_stable(tmp_path):
    """The program takes them for sure, and the folder said so."""
    labeler = ReverseKNN(mechanism="permute_and_flip")
    folder = run(tmp_path / "run", epsilon=0.01, labeler=labeler, student=None)
    assert np.isnan(arrays(folder, "labels.npz")["confidence"]).all()
    assert "stability" not in read(folder).shares


def test_persons_are_the_unit_of_a_whole_run(tmp_path, monkeypatch):
    """Forty persons, some with many records; the number of queries follows from their number."""
    settings = {"epsilon": 4.0, "unit": "person", "student": None}
    with pytest.raises(ValueError, match="unit=person, got dataset=digits"):
        run(tmp_path / "nobody", **settings)
    task = digits(TINY.seed)
    clients = np.minimum(np.arange(len(task.private.labels)), 39).astype(np.int32)
    named = dataclasses.replace(task, private=dataclasses.replace(task.private, clients=clients))
    monkeypatch.setattr(data, "load", lambda *_: named)
    for trust in ("central", "local"):
        folder = run(tmp_path / trust, labeler=ReverseKNN(trust=trust), **settings)
        result = told(folder, "result.json")
        assert (result["unit"], result["num_units"]) == ("person", 40)
        privacy = told(folder, "privacy.json")
        assert privacy["whole"]["unit"] == "person"
        assert any("number of their records" in one for one in privacy["does_not_cover"])
        assert "one person's content" in told(folder, "privacy.json")["whole"]["statement"]
        assert "40 of its persons" in (folder / "privacy.html").read_text()
        assert told(folder, "config.json")["unit"] == "person"
    with pytest.raises(ValueError, match="a person for every teacher, got num_teachers=41 with 40"):
        run(tmp_path / "pate", labeler=PATE(num_teachers=41), delta=1e-5, **settings)
    bought = {"labeler": NoisySGD(network="tanh_cnn"), "delta": 1e-5}
    with pytest.raises(ValueError, match="unit=record with buy.select=near_private"):
        Experiment(**settings | bought, buy=Buy(10, "benchmark", "near_private"))


@pytest.mark.long
def test_one_private_record_moves_one_vote_of_each_query_of_other_labelers(tmp_path, monkeypatch):
    """The whole program without noise, with one record replaced by one of the opposite kind:
    what is released moves by sqrt(2) a query.
    """
    task = digits(TINY.seed)
    settings = {"epsilon": float("inf"), "delta": 1e-5, "queries": 20}
    settings |= {"smoothing": "none", "student": None}
    kinds = (
        PrivateKNN(num_neighbors=12, sampling_prob=1.0, threshold=-10.0),
        PATE(num_teachers=300, steps=20, hidden=0, aggregator="gnmax"),
    )
    for labeler in kinds:
        name = labeler.name
        monkeypatch.setattr(data, "load", lambda *_: task)
        run(tmp_path / f"{name} before", labeler=labeler, **settings)
        images = task.private.images.copy()
        labels = task.private.labels.copy()
        asked = arrays(tmp_path / f"{name} before", "queries.npz")[
            "public_index"
        ]  # each finds a copy of itself there, of another class
        images[17] = task.public.images[asked[0]]
        labels[17] = (task.public.true_labels[asked[0]] + 5) % 10
        private = dataclasses.replace(task.private, images=images, labels=labels)
        monkeypatch.setattr(
            data, "load", lambda *_, private=private: dataclasses.replace(task, private=private)
        )
        run(tmp_path / f"{name} after", labeler=labeler, **settings)
        before, after = (
            arrays(tmp_path / f"{name} {when}", "queries.npz")["noisy_counts"]
            for when in ("before", "after")
        )
        moved = np.linalg.norm(before - after, axis=1)
        assert 0 < moved.max() <= np.sqrt(2) + 1e-5


@pytest.mark.parametrize(
    ("labeler", "unit", "told"),
    [
        (ReverseKNN(), "record", 1),
        (ReverseKNN(), "person", "shared"),
        (ReverseKNN(mechanism="gaussian"), "person", "clipped"),
        (ReverseKNN(trust="local"), "person", 1),
        (PATE(), "person", "all"),
    ],
)
def test_a_statement_tells_how_a_persons_records_are_bounded(labeler, unit, told):
    assert results._records_of_unit(labeler, unit) == told


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_statement_of_persons_leaves_the_number_of_their_records_open(unit):
    guarantee = dataclasses.replace(RELEASE, unit=unit, relation="add-remove")
    experiment = dataclasses.replace(TINY, unit=unit)
    found = results._statement(
        experiment, digits(0), guarantee, measured=None, networks=["the student"], counted=False
    )
    released = ["the labels of the queries", "the labels of the public records", "the student"]
    assert found.card()["released"] == released
    words = " ".join(found.card()["not_covered"])
    assert f"the number of private {unit}s" in words
    assert ("the number of their records" in words) == (unit == "person")

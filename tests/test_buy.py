"""Buying labels: who sells them has to be said, what is chosen by whom, and what the network
learns from them.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tyro

from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.algorithm import Keys, Round
from rknn_jax.data import _pool
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labels import Labels
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.students import fit as students
from rknn_jax.types import Answers, Card, Public, Queries
from train import buy, learn, results
from train.experiment import Experiment

SELECTORS = ("random", "entropy", "difference", "diverse_public", "near_private")
CONFIG = buy.Config(
    labels=40,
    oracle="benchmark",
    components=4,
    per_cluster=4,
    candidates=20,
    epochs=30,
    batch_size=16,
    epsilon_pca=5.0,
    epsilon_support=5.0,
)
NEAR = Experiment(
    epsilon=1.0,
    delta=1e-5,
    labeler=NoisySGD(network="tanh_cnn"),
    buy=replace(CONFIG, select="near_private"),
    student=None,
)


def bars(num_records, seed):
    """Three classes: a bright bar in the upper, middle or lower third of 13x13 noisy pixels."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 160, (num_records, 13, 13, 1)).astype(np.uint8)
    labels = rng.integers(0, 3, num_records)
    for image, label in zip(images, labels, strict=True):
        image[label * 4 + 1 : label * 4 + 3] += 60
    return images, labels


@pytest.fixture(scope="module")
def task():
    images, labels = bars(500, 0)
    card = Card("bars", "made up", "none", ("upper", "middle", "lower"))
    return _pool.task(card, images, labels, *np.split(np.arange(500), [200, 300]))


@pytest.fixture(scope="module")
def model(task):
    """A poor one."""
    config = students.Config(
        model="tanh_cnn", epochs=2, batch_size=20, learning_rate=1e-3, augmentation="none"
    )
    return students.fit(
        jax.random.key(0),
        task.private.images,
        np.eye(3, dtype=np.float32)[task.private.labels],
        config,
    )


def accuracy(student, task):
    return np.mean(student.predict_proba(task.test.images).argmax(axis=1) == task.test.labels)


def chosen(task, model, config, relation="replace-one"):
    return buy.select(jax.random.key(1), jax.random.key(2), task, model, config, relation, 1e-5)


# Who sells.


def test_nobody_buys_without_saying_from_whom():
    assert buy.Config().labels == 0
    with pytest.raises(ValueError, match=r"labels=40, got oracle=none.*--buy.oracle benchmark"):
        buy.Config(labels=40)


@pytest.mark.long
def test_nobody_sells_without_an_oracle(task, model):
    queries, _ = chosen(task, model, replace(CONFIG, select="random"))
    with pytest.raises(ValueError, match="oracle=none"):
        buy.bought_labels(task, queries.index, buy.Config())
    with pytest.raises(ValueError, match="labels=0"):
        chosen(task, model, buy.Config())


@pytest.mark.long
def test_a_benchmark_sells_the_truth_and_a_file_what_is_in_it(task, model, tmp_path):
    queries, _ = chosen(task, model, replace(CONFIG, select="random"))
    np.testing.assert_array_equal(
        buy.bought_labels(task, queries.index, CONFIG), task.public.true_labels[queries.index]
    )
    other = (task.public.true_labels + 1) % 3
    other[queries.index[5]] = -1
    np.save(tmp_path / "labels.npy", other)
    sold = buy.bought_labels(task, queries.index, replace(CONFIG, oracle=tmp_path / "labels.npy"))
    np.testing.assert_array_equal(sold, other[queries.index])
    assert sold.dtype == np.int32
    assert sold[5] == -1


@pytest.mark.parametrize(
    "labels",
    [np.zeros(199, int), np.zeros(200), np.full(200, 3), np.full(200, -2), np.zeros((200, 1), int)],
    ids=["few", "real", "3", "-2", "2d"],
)
def test_files_of_other_things_are_refused(task, model, labels, tmp_path):
    np.save(tmp_path / "labels.npy", labels)
    queries, _ = chosen(task, model, replace(CONFIG, select="random"))
    with pytest.raises(
        ValueError, match=r"Expected labels \[200\] of integers from -1 to 2.*labels.npy"
    ):
        buy.bought_labels(task, queries.index, replace(CONFIG, oracle=tmp_path / "labels.npy"))


def test_files_that_are_none_are_named(task, model, tmp_path):
    queries, _ = chosen(task, model, replace(CONFIG, select="random"))
    with pytest.raises(FileNotFoundError, match="none.npy"):
        buy.bought_labels(task, queries.index, replace(CONFIG, oracle=tmp_path / "none.npy"))
    (tmp_path / "text.npy").write_text("0\n1\n")
    with pytest.raises(ValueError, match=r"text.npy"):
        buy.bought_labels(task, queries.index, replace(CONFIG, oracle=tmp_path / "text.npy"))


def test_the_command_line_takes_a_word_or_a_path():
    assert (
        tyro.cli(buy.Config, args=["--labels", "9", "--oracle", "benchmark"]).oracle == "benchmark"
    )
    assert tyro.cli(
        buy.Config, args=["--labels", "9", "--oracle", "some/labels.npy"]
    ).oracle == Path("some/labels.npy")


# What is chosen.


@pytest.mark.long
@pytest.mark.parametrize("select", SELECTORS)
def test_each_selector_chooses_as_many_different_public_records(task, model, select):
    queries, guarantee = chosen(task, model, replace(CONFIG, select=select))
    assert len(set(queries.index.tolist())) == len(queries.index) == 40
    assert (guarantee is None) == (select != "near_private")
    np.testing.assert_array_equal(
        queries.features, model.features(task.public.images)[queries.index]
    )


@pytest.mark.parametrize("select", SELECTORS)
def test_only_near_private_looks_at_private_records(task, model, select):
    blank = replace(task, private=replace(task.private, images=np.zeros_like(task.private.images)))
    first, second = (
        set(chosen(one, model, replace(CONFIG, select=select))[0].index.tolist())
        for one in (task, blank)
    )
    assert (first == second) == (select != "near_private")


@pytest.mark.long
def test_near_private_draws_its_noise_from_the_secret_key(task, model):
    """The other key is of a seed that anybody may know, who could take the noise off."""
    config = replace(CONFIG, select="near_private", epsilon_pca=0.05, epsilon_support=0.05)

    def index(public, secret):
        keys = jax.random.key(public), jax.random.key(secret)
        return set(buy.select(*keys, task, model, config, "replace-one", 1e-5)[0].index.tolist())

    usual = index(1, 2)
    assert all(index(1, secret) != usual for secret in (3, 4, 5))
    assert index(6, 2) == usual


def test_a_choice_of_labels_is_part_of_what_a_run_costs():
    trained = Guarantee(2.0, 1e-5, "replace-one", "central", (Pure(2.0),))
    rounds = [SimpleNamespace(answers=SimpleNamespace(guarantee=trained))]
    price = Guarantee(0.5, 0.0, "replace-one", "central", (Pure(0.5),))
    for paid, epsilon in ((None, 2.0), (price, 2.5)):
        whole = results.guarantee_of_votes(rounds, paid, 1e-5)
        assert whole.epsilon == pytest.approx(epsilon, abs=1e-3)


def test_every_accountant_is_told_what_a_choice_of_labels_cost(task, tmp_path):
    trained, price = (
        Guarantee(epsilon, 0.0, "replace-one", "central", (Pure(epsilon),))
        for epsilon in (2.0, 0.5)
    )
    queries = Queries.alone(np.zeros((200, 1)), np.arange(3))
    votes = np.eye(3, dtype=np.float32)
    ones = np.ones(3, np.float32)
    answers = Answers(np.arange(3), ones > 0, votes, ones, votes, votes, trained)
    round = Round(queries, None, answers, None, Labels.none(200, 3), None, None)
    results.finish(tmp_path, NEAR, task, [round], None, price, None, {}, 1.0)
    privacy = json.loads((tmp_path / "privacy.json").read_text())
    assert privacy["whole"]["epsilon"] == pytest.approx(2.5, abs=1e-3)
    assert min(privacy["accountants"].values()) == pytest.approx(privacy["whole"]["epsilon"])


def test_near_private_does_not_draw_the_noise_of_the_training_again(model, tmp_path, monkeypatch):
    keys = Keys(jax.random.key(0), jax.random.key(1))
    rounds = [SimpleNamespace(answers=SimpleNamespace(model=model))]
    drawn = []

    def select(key, noise_key, *_, **__):
        drawn.append(noise_key)
        raise KeyboardInterrupt

    monkeypatch.setattr(buy, "select", select)
    with pytest.raises(KeyboardInterrupt):
        learn.final_student(keys, None, rounds, NEAR, tmp_path)
    of_training = [stage_key(keys.noise, stage) for stage in (Stage.SAMPLING, Stage.NOISE)]
    assert not any(drawn[0] == key for key in of_training)


@pytest.mark.parametrize("part", ["params", "batch_stats"])
def test_labels_that_another_network_chose_are_not_bought(model, task, tmp_path, monkeypatch, part):
    price = Guarantee(0.5, 0.0, "replace-one", "central", (Pure(0.5),))
    queries = Queries.alone(np.zeros((200, 1)), np.arange(3))
    monkeypatch.setattr(buy, "select", lambda *_, **__: (queries, price))
    keys = Keys(jax.random.key(0), jax.random.key(1))
    sold_out = replace(NEAR, buy=replace(NEAR.buy, oracle=tmp_path / "none.npy"))

    def finish(model):
        rounds = [SimpleNamespace(answers=SimpleNamespace(model=model))]
        learn.final_student(keys, task, rounds, sold_out, tmp_path)

    model = replace(model, batch_stats={"mean": np.zeros(3, np.float32)})
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            finish(model)
    moved = {part: jax.tree.map(lambda leaf: leaf + np.float32(1), getattr(model, part))}
    with pytest.raises(ValueError, match="got another one"):
        finish(replace(model, **moved))


def test_near_private_hides_a_record_and_is_refused_where_persons_are_the_unit():
    with pytest.raises(
        ValueError, match=r"unit=record with buy\.select=near_private, got .*person"
    ):
        replace(NEAR, unit="person")
    for other in (replace(NEAR.buy, select="entropy"), buy.Config(select="near_private")):
        assert replace(NEAR, unit="person", buy=other).unit == "person"


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_near_private_costs_what_is_said_in_addition(task, model, relation):
    config = replace(CONFIG, select="near_private", epsilon_pca=0.4, epsilon_support=0.6)
    _, guarantee = chosen(task, model, config, relation)
    assert (guarantee.delta, guarantee.relation) == (1e-5, relation)
    assert 0.6 < guarantee.epsilon <= 1.0
    trained = Guarantee(2.0, 1e-5, relation, "central", ())
    whole = accounting.compose([trained, guarantee], 3e-5)
    assert whole.delta <= 3e-5
    assert whole.epsilon <= 3.0


def test_near_private_is_told_the_measure_of_uncertainty(task, model):
    near = replace(CONFIG, select="near_private")
    entropy, difference = (
        set(chosen(task, model, replace(near, uncertainty=measure))[0].index.tolist())
        for measure in ("entropy", "difference")
    )
    assert entropy != difference


@pytest.mark.long
def test_settings_reach_the_selectors(task, model):
    for change in (
        {"candidates": 60},
        {"components": 1},
        {"per_cluster": 20},
        {"uncertainty": "difference"},
    ):
        first, second = (
            set(chosen(task, model, one)[0].index.tolist())
            for one in (
                replace(CONFIG, select="diverse_public"),
                replace(CONFIG, select="diverse_public", **change),
            )
        )
        assert first != second, change
    top = replace(CONFIG, select="near_private", private_uncertain="top")
    events = [
        chosen(task, model, one, "add-remove")[1].events
        for one in (top, replace(top, private_uncertain="threshold"))
    ]
    assert [event.count for event in events[0] + events[1] if event.kind == "laplace"] == [2, 1]


@pytest.mark.parametrize("select", SELECTORS)
def test_more_labels_than_public_records_cannot_be_bought(task, model, select):
    with pytest.raises(ValueError, match=r"num_queries=201.* 200"):
        chosen(task, model, replace(CONFIG, select=select, labels=201, candidates=0))


@pytest.mark.parametrize(("select", "extra"), [("diverse_public", 1000), ("near_private", 3000)])
def test_the_papers_candidates_are_the_default_and_need_a_pool(task, model, select, extra):
    with pytest.raises(ValueError, match=f"candidates={extra} with 200 public records"):
        chosen(task, model, replace(CONFIG, select=select, candidates=None))


# What is learned.


@pytest.mark.long
def test_bought_labels_make_a_poor_network_better(task, model):
    before = accuracy(model, task)
    assert before < 0.6
    for select in ("random", "diverse_public"):
        queries, _ = chosen(task, model, replace(CONFIG, select=select))
        labels = buy.bought_labels(task, queries.index, CONFIG)
        tuned = buy.fine_tune(jax.random.key(3), task, model, queries.index, labels, CONFIG)
        assert accuracy(tuned, task) > before + 0.2, select
        assert (
            np.mean(tuned.predict_proba(task.public.images[queries.index]).argmax(1) == labels)
            > 0.9
        )


@pytest.mark.long
def test_all_layers_begin_at_the_networks_and_learn(task, model):
    index = np.arange(40)
    labels = task.public.true_labels[index]
    still = buy.fine_tune(
        jax.random.key(3),
        task,
        model,
        index,
        labels,
        replace(CONFIG, epochs=1, learning_rate=1e-30),
    )
    for name, layer in model.params.items():
        np.testing.assert_array_equal(still.params[name]["kernel"], layer["kernel"])
    tuned = buy.fine_tune(jax.random.key(3), task, model, index, labels, CONFIG)
    assert all(
        not np.allclose(tuned.params[name]["kernel"], layer["kernel"])
        for name, layer in model.params.items()
    )
    assert tuned.config.model == model.config.model


@pytest.mark.long
def test_records_of_none_of_the_classes_are_paid_for_and_left_out(task, model):
    index = np.arange(80)
    labels = task.public.true_labels[:80].copy()
    labels[::2] = -1
    told = []
    with_others = buy.fine_tune(
        jax.random.key(3),
        task,
        model,
        index,
        labels,
        CONFIG,
        lambda *report: told.append(report[:2]),
    )
    without = buy.fine_tune(jax.random.key(3), task, model, index[1::2], labels[1::2], CONFIG)
    jax.tree.map(np.testing.assert_array_equal, with_others.params, without.params)
    assert told == [(epoch, 30) for epoch in range(1, 31)]
    with pytest.raises(ValueError, match="got 1 of labels=80"):
        buy.fine_tune(
            jax.random.key(3), task, model, index, np.where(np.arange(80) == 3, 1, -1), CONFIG
        )


def test_a_polluted_pool_is_a_benchmark_whose_truth_is_none_of_the_classes(task, model):
    truth = np.where(np.arange(200) < 100, -1, task.public.true_labels)
    polluted = replace(task, public=Public(task.public.images, truth))
    queries, _ = chosen(polluted, model, replace(CONFIG, select="random"))
    labels = buy.bought_labels(polluted, queries.index, CONFIG)
    np.testing.assert_array_equal(labels < 0, queries.index < 100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", -1),
        ("labels", 1),
        ("select", "margin"),
        ("uncertainty", "margin"),
        ("private_uncertain", "all"),
        ("components", 0),
        ("per_cluster", 0),
        ("epochs", 0),
        ("batch_size", 0),
        ("candidates", -1),
        ("epsilon_pca", 0.0),
        ("epsilon_support", math.nan),
        ("learning_rate", 0.0),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        buy.Config(**{"oracle": "benchmark", name: value})

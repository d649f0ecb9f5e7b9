"""Whoever learns from unlabelled records too: how batches are made, what leaves no trace, how it
is stopped and what is refused.
"""

import importlib
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest

from rknn_jax.images import augment
from rknn_jax.labels import Labels
from rknn_jax.students import base, mixmatch, semi_supervised
from rknn_jax.students import fit as students
from tests import tiny
from tests.tiny import IMAGES, TARGETS, UNLABELLED, arrays

KINDS = [base.named(name) for name in base.names()]
MODULES = [
    importlib.import_module(kind.__module__)
    for kind in KINDS
    if issubclass(kind, semi_supervised.SemiSupervisedSettings)
]
each = pytest.mark.parametrize(
    "module",
    [
        module if module is mixmatch else pytest.param(module, marks=pytest.mark.slow)
        for module in MODULES
    ],
    ids=lambda module: module.__name__.removeprefix("rknn_jax.students."),
)


@pytest.fixture
def config(module, monkeypatch):
    """One setting, so that its step compiles once, without what would compile for seconds."""
    tiny.use(monkeypatch, tiny.Linear)
    monkeypatch.setattr(
        mixmatch,
        "own_shares",
        lambda key, num_rows, alpha: 0.5 + 0.5 * jax.random.uniform(key, (num_rows,)),
    )
    monkeypatch.setitem(
        augment.STRONG,
        "digit",
        lambda key, images: images + 0.1 * jax.random.normal(key, images.shape),
    )
    student = students.Config(epochs=2, batch_size=3, augmentation="none", learning_rate=0.0123)
    return (
        module.Config(student) if module is mixmatch else module.Config(student, unlabelled_ratio=2)
    )


@pytest.mark.long
@each
def test_an_epoch_is_a_pass_over_the_kind_of_more_batches(module, config, monkeypatch):
    """Two batches of 5 labeled records, and of 7 unlabelled ones three, or two of twice the size,
    two epochs long.

    With three, the labeled begin again in the middle of an epoch.
    """
    step = semi_supervised._step
    seen = []

    def record(*args, **named):
        seen.append(named["chosen"])
        return step(*args, **named)

    monkeypatch.setattr(semi_supervised, "_step", record)
    semi_supervised.fit(jax.random.key(0), IMAGES, TARGETS, UNLABELLED, config)
    unlabelled_passes = 3 if module is mixmatch else 2
    assert len(seen) == 2 * unlabelled_passes
    for kind, num_records, per_pass in ((0, 5, 2), (1, 7, unlabelled_passes)):
        for start in range(0, len(seen), per_pass):
            there = [
                batch[kind][0][batch[kind][1] == 1] for batch in seen[start : start + per_pass]
            ]
            assert sorted(np.concatenate(there)) == list(range(num_records))


@pytest.mark.long
@each
def test_equal_keys_give_equal_students_and_records_of_weight_zero_leave_no_trace(module, config):
    student = semi_supervised.fit(jax.random.key(1), IMAGES, TARGETS, UNLABELLED, config)
    more = np.insert(IMAGES, 2, 9, axis=0), np.insert(TARGETS, 2, TARGETS[0], axis=0)
    again = semi_supervised.fit(
        jax.random.key(1), *more, UNLABELLED, config, weights=3 * np.float32([1, 1, 0, 1, 1, 1])
    )
    chex.assert_trees_all_equal(arrays(again), arrays(student))
    other = semi_supervised.fit(jax.random.key(2), IMAGES, TARGETS, UNLABELLED, config)
    assert not np.allclose(other.params["Dense_0"]["kernel"], student.params["Dense_0"]["kernel"])
    assert (student.config, student.num_classes, student.image_shape) == (
        config.student,
        3,
        (2, 2, 1),
    )
    np.testing.assert_allclose(student.predict_proba(IMAGES).sum(axis=1), 1, atol=1e-5)


@pytest.mark.long
@each
def test_an_interrupt_leaves_the_last_finished_epoch_and_one_before_it_is_raised(
    module, config, monkeypatch
):
    told = []

    def stop(epoch, epochs, metrics, student):
        assert (epoch, epochs) == (len(told) + 1, 2)
        assert metrics["seconds"] > 0
        assert 0 < metrics["loss"] < 50
        told.append(student)
        raise KeyboardInterrupt

    student = semi_supervised.fit(
        jax.random.key(1), IMAGES, TARGETS, UNLABELLED, config, on_epoch=stop
    )
    assert student.interrupted
    chex.assert_trees_all_equal(arrays(student), arrays(told[0]))

    def interrupted_step(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(semi_supervised, "_step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        semi_supervised.fit(jax.random.key(1), IMAGES, TARGETS, UNLABELLED, config)


@pytest.mark.long
@each
def test_an_ensemble_trains_its_members_so_and_counts_their_epochs(module, config):
    key = jax.random.key(3)
    told = []
    images = np.concatenate([IMAGES, UNLABELLED])
    probabilities = np.concatenate([TARGETS, np.zeros((len(UNLABELLED), 3), np.float32)])
    sure = np.ones(len(images), np.float32)
    labels = Labels(probabilities, sure, np.zeros(len(images), np.int32))
    settings = replace(config, members=2, targets="soft", unlabelled=0.0)
    both = settings.fit(
        jax.random.clone(key),
        images,
        labels,
        on_epoch=lambda *report: told.append(report[:2]),
    )
    alone = [
        semi_supervised.fit(member, IMAGES, TARGETS, UNLABELLED, config)
        for member in jax.random.split(key, 2)
    ]
    chex.assert_trees_all_equal(
        [arrays(member) for member in both.members], [arrays(student) for student in alone]
    )
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert all(member.config == config.student for member in both.members)


@each
@pytest.mark.parametrize(
    "unlabelled", [UNLABELLED[:0], UNLABELLED[:, :1], UNLABELLED.astype(np.float32), UNLABELLED[0]]
)
def test_unlabelled_records_are_images_like_the_labelled(module, config, unlabelled):
    with pytest.raises(ValueError, match="Expected unlabelled"):
        semi_supervised.fit(jax.random.key(0), IMAGES, TARGETS, unlabelled, config)


@each
def test_targets_are_checked_as_for_any_student(module, config):
    with pytest.raises(ValueError, match="Expected targets"):
        semi_supervised.fit(jax.random.key(0), IMAGES, TARGETS[:-1], UNLABELLED, config)

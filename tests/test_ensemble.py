"""An ensemble is the mean of students that differ by their keys, and keeps what is finished."""

from dataclasses import replace

import chex
import jax
import numpy as np
import pytest

from rknn_jax.students import ensemble
from rknn_jax.students import fit as students
from tests import tiny

CONFIG = students.Config(model="cnn", epochs=2, batch_size=8, augmentation="none")
IMAGES = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1), np.uint8)
TARGETS = np.eye(3, dtype=np.float32)[np.arange(16) % 3]


@pytest.fixture(autouse=True)
def _students_that_compile_in_no_time(monkeypatch):
    """Whose features are their logits."""
    tiny.use(monkeypatch, tiny.Linear)


@pytest.mark.long
def test_members_are_students_of_keys_of_their_own_and_the_ensemble_is_their_mean():
    seen = []
    trained = ensemble.fit(
        jax.random.key(0),
        IMAGES,
        TARGETS,
        CONFIG,
        2,
        on_epoch=lambda *report: seen.append(report[:2]),
    )
    alone = [
        students.fit(key, IMAGES, TARGETS, CONFIG) for key in jax.random.split(jax.random.key(0), 2)
    ]
    chex.assert_trees_all_equal(trained.members, tuple(alone))
    each = [student.predict_proba(IMAGES) for student in alone]
    assert np.abs(each[0] - each[1]).max() > 1e-3
    np.testing.assert_allclose(trained.predict_proba(IMAGES), (each[0] + each[1]) / 2, atol=1e-6)
    np.testing.assert_array_equal(
        np.asarray(trained.features(IMAGES))[:, 3:], alone[1].features(IMAGES)
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert not trained.interrupted


@pytest.mark.long
@pytest.mark.parametrize(("last", "members", "epochs"), [(1, 1, 1), (2, 1, 2), (3, 2, 3)])
def test_an_interrupt_keeps_the_members_that_finished_an_epoch(last, members, epochs, tmp_path):
    def stop(epoch, *_):
        if epoch == last:
            raise KeyboardInterrupt

    trained = ensemble.fit(jax.random.key(0), IMAGES, TARGETS, CONFIG, 3, on_epoch=stop)
    assert len(trained.members) == members
    assert trained.interrupted
    ensemble.save(trained, tmp_path / "student")
    loaded = ensemble.load(tmp_path / "student")
    assert loaded.interrupted
    np.testing.assert_array_equal(loaded.predict_proba(IMAGES), trained.predict_proba(IMAGES))


def test_an_interrupt_between_two_epochs_of_a_later_member_keeps_the_earlier_ones(monkeypatch):
    fit = students.fit
    calls = []

    def second_never_finishes(*args, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fit(*args, **named)

    monkeypatch.setattr(students, "fit", second_never_finishes)
    trained = ensemble.fit(jax.random.key(0), IMAGES, TARGETS, CONFIG, 3)
    assert len(trained.members) == 1
    assert trained.interrupted


def test_eleven_members_or_more_are_loaded_in_their_order(tmp_path):
    """Their features lie side by side."""
    one = students.fit(jax.random.key(0), IMAGES, TARGETS, CONFIG)
    other = replace(one, params=jax.tree.map(lambda leaf: leaf + 1, one.params))
    students.save(one, tmp_path / "2")
    students.save(other, tmp_path / "10")
    loaded = ensemble.load(tmp_path)
    chex.assert_trees_all_equal(loaded.members, (one, other))


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="num_members=0"):
        ensemble.fit(jax.random.key(0), IMAGES, TARGETS, CONFIG, 0)
    with pytest.raises(ValueError, match="folder="):
        ensemble.load(tmp_path)

"""Students of released arrays: features or images, with class numbers or probabilities, of NumPy
or JAX, for every kind of training.
"""

import re
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax.labels import Labels
from rknn_jax.release import networks
from rknn_jax.students import base, ensemble, fit, inputs, mixmatch, supervised
from tests import tiny

KINDS = [base.named(name) for name in base.names()]
each = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind().name)
RNG = np.random.default_rng(0)
TRUTH = np.arange(90) % 3
CENTERS = np.array([[0, 0, 5e6], [4, 0, 5e6], [0, 4, 5e6]])
FEATURES = CENTERS[TRUTH] + RNG.normal(0, 0.3, (90, 3))
FEATURES *= [1, 1e-3, 1]
PROBABILITY = np.float32([0.8, 0.1, 0.1])[(np.arange(3) - TRUTH[:, None]) % 3]
NETWORK = fit.Config("linear", epochs=12, batch_size=16, learning_rate=0.05)


@pytest.fixture(autouse=True)
def _quick_shares(monkeypatch):
    """A Beta takes seconds to compile; tests/test_mixmatch.py draws it."""
    monkeypatch.setattr(
        mixmatch,
        "own_shares",
        lambda key, num_rows, alpha: 0.5 + 0.5 * jax.random.uniform(key, (num_rows,)),
    )


def few(kind) -> base.StudentSettings:
    """Return settings that train in a second."""
    return kind(NETWORK)


@pytest.mark.long
@each
@pytest.mark.parametrize("library", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_features_and_probabilities_of_a_release_train_every_kind(kind, library):
    X = library(FEATURES.astype(np.float32))
    trained = few(kind).fit(jax.random.key(0), X, library(PROBABILITY))
    found = trained.predict_proba(X)
    assert found.shape == (90, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert np.mean(found.argmax(axis=1) == TRUTH) > 0.95


@each
@pytest.mark.long
def test_class_numbers_are_one_hot_probabilities(kind):
    settings = few(kind)
    one = settings.fit(jax.random.key(1), FEATURES, TRUTH)
    other = settings.fit(jax.random.key(1), FEATURES, np.eye(3)[TRUTH])
    chex.assert_trees_all_equal(one, other)


@each
@pytest.mark.long
def test_the_defaults_take_features(kind, monkeypatch):
    """As a reader of the tutorial writes it, with fewer epochs."""
    usual = kind()
    network = replace(usual.student, epochs=1)
    trained = replace(usual, student=network).fit(jax.random.key(0), FEATURES, PROBABILITY)
    assert trained.members[0].config.model == "mlp"
    assert trained.members[0].image_shape == (3,)


@each
@pytest.mark.long
def test_images_take_released_arrays_and_records_without_a_label_are_left(kind, monkeypatch):
    tiny.use(monkeypatch, tiny.Linear)
    network = fit.Config(epochs=1, batch_size=4, augmentation="none", learning_rate=0.011)
    monkeypatch.setitem(inputs.augment.STRONG, "digit", lambda key, images: images)
    settings = kind(network)
    labels = np.array([0, 1, 2, -1, 1])
    trained = settings.fit(jax.random.key(0), tiny.IMAGES, labels)
    assert trained.predict_proba(tiny.IMAGES).shape == (5, 3)
    for library in (np.asarray, jnp.asarray):
        again = settings.fit(jax.random.key(0), library(tiny.IMAGES), library(labels))
        chex.assert_trees_all_equal(again, trained)
    wider = settings.fit(jax.random.key(0), tiny.IMAGES, labels, num_classes=7)
    assert wider.predict_proba(tiny.IMAGES).shape == (5, 7)


@pytest.mark.long
@each
def test_scales_do_not_matter(kind):
    """A column in other units and with another zero says the same."""
    moved = FEATURES * [8, 1024, 2] + [0, 64, 0]
    trained = [few(kind).fit(jax.random.key(2), rows, TRUTH) for rows in (FEATURES, moved)]
    np.testing.assert_allclose(
        trained[0].predict_proba(FEATURES), trained[1].predict_proba(moved), atol=0.02
    )


@pytest.mark.long
def test_a_constant_column_and_other_types_are_features():
    for rows in (
        np.where(TRUTH[:, None] == [0, 1, 2], 200, 0).astype(np.uint8),
        (TRUTH[:, None] == [0, 1, 2]),
        np.column_stack([TRUTH, np.ones(90, int)]),
    ):
        trained = few(supervised.Config).fit(jax.random.key(0), rows, TRUTH)
        assert np.isfinite(trained.predict_proba(rows)).all()


def test_an_ensemble_of_features_is_kept_whole(tmp_path):
    settings = replace(few(supervised.Config), members=2)
    trained = settings.fit(jax.random.key(0), FEATURES, TRUTH)
    ensemble.save(trained, tmp_path / "student")
    loaded = ensemble.load(tmp_path / "student")
    np.testing.assert_array_equal(loaded.predict_proba(FEATURES), trained.predict_proba(FEATURES))
    assert trained.features(FEATURES).shape == (90, 6)


def test_an_exported_student_of_features_agrees_also_far_from_zero():
    """The mean of a column may have no float32 within its deviation."""
    rows = (FEATURES + [0, 0, 3]).astype(np.float32)
    assert abs(np.float32(rows[:, 2].mean(dtype=float)) - rows[:, 2].mean(dtype=float)) > 0.01
    trained = few(supervised.Config).fit(jax.random.key(0), rows, TRUTH)
    found = networks.exported(trained).call(rows)
    np.testing.assert_allclose(found, trained.predict_proba(rows), atol=1e-5)


def test_targets_are_the_released_probabilities_unless_hard_ones_are_wanted(monkeypatch):
    seen = []
    monkeypatch.setattr(supervised.ensemble, "fit", lambda *args, **_: seen.append(args[2]))
    likely = PROBABILITY.copy()
    likely[4] = 0
    for targets in ("posterior", "soft", "hard"):
        supervised.Config(targets=targets).fit(jax.random.key(0), FEATURES, likely)
    known = np.delete(PROBABILITY, 4, axis=0)
    np.testing.assert_array_equal(seen[0], known)
    np.testing.assert_array_equal(seen[1], known)
    np.testing.assert_array_equal(seen[2], np.eye(3)[np.delete(TRUTH, 4)])


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        (FEATURES, TRUTH[:-1], "labels [90] or probabilities [90, num_classes]*shape (89,)"),
        (FEATURES, PROBABILITY[:-2], "got shape (88, 3)"),
        (FEATURES, PROBABILITY[None], "got shape (1, 90, 3)"),
        (FEATURES, TRUTH[:, None], "got shape (90, 1)"),
        (FEATURES, np.array(["cat"] * 90), "got <U3 (90,); np.unique(labels"),
        (FEATURES, TRUTH + 0.5, "such as 0.5"),
        (FEATURES, TRUTH - 2, "such as -2"),
        (FEATURES, np.where(TRUTH, np.nan, 0), "such as nan"),
        (FEATURES, TRUTH + 10**9, "got label 1000000002 for 90 records"),
        (FEATURES, np.full(90, -1), "labels of some records, got none among 90"),
        (FEATURES, 2 * PROBABILITY, "got 90 other rows of 90*row 0 with sum 2"),
        (FEATURES, PROBABILITY - 0.2, "other rows"),
        (FEATURES, np.full((90, 3), np.nan), "other rows"),
        (FEATURES[0], TRUTH, "got float64 (3,)"),
        (FEATURES.astype(str), TRUTH, "or features of numbers [m, f]"),
        (np.where(TRUTH[:, None], FEATURES, np.inf), TRUTH, "infinity in 30 of 90 rows"),
        (np.zeros((90, 2, 2, 1)), TRUTH, "got float64 (90, 2, 2, 1)"),
        (np.zeros((90, 0)), TRUTH, "got float64 (90, 0)"),
    ],
)
@each
def test_errors_name_shapes_and_values(kind, rows, labels, words):
    pattern = ".*".join(re.escape(part) for part in words.split("*"))
    with pytest.raises(ValueError, match=pattern):
        few(kind).fit(jax.random.key(0), rows, labels)


def test_other_errors_name_what_does_not_fit():
    settings = few(supervised.Config)
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="below num_classes=2, got label 2"):
        settings.fit(key, FEATURES, TRUTH, num_classes=2)
    with pytest.raises(ValueError, match=re.escape("probabilities [90, 4], got shape (90, 3)")):
        settings.fit(key, FEATURES, PROBABILITY, num_classes=4)
    with pytest.raises(ValueError, match="model='m5'.*choose linear or mlp for features"):
        supervised.Config(fit.Config("m5")).fit(key, FEATURES, TRUTH)
    with pytest.raises(ValueError, match="labels of 90 records, got 4"):
        settings.fit(key, FEATURES, Labels.none(4, 3))
    trained = settings.fit(key, FEATURES, TRUTH)
    with pytest.raises(ValueError, match=re.escape("features [n, 3] as in training, got (90, 2)")):
        trained.predict_proba(FEATURES[:, :2])


@pytest.mark.long
def test_strong_augmentation_of_features_takes_values_of_the_same_column():
    rows = jnp.asarray(RNG.normal(size=(500, 4)) + 100 * np.arange(4), jnp.float32)
    other = np.asarray(inputs.strongly_augmented("digit", jax.random.key(0), rows))
    assert 0.2 < np.mean(other != rows) < 0.4
    for column, values in zip(other.T, np.asarray(rows).T, strict=True):
        assert np.isin(column, values).all()

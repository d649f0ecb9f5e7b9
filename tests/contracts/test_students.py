"""Settings of students: every kind is a value that checks itself and has its own fields only."""

import dataclasses

import jax
import numpy as np
import pytest

from rknn_jax.labels import Labels
from rknn_jax.students import base as students
from rknn_jax.students import fit, semi_supervised, supervised, uda
from tests import tiny

each = pytest.mark.parametrize("kind", [students.named(name) for name in students.names()])
KNOWN = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]
SURE = np.float32([1, 0.9, 0.8, 0.7, 0.2])
LABELS = Labels(KNOWN, SURE, np.zeros(5, np.int32))


def test_every_kind_is_found_by_its_file():
    assert {"mixmatch", "supervised", "uda", "vat"} <= set(students.names())
    assert students.named("supervised") is supervised.Config
    with pytest.raises(ValueError, match="among mixmatch.*got 'ensemble'"):
        students.named("ensemble")


@each
def test_a_kind_has_the_fields_that_make_sense_for_it_and_is_a_value(kind):
    names = {one.name for one in dataclasses.fields(kind)}
    alone = kind is supervised.Config
    assert ("fine_tune" in names) == alone
    assert ("unlabelled" in names) == ("unlabelled_weight" in names) == (not alone)
    assert hash(kind()) == hash(kind())
    assert kind().name == kind.__module__.rsplit(".", 1)[-1]
    with pytest.raises(TypeError):
        kind(fit.Config(), 3)
    with pytest.raises(TypeError):
        kind(**{"unlabelled" if alone else "fine_tune": 0.1})


@each
@pytest.mark.parametrize(
    ("name", "value"),
    [("members", 0), ("targets", "hardest"), ("unlabelled", 1.0), ("unlabelled_weight", -1.0)],
)
def test_settings_out_of_range_are_refused_by_name(kind, name, value):
    if name in {one.name for one in dataclasses.fields(kind)}:
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            kind(**{name: value})


@each
def test_another_network_brings_its_own_epochs_unless_others_were_asked_for(kind):
    usual = kind()
    own = usual.student.epochs == fit.Config().epochs
    epochs = fit.Config(model="m5").epochs if own else usual.student.epochs
    other = usual.with_model("m5")
    assert (other.student.model, other.student.epochs) == ("m5", epochs)
    assert other.with_model("cnn") == usual
    asked = dataclasses.replace(usual, student=dataclasses.replace(usual.student, epochs=3))
    assert asked.with_model("m5").student.epochs == 3


@each
def test_another_kind_keeps_network_members_and_targets(kind):
    network = fit.Config(model="m5", epochs=4, batch_size=7, augmentation="crop")
    begun = supervised.Config(network, members=2, targets="hard")
    found = begun.as_kind(kind)
    smoothing = kind().student.label_smoothing
    assert found == kind(
        dataclasses.replace(network, label_smoothing=smoothing), members=2, targets="hard"
    )
    assert supervised.Config().as_kind(kind) == kind()
    assert kind().as_kind(supervised.Config) == supervised.Config()


def test_a_strong_augmentation_follows_the_labeled_images():
    cropped = fit.Config(augmentation="crop_flip")
    assert uda.Config().strong_augmentation == "digit"
    assert uda.Config(cropped).strong_augmentation == "photo"
    assert uda.Config(cropped, strong="digit").strong_augmentation == "digit"


@pytest.mark.parametrize(("unlabelled", "labeled"), [(0.2, 4), (0.4, 3)])
def test_the_least_sure_labels_are_left_out(unlabelled, labeled, monkeypatch):
    seen = []

    def record(key, images, targets, unlabelled, config, on_epoch):
        seen.append((images, targets, unlabelled))
        raise KeyboardInterrupt

    monkeypatch.setattr(semi_supervised, "fit", record)
    student = uda.Config(unlabelled=unlabelled, targets="hard")
    with pytest.raises(KeyboardInterrupt):
        student.fit(jax.random.key(0), tiny.IMAGES, LABELS)
    [(images, targets, others)] = seen
    np.testing.assert_array_equal(images, tiny.IMAGES[:labeled])
    np.testing.assert_array_equal(targets, KNOWN[:labeled])
    np.testing.assert_array_equal(others, tiny.IMAGES[labeled:])


def test_fine_tuning_starts_from_the_layers_and_others_do_not(monkeypatch):
    seen = []
    monkeypatch.setattr(supervised.ensemble, "fit", lambda *_, start, **__: seen.append(start))
    for fine_tune in (True, False):
        supervised.Config(fine_tune=fine_tune).fit(
            jax.random.key(0), tiny.IMAGES, LABELS, start="layers"
        )
    assert seen == ["layers", None]

"""Students that compile in no time, and records for them."""

import dataclasses
from types import SimpleNamespace

import flax.linen as nn
import numpy as np

from rknn_jax.students import fit as students

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 2, 2, 1), np.uint8)
UNLABELLED = RNG.integers(0, 256, (7, 2, 2, 1), np.uint8)
TARGETS = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]


class Linear(nn.Module):
    """A linear map of normalised pixels."""

    num_classes: int

    @nn.compact
    def __call__(self, images, *, train, features=False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(
            images.reshape(len(images), -1)
        )
        return nn.Dense(self.num_classes)(x)


class Layered(nn.Module):
    """Two layers of hidden units and a linear one."""

    num_classes: int

    @nn.compact
    def __call__(self, images, *, train, features=False):
        x = images.reshape(len(images), -1)
        for _ in range(2):
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(32)(x)))
        return nn.Dense(self.num_classes)(x)


def use(monkeypatch, network):
    """Have all students be of this network, whatever their config names; jitted steps tell
    networks apart by the config alone.
    """
    monkeypatch.setattr(
        students,
        "_model",
        lambda config: SimpleNamespace(Model=network, MIN_SIZE=2, EPOCHS=30, FEATURES=True),
    )


def moons(num_records):
    """Two half circles that reach into each other, as images of two rows that are alike: uint8
    `[n, 2, 2, 1]`, and labels.
    """
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, np.pi, num_records)
    labels = rng.integers(0, 2, num_records)
    sign = 1 - 2 * labels
    points = np.stack(
        [sign * np.cos(angle) + labels, sign * np.sin(angle) + labels / 2], axis=1
    ) + rng.normal(0, 0.1, (num_records, 2))
    return np.repeat((112 + 48 * points).astype(np.uint8)[:, None, :, None], 2, axis=1), labels


def right(student, images, labels):
    return np.mean(student.predict_proba(images).argmax(axis=1) == labels)


def arrays(student):
    return {"params": student.params, "batch_stats": student.batch_stats}


def as_float32(*values):
    return [np.asarray(value, np.float32) for value in values]


def changed(experiment, **changes):
    """Return an experiment with other settings; those of its labeler and of its student are named
    as its own.
    """
    own = {field.name for field in dataclasses.fields(experiment)}
    parts = {name: changes.pop(name, getattr(experiment, name)) for name in ("labeler", "student")}
    inner = {name: changes.pop(name) for name in list(changes) if name not in own}
    if parts["student"] is not None:
        parts["student"] = of_student(parts["student"], inner)
    parts["labeler"] = dataclasses.replace(parts["labeler"], **inner)
    return dataclasses.replace(experiment, **parts, **changes)


def of_student(student, inner):
    """Take a student's settings out of `inner`, and return the student with them."""
    settings = {field.name for field in dataclasses.fields(student)}
    network = {field.name for field in dataclasses.fields(student.student)}
    own = {name: inner.pop(name) for name in list(inner) if name in settings}
    within = {name: inner.pop(name) for name in list(inner) if name in network}
    return dataclasses.replace(
        student, student=dataclasses.replace(student.student, **within), **own
    )

"""UDA: targets, mask, loss and gradient in closed form, and that it finds two moons."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from rknn_jax.images import augment
from rknn_jax.students import fit as students
from rknn_jax.students import semi_supervised, uda
from tests import tiny
from tests.tiny import as_float32

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(0, 2, (12, 4))
IMAGES = RNG.uniform(0, 1, (6, 3, 4, 1))


# Divergence and targets.


def test_the_divergence_is_kullback_and_leiblers_and_finite_where_a_class_is_impossible():
    """A target of zero counts for nothing; only the second argument has a gradient, q - p."""
    logits = RNG.normal(0, 3, (7, 4))
    p = RNG.dirichlet(np.ones(4), 7)
    p[0] = np.eye(4)[2]
    p[1] = softmax(logits[1])

    def divergence(p, z):
        return semi_supervised.kl_divergence(p[None], z[None])[0]

    of_each = jax.jit(jax.vmap(jax.value_and_grad(divergence, argnums=(0, 1))))
    value, gradient = jax.tree.map(np.asarray, of_each(*as_float32(p, logits)))
    log_q = log_softmax(logits, axis=1)
    positive = np.where(p > 0, p, 1)
    np.testing.assert_allclose(
        value, (p * (np.log(positive) - log_q)).sum(axis=1), rtol=1e-4, atol=1e-6
    )
    assert abs(value[1]) < 1e-6
    np.testing.assert_array_equal(gradient[0], 0)
    np.testing.assert_allclose(gradient[1], np.exp(log_q) - p, atol=1e-6)


confident_targets = jax.jit(uda.confident_targets)


@pytest.mark.parametrize("temperature", [1.0, 0.4, 0.02])
def test_targets_are_powers_scaled_to_one(temperature):
    logits = RNG.normal(0, 1, (20, 4))
    power = softmax(logits, axis=1) ** (1 / temperature)
    targets, _ = confident_targets(*as_float32(logits), temperature, 0.8)
    np.testing.assert_allclose(
        targets, power / power.sum(axis=1, keepdims=True), rtol=1e-3, atol=1e-6
    )


def test_who_teaches_is_decided_before_the_sharpening():
    """0.79 becomes 0.96 at a temperature of 0.4, and is not above 0.8 for that."""
    logits = np.log([[0.79, 0.21], [0.81, 0.19], [0.01, 0.99]])
    _, sure = confident_targets(*as_float32(logits), 0.4, 0.8)
    np.testing.assert_array_equal(sure, [0, 1, 1])


# The loss.

TARGETS = np.eye(4)[[1, 3]]
WEIGHTS = np.array([1.5, 0.5])
PRESENT = np.array([1.0, 1, 0, 1])


@pytest.fixture
def objective(monkeypatch):
    """The objective of 2 labeled images and 4 unlabelled ones, the third of which fills up the
    batch and the last is not sure.

    "Statistics" of a pass are the sum of the images that went through.
    """
    monkeypatch.setitem(augment.AUGMENTATIONS, "crop", lambda key, images: images / 2)
    monkeypatch.setitem(augment.STRONG, "photo", lambda key, images: 1 - images)
    monkeypatch.setitem(augment.AUGMENTATIONS, "crop_flip", lambda key, images: images * 0.9)
    student = students.Config(augmentation="crop", label_smoothing=0.1)
    config = uda.Config(
        student,
        weak="crop_flip",
        strong="photo",
        temperature=0.5,
        confidence=0.7,
        unlabelled_weight=3.0,
    )
    batch = semi_supervised.Batch(*as_float32(IMAGES[:2], TARGETS, WEIGHTS, IMAGES[2:], PRESENT))
    return config, batch


@functools.partial(jax.jit, static_argnames="config")
def loss_and_gradient(config, kernel, batch):
    def loss(kernel):
        def apply(images):
            return images.reshape(len(images), -1) @ kernel, images.sum()

        return config.objective(jax.random.key(1), apply, batch, jnp.float32(0))

    return jax.value_and_grad(loss, has_aux=True)(kernel)


def test_the_loss_and_its_gradient_are_those_of_the_module(objective):
    """No gradient passes through a target: (q - p)' (strong x) is all that the divergence gives."""
    config, batch = objective
    (value, statistics), gradient = loss_and_gradient(config, *as_float32(KERNEL), batch)
    labelled, little, strong = (
        some.reshape(len(some), -1) for some in (IMAGES[:2] / 2, IMAGES[2:] * 0.9, 1 - IMAGES[2:])
    )
    weak = softmax(little @ KERNEL, axis=1)
    smooth = 0.9 * TARGETS + 0.1 / 4
    p = weak**2 / (weak**2).sum(axis=1, keepdims=True)
    counts = PRESENT * (weak.max(axis=1) > 0.7)
    assert counts.tolist() == [1, 1, 0, 0]
    log_q = log_softmax(strong @ KERNEL, axis=1)
    log_l = log_softmax(labelled @ KERNEL, axis=1)
    divergence = (p * (np.log(p) - log_q)).sum(axis=1)
    np.testing.assert_allclose(
        value,
        -(WEIGHTS[:, None] * smooth * log_l).sum() / 2 + 3 * (counts * divergence).sum() / 4,
        rtol=1e-5,
    )
    np.testing.assert_allclose(statistics, labelled.sum() + strong.sum(), rtol=1e-5)
    expected = (
        labelled.T @ (WEIGHTS[:, None] * (np.exp(log_l) - smooth)) / 2
        + 3 * strong.T @ (counts[:, None] * (np.exp(log_q) - p)) / 4
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_without_weight_only_the_cross_entropy_is_left(objective):
    config, batch = objective
    alone = replace(config, unlabelled_weight=0.0)
    (value, _), _ = loss_and_gradient(alone, *as_float32(KERNEL), batch)
    log_l = log_softmax(IMAGES[:2].reshape(2, -1) / 2 @ KERNEL, axis=1)
    smooth = 0.9 * TARGETS + 0.1 / 4
    np.testing.assert_allclose(value, -(WEIGHTS[:, None] * smooth * log_l).sum() / 2, rtol=1e-5)


# The training.


@pytest.mark.long
def test_images_changed_little_leave_no_trace_in_the_running_statistics(monkeypatch):
    """After one step they are a tenth of the statistics of labeled images and strongly changed
    ones.
    """
    tiny.use(monkeypatch, tiny.Linear)
    monkeypatch.setitem(augment.STRONG, "photo", lambda key, images: 1 - images / 2)
    config = uda.Config(
        students.Config(epochs=1, batch_size=5, augmentation="none", learning_rate=0.0125),
        strong="photo",
    )
    seen = []
    step = semi_supervised._step
    monkeypatch.setattr(
        semi_supervised,
        "_step",
        lambda *args, **named: seen.append(step(*args, **named)) or seen[-1],
    )
    semi_supervised.fit(jax.random.key(0), tiny.IMAGES, tiny.TARGETS, tiny.UNLABELLED, config)
    assert len(seen) == 1
    pixels = np.concatenate([tiny.IMAGES / 255, 1 - tiny.UNLABELLED / 510]).reshape(12, -1)
    running = seen[0][0].variables["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(running["mean"], 0.1 * pixels.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(running["var"], 0.9 + 0.1 * pixels.var(axis=0), rtol=1e-4)


@pytest.mark.slow
def test_unlabelled_moons_teach_what_six_labels_do_not(monkeypatch):
    """0.98 to 0.99 against 0.86 to 0.90 of as many steps on the labeled alone, over keys.

    A strong change is noise.
    """
    tiny.use(monkeypatch, tiny.Layered)
    monkeypatch.setitem(
        augment.STRONG,
        "photo",
        lambda key, images: images + 0.05 * jax.random.normal(key, images.shape),
    )
    images, labels = tiny.moons(1000)
    chosen = np.concatenate([np.flatnonzero(labels == label)[:3] for label in range(2)])
    targets = np.eye(2, dtype=np.float32)[labels[chosen]]
    config = students.Config(
        epochs=25, batch_size=16, augmentation="none", label_smoothing=0.0, learning_rate=0.01
    )
    alone = students.fit(
        jax.random.key(0), images[chosen], targets, replace(config, epochs=25 * 16)
    )
    student = semi_supervised.fit(
        jax.random.key(0), images[chosen], targets, images, uda.Config(config, strong="photo")
    )
    assert tiny.right(student, images, labels) > tiny.right(alone, images, labels) + 0.06


# Bad input.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unlabelled_ratio", 0),
        ("weak", "digit"),
        ("strong", "warp"),
        ("temperature", 0.0),
        ("temperature", 1.5),
        ("confidence", 1.0),
        ("confidence", -0.5),
        ("unlabelled_weight", float("inf")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        uda.Config(**{name: value})

"""VAT: the perturbation against gradients and eigenvectors, the loss and its gradient in closed
form, and that it finds two moons.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from rknn_jax.images import augment
from rknn_jax.students import fit as students
from rknn_jax.students import semi_supervised, vat
from tests import tiny
from tests.tiny import as_float32

RNG = np.random.default_rng(0)
SHAPE = (3, 4, 1)
PIXELS = 12
KERNEL = RNG.normal(0, 1, (PIXELS, 4))
IMAGES = RNG.uniform(0, 1, (6, *SHAPE))


def linear(kernel):
    return lambda images: images.reshape(len(images), -1) @ jnp.asarray(kernel, jnp.float32)


def curvature(kernel, images):
    """Return the divergence's second derivative at each image, float64 `[n, pixels, pixels]`."""
    p = softmax(images.reshape(len(images), -1) @ kernel, axis=1)
    fisher = np.eye(p.shape[1]) * p[:, None, :] - p[:, :, None] * p[:, None, :]
    return kernel @ fisher @ kernel.T


def divergence(kernel, images, moved):
    first, second = (
        log_softmax(some.reshape(len(some), -1) @ kernel, axis=1) for some in (images, moved)
    )
    return (np.exp(first) * (first - second)).sum(axis=1)


@functools.partial(jax.jit, static_argnames="iterations")
def perturbation(key, images, kernel, radius, iterations):
    return vat.adversarial_perturbation(key, linear(kernel), images, radius, iterations)


def found(kernel, radius, iterations):
    given = as_float32(IMAGES, kernel)
    moved = perturbation(jax.random.key(1), *given, radius, iterations)
    return np.asarray(moved, np.float64).reshape(6, -1)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def start():
    return unit(
        np.asarray(jax.random.normal(jax.random.key(1), IMAGES.shape), np.float64).reshape(6, -1)
    )


# The perturbation.


@pytest.mark.long
@pytest.mark.parametrize(("radius", "iterations"), [(0.1, 1), (2.0, 1), (2.0, 6)])
def test_a_perturbation_follows_the_divergences_gradient_where_it_leads(radius, iterations):
    """That is (q - p) W' in closed form."""
    flat = IMAGES.reshape(6, -1)
    direction = start()
    for _ in range(iterations):
        direction = unit(
            (softmax((flat + radius * direction) @ KERNEL, axis=1) - softmax(flat @ KERNEL, axis=1))
            @ KERNEL.T
        )
    np.testing.assert_allclose(
        found(KERNEL, radius, iterations), radius * direction, atol=1e-5 * radius
    )


def test_many_iterations_of_a_small_radius_end_at_the_first_eigenvector():
    kernel = KERNEL * [3, 1, 0, 0]
    values, vectors = np.linalg.eigh(curvature(kernel, IMAGES))
    assert (values[:, -2] < 0.2 * values[:, -1]).all(), "so that six iterations are many"
    np.testing.assert_allclose(
        np.abs((unit(found(kernel, 0.01, 6)) * vectors[:, :, -1]).sum(axis=1)), 1, atol=1e-4
    )


@pytest.mark.parametrize("radius", [0.01, 0.5])
def test_one_iteration_changes_the_prediction_far_more_than_chance_does(radius):
    """And at least half as much six iterations do."""
    once, often = (
        divergence(KERNEL, IMAGES, IMAGES + found(KERNEL, radius, n).reshape(IMAGES.shape))
        for n in (1, 6)
    )
    drawn = radius * unit(RNG.normal(size=(500 * 6, PIXELS))).reshape(500, *IMAGES.shape)
    chance = np.mean([divergence(KERNEL, IMAGES, IMAGES + moves) for moves in drawn], axis=0)
    assert (once > 2.5 * chance).all()
    assert (once > 0.5 * often).all()


@pytest.mark.parametrize("scale", [1, 1e5], ids=["changes", "cannot"])
def test_a_perturbation_has_the_radius_for_its_length_and_stays_random_where_nothing_can_change(
    scale,
):
    perturbation = found(scale * KERNEL, 0.01, 1)
    np.testing.assert_allclose(np.linalg.norm(perturbation, axis=1), 0.01, rtol=1e-6)
    np.testing.assert_array_equal(
        np.isclose(perturbation, 0.01 * start(), atol=1e-8).all(axis=1), scale == 1e5
    )


def test_rows_are_scaled_to_length_one_however_small_and_zeros_stay():
    rows = np.array([[3, 4], [3e-30, 4e-30], [0, 0]])
    np.testing.assert_allclose(
        jax.jit(vat.unit)(*as_float32(rows)), [[0.6, 0.8], [0.6, 0.8], [0, 0]], rtol=1e-6
    )


# The loss.

NUM_LABELLED = 2
TARGETS = np.eye(4)[[1, 3]]
WEIGHTS = np.array([1.5, 0.0])
PRESENT = np.array([1.0, 1, 0, 1])


@pytest.fixture
def objective(monkeypatch):
    """The objective of 2 labeled images, one of which fills up the batch, and 4 unlabelled ones,
    of which one does.

    "Statistics" of a pass are the sum of the images that went through.
    """
    monkeypatch.setitem(augment.AUGMENTATIONS, "crop", lambda key, images: images / 2)
    config = vat.Config(
        students.Config(augmentation="crop", label_smoothing=0.1),
        radius=0.7,
        unlabelled_weight=3.0,
        entropy_weight=0.5,
    )
    batch = semi_supervised.Batch(*as_float32(IMAGES[:2], TARGETS, WEIGHTS, IMAGES[2:], PRESENT))
    return config, batch


@functools.partial(jax.jit, static_argnames="config")
def loss_and_gradient(config, kernel, batch):
    def loss(kernel):
        def apply(images):
            return linear(kernel)(images), images.sum()

        return config.objective(jax.random.key(1), apply, batch, jnp.float32(0))

    return jax.value_and_grad(loss, has_aux=True)(kernel)


@pytest.mark.long
def test_the_loss_and_its_gradient_are_those_of_the_module(objective):
    """Neither target nor perturbation passes a gradient: (q - p)' (x + r) is all that the
    divergence gives.
    """
    config, batch = objective
    (value, statistics), gradient = loss_and_gradient(config, *as_float32(KERNEL), batch)
    x = IMAGES / 2
    moved = x + np.asarray(
        perturbation(jax.random.split(jax.random.key(1))[1], *as_float32(x, KERNEL), 0.7, 1),
        np.float64,
    )
    log_p, log_q = (log_softmax(some.reshape(6, -1) @ KERNEL, axis=1) for some in (x, moved))
    p = np.exp(log_p)
    q = np.exp(log_q)
    smooth = 0.9 * TARGETS + 0.1 / 4
    there = np.array([1, 0, *PRESENT])
    entropy = -(p * log_p).sum(axis=1)
    spread = 3 * divergence(KERNEL, x, moved) + 0.5 * entropy
    np.testing.assert_allclose(
        value,
        -(WEIGHTS[:, None] * smooth * log_p[:2]).sum() / 2 + (there * spread).sum() / 6,
        rtol=1e-5,
    )
    np.testing.assert_allclose(statistics, x.sum(), rtol=1e-5)
    of_logits = there[:, None] * -0.5 * p * (log_p + entropy[:, None]) / 6
    of_logits[:2] += WEIGHTS[:, None] * (p[:2] - smooth) / 2
    expected = x.reshape(6, -1).T @ of_logits + moved.reshape(6, -1).T @ (
        3 * there[:, None] * (q - p) / 6
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_rows_that_fill_up_a_batch_do_not_count(objective):
    config, batch = objective
    tripled = batch.images * np.float32([1, 3]).reshape(2, 1, 1, 1)
    other = batch._replace(images=tripled, unlabelled=batch.unlabelled.copy())
    other.unlabelled[2] += 1
    (value, _), gradient = loss_and_gradient(config, *as_float32(KERNEL), batch)
    (same, _), same_gradient = loss_and_gradient(config, *as_float32(KERNEL), other)
    np.testing.assert_allclose(same, value, rtol=1e-6)
    np.testing.assert_allclose(same_gradient, gradient, rtol=1e-4, atol=1e-6)


def test_without_weights_only_the_cross_entropy_is_left(objective):
    config, batch = objective
    alone = replace(config, unlabelled_weight=0.0, entropy_weight=0.0)
    (value, _), _ = loss_and_gradient(alone, *as_float32(KERNEL), batch)
    log_p = log_softmax(IMAGES[:2].reshape(2, -1) / 2 @ KERNEL, axis=1)
    smooth = 0.9 * TARGETS + 0.1 / 4
    np.testing.assert_allclose(value, -(WEIGHTS[:, None] * smooth * log_p).sum() / 2, rtol=1e-5)


# The training.


@pytest.mark.long
def test_perturbed_images_leave_no_trace_in_the_running_statistics(monkeypatch):
    """After one step they are a tenth of the statistics of the whole batch, images as they are."""
    tiny.use(monkeypatch, tiny.Linear)
    config = vat.Config(
        students.Config(epochs=1, batch_size=5, augmentation="none", learning_rate=0.0124),
        radius=50.0,
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
    pixels = np.concatenate([tiny.IMAGES, tiny.UNLABELLED]).reshape(12, -1) / 255
    running = seen[0][0].variables["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(running["mean"], 0.1 * pixels.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(running["var"], 0.9 + 0.1 * pixels.var(axis=0), rtol=1e-4)


@pytest.mark.slow
def test_unlabelled_moons_teach_what_six_labels_do_not(monkeypatch):
    """0.997 or more against 0.86 to 0.90 of as many steps on the labeled alone, over keys."""
    tiny.use(monkeypatch, tiny.Layered)
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
        jax.random.key(0), images[chosen], targets, images, vat.Config(config, radius=0.03)
    )
    assert tiny.right(student, images, labels) > tiny.right(alone, images, labels) + 0.06


# Bad input.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unlabelled_ratio", 0),
        ("iterations", 0),
        ("radius", 0.0),
        ("radius", float("inf")),
        ("unlabelled_weight", -1.0),
        ("entropy_weight", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        vat.Config(**{name: value})

"""MixMatch: each of its formulas in float64, one whole step, and that unlabelled records teach
where labeled ones are too few.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax, softmax

from rknn_jax import data
from rknn_jax.images import augment
from rknn_jax.students import fit as students
from rknn_jax.students import mixmatch, semi_supervised
from tests import tiny
from tests.tiny import IMAGES, TARGETS, UNLABELLED

RNG = np.random.default_rng(0)
DIM = np.linspace(0.5, 1, 9, dtype=np.float32).reshape(9, 1, 1, 1)


def as_float32(*values):
    return [np.asarray(value, np.float32) for value in values]


sharpen = jax.jit(mixmatch.sharpen)
mix = jax.jit(mixmatch.mix)


# Sharpening and guessing.


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.02])
def test_sharpening_is_a_power_scaled_to_one(temperature):
    """In float32 0.1^50 is zero; ten equal classes stay equal all the same."""
    rows = np.vstack([RNG.dirichlet(np.ones(10), 20), np.full((1, 10), 0.1), np.eye(10)[:1]])
    power = rows ** (1 / temperature)
    sharp = np.asarray(sharpen(*as_float32(rows), temperature))
    np.testing.assert_allclose(
        sharp, power / power.sum(axis=1, keepdims=True), rtol=2e-4, atol=1e-6
    )
    if temperature == 1:
        np.testing.assert_allclose(sharp, rows, atol=1e-6)


def test_sharpening_to_zero_leaves_the_likeliest_class():
    rows = np.array([[0.2, 0.5, 0.3], [0.34, 0.33, 0.33]])
    np.testing.assert_allclose(sharpen(*as_float32(rows), 1e-4), np.eye(3)[[1, 0]], atol=1e-6)


def test_a_guess_is_the_sharpened_mean_over_the_augmentations():
    logits = RNG.normal(0, 2, (3, 8, 4))
    squared = softmax(logits, axis=2).mean(axis=0) ** 2
    np.testing.assert_allclose(
        jax.jit(mixmatch.guess)(*as_float32(logits), 0.5),
        squared / squared.sum(axis=1, keepdims=True),
        rtol=1e-4,
        atol=1e-6,
    )


def test_no_gradient_passes_through_a_guess():
    """Nor a NaN, where a class has become impossible."""
    logits = np.float32([[[300.0, -300.0, 0.0]], [[1.0, 2.0, 3.0]]])
    np.testing.assert_array_equal(
        jax.jit(jax.grad(lambda x: jnp.sum(mixmatch.guess(x, 0.5) ** 2)))(logits), 0
    )


# Mixing.


@pytest.mark.slow
def test_shares_are_folded_betas():
    """Kolmogorov and Smirnov's test, false alarm rate 1e-4; the draw is fixed."""
    shares = np.asarray(mixmatch.own_shares(jax.random.key(0), 2000, 0.75))
    assert shares.min() >= 0.5
    beta = stats.beta(0.75, 0.75)
    assert stats.kstest(shares, lambda x: beta.cdf(x) - beta.cdf(1 - x)).pvalue > 1e-4


def test_mixed_rows_stay_distributions_and_nearer_to_their_own():
    share = RNG.uniform(0.5, 1, 6)
    other = RNG.permutation(6)
    targets = RNG.dirichlet(np.ones(3), 6)
    images = RNG.uniform(size=(6, 4, 5, 2))
    mixed = np.asarray(mix(*as_float32(share), other, *as_float32(targets)), np.float64)
    np.testing.assert_allclose(mixed.sum(axis=1), 1, atol=1e-6)
    own, far = (np.linalg.norm(mixed - rows, axis=1) for rows in (targets, targets[other]))
    assert (own <= far + 1e-6).all()
    expected = np.stack(
        [
            s * images[i] + (1 - s) * images[j]
            for i, (s, j) in enumerate(zip(share, other, strict=True))
        ]
    )
    np.testing.assert_allclose(
        mix(*as_float32(share), other, *as_float32(images)), expected, atol=1e-6
    )


# The loss.


def test_the_loss_is_cross_entropy_and_squared_error_and_without_weight_only_the_first():
    logits = RNG.normal(0, 2, (7, 4))
    targets = RNG.dirichlet(np.ones(4), 7)
    weights = RNG.uniform(0.5, 2, 7)
    smooth = 0.9 * targets + 0.1 / 4
    labelled = -(weights[:3, None] * smooth[:3] * log_softmax(logits[:3], axis=1)).sum() / 3
    guessed = (weights[3:, None] * (softmax(logits[3:], axis=1) - targets[3:]) ** 2).sum() / (4 * 4)
    loss = jax.jit(jax.value_and_grad(mixmatch.loss), static_argnums=(3, 5))
    value, gradient = loss(*as_float32(logits, targets, weights), 3, jnp.float32(5), 0.1)
    np.testing.assert_allclose(value, labelled + 5 * guessed, rtol=1e-5)
    assert (np.abs(gradient).sum(axis=1) > 0).all()
    value, gradient = loss(*as_float32(logits, targets, weights), 3, jnp.float32(0), 0.1)
    np.testing.assert_allclose(value, labelled, rtol=1e-5)
    np.testing.assert_array_equal(gradient[3:], 0)


# A step, and the training.


@pytest.mark.long
def test_a_step_is_the_algorithm_of_the_module(monkeypatch):
    """Loss and running statistics by NumPy, at the third of six steps.

    Every row is darkened by an amount of its own.

    Shares come without a Beta, which would compile for seconds.
    """
    tiny.use(monkeypatch, tiny.Linear)
    monkeypatch.setitem(
        augment.AUGMENTATIONS, "crop", lambda key, images: images * jnp.asarray(DIM)
    )
    monkeypatch.setattr(
        mixmatch,
        "own_shares",
        lambda key, num_rows, alpha: 0.5 + 0.5 * jax.random.uniform(key, (num_rows,)) ** alpha,
    )
    config = mixmatch.Config(
        students.Config(epochs=2, batch_size=3, augmentation="crop", learning_rate=0.0123),
        unlabelled_weight=10,
    )
    state = students.initial(config.student, 6, jax.random.key(0), 3, IMAGES[:1])._replace(
        step=jnp.int32(2)
    )
    kernel = np.asarray(state.variables["params"]["Dense_0"]["kernel"], np.float64)
    weights = np.array([1, 2, 1, 0.5, 0.5])
    present = np.array([1, 1, 0])
    unlabelled_present = np.array([1, 0, 1])
    index = np.array([3, 1, 0])
    unlabelled_index = np.array([6, 2, 4])

    def normalised(images):
        flat = images.reshape(len(images), -1)
        return (flat - flat.mean(axis=0)) / np.sqrt(flat.var(axis=0) + 1e-5)

    batch = (
        np.concatenate([IMAGES[index], UNLABELLED[unlabelled_index], UNLABELLED[unlabelled_index]])
        / 255
        * DIM
    )
    power = softmax((normalised(batch[3:]) @ kernel).reshape(2, 3, 3), axis=2).mean(axis=0) ** 2
    guesses = power / power.sum(axis=1, keepdims=True)
    _, share_key, other_key = jax.random.split(jax.random.fold_in(jax.random.key(4), 2), 3)
    share = np.asarray(mixmatch.own_shares(share_key, 9, 0.75))
    other = np.asarray(jax.random.permutation(other_key, 9))
    targets = np.concatenate([TARGETS[index], guesses, guesses])
    targets = share[:, None] * targets + (1 - share[:, None]) * targets[other]
    mixed = share.reshape(-1, 1, 1, 1) * batch + (1 - share.reshape(-1, 1, 1, 1)) * batch[other]
    logits = normalised(mixed) @ kernel
    smooth = 0.9 * targets + 0.1 / 3
    labelled = (
        -((weights[index] * present)[:, None] * smooth[:3] * log_softmax(logits[:3], axis=1)).sum()
        / 3
    )
    guessed = (
        np.tile(unlabelled_present, 2)[:, None] * (softmax(logits[3:], axis=1) - targets[3:]) ** 2
    ).sum() / (6 * 3)

    chosen = tuple(
        (i.astype(np.int32), p.astype(np.float32))
        for i, p in ((index, present), (unlabelled_index, unlabelled_present))
    )
    records = jax.device_put(((IMAGES, TARGETS, weights.astype(np.float32)), UNLABELLED))
    after, value = semi_supervised._step(config, 6, jax.random.key(4), state, records, chosen)
    np.testing.assert_allclose(value, labelled + 3 / 6 * 10 * guessed, rtol=1e-4)
    running = after.variables["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(running, 0.1 * mixed.reshape(9, -1).mean(axis=0), rtol=1e-4)


@pytest.mark.slow
def test_unlabelled_digits_teach_what_twenty_labels_do_not(tmp_path):
    """0.87 to 0.92 against 0.66 to 0.72 of as many steps on the labeled alone, over keys.

    The student is saved like any other.
    """
    task = data.load("digits", 4)
    chosen = np.concatenate(
        [np.flatnonzero(task.public.true_labels == label)[:2] for label in range(10)]
    )
    images = task.public.images[chosen]
    targets = np.eye(10, dtype=np.float32)[task.public.true_labels[chosen]]
    config = students.Config(epochs=15, batch_size=20, label_smoothing=0.0)
    unlabelled = np.delete(task.public.images, chosen, axis=0)
    steps = config.epochs * -(-len(unlabelled) // 20)
    alone = students.fit(jax.random.key(0), images, targets, replace(config, epochs=steps))
    student = semi_supervised.fit(
        jax.random.key(0),
        images,
        targets,
        unlabelled,
        mixmatch.Config(config, unlabelled_weight=50),
    )
    right = [
        np.mean(s.predict_proba(task.test.images).argmax(axis=1) == task.test.labels)
        for s in (alone, student)
    ]
    assert right[1] > right[0] + 0.1
    students.save(student, tmp_path / "student")
    np.testing.assert_array_equal(
        students.load(tmp_path / "student").predict_proba(images), student.predict_proba(images)
    )


# Bad input.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_guesses", 0),
        ("temperature", 0.0),
        ("temperature", 1.5),
        ("concentration", 0.0),
        ("concentration", float("nan")),
        ("unlabelled_weight", -1.0),
        ("unlabelled_weight", float("inf")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}"):
        mixmatch.Config(**{name: value})

import functools
from dataclasses import replace
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from rknn_jax.images import augment
from rknn_jax.students import fit as students
from rknn_jax.students.models import cnn, m5
from tests import tiny

SMALL = students.Config(
    model="cnn", epochs=17, batch_size=8, augmentation="none"
)  # shared: every other setting or shape compiles for seconds


STEPS = 3 * SMALL.epochs


def bars(seed: int, num_records: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A separable problem: a bright horizontal bar in the upper, middle or lower third, on
    noise.
    """
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 100, (num_records, size, size, 1), np.uint8)
    labels = rng.integers(0, 3, num_records)
    for image, label in zip(images, labels, strict=True):
        image[label * size // 3 + size // 6, :] = 255
    return images, labels


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[labels]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """20 records: two full batches of eight and one that is not."""
    images, labels = bars(0, 20, 8)
    return images, one_hot(labels)


def arrays(student: students.Student) -> dict:
    return {"params": student.params, "batch_stats": student.batch_stats}


class Training(NamedTuple):
    """A student, and what was told of each epoch: the report, and a copy of the arrays then."""

    student: students.Student
    told: list[tuple[tuple, dict]]


@pytest.fixture(scope="module")
def training(data: tuple[np.ndarray, np.ndarray]) -> Training:
    told = []

    def log(*report):
        told.append((report, jax.tree.map(np.copy, arrays(report[3]))))

    return Training(students.fit(jax.random.key(1), *data, SMALL, on_epoch=log), told)


@pytest.fixture(scope="module")
def trained(training: Training) -> students.Student:
    return training.student


# The networks.


def shapes_of(network: nn.Module, images: tuple[int, ...]) -> dict:
    """The shapes of a network's variables, without any of them."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    init = functools.partial(network.init, train=False)
    return jax.eval_shape(init, key, jax.ShapeDtypeStruct(images, jnp.float32))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (
            m5.M5(10),
            25 * (1 * 32 + 32 * 64 + 64 * 96 + 96 * 128 + 128 * 160)
            + 2 * (32 + 64 + 96 + 128 + 160)
            + 10240 * 10
            + 2 * 10,
        ),
        (
            cnn.CNN(10),
            9 * (16 + 16 * 32 + 32 * 64 + 64 * 64 + 64 * 128)
            + 2 * 304
            + 2048 * 128
            + 2 * 128
            + 128 * 10
            + 10,
        ),
    ],
    ids=["m5", "cnn"],
)
def test_parameter_counts_are_those_of_the_definition(network, expected):
    variables = shapes_of(network, (1, 28, 28, 1))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == expected
    assert expected in (1_128_180, 398_074)  # the published 1.128 M and 398 k


@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "image_shape", "num_features"),
    [
        (cnn.CNN(10), (8, 8, 1), 128),
        (cnn.CNN(7, width=16), (27, 30, 3), 128),
        (m5.M5(10), (28, 28, 1), 160),
        (m5.M5(4), (32, 21, 3), 160),
    ],
    ids=str,
)
def test_networks_take_any_image_they_claim_to(network, image_shape, num_features):
    images = jax.ShapeDtypeStruct((5, *image_shape), jnp.float32)
    variables = shapes_of(network, images.shape)
    apply = functools.partial(network.apply, train=False)
    logits = jax.eval_shape(apply, variables, images)
    features = jax.eval_shape(functools.partial(apply, features=True), variables, images)
    chex.assert_shape([logits, features], [(5, network.num_classes), (5, num_features)])
    assert logits.dtype == features.dtype == jnp.float32


@pytest.mark.parametrize(
    ("height", "width"), [pytest.param(28, 28, marks=pytest.mark.slow), (9, 14), (5, 6)]
)
def test_winograd_equals_the_convolution_in_float64(height, width):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, height, width, 6))
    kernel = rng.normal(size=(5, 5, 6, 4))
    patches = np.lib.stride_tricks.sliding_window_view(images, (5, 5), (1, 2))
    expected = np.einsum("nhwcij,ijcd->nhwd", patches, kernel)
    actual = jax.jit(m5.convolve)(*tiny.as_float32(images, kernel))
    chex.assert_shape(actual, expected.shape)
    assert np.abs(actual - expected).max() < 1e-4 * expected.std()


def test_winograd_has_the_gradient_of_the_convolution():
    rng = np.random.default_rng(0)
    images, kernel = tiny.as_float32(rng.normal(size=(2, 11, 12, 3)), rng.normal(size=(5, 5, 3, 4)))
    weight = np.float32(rng.normal(size=(2, 7, 8, 4)))

    def direct(images, kernel):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "VALID", dimension_numbers=layout
        )

    def gradient(convolve):
        return jax.grad(lambda *both: jnp.sum(weight * convolve(*both)), (0, 1))(images, kernel)

    expected, actual = jax.jit(lambda: (gradient(direct), gradient(m5.convolve)))()
    chex.assert_trees_all_close(
        actual, expected, atol=2e-3
    )  # values are around 10, sums of up to 112 products


# The parts of a step.


cross_entropy = jax.jit(students.cross_entropy)


@given(st.integers(0, 2**31 - 1), st.sampled_from([0.0, 0.1, 0.45]))
def test_cross_entropy_is_the_smoothed_one_in_float64(seed, smoothing):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=5, size=(6, 4))
    targets = rng.dirichlet(np.ones(4), 6)
    log_p = log_softmax(logits, axis=1)
    expected = (1 - smoothing) * -(targets * log_p).sum(axis=1) + smoothing * -log_p.mean(axis=1)
    actual = cross_entropy(*tiny.as_float32(logits, targets), smoothing)
    chex.assert_shape(actual, (6,))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_average_is_the_recursion_and_starts_fast():
    values = np.random.default_rng(0).normal(size=(300, 3))
    expected = np.zeros(3)
    actual = {"w": np.zeros(3, np.float32)}
    update = jax.jit(students.average, static_argnames="decay")
    for step, value in enumerate(values):
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        actual = update(actual, {"w": np.float32(value)}, step, 0.9)
    np.testing.assert_allclose(actual["w"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("num_records", "batch_size"), [(20, 19), (20, 8), (20, 4), (20, 20), (1, 1)]
)
def test_an_epoch_has_every_record_once_in_batches_of_one_size(num_records, batch_size):
    epoch = list(students.batches(jax.random.key(0), num_records, batch_size))
    assert {index.shape for index, _ in epoch} | {present.shape for _, present in epoch} == {
        (batch_size,)
    }
    counted = np.concatenate([index[present == 1] for index, present in epoch])
    assert sorted(counted) == list(range(num_records))
    filler = np.concatenate([index[present == 0] for index, present in epoch])
    assert len(filler) == -num_records % batch_size
    assert np.array_equal(filler, counted[: len(filler)])


# Training.


@pytest.mark.long
def test_a_student_learns_a_separable_problem_and_is_as_sure_as_its_targets(trained, data):
    fresh, truth = bars(4, 90, 8)
    probabilities = trained.predict_proba(fresh)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert np.mean(probabilities.argmax(axis=1) == truth) >= 0.95
    sure = 1 - SMALL.label_smoothing + SMALL.label_smoothing / 3
    np.testing.assert_allclose(trained.predict_proba(data[0]).max(axis=1).mean(), sure, atol=0.03)


@pytest.mark.long
def test_predictions_are_those_of_the_network_on_running_statistics(trained, data):
    apply = jax.jit(functools.partial(cnn.CNN(3).apply, train=False))
    logits = np.asarray(apply(arrays(trained), data[0].astype(np.float32) / 255))
    np.testing.assert_allclose(trained.predict_proba(data[0]), softmax(logits, axis=1), atol=1e-5)
    assert all(np.all(np.abs(norm["mean"]) > 0) for norm in trained.batch_stats.values())


@pytest.mark.slow
def test_m5_learns_a_separable_problem():
    images, labels = bars(2, 40, 21)
    config = students.Config(model="m5", epochs=6, batch_size=8, augmentation="none")
    student = students.fit(jax.random.key(3), images, one_hot(labels), config)
    fresh, truth = bars(4, 90, 21)
    assert np.mean(student.predict_proba(fresh).argmax(axis=1) == truth) >= 0.95


def after_an_epoch(key: int, *arguments, **settings) -> tuple[students.Student, float]:
    """The student of the first epoch, and its loss."""
    losses = []

    def stop(epoch, num_epochs, metrics, student):
        losses.append(metrics["loss"])
        raise KeyboardInterrupt

    student = students.fit(jax.random.key(key), *arguments, on_epoch=stop, **settings)
    return student, losses[0]


@pytest.mark.long
def test_equal_keys_give_equal_students_and_other_keys_others(data):
    first, again, other = (arrays(after_an_epoch(key, *data, SMALL)[0]) for key in (1, 1, 2))
    chex.assert_trees_all_equal(again, first)
    assert not np.allclose(first["params"]["Conv_0"]["kernel"], other["params"]["Conv_0"]["kernel"])


@pytest.mark.long
def test_records_of_weight_zero_leave_no_trace(data):
    images, targets = data
    kept = np.delete(np.arange(23), [0, 4, 22])
    more_images = np.full((23, 8, 8, 1), 77, np.uint8)
    more_targets = np.tile(targets[:1], (23, 1))
    weights = np.zeros(23)
    more_images[kept] = images
    more_targets[kept] = targets
    weights[kept] = 4
    student, _ = after_an_epoch(1, more_images, more_targets, SMALL, weights=weights)
    without, _ = after_an_epoch(1, *data, SMALL)
    chex.assert_trees_all_equal(arrays(student), arrays(without))


@pytest.mark.long
def test_a_record_counts_as_much_as_its_weight(data, monkeypatch):
    """Every image with two labels, 3 to 1: the prediction is the weighted share of each, up to
    the smoothing of 0.1.
    """
    images = np.concatenate([data[0][:10]] * 2)
    targets = one_hot(np.repeat([0, 1], 10))
    weights = np.repeat(np.float32([3, 1]), 10)
    tiny.use(monkeypatch, tiny.Linear)
    config = replace(SMALL, epochs=40, learning_rate=0.1)
    student = students.fit(jax.random.key(0), images, targets, config, weights=weights)
    expected = 0.9 * np.array([0.75, 0.25, 0]) + 0.1 / 3
    np.testing.assert_allclose(student.predict_proba(images).mean(axis=0), expected, atol=0.07)


@pytest.mark.long
def test_the_filler_of_the_last_batch_does_not_enter_the_loss(data):
    images, targets = data
    index = np.arange(8, dtype=np.int32)
    present = np.float32([1, 1, 1, 1, 1, 1, 1, 0])
    weights = np.ones(20, np.float32)
    other = np.roll(targets, 1, axis=1)

    def loss(targets):
        state = students.initial(SMALL, STEPS, jax.random.key(0), 3, images[:1])
        return students._step(
            SMALL,
            STEPS,
            jax.random.key(1),
            state,
            jax.device_put((images, targets, weights)),
            index,
            present,
        )[1]

    assert loss(targets) == loss(np.where(np.arange(20)[:, None] == 7, other, targets))
    assert loss(targets) != loss(np.where(np.arange(20)[:, None] == 6, other, targets))


@pytest.mark.long
def test_training_changes_images_anew_in_every_step_and_traces_its_step_once(data, monkeypatch):
    """A change that gives an image of noise: were it the same in every step, the loss would be,
    too.
    """
    traces = []
    losses = []

    def noise(key, images):
        traces.append(images.shape)
        return jax.random.uniform(key, images.shape)

    tiny.use(monkeypatch, tiny.Linear)
    monkeypatch.setitem(augment.AUGMENTATIONS, "warp", noise)
    still = {"learning_rate": 1e-30, "weight_decay": 0.0}
    config = replace(SMALL, batch_size=20, epochs=3, augmentation="warp", **still)
    alike = one_hot(np.zeros(20, int))  # or the order of the records would tell the epochs apart
    students.fit(
        jax.random.key(1),
        data[0],
        alike,
        config,
        on_epoch=lambda *told: losses.append(told[2]["loss"]),
    )
    assert traces == [(20, 8, 8, 1)]
    assert len(losses) == len(set(losses)) == 3
    assert max(losses) - min(losses) > 1e-4


@pytest.mark.long
def test_progress_is_reported_after_every_epoch_and_earlier_students_stay_as_they_were(training):
    told = training.told
    assert [(epoch, epochs) for (epoch, epochs, _, _), _ in told] == [
        (epoch, 17) for epoch in range(1, 18)
    ]
    assert all(metrics["seconds"] > 0 and 0 < metrics["loss"] < 5 for (_, _, metrics, _), _ in told)
    for (_, _, _, student), copy in told:
        chex.assert_trees_all_equal(arrays(student), copy)
    chex.assert_trees_all_equal(arrays(training.student), arrays(told[-1][0][3]))
    assert not training.student.interrupted


@pytest.mark.long
def test_an_interrupt_leaves_the_last_finished_epoch(data, monkeypatch):
    first = after_an_epoch(1, *data, SMALL)[0]
    step = students._step
    calls = []

    def interrupted_step(*args, **named):
        calls.append(1)
        if len(calls) == 5:  # the second of the second epoch's three
            raise KeyboardInterrupt
        return step(*args, **named)

    monkeypatch.setattr(students, "_step", interrupted_step)
    student = students.fit(jax.random.key(1), *data, SMALL)
    assert student.interrupted
    chex.assert_trees_all_equal(arrays(student), arrays(first))


def test_an_interrupt_by_the_callback_keeps_the_epoch_that_it_was_told_of(data):
    told = []

    def stop(epoch, num_epochs, metrics, student):
        told.append(student)
        raise KeyboardInterrupt

    student = students.fit(jax.random.key(1), *data, SMALL, on_epoch=stop)
    assert student.interrupted
    chex.assert_trees_all_equal(arrays(student), arrays(told[0]))


def test_an_interrupt_in_the_first_epoch_is_raised(data, monkeypatch):
    def interrupted_step(*args, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(students, "_step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        students.fit(jax.random.key(1), *data, SMALL)


# The student.


@pytest.mark.long
def test_predictions_depend_on_their_own_record_alone(trained):
    images, _ = bars(5, students.PREDICT_BLOCK + 7, 8)
    order = np.random.default_rng(0).permutation(len(images))
    for apply in (trained.predict_proba, trained.features):
        whole = apply(images)
        assert whole.dtype == np.float32
        np.testing.assert_allclose(apply(images[order]), whole[order], atol=1e-6)
        np.testing.assert_array_equal(apply(images[:3]), whole[:3])
        assert apply(images[:0]).shape == (0, whole.shape[1])


@pytest.mark.long
def test_checkpoints_give_back_the_student(trained, data, tmp_path):
    students.save(replace(trained, interrupted=True), tmp_path / "student")
    files = [path for path in (tmp_path / "student").rglob("*") if path.is_file()]
    assert not [path for path in files if str(tmp_path).encode() in path.read_bytes()]
    loaded = students.load(str(tmp_path / "student"))
    chex.assert_trees_all_equal(arrays(loaded), arrays(trained))
    assert (loaded.config, loaded.num_classes, loaded.image_shape, loaded.interrupted) == (
        SMALL,
        3,
        (8, 8, 1),
        True,
    )
    np.testing.assert_array_equal(loaded.predict_proba(data[0]), trained.predict_proba(data[0]))


def test_a_checkpoint_is_never_overwritten_and_must_exist(trained, tmp_path):
    students.save(trained, tmp_path / "student")
    with pytest.raises(ValueError, match="exists"):
        students.save(replace(trained, num_classes=9), tmp_path / "student")
    assert students.load(tmp_path / "student").num_classes == 3
    with pytest.raises(ValueError, match="folder="):
        students.load(tmp_path / "nothing")


class Plain(nn.Module):
    """A layer of hidden units without batch statistics, and a linear one."""

    num_classes: int

    @nn.compact
    def __call__(self, images, *, train, features=False):
        x = nn.tanh(nn.Dense(32)(images.reshape(len(images), -1)))
        return x if features else nn.Dense(self.num_classes)(x)


@pytest.mark.long
@pytest.mark.parametrize("network", ["plain", pytest.param("tanh_cnn", marks=pytest.mark.slow)])
def test_a_network_without_batch_statistics_is_trained_saved_and_begun_at_like_any_other(
    network, tmp_path, monkeypatch
):
    images, labels = bars(0, 60, 13)
    config = students.Config(model="tanh_cnn", epochs=10, batch_size=20, augmentation="none")
    if network == "plain":
        images, labels = bars(0, 20, 8)
        config = replace(config, epochs=30, batch_size=10, learning_rate=0.03)
        tiny.use(monkeypatch, Plain)
    student = students.fit(jax.random.key(1), images, one_hot(labels), config)
    assert student.batch_stats == {}
    assert np.mean(student.predict_proba(images).argmax(axis=1) == labels) > 0.9
    assert student.features(images).shape == (len(images), 32)
    students.save(student, tmp_path / "student")
    loaded = students.load(tmp_path / "student")
    chex.assert_trees_all_equal(arrays(loaded), arrays(student))
    np.testing.assert_array_equal(loaded.predict_proba(images), student.predict_proba(images))
    for start in (arrays(student), {"params": student.params}):
        begun = students.initial(config, 1, jax.random.key(5), 3, images[:1], start)
        chex.assert_trees_all_equal(begun.variables, arrays(student))
        chex.assert_trees_all_equal(begun.average, arrays(student))


# Bad input.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "resnet"),
        ("augmentation", "warped"),
        ("optimizer", "adam"),
        ("epochs", -1),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("weight_decay", -1.0),
        ("label_smoothing", 1.0),
        ("ema_decay", 1.0),
        ("warmup", -0.1),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        students.Config(**{name: value})


def test_epochs_default_to_the_models_own():
    assert students.Config(model="m5").epochs == m5.EPOCHS
    assert students.Config(model="m5", epochs=3).epochs == 3


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("images", lambda images, targets, weights: (images.astype(np.float32), targets, weights)),
        ("images", lambda images, targets, weights: (images[..., 0], targets, weights)),
        ("images", lambda images, targets, weights: (images[:, :1], targets, weights)),
        ("targets", lambda images, targets, weights: (images, targets[:-1], weights)),
        ("targets", lambda images, targets, weights: (images, 2 * targets, weights)),
        ("targets", lambda images, targets, weights: (images, targets * np.nan, weights)),
        ("targets", lambda images, targets, weights: (images, 2 * targets - 1 / 3, weights)),
        ("weights", lambda images, targets, weights: (images, targets, weights[1:])),
        ("weights", lambda images, targets, weights: (images, targets, -weights)),
        ("weights", lambda images, targets, weights: (images, targets, 0 * weights)),
        ("weights", lambda images, targets, weights: (images, targets, weights + np.inf)),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(data, argument, change):
    images, targets, weights = change(*data, np.ones(10, np.float32))
    with pytest.raises(ValueError, match=f"Expected {argument}"):
        students.fit(jax.random.key(0), images, targets, SMALL, weights=weights)


def test_m5_refuses_images_that_its_convolutions_use_up(data):
    with pytest.raises(ValueError, match="21x21"):
        students.fit(jax.random.key(0), *data, students.Config(model="m5"))


def test_a_student_refuses_other_images(trained):
    with pytest.raises(ValueError, match="as in training"):
        trained.predict_proba(np.zeros((2, 9, 8, 1), np.uint8))


def test_training_begins_at_the_layers_it_is_given_and_draws_the_others(data, trained):
    known = arrays(trained)
    start = {
        kind: {name: value for name, value in layers.items() if name != "Dense_1"}
        for kind, layers in known.items()
    }
    begun = students.initial(SMALL, STEPS, jax.random.key(5), 3, data[0][:1], start)
    drawn = students.initial(SMALL, STEPS, jax.random.key(5), 3, data[0][:1])
    expected = {kind: drawn.variables[kind] | layers for kind, layers in start.items()}
    chex.assert_trees_all_equal(begun.variables, expected)
    chex.assert_trees_all_equal(begun.average, expected)
    assert not np.allclose(
        drawn.variables["params"]["Conv_0"]["kernel"], known["params"]["Conv_0"]["kernel"]
    )
    assert not np.allclose(
        begun.variables["params"]["Dense_1"]["kernel"], known["params"]["Dense_1"]["kernel"]
    )


def test_a_student_is_trained_from_its_start(data, trained):
    """What was learned begins with a smaller loss than what is drawn."""
    begun = after_an_epoch(5, *data, SMALL, start=arrays(trained))[1]
    assert begun < after_an_epoch(5, *data, SMALL)[1] - 0.2
    with pytest.raises(ValueError, match="layers of the network"):
        students.fit(
            jax.random.key(5), *data, SMALL, start={"params": {"other": {}}, "batch_stats": {}}
        )

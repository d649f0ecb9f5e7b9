"""Noisy SGD: what one record can move, what is noised, what is sampled, and that it goes on
where it was.
"""

import functools
import math
import warnings
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rknn_jax.privacy import accounting, analytic_gaussian, renyi, sampled_gaussian
from rknn_jax.privacy.events import gaussian_event
from rknn_jax.students import clipped_gradients, dpsgd
from rknn_jax.students import fit as students
from rknn_jax.students.models import linear, m5, mlp
from tests import tiny

N = 120
WIDTH = 5
CLASSES = 3
SUMMED = 20
"""Records of every sum here, those that do not take part included: one shape, so one program for
each clip.
"""

CONFIG = dpsgd.Config(epsilon=3.0, batch_size=30, epochs=4, learning_rate=0.5)
"""Of most trainings here: calibrated and compiled once."""

clipped_sum = functools.partial(jax.jit, static_argnames="clip")(clipped_gradients.clipped_sum)


def records(seed=0, n=N):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n).astype(np.int32)
    return (rng.normal(size=(n, WIDTH)) + 2 * np.eye(CLASSES, WIDTH)[labels]).astype(
        np.float32
    ), labels


def drawn(network, inputs, seed=9):
    """First variables of a network, drawn by NumPy, as flax compiles a program for each leaf."""
    shapes = jax.eval_shape(
        lambda: network.init(jax.random.key(0), jnp.zeros((1, *inputs.shape[1:])), train=False)
    )
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes["params"]
    )
    return {"params": params} | {
        kind: layers_at_rest(layers) for kind, layers in shapes.items() if kind != "params"
    }


def layers_at_rest(layers):
    """Batch statistics of a mean of 0 and a variance of 1."""
    return {
        layer: {
            "mean": np.zeros(leaves["mean"].shape, np.float32),
            "var": np.ones(leaves["var"].shape, np.float32),
        }
        for layer, leaves in layers.items()
    }


def trained(config, key=0, network=None, data=None, **options):
    network = network or linear.Model(CLASSES)
    inputs, labels = data or records()
    return dpsgd.fit(
        jax.random.key(key),
        network,
        drawn(network, inputs),
        inputs,
        labels,
        inputs,
        config,
        **options,
    )


def one_sum(inputs, labels, params, clip):
    """The clipped sum of one step in which all records take part, and some more that do not."""
    more = SUMMED - len(labels)
    inputs = np.concatenate([inputs, np.ones((more, WIDTH), np.float32)])
    labels = np.concatenate([labels, np.zeros(more, np.int32)])
    present = np.arange(SUMMED) < SUMMED - more
    flat, _, mask = clipped_gradients.parted(params, "all", 0.5)
    total = {path: np.zeros(leaf.shape, np.float32) for path, leaf in flat.items()}
    index = np.arange(SUMMED, dtype=np.int32)
    found = clipped_gradients.add_clipped(
        linear.Model(CLASSES), clip, total, flat, {}, mask, {}, (inputs, labels), index, present
    )
    return np.concatenate([np.asarray(found[path], np.float64).ravel() for path in sorted(found)])


def drawn_params(scale, seed=0):
    rng = np.random.default_rng(seed)
    bias, kernel = (
        rng.normal(0, 1, shape).astype(np.float32) for shape in (CLASSES, (WIDTH, CLASSES))
    )
    return {"Dense_0": {"bias": np.float32(scale) * bias, "kernel": np.float32(scale) * kernel}}


# What one record can move


@pytest.mark.long
@given(
    clip=st.sampled_from([1e-3, 1.0, 1e3]),
    scale=st.sampled_from([0.0, 1.0, 100.0]),
    record=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=WIDTH, max_size=WIDTH),
    label=st.integers(0, CLASSES - 1),
)
def test_no_record_moves_the_sum_by_more_than_the_clip(clip, scale, record, label):
    """Searched over records of any size, up to where float32 overflows: the norm is C(1 + SLACK)
    at most.
    """
    inputs = np.asarray([record], np.float32)
    labels = np.asarray([label], np.int32)
    assert np.linalg.norm(one_sum(inputs, labels, drawn_params(scale), clip)) <= clip * (
        1 + dpsgd.SLACK
    )


@given(first=st.integers(0, 10**6), second=st.integers(0, 10**6), size=st.floats(0.1, 1e4))
def test_a_replaced_record_moves_the_sum_by_twice_the_clip_at_most_and_nearly_that(
    first, second, size
):
    inputs, labels = records(1, SUMMED)
    params = drawn_params(0.1)
    clip = 1.0
    moved = []
    for seed in (first, second):
        rng = np.random.default_rng(seed)
        inputs[3] = size * rng.normal(size=WIDTH)
        labels[3] = seed % CLASSES
        moved.append(one_sum(inputs, labels, params, clip))
    assert np.linalg.norm(moved[0] - moved[1]) <= 2 * clip * (1 + 1e-4)
    inputs[3] = size * np.ones(WIDTH)
    labels[3] = 0
    there = one_sum(inputs, labels, drawn_params(0.0), clip)
    inputs[3] *= -1
    opposite = one_sum(inputs, labels, drawn_params(0.0), clip)
    if size > 10:
        assert np.linalg.norm(there - opposite) > 1.9 * clip, "the bound is not a loose one"


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_record_that_is_not_finite_counts_as_nothing(scale):
    """optax's own clipping multiplies such a gradient by 1: one record would spoil the sum, and
    be seen. Weights of 0 have finite logits whatever the record holds.
    """
    inputs, labels = records(2, 10)
    params = drawn_params(scale)
    without = one_sum(inputs[:-1], labels[:-1], params, 1.0)
    for bad in (np.nan, np.inf, -np.inf, 1e38, -3e38):
        inputs[-1] = bad
        moved = one_sum(inputs, labels, params, 1.0) - without
        assert np.isfinite(moved).all(), bad
        assert np.linalg.norm(moved) <= 1 + dpsgd.SLACK, bad


@pytest.mark.parametrize("label", [-7, -1, CLASSES, 100])
def test_a_record_whose_label_no_class_has_counts_as_nothing(label):
    inputs, labels = records(n=6)
    params = drawn_params(0.3)
    without = one_sum(inputs[1:], labels[1:], params, 0.5)
    labels[0] = label
    np.testing.assert_allclose(one_sum(inputs, labels, params, 0.5), without, rtol=1e-5, atol=1e-7)


def test_clipped_norms_of_a_million_weights_are_within_the_slack():
    """float32 sums of squares against float64, on M5's 1.1 million gradients of a record each."""
    rng = np.random.default_rng(3)
    for scale in (1e-3, 1, 1e3, 1e6):
        one = {
            "a": rng.normal(size=(1, 1000, 1000)).astype(np.float32),
            "b": (scale * rng.normal(size=(1, 128180))).astype(np.float32),
        }
        clipped = clipped_sum(one, clip=2.5)
        norm = math.sqrt(
            sum(float(np.sum(np.asarray(leaf, np.float64) ** 2)) for leaf in clipped.values())
        )
        assert 2.5 * (1 - dpsgd.SLACK) <= norm <= 2.5 * (1 + dpsgd.SLACK), scale


def test_a_sum_of_clipped_gradients_equals_float64():
    inputs, labels = records(4, SUMMED)
    params = drawn_params(0.3)
    x = np.hstack([np.ones((SUMMED, 1)), inputs.astype(np.float64)])  # the bias comes first by name
    weights = np.vstack(
        [
            np.asarray(params["Dense_0"]["bias"], np.float64)[None],
            np.asarray(params["Dense_0"]["kernel"], np.float64),
        ]
    )
    logits = x @ weights
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]
    gradients = x[:, :, None] * residual[:, None]
    norms = np.linalg.norm(gradients.reshape(SUMMED, -1), axis=1)
    expected = (gradients * np.minimum(1, 1 / norms)[:, None, None]).sum(axis=0).ravel()
    assert (norms > 1).any()
    assert (norms < 1).any()
    np.testing.assert_allclose(one_sum(inputs, labels, params, 1.0), expected, rtol=1e-4, atol=1e-5)


def products(seed, inputs_scale=1.0, back_scale=1.0):
    """Per-example gradients of a dense layer as products, and multiplied out in float64."""
    rng = np.random.default_rng(seed)
    inputs = (inputs_scale * rng.normal(size=(SUMMED, WIDTH))).astype(np.float32)
    back = (back_scale * rng.normal(size=(SUMMED, CLASSES))).astype(np.float32)
    whole = inputs.astype(np.float64)[:, :, None] * back.astype(np.float64)[:, None]
    return clipped_gradients.Product(inputs, back), whole


def test_products_are_clipped_and_summed_as_the_gradients_that_they_stand_for():
    """In float64, with gradients of another leaf beside them; some are clipped, some are not."""
    product, whole = products(5)
    bias = np.random.default_rng(6).normal(size=(SUMMED, CLASSES)).astype(np.float32)
    norms = np.sqrt((whole**2).sum(axis=(1, 2)) + (bias.astype(np.float64) ** 2).sum(axis=1))
    weights = np.minimum(1, 4 / norms)
    assert 0 < (weights < 1).sum() < SUMMED
    found = clipped_sum({"kernel": product, "bias": bias}, clip=4.0)
    for name, leaf in {"kernel": whole, "bias": bias}.items():
        np.testing.assert_allclose(found[name], np.einsum("n...,n", leaf, weights), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-19, 1e19, 1e25, 1e36])
def test_a_product_of_a_small_and_a_large_vector_is_clipped(scale):
    """Squares of one would be 0, and those of the other infinite."""
    product, whole = products(7, scale, 10 / scale)
    one = clipped_gradients.Product(
        *(jnp.where(jnp.arange(SUMMED) == 3, leaf.T, 0).T for leaf in product)
    )
    assert np.linalg.norm(whole[3]) > 1
    moved = clipped_sum({"kernel": one}, clip=1.0)["kernel"]
    assert 1 - dpsgd.SLACK <= np.linalg.norm(moved) <= 1 + dpsgd.SLACK


@pytest.mark.parametrize("size", [0, 1e-40])
def test_a_product_of_nothing_and_the_largest_vector_counts_as_nothing(size):
    """The first has no norm in float32, and the other's is infinite: their product is no number."""
    there = jnp.arange(SUMMED)[:, None] == 3
    one = clipped_gradients.Product(
        *(
            jnp.where(there, large, jnp.zeros((SUMMED, width)))
            for large, width in ((size, WIDTH), (3e38, CLASSES))
        )
    )
    moved = clipped_sum({"kernel": one}, clip=1.0)["kernel"]
    assert np.linalg.norm(moved) <= 1 + dpsgd.SLACK


class Twice(nn.Module):
    """A network that uses one dense layer for two rows of a record, one for both, and a head."""

    @nn.compact
    def __call__(self, inputs, *, train):
        shared = nn.Dense(4, name="shared")
        x = nn.tanh(shared(inputs)) + nn.tanh(shared(inputs[:, ::-1]))
        x = nn.tanh(nn.Dense(2, name="rows")(x.reshape(-1, 2, 2)))
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


@pytest.mark.long
def test_layers_that_see_several_rows_are_clipped_as_others():
    """`Product` holds the gradients of the head alone; the sum is that of each record's own."""
    inputs, labels = records(8, SUMMED)
    network = Twice()
    params = drawn(network, inputs)["params"]
    flat, _, mask = clipped_gradients.parted(params, "all", 0.5)
    seen = clipped_gradients._dense_outputs(
        lambda trained, record: network.apply(
            {"params": clipped_gradients.joined(trained, {})}, record[None], train=False
        ),
        flat,
        inputs[0],
    )
    assert set(seen) == {"Dense_0.kernel"}

    def loss(trained, row, label):
        logits = network.apply(
            {"params": clipped_gradients.joined(trained, {})}, row[None], train=False
        )
        return -jax.nn.log_softmax(logits[0])[label]

    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(flat, inputs, labels)
    squares = [
        (np.asarray(leaf, np.float64).reshape(SUMMED, -1) ** 2).sum(axis=1)
        for leaf in each.values()
    ]
    weights = np.minimum(1, 0.5 / np.sqrt(sum(squares)))
    assert (weights < 1).any()
    total = {path: np.zeros(leaf.shape, np.float32) for path, leaf in flat.items()}
    index = np.arange(SUMMED, dtype=np.int32)
    found = clipped_gradients.add_clipped(
        network, 0.5, total, flat, {}, mask, {}, (inputs, labels), index, index >= 0
    )
    for path, leaf in each.items():
        np.testing.assert_allclose(found[path], np.einsum("n...,n", leaf, weights), atol=2e-5)


@pytest.mark.parametrize("size", [pytest.param(3, marks=pytest.mark.slow), 5])
def test_gradients_of_kernels_apart_are_those_of_each_example_alone(size):
    """M5's convolutions have a product of their own under vmap, nested or not; batches of one
    and of two images.
    """
    rng = np.random.default_rng(5)
    shapes = (size, size, 2, 3), (4, 2, 13, 11, 2), (4, 2, 14 - size, 12 - size, 3)
    kernel, images, weights = (rng.normal(size=shape).astype(np.float32) for shape in shapes)

    def loss_of(convolve, kernel, images, weights):
        return jnp.sum(weights * jnp.tanh(convolve(images, kernel)))

    def gradients(convolve):
        return jax.grad(functools.partial(loss_of, convolve), argnums=(0, 1))

    apart = jax.jit(jax.vmap(gradients(m5.convolve), (None, 0, 0)))(kernel, images, weights)
    alone = jax.jit(gradients(m5._direct))
    expected = [alone(kernel, *one) for one in zip(images, weights, strict=True)]
    for found, wanted in zip(apart, zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(found, np.stack(wanted), atol=2e-4 * np.abs(wanted).max())


@pytest.mark.long
def test_gradients_of_gradients_are_those_of_the_convolution():
    """VAT takes one inside another."""
    rng = np.random.default_rng(6)
    kernel = rng.normal(size=(5, 5, 1, 2)).astype(np.float32)
    images = rng.normal(size=(2, 9, 10, 1)).astype(np.float32)

    def twice(convolve):
        def inner(images, kernel):
            return jnp.sum(jnp.tanh(convolve(images, kernel)) ** 2)

        def outer(images, kernel):
            return sum(
                jnp.sum(jnp.sin(leaf)) for leaf in jax.grad(inner, argnums=(0, 1))(images, kernel)
            )

        return jax.jit(jax.grad(outer, argnums=(0, 1)))(images, kernel)

    for found, wanted in zip(twice(m5.convolve), twice(m5._direct), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3 * np.abs(wanted).max())


def test_what_one_record_holds_never_reaches_the_batch_statistics():
    inputs = np.random.default_rng(6).integers(0, 255, (40, 8, 8, 1)).astype(np.uint8)
    labels = np.arange(40, dtype=np.int32) % CLASSES
    network = tiny.Linear(CLASSES)
    variables = drawn(network, inputs)
    config = dpsgd.Config(
        epsilon=math.inf, batch_size=40, epochs=1, clip=1e-9, learning_rate=1e-9
    )  # private records do not move the weights

    def statistics(inputs, public):
        return dpsgd.fit(
            jax.random.key(1), network, variables, inputs, labels, public, config
        ).variables["batch_stats"]

    public = inputs[::-1]
    base = statistics(inputs, public)
    jax.tree.map(np.testing.assert_array_equal, base, statistics(255 - inputs, public))
    other = statistics(inputs, 255 - public)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(base), jax.tree.leaves(other), strict=True)
    )


# The noise


def noises(multiplier, clip=2.0, steps=1):
    """The noise of steps whose sums are 0, as they enter the weights."""
    config = dpsgd.Settled(
        clip=clip,
        batch_size=1,
        learning_rate=1.0,
        momentum=0.0,
    )
    pace = dpsgd.Pace.of(config, multiplier)
    shape = {"a": (200, 100), "b": (200, 100), "c": (7,)}
    zeros = {name: np.zeros(size, np.float32) for name, size in shape.items()}
    mask = {name: np.ones((), bool) for name in shape}
    found = []
    for step in range(steps):
        state = dpsgd.State(np.zeros((), np.int32), zeros, zeros, optimizer(config, zeros))
        key = jax.random.fold_in(jax.random.key(3), step)
        after = dpsgd._descend(config.momentum, 0.98, pace, key, state, zeros, mask)
        found.append({name: -np.asarray(leaf, np.float64) for name, leaf in after.trained.items()})
    return found


def optimizer(config, params):
    import optax

    return optax.sgd(config.learning_rate, config.momentum).init(params)


def test_noise_is_gaussian_of_sigma_times_the_clip_and_differs_between_leaves_and_steps():
    """Two leaves of one shape: with one key for both their difference would be 0.

    False alarms below 1e-5 in all.
    """
    first, second = noises(1.5, clip=2.0, steps=2)
    samples = [first["a"].ravel(), first["b"].ravel(), second["a"].ravel()]
    for i, one in enumerate(samples):
        assert stats.kstest(one, "norm", (0, 3.0)).pvalue > 1e-6
        assert abs(one.std() / 3.0 - 1) < 5 / math.sqrt(2 * len(one))
        for other in samples[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(len(one))


def test_weights_that_are_not_trained_get_no_noise():
    params = {
        "Conv_0": {"kernel": np.arange(1.0, 11.0)},
        "BatchNorm_0": {"scale": np.ones(3)},
        "Dense_0": {"kernel": np.ones((3, 2))},
    }
    for part, names in {
        "head": {"Dense_0.kernel"},
        "norms": {"Dense_0.kernel", "BatchNorm_0.scale"},
        "sparse": {"Dense_0.kernel", "BatchNorm_0.scale", "Conv_0.kernel"},
        "all": {"Dense_0.kernel", "BatchNorm_0.scale", "Conv_0.kernel"},
    }.items():
        chosen, fixed, mask = clipped_gradients.parted(params, part, 0.2)
        assert set(chosen) == set(mask) == names
        assert set(chosen) | set(fixed) == {"Dense_0.kernel", "BatchNorm_0.scale", "Conv_0.kernel"}
    _, _, mask = clipped_gradients.parted(params, "sparse", 0.2)
    np.testing.assert_array_equal(mask["Conv_0.kernel"], np.arange(1, 11) > 8)


@pytest.mark.long
@pytest.mark.parametrize(
    "part", [*(pytest.param(part, marks=pytest.mark.slow) for part in ("head", "norms")), "sparse"]
)
def test_a_part_alone_changes(part):
    network = tiny.Layered(CLASSES)
    images = np.random.default_rng(7).integers(0, 255, (30, 8, 8, 1)).astype(np.uint8)
    labels = np.arange(30, dtype=np.int32) % CLASSES
    variables = drawn(network, images)
    config = dpsgd.Config(
        epsilon=math.inf, noise_multiplier=100.0, batch_size=30, epochs=1
    )  # all records take part
    after = dpsgd.fit(
        jax.random.key(1),
        network,
        variables,
        images,
        labels,
        images,
        config,
        part=part,
        density=0.1,
    ).variables["params"]
    _, fixed, mask = clipped_gradients.parted(variables["params"], part, 0.1)
    before, after = (
        clipped_gradients.parted(params, "all", 0.5)[0] for params in (variables["params"], after)
    )
    assert all(np.array_equal(before[path], after[path]) for path in fixed)
    for path, allowed in mask.items():
        changed = ~np.isclose(
            before[path], after[path], rtol=1e-5
        )  # the average of equal weights rounds
        assert (changed == np.broadcast_to(allowed, changed.shape)).all(), path


# Sampling


def test_samples_are_poisson():
    """Sizes binomial, pairs independent, blocks whole.

    400 samples of 200 records; 6 standard deviations, so false alarms below 1e-6.
    """
    n = 200
    q = 0.3
    runs = 400
    taken = np.zeros((runs, n))
    for run in range(runs):
        blocks = dpsgd.sampled(jax.random.key(run), n, q, 16)
        assert all(index.shape == present.shape == (16,) for index, present in blocks)
        chosen = np.concatenate([index[present] for index, present in blocks])
        assert len(set(chosen.tolist())) == len(chosen)
        taken[run, chosen] = 1
    sizes = taken.sum(axis=1)
    assert abs(sizes.mean() - n * q) < 6 * math.sqrt(n * q * (1 - q) / runs)
    assert abs(sizes.var() / (n * q * (1 - q)) - 1) < 6 * math.sqrt(2 / runs)
    assert abs(taken.mean(axis=0) - q).max() < 6 * math.sqrt(q * (1 - q) / runs)
    assert abs(np.corrcoef(taken[:, :2].T)[0, 1]) < 6 / math.sqrt(runs)


def test_a_rare_sample_is_as_rare_as_it_is_charged():
    """Random numbers with 23 digits take a record with probability 2^-23 at least.

    Under these keys they took some of 2^20 where each is sampled with probability 2^-40.
    """
    for seed in (4, 7):
        assert dpsgd.sampled(jax.random.key(seed), 2**20, 2.0**-40, 8) == []


def test_a_sample_of_nobody_is_noise_alone(monkeypatch):
    assert dpsgd.sampled(jax.random.key(0), N, 1e-6, 4) == []
    monkeypatch.setattr(dpsgd, "sampled", lambda *_: [])
    before = drawn(linear.Model(CLASSES), records()[0])["params"]["Dense_0"]["kernel"]
    moved = trained(CONFIG).variables["params"]["Dense_0"]["kernel"] - before
    assert np.all(moved != 0)


def test_the_size_of_a_block_tells_no_private_number_of_records(monkeypatch):
    """It is a shape in which others are rounded: one more record moved a step by twice the clip."""
    sizes = []
    monkeypatch.setattr(dpsgd, "sampled", lambda *given: sizes.append(given[-1]) or [])
    config = replace(CONFIG, relation="add-remove", batch_size=1, epochs=1, sampling_prob=0.5)
    for n in (1, 2, N):
        trained(config, data=records(n=n))
    assert len({*sizes}) == 1
    assert sizes[0] > N


def test_a_training_adds_the_noise_that_its_settings_ask_for(monkeypatch):
    """One step without a record, no setting at its default: 579 weights; 5 standard errors, so
    false alarms below 1e-6.
    """
    monkeypatch.setattr(dpsgd, "sampled", lambda *_: [])
    one_step = {
        "sampling_prob": 1.0,
        "epochs": 1.0,
        "batch_size": 20,
        "learning_rate": 0.25,
        "momentum": 0.5,
        "ema_decay": 0.0,
    }
    config = dpsgd.Config(epsilon=math.inf, noise_multiplier=3.0, clip=2.0, **one_step)
    network = mlp.Model(CLASSES)
    before = drawn(network, records()[0])["params"]
    after = trained(config, network=network).variables["params"]
    moved = [
        np.ravel(b - a)
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ]
    noise = np.concatenate(moved) * 20 / 0.25
    assert abs(noise.std() / (3.0 * 2.0) - 1) < 5 / math.sqrt(2 * len(noise))


@pytest.mark.parametrize("person", [None, np.arange(N) // 2], ids=["records", "persons"])
def test_every_step_that_is_paid_for_has_noise_of_its_own_and_no_other_is_taken(
    monkeypatch, person
):
    """Five steps end within the second pass over the records."""
    keys = []

    def noted(*_, key, state, **__):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return state

    monkeypatch.setattr(dpsgd, "_descend", noted)
    monkeypatch.setattr(dpsgd, "sampled", lambda *_: [])
    unit = "record" if person is None else "person"
    config = dpsgd.Config(epsilon=3.0, unit=unit, sampling_prob=0.3, epochs=1.5)
    guarantee = trained(config, person=person).guarantee
    (event,) = guarantee.events
    assert len(keys) == event.count == 5
    assert len({*keys}) == 5
    assert guarantee.unit == unit


def test_persons_of_every_block_draw_their_records_anew(monkeypatch):
    """Draws that come again pair persons by their places, which one person less would move."""
    rows = []

    def noted(network, clip, total, index, **_):
        rows.append(index)
        return total

    monkeypatch.setattr(dpsgd, "add_clipped", noted)
    config = dpsgd.Config(epsilon=math.inf, unit="person", sampling_prob=1.0, epochs=1.0)
    trained(config, data=records(n=32_000), person=np.repeat(np.arange(32), 1000))
    first, second = rows
    np.testing.assert_array_equal(first // 1000, np.arange(16)[:, None] * np.ones(16))
    np.testing.assert_array_equal(second // 1000, np.arange(16, 32)[:, None] * np.ones(16))
    assert np.mean(first % 1000 == second % 1000) < 0.1


# Guarantee


@pytest.mark.slow  # published settings, and tests/test_sampled_accounting.py
def test_calibrated_noise_costs_epsilon_by_both_accountants_and_dp_accountings_own():
    """Under add-remove against dp-accounting's event accountants; PLD is the tighter one, RDP a
    little above.
    """
    from dp_accounting import dp_event, pld, rdp

    config = dpsgd.Settled(epsilon=2.0, relation="add-remove", sampling_prob=0.01, epochs=3)
    sigma, guarantee = dpsgd.noise(config, 10**4)
    plan = dpsgd.schedule(config, 10**4)
    assert plan == (0.01, 300)
    event = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(sigma)), plan.steps
    )
    tight = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    loose = rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert tight <= 2.0 * (1 + 1e-3)
    assert tight > 2.0 * 0.99
    assert 2.0 < loose < 2.7
    assert guarantee.epsilon == 2.0
    costs = accounting.epsilons(guarantee.events, 1e-5)
    assert costs["PLD"] <= 2.0
    assert costs["RDP"] == pytest.approx(loose, rel=0.02)


def test_an_epsilon_that_no_noise_reaches_is_named():
    config = dpsgd.Settled(epsilon=1e-6, delta=1e-100, batch_size=32)
    with pytest.raises(ValueError, match="delta=1e-100, got epsilon=1e-06"):
        dpsgd.noise(config, 1000)


@pytest.mark.long
def test_published_settings_cost_what_their_tutorial_says_or_less():
    """TF-privacy's tutorial on MNIST: batch 256, δ = 1e-5, by RDP (with its older conversion)
    1.19, 3.01 and 7.10.
    """
    for sigma, epochs, printed in ((1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)):
        config = dpsgd.Config(
            epsilon=math.inf,
            noise_multiplier=sigma,
            relation="add-remove",
            sampling_prob=256 / 60000,
            epochs=epochs,
        )
        guarantee = dpsgd.noise(config, 60000)[1]
        assert renyi.rdp_epsilon_as_published(guarantee.events, 1e-5) == pytest.approx(
            printed, rel=0.01
        )
        assert 0.7 * printed < guarantee.epsilon < printed


@given(
    q=st.floats(0.01, 0.9),
    sigma=st.floats(0.6, 4.0),
    angles=st.tuples(st.floats(0, 2 * math.pi), st.floats(0, 2 * math.pi)),
    seed=st.integers(0, 99),
)
def test_no_pair_of_clipped_records_tells_more_than_opposite_ones(q, sigma, angles, seed):
    """The hockey-stick divergence of mixtures in the plane, by quadrature, for records of any
    two directions and lengths up to C.
    """
    rng = np.random.default_rng(seed)
    u, v = (
        r * np.array([math.cos(a), math.sin(a)]) / sigma
        for a, r in zip(angles, rng.random(2) ** 0.25, strict=True)
    )
    grid = np.linspace(-7 - 1 / sigma, 7 + 1 / sigma, 401)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2

    def density(mean):
        return np.exp(-((x - mean[0]) ** 2 + (y - mean[1]) ** 2) / 2) / (2 * math.pi)

    apart = (1 - q) * density((0, 0))
    first = apart + q * density(u)
    second = apart + q * density(v)
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
    bound = sampled_gaussian.opposite_deltas(epsilons, sigma / 2, q)
    for epsilon, most in zip(epsilons, bound, strict=True):
        for one, other in ((first, second), (second, first)):
            assert np.maximum(one - math.exp(epsilon) * other, 0).sum() * cell <= most + 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("q", "sigma"), [(0.004, 1.1), (0.3, 2.0), (0.9, 0.8), (0.5, 20.0)])
def test_the_opposite_pair_is_its_quadrature(q, sigma):
    x = np.linspace(-14 - 1 / sigma, 14 + 1 / sigma, 2_000_001)
    first, second = (
        (1 - q) * stats.norm.pdf(x) + q * stats.norm.pdf(x - sign / sigma) for sign in (1, -1)
    )
    epsilons = np.array([0.0, 0.01, 0.1, 0.5, 1.0])
    expected = [np.maximum(first - math.exp(e) * second, 0).sum() * (x[1] - x[0]) for e in epsilons]
    np.testing.assert_allclose(
        sampled_gaussian.opposite_deltas(epsilons, sigma / 2, q), expected, rtol=1e-5, atol=1e-12
    )
    for order in (1.5, 4.0, 32.0):
        moment = np.log(
            np.sum(np.exp(order * np.log(first) + (1 - order) * np.log(second))) * (x[1] - x[0])
        )
        if np.isfinite(moment) and moment < 50:
            assert sampled_gaussian._opposite_cumulants(np.array([order]), sigma, q)[
                0
            ] == pytest.approx(moment, rel=1e-6, abs=1e-12)


def test_a_replaced_record_of_a_sum_of_all_is_charged_for_twice_the_clip():
    """Four sums that it moves by 2C are one that it moves by 4C, at noise of 12 C."""
    config = dpsgd.Settled(epsilon=math.inf, noise_multiplier=12.0, batch_size=50, epochs=4)
    _, guarantee = dpsgd.noise(config, 50)
    assert guarantee.epsilon == pytest.approx(analytic_gaussian.gaussian_epsilon(3, 1e-5))


EASY = (0.024, 0.03, 0.05, 0.2, 1.0)


@pytest.mark.parametrize(
    ("q", "sigmas"),
    [
        pytest.param(0.01, (0.005, 0.036, 20.0, *EASY), marks=pytest.mark.slow),
        pytest.param(0.5, EASY, marks=pytest.mark.slow),
        (0.5, (0.005, 0.036, 20.0)),
        (1.0, (0.005, 0.036, 20.0, *EASY)),
    ],
)
def test_no_noise_is_so_small_that_a_replaced_record_would_cost_less_than_a_removed_one(q, sigmas):
    """An overflow would show here: both are computed apart, and the first is an upper bound of
    the second.
    """
    for sigma in sigmas:
        removed, replaced = (
            min(
                accounting.epsilons(
                    dpsgd.events(sigma, dpsgd.Schedule(q, 3), relation), 1e-5
                ).values()
            )
            for relation in ("add-remove", "replace-one")
        )
        assert replaced >= removed * (1 - 1e-3), sigma


def test_the_sum_of_a_batch_rounds_by_less_than_the_noise_allows_for():
    """One record along with, or against, all others: float32 sums against float64's bound, at
    several sizes.
    """
    for size in (64, 1024, 4096):
        clip = 1.0
        rng = np.random.default_rng(size)
        direction = rng.normal(size=50)
        same = np.tile(direction / np.linalg.norm(direction), (size, 1)).astype(np.float32) * 10
        sums = []
        for last in (1.0, 0.0):
            same[-1] *= last
            sums.append(np.asarray(clipped_sum({"a": same}, clip=clip)["a"], np.float64))
        moved = np.linalg.norm(sums[0] - sums[1])
        assert moved <= clip * (1 + dpsgd.SLACK + dpsgd.SUMMED * size)
        # Settings are any that have this batch: the noise is as large as what moves the sum.
        settled = replace(CONFIG, clip=clip, batch_size=size)
        assert dpsgd.Pace.of(settled, 1.0).stddev >= clip * (1 + dpsgd.SLACK + dpsgd.SUMMED * size)


def test_trainings_of_other_settings_are_not_mixed_up(tmp_path):
    """One folder, two budgets: the second network is trained with its own noise, and not read
    from the first.
    """
    first = trained(replace(CONFIG, epsilon=math.inf), folder=tmp_path)
    second = trained(CONFIG, folder=tmp_path)
    assert not np.array_equal(
        first.variables["params"]["Dense_0"]["kernel"],
        second.variables["params"]["Dense_0"]["kernel"],
    )
    assert len(list(tmp_path.iterdir())) == 2


def test_trainings_of_other_densities_are_not_mixed_up(tmp_path, monkeypatch):
    """One step of noise alone moves the weights that a density lets it move, and the head's."""
    monkeypatch.setattr(dpsgd, "sampled", lambda *_: [])
    config = dpsgd.Config(
        epsilon=math.inf, noise_multiplier=3.0, batch_size=N, epochs=1.0, ema_decay=0.0
    )
    network = mlp.Model(CLASSES)
    before = drawn(network, records()[0])["params"]["Dense_0"]["kernel"]
    for density in (0.1, 0.6):
        after = trained(config, network=network, part="sparse", density=density, folder=tmp_path)
        moved = after.variables["params"]["Dense_0"]["kernel"] != before
        assert np.mean(moved) == pytest.approx(density, abs=0.1)


def test_the_name_of_a_training_hides_a_private_number_of_records(tmp_path):
    """Progress tells the name, and a hash of n confirms guesses of it."""
    inputs, labels = records()
    names = []
    for number, relation in ((0, "add-remove"), (40, "add-remove"), (40, "replace-one")):
        config = replace(CONFIG, relation=relation, sampling_prob=0.5, epochs=1.0)
        folder = tmp_path / f"{number}-{relation}"
        dpsgd.fit(
            jax.random.key(0),
            linear.Model(CLASSES),
            drawn(linear.Model(CLASSES), inputs),
            inputs[:number],
            labels[:number],
            inputs,
            config,
            folder=folder,
        )
        names.append({path.name for path in folder.iterdir()})
    assert names[0] == names[1] != names[2]


@pytest.mark.long
def test_a_replaced_clipped_record_costs_between_a_removed_one_and_group_privacy():
    for sigma, q, steps in ((1.1, 256 / 60000, 3000), (4.0, 0.07, 300), (1.0, 1.0, 5)):
        removed = accounting.epsilons([gaussian_event(sigma, steps, q)], 1e-5)
        replaced = accounting.epsilons(
            dpsgd.events(sigma, dpsgd.Schedule(q, steps), "replace-one"), 1e-5
        )
        assert 1.3 * removed["PLD"] < replaced["PLD"] < 2.5 * removed["PLD"]
        assert replaced["PLD"] <= replaced["RDP"]
        twice = accounting.epsilons([gaussian_event(sigma / 2, steps, q, replaced=q < 1)], 1e-5)[
            "PLD"
        ]
        assert replaced["PLD"] <= twice * (1 + 1e-6), (
            "the bound that does not know of the clip is above"
        )


# Training


@pytest.mark.long
@pytest.mark.parametrize(
    "network",
    [pytest.param(linear.Model(CLASSES), marks=pytest.mark.slow), mlp.Model(CLASSES)],
    ids=str,
)
def test_without_noise_it_learns_and_with_much_it_does_not(network):
    inputs, labels = records(8)
    right = {}
    for sigma in (None, 500.0):
        config = replace(CONFIG, epsilon=math.inf, noise_multiplier=sigma, epochs=20)
        params = trained(config, network=network, data=(inputs, labels)).variables["params"]
        logits = network.apply({"params": params}, inputs, train=False)
        right[sigma] = np.mean(np.asarray(logits).argmax(axis=1) == labels)
    assert right[None] > 0.8
    assert right[500.0] < 0.75


@pytest.mark.long
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    config = CONFIG
    whole = trained(config, network=mlp.Model(CLASSES))
    calls = []
    real = dpsgd._descend

    def killed(*arguments, **named):
        calls.append(1)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(dpsgd, "_descend", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(config, network=mlp.Model(CLASSES), folder=tmp_path / "saved")
    monkeypatch.setattr(
        dpsgd, "_descend", lambda *given, **named: calls.append(1) or real(*given, **named)
    )
    again = trained(config, network=mlp.Model(CLASSES), folder=tmp_path / "saved")
    jax.tree.map(np.testing.assert_array_equal, whole.variables, again.variables)
    assert len(calls) == 11 + 8, "the two epochs that were saved are not run again"


def test_no_key_is_saved(tmp_path):
    """Files on the disk cannot repeat the noise: weights, averages, momentum and a number
    of steps, and no 32-bit words.
    """
    trained(CONFIG, folder=tmp_path)
    [place] = tmp_path.iterdir()
    with ocp.CheckpointManager(place) as manager:
        saved = jax.tree.leaves(
            manager.restore(manager.latest_step(), args=ocp.args.StandardRestore())
        )
    assert sorted(leaf.size for leaf in saved) == sorted(
        [1, *3 * [CLASSES], *3 * [WIDTH * CLASSES]]
    )
    assert {leaf.dtype.name for leaf in saved} == {"float32", "int32"}
    assert [leaf.size for leaf in saved if leaf.dtype == np.int32] == [1]


@pytest.mark.long
def test_donated_buffers_are_used():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = replace(CONFIG, epsilon=math.inf, sampling_prob=1.0, epochs=1)
        trained(
            whole, network=mlp.Model(CLASSES, hidden=7)
        )  # no other test's, so that it is compiled here


# Settings that are chosen


@given(
    n=st.integers(1, 10**7),
    epsilon=st.sampled_from([0.01, 0.3, 2.0, math.inf]),
    unit=st.sampled_from(["record", "person"]),
    head=st.booleans(),
)
def test_chosen_settings_can_be_trained_with_and_keep_epsilon(n, epsilon, unit, head):
    config = dpsgd.settled(dpsgd.Config(epsilon=epsilon, unit=unit), n, head=head)
    plan = dpsgd.schedule(config, n)
    assert 1 <= config.batch_size <= n
    assert plan.steps == 60 if head else plan.steps >= 20
    assert 0 < config.learning_rate <= 10
    assert dpsgd.noise(config, n)[1].epsilon <= epsilon


def test_the_rate_of_a_head_lets_the_noise_of_all_steps_move_a_weight_by_one():
    """60 noisy sums without a record, which momentum carries on; a rate of 10 would diverge."""
    for n, epsilon in ((300, 1.0), (3000, 0.1)):
        config = dpsgd.settled(dpsgd.Config(epsilon=epsilon), n, head=True)
        sigma, _ = dpsgd.noise(config, n)
        moved = config.learning_rate * sigma * config.clip * math.sqrt(60) / n / (1 - 0.9)
        assert moved == pytest.approx(1.0)
    assert dpsgd.settled(dpsgd.Config(epsilon=math.inf), 300, head=True).learning_rate == 10


def test_a_private_number_of_records_chooses_nothing():
    config = dpsgd.Config(relation="add-remove", sampling_prob=0.3)
    assert dpsgd.settled(config, 100, head=True) == dpsgd.settled(config, 10**6, head=True)
    without = dpsgd.Config(relation="add-remove")
    with pytest.raises(ValueError, match="Expected sampling_prob with relation=add-remove"):
        dpsgd.settled(without, 100, head=True)


def test_settings_that_are_given_stay():
    given = {"batch_size": 7, "epochs": 3.0, "learning_rate": 0.3, "clip": 2.0, "epsilon": 0.5}
    for head in (True, False):
        assert dpsgd.settled(dpsgd.Config(**given), 100, head=head) == dpsgd.Settled(**given)


def test_a_head_learns_by_default_from_a_hundred_records():
    """Their classes are well apart; a batch of 1,024 of them would be refused."""
    inputs, labels = records(n=100)
    inputs = (inputs - inputs.mean(0)) / np.sqrt(inputs.var(0).sum())
    found = trained(dpsgd.Config(epsilon=4.0), data=(inputs, labels))
    head = found.variables["params"]["Dense_0"]
    right = np.mean((inputs @ head["kernel"] + head["bias"]).argmax(1) == labels)
    assert right > 0.7
    assert found.guarantee.epsilon <= 4.0


# Errors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"clip": math.inf}, "clip=inf"),
        ({"clip": 1e-30}, "clip=1e-30"),
        ({"sampling_prob": 1e-9}, "sampling_prob=1e-09"),
        ({"noise_multiplier": 0.0}, "epsilon=inf"),
        ({"sampling_prob": 1.5}, "sampling_prob=1.5"),
        ({"epochs": 0}, "epochs=0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"relation": "swap"}, "relation='swap'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        dpsgd.Config(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"delta": 0.0}, "delta"),
        ({"relation": "add-remove"}, "sampling_prob"),
        ({"batch_size": 10**6}, "batch_size=1000000"),
        ({"noise_multiplier": 0.3}, "costs"),
    ],
)
def test_what_cannot_be_trained_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        trained(replace(dpsgd.Config(batch_size=30), **settings))


def test_parts_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="part='some'"):
        clipped_gradients.parted({}, "some", 0.5)
    with pytest.raises(ValueError, match="density=1"):
        clipped_gradients.parted({"Dense_0": {"kernel": jnp.ones((2, 2))}}, "sparse", 1)
    with pytest.raises(ValueError, match="normalization"):
        clipped_gradients.parted({"Dense_0": {"kernel": jnp.ones((2, 2))}}, "norms", 0.5)
    with pytest.raises(ValueError, match="got 3 records and 2 labels"):
        trained(
            dpsgd.Config(batch_size=1),
            data=(np.zeros((3, WIDTH), np.float32), np.zeros(2, np.int32)),
        )


DEAR = ("densenet121", "m3", "m7")
"""To trace; M5 is like the latter two."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in DEAR else pytest.mark.long)
        for name in students.MODELS
    ],
)
def test_every_image_network_can_be_trained(name):
    """Networks with and without batch statistics have the weights that noisy SGD expects."""
    network = students.network_of(students.Config(model=name), CLASSES)
    size = max(students._model(students.Config(model=name)).MIN_SIZE, 8)
    shapes = jax.eval_shape(
        lambda: network.init(jax.random.key(0), jnp.zeros((1, size, size, 1)), train=False)
    )
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes["params"])
    assert any(
        path.startswith("Dense_") for path in clipped_gradients.parted(params, "head", 0.5)[0]
    )

"""SimCLR's loss, its training that goes on where it was cut off, and what it is worth."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rknn_jax import data
from rknn_jax.queries import kmeans
from rknn_jax.representations import pixels, simclr
from rknn_jax.students.models import resnet18
from tests.test_self_trained import purity

TINY = simclr.Config(epochs=4, batch_size=30)


def random_images(count):
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 1)).astype(np.uint8)


def test_nt_xent_is_the_sum_of_the_paper_in_float64():
    vectors = np.random.default_rng(0).normal(size=(10, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    losses = []
    for i in range(10):
        others = [np.exp(vectors[i] @ vectors[k] / 0.1) for k in range(10) if k != i]
        losses.append(-np.log(np.exp(vectors[i] @ vectors[(i + 5) % 10] / 0.1) / sum(others)))
    np.testing.assert_allclose(
        simclr.nt_xent(vectors.astype(np.float32), 0.1), np.mean(losses), rtol=1e-5
    )


def test_nt_xent_is_least_where_views_agree_and_images_do_not():
    """Four images at right angles: log(1 + 6 exp(-1/t)) by hand; all vectors equal: log(2B - 1),
    the worst of what is alike.
    """
    apart = np.tile(np.eye(4, dtype=np.float32), (2, 1))
    equal = np.tile(np.float32([[1, 0, 0, 0]]), (8, 1))
    loss = jax.jit(jax.value_and_grad(simclr.nt_xent))
    np.testing.assert_allclose(loss(apart, 0.5)[0], np.log(1 + 6 * np.exp(-2)), rtol=1e-6)
    value, gradient = loss(equal, 0.5)
    np.testing.assert_allclose(value, np.log(7), rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_the_rate_is_scaled_to_the_batch_and_falls_to_a_thousandth():
    """The first step of SGD is -rate (gradient + decay weight); a state of 9 finished steps out
    of 10 gives nearly the last rate.
    """
    optimizer = simclr._optimizer(
        simclr.Config(learning_rate=0.4, weight_decay=0.5), num_steps=10, batch_size=128
    )
    weight = np.float32([2.0])
    gradient = np.float32([3.0])
    with jax.numpy_dtype_promotion("standard"):
        state = jax.jit(optimizer.init)(weight)
        update = jax.jit(optimizer.update)
        changes = []
        for _ in range(11):
            change, state = update(gradient, state, weight)
            changes.append(float(np.asarray(change)[0]))
    assert changes[0] == pytest.approx(-0.1 * (3 + 0.5 * 2))
    momentum = sum(0.9**i for i in range(11))
    assert changes[10] == pytest.approx(-1e-4 * 4 * momentum, rel=1e-3)


@pytest.mark.long
def test_resnet18_has_the_parameters_and_shapes_of_its_definition():
    images = jnp.zeros((2, 32, 32, 3))
    network = resnet18.ResNet18(10)
    variables = jax.eval_shape(lambda: network.init(jax.random.key(0), images, train=False))
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == 11_173_962
    for dtype in (jnp.float32, jnp.bfloat16):
        network = resnet18.ResNet18(10, dtype)
        with jax.numpy_dtype_promotion(
            "standard"
        ):  # Flax mixes the types of activations and statistics
            logits, updates = jax.eval_shape(
                lambda v, n=network: n.apply(v, images, train=True, mutable=["batch_stats"]),
                variables,
            )
            features = jax.eval_shape(
                lambda v, n=network: n.apply(v, images, train=False, features=True), variables
            )
        chex.assert_shape([logits, features], [(2, 10), (2, 512)])
        assert {leaf.dtype for leaf in jax.tree.leaves((logits, features, updates))} == {
            np.dtype(np.float32)
        }


@pytest.mark.slow
def test_a_batch_of_512_trains_the_512_512_128_head_on_the_backbone():
    network = simclr.Network("resnet18", 128, hidden=True)
    variables = jax.eval_shape(
        lambda: network.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)
    )
    chex.assert_shape(variables["params"]["hidden"]["kernel"], (512, 512))
    chex.assert_shape(variables["params"]["head"]["kernel"], (512, 128))
    config = simclr.Config(backbone="resnet18")
    assert (config.num_epochs, config.views) == (500, "photo")
    state = jax.eval_shape(
        lambda v: simclr.initial(v, simclr._optimizer(config, 10, 512), jnp.zeros(())), variables
    )
    images = jax.ShapeDtypeStruct((1000, 32, 32, 3), jnp.uint8)
    index = jax.ShapeDtypeStruct((512,), jnp.int32)
    after = jax.eval_shape(
        lambda i, s, at: simclr._step(config, 10, i, jax.random.key(0), s, at), images, state, index
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)


@pytest.mark.long
def test_train_goes_on_bit_for_bit_and_reports_every_epoch(tmp_path, monkeypatch):
    """A toy that depends on all there is: the batches' order, the key, the step number, momentum
    and the summed loss.
    """
    monkeypatch.setattr(simclr, "CHECKPOINT_EPOCHS", 2)
    optimizer = optax.sgd(0.1, momentum=0.9)

    @jax.jit
    def step(key, state, index):
        noise = jax.random.uniform(jax.random.fold_in(key, state.step))
        gradient = {"w": state.variables["params"]["w"] * noise + index.sum().astype(jnp.float32)}
        return simclr.updated(state, optimizer, gradient, {"batch_stats": {}}, noise)

    def run(folder, on_epoch=None):
        variables = {"params": {"w": np.ones(3, np.float32)}, "batch_stats": {}}
        start = simclr.initial(variables, optimizer, np.zeros((), np.float32))
        return simclr.train("toy", jax.random.key(0), start, step, 10, 4, 5, folder, on_epoch)

    def stop(name, epoch, epochs, metrics):
        seen.append((name, epoch, epochs))
        if len(seen) == 3:
            raise KeyboardInterrupt

    seen = []
    losses = []
    whole = run(None, lambda name, epoch, epochs, metrics: losses.append(metrics["loss"]))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop)
    resumed = run(tmp_path, stop)
    chex.assert_trees_all_equal(resumed, whole)
    assert seen == [("toy", epoch, 5) for epoch in (1, 2, 3, 3, 4, 5)]  # the third was lost
    assert int(whole.step) == 15
    assert losses[-1] == pytest.approx(float(whole.loss) / 3)
    chex.assert_trees_all_equal(run(tmp_path, stop), whole)
    assert len(seen) == 6  # nothing was left to train


@pytest.mark.slow
def test_a_training_that_was_cut_off_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    """Cut off after two epochs of four; a change of the key does not go on from there."""
    monkeypatch.setattr(simclr, "CHECKPOINT_EPOCHS", 2)
    images = random_images(60)
    seen = []

    def stop(name, epoch, epochs, metrics):
        seen.append(epoch)
        if len(seen) == 3:
            raise KeyboardInterrupt

    whole = simclr.fit(jax.random.key(0), images, TINY)
    with pytest.raises(KeyboardInterrupt):
        simclr.fit(jax.random.key(0), images, TINY, folder=tmp_path, on_epoch=stop)
    resumed = simclr.fit(jax.random.key(0), images, TINY, folder=tmp_path, on_epoch=stop)
    assert seen == [1, 2, 3, 3, 4]  # the third was lost
    chex.assert_trees_all_equal(resumed.variables, whole.variables)
    again = simclr.fit(jax.random.key(0), images, TINY, folder=tmp_path, on_epoch=stop)
    chex.assert_trees_all_equal(again.variables, whole.variables)
    assert len(seen) == 5  # nothing was left to train
    names = {
        simclr.fingerprint("simclr", jax.random.key(seed), images, config)
        for seed in (0, 1)
        for config in (TINY, replace(TINY, epochs=5))
    }
    assert len(names) == 4
    norms = np.linalg.norm(np.asarray(resumed(images)), axis=1)
    np.testing.assert_allclose(norms, 1, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 16, 8, 1), (8, 4, 8, 1), (4, 4, 8, 2)])
def test_a_training_on_images_of_another_shape_begins_anew(shape):
    """Though their bytes are the same."""
    key, images = jax.random.key(0), random_images(4)
    place = simclr.fingerprint("simclr", key, images, TINY)
    assert place == simclr.fingerprint("simclr", key, images.copy(), TINY)
    assert place != simclr.fingerprint("simclr", key, images.reshape(shape), TINY)


@pytest.mark.slow
def test_ten_clusters_of_the_digits_are_purer_than_by_pixels():
    """0.86 to 0.89 with four keys against 0.77; 0.94 to 0.96 against 0.92 for forty clusters."""
    public = data.load("digits", 4).public
    config = simclr.Config(epochs=100, batch_size=128, temperature=0.5)
    encoders = (
        pixels.fit(jax.random.key(0), public.images),
        simclr.fit(jax.random.key(0), public.images, config),
    )
    found = [
        purity(
            kmeans.select(jax.random.key(1), encode(public.images), 10).cluster, public.true_labels
        )
        for encode in encoders
    ]
    assert found[1] > found[0] + 0.05


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backbone": "vgg"}, "backbone='vgg'"),
        ({"epochs": -1}, "epochs=-1"),
        ({"batch_size": 1}, "batch_size=1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"features": "head"}, "features='head'"),
        ({"augmentation": "warp"}, "augmentation='warp'"),
    ],
)
def test_bad_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        simclr.Config(**changes)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((5, 8, 8, 1), np.float32), "float32"),
        (np.zeros((5, 8, 8), np.uint8), r"\(5, 8, 8\)"),
        (np.zeros((5, 1, 1, 1), np.uint8), "2x2 pixels"),
        (np.zeros((1, 8, 8, 1), np.uint8), "two public images or more, got 1"),
    ],
)
def test_bad_images_are_named(images, words):
    with pytest.raises(ValueError, match=words):
        simclr.fit(jax.random.key(0), images)

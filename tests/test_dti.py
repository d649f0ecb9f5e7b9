"""DTI k-means: each transformation by its formula, gradients of the minimum, restarts, the
curriculum, and purer clusters than pixels'.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.ndimage

from rknn_jax.images.warps import as_uint8, thin_plate_displacement
from rknn_jax.queries import kmeans, prototypes
from rknn_jax.representations import dti, pixels
from tests.test_self_trained import purity

RNG = np.random.default_rng(0)
IMAGES = RNG.random((2, 7, 9, 2), np.float32)
PUBLIC = RNG.integers(0, 256, (40, 8, 8, 1), np.uint8)
MOVED = {name: jax.jit(transform) for name, (transform, _) in dti.TRANSFORMATIONS.items()}
SMALL = {"prototypes": 3, "width": 2, "blocks": 1, "batch_size": 20}
FIVE_EPOCHS = dti.Config(**SMALL, epochs=5, curriculum=(0.2, 0.4, 0.6), decay=0.8)


@pytest.mark.parametrize("name", ["affine", "thin_plate"])
def test_warps_without_parameters_are_the_identity(name):
    _, size = dti.TRANSFORMATIONS[name]
    moved = MOVED[name](IMAGES, np.zeros((2, size), np.float32))
    np.testing.assert_allclose(moved, IMAGES, atol=1e-6)


def test_the_window_without_parameters_keeps_three_quarters_of_each_pixel():
    """As the authors' code starts it, in float64: sigmoid(5) in the middle, sigmoid(-5) around
    it.
    """
    kernel = np.full((7, 7), 1 / (1 + np.exp(5.0)))
    kernel[3, 3] = 1 / (1 + np.exp(-5.0))
    expected = scipy.ndimage.correlate(
        IMAGES.astype(np.float64), (kernel / kernel.sum())[None, ..., None], mode="constant"
    )
    kept = MOVED["morphological"](IMAGES, np.zeros((2, 50), np.float32))
    np.testing.assert_allclose(kept, expected, atol=1e-6)
    assert 0.75 < kernel[3, 3] / kernel.sum() < 0.76


def test_the_window_is_the_weighted_mean_of_the_paper():
    """Each image by its own parameters, in float64."""
    parameters = RNG.normal(0, 2, (2, 50)).astype(np.float32)
    results = np.asarray(MOVED["morphological"](IMAGES, parameters))
    for image, values, result in zip(IMAGES, parameters, results, strict=True):
        logits = values[1:].reshape(7, 7).astype(np.float64) - 5
        logits[3, 3] += 10
        padded = np.pad(image.astype(np.float64), ((3, 3), (3, 3), (0, 0)))
        for row, column, channel in np.ndindex(image.shape):
            x = padded[row : row + 7, column : column + 7, channel]
            weight = np.exp(values[0] * x) / (1 + np.exp(-logits))
            np.testing.assert_allclose(
                result[row, column, channel], (weight * x).sum() / weight.sum(), rtol=1e-4
            )


def test_an_open_window_dilates_or_erodes():
    few, many = RNG.random((2, 7, 9, 2))
    binary = np.stack([few < 0.02, many < 0.98]).astype(np.float32)
    alpha = np.array([[50.0], [-50.0]])
    parameters = np.concatenate([alpha, np.full((2, 49), 10.0)], axis=1).astype(np.float32)
    dilated = scipy.ndimage.grey_dilation(binary[0], (7, 7, 1), mode="constant")
    eroded = scipy.ndimage.grey_erosion(binary[1], (7, 7, 1), mode="constant")
    expected = np.stack([dilated, eroded])
    assert (expected.mean(axis=(1, 2, 3)) > 0).all()
    assert (expected.mean(axis=(1, 2, 3)) < 1).all()
    np.testing.assert_allclose(MOVED["morphological"](binary, parameters), expected, atol=1e-2)


def test_an_affine_shift_of_one_pixel_moves_the_image_by_one_pixel():
    """Parameters count in halves of the image's size; what comes in is the nearest edge."""
    parameters = np.zeros((2, 6), np.float32)
    parameters[0, 2] = 2 / 7
    parameters[1, 5] = 2 / 9
    down, right = np.asarray(MOVED["affine"](IMAGES, parameters))
    np.testing.assert_allclose(down, np.concatenate([IMAGES[0, 1:], IMAGES[0, -1:]]), atol=1e-6)
    np.testing.assert_allclose(
        right, np.concatenate([IMAGES[1, :, 1:], IMAGES[1, :, -1:]], 1), atol=1e-6
    )


def test_a_thin_plate_spline_goes_through_its_control_points():
    offsets = RNG.normal(size=(3, 4, 4, 2)).astype(np.float32)
    rows, columns = np.mgrid[:4, :4][..., None]
    offsets[2] = rows * [1.0, 2.0] + columns * [0.5, 0.0] + 1
    spline = jax.jit(thin_plate_displacement, static_argnums=(1, 2))
    displacement = np.asarray(spline(offsets, 10, 13))
    np.testing.assert_allclose(displacement[:, ::3, ::4], offsets, atol=1e-5)
    rows, columns = np.mgrid[:10, :13][..., None] / np.array([3, 4]).reshape(2, 1, 1, 1)
    plane = rows * [1.0, 2.0] + columns * [0.5, 0.0] + 1
    np.testing.assert_allclose(displacement[2], plane, atol=1e-5)  # a plane does not bend


@pytest.mark.long
def test_before_training_the_loss_is_that_of_k_means():
    config = FIVE_EPOCHS
    state = dti._initial(jax.random.key(0), PUBLIC, config)
    images = PUBLIC[:20].astype(np.float32) / 255
    present = np.r_[np.ones(17), np.zeros(3)].astype(np.float32)
    loss_of = jax.jit(dti._loss, static_argnums=(0, 1))
    loss, (_, chosen) = loss_of(config, 0, state.params, state.batch_stats, images, present)
    first = np.asarray(state.params["prototypes"], np.float64)
    distances = ((images[:17, None].astype(np.float64) - first) ** 2).mean((2, 3, 4))
    np.testing.assert_allclose(loss, distances.min(1).mean(), rtol=1e-5)
    np.testing.assert_array_equal(chosen, np.bincount(distances.argmin(1), minlength=3))
    assert all(
        any(np.allclose(prototype, image / 255) for image in PUBLIC) for prototype in first
    ), "public images"


def test_bending_the_nearest_prototype_again_is_the_gradient_of_the_minimum(monkeypatch):
    """Against differentiating through all K, with a transformation that compiles in no time."""
    monkeypatch.setitem(
        dti.TRANSFORMATIONS,
        "affine",
        (lambda images, by: images * jnp.exp(by[:, :1, None, None]), 6),
    )
    values = [0.1 * RNG.normal(size=(3, 5, 6)).astype(np.float32)]
    first = RNG.random((3, 8, 8, 1), np.float32)
    images = RNG.random((5, 8, 8, 1), np.float32)

    def through_all(first, values):
        return dti._distances(first, values, images).min(0).mean()

    def through_one(first, values):
        nearest = dti._distances(first, values, images).argmin(0)
        return dti._errors(
            first[nearest], [v[nearest, np.arange(5)] for v in values], images
        ).mean()

    gradients = [jax.jit(jax.grad(f, (0, 1)))(first, values) for f in (through_all, through_one)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *gradients)


def test_an_empty_prototype_starts_again_beside_the_fullest():
    own = {
        "prototypes": RNG.random((3, 8, 8, 1), np.float32),
        "affine": [(RNG.random((3, 5, 6), np.float32), RNG.random((3, 6), np.float32))],
    }
    params = own | {"encoder": RNG.random((3, 4), np.float32)}
    adam = {}
    for name, part in params.items():
        squares = jax.tree.map(np.square, part)
        adam[name] = optax.ScaleByAdamState(np.zeros((), np.int32), mu=part, nu=squares)
    state = dti.State(params, {}, adam, np.asarray([30, 2, 68], np.float32))
    after = dti.restart(jax.random.key(1), state)
    source = np.asarray([0, 2, 2])
    moved = np.asarray(after.params["prototypes"]) - params["prototypes"][source]
    assert (moved[[0, 2]] == 0).all()
    assert 0.7e-4 < moved[1].std() < 1.3e-4
    np.testing.assert_array_equal(after.params["affine"][0][0], params["affine"][0][0][source])
    for name in own:
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(a[source] if np.ndim(a) else a, b),
            adam[name],
            after.adam[name],
        )
    jax.tree.map(
        np.testing.assert_array_equal,
        (params["encoder"], adam["encoder"]),
        (after.params["encoder"], after.adam["encoder"]),
    )
    assert not after.chosen.any()
    enough = dti.restart(
        jax.random.key(1), state._replace(chosen=np.asarray([25, 7, 68], np.float32))
    )  # a fifth of a third is 6.7
    np.testing.assert_array_equal(enough.params["prototypes"], params["prototypes"])


def test_transformations_come_in_at_the_epochs_of_the_paper():
    config = dti.Config()
    assert [config.stage(epoch) for epoch in (0, 49, 50, 149, 150, 199, 200, 299)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


@pytest.mark.long
def test_training_follows_the_curriculum(monkeypatch):
    seen = []

    def step(config, stage, state, images, index, present, rate):
        seen.append((stage, rate))
        return state, 0

    monkeypatch.setattr(dti, "_step", step)
    dti.fit(jax.random.key(0), PUBLIC, FIVE_EPOCHS)
    assert seen == [
        (stage, rate)
        for stage, rate in zip((0, 1, 2, 3, 3), (1e-3, 1e-3, 1e-3, 1e-3, 1e-4), strict=True)
        for _ in range(2)
    ]


@pytest.mark.parametrize("stage", range(4))
def test_a_stage_bends_by_its_first_transformations(stage):
    config = dti.Config(**SMALL)
    state = jax.eval_shape(lambda key: dti._initial(key, PUBLIC, config), jax.random.key(0))
    images = jax.ShapeDtypeStruct((5, 8, 8, 1), jnp.float32)
    found = jax.eval_shape(
        lambda state, x: dti._parameters(config, stage, state.params, state.batch_stats, x, True)[
            0
        ],
        state,
        images,
    )
    assert [values.shape for values in found] == [(3, 5, 6), (3, 5, 50), (3, 5, 32)][:stage]


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_to_the_same_encoder(tmp_path, monkeypatch):
    """Restarts included, here before every third step."""
    monkeypatch.setattr(dti, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(dti, "RESTART_EVERY", 3)
    config = dti.Config(**SMALL, epochs=3, curriculum=(1.0, 1.0, 1.0))
    whole = dti.fit(jax.random.key(0), PUBLIC, config)
    step = dti._step
    calls = []

    def interrupted(*args, **named):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(*args, **named)

    monkeypatch.setattr(dti, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dti.fit(jax.random.key(0), PUBLIC, config, folder=tmp_path)
    again = dti.fit(jax.random.key(0), PUBLIC, config, folder=tmp_path)
    assert len(calls) == 4 + 4, "the last two of three epochs of two steps"
    jax.tree.map(
        np.testing.assert_array_equal,
        (again.params, again.batch_stats),
        (whole.params, whole.batch_stats),
    )
    dti.fit(jax.random.key(1), PUBLIC, config, folder=tmp_path)
    assert len(calls) == 8 + 6, "another key begins anew"


def glyphs(count):
    """A ring, a cross and two bars, each shifted by up to 2.4 of 16 pixels, turned, sheared and
    scaled at random.
    """
    rows, columns = np.mgrid[-1:1:16j, -1:1:16j]
    ring = np.abs(np.hypot(rows, columns) - 0.45) < 0.15
    cross = np.minimum(abs(rows), abs(columns)) < 0.12
    long = (abs(rows) < 0.6) & (abs(columns) < 0.12)
    wide = (abs(columns) < 0.6) & (abs(rows) < 0.12)
    drawn = np.stack([ring, cross & (np.hypot(rows, columns) < 0.6), wide, long]).astype(
        np.float32
    )[..., None]
    kind = np.arange(count) % 4
    moved = dti.affine(
        jnp.asarray(drawn[kind]),
        0.3 * jax.random.uniform(jax.random.key(0), (count, 6), minval=-1, maxval=1),
    )
    return np.asarray(as_uint8(255 * moved)), kind


@pytest.mark.slow
def test_clusters_of_moved_glyphs_are_purer_than_by_pixels():
    """0.88 against 0.51.

    Of four seeds the one of least loss, which no label chooses; each of them is purer than pixels
    are.

    All three transformations are at work. The digits of 8x8 pixels have too little to move, and
    their ten clusters gain nothing.
    """
    images, kind = glyphs(400)
    config = dti.Config(
        prototypes=4,
        epochs=80,
        curriculum=(0.2, 0.6, 0.8),
        width=4,
        blocks=1,
        batch_size=50,
        learning_rate=3e-3,
    )
    found = []
    for seed in range(4):
        features = np.asarray(dti.fit(jax.random.key(seed), images, config)(images))
        found.append(
            (
                -features.max(1).mean(),
                purity(prototypes.select(jax.random.key(0), features, 4).cluster, kind),
            )
        )
    by_pixels = purity(
        kmeans.select(jax.random.key(1), pixels.fit(jax.random.key(0), images)(images), 4).cluster,
        kind,
    )
    assert min(found)[1] > by_pixels + 0.15
    assert min(share for _, share in found) > by_pixels


@pytest.mark.slow
def test_a_part_is_trained_from_its_own_epoch_on():
    whole = dti.fit(
        jax.random.key(0), PUBLIC, dti.Config(**SMALL, epochs=2, curriculum=(0.5, 1.0, 1.0))
    )
    trained = {name: bool(jnp.any(whole.params[name][-1][0])) for name in dti.TRANSFORMATIONS}
    assert trained == {"affine": True, "morphological": False, "thin_plate": False}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prototypes": 0}, "prototypes=0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"decay": 1.5}, "decay=1.5"),
        ({"curriculum": (0.5, 0.2, 1.0)}, "curriculum="),
        ({"curriculum": (0.5, 0.7, 1.1)}, "curriculum="),
    ],
)
def test_bad_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        dti.Config(**changes)


def test_fewer_images_than_prototypes_are_refused():
    with pytest.raises(ValueError, match="prototypes=41"):
        dti.fit(jax.random.key(0), PUBLIC, dti.Config(prototypes=41))

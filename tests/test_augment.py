"""Augmentations draw what they say, and warps are those of SciPy."""

import jax
import jax.numpy as jnp
import matplotlib.colors
import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import pytest
import scipy.ndimage

from rknn_jax.images import augment, colors, rand_augment
from rknn_jax.images.warps import affine_displacement, warp


def test_warps_are_those_of_scipy_and_the_identity_without_a_displacement():
    image = scipy.ndimage.gaussian_filter(np.random.default_rng(0).uniform(size=(12, 15)), 1)
    angle = 0.3
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.array([5.5, 7.0])
    shift = np.array([1.5, -0.5])
    expected = scipy.ndimage.affine_transform(
        image, matrix, centre - matrix @ centre + shift, order=1, mode="nearest"
    )
    matrices = np.float32([np.eye(2), matrix])
    shifts = np.float32([np.zeros(2), shift])
    images = np.stack([image, image])[..., None].astype(np.float32)
    read = jax.jit(lambda images, *how: warp(images, affine_displacement(*how, 12, 15)))
    actual = np.asarray(read(images, matrices, shifts))
    np.testing.assert_array_equal(actual[0], images[0])
    np.testing.assert_allclose(actual[1, :, :, 0], expected, atol=1e-5)


@pytest.mark.long
def test_random_displacements_have_the_stated_spread():
    """The affine part is fitted to 4,000 draws: a standard deviation is then within 4% at 3.5
    standard errors, a false alarm of 5e-4.
    """
    height, width = size = np.array([14, 21])
    draws = np.asarray(
        jax.jit(lambda key: augment.random_displacement(key, 4000, height, width))(
            jax.random.key(0)
        ),
        np.float64,
    )
    pixels = np.stack(
        np.meshgrid(np.arange(height) - 6.5, np.arange(width) - 10, indexing="ij"), -1
    ).reshape(-1, 2)
    design = np.column_stack([pixels, np.ones(len(pixels))])
    along_rows, along_columns, shift = np.linalg.lstsq(
        design, draws.transpose(1, 2, 0, 3).reshape(len(pixels), -1)
    )[0].reshape(3, 4000, 2)
    # The smooth surface through the 5x5 grid has an affine part too, of known variance.
    grid = np.eye(25, dtype=np.float32).reshape(25, 5, 5)
    resize = jax.jit(jax.image.resize, static_argnums=(1, 2))
    bumps = np.asarray(resize(grid, (25, int(height), int(width)), "cubic"), np.float64).reshape(
        25, -1
    )
    elastic = 0.03 * np.linalg.norm(np.linalg.lstsq(design, bumps.T)[0], axis=1)[:, None] * size
    angle, scale, shear = np.random.default_rng(0).uniform(-1, 1, (3, 10**6)) * np.array(
        [[np.pi / 12], [0.15], [0.2]]
    )
    across = np.std(
        np.cos(angle) * shear - np.sin(angle) * (1 + scale)
    )  # how the columns of the source move along rows
    for measured, affine, noise in (
        (shift[:, 0], 2.5 * height / 28 / np.sqrt(3), elastic[2, 0]),
        (shift[:, 1], 2.5 * width / 28 / np.sqrt(3), elastic[2, 1]),
        (along_rows[:, 0], np.std(np.cos(angle) * (1 + scale)), elastic[0, 0]),
        (along_rows[:, 1], np.std(np.sin(angle) * (1 + scale)), elastic[0, 1]),
        (along_columns[:, 0], across, elastic[1, 0]),
    ):
        np.testing.assert_allclose(measured.std(), np.hypot(affine, noise), rtol=0.04)


def test_crops_are_windows_of_the_reflected_image_each_shift_as_likely():
    """4,860 shifts, 81 kinds: chi-square with 80 degrees of freedom is below 139 with
    probability 0.99995.
    """
    image = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    images = np.repeat(image[None, :, :, None], 4860, axis=0)
    crops = np.asarray(jax.jit(augment.cropped)(jax.random.key(0), images))[..., 0]
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(image, 4, "reflect"), (32, 32)
    ).reshape(81, -1)
    match = {window.tobytes(): index for index, window in enumerate(windows)}
    found = np.bincount([match[crop.tobytes()] for crop in crops], minlength=81)
    assert ((found - 60) ** 2 / 60).sum() < 139


def test_half_of_the_images_are_mirrored():
    """Of 4,000, within 4 standard deviations of 2,000: a false alarm of 6e-5."""
    images = np.tile(np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1), (4000, 1, 1, 1))
    flipped = np.asarray(jax.jit(augment.flipped)(jax.random.key(1), images))
    mirrored = (flipped == images[:, :, ::-1]).all((1, 2, 3))
    assert (mirrored | (flipped == images).all((1, 2, 3))).all()
    assert abs(mirrored.sum() - 2000) < 4 * np.sqrt(1000)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["warp", pytest.param("crop", marks=pytest.mark.slow), "crop_flip", "none"]
)
def test_every_image_has_a_draw_of_its_own_and_keeps_its_range(name):
    one = np.random.default_rng(2).random((1, 8, 9, 3), np.float32)
    change = jax.jit(augment.AUGMENTATIONS[name])
    same = np.asarray(change(jax.random.key(3), np.repeat(one, 64, axis=0)))
    assert same.shape == (64, 8, 9, 3)
    assert same.min() >= 0
    assert same.max() <= 1
    assert (len(np.unique(same.reshape(64, -1), axis=0)) > 8) == (name != "none")


# Views, and SCAN's strong changes.


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "change",
    [*augment.VIEWS.values(), *augment.STRONG.values()],
    ids=lambda change: change.__name__,
)
def test_views_have_a_shape_and_a_type_of_their_own_images(change, channels):
    """Traced, not compiled: strict types and ranks are found out here."""
    images = jax.ShapeDtypeStruct((5, 8, 9, channels), jnp.float32)
    made = jax.eval_shape(change, jax.random.key(0), images)
    assert (made.shape, made.dtype) == (images.shape, jnp.float32)


@pytest.mark.slow
def test_every_view_of_an_image_differs_and_stays_in_range():
    one = jax.random.uniform(jax.random.key(2), (1, 8, 9, 3))
    made = np.asarray(jax.jit(lambda key: _both(key, jnp.repeat(one, 64, 0)))(jax.random.key(3)))
    assert made.min() >= 0
    assert made.max() <= 1
    for views in made:
        assert len(np.unique(views.reshape(64, -1), axis=0)) > 56


def _both(key, images):
    photo_key, strong_key = jax.random.split(key)
    return jnp.stack(
        [augment.photo_view(photo_key, images), augment.strong_photo(strong_key, images)]
    )


def test_windows_lie_inside_with_the_area_and_shape_of_rejection_sampling():
    """Of 4,000 windows, mean area and log shape within 4 standard errors of 10^6 drawn by NumPy:
    a false alarm of 1.3e-4.
    """
    zoom, shift = map(
        np.asarray,
        jax.jit(lambda key: augment.random_window(key, (4000, 20, 30, 1), 0.2))(jax.random.key(4)),
    )
    assert (np.abs(shift) + zoom * [10, 15] <= [10 + 1e-4, 15 + 1e-4]).all()
    rng = np.random.default_rng(0)
    area = rng.uniform(0.2, 1, 10**6) * 600
    shape = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), 10**6))
    sides = np.stack([np.sqrt(area / shape), np.sqrt(area * shape)], 1)
    sides = sides[
        (sides <= [20, 30]).all(1)
    ]  # the tenth try fails in 1 of 10^5, for which all of the image is taken
    for measured, expected in (
        (zoom.prod(1), sides.prod(1) / 600),
        (np.log(zoom[:, 0] * 20 / (zoom[:, 1] * 30)), np.log(sides[:, 0] / sides[:, 1])),
    ):
        assert abs(measured.mean() - expected.mean()) < 4 * expected.std() / np.sqrt(4000)
    free = np.abs(shift / ([10, 15] * (1 - zoom) + 1e-9))
    assert abs(free.mean() - 0.5) < 4 / np.sqrt(12 * 8000)


@pytest.mark.slow
def test_a_crop_reads_a_linear_image_at_its_window():
    rows, columns = np.mgrid[:12, :15]
    image = jnp.asarray((rows * 0.03 + columns * 0.04)[None, ..., None], jnp.float32)
    zoom, shift = map(
        np.asarray,
        jax.jit(lambda key: augment.random_window(key, (8, 12, 15, 1), 0.3))(jax.random.key(5)),
    )
    made = np.asarray(
        jax.jit(lambda key: augment.zoomed(key, jnp.repeat(image, 8, 0), 0.3))(jax.random.key(5))
    )[..., 0]
    inside = np.s_[:, 2:-2, 2:-2]  # away from the edge, where a window's half pixel is repeated
    read_rows = 5.5 + (rows - 5.5) * zoom[:, 0, None, None] + shift[:, 0, None, None]
    read_columns = 7 + (columns - 7) * zoom[:, 1, None, None] + shift[:, 1, None, None]
    np.testing.assert_allclose(
        made[inside], (read_rows * 0.03 + read_columns * 0.04)[inside], atol=1e-5
    )


def test_hue_turns_as_in_hsv():
    images = np.random.default_rng(0).uniform(size=(6, 5, 4, 3))
    # grey, and pure red
    images[0] = 0.3
    images[1, :, :, 1:] = 0.0
    turns = np.array([0.1, 0.1, -0.1, 0.05, 0.5, 1.0])
    hsv = matplotlib.colors.rgb_to_hsv(images)
    hsv[..., 0] = (hsv[..., 0] + turns[:, None, None]) % 1
    given = images.astype(np.float32), turns.astype(np.float32).reshape(6, 1, 1, 1)
    made = jax.jit(colors.hue_turned)(*given)
    np.testing.assert_allclose(made, matplotlib.colors.hsv_to_rgb(hsv), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reference"),
    [
        (rand_augment.autocontrasted, lambda image, amount: PIL.ImageOps.autocontrast(image)),
        (
            rand_augment.posterised,
            lambda image, amount: PIL.ImageOps.posterize(image, int(4 + 4 * amount)),
        ),
        (rand_augment.solarised, lambda image, amount: PIL.ImageOps.solarize(image, 255 * amount)),
        (
            rand_augment.darkened,
            lambda image, amount: PIL.ImageEnhance.Brightness(image).enhance(0.05 + 0.9 * amount),
        ),
        (
            rand_augment.flattened,
            lambda image, amount: PIL.ImageEnhance.Contrast(image).enhance(0.05 + 0.9 * amount),
        ),
        (
            rand_augment.smoothed,
            lambda image, amount: PIL.ImageEnhance.Sharpness(image).enhance(0.05 + 0.9 * amount),
        ),
        (
            rand_augment.desaturated,
            lambda image, amount: PIL.ImageEnhance.Color(image).enhance(0.05 + 0.9 * amount),
        ),
    ],
    ids=lambda value: value.__name__,
)
def test_changes_of_values_are_pillows_but_for_its_rounding(change, reference):
    """The edge is left out: Pillow leaves it unsmoothed."""
    images = np.random.default_rng(1).integers(40, 220, (3, 9, 8, 3)).astype(np.uint8)
    amounts = [0.1, 0.4, 0.9]
    expected = np.stack(
        [
            np.asarray(reference(PIL.Image.fromarray(i), a))
            for i, a in zip(images, amounts, strict=True)
        ]
    )
    given = images.astype(np.float32) / 255, np.float32(amounts).reshape(3, 1, 1, 1)
    made = np.asarray(jax.jit(change)(*given)) * 255
    assert np.abs(made - expected)[:, 1:-1, 1:-1].max() < 2


def test_equalised_values_are_the_shares_of_darker_pixels():
    levels = np.random.default_rng(2).integers(0, 9, (2, 6, 5, 2))
    levels[1, :, :, 1] = 4  # a constant channel stays
    images = (levels * 30).astype(np.float32) / 255
    made = np.asarray(jax.jit(rand_augment.equalised)(images, np.zeros((2, 1, 1, 1), np.float32)))
    for image, channel in ((0, 0), (0, 1), (1, 0)):
        values = levels[image, :, :, channel]
        darker = (values.ravel()[None] < values.ravel()[:, None]).sum(1) / (
            values < values.max()
        ).sum()
        np.testing.assert_allclose(
            made[image, :, :, channel], darker.reshape(values.shape), atol=1e-6
        )
    np.testing.assert_allclose(made[1, :, :, 1], 120 / 255, atol=1e-6)


def test_moves_compose_as_one_after_the_other():
    """Four draws, among them some that stay in place, against homogeneous matrices in float64."""
    rng = np.random.default_rng(3)
    choice = rng.integers(0, 8, (4, 50))
    amount = rng.uniform(-1, 1, (4, 50)).astype(np.float32)
    choice[:, :5] = np.arange(5)  # every move four times over
    matrix, shift = map(
        np.asarray,
        jax.jit(rand_augment.composed_moves, static_argnums=(2, 3))(choice, amount, 20, 30),
    )
    for n in range(50):
        expected = np.eye(3)
        for move, share in zip(choice[:, n], amount[:, n].astype(np.float64), strict=True):
            step = np.eye(3)
            angle = share * np.pi / 6
            if move == 0:
                step[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            elif move < 5:
                where, size = {1: ((1, 0), 0.1), 2: ((0, 1), 0.1), 3: ((0, 2), 2), 4: ((1, 2), 3)}[
                    int(move)
                ]
                step[where] = size * share
            expected = expected @ step
        np.testing.assert_allclose(matrix[n], expected[:2, :2], atol=1e-5)
        np.testing.assert_allclose(shift[n], expected[:2, 2], atol=1e-5)


def test_holes_are_squares_of_the_stated_sides():
    """Of 4,000 in 32x32 pixels: the sides of those that no edge cuts are all of 1 to 16; mean side
    within 4 standard errors, 6e-5.

    Centres at least 8 pixels away from every edge are as likely for every side, so nothing is cut
    there and no side is preferred.
    """
    ramp = np.linspace(0, 1, 1024, dtype=np.float32).reshape(1, 32, 32, 1)
    images = np.repeat(ramp, 4000, axis=0)
    made = np.asarray(jax.jit(augment.holed)(jax.random.key(6), images))[..., 0]
    hole = made != ramp[..., 0]
    assert np.allclose(made[hole], 0.5, atol=1e-4)
    rows = hole.any(2)
    columns = hole.any(1)
    np.testing.assert_array_equal(hole, rows[:, :, None] & columns[:, None])
    tall = rows.sum(1)
    wide = columns.sum(1)
    centre = np.stack([rows.argmax(1) + tall // 2, columns.argmax(1) + wide // 2], 1)
    whole = ((centre >= 8) & (centre < 24)).all(1)
    np.testing.assert_array_equal(tall[whole], wide[whole])
    assert set(tall[whole]) == set(range(1, 17))
    assert abs(tall[whole].mean() - 8.5) < 4 * np.sqrt((16**2 - 1) / 12 / whole.sum())

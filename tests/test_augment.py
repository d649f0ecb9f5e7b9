"""Augmentations draw what they say, and warps are those of SciPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from rknn_jax import augment
from rknn_jax.warps import affine_displacement, warp


def test_warps_are_those_of_scipy_and_the_identity_without_a_displacement():
    image = scipy.ndimage.gaussian_filter(np.random.default_rng(0).uniform(size=(12, 15)), 1)
    angle = 0.3
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre, shift = np.array([5.5, 7.0]), np.array([1.5, -0.5])
    expected = scipy.ndimage.affine_transform(image, matrix, centre - matrix @ centre + shift, order=1, mode="nearest")
    matrices, shifts = jnp.asarray([np.eye(2), matrix], jnp.float32), jnp.asarray([np.zeros(2), shift], jnp.float32)
    images = jnp.asarray(np.stack([image, image])[..., None], jnp.float32)
    actual = jax.jit(lambda: warp(images, affine_displacement(matrices, shifts, 12, 15)))()
    chex.assert_trees_all_equal(actual[0], images[0])
    np.testing.assert_allclose(actual[1, :, :, 0], expected, atol=1e-5)


def test_random_displacements_have_the_stated_spread():
    """The affine part is fitted to 4,000 draws: a standard deviation is then within 4% at 3.5 standard errors, a false alarm of 5e-4."""
    height, width = size = np.array([14, 21])
    draws = np.asarray(jax.jit(lambda key: augment.random_displacement(key, 4000, height, width))(jax.random.key(0)), np.float64)
    pixels = np.stack(np.meshgrid(np.arange(height) - 6.5, np.arange(width) - 10, indexing="ij"), -1).reshape(-1, 2)
    design = np.column_stack([pixels, np.ones(len(pixels))])
    along_rows, along_columns, shift = np.linalg.lstsq(design, draws.transpose(1, 2, 0, 3).reshape(len(pixels), -1))[0].reshape(3, 4000, 2)
    # The smooth surface through the 5x5 grid has an affine part too, of known variance.
    bumps = np.asarray(jax.image.resize(jnp.eye(25).reshape(25, 5, 5), (25, height, width), "cubic"), np.float64).reshape(25, -1)
    elastic = 0.03 * np.linalg.norm(np.linalg.lstsq(design, bumps.T)[0], axis=1)[:, None] * size
    angle, scale, shear = np.random.default_rng(0).uniform(-1, 1, (3, 10**6)) * np.array([[np.pi / 12], [0.15], [0.2]])
    across = np.std(np.cos(angle) * shear - np.sin(angle) * (1 + scale))  # how the columns of the source move along rows
    for measured, affine, noise in (
        (shift[:, 0], 2.5 * height / 28 / np.sqrt(3), elastic[2, 0]),
        (shift[:, 1], 2.5 * width / 28 / np.sqrt(3), elastic[2, 1]),
        (along_rows[:, 0], np.std(np.cos(angle) * (1 + scale)), elastic[0, 0]),
        (along_rows[:, 1], np.std(np.sin(angle) * (1 + scale)), elastic[0, 1]),
        (along_columns[:, 0], across, elastic[1, 0]),
    ):
        np.testing.assert_allclose(measured.std(), np.hypot(affine, noise), rtol=0.04)


def test_crops_are_windows_of_the_reflected_image_each_shift_as_likely():
    """4,860 shifts, 81 kinds: chi-square with 80 degrees of freedom is below 139 with probability 0.99995."""
    image = jnp.arange(32 * 32, dtype=jnp.float32).reshape(1, 32, 32, 1)
    crops = np.asarray(jax.jit(lambda key: augment.cropped(key, jnp.repeat(image, 4860, 0)))(jax.random.key(0)))[..., 0]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(np.asarray(image)[0, :, :, 0], 4, "reflect"), (32, 32)).reshape(81, -1)
    match = {window.tobytes(): index for index, window in enumerate(windows)}
    found = np.bincount([match[crop.tobytes()] for crop in crops], minlength=81)
    assert ((found - 60) ** 2 / 60).sum() < 139


def test_half_of_the_images_are_mirrored():
    """Of 4,000, within 4 standard deviations of 2,000: a false alarm of 6e-5."""
    images = jnp.tile(jnp.arange(6.0).reshape(1, 2, 3, 1), (4000, 1, 1, 1))
    flipped = np.asarray(augment.flipped(jax.random.key(1), images))
    mirrored = (flipped == np.asarray(images)[:, :, ::-1]).all((1, 2, 3))
    assert (mirrored | (flipped == np.asarray(images)).all((1, 2, 3))).all()
    assert abs(mirrored.sum() - 2000) < 4 * np.sqrt(1000)


@pytest.mark.parametrize("name", augment.AUGMENTATIONS)
def test_every_image_has_a_draw_of_its_own_and_keeps_its_range(name):
    one = jax.random.uniform(jax.random.key(2), (1, 8, 9, 3))
    same = np.asarray(augment.AUGMENTATIONS[name](jax.random.key(3), jnp.repeat(one, 64, 0)))
    assert same.shape == (64, 8, 9, 3)
    assert same.min() >= 0
    assert same.max() <= 1
    assert (len(np.unique(same.reshape(64, -1), axis=0)) > 8) == (name != "none")

"""HOG against scikit-image over its parameters; deskewing against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.feature import hog as reference

from rknn_jax.images.deskew import deskew
from rknn_jax.images.warps import affine_displacement, warp
from rknn_jax.representations import hog


def assert_equals_scikit_image(seed, size, channels, orientations, cell, block, norm, root):
    """Whole pixels put many gradients exactly on the edges of bins, where rounding would show;
    and pixels within [0, 1].
    """
    images = np.random.default_rng(seed).integers(0, 256, (4, *size, channels))
    images = (images * np.array([1, 1, 1 / 255, 1 / 255]).reshape(4, 1, 1, 1)).astype(np.float32)
    options = {
        "orientations": orientations,
        "pixels_per_cell": cell,
        "cells_per_block": block,
        "block_norm": norm,
        "transform_sqrt": root,
    }
    expected = [reference(image, channel_axis=-1, **options) for image in images]
    np.testing.assert_allclose(hog.hog(images, **options), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "channels", "orientations", "cell", "block", "norm", "root"),
    [
        ((17, 26), 3, 9, (3, 5), (2, 1), "L2-Hys", True),
        ((20, 13), 1, 4, (4, 2), (1, 2), "L1-sqrt", False),
    ],
    ids=["colours", "grey"],
)
def test_hog_equals_scikit_image(size, channels, orientations, cell, block, norm, root):
    """Sizes that cells do not fill, and cells and blocks that are not squares."""
    assert_equals_scikit_image(0, size, channels, orientations, cell, block, norm, root)


@pytest.mark.slow
@given(
    st.integers(0, 999),
    st.tuples(st.integers(12, 30), st.integers(12, 30)),
    st.sampled_from([1, 3]),
    st.integers(1, 12),
    st.tuples(st.integers(2, 5), st.integers(2, 5)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from(["L1", "L1-sqrt", "L2", "L2-Hys"]),
    st.booleans(),
)
def test_hog_equals_scikit_image_over_its_parameters(
    seed, size, channels, orientations, cell, block, norm, root
):
    assert_equals_scikit_image(seed, size, channels, orientations, cell, block, norm, root)


def test_the_norms_are_their_formulas():
    """The other two are made of them, and compared above."""
    blocks = np.random.default_rng(0).random((5, 8), np.float32)
    l1 = blocks / (blocks.sum(axis=1, keepdims=True) + 1e-5)
    l2 = blocks / np.sqrt((blocks**2).sum(axis=1, keepdims=True) + 1e-10)
    found = jax.jit(lambda blocks: (hog.NORMS["L1"](blocks), hog.NORMS["L2"](blocks)))(blocks)
    np.testing.assert_allclose(found, (l1, l2), rtol=1e-5)


BINS = (2, 4, 6, 8, 9, 12)


@jax.jit
def binned(images):
    """Mean magnitude of each bin, for every number of bins."""
    vertical, horizontal = hog._gradient(images)
    means = []
    for count in BINS:
        bins = jnp.stack(hog._binned(vertical, horizontal, count))
        means.append(jnp.mean(bins, axis=(2, 3)).T)
    return means


def test_gradients_on_the_edge_of_a_bin_fall_where_scikit_image_puts_them():
    """Ramps in eight exact directions, 45 degrees apart, as one cell."""
    rows, columns = np.mgrid[:16, :16]
    images = np.stack([a * rows + b * columns + 40 for a in (-1, 0, 1) for b in (-1, 0, 1)]).astype(
        np.float32
    )
    for count, found in zip(BINS, map(np.asarray, binned(images[..., None])), strict=True):
        expected = [reference(image, count, (16, 16), (1, 1), block_norm="L1") for image in images]
        found = found / (found.sum(axis=1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=f"{count} bins")


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1)).astype(np.uint8)


def test_the_encoder_joins_cell_sizes(images):
    parts = [[reference(image[..., 0], 9, (c, c), (2, 2)) for image in images] for c in (5, 4)]
    encode = hog.Encoder(hog.Config(cells=(5, 4)))
    np.testing.assert_allclose(encode(images), np.concatenate(parts, axis=1), atol=1e-4)
    traced = jax.eval_shape(lambda x: encode(x), images)
    assert traced.shape == encode(images).shape


@pytest.mark.slow
def test_encoding_is_the_same_inside_and_outside_jit(images):
    encode = hog.Encoder(hog.Config(cells=(4,)))
    np.testing.assert_allclose(jax.jit(lambda x: encode(x))(images), encode(images), atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cells": ()}, "cells"),
        ({"block": 0}, "block=0"),
        ({"orientations": 0}, "orientations=0"),
        ({"block_norm": "L3"}, "L3"),
    ],
)
def test_bad_settings_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        hog.Config(**fields)


def test_images_too_small_or_coloured_are_named():
    with pytest.raises(ValueError, match="at least 14x14"):
        hog.Encoder(hog.Config())(np.zeros((2, 8, 8, 1), np.uint8))
    with pytest.raises(ValueError, match="deskew=False"):
        hog.Encoder(hog.Config(cells=(4,), deskew=True))(np.zeros((2, 8, 8, 3), np.uint8))


def moments(image):
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    ink = image / image.sum()
    row = (ink * rows).sum()
    column = (ink * columns).sum()
    return (
        row,
        column,
        (ink * (rows - row) * (columns - column)).sum() / (ink * (rows - row) ** 2).sum(),
    )


def strokes():
    """Three slanted, shifted strokes in a 28x28 image."""
    rows, columns = np.mgrid[:28, :28]
    return np.stack(
        [
            255 * np.exp(-((columns - 12 - a * (rows - 15)) ** 2) / 4) * (abs(rows - 15) < 7)
            for a in (-0.6, 0.0, 0.5)
        ]
    )[..., None].astype(np.uint8)


def test_deskewing_centers_the_ink_and_takes_its_slant_away():
    before = strokes()
    after = np.asarray(deskew(strokes()))
    assert abs(moments(before[0, ..., 0])[2]) > 0.5
    for image in after[..., 0]:
        row, column, slant = moments(image)
        assert abs(row - 13.5) < 0.1
        assert abs(column - 13.5) < 0.1
        assert abs(slant) < 0.05


def test_deskewing_leaves_blank_and_straight_images_alone():
    straight = np.zeros((3, 28, 28, 1), np.uint8)
    straight[1, 10:18, 13:15] = 200
    np.testing.assert_array_equal(deskew(straight), straight)


def test_a_warp_reads_each_pixel_where_the_matrix_says():
    """A quarter turn and a whole-pixel shift are exact."""
    images = np.random.default_rng(0).normal(size=(2, 7, 7, 2)).astype(np.float32)
    matrices = np.float32([[[0, -1], [1, 0]], np.eye(2)])
    shifts = np.float32([[0, 0], [2, -1]])
    read = jax.jit(lambda images, *how: warp(images, affine_displacement(*how, 7, 7)))
    turned, shifted = np.asarray(read(images, matrices, shifts))
    np.testing.assert_allclose(turned, np.rot90(images[0], -1), atol=1e-5)
    np.testing.assert_allclose(shifted[:5, 1:], images[1, 2:, :6], atol=1e-5)

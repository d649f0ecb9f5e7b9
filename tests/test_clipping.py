"""Images whose pixels were cut to black or white are told, and pictures are not."""

import numpy as np
import pytest
from PIL import Image
from sklearn import datasets

from rknn_jax.embedding import clipping
from rknn_jax.embedding.images import ImageFolder
from tests.test_image_files import deep

DRAW = np.random.default_rng(0)
PHOTO = datasets.load_sample_image("china.jpg")[:60, :80]
DIGITS = (np.kron(datasets.load_digits().images[:30], np.ones((1, 4, 4))) * 255 / 16).astype("u1")
SCAN = np.where(DRAW.random((40, 40)) < 0.9, 255, DRAW.integers(0, 256, (40, 40))).astype("u1")


def folder(path, images):
    path.mkdir()
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).save(path / f"{number}.png")
    return ImageFolder.find(path)


@pytest.mark.parametrize(
    "images",
    [
        [PHOTO, PHOTO[::-1]],
        [*DIGITS],
        [SCAN, 255 - SCAN],
        [PHOTO // 2, np.zeros_like(PHOTO), PHOTO],  # one black picture
    ],
    ids=["photographs", "digits", "scans", "a black picture"],
)
def test_pictures_are_not_told(tmp_path, images):
    assert not [*clipping.doubts(folder(tmp_path / "x", images), 65535)]


@pytest.mark.parametrize(
    "change",
    [
        lambda pixels: np.minimum(40 * pixels.astype(int), 255).clip(200).clip(0, 255),
        lambda pixels: pixels / 255,  # saved without a scale
        lambda pixels: np.where(pixels > 99, 255, 0),
    ],
    ids=["too bright", "not scaled", "two values"],
)
def test_images_of_black_and_white_alone_are_told(tmp_path, change):
    images = [change(PHOTO).astype(np.uint8)] * 3
    (sentence,) = clipping.doubts(folder(tmp_path / "x", images), 65535)
    assert "of the pixels of half of the images are black or white" in sentence


def test_a_file_that_is_no_image_is_told_elsewhere(tmp_path):
    source = folder(tmp_path / "x", [PHOTO])
    (tmp_path / "x/0.png").write_bytes(b"")
    assert not [*clipping.doubts(source, 65535)]


def test_pixels_above_the_white_of_16_bits_are_told(tmp_path):
    """The public white is that of the private side, which may be brighter."""
    deep(tmp_path / "x", 4, most=1500)
    source = ImageFolder.find(tmp_path / "x")
    assert not [*clipping.doubts(source, 2047)]
    (sentence,) = clipping.doubts(source, 1023)
    assert "of the pixels are above the white 1,023, and are cut to it" in sentence

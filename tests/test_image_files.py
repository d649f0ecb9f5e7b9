"""Pixels of image files, in every mode that Pillow writes."""

import numpy as np
import pytest
from PIL import Image

from rknn_jax.embedding.images import ImageFolder
from rknn_jax.images import files

RAMP = np.linspace(0, 255, 64).round().astype(np.uint8).reshape(8, 8)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_pixels_of_16_bits_are_scaled_by_their_depth(tmp_path, suffix, dtype):
    path = tmp_path / f"x{suffix}"
    Image.fromarray((RAMP.astype(np.uint16) * 257).astype(dtype)).save(path)
    np.testing.assert_array_equal(np.asarray(files.read(path)), RAMP)
    np.testing.assert_array_equal(np.asarray(files.read(path, upright=True)), RAMP)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_other_modes_keep_black_and_white(tmp_path, mode):
    gray = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 32).reshape(8, 8))
    path = tmp_path / "x.tif"
    image = gray.convert(mode)
    try:
        image.save(path)
    except OSError:
        pytest.skip(f"Pillow writes no TIFF of mode {mode}")
    found = np.asarray(files.read(path).convert("L"))
    np.testing.assert_allclose(found, np.asarray(gray), atol=1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_scale_are_refused(tmp_path, dtype):
    path = tmp_path / "x.tif"
    Image.fromarray(RAMP.astype(dtype)).save(path)
    with pytest.raises(ValueError, match="whose black and white are not known"):
        files.read(path)


def test_files_that_are_no_images_are_counted(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.fromarray(RAMP).save(tmp_path / "cat/a.png")
    for name in ("cat/b.gif", "cat/c.dcm", "notes.txt", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    found = ImageFolder.find(tmp_path)
    assert found.files == ("cat/a.png",)
    assert found.skipped == ("cat/b.gif", "cat/c.dcm", "notes.txt")

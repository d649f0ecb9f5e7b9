"""Encoder of patches: the ONNX graph is the arithmetic that its page tells, learned from public
images alone.
"""

import json

import numpy as np
import pytest
from PIL import Image

from benchmarks import patch_encoder
from benchmarks.patch_encoder import Filters, Settings
from rknn_jax.representations import pretrained

SETTINGS = Settings(side=7, patch=3, atoms=4, width=6)
IMAGES = np.random.default_rng(0).integers(0, 256, (30, 7, 7, 3)).astype(np.uint8)


def response(patch: np.ndarray, filters: Filters) -> np.ndarray:
    """Responses of one patch `[3, 3, 3]`, channels first: centered, scaled, whitened, compared."""
    scaled = (patch - patch.mean()) / np.sqrt(patch.var() + patch_encoder.CONTRAST)
    return np.einsum("acij,cij->a", filters.weights, scaled) + filters.bias


def pooled(image: np.ndarray, filters: Filters) -> np.ndarray:
    """Features `[8 * atoms]` of one image, patch by patch."""
    channels = image.transpose(2, 0, 1).astype(np.float64)
    responses = np.array(
        [[response(channels[:, r : r + 3, c : c + 3], filters) for c in range(5)] for r in range(5)]
    )
    both = np.concatenate([responses, -responses], axis=2)
    active = np.maximum(both - patch_encoder.THRESHOLD, 0)
    quarters = [[active[r : r + 2, c : c + 2].mean(axis=(0, 1)) for c in (0, 2)] for r in (0, 2)]
    return np.array(quarters).transpose(2, 0, 1).ravel()


def test_the_graph_is_the_arithmetic_of_each_patch(tmp_path):
    filters = patch_encoder.learn_filters(IMAGES, SETTINGS)
    path = tmp_path / "patches.onnx"
    projection = np.eye(32, dtype=np.float32)
    patch_encoder.write(path, filters, SETTINGS, projection)
    found = np.asarray(pretrained.load(path)(IMAGES[:3]))
    expected = np.stack([pooled(image, filters) for image in IMAGES[:3]])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_an_image_of_one_color_has_finite_features(tmp_path):
    path = tmp_path / "patches.onnx"
    assert patch_encoder.export(IMAGES, path, SETTINGS) == 6
    flat = np.full((2, 7, 7, 3), 200, np.uint8)
    features = np.asarray(pretrained.load(path)(flat))
    assert np.isfinite(features).all()
    np.testing.assert_array_equal(features[0], features[1])


def test_features_are_the_leading_components_of_the_public_images(tmp_path):
    path = tmp_path / "patches.onnx"
    patch_encoder.export(IMAGES, path, SETTINGS)
    features = np.asarray(pretrained.load(path)(IMAGES), np.float64)
    covariance = np.cov(features.T)
    variances = np.diag(covariance)
    assert (np.diff(variances) <= 1e-6 * variances[0]).all()
    np.testing.assert_allclose(covariance, np.diag(variances), atol=1e-4 * variances[0])


def test_the_seed_alone_decides(tmp_path):
    for name in ("a", "b"):
        patch_encoder.export(IMAGES, tmp_path / f"{name}.onnx", SETTINGS)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("sides", [(7, 7), (20, 13)])
def test_the_program_reads_a_folder(tmp_path, sides):
    for number in range(30):
        pixels = np.random.default_rng(number).integers(0, 256, (*sides, 3)).astype(np.uint8)
        (tmp_path / "public").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"public/{number}.png")
    out = tmp_path / "out.onnx"
    words = ["--images", str(tmp_path / "public"), "--out", str(out), "--side", "9", "--width", "5"]
    patch_encoder.main(words)
    assert json.loads(out.with_suffix(".json").read_text())["size"] == [9, 9]
    assert pretrained.load(out)(IMAGES[:2]).shape == (2, 5)

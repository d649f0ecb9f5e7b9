"""A pretrained network as an encoder: its input is what the card says, and a network that would let
one record move the features of another is refused.
"""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from onnx import load, save
from PIL import Image

from rknn_jax._internal import onnx
from rknn_jax.representations import pretrained
from tests import tiny_network

RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.integers(0, 256, (7, 6, 6, 3)).astype(np.uint8)


def expected(images):
    """Features of images that have the network's size, without onnxruntime."""
    scaled = (images - np.array(tiny_network.CARD["mean"])) / np.array(tiny_network.CARD["std"])
    weights = np.random.default_rng(0).normal(size=(3 * 6 * 6, 5))
    return scaled.transpose(0, 3, 1, 2).reshape(len(images), -1) @ weights


def test_images_are_normalized_as_the_card_says(tmp_path):
    encode = pretrained.load(tiny_network.write(tmp_path))
    np.testing.assert_allclose(encode(IMAGES), expected(IMAGES), rtol=1e-4, atol=1e-4)


def test_channels_may_come_last(tmp_path):
    encode = pretrained.load(tiny_network.write(tmp_path, layout="NHWC"))
    scaled = (IMAGES - np.array(tiny_network.CARD["mean"])) / np.array(tiny_network.CARD["std"])
    weights = np.random.default_rng(0).normal(size=(3 * 6 * 6, 5))
    np.testing.assert_allclose(
        encode(IMAGES), scaled.reshape(7, -1) @ weights, rtol=1e-4, atol=1e-4
    )


def test_other_sizes_are_resized_to_rows_and_columns(tmp_path):
    encode = pretrained.load(tiny_network.write(tmp_path, size=[4, 6]))
    large = RANDOM.integers(0, 256, (2, 20, 11, 3)).astype(np.uint8)
    small = [Image.fromarray(image).resize((6, 4), Image.Resampling.BILINEAR) for image in large]
    np.testing.assert_array_equal(encode(large), encode(np.stack(small)))


def test_gray_images_have_three_equal_channels(tmp_path):
    encode = pretrained.load(tiny_network.write(tmp_path))
    gray = IMAGES[..., :1]
    np.testing.assert_array_equal(encode(gray), encode(np.repeat(gray, 3, axis=-1)))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_file_may_fix_the_number_of_images(tmp_path, batch):
    fixed = pretrained.load(tiny_network.write(tmp_path, batch=batch))
    np.testing.assert_allclose(fixed(IMAGES), expected(IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"batch": 4}, {"mixes": True}], ids=str)
def test_a_network_sees_one_image_a_run(tmp_path, changes):
    """The features are the same bits beside other images, also of one that mixes a batch."""
    encode = pretrained.load(tiny_network.write(tmp_path, **changes))
    alone = np.concatenate([encode(IMAGES[row : row + 1]) for row in range(len(IMAGES))])
    np.testing.assert_array_equal(encode(IMAGES), alone)
    np.testing.assert_array_equal(encode(IMAGES[::-1]), alone[::-1])


@pytest.mark.parametrize("where", ["branch", "function", "dropout", "inner", "shadow"])
def test_a_network_that_may_draw_is_refused_whether_or_not_a_public_image_makes_it(tmp_path, where):
    with pytest.raises(ValueError, match=r"without draws in .*operator (Random|Dropout)"):
        pretrained.load(tiny_network.write(tmp_path, draws=where))


def test_weights_in_other_files_are_refused(tmp_path, monkeypatch):
    """They are in no digest, and onnxruntime takes them from the folder in which it runs."""
    path = tiny_network.write(tmp_path)
    model = load(path)
    monkeypatch.chdir(tmp_path)
    save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        with pytest.raises(ValueError, match="weights in one file"):
            pretrained.load(path)
    save(load(path), path, save_as_external_data=False)
    np.testing.assert_allclose(
        pretrained.load(path)(IMAGES), expected(IMAGES), rtol=1e-4, atol=1e-4
    )


def test_a_dropout_that_is_off_is_none(tmp_path):
    encode = pretrained.load(tiny_network.write(tmp_path, draws="nowhere"))
    np.testing.assert_allclose(encode(IMAGES), expected(IMAGES), rtol=1e-4, atol=1e-4)


def test_a_file_that_changes_is_refused(tmp_path):
    path = tiny_network.write(tmp_path)
    encode = pretrained.load(path)
    other = tiny_network.write(tmp_path, seed=1)
    pretrained._network.cache_clear()  # as in another process
    assert other == path
    with pytest.raises(ValueError, match="got another file"):
        encode(IMAGES)
    assert pretrained.load(path).digest != encode.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output": "logits"}, "an output 'logits'"),
        ({"layout": "CHWN"}, "NCHW or NHWC"),
        ({"std": [1, 0, 1]}, "positive standard deviations"),
        ({"size": [6]}, "rows, columns"),
        ({"mean": None}, "mean"),
    ],
)
def test_a_wrong_card_is_told(tmp_path, change, words):
    path = tiny_network.write(tmp_path)
    path.with_suffix(".json").write_text(json.dumps(tiny_network.CARD | change))
    with pytest.raises(ValueError, match=words):
        pretrained.load(path)


def test_missing_files_are_told(tmp_path):
    with pytest.raises(ValueError, match="There is no file"):
        pretrained.load(tmp_path / "none.onnx")
    with pytest.raises(ValueError, match="There is no file"):
        pretrained.load("/dev/zero")  # which would be read forever
    path = tiny_network.write(tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match=r"card in .*tiny\.json"):
        pretrained.load(path)
    path = tiny_network.write(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="Cannot load the network"):
        pretrained.load(path)


def test_without_a_file_the_remedy_is_named():
    with pytest.raises(ValueError, match="rknn embed"):
        pretrained.fit(jax.random.key(0), IMAGES)


def test_onnxruntime_is_told_to_send_nothing(tmp_path, monkeypatch):
    """Its builds send Microsoft how often a session ran: how many private records there are."""
    told = []
    library = SimpleNamespace(
        SessionOptions=SimpleNamespace,
        get_available_providers=list,
        disable_telemetry_events=lambda: told.append(os.environ["ORT_DISABLE_TELEMETRY"]),
        InferenceSession=lambda *_, **__: told.append("session"),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", library)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    path = tiny_network.write(tmp_path)
    onnx.session(path, onnx.digest(path))
    assert told == ["1", "session"]


def test_onnxruntime_starts_in_one_place():
    """Whoever starts it elsewhere has to tell it, too."""
    package = Path(onnx.__file__).parents[1]
    lines = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^(    |        )*(import|from) onnxruntime", path.read_text(), re.MULTILINE)
    }
    assert lines == {"_internal/onnx.py", "release/networks.py"}, "the second one is an example"

"""Each data set's protocol, and what damaged files are told."""

import dataclasses
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rknn_jax import bsvs, data
from rknn_jax.data import _idx, cifar10, digits, image_folder, mnist


def test_digits_are_scikit_learns_scaled_to_uint8():
    task = digits.load(0)
    assert [len(task.public.images), len(task.private.images), len(task.test.images)] == [
        500,
        1000,
        297,
    ]
    from sklearn.datasets import load_digits

    np.testing.assert_array_equal(
        np.round(task.test.images[..., 0] / 255 * 16), load_digits().images[task.test_index]
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_idx_files_survive_a_round_trip(tmp_path, suffix, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    _idx.write(tmp_path / f"x{suffix}", array)
    back = _idx.read(tmp_path, "x")
    np.testing.assert_array_equal(back, array)
    assert back.dtype == dtype


def damage(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda raw: raw[:-1], "header tells"),
        ("train-images-idx3-ubyte", lambda raw: raw + b"x", "header tells"),
        ("train-images-idx3-ubyte", lambda raw: b"", "not an idx file"),
        ("train-labels-idx1-ubyte", lambda raw: b"PK" + raw[2:], "not an idx file"),
        (
            "train-images-idx3-ubyte",
            lambda raw: b"\0\0\x08\x02" + b"\xff" * 7 + b"\xfe",
            "header tells",
        ),
        (
            "train-images-idx3-ubyte",
            lambda raw: b"\0\0\x08\x03" + bytes(4) + b"\xff" * 8,
            "impossible shape",
        ),
        (
            "train-images-idx3-ubyte",
            lambda raw: b"\0\0\x08\x60" + b"\0\0\0\1" * 0x60 + b"x",
            "impossible shape",
        ),
        ("t10k-images-idx3-ubyte.gz", lambda raw: raw[:-5], "Cannot read"),
        ("t10k-images-idx3-ubyte.gz", lambda raw: raw[:30] + b"\xff\xff" + raw[32:], "Cannot read"),
        (
            "t10k-labels-idx1-ubyte.gz",
            lambda raw: gzip.compress(
                gzip.decompress(raw)[:7] + b"\x13" + gzip.decompress(raw)[8:-1]
            ),
            "n labels",
        ),
        (
            "train-labels-idx1-ubyte",
            lambda raw: raw[:8] + b"\x63" + raw[9:],
            r"labels in \[0, 10\)",
        ),
        (
            "t10k-writers-idx1-int.gz",
            lambda raw: gzip.compress(
                gzip.decompress(raw)[:7] + b"\x13" + gzip.decompress(raw)[8:-4]
            ),
            "50 writers",
        ),
    ],
)
def test_damaged_mnist_files_are_named(tmp_path, name, change, message):
    mnist._example(tmp_path, 0)
    damage(tmp_path / name, change)
    with pytest.raises(ValueError, match=message) as caught:
        mnist.load(0, tmp_path)
    assert "again" in str(caught.value) or "label files" in str(caught.value)


def test_missing_folders_and_files_say_what_to_pass(tmp_path):
    with pytest.raises(ValueError, match="data_dir"):
        mnist.load(0)
    with pytest.raises(FileNotFoundError, match="data_dir"):
        mnist.load(0, tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        mnist.load(0, tmp_path)


def test_without_writers_mnist_has_no_clients(tmp_path):
    mnist._example(tmp_path, 0)
    (tmp_path / "train-writers-idx1-int").unlink()
    assert mnist.load(0, tmp_path).private.clients is None


def test_the_clients_of_mnist_are_the_writers_of_their_images(tmp_path):
    mnist._example(tmp_path, 3)
    parts = [_idx.read(tmp_path, f"{part}-writers-idx1-int") for part in ("train", "t10k")]
    writers = np.concatenate(parts)
    for split in ("standard", "half", "train"):
        task = mnist.load(3, tmp_path, split)
        np.testing.assert_array_equal(task.private.clients, writers[task.private_index])
        np.testing.assert_array_equal(task.test.clients, writers[task.test_index])


def test_half_of_mnists_training_images_are_public_and_all_test_images_test(tmp_path):
    standard = mnist._example(tmp_path, 3)
    half = mnist.load(3, tmp_path, "half")
    assert standard.private_index.tolist() == list(range(30))
    assert sorted([*standard.public_index, *standard.test_index]) == list(range(30, 50))
    assert sorted([*half.public_index, *half.private_index]) == list(range(30))
    assert len(half.public_index) == 15
    assert half.test_index.tolist() == list(range(30, 50)), "no test image is public or private"
    with pytest.raises(ValueError, match="mnist:third"):
        mnist.load(3, tmp_path, "third")


def test_all_parts_of_mnist_train_are_training_images_and_a_twelfth_is_public(tmp_path):
    mnist._example(tmp_path, 3)
    task = mnist.load(3, tmp_path, "train")
    parts = (task.public_index, task.test_index, task.private_index)
    assert [len(part) for part in parts] == [2, 3, 25]
    assert sorted(np.concatenate(parts)) == list(range(30)), "no test image"


def test_unknown_data_sets_are_told_the_known_ones():
    with pytest.raises(ValueError, match=r"cifar10, digits, image_folder, mnist, tfds.*mnits"):
        data.load("mnits", 0)


def test_image_folders_are_split_as_asked_and_resized(tmp_path):
    image_folder._example(tmp_path, 0)
    task = image_folder.load(1, tmp_path, num_public=5, num_private=7, size=4)
    assert [task.public.images.shape, task.private.images.shape, task.test.images.shape] == [
        (5, 4, 4, 3),
        (7, 4, 4, 3),
        (6, 4, 4, 3),
    ]
    assert task.card.classes == ("cat", "dog")
    first = np.asarray(Image.open(tmp_path / "test" / "dog" / "0000.png"))
    np.testing.assert_array_equal(image_folder.load(1, tmp_path).test.images[3], first)


def test_the_standard_cifar_split_tests_on_the_test_folder_and_the_pooled_one_on_a_sixtieth_of_all(
    tmp_path,
):
    standard = cifar10._example(tmp_path, 3, "standard")
    pooled = cifar10.load(3, tmp_path, "pooled")
    assert [len(standard.public_index), len(standard.private_index), len(standard.test_index)] == [
        36,
        24,
        10,
    ]
    assert standard.test_index.tolist() == list(range(60, 70)), "no test image is public or private"
    assert [len(pooled.public_index), len(pooled.private_index), len(pooled.test_index)] == [
        35,
        33,
        2,
    ]
    assert sorted(
        np.concatenate([pooled.public_index, pooled.private_index, pooled.test_index])
    ) == list(range(70))
    with pytest.raises(ValueError, match="cifar10:other"):
        cifar10.load(0, tmp_path, "other")
    image_folder._example(tmp_path / "cats", 0)
    with pytest.raises(ValueError, match="ten classes"):
        cifar10.load(0, tmp_path / "cats")


def test_bad_image_folders_are_named(tmp_path):
    image_folder._example(tmp_path, 0)
    with pytest.raises(ValueError, match="num_public"):
        image_folder.load(0, tmp_path, num_public=17, num_private=2)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "train" / "cat" / "big.png")
    with pytest.raises(ValueError, match="one size"):
        image_folder.load(0, tmp_path)
    (tmp_path / "train" / "cat" / "big.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"Cannot read the image .*big\.png"):
        image_folder.load(0, tmp_path)
    (tmp_path / "train" / "bird").mkdir()
    with pytest.raises(ValueError, match="bird"):
        image_folder.load(0, tmp_path)
    (tmp_path / "test" / "bird").mkdir()
    (tmp_path / "train" / "cat" / "big.png").unlink()
    with pytest.raises(FileNotFoundError, match="no image"):
        image_folder.load(0, tmp_path)


@pytest.mark.parametrize("name", ["mnist", "svhn_cropped", "cifar10", "celeb_a"])
def test_prepared_tfds_sets_are_read_without_tensorflow(tmp_path, name, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    import sys

    from rknn_jax.data import tfds

    def record(i):
        label = (
            {"attributes": {"Male": bool(i % 2), "Young": True}}
            if name == "celeb_a"
            else {"label": i % 10}
        )
        return {"image": np.full((6, 5, 3), i, np.uint8)} | label

    sizes = {"train": 12, "test": 8} | ({"extra": 5} if name == "svhn_cropped" else {})
    tfds.prepare(
        name, tmp_path, {split: [record(i) for i in range(size)] for split, size in sizes.items()}
    )
    layout = tfds.LAYOUTS[name]
    small = dataclasses.replace(
        layout, num_test=layout.num_test and 3, num_public=layout.num_public and 4
    )
    monkeypatch.setitem(tfds.LAYOUTS, name, small)
    task = data.load(f"tfds:{name}", 0, tmp_path)
    sizes = [len(part) for part in (task.public_index, task.private_index, task.test_index)]
    assert (
        sizes
        == {
            "mnist": [4, 12, 4],
            "svhn_cropped": [5, 17, 3],
            "cifar10": [4, 8, 8],
            "celeb_a": [4, 12, 4],
        }[name]
    )
    assert task.public.images.shape[1:] == ((64, 64, 3) if name == "celeb_a" else (6, 5, 3))
    expected = task.private.images[:, 0, 0, 0] % (2 if name == "celeb_a" else 10)
    np.testing.assert_array_equal(task.private.labels, expected)  # each image kept its own label
    assert "tensorflow" not in sys.modules


def test_tfds_sets_that_are_not_prepared_say_how_to(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(
        FileNotFoundError, match="tfds build svhn_cropped --file_format=array_record"
    ):
        data.load("tfds:svhn_cropped", 0, tmp_path)
    with pytest.raises(ValueError, match="tfds:imagenet"):
        data.load("tfds:imagenet", 0, tmp_path)


@pytest.fixture
def real_mnist():
    folder = os.environ.get("RKNN_MNIST_DIR")
    if not folder:
        pytest.skip("set RKNN_MNIST_DIR to a folder of MNIST's idx files")
    return mnist.load(42, Path(folder))


@pytest.mark.slow
def test_real_mnist_has_the_papers_public_half_and_539_writers(real_mnist):
    order = np.arange(10_000)
    np.random.seed(42)  # noqa: NPY002
    np.random.shuffle(order)  # noqa: NPY002
    np.testing.assert_array_equal(real_mnist.public_index, 60_000 + order[:5000])
    assert len(real_mnist.private.labels) == 60_000
    counts = np.bincount(real_mnist.private.clients)
    assert (counts > 0).sum() == 539
    assert (counts[counts > 0].min(), counts.max()) == (19, 131)


@pytest.mark.slow
def test_the_votes_of_539_writers_add_up_to_the_votes_of_all_records(real_mnist):
    private = real_mnist.private
    near = private.images[:, 14, 14].astype(np.int32) % 40  # any record-local query
    cells = np.asarray(bsvs.cells(near, private.labels, 10))
    total = bsvs.sum_votes(cells, 400)
    by_writer = np.zeros((private.clients.max() + 1, 400), np.int64)
    np.add.at(by_writer, (private.clients, cells[:, 0]), 1)
    np.testing.assert_array_equal(by_writer.sum(0), total)

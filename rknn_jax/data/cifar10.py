"""CIFAR-10 as folders of images, `train/<class>/*` and `test/<class>/*`.

The data set has 50,000 + 10,000 photographs of 32x32 pixels in ten classes.

`cifar10` keeps the standard test set. 30,000 of the training images are public, 20,000 are private,
and the 10,000 test images test the student.

`cifar10:pooled` has the sizes of Li et al.: 30,000 public, 29,000 private, and 1,000 test images.
(Their code has 29,000 public and 30,000 private ones.) Like their code, it mixes all 60,000 images
first, so most of the 1,000 are training images of the standard split. The images differ from
theirs, because the files come in another order.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from rknn_jax.data import _pool, image_folder
from rknn_jax.types import Card, Task

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(seed: int, data_dir: Path | None = None, split: str = "standard") -> Task:
    """Read the images and split them.

    Args:
      seed: Seed of the split, 0 to 2^32 - 1.
      data_dir: Folder that holds `train` and `test`. With fewer images than CIFAR-10, the parts
        have the same shares, rounded down.
      split: `standard` or `pooled`. Defaults to `standard`.

    Raises:
      FileNotFoundError: If a folder is missing or holds no image.
      ValueError: For another split, and for other classes or images than CIFAR-10's.
    """
    if split not in ("standard", "pooled"):
        raise ValueError(f"Expected split to be standard or pooled, got dataset=cifar10:{split}.")
    folder = _pool.folder(data_dir, "cifar10")
    images, labels, num_train, classes = image_folder.read(folder)
    if classes != CLASSES or images.shape[1:] != (32, 32, 3):
        raise ValueError(
            f"Expected CIFAR-10's ten classes of 32x32 color images in data_dir={folder}, got "
            f"{classes} {images.shape[1:]}."
        )
    pool = num_train if split == "standard" else len(images)
    order = np.random.RandomState(seed).permutation(pool)
    public = pool * 3 // 5 if split == "standard" else pool // 2
    private = pool if split == "standard" else public + pool * 29 // 60
    test = np.arange(num_train, len(images)) if split == "standard" else order[private:]
    card = Card(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "not stated; by A. Krizhevsky, 2009",
        CLASSES,
    )
    return _pool.task(
        card, images, labels, public=order[:public], private=order[public:private], test=test
    )


def _example(folder: Path, seed: int, split: str) -> Task:
    """Write 70 synthetic images and load them."""
    random = np.random.RandomState(0)
    for part, count in (("train", 6), ("test", 1)):
        for name in CLASSES:
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                Image.fromarray(random.randint(0, 256, (32, 32, 3)).astype(np.uint8)).save(
                    folder / part / name / f"{i:04}.png"
                )
    return load(seed, folder, split)


def _standard(folder: Path, seed: int) -> Task:
    return _example(folder, seed, "standard")


def _pooled(folder: Path, seed: int) -> Task:
    return _example(folder, seed, "pooled")


EXAMPLES = (_standard, _pooled)

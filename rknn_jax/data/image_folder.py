"""Any folder of images: `train/<class>/*` and `test/<class>/*`, as JPEG or PNG.

The seed splits the training images into public and private ones. The test folder tests the student.
Classes are the folders' names in alphabetical order.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from rknn_jax._internal.cores import num_cores
from rknn_jax.data import _pool
from rknn_jax.images import files as image_files
from rknn_jax.types import Card, Task

SUFFIXES = (".jpg", ".jpeg", ".png")


def load(
    seed: int,
    data_dir: Path | None = None,
    *,
    num_public: int | None = None,
    num_private: int | None = None,
    size: int | None = None,
) -> Task:
    """Read the images and split the training ones.

    Args:
      seed: Seed of the split, 0 to 2^32 - 1.
      data_dir: Folder that holds `train` and `test`.
      num_public: Number of public images. Defaults to half of the training images.
      num_private: Number of private images. Defaults to the rest of the training images.
      size: Side in pixels to which all images are resized. Defaults to no resizing, for images of
        one size.

    Raises:
      FileNotFoundError: If a folder is missing or holds no image.
      ValueError: For an unreadable image, several sizes, or other classes in test than in train.
    """
    folder = _pool.folder(data_dir, "image_folder")
    images, labels, num_train, classes = read(folder, size)
    num_public = num_train // 2 if num_public is None else num_public
    num_private = num_train - num_public if num_private is None else num_private
    if num_public + num_private > num_train:
        raise ValueError(
            f"Expected num_public + num_private <= {num_train} training images, got {num_public} "
            f"+ {num_private}."
        )
    order = np.random.RandomState(seed).permutation(num_train)
    public = order[:num_public]
    private = order[num_public : num_public + num_private]
    card = Card(f"image_folder:{folder.name}", str(folder), "as the images' owner says", classes)
    return _pool.task(
        card, images, labels, public=public, private=private, test=np.arange(num_train, len(images))
    )


def read(
    folder: Path, size: int | None = None
) -> tuple[np.ndarray, np.ndarray, int, tuple[str, ...]]:
    """Return images, labels, the number of training images, and classes.

    Images are uint8 `[n, h, w, c]`, training images first. Raises as `load`.
    """
    classes = _classes(folder / "train")
    if _classes(folder / "test") != classes:
        raise ValueError(
            f"Expected the classes of {folder / 'train'} in {folder / 'test'} too, got "
            f"{_classes(folder / 'test')} for {classes}."
        )
    files = [
        (path, label)
        for part in ("train", "test")
        for label, name in enumerate(classes)
        for path in _files(folder / part / name)
    ]
    num_train = sum(path.parent.parent.name == "train" for path, _ in files)
    with ThreadPoolExecutor(num_cores()) as pool:
        images = list(pool.map(lambda file: _read(file[0], size), files))
        found = list(pool.map(image_files.largest, [path for path, _ in files]))
    deep = [pixel for one in found for pixel in one if pixel is not None]
    deepest = max(deep, default=image_files.WHITE)
    if deepest <= image_files.DARK:
        raise ValueError(
            f"Expected pixels of 16 bits up to {image_files.WHITE:,} in data_dir={folder}, got at "
            f"most {deepest:,}, which look black; save the images with 8 bits, scaled by one "
            "number."
        )
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise ValueError(
            f"Expected images of one size in data_dir={folder}, got {sorted(shapes)[:3]} and "
            "more; pass a size to resize to."
        )
    return np.stack(images), np.array([label for _, label in files]), num_train, tuple(classes)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {folder}; expected train/<class>/*.jpg and test/<class>/*.jpg "
            "under data_dir."
        )
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not files:
        raise FileNotFoundError(
            f"There is no image in {folder}; expected files ending in {', '.join(SUFFIXES)}."
        )
    return files


def _read(path: Path, size: int | None) -> np.ndarray:
    try:
        image = image_files.read(path)
        image = image if size is None else image.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    except Exception as error:  # a damaged file can raise many kinds of errors
        raise ValueError(f"Cannot read the image {path}: {error}; repair or remove it.") from error
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _example(folder: Path, seed: int) -> Task:
    """Write 24 synthetic color images of two classes and load them."""
    random = np.random.RandomState(0)
    for part, count in (("train", 9), ("test", 3)):
        for name in ("cat", "dog"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                Image.fromarray(random.randint(0, 256, (6, 5, 3)).astype(np.uint8)).save(
                    folder / part / name / f"{i:04}.png"
                )
    return load(seed, folder)


EXAMPLES = (_example,)

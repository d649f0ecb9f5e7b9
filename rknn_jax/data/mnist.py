"""MNIST from a folder of idx files, with digits' writers if QMNIST's writer files are there.

The 60,000 training images are private. `RandomState(seed).permutation` splits the 10,000 test
images: the first 5,000 are public, and the other 5,000 test the student. At seed 42 the public half
is that of Li et al., "Fine-grained Private Knowledge Distillation". Their code then shuffles again,
so that 2,517 of its test images are also public. Here no image is in both parts.

`mnist:half` has more public records, for thousands of bought labels.
`RandomState(seed).permutation` splits the training images into a public and a private half. All
10,000 test images test the student.

`mnist:train` has no test images at all: a twelfth of the training images is public, a twelfth tests
the student, and the others are private. Settings that were chosen on the standard split have never
met these public and test images.
"""

from pathlib import Path

import numpy as np

from rknn_jax.data import _idx, _pool
from rknn_jax.types import Card, Task

CARD = Card(
    "mnist",
    "LeCun, Cortes & Burges, from NIST Special Databases 1 and 3; writers: Yadav & Bottou, "
    "QMNIST, 2019",
    "CC BY-SA 3.0; writers BSD",
    tuple("0123456789"),
)


def load(seed: int, data_dir: Path | None = None, split: str = "standard") -> Task:
    """Return the task; the module docstring states the splits.

    Args:
      seed: Seed of the split, 0 to 2^32 - 1.
      data_dir: Folder that holds `{train,t10k}-images-idx3-ubyte` and
        `{train,t10k}-labels-idx1-ubyte`, and for clients `{train,t10k}-writers-idx1-int`, each
        plain or .gz.
      split: `standard`, `half` or `train`. Defaults to `standard`.

    Raises:
      FileNotFoundError: If a folder or a file is missing.
      ValueError: For another split, and for damaged files.
    """
    if split not in ("standard", "half", "train"):
        raise ValueError(
            f"Expected split to be standard, half or train, got dataset=mnist:{split}."
        )
    folder = _pool.folder(data_dir, "mnist")
    parts = [_read(folder, part) for part in ("train", "t10k")]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    num_train = len(parts[0][0])
    random = np.random.RandomState(seed)
    first = np.arange(num_train)
    rest = np.arange(num_train, len(images))
    cut = random.permutation(rest if split == "standard" else first)
    if split == "train":
        public, test, private = np.split(cut, [num_train // 12, num_train // 6])
    else:
        public, other = np.split(cut, [len(cut) // 2])
        private, test = (first, other) if split == "standard" else (other, rest)
    return _pool.task(
        CARD,
        images,
        labels,
        public=public,
        private=private,
        test=test,
        clients=_writers(folder, len(images)),
    )


def _read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images = _idx.read(folder, f"{part}-images-idx3-ubyte")
    labels = _idx.read(folder, f"{part}-labels-idx1-ubyte")
    if images.ndim != 3 or images.dtype != np.uint8 or len(images) != len(labels):
        raise ValueError(
            f"Expected uint8 {part} images [n, h, w] and n labels in data_dir={folder}, got "
            f"{images.dtype} {images.shape} and "
            f"{len(labels)} labels; fetch the files again."
        )
    return images[..., None], labels


def _writers(folder: Path, num_images: int) -> np.ndarray | None:
    try:
        writers = np.concatenate(
            [_idx.read(folder, f"{part}-writers-idx1-int") for part in ("train", "t10k")]
        )
    except FileNotFoundError:
        return None
    if writers.shape != (num_images,):
        raise ValueError(
            f"Expected {num_images} writers in data_dir={folder}, got shape {writers.shape}; "
            "fetch the files again."
        )
    return writers


def _example(folder: Path, seed: int, split: str = "standard") -> Task:
    """Write 50 synthetic digits of 6x5 pixels as MNIST's files and load them."""
    random = np.random.RandomState(0)
    for part, count, suffix in (("train", 30, ""), ("t10k", 20, ".gz")):
        _idx.write(
            folder / f"{part}-images-idx3-ubyte{suffix}",
            random.randint(0, 256, (count, 6, 5)).astype(np.uint8),
        )
        _idx.write(
            folder / f"{part}-labels-idx1-ubyte{suffix}",
            random.randint(0, 10, count).astype(np.uint8),
        )
        _idx.write(
            folder / f"{part}-writers-idx1-int{suffix}",
            random.randint(0, 4, count).astype(np.int32),
        )
    return load(seed, folder, split)


def _half(folder: Path, seed: int) -> Task:
    return _example(folder, seed, "half")


def _train(folder: Path, seed: int) -> Task:
    return _example(folder, seed, "train")


EXAMPLES = (_example, _half, _train)

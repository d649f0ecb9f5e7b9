"""Handwritten digits of scikit-learn: 1,797 images of 8x8 pixels.

The data need no download and serve the demo and the tests.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from rknn_jax.data import _pool
from rknn_jax.types import Card, Task

CARD = Card(
    "digits",
    "Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998, test part, as "
    "shipped with scikit-learn",
    "CC BY 4.0",
    tuple("0123456789"),
)
NUM_PRIVATE = 1000
NUM_PUBLIC = 500


def load(seed: int, data_dir: Path | None = None) -> Task:
    """Return 1,000 private, 500 public, and 297 test records.

    The split is a permutation of `seed`; `data_dir` is not needed.
    """
    del data_dir
    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)[..., None]
    order = np.random.RandomState(seed).permutation(len(images))
    private, public, test = np.split(order, [NUM_PRIVATE, NUM_PRIVATE + NUM_PUBLIC])
    return _pool.task(CARD, images, data.target, public=public, private=private, test=test)


def _example(folder: Path, seed: int) -> Task:
    del folder
    return load(seed)


EXAMPLES = (_example,)

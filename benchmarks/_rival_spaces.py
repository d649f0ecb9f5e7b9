"""Data sets of `benchmarks.rivals`: from pure public clusters to impure ones.

MNIST's rows are training images (`mnist:train`). Those of CIFAR-10 are in the file that
`_decoding_cases` describes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.decomposition import PCA

from benchmarks import _decoding_cases as cases
from benchmarks._decoding_cases import Sides
from benchmarks._measure import mnist_folder
from rknn_jax import data
from rknn_jax.representations import spectral

NUM_PUBLIC = 5000
SIZES = (1000, 40_000)
"""Numbers of private records."""


class Space(NamedTuple):
    """Data set in one representation.

    Attributes:
      make: Function from the seed of a split to its rows.
      file: Name in `_decoding_cases.FILES` of the file that it needs. Defaults to none.
    """

    make: Callable[[int], Sides]
    file: str | None = None


@functools.lru_cache(1)
def digits(seed: int) -> Any:
    """Return MNIST's training images, cut into public and private ones."""
    return data.load("mnist:train", seed, mnist_folder())


def spectral_digits(seed: int) -> Sides:
    """Return MNIST in the spectral coordinates of its public images."""
    task = digits(seed)
    encode = spectral.fit(jax.random.key(seed), task.public.images)
    return _sides(task, encode(task.public.images), encode(task.private.images))


def components(seed: int) -> Sides:
    """Return MNIST in 50 principal components of its public images."""
    task = digits(seed)
    public, private = (
        images.reshape(len(images), -1) / np.float32(255)
        for images in (task.public.images, task.private.images)
    )
    encoder = PCA(50, random_state=seed).fit(public)
    return _sides(task, encoder.transform(public), encoder.transform(private))


def _sides(task: Any, public: Any, private: Any) -> Sides:
    return Sides(
        np.asarray(public, np.float32),
        np.asarray(task.public.true_labels, int),
        np.asarray(private, np.float32),
        np.asarray(task.private.labels, int),
    )


WIDE = "CIFAR-10, ImageNet features"
SPACES = {
    "MNIST, spectral": Space(spectral_digits),
    "MNIST, 50 components": Space(components),
    WIDE: Space(functools.partial(cases.file, "cifar10", NUM_PUBLIC, max(SIZES)), "cifar10"),
}

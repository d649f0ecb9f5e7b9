"""Data sets of `benchmarks.decoding`: public and private rows, with their classes.

A split is a permutation by its seed, so public and private rows are different records. MNIST is
taken in 50 principal components of its public rows, with at most 4,000 public and 20,000 private
rows, or in the spectral coordinates of all 5,000 public images, with all private ones.

Two data sets are files: `.npz` with `features`, `[n, f]`, and `labels`, `[n]`, which the variables
of `FILES` name. A file that is not there is skipped, and the program says so.

- CIFAR-10 on ImageNet features, all 60,000 images.
- Text: descriptions of 9,500 Debian packages and the section of each, one of the ten most frequent.

`benchmarks.features` makes both. Results of before 2026-11-28 are of 12,000 of CIFAR-10's training
images, and of other packages.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_sample_images, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from benchmarks._measure import mnist_folder
from rknn_jax import data
from rknn_jax.types import Task
from train import stages
from train.experiment import Experiment

FILES = {"cifar10": "RKNN_CIFAR10_FEATURES", "text": "RKNN_TEXT_FEATURES"}
"""Variables that name the files of features."""

NO_CLASS = -1
"""Class of a public row that has none."""

RARE = 3
"""The digit that is rare."""

TAIL = 100.0 ** (-np.arange(10) / 9)
"""Kept part of each digit, evenly from all to a hundredth on a log scale."""

SIDE = 28


class Sides(NamedTuple):
    """Public and private rows, float32 `[m, f]` and `[n, f]`, with their classes."""

    public: np.ndarray
    truth: np.ndarray
    private: np.ndarray
    labels: np.ndarray


class Case(NamedTuple):
    """Data set and number of queries.

    Attributes:
      make: Function from the seed of a split to its rows.
      num_queries: Number of queries s.
      file: Name in `FILES` of the file that it needs. Defaults to none.
    """

    make: Callable[[int], Sides]
    num_queries: int
    file: str | None = None

    def missing(self) -> str | None:
        """Return the reason to skip the case, or None."""
        if self.file is None or Path(os.environ.get(FILES[self.file], "")).is_file():
            return None
        return f"{FILES[self.file]} does not name a file"


def table(load: Any, num_public: int, seed: int, *, scaled: bool = True) -> Sides:
    """Return a table of scikit-learn, standardized on its public rows or as it is."""
    rows, classes = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(rows))
    public, private = order[:num_public], order[num_public:]
    if scaled:
        rows = StandardScaler().fit(rows[public]).transform(rows)
    rows = rows.astype(np.float32)
    return Sides(rows[public], classes[public], rows[private], classes[private])


@functools.lru_cache(1)
def digits(seed: int) -> Task:
    """Return MNIST by its seed."""
    return data.load("mnist", seed, mnist_folder())


def kept(labels: np.ndarray, parts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return which rows to keep, bool `[n]`, such that each class keeps its part."""
    chosen: np.ndarray = rng.random(len(labels)) < parts[labels]
    return chosen


def parts_of(rare: float) -> np.ndarray:
    """Return the kept part of each digit if one is rare."""
    return np.where(np.arange(10) == RARE, rare, 1.0)


def components(
    seed: int,
    *,
    num_public: int = 4000,
    num_private: int = 20_000,
    of_public: np.ndarray | None = None,
    of_private: np.ndarray | None = None,
    junk: bool = False,
) -> Sides:
    """Return MNIST in 50 principal components of its public rows.

    Args:
      seed: Seed of the split.
      num_public: Number of public rows, before some are left out.
      num_private: Number of private rows, before some are left out.
      of_public: Part of the public rows that each digit keeps. Defaults to all.
      of_private: Part of the private rows that each digit keeps. Defaults to all.
      junk: Whether a quarter of the public rows are patches of photographs. Defaults to no.
    """
    task, rng = digits(seed), np.random.default_rng(seed)
    public = rng.permutation(len(task.public.images))[:num_public]
    private = rng.permutation(len(task.private.images))[:num_private]
    if of_private is not None:
        private = private[kept(task.private.labels[private], of_private, rng)]
    if of_public is not None:
        public = public[kept(task.public.true_labels[public], of_public, rng)]
    rows = _flat(task.public.images[public])
    truth = np.asarray(task.public.true_labels[public], int)
    if junk:
        rows = np.concatenate([rows, photographs(len(rows) // 3, rng)])
        truth = np.concatenate([truth, np.full(len(rows) - len(truth), NO_CLASS)])
    encoder = PCA(50, random_state=seed).fit(rows)
    return Sides(
        encoder.transform(rows).astype(np.float32),
        truth,
        encoder.transform(_flat(task.private.images[private])).astype(np.float32),
        np.asarray(task.private.labels[private], int),
    )


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1) / np.float32(255)


def photographs(num_patches: int, rng: np.random.Generator) -> np.ndarray:
    """Return grey patches of scikit-learn's two photographs, as flat as MNIST's images.

    Every first, second or fourth pixel is taken, so that the patches have details of three sizes.
    """
    grey = [image.mean(axis=2) / 255 for image in load_sample_images().images]
    patches = []
    for _ in range(num_patches):
        image, step = grey[rng.integers(len(grey))], 2 ** rng.integers(3)
        top, left = (rng.integers(side - step * SIDE) for side in image.shape)
        patch = image[top : top + step * SIDE : step, left : left + step * SIDE : step]
        patches.append(patch.ravel())
    return np.array(patches, np.float32)


def one_digit(seed: int) -> Sides:
    """Return MNIST with one digit, at 1% on both sides, against the rest."""
    sides = components(seed, of_public=parts_of(0.1), of_private=parts_of(0.1))
    return sides._replace(
        truth=(sides.truth == RARE).astype(int), labels=(sides.labels == RARE).astype(int)
    )


def odd_or_even(seed: int) -> Sides:
    """Return MNIST with its digits modulo 2 as classes."""
    sides = components(seed)
    return sides._replace(truth=sides.truth % 2, labels=sides.labels % 2)


@functools.lru_cache(1)
def all_spectral(seed: int) -> Sides:
    """Return all of MNIST in the spectral coordinates of its public images."""
    experiment = replace(Experiment(dataset="mnist", data_dir=mnist_folder()), seed=seed)
    task, encode, _ = stages.prepare(experiment)
    return Sides(
        np.asarray(encode(task.public.images)),
        np.asarray(task.public.true_labels, int),
        np.asarray(encode(task.private.images)),
        np.asarray(task.private.labels, int),
    )


def spectral(seed: int, of_private: np.ndarray | None = None) -> Sides:
    """Return MNIST in spectral coordinates, whose private digits keep these parts."""
    sides = all_spectral(seed)
    if of_private is None:
        return sides
    chosen = kept(sides.labels, of_private, np.random.default_rng(seed))
    return sides._replace(private=sides.private[chosen], labels=sides.labels[chosen])


def directions(seed: int) -> Sides:
    """Return 25 clusters in 30 dimensions, with 5 classes that are linear directions across them.

    A row's class is the greatest of 5 random linear functions, with a little Gumbel noise.
    """
    rng = np.random.default_rng(seed)
    centers = 2 * rng.normal(size=(25, 30))
    rows = centers[rng.integers(25, size=18_000)] + rng.normal(size=(18_000, 30))
    scores = rows @ rng.normal(size=(30, 5)) + 0.3 * rng.gumbel(size=(18_000, 5))
    rows, labels = rows.astype(np.float32), scores.argmax(axis=1)
    return Sides(rows[:3000], labels[:3000], rows[3000:], labels[3000:])


def file(name: str, num_public: int, num_private: int, seed: int) -> Sides:
    """Return a split of a file of features."""
    with np.load(os.environ[FILES[name]]) as saved:
        rows, labels = np.asarray(saved["features"], np.float32), saved["labels"].astype(int)
    order = np.random.default_rng(seed).permutation(len(rows))
    public, private = order[:num_public], order[num_public : num_public + num_private]
    return Sides(rows[public], labels[public], rows[private], labels[private])


digits_table = functools.partial(table, load_digits, 500)
wine = functools.partial(table, load_wine, 60)
breast_cancer = functools.partial(table, load_breast_cancer, 200)
rare = functools.partial(components, of_private=parts_of(0.01))
tail = functools.partial(components, of_private=TAIL)
cifar10 = functools.partial(file, "cifar10", 1800, 3400)
text = functools.partial(file, "text", 3000, 5000)

CASES = {
    "digits": Case(digits_table, 33),
    "digits, 80 queries": Case(digits_table, 80),
    "wine": Case(wine, 9),
    "wine, 3 queries": Case(wine, 3),
    "breast cancer": Case(breast_cancer, 8),
    "breast cancer, not scaled": Case(functools.partial(breast_cancer, scaled=False), 8),
    "MNIST": Case(components, 40),
    "MNIST, 200 queries": Case(components, 200),
    "MNIST, 8 queries": Case(components, 8),
    "MNIST, odd or even": Case(odd_or_even, 40),
    "MNIST, 100 public images": Case(functools.partial(components, num_public=100), 40),
    "MNIST, 600 records": Case(functools.partial(components, num_private=600), 40),
    "MNIST, 600 records, 10 queries": Case(functools.partial(components, num_private=600), 10),
    "MNIST, 25% junk": Case(functools.partial(components, junk=True), 40),
    "MNIST, class 3 at 1%": Case(rare, 40),
    "MNIST, private long tail": Case(tail, 40),
    "MNIST, private long tail, 200 queries": Case(tail, 200),
    "MNIST, both long tail": Case(functools.partial(tail, of_public=TAIL), 40),
    "MNIST, one digit at 1%": Case(one_digit, 40),
    "spectral": Case(spectral, 10),
    "spectral, 40 queries": Case(spectral, 40),
    "spectral, class 3 at 1%": Case(functools.partial(spectral, of_private=parts_of(0.01)), 10),
    "spectral, class 3 at 1%, 40 queries": Case(
        functools.partial(spectral, of_private=parts_of(0.01)), 40
    ),
    "spectral, private long tail": Case(functools.partial(spectral, of_private=TAIL), 10),
    "spectral, private long tail, 40 queries": Case(
        functools.partial(spectral, of_private=TAIL), 40
    ),
    "linear directions": Case(directions, 50),
    "CIFAR-10": Case(cifar10, 50, "cifar10"),
    "CIFAR-10, 200 queries": Case(cifar10, 200, "cifar10"),
    "text": Case(text, 33, "text"),
    "text, 150 queries": Case(text, 150, "text"),
}

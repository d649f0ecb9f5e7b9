"""Data sets of `benchmarks.measured`: public and private rows of six kinds, with their classes.

Half of them were looked at while checks were developed (`LOOKED_AT`); the rest were measured once.

- Images: MNIST in 50 principal components of its public rows, as it is, with private images that
  are rotated and dilated, with a private long tail, and as odd or even; CIFAR-10 in 64 components
  of HOG, from JPEG files that `RKNN_CIFAR10_DIR` names (`train/<class>/*.jpg`).
- Tables: scikit-learn's digits and breast cancer; a table with a class of 3%.
- Text: descriptions of Debian packages and their section, from `apt-cache dumpavail`, in 128
  singular directions of the public rows' TF-IDF; ten sections, and two.
- Signals: sine waves of six shapes with noise and a random phase, by their spectra.
- Many classes: 100 clusters of one class each.
- Made up: clusters as they are, with other class shares, and moved; classes that overlap with wrong
  private labels; directions with lengths; linear classes across clusters; an open set, where half
  of the public rows are of classes that nobody has.
"""

import functools
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import scipy.ndimage
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks import _decoding_cases as decoding
from benchmarks._decoding_cases import Sides
from rknn_jax.representations import hog


class Case(NamedTuple):
    """Data set.

    Attributes:
      kind: Kind of the data.
      make: Function from the seed of a split to its rows.
      shifted: True if private features or class shares differ from the public ones, so that
        agreement is not the share of public rows that are right.
      wrong: True if private labels are wrong for some records.
    """

    kind: str
    make: Callable[[int], Sides]
    shifted: bool = False
    wrong: bool = False


def _sides(rows: np.ndarray, classes: np.ndarray, num_public: int) -> Sides:
    rows = np.asarray(rows, np.float32)
    return Sides(rows[:num_public], classes[:num_public], rows[num_public:], classes[num_public:])


def rotated(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images that are rotated by 25 to 35 degrees, dilated, and moved by two pixels."""
    parts = []
    for first in range(0, len(images), 500):
        angle = float(rng.choice([25, 30, 35]))
        turned = scipy.ndimage.rotate(
            images[first : first + 500], angle, axes=(1, 2), reshape=False, order=1
        )
        thick = scipy.ndimage.grey_dilation(turned, size=(1, 2, 2))
        parts.append(np.roll(thick, 2, axis=2))
    return np.concatenate(parts)


def mnist(seed: int, variant: str = "plain") -> Sides:
    """Return 1,500 public and 6,000 private digits."""
    task, rng = decoding.digits(seed), np.random.default_rng(seed)
    public = rng.permutation(len(task.public.images))[:1500]
    private = rng.permutation(len(task.private.images))
    labels = np.asarray(task.private.labels, int)
    if variant == "tail":
        private = private[decoding.kept(labels[private], decoding.TAIL, rng)]
    private = private[:6000]
    of_public = np.asarray(task.public.images[public]).reshape(-1, 28, 28)
    of_private = np.asarray(task.private.images[private]).reshape(-1, 28, 28)
    if variant == "rotated":
        of_private = rotated(of_private, rng)
    truth, labels = np.asarray(task.public.true_labels[public], int), labels[private]
    if variant == "odd or even":
        truth, labels = truth % 2, labels % 2
    encoder = PCA(50, random_state=0).fit(of_public.reshape(len(public), -1))
    rows = [
        encoder.transform(one.reshape(len(one), -1)).astype(np.float32)
        for one in (of_public, of_private)
    ]
    return Sides(rows[0], truth, rows[1], labels)


def cifar10(seed: int) -> Sides:
    """Return 2,000 public and 10,000 private pictures."""
    folder = Path(os.environ["RKNN_CIFAR10_DIR"]) / "train"
    names = sorted(path.name for path in folder.iterdir())
    rng = np.random.default_rng(seed)
    files = [(path, number) for number, name in enumerate(names) for path in _files(folder / name)]
    chosen = rng.permutation(len(files))[:12_000]
    images = np.stack([np.asarray(Image.open(files[i][0]).convert("RGB")) for i in chosen])
    described = np.asarray(hog.fit(jax.random.key(0), images[:2000])(images))
    encoder = PCA(64, random_state=0).fit(described[:2000])
    classes = np.array([files[i][1] for i in chosen])
    return _sides(encoder.transform(described), classes, 2000)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jpg"))[:1500]


@functools.lru_cache(1)
def _packages() -> tuple[list[str], np.ndarray]:
    """Return the descriptions of Debian packages, and their sections."""
    listed = subprocess.run(
        ["apt-cache", "dumpavail"], check=True, capture_output=True, text=True, errors="replace"
    ).stdout
    texts, sections = [], []
    for one in listed.split("\n\n"):
        section = re.search(r"^Section: (\S+)", one, re.MULTILINE)
        text = re.search(r"^Description: (.+)", one, re.MULTILINE)
        if section and text:
            texts.append(text.group(1))
            sections.append(section.group(1).rpartition("/")[2])
    return texts, np.array(sections)


def packages_of(num_classes: int) -> tuple[list[str], np.ndarray]:
    """Return the packages of the most frequent sections: descriptions and numbers of sections."""
    texts, sections = _packages()
    names, counts = np.unique(sections, return_counts=True)
    names = names[np.argsort(-counts)][:num_classes]
    known = np.flatnonzero(np.isin(sections, names))
    numbers = {name: number for number, name in enumerate(names)}
    return [texts[i] for i in known], np.array([numbers[sections[i]] for i in known])


def packages(seed: int, num_classes: int = 10) -> Sides:
    """Return 2,000 public and 8,000 private packages of the most frequent sections."""
    texts, sections = packages_of(num_classes)
    chosen = np.random.default_rng(seed).permutation(len(texts))[:10_000]
    chosen_texts = [texts[i] for i in chosen]
    words = TfidfVectorizer(sublinear_tf=True, min_df=2).fit(chosen_texts[:2000])
    counted = words.transform(chosen_texts)
    encoder = TruncatedSVD(128, random_state=0).fit(counted[:2000])
    return _sides(encoder.transform(counted), sections[chosen], 2000)


def table(load: Callable[..., tuple[np.ndarray, np.ndarray]], num_public: int, seed: int) -> Sides:
    """Return a table of scikit-learn, scaled by its public rows."""
    rows, classes = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(rows))
    rows, classes = rows[order], classes[order]
    scale = rows[:num_public].std(axis=0) + 1e-9
    return _sides((rows - rows[:num_public].mean(axis=0)) / scale, classes, num_public)


def rare_class(seed: int) -> Sides:
    """Return a table of 12 columns whose class 1 has 3% of the rows."""
    rng = np.random.default_rng(seed)
    classes = (rng.random(14_000) < 0.03).astype(int)
    rows = rng.normal(size=(14_000, 12)) + 1.4 * classes[:, None] * np.linspace(0, 1, 12)
    return _sides(rows, classes, 2000)


def signals(seed: int) -> Sides:
    """Return spectra of waves of six shapes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 6, 9000)
    time = np.linspace(0, 1, 128)
    phase = rng.random((9000, 1))
    pitch = 6 + classes[:, None] // 2 + rng.normal(size=(9000, 1)) * 0.3
    wave = np.sin(2 * np.pi * (pitch * time + phase))
    square = np.where(classes[:, None] % 2, np.sign(wave), wave)
    heard = square + 1.2 * rng.normal(size=square.shape)
    return _sides(np.log1p(np.abs(np.fft.rfft(heard, axis=1)))[:, :48], classes, 1500)


def hundred(seed: int) -> Sides:
    """Return 100 clusters, a class each."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(100, 32))
    classes = rng.integers(0, 100, 24_000)
    return _sides(centers[classes] + 0.55 * rng.normal(size=(24_000, 32)), classes, 4000)


def clusters(seed: int, variant: str = "plain") -> Sides:
    """Return eight overlapping clusters; private ones may have other shares, or be moved."""
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(8, 32)) / np.sqrt(32)
    shares = rng.dirichlet(np.full(8, 0.7)) if variant == "shares" else np.full(8, 1 / 8)
    truth, labels = rng.integers(0, 8, 2000), rng.choice(8, 8000, p=shares)
    public = centers[truth] + rng.normal(size=(2000, 32))
    private = centers[labels] + rng.normal(size=(8000, 32))
    if variant == "moved":
        private += 0.6 * rng.normal(size=32)
    return Sides(public.astype(np.float32), truth, private.astype(np.float32), labels)


def wrong_labels(seed: int) -> Sides:
    """Return 20 overlapping classes, where a quarter of the private labels is any class."""
    rng = np.random.default_rng(seed)
    centers = 0.45 * rng.normal(size=(20, 48))
    classes = rng.integers(0, 20, 10_000)
    rows = (centers[classes] + 0.9 * rng.normal(size=(10_000, 48))).astype(np.float32)
    seen = classes[2000:].copy()
    wrong = rng.random(8000) < 0.25
    seen[wrong] = rng.integers(0, 20, wrong.sum())
    return Sides(rows[:2000], classes[:2000], rows[2000:], seen)


def lengths(seed: int) -> Sides:
    """Return 12 directions with lengths that have a lognormal law."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(12, 96))
    centers /= np.linalg.norm(centers, axis=1)[:, None]
    classes = rng.integers(0, 12, 15_000)
    rows = centers[classes] + 0.17 * rng.normal(size=(15_000, 96))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    return _sides(rows * np.exp(1.2 * rng.normal(size=15_000))[:, None], classes, 3000)


def open_set(seed: int) -> Sides:
    """Return ten clusters, and as many public rows of ten others, which have no class."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(20, 24))
    truth, labels = rng.integers(0, 20, 3000), rng.integers(0, 10, 12_000)
    public = centers[truth] + 0.6 * rng.normal(size=(3000, 24))
    private = centers[labels] + 0.6 * rng.normal(size=(12_000, 24))
    truth = np.where(truth < 10, truth, -1)
    return Sides(public.astype(np.float32), truth, private.astype(np.float32), labels)


def linear(seed: int) -> Sides:
    """Return five classes that are linear directions across 25 clusters."""
    return decoding.directions(seed)


CASES = {
    "MNIST": Case("images", mnist),
    "MNIST, private rotated": Case(
        "images", functools.partial(mnist, variant="rotated"), shifted=True
    ),
    "MNIST, private long tail": Case(
        "images", functools.partial(mnist, variant="tail"), shifted=True
    ),
    "MNIST, odd or even": Case("images", functools.partial(mnist, variant="odd or even")),
    "CIFAR-10, HOG": Case("images", cifar10),
    "digits": Case("tables", functools.partial(table, load_digits, 400)),
    "breast cancer": Case("tables", functools.partial(table, load_breast_cancer, 169)),
    "a class of 3%": Case("tables", rare_class),
    "packages, 10 sections": Case("text", packages),
    "packages, 2 sections": Case("text", functools.partial(packages, num_classes=2)),
    "waves": Case("signals", signals),
    "100 classes": Case("many classes", hundred),
    "clusters": Case("made up", clusters),
    "clusters, other shares": Case(
        "made up", functools.partial(clusters, variant="shares"), shifted=True
    ),
    "clusters, moved": Case("made up", functools.partial(clusters, variant="moved"), shifted=True),
    "wrong labels": Case("made up", wrong_labels, wrong=True),
    "lengths": Case("made up", lengths),
    "open set": Case("made up", open_set, shifted=True),
    "linear": Case("made up", linear),
}

LOOKED_AT = (
    "MNIST",
    "MNIST, private rotated",
    "MNIST, private long tail",
    "clusters",
    "clusters, other shares",
    "clusters, moved",
)
"""Data sets on which the rules were developed, on splits 0 to 2.

The lead of the usual labeling was set after a first run on the first eleven of all. Nothing else
was set in view of the others.
"""

"""Right public labels if the private records come from elsewhere, and what helps.

Digits of MNIST: 1,500 public rows as they are, and 6,000 private records that differ from them in
one way. Each is released at the same epsilon as it is, and with each of five remedies, four of
which are free: features that a shift moves less (HOG), two rounds, public copies that are turned
and thickened as private images may be, and both of HOG and copies. Records that check cost votes,
choose among labelings, and measure what labels are worth. Remedies know nothing of the shift:
copies are turned by up to 45 degrees whether private images are or not. Labels of copies do not
count. Three splits, none of which was looked at before.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.ndimage
from sklearn.decomposition import PCA

from benchmarks import _kept
from benchmarks._decoding_cases import Sides
from benchmarks._measure import mnist_folder, save
from benchmarks.measured import Nobody, plan_of, right
from benchmarks.rounds import released
from rknn_jax.data import _idx
from rknn_jax.release import label
from rknn_jax.representations import hog

SEEDS = (200, 201, 202)
EPSILONS = (1.0, 3.0)
NUM_PUBLIC = 1500
NUM_PRIVATE = 6000
COPIES = 2
LARGEST_ANGLE = 45.0
COMPONENTS = 50

Change = Callable[[np.ndarray], np.ndarray]


def turned(images: np.ndarray, angle: float) -> np.ndarray:
    """Return images `[n, 28, 28]` that are rotated by an angle in degrees."""
    return scipy.ndimage.rotate(images, angle, axes=(1, 2), reshape=False, order=1)


def thick(images: np.ndarray) -> np.ndarray:
    """Return images with strokes that are a pixel wider."""
    return scipy.ndimage.grey_dilation(images, size=(1, 2, 2))


def noisy(images: np.ndarray) -> np.ndarray:
    """Return images with Gaussian noise of a quarter of the range."""
    rng = np.random.default_rng(0)
    return np.clip(images + rng.normal(0, 64, images.shape), 0, 255).astype(np.uint8)


def first_half(images: np.ndarray, change: Change) -> np.ndarray:
    """Return images of two sites, of which the first one's are changed."""
    half = len(images) // 2
    return np.concatenate([change(images[:half]), images[half:]])


SHIFTS: dict[str, Change] = {
    "as public": lambda images: images,
    "other writers": lambda images: images,
    "sixty writers": lambda images: images,
    "three classes missing": lambda images: images,
    "turned by 15°": lambda images: turned(images, 15),
    "turned by 30°": lambda images: turned(images, 30),
    "turned by 45°": lambda images: turned(images, 45),
    "thicker": thick,
    "noisy": noisy,
    "one of two sites turned by 30°": lambda images: first_half(images, lambda x: turned(x, 30)),
    "one of two sites noisy": lambda images: first_half(images, noisy),
}
"""What happens to private images, in the order of the table."""


def digits(name: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return public images and classes, then private ones, of one split."""
    folder = mnist_folder()
    images, labels, writers = (
        _idx.read(folder, f"train-{part}")
        for part in ("images-idx3-ubyte", "labels-idx1-ubyte", "writers-idx1-int")
    )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    public, private = order[:NUM_PUBLIC], order[NUM_PUBLIC:]
    people = rng.permutation(np.unique(writers))
    if name == "other writers":
        of_public = np.isin(writers[order], people[: len(people) // 2])
        public, private = order[of_public][:NUM_PUBLIC], order[~of_public]
    elif name == "sixty writers":
        private = private[np.isin(writers[private], people[:60])]
    elif name == "three classes missing":
        private = private[labels[private] < 7]
    private = private[:NUM_PRIVATE]
    changed = SHIFTS[name](images[private])
    return images[public], labels[public].astype(int), changed, labels[private].astype(int)


def copies(images: np.ndarray, seed: int) -> np.ndarray:
    """Return copies of public images, each turned by any angle, and every other one thicker."""
    rng = np.random.default_rng(seed)
    made = np.repeat(images, COPIES, axis=0)
    angles = rng.uniform(-LARGEST_ANGLE, LARGEST_ANGLE, len(made))
    for i, angle in enumerate(angles):
        made[i] = scipy.ndimage.rotate(made[i], angle, reshape=False, order=1)
    made[::2] = thick(made[::2])
    return made


def described(images: np.ndarray, features: str) -> np.ndarray:
    """Return features `[n, d]` of images: pixels, or HOG."""
    if features == "pixels":
        return images.reshape(len(images), -1).astype(np.float32)
    encoder = hog.fit(jax.random.key(0), images[..., None])
    return np.asarray(encoder(images[..., None]))


def sides_of(name: str, seed: int, features: str, *, with_copies: bool) -> Sides:
    """Return the rows of a split in components of all its public rows."""
    public, truth, private, labels = digits(name, seed)
    if with_copies:
        more = copies(public, seed)
        public = np.concatenate([public, more])
        truth = np.concatenate([truth, np.full(len(more), -1)])
    of_public, of_private = (described(images, features) for images in (public, private))
    encoder = PCA(COMPONENTS, random_state=0).fit(of_public)
    rows = [encoder.transform(one).astype(np.float32) for one in (of_public, of_private)]
    return Sides(rows[0], truth, rows[1], labels)


def checked(sides: Sides, epsilon: float) -> float:
    """Return the right labels of a release some of whose records check, and choose among labelings.

    All records vote where too few could check.
    """
    plan = plan_of(sides, epsilon, None)
    counted = label.count(plan)
    drawn = plan.question.draw(counted.counts, counted.units, Nobody(), "")
    if plan.checkers is None or counted.checks is None:
        return right(plan.question.read(drawn).probabilities, sides)
    labelings = plan.question.labelings(drawn)
    found = plan.checkers.draw(counted.checks, labelings)
    return right(labelings[found.choice].probabilities, sides)


def remedies(name: str, seed: int, epsilon: float) -> dict[str, float]:
    """Return the right labels of one split at one epsilon, as it is and with each remedy."""
    make = functools.partial(sides_of, name, seed)
    plain = make("pixels", with_copies=False)
    return {
        "as it is": released(plain, epsilon, 1),
        "records that check": checked(plain, epsilon),
        "two rounds": released(plain, epsilon, 2),
        "HOG": released(make("hog", with_copies=False), epsilon, 1),
        "public copies": released(make("pixels", with_copies=True), epsilon, 1),
        "HOG, public copies": released(make("hog", with_copies=True), epsilon, 1),
    }


def cell(name: str, seed: int) -> dict[str, Any]:
    """Return the right labels of one split."""
    found = {f"{epsilon:g}": remedies(name, seed, epsilon) for epsilon in EPSILONS}
    print(name, seed, found, flush=True)
    return {"data": name, "seed": seed, "right": found}


def main() -> None:
    """Measure all cells and save them."""
    with _kept.parts("sites") as folder:
        rows = _kept.cells(folder, cell, SHIFTS, SEEDS)
        save("sites", rows, seeds=list(SEEDS), public=NUM_PUBLIC, private=NUM_PRIVATE)


if __name__ == "__main__":
    main()

"""Private evolution by reverse k-NN votes: labeled synthetic digits, with no public image at all.

    python -m benchmarks.evolution

Private evolution asks each private record for the nearest of some candidates, and varies those with
many noisy votes. The histogram is reverse k-NN labeling with k = 1: a record of class c votes for
one candidate of class c, which is a cell (candidate, class). So every mechanism of this library can
make it private, in the central, local or shuffle model, and one that replaces a record moves two
votes.

The generator knows nothing of digits. A candidate is one pen stroke: a smooth curve through random
points. To vary it is to move the points. Distances are those of HOG, which is fitted to nothing.
After the last round the candidates that were kept train a student, and real test images judge it.
All digits are MNIST's training images (`mnist:train`). No setting was chosen by accuracy.

Reference: Lin et al., "Differentially Private Synthetic Data via Foundation Model APIs 1: Images",
ICLR 2024, Algorithm 1.
"""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _kept
from benchmarks._measure import mnist_folder, save, summary
from rknn_jax import data
from rknn_jax.labelers import rknn
from rknn_jax.neighbors import nearest
from rknn_jax.privacy.accounting import compose
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.representations import hog
from rknn_jax.students import fit as students
from rknn_jax.types import Queries

NUM_CLASSES = 10
SIDE = 28
POINTS = 7
"""Points of a stroke."""
STEPS = 48
"""Dots of pen of a stroke."""
PEN = 1.1
"""Standard deviation of a dot, in pixels."""
CANDIDATES = 200
"""Candidates of a class."""
ROUNDS = 20
FIRST_MOVE, LAST_MOVE = 4.0, 1.0
"""Standard deviation of a point's move in the first and the last round, in pixels."""
QUIET = 2.0
"""Standard deviations of the noise below which votes count as none."""
DELTA = 1e-6
SEEDS = (0, 1, 2, 3, 4)
SHOWN = 6
"""Candidates of a class that are kept for the picture."""
ROWS: tuple[tuple[str, float], ...] = (
    ("central", 0.1),
    ("central", 1.0),
    ("shuffle", 1.0),
    ("local", 10.0),
    ("central", math.inf),
)


class Digits(NamedTuple):
    """Private and test images.

    Attributes:
      features: HOG of the private images, float32 `[n, f]`.
      labels: Their classes, int32 `[n]`.
      test: Test images, uint8 `[m, 28, 28, 1]`.
      truth: Their classes, int `[m]`.
    """

    features: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    truth: np.ndarray


@jax.jit
def drawn(points: jax.Array) -> jax.Array:
    """Return the images of strokes, uint8 `[N, 28, 28, 1]`.

    Args:
      points: Points of each stroke, float32 `[N, POINTS, 2]`, in pixels.
    """
    place = jnp.linspace(0, POINTS - 1, STEPS)
    left = jnp.clip(jnp.floor(place).astype(int), 0, POINTS - 2)
    share = (place - left)[:, None]
    ends = jnp.pad(points, ((0, 0), (1, 1), (0, 0)), "edge")
    # A Catmull-Rom spline passes through its points.
    a, b, c, d = (ends[:, left + i] for i in range(4))
    curve = 0.5 * (
        2 * b
        + (c - a) * share
        + (2 * a - 5 * b + 4 * c - d) * share**2
        + (3 * b - a - 3 * c + d) * share**3
    )
    pixel = jnp.arange(SIDE)
    rows = jnp.exp(-((curve[..., 0, None] - pixel) ** 2) / (2 * PEN**2))
    columns = jnp.exp(-((curve[..., 1, None] - pixel) ** 2) / (2 * PEN**2))
    ink = jnp.einsum("nti,ntj->nij", rows, columns)
    return (255 * jnp.clip(ink, 0, 1)).astype(jnp.uint8)[..., None]


def first_strokes(rng: np.random.Generator) -> np.ndarray:
    """Return random strokes of each class, float32 `[classes, CANDIDATES, POINTS, 2]`."""
    shape = (NUM_CLASSES, CANDIDATES, POINTS, 2)
    return rng.uniform(6, SIDE - 6, shape).astype(np.float32)


def cells(digits: Digits, points: np.ndarray) -> np.ndarray:
    """Return the cell that each private record votes for, int32 `[n, 1]`: private."""
    encode = hog.fit(jax.random.key(0), digits.test)
    voted = np.zeros((len(digits.labels), 1), np.int32)
    for label in range(NUM_CLASSES):
        mine = np.flatnonzero(digits.labels == label)
        images = drawn(jnp.asarray(points[label]))
        chosen = nearest(digits.features[mine], encode(images), 1)
        voted[mine] = np.asarray(chosen) * NUM_CLASSES + label
    return voted


def varied(
    votes: np.ndarray, points: np.ndarray, move: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the next candidates: half are chosen by votes, and each is varied once.

    Args:
      votes: Noisy votes, `[CANDIDATES, classes]`, those below the noise being 0.
      points: Candidates, `[classes, CANDIDATES, POINTS, 2]`.
      move: Standard deviation of a point's move, in pixels.
      rng: Generator of public chance.
    """
    after = np.empty_like(points)
    half = CANDIDATES // 2
    for label in range(NUM_CLASSES):
        weight = votes[:, label] if votes[:, label].any() else np.ones(CANDIDATES)
        kept = points[label][rng.choice(CANDIDATES, half, p=weight / weight.sum())]
        after[label, :half] = kept
        after[label, half:] = kept + rng.normal(0, move, kept.shape)
    inside: np.ndarray = np.clip(after, 1, SIDE - 2)
    return inside


def evolved(digits: Digits, trust: str, epsilon: float, seed: int) -> tuple[np.ndarray, Guarantee]:
    """Return the candidates after the last round, and the guarantee of all rounds together."""
    rng = np.random.default_rng(seed)
    noisy = epsilon < math.inf
    delta = DELTA if noisy and trust != "local" else 0.0
    mechanism = "gaussian" if noisy and trust == "central" else rknn.ReverseKNN.mechanism
    size = len(digits.labels)
    labeler = rknn.ReverseKNN(
        epsilon=epsilon / ROUNDS, delta=delta / ROUNDS, trust=trust, mechanism=mechanism
    ).sharing(epsilon, delta, ROUNDS, size, CANDIDATES, NUM_CLASSES)
    nobody = Queries.alone(np.zeros((CANDIDATES, 1)), np.arange(CANDIDATES))
    points = first_strokes(rng)
    guarantees = []
    for turn, move in enumerate(np.geomspace(FIRST_MOVE, LAST_MOVE, ROUNDS)):
        key = jax.random.fold_in(jax.random.key(seed), turn)
        told = labeler.release(key, cells(digits, points), nobody, NUM_CLASSES)
        loud = told.counts > QUIET * told.stddev
        points = varied(np.where(loud, told.counts, 0), points, float(move), rng)
        guarantees.append(told.guarantee)
    return points, compose(guarantees, delta or None)


def accuracy(digits: Digits, points: np.ndarray, seed: int) -> dict[str, float]:
    """Return the test accuracy of a student of the candidates, and its worst class."""
    images = drawn(jnp.asarray(points.reshape(-1, POINTS, 2)))
    labels = np.repeat(np.arange(NUM_CLASSES), CANDIDATES)
    targets = np.eye(NUM_CLASSES, dtype=np.float32)[labels]
    student = students.fit(jax.random.key(seed), images, targets, students.Config())
    right = student.predict_proba(digits.test).argmax(axis=1) == digits.truth
    classes = [float(right[digits.truth == label].mean()) for label in range(NUM_CLASSES)]
    return {"test_accuracy": float(right.mean()), "worst_class": min(classes)}


def measure(seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each trust and epsilon of one split."""
    task = data.load("mnist:train", seed, mnist_folder())
    encode = hog.fit(jax.random.key(0), task.private.images)
    digits = Digits(
        np.asarray(encode(task.private.images)),
        task.private.labels,
        task.test.images,
        np.asarray(task.test.labels),
    )
    for trust, epsilon in ROWS:
        started = time.process_time()
        points, guarantee = evolved(digits, trust, epsilon, seed)
        found = accuracy(digits, points, seed)
        spent = round(time.process_time() - started)
        told = guarantee.asdict()
        about = {"trust": trust, "epsilon": told["epsilon"], "guarantee": told}
        print(seed, trust, epsilon, found, flush=True)
        strokes = points[:, :SHOWN].round(1).tolist()
        yield about | found | {"cpu_seconds": spent, "strokes": strokes}


def over_splits(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and worst of a row's splits, with the strokes of the first one."""
    right = [row["test_accuracy"] for row in rows]
    return rows[0] | {
        "test_accuracy": summary(right) | {"worst": min(right)},
        "worst_class": min(row["worst_class"] for row in rows),
        "cpu_seconds": sum(row["cpu_seconds"] for row in rows),
    }


def main() -> None:
    """Measure all splits and write the results."""
    about = {"rounds": ROUNDS, "candidates": CANDIDATES, "simulated_noise": True}
    with _kept.parts("evolution") as folder:
        splits = [
            _kept.part(folder, f"split {seed}", functools.partial(measure, seed)) for seed in SEEDS
        ]
        rows = [over_splits(same) for same in zip(*splits, strict=True)]
        save("evolution", rows, seeds=SEEDS, **about)


if __name__ == "__main__":
    main()

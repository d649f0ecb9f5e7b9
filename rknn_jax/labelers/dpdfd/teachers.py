"""Teachers of data-free distillation, each trained on its own part of the records.

- `hog`: logistic regressions on oriented gradients and the means of an image's cells, which are not
  learned. Thousands are trained side by side in seconds, and answer a batch in one matrix product.
- A network of `rknn_jax.students.models`: trained one by one by `students.fit`, in minutes each.
  Its batch statistics are those of its own records, so it still depends on its part alone.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import progress
from rknn_jax._internal.one_record import map_records
from rknn_jax.labelers import _pate_teachers, pate
from rknn_jax.labelers.dpdfd.settings import HOG, Settings
from rknn_jax.representations.hog import hog
from rknn_jax.students import fit
from rknn_jax.types import Records

CELLS = 4
"""Number of cells of an image along each axis, in which teachers compute gradients."""

NETWORK_BATCH = 64
"""Number of records of a step of a network's training."""


class Votes(NamedTuple):
    """Trained teachers: private.

    Attributes:
      weights: Weights of n teachers: float32 `[n, f + 1, num_classes]`, of the features of
        `described` and of 1, or the variables of n networks, each leaf float32 `[n, ...]`.
      images: uint8 `[m, height, width, channels]`, private images, for direct training alone.
      labels: int32 `[m]`, labels of these images.
    """

    weights: Any
    images: jax.Array | None = None
    labels: jax.Array | None = None


def train_teachers(
    key: jax.Array, private: Records, known: np.ndarray, num_classes: int, config: Settings
) -> Any:
    """Return the weights of the teachers, as in `Votes`.

    Args:
      key: Random key of the parts and of the networks, which is consumed.
      private: Private records.
      known: int32 `[m]`, labels of the records; -1 for a record that trains no teacher.
      num_classes: Number of classes |Y|.
      config: Settings of the labeler.

    Raises:
      ValueError: If a teacher would have no record and the number of records is public.
    """
    parts = pate.PATE(num_teachers=config.teachers, relation=config.relation, unit=config.unit)
    part = pate.parts_of(key, private, parts)
    if config.teacher != HOG:
        return _networks(
            jax.random.fold_in(key, 1),
            private.images,
            known,
            part=part,
            num_classes=num_classes,
            config=config,
        )
    return _regressions(private.images, known, part, num_classes=num_classes, config=config)


def _regressions(
    images: np.ndarray, known: np.ndarray, part: np.ndarray, num_classes: int, config: Settings
) -> jax.Array:
    """Return the weights of logistic regressions, float32 `[n, f + 1, num_classes]`."""
    features = np.asarray(map_records(_described_one, None, images))
    settings = config.teacher_steps, config.teacher_learning_rate, config.teacher_weight_decay
    records = features, np.maximum(known, 0), known >= 0
    nothing = np.zeros(config.teachers, np.float32)  # all begin at 0
    teach = _Regression(num_classes, *settings)
    return jnp.asarray(_pate_teachers.map_teachers(teach, None, nothing, records, part))


def _networks(
    key: jax.Array,
    images: np.ndarray,
    known: np.ndarray,
    part: np.ndarray,
    num_classes: int,
    config: Settings,
) -> Any:
    """Return the variables of the networks, each leaf `[n, ...]`. `key` is consumed."""
    fit.check_images(fit.Config(config.teacher), images)
    with progress.phase("training teachers", config.teachers, "teachers") as done:
        found = []
        for number in range(config.teachers):
            own = jax.random.fold_in(key, number)
            rows = np.flatnonzero((part == number) & (known >= 0))
            if len(rows) < 2:  # `students.fit` needs two, and nobody may learn how many there are
                none = np.zeros_like(images, shape=(1, *images.shape[1:]))
                found.append(fit.drawn(_network(config, num_classes), own, none))
                done.advance()
                continue
            steps_per_epoch = -(-len(rows) // NETWORK_BATCH)
            training = fit.Config(
                config.teacher,
                epochs=-(-config.teacher_steps // steps_per_epoch),
                batch_size=NETWORK_BATCH,
                learning_rate=config.teacher_learning_rate,
                weight_decay=config.teacher_weight_decay,
                label_smoothing=0.0,
                augmentation="none",
            )
            targets = np.eye(num_classes, dtype=np.float32)[known[rows]]
            with progress.hidden():
                taught = fit.fit(own, images[rows], targets, training)
            found.append({"params": taught.params, "batch_stats": taught.batch_stats})
            done.advance()
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def _network(config: Settings, num_classes: int) -> Any:
    """Return the network of a teacher that is one."""
    return fit.network_of(fit.Config(config.teacher), num_classes)


def answers(votes: Votes, images: jax.Array, num_classes: int, config: Settings) -> jax.Array:
    """Return the teachers' logits of images, float32 `[n, B, num_classes]`, private.

    Args:
      votes: Trained teachers.
      images: uint8 `[B, height, width, channels]`.
      num_classes: Number of classes |Y|.
      config: Settings of the labeler.
    """
    pixels = images.astype(jnp.float32)
    if config.teacher == HOG:
        return jnp.einsum("bf,nfk->nbk", described(pixels), votes.weights)
    network = _network(config, num_classes)
    logits: jax.Array = jax.vmap(lambda one: network.apply(one, pixels / 255, train=False))(
        votes.weights
    )
    return logits


@jax.jit
def described(images: jax.Array) -> jax.Array:
    """Return the teachers' features: oriented-gradient histograms, means of the same cells, and 1.

    Args:
      images: float32 `[n, height, width, channels]`, whole numbers from 0 to 255, of at least 2x2
        pixels.

    Returns:
      float32 `[n, f + 1]`.
    """
    n, height, width, channels = images.shape
    cell = -(-min(height, width) // CELLS)
    # Each block of gradients has length 1.
    gradients = hog(images, pixels_per_cell=(cell, cell), cells_per_block=(2, 2))
    rows = height // cell
    columns = width // cell
    whole = images[:, : rows * cell, : columns * cell]
    whole = whole.reshape(n, rows, cell, columns, cell, channels)
    means = whole.mean((2, 4)).reshape(n, -1) / 64 - 1
    return jnp.concatenate([6 * gradients, means, jnp.ones((n, 1))], axis=1)


def _described_one(_: None, image: jax.Array) -> jax.Array:
    """Return the features of one private image, float32 `[f + 1]`; see `map_records`."""
    features: jax.Array = described(image[None].astype(jnp.float32))[0]
    return features


@dataclass(frozen=True)
class _Regression:
    """Function that trains one logistic regression, float32 `[f + 1, num_classes]`.

    Without records, it stays at 0.
    """

    num_classes: int
    steps: int
    learning_rate: float
    weight_decay: float

    def __call__(self, _: None, own: tuple[Any, _pate_teachers.Lessons]) -> jax.Array:
        lessons = own[1]
        weights = jnp.zeros((lessons.features.shape[1], self.num_classes), jnp.float32)
        taught: jax.Array = _pate_teachers.taught(
            weights,
            lambda weights, x: jnp.matmul(x, weights),
            lessons,
            self.steps,
            self.learning_rate,
            self.weight_decay,
        )
        return taught


def check_teachers(
    votes: Votes, image_shape: tuple[int, ...], num_classes: int, config: Settings
) -> None:
    """Check that teachers fit images, classes and settings.

    Raises:
      ValueError: If the images are too small for the margin, or if the teachers fit other classes,
        images or numbers of teachers.
    """
    margin = config.margin_of(image_shape)
    smallest = 2 + 2 * margin
    if min(image_shape[:2]) < smallest:
        raise ValueError(
            f"Expected images of {smallest}x{smallest} pixels or more with "
            f"margin={margin}, got {image_shape}; take a smaller margin."
        )
    found = jax.tree.map(jnp.shape, votes.weights)
    expected = _shapes(image_shape, num_classes, config)
    if found != expected:
        raise ValueError(
            f"Expected teachers with num_teachers={config.teachers}, num_classes={num_classes} and "
            f"teacher={config.teacher} for images {image_shape}, got weights of shape {found} in "
            f"place of {expected}; train them for these by `contribute`."
        )
    if config.as_published == "direct_training" and votes.images is None:
        raise ValueError(
            "Expected the private images with as_published=direct_training, got none; call "
            "`contribute` of the same labeler."
        )


def _shapes(image_shape: tuple[int, ...], num_classes: int, config: Settings) -> Any:
    """Return the shapes of `Votes.weights`, in the same structure."""
    if config.teacher == HOG:
        one_image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
        num_features = jax.eval_shape(described, one_image).shape[1]
        return (config.teachers, num_features, num_classes)
    network = _network(config, num_classes)
    image = np.zeros((1, *image_shape), np.uint8)
    drawn = fit.drawn.eval_shape(network, jax.random.key(0), image)
    shapes = jax.tree.map(lambda leaf: (config.teachers, *leaf.shape), drawn)
    return {"batch_stats": {}, **shapes}

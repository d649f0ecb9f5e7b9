"""Teachers of data-free distillation: logistic regressions, each on its part of the records.

They see oriented gradients and the means of an image's cells, which are not learned. Thousands are
trained side by side in seconds, and answer a batch in one matrix product.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.labelers import pate
from rknn_jax.labelers.dpdfd.settings import Settings
from rknn_jax.representations.hog import hog
from rknn_jax.types import Records

CELLS = 4
"""Number of cells of an image along each axis, in which teachers compute gradients."""

IMAGES_AT_ONCE = 1000
"""Number of private images whose features are computed in one call, to bound the memory."""


class Votes(NamedTuple):
    """Trained teachers: private.

    Attributes:
      weights: float32 `[n, f + 1, num_classes]`, weights of the features of `described` and of 1.
      images: uint8 `[m, height, width, channels]`, private images, for direct training alone.
      labels: int32 `[m]`, labels of these images.
    """

    weights: jax.Array
    images: jax.Array | None = None
    labels: jax.Array | None = None


def train_teachers(
    key: jax.Array, private: Records, known: np.ndarray, num_classes: int, config: Settings
) -> jax.Array:
    """Return the weights of the teachers, float32 `[n, f + 1, num_classes]`.

    Args:
      key: Random key of the parts, which is consumed.
      private: Private records.
      known: int32 `[m]`, labels of the records; -1 for a record that trains no teacher.
      num_classes: Number of classes |Y|.
      config: Settings of the labeler.

    Raises:
      ValueError: If a teacher would have no record and the number of records is public.
    """
    parts = pate.PATE(num_teachers=config.teachers, relation=config.relation, unit=config.unit)
    part = pate.parts_of(key, private, parts)
    index, present = pate.rows_of(part, config.teachers)
    blocks = []
    for start in range(0, len(part), IMAGES_AT_ONCE):
        images = private.images[start : start + IMAGES_AT_ONCE].astype(np.float32)
        blocks.append(np.asarray(described(images)))
    features = np.vstack(blocks)
    # The index of a place without a record points past the last one.
    features = np.vstack([features, np.zeros_like(features[:1])])
    labels = np.append(known, 0)[index]
    learned = present * (labels >= 0).astype(np.float32)
    weights: jax.Array = _trained(
        features[index], np.maximum(labels, 0), learned, num_classes, config.traced()
    )
    return weights


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


@partial(jax.jit, static_argnames=("num_classes", "config"))
def _trained(
    features: jax.Array, labels: jax.Array, present: jax.Array, num_classes: int, config: Settings
) -> jax.Array:
    """Train logistic regressions side by side, starting at 0. One without records stays at 0."""

    def teacher(features: jax.Array, labels: jax.Array, present: jax.Array) -> jax.Array:
        weights = jnp.zeros((features.shape[1], num_classes), jnp.float32)
        learning = config.teacher_steps, config.teacher_learning_rate, config.teacher_weight_decay
        taught: jax.Array = pate.taught(
            weights, lambda weights, x: jnp.matmul(x, weights), features, labels, present, *learning
        )
        return taught

    return jax.vmap(teacher)(features, labels, present)


def check_teachers(
    votes: Votes, image_shape: tuple[int, ...], num_classes: int, config: Settings
) -> None:
    """Check that teachers fit images, classes and settings.

    Raises:
      ValueError: If the images are too small for the margin, or if the teachers fit other classes,
        images or numbers of teachers.
    """
    smallest = 2 + 2 * config.margin
    if min(image_shape[:2]) < smallest:
        raise ValueError(
            f"Expected images of {smallest}x{smallest} pixels or more with "
            f"margin={config.margin}, got {image_shape}; take a smaller margin."
        )
    one_image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    num_features = jax.eval_shape(described, one_image).shape[1]
    found = tuple(votes.weights.shape)
    expected = (config.teachers, num_features, num_classes)
    for name, had, wanted in zip(
        ("num_teachers", "features", "num_classes"), found, expected, strict=True
    ):
        if had != wanted:
            raise ValueError(
                f"Expected teachers with {name}={wanted} for images {image_shape}, got "
                f"{name}={had}; train them for these by `contribute`."
            )
    if config.as_published == "direct_training" and votes.images is None:
        raise ValueError(
            "Expected the private images with as_published=direct_training, got none; call "
            "`contribute` of the same labeler."
        )

"""Inputs of students: images, or features of any representation, and their labels.

Images are uint8 `[m, height, width, channels]`. Features are numbers `[m, f]`, such as the public
rows of a release. A student centers and scales each feature by the records that it learns from.

Labels are those of a run, or the arrays of a release: class numbers, or probabilities.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.images import augment
from rknn_jax.labels import Labels
from rknn_jax.types import Array

CORRUPTED = 0.3
"""Share of a record's features that come from another record under strong augmentation."""

MOST_OFF = 1e-3
"""Largest distance from 1 of a sum of probabilities."""

CLASS_NUMBERS = "np.unique(labels, return_inverse=True)[1] gives class numbers of names"


@pytree.register
@dataclass(frozen=True, eq=False)
class Scale:
    """Center and scale of each feature.

    Attributes:
      mean: Mean over the training records, float64 `[f]`.
      stddev: Standard deviation, float64 `[f]`; 1 for a constant feature.
    """

    mean: np.ndarray
    stddev: np.ndarray

    @classmethod
    def of(cls, *parts: np.ndarray) -> "Scale | None":
        """Return the scale of features `[n, f]` in one or more parts, or None for images."""
        if parts[0].ndim != 2:
            return None
        rows = np.concatenate(parts).astype(np.float64)
        stddev = rows.std(axis=0)
        return cls(rows.mean(axis=0), np.where(stddev > 0, stddev, 1))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return features in units of their standard deviations, float32 `[n, f]`."""
        scaled: np.ndarray = ((rows - self.mean) / self.stddev).astype(np.float32)
        return scaled


def as_arrays(inputs: Array, name: str = "inputs") -> np.ndarray:
    """Return images as they are, and features as float64 `[m, f]`.

    Args:
      inputs: Images, or features of any type of numbers.
      name: Name of the argument, for the errors.

    Raises:
      ValueError: If they are neither, or a feature is NaN or infinite.
    """
    rows = np.asarray(inputs)
    if rows.ndim == 4 and rows.dtype == np.uint8:
        return rows
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind not in "biuf":
        raise ValueError(
            f"Expected {name} as images uint8 [m, height, width, channels] or features of numbers "
            f"[m, f], got {rows.dtype} {rows.shape}; pass one row a record."
        )
    rows = rows.astype(np.float64)
    unusable = len(rows) - int(np.isfinite(rows).all(axis=1).sum())
    if unusable:
        raise ValueError(
            f"Expected finite features in {name}, got NaN or infinity in {unusable} of "
            f"{len(rows)} rows; leave these rows out."
        )
    return rows


def as_labels(labels: Array, num_records: int, num_classes: int | None = None) -> Labels:
    """Return the labels of a release.

    Args:
      labels: Class numbers `[m]`, -1 for a record without a label; or probabilities
        `[m, num_classes]`, rows that sum to 1, or zeros for a record without a label.
      num_records: Number of records m.
      num_classes: Number of classes. Defaults to None: the columns of the probabilities, or one
        more than the largest class number.

    Raises:
      ValueError: If the shape, type or values do not fit.
    """
    found = np.asarray(labels)
    if (
        found.ndim not in (1, 2)
        or len(found) != num_records
        or (found.ndim == 2 and found.shape[1] < 2)
    ):
        raise ValueError(
            f"Expected labels [{num_records}] or probabilities [{num_records}, num_classes] for "
            f"{num_records} records, got shape {found.shape}; pass one row a record."
        )
    if found.dtype.kind not in "biuf":
        raise ValueError(
            f"Expected labels as class numbers or probabilities, got {found.dtype} {found.shape}; "
            f"{CLASS_NUMBERS}."
        )
    likely = _one_hot(found, num_classes) if found.ndim == 1 else _likely(found, num_classes)
    known = likely.sum(axis=1) > 0
    if not known.any():
        raise ValueError(
            f"Expected labels of some records, got none among {num_records}; pass class numbers "
            "from 0 on, or probabilities."
        )
    query = np.where(known, 0, -1).astype(np.int32)
    return Labels(likely, known.astype(np.float32), query)


def _one_hot(labels: np.ndarray, num_classes: int | None) -> np.ndarray:
    numbers = labels.astype(np.int64) if np.isfinite(labels).all() else None
    if numbers is None or (numbers != labels).any() or (numbers < -1).any():
        raise ValueError(
            "Expected class numbers from 0 on, and -1 for a record without a label, got labels "
            f"such as {_outlier(labels)}; {CLASS_NUMBERS}."
        )
    count = int(numbers.max(initial=-1)) + 1
    if num_classes is not None and count > num_classes:
        raise ValueError(
            f"Expected labels below num_classes={num_classes}, got label {count - 1}; pass the "
            "number of all classes."
        )
    if count > max(len(labels), 2) and num_classes is None:
        raise ValueError(
            f"Expected class numbers from 0 on, got label {count - 1} for {len(labels)} records; "
            f"{CLASS_NUMBERS}, or pass num_classes."
        )
    likely = np.zeros((len(labels), num_classes or count), np.float32)
    known = np.flatnonzero(numbers >= 0)
    likely[known, numbers[known]] = 1
    return likely


def _outlier(labels: np.ndarray) -> float:
    """Return one label that is not a class number."""
    number = np.isfinite(labels) & (labels == np.round(labels)) & (labels >= -1)
    return float(labels[~number][0])


def _likely(probabilities: np.ndarray, num_classes: int | None) -> np.ndarray:
    likely = probabilities.astype(np.float32)
    if num_classes is not None and likely.shape[1] != num_classes:
        raise ValueError(
            f"Expected probabilities [{len(likely)}, {num_classes}], got shape {likely.shape}; "
            "pass one column a class."
        )
    total = likely.sum(axis=1)
    off = ~((np.abs(total - 1) <= MOST_OFF) | (total == 0)) | ~(likely >= 0).all(axis=1)
    if off.any():
        raise ValueError(
            "Expected probabilities >= 0 whose rows sum to 1, or to 0 without a label, got "
            f"{off.sum()} other rows of {len(likely)} in shape {likely.shape}; the first is row "
            f"{int(off.argmax())} with sum {total[off][0]:.6g}. Pass the released probabilities "
            "as they are."
        )
    return likely


def prepared(rows: jax.Array) -> jax.Array:
    """Return a network's input, float32: pixels in [0, 1], or scaled features as they are."""
    if rows.dtype == jnp.uint8:
        return rows.astype(jnp.float32) / 255
    return rows


def augmented(name: augment.Name, key: jax.Array, rows: jax.Array) -> jax.Array:
    """Augment images by a name in `augment.AUGMENTATIONS`; features `[n, f]` stay as they are."""
    return rows if rows.ndim == 2 else augment.AUGMENTATIONS[name](key, rows)


def strongly_augmented(name: str, key: jax.Array, rows: jax.Array) -> jax.Array:
    """Augment images by a name in `augment.STRONG`, and features by other records' features.

    Each feature of each record is that of a random record with probability `CORRUPTED`.

    Reference: Bahri, Jiang, Tay & Metzler, "SCARF: Self-Supervised Contrastive Learning using
    Random Feature Corruption", 2022.
    """
    if rows.ndim != 2:
        return augment.STRONG[name](key, rows)
    choice_key, record_key = jax.random.split(key)
    record = jax.random.randint(record_key, rows.shape, 0, len(rows))
    others = jnp.take_along_axis(rows, record, axis=0)
    return jnp.where(jax.random.bernoulli(choice_key, CORRUPTED, rows.shape), others, rows)

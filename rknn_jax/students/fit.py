"""Train a student on public images with the labels that private data voted for.

Soft cross-entropy with label smoothing, AdamW under a one-cycle rate, random warps, and an exponential moving average (EMA) of weights
and batch statistics, which is what predicts:

    ema_t = d_t ema_(t-1) + (1 - d_t) x_t,    d_t = min(ema_decay, (1 + t) / (10 + t))

The labels of whole clusters are wrong together; smoothing, warps and the average keep the student from learning that. One jitted step
trains a batch and Python loops over the steps, because XLA's convolutions on CPU are 14 times slower inside `lax.scan`. The key
determines everything: on one machine, equal keys and data give equal students, bit for bit.

Nothing here sees private data: the targets are post-processing of a private release.
"""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

from rknn_jax.students import models
from rknn_jax.types import Array

MODELS = tuple(module.name for module in pkgutil.iter_modules(models.__path__))
"""Every file of `students/models`."""

PREDICT_BLOCK = 100
"""Images of one forward pass."""

OnEpoch = Callable[[int, int, dict[str, float], "Student"], None]


@dataclass(frozen=True)
class Config:
    """How a student is trained. The defaults suit MNIST-like images.

    Attributes:
      model: one of `MODELS`.
      epochs: passes over the data.
      batch_size: records of a step; all of them where there are fewer.
      learning_rate: AdamW's, at its peak.
      weight_decay: AdamW's.
      label_smoothing: share of every target that is spread evenly over the classes.
      ema_decay: d, for the average over steps.
      augment: whether training images are warped at random (`random_displacement`). Never flipped: a mirrored 2 is no 2.
      warmup: share of the steps in which the rate rises.
    """

    model: str = "cnn"
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.1
    ema_decay: float = 0.99
    augment: bool = True
    warmup: float = 0.2

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"Expected model to be one of {', '.join(MODELS)}, got model={self.model!r}.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        for name, low in (("learning_rate", np.nextafter(0, 1)), ("weight_decay", 0)):
            if not low <= getattr(self, name) < np.inf:
                raise ValueError(f"Expected a finite {name} {'>= 0' if low == 0 else '> 0'}, got {name}={getattr(self, name)}.")
        for name in ("label_smoothing", "ema_decay", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Expected 0 <= {name} < 1, got {name}={getattr(self, name)}.")


@dataclass(frozen=True, eq=False)
class Student:
    """A trained student: host arrays, and what it takes to apply them.

    Attributes:
      params: averaged weights.
      batch_stats: averaged batch statistics.
      config: how it was trained.
      num_classes: |Y|.
      image_shape: `(height, width, channels)`.
      interrupted: whether a KeyboardInterrupt ended the training.
    """

    params: Any
    batch_stats: Any
    config: Config
    num_classes: int
    image_shape: tuple[int, int, int]
    interrupted: bool = False

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of uint8 images `[n, height, width, channels]`."""
        return self._apply(images, features=False)

    def features(self, images: Array) -> np.ndarray:
        """Return the network's own features of unit length, float32 `[n, f]`: an encoder, record-local like any other."""
        return self._apply(images, features=True)

    def _apply(self, images: Array, features: bool) -> np.ndarray:
        """Run the network in blocks of one size, the last one padded: constant memory and one trace."""
        if images.dtype != np.uint8 or images.shape[1:] != self.image_shape:
            raise ValueError(f"Expected images uint8 [n, {self.image_shape}] as in training, got {images.dtype} {images.shape}.")
        network, variables = _network(self.config, self.num_classes), {"params": self.params, "batch_stats": self.batch_stats}
        blocks = []
        for start in range(0, max(len(images), 1), PREDICT_BLOCK):
            block = np.asarray(images[start : start + PREDICT_BLOCK])
            padded = np.pad(block, ((0, PREDICT_BLOCK - len(block)), (0, 0), (0, 0), (0, 0)))
            blocks.append(np.asarray(_forward(network, features, variables, padded))[: len(block)])
        return np.concatenate(blocks)


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    config: Config,
    *,
    weights: Array | None = None,
    on_epoch: OnEpoch | None = None,
) -> Student:
    """Train a student.

    Args:
      key: is consumed.
      images: uint8 `[m, height, width, channels]`.
      targets: float32 `[m, num_classes]`, one-hot or soft labels; every row sums to 1.
      config: how.
      weights: float32 `[m]`, what each record counts for relative to the others; all the same by default. A record of weight 0 might
        as well not be there.
      on_epoch: called after every epoch with its number from 1 on, the number of epochs, `{"loss", "seconds"}` of the epoch, and the
        student so far. It may raise KeyboardInterrupt to end the training.

    Returns:
      The student after the last epoch; where a KeyboardInterrupt came, after the last finished one and marked `interrupted`.

    Raises:
      KeyboardInterrupt: where it came before the end of the first epoch.
      ValueError: where the arrays do not fit each other or the network.
    """
    images, targets, weights = _checked(config, images, targets, weights)
    num_classes, image_shape = targets.shape[1], images.shape[1:]
    data = jax.device_put((images, targets, weights))
    batch_size = min(config.batch_size, len(images))
    num_steps = config.epochs * -(-len(images) // batch_size)
    init_key, shuffle_key, warp_key = jax.random.split(key, 3)
    state = _init(config, num_classes, num_steps, init_key, images[:1])
    student = None
    try:
        for epoch in range(config.epochs):
            start, loss = time.perf_counter(), 0.0
            for index, present in batches(jax.random.fold_in(shuffle_key, epoch), len(images), batch_size):
                state, batch_loss = _step(config, num_steps, warp_key, state, data, index, present)
                loss += float(batch_loss) * batch_size / len(images)
            params, batch_stats = jax.tree.map(np.array, state.average)
            student = Student(params, batch_stats, config, num_classes, image_shape)
            if on_epoch:
                on_epoch(epoch + 1, config.epochs, {"loss": loss, "seconds": time.perf_counter() - start}, student)
    except KeyboardInterrupt:
        if student is None:
            raise
        return replace(student, interrupted=True)
    return student


def batches(key: jax.Array, num_records: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield an epoch's batches, all of one size: each record once, in random order.

    The last batch is filled up with the epoch's first records, which are not `present` there: batch normalisation sees them, the loss
    does not.

    Yields:
      index: int32 `[batch_size]`.
      present: float32 `[batch_size]`, 1 or 0.
    """
    order = np.asarray(jax.random.permutation(key, num_records), np.int32)
    for start in range(0, num_records, batch_size):
        position = np.arange(start, start + batch_size)
        yield np.take(order, position, mode="wrap"), (position < num_records).astype(np.float32)


def cross_entropy(logits: jax.Array, targets: jax.Array, label_smoothing: float) -> jax.Array:
    """Return `-sum_c ((1 - label_smoothing) targets_c + label_smoothing / num_classes) log p_c`, float32 `[n]`."""
    smooth = (1 - label_smoothing) * targets + label_smoothing / targets.shape[1]
    return -jnp.sum(smooth * jax.nn.log_softmax(logits), axis=1)


def average(old: Any, new: Any, step: jax.Array | int, decay: float) -> Any:
    """Return the EMA of the module docstring, step t counting from 0. The first values are forgotten soon, however long the memory."""
    rate = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda a, b: rate * a + (1 - rate) * b, old, new)


def random_displacement(key: jax.Array, num_images: int, height: int, width: int) -> jax.Array:
    """Draw where each pixel of a randomly warped image comes from.

    Rotation up to 15 degrees, scale up to 15% along each axis, shear up to 0.2, shift up to 2.5 of 28 pixels, and an elastic part: a
    smooth surface through a 5x5 grid of normal offsets with standard deviation 0.03 of the image's size.

    Args:
      key: is consumed.
      num_images: n.
      height: in pixels.
      width: in pixels.

    Returns:
      float32 `[n, height, width, 2]`, rows before columns, in pixels.
    """
    affine_key, shift_key, elastic_key = jax.random.split(key, 3)
    limits = jnp.asarray([jnp.pi / 12, 0.15, 0.15, 0.2])
    angle, tall, wide, shear = (jax.random.uniform(affine_key, (num_images, 4), minval=-1, maxval=1) * limits).T[..., None, None]
    size = jnp.asarray([height, width], jnp.float32)
    shift = jax.random.uniform(shift_key, (num_images, 2), minval=-1, maxval=1) * (size * 2.5 / 28)
    grid = 0.03 * size * jax.random.normal(elastic_key, (num_images, 5, 5, 2))
    elastic = jax.image.resize(grid, (num_images, height, width, 2), "cubic")
    return affine_displacement(matrix, shift, height, width) + elastic

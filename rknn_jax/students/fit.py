"""Train a student on public images with the labels that private data voted for.

Soft cross-entropy with label smoothing, AdamW under a one-cycle rate, random warps, and an
exponential moving average (EMA) of weights and batch statistics, which is what predicts:

    ema_t = d_t ema_(t-1) + (1 - d_t) x_t,    d_t = min(ema_decay, (1 + t) / (10 + t))

The labels of whole clusters are wrong together; smoothing, warps and the average keep the student
from learning that. One jitted step trains a batch and Python loops over the steps, because XLA's
convolutions on CPU are 14 times slower inside `lax.scan`. The key determines everything: on one
machine, equal keys and data give equal students, bit for bit.

Nothing here sees private data: the targets are post-processing of a private release.
"""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax._internal import checkpoints, pytree
from rknn_jax.images import augment
from rknn_jax.students import models
from rknn_jax.types import Array

MODELS = tuple(module.name for module in pkgutil.iter_modules(models.__path__))
"""Every file of `students/models`."""

PREDICT_BLOCK = 32
"""Images of one forward pass; M5 takes 0.7 ms of one core for each, and 1.1 ms in blocks of 50
or more, which leave the cache.
"""

OnEpoch = Callable[[int, int, dict[str, float], "Student"], None]


@dataclass(frozen=True)
class Config:
    """How a student is trained. The defaults suit MNIST-like images.

    Attributes:
      model: one of `MODELS`.
      epochs: passes over the data; 0 is replaced by the model's own, `EPOCHS` of its file.
      batch_size: records of a step; all of them where there are fewer.
      learning_rate: at its peak.
      weight_decay: decoupled, as AdamW's.
      label_smoothing: share of every target that is spread evenly over the classes.
      optimizer: `adamw`, or `sgd` with Nesterov's momentum of 0.9.
      ema_decay: d, for the average over steps.
      augmentation: how training images are changed at random, a name in `rknn_jax.images.augment`.
      warmup: share of the steps in which the rate rises.
    """

    model: str = "cnn"
    epochs: int = 0
    batch_size: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.1
    ema_decay: float = 0.99
    augmentation: augment.Name = "warp"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    warmup: float = 0.2

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(
                f"Expected model to be one of {', '.join(MODELS)}, got model={self.model!r}."
            )
        if self.epochs == 0:
            object.__setattr__(self, "epochs", _model(self).EPOCHS)
        for name, choices in (
            ("augmentation", get_args(augment.Name)),
            ("optimizer", ("adamw", "sgd")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Expected {name} to be one of {', '.join(choices)}, got "
                    f"{name}={getattr(self, name)!r}."
                )
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        for name, low in (("learning_rate", np.nextafter(0, 1)), ("weight_decay", 0)):
            if not low <= getattr(self, name) < np.inf:
                raise ValueError(
                    f"Expected a finite {name} {'>= 0' if low == 0 else '> 0'}, got "
                    f"{name}={getattr(self, name)}."
                )
        for name in ("label_smoothing", "ema_decay", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Expected 0 <= {name} < 1, got {name}={getattr(self, name)}.")


@pytree.register
@dataclass(frozen=True, eq=False)
class Student:
    """A trained student: host arrays, and what it takes to apply them.

    Attributes:
      params: averaged weights.
      batch_stats: averaged batch statistics, `{}` of a network that has none.
      config: how it was trained.
      num_classes: |Y|.
      image_shape: `(height, width, channels)`.
      interrupted: whether a KeyboardInterrupt ended the training.
    """

    params: Any
    batch_stats: Any
    config: Config = field(metadata=pytree.STATIC)
    num_classes: int = field(metadata=pytree.STATIC)
    image_shape: tuple[int, int, int] = field(metadata=pytree.STATIC)
    interrupted: bool = field(default=False, metadata=pytree.STATIC)

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of uint8 images `[n, height,
        width, channels]`.
        """
        return self._apply(images, features=False)

    def features(self, images: Array) -> np.ndarray:
        """Return the layer before the head, float32 `[n, f]`: an encoder, record-local like any
        other.
        """
        return self._apply(images, features=True)

    def _apply(self, images: Array, features: bool) -> np.ndarray:
        """Run the network in blocks of one size, the last one padded: constant memory and one
        trace.
        """
        if images.dtype != np.uint8 or images.shape[1:] != self.image_shape:
            raise ValueError(
                f"Expected images uint8 [n, {self.image_shape}] as in training, got "
                f"{images.dtype} {images.shape}."
            )
        network = network_of(self.config, self.num_classes)
        variables = {"params": self.params, "batch_stats": self.batch_stats}
        blocks = []
        for start in range(0, max(len(images), 1), PREDICT_BLOCK):
            block = np.asarray(images[start : start + PREDICT_BLOCK])
            padded = np.pad(block, ((0, PREDICT_BLOCK - len(block)), (0, 0), (0, 0), (0, 0)))
            blocks.append(np.asarray(_forward(network, features, variables, padded))[: len(block)])
        return np.concatenate(blocks)


class State(NamedTuple):
    """What a step changes: `variables` and `average` hold `params` and `batch_stats`."""

    step: jax.Array
    variables: Any
    average: Any
    optimizer: Any


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    config: Config,
    *,
    weights: Array | None = None,
    start: Any = None,
    on_epoch: OnEpoch | None = None,
) -> Student:
    """Train a student.

    Args:
      key: is consumed.
      images: uint8 `[m, height, width, channels]`.
      targets: float32 `[m, num_classes]`, one-hot or soft labels; every row sums to 1.
      config: how.
      weights: float32 `[m]`, what each record counts for relative to the others; all the same by
        default. A record of weight 0 might as well not be there.
      start: `params` and `batch_stats` of layers that training begins at, such as a backbone's that
        was trained without labels; other layers are drawn.
      on_epoch: called after every epoch with its number from 1 on, the number of epochs, `{"loss",
        "seconds"}` of the epoch, and the student so far. It may raise KeyboardInterrupt to end the
        training.

    Returns:
      The student after the last epoch; where a KeyboardInterrupt came, after the last finished one
      and marked `interrupted`.

    Raises:
      KeyboardInterrupt: where it came before the end of the first epoch.
      ValueError: where the arrays do not fit each other or the network.
    """
    data = checked(config, images, targets, weights)
    num_records = len(data[0])
    num_classes = data[1].shape[1]
    image_shape = data[0].shape[1:]
    batch_size = min(config.batch_size, num_records)
    num_steps = config.epochs * -(-num_records // batch_size)
    init_key, shuffle_key, warp_key = jax.random.split(key, 3)
    state = initial(config, num_steps, init_key, num_classes, data[0][:1], start)
    data = jax.device_put(data)

    def step(state: State, batch: tuple[np.ndarray, np.ndarray]) -> tuple[State, jax.Array]:
        return _step(config, num_steps, warp_key, state, data, *batch)

    def epoch_batches(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return batches(jax.random.fold_in(shuffle_key, epoch), num_records, batch_size)

    return run(
        config,
        num_classes,
        image_shape,
        state,
        step,
        epoch_batches,
        num_records / batch_size,
        on_epoch,
    )


def run(
    config: Config,
    num_classes: int,
    image_shape: tuple[int, int, int],
    state: State,
    step: Callable[[State, Any], tuple[State, jax.Array]],
    epoch_batches: Callable[[int], Iterable[Any]],
    num_batches: float,
    on_epoch: OnEpoch | None,
) -> Student:
    """Go through all epochs, whatever a step is, and keep the student of the last finished one.

    Args:
      config: of the student.
      num_classes: |Y|.
      image_shape: `(height, width, channels)`.
      state: to begin with; is consumed.
      step: trains one batch and returns its loss too.
      epoch_batches: gives the batches of an epoch, by its number from 0 on.
      num_batches: of an epoch, by which the sum of its losses is divided; the last one counts for
        as much as it is filled.
      on_epoch: see `fit`.

    Returns:
      As `fit`.

    Raises:
      KeyboardInterrupt: where it came before the end of the first epoch.
    """
    student: Student | None = None
    try:
        for epoch in range(config.epochs):
            start = time.perf_counter()
            loss = jnp.zeros(())
            for batch in epoch_batches(epoch):
                state, batch_loss = step(state, batch)
                loss += batch_loss  # stays on the device: no step waits for it
            metrics = {"loss": float(loss) / num_batches, "seconds": time.perf_counter() - start}
            student = Student(
                **jax.tree.map(np.array, state.average),
                config=config,
                num_classes=num_classes,
                image_shape=image_shape,
            )
            if on_epoch:
                on_epoch(epoch + 1, config.epochs, metrics, student)
    except KeyboardInterrupt:
        if student is None:
            raise
        return replace(student, interrupted=True)
    assert student is not None  # config.epochs >= 1
    return student


def batches(
    key: jax.Array, num_records: int, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield an epoch's batches, all of one size: each record once, in random order.

    The last batch is filled up with the epoch's first records, which are not `present` there: batch
    normalisation sees them, the loss does not.

    Yields:
      index: int32 `[batch_size]`.
      present: float32 `[batch_size]`, 1 or 0.
    """
    order = np.asarray(jax.random.permutation(key, num_records), np.int32)
    for start in range(0, num_records, batch_size):
        position = np.arange(start, start + batch_size)
        yield np.take(order, position, mode="wrap"), (position < num_records).astype(np.float32)


def cross_entropy(logits: jax.Array, targets: jax.Array, label_smoothing: float) -> jax.Array:
    """Return `-sum_c ((1 - label_smoothing) targets_c + label_smoothing / num_classes) log p_c`,
    float32 `[n]`.
    """
    smooth = (1 - label_smoothing) * targets + label_smoothing / targets.shape[1]
    return -jnp.sum(smooth * jax.nn.log_softmax(logits), axis=1)


def average(old: Any, new: Any, step: jax.Array | int, decay: float) -> Any:
    """Return the EMA of the module docstring, step t counting from 0.

    The first values are forgotten soon, however long the memory.
    """
    rate = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda a, b: rate * a + (1 - rate) * b, old, new)


def save(student: Student, folder: str | Path) -> None:
    """Write a checkpoint, whole or not at all. Raises ValueError where `folder` exists."""
    arrays = {"params": student.params, "batch_stats": student.batch_stats}
    record = {
        name: getattr(student, name) for name in ("num_classes", "image_shape", "interrupted")
    } | {"config": asdict(student.config)}
    checkpoints.save(folder, arrays, record)


def load(folder: str | Path) -> Student:
    """Read what `save` wrote. Raises ValueError where it is not there."""
    arrays, record = checkpoints.load(folder, "student")
    record |= {"config": Config(**record["config"]), "image_shape": tuple(record["image_shape"])}
    return Student(**arrays, **record)


def _model(config: Config) -> Any:
    return importlib.import_module(f"{models.__name__}.{config.model}")


def network_of(config: Config, num_classes: int) -> Any:
    """Return the Flax module that `config` names."""
    return _model(config).Model(num_classes)


def _optimizer(config: Config, num_steps: int) -> optax.GradientTransformation:
    rise = int(config.warmup * num_steps)
    peak = config.learning_rate
    rate = optax.warmup_cosine_decay_schedule(peak / 25, peak, rise, num_steps)
    if config.optimizer == "adamw":
        return optax.adamw(rate, weight_decay=config.weight_decay)
    direction = optax.trace(0.9, nesterov=True)
    return optax.chain(
        direction,
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(rate),
    )


@partial(jax.jit, static_argnames="network")
def drawn(network: Any, key: jax.Array, images: jax.Array) -> Any:
    """Return a network's first variables, `params` and `batch_stats`; `images` have the shape of
    those to come. `key` is consumed.
    """
    return {"batch_stats": {}, **network.init(key, images.astype(jnp.float32), train=False)}


def initial(
    config: Config,
    num_steps: int,
    key: jax.Array,
    num_classes: int,
    images: Array,
    start: Any = None,
) -> State:
    """Return the state before the first of `num_steps` steps; `images`, uint8, have the shape of
    those to come, `start` is as for `fit`.
    """
    variables = begun_at(start, drawn(network_of(config, num_classes), key, images))
    average, optimizer = _begun_with(config, num_steps, variables)
    return State(jnp.zeros((), jnp.int32), variables, average, optimizer)


@partial(jax.jit, static_argnames=("config", "num_steps"))
def _begun_with(config: Config, num_steps: int, variables: Any) -> tuple[Any, Any]:
    """Return the average, a copy, and the optimizer's state; one program instead of one for each
    shape.
    """
    return jax.tree.map(jnp.copy, variables), _optimizer(config, num_steps).init(
        variables["params"]
    )


def descend(config: Config, num_steps: int, state: State, gradient: Any, updates: Any) -> State:
    """Return the state after a step by `gradient`, of the weights; `updates` holds the new batch
    statistics.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        change, optimizer = _optimizer(config, num_steps).update(
            gradient, state.optimizer, state.variables["params"]
        )
    variables = {
        **state.variables,
        "params": optax.apply_updates(state.variables["params"], change),
        **updates,
    }
    return State(
        state.step + 1,
        variables,
        average(state.average, variables, state.step, config.ema_decay),
        optimizer,
    )


def begun_at(start: Any, drawn: Any) -> Any:
    """Return the drawn variables with those layers that `start` has in their place."""
    if start is None:
        return drawn
    begun = {kind: layers | start.get(kind, {}) for kind, layers in drawn.items()}
    if jax.tree.map(jnp.shape, begun) != jax.tree.map(jnp.shape, drawn):
        raise ValueError(
            "Expected start to have layers of the network, got others; use what the same network "
            "learned from such images."
        )
    return jax.tree.map(jnp.array, begun)


@partial(jax.jit, static_argnames=("config", "num_steps"), donate_argnames="state")
def _step(
    config: Config,
    num_steps: int,
    key: jax.Array,
    state: State,
    data: Any,
    index: jax.Array,
    present: jax.Array,
) -> tuple[State, jax.Array]:
    """Train one batch; returns its mean loss too."""
    images, targets, weights = (array[index] for array in data)
    images = images.astype(jnp.float32) / 255
    images = augment.AUGMENTATIONS[config.augmentation](jax.random.fold_in(key, state.step), images)
    network = network_of(config, targets.shape[1])

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        logits, updates = network.apply(
            state.variables | {"params": params}, images, train=True, mutable=["batch_stats"]
        )
        return jnp.mean(
            weights * present * cross_entropy(logits, targets, config.label_smoothing)
        ), updates

    (loss, updates), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.variables["params"])
    return descend(config, num_steps, state, gradient, updates), loss


@partial(jax.jit, static_argnames=("network", "features"))
def _forward(network: Any, features: bool, variables: Any, images: jax.Array) -> jax.Array:
    out = network.apply(variables, images.astype(jnp.float32) / 255, train=False, features=features)
    return out if features else jax.nn.softmax(out)


def checked(
    config: Config, images: Array, targets: Array, weights: Array | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is to be trained on: records of positive weight, and weights whose mean is 1."""
    images = np.asarray(images)
    targets = np.asarray(targets, np.float32)
    weights = (
        np.ones(len(images), np.float32) if weights is None else np.asarray(weights, np.float32)
    )
    smallest = _model(config).MIN_SIZE
    if images.dtype != np.uint8 or images.ndim != 4 or min(images.shape[1:3]) < smallest:
        raise ValueError(
            f"Expected images uint8 [m, height, width, channels] of {smallest}x{smallest} pixels "
            f"or more for model={config.model!r}, "
            f"got {images.dtype} {images.shape}; choose another model for smaller ones."
        )
    if (
        targets.ndim != 2
        or len(targets) != len(images)
        or not np.allclose(targets.sum(1), 1, atol=1e-3)
        or (targets < 0).any()
    ):
        raise ValueError(
            f"Expected targets [{len(images)}, num_classes], rows >= 0 that sum to 1, got shape "
            f"{targets.shape}."
        )
    if (
        weights.shape != (len(images),)
        or not np.isfinite(weights).all()
        or (weights < 0).any()
        or (weights > 0).sum() < 2
    ):
        raise ValueError(
            f"Expected weights >= 0 [{len(images)}] with two positive ones or more, got shape "
            f"{weights.shape}."
        )
    kept = weights > 0
    return images[kept], targets[kept], weights[kept] / weights[kept].mean()

"""Student training on public images with labels from private votes.

Training minimizes soft cross-entropy with label smoothing, by AdamW under a one-cycle rate, on
randomly warped images. Predictions use an exponential moving average (EMA) of weights and batch
statistics:

    ema_t = d_t ema_(t-1) + (1 - d_t) x_t,    d_t = min(ema_decay, (1 + t) / (10 + t))

Wrong labels come in whole clusters. Smoothing, warps, and the average keep the student from
learning these wrong labels. One jitted step trains one batch, and Python loops over the steps. On
CPU, XLA's convolutions are 14 times slower inside `lax.scan`. The key determines everything: on one
machine, equal keys and data give bit-identical students.

Nothing here sees private data: the targets are post-processing of a private release.
"""

import importlib
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

from rknn_jax._internal import checkpoints, compilation, progress, pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax._internal.registry import registered
from rknn_jax.images import augment
from rknn_jax.students import inputs, models
from rknn_jax.types import Array

MODELS = tuple(registered(models.__path__))
"""Names of the models, one for each file of `students/models`."""

PREDICT_BLOCK = 32
"""Images in one forward pass.

M5 takes 0.7 ms of one core per image. In blocks of 50 or more, which do not fit in the cache, M5
takes 1.1 ms.
"""

OnEpoch = Callable[[int, int, dict[str, float], "Student"], None]


@dataclass(frozen=True)
class Config:
    """Settings of a student's training; the defaults suit MNIST-like images.

    Attributes:
      model: Name of the network, one of `MODELS`. Defaults to `cnn`.
      epochs: Passes over the data. 0 is replaced by the model's default, `EPOCHS` in its file.
        Defaults to 0.
      batch_size: Records per step, or all records if there are fewer. Defaults to 32.
      learning_rate: Peak learning rate. Defaults to 3e-3.
      weight_decay: Decoupled weight decay, as in AdamW. Defaults to 1e-2.
      label_smoothing: Share of every target that is spread evenly over the classes. Defaults to
        0.1.
      optimizer: `adamw`, or `sgd` with Nesterov momentum 0.9. Defaults to `adamw`.
      ema_decay: Largest decay d of the average over steps. Defaults to 0.99.
      augmentation: Random change of the training images, a name in `rknn_jax.images.augment`.
        Defaults to `warp`.
      warmup: Share of the steps in which the learning rate rises. Defaults to 0.2.
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
    """A trained student: host arrays and the settings to apply them.

    Attributes:
      params: Averaged weights.
      batch_stats: Averaged batch statistics; `{}` if the network has none.
      config: Training settings.
      num_classes: Number of classes |Y|.
      image_shape: Shape `(height, width, channels)` of one image, or `(f,)` of features.
      interrupted: True if a KeyboardInterrupt ended the training. Defaults to False.
      scale: Center and scale of the features. Defaults to None, for images.
    """

    params: Any
    batch_stats: Any
    config: Config = field(metadata=pytree.STATIC)
    num_classes: int = field(metadata=pytree.STATIC)
    image_shape: tuple[int, ...] = field(metadata=pytree.STATIC)
    interrupted: bool = field(default=False, metadata=pytree.STATIC)
    scale: inputs.Scale | None = None

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities of uint8 images `[n, height, width, channels]`.

        A student of features takes features `[n, f]`.

        Returns:
          Float32 `[n, num_classes]`.
        """
        # In blocks of one size, the last one padded: JAX traces the network once.
        images = self.checked(images)
        network, variables = self._network()
        blocks = []
        for start in range(0, max(len(images), 1), PREDICT_BLOCK):
            block = images[start : start + PREDICT_BLOCK]
            padded = np.pad(block, [(0, PREDICT_BLOCK - len(block)), *[(0, 0)] * (block.ndim - 1)])
            blocks.append(np.asarray(_forward(network, False, variables, padded))[: len(block)])
        return np.concatenate(blocks)

    def features(self, images: Array) -> np.ndarray:
        """Return the layer before the head, float32 `[n, f]`.

        This is a record-local encoder, like any other.
        """
        return np.asarray(map_records(Student.describe, self, self.checked(images)))

    def describe(self, image: jax.Array) -> jax.Array:
        """Return the layer before the head of one image, float32 `[f]`, from uint8 `[h, w, c]`.

        A student of features takes one record of scaled features.
        """
        network, variables = self._network()
        features: jax.Array = _forward(network, True, variables, image[None])[0]
        return features

    def checked(self, images: Array) -> np.ndarray:
        """Return images as they are, or features as float32 in the scale of the training.

        Raises:
          ValueError: For records of another shape or dtype than in training.
        """
        if self.scale is not None:
            rows = inputs.as_arrays(images)
            if rows.shape[1:] != self.image_shape:
                raise ValueError(
                    f"Expected features [n, {self.image_shape[0]}] as in training, got "
                    f"{rows.shape}; pass the same columns."
                )
            return self.scale(rows)
        if images.dtype != np.uint8 or images.shape[1:] != self.image_shape:
            raise ValueError(
                f"Expected images uint8 [n, {self.image_shape}] as in training, got "
                f"{images.dtype} {images.shape}."
            )
        return np.asarray(images)

    def _network(self) -> tuple[Any, dict[str, Any]]:
        variables = {"params": self.params, "batch_stats": self.batch_stats}
        return network_of(self.config, self.num_classes), variables


class State(NamedTuple):
    """State that a step changes: `variables` and `average` hold `params` and `batch_stats`."""

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
      key: Random key, consumed by the call.
      images: Training images, uint8 `[m, height, width, channels]`, or features `[m, f]`.
      targets: One-hot or soft labels, float32 `[m, num_classes]`; every row sums to 1.
      config: Training settings.
      weights: Relative weight of each record in the loss, float32 `[m]`. Records of weight 0 are
        left out. Defaults to equal weights.
      start: Initial `params` and `batch_stats` of some layers, such as a backbone that was trained
        without labels. All other layers are drawn at random. Defaults to none.
      on_epoch: Callback after every epoch. Its arguments are the epoch's number from 1 on, the
        number of epochs, the epoch's `{"loss", "seconds"}`, and the student so far. The callback
        may raise KeyboardInterrupt to end the training. Defaults to none.

    Returns:
      The student after the last epoch. After a KeyboardInterrupt, the student of the last finished
      epoch, marked `interrupted`.

    Raises:
      KeyboardInterrupt: If interrupted before the end of the first epoch.
      ValueError: If the arrays do not fit each other or the network.
    """
    data = checked(config, images, targets, weights)
    num_records = len(data[0])
    num_classes = data[1].shape[1]
    image_shape = data[0].shape[1:]
    scale = inputs.Scale.of(data[0])
    if scale:
        data = scale(data[0]), *data[1:]
    batch_size = min(config.batch_size, num_records)
    num_steps = config.epochs * -(-num_records // batch_size)
    init_key, shuffle_key, warp_key = jax.random.split(key, 3)
    state = initial(
        config, num_steps, init_key, num_classes=num_classes, images=data[0][:1], start=start
    )
    data = jax.device_put(data)

    def step(state: State, batch: tuple[np.ndarray, np.ndarray]) -> tuple[State, jax.Array]:
        after: tuple[State, jax.Array] = _step(config, num_steps, warp_key, state, data, *batch)
        return after

    def epoch_batches(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return batches(jax.random.fold_in(shuffle_key, epoch), num_records, batch_size)

    return run(
        config,
        num_classes,
        image_shape,
        state=state,
        step=step,
        epoch_batches=epoch_batches,
        num_batches=num_records / batch_size,
        on_epoch=on_epoch,
        scale=scale,
    )


def run(
    config: Config,
    num_classes: int,
    image_shape: tuple[int, ...],
    state: State,
    step: Callable[[State, Any], tuple[State, jax.Array]],
    epoch_batches: Callable[[int], Iterable[Any]],
    num_batches: float,
    on_epoch: OnEpoch | None,
    scale: inputs.Scale | None = None,
) -> Student:
    """Run all epochs with any kind of step, and keep the student of the last finished epoch.

    Args:
      config: Settings of the student.
      num_classes: Number of classes |Y|.
      image_shape: Shape `(height, width, channels)` of one image, or `(f,)` of features.
      state: Initial state, consumed by the call.
      step: Function that trains one batch and returns the new state and the batch's loss.
      epoch_batches: Function from an epoch's number, from 0 on, to its batches.
      num_batches: Batches per epoch, which divide the sum of the losses. A partly filled last batch
        counts as a fraction.
      on_epoch: Callback after every epoch, as for `fit`.
      scale: Center and scale of the features. Defaults to None, for images.

    Returns:
      The student, as for `fit`.

    Raises:
      KeyboardInterrupt: If interrupted before the end of the first epoch.
    """
    student: Student | None = None
    try:
        with progress.phase(f"training {config.model}", config.epochs, "epochs") as done:
            for epoch in range(config.epochs):
                start = time.perf_counter()
                loss = jnp.zeros(())
                for batch in epoch_batches(epoch):
                    state, batch_loss = step(state, batch)
                    loss += batch_loss  # stays on the device, so that no step waits for it
                mean = float(loss) / num_batches
                metrics = {"loss": mean, "seconds": time.perf_counter() - start}
                student = Student(
                    **jax.tree.map(np.array, state.average),
                    config=config,
                    num_classes=num_classes,
                    image_shape=image_shape,
                    scale=scale,
                )
                done.advance()
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

    The last batch is filled up with the epoch's first records, which are not `present` there. Batch
    normalization sees these records; the loss does not.

    Yields:
      index: Record indices, int32 `[batch_size]`.
      present: 1 for a record, 0 for padding, float32 `[batch_size]`.
    """
    order = np.asarray(_permutation(key, num_records))
    for start in range(0, num_records, batch_size):
        position = np.arange(start, start + batch_size)
        yield np.take(order, position, mode="wrap"), (position < num_records).astype(np.float32)


@partial(jax.jit, static_argnums=1, compiler_options=compilation.brief())
def _permutation(key: jax.Array, num_records: int) -> jax.Array:
    return jax.random.permutation(key, num_records).astype(jnp.int32)


def cross_entropy(logits: jax.Array, targets: jax.Array, label_smoothing: float) -> jax.Array:
    """Cross-entropy of smoothed targets, float32 `[n]`.

    -sum_c ((1 - label_smoothing) targets_c + label_smoothing / num_classes) log p_c
    """
    smooth = (1 - label_smoothing) * targets + label_smoothing / targets.shape[1]
    return -jnp.sum(smooth * jax.nn.log_softmax(logits), axis=1)


def average(old: Any, new: Any, step: jax.Array | int, decay: float) -> Any:
    """Return the EMA of the module docstring; step t counts from 0.

    The first values are forgotten soon, whatever the decay.
    """
    rate = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda a, b: rate * a + (1 - rate) * b, old, new)


def save(student: Student, folder: str | Path) -> None:
    """Write a checkpoint, whole or not at all. Raises ValueError if `folder` exists."""
    arrays = {"params": student.params, "batch_stats": student.batch_stats}
    if student.scale is not None:
        arrays["scale"] = asdict(student.scale)
    record = {
        name: getattr(student, name) for name in ("num_classes", "image_shape", "interrupted")
    } | {"config": asdict(student.config)}
    checkpoints.save(folder, arrays, record)


def load(folder: str | Path) -> Student:
    """Read a student that `save` wrote. Raises ValueError if there is none."""
    arrays, record = checkpoints.load(folder, "student")
    record |= {"config": Config(**record["config"]), "image_shape": tuple(record["image_shape"])}
    if "scale" in arrays:
        arrays["scale"] = inputs.Scale(**arrays["scale"])
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


# A network's many random draws run once and take seconds to compile otherwise.
@partial(jax.jit, static_argnames="network", compiler_options=compilation.brief())
def drawn(network: Any, key: jax.Array, images: jax.Array) -> Any:
    """Return a network's initial variables, `params` and `batch_stats`.

    `images` only give the shape of the inputs. `key` is consumed.
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
    """Return the state before the first of `num_steps` steps.

    `images`, uint8, only give the shape of the inputs. `start` is as for `fit`.
    """
    variables = begun_at(start, drawn(network_of(config, num_classes), key, images))
    average, optimizer = _begun_with(config, num_steps, variables)
    return State(jnp.zeros((), jnp.int32), variables, average, optimizer)


@partial(jax.jit, static_argnames=("config", "num_steps"), compiler_options=compilation.brief())
def _begun_with(config: Config, num_steps: int, variables: Any) -> tuple[Any, Any]:
    """Return a copy of the variables as the average, and the optimizer's state.

    Jitting compiles one program instead of one per array shape.
    """
    return jax.tree.map(jnp.copy, variables), _optimizer(config, num_steps).init(
        variables["params"]
    )


def descend(config: Config, num_steps: int, state: State, gradient: Any, updates: Any) -> State:
    """Return the state after one step.

    `gradient` is that of the weights, and `updates` holds the new batch statistics.
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
    """Return the drawn variables, with the layers of `start` in place of their own."""
    if start is None:
        return drawn
    begun = {kind: layers | start.get(kind, {}) for kind, layers in drawn.items()}
    if jax.tree.map(jnp.shape, begun) != jax.tree.map(jnp.shape, drawn):
        raise ValueError(
            "Expected start to have layers of the network, got others; use what the same network "
            "learned from such images."
        )
    return jax.tree.map(jnp.array, begun)


@partial(
    jax.jit,
    static_argnames=("config", "num_steps"),
    donate_argnames="state",
    compiler_options=compilation.moderate(),
)
def _step(
    config: Config,
    num_steps: int,
    key: jax.Array,
    state: State,
    data: Any,
    index: jax.Array,
    present: jax.Array,
) -> tuple[State, jax.Array]:
    """Train one batch; return the new state and the batch's mean loss."""
    images, targets, weights = (array[index] for array in data)
    images = inputs.prepared(images)
    images = inputs.augmented(config.augmentation, jax.random.fold_in(key, state.step), images)
    network = network_of(config, targets.shape[1])

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        logits, updates = network.apply(
            state.variables | {"params": params}, images, train=True, mutable=["batch_stats"]
        )
        return jnp.mean(
            weights * present * cross_entropy(logits, targets, config.label_smoothing)
        ), updates

    (loss, updates), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.variables["params"])
    return descend(config, num_steps, state, gradient=gradient, updates=updates), loss


@partial(jax.jit, static_argnames=("network", "features"))
def _forward(network: Any, features: bool, variables: Any, images: jax.Array) -> jax.Array:
    out = network.apply(variables, inputs.prepared(images), train=False, features=features)
    return out if features else jax.nn.softmax(out)


def takes_features(model: str) -> bool:
    """Return whether a network takes features `[n, f]` as well as images."""
    found: bool = getattr(_model(Config(model, epochs=1)), "FEATURES", False)
    return found


def check_features(config: Config) -> None:
    """Raise ValueError if the network takes images alone."""
    if not takes_features(config.model):
        raise ValueError(
            f"Expected images uint8 [m, height, width, channels] for model={config.model!r}, got "
            f"features [m, f]; choose {' or '.join(filter(takes_features, MODELS))} for features."
        )


def check_images(config: Config, images: np.ndarray) -> None:
    """Raise ValueError if the network does not take such images."""
    smallest = _model(config).MIN_SIZE
    if images.dtype != np.uint8 or images.ndim != 4 or min(images.shape[1:3]) < smallest:
        raise ValueError(
            f"Expected images uint8 [m, height, width, channels] of {smallest}x{smallest} pixels "
            f"or more for model={config.model!r}, got {images.dtype} "
            f"[m, {', '.join(map(str, images.shape[1:]))}]; choose another model for smaller ones."
        )


def checked(
    config: Config, images: Array, targets: Array, weights: Array | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the records of positive weight, with weights scaled to mean 1."""
    images = np.asarray(images)
    if images.ndim == 2:
        check_features(config)
        images = inputs.as_arrays(images)
    targets = np.asarray(targets, np.float32)
    weights = (
        np.ones(len(images), np.float32) if weights is None else np.asarray(weights, np.float32)
    )
    if images.ndim != 2:
        check_images(config, images)
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

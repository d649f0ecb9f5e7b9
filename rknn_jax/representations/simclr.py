"""SimCLR: contrastive learning of features from two random views of each public image.

Each of B images has two views. The backbone and a small head map views to unit vectors z, and the
loss is NT-Xent:

    mean over the 2B views i of -log(exp(<z_i, z_j> / t) / sum_{k != i} exp(<z_i, z_k> / t)),
    j the other view of i's image

The features are the head's vectors or the backbone's, scaled to unit length. No label is used,
public or private, and the encoder is record-local. On CIFAR-10, use an accelerator, and pass
`folder` so that an interrupted training can resume.

References: Chen, Kornblith, Norouzi & Hinton, "A Simple Framework for Contrastive Learning of
Visual Representations", 2020, eq. 1; the settings for photographs are those of Van Gansbeke et al.,
"SCAN", 2020.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax._internal import checkpoints, compilation, progress, pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.images import augment
from rknn_jax.representations import Representation
from rknn_jax.students import models
from rknn_jax.students.fit import MODELS, batches
from rknn_jax.types import Array

EPOCHS = {"cnn": 60, "resnet18": 500}
"""Passes over the public images by backbone; 200 for others.

The `cnn` takes minutes on two cores for 5,000 images of 28x28 pixels.
"""

CHECKPOINT_EPOCHS = 10
"""Epochs between two checkpoints; the end is saved in any case."""

REFERENCE_BATCH = 512
"""Batch size of the given learning rates; other batch sizes scale the learning rate linearly."""

OnEpoch = Callable[[str, int, int, dict[str, float]], None]
"""Callback after every epoch.

Its arguments are the stage's name, the epoch from 1 on, the number of epochs, and the epoch's
`{"loss", "seconds"}`.
"""


@dataclass(frozen=True)
class Config(Representation):
    """Settings of SimCLR; the defaults suit MNIST-like images.

    For CIFAR-10 choose `backbone="resnet18"`.

    Attributes:
      backbone: Name of a network in `rknn_jax.students.models`. Defaults to `cnn`.
      epochs: Passes over the images. Defaults to 0, which takes the backbone's own number in
        `EPOCHS`.
      batch_size: Images per step B, or all images if there are fewer. Defaults to 512.
      learning_rate: Initial learning rate for a batch of 512 images; it falls to a thousandth as a
        cosine. Defaults to 0.4.
      weight_decay: Decay of all weights. Defaults to 1e-4.
      temperature: Temperature t of the loss. Defaults to 0.1.
      features: Layer to use, `backbone` or `projection`, which is the head. Defaults to
        `projection`.
      augmentation: Views of `rknn_jax.images.augment`, `photo` or `digit`, which never mirrors.
        Defaults to "", which is `photo` for resnet18 and `digit` for others.
    """

    backbone: str = "cnn"
    epochs: int = 0
    batch_size: int = 512
    learning_rate: float = 0.4
    weight_decay: float = 1e-4
    temperature: float = 0.1
    features: Literal["backbone", "projection"] = "projection"
    augmentation: str = ""

    slow: ClassVar[bool] = True

    def __post_init__(self) -> None:
        choices = {
            "backbone": MODELS,
            "features": ("backbone", "projection"),
            "augmentation": ("", *augment.VIEWS),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"Expected {name} to be one of {', '.join(allowed)}, got "
                    f"{name}={getattr(self, name)!r}."
                )
        if self.epochs < 0:
            raise ValueError(
                f"Expected epochs >= 0, got epochs={self.epochs}; 0 takes the backbone's own."
            )
        if self.batch_size < 2:
            raise ValueError(
                f"Expected batch_size >= 2, got batch_size={self.batch_size}; one image has no "
                "other to differ from."
            )
        for name in ("learning_rate", "temperature"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"Expected a finite {name} > 0, got {name}={getattr(self, name)}.")
        if not 0 <= self.weight_decay < np.inf:
            raise ValueError(
                f"Expected a finite weight_decay >= 0, got weight_decay={self.weight_decay}."
            )

    @property
    def num_epochs(self) -> int:
        """Passes over the images."""
        return self.epochs or EPOCHS.get(self.backbone, 200)

    @property
    def views(self) -> str:
        """The augmentation, a name in `augment.VIEWS`."""
        return self.augmentation or ("photo" if self.backbone == "resnet18" else "digit")

    def fit(self, key: jax.Array, images: Array, *, folder: Path | None = None) -> "Encoder":
        """Learn the encoder by `fit`, or resume its training in `folder`."""
        return fit(key, images, self, folder=folder)


class Network(nn.Module):
    """A student's network up to its features, with another head.

    Attributes:
      backbone: Name of a network in `rknn_jax.students.models`.
      num_outputs: Number of outputs of the head.
      hidden: True if the head has a hidden layer with ReLU, as wide as the features.
    """

    backbone: str
    num_outputs: int
    hidden: bool

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool, features: bool = False) -> jax.Array:
        """Map float32 images `[n, h, w, c]` in [0, 1] to float32 `[n, num_outputs]`.

        With `features`, return the backbone's features `[n, f]`.
        """
        model = importlib.import_module(f"{models.__name__}.{self.backbone}").Model
        found: jax.Array = model(1, name="backbone")(images, train=train, features=True)
        if features:
            return found
        inner = nn.relu(nn.Dense(found.shape[-1], name="hidden")(found)) if self.hidden else found
        return nn.Dense(self.num_outputs, name="head")(inner)


class State(NamedTuple):
    """State that a step changes.

    Attributes:
      step: Number of finished steps, int32 `[]`.
      variables: `params` and `batch_stats` of a `Network`.
      optimizer: State of the optax optimizer.
      loss: Sum of the losses over the epoch's steps; a vector if several heads are trained.
    """

    step: jax.Array
    variables: Any
    optimizer: Any
    loss: jax.Array


Step = Callable[[jax.Array, State, np.ndarray], State]
"""Function that trains the batch of images at `index`, int32 `[batch_size]`.

Random draws come from a key that is the same for all steps.
"""


@pytree.register
@dataclass(frozen=True, eq=False)
class Encoder:
    """Encoder by a trained network's features, scaled to unit length.

    Attributes:
      variables: `params` and `batch_stats`, frozen.
      network: Network of the variables.
      features: Layer to use, `backbone` or `projection`.
    """

    variables: Any
    network: Network = field(metadata=pytree.STATIC)
    features: str = field(metadata=pytree.STATIC)

    def __call__(self, images: Array) -> jax.Array:
        """Return unit vectors, float32 `[n, f]`, from uint8 `[n, h, w, c]`.

        Row i depends on image i alone.
        """
        images = checked(images, self.network.backbone)
        return map_records(Encoder.describe, self, images)

    def describe(self, image: jax.Array) -> jax.Array:
        """Return the unit vector of one image, float32 `[f]`, from uint8 `[h, w, c]`."""
        backbone = self.features == "backbone"
        return unit(forward(self.network, self.variables, image[None], features=backbone))[0]


def fit(
    key: jax.Array,
    images: Array,
    config: Config = Config(),
    *,
    folder: str | Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Encoder:
    """Train on public images.

    Args:
      key: Random key, consumed by the call.
      images: Public images, uint8 `[m, h, w, c]`, two or more.
      config: Settings of SimCLR.
      folder: Folder of checkpoints. Training resumes from the last checkpoint and gives a
        bit-identical encoder. Checkpoints for another key, config, or images are left alone.
        Defaults to no checkpoints.
      on_epoch: Callback of type `OnEpoch`. Defaults to none.

    Raises:
      ValueError: For fewer images, images of another kind, or too small for the backbone.
    """
    images = checked(images, config.backbone)
    if len(images) < 2:
        raise ValueError(
            f"Expected two public images or more, got {len(images)}; one has no other to differ "
            "from."
        )
    init_key, train_key = jax.random.split(key)
    network = Network(config.backbone, 128, hidden=True)
    batch_size = min(config.batch_size, len(images))
    num_steps = config.num_epochs * -(-len(images) // batch_size)
    variables = init(network, init_key, images[:1])
    state = initial(variables, _optimizer(config, num_steps, batch_size), jnp.zeros(()))
    step = partial(_step, config, num_steps, jax.device_put(images))
    place = Path(folder) / fingerprint("simclr", key, images, config) if folder else None
    state = train(
        "simclr",
        train_key,
        state,
        step=step,
        num_images=len(images),
        batch_size=batch_size,
        epochs=config.num_epochs,
        folder=place,
        on_epoch=on_epoch,
    )
    return Encoder(state.variables, network, config.features)


@jax.jit
def nt_xent(vectors: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """NT-Xent loss of the module docstring, averaged over all views.

    Args:
      vectors: Unit vectors, float32 `[2B, d]`; rows i and B + i are views of one image.
      temperature: Temperature t.

    Returns:
      Float32 `[]`.
    """
    similarity = jnp.matmul(vectors, vectors.T, precision=jax.lax.Precision.HIGHEST) / temperature
    own = jnp.arange(len(vectors))
    log_share = jax.nn.log_softmax(jnp.where(own[:, None] == own[None], -jnp.inf, similarity))
    return -jnp.mean(log_share[own, jnp.roll(own, len(own) // 2)])


def train(
    name: str,
    key: jax.Array,
    state: State,
    step: Step,
    num_images: int,
    batch_size: int,
    epochs: int,
    folder: Path | None,
    on_epoch: OnEpoch | None,
) -> State:
    """Run a training's epochs, or those that `folder` does not hold yet.

    An epoch has every image once, in batches of one size. The last batch is padded with images from
    the epoch's beginning. Keys depend on the epoch and step only. A resumed training therefore
    equals one that was never interrupted.

    Returns:
      The final state, with the loss of the last epoch.
    """
    shuffle_key, step_key = jax.random.split(key)
    steps_per_epoch = -(-num_images // batch_size)
    with checkpoints.Training(folder) as training:
        state, done = training.resumed(state)
        with progress.phase(f"training {name}", epochs, "epochs", done=done) as counted:
            for epoch in range(done, epochs):
                start = time.perf_counter()
                state = state._replace(loss=jnp.zeros_like(state.loss))
                epoch_key = jax.random.fold_in(shuffle_key, epoch)
                for index, _ in batches(epoch_key, num_images, batch_size):
                    state = step(step_key, state, index)
                loss = float(state.loss.mean()) / steps_per_epoch  # waits for the epoch
                counted.advance()
                if (epoch + 1) % CHECKPOINT_EPOCHS == 0 or epoch + 1 == epochs:
                    training.save(epoch + 1, state)
                    counted.kept(folder)
                if on_epoch:
                    seconds = time.perf_counter() - start
                    on_epoch(name, epoch + 1, epochs, {"loss": loss, "seconds": seconds})
    return state


def initial(variables: Any, optimizer: optax.GradientTransformation, loss: jax.Array) -> State:
    """Return the state before the first step; `loss` has the shape of a step's loss."""
    return State(jnp.zeros((), jnp.int32), variables, optimizer.init(variables["params"]), loss)


def updated(
    state: State,
    optimizer: optax.GradientTransformation,
    gradient: Any,
    batch_stats: Any,
    loss: jax.Array,
) -> State:
    """Return the state after a step along `gradient`."""
    params = state.variables["params"]
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        change, inner = optimizer.update(gradient, state.optimizer, params)
    return State(
        state.step + 1,
        {"params": optax.apply_updates(params, change), **batch_stats},
        inner,
        state.loss + loss,
    )


@partial(jax.jit, static_argnames="network", compiler_options=compilation.brief())
def init(network: Network, key: jax.Array, images: jax.Array) -> Any:
    """Draw the variables of a network for uint8 images `[n, h, w, c]`."""
    return network.init(key, images.astype(jnp.float32), train=False)


def forward(
    network: Any, variables: Any, images: jax.Array, *, features: bool = False
) -> jax.Array:
    """Return a network's output, or its features, for uint8 images `[n, h, w, c]`."""
    found: jax.Array = network.apply(
        variables, images.astype(jnp.float32) / 255, train=False, features=features
    )
    return found


def unit(vectors: jax.Array) -> jax.Array:
    """Scale rows to unit length; zero rows stay zero."""
    return vectors * jax.lax.rsqrt(jnp.maximum(jnp.sum(vectors**2, axis=-1, keepdims=True), 1e-12))


def checked(images: Array, backbone: str) -> np.ndarray:
    """Return the images on the host.

    Raises ValueError for images that are not uint8 `[n, h, w, c]` or too small for the backbone.
    """
    images = np.asarray(images)
    smallest = importlib.import_module(f"{models.__name__}.{backbone}").MIN_SIZE
    if images.dtype != np.uint8 or images.ndim != 4 or min(images.shape[1:3]) < smallest:
        raise ValueError(
            f"Expected images uint8 [n, height, width, channels] of {smallest}x{smallest} pixels "
            f"or more for backbone={backbone!r}, "
            f"got {images.dtype} {images.shape}; choose another backbone for smaller ones."
        )
    return images


def fingerprint(name: str, key: jax.Array, images: np.ndarray, config: Any) -> str:
    """Name of a training's folder: a hash of everything that the training depends on.

    A training therefore never resumes with other settings or data.
    """
    return checkpoints.named(
        name,
        (config, np.asarray(jax.random.key_data(key)).tolist(), images.shape),
        images.tobytes(),
    )


def _optimizer(config: Config, num_steps: int, batch_size: int) -> optax.GradientTransformation:
    start = config.learning_rate * batch_size / REFERENCE_BATCH
    rate = optax.cosine_decay_schedule(start, num_steps, alpha=1e-3)
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay), optax.sgd(rate, momentum=0.9)
    )


@partial(jax.jit, static_argnames=("config", "num_steps"), donate_argnames="state")
def _step(
    config: Config,
    num_steps: int,
    images: jax.Array,
    key: jax.Array,
    state: State,
    index: jax.Array,
) -> State:
    batch = images[index].astype(jnp.float32) / 255
    views = augment.VIEWS[config.views](
        jax.random.fold_in(key, state.step), jnp.concatenate([batch, batch])
    )
    network = Network(config.backbone, 128, hidden=True)

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        vectors, batch_stats = network.apply(
            state.variables | {"params": params}, views, train=True, mutable=["batch_stats"]
        )
        return nt_xent(unit(vectors), config.temperature), batch_stats

    (loss, batch_stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state.variables["params"]
    )
    return updated(
        state,
        _optimizer(config, num_steps, len(index)),
        gradient,
        batch_stats=batch_stats,
        loss=loss,
    )


EXAMPLES = (Config(epochs=1, batch_size=30),)

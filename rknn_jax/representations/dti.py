"""Deep transformation-invariant clustering (DTI k-means) of images.

K prototypes are images that are transformed to resemble each image before the comparison. For an
image x and each prototype, a network predicts three transformations. They are an affine map, a soft
morphological window that thickens or thins strokes, and a thin-plate spline. The distance is the
remaining error:

    d_j(x) = mean over pixels of (x - T_j(c_j; x))^2

Prototypes and network are trained together on the mean over public images of min_j d_j(x). The
transformations are activated one after the other. Before the first, this is k-means by gradient
descent. A prototype that too few images choose restarts beside the most chosen one. No label is
used.

Feature j of an image is -d_j, from which `rknn_jax.queries.prototypes` makes queries. Batch
normalization predicts by running averages, so a feature depends only on its own image and public
data.

Only the nearest prototype of each image has a gradient. All K are therefore transformed without
gradients, and the nearest is transformed once more with gradients.

Reference: Monnier, Groueix & Aubry, "Deep Transformation-Invariant Clustering", 2020, with the
settings of the authors' code for MNIST. Their weight decay of 1e-6 is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax._internal import checkpoints, progress, pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.images.warps import affine_displacement, thin_plate_displacement, warp
from rknn_jax.representations import Representation
from rknn_jax.representations.simclr import fingerprint
from rknn_jax.students.fit import batches
from rknn_jax.types import Array

WINDOW = 7  # width of the morphological window, in pixels
# Logit that opens a window in its middle and closes it elsewhere before training, as in the
# authors' code.
CLOSED = 5.0
CONTROL_POINTS = 4  # control points of the thin-plate spline along each axis
HIDDEN = 128  # units of a regressor's two hidden layers

RESTART_EVERY = 50  # steps between two restarts
RESTART_SHARE = 0.2  # relative to a prototype's even share of the images
RESTART_NOISE = 1e-4  # standard deviation that separates a restarted prototype from its source

CHECKPOINT_EVERY = 10  # epochs between two checkpoints


@dataclass(frozen=True)
class Config(Representation):
    """Settings of DTI clustering.

    Attributes:
      prototypes: Number of prototypes K. Defaults to 10.
      epochs: Passes over the public images. Defaults to 300.
      curriculum: Starts of the affine, morphological, and thin-plate transformations, in shares of
        the epochs; 1 is never. Defaults to (1/6, 1/2, 2/3).
      batch_size: Images per step, or all images if there are fewer. Defaults to 128.
      learning_rate: Learning rate of Adam, for prototypes and network. Defaults to 1e-3.
      decay: Time when the learning rate falls to a tenth, in shares of the epochs; 1 is never.
        Defaults to 14/15.
      width: Channels of the ResNet's first stage. Defaults to 16.
      blocks: Residual blocks in each of the ResNet's three stages. Defaults to 3, a ResNet-20.
    """

    prototypes: int = 10
    epochs: int = 300
    curriculum: tuple[float, float, float] = (1 / 6, 1 / 2, 2 / 3)
    batch_size: int = 128
    learning_rate: float = 1e-3
    decay: float = 14 / 15
    width: int = 16
    blocks: int = 3

    def __post_init__(self) -> None:
        for name in ("prototypes", "epochs", "batch_size", "width", "blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if not 0 < self.learning_rate < np.inf:
            raise ValueError(
                f"Expected a finite learning_rate > 0, got learning_rate={self.learning_rate}."
            )
        if not 0 <= self.decay <= 1:
            raise ValueError(f"Expected 0 <= decay <= 1, got decay={self.decay}; 1 is never.")
        if len(self.curriculum) != 3 or not all(
            0 <= a <= b for a, b in zip(self.curriculum, [*self.curriculum[1:], 1], strict=True)
        ):
            raise ValueError(
                "Expected curriculum of three shares that rise within [0, 1], got "
                f"curriculum={self.curriculum}; 1 is never."
            )

    def stage(self, epoch: int) -> int:
        """Return the number of active transformations in an epoch, counted from 0."""
        return sum(epoch >= round(share * self.epochs) for share in self.curriculum)

    asks: ClassVar[bool] = True
    slow: ClassVar[bool] = True
    given: ClassVar[frozenset[str]] = frozenset({"prototypes"})

    def for_task(self, num_classes: int, num_queries: int | None) -> Self:
        """Return the settings with a prototype for every query, or for every class by default."""
        return replace(self, prototypes=num_queries or num_classes)

    def fit(self, key: jax.Array, images: Array, *, folder: Path | None = None) -> "Encoder":
        """Learn the encoder by `fit`, or resume its training in `folder`."""
        return fit(key, images, self, folder=folder)


def affine(images: jax.Array, parameters: jax.Array) -> jax.Array:
    """Warp images by affine maps; 0 is the identity.

    Args:
      images: Images, float32 `[n, height, width, channels]`.
      parameters: Difference of a 2x3 matrix from [I 0], float32 `[n, 6]`. Rows come before columns;
        the shift is in halves of the image's size.
    """
    height, width = images.shape[1:3]
    matrix = parameters.reshape(-1, 2, 3)
    shift = matrix[:, :, 2] * jnp.asarray([[height / 2, width / 2]])
    return warp(
        images, affine_displacement(matrix[:, :, :2] + jnp.eye(2)[None], shift, height, width)
    )


def morphological(images: jax.Array, parameters: jax.Array) -> jax.Array:
    """Soft dilation or erosion: weighted means over windows of 7x7 pixels.

    The weights are exp(alpha x) sigmoid(w), which dilate for alpha > 0 and erode for alpha < 0. At
    0 the window is nearly closed: the middle pixel has 0.755 of the weight, and the other 48 pixels
    share the rest. Pixels outside the image are 0.

    Args:
      images: Images, float32 `[n, height, width, channels]`.
      parameters: Alpha, and the difference of w from its initial value, float32 `[n, 50]`.
    """
    closed = np.full((WINDOW, WINDOW), -CLOSED, np.float32)
    closed[WINDOW // 2, WINDOW // 2] = CLOSED
    window = jax.nn.sigmoid(
        parameters[:, 1:].reshape(-1, WINDOW, WINDOW) + jnp.asarray(closed)[None]
    )
    edge = (WINDOW // 2, WINDOW // 2)
    padded = jnp.pad(images, ((0, 0), edge, edge, (0, 0)))
    weights = jnp.exp(parameters[:, :1, None, None] * padded)
    return _window_sum(weights * padded, window) / _window_sum(weights, window)


def _window_sum(padded: jax.Array, window: jax.Array) -> jax.Array:
    """Return sums over windows of padded images, each image with its own weights.

    Args:
      padded: Padded images, `[n, h + 6, w + 6, c]`.
      window: Weights of each image, `[n, 7, 7]`.

    Returns:
      Sums, `[n, h, w, c]`.
    """
    height, width = (size - WINDOW + 1 for size in padded.shape[1:3])
    total = jnp.zeros(())
    for row in range(WINDOW):
        band = jax.lax.optimization_barrier(
            padded[:, row : row + height]
        )  # without the barrier, XLA recomputes the inputs of the band for each weight
        for column in range(WINDOW):
            total = (
                total
                + window[:, row, column][:, None, None, None] * band[:, :, column : column + width]
            )
    return total


def thin_plate(images: jax.Array, parameters: jax.Array) -> jax.Array:
    """Warp images by thin-plate splines; 0 is the identity.

    Args:
      images: Images, float32 `[n, height, width, channels]`.
      parameters: Displacement from which each of 4x4 control points is read, float32 `[n, 32]`.
        Rows come before columns, in halves of the image's size.
    """
    height, width = images.shape[1:3]
    offsets = (
        parameters.reshape(-1, CONTROL_POINTS, CONTROL_POINTS, 2)
        * jnp.asarray([height / 2, width / 2])[None, None, None]
    )
    return warp(images, thin_plate_displacement(offsets, height, width))


TRANSFORMATIONS: dict[str, tuple[Callable[[jax.Array, jax.Array], jax.Array], int]] = {
    "affine": (affine, 6),
    "morphological": (morphological, 1 + WINDOW**2),
    "thin_plate": (thin_plate, 2 * CONTROL_POINTS**2),
}
"""Transformations of a prototype in order, each with its number of parameters."""


class ResNet(nn.Module):
    """Map float32 images `[n, height, width, channels]` in [0, 1] to float32 `[n, 4 width]`.

    Shortcuts have no weights. Kernels start at 0 and are drawn by `_with_kernels`.

    Reference: He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2.
    """

    width: int
    blocks: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
        """Return the means of the last stage over pixels."""

        def conv(x: jax.Array, channels: int, stride: int = 1) -> jax.Array:
            x = nn.Conv(
                channels,
                (3, 3),
                stride,
                padding=1,
                use_bias=False,
                kernel_init=nn.initializers.zeros,
            )(x)
            normal: jax.Array = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            return normal

        x = nn.relu(conv(images, self.width))
        for stage in range(3):
            for block in range(self.blocks):
                channels = self.width * 2**stage
                stride = 2 if stage and not block else 1
                change = conv(nn.relu(conv(x, channels, stride)), channels)
                missing = channels - x.shape[-1]
                kept = jnp.pad(
                    x[:, ::stride, ::stride],
                    ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)),
                )
                x = nn.relu(kept + change)
        return x.mean((1, 2))


@pytree.register
@dataclass(frozen=True, eq=False)
class Encoder:
    """Encoder by distances to transformed prototypes; holds public data only.

    Attributes:
      params: `prototypes`, float32 `[K, h, w, c]`, the `encoder` network, and the regressors of
        each transformation, `[K, ...]`.
      batch_stats: Running averages of the network.
      config: Training settings.
    """

    params: Any
    batch_stats: Any
    config: Config = field(metadata=pytree.STATIC)

    def __call__(self, images: Array) -> jax.Array:
        """Return minus the distances to the K prototypes, float32 `[n, K]`.

        `images` are uint8 `[n, h, w, c]`. Row i depends on image i alone.

        Raises:
          ValueError: For images of another shape or dtype than the public ones.
        """
        shape = self.params["prototypes"].shape[1:]
        if images.dtype != np.uint8 or images.shape[1:] != shape:
            raise ValueError(
                f"Expected images uint8 [n, {shape}] as in training, got {images.dtype} "
                f"{images.shape}."
            )
        return map_records(Encoder.describe, self, images)

    def describe(self, image: jax.Array) -> jax.Array:
        """Return minus one image's distances, float32 `[K]`, from uint8 `[h, w, c]`."""
        scaled = image[None].astype(jnp.float32) / 255
        config = self.config
        stage = config.stage(config.epochs - 1)
        parameters, _ = _parameters(
            config, stage, self.params, batch_stats=self.batch_stats, images=scaled, train=False
        )
        return -_distances(self.params["prototypes"], parameters, scaled)[:, 0]


def fit(
    key: jax.Array, images: Array, config: Config = Config(), *, folder: str | Path | None = None
) -> Encoder:
    """Train prototypes on public images.

    Args:
      key: Random key of the first prototypes, the network, the batches, and the restarts; consumed
        by the call.
      images: Public images, uint8 `[m, h, w, c]`.
      config: Settings of DTI clustering.
      folder: Folder of checkpoints, written every ten epochs and at the end. Training resumes from
        the last checkpoint and gives a bit-identical encoder. Checkpoints for another key, config,
        or images are left alone. Defaults to no checkpoints.

    Raises:
      ValueError: For fewer images than prototypes.
    """
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) < config.prototypes:
        raise ValueError(
            "Expected images uint8 [m, height, width, channels] with m >= "
            f"prototypes={config.prototypes}, got {images.dtype} "
            f"{images.shape}; bring more images or fit fewer prototypes."
        )
    place = Path(folder) / fingerprint("dti", key, images, config) if folder else None
    init_key, shuffle_key, restart_key = jax.random.split(key, 3)
    state = _initial(init_key, images, config)
    batch_size = min(config.batch_size, len(images))
    public = jax.device_put(images)
    with checkpoints.Training(place) as training:
        state, first_epoch = training.resumed(state)
        step = first_epoch * -(-len(images) // batch_size)
        with progress.phase("training dti", config.epochs, "epochs", done=first_epoch) as counted:
            for epoch in range(first_epoch, config.epochs):
                rate = config.learning_rate * (
                    0.1 if epoch >= round(config.decay * config.epochs) else 1.0
                )
                epoch_key = jax.random.fold_in(shuffle_key, epoch)
                for index, present in batches(epoch_key, len(images), batch_size):
                    state, _ = _step(
                        config,
                        config.stage(epoch),
                        state,
                        images=public,
                        index=index,
                        present=present,
                        rate=rate,
                    )
                    step += 1
                    if step % RESTART_EVERY == 0:
                        state = restart(jax.random.fold_in(restart_key, step), state)
                jax.block_until_ready(state.chosen)
                counted.advance()
                if (epoch + 1) % CHECKPOINT_EVERY == 0 or epoch + 1 == config.epochs:
                    training.save(epoch + 1, state)
                    counted.kept(place)
    return Encoder(state.params, state.batch_stats, config)


class State(NamedTuple):
    """State that a step changes.

    Attributes:
      params: Weights, as in `Encoder`.
      batch_stats: Running averages, as in `Encoder`.
      adam: Adam's state for each part of `params`, counted from the step that activates the part.
      chosen: Number of images that chose each prototype since the last restart, float32 `[K]`.
    """

    params: Any
    batch_stats: Any
    adam: Any
    chosen: jax.Array


ADAM = optax.scale_by_adam()


@jax.jit
def restart(key: jax.Array, state: State) -> State:
    """Restart every prototype that too few images choose beside the most chosen one.

    The regressors and Adam's moments are copied too. Too few means less than a fifth of an even
    share. `key` is consumed.
    """
    even = state.chosen.sum() / len(state.chosen)
    empty = state.chosen < RESTART_SHARE * even
    source = jnp.where(empty, state.chosen.argmax(), jnp.arange(len(empty)))

    def copied(tree: Any) -> Any:
        return {
            k: v
            if k == "encoder"
            else jax.tree.map(lambda leaf: leaf[source] if leaf.ndim else leaf, v)
            for k, v in tree.items()
        }

    params = copied(state.params)
    prototypes = params["prototypes"]
    noise = RESTART_NOISE * jax.random.normal(key, prototypes.shape)
    params["prototypes"] = prototypes + jnp.where(empty[:, None, None, None], noise, 0)
    return State(params, state.batch_stats, copied(state.adam), jnp.zeros_like(state.chosen))


@partial(jax.jit, static_argnames="config")
def _initial(key: jax.Array, images: jax.Array, config: Config) -> State:
    """Draw prototypes among the public images, and regressors whose last layers are 0."""
    prototype_key, network_key, regressor_key = jax.random.split(key, 3)
    first = jax.random.choice(prototype_key, len(images), (config.prototypes,), replace=False)
    prototypes = images[first].astype(jnp.float32) / 255
    variables = ResNet(config.width, config.blocks).init(
        jax.random.key(0), prototypes[:1], train=False
    )  # zero kernels draw nothing from the key
    params = {"prototypes": prototypes, "encoder": _with_kernels(network_key, variables["params"])}
    params |= _regressors(regressor_key, config.prototypes, 4 * config.width)
    adam = {name: ADAM.init(part) for name, part in params.items()}
    return State(params, variables["batch_stats"], adam, jnp.zeros(config.prototypes))


def _with_kernels(key: jax.Array, params: Any) -> Any:
    """Draw a network's convolutions at once, uniform with variance 2 / fan-in.

    Compiling one draw per layer would take seconds.
    """
    shapes = {name: part["kernel"].shape for name, part in params.items() if "kernel" in part}
    ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
    drawn = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1, maxval=1), ends[:-1])
    limits = [(6 / np.prod(shape[:-1])) ** 0.5 for shape in shapes.values()]
    kernels = zip(shapes.items(), drawn, limits, strict=True)
    return params | {
        name: {"kernel": float(limit) * values.reshape(shape)}
        for (name, shape), values, limit in kernels
    }


def _regressors(
    key: jax.Array, prototypes: int, num_features: int
) -> dict[str, list[tuple[jax.Array, jax.Array]]]:
    """Return the three layers' weights `[K, in, out]` and biases `[K, out]` per transformation."""
    hidden = []
    for layer_key, rows in zip(jax.random.split(key), (num_features, HIDDEN), strict=True):
        drawn = (
            jax.random.uniform(
                layer_key, (len(TRANSFORMATIONS), prototypes, rows + 1, HIDDEN), minval=-1, maxval=1
            )
            / rows**0.5
        )
        hidden.append((drawn[:, :, :-1], drawn[:, :, -1]))
    regressors = {}
    for number, (name, (_, size)) in enumerate(TRANSFORMATIONS.items()):
        last = jnp.zeros((prototypes, HIDDEN, size)), jnp.zeros((prototypes, size))
        regressors[name] = [*((weights[number], bias[number]) for weights, bias in hidden), last]
    return regressors


def _regress(layers: list[tuple[jax.Array, jax.Array]], features: jax.Array) -> jax.Array:
    """Return each prototype's parameters for each image, float32 `[K, n, size]`.

    `features` are `[n, f]`.
    """
    x = jnp.broadcast_to(features[None], (len(layers[0][0]), *features.shape))
    for weights, bias in layers[:-1]:
        x = nn.relu(jnp.matmul(x, weights) + bias[:, None])
    weights, bias = layers[-1]
    return jnp.matmul(x, weights) + bias[:, None]


def _parameters(
    config: Config, stage: int, params: Any, batch_stats: Any, images: jax.Array, train: bool
) -> tuple[list[jax.Array], Any]:
    """Return the parameters of the active transformations, and the new batch statistics.

    Each transformation's parameters are `[K, n, size]`.
    """
    if not stage:
        return [], batch_stats
    variables = {"params": params["encoder"], "batch_stats": batch_stats}
    features, updates = ResNet(config.width, config.blocks).apply(
        variables, images, train=train, mutable=["batch_stats"]
    )
    return [_regress(params[name], features) for name in list(TRANSFORMATIONS)[:stage]], updates[
        "batch_stats"
    ]


def _errors(prototypes: jax.Array, parameters: list[jax.Array], images: jax.Array) -> jax.Array:
    """Return mean squared errors `[n]` of images, each against its own transformed prototype.

    `images` are `[n, h, w, c]`, and each transformation's parameters are `[n, size]`.
    """
    for (transform, _), values in zip(TRANSFORMATIONS.values(), parameters, strict=False):
        prototypes = transform(prototypes, values)
    return jnp.mean((images - prototypes) ** 2, axis=(1, 2, 3))


def _distances(prototypes: jax.Array, parameters: list[jax.Array], images: jax.Array) -> jax.Array:
    """Return d_j of each image, float32 `[K, n]`.

    The prototypes are processed one after the other, so memory does not grow with K.
    """

    def of(prototype_and_parameters: tuple[jax.Array, list[jax.Array]]) -> jax.Array:
        prototype, values = prototype_and_parameters
        return _errors(jnp.broadcast_to(prototype[None], images.shape), values, images)

    distances: jax.Array = jax.lax.map(of, (prototypes, parameters))
    return distances


def _loss(
    config: Config, stage: int, params: Any, batch_stats: Any, images: jax.Array, present: jax.Array
) -> tuple[jax.Array, Any]:
    """Return the mean of min_j d_j over the present images, with new state.

    The state is the new batch statistics and the number of images that chose each prototype.
    """
    parameters, batch_stats = _parameters(
        config, stage, params, batch_stats=batch_stats, images=images, train=True
    )
    nearest = _distances(*jax.lax.stop_gradient((params["prototypes"], parameters)), images).argmin(
        axis=0
    )
    own = [values[nearest, jnp.arange(len(images))] for values in parameters]
    errors = _errors(params["prototypes"][nearest], own, images)
    chosen = jnp.zeros(config.prototypes).at[nearest].add(present)
    return jnp.sum(present * errors) / jnp.sum(present), (batch_stats, chosen)


@partial(jax.jit, static_argnames=("config", "stage"), donate_argnames="state")
def _step(
    config: Config,
    stage: int,
    state: State,
    images: jax.Array,
    index: jax.Array,
    present: jax.Array,
    rate: float,
) -> tuple[State, jax.Array]:
    """Train one batch; return the new state and the batch's loss."""
    batch = images[index].astype(jnp.float32) / 255
    active = ["prototypes", *(["encoder", *list(TRANSFORMATIONS)[:stage]] if stage else [])]

    def loss_of(trained: Any) -> tuple[jax.Array, Any]:
        return _loss(
            config,
            stage,
            state.params | trained,
            batch_stats=state.batch_stats,
            images=batch,
            present=present,
        )

    (loss, (batch_stats, chosen)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
        {name: state.params[name] for name in active}
    )
    params = dict(state.params)
    adam = dict(state.adam)
    for name in active:
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            change, adam[name] = ADAM.update(gradients[name], state.adam[name])
        params[name] = jax.tree.map(lambda value, by: value - rate * by, params[name], change)
    return State(params, batch_stats, adam, state.chosen + chosen), loss


EXAMPLES = (
    Config(prototypes=3, epochs=2, curriculum=(0.0, 1.0, 1.0), batch_size=30, width=2, blocks=1),
)

"""SCAN: image clusters learned from SimCLR's nearest neighbors.

The features of an image are its cluster probabilities.

1. `simclr` is trained on the public images. Each public image's nearest neighbors among the
   resulting features are found.
2. The backbone is trained further with a linear head. An image and a random neighbor, both strongly
   augmented, should fall into one cluster, and clusters should be equally large:

       mean of -log <p(image), p(neighbor)>  -  entropy_weight H(mean of p(image)),
       H(q) = -sum_c q_c log q_c

   Several heads are trained at once, and the head of the lowest loss over the last epoch is kept.
   The loss sees public images only. A choice by private images, as in the reverse k-NN paper's
   code, would have a privacy cost.

3. Self-labeling trains on images whose cluster has a probability above `threshold`. The network
   learns this cluster from strong augmentations of the image; each cluster counts equally.
   Cluster sizes drift if this goes on for long. On 1,500 of scikit-learn's digits the purity rose
   from 0.89 to 0.92 in 100 epochs and fell to 0.88 in 200, when a cluster of 205 images had 45.

No label is used, public or private, and the encoder is record-local. On CIFAR-10, use an
accelerator and `folder`.

Reference: Van Gansbeke, Vandenhende, Georgoulis, Proesmans & Van Gool, "SCAN: Learning to Classify
Images without Labels", 2020.
"""

import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax._internal import progress, pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.images import augment
from rknn_jax.neighbor_graph import without_itself
from rknn_jax.neighbors import distances, nearest
from rknn_jax.representations import Representation, simclr
from rknn_jax.representations.simclr import Network, State
from rknn_jax.types import Array

OWN_STAGES = 101
"""Number folded into the key of the stages after SimCLR.

SimCLR has the key itself, so a `folder` in which `simclr` was trained already holds that stage.
"""


@dataclass(frozen=True)
class Config(Representation):
    """Settings of SCAN.

    The defaults are the paper's. For CIFAR-10 choose `simclr.Config(backbone="resnet18")`.

    Attributes:
      pretraining: Settings of stage 1.
      clusters: Number of clusters, about the number of classes. Defaults to 10.
      num_neighbors: Neighbors of each image from which its partner is drawn, or all other images if
        there are fewer. Defaults to 20.
      heads: Number of heads in stage 2. Defaults to 3.
      entropy_weight: Weight of equal cluster sizes. Defaults to 5.
      epochs: Epochs of stage 2. Defaults to 50.
      batch_size: Images per step of stage 2, or all images if there are fewer. Defaults to 128.
      threshold: Probability above which an image counts in stage 3. Defaults to 0.99.
      self_label_epochs: Epochs of stage 3; 0 leaves the stage out. Defaults to 200.
      self_label_batch_size: Images per step of stage 3, or all images if there are fewer. Defaults
        to 1000.
      learning_rate: Learning rate of Adam in stages 2 and 3. Defaults to 1e-4.
      weight_decay: Decay of all weights, added to the gradient. Defaults to 1e-4.
    """

    pretraining: simclr.Config = field(default_factory=simclr.Config)
    clusters: int = 10
    num_neighbors: int = 20
    heads: int = 3
    entropy_weight: float = 5.0
    epochs: int = 50
    batch_size: int = 128
    threshold: float = 0.99
    self_label_epochs: int = 200
    self_label_batch_size: int = 1000
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.clusters < 2:
            raise ValueError(
                f"Expected clusters >= 2, got clusters={self.clusters}; the number of classes is "
                "a good choice."
            )
        for name in ("num_neighbors", "heads", "epochs", "batch_size", "self_label_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={getattr(self, name)}.")
        if self.self_label_epochs < 0:
            raise ValueError(
                "Expected self_label_epochs >= 0, got "
                f"self_label_epochs={self.self_label_epochs}; 0 leaves the stage out."
            )
        if not 0 <= self.threshold < 1:
            raise ValueError(
                f"Expected 0 <= threshold < 1, got threshold={self.threshold}; no probability is "
                "above 1."
            )
        for name, low in (
            ("learning_rate", np.nextafter(0, 1)),
            ("entropy_weight", 0),
            ("weight_decay", 0),
        ):
            if not low <= getattr(self, name) < np.inf:
                raise ValueError(
                    f"Expected a finite {name} {'>= 0' if low == 0 else '> 0'}, got "
                    f"{name}={getattr(self, name)}."
                )

    asks: ClassVar[bool] = True
    slow: ClassVar[bool] = True
    given: ClassVar[frozenset[str]] = frozenset({"clusters"})

    @property
    def backbone(self) -> str:
        """Name of the trained network."""
        return self.pretraining.backbone

    def for_task(self, num_classes: int, num_queries: int | None) -> Self:
        """Return the settings with a cluster for every query, or for every class by default."""
        return replace(self, clusters=num_queries or num_classes)

    def fit(self, key: jax.Array, images: Array, *, folder: Path | None = None) -> "Encoder":
        """Learn the encoder by `fit`, or resume its training in `folder`."""
        return fit(key, images, self, folder=folder)


@pytree.register
@dataclass(frozen=True, eq=False)
class Encoder:
    """Encoder by cluster probabilities.

    Attributes:
      variables: `params` and `batch_stats`, frozen.
      network: Network of the variables, with one output per cluster.
    """

    variables: Any
    network: Network = field(metadata=pytree.STATIC)

    def __call__(self, images: Array) -> jax.Array:
        """Return cluster probabilities, float32 `[n, clusters]`, from uint8 `[n, h, w, c]`.

        Row i depends on image i alone.
        """
        images = simclr.checked(images, self.network.backbone)
        return map_records(Encoder.describe, self, images)

    def describe(self, image: jax.Array) -> jax.Array:
        """Return the cluster probabilities of one image, `[clusters]`, from uint8 `[h, w, c]`."""
        return jax.nn.softmax(simclr.forward(self.network, self.variables, image[None])[0])


def fit(
    key: jax.Array,
    images: Array,
    config: Config = Config(),
    *,
    folder: str | Path | None = None,
    on_epoch: simclr.OnEpoch | None = None,
) -> Encoder:
    """Train all stages on public images.

    Args:
      key: Random key, consumed by the call.
      images: Public images, uint8 `[m, h, w, c]`, two or more.
      config: Settings of SCAN.
      folder: Folder of checkpoints of every stage, as for `simclr.fit`. Defaults to no checkpoints.
      on_epoch: Callback as for `simclr.fit`; the stages are called `simclr`, `cluster`, and
        `self_label`. Defaults to none.

    Warns:
      RuntimeWarning: If a cluster holds no public image.

    Raises:
      ValueError: As `simclr.fit`.
    """
    images = simclr.checked(images, config.pretraining.backbone)
    head_key, cluster_key, label_key = jax.random.split(jax.random.fold_in(key, OWN_STAGES), 3)
    place = Path(folder) / simclr.fingerprint("scan", key, images, config) if folder else None
    encode = simclr.fit(key, images, config.pretraining, folder=folder, on_epoch=on_epoch)
    with progress.phase("joining neighbors"):
        features = encode(images)
        index = nearest(features, features, min(config.num_neighbors + 1, len(images)))
        distance = distances(features, features, index)
    data = jax.device_put((images, without_itself(np.asarray(index), np.asarray(distance))[0]))

    width = encode.variables["params"]["hidden"]["kernel"].shape[0]
    kernel = nn.initializers.lecun_normal()(
        head_key, (width, config.heads * config.clusters), jnp.float32
    )
    params = {
        "backbone": encode.variables["params"]["backbone"],
        "head": {"kernel": kernel, "bias": jnp.zeros(kernel.shape[1])},
    }
    state = simclr.initial(
        encode.variables | {"params": params}, _optimizer(config), jnp.zeros(config.heads)
    )
    step = partial(_cluster_step, config, data)
    size = min(config.batch_size, len(images))
    state = simclr.train(
        "cluster",
        cluster_key,
        state,
        step=step,
        num_images=len(images),
        batch_size=size,
        epochs=config.epochs,
        folder=place and place / "cluster",
        on_epoch=on_epoch,
    )

    params = state.variables["params"] | {"head": _best_head(state, config)}
    state = simclr.initial(state.variables | {"params": params}, _optimizer(config), jnp.zeros(()))
    step = partial(_label_step, config, data[0])
    size = min(config.self_label_batch_size, len(images))
    state = simclr.train(
        "self_label",
        label_key,
        state,
        step=step,
        num_images=len(images),
        batch_size=size,
        epochs=config.self_label_epochs,
        folder=place and place / "self_label",
        on_epoch=on_epoch,
    )
    clusters = Encoder(state.variables, _network(config))
    used = len(np.unique(np.argmax(clusters(images), axis=1)))
    if used < config.clusters:
        warnings.warn(
            f"SCAN puts the public images into {used} of {config.clusters} clusters. Records of "
            "the missing clusters cannot be told apart; use representation=simclr, or train with "
            "self_label_epochs=0.",
            RuntimeWarning,
            stacklevel=2,
        )
    return clusters


@jax.jit
def cluster_loss(images: jax.Array, neighbors: jax.Array, entropy_weight: float) -> jax.Array:
    """Loss of stage 2, smallest for confident, shared clusters of equal sizes.

    An image and its neighbor should share a cluster.

    Args:
      images: Logits, float32 `[B, clusters]`.
      neighbors: Logits of one neighbor of each image, float32 `[B, clusters]`.
      entropy_weight: Weight of equal cluster sizes.

    Returns:
      Float32 scalar between `-entropy_weight log(clusters)` and infinity. The loss is 0 if all
      images are surely in one cluster.
    """
    log_image = jax.nn.log_softmax(images)
    log_neighbor = jax.nn.log_softmax(neighbors)
    consistency = -jnp.mean(jax.nn.logsumexp(log_image + log_neighbor, axis=1))
    log_share = jax.nn.logsumexp(log_image, axis=0) - jnp.log(
        len(images)
    )  # in logarithms, so that an empty cluster has a finite gradient
    return consistency + entropy_weight * jnp.sum(jnp.exp(log_share) * log_share)


@jax.jit
def self_label_loss(
    images: jax.Array, changed: jax.Array, threshold: float
) -> tuple[jax.Array, jax.Array]:
    """Loss of stage 3: cross-entropy of augmented images with their confident clusters.

    Args:
      images: Logits of the unchanged images, float32 `[B, clusters]`.
      changed: Logits of the same images under strong augmentation, float32 `[B, clusters]`.
      threshold: Probability above which an image is confident.

    Returns:
      The mean over the confident images, float32 `[]`, or 0 if there are none. Each image is
      weighted by the inverse of its cluster's number of confident images. The second value is the
      number of confident images, int32 `[]`.
    """
    probabilities = jax.lax.stop_gradient(jax.nn.softmax(images))
    confident = probabilities.max(1, keepdims=True) > threshold
    cluster = jnp.where(
        confident, jax.nn.one_hot(jnp.argmax(probabilities, axis=1), images.shape[1]), 0
    )
    size = cluster.sum(0)
    weight = cluster / jnp.maximum(size, 1)[None]  # the weights of each nonempty cluster sum to 1
    loss = -jnp.sum(weight * jax.nn.log_softmax(changed)) / jnp.maximum(weight.sum(), 1)
    return loss, size.sum().astype(jnp.int32)


def _network(config: Config, heads: int = 1) -> Any:
    return Network(config.pretraining.backbone, heads * config.clusters, hidden=False)


def _optimizer(config: Config) -> optax.GradientTransformation:
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay), optax.adam(config.learning_rate)
    )


def _best_head(state: State, config: Config) -> Any:
    """Return the head of the lowest loss over the last epoch."""
    start = int(jnp.argmin(state.loss)) * config.clusters
    return jax.tree.map(
        lambda array: array[..., start : start + config.clusters], state.variables["params"]["head"]
    )


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def _cluster_step(
    config: Config,
    data: tuple[jax.Array, jax.Array],
    key: jax.Array,
    state: State,
    index: jax.Array,
) -> State:
    partner_key, change_key = jax.random.split(jax.random.fold_in(key, state.step))
    images, neighbors = data
    partner = neighbors[
        index, jax.random.randint(partner_key, (len(index),), 0, neighbors.shape[1])
    ]
    batch = images[jnp.concatenate([index, partner])].astype(jnp.float32) / 255
    batch = augment.STRONG[config.pretraining.views](change_key, batch)

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        network = _network(config, config.heads)
        logits, batch_stats = network.apply(
            state.variables | {"params": params}, batch, train=True, mutable=["batch_stats"]
        )
        by_head = logits.reshape(2, len(index), config.heads, config.clusters).transpose(2, 0, 1, 3)
        losses = jax.vmap(lambda pair: cluster_loss(pair[0], pair[1], config.entropy_weight))(
            by_head
        )
        return losses.sum(), (losses, batch_stats)

    (_, (losses, batch_stats)), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state.variables["params"]
    )
    return simclr.updated(state, _optimizer(config), gradient, batch_stats=batch_stats, loss=losses)


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def _label_step(
    config: Config, images: jax.Array, key: jax.Array, state: State, index: jax.Array
) -> State:
    batch = images[index].astype(jnp.float32) / 255
    changed = augment.STRONG[config.pretraining.views](jax.random.fold_in(key, state.step), batch)
    network = _network(config)
    # Batch statistics, as in the authors' code. The running averages are those of augmented images.
    logits, averages = network.apply(state.variables, batch, train=True, mutable=["batch_stats"])

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        found, batch_stats = network.apply(
            averages | {"params": params}, changed, train=True, mutable=["batch_stats"]
        )
        loss, confident = self_label_loss(logits, found, config.threshold)
        return loss, (confident, batch_stats)

    (loss, (confident, batch_stats)), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state.variables["params"]
    )
    after = simclr.updated(state, _optimizer(config), gradient, batch_stats=batch_stats, loss=loss)
    # Without a confident image, the gradient is weight decay alone, and Adam would make full steps
    # along it.
    after = jax.tree.map(lambda new, old: jnp.where(confident > 0, new, old), after, state)
    counted: State = after._replace(step=state.step + 1)
    return counted


# Stage 3 is left out, because compiling it takes as long as all the rest.
EXAMPLES = (
    Config(
        simclr.EXAMPLES[0],
        clusters=4,
        num_neighbors=5,
        heads=2,
        epochs=1,
        batch_size=30,
        self_label_epochs=0,
    ),
)

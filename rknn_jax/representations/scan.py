"""SCAN: clusters learnt from what SimCLR finds alike.

The features of an image are its probabilities of the clusters.

1. `simclr` is trained on the public images, and each public image's nearest neighbours among its
  features are found.
2. The backbone goes on with a linear head: an image and a neighbour drawn at random, both changed
   strongly, are to fall into one cluster, and the clusters are to be equally large,

       mean of -log <p(image), p(neighbour)>  -  entropy_weight H(mean of p(image)),    H(q) = -sum_c q_c log q_c

   Several heads are trained at once, and the one of the lowest loss over the last epoch is kept.
   Only public images are asked: a choice by private ones, as in the reverse k-NN paper's code,
   would have to be paid for.
3. Self-labelling: the clusters of images that are placed with a probability above `threshold` are
   learnt from strong changes of them, each cluster counted equally.

No label is used, public or private, and any image is placed by itself. On CIFAR-10 this takes an
accelerator and `folder`.

Reference: Van Gansbeke, Vandenhende, Georgoulis, Proesmans & Van Gool, "SCAN: Learning to Classify
Images without Labels", 2020.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax._internal import pytree
from rknn_jax.images import augment
from rknn_jax.neighbor_graph import without_itself
from rknn_jax.neighbors import nearest
from rknn_jax.representations import simclr
from rknn_jax.representations.simclr import Network, State
from rknn_jax.types import Array

OWN_STAGES = 101
"""Folded into the key for what follows SimCLR, which has the key itself, so that a `folder`
where `simclr` was trained holds it already.
"""


@dataclass(frozen=True)
class Config:
    """How to learn the clusters.

    The defaults are the paper's; for CIFAR-10 choose `simclr.Config(backbone="resnet18")`.

    Attributes:
      pretraining: stage 1.
      clusters: about the number of classes.
      num_neighbors: of each image, from which its partner is drawn; all other images where there
        are fewer.
      heads: trained in stage 2.
      entropy_weight: how much equal sizes matter.
      epochs: of stage 2.
      batch_size: of stage 2; all images where there are fewer.
      threshold: probability above which an image teaches in stage 3.
      self_label_epochs: of stage 3; 0 leaves it out.
      self_label_batch_size: of stage 3; all images where there are fewer.
      learning_rate: Adam's, in stages 2 and 3.
      weight_decay: of all weights, added to the gradient.
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


@pytree.register
@dataclass(frozen=True, eq=False)
class Encoder:
    """Places images in clusters.

    Attributes:
      variables: `params` and `batch_stats`, frozen.
      network: what they belong to, with an output for each cluster.
    """

    variables: Any
    network: Network = field(metadata=pytree.STATIC)

    def __call__(self, images: Array) -> jax.Array:
        """Return the clusters' probabilities, float32 `[n, clusters]`, from uint8 `[n, h, w,
        c]`; row i depends on image i alone.
        """
        return jax.nn.softmax(simclr.apply(self.network, self.variables, images))


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
      key: is consumed.
      images: uint8 `[m, h, w, c]`, public, two or more.
      config: see `Config`.
      folder: as in `simclr.fit`; every stage is saved there.
      on_epoch: as in `simclr.fit`; the stages are called `simclr`, `cluster` and `self_label`.

    Raises:
      ValueError: as `simclr.fit`.
    """
    images = simclr.checked(images, config.pretraining.backbone)
    head_key, cluster_key, label_key = jax.random.split(jax.random.fold_in(key, OWN_STAGES), 3)
    place = Path(folder) / simclr.fingerprint("scan", key, images, config) if folder else None
    encode = simclr.fit(key, images, config.pretraining, folder=folder, on_epoch=on_epoch)
    features = encode(images)
    index, distance = nearest(features, features, min(config.num_neighbors + 1, len(images)))
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
        step,
        len(images),
        size,
        config.epochs,
        place and place / "cluster",
        on_epoch,
    )

    params = state.variables["params"] | {"head": _best_head(state, config)}
    state = simclr.initial(state.variables | {"params": params}, _optimizer(config), jnp.zeros(()))
    step = partial(_label_step, config, data[0])
    size = min(config.self_label_batch_size, len(images))
    state = simclr.train(
        "self_label",
        label_key,
        state,
        step,
        len(images),
        size,
        config.self_label_epochs,
        place and place / "self_label",
        on_epoch,
    )
    return Encoder(state.variables, _network(config))


@jax.jit
def cluster_loss(images: jax.Array, neighbors: jax.Array, entropy_weight: float) -> jax.Array:
    """Return the loss of stage 2: least where neighbours surely share a cluster and clusters are
    equally large.

    Args:
      images: logits, float32 `[B, clusters]`.
      neighbors: logits of a neighbour of each.
      entropy_weight: how much equal sizes matter.

    Returns:
      float32 `[]`, between `-entropy_weight log(clusters)` and infinity; 0 where all images are
      surely in one cluster.
    """
    log_image = jax.nn.log_softmax(images)
    log_neighbor = jax.nn.log_softmax(neighbors)
    consistency = -jnp.mean(jax.nn.logsumexp(log_image + log_neighbor, axis=1))
    log_share = jax.nn.logsumexp(log_image, axis=0) - jnp.log(
        len(images)
    )  # as logarithms, an empty cluster has a finite gradient
    return consistency + entropy_weight * jnp.sum(jnp.exp(log_share) * log_share)


@jax.jit
def self_label_loss(
    images: jax.Array, changed: jax.Array, threshold: float
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of stage 3: the cross-entropy of changed images with the clusters of the
    images, if these are confident.

    Args:
      images: logits of the images, float32 `[B, clusters]`, which are taken as they are.
      changed: logits of the same images, strongly changed.
      threshold: probability above which an image is confident.

    Returns:
      The mean over the confident images, each weighted by the inverse of its cluster's number of
      them, float32 `[]` and 0 where there are none; and the number of confident images, int32 `[]`.
    """
    probabilities = jax.lax.stop_gradient(jax.nn.softmax(images))
    confident = probabilities.max(1, keepdims=True) > threshold
    cluster = jnp.where(
        confident, jax.nn.one_hot(jnp.argmax(probabilities, axis=1), images.shape[1]), 0
    )
    size = cluster.sum(0)
    weight = cluster / jnp.maximum(size, 1)[None]  # of each cluster that is there: 1 together
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
    return simclr.updated(state, _optimizer(config), gradient, batch_stats, losses)


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def _label_step(
    config: Config, images: jax.Array, key: jax.Array, state: State, index: jax.Array
) -> State:
    batch = images[index].astype(jnp.float32) / 255
    changed = augment.STRONG[config.pretraining.views](jax.random.fold_in(key, state.step), batch)
    network = _network(config)
    logits = network.apply(state.variables, batch, train=False)

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        found, batch_stats = network.apply(
            state.variables | {"params": params}, changed, train=True, mutable=["batch_stats"]
        )
        loss, confident = self_label_loss(logits, found, config.threshold)
        return loss, (confident, batch_stats)

    (loss, (confident, batch_stats)), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state.variables["params"]
    )
    after = simclr.updated(state, _optimizer(config), gradient, batch_stats, loss)
    # Without a confident image the gradient is the decay's alone, and Adam would make full steps of
    # it.
    after = jax.tree.map(lambda new, old: jnp.where(confident > 0, new, old), after, state)
    return after._replace(step=state.step + 1)


# Stage 3 would compile for as long as all the rest.
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

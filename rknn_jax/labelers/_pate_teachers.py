"""Teachers of PATE, trained side by side: each on its own records alone.

They are networks with one hidden layer on the features of an encoder, by full-batch AdamW: 250 of
them take seconds on two cores, while the paper's convolutional teachers would take hours. Their
accuracy is limited by the features. A record moves the weights of its own teacher and no other, bit
for bit, which is what the sensitivity of the votes stands on.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rknn_jax import bsvs
from rknn_jax._internal import compilation
from rknn_jax.types import Array

TEACHERS = "teachers"

AT_ONCE = 10
"""Teachers that one CPU trains together.

The records of few teachers stay in its caches for all steps: 250 of them take 0.6 of the time.
"""


class Training(NamedTuple):
    """Settings of the training, on which its compiled program depends.

    Attributes:
      hidden: Width of the hidden layer; 0 for a linear teacher.
      steps: Number of training steps.
      learning_rate: Learning rate at the first step.
      weight_decay: Weight decay of AdamW.
    """

    hidden: int
    steps: int
    learning_rate: float
    weight_decay: float


def rows_of(part: np.ndarray, num_teachers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of each teacher, padded to one length.

    Returns:
      `(index, present)`. `index` is int64 `[num_teachers, most]`, padded with index n. `present` is
      float32 of the same shape, 0 for the padding and 1 for records.
    """
    size = np.bincount(part, minlength=num_teachers)
    order = np.argsort(part, kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    index = np.full((num_teachers, size.max()), len(order))
    present = np.zeros(index.shape, np.float32)
    index[part[order], place] = order
    present[part[order], place] = 1
    return index, present


def predictions(
    key: jax.Array,
    features: Array,
    labels: Array,
    part: np.ndarray,
    num_teachers: int,
    asked: Array,
    num_classes: int,
    training: Training,
) -> np.ndarray:
    """Train all teachers, on all devices, and return their predictions.

    Args:
      key: Random key of the first weights, which is consumed.
      features: float32 `[n, f]`, private.
      labels: Integers `[n]`. A record trains no teacher if its label is not a class, or if its
        features are not finite.
      part: int64 `[n]`, teacher of each record, from 0 to num_teachers - 1.
      num_teachers: Number of teachers. One without records predicts by its first weights.
      asked: float32 `[s, f]`, public features of the queries, by which features are centered and
        scaled.
      num_classes: Number of classes |Y|.
      training: Settings of the training.

    Returns:
      int32 `[num_teachers, s]`, private.
    """
    asked = np.asarray(asked, np.float32)
    centre = asked.mean(axis=0)
    scale = np.sqrt(asked.var(axis=0).mean()) + 1e-12
    index, present = rows_of(part, num_teachers)
    known = np.append(bsvs.voting_labels(np.asarray(labels), num_classes), 0)[index]
    devices = jax.devices()[
        : max(count for count in range(1, jax.device_count() + 1) if len(index) % count == 0)
    ]
    over_teachers = NamedSharding(Mesh(np.array(devices), (TEACHERS,)), PartitionSpec(TEACHERS))
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (np.asarray(features).astype(np.float32) - centre) / scale
    finite = np.isfinite(scaled).all(axis=1)
    scaled = np.vstack([np.where(finite[:, None], scaled, 0), np.zeros_like(asked[:1])])
    learned = present * ((known >= 0) & np.append(finite, False)[index]).astype(np.float32)
    shards = jax.device_put((scaled[index], np.maximum(known, 0), learned), over_teachers)
    keys = jax.device_put(jax.random.split(key, len(index)), over_teachers)
    alone = len(devices) == 1 and jax.default_backend() == "cpu"
    at_once = AT_ONCE if alone else None
    asked = (asked - centre) / scale
    return np.asarray(_predictions(keys, *shards, asked, num_classes, training, at_once))


@functools.partial(
    jax.jit,
    static_argnames=("num_classes", "training", "at_once"),
    compiler_options=compilation.moderate(),
)
def _predictions(
    keys: jax.Array,
    features: jax.Array,
    labels: jax.Array,
    present: jax.Array,
    asked: jax.Array,
    num_classes: int,
    training: Training,
    at_once: int | None,
) -> jax.Array:
    """Return the predictions of all teachers, `at_once` of them trained together, or all."""

    def teacher(own: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> jax.Array:
        key, features, labels, present = own
        params = _first_weights(key, features.shape[1], training.hidden, num_classes)
        params = taught(
            params,
            _logits,
            features,
            labels=labels,
            present=present,
            steps=training.steps,
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
        )
        return jnp.argmax(_logits(params, asked), axis=1).astype(jnp.int32)

    parts = (keys, features, labels, present)
    if at_once is None:
        return jax.vmap(teacher)(parts)
    found: jax.Array = jax.lax.map(teacher, parts, batch_size=at_once)
    return found


def taught(
    params: Any,
    logits_of: Callable[[Any, jax.Array], jax.Array],
    features: jax.Array,
    labels: jax.Array,
    present: jax.Array,
    steps: int,
    learning_rate: float,
    weight_decay: float,
) -> Any:
    """Train one teacher by AdamW on all its records at once. It is vmapped over teachers.

    The learning rate falls to 0 along a cosine.

    Args:
      params: Parameters at the start.
      logits_of: Map of parameters and features to logits.
      features: float32 `[most, f]`.
      labels: int32 `[most]`.
      present: float32 `[most]`, 0 for padding. A teacher without records follows the decay alone.
      steps: Number of training steps.
      learning_rate: Learning rate at the first step.
      weight_decay: Weight decay of AdamW.
    """
    optimizer = optax.adamw(
        optax.cosine_decay_schedule(learning_rate, steps), weight_decay=weight_decay
    )

    def loss_of(params: Any) -> jax.Array:
        lost = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, features), labels)
        return jnp.sum(present * lost) / jnp.maximum(jnp.sum(present), 1)

    def step(_: Any, state: Any) -> Any:
        params, moments = state
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            change, moments = optimizer.update(jax.grad(loss_of)(params), moments, params)
        return optax.apply_updates(params, change), moments

    return jax.lax.fori_loop(0, steps, step, (params, optimizer.init(params)))[0]


def _first_weights(
    key: jax.Array, width: int, hidden: int, num_classes: int
) -> list[tuple[jax.Array, jax.Array]]:
    sizes = [width, hidden, num_classes] if hidden else [width, num_classes]
    keys = jax.random.split(key, len(sizes) - 1)
    draw = jax.nn.initializers.he_normal()
    return [
        (draw(k, (a, b), jnp.float32), jnp.zeros((b,), jnp.float32))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _logits(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for number, (weight, bias) in enumerate(params):
        x = jnp.matmul(jax.nn.relu(x) if number else x, weight) + bias[None]
    return x

"""Teachers of PATE, trained side by side: each on its own records alone.

They are networks with one hidden layer on the features of an encoder, by full-batch AdamW: 250 of
them take seconds on two cores, while the paper's convolutional teachers would take hours. Their
accuracy is limited by the features.

A record moves the weights of its own teacher and no other, bit for bit, which is what the
sensitivity of the votes stands on. So each teacher is trained by a program of its own, whose shape
is that of its own records, padded: a program of several teachers has one length for all, and the
order in which a teacher's records are added up, and so its last bits, would depend on the largest
of them. On a tie of two classes, they decide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax import bsvs
from rknn_jax._internal.one_record import map_records
from rknn_jax.types import Array

AT_A_TIME = 8
"""Teachers that one core trains, one after the other, before it takes others."""


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


class Lessons(NamedTuple):
    """Records of one teacher, or of several: private.

    Attributes:
      features: float32 `[..., most, f]`, padded with zeros.
      labels: int32 `[..., most]`, padded with 0.
      present: float32 `[..., most]`, 1 for a record that is learned, and 0 for others and padding.
    """

    features: Array
    labels: Array
    present: Array


def map_teachers(
    teach: Callable[[Any, tuple[Any, Lessons]], jax.Array],
    public: Any,
    own: Any,
    records: tuple[np.ndarray, np.ndarray, np.ndarray],
    part: np.ndarray,
) -> np.ndarray:
    """Train every teacher alone, and return what each gives.

    Row i of the result depends on `public`, on row i of `own` and on the records of teacher i
    alone, bit for bit.

    Args:
      teach: Function of `(public, (own, lessons))`, as for `map_records`.
      public: Pytree of public values.
      own: Array `[num_teachers, ...]`, or a pytree of such arrays, what each teacher begins with.
      records: Features float32 `[n, f]`, labels int `[n]` and bool `[n]`, False for a record that
        trains nobody.
      part: int64 `[n]`, teacher of each record.

    Returns:
      `[num_teachers, ...]`, private.
    """
    features, labels, learned = records
    num_teachers = len(jax.tree.leaves(own)[0])
    size = np.bincount(part, minlength=num_teachers)
    order = np.argsort(part, kind="stable")
    first = np.cumsum(size) - size
    length = np.array([_padded(int(one)) for one in size])

    def of_length(most: int) -> tuple[np.ndarray, np.ndarray]:
        teachers = np.flatnonzero(length == most)
        lessons = Lessons(
            np.zeros((len(teachers), most, features.shape[1]), np.float32),
            np.zeros((len(teachers), most), np.int32),
            np.zeros((len(teachers), most), np.float32),
        )
        for place, teacher in enumerate(teachers):
            rows = order[first[teacher] : first[teacher] + size[teacher]]
            lessons.features[place, : len(rows)] = features[rows]
            lessons.labels[place, : len(rows)] = labels[rows]
            lessons.present[place, : len(rows)] = learned[rows]
        begun = jax.tree.map(lambda rows: np.asarray(rows)[teachers], own)
        return teachers, np.asarray(map_records(teach, public, (begun, lessons), AT_A_TIME))

    found = [of_length(most) for most in np.unique(length).tolist()]
    teachers = np.concatenate([teachers for teachers, _ in found])
    return np.concatenate([made for _, made in found])[np.argsort(teachers)]


def _padded(size: int) -> int:
    """Return the length of a teacher's program: a power of 2, so that there are few.

    >>> [_padded(size) for size in (0, 8, 9, 100, 1025)]
    [8, 8, 16, 128, 2048]
    """
    return int(2 ** max(size - 1, 7).bit_length())


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
    """Train all teachers, each alone, and return their predictions.

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
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (np.asarray(features).astype(np.float32) - centre) / scale
    finite = np.isfinite(scaled).all(axis=1)
    known = bsvs.voting_labels(np.asarray(labels), num_classes)
    records = np.where(finite[:, None], scaled, 0), np.maximum(known, 0), (known >= 0) & finite
    keys = jax.random.key_data(jax.random.split(key, num_teachers))
    asked = (asked - centre) / scale
    return map_teachers(_Teacher(num_classes, training), asked, keys, records, part)


@dataclass(frozen=True)
class _Teacher:
    """Function that trains one teacher and returns its predictions, int32 `[s]`."""

    num_classes: int
    training: Training

    def __call__(self, asked: jax.Array, own: tuple[jax.Array, Lessons]) -> jax.Array:
        data, lessons = own
        hidden, steps, learning_rate, weight_decay = self.training
        key = jax.random.wrap_key_data(data)
        params = _first_weights(key, asked.shape[1], hidden, self.num_classes)
        params = taught(params, _logits, lessons, steps, learning_rate, weight_decay)
        return jnp.argmax(_logits(params, asked), axis=1).astype(jnp.int32)


def taught(
    params: Any,
    logits_of: Callable[[Any, jax.Array], jax.Array],
    lessons: Lessons,
    steps: int,
    learning_rate: float,
    weight_decay: float,
) -> Any:
    """Train one teacher by AdamW on all its records at once.

    The learning rate falls to 0 along a cosine.

    Args:
      params: Parameters at the start.
      logits_of: Map of parameters and features to logits.
      lessons: Records of the teacher. One without records follows the decay alone.
      steps: Number of training steps.
      learning_rate: Learning rate at the first step.
      weight_decay: Weight decay of AdamW.
    """
    optimizer = optax.adamw(
        optax.cosine_decay_schedule(learning_rate, steps), weight_decay=weight_decay
    )

    features, labels, present = map(jnp.asarray, lessons)

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

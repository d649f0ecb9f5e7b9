"""What students have in common that learn from few labelled public images and from many unlabelled
ones.

A step takes a batch of each kind of records. What it makes of them is its method's: an `Objective`
returns the loss of a batch. Optimizer, rates, averaged weights and stopping are those of
`rknn_jax.students.fit`, and so is the student.

For answers of a labeler, the queries can be the labelled records, or those public records whose
labels are sure. Nothing here sees private data: the targets are post-processing of a private
release.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from rknn_jax.students import fit as students
from rknn_jax.types import Array


class Batch(NamedTuple):
    """What a step learns from, n labelled and u unlabelled records.

    Attributes:
      images: float32 `[n, height, width, channels]` in [0, 1].
      targets: float32 `[n, num_classes]`.
      weights: float32 `[n]`, what each labelled record counts for; 0 where it only fills up the
        batch.
      unlabelled: float32 `[u, height, width, channels]` in [0, 1].
      present: float32 `[u]`, 1, and 0 where an unlabelled record only fills up the batch.
    """

    images: jax.Array
    targets: jax.Array
    weights: jax.Array
    unlabelled: jax.Array
    present: jax.Array


Apply = Callable[[jax.Array], tuple[jax.Array, Any]]
"""The network in training: images to logits, normalised by the statistics of these images, and the
new running statistics. They last only
where an objective returns them."""

Objective = Callable[[Any, jax.Array, Apply, Batch, jax.Array], tuple[jax.Array, Any]]
"""A method: takes its config, a key, the network, a batch and the share of the steps that are done
after this one. Returns the loss,
float32 scalar, and the running statistics that are to last."""


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    unlabelled: Array,
    config: Any,
    objective: Objective,
    *,
    unlabelled_ratio: int = 1,
    weights: Array | None = None,
    on_epoch: students.OnEpoch | None = None,
) -> students.Student:
    """Train a student on labelled and unlabelled records.

    An epoch is one pass over the kind that has more batches, while the other begins again as often
    as it takes.

    Args:
      key: is consumed.
      images: uint8 `[m, height, width, channels]`, labelled.
      targets: float32 `[m, num_classes]`, one-hot or soft labels; every row sums to 1.
      unlabelled: uint8 `[u, height, width, channels]`.
      config: the method's, hashable; `config.student` is the network and its optimizer.
      objective: the method.
      unlabelled_ratio: unlabelled records of a batch for each of `config.student.batch_size`
        labelled ones; of either kind all of them where there are fewer.
      weights: float32 `[m]`, what the loss of each labelled record counts for relative to the
        others; all the same by default. A record of weight 0 might as well not be there.
      on_epoch: as for `students.fit`; the loss is the mean over the epoch's steps.

    Returns:
      The student, as `students.fit` does; `config.student` is what it remembers of how it was
      trained.

    Raises:
      KeyboardInterrupt: where it came before the end of the first epoch.
      ValueError: where the arrays do not fit each other or the network.
    """
    student = config.student
    labelled = students.checked(student, images, targets, weights)
    unlabelled = np.asarray(unlabelled)
    image_shape = labelled[0].shape[1:]
    num_classes = labelled[1].shape[1]
    if unlabelled.dtype != np.uint8 or unlabelled.shape[1:] != image_shape or not len(unlabelled):
        raise ValueError(
            f"Expected unlabelled uint8 [u, {image_shape}] as the labelled images, u >= 1, got "
            f"{unlabelled.dtype} {unlabelled.shape}; use "
            "students.fit where there is none."
        )
    kinds = (
        (len(labelled[0]), student.batch_size),
        (len(unlabelled), unlabelled_ratio * student.batch_size),
    )
    sizes = [(num_records, min(batch_size, num_records)) for num_records, batch_size in kinds]
    epoch_steps = max(-(-num_records // batch_size) for num_records, batch_size in sizes)
    num_steps = student.epochs * epoch_steps
    init_key, step_key, *shuffle_keys = jax.random.split(key, 4)
    state = students.initial(student, num_steps, init_key, num_classes, labelled[0][:1])
    data = jax.device_put((labelled, unlabelled))
    chosen = zip(
        *(
            _passes(shuffle_key, *size)
            for shuffle_key, size in zip(shuffle_keys, sizes, strict=True)
        ),
        strict=True,
    )

    def step(state: students.State, chosen: Any) -> tuple[students.State, jax.Array]:
        return _step(objective, config, num_steps, step_key, state, data, chosen)

    def epoch_batches(epoch: int) -> Iterator[Any]:
        return itertools.islice(chosen, epoch_steps)

    return students.run(
        student, num_classes, image_shape, state, step, epoch_batches, epoch_steps, on_epoch
    )


def kl_divergence(probabilities: jax.Array, logits: jax.Array) -> jax.Array:
    """Return `sum_c p_c log(p_c / q_c)`, float32 `[n]`, q the softmax of `logits`; both `[n,
    num_classes]`. No gradient passes p.
    """
    fixed = jax.lax.stop_gradient(probabilities)
    return jnp.sum(xlogy(fixed, fixed) - fixed * jax.nn.log_softmax(logits), axis=1)


def _passes(
    key: jax.Array, num_records: int, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one pass after the other, without end."""
    for number in itertools.count():
        yield from students.batches(jax.random.fold_in(key, number), num_records, batch_size)


@partial(jax.jit, static_argnames=("objective", "config", "num_steps"), donate_argnames="state")
def _step(
    objective: Objective,
    config: Any,
    num_steps: int,
    key: jax.Array,
    state: students.State,
    data: Any,
    chosen: Any,
) -> tuple[students.State, jax.Array]:
    """Train one batch, chosen as index and presence of labelled and unlabelled records; returns
    its loss too.
    """
    (images, targets, weights), unlabelled = data
    (index, present), (unlabelled_index, unlabelled_present) = chosen
    batch = Batch(
        images[index].astype(jnp.float32) / 255,
        targets[index],
        weights[index] * present,
        unlabelled[unlabelled_index].astype(jnp.float32) / 255,
        unlabelled_present,
    )
    network = students.network_of(config.student, targets.shape[1])
    progress = (state.step + 1).astype(jnp.float32) / num_steps

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        def apply(images: jax.Array) -> tuple[jax.Array, Any]:
            return network.apply(
                state.variables | {"params": params}, images, train=True, mutable=["batch_stats"]
            )

        return objective(config, jax.random.fold_in(key, state.step), apply, batch, progress)

    (value, updates), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state.variables["params"]
    )
    return students.descend(config.student, num_steps, state, gradient, updates), value

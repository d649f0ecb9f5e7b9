"""Common settings and training loop of students that learn from unlabeled public images too.

A step takes a batch of each kind of records. The settings of a method have its `objective`, the
loss of a batch. Optimizer, learning rates, averaged weights, and stopping are those of
`rknn_jax.students.fit`, and so is the student.

The labeled records can be a labeler's queries, or those public records whose labels are confident.
Nothing here sees private data: the targets are post-processing of a private release.
"""

import abc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from rknn_jax._internal import compilation
from rknn_jax._internal.option_names import option
from rknn_jax.students import ensemble, inputs
from rknn_jax.students import fit as students
from rknn_jax.students.base import StudentSettings, Training
from rknn_jax.types import Array


class Batch(NamedTuple):
    """Input of a step: n labeled and u unlabeled records.

    Attributes:
      images: Labeled images, float32 `[n, height, width, channels]` in [0, 1], or scaled features
        `[n, f]`.
      targets: Target probabilities, float32 `[n, num_classes]`.
      weights: Weight of each labeled record, float32 `[n]`; 0 for padding.
      unlabelled: Unlabeled images or features, of the shape of `images` but for their number u.
      present: 1 for an unlabeled record, 0 for padding, float32 `[u]`.
    """

    images: jax.Array
    targets: jax.Array
    weights: jax.Array
    unlabelled: jax.Array
    present: jax.Array


Apply = Callable[[jax.Array], tuple[jax.Array, Any]]
"""The network in training: maps images to logits and the new running statistics.

Images are normalized by their own statistics. The running statistics are kept only if an objective
returns them.
"""


@dataclass(frozen=True, kw_only=True)
class SemiSupervisedSettings(StudentSettings):
    """Settings that all semi-supervised students have.

    Attributes:
      unlabelled: Share of the labeled public records that are treated as unlabeled, those whose
        labels are least sure. Records that no query labeled are always unlabeled. Defaults to 0.1.
      unlabelled_ratio: Unlabeled records in a batch for each labeled one. Defaults to 1.
      unlabelled_weight: Weight of the unlabeled records in the loss. Defaults to 1.
    """

    unlabelled: float = 0.1
    unlabelled_ratio: int = 1
    unlabelled_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.unlabelled < 1:
            raise ValueError(
                f"Expected 0 <= unlabelled < 1, got unlabelled={self.unlabelled}; 0.1 leaves the "
                "tenth whose labels are least sure without them."
            )
        if self.unlabelled_ratio < 1:
            raise ValueError(
                f"Expected unlabelled_ratio >= 1, got unlabelled_ratio={self.unlabelled_ratio}."
            )
        if not 0 <= self.unlabelled_weight < np.inf:
            raise ValueError(
                "Expected a finite unlabelled_weight >= 0, got "
                f"unlabelled_weight={self.unlabelled_weight}; 0 learns nothing from these records."
            )

    def check(self, labels_all: bool, backbone: str | None) -> None:
        """Check that records without a label will be left."""
        if labels_all and not self.unlabelled:
            raise ValueError(
                f"Expected unlabelled > 0 with semi_supervised={self.name} and a labeler that "
                f"labels all public records, got unlabelled={self.unlabelled}; pass "
                f"{option('unlabelled')} 0.1."
            )

    def fit_labels(self, training: Training) -> ensemble.Ensemble:
        """Train all members on the surest labels and on the images of all other records.

        `start` is not used: who learns from unlabeled records starts anew.
        """
        key, images, labels, _, on_epoch = training
        learned = labels.surest(1 - self.unlabelled)
        if learned.all():
            raise ValueError(
                f"Expected public records without a label with semi_supervised={self.name}, got "
                f"none; pass {option('unlabelled')} 0.1, or {option('smoothing')} none where "
                "queries are declined."
            )
        targets = labels.targets(self.targets)[learned]

        def fit_member(key: jax.Array, report: students.OnEpoch) -> students.Student:
            return fit(
                key,
                images[learned],
                targets,
                unlabelled=images[~learned],
                config=self,
                on_epoch=report,
            )

        return ensemble.fit_members(
            key, fit_member, self.members, epochs_each=self.student.epochs, on_epoch=on_epoch
        )

    @abc.abstractmethod
    def objective(
        self, key: jax.Array, apply: Apply, batch: Batch, progress: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return the loss of a batch, float32 scalar, and the running statistics to keep.

        Args:
          key: Random key of the step, consumed by the call.
          apply: The network in training.
          batch: Records of the step.
          progress: Share of the steps that are done after this one, float32 scalar.
        """


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    unlabelled: Array,
    config: SemiSupervisedSettings,
    *,
    weights: Array | None = None,
    on_epoch: students.OnEpoch | None = None,
) -> students.Student:
    """Train a student on labeled and unlabeled records.

    An epoch is one pass over the kind with more batches; the other kind is repeated as needed.

    Args:
      key: Random key, consumed by the call.
      images: Labeled images, uint8 `[m, height, width, channels]`, or features `[m, f]`.
      targets: One-hot or soft labels, float32 `[m, num_classes]`; every row sums to 1.
      unlabelled: Unlabeled records of the same kind and shape.
      config: Settings of the method; `config.student` is the network and its optimizer. A batch
        takes `config.student.batch_size` labeled records, and all records of a kind if there are
        fewer.
      weights: Relative weight of each labeled record in the loss, float32 `[m]`. Records of weight
        0 are left out. Defaults to equal weights.
      on_epoch: Callback as for `students.fit`; its loss is the mean over the epoch's steps.
        Defaults to none.

    Returns:
      The student, as for `students.fit`; it keeps only `config.student` of the settings.

    Raises:
      KeyboardInterrupt: If interrupted before the end of the first epoch.
      ValueError: If the arrays do not fit each other or the network.
    """
    student = config.student
    labelled = students.checked(student, images, targets, weights)
    unlabelled = np.asarray(unlabelled)
    image_shape = labelled[0].shape[1:]
    num_classes = labelled[1].shape[1]
    if unlabelled.ndim == 2 and len(unlabelled):
        unlabelled = inputs.as_arrays(unlabelled, "unlabelled")
    dtype = labelled[0].dtype
    if unlabelled.dtype != dtype or unlabelled.shape[1:] != image_shape or not len(unlabelled):
        raise ValueError(
            f"Expected unlabelled {dtype} [u, {image_shape}] as the labeled records, u >= 1, got "
            f"{unlabelled.dtype} {unlabelled.shape}; use students.fit where there is none."
        )
    scale = inputs.Scale.of(labelled[0], unlabelled)
    if scale:
        labelled, unlabelled = (scale(labelled[0]), *labelled[1:]), scale(unlabelled)
    kinds = (
        (len(labelled[0]), student.batch_size),
        (len(unlabelled), config.unlabelled_ratio * student.batch_size),
    )
    sizes = [(num_records, min(batch_size, num_records)) for num_records, batch_size in kinds]
    epoch_steps = max(-(-num_records // batch_size) for num_records, batch_size in sizes)
    num_steps = student.epochs * epoch_steps
    init_key, step_key, *shuffle_keys = jax.random.split(key, 4)
    state = students.initial(
        student, num_steps, init_key, num_classes=num_classes, images=labelled[0][:1]
    )
    data = jax.device_put((labelled, unlabelled))
    chosen = zip(
        *(
            _passes(shuffle_key, *size)
            for shuffle_key, size in zip(shuffle_keys, sizes, strict=True)
        ),
        strict=True,
    )

    def step(state: students.State, chosen: Any) -> tuple[students.State, jax.Array]:
        after: tuple[students.State, jax.Array] = _step(
            config, num_steps, key=step_key, state=state, data=data, chosen=chosen
        )
        return after

    def epoch_batches(epoch: int) -> Iterator[Any]:
        return itertools.islice(chosen, epoch_steps)

    return students.run(
        student,
        num_classes,
        image_shape,
        state=state,
        step=step,
        epoch_batches=epoch_batches,
        num_batches=epoch_steps,
        on_epoch=on_epoch,
        scale=scale,
    )


def kl_divergence(probabilities: jax.Array, logits: jax.Array) -> jax.Array:
    """Divergence `sum_c p_c log(p_c / q_c)`, float32 `[n]`, with q the softmax of `logits`.

    Both arguments are `[n, num_classes]`. No gradient passes through p.
    """
    fixed = jax.lax.stop_gradient(probabilities)
    return jnp.sum(xlogy(fixed, fixed) - fixed * jax.nn.log_softmax(logits), axis=1)


def _passes(
    key: jax.Array, num_records: int, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one pass after the other, without end."""
    for number in itertools.count():
        yield from students.batches(jax.random.fold_in(key, number), num_records, batch_size)


@partial(
    jax.jit,
    static_argnames=("config", "num_steps"),
    donate_argnames="state",
    compiler_options=compilation.moderate(),
)
def _step(
    config: SemiSupervisedSettings,
    num_steps: int,
    key: jax.Array,
    state: students.State,
    data: Any,
    chosen: Any,
) -> tuple[students.State, jax.Array]:
    """Train one batch, chosen by index and presence of labeled and unlabeled records.

    Returns:
      The new state and the batch's loss.
    """
    (images, targets, weights), unlabelled = data
    (index, present), (unlabelled_index, unlabelled_present) = chosen
    batch = Batch(
        inputs.prepared(images[index]),
        targets[index],
        weights[index] * present,
        unlabelled=inputs.prepared(unlabelled[unlabelled_index]),
        present=unlabelled_present,
    )
    network = students.network_of(config.student, targets.shape[1])
    progress = (state.step + 1).astype(jnp.float32) / num_steps

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        def apply(images: jax.Array) -> tuple[jax.Array, Any]:
            applied: tuple[jax.Array, Any] = network.apply(
                state.variables | {"params": params}, images, train=True, mutable=["batch_stats"]
            )
            return applied

        return config.objective(jax.random.fold_in(key, state.step), apply, batch, progress)

    (value, updates), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        state.variables["params"]
    )
    return students.descend(
        config.student, num_steps, state, gradient=gradient, updates=updates
    ), value

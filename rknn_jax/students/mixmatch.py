"""Train a student on few labelled public images and many unlabelled ones, by MixMatch.

1. Each labelled image of a batch is augmented once, each unlabelled one `num_guesses` times. The guess for an unlabelled image is the
   student's mean prediction over its augmentations, sharpened, and stands as the target of all of them.
2. Every row is mixed with a random other one of the whole batch, images and targets alike: lam own + (1 - lam) other, lam >= 1/2.
3. The loss is the cross-entropy of the labelled rows, and a multiple of the guesses' squared error that rises from zero over the steps.

What MixMatch leaves open is settled so. lam is drawn for each row, as by its authors, and not once for a batch. One pass through the
network takes the whole mixed batch, so that batch normalisation sees labelled and unlabelled rows together, which is what interleaving
their batches is for; the guesses use statistics of their own batch and leave no trace in the running ones. Optimizer, rates, averaged
weights and augmentations are those of `rknn_jax.students.fit`, and so is the student.

For answers of a labeler, the queries can be the labelled records, or those public records whose labels are sure. Nothing here sees
private data: the targets are post-processing of a private release.

Reference: Berthelot et al., "MixMatch: A Holistic Approach to Semi-Supervised Learning", 2019.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import augment
from rknn_jax.students import fit as students
from rknn_jax.types import Array


@dataclass(frozen=True)
class Config:
    """How to train on both kinds of records. The defaults are those of the reverse k-NN paper for SVHN, with 500 labelled images.

    Attributes:
      student: the network and its optimizer. A batch takes `batch_size` of each kind of records, all of them where there are fewer, and
        an epoch is one pass over the kind that has more batches, while the other begins again as often as it takes. The 67 epochs are
        then that paper's 51,200 steps.
      num_guesses: K, augmentations of an unlabelled image that share a guess.
      temperature: T of the sharpening; 1 leaves guesses as they are.
      concentration: alpha of the Beta(alpha, alpha) that lam is drawn from.
      unlabelled_weight: of the squared error at the last step, lambda_u; MixMatch has 75 for CIFAR-10.
    """

    student: students.Config = field(
        default_factory=lambda: students.Config(
            model="wrn28_2", epochs=67, learning_rate=2e-3, weight_decay=0.02, label_smoothing=0.0, ema_decay=0.999, augmentation="crop"
        )
    )
    num_guesses: int = 2
    temperature: float = 0.5
    concentration: float = 0.75
    unlabelled_weight: float = 250.0

    def __post_init__(self) -> None:
        if self.num_guesses < 1:
            raise ValueError(f"Expected num_guesses >= 1, got num_guesses={self.num_guesses}.")
        if not 0 < self.temperature <= 1:
            raise ValueError(f"Expected 0 < temperature <= 1, got temperature={self.temperature}; 1 leaves guesses as they are.")
        if not 0 < self.concentration < np.inf:
            raise ValueError(f"Expected a finite concentration > 0, got concentration={self.concentration}.")
        if not 0 <= self.unlabelled_weight < np.inf:
            raise ValueError(f"Expected a finite unlabelled_weight >= 0, got unlabelled_weight={self.unlabelled_weight}.")


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    unlabelled: Array,
    config: Config = Config(),
    *,
    weights: Array | None = None,
    on_epoch: students.OnEpoch | None = None,
) -> students.Student:
    """Train a student on labelled and unlabelled records.

    Args:
      key: is consumed.
      images: uint8 `[m, height, width, channels]`, labelled.
      targets: float32 `[m, num_classes]`, one-hot or soft labels; every row sums to 1.
      unlabelled: uint8 `[u, height, width, channels]`.
      config: how.
      weights: float32 `[m]`, what the loss of each labelled record counts for relative to the others; all the same by default. A record
        of weight 0 might as well not be there.
      on_epoch: as for `students.fit`; the loss is the mean over the epoch's steps.

    Returns:
      The student, as `students.fit` does; `config.student` is what it remembers of how it was trained.

    Raises:
      KeyboardInterrupt: where it came before the end of the first epoch.
      ValueError: where the arrays do not fit each other or the network.
    """
    labelled, unlabelled = students.checked(config.student, images, targets, weights), np.asarray(unlabelled)
    image_shape, num_classes = labelled[0].shape[1:], labelled[1].shape[1]
    if unlabelled.dtype != np.uint8 or unlabelled.shape[1:] != image_shape or not len(unlabelled):
        raise ValueError(
            f"Expected unlabelled uint8 [u, {image_shape}] as the labelled images, u >= 1, got {unlabelled.dtype} {unlabelled.shape}; use "
            "students.fit where there is none."
        )
    sizes = [(len(kind), min(config.student.batch_size, len(kind))) for kind in (labelled[0], unlabelled)]
    epoch_steps = max(-(-num_records // batch_size) for num_records, batch_size in sizes)
    num_steps = config.student.epochs * epoch_steps
    init_key, step_key, *shuffle_keys = jax.random.split(key, 4)
    state = students.initial(config.student, num_steps, init_key, num_classes, labelled[0][:1])
    data = jax.device_put((labelled, unlabelled))
    chosen = zip(*(_passes(shuffle_key, *size) for shuffle_key, size in zip(shuffle_keys, sizes, strict=True)), strict=True)

    def step(state: students.State, batch: Any) -> tuple[students.State, jax.Array]:
        return _step(config, num_steps, step_key, state, data, batch)

    def epoch_batches(epoch: int) -> Iterator[Any]:
        return itertools.islice(chosen, epoch_steps)

    return students.run(config.student, num_classes, image_shape, state, step, epoch_batches, epoch_steps, on_epoch)


def guess(logits: jax.Array, temperature: float) -> jax.Array:
    """Return targets for unlabelled images: their mean prediction, sharpened. No gradient passes.

    Args:
      logits: float32 `[num_guesses, n, num_classes]`, of each image's augmentations.
      temperature: of the sharpening.

    Returns:
      float32 `[n, num_classes]`.
    """
    return jax.lax.stop_gradient(sharpen(jax.nn.softmax(logits).mean(0), temperature))


def sharpen(probabilities: jax.Array, temperature: float) -> jax.Array:
    """Return `p_c^(1/T) / sum_d p_d^(1/T)`, float32 `[n, num_classes]`: for T = 1 what came in, for T -> 0 all on the likeliest class."""
    return jax.nn.softmax(jnp.log(probabilities) / temperature)  # powers of small numbers would be lost


def own_shares(key: jax.Array, num_rows: int, concentration: float) -> jax.Array:
    """Draw lam' ~ Beta(alpha, alpha) for each row and return max(lam', 1 - lam'), float32 `[num_rows]`: a row stays nearest to itself."""
    drawn = jax.random.beta(key, concentration, concentration, (num_rows,))
    return jnp.maximum(drawn, 1 - drawn)


def mix(share: jax.Array, other: jax.Array, values: jax.Array) -> jax.Array:
    """Return `share_i values_i + (1 - share_i) values_other(i)`.

    Args:
      share: float32 `[n]`.
      other: int32 `[n]`, the row that each is mixed with.
      values: float32 `[n, ...]`, images or targets.

    Returns:
      float32 of the same shape as `values`.
    """
    own = share.reshape(-1, *[1] * (values.ndim - 1))
    return own * values + (1 - own) * values[other]


def loss(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, num_labelled: int, unlabelled_weight: jax.Array, label_smoothing: float
) -> jax.Array:
    """Return the labelled rows' mean cross-entropy + `unlabelled_weight` times the others' mean squared error of probabilities.

    Args:
      logits: float32 `[n, num_classes]`, labelled rows first.
      targets: float32 `[n, num_classes]`.
      weights: float32 `[n]`, which multiply each row's part.
      num_labelled: rows that count as labelled.
      unlabelled_weight: float32 scalar.
      label_smoothing: of the labelled rows.

    Returns:
      float32 scalar. The squared error is a mean over rows and classes.
    """
    labelled = students.cross_entropy(logits[:num_labelled], targets[:num_labelled], label_smoothing)
    guessed = jnp.mean((jax.nn.softmax(logits[num_labelled:]) - targets[num_labelled:]) ** 2, axis=1)
    return jnp.mean(weights[:num_labelled] * labelled) + unlabelled_weight * jnp.mean(weights[num_labelled:] * guessed)


def _passes(key: jax.Array, num_records: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one pass after the other, without end."""
    for number in itertools.count():
        yield from students.batches(jax.random.fold_in(key, number), num_records, batch_size)


@partial(jax.jit, static_argnames=("config", "num_steps"), donate_argnames="state")
def _step(config: Config, num_steps: int, key: jax.Array, state: students.State, data: Any, batch: Any) -> tuple[students.State, jax.Array]:
    """Train one batch, of labelled and unlabelled records by index and presence; returns its loss too."""
    (images, targets, weights), unlabelled = data
    (index, present), (unlabelled_index, unlabelled_present) = batch
    augment_key, share_key, other_key = jax.random.split(jax.random.fold_in(key, state.step), 3)
    num_labelled, repeats = len(index), config.num_guesses
    images = jnp.concatenate([images[index], *[unlabelled[unlabelled_index]] * repeats]).astype(jnp.float32) / 255
    images = augment.AUGMENTATIONS[config.student.augmentation](augment_key, images)
    network = students.network_of(config.student, targets.shape[1])

    def apply(variables: Any, images: jax.Array) -> tuple[jax.Array, Any]:
        return network.apply(variables, images, train=True, mutable=["batch_stats"])

    predicted, _ = apply(state.variables, images[num_labelled:])
    guesses = guess(predicted.reshape(repeats, len(unlabelled_index), -1), config.temperature)
    targets = jnp.concatenate([targets[index], *[guesses] * repeats])
    weights = jnp.concatenate([weights[index] * present, *[unlabelled_present] * repeats])
    share = own_shares(share_key, len(images), config.concentration)
    other = jax.random.permutation(other_key, len(images))
    images, targets = mix(share, other, images), mix(share, other, targets)
    unlabelled_weight = config.unlabelled_weight * (state.step + 1).astype(jnp.float32) / num_steps

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        logits, updates = apply(state.variables | {"params": params}, images)
        return loss(logits, targets, weights, num_labelled, unlabelled_weight, config.student.label_smoothing), updates

    (value, updates), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.variables["params"])
    return students.descend(config.student, num_steps, state, gradient, updates), value

"""MixMatch training on few labeled public images and many unlabeled ones.

1. Each labeled image of a batch is augmented once, each unlabeled one `num_guesses` times. The
   guess for an unlabeled image is the student's mean prediction over its augmentations, sharpened.
   All augmentations of the image have this guess as their target.
2. Every row is mixed with a random other row of the whole batch, images and targets alike: lam own
   + (1 - lam) other, lam >= 1/2.
3. The loss is the cross-entropy of the labeled rows plus a multiple of the guesses' squared error.
   The multiple rises from zero over the steps.

Choices that MixMatch leaves open: lam is drawn for each row, as in the authors' code, and not once
per batch. One pass through the network takes the whole mixed batch, so batch normalization sees
labeled and unlabeled rows together. The authors interleave their batches for the same purpose. The
guesses use the statistics of their own batch and do not change the running ones. The rest of a step
is that of `rknn_jax.students.semi_supervised`.

Reference: Berthelot et al., "MixMatch: A Holistic Approach to Semi-Supervised Learning", 2019.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.students import fit as students
from rknn_jax.students import inputs, semi_supervised


@dataclass(frozen=True, kw_only=True)
class Config(semi_supervised.SemiSupervisedSettings):
    """Settings of MixMatch; the defaults suit MNIST-like images.

    For SVHN with 500 labeled images, the reverse k-NN paper takes 51,200 steps of `wrn28_2`, which
    are 67 epochs, with learning_rate=2e-3, weight_decay=0.02, ema_decay=0.999,
    augmentation="crop", and unlabelled_weight=250.

    Attributes:
      student: Network and optimizer. A batch takes `batch_size` labeled records, or all if there
        are fewer. Defaults to `fit.Config` without label smoothing.
      num_guesses: Number K of augmentations of an unlabeled image that share a guess. Defaults to
        2.
      temperature: Sharpening temperature T; 1 leaves guesses as they are. Defaults to 0.5.
      concentration: Parameter alpha of the Beta(alpha, alpha) that lam is drawn from. Defaults to
        0.75.
      unlabelled_weight: Weight lambda_u of the squared error at the last step. Defaults to 75,
        that of MixMatch for CIFAR-10.
    """

    student: students.Config = field(
        default_factory=lambda: students.Config(label_smoothing=0.0), kw_only=False
    )
    num_guesses: int = 2
    temperature: float = 0.5
    concentration: float = 0.75
    unlabelled_weight: float = 75.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_guesses < 1:
            raise ValueError(f"Expected num_guesses >= 1, got num_guesses={self.num_guesses}.")
        if not 0 < self.temperature <= 1:
            raise ValueError(
                f"Expected 0 < temperature <= 1, got temperature={self.temperature}; 1 leaves "
                "guesses as they are."
            )
        if not 0 < self.concentration < np.inf:
            raise ValueError(
                f"Expected a finite concentration > 0, got concentration={self.concentration}."
            )

    def objective(
        self,
        key: jax.Array,
        apply: semi_supervised.Apply,
        batch: semi_supervised.Batch,
        progress: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return the loss of a batch, and the running statistics after the mixed images."""
        augment_key, share_key, other_key = jax.random.split(key, 3)
        num_labelled = len(batch.images)
        repeats = self.num_guesses
        images = jnp.concatenate([batch.images, *[batch.unlabelled] * repeats])
        images = inputs.augmented(self.student.augmentation, augment_key, images)
        predicted, _ = apply(images[num_labelled:])
        guesses = guess(predicted.reshape(repeats, len(batch.unlabelled), -1), self.temperature)
        targets = jnp.concatenate([batch.targets, *[guesses] * repeats])
        weights = jnp.concatenate([batch.weights, *[batch.present] * repeats])
        share = own_shares(share_key, len(images), self.concentration)
        other = jax.random.permutation(other_key, len(images))
        logits, updates = apply(mix(share, other, images))
        unlabelled_weight = self.unlabelled_weight * progress
        return loss(
            logits,
            mix(share, other, targets),
            weights,
            num_labelled=num_labelled,
            unlabelled_weight=unlabelled_weight,
            label_smoothing=self.student.label_smoothing,
        ), updates


def guess(logits: jax.Array, temperature: float) -> jax.Array:
    """Return targets for unlabeled images: their mean prediction, sharpened. No gradient passes.

    Args:
      logits: Logits of each image's augmentations, float32 `[num_guesses, n, num_classes]`.
      temperature: Sharpening temperature.

    Returns:
      Float32 `[n, num_classes]`.
    """
    return jax.lax.stop_gradient(sharpen(jax.nn.softmax(logits).mean(0), temperature))


def sharpen(probabilities: jax.Array, temperature: float) -> jax.Array:
    """Return `p_c^(1/T) / sum_d p_d^(1/T)`, float32 `[n, num_classes]`.

    T = 1 leaves the probabilities as they are. T -> 0 puts all on the likeliest class.
    """
    return jax.nn.softmax(
        jnp.log(probabilities) / temperature
    )  # in logarithms, because powers of small numbers would underflow


def own_shares(key: jax.Array, num_rows: int, concentration: float) -> jax.Array:
    """Draw lam' ~ Beta(alpha, alpha) for each row and return max(lam', 1 - lam').

    Every mixed row is thus closest to its own image.

    Returns:
      Float32 `[num_rows]`.
    """
    drawn = jax.random.beta(key, concentration, concentration, (num_rows,))
    return jnp.maximum(drawn, 1 - drawn)


def mix(share: jax.Array, other: jax.Array, values: jax.Array) -> jax.Array:
    """Return `share_i values_i + (1 - share_i) values_other(i)`.

    Args:
      share: Weight of each row's own values, float32 `[n]`.
      other: Index of the row that each row is mixed with, int32 `[n]`.
      values: Images or targets, float32 `[n, ...]`.

    Returns:
      Float32 of the same shape as `values`.
    """
    own = share.reshape(-1, *[1] * (values.ndim - 1))
    return own * values + (1 - own) * values[other]


def loss(
    logits: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    num_labelled: int,
    unlabelled_weight: jax.Array,
    label_smoothing: float,
) -> jax.Array:
    """Sum of the labeled rows' cross-entropy and the other rows' weighted squared error.

    Args:
      logits: Logits with labeled rows first, float32 `[n, num_classes]`.
      targets: Target probabilities, float32 `[n, num_classes]`.
      weights: Factor of each row's term, float32 `[n]`.
      num_labelled: Number of rows that count as labeled.
      unlabelled_weight: Weight of the squared error of probabilities, float32 scalar.
      label_smoothing: Label smoothing of the labeled rows.

    Returns:
      Float32 scalar. The cross-entropy is a mean over rows, the squared error over rows and
      classes.
    """
    labelled = students.cross_entropy(
        logits[:num_labelled], targets[:num_labelled], label_smoothing
    )
    guessed = jnp.mean(
        (jax.nn.softmax(logits[num_labelled:]) - targets[num_labelled:]) ** 2, axis=1
    )
    return jnp.mean(weights[:num_labelled] * labelled) + unlabelled_weight * jnp.mean(
        weights[num_labelled:] * guessed
    )

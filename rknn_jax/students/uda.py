"""Train a student on few labelled public images and many unlabelled ones, by unsupervised data
augmentation (UDA).

What the student says of an image changed strongly is to be what it is sure of when it sees the
image changed little:

    loss = cross-entropy + unlabelled_weight 1[max_c p_c > confidence] KL(softmax(z / temperature) || q)

z and p = softmax(z) are the logits and probabilities of the image changed little, through which no
gradient passes, and q those of the image changed strongly. Both terms are means over their kind of
records, those below the confidence counted as zero.

What UDA leaves open is settled so. One pass takes labelled and strongly changed images together,
and its batch statistics last; images changed little are normalised by statistics of their own
batch, which leave no trace. That saves their backward pass.

Reference: Xie, Dai, Hovy, Luong & Le, "Unsupervised Data Augmentation for Consistency Training",
2020.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.images import augment
from rknn_jax.students import fit as students
from rknn_jax.students import semi_supervised
from rknn_jax.types import Array

Strong = Literal["digit", "photo"]


@dataclass(frozen=True)
class Config:
    """How to train on both kinds of records.

    The defaults are those of UDA but for the batches, which are smaller to suit a CPU.

    Attributes:
      student: the network and its optimizer. A batch takes `batch_size` labelled records, changed
        by `augmentation`.
      unlabelled_ratio: unlabelled records of a batch for each labelled one; UDA has 7.
      weak: how unlabelled images are changed little, a name in `rknn_jax.images.augment`.
      strong: how unlabelled images are changed strongly, a name in
        `rknn_jax.images.augment.STRONG`.
      temperature: of the targets; 1 leaves them as they are.
      confidence: probability above which an image teaches.
      unlabelled_weight: of the divergence.
    """

    student: students.Config = field(
        default_factory=lambda: students.Config(epochs=50, label_smoothing=0.0)
    )
    unlabelled_ratio: int = 4
    weak: augment.Name = "none"
    strong: Strong = "digit"
    temperature: float = 0.4
    confidence: float = 0.8
    unlabelled_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.unlabelled_ratio < 1:
            raise ValueError(
                f"Expected unlabelled_ratio >= 1, got unlabelled_ratio={self.unlabelled_ratio}."
            )
        for name, choices in (("weak", get_args(augment.Name)), ("strong", get_args(Strong))):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Expected {name} to be one of {', '.join(choices)}, got "
                    f"{name}={getattr(self, name)!r}."
                )
        if not 0 < self.temperature <= 1:
            raise ValueError(
                f"Expected 0 < temperature <= 1, got temperature={self.temperature}; 1 leaves "
                "targets as they are."
            )
        if not 0 <= self.confidence < 1:
            raise ValueError(
                f"Expected 0 <= confidence < 1, got confidence={self.confidence}; 0 lets every "
                "image teach."
            )
        if not 0 <= self.unlabelled_weight < np.inf:
            raise ValueError(
                "Expected a finite unlabelled_weight >= 0, got "
                f"unlabelled_weight={self.unlabelled_weight}."
            )


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
    """Train a student on labelled and unlabelled records by UDA; arguments, result and errors
    are those of `semi_supervised.fit`.
    """
    ratio = config.unlabelled_ratio
    return semi_supervised.fit(
        key,
        images,
        targets,
        unlabelled,
        config,
        objective,
        unlabelled_ratio=ratio,
        weights=weights,
        on_epoch=on_epoch,
    )


def objective(
    config: Config,
    key: jax.Array,
    apply: semi_supervised.Apply,
    batch: semi_supervised.Batch,
    progress: jax.Array,
) -> tuple[jax.Array, Any]:
    """Return the loss of a batch, and the running statistics after labelled and strongly changed
    images; see `semi_supervised`.
    """
    del progress
    labelled_key, weak_key, strong_key = jax.random.split(key, 3)
    num_labelled = len(batch.images)
    images = augment.AUGMENTATIONS[config.student.augmentation](labelled_key, batch.images)
    guessed, _ = apply(augment.AUGMENTATIONS[config.weak](weak_key, batch.unlabelled))
    logits, updates = apply(
        jnp.concatenate([images, augment.STRONG[config.strong](strong_key, batch.unlabelled)])
    )
    labelled = students.cross_entropy(
        logits[:num_labelled], batch.targets, config.student.label_smoothing
    )
    targets, sure = confident_targets(guessed, config.temperature, config.confidence)
    divergence = semi_supervised.kl_divergence(targets, logits[num_labelled:])
    return jnp.mean(batch.weights * labelled) + config.unlabelled_weight * jnp.mean(
        batch.present * sure * divergence
    ), updates


def confident_targets(
    logits: jax.Array, temperature: float, confidence: float
) -> tuple[jax.Array, jax.Array]:
    """Return sharpened predictions, and which of them are to be learned.

    Args:
      logits: float32 `[n, num_classes]`.
      temperature: of the sharpening.
      confidence: probability that the likeliest class has to have, before the sharpening.

    Returns:
      targets: float32 `[n, num_classes]`.
      sure: float32 `[n]`, 1 or 0.
    """
    sure = jax.nn.softmax(logits).max(axis=1) > confidence
    return jax.nn.softmax(logits / temperature), sure.astype(jnp.float32)

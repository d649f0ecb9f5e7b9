"""Unsupervised data augmentation (UDA) on few labeled and many unlabeled public images.

The student's confident prediction for a weakly augmented image is the target of the same image
under strong augmentation:

    loss = cross-entropy + unlabelled_weight 1[max_c p_c > confidence]
                           KL(softmax(z / temperature) || q)

z and p = softmax(z) are logits and probabilities of the weakly augmented image, through which no
gradient passes. q are the probabilities of the strongly augmented image. Both terms are means over
their kind of records; records below the confidence count as zero.

Choices that UDA leaves open: one pass takes labeled and strongly augmented images together and
updates the running batch statistics. Weakly augmented images are normalized by statistics of their
own batch, which are not kept. That saves their backward pass.

Reference: Xie, Dai, Hovy, Luong & Le, "Unsupervised Data Augmentation for Consistency Training",
2020.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from rknn_jax.images import augment
from rknn_jax.students import fit as students
from rknn_jax.students import inputs, semi_supervised

Strong = Literal["digit", "photo"]


@dataclass(frozen=True, kw_only=True)
class Config(semi_supervised.SemiSupervisedSettings):
    """Settings of UDA.

    The defaults are those of UDA, except for smaller batches that suit a CPU.

    Attributes:
      student: Network and optimizer. A batch takes `batch_size` labeled records, augmented by
        `augmentation`. Defaults to 50 epochs without label smoothing.
      unlabelled_ratio: Unlabeled records per labeled one in a batch. Defaults to 4; UDA has 7.
      weak: Weak augmentation of unlabeled images, a name in `rknn_jax.images.augment`. Defaults to
        `none`.
      strong: Strong augmentation of unlabeled images, a name in `rknn_jax.images.augment.STRONG`,
        or `auto`: `photo` if the labeled images are cropped, otherwise `digit`. Features instead
        take some of their values from other records. Defaults to `auto`.
      temperature: Sharpening temperature of the targets; 1 leaves them as they are. Defaults to
        0.4.
      confidence: Probability above which an image counts. Defaults to 0.8.
    """

    student: students.Config = field(
        default_factory=lambda: students.Config(epochs=50, label_smoothing=0.0), kw_only=False
    )
    unlabelled_ratio: int = 4
    weak: augment.Name = "none"
    strong: Strong | Literal["auto"] = "auto"
    temperature: float = 0.4
    confidence: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (
            ("weak", get_args(augment.Name)),
            ("strong", ("auto", *get_args(Strong))),
        ):
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

    @property
    def strong_augmentation(self) -> Strong:
        """Strong augmentation of unlabeled images, given or by the labeled images' own."""
        if self.strong != "auto":
            return self.strong
        return "photo" if self.student.augmentation.startswith("crop") else "digit"

    def objective(
        self,
        key: jax.Array,
        apply: semi_supervised.Apply,
        batch: semi_supervised.Batch,
        progress: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return a batch's loss and the new running statistics.

        The statistics come from labeled and strongly augmented images.
        """
        del progress
        labelled_key, weak_key, strong_key = jax.random.split(key, 3)
        num_labelled = len(batch.images)
        images = inputs.augmented(self.student.augmentation, labelled_key, batch.images)
        guessed, _ = apply(inputs.augmented(self.weak, weak_key, batch.unlabelled))
        strong = inputs.strongly_augmented(self.strong_augmentation, strong_key, batch.unlabelled)
        logits, updates = apply(jnp.concatenate([images, strong]))
        labelled = students.cross_entropy(
            logits[:num_labelled], batch.targets, self.student.label_smoothing
        )
        targets, sure = confident_targets(guessed, self.temperature, self.confidence)
        divergence = semi_supervised.kl_divergence(targets, logits[num_labelled:])
        return jnp.mean(batch.weights * labelled) + self.unlabelled_weight * jnp.mean(
            batch.present * sure * divergence
        ), updates


def confident_targets(
    logits: jax.Array, temperature: float, confidence: float
) -> tuple[jax.Array, jax.Array]:
    """Return sharpened predictions, and a mask of the confident ones.

    Args:
      logits: Logits, float32 `[n, num_classes]`.
      temperature: Sharpening temperature.
      confidence: Probability that the likeliest class must exceed before the sharpening.

    Returns:
      targets: Sharpened predictions, float32 `[n, num_classes]`.
      sure: 1 for a confident prediction, else 0, float32 `[n]`.
    """
    sure = jax.nn.softmax(logits).max(axis=1) > confidence
    return jax.nn.softmax(logits / temperature), sure.astype(jnp.float32)

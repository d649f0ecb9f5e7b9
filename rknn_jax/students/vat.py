"""Virtual adversarial training (VAT) on few labeled and many unlabeled public images.

The student's prediction should stay the same if an image moves a little in the direction d that
changes the prediction most:

    r = radius argmax_(|d| = 1) KL(p(x) || p(x + radius d))
    loss = cross-entropy + unlabelled_weight KL(p(x) || p(x + r)) + entropy_weight H(p(x))

No gradient passes through r or the divergence's p(x). Power iteration finds the direction from a
random start:

    d <- g / |g|,    g the gradient of KL(p(x) || p(x + r)) at r = radius d

For a small radius, this is power iteration on the divergence's second derivative. The paper takes
the gradient at 1e-6 d, which in float32 measures rounding errors. Rectifiers and maxima also have
another derivative there if an image is constant, as around digits. For a student of 700 MNIST
digits and a radius of 1.5, the direction found here gives a divergence of 3.8. The gradient at 0.01
d gives 2.6, the gradient at 1e-6 d 1.8, and a random direction 0.6.

Choices that VAT leaves open: one pass takes labeled and unlabeled images together and updates the
running batch statistics. Moved images are the same batch, normalized by their own statistics, which
are not kept. Divergence and entropy are means over both kinds.

Reference: Miyato, Maeda, Koyama & Ishii, "Virtual Adversarial Training: A Regularization Method for
Supervised and Semi-Supervised Learning", 2018.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.students import fit as students
from rknn_jax.students import inputs, semi_supervised


@dataclass(frozen=True, kw_only=True)
class Config(semi_supervised.SemiSupervisedSettings):
    """Settings of VAT; the defaults suit MNIST-like images.

    Attributes:
      student: Network and optimizer; a batch takes `batch_size` labeled records. Defaults to 25
        epochs without label smoothing.
      unlabelled_ratio: Unlabeled records per labeled one in a batch. Defaults to 2.
      radius: Length of an image's move, over all of its pixels in [0, 1]. Defaults to 1.5; VAT has
        about 3 for SVHN and 10 for CIFAR-10.
      iterations: Number of power iterations. Defaults to 1.
      entropy_weight: Weight of the entropy. Defaults to 1.
    """

    student: students.Config = field(
        default_factory=lambda: students.Config(epochs=25, label_smoothing=0.0), kw_only=False
    )
    unlabelled_ratio: int = 2
    radius: float = 1.5
    iterations: int = 1
    entropy_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise ValueError(f"Expected iterations >= 1, got iterations={self.iterations}.")
        if not 0 < self.radius < np.inf:
            raise ValueError(
                f"Expected a finite radius > 0, got radius={self.radius}; unlabelled_weight=0 "
                "leaves the divergence out."
            )
        if not 0 <= self.entropy_weight < np.inf:
            raise ValueError(
                f"Expected a finite entropy_weight >= 0, got entropy_weight={self.entropy_weight}; "
                "0 leaves the entropy out."
            )

    def objective(
        self,
        key: jax.Array,
        apply: semi_supervised.Apply,
        batch: semi_supervised.Batch,
        progress: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return the loss of a batch, and the running statistics after its unmoved images."""
        del progress
        augment_key, start_key = jax.random.split(key)
        num_labelled = len(batch.images)
        images = jnp.concatenate([batch.images, batch.unlabelled])
        images = inputs.augmented(self.student.augmentation, augment_key, images)
        present = jnp.concatenate([(batch.weights > 0).astype(jnp.float32), batch.present])

        def logits_of(images: jax.Array) -> jax.Array:
            return apply(images)[0]

        logits, updates = apply(images)
        labelled = students.cross_entropy(
            logits[:num_labelled], batch.targets, self.student.label_smoothing
        )
        perturbation = adversarial_perturbation(
            start_key, logits_of, images, radius=self.radius, iterations=self.iterations
        )
        divergence = semi_supervised.kl_divergence(
            jax.nn.softmax(logits), logits_of(images + perturbation)
        )
        spread = self.unlabelled_weight * divergence + self.entropy_weight * entropy(logits)
        return jnp.mean(batch.weights * labelled) + jnp.mean(present * spread), updates


def adversarial_perturbation(
    key: jax.Array,
    logits_of: Callable[[jax.Array], jax.Array],
    images: jax.Array,
    radius: float,
    iterations: int,
) -> jax.Array:
    """Return the move of each image that changes its prediction most. No gradient passes.

    Args:
      key: Random key of the random start, consumed by the call.
      logits_of: Function from float32 `[n, ...]` to logits `[n, num_classes]`.
      images: Images, float32 `[n, ...]`.
      radius: Length of each row of the result.
      iterations: Number of power iterations.

    Returns:
      Float32 `[n, ...]`; rows without a gradient keep the random start.
    """
    probabilities = jax.nn.softmax(logits_of(images))

    def divergence(perturbation: jax.Array) -> jax.Array:
        return jnp.sum(
            semi_supervised.kl_divergence(probabilities, logits_of(images + perturbation))
        )

    direction = unit(jax.random.normal(key, images.shape))
    for _ in range(iterations):
        gradient = jax.grad(divergence)(radius * direction)
        direction = jnp.where(_largest(gradient) > 0, unit(gradient), direction)
    return jax.lax.stop_gradient(radius * direction)


def unit(values: jax.Array) -> jax.Array:
    """Divide each row of float32 `[n, ...]` by its length, however small; zeros stay zeros."""
    largest = _largest(values)
    # Scale first, because squares of small numbers would underflow.
    scaled = values / jnp.where(largest > 0, largest, 1)
    length = jnp.sqrt(jnp.sum(scaled**2, axis=tuple(range(1, values.ndim)), keepdims=True))
    return scaled / jnp.where(length > 0, length, 1)


def entropy(logits: jax.Array) -> jax.Array:
    """Entropy `-sum_c p_c log p_c`, float32 `[n]`.

    p is the softmax of `logits` `[n, num_classes]`.
    """
    return -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=1)


def _largest(values: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(values), axis=tuple(range(1, values.ndim)), keepdims=True)

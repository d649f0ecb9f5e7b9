"""Per-example distillation gradients, bounded in length and noised.

Each teacher j compares its logits for image i with the student's, and returns the gradient of a
loss. The gradients are bounded, averaged over n teachers, and released with Gaussian noise:

    g_ij = d dkd(student_i, teacher_ij) / d student_i
    r_i = 1/n (sum_j bounded(g_ij) + N(0, sigma² C² I))

References: Zhao, Cui, Song, Qiu & Liang, "Decoupled Knowledge Distillation", 2022; Liu et al.,
"Model Conversion via Differentially Private Data-Free Distillation", 2023, eqs. 4 and 5.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

Bound = Literal["normalise", "clip"]

SLACK = 1e-6
"""Relative margin by which bounded gradients are shorter than C.

float32 rounds the length of ten numbers by less than that.
"""

SUMMED = 2.0**-23
"""Relative increase of the noise, for each teacher in a sum.

One teacher may move the rounding of the sum by this much, for each teacher in it.
"""

SMALLEST = 1e-12
"""Constant added to a length before it divides, the paper's e."""


@partial(jax.jit, static_argnames=("target_weight", "other_weight", "temperature"))
def logit_gradients(
    student: jax.Array,
    teachers: jax.Array,
    target_weight: float,
    other_weight: float,
    temperature: float,
) -> jax.Array:
    """Return the gradients of `dkd` by the student's logits, float32 `[n, B, K]`.

    Args:
      student: float32 `[B, K]`, logits of the student.
      teachers: float32 `[n, B, K]`, logits of n teachers.
      target_weight: Weight of the target class against all others.
      other_weight: Weight of the other classes among each other.
      temperature: Temperature of distillation.
    """

    def gradients(logits: jax.Array) -> jax.Array:
        def lost(student: jax.Array) -> jax.Array:
            return jnp.sum(
                dkd(
                    student,
                    logits,
                    target_weight,
                    other_weight=other_weight,
                    temperature=temperature,
                )
            )

        gradient: jax.Array = jax.grad(lost)(student)
        return gradient

    return jax.vmap(gradients)(teachers)


def dkd(
    student: jax.Array,
    teacher: jax.Array,
    target_weight: float,
    other_weight: float,
    temperature: float,
) -> jax.Array:
    """Return the loss of decoupled knowledge distillation. The target is the teacher's arg max.

    With p the teacher's softmax at the temperature, and t the target class, KL(teacher || student)
    = TCKD + (1 - p_t) NCKD. TCKD is the divergence of (p_t, 1 - p_t), and NCKD that of the other
    classes among each other. This loss has a free weight for each of the two.

    Args:
      student: float32 `[B, K]`, logits of the student.
      teacher: float32 `[B, K]`, logits of the teacher.
      target_weight: Weight of TCKD.
      other_weight: Weight of NCKD.
      temperature: Divisor of the logits. The loss is multiplied by its square.

    Returns:
      float32 `[B]`.
    """
    target = jax.nn.one_hot(jnp.argmax(teacher, axis=1), teacher.shape[1], dtype=bool)

    def logs(logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        scaled = logits / temperature
        others = jnp.where(target, -jnp.inf, scaled)
        all_of_them = jax.nn.logsumexp(scaled, axis=1)
        without = jax.nn.logsumexp(others, axis=1)
        own = jnp.sum(jnp.where(target, scaled, 0), axis=1)
        return (
            own - all_of_them,
            without - all_of_them,
            jnp.where(target, 0, scaled - without[:, None]),
        )

    (own, rest, others) = logs(teacher)
    (own_s, rest_s, others_s) = logs(student)
    target_part = jnp.exp(own) * (own - own_s) + jnp.exp(rest) * (rest - rest_s)
    other_part = jnp.sum(jnp.where(target, 0, jnp.exp(others)) * (others - others_s), axis=1)
    return temperature**2 * (target_weight * target_part + other_weight * other_part)


def bounded(gradients: jax.Array, clip: float, bound: Bound) -> jax.Array:
    """Bound the length of vectors along the last axis.

    Entries that are not finite become 0.

    Args:
      gradients: float32 array of vectors along the last axis.
      clip: Greatest length C.
      bound: `normalise` scales every vector to length C, `clip` only the longer ones.
    """
    gradients = jnp.where(jnp.isfinite(gradients), gradients, 0)
    length = jnp.linalg.norm(gradients, axis=-1, keepdims=True) + SMALLEST
    longest = clip * (1 - SLACK)
    return gradients * (
        longest / length if bound == "normalise" else jnp.minimum(1, longest / length)
    )


def release(
    key: jax.Array,
    gradients: jax.Array,
    multiplier: jax.Array,
    clip: float,
    bound: Bound,
    *,
    whole_batch: bool,
) -> jax.Array:
    """Return the noisy mean of the teachers' bounded gradients.

    Args:
      key: Random key of the noise, which is consumed.
      gradients: float32 `[n, B, K]`, private.
      multiplier: Noise multiplier sigma.
      clip: Greatest length C of a gradient.
      bound: Kind of bound, as in `bounded`.
      whole_batch: Whether the gradients of all images are summed too, with one noise.

    Returns:
      float32 `[B, K]`, or `[1, K]` for the whole batch.

    **Guarantee:** one teacher's gradients are at most C long each. A teacher that changes
    arbitrarily moves each row of the sum by 2C, and the sum of B rows by 2BC. Each row has noise of
    its own, of standard deviation sigma C.
    """
    total = jnp.sum(bounded(gradients, clip, bound), axis=0)
    count = len(gradients)
    multiplier = multiplier * (1 + SUMMED * count)
    if whole_batch:
        total, count = jnp.sum(total, axis=0, keepdims=True), total.shape[0] * count
    return (total + multiplier * clip * jax.random.normal(key, total.shape)) / count

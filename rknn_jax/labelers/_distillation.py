"""What teachers say of a student's logits, and how that is made private: the gradient of a loss,
bounded in length and made noisy.

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
"""Bounded gradients are made so much shorter than C, as float32 rounds a length of ten numbers
by less than that.
"""

SUMMED = 2.0**-23
"""By which one teacher may move the rounding of a sum, for each teacher in it, and the noise is
stronger.
"""

SMALLEST = 1e-12
"""Added to a length before it divides, the paper's e."""


@partial(jax.jit, static_argnames=("target_weight", "other_weight", "temperature"))
def logit_gradients(
    student: jax.Array,
    teachers: jax.Array,
    target_weight: float,
    other_weight: float,
    temperature: float,
) -> jax.Array:
    """Return the gradients of `dkd` by the student's logits, float32 `[n, B, K]`, for logits
    `[B, K]` and of n teachers `[n, B, K]`.
    """

    def gradients(logits: jax.Array) -> jax.Array:
        def lost(student: jax.Array) -> jax.Array:
            return jnp.sum(dkd(student, logits, target_weight, other_weight, temperature))

        return jax.grad(lost)(student)

    return jax.vmap(gradients)(teachers)


def dkd(
    student: jax.Array,
    teacher: jax.Array,
    target_weight: float,
    other_weight: float,
    temperature: float,
) -> jax.Array:
    """Return the loss of decoupled knowledge distillation, whose target class is the teacher's arg
    max.

    With p the teacher's softmax at the temperature, and t the target class, KL(teacher || student)
    = TCKD + (1 - p_t) NCKD, where TCKD is the divergence of (p_t, 1 - p_t) and NCKD that of the
    other classes among each other. This weighs both as it likes.

    Args:
      student: float32 `[B, K]`, logits.
      teacher: float32 `[B, K]`, logits.
      target_weight: of TCKD.
      other_weight: of NCKD.
      temperature: divides the logits; the loss is multiplied by its square.

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
    """Return vectors along the last axis no longer than `clip`: scaled to it, or those that are
    longer; 0 for what is no number.
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
      key: is consumed.
      gradients: float32 `[n, B, K]`, private.
      multiplier: sigma.
      clip: C.
      bound: how to.
      whole_batch: whether the gradients of all images are added up too, with one noise.

    Returns:
      float32 `[B, K]`, or `[1, K]` of the whole batch.

    **Guarantee:** one teacher's gradients are at most C long each, so a teacher that changes
    altogether moves each row of the sum by 2C, and the sum of B rows by 2BC. The noise of each row
    is sigma C and its own.
    """
    total = jnp.sum(bounded(gradients, clip, bound), axis=0)
    count = len(gradients)
    multiplier = multiplier * (1 + SUMMED * count)
    if whole_batch:
        total, count = jnp.sum(total, axis=0, keepdims=True), total.shape[0] * count
    return (total + multiplier * clip * jax.random.normal(key, total.shape)) / count

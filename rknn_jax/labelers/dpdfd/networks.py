"""Networks of data-free distillation, student and generator, and their optimizers."""

from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from rknn_jax.labelers.dpdfd.settings import Settings
from rknn_jax.students import fit
from rknn_jax.students.generator import Painter


def painter_of(image_shape: tuple[int, ...], config: Settings) -> Painter:
    """Return the generator's network."""
    height, width, channels = image_shape
    return Painter(
        (height, width, channels),
        config.width,
        config.margin_of(image_shape),
        config.pixel_mean,
        config.pixel_stddev,
    )


def first_painter(key: jax.Array, image_shape: tuple[int, ...], config: Settings) -> Any:
    """Return the generator's first parameters. `key` is consumed."""
    z = np.zeros((1, config.latent), np.float32)
    return drawn_painter(painter_of(image_shape, config), key, z)


@partial(jax.jit, static_argnames="painter")
def drawn_painter(painter: Painter, key: jax.Array, z: jax.Array) -> Any:
    """Return parameters for the noise z, float32 `[n, latent]`. `key` is consumed."""
    return painter.init(key, z)


def student_of(config: Settings, num_classes: int) -> Any:
    """Return the student's network."""
    return fit.network_of(fit.Config(config.student), num_classes)


def applied(
    network: Any, variables: Any, images: jax.Array, *, features: bool = False
) -> tuple[jax.Array, Any]:
    """Return the student's logits of images in training, or its features, and new statistics."""
    output: tuple[jax.Array, Any] = network.apply(
        variables, images, train=True, features=features, mutable=["batch_stats"]
    )
    return output


def student_optimizer(config: Settings) -> optax.GradientTransformation:
    """Return Adam with a learning rate that falls to 0 along a cosine."""
    num_updates = config.steps * config.updates
    return optax.adam(optax.cosine_decay_schedule(config.learning_rate, num_updates))


def generator_optimizer(config: Settings) -> optax.GradientTransformation:
    """Return Adam with a shorter memory, which is common for generators."""
    return optax.adam(config.generator_learning_rate, b1=0.5)

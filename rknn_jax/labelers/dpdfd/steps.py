"""Steps of data-free distillation: release targets, train the generator, train the student.

Teachers are asked in `release_targets` alone, and their answers leave it with noise.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rknn_jax.labelers._distillation import logit_gradients, release
from rknn_jax.labelers.dpdfd import networks
from rknn_jax.labelers.dpdfd.settings import Settings
from rknn_jax.labelers.dpdfd.teachers import Votes, answers
from rknn_jax.students import fit
from rknn_jax.students.generator import as_uint8


class State(NamedTuple):
    """State that a step changes: post-processing of the noisy gradients, without a key.

    Attributes:
      step: int32 `[]`, number of releases so far.
      update: int32 `[]`, number of the student's updates so far.
      generator: Parameters of the generator.
      generator_optimizer: Optax state of the generator.
      student: `params` and `batch_stats` of the student.
      student_optimizer: Optax state of the student.
      average: Average of the student over steps.
      images: uint8 `[slots, height, width, channels]`, images generated so far.
      targets: float32 `[slots, num_classes]`, targets of these images.
    """

    step: jax.Array
    update: jax.Array
    generator: Any
    generator_optimizer: Any
    student: Any
    student_optimizer: Any
    average: Any
    images: jax.Array
    targets: jax.Array


def first_state(
    key: jax.Array, image_shape: tuple[int, ...], num_classes: int, config: Settings
) -> State:
    """Return the state before the first step. `key` is consumed."""
    generator_key, student_key = jax.random.split(key)
    generator = networks.first_painter(generator_key, image_shape, config)
    network = networks.student_of(config, num_classes)
    student = fit.drawn(network, student_key, np.zeros((1, *image_shape), np.uint8))
    # With one update a step, the student learns from the latest release only.
    slots = config.batch_size * (config.steps if config.updates > 1 else 1)
    return State(
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        generator,
        generator_optimizer=networks.generator_optimizer(config).init(generator),
        student=student,
        student_optimizer=networks.student_optimizer(config).init(student["params"]),
        average=jax.tree.map(jnp.copy, student),
        images=jnp.zeros((slots, *image_shape), jnp.uint8),
        targets=jnp.zeros((slots, num_classes), jnp.float32),
    )


def with_new_generator(
    key: jax.Array, image_shape: tuple[int, ...], config: Settings, state: State
) -> State:
    """Return the state with another, untrained generator. `key` is consumed."""
    generator = networks.first_painter(key, image_shape, config)
    optimizer = networks.generator_optimizer(config).init(generator)
    return state._replace(generator=generator, generator_optimizer=optimizer)


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def release_targets(
    config: Settings, key: jax.Array, votes: Votes, multiplier: jax.Array, state: State
) -> State:
    """Generate images, query the teachers, store the noisy targets, and train the generator."""
    z_key, noise_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 0), state.step))
    generator = state.generator
    optimizer = state.generator_optimizer

    def loss_of(generator: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return _generated(
            config,
            z_key,
            noise_key,
            votes=votes,
            multiplier=multiplier,
            state=state,
            generator=generator,
        )

    if votes.images is not None and votes.labels is not None:
        images, targets = _private_targets(
            config,
            z_key,
            noise_key,
            private_images=votes.images,
            private_labels=votes.labels,
            multiplier=multiplier,
            state=state,
        )
    elif config.generator_learning_rate:
        gradient, (images, targets) = jax.grad(loss_of, has_aux=True)(generator)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            change, optimizer = networks.generator_optimizer(config).update(gradient, optimizer)
        generator = optax.apply_updates(generator, change)
    else:
        images, targets = loss_of(generator)[1]
    at = state.step * config.batch_size % len(state.images)
    return state._replace(
        step=state.step + 1,
        generator=generator,
        generator_optimizer=optimizer,
        images=jax.lax.dynamic_update_slice_in_dim(state.images, images, at, 0),
        targets=jax.lax.dynamic_update_slice_in_dim(state.targets, targets, at, 0),
    )


def _generated(
    config: Settings,
    z_key: jax.Array,
    noise_key: jax.Array,
    votes: Votes,
    multiplier: jax.Array,
    state: State,
    generator: Any,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Return the generator's loss, and generated images with their noisy targets.

    Teachers see images and logits as constants, so the generator learns from noisy targets alone.
    """
    painter = networks.painter_of(state.images.shape[1:], config)
    network = networks.student_of(config, state.targets.shape[1])
    images: jax.Array = painter.apply(
        generator, jax.random.normal(z_key, (config.batch_size, config.latent))
    )  # type: ignore[assignment]
    logits = networks.applied(network, state.student, images)[0]
    seen = as_uint8(jax.lax.stop_gradient(images))
    said = jax.lax.stop_gradient(logits)
    teachers = answers(votes, seen, logits.shape[1], config)
    gradients = logit_gradients(
        said,
        teachers,
        config.target_weight,
        other_weight=config.other_weight,
        temperature=config.temperature,
    )
    targets = _noisy_targets(config, noise_key, multiplier, logits=said, gradients=gradients)
    agreement = jnp.mean(fit.cross_entropy(logits, targets, 0.0))
    loss = config.agreement * agreement + _prediction_loss(logits, config)
    if config.activation:
        features = networks.applied(network, state.student, images, features=True)[0]
        loss -= config.activation * jnp.mean(jnp.abs(features))
    return loss, (seen, targets)


def _private_targets(
    config: Settings,
    index_key: jax.Array,
    noise_key: jax.Array,
    private_images: jax.Array,
    private_labels: jax.Array,
    multiplier: jax.Array,
    state: State,
) -> tuple[jax.Array, jax.Array]:
    """Return private images and targets, which have no guarantee: direct training, as published."""
    num_classes = state.targets.shape[1]
    network = networks.student_of(config, num_classes)
    index = jax.random.randint(index_key, (config.batch_size,), 0, len(private_images))
    images = private_images[index]
    logits = networks.applied(network, state.student, images.astype(jnp.float32) / 255)[0]
    gradients = jax.nn.softmax(logits) - jax.nn.one_hot(private_labels[index], num_classes)
    return images, _noisy_targets(
        config, noise_key, multiplier, logits=logits, gradients=gradients[None]
    )


def _noisy_targets(
    config: Settings,
    key: jax.Array,
    multiplier: jax.Array,
    logits: jax.Array,
    gradients: jax.Array,
) -> jax.Array:
    """Release the gradients with noise, and return the targets that follow from them."""
    noisy = release(
        key,
        gradients,
        multiplier,
        clip=config.clip,
        bound=config.bound,
        whole_batch=config.as_published == "single_teacher",
    )
    return jax.nn.softmax(logits - config.gamma * noisy)


def _prediction_loss(logits: jax.Array, config: Settings) -> jax.Array:
    """Return the generator's loss terms of one-hot predictions and of information entropy."""
    log = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log, jnp.argmax(logits, axis=1)[:, None], axis=1)
    mean = jnp.mean(jnp.exp(log), axis=0)
    one_hot = -config.one_hot * jnp.mean(own)
    return one_hot + config.information * jnp.sum(mean * jnp.log(mean + 1e-9))


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def train_student(config: Settings, key: jax.Array, state: State) -> State:
    """Train the student on the latest images, or on a draw of all so far.

    The targets are private already.
    """
    draw_key = jax.random.fold_in(jax.random.fold_in(key, 1), state.update)
    first = (state.step - 1) * config.batch_size % len(state.images)
    latest = first + jnp.arange(config.batch_size)
    so_far = state.step * config.batch_size
    any_of_them = jax.random.randint(draw_key, (config.batch_size,), 0, so_far)
    index = jnp.where(state.update % config.updates == 0, latest, any_of_them)
    images = state.images[index].astype(jnp.float32) / 255
    targets = state.targets[index]
    network = networks.student_of(config, targets.shape[1])
    params = state.student["params"]

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        logits, updates = networks.applied(network, state.student | {"params": params}, images)
        return jnp.mean(fit.cross_entropy(logits, targets, 0.0)), updates

    gradient, updates = jax.grad(loss_of, has_aux=True)(params)
    optimizer = networks.student_optimizer(config)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        change, optimizer_state = optimizer.update(gradient, state.student_optimizer)
    student = {**state.student, "params": optax.apply_updates(params, change), **updates}
    average = fit.average(state.average, student, state.update, config.ema_decay)
    return state._replace(
        update=state.update + 1,
        student=student,
        student_optimizer=optimizer_state,
        average=average,
    )

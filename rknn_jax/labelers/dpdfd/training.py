"""Algorithm 1 of data-free distillation, resumable: T steps, then student and generator."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal import checkpoints, progress
from rknn_jax.labelers.dpdfd.calibration import calibrate
from rknn_jax.labelers.dpdfd.networks import painter_of
from rknn_jax.labelers.dpdfd.settings import Settings
from rknn_jax.labelers.dpdfd.steps import (
    State,
    first_state,
    release_targets,
    train_student,
    with_new_generator,
)
from rknn_jax.labelers.dpdfd.teachers import Votes
from rknn_jax.students import fit
from rknn_jax.students import generator as generators
from rknn_jax.students.generator import Generator

SAVE_STEPS = 50
"""Number of steps between saves of a training with a folder. The end is always saved."""


def folder_of(config: Settings, image_shape: tuple[int, ...], num_classes: int) -> Path | None:
    """Return the folder in which a run is saved, named by its settings.

    It holds `training`, and at the end `generator` and `student`. The name contains neither key nor
    data. With another key, a training resumes with new noise, and a finished one is not repeated.
    """
    if config.folder is None:
        return None
    return Path(config.folder) / checkpoints.named(
        "dpdfd", (replace(config, folder=None), image_shape, num_classes)
    )


def distil(
    key: jax.Array, votes: Votes, image_shape: tuple[int, ...], num_classes: int, config: Settings
) -> tuple[fit.Student, Generator]:
    """Run Algorithm 1, or those of its steps that `config.folder` does not hold yet.

    Args:
      key: Random key of the noise and of all other draws. The same key gives the same networks,
        whenever a training was interrupted.
      votes: Trained teachers.
      image_shape: `(height, width, channels)`.
      num_classes: Number of classes |Y|.
      config: Settings of the labeler.

    Returns:
      Student and generator. `calibrate(config).guarantee` is the guarantee of both together.
    """
    static = config.traced()
    (init_key, step_key, redraw_key) = jax.random.split(key, 3)
    state = first_state(init_key, image_shape, num_classes, static)
    folder = folder_of(config, image_shape, num_classes)
    multiplier = jnp.float32(calibrate(config).multiplier)
    with checkpoints.Training(folder and folder / "training") as training:
        state, done = training.resumed(state)
        with progress.phase("training dpdfd", config.steps, done=done) as counted:
            for step in range(done, config.steps):
                if config.redraw and step and step % config.redraw == 0:
                    new_key = jax.random.fold_in(redraw_key, step)
                    state = with_new_generator(new_key, image_shape, static, state)
                state = release_targets(static, step_key, votes, multiplier=multiplier, state=state)
                for _ in range(config.updates):
                    state = train_student(static, step_key, state)
                if (step + 1) % SAVE_STEPS == 0 or step + 1 == config.steps:
                    training.save(step + 1, state)
                    counted.kept(folder)
                counted.advance()
    student = _student(state, image_shape, num_classes, config)
    params = jax.tree.map(np.array, state.generator)
    generator = Generator(params, painter_of(image_shape, config), config.latent)
    if folder:
        if not (folder / "generator").exists():
            generators.save(generator, folder / "generator")
        if not (folder / "student").exists():
            fit.save(student, folder / "student")
    return student, generator


def _student(
    state: State, image_shape: tuple[int, ...], num_classes: int, config: Settings
) -> fit.Student:
    """Return the average of the student over the steps, which is the one that answers."""
    about = fit.Config(
        config.student,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        ema_decay=config.ema_decay,
        weight_decay=0.0,
        label_smoothing=0.0,
        augmentation="none",
    )
    height, width, channels = image_shape
    return fit.Student(
        **jax.tree.map(np.array, state.average),
        config=about,
        num_classes=num_classes,
        image_shape=(height, width, channels),
    )

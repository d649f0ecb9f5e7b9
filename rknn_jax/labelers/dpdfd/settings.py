"""Settings of data-free distillation, and the checks of their values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from rknn_jax.labelers._distillation import Bound
from rknn_jax.privacy.parameters import PrivacyParameters
from rknn_jax.students import fit

AsPublished = Literal["none", "single_teacher", "single_teacher_per_sample", "direct_training"]
"""Form without a useful guarantee, for comparison, or `none`. The package's table has all forms."""


RECORDS_A_TEACHER, MOST_TEACHERS = 15, 4000
"""Private records for each teacher, and most teachers: as many as of the 60,000 of MNIST."""

MOST_MARGIN = 4
"""Widest margin that is chosen, as of MNIST's 28 pixels."""

HOG = "hog"
"""Kind of teacher that is a logistic regression on oriented gradients."""


@dataclass(frozen=True)
class Settings(PrivacyParameters):
    """Settings of data-free distillation: those of `PrivacyParameters`, and these.

    They hold for student and generator together. The defaults suit MNIST-like images.

    Attributes:
      num_teachers: Number of teachers n, each with its part of the private records. Forms of
        `as_published` have one. Defaults to None, one for `RECORDS_A_TEACHER` private records or
        persons, up to `MOST_TEACHERS`, and so many where their number is private.
      batch_size: Number of images B of a step.
      steps: Number of steps T.
      clip: Greatest length C of a gradient.
      bound: `normalise` scales every gradient to length C, `clip` only the longer ones.
      gamma: Factor by which the noisy gradient moves a target.
      student: Name of a network of `rknn_jax.students.models`.
      learning_rate: Learning rate of the student at the start; it falls to 0 along a cosine.
      updates: Number of the student's updates in a step.
      ema_decay: Decay of the average over steps, which is the final student.
      latent: Number of dimensions of z.
      width: Number of channels of the generator's first convolution; the second has half of them.
      generator_learning_rate: Learning rate of the generator; 0 leaves it untrained.
      redraw: Number of steps after which a new generator is drawn and trained; 0 keeps the first.
      margin: Width in pixels of the black margin of every generated image. Defaults to None, a
        seventh of the image up to `MOST_MARGIN`.
      pixel_mean: Mean pixel of a generated image within its margin, before pixels are cut off at
        black and white. A mean below black makes bright parts thin strokes.
      pixel_stddev: Standard deviation of these pixels.
      target_weight: Weight in distillation of the target class against all others.
      other_weight: Weight in distillation of the other classes among each other.
      temperature: Temperature of distillation.
      agreement: Weight of the student's loss in the generator's loss.
      one_hot: Weight in the generator's loss of cross entropy with the student's own arg max.
      information: Weight in the generator's loss of the negative entropy of the batch's mean
        prediction.
      activation: Weight in the generator's loss of the features' mean size, which is made large.
      teacher: `hog`, logistic regression on oriented gradients, of which thousands are trained side
        by side; or a network of `rknn_jax.students.models`, for a few teachers with many records.
      teacher_steps: Number of AdamW steps of a teacher. A step of `hog` takes all its records, one
        of a network `teachers.NETWORK_BATCH` of them.
      teacher_learning_rate: Learning rate of the teachers.
      teacher_weight_decay: Weight decay of the teachers.
      as_published: Form without a useful guarantee, for comparison. `none` is the form with a
        guarantee.
      folder: Folder in which the training is saved and from which it resumes. The generator is
        written there too. It belongs to one data set only.
    """

    epsilon: float = 10.0
    num_teachers: int | None = None
    batch_size: int = 64
    steps: int = 200
    clip: float = 1.0
    bound: Bound = "normalise"
    gamma: float = 12.0
    student: str = "datalens"
    learning_rate: float = 1e-3
    updates: int = 4
    ema_decay: float = 0.99
    latent: int = 64
    width: int = 32
    generator_learning_rate: float = 3e-3
    redraw: int = 25
    margin: int | None = None
    pixel_mean: float = -0.6
    pixel_stddev: float = 1.0
    target_weight: float = 1.0
    other_weight: float = 1.0
    temperature: float = 1.0
    agreement: float = 1.0
    one_hot: float = 1.0
    information: float = 5.0
    activation: float = 0.0
    teacher: str = HOG
    teacher_steps: int = 60
    teacher_learning_rate: float = 0.02
    teacher_weight_decay: float = 1.0
    as_published: AsPublished = "none"
    folder: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choices()
        self._check_counts()
        self._check_numbers()

    def _check_choices(self) -> None:
        choices = {
            "bound": get_args(Bound),
            "student": fit.MODELS,
            "teacher": (HOG, *fit.MODELS),
            "as_published": get_args(AsPublished),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"Expected {name} to be one of {', '.join(allowed)}, got "
                    f"{name}={getattr(self, name)!r}."
                )
        if not self.epsilon > 0:
            raise ValueError(
                f"Expected epsilon > 0, got epsilon={self.epsilon}; infinity is no noise, and no "
                "privacy."
            )
        if not 0 < self.delta < 1:
            raise ValueError(
                f"Expected 0 < delta < 1, got delta={self.delta}; Gaussian noise gives no pure "
                "differential privacy."
            )

    def _check_counts(self) -> None:
        for name in ("num_teachers", "batch_size", "steps", "updates", "latent", "teacher_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(
                    f"Expected {name} >= 1, got {name}={getattr(self, name)}; ask for one or more."
                )
        for name in ("margin", "redraw"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise ValueError(
                    f"Expected {name} >= 0, got {name}={getattr(self, name)}; 0 leaves it out."
                )
        if self.width < 2:
            raise ValueError(
                f"Expected width >= 2, got width={self.width}; the second convolution has half "
                "of them."
            )

    def _check_numbers(self) -> None:
        for name in (
            "clip",
            "gamma",
            "learning_rate",
            "temperature",
            "pixel_stddev",
            "teacher_learning_rate",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"Expected a finite {name} > 0, got {name}={getattr(self, name)}; choose a "
                    "positive one."
                )
        for name in (
            "generator_learning_rate",
            "teacher_weight_decay",
            "target_weight",
            "other_weight",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"Expected a finite {name} >= 0, got {name}={getattr(self, name)}; 0 leaves "
                    "it out."
                )
        for name in ("pixel_mean", "agreement", "one_hot", "information", "activation"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(
                    f"Expected a finite {name}, got {name}={getattr(self, name)}; 0 leaves it out."
                )
        if not self.target_weight + self.other_weight > 0:
            raise ValueError(
                "Expected target_weight or other_weight > 0, got 0 for both; without them "
                "teachers say nothing."
            )
        if not 0 <= self.ema_decay < 1:
            raise ValueError(
                f"Expected 0 <= ema_decay < 1, got ema_decay={self.ema_decay}; 0 takes the last "
                "step's student."
            )
        if self.as_published != "none" and self.epsilon == math.inf:
            raise ValueError(
                f"Expected a finite epsilon with as_published={self.as_published}, got infinity; "
                "it is what Theorem 3 prints."
            )

    @property
    def teachers(self) -> int:
        """Number of teachers of this form."""
        return (self.num_teachers or MOST_TEACHERS) if self.as_published == "none" else 1

    def margin_of(self, shape: Sequence[int]) -> int:
        """Return the margin of images of a shape."""
        return min(MOST_MARGIN, min(shape[:2]) // 7) if self.margin is None else self.margin

    def for_units(self, num_units: int) -> Self:
        """Return settings with a number of teachers, for a number of records or of persons."""
        if self.num_teachers is not None or self.relation != "replace-one":
            return self
        return replace(
            self, num_teachers=min(MOST_TEACHERS, max(1, num_units // RECORDS_A_TEACHER))
        )

    def traced(self) -> Self:
        """Return the settings that the compiled program depends on.

        One program serves every epsilon.
        """
        same: dict[str, Any] = {"relation": "replace-one", "unit": "record", "folder": None}
        return replace(self, epsilon=1.0, delta=1e-5, **same)

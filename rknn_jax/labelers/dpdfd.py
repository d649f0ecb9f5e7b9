"""DPDFD: teachers train a student on generated images, and no public image is needed.

In each of T steps, a generator G makes B images of noise z. Teacher j of n compares its logits for
image i with the student's s_i in a loss L_T, decoupled distillation (`dkd`). It returns the
gradient by s_i only, bounded in length by C. The mean gradient is released with noise for each
image:

    g_ij = dL_T / ds_i
    r_i = 1/n (sum_j bounded(g_ij) + N(0, sigma² C² I))
    y_i = softmax(s_i - gamma r_i)

The student learns y_i, and the generator learns to make images that the student recognizes. Both
use noisy r_i only, so any use of r_i is post-processing.

| form                        | released with noise     | moved by | RDP of order a | Gaussian DP  |
|-----------------------------|-------------------------|----------|----------------|--------------|
| n teachers, disjoint parts  | r_i of every image      | 2C       | 2BTa/sigma²    | 2√(BT)/sigma |
| `single_teacher`            | a batch's mean gradient | 2BC      | 2B²Ta/sigma²   | 2B√T/sigma   |
| `single_teacher_per_sample` | r_i of every image      | 2C       | 2BTa/sigma²    | 2√(BT)/sigma |
| `direct_training`           | r_i of private images   | student  | not covered    | -            |

A teacher is any function of its records, so one record may change all its gradients. C cancels,
because it scales signal and noise alike. Theorem 3 of the paper says 2C²nBTa/sigma², which is
smaller by 10^4 to 10^6 in its settings; `theorem_3_as_published` repeats it. **Guarantee:** that of
the first row, the default. With one teacher, the sum of all signals over all steps is 1/(2z) of the
noise, with z the noise multiplier for epsilon. So no student that learned something had a useful
epsilon. In direct training, the step after the noise uses the private images again, without noise.
A valid alternative there is noisy SGD on the weights. These forms are for comparison: sigma is such
that Theorem 3 prints `epsilon`, the answers carry the true epsilon, and a warning states both.

A useful epsilon needs a large n. A release has n/(sigma√K) times as much signal as noise. All
releases together have √(n²/(4z²K)) times as much, whatever their number. Only L_T reads a teacher:
there are no batch statistics, and no choice of a step to stop at.

Points that the paper leaves open are resolved as follows:

- Algorithm 1 averages gradients over a batch of images of all classes; the paper's ensemble and
  Figure 1 use each image's own gradient. This code uses each image's own, except for
  `single_teacher`, which is Algorithm 1 to the letter.
- y are logits less gradients, which no cross entropy accepts. The student learns their softmax.
- L_T is distillation with the teacher's arg max as the target class, and both weights and the
  temperature are 1. Zhao et al. use 1, 8 and 4.
- Activations are made large, as in DAFL, the source of that term; as printed it would make them
  small. Entropy is that of the batch's mean.
- Images come from the generator at the start of the step. Generator and student then each take a
  step on their own loss.
- A student's step consists of `updates` updates: one on the latest release, the others on a draw of
  all earlier releases.
- The student that answers is the average over steps of `students.fit`, after the last step. It is
  never the best on some test.
- A new generator is drawn every `redraw` steps, so that images stay various. The last one is
  released.
- Instead of batch normalization, the generator scales each image by itself, to a mean and spread of
  pixels that are public knowledge.

Teachers are logistic regressions on oriented gradients and the means of an image's cells, which are
not learned. Thousands are trained side by side in seconds, and answer a batch in one matrix
product.

References: Liu et al., "Model Conversion via Differentially Private Data-Free Distillation", 2023,
Algorithm 1, eqs. 4 to 6, Theorem 3; Zhao et al., "Decoupled Knowledge Distillation", 2022; Chen et
al., "Data-Free Learning of Student Networks" (DAFL), 2019.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import brentq

from rknn_jax import bsvs
from rknn_jax._internal import checkpoints
from rknn_jax.labelers import Labeler, pate
from rknn_jax.labelers._distillation import Bound, logit_gradients, release
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import RELATIONS, Event, Guarantee, Relation
from rknn_jax.representations.hog import hog
from rknn_jax.students import fit
from rknn_jax.students import generator as generators
from rknn_jax.students.generator import Generator, Painter, as_uint8
from rknn_jax.types import Answers, Encoder, Queries, Records

AsPublished = Literal["none", "single_teacher", "single_teacher_per_sample", "direct_training"]
"""Form without a useful guarantee, for comparison, or `none`. The module's table has all forms."""

SAVE_STEPS = 50
"""Number of steps between saves of a training with a folder. The end is always saved."""

CELLS = 4
"""Number of cells of an image along each axis, in which teachers compute gradients."""


class Votes(NamedTuple):
    """Trained teachers: private.

    Attributes:
      weights: float32 `[n, f + 1, num_classes]`, weights of the features of `described` and of 1.
      images: uint8 `[m, height, width, channels]`, private images, for direct training alone.
      labels: int32 `[m]`, labels of these images.
    """

    weights: jax.Array
    images: jax.Array | None = None
    labels: jax.Array | None = None


@dataclass(frozen=True)
class DPDFD(Labeler[Votes]):
    """Data-free distillation and its settings. The defaults suit MNIST-like images.

    Attributes:
      epsilon: Privacy budget of student and generator together; infinity means no noise and no
        privacy.
      delta: Probability delta of the guarantee of both.
      relation: Neighboring relation of the data sets.
      num_teachers: Number of teachers n, each with its part of the private records. Forms of
        `as_published` have one.
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
      margin: Width in pixels of the black margin of every generated image.
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
      teacher_steps: Number of AdamW steps of a teacher, each on all its records.
      teacher_learning_rate: Learning rate of the teachers.
      teacher_weight_decay: Weight decay of the teachers.
      as_published: Form without a useful guarantee, for comparison. `none` is the form with a
        guarantee.
      folder: Folder in which the training is saved and from which it resumes. The generator is
        written there too. It belongs to one data set only.
    """

    epsilon: float = 10.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    num_teachers: int = 4000
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
    margin: int = 4
    pixel_mean: float = -0.6
    pixel_stddev: float = 1.0
    target_weight: float = 1.0
    other_weight: float = 1.0
    temperature: float = 1.0
    agreement: float = 1.0
    one_hot: float = 1.0
    information: float = 5.0
    activation: float = 0.0
    teacher_steps: int = 60
    teacher_learning_rate: float = 0.02
    teacher_weight_decay: float = 1.0
    as_published: AsPublished = "none"
    folder: Path | None = None

    trains: ClassVar[bool] = True
    slow: ClassVar[bool] = True
    telling: ClassVar[Mapping[str, Any]] = {
        "num_teachers": 12,
        "steps": 1,
        "batch_size": 4,
        "updates": 1,
        "teacher_steps": 20,
    }

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_counts()
        self._check_numbers()

    def _check_choices(self) -> None:
        choices = {
            "relation": RELATIONS,
            "bound": get_args(Bound),
            "student": fit.MODELS,
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
            if getattr(self, name) < 1:
                raise ValueError(
                    f"Expected {name} >= 1, got {name}={getattr(self, name)}; ask for one or more."
                )
        for name in ("margin", "redraw"):
            if getattr(self, name) < 0:
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
        return self.num_teachers if self.as_published == "none" else 1

    @property
    def needs_delta(self) -> bool:
        """Always, because the noise is Gaussian."""
        return True

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Votes:
        """Train the teachers, each on its own part of the private records.

        Args:
          key: Random key of the parts, which is consumed.
          private: Private records. A record whose label is not a class trains no teacher.
          encode: Encoder, which is not used, as teachers see generated images.
          queries: Public queries, which are not used.
          num_classes: Number of classes |Y|.

        Returns:
          The teachers, private. They answer in `release` alone, which adds the noise.

        Raises:
          ValueError: If a teacher would have no record and the number of records is public.
        """
        del encode, queries
        part = pate.parts_of(
            key, private, pate.PATE(num_teachers=self.teachers, relation=self.relation)
        )
        index, present = pate.rows_of(part, self.teachers)
        blocks = [
            described(private.images[start : start + 1000].astype(np.float32))
            for start in range(0, len(part), 1000)
        ]
        features = np.vstack([np.asarray(block) for block in blocks])
        features = np.vstack([features, np.zeros_like(features[:1])])
        known = bsvs.voting_labels(np.asarray(private.labels, np.int32), num_classes)
        labels = np.append(known, 0)[index]
        learned = present * (labels >= 0).astype(np.float32)
        weights = _trained(
            features[index], np.maximum(labels, 0), learned, num_classes, _traced(self)
        )
        if self.as_published == "direct_training":
            return Votes(weights, jnp.asarray(private.images), jnp.asarray(known))
        return Votes(weights)

    def release(
        self,
        key: jax.Array,
        contribution: Votes,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Distill the teachers into generator and student, in simulation.

        Args:
          key: Random key of the noise and of all other draws, which is consumed.
          contribution: Result of `contribute`.
          queries: Public queries with their images, which train no network.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, which are not used. Defaults to none.

        Returns:
          Answers of the new student, which is `Answers.model`. With `self.folder` both networks are
          also saved in `folder_of`.

        Raises:
          ValueError: If the queries have no images, or if the teachers fit other classes, images or
            numbers of teachers.
        """
        del predicted
        if queries.images is None:
            raise ValueError(
                "Expected queries with images, as the student answers on them, got images=None; "
                "set Queries.images."
            )
        image_shape = tuple(queries.images.shape[1:])
        _check(contribution, image_shape, num_classes, self)
        calibrated = noise(self)
        if self.as_published != "none":
            warnings.warn(
                f"as_published={self.as_published}: Theorem 3 prints epsilon = "
                f"{calibrated.as_published:.6g}, and the true one is "
                f"{calibrated.guarantee.epsilon:.6g} at delta = {self.delta:.3g}. This cannot be "
                "released.",
                stacklevel=2,
            )
        student, _ = distil(key, contribution, image_shape, num_classes, self)
        return Answers.predicted(
            student.predict_proba(queries.images), calibrated.guarantee, student
        )

    def not_covered(
        self, key: jax.Array, contribution: Votes, answers: Answers
    ) -> dict[str, float]:
        """Return epsilon by Theorem 3 and the true epsilon, for a benchmark.

        `key`, `votes` and `answers` are not used.
        """
        del key, contribution, answers
        calibrated = noise(self)
        return {
            "epsilon_as_published": calibrated.as_published,
            "epsilon": calibrated.guarantee.epsilon,
        }


class Noise(NamedTuple):
    """Calibrated noise and its guarantee.

    Attributes:
      multiplier: Noise multiplier sigma, the noise's standard deviation over C.
      guarantee: True guarantee.
      as_published: Epsilon of the same run by Theorem 3.
    """

    multiplier: float
    guarantee: Guarantee
    as_published: float


def theorem_3_as_published(
    multiplier: float, clip: float, num_teachers: int, batch_size: int, steps: int, delta: float
) -> float:
    """Return epsilon by the paper's Theorem 3, from RDP of 2C²nBTa/sigma² at order a.

    This is not the true cost of the algorithm.

    >>> round(theorem_3_as_published(100.0, 1e-3, 1, 256, 1000, 1e-5), 4)
    0.0312
    """
    if multiplier == 0:
        return math.inf
    event = Event("gaussian", multiplier / (2 * clip * math.sqrt(num_teachers)), batch_size * steps)
    return accounting.epsilons([event], delta)["RDP"]


def noise(config: DPDFD) -> Noise:
    """Return the noise that `config` requires.

    The noise is calibrated for `config.epsilon`. In a form of `as_published`, it is such that
    Theorem 3 prints that epsilon.
    """
    releases = config.batch_size * config.steps

    def printed(multiplier: float) -> float:
        return theorem_3_as_published(
            multiplier, config.clip, config.teachers, config.batch_size, config.steps, config.delta
        )

    def guarantee(epsilon: float, *events: Event) -> Guarantee:
        if epsilon == math.inf:
            return Guarantee(math.inf, 0.0, config.relation, "central", ())
        return Guarantee(
            epsilon,
            config.delta,
            config.relation,
            "central",
            events,
            accountant="analytic Gaussian",
        )

    if config.as_published == "none":
        if config.epsilon == math.inf:
            return Noise(0.0, guarantee(math.inf), math.inf)
        multiplier = (
            2
            * math.sqrt(releases)
            * accounting.gaussian_noise_multiplier(config.epsilon, config.delta)
        )
        return Noise(
            multiplier,
            guarantee(config.epsilon, Event("gaussian", multiplier / 2, releases)),
            printed(multiplier),
        )
    # In this unit of sigma, Theorem 3 has no other quantity.
    unit = 2 * config.clip * math.sqrt(config.teachers * releases)
    found = brentq(
        lambda log: printed(unit * math.exp(log)) - config.epsilon,
        math.log(1e-3),
        math.log(1e9),
        xtol=1e-12,
    )
    multiplier = unit * math.exp(found)
    if config.as_published == "direct_training":
        return Noise(multiplier, guarantee(math.inf), printed(multiplier))
    whole = config.as_published == "single_teacher"
    event = (
        Event("gaussian", multiplier / (2 * config.batch_size), config.steps)
        if whole
        else Event("gaussian", multiplier / 2, releases)
    )
    epsilon = accounting.epsilons([event], config.delta)["analytic Gaussian"]
    return Noise(multiplier, guarantee(epsilon, event), printed(multiplier))


@jax.jit
def described(images: jax.Array) -> jax.Array:
    """Return the teachers' features: oriented-gradient histograms, means of the same cells, and 1.

    Args:
      images: float32 `[n, height, width, channels]`, whole numbers from 0 to 255, of at least 2x2
        pixels.

    Returns:
      float32 `[n, f + 1]`.
    """
    n, height, width, channels = images.shape
    cell = -(-min(height, width) // CELLS)
    gradients = hog(
        images, pixels_per_cell=(cell, cell), cells_per_block=(2, 2)
    )  # each block has length 1
    rows = height // cell
    columns = width // cell
    whole = images[:, : rows * cell, : columns * cell].reshape(
        n, rows, cell, columns, cell, channels
    )
    means = whole.mean((2, 4)).reshape(n, -1) / 64 - 1
    return jnp.concatenate([6 * gradients, means, jnp.ones((n, 1))], axis=1)


@partial(jax.jit, static_argnames=("num_classes", "config"))
def _trained(
    features: jax.Array, labels: jax.Array, present: jax.Array, num_classes: int, config: DPDFD
) -> jax.Array:
    """Train logistic regressions side by side, starting at 0. One without records stays at 0."""

    def teacher(features: jax.Array, labels: jax.Array, present: jax.Array) -> jax.Array:
        weights = jnp.zeros((features.shape[1], num_classes), jnp.float32)
        learning = config.teacher_steps, config.teacher_learning_rate, config.teacher_weight_decay
        taught: jax.Array = pate.taught(
            weights, lambda weights, x: jnp.matmul(x, weights), features, labels, present, *learning
        )
        return taught

    return jax.vmap(teacher)(features, labels, present)


def _check(votes: Votes, image_shape: tuple[int, ...], num_classes: int, config: DPDFD) -> None:
    if min(image_shape[:2]) < 2 + 2 * config.margin:
        raise ValueError(
            f"Expected images of {2 + 2 * config.margin}x{2 + 2 * config.margin} pixels or more "
            f"with margin={config.margin}, got "
            f"{image_shape}; take a smaller margin."
        )
    num_features = jax.eval_shape(
        described, jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    ).shape[1]
    found = tuple(votes.weights.shape)
    expected = (config.teachers, num_features, num_classes)
    for name, had, wanted in zip(
        ("num_teachers", "features", "num_classes"), found, expected, strict=True
    ):
        if had != wanted:
            raise ValueError(
                f"Expected teachers with {name}={wanted} for images {image_shape}, got "
                f"{name}={had}; train them for these by `contribute`."
            )
    if config.as_published == "direct_training" and votes.images is None:
        raise ValueError(
            "Expected the private images with as_published=direct_training, got none; call "
            "`contribute` of the same labeler."
        )


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


def folder_of(config: DPDFD, image_shape: tuple[int, ...], num_classes: int) -> Path | None:
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
    key: jax.Array, votes: Votes, image_shape: tuple[int, ...], num_classes: int, config: DPDFD
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
      Student and generator. `noise(config).guarantee` is the guarantee of both together.
    """
    static = _traced(config)
    (init_key, step_key, redraw_key) = jax.random.split(key, 3)
    state = initial(init_key, image_shape, num_classes, static)
    folder = folder_of(config, image_shape, num_classes)
    multiplier = jnp.float32(noise(config).multiplier)
    with checkpoints.Training(folder and folder / "training") as training:
        state, done = training.resumed(state)
        for step in range(done, config.steps):
            if config.redraw and step and step % config.redraw == 0:
                state = _redrawn(jax.random.fold_in(redraw_key, step), image_shape, static, state)
            state = released(static, step_key, votes, multiplier, state)
            for _ in range(config.updates):
                state = learned(static, step_key, state)
            if (step + 1) % SAVE_STEPS == 0 or step + 1 == config.steps:
                training.save(step + 1, state)
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
    student = fit.Student(
        **jax.tree.map(np.array, state.average),
        config=about,
        num_classes=num_classes,
        image_shape=(height, width, channels),
    )
    generator = Generator(
        jax.tree.map(np.array, state.generator), _painter(image_shape, config), config.latent
    )
    if folder:
        if not (folder / "generator").exists():
            generators.save(generator, folder / "generator")
        if not (folder / "student").exists():
            fit.save(student, folder / "student")
    return student, generator


def initial(key: jax.Array, image_shape: tuple[int, ...], num_classes: int, config: DPDFD) -> State:
    """Return the state before the first step. `key` is consumed."""
    generator_key, student_key = jax.random.split(key)
    generator = _first_painter(generator_key, image_shape, config)
    student = fit.drawn(
        _student(config, num_classes), student_key, np.zeros((1, *image_shape), np.uint8)
    )
    slots = config.batch_size * (config.steps if config.updates > 1 else 1)
    return State(
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        generator,
        _generator_optimizer(config).init(generator),
        student,
        _student_optimizer(config).init(student["params"]),
        jax.tree.map(jnp.copy, student),
        jnp.zeros((slots, *image_shape), jnp.uint8),
        jnp.zeros((slots, num_classes), jnp.float32),
    )


def _first_painter(key: jax.Array, image_shape: tuple[int, ...], config: DPDFD) -> Any:
    return _drawn(_painter(image_shape, config), key, np.zeros((1, config.latent), np.float32))


@partial(jax.jit, static_argnames="painter")
def _drawn(painter: Painter, key: jax.Array, z: jax.Array) -> Any:
    return painter.init(key, z)


def _redrawn(key: jax.Array, image_shape: tuple[int, ...], config: DPDFD, state: State) -> State:
    generator = _first_painter(key, image_shape, config)
    return state._replace(
        generator=generator, generator_optimizer=_generator_optimizer(config).init(generator)
    )


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def released(
    config: DPDFD, key: jax.Array, votes: Votes, multiplier: jax.Array, state: State
) -> State:
    """Generate images, query the teachers, store the noisy targets, and train the generator."""
    z_key, noise_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 0), state.step))
    num_classes = state.targets.shape[1]
    image_shape = state.images.shape[1:]
    painter = _painter(image_shape, config)
    network = _student(config, num_classes)

    def targets_of(logits: jax.Array, gradients: jax.Array) -> jax.Array:
        noisy = release(
            noise_key,
            gradients,
            multiplier,
            config.clip,
            config.bound,
            whole_batch=config.as_published == "single_teacher",
        )
        return jax.nn.softmax(logits - config.gamma * noisy)

    def loss_of(generator: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        images: jax.Array = painter.apply(
            generator, jax.random.normal(z_key, (config.batch_size, config.latent))
        )  # type: ignore[assignment]
        logits = _applied(network, state.student, images)[0]
        seen = as_uint8(jax.lax.stop_gradient(images))
        said = jax.lax.stop_gradient(logits)
        teachers = jnp.einsum("bf,nfk->nbk", described(seen.astype(jnp.float32)), votes.weights)
        targets = targets_of(
            said,
            logit_gradients(
                said, teachers, config.target_weight, config.other_weight, config.temperature
            ),
        )
        loss = config.agreement * jnp.mean(
            fit.cross_entropy(logits, targets, 0.0)
        ) + _generator_loss(logits, config)
        if config.activation:
            features = _applied(network, state.student, images, features=True)[0]
            loss -= config.activation * jnp.mean(jnp.abs(features))
        return loss, (seen, targets)

    generator = state.generator
    optimizer = state.generator_optimizer
    if votes.images is not None and votes.labels is not None:
        index = jax.random.randint(z_key, (config.batch_size,), 0, len(votes.images))
        images = votes.images[index]
        logits = _applied(network, state.student, images.astype(jnp.float32) / 255)[0]
        targets = targets_of(
            logits,
            (jax.nn.softmax(logits) - jax.nn.one_hot(votes.labels[index], num_classes))[None],
        )
    elif config.generator_learning_rate:
        gradient, (images, targets) = jax.grad(loss_of, has_aux=True)(generator)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
            change, optimizer = _generator_optimizer(config).update(gradient, optimizer)
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


def _generator_loss(logits: jax.Array, config: DPDFD) -> jax.Array:
    """Return the generator's loss terms of one-hot predictions and of information entropy."""
    log = jax.nn.log_softmax(logits)
    own = jnp.take_along_axis(log, jnp.argmax(logits, axis=1)[:, None], axis=1)
    mean = jnp.mean(jnp.exp(log), axis=0)
    return -config.one_hot * jnp.mean(own) + config.information * jnp.sum(
        mean * jnp.log(mean + 1e-9)
    )


@partial(jax.jit, static_argnames="config", donate_argnames="state")
def learned(config: DPDFD, key: jax.Array, state: State) -> State:
    """Train the student on the latest images, or on a draw of all so far.

    The targets are private already.
    """
    draw_key = jax.random.fold_in(jax.random.fold_in(key, 1), state.update)
    latest = (state.step - 1) * config.batch_size % len(state.images) + jnp.arange(
        config.batch_size
    )
    any_of_them = jax.random.randint(
        draw_key, (config.batch_size,), 0, state.step * config.batch_size
    )
    index = jnp.where(state.update % config.updates == 0, latest, any_of_them)
    images = state.images[index].astype(jnp.float32) / 255
    targets = state.targets[index]
    network = _student(config, targets.shape[1])

    def loss_of(params: Any) -> tuple[jax.Array, Any]:
        logits, updates = _applied(network, state.student | {"params": params}, images)
        return jnp.mean(fit.cross_entropy(logits, targets, 0.0)), updates

    gradient, updates = jax.grad(loss_of, has_aux=True)(state.student["params"])
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        change, optimizer = _student_optimizer(config).update(gradient, state.student_optimizer)
    student = {
        **state.student,
        "params": optax.apply_updates(state.student["params"], change),
        **updates,
    }
    average = fit.average(state.average, student, state.update, config.ema_decay)
    return state._replace(
        update=state.update + 1, student=student, student_optimizer=optimizer, average=average
    )


def _applied(
    network: Any, variables: Any, images: jax.Array, *, features: bool = False
) -> tuple[jax.Array, Any]:
    applied: tuple[jax.Array, Any] = network.apply(
        variables, images, train=True, features=features, mutable=["batch_stats"]
    )
    return applied


def _painter(image_shape: tuple[int, ...], config: DPDFD) -> Painter:
    height, width, channels = image_shape
    return Painter(
        (height, width, channels),
        config.width,
        config.margin,
        config.pixel_mean,
        config.pixel_stddev,
    )


def _student(config: DPDFD, num_classes: int) -> Any:
    return fit.network_of(fit.Config(config.student), num_classes)


def _student_optimizer(config: DPDFD) -> optax.GradientTransformation:
    return optax.adam(
        optax.cosine_decay_schedule(config.learning_rate, config.steps * config.updates)
    )


def _generator_optimizer(config: DPDFD) -> optax.GradientTransformation:
    return optax.adam(config.generator_learning_rate, b1=0.5)


def _traced(config: DPDFD) -> DPDFD:
    """Return the settings that the compiled program depends on.

    One program serves every epsilon.
    """
    return replace(config, epsilon=1.0, delta=1e-5, relation="replace-one", folder=None)


SMALL = DPDFD(
    epsilon=1.0,
    num_teachers=20,
    steps=120,
    updates=2,
    latent=8,
    width=8,
    gamma=5.0,
    learning_rate=3e-3,
    generator_learning_rate=1e-3,
    redraw=0,
    teacher_steps=30,
    margin=0,
    pixel_mean=0.4,
    pixel_stddev=0.4,
)
EXAMPLES = (
    replace(
        SMALL,
        epsilon=2.0,
        bound="clip",
        gamma=20.0,
        student="linear",
        steps=60,
        updates=3,
        learning_rate=1e-2,
        generator_learning_rate=0.0,
        redraw=10,
    ),
    replace(SMALL, relation="add-remove"),
)

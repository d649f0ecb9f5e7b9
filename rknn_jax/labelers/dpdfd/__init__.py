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
smaller by 10^4 to 10^6 in its settings; `calibration.py` repeats it. **Guarantee:** that of
the first row, the default. With one teacher, the sum of all signals over all steps is 1/(2z) of the
noise, with z the noise multiplier for epsilon. So no student that learned something had a useful
epsilon. In direct training, the step after the noise uses the private images again, without noise.
A valid alternative there is noisy SGD on the weights. These forms are for comparison: sigma is such
that Theorem 3 prints `epsilon`, the answers carry the true epsilon, and a warning states both.

With unit=person, parts are of whole persons, as in PATE. One person is in one part and so moves
one teacher, whose gradients have the same bound whatever it has learned from.

A useful epsilon needs a large n. A release has n/(sigma√K) times as much signal as noise. All
releases together have √(n²/(4z²K)) times as much, whatever their number. Only L_T reads a teacher:
the generator sees no batch statistics of one, and no step to stop at is chosen.

So with noise, teachers are thousands of regressions on few records each (`teacher=hog`), and their
mean is what limits the student. Without noise, one network on all records is the better teacher.

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

References: Liu et al., "Model Conversion via Differentially Private Data-Free Distillation", 2023,
Algorithm 1, eqs. 4 to 6, Theorem 3; Zhao et al., "Decoupled Knowledge Distillation", 2022; Chen et
al., "Data-Free Learning of Student Networks" (DAFL), 2019.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax import bsvs
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.dpdfd.calibration import calibrate
from rknn_jax.labelers.dpdfd.settings import Settings
from rknn_jax.labelers.dpdfd.teachers import Votes, check_teachers, train_teachers
from rknn_jax.labelers.dpdfd.training import distil
from rknn_jax.types import Answers, Encoder, Queries, Records


@dataclass(frozen=True)
class DPDFD(Settings, Labeler[Votes]):
    """Data-free distillation: a labeler with the settings of `Settings`."""

    trains: ClassVar[bool] = True
    slow: ClassVar[bool] = True
    telling: ClassVar[Mapping[str, Any]] = {
        "num_teachers": 12,
        "steps": 1,
        "batch_size": 4,
        "updates": 1,
        "teacher_steps": 20,
        "margin": 0,
    }

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
          ValueError: If a teacher would have no record and the number of records is public, or if
            persons are the unit and the records name none.
        """
        del encode, queries
        known = bsvs.voting_labels(np.asarray(private.labels), num_classes)
        config = self.for_units(self.num_units(private))
        weights = train_teachers(key, private, known, num_classes=num_classes, config=config)
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
          also saved in `training.folder_of`.

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
        config = self
        if self.num_teachers is None:
            config = replace(self, num_teachers=len(jax.tree.leaves(contribution.weights)[0]))
        check_teachers(contribution, image_shape, num_classes, config)
        calibrated = calibrate(self)
        if self.as_published != "none":
            warnings.warn(
                f"as_published={self.as_published}: Theorem 3 prints epsilon = "
                f"{calibrated.as_published:.6g}, and the true one is "
                f"{calibrated.guarantee.epsilon:.6g} at delta = {self.delta:.3g}. This cannot be "
                "released.",
                stacklevel=2,
            )
        student, _ = distil(key, contribution, image_shape, num_classes=num_classes, config=config)
        return Answers.predicted(
            student.predict_proba(queries.images), calibrated.guarantee, student
        )

    def not_covered(
        self, key: jax.Array, contribution: Votes, answers: Answers
    ) -> dict[str, float]:
        """Return epsilon by Theorem 3 and the true epsilon, for a benchmark.

        `key`, `contribution` and `answers` are not used.
        """
        del key, contribution, answers
        calibrated = calibrate(self)
        return {
            "epsilon_as_published": calibrated.as_published,
            "epsilon": calibrated.guarantee.epsilon,
        }


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

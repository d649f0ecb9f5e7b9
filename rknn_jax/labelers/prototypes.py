"""Private prototypes: the mean of each class's private features, with noise.

A query gets the class of the nearest prototype. This is DPPL-Mean with these differences:

- The numbers of records of the classes are private, and are released with the sums. The paper
  divides by the true ones.
- Features are clipped around the center of the public features, and to half of their spread.
- A prototype is the posterior mean of its class, given its noisy sum. Beforehand, class means
  spread like the public features, with `BETWEEN` of the variance along each axis. So an axis that
  the noise covers counts little. The distance to a prototype includes the variance that remains.

The paper's point is unbalanced classes: all classes have a prototype, and none is preferred for its
size. So there is no prior of the classes here. A class with few records has a prototype of which
little is known, at the public center. The remaining variance keeps it from attracting queries.

Guarantee: `_class_sums` has the proof. The sums move by at most twice the radius if a record is
replaced. Gaussian noise makes them (epsilon, delta)-DP, and Laplace noise epsilon-DP.

Reference: Wahdany, Jagielski, Dziedzic & Boenisch, "Differentially Private Prototypes for
Imbalanced Transfer Learning", AAAI 2025.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rknn_jax.labelers._class_sums import NoisySums, SumsLabeler
from rknn_jax.labelers._linear_head import Link
from rknn_jax.labelers._public_ball import Spectrum

BETWEEN = 0.5
"""Share of the features' variance that lies between classes, beforehand."""


@dataclass(frozen=True)
class Prototypes(SumsLabeler):
    """Nearest private class mean, and its settings: those of `SumsLabeler`."""

    telling: ClassVar[Mapping[str, Any]] = {}

    def solve(self, noisy: NoisySums, spectrum: Spectrum) -> tuple[np.ndarray, np.ndarray, Link]:
        """Return logarithms of odds, by expected squared distances to the prototypes."""
        means, remaining = class_means(noisy, spectrum)
        within = _within(spectrum)
        distances = (means**2).sum(axis=1) + remaining
        return means.T / within, -distances / (2 * within), "softmax"


def class_means(noisy: NoisySums, spectrum: Spectrum) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior means of the classes, and the variance that remains.

    Along an axis with public variance a, a class mean is normal with variance b = `BETWEEN`·a, and
    a record around it has variance a - b. So a sum over k records has variance k²b + k(a - b) + the
    noise's.

    Args:
      noisy: Noisy sums and counts of the classes.
      spectrum: Second moment of the clipped public features.

    Returns:
      Means, float64 `[num_classes, f]`, and variances, float64 `[num_classes]`, summed over axes.
    """
    sizes = noisy.sizes[:, None]
    between = BETWEEN * spectrum.variances
    inside = spectrum.variances - between
    total = sizes**2 * between + sizes * inside + noisy.sum_stddev**2
    gain = np.divide(sizes * between, total, out=np.zeros_like(total), where=total > 0)
    along = (noisy.sums - sizes * spectrum.mean) @ spectrum.directions
    means = spectrum.mean + (gain * along) @ spectrum.directions.T
    remaining = ((1 - gain * sizes) * between).sum(axis=1)
    return means, remaining


def _within(spectrum: Spectrum) -> float:
    """Return the variance of records around their prototype, for one independent axis."""
    total = spectrum.variances.sum()
    if not total:
        return 1.0
    num_axes = total**2 / (spectrum.variances**2).sum()
    return float((1 - BETWEEN) * total / num_axes)


EXAMPLES = (
    Prototypes(epsilon=1.0),
    Prototypes(epsilon=4.0, mechanism="laplace", relation="add-remove"),
)

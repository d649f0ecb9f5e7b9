"""Private least squares: a linear model of the classes, from public and private moments.

The model predicts p_c + w_c·x, the probability of class c. Its normal equations need two moments:
that of the features among themselves, and that of the features with the classes. The first comes
from the public rows and is free. Only the second is private, and it is the sum of features of each
class.

**Regularization from public and released quantities.** Along an axis of the public second moment,
with variance a, the private moment of n records is n·a·w + noise. Beforehand, a weight w is normal
with mean 0 and variance t²·a^p, such that the model explains the share `EXPLAINED` of the variance
v of a class. So its posterior mean divides the moment by

    n·a + (1 - EXPLAINED)·v/(t²·a^p) + σ²/(n·a·t²·a^p)

At p = 0, the second term is ordinary ridge regression. The third is due to the noise and is largest
along axes of small variance, where dividing by n·a would amplify the noise. Here n is the sum of
the noisy counts. Where classes are clusters, their means lie along the axes of large variance, and
p is above 0; where a class is a direction as any other, p is 0. The released moments tell by their
likelihood (empirical Bayes), which is post-processing, and the factors of all `POWERS` are averaged
by it. The paper has one ridge for all axes, which is tuned.

Guarantee: `_class_sums` has the proof. The sums move by at most twice the radius if a record is
replaced. Gaussian noise makes them (epsilon, delta)-DP, and Laplace noise epsilon-DP.

Reference: Mehta, Krichene, Thakurta, Kurakin & Cutkosky, "Differentially Private Image
Classification from Features", TMLR 2023.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from rknn_jax.labelers._class_sums import NoisySums, SumsLabeler
from rknn_jax.labelers._linear_head import Link
from rknn_jax.labelers._public_ball import Spectrum

EXPLAINED = 0.5
"""Share of a class's variance that the model explains, beforehand."""

TINY = float(np.finfo(np.float64).tiny)
"""Least number that is divided by, for features without any variance."""

POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Exponents p of a variance in the variance of a weight along its axis, all equally likely."""


@dataclass(frozen=True)
class LeastSquares(SumsLabeler):
    """Linear model of the classes, and its settings: those of `SumsLabeler`."""

    telling: ClassVar[Mapping[str, Any]] = {}

    def solve(self, noisy: NoisySums, spectrum: Spectrum) -> tuple[np.ndarray, np.ndarray, Link]:
        """Return a linear model of the classes' probabilities."""
        num_records = noisy.sizes.sum()
        shares = noisy.sizes / num_records
        moments = noisy.sums - shares[:, None] * noisy.sums.sum(axis=0)
        along = moments @ spectrum.directions
        inverse = _inverse(spectrum.variances, num_records, along, noisy.sum_stddev)
        weights = spectrum.directions @ (along * inverse).T
        return weights, shares - spectrum.mean @ weights, "linear"


def _inverse(
    variances: np.ndarray, num_records: float, moments: np.ndarray, stddev: float
) -> np.ndarray:
    """Return the factor from a moment to its weight along each axis, float64 `[f]`.

    Args:
      variances: Variances of the public features along the axes, `[f]`.
      num_records: Number of private records n.
      moments: Noisy moments of the classes along the axes, `[num_classes, f]`.
      stddev: Standard deviation of the noise of a moment.
    """
    num_classes = len(moments)
    of_class = (1 - 1 / num_classes) / num_classes if num_classes > 1 else 1.0
    relative = variances / max(float(variances.max()), TINY)
    size = num_records * variances
    noise = size * (1 - EXPLAINED) * of_class + stddev**2
    squares = np.square(moments).sum(axis=0)
    factors, likelihoods = [], []
    for power in POWERS:
        prior = np.where(variances > 0, relative**power, 0)
        of_weight = EXPLAINED * of_class * prior / max(float(variances @ prior), TINY)
        spread = np.square(size) * of_weight + noise
        known = spread > 0
        spread = np.where(known, spread, 1)
        factors.append(np.where(known, size * of_weight / spread, 0))
        fit = num_classes * np.log(spread) + squares / spread
        likelihoods.append(-fit[known].sum() / 2)
    found: np.ndarray = softmax(likelihoods) @ np.array(factors)
    return found


EXAMPLES = (
    LeastSquares(epsilon=1.0),
    LeastSquares(epsilon=4.0, mechanism="laplace", relation="add-remove"),
)

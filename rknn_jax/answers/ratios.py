"""Ratio of each class: how much rarer it is among the private records than the public rows.

Public rows are not labeled, but their clusters have sizes. If the rows of a class are spread over
the clusters as its private records are, then

    size of q = sum_c r_c · votes of class c in q,

with one ratio r_c a class. The ratios are fitted by penalized likelihood: their logarithms are
normal, and clusters may lie off the fit as Student's t does, because of junk and of drift. The
votes are not the noisy counts but their posterior means, which are all but free of the bias that
noise in regressors causes. A Bayes factor weighs the fit against equal ratios.

References: Lipton et al., "Detecting and Correcting for Label Shift with Black Box Predictors",
2018; Carroll et al., "Measurement Error in Nonlinear Models", 2006, chapter 4.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

WIDTH = 2.0
"""Prior standard deviation of the logarithm of a ratio."""

DRIFT = 0.15
"""Standard deviation of a cluster's size, as a part of it, by drift between the two sides."""

FREEDOM = 4.0
"""Degrees of freedom of Student's t."""

NEARLY = 0.02
"""Largest logarithm of a ratio that counts as 1."""

FARTHEST = 8.0
"""Largest logarithm of a ratio."""

EXPLAINED = 0.5
"""Part of the squares that ratios of classes have to explain, so that labels are corrected by them.

They left 3% to 34% where classes had other shares, and 66% or more where features were shifted, on
three splits of 15 data sets at three epsilons each.
"""

STEP = 1e-3
"""Step of the numerical curvature."""

MOST_CLASSES = 1000
"""Most classes whose ratios are fitted. The time grows with the cube of their number, and sizes of
clusters cannot tell so many ratios.
"""


Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Function of the logarithms of ratios that returns a value and its gradient."""


class Problem(NamedTuple):
    """Sizes of clusters and their votes by class.

    Attributes:
      votes: Votes in units of public rows, float64 `[s, num_classes]`.
      variance: Their variance, float64 `[s, num_classes]`.
      size: Public rows of each query, float64 `[s]`.
    """

    votes: np.ndarray
    variance: np.ndarray
    size: np.ndarray


def fit(problem: Problem) -> np.ndarray:
    """Return the ratio of each class, `[num_classes]`, 1 on average over the votes."""
    share = problem.votes.sum(axis=0) / problem.votes.sum()
    num_classes = len(share)
    if num_classes > MOST_CLASSES:
        return np.ones(num_classes)

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        return _loss(logs, share, problem)

    start = np.zeros(num_classes)
    bounds = [(-FARTHEST, FARTHEST)] * num_classes
    import scipy.optimize  # imported late: it takes half a second

    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    volume = _log_volume(loss, found.x) - num_classes * np.log(WIDTH)
    gain = loss(start)[0] - found.fun + volume
    logs = found.x / (1 + np.exp(-np.clip(gain, -50, 50)))
    ratio: np.ndarray = np.exp(logs) / (share @ np.exp(logs))
    # Equal ratios are exactly equal, so that one factorization serves all classes.
    return ratio if np.abs(np.log(ratio)).max() > NEARLY else np.ones(num_classes)


def _loss(logs: np.ndarray, share: np.ndarray, problem: Problem) -> tuple[float, np.ndarray]:
    """Return the negative logarithm of posterior density, up to a constant, and its gradient."""
    ratio = np.exp(logs) / (share @ np.exp(logs))
    off = problem.size - problem.votes @ ratio
    variance = problem.size + problem.variance @ ratio**2 + (DRIFT * problem.size) ** 2
    square = off**2 / variance
    value = np.sum(0.5 * np.log(variance) + (FREEDOM + 1) / 2 * np.log1p(square / FREEDOM))
    slope = (FREEDOM + 1) / 2 / (FREEDOM + square)
    of_variance = (0.5 - slope * square) / variance
    of_ratio = of_variance @ (2 * problem.variance * ratio**2)
    of_ratio -= (2 * slope * off / variance) @ (problem.votes * ratio)
    gradient = of_ratio - share * ratio * of_ratio.sum() + logs / WIDTH**2
    return float(value + 0.5 * np.sum(logs**2) / WIDTH**2), gradient


def _log_volume(loss: Loss, logs: np.ndarray) -> float:
    """Return half the logarithm of the inverse curvature's determinant, at most the prior's."""
    steps = STEP * np.eye(len(logs))
    curvature = [(loss(logs + step)[1] - loss(logs - step)[1]) / (2 * STEP) for step in steps]
    values = np.linalg.eigvalsh((np.array(curvature) + np.transpose(curvature)) / 2)
    return -0.5 * float(np.sum(np.log(np.maximum(values, 1 / WIDTH**2))))


def supported(problem: Problem, ratio: np.ndarray) -> bool:
    """Return whether the ratios explain why clusters have more or fewer votes than rows.

    They do if they leave less than `EXPLAINED` of the squares. Private records whose features are
    shifted leave whole clusters without votes and fill others. Ratios of classes fit some of that,
    but explain little of it.

    Args:
      problem: Sizes of clusters and their votes.
      ratio: Ratio of each class, `[num_classes]`.
    """
    off = problem.size - problem.votes @ ratio
    before = problem.size - problem.votes.sum(axis=1)
    variance = problem.size + (DRIFT * problem.size) ** 2
    return bool(np.sum(off**2 / variance) < EXPLAINED * np.sum(before**2 / variance))

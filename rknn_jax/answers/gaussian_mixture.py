"""Gaussian mixture of the public rows: as many components as classes, all of one covariance.

Where each class is one cloud of rows, its rows have the same shares, however far apart they lie.
Distances of many dimensions do not show that, and the mixture does: it is what a linear
discriminant takes a class for, found without labels by expectation and maximization.

The components start at clusters of the queries. Everything here reads public data alone.

Reference: McLachlan & Peel, "Finite Mixture Models", 2000, chapter 3.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from rknn_jax import lloyd
from rknn_jax._internal.cores import one_thread_for_products

FEWEST_ROWS = 5
"""Fewest public rows of a component, on average. Fewer say nothing of its mean."""

MOST_PRODUCTS = 2**25
ENOUGH_ROWS = 20
"""Most multiplications of rows, features and components in a step, and rows of a component that are
taken whatever they cost. Other rows are left out of the fit."""

STEPS = 50
"""Most steps of expectation and maximization."""

CONVERGED = 1e-3
"""Mean change of a row's greatest responsibility, below which a step is the last."""

SHRUNK = 0.05
"""Part of the covariance that is replaced by one of its size that is alike in all directions."""

LEAST = 1e-6
"""Least variance of a direction, in units of the rows' mean one."""


class Mixture(NamedTuple):
    """Mixture of which a component's log-density is linear in a row, but for a common term.

    Attributes:
      slope: float32 `[f, components]`.
      offset: float32 `[components]`.
      scale: Number by which rows are divided first, so that squares neither overflow nor vanish.
        Defaults to 1.
    """

    slope: np.ndarray
    offset: np.ndarray
    scale: np.float32 = np.float32(1)

    def responsibilities(self, rows: np.ndarray) -> np.ndarray:
        """Return the posterior probability of each component, float32 `[b, components]`.

        Args:
          rows: float32 `[b, f]`.
        """
        found: np.ndarray = softmax(rows / self.scale @ self.slope + self.offset, axis=1)
        return found


def rows_of(num_rows: int, num_features: int, num_components: int) -> np.ndarray | None:
    """Return the numbers of the rows that a mixture is fitted to; None if they are too few."""
    if num_rows < FEWEST_ROWS * num_components:
        return None
    most = max(MOST_PRODUCTS // (num_features * num_components), ENOUGH_ROWS * num_components)
    if num_rows <= most:
        return np.arange(num_rows)
    # A fixed seed is safe: the rows are public.
    return np.sort(np.random.default_rng(0).choice(num_rows, most, replace=False))


def fit(rows: np.ndarray, cluster: np.ndarray, means: np.ndarray, num_components: int) -> Mixture:
    """Fit a mixture to public rows.

    Args:
      rows: float32 `[b, f]`, whose mean over all public rows is 0.
      cluster: Query of each row, int `[b]`.
      means: Mean of each query's public rows, float64 `[s, f]`.
      num_components: Number of components, at most s.
    """
    weight = np.bincount(cluster, minlength=len(means)) + 1e-9
    scale = np.abs(rows).max() or np.float32(1)
    rows, means = rows / scale, means / scale
    # Several threads would wait for each other in so small a step.
    with one_thread_for_products():
        start = lloyd.fit(means, num_components, 0, num_starts=4, weights=weight)
        moment = rows.T @ rows / len(rows)
        shares = np.eye(num_components, dtype=np.float32)[start.labels[cluster]]
        for _ in range(STEPS):
            mixture = _maximized(rows, moment, shares)
            before, shares = shares, mixture.responsibilities(rows)
            if np.abs(shares - before).max(axis=1).mean() < CONVERGED:
                break
    return mixture._replace(scale=scale)


def _maximized(rows: np.ndarray, moment: np.ndarray, shares: np.ndarray) -> Mixture:
    """Return the mixture of greatest likelihood if components have these shares of the rows.

    Args:
      rows: float32 `[b, f]`.
      moment: Second moment of the rows, `[f, f]`.
      shares: float32 `[b, components]`.
    """
    size = shares.sum(axis=0, dtype=np.float64) + 1e-9
    means = (shares.T @ rows).astype(np.float64) / size[:, None]
    part = size / size.sum()
    within = moment - (means.T * part) @ means
    num_features = len(moment)
    level = np.trace(within) / num_features
    least = LEAST * np.trace(moment) / num_features + np.finfo(np.float64).tiny ** 0.5
    within = (1 - SHRUNK) * within + max(SHRUNK * level, least) * np.eye(num_features)
    slope = np.linalg.solve(within, means.T)
    offset = np.log(part) - 0.5 * np.sum(means * slope.T, axis=1)
    return Mixture(slope.astype(np.float32), offset.astype(np.float32))

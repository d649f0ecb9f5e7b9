"""Labels between the public rows: what a labeling says at the place of a private record.

Labels that were read for public rows are carried to other places by a function that is fitted to
them. There are few candidates:

- the mean over the rows nearest to a place;
- ridge regression on radial features of `NUM_LANDMARKS` rows, of several widths:
  p(x) = p₀ + Σ_l w_l·exp(-|x - z_l|²/(2·width·u)), where u is the median squared distance of rows.

That candidate is taken which gives most public rows their own class, without having seen it. All of
this is public: rows and labels, and no record. A mean of rows alone would count the distance
between rows as an error of the labels where classes overlap.

What is said at the place of one record is the same bits whatever other records there are
(`_internal.one_record`, `neighbors.nearest`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from rknn_jax._internal.cores import one_thread_for_products
from rknn_jax._internal.one_record import map_records
from rknn_jax.answers.radial import median_sq_distance
from rknn_jax.label_sets import HALF
from rknn_jax.neighbors import Metric, in_metric, nearest

NEAR = 5
"""Rows whose mean is one candidate."""

NUM_LANDMARKS = 512
"""Rows that radial features have."""

WIDTHS = (0.3, 1.0, 3.0)
"""Widths of the radial features, in units of the median squared distance of rows."""

RIDGE = 1e-4
"""Penalty of the regression, in units of the mean square of a feature times the rows."""

MOST_FITTED = 4096
"""Rows that a regression is fitted to; more of them change little."""

MOST_COMPARED = 1024
"""Rows that tell how well the rows near them predict their labels."""

AT_ONCE = 4096
"""Records whose nearest rows are found at a time."""

NUMBERS_AT_ONCE = 2**22
"""Numbers of soft labels that are read at a time, so that many records and classes fit."""

Function = Callable[[np.ndarray], np.ndarray]
"""Soft labels `[c, num_classes]` at places, float32 `[c, f]`."""


class _Radial(NamedTuple):
    """Ridge regression on radial features of one width, X of the fitted rows.

    Features keep their mean: without it, a row would be known from all others.

    Attributes:
      scale: Factor of squared distances in the exponent.
      factor: Lower Cholesky factor L of X'X plus the penalty, float64 `[l, l]`.
      white: L⁻¹X', so that the regression's map from labels to predictions is white' white,
        float64 `[l, m]`.
    """

    scale: float
    factor: np.ndarray
    white: np.ndarray

    def weights(self, wanted: np.ndarray) -> np.ndarray:
        """Return the weights of the features, float64 `[l, num_classes]`.

        Args:
          wanted: Labels of the rows without their mean, float64 `[m, num_classes]`.
        """
        return np.asarray(
            scipy.linalg.solve_triangular(
                self.factor, self.white @ wanted, lower=True, trans=1, check_finite=False
            )
        )

    def unseen(self, wanted: np.ndarray) -> np.ndarray:
        """Return the label of each row by a regression on all others, `[m, num_classes]`.

        It is exact without another fit: y - (y - ŷ)/(1 - leverage).

        Args:
          wanted: As in `weights`.
        """
        leverage = np.minimum(np.einsum("lm,lm->m", self.white, self.white), 1 - 1e-6)
        missed = wanted - self.white.T @ (self.white @ wanted)
        missed /= 1 - leverage[:, None]
        return np.asarray(wanted - missed)


class _Fitted(NamedTuple):
    """Function of a place, as the program of one record takes it.

    Attributes:
      landmarks: Float32 `[l, f]`, filled up with zeros.
      scale: Factor of squared distances in the exponent, float32.
      weights: Float32 `[l, num_classes]`, zeros for what was filled up.
      offset: Float32 `[num_classes]`.
      unit: True if places have unit length in the metric.
    """

    landmarks: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    offset: np.ndarray
    unit: np.ndarray


@dataclass(frozen=True)
class Interpolator:
    """Public rows between which labels are read.

    Attributes:
      rows: Features, float32 `[m, f]`.
      metric: Distance between features.
    """

    rows: np.ndarray
    metric: Metric

    def agreement(
        self, points: np.ndarray, ids: np.ndarray, probabilities: np.ndarray, *, smooth: bool
    ) -> np.ndarray:
        """Return whether the labels at each record's place are its class, or its set, bool `[c]`.

        Args:
          points: Finite features of the records, float32 `[c, f]`.
          ids: Class of each record, int32 `[c]`, or its ballot `[c, r + 1]`.
          probabilities: Soft labels of the public rows, float32 `[m, num_classes]`.
          smooth: False if all rows of a query have its label: the nearest row tells it then.
        """
        several = ids.ndim > 1
        count, fitted = self._best(probabilities, smooth=smooth, several=several)
        if fitted is not None:
            return np.asarray(map_records(_agrees_at, fitted, (points, ids)))
        near = self._all_near(points, count)
        agree = np.zeros(len(points), bool)
        numbers = probabilities.shape[1] * (count + ids.size // max(1, len(ids)))
        step = max(1, NUMBERS_AT_ONCE // numbers)
        for first in range(0, len(points), step):
            some = slice(first, first + step)
            agree[some] = _agrees(probabilities[near[some]].mean(axis=1), ids[some])
        return agree

    def between(
        self, probabilities: np.ndarray, *, smooth: bool, several: bool = False
    ) -> Function:
        """Return the soft labels of all places, by those of the public rows.

        Args:
          probabilities: Soft labels of the public rows, float32 `[m, num_classes]`.
          smooth: As in `agreement`.
          several: True if a row may have several classes. Defaults to False.
        """
        count, fitted = self._best(probabilities, smooth=smooth, several=several)
        if fitted is None:
            return lambda points: self._mean(points, probabilities, count)
        return lambda points: np.asarray(map_records(_at, fitted, points))

    def _best(
        self, probabilities: np.ndarray, *, smooth: bool, several: bool
    ) -> tuple[int, _Fitted | None]:
        """Return how many rows are the mean at a place, or the regression that takes its place."""
        if not smooth or len(self.rows) < 2:
            return 1, None
        with one_thread_for_products():  # threads would wait for each other
            return NEAR, self._predicting(probabilities, several)

    def _predicting(self, probabilities: np.ndarray, several: bool) -> _Fitted | None:
        """Return the regression that best predicts labels of rows which it did not see.

        It is None if the mean over rows nearby predicts more of them.
        """
        wanted = probabilities[self._fitted].astype(np.float64)
        mean = wanted.mean(axis=0)
        like = [
            _share_alike(wanted, mean + one.unseen(wanted - mean), several) for one in self._radial
        ]
        best = int(np.argmax(like))
        chosen, near = self._compared
        of_mean = _share_alike(probabilities[chosen], probabilities[near].mean(axis=1), several)
        if of_mean >= like[best]:
            return None
        radial = self._radial[best]
        weights = radial.weights(wanted - mean)
        filled = np.zeros((len(self._landmarks), probabilities.shape[1]), np.float32)
        filled[: len(weights)] = weights
        return _Fitted(
            self._landmarks,
            np.asarray(radial.scale, np.float32),
            filled,
            offset=mean.astype(np.float32),
            unit=np.asarray(self.metric == "cosine"),
        )

    def _mean(self, points: np.ndarray, probabilities: np.ndarray, count: int) -> np.ndarray:
        """Return the mean over the rows nearest to each place, float32 `[c, num_classes]`."""
        near = self._all_near(points, count)
        mean: np.ndarray = probabilities[near].mean(axis=1)
        return mean

    def _all_near(self, points: np.ndarray, count: int) -> np.ndarray:
        """Return the rows nearest to each place, int32 `[c, count]`, or all if they are few."""
        found = [np.zeros((0, min(count, len(self.rows))), np.int32)]
        for first in range(0, len(points), AT_ONCE):
            block = points[first : first + AT_ONCE]
            size = 1 << (len(block) - 1).bit_length()  # few sizes make few programs
            filled = np.pad(block, ((0, size - len(block)), (0, 0)))
            found.append(np.asarray(self._near(filled, count))[: len(block)])
        return np.concatenate(found)

    def _near(self, points: np.ndarray, count: int) -> jax.Array:
        return nearest(points, self.rows, min(count, len(self.rows)), metric=self.metric)

    def _seen(self, chosen: np.ndarray) -> np.ndarray:
        """Return some rows as the metric sees them."""
        return np.asarray(in_metric(self.rows[chosen], self.metric))

    @cached_property
    def _fitted(self) -> np.ndarray:
        """Rows that a regression is fitted to."""
        return _spread(len(self.rows), MOST_FITTED)

    @cached_property
    def _landmarks(self) -> np.ndarray:
        """Rows that radial features have, as the metric sees them, filled up with zeros."""
        points = self._seen(_spread(len(self.rows), NUM_LANDMARKS))
        size = 1 << (len(points) - 1).bit_length()  # few sizes make few programs
        return np.pad(points, ((0, size - len(points)), (0, 0)))

    @cached_property
    def _radial(self) -> list[_Radial]:
        """Radial features of each width, and their regression."""
        landmarks = self._landmarks[: min(NUM_LANDMARKS, len(self.rows))]
        unit = max(median_sq_distance(landmarks), 0.0) or 1.0
        apart = _sq_distances(self._seen(self._fitted), landmarks)
        return [_regression(apart, 1 / (2 * width * unit)) for width in WIDTHS]

    @cached_property
    def _compared(self) -> tuple[np.ndarray, np.ndarray]:
        """Some rows, and the rows nearest to each of them but itself, int32 `[c, NEAR]`."""
        chosen = _spread(len(self.rows), MOST_COMPARED)
        near = np.asarray(self._near(self.rows[chosen], NEAR + 1))
        # Where equal rows hide a row from itself, the last of its neighbors goes.
        others = near != chosen[:, None]
        others[others.all(axis=1), -1] = False
        return chosen, near[others].reshape(len(chosen), -1)


def memory(num_rows: int, num_classes: int) -> int:
    """Return the bytes that a labeling of so many public rows is interpolated in, about."""
    fitted, landmarks = min(num_rows, MOST_FITTED), min(num_rows, NUM_LANDMARKS)
    return 8 * fitted * ((len(WIDTHS) + 3) * landmarks + 4 * num_classes)


def _at(fitted: Any, point: jax.Array) -> jax.Array:
    """Return the soft labels at one place, float32 `[num_classes]`."""
    norm = jnp.sqrt(jnp.sum(point**2))
    point = jnp.where(fitted.unit & (norm > 0), point / jnp.where(norm > 0, norm, 1), point)
    apart = jnp.sum((fitted.landmarks - point[None]) ** 2, axis=1)
    found: jax.Array = fitted.offset + jnp.exp(-fitted.scale * apart) @ fitted.weights
    return found


def _agrees_at(fitted: Any, record: Any) -> jax.Array:
    """Return whether the labels at the place of one record are its class, or its set, bool.

    No record's soft labels leave the program: those of many records and classes would not fit.
    """
    point, ids = record
    found = _at(fitted, point)
    same: jax.Array
    if ids.ndim == 0:
        same = jnp.argmax(found) == ids
    else:
        same = _same_set(found[None], ids[None])[0]
    return same


def _agrees(found: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return whether soft labels `[c, num_classes]` are the class or the set of each record."""
    if ids.ndim == 1:
        agree: np.ndarray = _said(found, several=False) == ids
        return agree
    return np.asarray(_same_set(found, ids))


def _same_set(found: Any, ballots: Any) -> Any:
    classes = np.arange(found.shape[1])[None, None]
    named = (ballots[:, :-1, None] == classes).any(axis=1)
    return ((found > HALF) == named).all(axis=1)


def _regression(apart: np.ndarray, scale: float) -> _Radial:
    """Return a ridge regression on radial features.

    Args:
      apart: Squared distances of rows and landmarks, float64 `[m, l]`.
      scale: Factor of squared distances in the exponent.
    """
    features = np.exp(-scale * apart)
    square = features.T @ features
    square[np.diag_indices(len(square))] += RIDGE * max(np.trace(square) / len(square), 1e-9)
    factor = scipy.linalg.cholesky(square, lower=True, overwrite_a=True, check_finite=False)
    white = scipy.linalg.solve_triangular(
        factor, features.T, lower=True, overwrite_b=True, check_finite=False
    )
    return _Radial(scale, factor, white)


def _share_alike(one: np.ndarray, other: np.ndarray, several: bool) -> float:
    """Return the share of rows that two soft labelings give the same class, or set."""
    same = _said(one, several) == _said(other, several)
    return float(np.mean(same.all(axis=1) if several else same))


def _said(probabilities: np.ndarray, several: bool) -> np.ndarray:
    """Return the class of each row, int `[c]`, or its set, bool `[c, num_classes]`."""
    return np.asarray(probabilities > HALF if several else probabilities.argmax(axis=1))


def _sq_distances(rows: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """Return the squared distances of rows and landmarks, float64 `[m, l]`."""
    rows, landmarks = rows.astype(np.float64), landmarks.astype(np.float64)
    squares = np.sum(rows**2, axis=1)[:, None] + np.sum(landmarks**2, axis=1)
    found: np.ndarray = np.maximum(squares - 2 * rows @ landmarks.T, 0)
    return found


def _spread(count: int, most: int) -> np.ndarray:
    """Return the numbers of at most so many rows, evenly spaced."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)

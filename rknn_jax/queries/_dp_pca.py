"""Differentially private PCA by Gaussian noise on second moments (Analyze Gauss).

A public center and a public length put every row into the unit ball, independently of other rows:

    x = y / max(1, |y|),    y = (z - centre) / length

Adding or removing a record moves M = Σ x x' by at most |x|² <= 1 in Frobenius norm. Replacing a
record moves M by √(|x|⁴ + |w|⁴ - 2<x,w>²) <= √2. Entries off the diagonal count twice in that norm.
Isotropic noise therefore has variance σ² on the diagonal and σ²/2 off it, and is symmetric.
Variance σ² everywhere would add noise without need. σ comes from the analytic calibration. All else
is post-processing: a symmetric solver gives orthonormal eigenvectors of the largest eigenvalues.

`Components` projects with the same center, length, and clipping, so no record's coordinates depend
on another record. Published code centers private points by their own mean instead. One distant
record then moves all of them.

References: Dwork, Talwar, Thakurta & Zhang, "Analyze Gauss: Optimal Bounds for Privacy-Preserving
Principal Component Analysis", 2014; Balle & Wang, "Improving the Gaussian Mechanism for
Differential Privacy", 2018.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.privacy import analytic_gaussian
from rknn_jax.privacy.clipping import clip_to_ball
from rknn_jax.privacy.events import Gaussian
from rknn_jax.privacy.guarantee import RELATIONS, Guarantee, Relation
from rknn_jax.types import Array

SENSITIVITY: dict[Relation, float] = {"add-remove": 1.0, "replace-one": math.sqrt(2)}
"""Sensitivity of the second moments of rows in the unit ball, in Frobenius norm."""


@dataclass(frozen=True, eq=False)
class Components:
    """Principal directions of private features, and the projection on them.

    Attributes:
      directions: Orthonormal directions, float32 `[num_components, f]`, largest noisy eigenvalue
        first.
      centre: Public center, float64 `[f]`.
      length: Public length of a row, to which longer rows are clipped.
      guarantee: Privacy guarantee of the directions.
    """

    directions: np.ndarray
    centre: np.ndarray
    length: float
    guarantee: Guarantee

    def __call__(self, features: Array) -> np.ndarray:
        """Return float32 `[n, num_components]` from features `[n, f]`.

        Row i depends on row i alone.
        """
        rows = clipped(features, self.centre, self.length)
        projected: np.ndarray = np.einsum(
            "nf,cf->nc", rows, self.directions.astype(np.float64)
        ).astype(np.float32)
        return projected


def fit(
    key: jax.Array,
    features: Array,
    num_components: int,
    *,
    centre: Array,
    length: float,
    epsilon: float,
    delta: float,
    relation: Relation = "replace-one",
) -> Components:
    """Fit principal components of private features.

    Args:
      key: Random key of the noise, consumed by the call.
      features: Private features `[n, f]`; row i depends on record i alone.
      num_components: Number of components, at most f.
      centre: Public center `[f]`, such as the mean of public features.
      length: Public length, such as that of typical centered public features; longer rows are
        clipped to it.
      epsilon: Epsilon of the guarantee; infinity adds no noise and guarantees nothing.
      delta: Delta of the guarantee, which Gaussian noise needs.
      relation: Relation of neighboring data sets. Defaults to `replace-one`.

    Guarantee:
      (epsilon, delta)-DP if `centre` and `length` do not depend on the private records. They may
      also come from another release that is accounted for. The event is one Gaussian value, so it
      composes tightly.

    Raises:
      ValueError: For arguments out of range, and for features that do not fit the center.
    """
    features = np.asarray(features, np.float64)
    centre = np.asarray(centre, np.float64)
    _check(
        features,
        num_components,
        centre,
        length=length,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
    )
    sigma = (
        SENSITIVITY[relation] * analytic_gaussian.gaussian_noise_multiplier(epsilon, delta)
        if epsilon < math.inf
        else 0.0
    )
    moments = second_moments(features, centre, length) + symmetric_noise(
        key, features.shape[1], sigma
    )
    event = Gaussian(sigma / SENSITIVITY[relation])
    guarantee = Guarantee(
        epsilon,
        delta if sigma else 0.0,
        relation,
        trust="central",
        events=(event,),
        accountant="analytic Gaussian",
    )
    return Components(
        leading(moments, num_components).astype(np.float32), centre, float(length), guarantee
    )


def clipped(features: Array, centre: Array, length: float) -> np.ndarray:
    """Center rows, divide them by a length, and clip them to norm 1; see `clip_to_ball`.

    Each row depends on itself alone.

    Returns:
      Float64 `[n, f]`.
    """
    return clip_to_ball(features, centre, length)


def second_moments(features: Array, centre: Array, length: float) -> np.ndarray:
    """Return Σ x x' of clipped rows, float64 `[f, f]`.

    A neighboring data set moves the result by at most `SENSITIVITY`.
    """
    rows = clipped(features, centre, length)
    moments: np.ndarray = rows.T @ rows
    return moments


def symmetric_noise(key: jax.Array, size: int, sigma: float) -> np.ndarray:
    """Draw a symmetric matrix with variance σ² on the diagonal and σ²/2 off it.

    `key` is consumed.

    Returns:
      Float64 `[size, size]`.
    """
    normal = np.asarray(jax.random.normal(key, (size, size), jnp.float32), np.float64)
    return sigma * (normal + normal.T) / 2


def leading(moments: np.ndarray, num_components: int) -> np.ndarray:
    """Return eigenvectors of the largest eigenvalues of a symmetric matrix.

    The largest entry of each eigenvector is positive, so that equal matrices give equal vectors.

    Returns:
      Float64 `[num_components, f]`.
    """
    directions = np.linalg.eigh(moments)[1][:, ::-1][:, :num_components].T
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    signed: np.ndarray = directions * np.sign(largest)
    return signed


def _check(
    features: np.ndarray,
    num_components: int,
    centre: np.ndarray,
    length: float,
    epsilon: float,
    delta: float,
    relation: Relation,
) -> None:
    if features.ndim != 2 or centre.shape != features.shape[1:]:
        raise ValueError(
            f"Expected features [n, f] and centre [f], got shapes {features.shape} and "
            f"{centre.shape}."
        )
    if not 1 <= num_components <= features.shape[1]:
        raise ValueError(
            f"Expected 1 <= num_components <= {features.shape[1]}, the features' number, got "
            f"num_components={num_components}; take fewer."
        )
    if not np.isfinite(centre).all():
        raise ValueError(
            "Expected a finite centre, got another; look at the network that it comes from."
        )
    if not 0 < length < math.inf:
        raise ValueError(
            f"Expected a finite length > 0, got length={length}; public features that are all "
            "alike have none."
        )
    if not epsilon > 0:
        raise ValueError(f"Expected epsilon > 0, got epsilon={epsilon}; infinity adds no noise.")
    if epsilon < math.inf and not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; Gaussian noise needs one, such as 1e-5."
        )
    if relation not in RELATIONS:
        raise ValueError(f"Expected relation to be one of {RELATIONS}, got relation={relation!r}.")

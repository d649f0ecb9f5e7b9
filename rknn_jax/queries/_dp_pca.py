"""Principal components of private features by Gaussian noise on their second moments: Analyze
Gauss.

A public centre and a public length put every row into the unit ball, by itself alone,

    x = y / max(1, |y|),    y = (z - centre) / length,

so that M = Σ x x' moves by at most |x|² <= 1 in Frobenius norm where a record is added or removed,
and where one takes another's place by √(|x|⁴ + |w|⁴ - 2<x,w>²) <= √2. Entries off the diagonal
count twice in that norm, so noise that is alike in all its directions has variance σ² on the
diagonal and σ²/2 off it, the same above and below; σ² everywhere would be more of it for nothing. σ
is that of the analytic calibration. All else is post-processing: the eigenvectors of the largest
eigenvalues, which a symmetric solver makes orthonormal.

`Components` projects by the same centre, length and clipping, so that no record's coordinates
depend on another record. Published code centres private points by their own mean instead: one far
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

from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import RELATIONS, Event, Guarantee, Relation
from rknn_jax.types import Array

SENSITIVITY: dict[Relation, float] = {"add-remove": 1.0, "replace-one": math.sqrt(2)}
"""Of the second moments of rows in the unit ball, in Frobenius norm."""


@dataclass(frozen=True, eq=False)
class Components:
    """Directions of private features, and how features are projected on them.

    Attributes:
      directions: float32 `[num_components, f]`, orthonormal, that of the largest noisy eigenvalue
        first.
      centre: float64 `[f]`, public.
      length: public.
      guarantee: of the directions.
    """

    directions: np.ndarray
    centre: np.ndarray
    length: float
    guarantee: Guarantee

    def __call__(self, features: Array) -> np.ndarray:
        """Return float32 `[n, num_components]` from features `[n, f]`; row i depends on row i
        alone.
        """
        rows = clipped(features, self.centre, self.length)
        return np.einsum("nf,cf->nc", rows, self.directions.astype(np.float64)).astype(np.float32)


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
    """Find principal components of private features.

    Args:
      key: is consumed; it makes the noise.
      features: `[n, f]`, private; row i depends on record i alone.
      num_components: c, at most f.
      centre: `[f]`, such as the mean of public features.
      length: such as that of typical public features, once centred; longer rows are clipped to it.
      epsilon: of the guarantee; infinity adds no noise and guarantees nothing.
      delta: of the guarantee; noise that is Gaussian needs one.
      relation: which data sets are neighbours.

    Guarantee:
      (epsilon, delta)-DP, provided that `centre` and `length` do not depend on the private records,
      or by another release that is accounted for. As an event it is one Gaussian value, so it
      composes tightly.

    Raises:
      ValueError: for arguments out of range, and features that are not finite or do not fit the
        centre.
    """
    features = np.asarray(features, np.float64)
    centre = np.asarray(centre, np.float64)
    _check(features, num_components, centre, length, epsilon, delta, relation)
    sigma = (
        SENSITIVITY[relation] * accounting.gaussian_noise_multiplier(epsilon, delta)
        if epsilon < math.inf
        else 0.0
    )
    moments = second_moments(features, centre, length) + symmetric_noise(
        key, features.shape[1], sigma
    )
    event = Event("gaussian", sigma / SENSITIVITY[relation])
    guarantee = Guarantee(
        epsilon,
        delta if sigma else 0.0,
        relation,
        "central",
        (event,),
        accountant="analytic Gaussian",
    )
    return Components(
        leading(moments, num_components).astype(np.float32), centre, float(length), guarantee
    )


def clipped(features: Array, centre: Array, length: float) -> np.ndarray:
    """Centre rows, divide them by a length and shorten those that are longer than 1, float64
    `[n, f]`; each by itself alone.
    """
    rows = (np.asarray(features, np.float64) - np.asarray(centre, np.float64)) / length
    return rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))


def second_moments(features: Array, centre: Array, length: float) -> np.ndarray:
    """Return Σ x x' of clipped rows, float64 `[f, f]`: what a neighbouring data set moves by
    `SENSITIVITY` at most.
    """
    rows = clipped(features, centre, length)
    return rows.T @ rows


def symmetric_noise(key: jax.Array, size: int, sigma: float) -> np.ndarray:
    """Draw a symmetric matrix with variance σ² on the diagonal and σ²/2 off it, float64 `[size,
    size]`; `key` is consumed.
    """
    normal = np.asarray(jax.random.normal(key, (size, size), jnp.float32), np.float64)
    return sigma * (normal + normal.T) / 2


def leading(moments: np.ndarray, num_components: int) -> np.ndarray:
    """Return eigenvectors of the largest eigenvalues of a symmetric matrix, float64
    `[num_components, f]`.

    Each one's largest entry is positive, so that equal matrices give equal vectors.
    """
    directions = np.linalg.eigh(moments)[1][:, ::-1][:, :num_components].T
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    return directions * np.sign(largest)


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
    if not (np.isfinite(features).all() and np.isfinite(centre).all()):
        raise ValueError(
            "Expected finite features and centre, got others; look at the network that they come "
            "from."
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

"""Features in which soft labels of public rows differ most: what one round teaches the next.

Directions come first in which the means of the classes differ, in units of the spread within a
class, and then all features, weighted less. A record is near those of its class in them, and votes
in a later round of Algorithm 1 say more.

Everything is learned on public rows and released labels, so it costs no privacy. A record's
features are made by a program of that record alone (`_internal.one_record`).

Reference: Fisher, "The Use of Multiple Measurements in Taxonomic Problems", 1936.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from rknn_jax._internal import pytree
from rknn_jax._internal.one_record import map_records
from rknn_jax.neighbors import LARGEST, Metric, in_metric
from rknn_jax.types import Array

SHRUNK = 0.1
"""Part of the mean variance within classes that is added to each direction's."""

KEPT = 0.35
"""Weight of all features beside the directions, each part in units of its total spread."""

WEAK = 0.1
"""Part of the strongest direction's separation at which another one has half of its weight."""

MOST_FEATURES = 1024
COMPONENTS = 256
"""Features from which on directions are sought among principal components, and their number."""


@pytree.register
@dataclass(frozen=True)
class Discriminant:
    """Map of features to those in which labels differ most.

    Attributes:
      mean: Mean of the public rows, float32 `[f]`.
      directions: Directions, float32 `[f, d]`.
      kept: Weight of each feature itself.
      unit: 1 if a record's features are divided by their norm first, as the cosine metric sees
        them, else 0.
    """

    mean: jax.Array
    directions: jax.Array
    kept: jax.Array
    unit: jax.Array

    @property
    def width(self) -> int:
        """Number of features f of a record."""
        return len(self.mean)

    def check(self) -> None:
        """Raise ValueError if the arrays are not those of a map, as a stranger may send them."""
        width = np.asarray(self.mean).size
        number = np.asarray(self.directions).size // max(width, 1)
        shapes = {"mean": (width,), "directions": (width, number), "kept": (), "unit": ()}
        for name, shape in shapes.items():
            value = getattr(self, name)
            found = np.asarray(value)
            if (
                not isinstance(value, np.ndarray | jax.Array)
                or found.dtype != np.float32
                or found.shape != shape
                or not width
            ):
                raise ValueError(
                    f"Expected {name} float32 {shape} of a map of {width} features, got "
                    f"{found.dtype} {found.shape}."
                )
            if not (np.abs(found) <= LARGEST).all():
                raise ValueError(f"Expected {name} of at most {LARGEST:g}, got {name}={found!r}.")

    @property
    def made(self) -> int:
        """Number of features d + f that are made."""
        return self.width + self.directions.shape[1]

    def __call__(self, rows: Array) -> np.ndarray:
        """Return float32 `[b, d + f]` from `[b, f]`; row i depends on row i alone, bit for bit."""
        return np.asarray(map_records(Discriminant.describe, self, np.asarray(rows, np.float32)))

    def describe(self, row: jax.Array) -> jax.Array:
        """Return the features of one record, float32 `[d + f]`, from `[f]`."""
        norm = jnp.sqrt(jnp.sum(row * row))
        scale = jnp.where((self.unit > 0) & (norm > 0), norm, 1)
        centered = row / scale - self.mean
        along = jnp.matmul(centered, self.directions, precision=jax.lax.Precision.HIGHEST)
        return jnp.concatenate([along, self.kept * centered])


def learned(features: np.ndarray, probabilities: np.ndarray, metric: Metric) -> Discriminant:
    """Learn the map from public rows and their soft labels.

    Args:
      features: float32 `[m, f]`, public.
      probabilities: `[m, num_classes]`, soft labels, which were released.
      metric: Metric of the features. Those of the map are for squared Euclidean distances.
    """
    rows = np.asarray(in_metric(features, metric), np.float64)
    mean = rows.mean(axis=0)
    rows = rows - mean
    basis = None
    if rows.shape[1] > MOST_FEATURES:
        from sklearn.decomposition import PCA  # imported late: it takes over a second

        number = min(COMPONENTS, len(rows))
        # A fixed seed is safe: the rows are public.
        found = PCA(number, svd_solver="randomized", random_state=0).fit(rows)
        basis = found.components_.T
    directions = _directions(rows if basis is None else rows @ basis, probabilities)
    if basis is not None:
        directions = basis @ directions
    spread = float(np.sqrt(np.mean(np.square(rows).sum(axis=1)))) or 1.0
    along = float(np.sqrt(np.mean(np.square(rows @ directions).sum(axis=1)))) or 1.0
    # Of tiny features, so that no weight is above what a client takes.
    along = max(along, 2 * float(np.abs(directions).max(initial=0.0)) / LARGEST)
    return Discriminant(
        jnp.asarray(mean, jnp.float32),
        jnp.asarray(directions / along, jnp.float32),
        jnp.float32(min(KEPT / spread, LARGEST / 2)),
        jnp.float32(metric == "cosine"),
    )


def _directions(rows: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the directions in which soft classes differ, float64 `[f, d]`.

    Within classes, each has a variance of 1 times its separation's weight.

    Args:
      rows: Rows whose mean is 0, `[m, f]`.
      probabilities: Soft labels, `[m, num_classes]`.
    """
    probabilities = np.asarray(probabilities, np.float64)
    size = probabilities.sum(axis=0)
    means = probabilities.T @ rows / np.maximum(size, 1e-9)[:, None]
    between = (means.T * size) @ means / len(rows)
    within = rows.T @ rows / len(rows) - between
    width = len(within)
    ridge = SHRUNK * max(float(np.trace(within)) / width, float(np.finfo(np.float32).tiny))
    number = min(probabilities.shape[1] - 1, width)
    separation, found = scipy.linalg.eigh(
        between, within + ridge * np.eye(width), subset_by_index=(width - number, width - 1)
    )
    separation, found = np.maximum(separation[::-1], 0), found[:, ::-1]
    most = max(float(separation.max(initial=0.0)), float(np.finfo(np.float32).tiny))
    weights: np.ndarray = np.sqrt(separation / (separation + WEAK * most))
    turned: np.ndarray = found * weights
    return turned

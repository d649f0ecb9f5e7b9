"""Prototype queries: the prototypes or clusters of an encoder, such as `dti` and `scan`.

Feature j of such an encoder measures an image's membership in prototype j. It is minus the distance
to the prototype, or the probability of a cluster. Query j is the unit vector e_j. The squared
Euclidean distance that `nearest` ranks by is then

    |x - e_j|^2 = |x|^2 + 1 - 2 x_j

A private record therefore votes for the prototypes of its largest features, in their order. Float32
separates features that differ by 1e-5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.queries import kmeans
from rknn_jax.types import Array, Queries


def select(key: jax.Array, features: Array, num_queries: int) -> Queries:
    """Ask about each prototype once.

    Args:
      key: Not needed.
      features: Features of public records, float32 `[m, f]`. A larger feature j means a closer
        match with prototype j.
      num_queries: Number of queries, which must equal f.

    Returns:
      Queries in the order of the prototypes. Every public record belongs to the prototype of its
      largest feature, the first of equal ones. Each prototype is represented by the public record
      with the largest feature j that represents no earlier prototype.

    Raises:
      ValueError: For num_queries other than f, or for fewer public records than f.
    """
    features = np.asarray(features, np.float32)
    num_records, width = features.shape
    if not num_queries == width >= 1:
        raise ValueError(
            f"Expected num_queries={width}, one for each feature, got num_queries={num_queries}; "
            "fit as many prototypes as queries."
        )
    if num_records < width:
        raise ValueError(
            f"Expected num_queries <= number of public records, got num_queries={num_queries} "
            f"with {num_records} public records; "
            "fit fewer prototypes or bring more public records."
        )
    cluster = features.argmax(axis=1).astype(np.int32)
    index = np.empty(width, np.int32)
    free = np.ones(num_records, bool)
    for prototype in range(width):
        index[prototype] = np.where(free, features[:, prototype], -np.inf).argmax()
        free[index[prototype]] = False
    return Queries(
        jnp.asarray(np.eye(width, dtype=np.float32)),
        index,
        cluster,
        np.bincount(cluster, minlength=width),
    )


def _example(key: jax.Array, features: Array, num_queries: int) -> Queries:
    features = np.asarray(features)
    if not 1 <= num_queries <= len(features):
        return select(key, features[:, :1], num_queries)
    centers = np.asarray(kmeans.select(key, features, num_queries).features)
    return select(key, -((features[:, None] - centers[None]) ** 2).sum(axis=2), num_queries)


EXAMPLES = (_example,)

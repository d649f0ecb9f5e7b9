"""Queries that an encoder brings along: its own prototypes or clusters, such as those of `dti` and
`scan`.

Feature j of such an encoder says how much an image belongs to prototype j: minus its distance to
the prototype, or the probability of a cluster. With the unit vector e_j as query j, the squared
Euclidean distance that `nearest` ranks by is

    |x - e_j|^2 = |x|^2 + 1 - 2 x_j,

so that a private record votes for the prototypes it belongs to most, in their order. float32 tells
features apart that differ by 1e-5.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.queries import kmeans
from rknn_jax.types import Array, Queries


def select(key: jax.Array, features: Array, num_queries: int) -> Queries:
    """Ask about each prototype once.

    Args:
      key: is not needed.
      features: float32 `[m, f]`, of public records; the larger, the more a record belongs to
        prototype j.
      num_queries: f.

    Returns:
      Queries in the order of the prototypes. Every public record belongs to the prototype of its
      largest feature, the first one of equals, and each prototype is stood for by the public record
      that has most of it and stands for none before.

    Raises:
      ValueError: for num_queries other than f, or fewer public records than that.
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
    centres = np.asarray(kmeans.select(key, features, num_queries).features)
    return select(key, -((features[:, None] - centres[None]) ** 2).sum(axis=2), num_queries)


EXAMPLES = (_example,)

"""Queries by chance: public records, each of which stands for itself alone.

PATE and Private-kNN ask about such.

Their price grows with every query, so most public records are left without a label, to
semi-supervised students or to the neighbour graph.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.types import Array, Queries


def select(
    key: jax.Array, features: Array, num_queries: int, among: np.ndarray | None = None
) -> Queries:
    """Draw public records without replacement.

    Args:
      key: is consumed.
      features: float32 `[m, f]`, of public records.
      num_queries: s.
      among: bool `[m]`, those that may be drawn; all by default.

    Raises:
      ValueError: for num_queries outside [1, number that may be drawn].
    """
    features = np.asarray(features, np.float32)
    allowed = np.arange(len(features)) if among is None else np.flatnonzero(among)
    if not 1 <= num_queries <= len(allowed):
        raise ValueError(
            "Expected 1 <= num_queries <= number of public records that may be asked about, got "
            f"num_queries={num_queries} with "
            f"{len(allowed)}; ask fewer queries or bring more public records."
        )
    index = np.asarray(
        jax.random.choice(key, jnp.asarray(allowed, jnp.int32), (num_queries,), replace=False)
    )
    return Queries.alone(features, index)


EXAMPLES = (select,)

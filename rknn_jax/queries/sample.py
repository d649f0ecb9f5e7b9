"""Random queries: public records that each label only themselves.

PATE and Private-kNN use such queries. Their privacy cost grows with every query. Most public
records are therefore left without a label, for semi-supervised students or the neighbor graph.
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
      key: Random key, consumed by the call.
      features: Features of public records, float32 `[m, f]`.
      num_queries: Number of queries s.
      among: Mask of the records that may be drawn, bool `[m]`. Defaults to all.

    Raises:
      ValueError: For num_queries outside [1, number of records that may be drawn].
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

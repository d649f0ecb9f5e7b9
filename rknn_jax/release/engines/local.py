"""This machine: shards one after another, on all of its cores."""

from rknn_jax._internal.option_names import option
from rknn_jax.release import counting
from rknn_jax.release.counting import Counted, Counter, Progress
from rknn_jax.release.shards import Records

NOT_COVERED: tuple[str, ...] = ()
"""Risks of this engine that a guarantee does not cover."""


def count_all(
    records: Records,
    counter: Counter,
    on_rows: Progress | None = None,
    address: str | None = None,
) -> Counted:
    """Take the sum over all shards.

    Args:
      records: Private records.
      counter: Sum and classes.
      on_rows: Function that is told the progress. Defaults to none.
      address: Address of a cluster, which there is none of here. Defaults to none.

    Raises:
      ValueError: As for `counting.count`, and if an address is given.
    """
    if address is not None:
        raise ValueError(
            f"Expected no {option('address')} with {option('engine')} local, got "
            f"{option('address')} {address}; pass {option('engine')} ray to count on a cluster."
        )
    return counting.count_all(records, counter, on_rows)

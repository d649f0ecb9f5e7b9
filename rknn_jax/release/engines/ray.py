"""Ray Data: shards on a cluster, or on this machine if no address is given.

A worker or a machine that dies is replaced, and its shards are counted again. That changes nothing:
a shard's count is a pure function of the shard, and `counting.total` takes every shard once. No
noise is drawn on the cluster.
"""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from rknn_jax._internal import compilation, ray_map
from rknn_jax.release import counting
from rknn_jax.release.counting import Count, Counted, Counter, Progress
from rknn_jax.release.shards import Records

NOT_COVERED = (
    "the sum over each shard without noise, the votes of each record if persons are protected, and "
    "the class and the features of each record that checks: they pass through the "
    "memory, the spill files and the network of the Ray cluster, whoever administers it can read "
    "them, so can all accounts of its machines unless this release started it, and its traffic is "
    "encrypted only if RAY_USE_TLS is set",
)
"""Risks of this engine that a guarantee does not cover."""


def count_all(
    records: Records,
    counter: Counter,
    on_rows: Progress | None = None,
    address: str | None = None,
) -> Counted:
    """Take the sum over all shards.

    Args:
      records: Private records. Every machine of the cluster reads them by the same names.
      counter: Sum and classes.
      on_rows: Function that is told the progress, shard by shard. Defaults to none.
      address: Address of a cluster, such as `ray://head:10001` or `auto`. Defaults to none, for
        one that is started on this machine and ends with the count.

    Raises:
      ValueError: If Ray is not installed or the cluster cannot be reached, and as for
        `counting.count`. Nothing was spent then.
    """
    names = [shard.name for shard in records.shards]
    counts = _counts(records, counter, on_rows, address)
    return counting.total(counts, names, counter)


def _counts(
    records: Records, counter: Counter, on_rows: Progress | None, address: str | None
) -> Iterator[Count]:
    """Yield the count of each shard, as they are done."""
    number = len(records.shards)
    try:
        for row in ray_map.results(_Worker, (records, counter), number, address):
            if error := row.pop("error"):
                raise ValueError(error)
            if on_rows is not None:
                on_rows(row["rows"])
            checking = pickle.loads(row["checking"])
            totals = np.asarray(row["totals"], np.int64)
            yield Count(**row | {"totals": totals, "checking": checking})
    except ValueError as error:
        raise ValueError(
            f"{error} Nothing was spent; mend it and run the same command again."
        ) from error


class _Worker:
    """Count of one shard at a time, in a process of the cluster, which lasts for several."""

    def __init__(self, records: Records, counter: Counter) -> None:
        compilation.keep_none()
        self._records = records
        self._counter = counter

    def __call__(self, row: dict[str, int]) -> dict[str, Any]:
        number = int(row["number"])
        shard, rows = self._records.shards[number], self._records.rows[number]
        try:
            found = counting.count(shard, rows, self._counter, workers=1, number=number)
        except ValueError as error:  # an exception would reach the driver without its words
            totals = np.zeros(self._counter.tally.shape, np.int64)
            empty = Count(shard.name, 0, 0, given=0, totals=totals, digest="")
            return vars(empty) | {"checking": b"", "error": str(error)}
        # Bytes keep the shapes of arrays without rows or columns.
        return vars(found) | {"checking": pickle.dumps(found.checking), "error": ""}

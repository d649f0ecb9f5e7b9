"""Ray Data: shards on a cluster, or on this machine if no address is given.

A worker or a machine that dies is replaced, and its shards are counted again. That changes nothing:
a shard's count is a pure function of the shard, and `counting.total` takes every shard once. An
error in a shard is not retried and ends the job. No noise is drawn on the cluster.
"""

import logging
import os
from typing import Any

import numpy as np

from rknn_jax.release import counting
from rknn_jax.release.counting import Count, Progress, Question, Votes
from rknn_jax.release.shards import Records

NOT_COVERED = (
    "the votes of each shard without noise, which pass through the memory, the spill files and the "
    "network of the Ray cluster: whoever administers it can read them, and its traffic is "
    "encrypted only if RAY_USE_TLS is set",
)
"""Risks of this engine that a guarantee does not cover."""

STORE_BYTES = 2**28
"""Memory of the object store of an embedded cluster; what passes through it is a few tables."""


def count_all(
    records: Records,
    question: Question,
    on_rows: Progress | None = None,
    address: str | None = None,
) -> Votes:
    """Count the votes of all shards.

    Args:
      records: Private records. Every machine of the cluster reads them by the same names.
      question: Queries and classes.
      on_rows: Function that is told the progress, shard by shard. Defaults to none.
      address: Address of a cluster, such as `ray://head:10001` or `auto`. Defaults to none, for
        one that is started on this machine and ends with the count.

    Raises:
      ValueError: If Ray is not installed or the cluster cannot be reached, and as for
        `counting.count`. Nothing was spent then.
    """
    ray = _library()
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        counts = []
        for row in _counted(ray, records, question).iter_rows():
            if row.pop("error"):
                raise ValueError(f"{row['name']} Nothing was spent.")
            counts.append(Count(**row | {"votes": np.asarray(row["votes"], np.int64)}))
            if on_rows is not None:
                on_rows(counts[-1].rows)
    except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
        words = " ".join(str(error).split())
        raise ValueError(
            f"The count on Ray ended: {words}. Nothing was spent; mend it and run the same command "
            "again."
        ) from error
    finally:
        if started:
            ray.shutdown()
    return counting.total(counts, [shard.name for shard in records.shards], question.num_neighbors)


def _counted(ray: Any, records: Records, question: Question) -> Any:
    """Return a data set with a row for each shard, which is counted when it is read."""
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = 0  # a shard that fails ends the job
    context.actor_task_retry_on_errors = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    number = len(records.shards)
    names = ray.data.from_items([{"number": i} for i in range(number)], override_num_blocks=number)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    most = gpus or int(ray.cluster_resources().get("CPU", 1))
    each = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    return names.map(
        _Counter,
        fn_constructor_args=(records, question),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, min(most, number))),
        **each,
    )


class _Counter:
    """Count of one shard at a time, in a process of the cluster that keeps compiled programs."""

    def __init__(self, records: Records, question: Question) -> None:
        self._records = records
        self._question = question

    def __call__(self, row: dict[str, int]) -> dict[str, Any]:
        number = int(row["number"])
        shard, rows = self._records.shards[number], self._records.rows[number]
        try:
            found = counting.count(shard, rows, self._question, workers=1)
        except ValueError as error:  # an exception would reach the driver without its words
            votes = np.zeros((len(self._question.queries), self._question.classes.count), np.int64)
            return vars(Count(str(error), 0, 0, 0, votes, "")) | {"error": True}
        return vars(found) | {"error": False}


def _library() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.data
        import ray.data.exceptions
    except ImportError as error:
        raise ValueError(
            "Expected Ray with --engine ray, got none; pip install 'rknn-jax[ray]'."
        ) from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    embedded: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        if address is None:
            ray.init(address="local", **embedded, **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # a cluster that cannot be reached fails in many ways
        raise ValueError(
            f"The Ray cluster --address {address} cannot be reached: {error}; start it, or leave "
            "--address out."
        ) from error

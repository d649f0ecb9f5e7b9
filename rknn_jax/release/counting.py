"""Votes of private records, counted shard by shard in one pass.

Every block of rows is read, checked, hashed for the ledger's fingerprint, assigned to its nearest
queries, and summed. Memory does not grow with the number of records. The sum is exact in int64, so
neither the order of the shards nor the size of the blocks changes it.

A shard that counted twice would double the votes of its records, which no noise covers. `total`
therefore takes every shard once or nothing at all.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.neighbors import Metric, nearest_votes, num_cores
from rknn_jax.privacy.ledger import Digest, combined
from rknn_jax.release import tables
from rknn_jax.release.shards import Records, Shard
from rknn_jax.release.tables import MISSING, Classes
from rknn_jax.types import Array

BLOCK = {"cpu": 4096}
"""Rows of a block. More do not fit into the caches of a core and are no faster."""

LARGE_BLOCK = 2**16
"""Rows of a block on an accelerator."""

AHEAD = 2
"""Blocks that are read ahead for each core."""

Progress = Callable[[int], None]
"""Function that is called with a number of rows that were read."""


@dataclass(frozen=True)
class Question:
    """Public side of the count.

    Attributes:
      queries: Features of the queries, float32 `[s, f]`.
      classes: Set of labels.
      num_neighbors: Number of queries k that each record votes for.
      metric: Distance between features. Defaults to squared Euclidean.
    """

    queries: Array
    classes: Classes
    num_neighbors: int = 1
    metric: Metric = "sqeuclidean"


@dataclass(frozen=True)
class Count:
    """Votes of one shard: private.

    Attributes:
      name: Name of the shard.
      rows: Number of records.
      voters: Number of records that cast k votes each.
      given: Number of records that have a label, usable or not.
      votes: int64 `[s, num_classes]`.
      digest: Fingerprint of the shard's embeddings.
    """

    name: str
    rows: int
    voters: int
    given: int
    votes: np.ndarray
    digest: str


@dataclass(frozen=True)
class Votes:
    """Votes of all records: private.

    Attributes:
      counts: int64 `[s, num_classes]`.
      rows: Number of records n.
      voters: Number of records that cast votes.
      ignored: Number of records with a label that cast no vote, for the owner's eyes alone. Their
        embedding is not finite, or their label is none of the classes.
      dataset: Fingerprint of the embeddings alone, so that a corrected label does not make a new
        budget.
    """

    counts: np.ndarray
    rows: int
    voters: int
    ignored: int
    dataset: str


def count(
    shard: Shard,
    rows: int,
    question: Question,
    on_rows: Progress | None = None,
    workers: int | None = None,
) -> Count:
    """Count the votes of one shard.

    This thread reads and hashes, while others assign what was read.

    Args:
      shard: Shard to read.
      rows: Number of rows that the shard is expected to have.
      question: Queries and classes.
      on_rows: Function that is told the progress. Defaults to none.
      workers: Number of threads that assign. Defaults to the number of cores.

    Raises:
      ValueError: If the shard cannot be read, or has another number of rows. No content of a
        single record raises an error, because the error would reveal that record.
    """
    size = BLOCK.get(jax.default_backend(), LARGE_BLOCK)
    size = min(size, 1 << max(rows - 1, 0).bit_length())  # few sizes, so few programs
    shape = (len(question.queries), question.classes.count)
    width = question.queries.shape[1]
    digest = Digest()
    digest.begin("f", (rows, width))
    votes = np.zeros(shape, np.int64)
    found = voters = given = 0
    workers = workers or num_cores()
    waiting: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in shard.blocks(size):
            points, labels, named = prepared(block.embeddings, block.labels, question, shard.where)
            digest.update(points)
            found += len(points)
            voters += int(np.count_nonzero(labels != MISSING))
            given += named
            waiting.append(pool.submit(_votes, points, labels, question, size))
            if len(waiting) > AHEAD * workers:
                votes += waiting.popleft().result()
            if on_rows is not None:
                on_rows(len(points))
        for rest in waiting:
            votes += rest.result()
    if found != rows:
        raise ValueError(
            f"Expected {rows} rows in {shard.where}, as when it was opened, got {found}; keep the "
            "data unchanged during a release."
        )
    return Count(shard.name, rows, voters, given, votes, digest.text())


def prepared(
    embeddings: np.ndarray | None, labels: np.ndarray | None, question: Question, where: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a block's rows, its class numbers, and how many records have a label.

    Args:
      embeddings: Rows as read, `[b, f]`.
      labels: Labels as read, `[b]`.
      question: Queries and classes.
      where: Name of the shard, for the errors.

    Returns:
      `(points, ids, given)`: float32 `[b, f]`, of NaN if a row cannot be used; int32 `[b]`,
      `MISSING` if a record casts no vote; and the number of labels, usable or not.

    Raises:
      ValueError: If the rows are no real numbers of the queries' width, or there are no labels.
    """
    if embeddings is None or labels is None:
        raise ValueError(f"Expected embeddings and labels in {where}, got one of them.")
    width = question.queries.shape[1]
    points = tables.usable_rows(tables.real_rows(embeddings, where, width))
    plain = tables.plain_labels(labels, where)
    ids = tables.label_ids(plain, question.classes)
    ids[np.isnan(points[:, 0])] = MISSING
    return points, ids, tables.num_given(plain)


def count_all(records: Records, question: Question, on_rows: Progress | None = None) -> Votes:
    """Count the votes of all shards, one after another.

    Raises:
      ValueError: As for `count`.
    """
    pairs = zip(records.shards, records.rows, strict=True)
    counts = [count(shard, rows, question, on_rows) for shard, rows in pairs]
    return total(counts, [shard.name for shard in records.shards], question.num_neighbors)


def total(counts: Iterable[Count], names: Sequence[str], num_neighbors: int) -> Votes:
    """Sum the votes of all shards.

    Args:
      counts: Count of each shard, in any order.
      names: Names of the shards.
      num_neighbors: Number of queries k that each record votes for.

    Raises:
      ValueError: If a shard is missing, occurs twice, or has other than k votes for each voter.
    """
    found = list(counts)
    told = [one.name for one in found]
    if sorted(told) != sorted(names) or len(set(names)) < len(names):
        missing = sorted(set(names) - set(told))
        raise ValueError(
            f"Expected every one of {len(names)} shards once, got {len(told)}, without "
            f"{missing[:5]}; nothing was spent, count them again."
        )
    for one in found:
        if one.votes.sum() != one.voters * num_neighbors or one.votes.min(initial=0) < 0:
            raise ValueError(
                f"Expected {num_neighbors} votes of each of {one.voters} records in {one.name}, "
                f"got {one.votes.sum()}; nothing was spent, count them again."
            )
    voters = sum(one.voters for one in found)
    summed = np.asarray(sum(one.votes for one in found))
    return Votes(
        summed,
        sum(one.rows for one in found),
        voters,
        sum(one.given for one in found) - voters,
        combined([one.digest for one in found]),
    )


def _votes(points: np.ndarray, ids: np.ndarray, question: Question, size: int) -> np.ndarray:
    """Return the votes of a block, int64 `[s, num_classes]`. Missing rows fill it up to `size`."""
    usable = ids != MISSING
    if not usable.all():
        points = np.where(usable[:, None], points, np.float32(0))
    missing = size - len(points)
    if missing:
        points = np.pad(points, ((0, missing), (0, 0)))
        ids = np.pad(ids, (0, missing), constant_values=MISSING)
    votes = nearest_votes(
        points,
        jnp.asarray(question.queries, jnp.float32),
        ids,
        question.num_neighbors,
        question.classes.count,
        metric=question.metric,
    )
    return np.asarray(votes, np.int64)

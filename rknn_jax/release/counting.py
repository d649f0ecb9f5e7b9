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
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax.neighbors import Metric, nearest, nearest_votes, num_cores
from rknn_jax.privacy import contributions
from rknn_jax.privacy.ledger import Digest, combined
from rknn_jax.release import tables
from rknn_jax.release.encoding import Encoding
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
class Bound:
    """Bound on the votes of a person; see `rknn_jax.privacy.contributions`.

    Attributes:
      most: Most records of a person, drawn at random. Defaults to None: all of them share a vote.
      seed: Seed of the draw, public. Defaults to 0.
      norm: Norm of a person's votes that is bounded, if all records count: 1 shares a vote, 2 clips
        for Gaussian noise. Defaults to 1.
    """

    most: int | None = None
    seed: int = 0
    norm: Literal[1, 2] = 1


@dataclass(frozen=True)
class Question:
    """Public side of the count.

    Attributes:
      queries: Features of the queries, float32 `[s, f]`.
      classes: Set of labels.
      num_neighbors: Number of queries k that each record votes for.
      metric: Distance between features. Defaults to squared Euclidean.
      encode: Encoder of raw records. Defaults to None, for embeddings.
      bound: Bound on the votes of a person. Defaults to None, for records of persons of their own.
    """

    queries: Array
    classes: Classes
    num_neighbors: int = 1
    metric: Metric = "sqeuclidean"
    encode: Encoding | None = None
    bound: Bound | None = None


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
      persons: Names of the voters, uint64 `[voters, 2]`. Defaults to None, without a bound.
      cells: Their votes, int32 `[voters, k]`. Defaults to None, without a bound.
    """

    name: str
    rows: int
    voters: int
    given: int
    votes: np.ndarray
    digest: str
    persons: np.ndarray | None = None
    cells: np.ndarray | None = None


@dataclass(frozen=True)
class Votes:
    """Votes of all records: private.

    Attributes:
      counts: int64 `[s, num_classes]`, in units of `1 / grid`.
      rows: Number of records n.
      voters: Number of records that cast votes.
      ignored: Number of records with a label that cast no vote, for the owner's eyes alone. Their
        embedding is not finite, or their label is none of the classes.
      dataset: Fingerprint of the embeddings alone, so that a corrected label does not make a new
        budget.
      shards: Fingerprints of the shards, if there are several. Defaults to none.
      persons: Number of persons who vote. Defaults to None, if records are protected.
      grid: Units of a vote. Defaults to 1.
    """

    counts: np.ndarray
    rows: int
    voters: int
    ignored: int
    dataset: str
    shards: tuple[str, ...] = ()
    persons: int | None = None
    grid: int = 1

    @property
    def units(self) -> int:
        """Number of records, or of persons if their votes are bounded."""
        return self.rows if self.persons is None else max(1, self.persons)


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
    if question.encode is not None:
        size = min(size, question.encode.rows_at_once)
    size = min(size, 1 << max(rows - 1, 0).bit_length())  # few sizes, so few programs
    shape = (len(question.queries), question.classes.count)
    digest = Digest()
    if question.encode is None:
        digest.begin("f", (rows, question.queries.shape[1]))
    votes = np.zeros(shape, np.int64)
    found = voters = given = 0
    workers = workers or num_cores()
    waiting: deque[Future[np.ndarray]] = deque()
    ballots: list[tuple[np.ndarray, np.ndarray]] = []
    with ThreadPoolExecutor(workers) as pool:
        for block in shard.blocks(size):
            if question.encode is not None:
                _hash_raw(digest, block.embeddings, rows if found == 0 else None)
            points, labels, named = prepared(block.embeddings, block.labels, question, shard.where)
            if question.encode is None:
                digest.update(points)
            found += len(points)
            given += named
            if question.bound is not None:
                ballots.append(_ballots(points, labels, block.persons, question, shard.where))
                voters += len(ballots[-1][0])
            else:
                voters += int(np.count_nonzero(labels != MISSING))
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
    one = Count(shard.name, rows, voters, given, votes, digest.text())
    return one if question.bound is None else _with_ballots(one, ballots, question)


def _ballots(
    points: np.ndarray,
    ids: np.ndarray,
    persons: np.ndarray | None,
    question: Question,
    where: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the persons and cells of a block's voters, uint64 `[v, 2]` and int32 `[v, k]`.

    A record of nobody casts no vote.
    """
    if persons is None:
        raise ValueError(f"Expected a person for each record in {where}, got none; name --person.")
    names, known = tables.person_names(persons, where)
    votes = (ids != MISSING) & known
    usable = np.where(votes[:, None], points, np.float32(0))
    queries = jnp.asarray(question.queries, jnp.float32)
    index, _ = nearest(usable, queries, question.num_neighbors, metric=question.metric)
    cells = np.asarray(index) * question.classes.count + ids[:, None]
    return names[votes], cells[votes].astype(np.int32)


def _with_ballots(
    count: Count, ballots: list[tuple[np.ndarray, np.ndarray]], question: Question
) -> Count:
    """Return the count of a shard with its voters' ballots, and the votes without weights."""
    persons = np.concatenate([np.zeros((0, 2), np.uint64), *(one for one, _ in ballots)])
    none = np.zeros((0, question.num_neighbors), np.int32)
    cells = np.concatenate([none, *(each for _, each in ballots)])
    votes = np.bincount(cells.ravel(), minlength=count.votes.size).reshape(count.votes.shape)
    return replace(count, votes=votes, persons=persons, cells=cells)


def prepared(
    embeddings: np.ndarray | None, labels: np.ndarray | None, question: Question, where: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a block's rows, its class numbers, and how many records have a label.

    Args:
      embeddings: Rows as read, `[b, f]`, or raw records `[b, ...]`.
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
    if question.encode is not None:
        embeddings = question.encode(embeddings)
    width = question.queries.shape[1]
    points = tables.usable_rows(tables.real_rows(embeddings, where, width))
    plain = tables.plain_labels(labels, where)
    ids = tables.label_ids(plain, question.classes)
    ids[np.isnan(points[:, 0])] = MISSING
    return points, ids, tables.num_given(plain)


def _hash_raw(digest: Digest, values: np.ndarray | None, rows: int | None) -> None:
    """Add raw records to a fingerprint, which does not change with the encoder.

    `rows` is their number in all for the first block, and None for others.
    """
    assert values is not None
    if rows is not None:
        digest.begin(values.dtype.kind, (rows, *values.shape[1:]))
    digest.update(values)


def count_all(records: Records, question: Question, on_rows: Progress | None = None) -> Votes:
    """Count the votes of all shards, one after another.

    Raises:
      ValueError: As for `count`.
    """
    pairs = zip(records.shards, records.rows, strict=True)
    counts = [count(shard, rows, question, on_rows) for shard, rows in pairs]
    return total(counts, [shard.name for shard in records.shards], question)


def total(counts: Iterable[Count], names: Sequence[str], question: Question) -> Votes:
    """Sum the votes of all shards, and bound those of a person over all of them.

    Args:
      counts: Count of each shard, in any order.
      names: Names of the shards.
      question: Queries and classes that were counted.

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
    num_neighbors = question.num_neighbors
    for one in found:
        if one.votes.sum() != one.voters * num_neighbors or one.votes.min(initial=0) < 0:
            raise ValueError(
                f"Expected {num_neighbors} votes of each of {one.voters} records in {one.name}, "
                f"got {one.votes.sum()}; nothing was spent, count them again."
            )
    voters = sum(one.voters for one in found)
    summed = np.asarray(sum(one.votes for one in found))
    votes = Votes(
        summed,
        sum(one.rows for one in found),
        voters,
        sum(one.given for one in found) - voters,
        combined([one.digest for one in found]),
        tuple(one.digest for one in found) if len(found) > 1 else (),
    )
    if question.bound is None:
        return votes
    # By name, so that the order in which shards come in decides nothing.
    return _bounded(votes, sorted(found, key=lambda one: one.name), question.bound)


def _bounded(votes: Votes, counts: Sequence[Count], bound: Bound) -> Votes:
    """Return votes whose persons are bounded, wherever their records lie."""
    names = np.concatenate([_told(one.persons) for one in counts]).astype(np.uint64)
    cells = np.concatenate([_told(one.cells) for one in counts])
    persons = np.ascontiguousarray(names.reshape(-1, 2)).view([("a", "<u8"), ("b", "<u8")])
    distinct, person = np.unique(persons.ravel(), return_inverse=True)
    num_cells = votes.counts.size
    if bound.most is not None:
        weights = contributions.limited(person, persons["a"].ravel(), bound.most, bound.seed)
        counted = contributions.weighed_votes(cells, weights, num_cells)
    else:
        sum_votes = contributions.clipped_votes if bound.norm == 2 else contributions.shared_votes
        counted = sum_votes(cells, person, num_cells)
    return replace(
        votes,
        counts=counted.reshape(votes.counts.shape),
        persons=len(distinct),
        grid=bound.most or contributions.GRID,
    )


def _told(values: np.ndarray | None) -> np.ndarray:
    if values is None:
        raise ValueError("Expected the ballots of every shard, got none; nothing was spent.")
    return values


def num_persons(shards: Sequence[Shard]) -> int:
    """Return the number of persons who have records, with votes or without.

    Raises:
      ValueError: If a shard cannot be read, or tells nobody's records.
    """
    found: set[bytes] = set()
    for shard in shards:
        for values in shard.persons(tables.ROWS_AT_ONCE):
            names, known = tables.person_names(values, shard.where)
            found.update(name.tobytes() for name in np.unique(names[known], axis=0))
    return len(found)


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

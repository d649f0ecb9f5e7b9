"""Sum over private records, taken shard by shard in one pass.

Every block of rows is read, checked, hashed for the ledger's fingerprint, and summed by a `Tally`:
votes for the nearest queries, or the sums of another labeler. The sum is exact in int64, so neither
the order of the shards nor the size of the blocks changes it. Memory does not grow with the number
of records, with two exceptions: of records that check, `checking` keeps features and labels, and if
a person's records are bounded together, a part of each record is kept.

Records whose role is to check do not add to the sum (`privacy.roles`).

A shard that counted twice would double what its records add, which no noise covers. `total`
therefore takes every shard once or nothing at all.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import numpy as np

from rknn_jax._internal.cores import num_cores
from rknn_jax._internal.option_names import option
from rknn_jax.check import Checkers, Checks
from rknn_jax.labelers._tally import Persons, Tally
from rknn_jax.neighbors import usable_rows
from rknn_jax.privacy.fingerprints import Digest, combined
from rknn_jax.records.classes import MISSING, Classes
from rknn_jax.records.features import real_rows
from rknn_jax.records.labels import Encoded, encode
from rknn_jax.records.persons import person_names
from rknn_jax.release import checking
from rknn_jax.release.checking import Checking, Gathered, casts
from rknn_jax.release.encoding import Encoding
from rknn_jax.release.shards import Records, Shard
from rknn_jax.release.tables import ROWS_AT_ONCE

BLOCK = {"cpu": 4096}
"""Rows of a block. More do not fit into the caches of a core and are no faster."""

LARGE_BLOCK = 2**16
"""Rows of a block on an accelerator."""

AHEAD = 2
"""Blocks that are read ahead for each core."""

Part = TypeVar("Part")

Progress = Callable[[int], None]
"""Function that is called with a number of rows that were read."""


@dataclass(frozen=True)
class Counter:
    """Public side of the count.

    Attributes:
      tally: Sum that is taken.
      classes: Set of labels.
      encode: Map of each record alone, such as an encoder of raw records or a scaling. Defaults to
        None, for rows that are used as they are.
      labels_per_record: Most labels of a record that count, r. Defaults to None: each record has
        one label.
      checkers: Check by records that do not add to the sum. Defaults to None: all add to it.
    """

    tally: Tally
    classes: Classes
    encode: Encoding | None = None
    labels_per_record: int | None = None
    checkers: Checkers | None = None

    @property
    def bounds_persons(self) -> bool:
        """True if a person's records are bounded together, over all shards."""
        return self.tally.unit == "person"

    def encoded(self, labels: np.ndarray, where: str) -> Encoded:
        """Return labels as class numbers or ballots, from labels as read."""
        return encode(labels, self.classes, self.labels_per_record, where)


@dataclass(frozen=True)
class Count:
    """Sum over one shard: private.

    Attributes:
      name: Name of the shard.
      rows: Number of records.
      voters: Number of records that are counted.
      given: Number of records that have a label, usable or not.
      totals: int64, of the tally's shape; 0 if persons are bounded.
      digest: Fingerprint of the shard's embeddings.
      persons: Names of the voters, uint64 `[voters, 2]`. Defaults to None, without a bound.
      parts: Parts of the voters, `[voters, c]`. Defaults to None, without a bound.
      checking: Records that check. Defaults to None, without a check.
    """

    name: str
    rows: int
    voters: int
    given: int
    totals: np.ndarray
    digest: str
    persons: np.ndarray | None = None
    parts: np.ndarray | None = None
    checking: Checking | None = None


@dataclass(frozen=True)
class Counted:
    """Sum over all records: private.

    Attributes:
      counts: int64, of the tally's shape, in units of `1 / grid` records.
      rows: Number of records n.
      voters: Number of records that are counted.
      ignored: Number of records with a label that are not counted, or not with all labels, for the
        owner's eyes alone. Their embedding is not finite, or a label is none of the classes or
        beyond the most that count.
      dataset: Fingerprint of the embeddings alone, so that a corrected label does not make a new
        budget.
      shards: Fingerprints of the shards that have rows, if there are several. Defaults to none.
      persons: Number of persons who are counted. Defaults to None, if records are protected.
      grid: Units of a record. Defaults to 1.
      order: Hash of what roles depend on: the shards' fingerprints in their order, and the names of
        persons if these have roles.
      checks: Records that check. Defaults to None, without a check.
    """

    counts: np.ndarray
    rows: int
    voters: int
    ignored: int
    dataset: str
    shards: tuple[str, ...] = ()
    persons: int | None = None
    grid: int = 1
    order: str = ""
    checks: Checks | None = None

    @property
    def prints(self) -> tuple[str, ...]:
        """Fingerprints of all records and of each shard; none without a record."""
        return (self.dataset, *self.shards) if self.rows else ()

    @property
    def units(self) -> int:
        """Number of records, or of persons if they are bounded."""
        return self.rows if self.persons is None else max(1, self.persons)


def count(
    shard: Shard,
    rows: int,
    counter: Counter,
    on_rows: Progress | None = None,
    workers: int | None = None,
    number: int = 0,
) -> Count:
    """Take the sum over one shard.

    This thread reads and hashes, while others sum what was read.

    Args:
      shard: Shard to read.
      rows: Number of rows that the shard is expected to have.
      counter: Sum and classes.
      on_rows: Function that is told the progress. Defaults to none.
      workers: Number of threads that sum. Defaults to the number of cores.
      number: Number of the shard, which tells its records' roles from those of others. Defaults to
        0.

    Raises:
      ValueError: If the shard cannot be read, or has another number of rows. No content of a
        single record raises an error, because the error would reveal that record.
    """
    size = BLOCK.get(jax.default_backend(), LARGE_BLOCK)
    if counter.encode is not None:
        size = min(size, counter.encode.rows_at_once)
    size = min(size, 1 << max(rows - 1, 0).bit_length())  # few sizes, so few programs
    digest = Digest()
    if counter.encode is None:
        # The number of rows comes first, so that two shards never hash as one.
        digest.begin("f", (rows, counter.tally.width))
    totals = np.zeros(counter.tally.shape, np.int64)
    found = voters = given = 0
    workers = workers or num_cores()
    waiting: deque[Future[np.ndarray]] = deque()
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    checks = Gathered(counter.checkers, number, counter.tally.width, _no_ids(counter))
    with ThreadPoolExecutor(workers) as pool:
        for block in shard.blocks(size):
            if counter.encode is not None:
                _hash_raw(digest, block.embeddings, rows if found == 0 else None)
            points, ids, named = prepared(block.embeddings, block.labels, counter, shard.where)
            if counter.encode is None:
                digest.update(points)
            # Records that check keep their place, with no label, and so add nothing to the sum.
            ids = checks.take(points, ids, block.persons, found, shard.where)
            found += len(points)
            given += named
            if counter.bounds_persons:
                kept.append(_parts(points, ids, block.persons, counter=counter, where=shard.where))
                voters += len(kept[-1][0])
            else:
                voters += int(np.count_nonzero(casts(ids)))
                # All blocks have one size, so that one compiled program serves them.
                filled = _filled(points, ids, size)
                waiting.append(pool.submit(counter.tally.total, *filled))
            # Reading waits for the sums, or a fast disk would fill the memory.
            if len(waiting) > AHEAD * workers:
                totals += waiting.popleft().result()
            if on_rows is not None:
                on_rows(len(points))
        # Integers: the order in which sums come in changes nothing.
        for rest in waiting:
            totals += rest.result()
    _hash_no_rows(digest, counter, found)
    if found != rows:
        raise ValueError(
            f"Expected {rows} rows in {shard.where}, as when it was opened, got {found}; keep the "
            "data unchanged during a release."
        )
    text = digest.text()
    one = Count(
        shard.name, rows, voters, given=given, totals=totals, digest=text, checking=checks.found()
    )
    if not counter.bounds_persons:
        return one
    names = np.concatenate([np.zeros((0, 2), np.uint64), *(name for name, _ in kept)])
    parts = np.concatenate([_no_parts(counter), *(part for _, part in kept)])
    return replace(one, persons=names, parts=parts)


def _parts(
    points: np.ndarray,
    ids: np.ndarray,
    persons: np.ndarray | None,
    counter: Counter,
    where: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the persons and parts of a block's voters, uint64 `[v, 2]` and `[v, c]`.

    A record that names no person is not counted.
    """
    if persons is None:
        raise ValueError(
            f"Expected a person for each record in {where}, got none; name {option('person')}."
        )
    names, known = person_names(persons, where)
    counts = casts(ids) & known
    # Parts are kept and not summed: a person may have records in other shards.
    parts = counter.tally.parts(np.where(counts[:, None], points, np.float32(0)), ids)
    return names[counts], parts[counts]


def _no_parts(counter: Counter) -> np.ndarray:
    """Return the parts of no record, of the tally's width and type."""
    one = np.zeros((1, counter.tally.width), np.float32)
    return counter.tally.parts(one, counter.encoded(np.zeros(1, np.int64), "no record").ids)[:0]


def _no_ids(counter: Counter) -> np.ndarray:
    """Return the classes or ballots of no record."""
    return counter.encoded(np.zeros(1, np.int64), "no record").ids[:0]


def prepared(
    embeddings: np.ndarray | None, labels: np.ndarray | None, counter: Counter, where: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a block's rows, its class numbers, and how many records have a label.

    Args:
      embeddings: Rows as read, `[b, f]`, or raw records `[b, ...]`.
      labels: Labels as read, for `Counter.encoded`.
      counter: Sum and classes.
      where: Name of the shard, for the errors.

    Returns:
      `(points, ids, given)`: float32 `[b, f]`, of NaN if a row cannot be used; int32 `[b]` or
      `[b, r + 1]`, `MISSING` if a record is not counted; and the number of labels, usable or not.

    Raises:
      ValueError: If the rows are no real numbers of the tally's width, or there are no labels.
    """
    if embeddings is None or labels is None:
        raise ValueError(f"Expected embeddings and labels in {where}, got one of them.")
    if counter.encode is not None:
        # Record by record, bit for bit: the block around a record decides nothing.
        embeddings = counter.encode(embeddings)
    width = counter.tally.width
    points = usable_rows(real_rows(embeddings, where, width))
    ids, told = counter.encoded(labels, where)
    # `usable_rows` makes a row that cannot be used NaN as a whole, so that its first number tells.
    ids[np.isnan(points[:, 0])] = MISSING
    return points, ids, int(told.sum())


def _hash_raw(digest: Digest, values: np.ndarray | None, rows: int | None) -> None:
    """Add raw records to a fingerprint, which does not change with the encoder.

    `rows` is their number in all for the first block, and None for others.
    """
    assert values is not None
    if rows is not None:
        digest.begin(values.dtype.kind, (rows, *values.shape[1:]))
    digest.update(values)


def _hash_no_rows(digest: Digest, counter: Counter, found: int) -> None:
    """Add a shard without rows to a fingerprint, which does not change with the encoder."""
    if counter.encode is not None and not found:
        probe = counter.encode.probe
        digest.begin(probe.dtype.kind, (0, *probe.shape[1:]))


def count_all(records: Records, counter: Counter, on_rows: Progress | None = None) -> Counted:
    """Take the sum over all shards, one after another.

    Raises:
      ValueError: As for `count`.
    """
    pairs = zip(records.shards, records.rows, strict=True)
    counts = [
        count(shard, rows, counter, on_rows, number=number)
        for number, (shard, rows) in enumerate(pairs)
    ]
    return total(counts, [shard.name for shard in records.shards], counter)


def total(counts: Iterable[Count], names: Sequence[str], counter: Counter) -> Counted:
    """Add the sums of all shards, and bound what a person adds over all of them.

    Args:
      counts: Count of each shard, in any order.
      names: Names of the shards.
      counter: Sum and classes that were counted.

    Raises:
      ValueError: If a shard is missing, occurs twice, or has a sum that its voters cannot have.
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
        _check(one, counter)
    # An engine returns shards as they are done; fingerprints and roles go by the order of the
    # files.
    found.sort(key=lambda one: names.index(one.name))
    voters = sum(one.voters for one in found)
    checks = None
    if counter.checkers is not None:
        parts = [_present(one.checking) for one in found]
        checks = checking.together(parts, counter.checkers)
    # Records that check are no ignored ones, though their labels were taken away above.
    told_apart = 0 if checks is None else int(np.count_nonzero(checks.units))
    counted = Counted(
        np.asarray(sum(one.totals for one in found)),
        sum(one.rows for one in found),
        voters,
        ignored=sum(one.given for one in found) - voters - told_apart,
        # Without labels: whoever corrects one has no new data set, and no new budget.
        dataset=combined([one.digest for one in found]),
        shards=tuple(one.digest for one in found if one.rows) if len(found) > 1 else (),
        order=_order(found),
        checks=checks,
    )
    if not counter.bounds_persons:
        return counted
    # By name, so that the order in which shards come in decides nothing.
    return _bounded(counted, sorted(found, key=lambda one: one.name), counter.tally)


def _order(counts: Sequence[Count]) -> str:
    """Return a hash of what roles depend on, of counts in the order of the files."""
    told = [one.digest for one in counts]
    told += [one.checking.names for one in counts if one.checking and one.checking.names]
    return hashlib.sha256(" ".join(told).encode()).hexdigest()


def _check(one: Count, counter: Counter) -> None:
    """Raise ValueError if the voters of a shard cannot have its sum."""
    if counter.bounds_persons:
        sound = one.voters == len(_present(one.persons)) == len(_present(one.parts))
    else:
        sound = counter.tally.fits(one.totals, one.voters)
    if not sound:
        raise ValueError(
            f"Expected the sum over {one.voters} records in {one.name}, got one of others; "
            "nothing was spent, count them again."
        )


def _bounded(counted: Counted, counts: Sequence[Count], tally: Tally) -> Counted:
    """Return a sum whose persons are bounded, wherever their records lie."""
    names = np.concatenate([_present(one.persons) for one in counts]).astype(np.uint64)
    parts = np.concatenate([_present(one.parts) for one in counts])
    # A structured view, so that `unique` compares both halves of a name at once.
    persons = np.ascontiguousarray(names.reshape(-1, 2)).view([("a", "<u8"), ("b", "<u8")])
    distinct, number = np.unique(persons.ravel(), return_inverse=True)
    summed = tally.bounded(parts, Persons(number, persons["a"].ravel()))
    return replace(counted, counts=summed, persons=len(distinct), grid=tally.grid)


def _present(values: Part | None) -> Part:
    if values is None:
        raise ValueError("Expected the parts of every shard, got none; nothing was spent.")
    return values


def num_persons(shards: Sequence[Shard]) -> int:
    """Return the number of persons who have records, with votes or without.

    Raises:
      ValueError: If a shard cannot be read, or does not tell whose its records are.
    """
    found: set[bytes] = set()
    for shard in shards:
        for values in shard.persons(ROWS_AT_ONCE):
            names, known = person_names(values, shard.where)
            found.update(name.tobytes() for name in np.unique(names[known], axis=0))
    return len(found)


def _filled(points: np.ndarray, ids: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a block without unusable rows, filled up to `size` by missing ones."""
    usable = casts(ids)
    if not usable.all():
        points = np.where(usable[:, None], points, np.float32(0))
    missing = size - len(points)
    if missing:
        points = np.pad(points, ((0, missing), (0, 0)))
        rest = ((0, missing), *[(0, 0)] * (ids.ndim - 1))
        ids = np.pad(ids, rest, constant_values=MISSING)
    return points, ids

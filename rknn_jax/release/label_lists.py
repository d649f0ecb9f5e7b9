"""Several labels a record, as files and Python callers hold them.

A block's labels are a mask, bool `[b, num_classes]`, class numbers or text `[b, l]`, text `[b]`
with `SEPARATOR` between names, or lists of one of these as objects `[b]`. Nothing of a single
record raises an error, because the error would reveal that record.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rknn_jax import label_sets
from rknn_jax.formats import MOST_LABELS
from rknn_jax.release import tables
from rknn_jax.release.tables import MISSING, Classes

SEPARATOR = ";"
"""Sign between the names of several classes in one text."""

REMEDY = (
    "save a mask of bool [n, num_classes], a list column, names with ; between them, or class "
    "numbers [n, l] with -1 for none"
)


class Cast(NamedTuple):
    """Ballots of a block: private.

    Attributes:
      ballots: int32 `[b, r + 1]`, as `label_sets.ballots` returns them.
      in_part: bool `[b]`, True for a record with a label that does not count: a further one, or one
        that is none of the classes.
    """

    ballots: np.ndarray
    in_part: np.ndarray


def cast(labels: np.ndarray, classes: Classes, most: int, where: str) -> Cast:
    """Return what records vote for at their queries.

    Args:
      labels: Labels of a block as stored.
      classes: Set of classes.
      most: Most labels of a record that count, r.
      where: Name of the shard, for the errors.

    Raises:
      ValueError: If labels are stored in another way.
    """
    numbers, given = _numbers(labels, classes, where)
    ballots = label_sets.ballots(numbers, classes.count, most)
    counted = np.logical_not(given)
    for kept in ballots[:, :-1].T:
        counted |= (numbers == kept[:, None]) & (numbers != MISSING)
    return Cast(ballots, np.logical_not(counted.all(axis=1)))


def joined(blocks: Sequence[np.ndarray], where: str) -> np.ndarray | None:
    """Return the labels of records that may have several, before the classes are known.

    Class numbers `[n, l]` in an array are refused, because they may be meant as a mask.

    Args:
      blocks: Labels as stored.
      where: Name of the file, for the errors.

    Returns:
      A mask, bool `[n, l]`, or class numbers of lists, int32 `[n, l]`, negative for none; None if
      each record has one label.

    Raises:
      ValueError: If they are stored in another way.
    """
    if not any(block.ndim > 1 or block.dtype.kind == "O" for block in blocks):
        return None
    if all(block.dtype == bool for block in blocks):
        return np.concatenate(blocks)
    lists = [each for block in blocks if block.dtype.kind == "O" for each in block]
    rows = _read(lists)
    values = _values(rows)
    if len(lists) < sum(map(len, blocks)) or values.dtype.kind == "U":
        raise ValueError(
            f"Expected several labels a record in {where} as a mask of bool [n, num_classes] or a "
            f"column of lists of class numbers, got {blocks[0].dtype} {blocks[0].shape}; save one "
            "of these."
        )
    numbers = _padded(tables.plain_labels(values, where), rows, MISSING)
    return numbers[:, :MOST_LABELS].astype(np.int32)


def _numbers(labels: np.ndarray, classes: Classes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return class numbers int `[b, l]`, `MISSING` for no class, and which labels are given."""
    kind = labels.dtype.kind
    if kind == "b" and labels.shape[1:] == (classes.count,):
        return np.where(labels, np.arange(classes.count), MISSING), labels
    if labels.ndim == 1 and kind in "UO":
        return _of_lists(labels, classes, where)
    if labels.ndim not in (1, 2) or kind not in "iufU":
        raise ValueError(
            f"Expected several labels a record in {where}, got shape {labels.shape} of dtype "
            f"{labels.dtype} for {classes.count} classes; {REMEDY}."
        )
    if labels.ndim == 2 and kind != "U" and labels.shape[1] == classes.count > 1:
        raise ValueError(
            f"Expected a mask or class numbers in {where}, got numbers of shape {labels.shape} for "
            f"{classes.count} classes, which may be either; save a mask as bool, or class numbers "
            "with a further column of -1."
        )
    listed = labels if labels.ndim == 2 else labels[:, None]
    plain = tables.plain_labels(listed.ravel(), where)
    numbers = tables.label_ids(plain, classes)
    return numbers.reshape(listed.shape), tables.given(plain).reshape(listed.shape)


def _of_lists(labels: np.ndarray, classes: Classes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the class numbers of lists, as objects, or of text with `SEPARATOR`."""
    split = labels.dtype.kind == "U"
    rows = _read([text.split(SEPARATOR) for text in labels.tolist()] if split else labels)
    plain = tables.plain_labels(_values(rows), where)
    numbers = _padded(tables.label_ids(plain, classes), rows, MISSING)
    numbers[:, MOST_LABELS:] = MISSING  # given, but not counted
    return numbers, _padded(tables.given(plain), rows, False)


def _read(lists: Sequence[Sequence[Any] | None] | np.ndarray) -> list[list[Any]]:
    """Return the first labels of each record, so that one long list takes no memory for the others.

    One label more than `MOST_LABELS` tells that there are more.
    """
    heads = [() if each is None else list(each)[: MOST_LABELS + 1] for each in lists]
    return [[value for value in each if value is not None] for each in heads]


def _values(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    """Return the labels of all records, one after another, as text or float64 `[v]`."""
    values = [value for row in rows for value in row]
    text = any(isinstance(value, str) for value in values)
    return np.array(list(map(str, values)) if text else values, str if text else np.float64)


def _padded(values: np.ndarray, rows: Sequence[Sequence[Any]], nothing: Any) -> np.ndarray:
    """Return what was made of `_values` as `[b, l]`, with `nothing` for what is missing."""
    lengths = np.array(list(map(len, rows)), np.int64)
    there = np.arange(lengths.max(initial=0)) < lengths[:, None]
    found = np.full(there.shape, nothing, values.dtype)
    found[there] = values
    return found

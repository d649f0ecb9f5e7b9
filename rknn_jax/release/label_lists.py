"""Several labels a record, as files and Python callers hold them.

A block's labels are a mask, bool `[b, num_classes]`, class numbers or text `[b, l]`, text `[b]`
with `SEPARATOR` between names, or lists of one of these as objects `[b]`. Nothing of a single
record raises an error, because the error would reveal that record.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rknn_jax import label_sets
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
    listed = _filled(lists)
    if len(lists) < sum(map(len, blocks)) or listed.dtype.kind == "U":
        raise ValueError(
            f"Expected several labels a record in {where} as a mask of bool [n, num_classes] or a "
            f"column of lists of class numbers, got {blocks[0].dtype} {blocks[0].shape}; save one "
            "of these."
        )
    plain = tables.plain_labels(listed.ravel(), where)
    return plain.reshape(listed.shape).astype(np.int32)


def _numbers(labels: np.ndarray, classes: Classes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return class numbers int `[b, l]`, `MISSING` for no class, and which labels are given."""
    listed = _listed(labels)
    kind = listed.dtype.kind
    if kind == "b" and listed.shape[1:] == (classes.count,):
        return np.where(listed, np.arange(classes.count), MISSING), listed
    if listed.ndim != 2 or kind not in "iufU":
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
    plain = tables.plain_labels(listed.ravel(), where)
    given = tables.given(plain)
    numbers = tables.label_ids(plain, classes)
    return numbers.reshape(listed.shape), given.reshape(listed.shape)


def _listed(labels: np.ndarray) -> np.ndarray:
    """Return the labels with an axis for those of a record."""
    if labels.ndim != 1:
        return labels
    if labels.dtype.kind == "U":
        return _filled([text.split(SEPARATOR) for text in labels.tolist()])
    if labels.dtype.kind == "O":
        return _filled([() if each is None else each for each in labels])
    return labels[:, None]


def _filled(lists: Sequence[Iterable[Any]]) -> np.ndarray:
    """Return lists of text or numbers as an array `[b, l]`, with '' or NaN for what is missing."""
    rows = [[value for value in each if value is not None] for each in lists]
    width = max(map(len, rows), default=0)
    text = any(isinstance(value, str) for row in rows for value in row)
    found = np.full((len(rows), width), "" if text else np.nan, object if text else np.float64)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found.astype(str) if text else found

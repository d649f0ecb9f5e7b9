"""Sets of labels: each private record has up to r classes, and each public row gets a set of them.

A record votes at each of its k queries for each of its classes, and once more for having voted at
all. So counts are known as shares: a class's noisy votes over the noisy number of records near the
query. `ballots` bounds a record to r classes by that record alone, where r is public.

**Sensitivity.** A record adds at most 1 to at most k(r + 1) cells. A mechanism with
`num_classes` |Y| + 1 and `labels_per_record` r + 1, `sizes`, is calibrated for that: replacing a
record changes at most 2k(r + 1) cells by 1 each, adding or removing one k(r + 1).

Shares of different classes do not sum to 1, so each class is a question of its own: do at least
half of the records near a row have it? `read` answers it from all noisy counts by the decoder of
`rknn_jax.answers` for two classes, or, without its kernels, from the row's query alone.

One release of r labels a record has the noise of r + 1 releases of one label each at ε / (r + 1).
If each record has one class of each of several attributes, such as one of ten digits and one of
two writers, no set is needed: release each attribute by itself, at a share of ε.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from rknn_jax import answers, bsvs
from rknn_jax.bsvs import NO_CELL
from rknn_jax.types import Array, Queries

HALF = 0.5
"""Share of the records near a row from which on the row has a class."""


class LabelSets(NamedTuple):
    """Sets of classes of the public rows.

    Attributes:
      probabilities: float32 `[m, num_classes]`, probability that a row has the class.
      stability: float32 `[m, num_classes]`, probability that noise did not change whether the row
        has the class.
      voters: `[s]`, noisy number of votes at each query, whatever they are for.
    """

    probabilities: np.ndarray
    stability: np.ndarray
    voters: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """Mask of the classes of each row, bool `[m, num_classes]`."""
        mask: np.ndarray = self.probabilities > HALF
        return mask

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each row, int32 `[m]`; -1 for an empty set."""
        found = self.probabilities.argmax(axis=1).astype(np.int32)
        return np.where(self.present.any(axis=1), found, np.int32(-1))


def ballots(labels: Array, num_classes: int, labels_per_record: int) -> np.ndarray:
    """Return what each record votes for at its queries: up to r classes, and having voted.

    Row i depends on record i alone. A record keeps its first r different classes: as given, or in
    the order of the classes if they come as a mask. A record without a class votes too, against all
    of them.

    Args:
      labels: Class numbers `[n]` or `[n, l]`, where a number outside [0, |Y|) is no label, or a
        mask of the classes, bool `[n, num_classes]`.
      num_classes: Number of classes |Y|.
      labels_per_record: Most labels of a record that count, r.

    Returns:
      int32 `[n, r + 1]`, private. The vote for having voted is for the class |Y|; `NO_CELL` stands
      for a missing label.

    Raises:
      ValueError: If the labels are of another kind or shape, or r is not in [1, |Y|].
    """
    if not 1 <= labels_per_record <= num_classes:
        raise ValueError(
            f"Expected 1 <= labels_per_record <= num_classes, got {labels_per_record} of "
            f"{num_classes}; name the most labels that a record can have."
        )
    kept = _first(_numbers(np.asarray(labels), num_classes), labels_per_record)
    missing = ((0, 0), (0, labels_per_record - kept.shape[1]))
    kept = np.pad(kept, missing, constant_values=NO_CELL)
    voted = np.full((len(kept), 1), num_classes, np.int32)
    return np.concatenate([kept, voted], axis=1)


def sizes(
    num_queries: int, num_classes: int, labels_per_record: int, num_neighbors: int = 1
) -> dict[str, int]:
    """Return the sizes of a mechanism that is calibrated for ballots, or for single labels.

    Args:
      num_queries: Number of queries s.
      num_classes: Number of classes |Y|.
      labels_per_record: Most labels of a record that count, r; 0 if each record has one label, and
        does not vote for having voted.
      num_neighbors: Number of queries k that a record votes at. Defaults to 1.
    """
    return {
        "num_queries": num_queries,
        "num_classes": num_classes + bool(labels_per_record),
        "num_neighbors": num_neighbors,
        "labels_per_record": labels_per_record + 1,
    }


def read(
    counts: Array, stddev: ArrayLike, queries: Queries, kernels: answers.Kernels | None = None
) -> LabelSets:
    """Return the sets of all public rows, by post-processing alone.

    Args:
      counts: Noisy counts `[s, num_classes + 1]`, the last one of the records that voted.
      stddev: Standard deviation of the noise, in votes, of all counts or of each of them.
      queries: Public queries. Without kernels, each row takes the set of its query.
      kernels: Public side of the decoder, from `answers.kernels`. Defaults to None.
    """
    found = np.asarray(counts, np.float64)
    voted = found[:, -1]
    spread = np.broadcast_to(np.asarray(stddev, np.float64), found.shape)
    noises = lead_stddev(spread[:, :-1], spread[:, -1:])
    columns = [
        _of_query(present - HALF * voted, noise)[queries.cluster]
        if kernels is None
        else _decoded(present, voted, noise, kernels)
        for present, noise in zip(found[:, :-1].T, noises.T, strict=True)
    ]
    stacked = np.stack(columns, axis=-1).astype(np.float32)
    return LabelSets(stacked[:, 0], stacked[:, 1], np.asarray(counts)[:, -1])


def lead_stddev(named: np.ndarray, voted: np.ndarray) -> np.ndarray:
    """Return the standard deviations of a class's noisy votes less half of the noisy votes.

    Args:
      named: Standard deviations of the noise of a class's votes, float64.
      voted: Those of all votes at the same query, float64.
    """
    found: np.ndarray = np.hypot(named, HALF * voted)
    return found


def _of_query(lead: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the probability of a positive lead and of its sign, `[s, 2]`, if all are as likely."""
    with np.errstate(divide="ignore", invalid="ignore"):
        above = np.where(noise > 0, ndtr(lead / noise), lead > 0)
    return np.stack([above, np.maximum(above, 1 - above)], axis=1)


def _decoded(
    present: np.ndarray, voted: np.ndarray, noise: np.ndarray, kernels: answers.Kernels
) -> np.ndarray:
    """Return the probability and stability of one class for each row, `[m, 2]`."""
    counts = np.stack([voted - present, present], axis=1)
    spread = np.broadcast_to(noise[:, None], counts.shape)
    found = answers.decode(counts, spread, kernels)
    return np.stack([found.probabilities[:, 1], found.stability], axis=1)


def _numbers(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return class numbers `[n, l]`, `NO_CELL` for those that are none."""
    if labels.dtype == bool and labels.ndim == 2 and labels.shape[1] == num_classes:
        return np.where(labels, np.arange(num_classes), NO_CELL)
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2):
        raise ValueError(
            "Expected labels as class numbers [n] or [n, l], or as a mask of bool "
            f"[n, {num_classes}], got {labels.dtype} {labels.shape}."
        )
    listed = labels if labels.ndim == 2 else labels[:, None]
    numbers: np.ndarray = bsvs.voting_labels(listed, num_classes)
    return numbers


def _first(numbers: np.ndarray, most: int) -> np.ndarray:
    """Return the first different numbers of each row, int32 `[n, min(most, l)]`."""
    order = np.argsort(numbers, axis=1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=1)
    fresh = np.ones(numbers.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    keep = np.empty(numbers.shape, bool)
    np.put_along_axis(keep, order, fresh, axis=1)
    keep &= numbers != NO_CELL
    place = np.argsort(~keep, axis=1, kind="stable")[:, :most]
    kept = np.where(keep, numbers, NO_CELL)
    return np.take_along_axis(kept, place, axis=1).astype(np.int32)

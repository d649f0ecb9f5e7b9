"""Whether private records lie where the public rows do, and whether their labels follow features.

Both are for the curator's eyes alone: a release tells nobody what private records hold.
"""

from collections.abc import Iterator

import numpy as np

from rknn_jax import lloyd
from rknn_jax.neighbors import nearest

MOST_RECORDS = 2000
"""Most private records, and most public rows, that are compared."""

FEWEST_RECORDS = 100
"""Fewest private records, and fewest public rows, of which anything is said."""

ROWS_OF_A_GROUP = 40
"""Public rows of a group, on average."""

FEW = 0.1
"""Share of the private records in a group, over that of the public rows, below which few are there.
"""

NEIGHBORS = 10
"""Number of the neighbor whose distance is compared: nearer ones may be rows of one person."""

FAR = 1.2
"""Times as far from the public rows as these are from each other, from which on it is told.

Halves of one data set have 0.97 to 1.07, other writers' digits among them, and rotated digits 1.23.
"""

MOST_ALONE = 0.25
"""Share of the public rows in such groups from which on they are told."""

FROM, TO = 10, 30
"""Neighbors whose side is looked at: nearer ones may be records of one person."""

APART = 0.07
"""Share of neighbors on a record's own side, over one half, from which on sides lie apart.

Halves of nine data sets have at most 0.02, and embeddings with other dimensions 0.1 or more.
"""

SIGNIFICANT = 3.0
"""Standard deviations by which neighbors agree more than by chance."""


class Likeness:
    """Sample of the private records, without regard to their order: private."""

    def __init__(self, width: int) -> None:
        # A fixed seed is safe: the sample is for the curator, and nothing of it is released.
        self._draw = np.random.default_rng(0)
        self._priority = np.zeros(0)
        self._rows = np.zeros((0, width), np.float32)
        self._ids = np.zeros(0, np.int32)

    def add(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Take records into account.

        Args:
          rows: Features of usable records, float32 `[b, f]`.
          ids: Their classes, int `[b]`.
        """
        priority = np.concatenate([self._priority, self._draw.random(len(rows))])
        kept = np.argsort(priority, kind="stable")[:MOST_RECORDS]
        self._priority = priority[kept]
        self._rows = np.concatenate([self._rows, rows])[kept]
        self._ids = np.concatenate([self._ids, ids])[kept]

    def advice(self, public: np.ndarray | None) -> Iterator[str]:
        """Yield what seems wrong.

        Args:
          public: Public rows, float32 `[m, f]`, or None, which compares nothing with them.
        """
        if len(self._rows) < FEWEST_RECORDS:
            return
        if public is not None and len(public) >= FEWEST_RECORDS:
            yield from self._places(public[:: -(-len(public) // MOST_RECORDS)])
        yield from self._labels()

    def _places(self, public: np.ndarray) -> Iterator[str]:
        """Yield that records lie elsewhere than the public rows, or hardly where some of these are.

        Args:
          public: Sample of the public rows, float32 `[m, f]`.
        """
        remedy = (
            "embed both sides by one model, from text in one encoding and numbers in one unit, "
            "with dimensions in one order"
        )
        told = False
        apart = np.median(_distances(self._rows, public, NEIGHBORS))
        usual = np.median(_distances(public, public, NEIGHBORS + 1))  # the first one is itself
        if apart > FAR * usual:
            told = True
            times = f"{apart / usual:.1f} times as far" if usual else "farther"
            yield (
                f"Private records are {times} from the public rows as these are from each other; "
                f"{remedy}."
            )
        number = max(2, len(public) // ROWS_OF_A_GROUP)
        groups = lloyd.fit(public, number, 0, num_starts=1)
        theirs = np.bincount(groups.labels, minlength=number) / len(public)
        held = lloyd.assigned(self._rows, groups.centers)
        here = np.bincount(held, minlength=number) / len(self._rows)
        alone = float(theirs[here < FEW * theirs].sum())
        if alone >= MOST_ALONE:
            told = True
            yield (
                f"{alone:.0%} of the public rows lie where there is hardly a private record; if "
                f"the private side has such records, {remedy}."
            )
        if told:
            return
        own, size = _own_side(self._rows, public)
        if own - 0.5 > max(APART, SIGNIFICANT * 0.5 / np.sqrt(size)):
            yield (
                f"{own:.0%} of the neighbors of a row are of its own side, private or public, "
                f"where those of one source have half; {remedy}. Other shares of the classes, or "
                "persons of many records, show so too."
            )

    def _labels(self) -> Iterator[str]:
        """Yield that labels are as if dealt out at random, if nearest records agree by chance."""
        shares = np.bincount(self._ids) / len(self._ids)
        chance = float(np.square(shares).sum())
        near = np.asarray(nearest(self._rows, self._rows, 2))
        itself = near[:, 0] == np.arange(len(near))
        other = np.where(itself, near[:, 1], near[:, 0])
        agree = float(np.mean(self._ids[other] == self._ids))
        spread = np.sqrt(chance * (1 - chance) / len(self._ids))
        if shares.max() < 1 and agree <= chance + SIGNIFICANT * spread:
            yield (
                f"Labels do not follow the features: {agree:.0%} of the records have the label of "
                f"the record nearest to them, and {chance:.0%} would by chance. Are labels and "
                "features in the same order?"
            )


def _own_side(rows: np.ndarray, public: np.ndarray) -> tuple[float, int]:
    """Return the share of neighbors that are of a row's own side, and the rows of each side.

    Both sides are as many distinct rows.

    Args:
      rows: Private records, float32 `[n, f]`.
      public: Public rows, float32 `[m, f]`.
    """
    draw = np.random.default_rng(0)
    sides = [np.unique(one, axis=0) for one in (rows, public)]
    size = min(map(len, sides))
    if size <= TO:
        return 0.5, 1
    both = np.concatenate([one[draw.permutation(len(one))[:size]] for one in sides])
    near = np.asarray(nearest(both, both, TO + 1))[:, FROM + 1 :]  # the first one is itself
    is_private = np.arange(len(both)) < size
    return float(np.mean(is_private[near] == is_private[:, None])), size


def _distances(rows: np.ndarray, others: np.ndarray, number: int) -> np.ndarray:
    """Return the distance of each row to its n-th nearest other, float64 `[b]`."""
    chosen = others[np.asarray(nearest(rows, others, number))[:, -1]]
    found: np.ndarray = np.sqrt(np.square(rows.astype(np.float64) - chosen).sum(axis=1))
    return found

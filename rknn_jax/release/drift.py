"""Distance of private features from the public ones: for the eyes of their curator alone.

Both sides should have come from one model, in the same units. If they have not, most votes go to
few public rows, and nobody sees it before epsilon is spent.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from rknn_jax.records.features import MOST_NAMED

SHIFT = 2.0
"""Distance of a private mean from the public one that is told, in public standard deviations."""

NARROW = 0.1
"""Private standard deviation that is told, in public ones."""

FEWEST = 20
"""Fewest private records whose mean says something."""


class Moments:
    """Means and variances of the features of the records that can be used, block by block."""

    def __init__(self, width: int) -> None:
        """Begin without a record, with `width` features."""
        self._count = 0
        self._sums = np.zeros((2, width))

    def add(self, rows: np.ndarray) -> None:
        """Add records `[b, f]`; those with a NaN cannot be used, and add nothing."""
        held = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
        self._count += len(held)
        self._sums += held.sum(axis=0), np.square(held).sum(axis=0)

    def advice(self, public: np.ndarray, names: Sequence[str]) -> Iterator[str]:
        """Yield how the features differ from the public ones, in sentences.

        Args:
          public: Public rows `[m, f]`.
          names: Names of the features, or none.
        """
        if self._count < FEWEST:
            return
        mean, square = self._sums / self._count
        spread = np.sqrt(np.maximum(square - mean**2, 0))
        wanted = public.astype(np.float64)
        usual, unit = wanted.mean(axis=0), wanted.std(axis=0)
        varies = unit > 0
        far = varies & (np.abs(mean - usual) > SHIFT * unit)
        narrow = varies & (spread < NARROW * unit)
        remedy = "embed both sides by one model, from values in the same units and notation"
        if far.any():
            yield (
                f"{_of(far, names)} of private records lie on average more than {SHIFT:g} standard "
                f"deviations from the public mean; {remedy}."
            )
        if narrow.any():
            yield (
                f"{_of(narrow, names)} vary less than {NARROW:g} times as much among private "
                f"records as among the public rows; {remedy}."
            )


def _of(chosen: np.ndarray, names: Sequence[str]) -> str:
    """Return features in words: their number, and their names if they have some."""
    count = int(chosen.sum())
    words = f"{count:,} of {len(chosen):,} features"
    if len(names) != len(chosen):
        return words
    some = [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]
    return f"{words}, {some[:MOST_NAMED]},"

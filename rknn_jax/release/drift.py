"""Distance of private features from the public ones: for the eyes of their curator alone.

Both sides should have come from one model, in the same units. If they have not, most votes go to
few public rows, and nobody sees it before epsilon is spent.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from rknn_jax.records.features import MOST_NAMED

SHIFT = 2.0
"""Distance of a private mean from the public one that is told, in public standard deviations."""

ROUNDING = 1e-6
"""Standard deviation, over the mean, that is no more than rounding."""

NARROW = 0.1
"""Private standard deviation that is told, in public ones."""

FEWEST = 20
"""Fewest private records whose mean says something."""

FEWEST_PRESENT = 50
"""Fewest values other than 0, on each side, whose mean and spread are compared by themselves.

`rknn embed --table` puts a missing number at 0, the public mean, and many of these would hide what
the others are.
"""


class Moments:
    """Means and variances of features, block by block, of all values and of those other than 0."""

    def __init__(self, width: int) -> None:
        """Begin without a row, with `width` features."""
        self._count = 0
        self._present = np.zeros(width, np.int64)
        self._sums = np.zeros((2, width))

    def add(self, rows: np.ndarray) -> None:
        """Add rows `[b, f]`; those with a NaN cannot be used, and add nothing."""
        held = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
        self._count += len(held)
        self._present += np.count_nonzero(held, axis=0)
        self._sums += held.sum(axis=0), np.square(held).sum(axis=0)

    def advice(self, public: np.ndarray, names: Sequence[str]) -> Iterator[str]:
        """Yield how the features differ from the public ones, in sentences.

        Args:
          public: Public rows `[m, f]`.
          names: Names of the features, or none.
        """
        if self._count < FEWEST:
            return
        shown = Moments(public.shape[1])
        shown.add(public)
        far, narrow = _differ(self._of_all(), shown._of_all())
        both = (self._present >= FEWEST_PRESENT) & (shown._present >= FEWEST_PRESENT)
        far_there, narrow_there = _differ(self._of_present(), shown._of_present())
        far |= both & far_there
        # A pixel that is hardly ever on may be on in no private record.
        narrow &= shown._present >= min(FEWEST_PRESENT, len(public) / 2)
        narrow |= both & narrow_there
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

    def _of_all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the means and standard deviations of all values."""
        return _moments(self._sums / self._count)

    def _of_present(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the means and standard deviations of the values other than 0."""
        return _moments(self._sums / np.maximum(self._present, 1))


def _moments(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, by the means of values and of their squares."""
    mean, square = means
    return mean, np.sqrt(np.maximum(square - mean**2, 0))


def _differ(
    private: tuple[np.ndarray, np.ndarray], public: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which features lie far from the public ones, and which are narrow, bool `[f]`."""
    (mean, spread), (usual, unit) = private, public
    varies = unit > ROUNDING * np.abs(usual)
    return varies & (np.abs(mean - usual) > SHIFT * unit), varies & (spread < NARROW * unit)


def _of(chosen: np.ndarray, names: Sequence[str]) -> str:
    """Return features in words: their number, and their names if they have some."""
    count = int(chosen.sum())
    words = f"{count:,} of {len(chosen):,} features"
    if len(names) != len(chosen):
        return words
    some = [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]
    return f"{words}, {some[:MOST_NAMED]},"

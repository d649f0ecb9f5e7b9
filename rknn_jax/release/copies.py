"""Files that hold the same records: private, for the curator's eyes alone."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

MOST = 0.9
"""Least share of a file's records that are in other files, if it is told as a copy."""


class Copies:
    """Fingerprints of the records of each file, 8 bytes a record."""

    def __init__(self) -> None:
        self._prints: dict[str, list[int]] = {}

    def add(self, name: str, rows: np.ndarray) -> None:
        """Add a block of a file.

        Args:
          name: Name of the file.
          rows: float32 `[b, f]`. Rows of NaN, which cast no vote, are left out.
        """
        kept = np.ascontiguousarray(rows[np.isfinite(rows).all(axis=1)])
        self._prints.setdefault(name, []).extend(hash(row.tobytes()) for row in kept)

    def advice(self) -> Iterator[str]:
        """Yield which files look like copies of others, in whole or in part."""
        files = {name: set(prints) for name, prints in self._prints.items()}
        held: Counter[int] = Counter()
        for prints in files.values():
            held.update(prints)
        told = []
        for name, prints in self._prints.items():
            count = sum(held[one] > 1 for one in prints)
            if prints and count >= MOST * len(prints):
                told.append(f"{count:,} of {len(prints):,} records of {name}")
        if told:
            yield (
                f"{', '.join(told)} are in other files too, and each counts. If files are copies, "
                "the people in them add more than epsilon covers; name the other files alone, or "
                "name --person."
            )

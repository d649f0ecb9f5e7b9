"""Files that hold the same records: private, for the curator's eyes alone."""

from collections.abc import Iterator

import numpy as np

from rknn_jax.records.features import MOST_NAMED

MOST = 0.9
"""Least share of a file's records that are in other files, if it is told as a copy."""


class Copies:
    """Fingerprints of the records of each file, 8 bytes a record."""

    def __init__(self) -> None:
        self._prints: dict[str, list[np.ndarray]] = {}

    def add(self, name: str, rows: np.ndarray) -> None:
        """Add a block of a file.

        Args:
          name: Name of the file.
          rows: float32 `[b, f]`. Rows of NaN, which cast no vote, are left out.
        """
        kept = np.ascontiguousarray(rows[np.isfinite(rows).all(axis=1)])
        prints = np.fromiter((hash(row.tobytes()) for row in kept), np.int64, len(kept))
        self._prints.setdefault(name, []).append(prints)

    def advice(self) -> Iterator[str]:
        """Yield which files look like copies of others, in whole or in part."""
        files = {name: np.concatenate(parts) for name, parts in self._prints.items()}
        if not files:
            return
        distinct, held = np.unique(
            np.concatenate([np.unique(prints) for prints in files.values()]), return_counts=True
        )
        told = []
        for name, prints in files.items():
            count = int(np.isin(prints, distinct[held > 1]).sum())
            if len(prints) and count >= MOST * len(prints):
                told.append(f"{count:,} of {len(prints):,} records of {name}")
        if told:
            yield (
                f"{', '.join(told[:MOST_NAMED])} are in other files too, and each counts. If files "
                "are copies, the people in them add more than epsilon covers; name the other files "
                "alone, or name --person."
            )

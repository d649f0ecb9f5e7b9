"""Records that are copies of others, and files of copies: for the curator's eyes alone."""

from collections.abc import Iterator

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.records.features import MOST_NAMED

MOST = 0.9
"""Least share of a file's records that are in other files, if it is told as a copy."""

SOME = 0.05
"""Least share of the records that are copies of others, if they are told."""

FEWEST = 10
"""Fewest such records."""

BY_CHANCE = 2.0
"""Times as often as a private record and a public row by which two private records are equal.

Features of few values, such as answers of yes and no, make records equal that are not copies.
"""


class Copies:
    """Fingerprints of the records of each file, 8 bytes a record: private."""

    def __init__(self) -> None:
        self._prints: dict[str, list[np.ndarray]] = {}

    def add(self, name: str, rows: np.ndarray) -> None:
        """Add a block of a file.

        Args:
          name: Name of the file.
          rows: float32 `[b, f]`. Rows of NaN, which cast no vote, are left out.
        """
        self._prints.setdefault(name, []).append(_prints(rows))

    def advice(self, public: np.ndarray | None = None, *, persons: bool) -> Iterator[str]:
        """Yield which files, or how many records, look like copies of others.

        Args:
          public: Public rows, float32 `[m, f]`, which tell how often rows are equal by chance.
            Defaults to None.
          persons: Whether records name their persons, of whom copies reveal no more.
        """
        files = {name: np.concatenate(parts) for name, parts in self._prints.items()}
        if not files:
            return
        told = [*_of_files(files)]
        if not told and not persons:
            told = [*_of_records(np.concatenate([*files.values()]), public)]
        yield from told


def _prints(rows: np.ndarray) -> np.ndarray:
    """Return a fingerprint of each row without a NaN, int64."""
    kept = np.ascontiguousarray(rows[np.isfinite(rows).all(axis=1)])
    return np.fromiter((hash(row.tobytes()) for row in kept), np.int64, len(kept))


def _of_files(files: dict[str, np.ndarray]) -> Iterator[str]:
    """Yield which files look like copies of others, in whole or in part."""
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
            f"alone, or name {option('person')}."
        )


def _of_records(prints: np.ndarray, public: np.ndarray | None) -> Iterator[str]:
    """Yield how many records are copies of others, if more are than by chance."""
    distinct, counts = np.unique(prints, return_counts=True)
    copies = len(prints) - len(distinct)
    if copies < max(FEWEST, SOME * len(prints)):
        return
    if public is not None and len(public):
        shown, times = np.unique(_prints(public), return_counts=True)
        _, own, others = np.intersect1d(distinct, shown, return_indices=True)
        across = float(np.dot(counts[own], times[others])) / (len(prints) * len(public))
        within = float(np.dot(counts, counts - 1)) / (len(prints) * (len(prints) - 1))
        if within <= BY_CHANCE * across:
            return
    yield (
        f"{copies:,} of {len(prints):,} private records are exact copies of another one, and each "
        "counts as a record of its own, so that epsilon covers one of them alone. If copies are of "
        f"one person, name the column of the persons with {option('person')}; if they are a "
        "mistake, save each record once."
    )

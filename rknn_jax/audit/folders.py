"""Folder of one run of an audit: ledgers and results of made-up records, of which nothing is left.

The folder has an index of ledgers of its own. The user's index is neither read nor written: an
audit pays for the same records again and again, each time from a ledger that is new.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rknn_jax.privacy import ledger_index

MEMORY = Path("/dev/shm")
"""Folder in memory, if it exists: a release waits for the disk a dozen times."""


@contextmanager
def own_folder() -> Iterator[Path]:
    """Yield a new folder that is removed at the end, with an index of ledgers inside."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name,
        ledger_index.kept_in(Path(name) / "index"),
    ):
        yield Path(name)

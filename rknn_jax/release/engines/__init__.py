"""Engines that take the sums over shards; a file in this folder is registered by its name.

An engine is a map over shards that survives failures, and nothing else. It offers
`count_all(records, counter, on_rows, address)`. One pure function counts a shard, and `total` sums
the counts here, once all are in. Ledger and noise never leave this process.
"""

import importlib
from types import ModuleType

from rknn_jax._internal.option_names import option
from rknn_jax._internal.registry import registered


def names() -> list[str]:
    """Return the names of all engines, which are the files of this folder."""
    return registered(__path__)


def named(name: str) -> ModuleType:
    """Import an engine by its name.

    Raises:
      ValueError: If there is none of that name.
    """
    if name not in names():
        raise ValueError(
            f"Expected {option('engine')} to be one of {', '.join(names())}, got "
            f"{option('engine')} {name}; local needs nothing else."
        )
    return importlib.import_module(f"{__name__}.{name}")

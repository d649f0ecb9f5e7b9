"""Packages whose files are registered by their names."""

import functools
import pkgutil
from collections.abc import Iterable


def registered(folders: Iterable[str]) -> list[str]:
    """Return the names of a package's files and folders without a leading underscore, sorted.

    They are looked for once in a process.

    Args:
      folders: `__path__` of the package.
    """
    return list(_registered(*folders))


@functools.cache
def _registered(*folders: str) -> tuple[str, ...]:
    found = (module.name for module in pkgutil.iter_modules(folders))
    return tuple(sorted(name for name in found if not name.startswith("_")))

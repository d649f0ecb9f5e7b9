"""Packages whose files are registered by their names."""

import functools
import os
import pkgutil
from collections.abc import Iterable


def registered(folders: Iterable[str]) -> list[str]:
    """Return the names of a package's files and folders without a leading underscore, sorted.

    They are looked for again only once a folder has changed.

    Args:
      folders: `__path__` of the package.
    """
    return list(_registered(*((folder, os.stat(folder).st_mtime_ns) for folder in folders)))


@functools.cache
def _registered(*folders: tuple[str, int]) -> tuple[str, ...]:
    found = pkgutil.iter_modules([folder for folder, _ in folders])
    return tuple(sorted(one.name for one in found if not one.name.startswith("_")))

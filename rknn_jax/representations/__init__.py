"""Representations: one file per encoder, `fit(key, public_images, config) -> encode`.

Every `encode` is record-local. A file in this folder is registered by its name.
"""

import importlib
import pkgutil
from types import ModuleType


def names() -> list[str]:
    """Return the names of all representations, which are the files of this folder."""
    every = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in every if not name.startswith("_"))


def named(name: str) -> ModuleType:
    """Return the representation of a name.

    Raises:
      ValueError: If the name is not in `names()`.
    """
    if name not in names():
        raise ValueError(
            f"Expected representation to be one of {', '.join(names())}, got "
            f"representation={name!r}."
        )
    return importlib.import_module(f"{__name__}.{name}")

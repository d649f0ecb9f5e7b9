"""One file, one mechanism; `base` holds the contract and the drivers. A file's presence registers the mechanism."""

import importlib
import pkgutil
from typing import Any


def names() -> list[str]:
    """Return the names of all mechanisms, which are the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def make(name: str, **fields: Any) -> Any:
    """Return the mechanism `name` with these fields: class `DiscreteLaplace` for `discrete_laplace`.

    Raises:
      ValueError: for a name that is not in `names()`.
    """
    if name not in names():
        raise ValueError(f"Expected mechanism to be one of {names()}, got mechanism={name!r}.")
    module = importlib.import_module(f"{__name__}.{name}")
    return getattr(module, name.title().replace("_", ""))(**fields)

"""One file, one mechanism; `base` and `local` hold the contracts and the drivers. A file's presence registers the mechanism."""

import importlib
import pkgutil
from typing import Any

CONTRACTS = ("base", "local")


def names(*, local: bool | None = None) -> list[str]:
    """Return the names of all mechanisms, which are the files of this folder; or of the local, or of the central ones."""
    every = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in CONTRACTS)
    return every if local is None else [name for name in every if hasattr(named(name), "log_prob") == local]


def named(name: str) -> type[Any]:
    """Return class `DiscreteLaplace` for `discrete_laplace`.

    Raises:
      ValueError: for a name that is not in `names()`.
    """
    if name not in names():
        raise ValueError(f"Expected mechanism to be one of {names()}, got mechanism={name!r}.")
    return getattr(importlib.import_module(f"{__name__}.{name}"), name.title().replace("_", ""))


def make(name: str, **fields: Any) -> Any:
    """Return the mechanism `name` with these fields."""
    return named(name)(**fields)

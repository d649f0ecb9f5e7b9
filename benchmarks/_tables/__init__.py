"""Tables of the documentation: a public function without arguments makes the one of its name."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator


def makers() -> Iterator[Callable[[], str]]:
    """Yield the functions that make tables, of all files here."""
    for found in pkgutil.iter_modules(__path__):
        if found.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{found.name}")
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            if own and not name.startswith("_"):
                yield value

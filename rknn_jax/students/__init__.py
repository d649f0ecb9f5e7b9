"""Students: models trained on the labeled public data.

Each file whose `Config` is a `base.StudentSettings` registers one kind of training: its settings
are a value that trains, `Config(...).fit(key, public_images, labels)`. `fit` is the training loop,
and `models` holds the networks. `tests/contracts/test_students.py` checks every kind.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rknn_jax.students.base import StudentSettings


def names() -> list[str]:
    """Return the names of all kinds of training, which are the names of files in this folder."""
    return sorted(_kinds())


def named(name: str) -> "type[StudentSettings]":
    """Return the settings' class of a kind of training.

    Raises:
      ValueError: If the name is not in `names()`.
    """
    kinds = _kinds()
    if name not in kinds:
        raise ValueError(
            f"Expected a kind of training among {', '.join(sorted(kinds))}, got {name!r}."
        )
    return kinds[name]


def _kinds() -> "dict[str, type[StudentSettings]]":
    contract = importlib.import_module(f"{__name__}.base").StudentSettings
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg or module.name.startswith("_"):
            continue
        own = vars(importlib.import_module(f"{__name__}.{module.name}"))
        config = own.get("Config")
        if isinstance(config, type) and issubclass(config, contract):
            found[module.name] = config
    return found

"""Presets, one a file, for `python -m train.distill --preset NAME`. Other options override them.

The docstring of a file states its result and its duration. `EXPERIMENT` holds its settings.
"""

import importlib
from types import ModuleType
from typing import Any

from rknn_jax._internal.registry import registered

from ..experiment import Experiment

NAMES = tuple(name.replace("_", "-") for name in registered(__path__))
"""Names of all files in this folder."""


def also(name: str) -> tuple[Any, ...]:
    """Return the other parts that a preset has settings for, to be chosen by name."""
    found: tuple[Any, ...] = vars(_module(name)).get("ALSO", ())
    return found


def named(name: str) -> Experiment:
    """Return a preset's settings.

    Raises:
      ValueError: If the name is not in `NAMES`.
    """
    experiment: Experiment = _module(name).EXPERIMENT
    return experiment


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        raise ValueError(f"Expected preset to be one of {', '.join(NAMES)}, got preset={name!r}.")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")

"""Experiments worth repeating, one a file: `python -m train.distill --preset NAME`; other options
take its settings' place.

A file says in its docstring what comes out and how long it takes, and offers its settings as
`EXPERIMENT`.
"""

import importlib
import pkgutil

from train.experiment import Experiment

NAMES = tuple(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))
"""Every file of this folder."""


def named(name: str) -> Experiment:
    """Return a preset's settings; raises ValueError for a name that is not in `NAMES`."""
    if name not in NAMES:
        raise ValueError(f"Expected preset to be one of {', '.join(NAMES)}, got preset={name!r}.")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").EXPERIMENT

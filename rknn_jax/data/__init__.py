"""Data sets: one file each, `load(seed, data_dir) -> Task`, with its card.

A file in this folder is registered by its name. Public, private, and test parts are disjoint by
construction. They are positions in one pool, split by a permutation of the seed.
"""

import importlib
from pathlib import Path

from rknn_jax._internal.registry import registered
from rknn_jax.types import Task


def names() -> list[str]:
    """Return the names of all data sets, which are the files of this folder."""
    return registered(__path__)


def load(name: str, seed: int, data_dir: Path | None = None) -> Task:
    """Load a data set by name.

    Args:
      name: `digits`, `mnist`, `mnist:half`, `mnist:train`, `cifar10`, `cifar10:pooled`,
        `image_folder`, or `tfds:<name>` for one prepared by tensorflow-datasets.
      seed: Seed of the split.
      data_dir: Folder of the data set's files. Defaults to none.

    Raises:
      ValueError: For an unknown name, a missing `data_dir`, or damaged files.
      FileNotFoundError: If a file is missing.
    """
    kind, _, inner = name.partition(":")
    if kind not in names():
        raise ValueError(
            f"Expected dataset to be one of {', '.join(names())} (tfds:<name> for "
            f"tensorflow-datasets), got dataset={name!r}."
        )
    module = importlib.import_module(f"{__name__}.{kind}")
    task: Task = module.load(seed, data_dir, inner) if inner else module.load(seed, data_dir)
    return task

"""One file, one system that labels public data with private records.

A file's presence registers it.

A labeler is two functions and their settings, `Config`, which has at least epsilon, delta and
relation:

    votes(key, private, encode, queries, num_classes, config) -> votes       all that private records do; private
    tally(key, votes, queries, num_classes, config, predicted) -> Answers    the mechanism and what follows; the answers carry its guarantee

Some train a network on the private records instead of counting votes, and say so by `TRAINS =
True`: their answers are what it predicts and have it as `model`, and `Config.folder` is where the
training is saved and goes on.

It may have `not_covered(key, votes, answers, config)`, what a benchmark should be told that epsilon
does not cover. `tests/contracts/test_labelers.py` holds every file to it by the file's `EXAMPLES`.
"""

import importlib
import pkgutil
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax

from rknn_jax.types import Answers, Encoder, Queries, Task


def names() -> list[str]:
    """Return the names of all labelers, which are the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_")


def named(name: str) -> ModuleType:
    """Return the labeler of a name.

    Raises:
      ValueError: for a name that is not in `names()`.
    """
    if name not in names():
        raise ValueError(f"Expected labeler to be one of {names()}, got labeler={name!r}.")
    return importlib.import_module(f"{__name__}.{name}")


def label(
    labeler: ModuleType, key: jax.Array, task: Task, encode: Encoder, queries: Queries, config: Any
) -> Answers:
    """Label the queries with the private records of a task: `votes`, then `tally`.

    `key` is consumed.
    """
    votes_key, noise_key = jax.random.split(key)
    queries = replace(queries, images=task.public.images[queries.index])
    votes = labeler.votes(votes_key, task.private, encode, queries, task.card.num_classes, config)
    return labeler.tally(noise_key, votes, queries, task.card.num_classes, config)

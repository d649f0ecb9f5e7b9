"""Systems that label public queries with private records: a file each, whose presence registers it.

A labeler is a frozen dataclass, and its fields are its public settings. `Labeler` says what it can
do. `tests/contracts/test_labelers.py` holds every file to that by the file's `EXAMPLES`.
"""

import abc
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np

from rknn_jax.privacy.guarantee import Relation
from rknn_jax.types import Answers, Encoder, Queries, Records, Task

Contribution = TypeVar("Contribution")


class Labeler(abc.ABC, Generic[Contribution]):
    """A labeler: what private records contribute, and the mechanism that makes it public.

    Attributes:
      epsilon: Privacy of all answers together. Infinity is for no noise and no privacy.
      delta: Likewise.
      relation: Neighboring relation of the data sets.
      trains: Whether a network is trained on the private records. The answers are its predictions
        then, and have it as `model`; a field `folder` names where the training is saved.
      telling: Settings under which one record of a small task counts for much, for audits.
    """

    epsilon: float
    delta: float
    relation: Relation
    trains: ClassVar[bool] = False
    telling: ClassVar[Mapping[str, Any]] = {}

    @abc.abstractmethod
    def contribute(
        self,
        key: jax.Array,
        private: Records,
        encode: Encoder,
        queries: Queries,
        num_classes: int,
    ) -> Contribution:
        """Return all that private records do for the queries: private.

        Args:
          key: Random key, which is consumed. It must stay secret.
          private: Private records. A record whose label is no class contributes nothing.
          encode: Record-local map of images to features.
          queries: Public queries.
          num_classes: Number of classes |Y|.
        """

    @abc.abstractmethod
    def release(
        self,
        key: jax.Array,
        contribution: Contribution,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Return answers that carry their guarantee: the mechanism, in simulation.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, float32 `[s, num_classes]`. Defaults to none.
        """

    def not_covered(
        self, key: jax.Array, contribution: Contribution, answers: Answers
    ) -> dict[str, Any]:
        """Return what a benchmark should be told that epsilon does not cover. Defaults to nothing."""
        return {}


def names() -> list[str]:
    """Return the names of all labelers, which are the files of this folder."""
    every = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in every if not name.startswith("_"))


def named(name: str) -> type[Labeler[Any]]:
    """Return the labeler of a name.

    Raises:
      ValueError: If the name is not in `names()`.
    """
    if name not in names():
        raise ValueError(f"Expected labeler to be one of {names()}, got labeler={name!r}.")
    module = importlib.import_module(f"{__name__}.{name}")
    [found] = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Labeler)
        and value.__module__ == module.__name__
    )
    return found


def label(
    labeler: Labeler[Any], key: jax.Array, task: Task, encode: Encoder, queries: Queries
) -> Answers:
    """Label the queries with the private records of a task. `key` is consumed."""
    contribution_key, noise_key = jax.random.split(key)
    num_classes = task.card.num_classes
    queries = replace(queries, images=task.public.images[queries.index])
    contribution = labeler.contribute(contribution_key, task.private, encode, queries, num_classes)
    return labeler.release(noise_key, contribution, queries, num_classes)

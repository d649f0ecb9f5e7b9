"""Systems that label public queries with private records; each file here registers one system.

A labeler is a frozen dataclass, and its fields are its public settings. `Labeler` is the interface.
`tests/contracts/test_labelers.py` checks every file on the file's `EXAMPLES`.
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
    """Labeling system: the contribution of private records, and the mechanism that publishes it.

    Attributes:
      epsilon: Privacy budget of all answers together. Infinity means no noise and no privacy.
      delta: Probability delta of the (epsilon, delta) guarantee of all answers together.
      relation: Neighboring relation of the data sets.
      trains: Whether a network is trained on the private records. If so, the answers are its
        predictions, and `Answers.model` is the network. Such a labeler has a field `folder`, which
        names the folder of the saved training. Defaults to False.
      telling: Settings under which one record of a small task has a large effect, for audits.
        Defaults to none.
    """

    epsilon: float
    delta: float
    relation: Relation
    trains: ClassVar[bool] = False
    telling: ClassVar[Mapping[str, Any]] = {}

    @property
    def needs_delta(self) -> bool:
        """True if there is no pure guarantee, as with Gaussian noise. Defaults to False."""
        return False

    @abc.abstractmethod
    def contribute(
        self,
        key: jax.Array,
        private: Records,
        encode: Encoder,
        queries: Queries,
        num_classes: int,
    ) -> Contribution:
        """Compute everything that the private records add to the answers. The result is private.

        Args:
          key: Random key, which is consumed. The key must stay secret.
          private: Private records. A record whose label is not a class contributes nothing.
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
        """Release answers that carry their guarantee: the mechanism, in simulation.

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
        """Return facts for a benchmark that epsilon does not cover. Defaults to none."""
        return {}


def names() -> list[str]:
    """Return the names of all labelers, which are the names of the files in this folder."""
    every = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in every if not name.startswith("_"))


def named(name: str) -> type[Labeler[Any]]:
    """Return the labeler class of a name.

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

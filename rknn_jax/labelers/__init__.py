"""Systems that label public queries with private records; each file or folder here registers one.

A labeler is a frozen dataclass, and its fields are its public settings. `Labeler` is the interface.
`tests/contracts/test_labelers.py` checks every file on the file's `EXAMPLES`.
"""

import abc
import importlib
import math
from collections.abc import Mapping
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import jax
import numpy as np

from rknn_jax import postprocessing, trust
from rknn_jax._internal.keys import fresh_noise_key
from rknn_jax._internal.option_names import option
from rknn_jax._internal.registry import registered
from rknn_jax.labelers import _arrays, _persons
from rknn_jax.labels import PublicSide
from rknn_jax.neighbors import Metric, in_metric
from rknn_jax.privacy import calibration
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.types import Answers, Array, Encoder, Queries, Records, Smoothing, Task

Contribution = TypeVar("Contribution")

QUERIES_PER_CLASS = 4
"""Default number of queries for each class, as 40 for the ten digits."""


class Labeled(NamedTuple):
    """Labels of public rows, from one call on arrays.

    Attributes:
      labels: int32 `[m]`, the label of each public row's query; -1 if it was declined.
      answers: Answers to the queries, with their guarantee.
      queries: Queries, and the query of each public row.
    """

    labels: np.ndarray
    answers: Answers
    queries: Queries


class Labeler(abc.ABC, Generic[Contribution]):
    """Labeling system: the contribution of private records, and the mechanism that publishes it.

    Attributes:
      epsilon: Privacy budget of all answers together. Infinity means no noise and no privacy.
      delta: Probability delta of the (epsilon, delta) guarantee of all answers together.
      relation: Neighboring relation of the data sets.
      metric: Distance between features. Defaults to squared Euclidean.
      unit: Privacy unit: a record, or a person with all records. Neighboring data sets then differ
        in all records of one person, whose number may differ too. `Records.clients` names the
        person of each record. Defaults to a record, for labelers without this setting.
      trains: Whether a classifier is made of the private records. If so, the answers are its
        predictions, and `Answers.model` is the classifier. A labeler whose training is long has a
        field `folder`, which names the folder of the saved training. Defaults to False.
      clusters: Whether the queries are clusters of all public records, whose records share their
        query's label. If not, each query costs privacy, and queries are public records drawn at
        random. Defaults to False.
      slow: Whether networks are trained on images, which takes minutes. Defaults to False.
      telling: Settings under which one record of a small task has a large effect, for audits.
        Defaults to none.
      given: Names of the settings that `for_round` replaces by those of a run.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    epsilon: float
    delta: float
    relation: Relation
    unit: Protected = "record"
    metric: Metric = "sqeuclidean"
    trains: ClassVar[bool] = False
    clusters: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    telling: ClassVar[Mapping[str, Any]] = {}
    given: ClassVar[frozenset[str]] = frozenset(
        {"epsilon", "delta", "relation", "unit", "smoothing", "folder"}
    )

    @classmethod
    def for_canaries(cls, num_canaries: int, epsilon: float, delta: float) -> Self | None:
        """Return the labeler under which one run shows every canary's gradient, for audits.

        Defaults to None: no labeler of this class releases a sum of all records' gradients.

        Args:
          num_canaries: Number of private records, all of them canaries.
          epsilon: Privacy budget of a run.
          delta: Probability delta of a run.
        """
        del num_canaries, epsilon, delta
        return None

    @property
    def name(self) -> str:
        """Name of the labeler, which is the name of its file or folder."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def trust(self) -> str:
        """Trust model. Defaults to a trusted curator."""
        return "central"

    @property
    def has_curator(self) -> bool:
        """True if a curator, or a secure sum in its place, takes what the records say."""
        return trust.named(self.trust).has_curator

    @property
    def is_shuffled(self) -> bool:
        """True if each message hides among those of the others."""
        return trust.named(self.trust).is_shuffled

    @property
    def noise(self) -> str:
        """Name of the noise, or of the mechanism that adds it. Defaults to Gaussian noise."""
        return "gaussian"

    @property
    def decodes(self) -> bool:
        """True if `rknn_jax.answers` reads the labels of public records from the noisy counts.

        Defaults to False: each record has the label of its query, spread between similar records.
        """
        return False

    @property
    def needs_delta(self) -> bool:
        """True if there is no pure guarantee, as with Gaussian noise. Defaults to False."""
        return False

    def for_round(
        self,
        epsilon: float,
        delta: float,
        relation: Relation,
        smoothing: Smoothing,
        num_rounds: int = 1,
        folder: Path | None = None,
        unit: Protected = "record",
    ) -> Self:
        """Return the labeler for one round of a run, with its share of the budget.

        The share is even, and delta's is rounded down. However the rounds are composed, they cost
        no more than the whole.

        Args:
          epsilon: Privacy budget of the whole run.
          delta: Probability delta of the whole run.
          relation: Neighboring relation of the data sets.
          smoothing: Use of similar records.
          num_rounds: Number of rounds. Defaults to 1.
          folder: Folder in which the training of a network is saved. Defaults to none.
          unit: Privacy unit. Defaults to "record".

        Raises:
          ValueError: If the labeler has such settings of its own, or the run does not suit it.
        """
        takes = {one.name for one in fields(self)}
        for name in sorted(self.given & takes):
            found = getattr(self, name)
            if found != getattr(type(self), name):
                raise ValueError(
                    f"Expected {name} of labeler={self.name} left as it is, got {found}; it is the "
                    f"run's own, see {option('epsilon')}, {option('delta')}, {option('relation')}, "
                    f"{option('unit')}, {option('smoothing')} and {option('out')}."
                )
        if unit != "record" and "unit" not in takes:
            raise ValueError(
                f"Expected unit=record with labeler={self.name}, got unit={unit}; it has no "
                "setting unit and protects records alone."
            )
        if self.trains and num_rounds > 1:
            raise ValueError(
                f"Expected rounds=1 with labeler={self.name}, got rounds={num_rounds}; its network "
                "answers all at once."
            )
        if self.needs_delta and epsilon < math.inf and delta == 0:
            raise ValueError(
                f"Expected delta > 0 with labeler={self.name}, trust={self.trust} and "
                f"noise={self.noise}, got delta=0.0; pass {option('delta')} 1e-5, it has no pure "
                "guarantee."
            )
        shares: dict[str, Any] = {
            "epsilon": epsilon / num_rounds,
            # Rounded down, so that T shares never add up to more than delta.
            "delta": delta * (1 - 1e-12) / num_rounds,
            "relation": relation,
            "unit": unit,
            "smoothing": smoothing,
            "folder": folder,
        }
        if not delta and self.needs_delta:
            shares.pop("delta")  # without noise, delta does not count
        return replace(self, **{name: value for name, value in shares.items() if name in takes})

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee | None:
        """Return the guarantee of one round, from public numbers alone.

        Defaults to None, for a labeler of a single round.

        Args:
          num_units: Number n of private records, or of persons.
          num_queries: Number of queries s.
          num_classes: Number of classes |Y|.
        """
        del num_units, num_queries, num_classes
        return None

    def sharing(
        self,
        epsilon: float,
        delta: float,
        num_rounds: int,
        num_units: int,
        num_queries: int,
        num_classes: int,
    ) -> Self:
        """Return the labeler of one round with as much epsilon as the whole run leaves it.

        The even share of `for_round` adds up to the whole. Rounds with a delta compose to less, and
        the rest goes into less noise.

        Args:
          epsilon: Privacy budget of the whole run.
          delta: Probability delta of the whole run.
          num_rounds: Number of rounds.
          num_units: Number n of private records, or of persons.
          num_queries: Number of queries s of each round.
          num_classes: Number of classes |Y|.
        """
        # Without a guarantee from public numbers alone, the even share stays.
        if num_rounds == 1 or self.guarantee_of(num_units, num_queries, num_classes) is None:
            return self

        def guarantee_of(share: float) -> Guarantee:
            labeler = replace(self, epsilon=share)
            found = labeler.guarantee_of(num_units, num_queries, num_classes)
            assert found is not None
            return found

        return replace(
            self, epsilon=calibration.share_of_rounds(guarantee_of, epsilon, delta, num_rounds)
        )

    def check_queries(self, num_queries: int | None) -> None:
        """Check the number of queries of a round.

        Args:
          num_queries: Number of queries, or None for a default that depends on the records.

        Raises:
          ValueError: If the number of queries would reveal the number of records.
        """
        if self.clusters and self.relation == "add-remove" and num_queries is None:
            raise ValueError(
                "Expected queries with relation=add-remove, got none; the default depends on n, "
                "which is private then."
            )

    def num_units(self, private: Records) -> int:
        """Return the number of private records, or of persons if they are the unit.

        Raises:
          ValueError: If persons are the unit and the records name none.
        """
        return _persons.num_persons(private) if self.unit == "person" else len(private.labels)

    def check(self, num_units: int) -> None:
        """Check that there are enough private records, or persons, before hours of work.

        Args:
          num_units: Result of `num_units`.

        Raises:
          ValueError: If there are too few.
        """

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
          private: Private records. A record whose label is not a class contributes nothing. With
            unit=person, `private.clients` names the person of each record.
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
        """Simulate the mechanism: return answers that carry its guarantee.

        `rknn label` and a federation never call this; see `Question.draw`.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, float32 `[s, num_classes]`. Defaults to none.
        """

    def public_side(
        self,
        queries: Queries,
        features: Array,
        num_classes: int,
        smoothing: Smoothing = "auto",
    ) -> PublicSide:
        """Return what the public rows' labels are read with, beside the answers.

        Simulation, a release and a federation read labels with it, by `Labels.after`. Defaults to
        the graph along which the labels of queries spread.

        Args:
          queries: Public queries.
          features: Features of all public rows, `[m, f]`.
          num_classes: Number of classes |Y|.
          smoothing: Use of similar rows; `none` makes no graph. Defaults to `auto`.
        """
        del num_classes
        graph = postprocessing.public_graph(
            features, len(queries.index), metric=self.metric, smoothing=smoothing
        )
        return PublicSide(graph)

    def label(
        self,
        public: Array,
        private: Array,
        labels: Array,
        num_classes: int,
        *,
        person: Array | None = None,
        num_queries: int | None = None,
        key: jax.Array | None = None,
    ) -> Labeled:
        """Label public rows with private ones in one call, with simulated noise.

        The public rows are clustered, and the private rows label the clusters. A labeler that
        trains on the private rows labels each public row by itself. For a release, use
        `rknn label` or `ReverseKNNLabeler`: they draw exact noise and keep a ledger.

        Args:
          public: Public features, float32 `[m, f]`.
          private: Private features, float32 `[n, f]`, from the same record-local map. A row that
            holds NaN, infinity or more than 1e15 casts no vote.
          labels: Private labels, integers `[n]` in `[0, num_classes)`; others cast no vote.
          num_classes: Number of classes |Y|.
          person: Person of each private row, integers or strings `[n]`. Defaults to none.
          num_queries: Number of queries s. Defaults to four for each class, or to all public rows
            if they are fewer or if the labeler trains.
          key: Random key, which is consumed. Defaults to a fresh one.

        Returns:
          Labels of the public rows, with their guarantee in `answers`.

        Raises:
          ValueError: If the arrays do not fit each other, or queries exceed the public rows.
        """
        public, records = _arrays.checked(
            public, private, labels, num_classes=num_classes, person=person
        )
        self.check(self.num_units(records))
        key = fresh_noise_key() if key is None else key
        query_key, sample_key, noise_key = jax.random.split(key, 3)
        if num_queries is None and not self.trains:
            num_queries = min(QUERIES_PER_CLASS * num_classes, len(public))
        rows = np.asarray(in_metric(public, self.metric))
        queries = _arrays.ask(query_key, rows, num_queries)
        contribution = self.contribute(
            sample_key, records, np.asarray, queries=queries, num_classes=num_classes
        )
        answers = self.release(noise_key, contribution, queries, num_classes)
        answered = np.where(answers.answered, answers.labels, -1)
        return Labeled(answered[queries.cluster].astype(np.int32), answers, queries)

    def not_covered(
        self, key: jax.Array, contribution: Contribution, answers: Answers
    ) -> dict[str, Any]:
        """Return facts for a benchmark that epsilon does not cover. Defaults to none."""
        return {}


def names() -> list[str]:
    """Return the names of all labelers: those of the files and folders in this folder."""
    return registered(__path__)


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


def overridden(kind: type[Labeler[Any]]) -> list[str]:
    """Return the names of the final methods that a labeler class overrides, sorted.

    A base class marks the methods that only put its others together as final. A release and a
    federation run these others. So they cannot run a class with a final method of its own, which
    is for simulation alone.
    """
    finals = {
        name: value
        for base in kind.__mro__
        for name, value in vars(base).items()
        if getattr(value, "__final__", False)
    }
    return sorted(name for name, value in finals.items() if getattr(kind, name) is not value)


def label(
    labeler: Labeler[Any], key: jax.Array, task: Task, encode: Encoder, queries: Queries
) -> Answers:
    """Label the queries with the private records of a task. `key` is consumed."""
    contribution_key, noise_key = jax.random.split(key)
    num_classes = task.card.num_classes
    queries = replace(queries, images=task.public.images[queries.index])
    contribution = labeler.contribute(
        contribution_key, task.private, encode, queries=queries, num_classes=num_classes
    )
    return labeler.release(noise_key, contribution, queries, num_classes)

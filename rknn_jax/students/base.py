"""Contract of a student's settings: a value that trains students on labels.

`supervised` learns from labeled records alone. The files built on `semi_supervised` learn from
unlabeled records too.
"""

import abc
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple, Self, TypeVar, get_args

import jax
import numpy as np

from rknn_jax import students as folder
from rknn_jax._internal.registry import registered
from rknn_jax.labels import Labels, Targets
from rknn_jax.students import fit as students
from rknn_jax.students import inputs as given
from rknn_jax.students.ensemble import Ensemble
from rknn_jax.types import Array

Kind = TypeVar("Kind", bound="StudentSettings")

FEATURES_MODEL = "mlp"
"""Network of features in place of the default network, which takes images alone."""


class Training(NamedTuple):
    """Arguments of `StudentSettings.fit`, which has checked them.

    Attributes:
      key: Random key, consumed by the training.
      images: Public images, uint8 `[m, height, width, channels]`, or features, float32 `[m, f]`.
      labels: Labels of these records.
      start: Layers from which fine-tuning starts, or None.
      on_epoch: Callback after every epoch, or None.
    """

    key: jax.Array
    images: np.ndarray
    labels: Labels
    start: Mapping[str, object] | None
    on_epoch: students.OnEpoch | None


@dataclass(frozen=True, kw_only=True)
class StudentSettings(abc.ABC):
    """Public settings of students: their network, their number, and their targets.

    Attributes:
      student: Network and optimizer of each member.
      members: Number of students that differ by chance alone, whose probabilities are averaged.
        Defaults to 1.
      targets: Training targets: the label of a record (`hard`), its votes (`soft`), or the label
        with its confidence, the rest shared by all classes (`posterior`). Arrays of a release have
        their probabilities as targets, unless `hard` is set. Defaults to `posterior`.
    """

    student: students.Config = field(default_factory=students.Config, kw_only=False)
    members: int = 1
    targets: Targets = "posterior"

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(
                f"Expected members >= 1, got members={self.members}; train one or more."
            )
        if self.targets not in get_args(Targets):
            raise ValueError(
                f"Expected targets to be one of {', '.join(get_args(Targets))}, got "
                f"targets={self.targets!r}."
            )

    @property
    def name(self) -> str:
        """Name of the kind of training, which is the name of its file."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def semi_supervised(self) -> str:
        """Name of the method that learns from unlabeled records, or `none`."""
        return self.name

    def plain(self) -> dict[str, object]:
        """Return the settings as one flat dict, without the network's name."""
        network = asdict(self.student)
        del network["model"]
        own = asdict(self)
        del own["student"]
        return network | own

    def with_model(self, model: str) -> Self:
        """Return the settings with another network.

        If the number of epochs was the network's own, it becomes that of the other network.
        """
        network = self.student
        its_own = network.epochs == students.Config(model=network.model).epochs
        epochs = 0 if its_own else network.epochs
        return replace(self, student=replace(network, model=model, epochs=epochs))

    def as_kind(self, kind: type[Kind]) -> Kind:
        """Return settings of another kind with this network, members and targets.

        The network keeps its batch size, its augmentation, and a number of epochs that is not the
        default of its kind. All other settings are the defaults of the other kind.
        """
        own = self.student
        found = kind().with_model(own.model)
        network = replace(found.student, batch_size=own.batch_size, augmentation=own.augmentation)
        if own.epochs != type(self)().with_model(own.model).student.epochs:
            network = replace(network, epochs=own.epochs)
        return replace(found, student=network, members=self.members, targets=self.targets)

    def check(self, labels_all: bool, backbone: str | None) -> None:  # noqa: B027
        """Check that the settings fit a labeler and a representation. By default, all do.

        Args:
          labels_all: Whether the labeler labels all public records.
          backbone: Name of the network that the representation trains, or None.

        Raises:
          ValueError: If there would be nothing to learn from or to start from.
        """

    def fit(
        self,
        key: jax.Array,
        images: Array,
        labels: Labels | Array,
        *,
        num_classes: int | None = None,
        start: Mapping[str, object] | None = None,
        on_epoch: students.OnEpoch | None = None,
    ) -> Ensemble:
        """Train all members on the public records labeled so far.

        Args:
          key: Random key, consumed by the call.
          images: Public images, uint8 `[m, height, width, channels]`, or features `[m, f]`, numpy
            or jax arrays. Features are learned by `mlp`, unless the settings name another network
            that takes them.
          labels: Labels of these records, or the arrays of a release: class numbers `[m]`, -1 for a
            record without a label, or probabilities `[m, num_classes]`.
          num_classes: Number of classes, for class numbers. Defaults to None: one more than the
            largest.
          start: Layers of the representation's network, from which fine-tuning starts. Defaults to
            none.
          on_epoch: Callback after every epoch, as for `ensemble.fit`. Defaults to none.

        Raises:
          KeyboardInterrupt: If interrupted before the end of the very first epoch.
          ValueError: If the records do not suit the training or the labels.
        """
        settings = self
        rows = given.as_arrays(images, "images")
        if rows.ndim == 2 and self.student.model == students.Config().model:
            settings = settings.with_model(FEATURES_MODEL)
        if rows.ndim == 2:
            students.check_features(settings.student)
        if not isinstance(labels, Labels):
            labels = given.as_labels(labels, len(rows), num_classes)
            if self.targets == "posterior":
                settings = replace(settings, targets="soft")
        if len(labels.probabilities) != len(rows):
            raise ValueError(
                f"Expected labels of {len(rows)} records, got {len(labels.probabilities)}; pass "
                "one label a record."
            )
        return settings.fit_labels(Training(key, rows, labels, start=start, on_epoch=on_epoch))

    @abc.abstractmethod
    def fit_labels(self, training: Training) -> Ensemble:
        """Train all members; see `fit`."""


def names() -> list[str]:
    """Return the names of all kinds of training, which are the names of files in this folder."""
    return sorted(_kinds())


def named(name: str) -> type[StudentSettings]:
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


def _kinds() -> dict[str, type[StudentSettings]]:
    """Return every `Config` of this folder that holds a student's settings, by its file."""
    found = {}
    for name in registered(folder.__path__):
        own = vars(importlib.import_module(f"{folder.__name__}.{name}"))
        config = own.get("Config")
        if isinstance(config, type) and issubclass(config, StudentSettings):
            found[name] = config
    return found

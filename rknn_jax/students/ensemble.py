"""Several students of one training set, whose probabilities are averaged.

They differ by their keys alone: first weights, order of the records and random changes. Where
labels of whole clusters are wrong together the average does not undo that, but it takes away what
each member got wrong by chance.

Reference: Lakshminarayanan, Pritzel & Blundell, "Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles", 2017.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.students import fit as students
from rknn_jax.students import mixmatch, uda, vat
from rknn_jax.types import Array

Config = students.Config | mixmatch.Config | uda.Config | vat.Config

SEMI_SUPERVISED = {module.Config: module for module in (mixmatch, uda, vat)}
"""Who learns from unlabelled records too, by the type of the config."""


@pytree.register
@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained students that answer together.

    Attributes:
      members: one or more, of one image shape and the same classes.
    """

    members: tuple[students.Student, ...]

    @property
    def interrupted(self) -> bool:
        """Whether a KeyboardInterrupt ended the training of a member."""
        return any(member.interrupted for member in self.members)

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return the members' mean probabilities, float32 `[n, num_classes]`, of uint8 images
        `[n, height, width, channels]`.
        """
        return np.mean([member.predict_proba(images) for member in self.members], axis=0)

    def features(self, images: Array) -> np.ndarray:
        """Return the members' features side by side, float32 `[n, members · f]`."""
        return np.concatenate([member.features(images) for member in self.members], axis=1)


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    config: Config,
    num_members: int,
    *,
    unlabelled: Array | None = None,
    start: Any = None,
    on_epoch: students.OnEpoch | None = None,
) -> Ensemble:
    """Train members one after the other.

    Args:
      key: is consumed.
      images: uint8 `[m, height, width, channels]`.
      targets: float32 `[m, num_classes]`.
      config: of each member; that of a module in `SEMI_SUPERVISED` where there are unlabelled
        records.
      num_members: 1 or more.
      unlabelled: uint8 `[u, height, width, channels]`, learned from by that module's `fit`.
      start: see `students.fit`; who learns from unlabelled records too starts anew.
      on_epoch: as in `students.fit`, with the epochs of all members counted on and the member in
        training.

    Returns:
      All members; where a KeyboardInterrupt came, those that had finished an epoch, the last one
      marked `interrupted`.

    Raises:
      KeyboardInterrupt: where it came before the end of the very first epoch.
      ValueError: for num_members < 1, a config of the other kind, a start with unlabelled records,
        and as `students.fit`.
    """
    if isinstance(config, students.Config) != (unlabelled is None):
        raise ValueError(
            "Expected a config of mixmatch, uda or vat with unlabelled records and "
            f"students.Config without, got config={type(config)}."
        )
    if start is not None and unlabelled is not None:
        raise ValueError(
            "Expected no start with unlabelled records, got both; who learns from these starts "
            "anew."
        )
    epochs_each = config.epochs if isinstance(config, students.Config) else config.student.epochs
    if num_members < 1:
        raise ValueError(f"Expected num_members >= 1, got num_members={num_members}.")
    members: list[students.Student] = []
    for member_key in jax.random.split(key, num_members):
        done = len(members) * epochs_each

        def report(
            epoch: int,
            epochs: int,
            metrics: dict[str, float],
            student: students.Student,
            done: int = done,
        ) -> None:
            if on_epoch:
                on_epoch(done + epoch, num_members * epochs, metrics, student)

        try:
            if isinstance(config, students.Config):
                found = students.fit(
                    member_key, images, targets, config, start=start, on_epoch=report
                )
            else:
                found = SEMI_SUPERVISED[type(config)].fit(
                    member_key, images, targets, unlabelled, config, on_epoch=report
                )
            members.append(found)
        except KeyboardInterrupt:
            if not members:
                raise
            members[-1] = replace(members[-1], interrupted=True)
        if members[-1].interrupted:
            break
    return Ensemble(tuple(members))


def save(ensemble: Ensemble, folder: str | Path) -> None:
    """Write each member's checkpoint to a folder of its number.

    Raises ValueError where one exists.
    """
    for number, member in enumerate(ensemble.members):
        students.save(member, Path(folder) / str(number))


def load(folder: str | Path) -> Ensemble:
    """Read what `save` wrote. Raises ValueError where it is not there."""
    found = sorted(
        (path for path in Path(folder).glob("*") if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    if not found:
        raise ValueError(
            f"Expected the folder of a saved ensemble, got folder={str(folder)!r}; use one that "
            "`save` wrote."
        )
    return Ensemble(tuple(students.load(path) for path in found))

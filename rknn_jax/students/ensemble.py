"""Ensembles: several students of one training set, with averaged probabilities.

Members differ only in their random keys: initial weights, order of records, and augmentations. The
average removes errors that each member makes by chance. It does not undo labels that are wrong in
whole clusters.

Reference: Lakshminarayanan, Pritzel & Blundell, "Simple and Scalable Predictive Uncertainty
Estimation using Deep Ensembles", 2017.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax._internal import pytree
from rknn_jax.students import fit as students
from rknn_jax.types import Array

FitMember = Callable[[jax.Array, students.OnEpoch], students.Student]
"""Training of one member, from its key and the callback after each of its epochs."""


@pytree.register
@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained students that predict together.

    Attributes:
      members: One or more students with one image shape and the same classes.
    """

    members: tuple[students.Student, ...]

    @property
    def interrupted(self) -> bool:
        """True if a KeyboardInterrupt ended the training of a member."""
        return any(member.interrupted for member in self.members)

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return the members' mean probabilities of uint8 images `[n, height, width, channels]`.

        Returns:
          Float32 `[n, num_classes]`.
        """
        mean: np.ndarray = np.mean(
            [member.predict_proba(images) for member in self.members], axis=0
        )
        return mean

    def features(self, images: Array) -> np.ndarray:
        """Return the members' features side by side, float32 `[n, members · f]`."""
        return np.concatenate([member.features(images) for member in self.members], axis=1)


def fit(
    key: jax.Array,
    images: Array,
    targets: Array,
    config: students.Config,
    num_members: int,
    *,
    start: Any = None,
    on_epoch: students.OnEpoch | None = None,
) -> Ensemble:
    """Train members on labeled records, one after the other.

    Args:
      key: Random key, consumed by the call.
      images: Training images, uint8 `[m, height, width, channels]`.
      targets: Target probabilities, float32 `[m, num_classes]`.
      config: Settings of each member.
      num_members: Number of members, 1 or more.
      start: Initial layers, as for `students.fit`. Defaults to none.
      on_epoch: Callback as for `students.fit`, with the member in training. Its epochs are counted
        over all members. Defaults to none.

    Returns:
      All members, as `fit_members` does.

    Raises:
      KeyboardInterrupt: If interrupted before the end of the very first epoch.
      ValueError: For num_members < 1, and as `students.fit`.
    """

    def fit_member(key: jax.Array, report: students.OnEpoch) -> students.Student:
        return students.fit(key, images, targets, config, start=start, on_epoch=report)

    return fit_members(key, fit_member, num_members, epochs_each=config.epochs, on_epoch=on_epoch)


def fit_members(
    key: jax.Array,
    fit_member: FitMember,
    num_members: int,
    epochs_each: int,
    on_epoch: students.OnEpoch | None = None,
) -> Ensemble:
    """Train members by any method, one after the other.

    Args:
      key: Random key, split into one for each member.
      fit_member: Training of one member.
      num_members: Number of members, 1 or more.
      epochs_each: Number of epochs of each member.
      on_epoch: Callback whose epochs are counted over all members. Defaults to none.

    Returns:
      All members. After a KeyboardInterrupt, the members that had finished an epoch, the last one
      marked `interrupted`.

    Raises:
      KeyboardInterrupt: If interrupted before the end of the very first epoch.
      ValueError: For num_members < 1, and for the errors of `fit_member`.
    """
    if num_members < 1:
        raise ValueError(
            f"Expected num_members >= 1, got num_members={num_members}; train one or more."
        )
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
            members.append(fit_member(member_key, report))
        except KeyboardInterrupt:
            if not members:
                raise
            members[-1] = replace(members[-1], interrupted=True)
        if members[-1].interrupted:
            break
    return Ensemble(tuple(members))


def save(ensemble: Ensemble, folder: str | Path) -> None:
    """Write each member's checkpoint to a folder named by its number.

    Raises ValueError if one exists.
    """
    for number, member in enumerate(ensemble.members):
        students.save(member, Path(folder) / str(number))


def load(folder: str | Path) -> Ensemble:
    """Read an ensemble that `save` wrote. Raises ValueError if there is none."""
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

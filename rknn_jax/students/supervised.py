"""Supervised students: trained on the labeled public records alone."""

from dataclasses import dataclass

from rknn_jax.students import ensemble
from rknn_jax.students.base import StudentSettings, Training


@dataclass(frozen=True, kw_only=True)
class Config(StudentSettings):
    """Settings of supervised students.

    Attributes:
      fine_tune: Start of each student from the weights of simclr or scan, with their backbone as
        student. Defaults to False.
    """

    fine_tune: bool = False

    @property
    def semi_supervised(self) -> str:
        """Name of the method that learns from unlabeled records: there is none."""
        return "none"

    def check(self, labels_all: bool, backbone: str | None) -> None:
        """Check that the network to fine-tune is the representation's."""
        if self.fine_tune and self.student.model != backbone:
            raise ValueError(
                "Expected the student's network to be that of the representation, such as simclr "
                f"or scan, with fine_tune, got student={self.student.model} and "
                f"backbone={backbone}; choose that network, or leave fine_tune out."
            )

    def fit_labels(self, training: Training) -> ensemble.Ensemble:
        """Train all members on the labeled records. `start` is used if `fine_tune` is set."""
        known = training.labels.known
        return ensemble.fit(
            training.key,
            training.images[known],
            training.labels.targets(self.targets)[known],
            config=self.student,
            num_members=self.members,
            start=training.start if self.fine_tune else None,
            on_epoch=training.on_epoch,
        )

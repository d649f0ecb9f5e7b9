"""Settings of an experiment: data, budget, labeler, representation, student."""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from rknn_jax import trust
from rknn_jax._internal.ranges import (
    AnyEpsilon,
    AnySeed,
    CheckShare,
    Count,
    Delta,
    Seed,
    Share,
    check_number,
)
from rknn_jax.labelers import Labeler
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.representations import Representation
from rknn_jax.representations.spectral import Config as Spectral
from rknn_jax.students.base import StudentSettings
from rknn_jax.students.supervised import Config as Supervised

from .buy import Config as Buy
from .logs import Log

TRAINING = "training"
"""Subfolder of a run's folder in which a labeler saves the training of a network."""


@dataclass(frozen=True)
class Experiment:
    """Settings of a run: labels by private records, a student trained on them, the guarantee.

    Attributes:
      preset: Name of a file of train/presets, whose settings replace the defaults: mnist-fast,
        mnist, svhn, cifar10 or cifar10-end-to-end.
      dataset: Data set: digits, mnist, mnist:half, mnist:train, cifar10, cifar10:pooled,
        image_folder or tfds:<name>.
      data_dir: Folder of the data set; not needed for digits.
      epsilon: Privacy budget of the whole run, split evenly over the rounds; inf means no privacy.
      delta: Probability delta of the composed guarantee; 0 keeps a pure guarantee pure.
      labeler: Labeler and its settings. rknn is reverse k-NN labeling. For comparison, private_knn
        and pate label public records drawn at random, noisy_sgd trains a network on the private
        records, and dpdfd distills one from teachers by generated images. Its epsilon, delta,
        relation, unit, smoothing and folder are those of the run.
      buy: Purchase of true labels of public records from an oracle, to fine-tune noisy_sgd's
        network on images. It replaces the student. The epsilon of near_private's choice comes on
        top of epsilon.
      queries: Number of queries a round. For rknn, defaults to a number that fits records, classes
        and epsilon. For records drawn at random, defaults to one for five public records, 1,000 at
        most. If a network is trained, defaults to all public records.
      rounds: Number of rounds of Algorithm 1.
      representation: Representation and its settings, learned on public data. spectral is the best
        for images in seconds, self_trained in a minute or two. Numbers of classes and of queries
        are those of the run.
      representation_dir: Folder in which simclr, scan and dti save their training and from which
        they resume.
      relation: Neighboring relation of the data sets.
      unit: Privacy unit: a record, or a person with all records, if the data set names the person
        of each record.
      smoothing: Use of similar records: auto borrows votes from similar queries as far as the noise
        requires, and spreads labels between similar public records; none does neither.
      uncertain: Share of the public records that a later round's queries cover.
      check_share: Share of the private records, or persons, that do not vote, but measure how many
        labels are right. Costs no epsilon. auto is the share that `rknn label` takes by default:
        as many as make the measure exact to 3 points, at most 10.5%, and none if that is too few.
        Defaults to 0, as in all tables of papers every record votes.
      student: Students and their settings, or None for the labels alone. `supervised` learns from
        the labels; mixmatch, uda and vat learn from public records without labels too.
      seed: Seed of the split, the clustering and the student.
      noise_seed: Seed of the simulated noise. Defaults to the operating system's entropy.
      log: Program that gets progress and results too, beside `events.jsonl`: tensorboard or mlflow.
        Its package is installed by itself.
      out: Run folder. Defaults to a new one under runs/.
    """

    preset: str | None = None
    dataset: str = "digits"
    data_dir: Path | None = None
    epsilon: AnyEpsilon = 0.1
    delta: Delta = 0.0
    labeler: Labeler[Any] = field(default_factory=ReverseKNN)
    buy: Buy = field(default_factory=Buy)
    queries: Count | None = None
    rounds: Count = 1
    representation: Representation = field(default_factory=Spectral)
    representation_dir: Path | None = None
    relation: Relation = "replace-one"
    unit: Protected = "record"
    smoothing: Literal["auto", "none"] = "auto"
    uncertain: Share = 0.1
    check_share: CheckShare | Literal["auto"] = 0.0
    student: StudentSettings | None = field(default_factory=Supervised)
    seed: Seed = 42
    noise_seed: AnySeed | None = None
    log: Log = "none"
    out: Path | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon <= 0:
            raise ValueError(
                f"Expected epsilon > 0, got epsilon={self.epsilon}; choose a positive privacy "
                "budget."
            )
        if not 0 <= self.delta < 1:
            raise ValueError(
                f"Expected 0 <= delta < 1, got delta={self.delta}; 1e-5 is a common choice, 0 is "
                "pure privacy."
            )
        for name, value in (("queries", self.queries), ("rounds", self.rounds)):
            if value is not None and value < 1:
                raise ValueError(f"Expected {name} >= 1, got {name}={value}; ask one or more.")
        if self.student is None and self.rounds > 1:
            raise ValueError(
                f"Expected a student with rounds={self.rounds}, got student=none; choose one, such "
                "as --student cnn, because a later round asks what it is unsure of."
            )
        self._check_share()
        self._check_parts()

    def _check_share(self) -> None:
        """Refuse a share of records that check if it is out of range, or depends on a private n."""
        if self.check_share != "auto":
            check_number("check_share", self.check_share, CheckShare)
        elif self.relation == "add-remove":
            raise ValueError(
                "Expected a number with relation=add-remove, got check_share=auto; the default "
                "depends on n, which is private then."
            )
        noises = trust.named(self.labeler.trust).noises
        if self.check_share and noises > 1:
            raise ValueError(
                f"Expected labeler.trust of one curator with check_share={self.check_share}, got "
                f"labeler.trust={self.labeler.trust}, under which {noises} parties add noise to "
                "votes, and one to what records check; let all records vote, or trust a curator."
            )

    def _check_parts(self) -> None:
        """Let each part refuse what does not suit it."""
        self.representation.check()
        self.buy.check_labeler(self.labeler)
        self.buy.check_unit(self.unit)
        labeler = self.labeler_of_round()
        if self.queries is not None or not self.representation.asks:
            labeler.check_queries(self.queries)
        if self.student is not None:
            self.student.check(labeler.clusters, self.representation.backbone)

    def labeler_of_round(self, folder: Path | None = None) -> Labeler[Any]:
        """Return the labeler with an even share of the budget.

        A network's training is saved in the run's folder.
        """
        return self.labeler.for_round(
            self.epsilon,
            self.delta,
            self.relation,
            smoothing=self.smoothing,
            num_rounds=self.rounds,
            folder=folder and folder / TRAINING,
            unit=self.unit,
        )


def plain_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's settings, ready for JSON.

    Labeler, representation and student are named, and have their settings beside them. A mechanism
    is spelled out, so that a later default does not change what the settings mean.
    """
    labeler = experiment.labeler
    representation = experiment.representation
    student = experiment.student
    parts: dict[str, Any] = {
        "labeler": labeler.name,
        "labeler_settings": _settings_of_its_own(labeler),
        "trust": labeler.trust,
        "mechanism": labeler.noise,
        "representation": representation.name,
        "representation_settings": _settings_of_its_own(representation),
        "student": "none" if student is None else student.student.model,
        "semi_supervised": "none" if student is None else student.semi_supervised,
        "student_settings": {} if student is None else student.plain(),
    }
    if isinstance(labeler, ReverseKNN):
        parts["labeler_settings"] |= {"mechanism": labeler.noise}
    told: dict[str, Any] = {}
    for one in fields(experiment):
        value = getattr(experiment, one.name)
        if one.name not in parts:
            told[one.name] = str(value) if isinstance(value, Path) else value
    return told | {"buy": asdict(experiment.buy)} | parts


def _settings_of_its_own(part: Labeler[Any] | Representation) -> dict[str, Any]:
    """Return the settings of a labeler or a representation, without those that the run gives it."""
    return {name: value for name, value in asdict(part).items() if name not in part.given}

"""Public prototypes: public rows that are chosen privately, one for each class.

A query gets the class of the prototype of largest cosine. This is DPPL-Public. The utility of a
public row for a class is the sum of the cosines between that row and the private records of the
class. Each cosine is clipped to a public range, which is mapped to [0, 1].

Guarantee: a record adds between 0 and 1 to each utility of its class and nothing to the others.
Utilities are rounded down to multiples of 1/`GRID`. Permute-and-flip with noise of mean t is
monotone, so a record more or less costs 1/t. Replacing a record is one less and one more, at 2/t,
in one class or two. So epsilon is 1/t (add-remove) or 2/t (replace-one), for all classes together.
The records of a person have weights of at most 1 in sum, in all classes. So a person costs no more
than a record: each class costs at most the person's weight there, over t.

The implementation differs from the paper in three ways:

- Permute-and-flip replaces the exponential mechanism. It has the same guarantee and never a larger
  expected error (McKenna & Sheldon, 2020).
- Cosines are taken around the center of the public features. Their range comes from public pairs:
  from the median to the value that a pair exceeds with probability 1/(2|Y|), about half as often as
  two rows share a class. The paper tunes the range.
- There is one prototype for each class. The paper's variant with K prototypes costs more.

All classes choose alike, so a class of few records is not outvoted. A class without records has a
prototype at random.

Reference: Wahdany, Jagielski, Dziedzic & Boenisch, "Differentially Private Prototypes for
Imbalanced Transfer Learning", AAAI 2025.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal.disk import write_arrays
from rknn_jax.labelers import Labeler, _persons
from rknn_jax.labelers._class_sums import class_units
from rknn_jax.labelers._cosines import PublicCosines
from rknn_jax.mechanisms.base import Payer
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.contributions import SIMULATED_GRID, Protected
from rknn_jax.privacy.guarantee import RELATIONS, Event, Guarantee, Relation
from rknn_jax.types import Answers, Array, Encoder, Queries, Records

GRID = 1024
"""Units of a utility of 1."""

BLOCK = 2**24
"""Cosines that are held at a time."""

NEAR = 0.9
"""Probability of a class whose prototype is at the upper end of the range, others at the lower."""


class Utilities(NamedTuple):
    """Utilities of all candidates: private.

    Attributes:
      totals: int64 `[num_classes, s]`, in units.
      encode: Encoder of the run, which is public.
    """

    totals: np.ndarray
    encode: Encoder


@dataclass(frozen=True, eq=False)
class Nearest:
    """Classifier by the prototype of largest cosine.

    Attributes:
      prototypes: Directions of the prototypes, float64 `[num_classes, f]`.
      cosines: Public center and range of cosines.
      encode: Map of images to features.
    """

    prototypes: np.ndarray
    cosines: PublicCosines
    encode: Encoder

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Prototypes by name."""
        return {"prototypes": self.prototypes}

    def predict_proba(self, images: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`.

        Args:
          images: uint8 `[n, height, width, channels]`.
        """
        return self.of_features(self.encode(images))

    def of_features(self, features: Array) -> np.ndarray:
        """Return class probabilities, float32 `[n, num_classes]`, of features `[n, f]`."""
        scores = self.cosines.directions(features) @ self.prototypes.T
        others = max(len(self.prototypes) - 1, 1)
        sharpness = math.log(NEAR / (1 - NEAR) * others) / (self.cosines.high - self.cosines.low)
        return np.asarray(jax.nn.softmax(jnp.asarray(sharpness * scores, jnp.float32)))

    def save(self, folder: Path) -> None:
        """Write `prototypes.npz`: the prototypes, and the center and range of cosines."""
        folder.mkdir(parents=True)
        limits = np.array([self.cosines.low, self.cosines.high])
        public = {"center": self.cosines.center, "range": limits}
        write_arrays(folder / "prototypes.npz", self.params | public, compress=False)


@dataclass(frozen=True)
class PublicPrototypes(Labeler[Utilities]):
    """Nearest public prototype, and its settings.

    Attributes:
      epsilon: Privacy budget of all prototypes; infinity means no noise and no privacy.
      delta: Probability delta, which is not used, because the guarantee is pure.
      relation: Neighboring relation of the data sets.
      unit: Privacy unit: record, or person. A person's records share a weight of 1.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    relation: Relation = "replace-one"
    unit: Protected = "record"

    trains: ClassVar[bool] = True
    telling: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        self.check_unit()
        if self.relation not in RELATIONS:
            raise ValueError(
                f"Expected relation to be one of {RELATIONS}, got relation={self.relation!r}."
            )

    @property
    def noise(self) -> str:
        """Name of the mechanism."""
        return "permute_and_flip"

    @property
    def grid(self) -> int:
        """Units of weight of a record, or of a person."""
        return 1 if self.unit == "record" else SIMULATED_GRID

    @property
    def sensitivity(self) -> int:
        """Units by which a neighbor moves utilities up, and down, together."""
        return GRID * self.grid * (2 if self.relation == "replace-one" else 1)

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee, which depends on no number."""
        del num_units, num_queries, num_classes
        event = Event("pure", self.epsilon)
        return Guarantee(self.epsilon, 0.0, self.relation, "central", (event,), unit=self.unit)

    def contribute(
        self, key: jax.Array, private: Records, encode: Encoder, queries: Queries, num_classes: int
    ) -> Utilities:
        """Sum the clipped cosines between private records and public rows, class by class.

        Args:
          key: Random key, which is not used, because nothing is drawn.
          private: Private records.
          encode: Encoder of the queries' features.
          queries: Public queries, each of which is a candidate for each class.
          num_classes: Number of classes |Y|.
        """
        del key
        cosines = _cosines(queries, num_classes)
        candidates = cosines.directions(queries.features)
        rows = cosines.directions(encode(private.images))
        labels = np.asarray(private.labels)
        person = _persons.numbered(private) if self.unit == "person" else None
        units = class_units(labels, person, num_classes, self.grid)
        totals = np.zeros((num_classes, len(candidates)), np.int64)
        size = max(1, BLOCK // len(candidates))
        for label in range(num_classes):
            mine = np.flatnonzero(labels == label)
            for block in np.split(mine, range(size, len(mine), size)):
                shares = cosines.clip(rows[block] @ candidates.T)
                totals[label] += units[block] @ np.floor(shares * GRID).astype(np.int64)
        return Utilities(totals, encode)

    def release(
        self,
        key: jax.Array,
        contribution: Utilities,
        queries: Queries,
        num_classes: int,
        predicted: np.ndarray | None = None,
    ) -> Answers:
        """Choose the prototypes, in simulation, and classify the queries.

        Args:
          key: Random key of the noise, which is consumed.
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          num_classes: Number of classes |Y|.
          predicted: Probabilities of a student, which are not used. Defaults to none.
        """
        del predicted
        totals = contribution.totals
        draws = np.asarray(jax.random.exponential(key, totals.shape), np.float64)
        chosen = np.argmax(totals + self.sensitivity / self.epsilon * draws, axis=1)
        guarantee = self.guarantee_of(0, totals.shape[1], num_classes)
        return _answer(chosen, contribution.encode, queries, guarantee)

    def release_prototypes(
        self, contribution: Utilities, queries: Queries, ledger: Payer, purpose: str
    ) -> Answers:
        """Charge a ledger, choose the prototypes by exact draws, and classify the queries.

        The draws come from the operating system's entropy.

        Args:
          contribution: Result of `contribute`.
          queries: Public queries, as in `contribute`.
          ledger: Budget of the private records.
          purpose: A few words for the ledger.

        Raises:
          LedgerError: If the budget does not allow the charge; nothing is drawn then.
          ValueError: If epsilon is infinite.
        """
        scale = exact_noise.safe_scale(self.sensitivity, self.epsilon)
        guarantee = replace(self.guarantee_of(0, 0, 0), sampler="release")
        ledger.charge(guarantee, purpose)
        chosen = exact_noise.permute_and_flip(contribution.totals, scale)
        return _answer(chosen, contribution.encode, queries, guarantee)


def _cosines(queries: Queries, num_classes: int) -> PublicCosines:
    return PublicCosines.of(queries, 0.5, 1 - 1 / (2 * num_classes))


def _answer(chosen: np.ndarray, encode: Encoder, queries: Queries, guarantee: Guarantee) -> Answers:
    """Classify the queries by the prototypes of the classes: post-processing.

    Args:
      chosen: Number of the query that is each class's prototype, int `[num_classes]`.
      encode: Encoder of the queries' features.
      queries: Public queries `[s, f]`.
      guarantee: Guarantee of the choice.
    """
    cosines = _cosines(queries, len(chosen))
    prototypes = cosines.directions(np.asarray(queries.features)[chosen])
    nearest = Nearest(prototypes, cosines, encode)
    return Answers.predicted(nearest.of_features(queries.features), guarantee, nearest)


EXAMPLES = (
    PublicPrototypes(epsilon=0.02),
    PublicPrototypes(epsilon=0.03, relation="add-remove"),
)

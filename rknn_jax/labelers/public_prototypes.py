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

**A sum of clients** is seen as a whole, with Gaussian noise on each utility. Half a unit is taken
from each utility then, so that a record adds a vector of s numbers of at most 1/2 to its class. A
record in its place moves s numbers by at most 1 in one class, or two times s by at most 1/2: by at
most √s in L2 norm. Sums over any records that are scaled to the norm √s/2 differ by no more. All
utilities of a class are lower by the same, so its largest one stays. The noise grows with √s, so
few candidates are better there.

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
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rknn_jax._internal.disk import write_arrays
from rknn_jax.labelers._cosines import PublicCosines
from rknn_jax.labelers._one_sum import Noise, OneSumLabeler
from rknn_jax.labelers._sum_shares import Reach
from rknn_jax.labelers._tally import ClassTally, Tally
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.types import Answers, Array, Encoder, Queries

GRID = 1024
"""Units of a utility of 1."""

NEAR = 0.9
"""Probability of a class whose prototype is at the upper end of the range, others at the lower."""


@dataclass(frozen=True, eq=False)
class ClassUtilities(ClassTally):
    """Public side of the utilities: what a record adds to those of its class.

    A part is the record's features and its class as the last column, float32.

    Attributes:
      cosines: Public center and range of cosines.
      candidates: Directions of the public rows, float64 `[s, f]`.
      middle: Units that are taken from each utility of a record. Defaults to 0.
    """

    cosines: PublicCosines
    candidates: np.ndarray
    middle: int = 0

    @property
    def width(self) -> int:
        """Number of features f."""
        return len(self.cosines.center)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(num_classes, s)` of the utilities."""
        return self.num_classes, len(self.candidates)

    def parts(self, points: Array, ids: np.ndarray) -> np.ndarray:
        """Return the parts of records; see `Tally.parts`."""
        with np.errstate(over="ignore", invalid="ignore"):  # such a row has no direction
            rows = np.asarray(points).astype(np.float32)
        return np.hstack([rows, np.asarray(ids, np.float32)[:, None]])

    def fits(self, totals: np.ndarray, num_records: int) -> bool:
        """Return whether so many records can have these utilities; see `Tally.fits`."""
        most = totals.max(axis=1, initial=0).sum()
        return bool(totals.min(initial=0) >= 0 and most <= num_records * GRID)

    def terms(self, parts: np.ndarray) -> np.ndarray:
        """Return the utilities of all candidates for records; see `ClassTally.terms`."""
        cosines = self.cosines.directions(parts[:, :-1]) @ self.candidates.T
        terms: np.ndarray = np.floor(self.cosines.clip(cosines) * GRID).astype(np.int64)
        return terms - self.middle

    def bounds(self, terms: np.ndarray) -> np.ndarray:
        """Return which utilities are in their range; see `ClassTally.bounds`."""
        within = (terms >= -self.middle) & (terms <= GRID - self.middle)
        return np.asarray(within.all(axis=1))


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
class PublicPrototypes(OneSumLabeler):
    """Nearest public prototype, and its settings: those of `OneSumLabeler`.

    Epsilon is for all prototypes together. Delta is not used, because the guarantee is pure.
    """

    telling: ClassVar[Mapping[str, Any]] = {}
    exact_mechanisms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"permute_and_flip": {}}
    candidates: ClassVar[bool] = True

    @property
    def noise(self) -> str:
        """Name of the mechanism."""
        return "permute_and_flip"

    @property
    def sensitivity(self) -> int:
        """Units by which a neighbor moves utilities up, and down, together."""
        return GRID * self.grid * (2 if self.relation == "replace-one" else 1)

    def guarantee_of(self, num_units: int, num_queries: int, num_classes: int) -> Guarantee:
        """Return the guarantee, which depends on no number."""
        del num_units, num_queries, num_classes
        event = Pure(self.epsilon)
        return Guarantee(
            self.epsilon, 0.0, self.relation, trust="central", events=(event,), unit=self.unit
        )

    def tally(self, queries: Queries, num_classes: int) -> ClassUtilities:
        """Return the public side of the utilities of all queries; see `OneSumLabeler.tally`."""
        cosines = _cosines(queries, num_classes)
        candidates = cosines.directions(queries.features)
        return ClassUtilities(
            num_classes, self.unit, self.grid, cosines=cosines, candidates=candidates
        )

    def aggregate_tally(self, queries: Queries, num_classes: int) -> ClassUtilities:
        """Return the public side of utilities around 0; see `OneSumLabeler.aggregate_tally`."""
        return replace(self.tally(queries, num_classes), middle=GRID // 2)

    def aggregate_reach(self, tally: Tally) -> Reach:
        """Return √s/2 and √s, in units, by the proof above; see `OneSumLabeler`."""
        change = GRID * self.grid * math.sqrt(tally.shape[1])
        return Reach(change / 2, change)

    def drawn(self, tally: Tally) -> tuple[int, ...]:
        """Return the shape of the choice, `(num_classes,)`."""
        return tally.shape[:1]

    def simulated(self, key: jax.Array) -> Noise:
        """Return a simulated choice of one query for each class."""

        def choose(totals: np.ndarray) -> np.ndarray:
            draws = np.asarray(jax.random.exponential(key, totals.shape), np.float64)
            chosen: np.ndarray = np.argmax(totals + self.sensitivity / self.epsilon * draws, axis=1)
            return chosen

        return Noise(self.guarantee_of(0, 0, 0), self.sensitivity / self.epsilon, choose)

    def exact_noise(self) -> Noise:
        """Return an exact choice of one query for each class."""
        scale = exact_noise.safe_scale(self.sensitivity, self.epsilon)
        guarantee = replace(self.guarantee_of(0, 0, 0), sampler="release")

        def choose(totals: np.ndarray) -> np.ndarray:
            return exact_noise.permute_and_flip(totals, scale).astype(np.int64)

        return Noise(guarantee, scale, choose)

    def read(
        self,
        noisy: np.ndarray,
        stddev: float,
        encode: Encoder,
        queries: Queries,
        guarantee: Guarantee,
    ) -> Answers:
        """Classify the queries by the chosen prototypes; see `OneSumLabeler.read`."""
        del stddev
        cosines = _cosines(queries, len(noisy))
        prototypes = cosines.directions(np.asarray(queries.features)[noisy])
        nearest = Nearest(prototypes, cosines, encode)
        return Answers.predicted(nearest.of_features(queries.features), guarantee, nearest)

    def of_aggregate(self, noisy: np.ndarray) -> np.ndarray:
        """Return the query of the largest noisy utility for each class; see `OneSumLabeler`."""
        best: np.ndarray = noisy.argmax(axis=1)
        return best


def _cosines(queries: Queries, num_classes: int) -> PublicCosines:
    return PublicCosines.of(queries, 0.5, 1 - 1 / (2 * num_classes))


EXAMPLES = (
    PublicPrototypes(epsilon=0.02),
    PublicPrototypes(epsilon=0.03, relation="add-remove"),
)

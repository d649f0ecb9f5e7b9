"""Labels measured by private records that did not vote.

This is not `rknn check`, which tells an owner of records that cannot be used
(`release/usability.py`).

A few records, whose roles are coins (`privacy.roles`), do not vote. Once the public rows have
labels, they check them. Each compares its own class with what the labels say at its place
(`rknn_jax.interpolation`). There are three roles, and each has one mechanism that spends all of
epsilon:

- `choose`: which of several labelings agrees with most of them, by permute-and-flip. A record
  changes the count of each labeling by 1 at most, however many there are.
- `measure`: how many agree with the chosen labeling, by discrete Laplace noise.
- `recall`: how many agree, and how many do not, in each class. This is a bucketized sum of two
  buckets a class, by discrete Laplace noise.

Those who measure have not chosen, so that the choice does not flatter the measure. What is measured
is agreement with private labels on the distribution of the private records. Where private labels
are wrong, or private features differ from public ones, that is not the share of public rows that
are right.

A record that cannot be used counts as one that does not agree if the number n of records is public.
Under add-remove, it does not count.

Without a curator, nobody may see whether a record agrees. Then each record that measures sends one
randomized bit (`rknn_jax.randomized_bits`).

Reference: McKenna & Sheldon, "Permute-and-Flip", 2020. `privacy.roles` proves that this costs no
epsilon beside that of the votes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from rknn_jax import interpolation
from rknn_jax.answers.measured import Measured, interval
from rknn_jax.check_noise import ExactNoise, Noise
from rknn_jax.interpolation import Interpolator
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.neighbors import Metric
from rknn_jax.privacy import contributions, exact_noise
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.privacy.roles import CHOOSE, MEASURE, RECALL, Roles

AIM = 0.03
"""Half of an interval's width that is fine enough, so that no more records check."""

WORST = 0.10
"""Half of an interval's width beyond which nothing is measured."""

MOST_MEASURE = 0.05
"""Largest share of the records that measures by default. Half as many choose."""

MOST_RECALL = 0.03
"""Largest share of the records that measures the recall of classes by default."""

AIM_OF_A_CLASS = 0.15
"""Half of the width of a mean class's interval from which on its recall is worth its records."""

TAIL = 3.0
"""Scales of Laplace noise within which 95% of it lies, -ln(0.05)."""

FINE = 1000
"""Units of a record in a choice in which classes have weights."""


class Shares(NamedTuple):
    """Shares of the records that check, public.

    Attributes:
      choose: Share that chooses among labelings.
      measure: Share that measures the chosen one.
      recall: Share that measures the recall of each class.
    """

    choose: float
    measure: float
    recall: float


NOBODY = Shares(0.0, 0.0, 0.0)
"""Shares if nothing is measured."""


def shares(
    num_units: int, epsilon: float, num_classes: int, *, several: bool, local: bool = False
) -> Shares:
    """Return the shares of the records that check, a rule on public quantities.

    The interval is to be 3 points to either side, with at most 5% of the records. If it might be
    wider than 10 points then, even for half of the labels right, nobody checks. How many records
    measure is a matter of coins, so two standard deviations fewer have to be enough.

    Args:
      num_units: Number n of records, or of persons.
      epsilon: Epsilon of the check.
      num_classes: Number of classes |Y|; 0 for sets of labels, whose recall is not measured.
      several: True if there are several labelings to choose from.
      local: True if each record sends one randomized bit. Defaults to False.
    """
    aim = needed_bits(AIM, epsilon) if local else needed(AIM, epsilon)
    measure = min(aim, MOST_MEASURE * num_units)
    if num_units <= 0 or num_units < fewest_units(epsilon, local=local):
        return NOBODY
    # A class has two noisy sums of twice the scale.
    recall = num_classes * needed(AIM_OF_A_CLASS, epsilon / 2)
    return Shares(
        measure / 2 / num_units if several else 0.0,
        measure / num_units,
        recall / num_units if 0 < recall <= MOST_RECALL * num_units else 0.0,
    )


def fewest_units(epsilon: float, *, local: bool = False) -> float:
    """Return the number of records, or persons, from which on some of them check by default.

    Args:
      epsilon: Epsilon of the check.
      local: True if each record sends one randomized bit. Defaults to False.
    """
    enough = needed_bits(WORST, epsilon) if local else needed(WORST, epsilon)
    # M - 2√M is enough.
    return (1 + math.sqrt(1 + enough)) ** 2 / MOST_MEASURE


def parted(share: float, num_classes: int, *, several: bool) -> Shares:
    """Return the shares of a given share of the records in all: half of it measures.

    Args:
      share: Share of the records that checks.
      num_classes: Number of classes |Y|; 0 for sets of labels.
      several: True if there are several labelings to choose from.
    """
    # A quarter chooses and a quarter is for recall where they are wanted; the rest measures.
    choose = share / 4 if several else 0.0
    recall = share / 4 if num_classes else 0.0
    return Shares(choose, share - choose - recall, recall)


def needed(half_width: float, epsilon: float) -> float:
    """Return the number of records that measure an even share to this half of an interval's width.

    Chance and noise add up in squares: h² = 1.96²/(4M) + (3/(epsilon·M))².

    Args:
      half_width: Half of the width of the interval h.
      epsilon: Epsilon of the measure.
    """
    # Root of h²M² - (1.96²/4)M - (3/epsilon)² = 0 in M, with 1.96² / 4 = 0.96.
    chance = 0.96
    noise = TAIL / epsilon
    squared = half_width**2
    return (chance + math.sqrt(chance**2 + 4 * squared * noise**2)) / (2 * squared)


def needed_bits(half_width: float, epsilon: float) -> float:
    """Return the number of randomized bits that measure an even share so finely; see `needed`.

    h² = 1.96²/(4M·tanh²(epsilon/2)): debiasing divides the spread of the bits by tanh(epsilon/2).

    Args:
      half_width: Half of the width of the interval h.
      epsilon: Epsilon of a bit.
    """
    # A bit is right with probability 1/2 + tanh(epsilon/2)/2.
    return 0.96 / (half_width * math.tanh(epsilon / 2)) ** 2


class Checks(NamedTuple):
    """Records that check: private.

    Attributes:
      role: Role of each record, int8 `[c]`.
      points: Its features, float32 `[c, f]`; zeros if it cannot be used.
      ids: Its class, int32 `[c]`, or its ballot `[c, r + 1]`.
      units: Its weight, int64 `[c]`, of which a unit of privacy has at most `Checkers.grid`.
      sizes: Number of records, or of persons, with each role, int64 `[4]`, usable or not.
    """

    role: np.ndarray
    points: np.ndarray
    ids: np.ndarray
    units: np.ndarray
    sizes: np.ndarray


class Drawn(NamedTuple):
    """Released numbers of a check.

    Attributes:
      choice: Number of the chosen labeling.
      size: Number of records that measured, if it is public, or -1.
      right: Noisy weight of those that agree.
      wrong: Noisy weight of those that do not; not drawn if their number is public.
      recalled: Noisy weight of those of each class that agree, int64 `[num_classes]`; empty if
        the recall is not measured.
      missed: Noisy weight of those of each class that do not, int64 `[num_classes]`.
    """

    choice: int
    size: int
    right: int
    wrong: int
    recalled: np.ndarray
    missed: np.ndarray

    def array(self) -> np.ndarray:
        """Return the numbers as one int64 array, which `of` reads."""
        first = np.array([self.choice, self.size, self.right, self.wrong], np.int64)
        return np.concatenate([first, self.recalled, self.missed])

    @classmethod
    def of(cls, array: np.ndarray) -> Self:
        """Return what `array` made."""
        choice, size, right, wrong = (int(value) for value in array[:4])
        recalled, missed = array[4:].reshape(2, -1)
        return cls(choice, size, right, wrong=wrong, recalled=recalled, missed=missed)


def released(unit: str, *, by_class: bool, chooses: bool = False) -> str:
    """Return what a check releases, in words for a statement.

    Args:
      unit: Privacy unit.
      by_class: Whether records measure each class.
      chooses: Whether records choose among labelings. Defaults to False.
    """
    choice = "the choice among ways to read it, and " if chooses else ""
    whole = ", in all and of each class" if by_class else ""
    return (
        f"{choice}the noisy numbers of private {unit}s that agree with the labels and that do not"
        f"{whole}, by private {unit}s that did not vote"
    )


@dataclass(frozen=True)
class Checkers:
    """Check of a release, before anything private is read. It is public but for the roles' key.

    Attributes:
      roles: Roles of the records.
      rows: Features of the public rows, float32 `[m, f]`.
      metric: Distance between features.
      num_classes: Number of classes |Y|.
      epsilon: Epsilon of each of the three mechanisms.
      relation: Neighboring relation.
      unit: Privacy unit: record, or person.
    """

    roles: Roles
    rows: np.ndarray
    metric: Metric
    num_classes: int
    epsilon: float
    relation: Relation
    unit: Protected

    @property
    def grid(self) -> int:
        """Units of weight of a record, or of a person."""
        return contributions.GRID if self.unit == "person" else 1

    @property
    def shows_size(self) -> bool:
        """True if the number of records that measure does not depend on what they hold."""
        return self.relation == "replace-one"

    @property
    def moved(self) -> int:
        """Largest change of a bucketized sum's L1 norm between neighbors, in units."""
        return self.grid * (2 if self.relation == "replace-one" else 1)

    @cached_property
    def _between(self) -> Interpolator:
        return Interpolator(self.rows, self.metric)

    def memory(self, num_units: int) -> int:
        """Return the bytes that the features of those who check and the labels between rows take.

        Args:
          num_units: Number of records, or of persons of one record.
        """
        features = 4 * self.rows.shape[1] * math.ceil(num_units * (1 - self.roles.vote))
        return int(features + interpolation.memory(len(self.rows), self.num_classes))

    def agrees(self, checks: Checks, labeling: Labeling) -> np.ndarray:
        """Return whether a labeling says the class, or the set, of each record, bool `[c]`.

        The result of a record depends on it, on public rows and on released labels alone.

        Args:
          checks: Records that check.
          labeling: Labeling of the public rows.
        """
        return self._between.agreement(
            checks.points, checks.ids, labeling.probabilities, smooth=labeling.smooth
        )

    def draw(
        self, checks: Checks, labelings: Sequence[Labeling], noise: Noise = ExactNoise()
    ) -> Drawn:
        """Choose among labelings and measure the chosen one. A ledger was charged before.

        Guarantee: epsilon-DP for the records that check, whatever the labelings, which depend on
        others alone; see `privacy.roles`.

        Args:
          checks: Records that check.
          labelings: Labelings of the public rows; the first is the usual one.
          noise: Draws. Defaults to exact ones.
        """
        # A count moves up for one labeling and down for another, unless records only come or go.
        choice = 0
        if len(labelings) > 1 and self.roles.choose:  # few records never pass the usual one's lead
            choice = self._choice(checks, labelings, noise)
        # Choosing and measuring are by different records, so that the measure of the choice is
        # unbiased, and each record meets one mechanism: parallel composition, epsilon in all.
        agree = self.agrees(checks, labelings[choice])
        scale = exact_noise.safe_scale(self.grid, self.epsilon)
        # The weight of those who do not agree is the rest, if their number is public.
        sums = [self._sum(checks, MEASURE, agree)]
        if not self.shows_size:
            sums.append(self._sum(checks, MEASURE, ~agree))
        right, *wrong = noise.laplace(np.array(sums, np.int64), scale).tolist()
        recalled = missed = np.zeros(0, np.int64)
        # A replaced record may leave one class and join another: two cells move, twice the scale.
        if self.roles.recall:
            scale = exact_noise.safe_scale(self.moved, self.epsilon)
            both = np.stack([self._by_class(checks, agree), self._by_class(checks, ~agree)])
            recalled, missed = noise.laplace(both, scale)
        size = int(checks.sizes[MEASURE]) if self.shows_size else -1
        return Drawn(
            choice, size, right, wrong=wrong[0] if wrong else 0, recalled=recalled, missed=missed
        )

    def _choice(self, checks: Checks, labelings: Sequence[Labeling], noise: Noise) -> int:
        """Return the number of the labeling that agrees with most of those who choose.

        The usual one has a lead, so that neither noise nor chance chooses another one.
        """
        ids = checks.ids if checks.ids.ndim == 1 else checks.ids[:, 0]  # there may be none
        classes = np.maximum(ids, 0)
        weights = labelings[0].weights
        fine = np.ones(self.num_classes) if weights is None else np.floor(FINE * weights)
        most = self.grid * (1 if weights is None else FINE)
        units = checks.units * fine.astype(np.int64)[classes]
        # Records with other roles add nothing, whatever they hold.
        units[checks.role != CHOOSE] = 0
        counts = np.array([units[self.agrees(checks, one)].sum() for one in labelings], np.int64)
        step = 2 if self.relation == "replace-one" else 1
        scale = exact_noise.safe_scale(most * step, self.epsilon)
        # Their number is public under replace-one alone.
        chance = math.sqrt(checks.sizes[CHOOSE]) / 2 if self.shows_size else 0.0
        # A public constant moves the counts of neighbors alike, and no sensitivity.
        counts[0] += min(math.ceil(TAIL * scale + chance * most), 2**62)  # of int64
        return noise.winner(counts, scale)

    def _sum(self, checks: Checks, role: int, counted: np.ndarray) -> int:
        """Return the weight of the records with a role that are counted."""
        return int(checks.units[(checks.role == role) & counted].sum())

    def _by_class(self, checks: Checks, counted: np.ndarray) -> np.ndarray:
        """Return the weight of the records that are counted, int64 `[num_classes]`."""
        mine = (checks.role == RECALL) & counted
        sums = np.zeros(self.num_classes, np.int64)
        np.add.at(sums, checks.ids[mine], checks.units[mine])
        return sums

    def measured(
        self, drawn: Drawn, names: Sequence[str], counts: np.ndarray | None = None
    ) -> Measured | None:
        """Return what the labels are worth: post-processing of released numbers.

        Args:
          drawn: Result of `draw`.
          names: Names of the labelings.
          counts: Noisy counts `[s, num_classes]`, which tell the share of the most frequent class.
            Defaults to none.

        Returns:
          The measure; None if no record measured.
        """
        scale = exact_noise.safe_scale(self.grid, self.epsilon) / self.grid
        right = drawn.right / self.grid
        wrong = drawn.size - right if self.shows_size else drawn.wrong / self.grid
        if right + wrong < 1:
            return None
        # Noise of the sums and chance of who measures are in the interval together.
        found = interval(right, wrong, scale, known=self.shows_size)
        wide = exact_noise.safe_scale(self.moved, self.epsilon) / self.grid
        recall = tuple(
            interval(float(one), float(other), wide, known=False)
            for one, other in zip(drawn.recalled / self.grid, drawn.missed / self.grid, strict=True)
        )
        totals = drawn.recalled + drawn.missed if len(recall) else counts
        checkers, labeling = round(right + wrong), names[drawn.choice]
        return Measured(*found, checkers, labeling, recall, _largest_share(totals), unit=self.unit)


def _largest_share(counts: np.ndarray | None) -> float | None:
    """Return the share of the most frequent class by noisy counts `[..., num_classes]`, or None."""
    if counts is None or counts.sum() <= 0:
        return None
    totals = np.maximum(counts.reshape(-1, counts.shape[-1]).sum(axis=0), 0)
    return float(totals.max() / totals.sum())

"""Labels measured by private records that did not vote.

A few records, whose roles are coins (`privacy.roles`), do not vote. Once the public rows have
labels, they check them. Each compares its own class with the class that the public rows near it
got. There are three roles, and each has one mechanism that spends all of epsilon:

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
randomized bit (`randomized`), and `interval_of_bits` reads them.

Reference: McKenna & Sheldon, "Permute-and-Flip", 2020. `privacy.roles` proves that this costs no
epsilon beside that of the votes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import jax
import numpy as np
from scipy.stats import beta, binom

from rknn_jax.answers.concerns import Concern
from rknn_jax.label_sets import HALF
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.neighbors import Metric, nearest
from rknn_jax.privacy import contributions, exact_noise
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.privacy.roles import CHOOSE, MEASURE, RECALL, Roles

NEAR = 5
"""Public rows near a record, whose mean probabilities tell the class that it checks.

One row alone would count the distance between rows as an error of the labels. If all rows of a
query have its label, one is enough, and the mean over several queries would hide their errors.
"""

CONFIDENCE = 0.95
"""Confidence of an interval."""

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

LOW = 0.7
"""Share of right labels below which there is a warning, if the interval lies below it."""

LOW_RECALL = 0.5
"""Recall of a class below which there is a warning, if the interval lies below it."""

MOST_NAMES = 3
"""Most classes that a warning names."""

TAIL = 3.0
"""Scales of Laplace noise within which 95% of it lies, -ln(0.05)."""

QUANTILES = 500
"""Values of the noise over which an interval takes the mean."""

AT_ONCE = 2**22
"""Probabilities near checking records that are held at a time."""


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

    The interval is to be 3 points to either side, with at most 5% of the records. If it would be
    wider than 10 points then, even for half of the labels right, nobody checks.

    Args:
      num_units: Number n of records, or of persons.
      epsilon: Epsilon of the check.
      num_classes: Number of classes |Y|; 0 for sets of labels, whose recall is not measured.
      several: True if there are several labelings to choose from.
      local: True if each record sends one randomized bit. Defaults to False.
    """
    enough = needed_bits if local else needed
    measure = min(enough(AIM, epsilon), MOST_MEASURE * num_units)
    if num_units <= 0 or measure < enough(WORST, epsilon):
        return NOBODY
    # A class has two noisy sums of twice the scale.
    recall = num_classes * needed(AIM_OF_A_CLASS, epsilon / 2)
    return Shares(
        measure / 2 / num_units if several else 0.0,
        measure / num_units,
        recall / num_units if 0 < recall <= MOST_RECALL * num_units else 0.0,
    )


def parted(share: float, num_classes: int, *, several: bool) -> Shares:
    """Return the shares of a given share of the records in all: half of it measures.

    Args:
      share: Share of the records that checks.
      num_classes: Number of classes |Y|; 0 for sets of labels.
      several: True if there are several labelings to choose from.
    """
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
    return 0.96 / (half_width * math.tanh(epsilon / 2)) ** 2


class Checks(NamedTuple):
    """Records that check: private.

    Attributes:
      role: Role of each record, int8 `[c]`.
      near: Public rows near it, int32 `[c, NEAR]`.
      ids: Its class, int32 `[c]`, or its ballot `[c, r + 1]`.
      units: Its weight, int64 `[c]`, of which a unit of privacy has at most `Checkers.grid`.
      sizes: Number of records, or of persons, with each role, int64 `[4]`, usable or not.
    """

    role: np.ndarray
    near: np.ndarray
    ids: np.ndarray
    units: np.ndarray
    sizes: np.ndarray


class Noise(Protocol):
    """Draws of the mechanisms."""

    def winner(self, counts: np.ndarray, scale: float) -> int:
        """Return the place of the largest of counts with exponential noise, int64 `[c]`."""

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        """Return counts with discrete Laplace noise, int64."""


class ExactNoise:
    """Exact noise of the operating system's entropy, for a release."""

    def winner(self, counts: np.ndarray, scale: float) -> int:
        """Return the winner of permute-and-flip."""
        return int(exact_noise.permute_and_flip(counts[None], scale)[0])

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        """Return counts with noise; see `exact_noise.discrete_laplace`."""
        return exact_noise.discrete_laplace(counts, scale)


@dataclass
class SimulatedNoise:
    """Noise of a simulation.

    Attributes:
      key: Random key; a part of it is consumed by each draw.
    """

    key: jax.Array

    def winner(self, counts: np.ndarray, scale: float) -> int:
        """Return the winner of permute-and-flip."""
        return int(np.argmax(counts + scale * self._exponential(len(counts))))

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        """Return counts with noise, the difference of two geometric numbers."""
        up, down = np.floor(scale * self._exponential(2 * counts.size)).reshape(2, *counts.shape)
        noisy: np.ndarray = counts + (up - down).astype(np.int64)
        return noisy

    def _exponential(self, count: int) -> np.ndarray:
        self.key, own = jax.random.split(self.key)
        return np.asarray(jax.random.exponential(own, (count,)), np.float64)


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
        return cls(choice, size, right, wrong, recalled, missed)


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
    def num_near(self) -> int:
        """Number of public rows near a record that tell its class."""
        return min(NEAR, len(self.rows))

    @property
    def shows_size(self) -> bool:
        """True if the number of records that measure does not depend on what they hold."""
        return self.relation == "replace-one"

    @property
    def moved(self) -> int:
        """Largest change of a bucketized sum's L1 norm between neighbors, in units."""
        return self.grid * (2 if self.relation == "replace-one" else 1)

    def near(self, points: np.ndarray) -> np.ndarray:
        """Return the public rows near records, int32 `[c, NEAR]`.

        The result of a record depends on it and on public rows alone.

        Args:
          points: Finite features, float32 `[c, f]`.
        """
        return np.asarray(nearest(points, self.rows, self.num_near, metric=self.metric), np.int32)

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
        if len(labelings) > 1 and self.roles.choose:
            counts = [self._sum(checks, CHOOSE, agrees(checks, one)) for one in labelings]
            scale = exact_noise.safe_scale(self.moved, self.epsilon)
            choice = noise.winner(np.array(counts, np.int64), scale)
        agree = agrees(checks, labelings[choice])
        scale = exact_noise.safe_scale(self.grid, self.epsilon)
        sums = [self._sum(checks, MEASURE, agree)]
        if not self.shows_size:
            sums.append(self._sum(checks, MEASURE, ~agree))
        right, *wrong = noise.laplace(np.array(sums, np.int64), scale).tolist()
        recalled = missed = np.zeros(0, np.int64)
        if self.roles.recall:
            scale = exact_noise.safe_scale(self.moved, self.epsilon)
            both = np.stack([self._by_class(checks, agree), self._by_class(checks, ~agree)])
            recalled, missed = noise.laplace(both, scale)
        size = int(checks.sizes[MEASURE]) if self.shows_size else -1
        return Drawn(choice, size, right, wrong[0] if wrong else 0, recalled, missed)

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
    ) -> "Measured | None":
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
        found = interval(right, wrong, scale, known=self.shows_size)
        wide = exact_noise.safe_scale(self.moved, self.epsilon) / self.grid
        recall = tuple(
            interval(float(one), float(other), wide, known=False)
            for one, other in zip(drawn.recalled / self.grid, drawn.missed / self.grid, strict=True)
        )
        totals = drawn.recalled + drawn.missed if len(recall) else counts
        return Measured(
            *found, round(right + wrong), names[drawn.choice], recall, _largest_share(totals)
        )


def _largest_share(counts: np.ndarray | None) -> float | None:
    """Return the share of the most frequent class by noisy counts `[..., num_classes]`, or None."""
    if counts is None or counts.sum() <= 0:
        return None
    totals = np.maximum(counts.reshape(-1, counts.shape[-1]).sum(axis=0), 0)
    return float(totals.max() / totals.sum())


def agrees(checks: Checks, labeling: Labeling) -> np.ndarray:
    """Return whether the public rows near each record got its class, or its set, bool `[c]`.

    Args:
      checks: Records that check.
      labeling: Labeling of the public rows.
    """
    probabilities = labeling.probabilities
    near = checks.near if labeling.smooth else checks.near[:, :1]
    size = max(1, AT_ONCE // max(1, near.shape[1] * probabilities.shape[1]))
    found = np.zeros(len(near), bool)
    for first in range(0, len(found), size):
        block = slice(first, first + size)
        mean = probabilities[near[block]].mean(axis=1)
        ids = checks.ids[block]
        if ids.ndim == 1:
            found[block] = mean.argmax(axis=1) == ids
            continue
        named = (ids[:, :-1, None] == np.arange(mean.shape[1])).any(axis=1)
        found[block] = ((mean >= HALF) == named).all(axis=1)
    return found


class Interval(NamedTuple):
    """Measured share.

    Attributes:
      right: Share.
      low: Lower end of the interval.
      high: Upper end.
    """

    right: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """Agreement of the labels with private records that did not vote.

    Attributes:
      right: Share of the records whose class the public rows near them got.
      low: Lower end of its 95% interval.
      high: Upper end.
      checkers: Number of records, or of persons, that measured it.
      labeling: Name of the chosen labeling.
      recall: Share of the records of each class that agree; empty if it was not measured.
      majority: Share of the most frequent class among the private records; None if unknown.
    """

    right: float
    low: float
    high: float
    checkers: int
    labeling: str
    recall: tuple[Interval, ...]
    majority: float | None

    @property
    def share(self) -> Interval:
        """Share with its interval."""
        return Interval(self.right, self.low, self.high)

    @property
    def meaning(self) -> str:
        """Words for what the share is of."""
        return (
            f"of {self.checkers:,} private records that did not vote agree with the labels near "
            "them, with 95% confidence"
        )

    def __str__(self) -> str:
        low, high = round(100 * self.low), round(100 * self.high)
        return (
            f"Measured on {self.checkers:,} private records that did not vote: {self.right:.0%} "
            f"({low} to {high}) agree with the labels near them"
        )

    def concerns(self, names: Sequence[str]) -> list[Concern]:
        """Return reasons to doubt the labels, by what was measured.

        If the true share is at the limit, each fires in at most 2.5% of the releases.

        Args:
          names: Names of the classes.
        """
        found = []
        if self.high < LOW:
            sentence = f"at most {self.high:.0%} of the private records agree with the labels"
            remedy = (
                "use a larger --epsilon, embeddings of a better model, or public rows that are "
                "more like the private ones; wrong private labels count against it, too"
            )
            found.append(Concern("low_measure", self.right, sentence, remedy))
        if self.majority is not None and self.low <= self.majority:
            sentence = (
                f"the labels may be no better than the most frequent class alone, which "
                f"{self.majority:.0%} of the private records have"
            )
            remedy = "rank the rows by the released probability of a rare class"
            found.append(Concern("no_better", self.right, sentence, remedy))
        missed = [i for i, one in enumerate(self.recall) if one.high < LOW_RECALL]
        if missed:
            worst = min(missed, key=lambda i: self.recall[i].right)
            shown = ", ".join(names[i] for i in missed[:MOST_NAMES])
            rest = f" and {len(missed) - MOST_NAMES} more" if len(missed) > MOST_NAMES else ""
            sentence = (
                f"less than half of the private records of {shown}{rest} agree with the labels; of "
                f"{names[worst]}, {self.recall[worst].right:.0%}"
            )
            remedy = "rank the rows by the released probability of the class, or ask more --queries"
            found.append(Concern("low_recall", len(missed), sentence, remedy))
        return found

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, which `of` reads."""
        return vars(self) | {"recall": [list(one) for one in self.recall]}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        """Return what `asdict` made; `KeyError`, `TypeError` or `ValueError` if it is damaged."""
        recall = tuple(Interval(*map(float, one)) for one in saved["recall"])
        shares = {name: float(saved[name]) for name in ("right", "low", "high")}
        majority = None if saved["majority"] is None else float(saved["majority"])
        return cls(
            **shares,
            checkers=int(saved["checkers"]),
            labeling=str(saved["labeling"]),
            recall=recall,
            majority=majority,
        )


def interval(right: float, wrong: float, scale: float, *, known: bool) -> Interval:
    """Return a share with its 95% interval, from chance, and from the noise whose law is known.

    The ends are the shares at which a statistic as far off has a probability of 2.5% (Clopper and
    Pearson's test with noise). The statistic of a share p is (1 - p)·right - p·wrong, which is 0 on
    average. Chance is that of independent records, more than that of records drawn without
    replacement.

    Args:
      right: Noisy number of records that agree.
      wrong: Noisy number of others.
      scale: Scale of the discrete Laplace noise, in records.
      known: True if the sum of both has no noise, as the noise of one is that of the other.
    """
    total = max(right + wrong, 1.0)
    size = max(round(total), 1)
    noise = _laplace_quantiles(scale)
    # One order of the quantiles beside another, mixed by a fixed rule: this is no private noise.
    other = -noise if known else np.random.default_rng(0).permutation(noise)

    def reached(share: float) -> np.ndarray:
        statistic = (1 - share) * right - share * wrong
        found: np.ndarray = statistic + size * share - ((1 - share) * noise - share * other)
        return found

    def above(share: float) -> float:
        return float(np.mean(binom.sf(np.ceil(reached(share) - 1e-9) - 1, size, share)))

    def below(share: float) -> float:
        return float(np.mean(binom.cdf(np.floor(reached(share) + 1e-9), size, share)))

    tail = (1 - CONFIDENCE) / 2
    share = float(np.clip(right / total, 0, 1))
    low = _crossing(lambda value: above(value) > tail, share)
    high = 1 - _crossing(lambda value: below(1 - value) > tail, 1 - share)
    return Interval(share, min(low, share), max(high, share))


def keep_probability(epsilon: float) -> float:
    """Return the probability e^epsilon/(1 + e^epsilon) that randomized response keeps a bit."""
    return 1 / (1 + math.exp(-epsilon))


def randomized(key: jax.Array, bits: np.ndarray, epsilon: float) -> np.ndarray:
    """Return bits by randomized response, bool `[c]`, in simulation: each is epsilon-DP by itself.

    Args:
      key: Random key, which is consumed.
      bits: True bits, bool `[c]`.
      epsilon: Epsilon of a bit; infinity keeps all.
    """
    size = 1 << len(bits).bit_length()  # few sizes make few programs
    kept = np.asarray(jax.random.bernoulli(key, keep_probability(epsilon), (size,)))[: len(bits)]
    sent: np.ndarray = kept == bits
    return sent


def debiased(share: float, epsilon: float) -> float:
    """Return the share of true bits that gives a share of randomized ones on average.

    It is an unbiased estimate if `share` was counted, and may then be below 0 or above 1.

    Args:
      share: Share of randomized bits that are 1.
      epsilon: Epsilon of a bit.
    """
    return (share - 1 + keep_probability(epsilon)) / math.tanh(epsilon / 2)


def interval_of_bits(ones: int, size: int, epsilon: float) -> Interval:
    """Return a share with its 95% interval, from randomized bits.

    If records that agree have a share p, each bit is 1 with the probability that `debiased` maps
    back to p, and bits are independent. So their sum is binomial, and Clopper and Pearson's
    interval, mapped back, has chance and noise in one law.

    Args:
      ones: Number of randomized bits that are 1.
      size: Number of bits, at least 1.
      epsilon: Epsilon of a bit.
    """
    tail = (1 - CONFIDENCE) / 2
    low = beta.ppf(tail, ones, size - ones + 1) if ones else 0.0
    high = beta.ppf(1 - tail, ones + 1, size - ones) if ones < size else 1.0
    found = (min(max(debiased(share, epsilon), 0.0), 1.0) for share in (ones / size, low, high))
    return Interval(*map(float, found))


def _crossing(passed: Any, most: float) -> float:
    """Return the least share up to `most` that passes, to 1e-4, for a test that all larger pass."""
    if passed(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if passed(middle) else (middle, high)
    return high


def _laplace_quantiles(scale: float) -> np.ndarray:
    """Return evenly spaced quantiles of discrete Laplace noise, float64 `[QUANTILES]`."""
    above = (np.arange(QUANTILES // 2) + 0.5) / QUANTILES  # the probability to be farther
    decay = math.exp(-1 / max(scale, 0.01))  # there is no noise to speak of below
    far = np.ceil(np.log(above * (1 + decay)) / math.log(decay) - 1)
    return np.concatenate([-far, np.maximum(far, 0)[::-1]])

"""Agreement of labels with private records that did not vote, as it was measured.

`rknn_jax.check` draws the numbers. Here are the interval around a noisy share, and the words and
warnings of a release that was measured. All of it is post-processing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from rknn_jax._internal.option_names import option
from rknn_jax.answers.concern import Concern, named
from rknn_jax.answers.concerns import LOW_RECALL
from rknn_jax.privacy.guarantee import UNITS, Unit

CONFIDENCE = 0.95
"""Confidence of an interval."""

QUANTILES = 500
"""Values of the noise over which an interval takes the mean."""

LOW = 0.7
"""Share of right labels below which there is a warning, if the interval lies below it."""


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
      right: Share of the records whose class the labels say at their place.
      low: Lower end of its 95% interval.
      high: Upper end.
      checkers: Number of records, or of persons, that measured it; noisy if n is private.
      labeling: Name of the chosen labeling.
      recall: Share of the records of each class that agree; empty if it was not measured.
      majority: Share of the most frequent class among the private records; None if unknown.
      unit: Privacy unit that is counted: record, person, or client. Defaults to `record`.
    """

    right: float
    low: float
    high: float
    checkers: int
    labeling: str
    recall: tuple[Interval, ...]
    majority: float | None
    unit: Unit = "record"

    @property
    def share(self) -> Interval:
        """Share with its interval."""
        return Interval(self.right, self.low, self.high)

    @property
    def meaning(self) -> str:
        """Words for what the share is of."""
        return (
            f"of {self.checkers:,} private {self.unit}s that did not vote agree with the labels "
            "near them, with 95% confidence"
        )

    def __str__(self) -> str:
        low, high = round(100 * self.low), round(100 * self.high)
        return (
            f"Measured on {self.checkers:,} private {self.unit}s that did not vote: "
            f"{self.right:.0%} ({low} to {high}) agree with the labels near them"
        )

    def concerns(self, names: Sequence[str]) -> list[Concern]:
        """Return reasons to doubt the labels, by what was measured.

        At the limit, `low_measure` fires in about 2.5% of the releases, and `low_recall` in as many
        for each class. `no_better` fires unless the interval lies above the most frequent class.

        Args:
          names: Names of the classes.
        """
        found = []
        if self.high < LOW:
            sentence = f"at most {self.high:.0%} of the private records agree with the labels"
            remedy = (
                f"use a larger {option('epsilon')}, embeddings of a better model, or public rows "
                "that are more like the private ones; wrong private labels count against it, too"
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
            sentence = (
                f"less than half of the private records of {named(names, missed)} agree with the "
                "labels; of "
                f"{names[worst]}, {self.recall[worst].right:.0%}"
            )
            remedy = (
                "rank the rows by the released probability of the class, or ask more "
                f"{option('queries')}"
            )
            found.append(Concern("low_recall", len(missed), sentence, remedy))
        return found

    def beside(self, listed: Iterable[Concern], names: Sequence[str]) -> tuple[Concern, ...]:
        """Return the concerns of the measure, and others but for opinions, which it replaces.

        Args:
          listed: Other concerns.
          names: Names of the classes.
        """
        return (*self.concerns(names), *(one for one in listed if not one.opinion))

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
            unit=UNITS[UNITS.index(saved.get("unit", "record"))],  # older folders have none
        )


def interval(right: float, wrong: float, scale: float, *, known: bool) -> Interval:
    """Return a share with its 95% interval, from chance and discrete Laplace noise.

    Args:
      right: Noisy number of records that agree.
      wrong: Noisy number of others.
      scale: Scale of the noise, in records.
      known: True if the sum of both has no noise, as the noise of one is that of the other.
    """
    return interval_under(right, wrong, _laplace_quantiles(scale), known=known)


def interval_under(right: float, wrong: float, noise: np.ndarray, *, known: bool) -> Interval:
    """Return a share with its 95% interval, from chance, and from noise whose law is known.

    The ends are the shares at which a statistic as far off has a probability of 2.5% (Clopper and
    Pearson's test with noise). The statistic of a share p is (1 - p)·right - p·wrong, which is 0 on
    average. Chance is that of independent records, more than that of records drawn without
    replacement.

    Args:
      right: Noisy number of records that agree.
      wrong: Noisy number of others.
      noise: Evenly spaced quantiles of the noise of each number, float64 `[QUANTILES]`.
      known: True if the sum of both has no noise, as the noise of one is that of the other.
    """
    from scipy.stats import binom  # imported late: it takes half a second

    # Noise may exceed all records. Such numbers say no more than that all agree, or that none does.
    whole = max(right + wrong, 0.0)
    right = min(max(right, 0.0), whole)
    wrong = whole - right
    total = max(whole, 1.0)
    size = max(round(total), 1)
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


def _crossing(passed: Callable[[float], bool], most: float) -> float:
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


def coin_quantiles(coins: int) -> np.ndarray:
    """Return evenly spaced quantiles of the heads of fair coins less their mean, as above."""
    from scipy.stats import binom  # imported late: it takes half a second

    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    heads: np.ndarray = binom.ppf(places, coins, 0.5) - coins / 2
    return heads

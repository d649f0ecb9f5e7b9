"""Screening: answer a query only if its voters agree. PATE and Private-kNN use it.

    screen:     max_j votes_j + N(0, s1²) >= T     releases one bit of every query
    aggregate:  votes + N(0, s2²)                  releases the counts of queries that passed;
                                                   their arg max is the answer

One record changes the greatest count by 1 at most. It moves one vote from a class to another, which
is a distance of sqrt(2). So both steps are Gaussian mechanisms, with noise multipliers s1 and
s2/sqrt(2). Their joint cost depends on the number of screened queries and on the number of answers.
The second number is an outcome, so a cap on it is set beforehand and charged in full. After that
many answers no more queries are answered. `Noise` is calibrated for all queries together: `ratio`
fixes s1/s2, and epsilon fixes their size.

References: Papernot et al., "Scalable Private Learning with PATE", 2018, Algorithm 1; Zhu, Yu,
Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer Vision", 2020,
Algorithm 1.
"""

import functools
import math
from dataclasses import dataclass, replace

import jax
import numpy as np

from rknn_jax import postprocessing
from rknn_jax._internal.option_names import option
from rknn_jax.privacy import accounting, analytic_gaussian, calibration
from rknn_jax.privacy.events import Event, gaussian_event
from rknn_jax.privacy.guarantee import Guarantee, Relation, Unit
from rknn_jax.types import Answers, Array


@dataclass(frozen=True)
class Release:
    """Quantities that are released, apart from the size of the noise.

    Attributes:
      screened: Number of queries whose greatest count is screened; 0 without a screen.
      answered: Number of queries whose counts may be released. It is charged in full.
      change: L2 distance by which a neighboring data set moves the counts. Defaults to sqrt(2).
      sampling_prob: Probability that a record takes part in one step. Defaults to 1.
      replaced: True if a neighboring data set replaces a sampled record.
        Defaults to False.
      screen: `(threshold, most)`, as in `events.ScreenedGaussian`. None charges for the noisy count
        itself. Defaults to None.
    """

    screened: int
    answered: int
    change: float = math.sqrt(2)
    sampling_prob: float = 1.0
    replaced: bool = False
    screen: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        if self.answered < 1 or self.screened < 0:
            raise ValueError(
                f"Expected answered >= 1 and screened >= 0, got {self.answered} and "
                f"{self.screened}."
            )
        if not 0 < self.change < math.inf:
            raise ValueError(f"Expected a finite change > 0, got change={self.change}.")

    def events(self, screening_stddev: float, aggregation_stddev: float) -> tuple[Event, ...]:
        """Return the noise of all steps.

        Args:
          screening_stddev: Standard deviation s1 of the screen's noise, in votes.
          aggregation_stddev: Standard deviation s2 of the counts' noise, in votes.

        Raises:
          ValueError: If a standard deviation is not finite and positive.
        """
        for name, stddev in (
            ("screening_stddev", screening_stddev),
            ("aggregation_stddev", aggregation_stddev),
        ):
            if not 0 < stddev < math.inf and (self.screened or name != "screening_stddev"):
                raise ValueError(
                    f"Expected a finite {name} > 0, got {name}={stddev}; epsilon = infinity asks "
                    "for no noise."
                )
        counts = gaussian_event(
            aggregation_stddev / self.change,
            self.answered,
            self.sampling_prob,
            self.replaced,
        )
        if not self.screened:
            return (counts,)
        return gaussian_event(
            screening_stddev,
            self.screened,
            self.sampling_prob,
            replaced=self.replaced,
            screen=self.screen,
        ), counts


@dataclass(frozen=True)
class Noise:
    """Calibrated noise and its guarantee.

    Attributes:
      screening_stddev: Standard deviation s1 of the screen's noise, in votes.
      aggregation_stddev: Standard deviation s2 of the counts' noise, in votes.
      guarantee: Guarantee of both steps together.
    """

    screening_stddev: float
    aggregation_stddev: float
    guarantee: Guarantee


@functools.lru_cache(maxsize=64)
def calibrated(
    release: Release,
    ratio: float,
    epsilon: float,
    delta: float,
    relation: Relation,
    unit: Unit = "record",
) -> Noise:
    """Return the least noise at which a release costs at most epsilon.

    Args:
      release: Quantities that are released.
      ratio: Ratio s1/s2 of the screen's noise to that of the counts.
      epsilon: Privacy budget of everything together; infinity means no noise.
      delta: Probability delta in (0, 1).
      relation: Neighboring relation for which `release.change` and `release.replaced` hold.
      unit: Privacy unit for which `release.change` and `release.replaced` hold. Defaults to
        "record".

    Raises:
      ValueError: If ratio, epsilon or delta is out of range.
    """
    if not 0 < ratio < math.inf:
        raise ValueError(
            f"Expected a finite ratio > 0 of the standard deviations, got ratio={ratio}."
        )
    if not epsilon > 0:
        raise ValueError(
            f"Expected epsilon > 0, got epsilon={epsilon}; choose a positive privacy budget."
        )
    if epsilon == math.inf:
        return Noise(
            0.0, 0.0, Guarantee(math.inf, 0.0, relation, trust="central", events=(), unit=unit)
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; Gaussian noise gives no pure "
            f"differential privacy, pass {option('delta')} 1e-5."
        )
    stddev = calibration.calibrate(
        lambda scale: release.events(ratio * scale, scale),
        epsilon,
        delta,
        start=_start(release, epsilon, delta),
    )
    events = release.events(ratio * stddev, stddev)
    accountant = min((cost, name) for name, cost in accounting.epsilons(events, delta).items())[1]
    return Noise(
        ratio * stddev,
        stddev,
        Guarantee(
            epsilon,
            delta,
            relation,
            trust="central",
            events=events,
            unit=unit,
            accountant=accountant,
        ),
    )


def _start(release: Release, epsilon: float, delta: float) -> float:
    """Return a rough standard deviation for the counts, as the start of the search."""
    multiplier = analytic_gaussian.gaussian_noise_multiplier(epsilon, delta)
    return release.change * max(
        release.sampling_prob * math.sqrt(release.answered) * multiplier, min(1.0, multiplier)
    )


def passed(
    key: jax.Array, counts: Array, threshold: float, noise: Noise, max_answers: int | None
) -> np.ndarray:
    """Screen the queries in order, until `max_answers` have passed, bool `[s]`.

    Args:
      key: Random key of the noise, which is consumed.
      counts: float32 `[s, num_classes]`, private.
      threshold: Threshold T, in votes.
      noise: Noise calibrated for s screened queries and `max_answers` answers.
      max_answers: Greatest number of queries that pass, or None for all.
    """
    chosen = postprocessing.noisy_screen(key, counts, threshold, noise.screening_stddev)
    return chosen & (np.cumsum(chosen) <= (len(chosen) if max_answers is None else max_answers))


def aggregated(
    key: jax.Array, counts: Array, answered: np.ndarray, stddev: float, guarantee: Guarantee
) -> Answers:
    """Release the counts of the queries that passed, in simulation, and answer them.

    Args:
      key: Random key of the noise, which is consumed.
      counts: float32 `[s, num_classes]`, private.
      answered: bool `[s]`, mask of at most as many queries as the noise was calibrated for.
      stddev: Standard deviation of the noise, in votes.
      guarantee: Guarantee of both steps.

    Returns:
      Answers. For a query that did not pass, the label is -1, and counts and noise are 0.
    """
    counts = np.asarray(counts, np.float32)
    noise = stddev * np.asarray(jax.random.normal(key, counts.shape))
    heard = np.where(answered[:, None], counts + noise, 0).astype(np.float32)
    spread = np.where(answered[:, None], stddev, 0) * np.ones_like(heard)
    return answers_of(heard, spread, answered, guarantee)


def answers_of(
    heard: np.ndarray, spread: np.ndarray, answered: np.ndarray, guarantee: Guarantee
) -> Answers:
    """Turn noisy counts into answers, by post-processing alone.

    Args:
      heard: float32 `[s, num_classes]`, noisy counts.
      spread: float32 `[s, num_classes]`, standard deviation of the noise, in votes.
      answered: bool `[s]`, mask of the queries that have counts.
      guarantee: Guarantee of the counts.
    """
    labels = np.where(answered, postprocessing.noisy_max(heard), -1).astype(np.int32)
    likely = postprocessing.posterior(heard, spread.astype(np.float32))
    confidence = np.where(answered, likely[np.arange(len(labels)), labels], 0).astype(np.float32)
    probabilities = np.where(answered[:, None], likely, np.float32(1 / heard.shape[1]))
    return Answers(
        labels,
        answered,
        probabilities,
        confidence=confidence,
        counts=heard,
        stddev=spread.astype(np.float32),
        guarantee=guarantee,
    )


def confirmed(answers: Answers, predicted: np.ndarray, sure: float) -> Answers:
    """Answer declined queries by a student that is sure of them, by post-processing alone.

    Args:
      answers: Released answers.
      predicted: float32 `[s, num_classes]`, probabilities of the student.
      sure: Least probability at which the student answers.
    """
    own = ~answers.answered & (predicted.max(axis=1) >= sure)
    return replace(
        answers,
        labels=np.where(own, predicted.argmax(axis=1), answers.labels).astype(np.int32),
        answered=answers.answered | own,
        probabilities=np.where(own[:, None], predicted, answers.probabilities).astype(np.float32),
        confidence=np.where(own, predicted.max(axis=1), answers.confidence).astype(np.float32),
    )

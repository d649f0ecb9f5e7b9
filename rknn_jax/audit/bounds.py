"""Audit of a guarantee: a lower bound on epsilon from a mechanism's actual outputs.

A game has two neighboring inputs and shows an adversary's view of either. (epsilon,
delta)-differential privacy says, for every event E of the view and for both inputs in either order,

    P1(E) <= e^epsilon * P0(E) + delta.

An audit searches for inputs and an event that come closest to that limit. It then counts the event
in fresh runs of both inputs. Clopper-Pearson intervals of the two probabilities give p1 >= l1 and
p0 <= u0, except with probability 1 - confidence, so that

    epsilon >= ln((l1 - delta) / u0)

for any search: a choice made on some runs is judged on others. An audit that finds nothing proves
nothing. Its power is stated against one known fault, such as half the noise: the probability that
the audit calls a mechanism with that fault broken.

A guarantee that names its noise promises a whole curve of epsilon against delta. An event that is
too likely for any point of the curve breaks the guarantee. At a Gaussian's small delta, rare events
are most telling. At larger deltas, common events are more telling, in fewer runs.

References: Jagielski, Ullman & Oprea, "Auditing Differentially Private Machine Learning: How
Private is Private SGD?", 2020; Clopper & Pearson, "The Use of Confidence or Fiducial Limits
Illustrated in the Case of the Binomial", 1934; Bichsel et al., "DP-Sniper", 2021.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import beta

from rknn_jax.audit.distinguishers import (
    MOST_CORRELATED,
    Score,
    correlated,
    distinguishers,
    most_telling,
)
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee

DELTAS = (1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
"""Points of the claimed curve that are tested, beside the claimed delta."""

SEARCH_RUNS = 1000
"""Number of runs of each input in the first look at a game."""

GLANCE_ERROR = 0.1
"""Error of the bounds that rank games in the first look; no conclusion rests on them."""

FINALISTS = 8
"""Number of games that are looked at closely after the first look."""

LEAST_POWER = 0.5
"""Least power, against the control, of a conclusive audit."""

THRESHOLDS = 512
FEW_THRESHOLDS = 16
"""Number of levels at which the search cuts a score, and the first look cuts a column."""

BOOTSTRAPS = 10_000

Curve = tuple[tuple[float, float], ...]
"""Pairs of delta and epsilon that are claimed together."""


class Game(NamedTuple):
    """Two neighboring inputs, and an adversary's view of them.

    Attributes:
      inputs: The two inputs, in words.
      observe: Function `observe(key, world, runs)` that returns the view in fresh, independent runs
        on input 0 or 1, `[runs, f]`. `key` is consumed.
      names: Names of the f columns. Defaults to none.
      always: Columns to look at alone even if they seem to tell little, because they show rare
        events. Defaults to none.
    """

    inputs: str
    observe: Callable[[jax.Array, int, int], np.ndarray]
    names: tuple[str, ...] = ()
    always: tuple[int, ...] = ()


class Control(NamedTuple):
    """Same games of a mechanism with a known fault, which measure the audit's power.

    Attributes:
      against: Known fault, in words.
      games: Games of the mechanism with the fault.
    """

    against: str
    games: Sequence[Game]


class Power(NamedTuple):
    """Ability of the audit to find one known fault; other faults may go unseen.

    Attributes:
      against: Known fault, in words.
      probability: Estimated probability that this audit calls a mechanism with the fault broken.
      lower_bound: Lower bound of epsilon, at the claimed delta, of the mechanism with the fault.
    """

    against: str
    probability: float
    lower_bound: float


HALF_THE_NOISE = "half the noise: the same mechanism made for twice the epsilon"


class Bound(NamedTuple):
    """Bound of epsilon at one delta.

    Attributes:
      delta: Delta of the bound.
      claimed: Epsilon that the guarantee promises at that delta.
      lower: Lower bound of epsilon from the audit's runs.
    """

    delta: float
    claimed: float
    lower: float


@dataclass(frozen=True)
class Finding:
    """Result of an audit.

    Attributes:
      claimed_epsilon: Epsilon of the guarantee.
      delta: Delta of the guarantee.
      lower_bound: Lower bound of epsilon at that delta.
      confidence: Least probability with which all bounds hold; 1 if they are exact.
      exact: True if a stated law was enumerated, under a few draws of public coins.
      broken: True if a bound contradicts the guarantee, at its delta or elsewhere on its curve.
      evidence: Bound that lies farthest above the claim, or the one at the claimed delta if none
        does.
      inputs: The two most telling inputs.
      event: Event that tells the inputs apart, in words.
      runs: Number of runs of each input behind the bounds; the search used more.
      games: Number of pairs of inputs that were tried.
      power: Power against the control; None without a control.
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    exact: bool
    broken: bool
    evidence: Bound
    inputs: str
    event: str
    runs: int
    games: int = 0
    power: Power | None = None

    def __str__(self) -> str:
        at = f" at delta = {self.delta:g}" if self.delta else ""
        known = (
            "is, by enumeration,"
            if self.exact
            else f"is at least, with confidence {self.confidence:.6g},"
        )
        weak = not self.broken and self.power is not None and self.power.probability < LEAST_POWER
        verdict = (
            "BROKEN: "
            if self.broken
            else "Inconclusive, take more runs: "
            if weak
            else "Not broken: "
        )
        sentence = (
            f"{verdict}epsilon{at} {known} {self.lower_bound:.4g}, and {self.claimed_epsilon:.4g} "
            "is claimed."
        )
        if self.broken and self.lower_bound <= self.claimed_epsilon:
            shown = self.evidence
            sentence += (
                f" At delta = {shown.delta:g} it is at least {shown.lower:.4g}, where the same "
                f"noise promises {shown.claimed:.4g}."
            )
        if self.power is not None:
            sentence += (
                f" Power {self.power.probability:.2g} against {self.power.against}; other faults "
                "may go unseen."
            )
        return sentence

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        told = asdict(self) | {"evidence": self.evidence._asdict(), "statement": str(self)}
        told["power"] = None if self.power is None else self.power._asdict()
        if math.isinf(self.lower_bound):  # JSON lacks infinity.
            told |= {
                "lower_bound": "infinity",
                "evidence": told["evidence"] | {"lower": "infinity"},
            }
        return told


class Event(NamedTuple):
    """Event of all views with a score of at least the threshold."""

    distinguisher: str
    score: Score
    threshold: float

    def hits(self, seen: Sequence[np.ndarray]) -> np.ndarray:
        """Return the number of runs of either input in which the event happened, int `[2]`."""
        return np.array([np.sum(self.score(rows) >= self.threshold) for rows in seen])


def audit(
    key: jax.Array,
    games: Sequence[Game],
    guarantee: Guarantee,
    runs: int,
    confidence: float = 0.9999,
    control: Control | None = None,
) -> Finding:
    """Try to break a guarantee.

    Half of the runs are spent on the search: a few on each game, more on the more telling games,
    and most on the best game. The other half is looked at once.

    Args:
      key: Key of the audit's own draws, consumed.
      games: Games with neighboring inputs, of one mechanism and one guarantee.
      guarantee: Guarantee that is claimed.
      runs: Number of runs of each input of the best game.
      confidence: Least probability that an honest mechanism is not called broken. Defaults to
        0.9999.
      control: Games of a mechanism with a known fault, which measure the power against it. Defaults
        to none.

    Raises:
      ValueError: If epsilon is infinite, there are fewer than 40 runs or no games, or the
        confidence is outside (0, 1).
    """
    if not games:
        raise ValueError(
            "Expected at least one game, got none; there is no pair of inputs to tell apart."
        )
    if runs < 40:
        raise ValueError(f"Expected runs >= 40, got runs={runs}; so few show nothing.")
    if not 0 < confidence < 1:
        raise ValueError(
            f"Expected 0 < confidence < 1, got confidence={confidence}; 0.9999 calls one honest "
            "mechanism in 10,000 broken."
        )
    curve = claimed_curve(guarantee)
    error = 1 - confidence
    keys = jax.random.split(key, 4)
    game, events = _search(keys[0], games, curve, runs, error)
    bounds, hits = _judge(keys[1], game, events, curve, runs, error)
    power = None
    if control is not None:
        other, found = _search(keys[2], control.games, curve, runs, error)
        its_bounds, its_hits = _judge(keys[3], other, found, curve, runs, error)
        power = Power(
            control.against, _power(its_hits, runs - runs // 2, curve, error), its_bounds[0].lower
        )
    best = int(np.argmax([bound.lower - bound.claimed for bound in bounds]))
    best = best if bounds[best].lower > bounds[best].claimed else 0
    at = lower_bounds(np.stack(hits), runs - runs // 2, error / len(hits), [bounds[best].delta])[
        :, 0
    ].argmax()
    happened = " and ".join(f"{count / (runs - runs // 2):.4g}" for count in hits[at])
    return Finding(
        guarantee.epsilon,
        guarantee.delta,
        bounds[0].lower,
        confidence,
        exact=False,
        broken=any(bound.lower > bound.claimed for bound in bounds),
        evidence=bounds[best],
        inputs=game.inputs,
        event=f"{events[at].distinguisher}, at {events[at].threshold:.6g} and above: a share of "
        f"{happened} of the runs",
        runs=runs - runs // 2,
        games=len(games),
        power=power,
    )


def claimed_curve(guarantee: Guarantee) -> Curve:
    """Return the pairs `(delta, epsilon)` that a guarantee promises.

    The guarantee's own pair comes first. If the guarantee names its noise, the costs of that noise
    at other deltas follow.

    Raises:
      ValueError: If epsilon is infinite.
    """
    if not math.isfinite(guarantee.epsilon):
        raise ValueError("Expected a finite epsilon, got infinity; there is no guarantee to break.")
    claimed = [(guarantee.delta, guarantee.epsilon)]
    for delta in DELTAS:
        if delta > guarantee.delta and guarantee.events:
            claimed.append(
                (
                    delta,
                    min(
                        [guarantee.epsilon, *accounting.epsilons(guarantee.events, delta).values()]
                    ),
                )
            )
    return tuple(claimed)


def lower_bounds(
    hits: np.ndarray, runs: int, error: float, deltas: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return lower bounds of epsilon from the frequency of an event.

    Args:
      hits: Numbers of runs with the event, for either input, int `[..., 2]`.
      runs: Number of runs of each input.
      error: Largest probability that the bounds of one event do not hold.
      deltas: Deltas of the bounds, each in [0, 1).

    Returns:
      float64 `[..., num_deltas]`: the largest bound by the event and its complement, in either
      order of the inputs. Values below 0, which epsilon never takes, still rank events.
    """
    hits = np.asarray(hits, np.float64)
    tail = error / 4  # Two intervals, each with two ends.
    with np.errstate(invalid="ignore"):  # The formula gives NaN for no hits or for hits only.
        low = np.where(hits > 0, beta.ppf(tail, hits, runs - hits + 1), 0)
        high = np.where(hits < runs, beta.ppf(1 - tail, hits + 1, runs - hits), 1)
    (low0, low1) = np.moveaxis(low, -1, 0)
    (high0, high1) = np.moveaxis(high, -1, 0)
    more = np.stack([low1, low0, 1 - high1, 1 - high0], axis=-1)[..., None, :]
    less = np.stack([high0, high1, 1 - low0, 1 - low1], axis=-1)[..., None, :]
    with np.errstate(divide="ignore"):
        odds = np.log(np.maximum(more - np.asarray(deltas)[:, None], 0)) - np.log(less)
    bounds: np.ndarray = odds.max(axis=-1)
    return bounds


def _search(
    key: jax.Array, games: Sequence[Game], curve: Curve, runs: int, error: float
) -> tuple[Game, list[Event]]:
    """Return the most telling game, and its best events at the claimed delta and on the curve.

    The search looks at all games once, at a few of them closely, and drops half of these in every
    round.
    """
    first_key, key = jax.random.split(key)
    left = list(games)
    spent = SEARCH_RUNS
    final = runs // 2
    if len(left) > FINALISTS:
        keys = [jax.random.fold_in(first_key, number) for number in range(len(left))]
        left = _best(
            left,
            [
                _glance(k, game, min(spent, final), curve)
                for k, game in zip(keys, left, strict=True)
            ],
            FINALISTS,
        )
    while len(left) > 1:
        keys = [
            jax.random.fold_in(jax.random.fold_in(key, len(left)), number)
            for number in range(len(left))
        ]
        told = [
            _events(k, game, min(spent, final), curve, error)[1]
            for k, game in zip(keys, left, strict=True)
        ]
        left = _best(left, told, -(-len(left) // 2))
        spent = 2 * spent
    return left[0], list(_events(jax.random.fold_in(key, 0), left[0], final, curve, error)[0])


def _best(games: Sequence[Game], told: Sequence[float], count: int) -> list[Game]:
    """Return the most telling games."""
    return [
        games[number]
        for number in sorted(range(len(games)), key=lambda number: -told[number])[:count]
    ]


def _glance(key: jax.Array, game: Game, runs: int, curve: Curve) -> float:
    """Return how far the best cut seems to exceed the claim.

    The search covers cuts of single columns and of differences of two.
    """
    seen = [_seen(game, k, world, runs) for world, k in enumerate(jax.random.split(key, 2))]
    a, b = correlated(seen[0], seen[1], most_telling(seen[0], seen[1])[:MOST_CORRELATED])
    first, second = (np.concatenate([rows, rows[:, a] - rows[:, b]], axis=1) for rows in seen)
    levels = np.concatenate([first, second])
    levels = np.quantile(levels, np.linspace(0, 1, FEW_THRESHOLDS)[1:], axis=0, method="nearest")
    hits = np.stack(
        [[np.sum(rows >= level[None], axis=0) for level in levels] for rows in (first, second)],
        axis=-1,
    )
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    return float((lower_bounds(hits, runs, GLANCE_ERROR, deltas) - claims).max())


def _events(
    key: jax.Array, game: Game, runs: int, curve: Curve, error: float
) -> tuple[tuple[Event, ...], float]:
    """Return the best events at the claimed delta and on the rest of the curve, and a rank.

    The rank is the excess over the claim of a bound with `GLANCE_ERROR`. At the audit's own error,
    events that always happen would seem better than events that tell a little.
    """
    keys = jax.random.split(key, 2)
    seen = [_seen(game, k, world, runs) for world, k in enumerate(keys)]
    half = runs // 2
    fitted = [rows[:half] for rows in seen]
    held = [rows[half:] for rows in seen]
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    found = []
    ranks = []
    for name, score in distinguishers(fitted[0], fitted[1], game.names, game.always):
        scores = [np.sort(score(rows)) for rows in held]
        both = np.sort(np.concatenate(scores))
        thresholds = np.unique(both[np.round(_levels(len(both)) * (len(both) - 1)).astype(int)])
        hits = np.stack(
            [len(s) - np.searchsorted(s, thresholds, side="left") for s in scores], axis=-1
        )
        above = lower_bounds(hits, len(held[0]), error, deltas) - claims
        ranks.append(float((lower_bounds(hits, len(held[0]), GLANCE_ERROR, deltas) - claims).max()))
        for column in (above[:, 0], above.max(axis=1)):
            best = int(column.argmax())
            found.append((column[best], Event(name, score, float(thresholds[best]))))
    at_delta = max(found[::2], key=lambda pair: pair[0])
    on_curve = max(found[1::2], key=lambda pair: pair[0])
    events = (at_delta[1],) if len(curve) == 1 else (at_delta[1], on_curve[1])
    return events, max(ranks)


def _judge(
    key: jax.Array, game: Game, events: Sequence[Event], curve: Curve, runs: int, error: float
) -> tuple[list[Bound], list[np.ndarray]]:
    """Count previously chosen events in fresh runs, and return each event's bounds."""
    fresh = runs - runs // 2
    seen = [_seen(game, k, world, fresh) for world, k in enumerate(jax.random.split(key, 2))]
    hits = [event.hits(seen) for event in events]
    return _bounds(np.stack(hits), fresh, curve, error), hits


def _bounds(hits: np.ndarray, runs: int, curve: Curve, error: float) -> list[Bound]:
    """Return the bound at the claimed delta, and the most telling bound elsewhere on the curve."""
    deltas = [delta for delta, _ in curve]
    lower = np.maximum(lower_bounds(hits, runs, error / len(hits), deltas), 0)
    at_delta = Bound(*curve[0], float(lower[:, 0].max()))
    rest = [
        Bound(*point, float(best))
        for point, best in zip(curve[1:], lower[:, 1:].max(axis=0), strict=True)
    ]
    return [at_delta, *([max(rest, key=lambda bound: bound.lower - bound.claimed)] if rest else [])]


def _power(hits: Sequence[np.ndarray], runs: int, curve: Curve, error: float) -> float:
    """Return the probability that the better of equally frequent events contradicts the curve."""
    drawn = np.random.default_rng(0).binomial(
        runs, np.stack(hits) / runs, (BOOTSTRAPS, len(hits), 2)
    )
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    lower = lower_bounds(drawn, runs, error / len(hits), deltas)
    return float(np.mean((lower > claims).any(axis=2), axis=0).max())


def _seen(game: Game, key: jax.Array, world: int, runs: int) -> np.ndarray:
    rows = np.asarray(game.observe(key, world, runs), np.float64)
    if rows.ndim != 2 or len(rows) != runs:
        raise ValueError(
            f"Expected what is seen in {runs} runs as [{runs}, f], got shape {rows.shape}."
        )
    return np.nan_to_num(rows, nan=-1e30, posinf=1e30, neginf=-1e30)


def _levels(count: int) -> np.ndarray:
    """Return quantiles for cuts: evenly spaced ones, and the last few values on both sides."""
    evenly = min(THRESHOLDS, count // 16 + 16)
    tails = np.geomspace(1 / count, 1 / evenly, evenly // 8)
    return np.concatenate([np.linspace(0, 1, evenly), tails, 1 - tails])

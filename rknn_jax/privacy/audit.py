"""Try to break a guarantee: a lower bound on epsilon from what a mechanism really puts out.

A game has two neighbouring inputs and shows what an adversary sees of either. (epsilon, delta)-differential privacy says of every event E
of what is seen, and of both inputs in either order,

    P1(E) <= e^epsilon * P0(E) + delta.

An audit looks for inputs and an event that come as near to that as any, and then counts the event in fresh runs of both inputs. With
Clopper-Pearson intervals of the two probabilities, p1 >= l1 and p0 <= u0 but with probability 1 - confidence, so that

    epsilon >= ln((l1 - delta) / u0)

whatever was looked for and however it was found: what was chosen on some runs is judged on others. An audit that finds nothing proves
nothing. What it could have found is its power: the probability that it says "broken" of the same mechanism with weaker noise.

A guarantee that names its noise promises a whole curve of epsilon against delta, so that an event which is too likely for any point of the
curve breaks it. At the small delta of a Gaussian rare events tell most; at larger ones common events tell more, in fewer runs.

References: Jagielski, Ullman & Oprea, "Auditing Differentially Private Machine Learning: How Private is Private SGD?", 2020; Clopper &
Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", 1934; Bichsel et al., "DP-Sniper", 2021.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import beta
from sklearn.tree import DecisionTreeClassifier

from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee

DELTAS = (1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
"""Where the claimed curve is looked at, beside the claimed delta."""

SEARCH_RUNS = 1000  # of each input, for a first look at a game
SCREENED_RUNS = 4000  # of each input, to choose columns by
LEAST_POWER = 0.5  # of an audit that says something
COLUMNS, PAIRS, ALONE = 24, 8, 6  # of what is seen: looked at together, differences of two, looked at alone
CORRELATED, MOST_CORRELATED = 64, 1000  # pairs to choose those differences from, and columns to choose these from
BINS = 32
OUTCOMES = 256  # different rows that are few enough to be counted one by one
TREE_RUNS, LEAVES = 20_000, 64
THRESHOLDS = 512
BOOTSTRAPS = 10_000


Curve = tuple[tuple[float, float], ...]
"""Delta and epsilon that are claimed together."""

Score = Callable[[np.ndarray], np.ndarray]
"""What is seen, `[n, f]`, to floats `[n]`: large where input 1 is likely."""


class Game(NamedTuple):
    """Two neighbouring inputs, and what is seen of them.

    Attributes:
      neighbours: the inputs, in words.
      observe: `observe(key, world, runs)` returns what is seen in fresh, independent runs on input 0 or 1, `[runs, f]`. `key` is consumed.
    """

    neighbours: str
    observe: Callable[[jax.Array, int, int], np.ndarray]


class Bound(NamedTuple):
    """What is known of epsilon at one delta.

    Attributes:
      delta: at which.
      claimed: epsilon that the guarantee promises.
      lower: epsilon that what was seen implies at least.
    """

    delta: float
    claimed: float
    lower: float


@dataclass(frozen=True)
class Finding:
    """What an audit has found.

    Attributes:
      claimed_epsilon: of the guarantee.
      delta: likewise.
      lower_bound: of epsilon at that delta.
      confidence: with which the bounds hold; 1 where they are exact.
      exact: whether every input and message was enumerated, under a few draws of public coins where there are any.
      broken: whether a bound contradicts the guarantee, at its delta or elsewhere on its curve.
      evidence: the bound that lies farthest above the claim; that at the claimed delta where none does.
      neighbours: the two inputs that told most.
      event: what told them apart, in words.
      runs: of each input that the bounds rest on; more were spent on the search.
      power: probability of finding the noise broken that `control` has weakened, as its own runs let it be estimated; None without one.
      control_lower_bound: of epsilon, for that noise.
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    exact: bool
    broken: bool
    evidence: Bound
    neighbours: str
    event: str
    runs: int
    power: float | None = None
    control_lower_bound: float | None = None

    def __str__(self) -> str:
        at = f" at delta = {self.delta:g}" if self.delta else ""
        known = "is, by enumeration," if self.exact else f"is at least, with confidence {self.confidence:.6g},"
        weak = not self.broken and self.power is not None and self.power < LEAST_POWER
        verdict = "BROKEN: " if self.broken else "Inconclusive, take more runs: " if weak else "Not broken: "
        sentence = f"{verdict}epsilon{at} {known} {self.lower_bound:.4g}, and {self.claimed_epsilon:.4g} is claimed."
        if self.broken and self.lower_bound <= self.claimed_epsilon:
            shown = self.evidence
            sentence += f" At delta = {shown.delta:g} it is at least {shown.lower:.4g}, where the same noise promises {shown.claimed:.4g}."
        if self.power is not None:
            sentence += f" Of noise as for twice the epsilon this audit finds out with a probability of about {self.power:.2g}."
        return sentence

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        told = asdict(self) | {"evidence": self.evidence._asdict(), "statement": str(self)}
        if math.isinf(self.lower_bound):  # which JSON lacks
            told |= {"lower_bound": "infinity", "evidence": told["evidence"] | {"lower": "infinity"}}
        return told


class Event(NamedTuple):
    """All that scores a threshold or more."""

    distinguisher: str
    score: Score
    threshold: float

    def hits(self, seen: Sequence[np.ndarray]) -> np.ndarray:
        """Return how often it happened in the runs of either input, int `[2]`."""
        return np.array([np.sum(self.score(rows) >= self.threshold) for rows in seen])


def audit(
    key: jax.Array,
    games: Sequence[Game],
    guarantee: Guarantee,
    runs: int,
    confidence: float = 0.9999,
    control: Sequence[Game] | None = None,
) -> Finding:
    """Try to break a guarantee.

    Half of the runs are spent on the search: a few on each game, more on those that tell more, and most on the best. The other half is
    looked at once.

    Args:
      key: is consumed.
      games: neighbouring inputs to try, of one mechanism and one guarantee.
      guarantee: that is claimed.
      runs: of each input of the best game.
      confidence: with which the lower bound holds; 1 less that is the probability that an honest mechanism is called broken.
      control: the same games of a mechanism with weaker noise, for the power.

    Raises:
      ValueError: for an infinite epsilon, fewer than 40 runs, no games or a confidence outside (0, 1).
    """
    if not games:
        raise ValueError("Expected at least one game, got none; there is no pair of inputs to tell apart.")
    if runs < 40:
        raise ValueError(f"Expected runs >= 40, got runs={runs}; so few show nothing.")
    if not 0 < confidence < 1:
        raise ValueError(f"Expected 0 < confidence < 1, got confidence={confidence}; 0.9999 calls one honest mechanism in 10,000 broken.")
    curve, error = claimed_curve(guarantee), 1 - confidence
    keys = jax.random.split(key, 4)
    game, events = _search(keys[0], games, curve, runs, error)
    bounds, hits = _judge(keys[1], game, events, curve, runs, error)
    power = weakened = None
    if control is not None:
        other, found = _search(keys[2], control, curve, runs, error)
        its_bounds, its_hits = _judge(keys[3], other, found, curve, runs, error)
        weakened, power = its_bounds[0].lower, _power(its_hits, runs - runs // 2, curve, error)
    best = int(np.argmax([bound.lower - bound.claimed for bound in bounds]))
    best = best if bounds[best].lower > bounds[best].claimed else 0
    at = lower_bounds(np.stack(hits), runs - runs // 2, error / len(hits), [bounds[best].delta])[:, 0].argmax()
    happened = " and ".join(f"{count / (runs - runs // 2):.4g}" for count in hits[at])
    return Finding(
        guarantee.epsilon,
        guarantee.delta,
        bounds[0].lower,
        confidence,
        exact=False,
        broken=any(bound.lower > bound.claimed for bound in bounds),
        evidence=bounds[best],
        neighbours=game.neighbours,
        event=f"{events[at].distinguisher}, at {events[at].threshold:.6g} and above: a share of {happened} of the runs",
        runs=runs - runs // 2,
        power=power,
        control_lower_bound=weakened,
    )


def claimed_curve(guarantee: Guarantee) -> Curve:
    """Return `(delta, epsilon)` that a guarantee promises: its own first, and where it names its noise what that costs at other deltas.

    Raises:
      ValueError: where epsilon is infinite.
    """
    if not math.isfinite(guarantee.epsilon):
        raise ValueError("Expected a finite epsilon, got infinity; there is no guarantee to break.")
    claimed = [(guarantee.delta, guarantee.epsilon)]
    for delta in DELTAS:
        if delta > guarantee.delta and guarantee.events:
            claimed.append((delta, min([guarantee.epsilon, *accounting.epsilons(guarantee.events, delta).values()])))
    return tuple(claimed)


def lower_bounds(hits: np.ndarray, runs: int, error: float, deltas: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return lower bounds of epsilon from how often an event happened.

    Args:
      hits: int `[..., 2]`, in the runs of either input.
      runs: of each input.
      error: probability, at most, that the bounds of one event do not hold.
      deltas: at which, each in [0, 1).

    Returns:
      float64 `[..., num_deltas]`: the largest by the event and its complement, and either order of the inputs. Below 0, where epsilon
      never is, it still ranks events.
    """
    hits = np.asarray(hits, np.float64)
    tail = error / 4  # two intervals of two ends
    with np.errstate(invalid="ignore"):  # of no hits, or of nothing else
        low = np.where(hits > 0, beta.ppf(tail, hits, runs - hits + 1), 0)
        high = np.where(hits < runs, beta.ppf(1 - tail, hits + 1, runs - hits), 1)
    (low0, low1), (high0, high1) = np.moveaxis(low, -1, 0), np.moveaxis(high, -1, 0)
    more = np.stack([low1, low0, 1 - high1, 1 - high0], axis=-1)[..., None, :]
    less = np.stack([high0, high1, 1 - low0, 1 - low1], axis=-1)[..., None, :]
    with np.errstate(divide="ignore"):
        odds = np.log(np.maximum(more - np.asarray(deltas)[:, None], 0)) - np.log(less)
    return odds.max(axis=-1)


def _search(key: jax.Array, games: Sequence[Game], curve: Curve, runs: int, error: float) -> tuple[Game, list[Event]]:
    """Return the game that tells most, and its best events: at the claimed delta, and on the curve. Half of the games go in every round."""
    left, spent, final = list(games), SEARCH_RUNS, runs // 2
    while len(left) > 1:
        keys = [jax.random.fold_in(jax.random.fold_in(key, len(left)), number) for number in range(len(left))]
        told = [_events(k, game, min(spent, final), curve, error)[1] for k, game in zip(keys, left, strict=True)]
        best = sorted(range(len(left)), key=lambda number: -told[number])
        left, spent = [left[number] for number in best[: -(-len(left) // 2)]], 2 * spent
    return left[0], list(_events(jax.random.fold_in(key, 0), left[0], final, curve, error)[0])


def _events(key: jax.Array, game: Game, runs: int, curve: Curve, error: float) -> tuple[tuple[Event, ...], float]:
    """Return the best event at the claimed delta and the best one on the rest of the curve, and how far above the claim they come."""
    keys = jax.random.split(key, 2)
    seen = [_seen(game, k, world, runs) for world, k in enumerate(keys)]
    half = runs // 2
    fitted, held = [rows[:half] for rows in seen], [rows[half:] for rows in seen]
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    found = []
    for name, score in distinguishers(*fitted):
        scores = [np.sort(score(rows)) for rows in held]
        both = np.sort(np.concatenate(scores))
        thresholds = np.unique(both[np.round(_levels(len(both)) * (len(both) - 1)).astype(int)])
        hits = np.stack([len(s) - np.searchsorted(s, thresholds, side="left") for s in scores], axis=-1)
        above = lower_bounds(hits, len(held[0]), error, deltas) - claims
        for column in (above[:, 0], above.max(axis=1)):
            best = int(column.argmax())
            found.append((column[best], Event(name, score, float(thresholds[best]))))
    at_delta, on_curve = max(found[::2], key=lambda pair: pair[0]), max(found[1::2], key=lambda pair: pair[0])
    events = (at_delta[1],) if len(curve) == 1 else (at_delta[1], on_curve[1])
    return events, float(on_curve[0])


def _judge(
    key: jax.Array, game: Game, events: Sequence[Event], curve: Curve, runs: int, error: float
) -> tuple[list[Bound], list[np.ndarray]]:
    """Count events that were chosen before in fresh runs, and return the bounds of each at its part of the curve."""
    fresh = runs - runs // 2
    seen = [_seen(game, k, world, fresh) for world, k in enumerate(jax.random.split(key, 2))]
    hits = [event.hits(seen) for event in events]
    return _bounds(np.stack(hits), fresh, curve, error), hits


def _bounds(hits: np.ndarray, runs: int, curve: Curve, error: float) -> list[Bound]:
    """Return the bound at the claimed delta, and of the other events, or the same if it is alone, that on the curve which tells most."""
    deltas = [delta for delta, _ in curve]
    lower = np.maximum(lower_bounds(hits, runs, error / len(hits), deltas), 0)
    at_delta = Bound(*curve[0], float(lower[:, 0].max()))
    rest = [Bound(*point, float(best)) for point, best in zip(curve[1:], lower[:, 1:].max(axis=0), strict=True)]
    return [at_delta, *([max(rest, key=lambda bound: bound.lower - bound.claimed)] if rest else [])]


def _power(hits: Sequence[np.ndarray], runs: int, curve: Curve, error: float) -> float:
    """Return the probability that the better of events as frequent as these contradicts the curve."""
    drawn = np.random.default_rng(0).binomial(runs, np.stack(hits) / runs, (BOOTSTRAPS, len(hits), 2))
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    lower = lower_bounds(drawn, runs, error / len(hits), deltas)
    return float(np.mean((lower > claims).any(axis=2), axis=0).max())


def distinguishers(first: np.ndarray, second: np.ndarray) -> list[tuple[str, Score]]:
    """Learn to tell two inputs apart.

    Args:
      first: `[n, f]`, what was seen of input 0.
      second: `[n, f]`, of input 1.

    Returns:
      Names and scores, large where input 1 is likely: of single columns and differences of two, of all columns as if they were
      independent, of their best linear combination, of a decision tree, and of whole rows where there are few.
    """
    screened = first[:SCREENED_RUNS], second[:SCREENED_RUNS]
    ranked = _most_telling(*screened)
    a, b = _correlated(*screened, ranked[:MOST_CORRELATED])
    telling = _most_telling(*(rows[:, a] - rows[:, b] for rows in screened))[:PAIRS]
    pairs = a[telling], b[telling]
    columns = ranked[:COLUMNS]

    def described(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:, columns], rows[:, pairs[0]] - rows[:, pairs[1]]], axis=1)

    names = [f"value {c}" for c in columns] + [f"value {i} less value {j}" for i, j in zip(*pairs, strict=True)]
    worlds = described(first), described(second)
    laws = [_histogram(*(world[:, c] for world in worlds)) for c in range(len(names))]
    order = _most_telling(*(world[:SCREENED_RUNS] for world in worlds))[:ALONE]
    found: list[tuple[str, Score]] = []
    for c in order:
        found.append((f"likelihood of {names[c]}", partial(_likelihood, described, int(c), laws[c])))
    direction = _linear(*worlds)
    tree = _tree(*(world[:TREE_RUNS] for world in worlds))
    found += [
        ("likelihood of all values apart", lambda rows: np.sum([laws[i](rows[:, c]) for i, c in enumerate(columns)], axis=0)),
        ("a linear combination", lambda rows: described(rows) @ direction),
        ("a decision tree", lambda rows: tree(described(rows))),
    ]
    outcomes = np.unique(np.concatenate(screened), axis=0)
    if len(outcomes) <= OUTCOMES:
        found.append(("likelihood of whole outcomes", _outcomes(first, second)))
    return found


def _seen(game: Game, key: jax.Array, world: int, runs: int) -> np.ndarray:
    rows = np.asarray(game.observe(key, world, runs), np.float64)
    if rows.ndim != 2 or len(rows) != runs:
        raise ValueError(f"Expected what is seen in {runs} runs as [{runs}, f], got shape {rows.shape}.")
    return np.nan_to_num(rows, nan=-1e30, posinf=1e30, neginf=-1e30)


def _levels(count: int) -> np.ndarray:
    """Return quantiles to cut at: evenly spaced ones, and the last few values on both sides."""
    evenly = min(THRESHOLDS, count // 16 + 16)
    tails = np.geomspace(1 / count, 1 / evenly, evenly // 8)
    return np.concatenate([np.linspace(0, 1, evenly), tails, 1 - tails])


def _most_telling(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the columns, those first in which the two are farthest apart in distribution function."""
    distance = np.zeros(first.shape[1])
    for c in range(first.shape[1]):
        both = np.sort(np.concatenate([first[:, c], second[:, c]]))
        if both[0] < both[-1]:
            edges = both[:: max(1, len(both) // (4 * BINS))]
            shares = [np.searchsorted(np.sort(rows[:, c]), edges, side="right") / len(rows) for rows in (first, second)]
            distance[c] = np.abs(shares[0] - shares[1]).max()
    return np.argsort(-distance, kind="stable")


def _correlated(first: np.ndarray, second: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of columns that vary most alike, whose noise may cancel, and all pairs of the first few."""
    centred = np.concatenate([rows[:, columns] - rows[:, columns].mean(axis=0) for rows in (first, second)])
    length = np.linalg.norm(centred, axis=0)
    centred = centred / np.where(length > 0, length, 1)
    alike = np.triu(np.abs(centred.T @ centred), 1)
    most = np.argsort(-alike, axis=None, kind="stable")[:CORRELATED]
    few = np.ravel_multi_index(np.triu_indices(min(len(columns), ALONE), 1), alike.shape)
    a, b = np.unravel_index(np.union1d(most, few), alike.shape)
    return columns[a[a != b]], columns[b[a != b]]


def _likelihood(described: Score, column: int, law: Score, rows: np.ndarray) -> np.ndarray:
    return law(described(rows)[:, column])


def _histogram(first: np.ndarray, second: np.ndarray) -> Score:
    """Return the log ratio of frequencies, second to first, of the bin that a value is in."""
    both = np.concatenate([first, second])
    values = np.unique(both)
    edges = (values[1:] + values[:-1]) / 2 if len(values) <= BINS else np.unique(np.quantile(both, np.linspace(0, 1, BINS + 1)[1:-1]))
    counts = [np.bincount(np.searchsorted(edges, rows), minlength=len(edges) + 1) + 0.5 for rows in (first, second)]
    ratio = np.log(counts[1]) - np.log(counts[0])
    return lambda rows: ratio[np.searchsorted(edges, rows)]


def _linear(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Fisher's direction. Noise that cancels in a combination leaves it nearly no variance, and makes it large."""
    spread = np.maximum(np.concatenate([first, second]).std(axis=0), 1e-12)
    scaled = [rows / spread for rows in (first, second)]
    within = sum(np.cov(rows, rowvar=False, ddof=0).reshape(rows.shape[1], -1) for rows in scaled)
    shift = scaled[1].mean(axis=0) - scaled[0].mean(axis=0)
    return np.linalg.solve(within + 1e-9 * np.eye(len(shift)), shift) / spread


def _tree(first: np.ndarray, second: np.ndarray) -> Score:
    """Return the share of input 1 in the leaf of a decision tree."""
    model = DecisionTreeClassifier(max_leaf_nodes=LEAVES, min_samples_leaf=20, random_state=0)
    model.fit(np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)]))
    return lambda rows: model.predict_proba(rows)[:, 1]


def _outcomes(first: np.ndarray, second: np.ndarray) -> Score:
    """Return the log ratio of frequencies of whole rows; 0 of rows that were not seen."""
    rows, inverse = np.unique(np.concatenate([first, second]), axis=0, return_inverse=True)
    world = np.repeat([0, 1], [len(first), len(second)])
    counts = np.array([np.bincount(inverse.ravel()[world == w], minlength=len(rows)) for w in (0, 1)]) + 0.5
    ratio = {row.tobytes(): value for row, value in zip(rows, np.log(counts[1]) - np.log(counts[0]), strict=True)}

    def score(seen: np.ndarray) -> np.ndarray:
        rows, inverse = np.unique(seen, axis=0, return_inverse=True)
        return np.array([ratio.get(row.tobytes(), 0.0) for row in rows])[inverse.ravel()]

    return score

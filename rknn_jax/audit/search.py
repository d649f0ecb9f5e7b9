"""Search for the inputs, and the event, that come closest to the limit of a guarantee.

All games get a few runs, the more telling ones get more, and the best one gets most. A choice made
here proves nothing: `rknn_jax.audit.verdict` judges it on other runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from rknn_jax.audit.bounds import Curve, lower_bounds
from rknn_jax.audit.distinguishers import (
    MOST_CORRELATED,
    Score,
    correlated,
    distinguishers,
    most_telling,
)
from rknn_jax.audit.game import Game

SEARCH_RUNS = 1000
"""Number of runs of each input in the first look at a game."""

GLANCE_ERROR = 0.1
"""Error of the bounds that rank games in the first look; no conclusion rests on them."""

FINALISTS = 8
"""Number of games that are looked at closely after the first look."""

FEW_RUNS = 100
"""Number of runs of the last look up to which no other look can be shorter than it."""

THRESHOLDS = 512
FEW_THRESHOLDS = 16
"""Number of levels at which the search cuts a score, and the first look cuts a column."""


class Event(NamedTuple):
    """Event of all views with a score of at least the threshold."""

    distinguisher: str
    score: Score
    threshold: float

    def hits(self, seen: Sequence[np.ndarray]) -> np.ndarray:
        """Return the number of runs of either input in which the event happened, int `[2]`."""
        return np.array([np.sum(self.score(rows) >= self.threshold) for rows in seen])


def search(
    key: jax.Array, games: Sequence[Game], curve: Curve, runs: int, error: float
) -> tuple[Game, list[Event]]:
    """Return the most telling game, and its best events at the claimed delta and on the curve.

    The search looks at all games once, at a few of them closely, and drops half of these in every
    round. Where runs are so few that all looks would be of one size, it looks at all games closely,
    once.
    """
    first_key, key = jax.random.split(key)
    left = list(games)
    spent = SEARCH_RUNS
    final = runs // 2
    if 1 < len(left) and final <= FEW_RUNS:
        keys = [jax.random.fold_in(first_key, number) for number in range(len(left))]
        told = [
            _events(k, game, final, curve=curve, error=error)[1]
            for k, game in zip(keys, left, strict=True)
        ]
        left = _best(left, told, 1)
    elif len(left) > FINALISTS:
        keys = [jax.random.fold_in(first_key, number) for number in range(len(left))]
        told = [
            _glance(k, game, min(spent, final), curve) for k, game in zip(keys, left, strict=True)
        ]
        left = _best(left, told, FINALISTS)
    while len(left) > 1:
        round_key = jax.random.fold_in(key, len(left))
        keys = [jax.random.fold_in(round_key, number) for number in range(len(left))]
        told = [
            _events(k, game, min(spent, final), curve=curve, error=error)[1]
            for k, game in zip(keys, left, strict=True)
        ]
        left = _best(left, told, -(-len(left) // 2))
        spent = 2 * spent
    return left[0], list(
        _events(jax.random.fold_in(key, 0), left[0], final, curve=curve, error=error)[0]
    )


def _best(games: Sequence[Game], told: Sequence[float], count: int) -> list[Game]:
    """Return the most telling games."""
    order = sorted(range(len(games)), key=lambda number: -told[number])
    return [games[number] for number in order[:count]]


def _glance(key: jax.Array, game: Game, runs: int, curve: Curve) -> float:
    """Return how far the best cut seems to exceed the claim.

    The search covers cuts of single columns and of differences of two.
    """
    seen = [observed(game, k, world, runs) for world, k in enumerate(jax.random.split(key, 2))]
    a, b = correlated(seen[0], seen[1], most_telling(seen[0], seen[1])[:MOST_CORRELATED])
    first, second = (np.concatenate([rows, rows[:, a] - rows[:, b]], axis=1) for rows in seen)
    levels = np.concatenate([first, second])
    levels = np.quantile(levels, np.linspace(0, 1, FEW_THRESHOLDS)[1:], axis=0, method="nearest")
    hits = np.stack([_hits(first, levels), _hits(second, levels)], axis=-1)
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    return float((lower_bounds(hits, runs, GLANCE_ERROR, deltas) - claims).max())


def _hits(rows: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the number of rows at every level and above, int `[num_levels, num_columns]`."""
    return np.stack([np.sum(rows >= level[None], axis=0) for level in levels])


def _events(
    key: jax.Array, game: Game, runs: int, curve: Curve, error: float
) -> tuple[tuple[Event, ...], float]:
    """Return the best events at the claimed delta and on the rest of the curve, and a rank.

    The rank is the excess over the claim of a bound with `GLANCE_ERROR`. At the audit's own error,
    events that always happen would seem better than events that tell a little.
    """
    keys = jax.random.split(key, 2)
    seen = [observed(game, k, world, runs) for world, k in enumerate(keys)]
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
        runs_held = len(held[0])
        above = lower_bounds(hits, runs_held, error, deltas) - claims
        excess = lower_bounds(hits, runs_held, GLANCE_ERROR, deltas) - claims
        ranks.append(float(excess.max()))
        for column in (above[:, 0], above.max(axis=1)):
            best = int(column.argmax())
            found.append((column[best], Event(name, score, float(thresholds[best]))))
    at_delta = max(found[::2], key=lambda pair: pair[0])
    on_curve = max(found[1::2], key=lambda pair: pair[0])
    events = (at_delta[1],) if len(curve) == 1 else (at_delta[1], on_curve[1])
    return events, max(ranks)


def observed(game: Game, key: jax.Array, world: int, runs: int) -> np.ndarray:
    """Return the view in fresh runs on input 0 or 1 as finite numbers, float64 `[runs, f]`.

    `key` is consumed.

    Raises:
      ValueError: If the game shows another number of runs.
    """
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

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

from collections.abc import Sequence

import jax
import numpy as np

from rknn_jax.audit.bounds import Curve, claimed_curve, lower_bounds
from rknn_jax.audit.finding import Bound, Finding, Power
from rknn_jax.audit.game import Control, Game
from rknn_jax.audit.search import Event, observed, search
from rknn_jax.privacy.guarantee import Guarantee

NO_NOISE = "no noise at all"
"""Fault of the power that is stated where no control is given: every run tells the inputs apart."""

BOOTSTRAPS = 10_000
"""Number of drawn audits from which the power is estimated."""


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
        to none: the power is that against no noise at all.

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
    fresh = runs - runs // 2
    keys = jax.random.split(key, 4)
    game, events = search(keys[0], games, curve, runs=runs, error=error)
    bounds, hits = _judge(keys[1], game, events, curve=curve, runs=runs, error=error)
    if control is None:
        its_hits = [np.array([0, fresh])] * len(events)
        its_bounds = _bounds(np.stack(its_hits), fresh, curve, error)
    else:
        other, found = search(keys[2], control.games, curve, runs=runs, error=error)
        its_bounds, its_hits = _judge(keys[3], other, found, curve=curve, runs=runs, error=error)
    power = Power(
        NO_NOISE if control is None else control.against,
        _power(its_hits, fresh, curve, error),
        its_bounds[0].lower,
    )
    evidence = _evidence(bounds)
    lower = lower_bounds(np.stack(hits), fresh, error / len(hits), [evidence.delta])
    at = int(lower[:, 0].argmax())
    return Finding(
        guarantee.epsilon,
        guarantee.delta,
        bounds[0].lower,
        confidence,
        exact=False,
        broken=any(bound.lower > bound.claimed for bound in bounds),
        evidence=evidence,
        inputs=game.inputs,
        event=_in_words(events[at], hits[at], fresh),
        runs=fresh,
        games=len(games),
        power=power,
    )


def _evidence(bounds: Sequence[Bound]) -> Bound:
    """Return the bound farthest above its claim, or the first one if none is above."""
    best = int(np.argmax([bound.lower - bound.claimed for bound in bounds]))
    return bounds[best] if bounds[best].lower > bounds[best].claimed else bounds[0]


def _in_words(event: Event, hits: np.ndarray, runs: int) -> str:
    happened = " and ".join(f"{count / runs:.4g}" for count in hits)
    return (
        f"{event.distinguisher}, at {event.threshold:.6g} and above: a share of {happened} of "
        "the runs"
    )


def _judge(
    key: jax.Array, game: Game, events: Sequence[Event], curve: Curve, runs: int, error: float
) -> tuple[list[Bound], list[np.ndarray]]:
    """Count previously chosen events in fresh runs, and return each event's bounds."""
    fresh = runs - runs // 2
    seen = [observed(game, k, world, fresh) for world, k in enumerate(jax.random.split(key, 2))]
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
    if not rest:
        return [at_delta]
    return [at_delta, max(rest, key=lambda bound: bound.lower - bound.claimed)]


def _power(hits: Sequence[np.ndarray], runs: int, curve: Curve, error: float) -> float:
    """Return the probability that the better of equally frequent events contradicts the curve."""
    shares = np.stack(hits) / runs
    drawn = np.random.default_rng(0).binomial(runs, shares, (BOOTSTRAPS, len(hits), 2))
    deltas, claims = (np.array(values) for values in zip(*curve, strict=True))
    lower = lower_bounds(drawn, runs, error / len(hits), deltas)
    return float(np.mean((lower > claims).any(axis=2), axis=0).max())

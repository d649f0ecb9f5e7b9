"""Privacy profile of a guarantee: the pairs of epsilon and delta that hold for one release.

One pair is a point of a curve. A reader who needs another delta, or who composes this release with
others, needs the curve. `of` returns it for the statement of a release:

| kind    | noise                                 | points                                        |
|---------|---------------------------------------|-----------------------------------------------|
| `curve` | of bounded loss                       | deltas at `SHARES` of epsilon                 |
| `curve` | binomial, or several kinds            | epsilons at `DELTAS`                          |
| `zcdp`  | Gaussian, of all records              | rho, and epsilons at `DELTAS`                 |
| `point` | sampled, screened, or not told        | the guarantee's own                           |
| `none`  | none                                  | none                                          |

The events of a `point` are in its guarantee, and `accounting.epsilons` computes other points. A
guarantee whose epsilon depends on private data has its own point alone.

A value of noise with loss l is no worse than randomized response, whose losses are l and -l. The
loss of m values is then l (2j - m) with binomial j. The deltas of a `curve` are exact for that
pair.

References: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential Privacy", 2015; Bun
& Steinke, "Concentrated Differential Privacy", 2016.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy.special import betaln

from rknn_jax.privacy import accounting
from rknn_jax.privacy.analytic_gaussian import gaussian_epsilon
from rknn_jax.privacy.events import Event, Pure, known_of_all
from rknn_jax.privacy.guarantee import Guarantee

Kind = Literal["curve", "zcdp", "point", "none"]

SHARES = (0.0, 0.25, 0.5, 0.75)
"""Shares of a pure epsilon at which the profile has deltas."""

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
"""Deltas at which the profile has epsilons, for noise without a pure epsilon."""

MOST_LOSSES = 2**20
"""Largest number of losses that a curve adds up."""


@dataclass(frozen=True)
class Profile:
    """Pairs of epsilon and delta, each of which holds for the whole release.

    Attributes:
      kind: Kind of the profile, as in the module's table.
      points: Pairs of epsilon and delta, by growing epsilon.
      rho: Rho of zero-concentrated differential privacy; None if the noise is not Gaussian.
        Defaults to None.
    """

    kind: Kind
    points: tuple[tuple[float, float], ...]
    rho: float | None = None

    def asdict(self) -> dict[str, Any]:
        """Return the profile as JSON-ready values."""
        points = [{"epsilon": epsilon, "delta": delta} for epsilon, delta in self.points]
        rho = {} if self.rho is None else {"rho": self.rho}
        return {"kind": self.kind, **rho, "points": points}


@lru_cache(maxsize=16)
def of(guarantee: Guarantee) -> Profile:
    """Return the profile of a guarantee. The guarantee's own pair is one of its points."""
    own = (guarantee.epsilon, guarantee.delta)
    if guarantee.epsilon == math.inf:
        return Profile("none", ())
    events = guarantee.events
    if not events and not guarantee.delta:
        events = (Pure(guarantee.epsilon),)
    partial = any(event.is_partial for event in events)
    if not events or partial or guarantee.data_dependent:
        return Profile("point", (own,))
    rhos = known_of_all(event.rho for event in events)
    if rhos:
        return Profile("zcdp", _with_own(_epsilons(events), own), sum(rhos))
    if not known_of_all(event.pure_epsilon for event in events):
        return Profile("curve", _with_own(_epsilons(events), own))
    if math.prod(event.count + 1 for event in events) > MOST_LOSSES:
        return Profile("point", (own,))
    return Profile("curve", _with_own(_deltas(events), own))


def _with_own(
    points: Sequence[tuple[float, float]], own: tuple[float, float]
) -> tuple[tuple[float, float], ...]:
    """Return the points that say more than the guarantee's own, and that one.

    At a small delta, noise of bounded support has no finite epsilon, which says nothing.
    """
    others = [
        (epsilon, delta)
        for epsilon, delta in points
        if (epsilon < own[0] and delta > own[1]) or (own[0] < epsilon < math.inf and delta < own[1])
    ]
    return tuple(sorted([*others, own]))


def _epsilons(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the points at `DELTAS`, by the tightest accountant that applies."""
    precisions = known_of_all(event.precision for event in events)
    if precisions:
        multiplier = sum(precisions) ** -0.5
        return [(gaussian_epsilon(multiplier, delta), delta) for delta in DELTAS]
    every = [(accounting.epsilons(events, delta), delta) for delta in DELTAS]
    return [(min(found.values()), delta) for found, delta in every if found]


def _deltas(events: Sequence[Event]) -> list[tuple[float, float]]:
    """Return the points at `SHARES` of the largest loss, for noise of bounded loss."""
    losses = np.zeros(1)
    log_probs = np.zeros(1)
    for event in events:
        loss = event.loss
        chosen = np.arange(event.count + 1)
        ways = -betaln(chosen + 1, event.count - chosen + 1) - math.log(event.count + 1)
        likely = ways + loss * chosen - event.count * np.logaddexp(0, loss)  # a binomial's
        losses = np.add.outer(losses, loss * (2 * chosen - event.count)).ravel()
        log_probs = np.add.outer(log_probs, likely).ravel()
    probs = np.exp(log_probs)
    grid = [share * float(losses.max()) for share in SHARES]
    return [
        (epsilon, float(np.sum(probs * -np.expm1(np.minimum(epsilon - losses, 0.0)))))
        for epsilon in grid
    ]

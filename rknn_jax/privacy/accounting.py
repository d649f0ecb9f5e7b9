"""Composition of several releases by every accountant that applies.

A neighbor in reverse k-NN labeling changes up to 2kr counts by 1 each. One release is therefore 2kr
independent unit shifts, and T rounds are 2krT of them. Composed one by one, these shifts cost far
less than T times one shift by 2kr. At epsilon = 0.1 a round and delta = 1e-5, ten rounds cost 0.777
instead of 1.

| accountant          | what adds up                             | how tight                       |
|---------------------|------------------------------------------|---------------------------------|
| `pure`, `basic`     | epsilons and deltas                      | exact at delta = 0              |
| `analytic Gaussian` | 1/sigma²                                 | exact, for Gaussian noise alone |
| `RDP`               | Rényi divergence at every order          | 5% above and more, any delta    |
| `PLD`               | privacy loss, convolved on a fine grid   | 0.01% above                     |

zCDP has no row. Every event here has a Rényi curve at or below its zCDP line, so RDP is never
worse. What one event costs is a method of its class (`rknn_jax.privacy.events`); noise for a given
epsilon is found in `rknn_jax.privacy.calibration`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

from rknn_jax.privacy import renyi
from rknn_jax.privacy.analytic_gaussian import gaussian_epsilon
from rknn_jax.privacy.events import Event, Pure, known_of_all, merged
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.sampled_gaussian import ORDERS

POINTS_PER_LOSS = 64  # grid points in the smallest privacy loss: 2e-5 relative error of epsilon
MAX_POINTS = 2**17  # points in half the grid; overrides the above if losses differ widely in size
FOURIER_ROUNDING = 1e-13  # delta that PLD leaves for the rounding of its Fourier transforms,
ROUNDING_OF_VALUE = 2e-15  # and for each value: over five times the errors that tests find
LARGEST_PLD_LOSS = 50.0  # loss of one value; the exponential of a larger one soon overflows
MOST_PLD_VALUES = 2**16  # dp-accounting's memory grows with the number of values


def compose(
    guarantees: Iterable[Guarantee], delta: float | None = None, times: int = 1
) -> Guarantee:
    """Compose guarantees by the tightest accountant, which the result's `accountant` names.

    Args:
      guarantees: One or more guarantees of one relation, unit and trust. Each release may depend on
        the results of earlier ones.
      delta: Delta of the result, shared with guarantees that have a delta of their own. None or 0
        adds epsilons and deltas up, so that pure guarantees stay pure. Defaults to None.
      times: Number of releases of each guarantee. Defaults to 1.

    Returns:
      A guarantee at `delta`, or at the sum of the deltas if that sum is smaller and adding up is
      the tightest. It counts as a release only if all guarantees do, and as data-dependent if one
      is.

    Raises:
      ValueError: If relation, unit or trust differ, or `delta` is outside [0, 1) or too small for
        what was released.
    """
    guarantees = tuple(guarantees)
    for name in ("relation", "unit", "trust"):
        if len(values := {getattr(guarantee, name) for guarantee in guarantees}) != 1:
            raise ValueError(
                f"Expected guarantees of one {name} to compose, got {sorted(values)}; convert or "
                "report them apart."
            )
    epsilon, accountant, delta = min(
        _candidates(guarantees, _checked_delta(delta), times), key=lambda candidate: candidate[0]
    )
    first = guarantees[0]
    if len(guarantees) == times == 1 and _opaque(guarantees):
        accountant = first.accountant  # nothing was composed
    return Guarantee(
        epsilon,
        delta,
        first.relation,
        trust=first.trust,
        events=() if _opaque(guarantees) else _events(guarantees, times),
        unit=first.unit,
        accountant=accountant,
        data_dependent=any(guarantee.data_dependent for guarantee in guarantees),
        sampler="release"
        if all(guarantee.sampler == "release" for guarantee in guarantees)
        else "simulation",
    )


def epsilons(events: Iterable[Event], delta: float) -> dict[str, float]:
    """Return every accountant's epsilon for the events together.

    Args:
      events: Events of one run or of many.
      delta: Delta, in [0, 1). At 0, only pure differential privacy is possible.

    Returns:
      Epsilon by accountant, for those that apply: `pure` (at delta 0), `analytic Gaussian`, `RDP`
      and `PLD`, which cannot take more than `MOST_PLD_VALUES`, or a delta that is hardly above its
      rounding. One without a finite epsilon is left out beside others. No accountant applies to
      Gaussian noise at delta = 0.

    Raises:
      ValueError: If there are no events, or delta is outside [0, 1).
    """
    events = merged(events)
    delta = _checked_delta(delta)
    if not events:
        raise ValueError(
            "Expected at least one event, got none; where nothing was released there is nothing "
            "to account for."
        )
    largest = max(event.loss for event in events)
    if largest in (0, math.inf):
        return {"pure": largest}
    found = {}
    if pure := known_of_all(event.pure_epsilon for event in events):
        found["pure"] = math.fsum(pure)
    if not delta:
        return found
    if precisions := known_of_all(event.precision for event in events):
        found["analytic Gaussian"] = gaussian_epsilon(sum(precisions) ** -0.5, delta)
    if all(event.has_rdp for event in events):
        found["RDP"] = renyi.epsilon_of(renyi.curve(events), delta)
    if (
        all(event.has_pld for event in events)
        and delta >= smallest_pld_delta(num_values := number_of(events))
        and largest <= LARGEST_PLD_LOSS
        and num_values <= MOST_PLD_VALUES
    ):
        found["PLD"] = _pld_epsilon(events, delta)
    if any(map(math.isfinite, found.values())):
        found = {name: one for name, one in found.items() if math.isfinite(one)}
    return found


def _candidates(
    guarantees: Sequence[Guarantee], delta: float, times: int
) -> list[tuple[float, str, float]]:
    """Return (epsilon, accountant, delta) for every way to compose; the first wins a tie."""
    epsilon, sum_of_deltas = (
        sum_up((getattr(g, name) for g in guarantees), times) for name in ("epsilon", "delta")
    )
    found = [(epsilon, "basic" if sum_of_deltas else "pure", sum_of_deltas)]
    if not delta or epsilon == math.inf:
        return found
    if sum_of_deltas > delta:
        found = []
    opaque = _opaque(guarantees)  # These have no events, so their epsilon and delta add up.
    left = delta - sum_up((guarantee.delta for guarantee in opaque), times)
    if left > 0 and len(opaque) < len(guarantees):
        extra = sum_up((guarantee.epsilon for guarantee in opaque), times)
        found += [
            (extra + value, name, delta)
            for name, value in epsilons(_events(guarantees, times), left).items()
            if name != "pure"
        ]
    if not found:
        raise ValueError(
            f"Expected delta >= {sum_of_deltas}, the sum of the deltas of guarantees without "
            f"events, got delta={delta}."
        )
    return found


def exact_sum(amounts: Iterable[float]) -> Fraction:
    """Return the sum of finite amounts as a ledger adds them up: each by its shortest decimal."""
    return sum((Fraction(str(one)) for one in amounts), Fraction())


def sum_up(amounts: Iterable[float], times: int = 1) -> float:
    """Return `times` the sum of amounts, rounded up to a float if none is that sum.

    So a statement says no less than what a ledger was charged, and the parts of an amount add up to
    the amount.
    """
    amounts = tuple(amounts)
    if not all(map(math.isfinite, amounts)):
        return math.inf
    exact = times * exact_sum(amounts)
    try:
        found = float(exact)
    except OverflowError:
        return math.inf
    return found if Fraction(str(found)) >= exact else math.nextafter(found, math.inf)


def _opaque(guarantees: Sequence[Guarantee]) -> list[Guarantee]:
    return [guarantee for guarantee in guarantees if not guarantee.events and guarantee.delta]


def _events(guarantees: Sequence[Guarantee], times: int) -> tuple[Event, ...]:
    """Return the events of all guarantees that are not opaque, each `times` times.

    A pure guarantee without events becomes one pure event.
    """
    known = [guarantee for guarantee in guarantees if guarantee.events or not guarantee.delta]
    return merged(
        replace(event, count=times * event.count)
        for guarantee in known
        for event in guarantee.events or (Pure(guarantee.epsilon),)
    )


def number_of(events: Iterable[Event]) -> int:
    """Return the number of values that events release together."""
    return sum(event.count for event in events)


def smallest_pld_delta(num_values: int) -> float:
    """Return the smallest delta that PLD takes: ten times what it leaves for rounding."""
    return 10 * _rounding(num_values)


def _rounding(num_values: int) -> float:
    """Return the delta that PLD leaves for rounding.

    A transform is raised to the number of values, which multiplies the rounding of its phase.
    """
    return FOURIER_ROUNDING + ROUNDING_OF_VALUE * num_values


def _pld_epsilon(events: Sequence[Event], delta: float) -> float:
    # The grid has to hold nearly all losses: those within the epsilon of a tiny delta.
    spread = renyi.total_curve(event.typical_rdp(ORDERS) for event in events)
    smallest = min(event.loss for event in events if event.loss)
    interval = max(smallest / POINTS_PER_LOSS, renyi.epsilon_of(spread, 1e-15) / MAX_POINTS)
    losses = (event.pld(interval) for event in events if event.loss)
    together = reduce(lambda total, loss: total.compose(loss), losses)
    return float(together.get_epsilon_for_delta(delta - _rounding(number_of(events))))


def _checked_delta(delta: float | None) -> float:
    delta = 0.0 if delta is None else float(delta)
    if not 0 <= delta < 1:
        raise ValueError(
            f"Expected 0 <= delta < 1, got delta={delta}; 0 keeps pure differential privacy."
        )
    return delta

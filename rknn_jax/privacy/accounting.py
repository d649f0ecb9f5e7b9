"""Composition of several releases by every accountant that applies, and noise calibration.

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
worse.

Records that are sampled, screened or clipped have their own curves in
`rknn_jax.privacy.sampled_gaussian`.

**No relation is passed on.** An `Event`'s parameter is the noise divided by the change that a
neighbor makes, so the parameter already includes the relation. dp-accounting's own replace-one
doubles the Gaussian in one accountant and not in the other. Its event accountant forgets how often
randomized response is repeated. Privacy loss distributions are therefore made and composed here,
one by one. This is the only file that imports dp-accounting, and the import is late because it
takes 2 s.

References: Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018;
Mironov, "Rényi Differential Privacy", 2017; Canonne, Kamath & Steinke, "The Discrete Gaussian for
Differential Privacy", 2020; Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations
of Privacy Loss Distributions", 2022.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr

from rknn_jax.privacy import sampled_gaussian
from rknn_jax.privacy.guarantee import Event, Guarantee
from rknn_jax.privacy.sampled_gaussian import ORDERS

POINTS_PER_LOSS = 64  # grid points in the smallest privacy loss: 2e-5 relative error of epsilon
MAX_POINTS = 2**17  # points in half the grid; overrides the above if losses differ widely in size
SMALLEST_PLD_DELTA = 1e-11  # below it, the rounding error of the Fourier transform shows
FOURIER_ROUNDING = 1e-13  # delta that PLD leaves for that error: ten times the largest ever seen
LARGEST_PLD_LOSS = 50.0  # loss of one value; the exponential of a larger one soon overflows
SMALLEST_LOSS = 1e-4  # loss of one value below which its Rényi divergence is bounded, not computed
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
        first.trust,
        () if _opaque(guarantees) else _events(guarantees, times),
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
      and `PLD`, which cannot take more than `MOST_PLD_VALUES` or a delta below
      `SMALLEST_PLD_DELTA`. No accountant applies to Gaussian noise at delta = 0.

    Raises:
      ValueError: If there are no events, or delta is outside [0, 1).
    """
    events = _merged(events)
    delta = _checked_delta(delta)
    if not events:
        raise ValueError(
            "Expected at least one event, got none; where nothing was released there is nothing "
            "to account for."
        )
    losses = [_loss(event) for event in events]
    if max(losses) in (0, math.inf):
        return {"pure": max(losses)}
    found = {}
    if not any(_is_gaussian(event) or event.kind == "binomial" for event in events):
        found["pure"] = math.fsum(
            event.count * loss for event, loss in zip(events, losses, strict=True)
        )
    if not delta:
        return found
    if all(event.kind == "gaussian" and event.sampling_prob == 1 for event in events):
        found["analytic Gaussian"] = gaussian_epsilon(
            sum(event.count / event.parameter**2 for event in events) ** -0.5, delta
        )
    if not any(_no_curve(event) for event in events):
        found["RDP"] = _rdp_epsilon(events, delta)
    if (
        not any(event.kind == "concentrated" for event in events)
        and delta >= SMALLEST_PLD_DELTA
        and max(losses) <= LARGEST_PLD_LOSS
        and sum(event.count for event in events) <= MOST_PLD_VALUES
    ):
        found["PLD"] = _pld_epsilon(events, delta)
    return found


def rdp_epsilon_as_published(events: Iterable[Event], delta: float) -> float:
    """Return epsilon by the conversion in the papers of PATE and Private-kNN.

    The conversion is the least Rényi divergence + ln(1/delta) / (order - 1) over the orders.

    >>> round(rdp_epsilon_as_published([Event("gaussian", 85.0, 8192)], 1e-5), 4)
    5.6765
    """
    curve = _curve(_merged(events))
    return float(np.min(curve - math.log(delta) / (ORDERS - 1)))


def renyi_divergence(events: Iterable[Event], order: float) -> float:
    """Return the Rényi divergence of the events together.

    Args:
      events: Events of one release or of many.
      order: Order, above 1. The divergence is that of the next order at which curves are known.

    Returns:
      The divergence; infinity if it is not bounded, or cannot be computed.

    >>> order = float(ORDERS[2000])
    >>> round(renyi_divergence([Event("gaussian", 2.0)], order) / order, 6)
    0.125
    """
    merged = _merged(events)
    if any(_no_curve(event) for event in merged):
        return math.inf
    curve = _curve(merged)
    place = int(np.searchsorted(ORDERS, order))
    return float(curve[place]) if place < len(ORDERS) else math.inf


def least_deltas(events: Iterable[Event], interval: float) -> Callable[[float], float]:
    """Return a function from an epsilon of either sign to delta, rounded down, for audits.

    Args:
      events: Events of discrete Laplace or discrete Gaussian noise, at least one.
      interval: Grid to which privacy losses are rounded down.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {
        "pessimistic_estimate": False,
        "value_discretization_interval": interval,
        "use_connect_dots": False,
    }

    def of_event(event: Event) -> Any:
        if event.kind == "discrete_gaussian":
            loss = pld.from_discrete_gaussian_mechanism(event.parameter, **grid)
        else:
            loss = pld.from_discrete_laplace_mechanism(1 / event.parameter, **grid)
        return loss.self_compose(event.count)

    together = reduce(lambda total, loss: total.compose(loss), map(of_event, events))
    return lambda epsilon: float(together.get_delta_for_epsilon(epsilon))


MOST_NOISE = 1e20
"""Largest noise that `calibrate` tries, in units of its start."""


def calibrate(
    events_of: Callable[[float], Sequence[Event]], epsilon: float, delta: float, start: float = 1.0
) -> float:
    """Return the least noise, to 0.1%, at which events cost no more than epsilon.

    Args:
      events_of: Function from a factor of the noise to the events at that noise. Their epsilon
        falls as the factor grows.
      epsilon: Target epsilon, positive.
      delta: Delta, in [0, 1).
      start: Factor at which the search begins. Defaults to 1.

    Raises:
      ValueError: If no noise reaches epsilon, by accountants that can take a delta so small.
    """

    def log_cost(scale: float) -> float:
        found = epsilons(events_of(scale), delta)
        if not found:
            raise ValueError(
                f"Expected delta > 0, and for binomial noise delta >= {SMALLEST_PLD_DELTA} and at "
                f"most {MOST_PLD_VALUES} values, got delta={delta} and "
                f"{sum(event.count for event in events_of(scale))} values; choose a larger delta, "
                "or ask less."
            )
        cost = min(found.values())
        return math.log(cost) if cost else -math.inf

    # `slope` estimates the derivative of ln epsilon by ln scale.
    low = 0.0
    high = math.inf
    scale = start
    slope = -1.0
    last: tuple[float, float] | None = None
    while high > 1.001 * low:
        if scale > MOST_NOISE * start:
            raise ValueError(
                f"Expected an epsilon that some noise reaches at delta={delta}, got "
                f"epsilon={epsilon}; choose a larger epsilon or delta."
            )
        off = log_cost(scale) - math.log(epsilon)
        low, high = (scale, high) if off > 0 else (low, scale)
        if last and math.isfinite(last[1]) and math.isfinite(off) and last[0] != scale:
            slope = float(np.clip((off - last[1]) / math.log(scale / last[0]), -3.0, -0.3))
        last = scale, off
        # Overshoot to either side of the answer in turn, so that both ends close in.
        beyond = 1.0004 if off > 0 else 1 / 1.0004
        scale *= beyond * math.exp(float(np.clip(-off / slope, -1.0, 1.0)))
        if not low < scale < high:
            scale = math.sqrt(low * high)
    return high


def share_of_rounds(
    guarantee_of: Callable[[float], Guarantee], epsilon: float, delta: float, num_rounds: int
) -> float:
    """Return the largest epsilon of a round, to 0.2%, at which equal rounds cost no more than all.

    An even share always suffices. With a delta, rounds compose to less than their sum, so that each
    may cost more.

    Args:
      guarantee_of: Function from the epsilon of a round to its guarantee, whose cost grows with it.
      epsilon: Epsilon of all rounds together.
      delta: Delta of all rounds together.
      num_rounds: Number of rounds.
    """
    low = epsilon / num_rounds
    first = guarantee_of(low)
    known = bool(first.events) or not first.delta
    if num_rounds == 1 or not delta or not known or epsilon == math.inf:
        return low
    high = epsilon
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        together = compose([guarantee_of(middle)], delta, num_rounds)
        low, high = (middle, high) if together.epsilon <= epsilon else (low, middle)
    return low


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier at which Gaussian noise is (epsilon, delta)-DP.

    The noise multiplier is sigma in units of the L2 sensitivity, rounded up in the twelfth digit.
    This is the analytic calibration. The textbook's sqrt(2 ln(1.25/delta))/epsilon is larger, and
    wrong for epsilon > 1.

    >>> round(gaussian_noise_multiplier(1.0, 1e-5), 6)
    3.730632
    """
    _check_amounts(epsilon, delta)
    root = math.sqrt(-math.log(delta))
    # zCDP's noise multiplier always suffices.
    high = (math.sqrt(epsilon + root**2) + root) / (math.sqrt(2) * epsilon)
    low = high
    while _gaussian_log_delta(low, epsilon) <= math.log(delta):
        low /= 2
    multiplier: float = brentq(
        lambda sigma: _gaussian_log_delta(sigma, epsilon) - math.log(delta),
        low,
        2 * low,
        rtol=1e-13,
    ) * (1 + 1e-12)
    return multiplier


def zcdp_noise_multiplier(epsilon: float, delta: float) -> float:
    """Return a noise multiplier at which concentrated DP gives (epsilon, delta)-DP.

    It also holds for discrete Gaussian noise and whichever integers a neighbor changes, by
    Canonne, Kamath & Steinke, Theorem 15. It is larger than `gaussian_noise_multiplier`.

    >>> round(zcdp_noise_multiplier(1.0, 1e-5), 3)
    4.045
    """
    low = gaussian_noise_multiplier(epsilon, delta)
    root = math.sqrt(-math.log(delta))
    # Bun & Steinke's conversion, epsilon = rho + 2·sqrt(rho·log(1/delta)), always suffices.
    high = (math.sqrt(epsilon + root**2) + root) / (math.sqrt(2) * epsilon) * (1 + 1e-12)
    for _ in range(60):
        middle = (low + high) / 2
        enough = _rdp_epsilon([Event("gaussian", middle)], delta) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return epsilon of Gaussian noise with a given noise multiplier.

    The standard deviation is `noise_multiplier` times the L2 sensitivity.

    >>> round(gaussian_epsilon(3.730632, 1e-5), 5)
    1.0
    """
    _check_amounts(noise_multiplier, delta, "noise_multiplier")
    if _gaussian_log_delta(noise_multiplier, 0.0) <= math.log(delta):
        return 0.0
    high = 0.5 / noise_multiplier**2 + math.sqrt(-2 * math.log(delta)) / noise_multiplier
    found: float = brentq(
        lambda epsilon: _gaussian_log_delta(noise_multiplier, epsilon) - math.log(delta),
        0.0,
        high * (1 + 1e-9),
        rtol=1e-13,
    )
    return found


def binomial_coins(epsilon: float, delta: float, count: int) -> int:
    """Return the fewest fair coins, to 0.2%, that make integer counts (epsilon, delta)-DP.

    The number of heads is the noise.

    Args:
      epsilon: Target epsilon, positive.
      delta: Delta, in (0, 1).
      count: Number of counts that a neighbor changes, each by 1.
    """
    _check_amounts(epsilon, delta)
    start = math.sqrt(count) * gaussian_noise_multiplier(epsilon, delta)
    return math.ceil(
        4 * calibrate(lambda sigma: [Event("binomial", sigma, count)], epsilon, delta, start) ** 2
    )


@functools.cache
def discrete_gaussian_stddev(epsilon: float, delta: float, count: int) -> float:
    """Return the least integer noise that makes integer counts (epsilon, delta)-DP.

    Args:
      epsilon: Target epsilon, positive.
      delta: Delta, in (0, 1).
      count: Number of counts that a neighbor changes, each by 1.

    Returns:
      Sigma of the exact discrete Gaussian at which the unit shifts compose to (epsilon, delta);
      0.1% less does not suffice. Below sigma = 3, the analytic formula for continuous noise errs on
      either side, so it only starts the search.
    """
    _check_amounts(epsilon, delta)
    start = math.sqrt(count) * gaussian_noise_multiplier(epsilon, delta)
    return calibrate(
        lambda sigma: [Event("discrete_gaussian", sigma, count)], epsilon, delta, start
    )


def _candidates(
    guarantees: Sequence[Guarantee], delta: float, times: int
) -> list[tuple[float, str, float]]:
    """Return (epsilon, accountant, delta) for every way to compose; the first wins a tie."""
    epsilon, sum_of_deltas = (
        times * math.fsum(getattr(g, name) for g in guarantees) for name in ("epsilon", "delta")
    )
    found = [(epsilon, "basic" if sum_of_deltas else "pure", sum_of_deltas)]
    if not delta or epsilon == math.inf:
        return found
    if sum_of_deltas > delta:
        found = []
    opaque = _opaque(guarantees)  # These have no events, so their epsilon and delta add up.
    left = delta - times * math.fsum(guarantee.delta for guarantee in opaque)
    if left > 0 and len(opaque) < len(guarantees):
        extra = times * math.fsum(guarantee.epsilon for guarantee in opaque)
        found += [
            (extra + value, name, delta)
            for name, value in epsilons(_events(guarantees, times), left).items()
            if name != "pure"
        ]
    if not found:
        raise ValueError(
            f"Expected delta >= {sum_of_deltas:g}, the sum of the deltas of guarantees without "
            f"events, got delta={delta}."
        )
    return found


def _opaque(guarantees: Sequence[Guarantee]) -> list[Guarantee]:
    return [guarantee for guarantee in guarantees if not guarantee.events and guarantee.delta]


def _events(guarantees: Sequence[Guarantee], times: int) -> tuple[Event, ...]:
    """Return the events of all guarantees that are not opaque, each `times` times.

    A pure guarantee without events becomes one pure event.
    """
    known = [guarantee for guarantee in guarantees if guarantee.events or not guarantee.delta]
    return _merged(
        replace(event, count=times * event.count)
        for guarantee in known
        for event in guarantee.events or (Event("pure", guarantee.epsilon),)
    )


def _merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Join events of one kind and parameter, so that each is composed with itself in one step."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, count=1)] += event.count
    return tuple(replace(event, count=count) for event, count in counts.items())


def _is_gaussian(event: Event) -> bool:
    return event.kind in ("gaussian", "discrete_gaussian", "concentrated")


def _no_curve(event: Event) -> bool:
    """Return True if the event's Rényi divergence is not known."""
    return event.kind == "binomial"


def _loss(event: Event) -> float:
    """Return the privacy loss of one of the event's values.

    The loss is the largest one if it is bounded, and the typical one for a Gaussian.
    """
    if event.kind == "pure":
        return event.parameter
    loss = 1 / event.parameter if event.parameter else math.inf
    return (
        loss
        if event.sampling_prob == 1
        else math.log1p(event.sampling_prob * math.expm1(min(loss, 700)))
    )


def _gaussian_log_delta(sigma: float, epsilon: float) -> float:
    """Return ln delta by Balle & Wang's Theorem 8.

    delta = Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma).
    """
    upper, lower = log_ndtr(np.array([0.5, -0.5]) / sigma - epsilon * sigma)
    return float(upper + math.log(-math.expm1(epsilon + lower - upper)))


def _rdp_epsilon(events: Sequence[Event], delta: float) -> float:
    """Convert the events' Rényi curve to epsilon, at the best order.

    The conversion is Canonne, Kamath & Steinke's Proposition 12.
    """
    curve = _curve(events)
    values = curve + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(values.min()))


def _curve(events: Sequence[Event]) -> np.ndarray:
    """Add up the events' Rényi divergences; one that cannot be computed is infinite."""
    curve: np.ndarray = np.nan_to_num(
        sum(event.count * _renyi(event) for event in events), nan=math.inf, posinf=math.inf
    )
    return curve


def _renyi(event: Event) -> np.ndarray:
    """Return one value's Rényi divergence at all orders.

    The worst epsilon-DP pair is randomized response.
    """
    if event.screen or event.sampling_prob < 1:
        return sampled_gaussian.renyi(event)
    loss = _loss(event)
    # Below it the exact curve is lost in rounding. Every loss-DP pair has this one at most.
    if _is_gaussian(event) or loss < SMALLEST_LOSS:
        return ORDERS * loss**2 / 2
    up = (ORDERS - 1) * loss
    down = -ORDERS * loss
    if event.kind == "laplace":
        up = up + np.log(ORDERS / (2 * ORDERS - 1))
        down = down + np.log((ORDERS - 1) / (2 * ORDERS - 1))
    else:
        up = up - math.log1p(math.exp(-loss))
        down = down - math.log1p(math.exp(-loss))
    near = np.minimum((ORDERS - 1) * loss, 1)
    if event.kind == "laplace":
        # The linear terms of the two exponentials cancel.
        more = ORDERS * _above_tangent(near) + (ORDERS - 1) * _above_tangent(-ORDERS * loss)
        more /= 2 * ORDERS - 1
    else:
        more = np.expm1(near) * -np.expm1(-ORDERS * loss) / (1 + math.exp(-loss))
    # The logarithm of a sum near 1 would lose small losses; this is that sum less 1.
    exact = np.where(near < 1, np.log1p(more), np.logaddexp(up, down))
    divergence: np.ndarray = exact / (ORDERS - 1)
    return divergence


def _above_tangent(x: np.ndarray) -> np.ndarray:
    """Return e^x - 1 - x, to 12 digits from `SMALLEST_LOSS` on."""
    found: np.ndarray = np.expm1(x) - x
    return found


def _pld_epsilon(events: Sequence[Event], delta: float) -> float:
    if any(event.kind == "binomial" and _coins(event) == 0 for event in events):
        return math.inf  # no coin is no noise
    smallest = min(loss for event in events if (loss := _loss(event)))
    spread = [
        replace(event, kind="gaussian") if event.kind == "binomial" else event for event in events
    ]
    interval = max(smallest / POINTS_PER_LOSS, _rdp_epsilon(spread, 1e-15) / MAX_POINTS)
    losses = (
        _privacy_loss(event, interval).self_compose(event.count) for event in events if _loss(event)
    )
    return float(
        reduce(lambda total, loss: total.compose(loss), losses).get_epsilon_for_delta(
            delta - FOURIER_ROUNDING
        )
    )


def _coins(event: Event) -> int:
    """Return the number of fair coins whose heads are the noise of a binomial event."""
    return math.floor(4 * event.parameter**2 * (1 + 1e-12))


def _privacy_loss(event: Event, interval: float) -> Any:
    """Return one value's privacy loss distribution, rounded up to a grid by connecting the dots.

    One shift of discrete Laplace noise has the losses +-epsilon of randomized response, which is
    the worst epsilon-DP pair. dp-accounting's `from_randomized_response` computes the losses as a
    difference of logarithms, whose last digit may move them to the next grid point.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {"value_discretization_interval": interval, "use_connect_dots": True}
    if event.kind == "laplace":
        return pld.from_laplace_mechanism(event.parameter, **grid)
    if event.kind == "binomial":
        coins = _coins(event)
        largest = 1 / event.parameter**2 / 2 + 10 / event.parameter
        return _from_curve(
            lambda epsilons: _binomial_deltas(epsilons, coins),
            min(largest, math.log(coins)),
            interval,
        )
    if event.kind == "gaussian" and event.replaced and event.sampling_prob < 1:
        return _replaced(event, interval)
    if event.kind == "gaussian":
        return pld.from_gaussian_mechanism(
            event.parameter, sampling_prob=event.sampling_prob, **grid
        )
    if event.kind == "discrete_gaussian":
        return pld.from_discrete_gaussian_mechanism(event.parameter, **grid)
    return pld.from_discrete_laplace_mechanism(_loss(event), **grid)


def _replaced(event: Event, interval: float) -> Any:
    """Return the privacy loss distribution of a replaced record's curve (`sampled_gaussian`)."""
    z = event.parameter
    g = event.sampling_prob
    largest = math.log1p(g * math.expm1(min(0.5 / z**2 + 10 / z, 700)))
    deltas = (
        sampled_gaussian.opposite_deltas if event.opposite else sampled_gaussian.replaced_deltas
    )
    return _from_curve(lambda epsilons: deltas(epsilons, z, g), largest, interval)


def _binomial_deltas(epsilons: np.ndarray, coins: int) -> np.ndarray:
    """Return delta at each epsilon between heads of N fair coins and the same number plus one.

    delta = F(x) - e^epsilon F(x - 1), with x the largest number whose odds exceed e^epsilon. The
    odds of x heads against x - 1 are (N - x + 1)/x, infinite at x = 0. Binomials are symmetric, so
    both directions are alike.
    """
    from scipy.stats import binom  # Late: the import takes over a second.

    last = np.ceil((coins + 1) * expit(-epsilons)) - 1
    deltas: np.ndarray = np.maximum(
        binom.cdf(last, coins, 0.5) - np.exp(epsilons) * binom.cdf(last - 1, coins, 0.5), 0
    )
    return deltas


def _from_curve(
    deltas_of: Callable[[np.ndarray], np.ndarray], largest: float, interval: float
) -> Any:
    """Return the privacy loss distribution of a pair whose two directions share one curve.

    The curve is sampled from 0 to `largest`, its largest epsilon.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    points = np.arange(math.ceil(largest / interval) + 1)
    wanted = points * interval
    deltas = deltas_of(wanted)
    # The divergence H of (P, Q) at -epsilon follows from H of (Q, P) at epsilon.
    mirrored = -np.expm1(-wanted) + np.exp(-wanted) * deltas
    epsilons = np.concatenate([-points[:0:-1], points])
    deltas = np.concatenate([mirrored[:0:-1], deltas])
    return pld.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(interval, epsilons, deltas)
    )


def _checked_delta(delta: float | None) -> float:
    delta = 0.0 if delta is None else float(delta)
    if not 0 <= delta < 1:
        raise ValueError(
            f"Expected 0 <= delta < 1, got delta={delta}; 0 keeps pure differential privacy."
        )
    return delta


def _check_amounts(amount: float, delta: float, name: str = "epsilon") -> None:
    if not 0 < amount < math.inf:
        raise ValueError(f"Expected 0 < {name} < infinity, got {name}={amount}.")
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; Gaussian noise gives no pure "
            "differential privacy."
        )

"""Publication of PATE's data-dependent cost, by noise in proportion to its smooth sensitivity.

The cost is private itself. All of a query's q depends on one number, its gap: q = (m - 1)
Φc(gap/(√2 sigma)). One vote moves the gap by at most 2, since Φc(Φc⁻¹(u) - c) is concave in u:
these are Algorithm 3's B_U and B_L. The cost is tabulated on a grid of gaps, rounded up. Its
changes within d votes are therefore a maximum over the gaps within reach (Algorithms 4 and 5). The
paper's C5 and C6, that cost and change are monotone, are not needed; C6 fails at sigma = 20 and
alpha = 25. S = max_d e^(-bd) LS(d) is b-smooth, and N(f, (S s)²) costs exactly

    (-alpha b - ln(L)/2)/(alpha - 1) + alpha e^(-2b)/(2 s² L)  with  L = 1 - alpha (1 - e^(-2b)) > 0

The paper's Theorem 23 has alpha e^(2b)/s² for the last term. That is too little as alpha b nears
1/2, and the published scripts use 0.49. At alpha = 20 and s = 10 they charge 0.34 instead of 2.24.

S is private too, so `sanitize` also releases ln S with noise. Both numbers give a bound that fails
with probability delta/2. Fix epsilon in advance, no less than the cost of publishing the bound
alone at delta/2, and answer only if `bound` <= epsilon. Everything published is then (epsilon,
delta)-DP: either the votes cost no more, or the bound failed (Generalized PTR). A smaller epsilon
would not pay for a bound that is published and exceeds it.

References: Papernot et al., "Scalable Private Learning with PATE", 2018, Appendix B; Redberg, Zhu &
Wang, "Generalized PTR", 2023. The tabulated gap and the exact cost of the noise are ours.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, ndtr, ndtri_exp

from rknn_jax.privacy import pate
from rknn_jax.privacy.pate import GNMax

STEPS_PER_STDDEV = 1280  # steps of the gap's grid in sigma; rounding adds 0.1% to published costs
# Limits of the number of steps in a gap of 2, the change by one vote.
FEWEST_STEPS = 64
MOST_STEPS = 4096
ROUNDING = 1e-6  # rounding error of a gap, in steps
ROWS = 1024  # histograms processed at a time


@dataclass(frozen=True)
class Plan:
    """Parameters of the release of a data-dependent cost.

    Make the plan before anyone looks at the votes, or it is not private.

    Attributes:
      order: Order alpha, the only one that is released.
      smoothness: Exponent b of the smooth sensitivity S, with order (1 - e^(-2b)) < 1.
      noise: Factor s: the noise on the cost has standard deviation S s.
      scale_noise: Standard deviation of the noise on ln S.
    """

    order: float
    smoothness: float
    noise: float
    scale_noise: float

    def __post_init__(self) -> None:
        gnss_rdp(self.order, self.smoothness, self.noise)
        pate.check_positive(self.scale_noise, "scale_noise")

    @property
    def rdp(self) -> float:
        """Rényi cost of releasing both numbers, at the plan's order."""
        scale = self.order * (self.smoothness / self.scale_noise) ** 2 / 2
        return gnss_rdp(self.order, self.smoothness, self.noise) + scale


@dataclass(frozen=True)
class Sanitized:
    """A data-dependent epsilon that may be published.

    Attributes:
      bound: Epsilon of labels and release together, at delta/2. It fails with probability delta/2,
        so delta is the total.
      estimate: Epsilon at delta from the noisy cost itself: right on average, too small half the
        time, perhaps negative.
      stddev: Standard deviation of `estimate`. It is private: do not publish it.
    """

    bound: float
    estimate: float
    stddev: float

    def facts(self) -> dict[str, float]:
        """Return the epsilons by name, as `pate.report` does."""
        return {
            "data-dependent, sanitized bound": self.bound,
            "data-dependent, sanitized estimate": self.estimate,
            "standard deviation of the sanitized estimate (private)": self.stddev,
        }


def rounded_rdp(votes: ArrayLike, mechanism: GNMax, orders: ArrayLike) -> np.ndarray:
    """Return the cost of all queries as it is released, `[num_orders]`.

    Each query's cost is looked up at its gap, rounded up.
    """
    rows, weights, counts = _distinct(votes)
    answers, frees, shares = _cost_tables(counts, rows.shape[1], mechanism, orders)
    winner = rows[:, 0] - counts[0]
    gap = _index(_gap(rows, mechanism.stddev), mechanism)
    rdp: np.ndarray = (frees[:, winner] + shares[:, winner] * answers[:, gap]) @ weights
    return rdp


def local_sensitivity(votes: ArrayLike, mechanism: GNMax, orders: ArrayLike) -> np.ndarray:
    """Bound the change of the total cost by one more teacher, once d teachers have changed.

    Args:
      votes: Integers `[n, num_classes]`, with N teachers in each row.
      mechanism: GNMax mechanism.
      orders: Orders alpha, `[num_orders]`, above 1.

    Returns:
      LS(d) for d = 0 to N, `[num_orders, N + 1]`: at least |f(D₁) - f(D₂)| of `rounded_rdp` for all
      neighbors D₁ and D₂ of which one is within d teachers of `votes`. LS(d) never falls in d, and
      LS(d) of any votes is at most LS(d + 1) of their neighbors.
    """
    rows, weights, counts = _distinct(votes)
    tables = _cost_tables(counts, rows.shape[1], mechanism, orders)
    fewest = counts[0]
    teachers = counts[-1]
    total = np.zeros((len(tables[0]), teachers + 1))
    distances = np.arange(teachers + 1)
    reach = _steps(mechanism) + 1  # One more step for the rounding of both gaps.
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        weight = weights[start : start + ROWS]
        smallest, largest = _gaps_within_reach(some, teachers, mechanism)
        # Votes of the winner, as indices.
        few = np.maximum(some[:, :1] - distances, fewest) - fewest
        many = np.minimum(some[:, :1] + distances, teachers) - fewest
        for row, answer, free, share in zip(total, *tables, strict=True):
            padded = np.pad(answer, reach, mode="edge")  # The cost falls with the gap.
            change = np.maximum(padded[: answer.size] - answer, answer - padded[2 * reach :])
            row += weight @ (
                _range_max(_steps_of(free), few, many)
                + _range_max(_steps_of(share), few, many) * answer[np.maximum(smallest - reach, 0)]
                + _range_max(share, few, many) * _range_max(change, smallest, largest)
            )
    return total


def smooth_sensitivity(
    votes: ArrayLike, mechanism: GNMax, orders: ArrayLike, smoothness: float
) -> np.ndarray:
    """Return max_d e^(-smoothness d) LS(d), `[num_orders]`.

    It changes between neighbors by at most a factor of e^smoothness.
    """
    pate.check_positive(smoothness, "smoothness")
    return _discounted(local_sensitivity(votes, mechanism, orders), smoothness)


def gnss_rdp(order: float, smoothness: float, noise: float) -> float:
    """Return the Rényi divergence of N(f, (S s)²) between neighbors, a bound that is attained.

    Neighbors satisfy |f - f'| <= S and S', with S/S' in [e^-b, e^b].

    Args:
      order: Order alpha, above 1.
      smoothness: Exponent b, positive.
      noise: Factor s of the noise.

    Raises:
      ValueError: If alpha (1 - e^(-2b)) >= 1, for which the divergence is infinite.
    """
    order = float(pate.checked_orders(order)[0])
    pate.check_positive(smoothness, "smoothness")
    pate.check_positive(noise, "noise")
    left = 1 + order * math.expm1(-2 * smoothness)
    if left <= 0:
        raise ValueError(
            f"Expected order * (1 - exp(-2 smoothness)) < 1, got order={order} and "
            f"smoothness={smoothness}; lower one of them."
        )
    shape = (-order * smoothness - math.log(left) / 2) / (order - 1)
    return shape + order * math.exp(-2 * smoothness) / (2 * noise**2 * left)


def plan_release(guess: ArrayLike, mechanism: GNMax, delta: float) -> Plan:
    """Choose order, smoothness and noise for a small `bound` at the expected votes.

    Args:
      guess: Expected votes `[n, num_classes]`, with as many queries and teachers as there will be:
        votes on public data, or `expected_votes`. Never pass the votes that are to be protected. A
        poor guess costs accuracy, not privacy.
      mechanism: GNMax mechanism.
      delta: Delta, in (0, 1).

    Raises:
      ValueError: If votes matter at no order, so that only the data-independent cost exists.
    """
    pate.check_delta(delta)
    orders = 1 + np.geomspace(1.0, 100.0, 40)
    costs = rounded_rdp(guess, mechanism, orders)
    sensitivities = local_sensitivity(guess, mechanism, orders)
    spreads = np.array([0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5])
    multipliers = np.array([_multiplier(spread, delta / 2) for spread in spreads])
    best = math.inf
    plan = None
    for order, cost, sensitivity in zip(orders.tolist(), costs, sensitivities, strict=True):
        if not sensitivity[-1]:
            continue
        for used in np.arange(0.05, 0.95, 0.05):
            smoothness = -math.log1p(-used / order) / 2
            slopes = multipliers * _discounted(sensitivity, smoothness)  # slope of the bound in s
            curvature = order * math.exp(-2 * smoothness) / (1 - used)
            noises = np.cbrt(curvature / slopes)  # minimizes curvature/(2 s²) + slope s
            for spread, slope, noise in zip(spreads.tolist(), slopes, noises.tolist(), strict=True):
                candidate = Plan(order, smoothness, noise, spread)
                bound = pate.rdp_to_epsilon(
                    [cost + noise * slope + candidate.rdp], [order], delta / 2
                )
                if bound < best:
                    best = bound
                    plan = candidate
    if plan is None:
        raise ValueError(
            "Expected votes that can matter at some order, got none; report the data-independent "
            "cost."
        )
    return plan


def expected_votes(num_queries: int, num_teachers: int, num_classes: int) -> np.ndarray:
    """Return votes for a plan without prior knowledge.

    Winners have half to all of the votes, evenly spaced, and runners-up half of the rest.

    Returns:
      Integers `[num_queries, num_classes]`.
    """
    if min(num_queries, num_teachers) < 1 or num_classes < 2:
        raise ValueError(
            f"Expected num_queries >= 1, num_teachers >= 1 and num_classes >= 2, "
            f"got num_queries={num_queries}, num_teachers={num_teachers} and "
            f"num_classes={num_classes}."
        )
    votes = np.zeros((num_queries, num_classes), int)
    votes[:, 0] = np.ceil(np.linspace(num_teachers / 2, num_teachers, num_queries))
    rest = num_teachers - votes[:, 0]
    votes[:, 1] = rest if num_classes == 2 else (rest + 1) // 2
    for label in range(2, num_classes):
        votes[:, label] = (num_teachers - votes.sum(axis=1)) // (num_classes - label)
    return votes


def sanitize(
    rng: np.random.Generator, votes: ArrayLike, mechanism: GNMax, plan: Plan, delta: float
) -> Sanitized:
    """Release the data-dependent epsilon of the votes.

    Args:
      rng: Generator of the noise. The noise is floating-point, so this simulates a release.
      votes: Integers `[n, num_classes]`, with equally many teachers in each row, for queries that
        were chosen in advance.
      mechanism: GNMax mechanism.
      plan: Plan that was made without the votes.
      delta: Delta, in (0, 1).

    Raises:
      ValueError: If no votes matter at the plan's order.
    """
    pate.check_delta(delta)
    order = [plan.order]
    cost = float(rounded_rdp(votes, mechanism, order)[0])
    sensitivity = float(smooth_sensitivity(votes, mechanism, order, plan.smoothness)[0])
    if not sensitivity:
        raise ValueError(
            f"Expected an order at which votes can matter, got plan.order={plan.order}; "
            "plan_release finds one."
        )
    rows, weights, counts = _distinct(votes)
    worst = weights.sum() * float(
        pate.data_independent_rdp(int(counts[-1]), rows.shape[1], mechanism, order)[0]
    )
    scale = sensitivity * math.exp(plan.scale_noise * rng.normal())
    noisy = cost + sensitivity * plan.noise * rng.normal()
    upper = min(
        max(noisy + _multiplier(plan.scale_noise, delta / 2) * plan.noise * scale, 0.0), worst
    )
    return Sanitized(
        bound=pate.rdp_to_epsilon([upper + plan.rdp], order, delta / 2),
        estimate=noisy + plan.rdp + float(pate.conversion(np.array(order), delta)[0]),
        stddev=sensitivity * plan.noise,
    )


def _cost_tables(
    counts: np.ndarray, classes: int, mechanism: GNMax, orders: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cost of an answer by gap, and a query's other costs by most votes.

    A query costs at most `free` + `share` * `answer`, since its divergence is convex in the
    answer's. `share` is the slope of the chord.

    Returns:
      answer: Cost of an answer, `[num_orders, num_gaps]`, over all gaps from each grid point up to
        the next.
      free, share: Cost without the answer, and the answer's factor, `[num_orders, num_counts]`, for
        all `counts` of votes that a winner can have.
    """
    orders = pate.checked_orders(orders)
    stddev = mechanism.stddev
    step = 2 / _steps(mechanism)
    gaps = step * np.arange(int(counts[-1] / step) + 1)
    log_q = np.minimum(math.log(classes - 1) + log_ndtr(-gaps / (math.sqrt(2) * stddev)), 0.0)
    # A smaller gap's bound holds for a larger gap.
    answer = np.minimum.accumulate(pate.gnmax_rdp(log_q, stddev, orders), axis=0).T
    if mechanism.screen is None:
        return answer, np.zeros((orders.size, counts.size)), np.ones((orders.size, counts.size))
    most = orders / stddev**2
    free, full = (
        pate.screened_rdp(counts, counts, mechanism.screen, answer=cost, orders=orders)
        for cost in (np.zeros(1), most)
    )
    return answer, free.T, ((full - free) / most).T


def _gaps_within_reach(
    ordered: np.ndarray, teachers: int, mechanism: GNMax
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest gap within reach, as indices, `[n, N + 1]` each.

    The reach is any votes within d = 0 to N teachers. The gap is smallest if all moved votes go
    from the winner to the runner-up, as Phi_c is convex until another class wins; from then on the
    gap counts as 0. The gap is largest if the winner takes each vote from the current second.
    """
    everyone = np.arange(len(ordered))
    closer = ordered.copy()
    wider = ordered.copy()
    low, high = np.zeros((2, len(ordered), teachers + 1), np.int32)
    for distance in range(teachers + 1):
        still = closer[:, 0] >= closer[:, 1]
        low[still, distance] = _index(_gap(closer[still], mechanism.stddev), mechanism)
        high[:, distance] = _index(_gap(wider, mechanism.stddev), mechanism)
        closer[:, 0] -= 1
        closer[:, 1] += 1
        second = 1 + np.argmax(wider[:, 1:], axis=1)
        taken = np.minimum(wider[everyone, second], 1)
        wider[everyone, second] -= taken
        wider[:, 0] += taken
    return low, high


def _steps_of(table: np.ndarray) -> np.ndarray:
    """Return the largest difference of each value from its neighbors in the table."""
    steps = np.abs(np.diff(table))
    largest: np.ndarray = np.maximum(np.append(steps, 0.0), np.append(0.0, steps))
    return largest


def _range_max(table: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return max(table[low : high + 1]) for arrays of both ends.

    The maxima of all ranges of a power of two give the result.
    """
    level = np.frexp(high - low + 1)[1] - 1
    found = np.empty(low.shape)
    for power in range(int(level.max()) + 1):
        here = level == power
        width = 2**power
        found[here] = np.maximum(table[low[here]], table[high[here] - width + 1])
        table = np.maximum(table[:-width], table[width:])
    return found


def _discounted(sensitivity: np.ndarray, smoothness: float) -> np.ndarray:
    largest: np.ndarray = np.max(
        sensitivity * np.exp(-smoothness * np.arange(sensitivity.shape[-1])), axis=-1
    )
    return largest


def _multiplier(spread: float, failure: float) -> float:
    """Return z with P[Z₁ < -z e^(spread Z₂)] <= failure, by bisection of ln z.

    Z₁ and Z₂ are independent standard normal.
    """
    nodes = np.linspace(-12, 12, 1201)
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    low = -40.0
    high = 40.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if weights @ ndtr(-np.exp(middle + spread * nodes)) <= failure
            else (middle, high)
        )
    return math.exp(high)


def _gap(ordered: np.ndarray, stddev: float) -> np.ndarray:
    """Return the winner's gap to all other classes if they were equal, at the same q."""
    gap: np.ndarray = (
        -math.sqrt(2)
        * stddev
        * ndtri_exp(pate.log_union(ordered, stddev) - math.log(ordered.shape[1] - 1))
    )
    return gap


def _steps(mechanism: GNMax) -> int:
    """Return the number of grid steps in a gap of 2."""
    return int(
        np.clip(math.ceil(2 * STEPS_PER_STDDEV / mechanism.stddev), FEWEST_STEPS, MOST_STEPS)
    )


def _index(gap: np.ndarray, mechanism: GNMax) -> np.ndarray:
    return np.maximum(np.floor(gap * _steps(mechanism) / 2 - ROUNDING), 0).astype(np.int32)


def _distinct(votes: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct histograms, their frequencies, and all possible votes of a winner."""
    rows, weights = np.unique(pate.checked_votes(votes), axis=0, return_counts=True)
    return rows, weights, pate.winner_counts(pate.count_teachers(rows), rows.shape[1])

"""How PATE's data-dependent cost, which is private itself, can be published: with noise in
proportion to its smooth sensitivity.

All of a query's q hangs on one number, its gap: q = (m - 1) Φc(gap/(√2 sigma)). One vote moves the
gap by at most 2, since Φc(Φc⁻¹(u) - c) is concave in u: these are Algorithm 3's B_U and B_L. The
cost is tabulated on a grid of gaps, rounded up, so that its changes within d votes are a maximum
over the gaps within reach (Algorithms 4 and 5). The paper's C5 and C6, that cost and change are
monotone, are not needed; C6 fails at sigma = 20 and alpha = 25. S = max_d e^(-bd) LS(d) is
b-smooth, and N(f, (S s)²) costs exactly

    (-alpha b - ln(L)/2)/(alpha - 1) + alpha e^(-2b)/(2 s² L)  with  L = 1 - alpha (1 - e^(-2b)) > 0

The paper's Theorem 23 has alpha e^(2b)/s² for the last term: too little as alpha b nears 1/2, and
the published scripts take 0.49. At alpha = 20 and s = 10 they charge 0.34 for 2.24. S is private
too, so `sanitize` also releases ln S with noise, and from both a bound that fails with probability
delta/2. Who fixes epsilon in advance, no less than what publishing the bound alone costs at
delta/2, and answers only if `bound` <= epsilon has (epsilon, delta)-DP of everything published:
either the votes cost no more, or the bound failed (Generalized PTR). A smaller epsilon would not
pay for a bound that is published and above it.

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

STEPS_PER_STDDEV = (
    1280  # of the grid of gaps; the rounded cost of the published settings is 0.1% above
)
# in a gap of 2, which one vote changes
FEWEST_STEPS = 64
MOST_STEPS = 4096
ROUNDING = 1e-6  # of a gap, in steps
ROWS = 1024  # histograms at a time


@dataclass(frozen=True)
class Plan:
    """How a data-dependent cost will be released.

    Made before anyone looks at the votes, or it is not private.

    Attributes:
      order: alpha, the only one that is released.
      smoothness: b of the smooth sensitivity S, with order (1 - e^(-2b)) < 1.
      noise: s, so that the noise on the cost has standard deviation S s.
      scale_noise: standard deviation of the noise on ln S.
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
        """What the release costs at the order, of both numbers."""
        scale = self.order * (self.smoothness / self.scale_noise) ** 2 / 2
        return gnss_rdp(self.order, self.smoothness, self.noise) + scale


@dataclass(frozen=True)
class Sanitized:
    """A data-dependent epsilon that may be published.

    Attributes:
      bound: epsilon of labels and release together, but with probability delta/2; at delta/2, so
        delta in total.
      estimate: epsilon at delta with the noisy cost as it came: right on average, too small half
        the time, perhaps negative.
      stddev: standard deviation of `estimate`. Private: not to be published.
    """

    bound: float
    estimate: float
    stddev: float

    def told(self) -> dict[str, float]:
        """Return its epsilons by what they are, as `pate.report` does."""
        return {
            "data-dependent, sanitized bound": self.bound,
            "data-dependent, sanitized estimate": self.estimate,
            "standard deviation of the sanitized estimate (private)": self.stddev,
        }


def rounded_rdp(votes: ArrayLike, mechanism: GNMax, orders: ArrayLike) -> np.ndarray:
    """Return the cost of all queries as it is released, [num_orders]: each query's looked up at
    its gap, rounded up.
    """
    rows, weights, counts = _distinct(votes)
    answers, frees, shares = _cost_tables(counts, rows.shape[1], mechanism, orders)
    winner = rows[:, 0] - counts[0]
    gap = _index(_gap(rows, mechanism.stddev), mechanism)
    return (frees[:, winner] + shares[:, winner] * answers[:, gap]) @ weights


def local_sensitivity(votes: ArrayLike, mechanism: GNMax, orders: ArrayLike) -> np.ndarray:
    """Bound by how much one teacher more can change the cost of all queries, once d teachers have
    changed.

    Args:
      votes: integers of shape [n, num_classes], of N teachers each.
      mechanism: GNMax.
      orders: alpha, [num_orders], above 1.

    Returns:
      LS(d) for d = 0 to N, [num_orders, N + 1]: at least |f(D₁) - f(D₂)| of `rounded_rdp` for all
      neighbours D₁ and D₂ of which one is within d teachers of `votes`. It never falls in d, and
      LS(d) of any votes is at most LS(d + 1) of their neighbours.
    """
    rows, weights, counts = _distinct(votes)
    tables = _cost_tables(counts, rows.shape[1], mechanism, orders)
    fewest = counts[0]
    teachers = counts[-1]
    total = np.zeros((len(tables[0]), teachers + 1))
    distances = np.arange(teachers + 1)
    reach = _steps(mechanism) + 1  # one more for the rounding of both gaps
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        weight = weights[start : start + ROWS]
        smallest, largest = _gaps_within_reach(some, teachers, mechanism)
        few = (
            np.maximum(some[:, :1] - distances, fewest) - fewest
        )  # votes of the winner, as indices
        many = np.minimum(some[:, :1] + distances, teachers) - fewest
        for row, answer, free, share in zip(total, *tables, strict=True):
            padded = np.pad(answer, reach, mode="edge")  # falls with the gap
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
    """Return max_d e^(-smoothness d) LS(d), [num_orders], which changes between neighbours by at
    most a factor e^smoothness.
    """
    pate.check_positive(smoothness, "smoothness")
    return _discounted(local_sensitivity(votes, mechanism, orders), smoothness)


def gnss_rdp(order: float, smoothness: float, noise: float) -> float:
    """Return the Rényi divergence of N(f, (S s)²), for |f - f'| at most S and S', and S/S' in
    [e^-b, e^b]. It is attained.

    Args:
      order: alpha, above 1.
      smoothness: b, positive.
      noise: s.

    Raises:
      ValueError: where alpha (1 - e^(-2b)) >= 1, at which it is infinite.
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
    """Choose order, smoothness and noise so that `bound` would be small for the votes one expects.

    Args:
      guess: [n, num_classes], as many queries and teachers as there will be: votes on public data,
        or `expected_votes`. Never the votes that are to be protected. A poor guess costs accuracy,
        not privacy.
      mechanism: GNMax.
      delta: in (0, 1).

    Raises:
      ValueError: where votes matter at no order, so that the data-independent cost is all there is.
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
            slopes = multipliers * _discounted(sensitivity, smoothness)  # of the bound in s
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
    """Return votes to plan with where nothing is known: winners with half to all votes, evenly, and
    runners-up with half of the rest.

    Returns:
      Integers of shape [num_queries, num_classes].
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
      rng: of the noise, which is floating-point noise: a simulation of a release.
      votes: integers of shape [n, num_classes], of equally many teachers each, to queries that were
        chosen in advance.
      mechanism: GNMax.
      plan: made without the votes.
      delta: in (0, 1).

    Raises:
      ValueError: at an order at which no votes matter.
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
    """Return what an answer costs, by gap, and what a query costs that the answer does not, and its
    share of the answer, by most votes.

    A query costs at most `free` + `share` * `answer`, since its divergence is convex in the
    answer's: share is the slope of the chord.

    Returns:
      answer: [num_orders, num_gaps], of all gaps from each of the grid up to the next.
      free, share: [num_orders, num_counts], of all `counts` of votes that a winner can have.
    """
    orders = pate.checked_orders(orders)
    stddev = mechanism.stddev
    step = 2 / _steps(mechanism)
    gaps = step * np.arange(int(counts[-1] / step) + 1)
    log_q = np.minimum(math.log(classes - 1) + log_ndtr(-gaps / (math.sqrt(2) * stddev)), 0.0)
    answer = np.minimum.accumulate(
        pate.gnmax_rdp(log_q, stddev, orders), axis=0
    ).T  # a smaller gap's bound holds for a larger one
    if mechanism.screen is None:
        return answer, np.zeros((orders.size, counts.size)), np.ones((orders.size, counts.size))
    most = orders / stddev**2
    free, full = (
        pate.screened_rdp(counts, counts, mechanism.screen, cost, orders)
        for cost in (np.zeros(1), most)
    )
    return answer, free.T, ((full - free) / most).T


def _gaps_within_reach(
    ordered: np.ndarray, teachers: int, mechanism: GNMax
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest gap, as indices, of any votes within d = 0 to N teachers,
    [n, N + 1] each.

    The gap is smallest where all votes come from the winner and go to the runner-up, as Phi_c is
    convex where no other class has won yet; then it counts as 0. It is largest where the winner
    takes each from whoever is second by then.
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
    """Return by how much each value differs from its neighbours at most."""
    steps = np.abs(np.diff(table))
    return np.maximum(np.append(steps, 0.0), np.append(0.0, steps))


def _range_max(table: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return max(table[low : high + 1]) for arrays of both ends, from the maxima of all ranges
    of a power of two.
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
    return np.max(sensitivity * np.exp(-smoothness * np.arange(sensitivity.shape[-1])), axis=-1)


def _multiplier(spread: float, failure: float) -> float:
    """Return z with P[Z₁ < -z e^(spread Z₂)] <= failure for independent standard normal Z₁ and
    Z₂, by bisection of ln z.
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
    """Return the gap that all other classes would have to the winner if they were equal, at the
    same q.
    """
    return (
        -math.sqrt(2)
        * stddev
        * ndtri_exp(pate.log_union(ordered, stddev) - math.log(ordered.shape[1] - 1))
    )


def _steps(mechanism: GNMax) -> int:
    """Return how many steps of the grid are in a gap of 2."""
    return int(
        np.clip(math.ceil(2 * STEPS_PER_STDDEV / mechanism.stddev), FEWEST_STEPS, MOST_STEPS)
    )


def _index(gap: np.ndarray, mechanism: GNMax) -> np.ndarray:
    return np.maximum(np.floor(gap * _steps(mechanism) / 2 - ROUNDING), 0).astype(np.int32)


def _distinct(votes: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the histograms that differ, how often each occurs, and all numbers of votes that a
    winner can have.
    """
    rows, weights = np.unique(pate.checked_votes(votes), axis=0, return_counts=True)
    return rows, weights, pate.winner_counts(pate.count_teachers(rows), rows.shape[1])

"""Privacy cost of one noisy value if records are sampled, clipped or screened.

**Sampled records.** Each of n records takes part with probability g, so a neighbor's outputs are
mixtures (1-g)A + gB. Their common part A is the output without the record. If the record is added
or removed, the other side is A, and the pair's Rényi divergence and privacy loss are exact. If the
record is replaced, the other side is (1-g)A + gC. A, B and C differ by at most one swap. By
advanced joint convexity, the hockey-stick divergence at e >= 0 is then at most D(e) = g·delta(ln(1
+ (e^e - 1)/g)). Here delta is that of the noise without sampling: the cost of removal, now in both
directions. That curve is composed as it stands. In the papers' settings it costs 1 to 3% more than
add-remove, not twice as much. Every f-divergence is an integral of hockey-stick divergences with
weights f'' (Liese & Vajda), so the moment of order a is at most

    1 + a(a - 1) * integral of (e^((a-1)e) + e^(-ae)) D(e) de over e > 0.

**Clipped records that are replaced.** Let each record move the sum by at most C, in any direction.
B and C then lie 2C apart only in opposite directions from A. Let u and v be the contributions of
the record and of its replacement, in units of the noise, and e^e = a. Then

    H_a(P, Q) = g E (1 - a e^X - c e^Y)+,    c = (1-g)(a - 1)/g,

for normal X and Y of variances |u-v|² and |u|², covariance |u|² - uv and E e^X = E e^Y = 1. By
Kahane's convexity inequality, this grows with each entry of the covariance matrix. All entries are
largest at u = -v of norm C. The pair (1-g)N(0) + gN(+-C) therefore dominates, and its RDP and PLD
are exact. Noisy SGD costs up to about twice its cost under add-remove.

**Screened counts.** Given the sample of the others, the screen's outcome is one bit. RDP therefore
takes the largest divergence of two coins over all counts (Zhu et al., "Private-kNN", Theorem 7).
Counts start at 0 here, since a sample may hold fewer than k records. The counts of A, B and C
differ by at most 1 in pairs, so two of the three are equal and a replaced record costs no more. PLD
takes the noise before the threshold: the best threshold for each e makes the bound the same.

References: Balle, Barthe & Gaboardi, "Privacy Amplification by Subsampling", 2018, Theorem 2;
Mironov, Talwar & Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019; Zhu,
Yu, Chandraker & Wang, "Private-kNN: Practical Differential Privacy for Computer Vision", 2020;
Liese & Vajda, "On Divergences and Informations in Statistics and Information Theory", 2006;
Kahane, "Une inégalité du type de Slepian et Gordon sur les processus gaussiens", 1986.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr

ORDERS = 1 + np.geomspace(1e-3, 1e8, 4096)  # orders of the Rényi divergence
# Curves of sampled or screened noise are computed here and interpolated between, from above.
KNOTS = ORDERS[ORDERS < 1e4][::4]
MOST_POINTS = 2**18  # grid points of an integral
MOST_NOISE = 1e6  # beyond, differences of probabilities are rounded away, and sampling is left out


def rdp_above(cumulants: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return a Rényi divergence at orders, from above.

    Args:
      cumulants: (order - 1) times the divergence at the first `KNOTS`, float64 `[m]`. If there are
        none, the divergence is infinite.
      orders: Orders from the first of `ORDERS` on, float64 `[n]`.

    Returns:
      float64 `[n]`, infinite beyond the last known knot.
    """
    if not len(cumulants):
        return np.full_like(orders, math.inf)
    known = KNOTS[: len(cumulants)]
    # Cumulants are convex, so their chords bound them from above.
    curve: np.ndarray = np.interp(orders, known, cumulants, right=math.inf) / (orders - 1)
    return curve


def replaced_deltas(epsilons: np.ndarray, z: float, g: float) -> np.ndarray:
    """Return g·delta(ln(1 + (e^epsilon - 1)/g)) at epsilons >= 0.

    delta is that of Gaussian noise with noise multiplier z.
    """
    inner = np.log1p(np.expm1(epsilons) / g)
    upper = ndtr(0.5 / z - inner * z)
    lower = inner + log_ndtr(-0.5 / z - inner * z)
    deltas: np.ndarray = g * np.maximum(upper - np.exp(lower), 0)
    return deltas


@lru_cache(maxsize=16)
def replaced_cumulants(z: float, g: float) -> np.ndarray:
    """Return the cumulants of a replaced record: logarithms of the module's bound on the moments.

    They are at the first `KNOTS`, float64 `[m]`, for noise multiplier z and sampling probability g.
    The integrand of order a peaks near a/z². Orders that peak beyond the grid are left out.
    """
    if z > MOST_NOISE:
        return KNOTS * (KNOTS - 1) / (2 * z**2)
    most = min(36 / z, 700)  # beyond, a normal density is no float
    inner = np.arange(0, most, min(1 / z, 1) / 64)  # the curve of the module varies at this scale
    epsilons = np.log1p(g * np.expm1(inner))
    with np.errstate(divide="ignore"):
        log_delta = np.log(replaced_deltas(epsilons, z, g))
    # The trapezoidal rule is 1e-4 below at most.
    weights = np.convolve(np.diff(epsilons), [0.5005, 0.5005])
    log_curve = log_delta + np.log(weights)
    cumulants = []
    for order in KNOTS[(KNOTS / z**2 + 12 / z < most) & (KNOTS < 64 * max(z, 1))]:
        exponents = np.logaddexp((order - 1) * epsilons, -order * epsilons) + log_curve
        moment = math.log(order * (order - 1)) + _log_sum_exp(exponents)
        cumulants.append(np.logaddexp(0, moment))
    return np.array(cumulants)


def opposite_deltas(epsilons: np.ndarray, z: float, g: float) -> np.ndarray:
    """Return the hockey-stick divergence of (1-g)N(0, 1) + gN(+-s, 1) at epsilons >= 0.

    Here s = 1/(2z). The likelihood ratio grows with u. It is e^epsilon if y = e^(su) solves k y² -
    (1-g)(e^epsilon - 1) y - k e^epsilon = 0 with k = g e^(-s²/2). Hence ln y = epsilon/2 +
    arcsinh(e^w). The computation uses logarithms, since e^w soon overflows.
    """
    s = 0.5 / z
    with np.errstate(divide="ignore"):  # w is -infinity if epsilon is 0.
        w = np.log(np.expm1(epsilons)) - epsilons / 2 + s**2 / 2 + math.log(0.5 * (1 - g) / g)
    end = (
        epsilons / 2 + np.where(w < 20, np.arcsinh(np.exp(np.minimum(w, 20))), w + math.log(2))
    ) / s
    own, other = (g * ndtr(sign * s - end) for sign in (1, -1))
    deltas: np.ndarray = np.maximum(
        own - np.exp(epsilons) * other - (1 - g) * np.expm1(epsilons) * ndtr(-end), 0
    )
    return deltas


@lru_cache(maxsize=16)
def removed_cumulants(z: float, g: float) -> np.ndarray:
    """Return the cumulants of a record that is added or removed: ln E[(1 - g + g r)^order].

    They are at the first `KNOTS`, float64 `[m]`, for noise multiplier z and sampling probability g.
    r is the likelihood ratio of Gaussian noise with the record to noise without. Without the
    record, the noise is u ~ N(0, 1) and ln r = u/z - 1/(2z²). The trapezoidal rule is exact to
    rounding for such functions.
    """
    # Higher orders are of no use to little noise.
    knots = KNOTS[KNOTS < MOST_POINTS * z * _step(z)]
    return _sampled_cumulants(knots, z, g) if len(knots) else knots


@lru_cache(maxsize=16)
def opposite_cumulants(z: float, g: float) -> np.ndarray:
    """Return the cumulants of a replaced record whose replacement moves the value the other way.

    They are at the first `KNOTS`, float64 `[m]`. z is the noise divided by the whole change, so
    each of the two records has noise multiplier 2z. The integrand peaks twice as far out as that of
    `removed_cumulants`.
    """
    knots = KNOTS[KNOTS < MOST_POINTS * 2 * z * _step(2 * z) / 2]
    return _opposite_cumulants(knots, 2 * z, g) if len(knots) else knots


def _step(z: float) -> float:
    return min(0.25, z / 8)


def _grid(most: float, z: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points from -12 to `most`, and their log weights in a mean over N(0, 1)."""
    step = _step(z)
    u = np.arange(-12, most, step)
    return u, math.log(step / math.sqrt(2 * math.pi)) - u**2 / 2


def _sampled_cumulants(orders: np.ndarray, z: float, g: float) -> np.ndarray:
    """Return the cumulants at rising orders, whose integrands peak at order/z at most."""
    u, weight = _grid(orders[-1] / z + 12, z)
    log_ratio = u / z - 0.5 / z**2
    mixed = np.logaddexp(math.log1p(-g), math.log(g) + log_ratio)
    ends = np.searchsorted(u, orders / z + 12)
    parts = [
        (order, mixed[:end], log_ratio[:end], weight[:end])
        for order, end in zip(orders, ends, strict=True)
    ]
    return np.array([_sampled_cumulant(*part, g) for part in parts])


def _sampled_cumulant(
    order: float,
    mixed: np.ndarray,
    log_ratio: np.ndarray,
    weight: np.ndarray,
    g: float,
) -> float:
    log_moment = _log_sum_exp(order * mixed + weight)
    if log_moment > 1:
        return log_moment
    # Subtract order·g·(r - 1), whose mean is 0, so that adding 1 does not lose the rest. Apply the
    # small weights first, because the other factors alone would overflow.
    moment = _weighted_expm1(order * mixed, weight)
    linear = order * g * _weighted_expm1(log_ratio, weight)
    return math.log1p(float(np.sum(moment - linear)))


def _opposite_cumulants(orders: np.ndarray, z: float, g: float) -> np.ndarray:
    """Return ln E_Q[(P/Q)^order] at rising orders, for P and Q = (1-g)N(0, 1) + gN(+-1/z, 1).

    The integrand peaks at (2 order - 1)/z at most.
    """
    u, weight = _grid(2 * orders[-1] / z + 12, z)
    mixed, other = (
        np.logaddexp(math.log1p(-g), math.log(g) + sign * u / z - 0.5 / z**2) for sign in (1, -1)
    )
    ratio = mixed - other
    start = other + weight
    ends = np.searchsorted(u, 2 * orders / z + 12)
    cumulants = [
        _log_sum_exp(order * ratio[:end] + start[:end])
        for order, end in zip(orders, ends, strict=True)
    ]
    return np.maximum(cumulants, 0.0)


def _log_sum_exp(exponents: np.ndarray) -> float:
    most = exponents.max()
    return float(most + math.log(np.exp(exponents - most).sum()))


def _weighted_expm1(exponent: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return e^weight·(e^exponent - 1), for weights <= 0."""
    small = exponent < 1
    weighted: np.ndarray = np.where(
        small,
        np.exp(weight) * np.expm1(np.where(small, exponent, 0)),
        np.exp(weight + exponent) - np.exp(weight),
    )
    return weighted


@lru_cache(maxsize=16)
def screened_cumulants(stddev: float, g: float, threshold: float, most: int) -> np.ndarray:
    """Return the largest ln E_Q[(P/Q)^order] of two coins at `KNOTS`, float64 `[m]`.

    The maximum is over all counts from 0 to `most` and both directions.
    """
    above = (np.arange(most + 1) - threshold) / stddev
    passes = log_ndtr(above)
    fails = log_ndtr(-above)
    here = np.arange(most + 1)
    there = np.arange(1, most + 1)
    here = np.concatenate([here[:-1], here[1:]])
    there = np.concatenate([there, there - 1])
    # A sampling probability of 1 gives weight 0, whose logarithm is -infinity.
    with np.errstate(divide="ignore"):
        kept = np.log1p(-g)
    up, down = (
        np.logaddexp(kept, math.log(g) + coin[there] - coin[here]) for coin in (passes, fails)
    )
    largest = np.zeros(len(KNOTS))
    parts = 1 + len(KNOTS) * len(here) // MOST_POINTS
    for part in np.array_split(np.arange(len(KNOTS)), min(parts, len(KNOTS))):
        for orders in (KNOTS[part], 1 - KNOTS[part]):
            cumulants = _coin_cumulants(orders, up, down, passes=passes[here], fails=fails[here])
            largest[part] = np.maximum(largest[part], cumulants)
    return largest


def _coin_cumulants(
    orders: np.ndarray, up: np.ndarray, down: np.ndarray, passes: np.ndarray, fails: np.ndarray
) -> np.ndarray:
    """Return the largest cumulant of pairs of coins at each order.

    Args:
      orders: Orders of either sign.
      up: Logarithms of the ratios of the probabilities to pass.
      down: Logarithms of those to fail.
      passes: Logarithms of the probabilities to pass.
      fails: Logarithms of those to fail.
    """
    up_part = orders[:, None] * up
    down_part = orders[:, None] * down
    exact = np.logaddexp(passes + up_part, fails + down_part)
    change = np.exp(passes) * np.expm1(np.minimum(up_part, 1))
    change += np.exp(fails) * np.expm1(np.minimum(down_part, 1))
    # The logarithm of a sum near 1 would lose digits.
    small = np.maximum(np.abs(up_part), np.abs(down_part)) < 1
    most: np.ndarray = np.where(small, np.log1p(np.maximum(change, -0.5)), exact).max(axis=1)
    return most

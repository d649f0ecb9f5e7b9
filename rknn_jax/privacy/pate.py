"""Privacy cost of PATE's labels, given the agreement of the teachers.

Each of N teachers votes for one of m classes. Neighbors replace one teacher's data, so one vote of
every query may move. If the winner is clear, neither noise nor a neighbor changes the answer often.
The Rényi divergence is then far below the alpha/sigma² that covers all data. Let Φc be the upper
tail of the standard normal law.

    q   = Σ_j≠* Φc((n* - n_j)/(√2 sigma)), at least P[the answer is not the true one]
    mu  = sigma √ln(1/q),  e₁ = (mu + 1)/sigma²,  e₂ = mu/sigma²
    A   = (1 - q)/(1 - (q e^e₂)^(1 - 1/mu)),  B = e^e₁ q^(-1/mu)
    rdp = ln[(1 - q) A^(alpha-1) + q B^(alpha-1)]/(alpha - 1)

under three conditions: alpha < 1 + mu, mu > 1 (which says ln(1/q) > e₂) and ln q <= (mu - 1)e₂ - mu
ln((mu + 1)/(mu - 1)). Otherwise rdp = alpha/sigma². With x = √ln(1/q) and s = 1/sigma, ln A = ln(1
- q) - ln(1 - e^-(x-s)²) and ln B = 2xs + s². Under the conditions B >= A, so the bound grows with
q, and an upper bound of q suffices.

**Scope.** The cost bounds D(M(D) ‖ M(D')) for the votes D at hand and all neighbors D'. It does not
bound D(M(D') ‖ M(D)), which can be far larger. It adds up over queries that were chosen in advance.
It depends on the votes, so it is private and no DP statement; `smooth_sensitivity` publishes it
safely.

**Screening.** Confident-GNMax answers if max_j n_j + N(0, s₁²) >= T. The set of answered queries is
an outcome. Hence neither the published expectation rdp₁ + P[pass] rdp₂, nor rdp₁ + rdp₂ of the
queries that happened to be answered, is a Rényi divergence. Let p and p' be the pass probabilities
under the votes and under a neighbor's. The divergence of one query, skipped or labeled, is at most

    ln[(1 - p)^alpha (1 - p')^(1-alpha) + p^alpha p'^(1-alpha) e^((alpha-1) rdp₂)]/(alpha - 1)

for any set of answered queries. Its maximum over all votes is data-independent and needs no cap on
the number of answers: a high T acts as one.

References: Papernot et al., "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data", 2017, Theorems 2 and 3 and Lemma 4 (LNMax); Papernot et al., "Scalable Private
Learning with PATE", 2018, Theorem 6 and Propositions 7, 8 and 10 (GNMax); Canonne, Kamath &
Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Proposition 12 (conversion). The
screened cost is ours.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, logsumexp, ndtr

ORDERS = 1 + np.geomspace(0.1, 1e3, 400)  # orders alpha of the Rényi divergence
MOMENTS = np.arange(2.0, 10.0)  # orders of LNMax as published: moments 1 to 8


@dataclass(frozen=True)
class Screen:
    """Screen that answers the queries with max_j n_j + N(0, stddev²) >= threshold."""

    threshold: float
    stddev: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(
                f"Expected a finite threshold, got threshold={self.threshold}; leave screen out "
                "to answer every query."
            )
        check_positive(self.stddev, "stddev")


@dataclass(frozen=True)
class GNMax:
    """Arg max of the votes with noise N(0, stddev²); with a screen, Confident-GNMax."""

    stddev: float
    screen: Screen | None = None

    def __post_init__(self) -> None:
        check_positive(self.stddev, "stddev")


@dataclass(frozen=True)
class LNMax:
    """Arg max of the votes with Laplace noise of this scale."""

    scale: float

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")


def gnmax_log_q(votes: ArrayLike, stddev: float) -> np.ndarray:
    """Bound ln P[the noisy arg max is not the true one] (2018, Proposition 7).

    Args:
      votes: Integers `[n, num_classes]`.
      stddev: Standard deviation sigma of the noise, in votes.

    Returns:
      Bounds `[n]`, at most ln(1 - 1/num_classes).

    Raises:
      ValueError: If the votes are no counts, or sigma is out of range.
    """
    ordered = checked_votes(votes)
    check_positive(stddev, "stddev")
    log_q: np.ndarray = np.minimum(log_union(ordered, stddev), math.log1p(-1 / ordered.shape[1]))
    return log_q


def gnmax_rdp(log_q: ArrayLike, stddev: float, orders: ArrayLike) -> np.ndarray:
    """Return the Rényi divergence of each answer, given ln q, at most alpha/sigma².

    The formulas are Theorem 6 with Proposition 10 of the 2018 paper.

    Args:
      log_q: Upper bounds of ln q, `[n]`, at most 0.
      stddev: Standard deviation sigma of the noise, in votes.
      orders: Orders alpha, `[num_orders]`, above 1.

    Returns:
      Divergences `[n, num_orders]`.
    """
    check_positive(stddev, "stddev")
    orders = checked_orders(orders)
    log_q = _checked_log_q(log_q)
    # The cap keeps ln 0 finite.
    x = np.sqrt(np.minimum(-log_q, 1e300))[:, None]
    s = 1 / stddev
    mu = x * stddev
    high = orders - 1
    independent = orders * s**2
    with np.errstate(all="ignore"):  # The formula may overflow if the conditions fail.
        holds = (
            (orders < 1 + mu) & (mu > 1) & (-(x**2) <= (x - s) * x - 2 * mu * np.arctanh(1 / mu))
        )
        stays = np.log1p(-np.exp(-(x**2)))  # ln(1 - q)
        log_a = stays - np.log1p(-np.exp(-((x - s) ** 2)))
        log_b = 2 * x * s + s**2
        dependent = np.logaddexp(stays + high * log_a, high * log_b - x**2) / high
    return np.where(holds, np.clip(dependent, 0.0, independent), independent)


def screen_log_q(votes: ArrayLike, screen: Screen) -> np.ndarray:
    """Return ln of the smaller of P[pass] and P[fail], `[n]`."""
    distance = (checked_votes(votes)[:, 0] - screen.threshold) / screen.stddev
    log_q: np.ndarray = log_ndtr(-np.abs(distance))
    return log_q


def screen_rdp(log_q: ArrayLike, screen: Screen, orders: ArrayLike) -> np.ndarray:
    """Return the published Rényi divergence of the screen's outcome, `[n, num_orders]`.

    It is Theorem 6 with √2 s₁, at most alpha/(2 s₁²).
    """
    return gnmax_rdp(log_q, math.sqrt(2) * screen.stddev, orders)


def lnmax_log_q(votes: ArrayLike, scale: float) -> np.ndarray:
    """Bound ln P[the noisy arg max is not the true one], `[n]`.

    The bound is the union of (2 + gap)/(4 e^gap), with gap in scales (2017, Lemma 4).
    """
    ordered = checked_votes(votes)
    check_positive(scale, "scale")
    gaps = (ordered[:, :1] - ordered[:, 1:]) / scale
    log_q: np.ndarray = np.minimum(
        logsumexp(np.log(2 + gaps) - math.log(4) - gaps, axis=1), math.log1p(-1 / ordered.shape[1])
    )
    return log_q


def lnmax_rdp(log_q: ArrayLike, scale: float, orders: ArrayLike) -> np.ndarray:
    """Return the Rényi divergence of each answer, `[n, num_orders]` (2017, Theorems 2 and 3).

    An answer is (2/scale)-DP. Theorem 3 needs q <= 1/(1 + e^epsilon). The published script tests q
    < 1/2 instead, which is harmless: beyond the theorem's range the formula exceeds epsilon, and
    the minimum excludes it.
    """
    check_positive(scale, "scale")
    orders = checked_orders(orders)
    epsilon = 2 / scale
    log_q = _checked_log_q(log_q)[:, None]
    high = orders - 1
    independent = np.minimum(epsilon**2 * orders / 2, epsilon)
    with np.errstate(all="ignore"):
        stays = np.log1p(-np.exp(log_q))
        log_a = stays - np.log1p(-np.exp(epsilon + log_q))
        dependent = np.logaddexp(stays + high * log_a, log_q + high * epsilon) / high
    return np.where(
        log_q <= -np.logaddexp(0, epsilon), np.clip(dependent, 0.0, independent), independent
    )


def answer_rdp(votes: ArrayLike, mechanism: GNMax, orders: ArrayLike) -> np.ndarray:
    """Return the data-dependent Rényi divergence of each query, answered or not.

    Args:
      votes: Integers `[n, num_classes]`, with equally many teachers in each row.
      mechanism: GNMax or, with a screen, Confident-GNMax.
      orders: Orders alpha, `[num_orders]`, above 1.

    Returns:
      Divergences `[n, num_orders]`. They are private; the module states their scope.
    """
    ordered = checked_votes(votes)
    counts = winner_counts(count_teachers(ordered), ordered.shape[1])
    orders = checked_orders(orders)
    answer = gnmax_rdp(gnmax_log_q(votes, mechanism.stddev), mechanism.stddev, orders)
    if mechanism.screen is None:
        return answer
    return screened_rdp(ordered[:, 0], counts, mechanism.screen, answer=answer, orders=orders)


def data_independent_rdp(
    num_teachers: int, num_classes: int, mechanism: GNMax, orders: ArrayLike
) -> np.ndarray:
    """Return the Rényi divergence of a query for all votes, answered or not, `[num_orders]`."""
    orders = checked_orders(orders)
    answer = orders / mechanism.stddev**2
    if mechanism.screen is None:
        return answer
    counts = winner_counts(num_teachers, num_classes)
    most: np.ndarray = screened_rdp(
        counts, counts, mechanism.screen, answer=answer, orders=orders
    ).max(axis=0)
    return most


def screened_rdp(
    counts: np.ndarray, possible: np.ndarray, screen: Screen, answer: np.ndarray, orders: np.ndarray
) -> np.ndarray:
    """Return the divergence of a screened query, by most votes and order, over all neighbors.

    `answer`, which broadcasts, is the divergence of the answer itself.
    """

    def log_chances(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        distance = (count[:, None] - screen.threshold) / screen.stddev
        return log_ndtr(distance), log_ndtr(-distance)

    high = orders - 1
    (passes, fails) = log_chances(counts)
    worst = np.zeros(1)
    for step in (-1, 0, 1):
        other_passes, other_fails = log_chances(np.clip(counts + step, possible[0], possible[-1]))
        value = np.logaddexp(
            orders * fails - high * other_fails,
            orders * passes - high * other_passes + high * answer,
        )
        worst = np.maximum(worst, value)
    rdp: np.ndarray = worst / high
    return rdp


def rdp_to_epsilon(
    rdp: ArrayLike, orders: ArrayLike, delta: float, *, classic: bool = False
) -> float:
    """Return the smallest epsilon that the Rényi divergences imply at delta.

    Args:
      rdp: Rényi divergences, `[num_orders]`.
      orders: Orders alpha, `[num_orders]`, above 1.
      delta: Delta, in (0, 1).
      classic: True to add the published ln(1/delta)/(alpha - 1) instead of Canonne, Kamath &
        Steinke's smaller term. Defaults to False.
    """
    check_delta(delta)
    orders = checked_orders(orders)
    rdp = np.atleast_1d(np.asarray(rdp, float))
    if rdp.shape != orders.shape:
        raise ValueError(
            f"Expected one rdp for each order, got rdp of shape {rdp.shape} and orders of shape "
            f"{orders.shape}."
        )
    extra = -math.log(delta) / (orders - 1) if classic else conversion(orders, delta)
    return max(0.0, float(np.min(rdp + extra)))


def conversion(orders: np.ndarray, delta: float) -> np.ndarray:
    """Return the term that turns a Rényi divergence into epsilon at delta, perhaps negative.

    The term is from Canonne, Kamath & Steinke, Proposition 12.
    """
    added: np.ndarray = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return added


def report(
    votes: ArrayLike, mechanism: GNMax | LNMax, delta: float, *, answered: ArrayLike | None = None
) -> dict[str, float]:
    """Return every reported epsilon of PATE, by name.

    Args:
      votes: Integers `[n, num_classes]`, for all queries, answered or not.
      mechanism: LNMax, GNMax or Confident-GNMax.
      delta: Delta, in (0, 1).
      answered: Booleans `[n]`, for Confident-GNMax only. Defaults to None, which leaves out the
        epsilons that depend on it.

    Returns:
      Epsilon by name. `as published` uses the classic conversion, and moments 1 to 8 for LNMax.
      Epsilons that are "private" depend on the votes and may not be published; none of them is a DP
      statement.
    """
    check_delta(delta)
    screen = mechanism.screen if isinstance(mechanism, GNMax) else None
    if answered is not None and screen is None:
        raise ValueError(
            "Expected answered for a GNMax with a screen alone; without one every query is "
            "answered."
        )
    if isinstance(mechanism, LNMax):
        return _as_published(
            lnmax_rdp,
            lnmax_log_q(votes, mechanism.scale),
            mechanism.scale,
            orders=MOMENTS,
            delta=delta,
        )
    ordered = checked_votes(votes)
    independent = data_independent_rdp(count_teachers(ordered), ordered.shape[1], mechanism, ORDERS)
    found = {
        "data-independent": rdp_to_epsilon(len(ordered) * independent, ORDERS, delta),
        "data-dependent (private, not a DP statement)": rdp_to_epsilon(
            answer_rdp(votes, mechanism, ORDERS).sum(axis=0), ORDERS, delta
        ),
    }
    if screen is None:
        return found | _as_published(
            gnmax_rdp,
            gnmax_log_q(votes, mechanism.stddev),
            mechanism.stddev,
            orders=ORDERS,
            delta=delta,
        )
    return (
        found
        if answered is None
        else found
        | _confident_epsilons(
            votes, np.asarray(answered), mechanism.stddev, screen=screen, delta=delta
        )
    )


def _as_published(
    rdp: Callable[..., np.ndarray],
    log_q: np.ndarray,
    spread: float,
    orders: np.ndarray,
    delta: float,
) -> dict[str, float]:
    named = {
        "data-independent, as published": np.zeros_like(log_q),
        "data-dependent, as published (private, not a DP statement)": log_q,
    }
    return {
        name: rdp_to_epsilon(rdp(value, spread, orders).sum(axis=0), orders, delta, classic=True)
        for name, value in named.items()
    }


def _confident_epsilons(
    votes: ArrayLike, answered: np.ndarray, stddev: float, screen: Screen, delta: float
) -> dict[str, float]:
    """Return the epsilons that treat the number of answers as given, or as its expectation."""
    ordered = checked_votes(votes)
    queries, classes = ordered.shape
    if answered.shape != (queries,) or answered.dtype != bool:
        raise ValueError(
            f"Expected answered to be booleans of shape {(queries,)}, got {answered.dtype} of "
            f"shape {answered.shape}."
        )
    counts = winner_counts(count_teachers(ordered), classes)
    free = np.zeros(1)
    label = ORDERS / stddev**2
    worst_screen = screened_rdp(counts, counts, screen, answer=free, orders=ORDERS).max(axis=0)
    screens = screened_rdp(ordered[:, 0], counts, screen, answer=free, orders=ORDERS).sum(axis=0)
    labels = gnmax_rdp(gnmax_log_q(votes, stddev), stddev, ORDERS)
    passes = ndtr((ordered[:, 0] - screen.threshold) / screen.stddev)
    published = queries * ORDERS / (2 * screen.stddev**2) + answered.sum() * label
    expected = screen_rdp(screen_log_q(votes, screen), screen, ORDERS).sum(axis=0) + passes @ labels
    return {
        "data-independent, as many answered fixed in advance": rdp_to_epsilon(
            queries * worst_screen + answered.sum() * label, ORDERS, delta
        ),
        "data-independent, as many answered fixed in advance, as published": rdp_to_epsilon(
            published, ORDERS, delta, classic=True
        ),
        "data-dependent, those answered (private, no bound)": rdp_to_epsilon(
            screens + labels[answered].sum(axis=0), ORDERS, delta
        ),
        "data-dependent, expected, as published (private, no bound)": rdp_to_epsilon(
            expected, ORDERS, delta, classic=True
        ),
    }


def log_union(ordered: np.ndarray, stddev: float) -> np.ndarray:
    """Return ln of the sum that is q, `[n]`; the sum may exceed 1."""
    union: np.ndarray = np.logaddexp.reduce(
        log_ndtr((ordered[:, 1:] - ordered[:, :1]) / (math.sqrt(2) * stddev)), axis=1
    )
    return union


def winner_counts(teachers: int, classes: int) -> np.ndarray:
    """Return all numbers of votes that a winner can have."""
    if teachers < 1 or classes < 2:
        raise ValueError(
            f"Expected num_teachers >= 1 and num_classes >= 2, got num_teachers={teachers} and "
            f"num_classes={classes}."
        )
    return np.arange(-(-teachers // classes), teachers + 1)


def checked_votes(votes: ArrayLike) -> np.ndarray:
    """Check the votes and sort each row, winner first."""
    votes = np.asarray(votes)
    if votes.ndim != 2 or not votes.shape[0] or votes.shape[1] < 2:
        raise ValueError(
            "Expected votes of shape [n, num_classes] with n >= 1 and num_classes >= 2, got "
            f"shape {votes.shape}."
        )
    if votes.dtype.kind not in "iu" or votes.min() < 0:
        raise ValueError(
            f"Expected votes to be counts, integers of at least 0, got {votes.dtype} down to "
            f"{votes.min()}."
        )
    return -np.sort(-votes.astype(np.int64), axis=1)


def count_teachers(ordered: np.ndarray) -> int:
    """Return the number of votes in each row, and check that all rows have as many."""
    totals = ordered.sum(axis=1)
    if totals.min() != totals.max() or not totals[0]:
        raise ValueError(
            f"Expected votes of equally many teachers in every row, got {totals.min()} to "
            f"{totals.max()}; "
            "give those that abstain a class of their own."
        )
    return int(totals[0])


def checked_orders(orders: ArrayLike) -> np.ndarray:
    """Check the orders, `[num_orders]` or a scalar."""
    orders = np.atleast_1d(np.asarray(orders, float))
    if orders.ndim != 1 or not orders.size or not np.all((orders > 1) & (orders < math.inf)):
        raise ValueError(
            f"Expected 1 < orders < infinity, got orders={orders}; the limits 1 and infinity "
            "have other formulas."
        )
    return orders


def _checked_log_q(log_q: ArrayLike) -> np.ndarray:
    log_q = np.atleast_1d(np.asarray(log_q, float))
    if log_q.ndim != 1 or not np.all(log_q <= 0):
        raise ValueError(
            f"Expected log_q of shape [n], at most 0, got shape {log_q.shape} up to "
            f"{log_q.max()}; q is a probability."
        )
    return log_q


def check_positive(value: float, name: str) -> None:
    """Check that the value is positive and finite."""
    if not 0 < value < math.inf:
        raise ValueError(
            f"Expected 0 < {name} < infinity, got {name}={value}; no finite cost follows from it."
        )


def check_delta(delta: float) -> None:
    """Check that delta is in (0, 1)."""
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; a Rényi divergence gives no pure "
            "differential privacy."
        )

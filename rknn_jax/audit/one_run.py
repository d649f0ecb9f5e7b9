"""One-run auditing: many canaries in one training run, and a bound on the right guesses.

Each of m canaries has a secret sign S_i, a fair coin. The sign decides which of two records enters
the data, or whether a record does. The audit sees the release of the mechanism M and guesses r of
the signs, T_i in {-1, 0, 1} with 0 for no guess. Let N be the number of right guesses.

**Pure and approximate differential privacy** (Steinke, Nasr & Jagielski 2023, Theorem 5.2). If M is
(epsilon, delta)-DP when one sign changes, then with B ~ Binomial(r, e^eps / (e^eps + 1))

    P[N >= v] <= P[B >= v] + 2 m delta max_{1 <= i <= v} P[v - i <= B < v] / i.

**A whole curve** (in the manner of Mahloujifar, Melis & Chaudhuri 2024). Let M be (eps, delta)-DP
at every point of a curve. Let F(b) be the minimum over the curve of e^eps b + delta and 1 - e^-eps
(1 - b - delta). F is concave, and no event of probability b under one sign has more than F(b) under
the other. Fix a set C of integers. For canary i, let E_i be the event that T_i is a guess and that
the number of right guesses among the others is in C. Differential privacy in S_i given all other
signs, and Jensen's inequality, relate its parts by

    P[E_i, T_i = S_i] <= F(P[E_i, T_i = -S_i]).

Average over i, again by Jensen's inequality, with p_j = P[N = j] and C = {c - 1, c, ...}:

    A_c <= F(B_{c-1}),    A_c = sum_{j >= c} j p_j / m,    B_c = sum_{j >= c} (r - j) p_j / m.

`allows` finds the least total probability that a law with P[N >= v] >= tau can have under these
inequalities. If that minimum is above 1, no such law exists, and P[N >= v] < tau. The minimum puts
all mass tau at v, and at lower values the least mass that each inequality requires. Let P_c = P[N
>= c] and D_c = A_c - c P_c / m, so that D_{c-1} = D_c + P_c / m. The inequality then says

    P_{c-1} >= m (G(D_c + c P_c / m) + D_{c-1}) / (r - c + 1),    G the inverse of F,

which increases in P_c and D_c, so by induction no law has a smaller P or D anywhere.

**Several runs.** A curve of Gaussian noise lets a mechanism fail badly with small probability, so
one run alone contradicts the curve only at large odds. Independent runs do better. If j of R runs
have v right guesses or more, Clopper & Pearson's interval says P[N >= v] >= tau at the required
confidence. The curve is contradicted if it does not allow that: at j = R = 20, tau = 0.63, while
one run has tau = 0.0001. Steinke's bound covers all canaries together. Independent runs are one
mechanism of all their signs, and a sign changes only one of the runs.

References: Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training Run", 2023;
Mahloujifar, Melis & Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024.
"""

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, binom

from rknn_jax.audit.bounds import Curve
from rknn_jax.privacy import accounting
from rknn_jax.privacy.guarantee import Guarantee

SHARES = (1.0, 0.25, 0.0625)
"""Shares of the canaries that are guessed in each run, the surest guesses first."""

MOST_RUNS = (1.0, 0.75)
"""Shares of the runs that reach a number of right guesses; the error is divided among all choices.
"""

DELTAS = tuple(float(delta) for delta in np.geomspace(1e-9, 0.6, 48))
"""Deltas of points of the claimed curve, beside the claimed delta."""

LARGEST_EPSILON = 20.0
STEPS = 12
"""Number of halvings of the interval that holds the lower bound."""


@dataclass(frozen=True)
class OneRun:
    """Result of a one-run audit.

    Attributes:
      claimed_epsilon: Epsilon of the guarantee.
      delta: Delta of the guarantee.
      lower_bound: Largest epsilon that the guesses contradict at that delta, using nothing else.
      confidence: Least probability that an honest mechanism is not called broken.
      broken: True if the guesses contradict the claimed curve.
      conclusive: True if guesses that are all right would contradict it.
      runs: Number of independent runs.
      canaries: Number of canaries m of each run.
      guesses: Number of guesses r of each run at which they are most telling.
      correct: Number of right guesses that `reached` runs have or exceed.
      reached: Number of such runs j.
      steinke_p_value: Bound of Steinke et al. on the probability of that many right guesses in all
        runs together, under the claimed (epsilon, delta) alone, corrected for the choice of r.
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    confidence: float
    broken: bool
    conclusive: bool
    runs: int
    canaries: int
    guesses: int
    correct: int
    reached: int
    steinke_p_value: float

    def __str__(self) -> str:
        unbroken = "Not broken" if self.conclusive else "Inconclusive, take more runs"
        return (
            f"{'BROKEN' if self.broken else unbroken}: of {self.guesses} guesses about "
            f"{self.canaries} canaries, {self.correct} or more are right in {self.reached} of "
            f"{self.runs} runs. "
            f"Epsilon at delta = {self.delta:g} is at least "
            f"{self.lower_bound:.4g} with confidence {self.confidence:.6g}, and "
            f"{self.claimed_epsilon:.4g} is claimed."
        )

    def asdict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return asdict(self) | {"statement": str(self)}


def judge(
    signs: np.ndarray, scores: np.ndarray, guarantee: Guarantee, confidence: float = 0.9999
) -> OneRun:
    """Judge a guarantee by guesses of secret signs.

    Args:
      signs: Secret signs of the canaries of each run, 1 or -1, `[runs, m]`: independent fair coins.
      scores: Floats `[runs, m]`, each row computed from that run's release alone. The guessed sign
        is that of the score, and larger scores are guessed first.
      guarantee: Guarantee of each run, for a change of one sign.
      confidence: Least probability that an honest mechanism is not called broken. Defaults to
        0.9999.

    Raises:
      ValueError: If signs and scores do not fit, or the guarantee is none.
    """
    signs = np.asarray(signs)
    scores = np.asarray(scores, np.float64)
    if signs.shape != scores.shape or signs.ndim != 2 or 0 in signs.shape:
        raise ValueError(
            f"Expected signs and scores [runs, m], got shapes {signs.shape} and {scores.shape}."
        )
    if not set(np.unique(signs)) <= {-1, 1}:
        raise ValueError("Expected signs of 1 or -1, got others; a sign is a fair coin.")
    curve = dense_curve(guarantee)
    num_runs, canaries = signs.shape
    order = np.argsort(-np.abs(scores), axis=1, kind="stable")
    right = np.cumsum(np.take_along_axis(np.sign(scores) == signs, order, axis=1), axis=1)
    numbers = sorted({max(1, int(share * canaries)) for share in SHARES})
    often = sorted({math.ceil(share * num_runs) for share in MOST_RUNS})
    error = (1 - confidence) / (len(numbers) * len(often))
    # Guesses, right guesses, runs that reach them, and the least probability of reaching them.
    tried = [
        (
            guesses,
            int(np.sort(right[:, guesses - 1])[-j]),
            j,
            float(beta.ppf(error, j, num_runs - j + 1)),
        )
        for guesses in numbers
        for j in often
    ]
    broken = [not allows(curve, canaries, r, correct=v, tau=tau) for r, v, _, tau in tried]
    perfect = [not allows(curve, canaries, r, correct=r, tau=tau) for r, _, _, tau in tried]
    bounds = [lower_bound(canaries, r, v, delta=guarantee.delta, tau=tau) for r, v, _, tau in tried]
    best = broken.index(True) if any(broken) else int(np.argmax(bounds))
    p_values = [
        steinke_tail(
            signs.size,
            guesses * num_runs,
            int(right[:, guesses - 1].sum()),
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
        )
        for guesses in numbers
    ]
    return OneRun(
        guarantee.epsilon,
        guarantee.delta,
        max(bounds),
        confidence,
        any(broken),
        any(perfect),
        num_runs,
        canaries,
        *tried[best][:3],
        min(1.0, len(numbers) * min(p_values)),
    )


@functools.lru_cache(maxsize=16)
def dense_curve(guarantee: Guarantee) -> Curve:
    """Return many points of the claimed curve, `(delta, epsilon)`; one if it names no noise."""
    if not math.isfinite(guarantee.epsilon):
        raise ValueError("Expected a finite epsilon, got infinity; there is no guarantee to break.")
    points = [(guarantee.delta, guarantee.epsilon)]
    for delta in DELTAS if guarantee.events else ():
        points.append((delta, min(accounting.epsilons(guarantee.events, delta).values())))
    return tuple(points)


def allows(curve: Curve, canaries: int, guesses: int, correct: int, tau: float) -> bool:
    """Return True if the curve allows that many right guesses with probability `tau`.

    Args:
      curve: Points `(delta, epsilon)` that are claimed together.
      canaries: Number of canaries m.
      guesses: Number of guesses r.
      correct: Number of right guesses v.
      tau: Probability in question, in (0, 1).
    """
    deltas, epsilons = (np.array(values) for values in zip(*curve, strict=True))
    shrink = np.exp(-epsilons)
    grow = np.exp(epsilons)

    def least(a: float) -> float:
        """Return G(a), the least b with a <= F(b)."""
        bound: float = max(0.0, ((a - deltas) * shrink).max(), (1 - deltas - grow * (1 - a)).max())
        return bound

    # These are P_c and D_c of the module.
    mass = tau
    excess = 0.0
    for c in range(correct, 0, -1):
        needed = least(excess + c * mass / canaries)
        excess += mass / canaries
        mass = max(mass, canaries * (needed + excess) / (guesses - c + 1))
        if mass > 1:
            return False
    return True


def lower_bound(canaries: int, guesses: int, correct: int, delta: float, tau: float) -> float:
    """Return the largest epsilon that this many right guesses contradict at `delta`."""
    low = 0.0
    high = LARGEST_EPSILON
    if allows(((delta, low),), canaries, guesses, correct=correct, tau=tau):
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if allows(((delta, middle),), canaries, guesses, correct=correct, tau=tau):
            high = middle
        else:
            low = middle
    return low


def steinke_tail(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the bound on P[N >= v] under (epsilon, delta)-DP, from the module's equations."""
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    steps = np.arange(1, correct + 1)
    below = np.cumsum(binom.pmf(correct - steps, guesses, chance))
    worst = float((below / steps).max()) if correct else 0.0
    return min(1.0, tail + 2 * canaries * delta * worst)

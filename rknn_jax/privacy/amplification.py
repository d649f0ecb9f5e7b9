"""Privacy amplification by shuffling: what n local messages cost together, once nobody knows who
sent which.

A message that is ε₀-DP by itself hides among the messages of the n - 1 other clients. Three bounds
are offered, for one message a client and neighbours that replace one client's record:

| bound             | what it is                                                      | where it
holds               |
|-------------------|-----------------------------------------------------------------|------------------------------|
| `variation ratio` | the clones below, for messages that tell less than ε₀ allows    | for a given
total variation  | | `general`         | the stronger clones of Feldman, McMillan & Talwar, summed |
everywhere                   | | `closed form`     | the formula of 2021, which the papers print |
ε₀ <= ln(n / (16 ln(2/δ)))   |

With p = e^ε₀ and β a bound on the total variation distance of the messages of any two inputs, let α
= β/(p - 1). Among n independent draws that are of either kind with probability α each, and blank
with probability (1 - α(p + 1))/p, count a, b and m. Then

    δ(ε) = E[((p - e^ε)a + (1 - p·e^ε)b + p(1 - e^ε)m)₊] / n.

Labelers and federations count by `variation ratio` if they are not told otherwise, because they
know their mechanism. The functions here take a total variation with that bound, and without one
they count by `general`.

It grows with β, and β = (p - 1)/(p + 1), the most that ε₀ allows, gives the general bound, which
has no blanks. `docs/amplification.md` proves both. The bound that the literature calls variation
ratio is smaller and is not offered: it takes a blank first message as hidden for free, and for n =
8 and generalized randomized response of d = 4 symbols its δ is 4% below the exact one.

References: Feldman, McMillan & Talwar, "Hiding Among the Clones", 2021, Theorem 3.1, and "Stronger
Privacy Amplification by Shuffling for Rényi and Approximate Differential Privacy", 2023; Wang et
al., "Privacy Amplification via Shuffling: Unified, Simplified, and Tightened", 2024.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

Bound = Literal["general", "variation ratio", "closed form"]
TotalVariation = Callable[[float], float]  # β of the messages at an ε₀

TAIL = 1e-4  # share of delta that is left for counts beyond the summed ones
NOTHING = 750.0  # e^-750 is 0 in float64
TOLERANCE = 1e-9  # of an epsilon, always on the safe side
MOST_EPSILON = 50.0


def epsilon(
    local_epsilon: float,
    num_clients: int,
    delta: float,
    bound: Bound = "general",
    total_variation: TotalVariation | None = None,
) -> float:
    """Return the central epsilon of shuffled messages.

    Args:
      local_epsilon: ε₀ of each message.
      num_clients: n, one message each.
      delta: in (0, 1).
      bound: see above.
      total_variation: β at an ε₀, for the bound `variation ratio`:
        `LocalRandomizer.total_variation`.

    Returns:
      ε, at most ε₀, rounded up.

    Raises:
      ValueError: for arguments out of range, and for ε₀ beyond the closed form's, naming the
        largest.
    """
    _check(local_epsilon, num_clients, delta, bound, total_variation)
    if bound == "closed form":
        return min(_closed_form(local_epsilon, num_clients, delta), local_epsilon)
    variation = total_variation(local_epsilon) if total_variation else None
    low = 0.0
    high = epsilon(local_epsilon, num_clients, delta) if total_variation else local_epsilon
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        holds = hockey_stick(middle, local_epsilon, num_clients, variation, delta * TAIL) <= delta
        low, high = (low, middle) if holds else (middle, high)
    return high


def local_epsilon(
    central_epsilon: float,
    num_clients: int,
    delta: float,
    bound: Bound = "general",
    total_variation: TotalVariation | None = None,
) -> float:
    """Return the largest ε₀ of messages that cost at most ε once they are shuffled.

    Args:
      central_epsilon: ε.
      num_clients: n, one message each.
      delta: in (0, 1).
      bound: see above.
      total_variation: β at an ε₀, for the bound `variation ratio`, of the mechanism that would be
        used at this ε₀. Where it falls, the result costs at most ε, but need not be the largest
        that does.

    Returns:
      ε₀, at least ε, rounded down and at most `MOST_EPSILON`; with the closed form at most the
      largest that it holds for.

    Raises:
      ValueError: for arguments out of range, and for too few clients for the closed form.
    """
    _check(central_epsilon, num_clients, delta, bound, total_variation)
    low = central_epsilon
    high = max(MOST_EPSILON, central_epsilon)
    if bound == "closed form":
        low = 0.0
        high = _largest(num_clients, delta)
        if high <= 0:
            raise ValueError(
                "Expected num_clients > 16 ln(2/delta) for the closed form, got "
                f"num_clients={num_clients}; use bound='general'."
            )
    if total_variation:
        low = local_epsilon(central_epsilon, num_clients, delta)

    def holds(candidate: float) -> bool:
        if bound == "closed form":
            return _closed_form(candidate, num_clients, delta) <= central_epsilon
        variation = total_variation(candidate) if total_variation else None
        return (
            hockey_stick(central_epsilon, candidate, num_clients, variation, delta * TAIL) <= delta
        )

    if holds(high):
        return high
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def hockey_stick(
    central_epsilon: float,
    local_epsilon: float,
    num_clients: int,
    total_variation: float | None = None,
    tail: float = 0.0,
) -> float:
    """Return δ(ε) as above, in time proportional to the square root of n at a δ of interest.

    Args:
      central_epsilon: ε, at least 0.
      local_epsilon: ε₀.
      num_clients: n.
      total_variation: β; the most that ε₀ allows where it is not given, which is the general bound.
      tail: probability of counts that are not summed but added; with 0 what float64 cannot tell
        from 0.
    """
    from scipy.stats import binom  # late: the import takes over a second

    if central_epsilon >= local_epsilon:
        return 0.0
    # Over p, a draw of the first kind is worth `first`, one of the other kind -`second`, and a
    # blank one -`excess`.
    n = num_clients
    least = math.exp(-local_epsilon)
    excess = math.expm1(central_epsilon)
    first = -math.expm1(central_epsilon - local_epsilon)
    second = excess - math.expm1(-local_epsilon)
    gap = first + second
    clear = (
        1.0 if total_variation is None else min(total_variation / math.tanh(local_epsilon / 2), 1.0)
    )  # α(p + 1)
    either = 2 * clear * least / (1 + least)
    blank = (1 - clear) * least
    log_tail = math.log(4 / tail) if tail else NOTHING
    (fewest, most) = _window(n, either, log_tail)
    (low, high) = _window(n, blank, log_tail + central_epsilon)
    clones = np.arange(fewest, most + 1)  # a + b
    others = n - clones
    share = blank / (1 - either) * (others > 0)  # m ~ Bin(others, share)
    cost = excess * share * others  # of the blanks, on average

    # From a = start on, some m may favour the first kind; from a = end on, all m between low and
    # high do. In between, sum over a:
    # E[m; m <= k] = N·x·P(m' < k) and P(m <= k) = P(m' < k) + (1 - x)P(m' = k), for m ~ Bin(N, x)
    # and m' ~ Bin(N - 1, x).
    start = np.floor((excess * low + second * clones) / gap)
    end = start + math.ceil(excess * (high - low) / gap) + 2  # 1 more for each end that is rounded
    ones = start[:, None] + np.arange(end[0] - start[0])
    worth = first * ones - second * (clones[:, None] - ones)
    reach = worth / excess if excess else np.where(worth > 0, np.inf, -1.0)
    # the most m that still do
    reach = np.minimum(np.floor(reach), others[:, None])
    rest = np.maximum(others - 1, 0)[:, None]
    below = binom.cdf(reach - 1, rest, share[:, None])
    equal = binom.pmf(reach, rest, share[:, None])
    near = (worth - cost[:, None]) * below + worth * (1 - share[:, None]) * equal

    # Beyond, E[a - T/2; a >= k] = k·P(a = k)/2 for a ~ Bin(T, 1/2).
    far = binom.sf(end - 1, clones, 0.5) * (
        (first - second) / 2 * clones - cost
    ) + gap / 2 * end * binom.pmf(end, clones, 0.5)
    deltas = np.sum(binom.pmf(ones, clones[:, None], 0.5) * near, axis=1) + np.maximum(far, 0)
    return float(np.sum(binom.pmf(clones, n, either) * deltas) / (n * least) + tail)


def _window(num_clients: int, chance: float, log_tail: float) -> tuple[int, int]:
    """Return between which numbers a count among n clients is, but for e^-log_tail on either
    side, where n - 1 draw it with `chance`.
    """
    mean = (num_clients - 1) * chance
    variance = (num_clients - 1) * chance * (1 - chance)
    spread = (
        log_tail / 3 + math.sqrt(log_tail**2 / 9 + 2 * variance * log_tail) if chance else 0.0
    )  # Bernstein's inequality
    return math.floor(max(mean - spread, 0)), math.ceil(min(mean + spread, num_clients))


def _closed_form(local_epsilon: float, num_clients: int, delta: float) -> float:
    if local_epsilon > _largest(num_clients, delta):
        raise ValueError(
            "Expected local epsilon <= ln(n / (16 ln(2/delta))) = "
            f"{_largest(num_clients, delta):.6g} for the closed form, "
            f"got {local_epsilon}; use bound='general', which holds everywhere."
        )
    odds = math.exp(local_epsilon)
    hidden = 8 * math.sqrt(odds * math.log(4 / delta) / num_clients) + 8 * odds / num_clients
    return math.log1p((odds - 1) / (odds + 1) * hidden)


def _largest(num_clients: int, delta: float) -> float:
    return math.log(num_clients / (16 * math.log(2 / delta)))


def _check(
    epsilon: float,
    num_clients: int,
    delta: float,
    bound: Bound,
    total_variation: TotalVariation | None,
) -> None:
    if not 0 < epsilon <= MOST_EPSILON:
        raise ValueError(
            f"Expected 0 < epsilon <= {MOST_EPSILON:g}, got {epsilon}; beyond, a message hides "
            "nothing."
        )
    if num_clients < 1:
        raise ValueError(f"Expected num_clients >= 1, got num_clients={num_clients}.")
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected 0 < delta < 1, got delta={delta}; shuffling amplifies at a positive delta "
            "only, such as 1e-6."
        )
    if (bound == "variation ratio") != (total_variation is not None):
        raise ValueError(
            "Expected total_variation with bound='variation ratio' and with no other, got it "
            f"with bound={bound!r}."
        )

"""Privacy amplification by shuffling: the joint cost of n local messages with hidden senders.

A message that is ε₀-DP by itself hides among the messages of the n - 1 other clients. Three bounds
are offered, for one message a client and neighbors that replace one client's record:

| bound             | derivation                                    | valid for                  |
|-------------------|-----------------------------------------------|----------------------------|
| `variation ratio` | the clones below, for less than ε₀ allows     | a given total variation    |
| `general`         | the stronger clones of Feldman et al., summed | everywhere                 |
| `closed form`     | the formula of 2021, which the papers print   | ε₀ <= ln(n / (16 ln(2/δ))) |

Let p = e^ε₀, let β bound the total variation distance of the messages of any two inputs, and let α
= β/(p - 1). Among n independent draws, each is of either kind with probability α, and blank with
probability (1 - α(p + 1))/p. Let a, b and m be the numbers of the two kinds and of the blanks. Then

    δ(ε) = E[((p - e^ε)a + (1 - p·e^ε)b + p(1 - e^ε)m)₊] / n.

Labelers and federations use `variation ratio` unless told otherwise, because they know their
mechanism. The functions here take a total variation with that bound; without one they use
`general`. Beyond `MOST_VARIED` clients `general` stands in for `variation ratio`, whose sum is long
there (`bound_for`).

δ grows with β. At β = (p - 1)/(p + 1), the most that ε₀ allows, it is the general bound, which has
no blanks. `docs/amplification.md` proves both. The literature's bound of the name variation ratio
is smaller and is not offered: it treats a blank first message as hidden for free. For n = 8 and
generalized randomized response of d = 4 symbols, its δ is 4% below the exact one.

References: Feldman, McMillan & Talwar, "Hiding Among the Clones", 2021, Theorem 3.1, and "Stronger
Privacy Amplification by Shuffling for Rényi and Approximate Differential Privacy", 2023; Wang et
al., "Privacy Amplification via Shuffling: Unified, Simplified, and Tightened", 2024.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

Bound = Literal["general", "variation ratio", "closed form"]
TotalVariation = Callable[[float], float]  # maps ε₀ to β of the messages

TAIL = 1e-4  # share of delta reserved for counts outside the summed window
NOTHING = 750.0  # e^-750 is 0 in float64
TOLERANCE = 1e-9  # absolute tolerance of an epsilon, always on the safe side
MOST_EPSILON = 50.0
MOST_VARIED = 10**7  # clients; with more, the sum of `variation ratio` takes minutes
MOST_SUMMANDS = 2**16  # numbers of clones; more of them are summed in blocks
BLOCKS = 2**9  # 1e-5 above


def bound_for(num_clients: int, bound: Bound) -> Bound:
    """Return the bound that is used for a number of clients if this one is asked for."""
    return "general" if bound == "variation ratio" and num_clients > MOST_VARIED else bound


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
      num_clients: Number of clients n, one message each.
      delta: Delta, in (0, 1).
      bound: Bound from the module's table. Defaults to `general`.
      total_variation: Function from ε₀ to β, required for the bound `variation ratio` and refused
        for others: `LocalRandomizer.total_variation`. Defaults to None.

    Returns:
      ε, at most ε₀, rounded up.

    Raises:
      ValueError: If an argument is out of range, or ε₀ exceeds the closed form's largest, which the
        message names.
    """
    _check(local_epsilon, num_clients, delta, bound=bound, total_variation=total_variation)
    if bound == "closed form":
        return min(_closed_form(local_epsilon, num_clients, delta), local_epsilon)
    if bound_for(num_clients, bound) == "general":
        total_variation = None
    variation = total_variation(local_epsilon) if total_variation else None
    low = 0.0
    high = epsilon(local_epsilon, num_clients, delta) if total_variation else local_epsilon
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        holds = (
            hockey_stick(
                middle, local_epsilon, num_clients, total_variation=variation, tail=delta * TAIL
            )
            <= delta
        )
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
      central_epsilon: Target ε.
      num_clients: Number of clients n, one message each.
      delta: Delta, in (0, 1).
      bound: Bound from the module's table. Defaults to `general`.
      total_variation: Function from ε₀ to β of the mechanism that would be used at this ε₀,
        required for the bound `variation ratio`. If β falls with ε₀, the result costs at most ε,
        but may not be the largest. Defaults to None.

    Returns:
      ε₀, at least ε, rounded down and at most `MOST_EPSILON`. With the closed form, at most the
      largest ε₀ that the formula is valid for.

    Raises:
      ValueError: If an argument is out of range, or there are too few clients for the closed form.
    """
    _check(central_epsilon, num_clients, delta, bound=bound, total_variation=total_variation)
    if bound_for(num_clients, bound) == "general":
        total_variation = None
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
            hockey_stick(
                central_epsilon,
                candidate,
                num_clients,
                total_variation=variation,
                tail=delta * TAIL,
            )
            <= delta
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
    """Return δ(ε) of the module's equation.

    The time is proportional to the square root of n at a δ of practical size. For the general bound
    it is bounded: beyond `MOST_SUMMANDS`, numbers T of clones are summed in blocks. Given T clones
    among the others, δ falls with T, since one more clone is post-processing. So the first T of a
    block stands for all of them.

    Args:
      central_epsilon: Central ε, at least 0.
      local_epsilon: Local ε₀.
      num_clients: Number of clients n.
      total_variation: Total variation bound β. Defaults to the most that ε₀ allows, which gives the
        general bound.
      tail: Probability of the counts that are added as a whole instead of summed. Defaults to 0,
        which drops only what float64 cannot tell from 0.
    """
    from scipy.stats import binom  # Late: the import takes over a second.

    if central_epsilon >= local_epsilon:
        return 0.0
    # Divided by p, a draw of the first kind counts `first`, one of the other kind -`second`, and
    # a blank one -`excess`.
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
    many = most - fewest > MOST_SUMMANDS and not blank
    stride = 1 + (most - fewest) // BLOCKS if many else 1
    clones = np.arange(fewest, most + 1, stride)  # a + b
    others = n - clones
    share = blank / (1 - either) * (others > 0)  # m ~ Bin(others, share)
    cost = excess * share * others  # mean cost of the blanks

    # From a = start on, some m may favor the first kind. From a = end on, all m between low and
    # high do. In between, sum over a with
    # E[m; m <= k] = N·x·P(m' < k) and P(m <= k) = P(m' < k) + (1 - x)P(m' = k), for m ~ Bin(N, x)
    # and m' ~ Bin(N - 1, x).
    start = np.floor((excess * low + second * clones) / gap)
    end = start + math.ceil(excess * (high - low) / gap) + 2  # 1 more for each rounded end
    ones = start[:, None] + np.arange(end[0] - start[0])
    worth = first * ones - second * (clones[:, None] - ones)
    reach = worth / excess if excess else np.where(worth > 0, np.inf, -1.0)
    # Largest m that still favors the first kind.
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
    if stride == 1:
        weights = binom.pmf(clones, n, either)
    else:  # by size bias, T pmf(T; n) = n either pmf(T - 1; n - 1)
        weights = _block(clones - 1, stride, n - 1, either) * n * either / clones
    return float(np.sum(weights * deltas) / (n * least) + tail)


def _block(first: np.ndarray, stride: int, count: int, chance: float) -> np.ndarray:
    """Return P[first <= X < first + stride] for X ~ Bin(count, chance), to a small relative error.

    Differences are taken in the nearer tail, where they lose least.
    """
    from scipy.stats import binom

    lower, upper = (
        tail(first + stride - 1, count, chance) - tail(first - 1, count, chance)
        for tail in (binom.cdf, binom.sf)
    )
    probability: np.ndarray = np.where(first < count * chance, lower, -upper)
    return probability


def _window(num_clients: int, chance: float, log_tail: float) -> tuple[int, int]:
    """Return bounds of a count among n clients.

    Either bound fails with probability e^-log_tail. Each of n - 1 clients is counted with
    probability `chance`.
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

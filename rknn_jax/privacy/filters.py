"""Rules that decide whether the releases on a ledger still fit its budget.

A rule is fixed when the ledger is made. Each later release may be chosen in view of all earlier
results, and the rule refuses one that would pass the budget: it is a privacy filter.

- `Sum`: epsilons add up, and deltas add up.
- `Renyi`: Rényi divergences of one order add up. Many small releases cost far less than their sum:
  at delta = 1e-5, a hundred of epsilon = 0.01 cost 0.26 in place of 1.

**Proof for `Renyi`.** Let L be the privacy loss of everything released, and R the sum of the
releases' divergences of order a, each one known before its release. Under the first data set,
E exp((a - 1)(L - R)) <= 1 however the releases are chosen, since each step multiplies it by at most
1. On every path either the releases are all pure, with epsilons of at most the budget's E in sum,
and then L <= E. Or R <= B, where B is the divergence that is worth (E, delta). For a constant c,
(1 - e^(E - L))+ <= c exp((a - 1)(L - E)), and B is chosen so that c exp((a - 1)(B - E)) = delta.
So delta(E), the mean of (1 - e^(E - L))+, is at most the mean of c exp((a - 1)(L - E)) over the
paths with R <= B, and that is at most delta.

The order has to be fixed in advance: the best order in hindsight would depend on the results. It is
the one that fits most Gaussian noise into the budget. Divergences are rounded up to a multiple of
2^-40, and then add up exactly. Damage counts as a divergence that nothing that fitted exceeds by
more than a few of these steps, for which the worth of a budget has slack. It never counts as pure,
since nobody knows what it was.

References: Feldman & Zrnic, "Individual Privacy Accounting via a Rényi Filter", 2021, Theorem 3.1;
Rogers, Roth, Ullman & Vadhan, "Privacy Odometers and Filters", 2016 (sums); Canonne, Kamath &
Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Proposition 12 (conversion).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from rknn_jax.privacy.events import Pure
from rknn_jax.privacy.guarantee import Guarantee

Accounting = Literal["sum", "renyi"]
STEP = Fraction(1, 2**40)
"""Grid of Rényi divergences."""

_SLACK = 1e-9
"""Relative error allowed for floating-point divergences.

Tests compare them with 60 digits.
"""


class Amount(NamedTuple):
    """Exact epsilon and delta."""

    epsilon: Fraction
    delta: Fraction

    def __str__(self) -> str:
        return f"epsilon={float(self.epsilon)}, delta={float(self.delta)}"


NOTHING = Amount(Fraction(), Fraction())


def less(amount: Amount, other: Amount) -> Amount:
    """Return the difference, at least zero."""
    return Amount(
        max(amount.epsilon - other.epsilon, Fraction()), max(amount.delta - other.delta, Fraction())
    )


class Cost(NamedTuple):
    """Cost of one release, or of damage that counts as one.

    Attributes:
      amount: Epsilon and delta.
      divergence: Rényi divergence at the rule's order; None if nothing bounds it.
      is_known: False for damage, which may have had a delta that nobody can read. Defaults to True.
    """

    amount: Amount
    divergence: Fraction | None = None
    is_known: bool = True


def total(costs: Sequence[Cost]) -> Amount:
    """Return the sums of epsilons and of deltas."""
    return Amount(
        sum((cost.amount.epsilon for cost in costs), Fraction()),
        sum((cost.amount.delta for cost in costs), Fraction()),
    )


@dataclass(frozen=True)
class Sum:
    """Epsilons and deltas add up."""

    def cost(self, guarantee: Guarantee, amount: Amount) -> Cost:
        """Return the cost of a release."""
        del guarantee
        return Cost(amount)

    def unknown(self, amount: Amount) -> Cost:
        """Return the cost of something of which only epsilon and delta are known."""
        return Cost(amount)

    def fits(self, budget: Amount, costs: Sequence[Cost]) -> bool:
        """Return True if the costs are within the budget."""
        spent = total(costs)
        # Fractions: a thousand charges of 0.001 are 1 exactly, and never a last digit above it.
        return spent.epsilon <= budget.epsilon and spent.delta <= budget.delta

    def left(self, budget: Amount, costs: Sequence[Cost]) -> Amount:
        """Return what one more release may cost."""
        return less(budget, total(costs))

    def enough(self, budget: Amount, costs: Sequence[Cost]) -> Amount:
        """Return the least budget, of at least this one, that the costs fit into."""
        spent = total(costs)
        return Amount(max(budget.epsilon, spent.epsilon), max(budget.delta, spent.delta))


@dataclass(frozen=True)
class Renyi:
    """Rényi divergences of one order add up, and so do epsilons as long as all releases are pure.

    Attributes:
      order: Order of the divergences, above 1.
    """

    order: float

    @classmethod
    def best(cls, budget: Amount) -> "Renyi":
        """Return the rule with the order that fits most Gaussian noise into a budget.

        Raises:
          ValueError: If the budget has no delta, or one too small for its epsilon.
        """
        from rknn_jax.privacy.sampled_gaussian import ORDERS  # late, as SciPy takes a while

        if not budget.delta:
            raise ValueError(
                "Expected a budget with delta > 0 for accounting=renyi, got delta=0; allow a small "
                "delta, such as 1e-5, or add epsilons up with accounting=sum."
            )
        # Gaussian noise has a divergence of order · Δ²/(2σ²), so that worth / order is what fits
        # in.
        worth = [float(cls(float(order)).worth(budget)) / float(order) for order in ORDERS]
        best = max(range(len(worth)), key=worth.__getitem__)
        if worth[best] <= 0:
            raise ValueError(
                f"Expected a budget that Rényi divergences fit into, got {budget}; raise its delta "
                "or its epsilon, or add epsilons up with accounting=sum."
            )
        return cls(float(ORDERS[best]))

    def worth(self, budget: Amount) -> Fraction:
        """Return the divergence that is worth the budget, rounded down; negative if there is none.

        A divergence B of order a is worth epsilon = B + ln(1 - 1/a) - ln(delta a) / (a - 1).
        """
        if not budget.delta:
            return Fraction(-1)
        # By integers: a delta below 10^-308 is no float.
        log_delta = math.log(budget.delta.numerator) - math.log(budget.delta.denominator)
        offset = math.log1p(-1 / self.order) - (log_delta + math.log(self.order)) / (self.order - 1)
        return budget.epsilon - _rounded_up(offset + _SLACK * abs(offset))

    def cost(self, guarantee: Guarantee, amount: Amount) -> Cost:
        """Return the cost of a release.

        Raises:
          ValueError: If nothing is known of its noise, or of its divergence.
        """
        from rknn_jax.privacy import renyi  # late, as SciPy takes a while

        if guarantee.delta and not guarantee.events:
            raise ValueError(
                "Expected a release whose noise is known, got one that is known by epsilon="
                f"{guarantee.epsilon} and delta={guarantee.delta} alone; this ledger adds the "
                "noises' Rényi divergences up, so use a pure or a Gaussian mechanism."
            )
        events = guarantee.events or (Pure(guarantee.epsilon),)
        divergence = renyi.renyi_divergence(events, self.order)
        if not math.isfinite(divergence):
            raise ValueError(
                f"Expected a release with a finite Rényi divergence of order {self.order:.4g}, got "
                f"one with {', '.join(sorted({event.kind for event in events}))} noise; use a pure "
                "or a Gaussian mechanism."
            )
        # Up, and never to 0: rounding must not make a release free.
        return Cost(amount, max(STEP, _rounded_up(divergence * (1 + _SLACK))))

    def unknown(self, amount: Amount) -> Cost:
        """Return the cost of something of which only epsilon and delta are known."""
        if amount.delta:
            return Cost(amount)
        if not amount.epsilon:
            return Cost(amount, Fraction())
        return Cost(amount, self._cost_of(amount.epsilon), is_known=False)

    def fits(self, budget: Amount, costs: Sequence[Cost]) -> bool:
        """Return True if the costs are within the budget, by divergences or as pure releases."""
        if _are_pure(costs) and total(costs).epsilon <= budget.epsilon:
            return True
        divergence = self._divergence(costs)
        # Where a divergence is unknown, only the sum of pure epsilons above could say yes.
        return divergence is not None and divergence <= self.worth(budget)

    def left(self, budget: Amount, costs: Sequence[Cost]) -> Amount:
        """Return what one more release may cost, if only its epsilon is known.

        A release whose noise is known may cost more. Its own delta does not count, because the
        budget's delta pays for all divergences together.
        """
        pure = less(budget, total(costs)).epsilon if _are_pure(costs) else Fraction()
        divergence = self._divergence(costs)
        room = Fraction(-1) if divergence is None else self.worth(budget) - divergence
        epsilon = max(pure, self._epsilon_within(room))
        return Amount(epsilon, Fraction())

    def enough(self, budget: Amount, costs: Sequence[Cost]) -> Amount:
        """Return the least budget, of at least this one, that the costs fit into.

        Its delta stays. All divergences are known.
        """
        divergence = self._divergence(costs)
        assert divergence is not None
        least = budget.epsilon + divergence - self.worth(budget)
        if _are_pure(costs):
            least = min(least, total(costs).epsilon)
        return Amount(max(budget.epsilon, least), budget.delta)

    def epsilon_for(self, divergence: Fraction) -> Fraction:
        """Return an epsilon whose cost is at least a divergence."""
        # An epsilon of x has a divergence of at least x - ln 2 / (a - 1).
        return divergence and divergence + _rounded_up(math.log(2) / (self.order - 1))

    def _divergence(self, costs: Sequence[Cost]) -> Fraction | None:
        divergences = [cost.divergence for cost in costs]
        known = [one for one in divergences if one is not None]
        return sum(known, Fraction()) if len(known) == len(divergences) else None

    def _epsilon_within(self, room: Fraction) -> Fraction:
        """Return the largest epsilon, rounded down, whose worst divergence is within the room."""
        if room <= 0:
            return Fraction()
        # In steps. An epsilon of x has a divergence of at least x - ln 2 / (a - 1).
        low, high = 0, math.ceil((2 * room + 1) / STEP)
        while self._cost_of(high * STEP) <= room:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._cost_of(middle * STEP) <= room else (low, middle)
        return low * STEP

    def _cost_of(self, epsilon: Fraction) -> Fraction:
        """Return the divergence of what is epsilon-DP, rounded up."""
        divergence = _pure(float(epsilon), self.order) * (1 + _SLACK)
        return max(STEP, _rounded_up(divergence))  # a tiny one may underflow to 0


Rule = Sum | Renyi


def _are_pure(costs: Sequence[Cost]) -> bool:
    """Return True if all are known to have no delta."""
    return all(cost.is_known and not cost.amount.delta for cost in costs)


def _rounded_up(value: float) -> Fraction:
    return Fraction(math.ceil(Fraction(value) / STEP)) * STEP


def _pure(epsilon: float, order: float) -> float:
    """Return the Rényi divergence of randomized response, the worst of all that are epsilon-DP."""
    up = (order - 1) * epsilon
    if up < 1:
        # A product of two differences: ln of the sum that it equals would lose small epsilons.
        more = math.expm1(up) * -math.expm1(-order * epsilon) / (1 + math.exp(-epsilon))
        return math.log1p(more) / (order - 1)
    # ln(e^up + e^(-order epsilon)), whose second exponent is the smaller one
    both = up + math.log1p(math.exp(-order * epsilon - up))
    return (both - math.log1p(math.exp(-epsilon))) / (order - 1)

"""Adversaries of a ledger: they buy what it lets them, and the exact epsilon of all they got.

Two neighboring data sets hold one record, of one class or the other. An adversary asks
`question.charge_and_draw` for releases on a real ledger until the ledger refuses, in many orders of
small and large, pure and Gaussian releases. Some stop the process as soon as noise is drawn, and
ask again: what was drawn counts as theirs. An adaptive one looks at the first result, and has a
plan for either.

The budget promises (epsilon, delta) for all of it together. The truth is computed without runs,
from the noise that was drawn, by privacy loss distributions that round in favor of the ledger. So
a larger epsilon than the budget's is a proof.
"""

import copy
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from rknn_jax import question
from rknn_jax.audit.finding import Bound, Finding
from rknn_jax.audit.folders import own_folder
from rknn_jax.labelers._votes import VoteNoise
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.privacy import events
from rknn_jax.privacy.filters import Accounting
from rknn_jax.privacy.ledger import Ledger, LedgerError

MOST = 40
"""Most releases of one kind that an adversary asks for: enough to pass any budget it is given."""

VOTES = np.array([[1, 0]])
"""Votes of the one record for two classes; a neighbor has the other one."""

GRID = 2e-4
"""Interval of privacy losses, in units of the budget's epsilon."""

STEPS = 40
"""Number of halvings of the interval that holds an epsilon."""

LARGEST = 200.0
"""Largest epsilon that is told from infinity, in units of the budget's."""

ROUNDING = 1e-6
"""Relative error of an epsilon that is not the ledger's fault."""

PEOPLE = "sha256:one record of an audit"
"""Fingerprint of the record, which is made up."""

Deltas = Callable[[float], float]
"""Function from an epsilon, of either sign, to the delta of all that was bought."""

IntegerNoise = events.DiscreteLaplace | events.DiscreteGaussian
"""Events of the releases that a menu offers: their losses can be rounded in favor of the ledger."""


class Haul(NamedTuple):
    """Releases that an adversary got from one ledger.

    Attributes:
      plan: Order in which releases were asked for, in words.
      first: Release that was bought before all others; None if it was refused.
      rest: Releases that were bought after it.
    """

    plan: str
    first: CentralMechanism | None
    rest: tuple[CentralMechanism, ...]


class _StoppedError(Exception):
    """The process is stopped as soon as noise exists."""


def of_ledger(epsilon: float, delta: float, rule: Accounting) -> Finding:
    """Return the largest epsilon that an adversary gets out of a ledger, exactly.

    Args:
      epsilon: Epsilon of the budget.
      delta: Delta of the budget, in [0, 1).
      rule: Rule of the ledger; `renyi` takes a positive delta.
    """
    worst = 0.0
    words = "nothing was sold"
    hauls = list(_hauls(epsilon, delta, rule))
    for told, deltas in _views(hauls, epsilon):
        if deltas(worst) <= delta:
            continue  # It is no worse than what is known.
        found = _epsilon(deltas, delta, LARGEST * epsilon)
        if found > worst:
            worst, words = found, told
    return Finding(
        epsilon,
        delta,
        worst,
        1.0,
        exact=True,
        broken=worst > epsilon * (1 + ROUNDING),
        evidence=Bound(delta, epsilon, worst),
        inputs="one record, of one class or the other",
        event=f"accounting={rule}: {words}",
        runs=0,
        games=len(hauls),
    )


def menu(epsilon: float, delta: float) -> list[CentralMechanism]:
    """Return the releases to ask for: large and small ones, and some with far too large a delta."""
    pure = [DiscreteLaplace(share * epsilon, 1, 2) for share in (1.0, 0.5, 0.1)]
    if not delta:
        return list(pure)
    noisy = [Gaussian(epsilon / 10, 1, 2, delta=one) for one in (0.1, delta / 10)]
    return [*pure, *noisy]


def _hauls(epsilon: float, delta: float, rule: Accounting) -> Iterator[Haul]:
    """Play every plan against a new ledger."""
    offers = menu(epsilon, delta)
    with own_folder() as folder:
        new, path = folder / "new.jsonl", folder / "ledger.jsonl"
        Ledger.create(new, PEOPLE, epsilon, delta, accounting=rule)
        orders = itertools.product(range(len(offers)), range(len(offers)), (False, True))
        for first, second, stops in orders:
            shutil.copy(new, path)
            got = _bought(path, offers[first], 1, stops)
            rest = [i for i in range(len(offers)) if i != second]
            more = [one for i in (second, *rest) for one in _bought(path, offers[i], MOST, stops)]
            plan = f"first {_words(offers[first])}, then {_words(offers[second])}"
            stopped = ", stopped after each draw" if stops else ""
            yield Haul(plan + stopped, got[0] if got else None, tuple(more))


def _bought(
    path: Path, mechanism: CentralMechanism, most: int, stops: bool
) -> list[CentralMechanism]:
    """Ask for a release again and again, and return those of which noise was drawn."""
    got = []
    for _ in range(most):
        if not _draws(Ledger.open(path, PEOPLE), mechanism, stops):
            break
        got.append(mechanism)
    return got


def _draws(ledger: Ledger, mechanism: CentralMechanism, stops: bool) -> bool:
    """Ask for one release, and return True if its noise was drawn, whatever came of it."""
    drawn = []
    watched = copy.copy(mechanism)

    def release(totals: np.ndarray) -> np.ndarray:
        drawn.append(mechanism.release(totals))
        if stops:
            raise _StoppedError
        return drawn[-1]

    object.__setattr__(watched, "release", release)
    try:
        noise = VoteNoise(watched)
        question.charge_and_draw(noise, noise.guarantee, VOTES, 1, ledger, "an audit")
    except (LedgerError, _StoppedError):
        pass
    return bool(drawn)


def _views(hauls: Sequence[Haul], epsilon: float) -> Iterator[tuple[str, Deltas]]:
    """Yield what adversaries saw: of every haul all, and of two the one that a result decides."""
    after: dict[CentralMechanism, list[tuple[Haul, Deltas]]] = {}
    seen = set()
    for haul in hauls:
        everything = (haul.first, *haul.rest) if haul.first else haul.rest
        content = frozenset(Counter(everything).items())
        if not everything or content in seen:
            continue
        seen.add(content)
        yield f"{haul.plan}; got {_counted(everything)}", _deltas(everything, epsilon)
        if isinstance(haul.first, DiscreteLaplace):
            after.setdefault(haul.first, []).append((haul, _deltas(haul.rest, epsilon)))
    for first, plans in after.items():
        for (one, high), (other, low) in itertools.permutations(plans, 2):
            words = f"{one.plan} if its first count is high, else: {other.plan}"
            yield words, _adaptive(1 / first.noise_scale, high, low)


def _adaptive(loss: float, high: Deltas, low: Deltas) -> Deltas:
    """Return the deltas of an adversary who goes on by whether a noisy count is 1 or more.

    Discrete Laplace noise says so as randomized response does: it is e^loss times as likely in the
    data set that has the record, and as unlikely in the other one.
    """
    often = 1 / (1 + math.exp(-loss))
    return lambda epsilon: often * high(epsilon - loss) + (1 - often) * low(epsilon + loss)


def _deltas(bought: Sequence[CentralMechanism], epsilon: float) -> Deltas:
    """Return the deltas of releases together, rounded down."""
    if not bought:
        return lambda epsilon: max(0.0, -math.expm1(epsilon))
    counts = _counts(bought)
    if all(isinstance(event, events.DiscreteLaplace) for event in counts):
        return _pure_deltas(counts)
    return _lower_deltas(counts, GRID * epsilon)


def _counts(bought: Sequence[CentralMechanism]) -> Mapping[IntegerNoise, int]:
    """Return how often each noise was drawn."""
    counts: Counter[IntegerNoise] = Counter()
    for event in (event for one in bought for event in one.release_guarantee(1).events):
        assert isinstance(event, IntegerNoise), f"the menu offers no {event.kind} noise"
        counts[event] += 1
    return counts


def _lower_deltas(counts: Mapping[IntegerNoise, int], interval: float) -> Deltas:
    """Return the deltas of integer noise, with privacy losses rounded down to a grid."""
    losses = (
        replace(event, count=count * event.count).lower_pld(interval)
        for event, count in counts.items()
    )
    together = reduce(lambda total, loss: total.compose(loss), losses)
    return lambda epsilon: float(together.get_delta_for_epsilon(epsilon))


def _pure_deltas(counts: Mapping[IntegerNoise, int]) -> Deltas:
    """Return the deltas of counts with discrete Laplace noise: of randomized responses, exactly."""
    losses, shares = np.zeros(1), np.ones(1)
    for event, count in counts.items():
        loss, most = event.loss, count * event.count
        high = np.arange(most + 1)
        law = binom.pmf(high, most, 1 / (1 + math.exp(-loss)))
        losses = np.add.outer(losses, (2 * high - most) * loss).ravel()
        shares = np.multiply.outer(shares, law).ravel()
    return lambda epsilon: float(shares @ -np.expm1(np.minimum(epsilon - losses, 0)))


def _epsilon(deltas: Deltas, delta: float, largest: float) -> float:
    """Return the largest epsilon, rounded down, at which the deltas are above a delta."""
    if deltas(largest) > delta:
        return math.inf
    low, high = 0.0, largest
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if deltas(middle) > delta else (low, middle)
    return low


def _words(mechanism: CentralMechanism) -> str:
    guarantee = mechanism.guarantee(1)
    return f"{type(mechanism).__name__}({guarantee.epsilon:.3g}, {guarantee.delta:.3g})"


def _counted(bought: Sequence[CentralMechanism]) -> str:
    return ", ".join(f"{count} {_words(one)}" for one, count in Counter(bought).items())

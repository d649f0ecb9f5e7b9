"""Rounds of a release: Algorithm 1, each round in features that the labels of the last one teach.

A round is a release of its own, with its part of epsilon, its charge, its folder and its statement.
So a stopped run goes on like any release, and a finished round is never paid for again. What a
later round takes from an earlier one are public rows and released labels (`inputs.taught`).
"""

import math
import os
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from rknn_jax._internal.disk import read_arrays, read_json
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.question import Before
from rknn_jax.release.accounts import open_ledger
from rknn_jax.release.release_folder import RESULTS

if TYPE_CHECKING:
    from rknn_jax.release.planning import Plan
    from rknn_jax.release.settings import Settings

DIGITS = 6
"""Decimal digits of the parts of epsilon and delta but the last, which is the rest."""


def parts(amount: float, num_rounds: int) -> list[float]:
    """Return the parts of epsilon, or delta, of all rounds: round t has t times that of the first.

    Their exact sum is no more than the amount, so that a budget of as much allows all rounds.

    Args:
      amount: Epsilon or delta of all rounds.
      num_rounds: Number of rounds T.
    """
    whole = Decimal(repr(amount))
    every = num_rounds * (num_rounds + 1) // 2
    found = [float(f"{amount * number / every:.{DIGITS}g}") for number in range(1, num_rounds)]
    rest = whole - sum(Decimal(repr(part)) for part in found)
    last = float(rest)
    return [*found, last if Decimal(repr(last)) <= rest else math.nextafter(last, 0)]


def of(settings: "Settings") -> list["Settings"]:
    """Return the settings of each round.

    Args:
      settings: Settings of all rounds.

    Raises:
      ValueError: If there are several, and sets of classes are asked for.
    """
    if settings.rounds == 1:
        return [settings]
    if settings.labels_per_record is not None:
        raise ValueError(
            f"Expected one label a record with --rounds {settings.rounds}, got --labels-per-record "
            f"{settings.labels_per_record}; leave one of them out."
        )
    budget, budget_delta = settings.budget, settings.budget_delta
    if not os.path.lexists(settings.ledger_path):  # a first budget is that of all rounds
        budget = settings.epsilon if budget is None else budget
        budget_delta = settings.delta if budget_delta is None else budget_delta
    found = []
    epsilons, deltas = (
        parts(amount, settings.rounds) for amount in (settings.epsilon, settings.delta)
    )
    for number, (epsilon, part) in enumerate(zip(epsilons, deltas, strict=True), 1):
        one = replace(
            settings,
            epsilon=epsilon,
            delta=part,
            budget=budget,
            budget_delta=budget_delta,
            rounds=1,
        )
        if number < settings.rounds:  # all of its records vote, since nobody asks for its worth
            out = settings.out and settings.out / f"round-{number}"
            one = replace(one, out=out, check_share=0.0)
        found.append(one)
    return found


def cost(settings: "Settings", plan: "Plan") -> Guarantee:
    """Return the guarantee of all rounds, epsilons and deltas added up.

    Args:
      settings: Settings of all rounds.
      plan: Plan of the first round.
    """
    if settings.rounds == 1:
        return plan.cost
    return replace(plan.cost, epsilon=settings.epsilon, delta=settings.delta, events=())


def check_budget(settings: "Settings", plan: "Plan") -> None:
    """Raise LedgerError if the budget does not allow all rounds, before the first is paid for.

    Args:
      settings: Settings of all rounds.
      plan: Plan of the first round.
    """
    if settings.rounds > 1:
        open_ledger(settings, cost(settings, plan))


def finished(settings: "Settings") -> Before | None:
    """Return what a round has released, or None if it is not complete.

    Args:
      settings: Settings of a round.

    Raises:
      ValueError: If its folder holds a release of another ledger.
    """
    assert settings.out is not None
    folder = settings.out
    if not (folder / RESULTS[-1]).exists():
        return None
    card = read_json(folder / RESULTS[-1])
    ledger = settings.ledger_path
    known = Ledger.open(ledger).id if ledger.exists() else "none"
    if card["ledger"]["id"] != known:
        raise ValueError(
            f"Expected a round of the ledger {ledger} in {folder}, got a release of another one; "
            "name another --out."
        )
    probabilities = read_arrays(folder / "labels.npz")["probability"]
    return Before(np.asarray(probabilities, np.float32), Guarantee.of(card["guarantee"]))

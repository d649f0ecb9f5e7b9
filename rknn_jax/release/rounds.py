"""Rounds of a release: Algorithm 1, each round in features that the labels of the last one teach.

A round is a release of its own, with its part of epsilon, its charge, its folder and its statement.
So a stopped run goes on like any release, and a finished round is never paid for again. What a
later round takes from an earlier one are public rows and released labels (`inputs.taught`).

Roles are drawn once for all rounds. A record that checks the last labels has voted in no round, so
that it measures what others made of it; and each record spends the parts of epsilon of all rounds,
whatever its role.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from rknn_jax._internal.disk import OWNER, make_folder, read_arrays, read_json, write_new
from rknn_jax._internal.option_names import option
from rknn_jax._internal.ranges import LEAST_EPSILON
from rknn_jax.privacy import accounting, roles
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import LedgerError
from rknn_jax.privacy.roles import Roles
from rknn_jax.question import Before
from rknn_jax.release import choosing, inputs, planning, questions
from rknn_jax.release.accounts import open_ledger
from rknn_jax.release.release_folder import RESULTS, ROUNDS, clear_finished

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
    every = num_rounds * (num_rounds + 1) // 2
    found = [float(f"{amount * number / every:.{DIGITS}g}") for number in range(1, num_rounds)]
    rest = Fraction(str(amount)) - accounting.exact_sum(found)
    last = float(rest)
    return [*found, last if Fraction(str(last)) <= rest else math.nextafter(last, 0)]


def of(settings: "Settings") -> list["Settings"]:
    """Return the settings of each round. Who checks is said by `checked`.

    Args:
      settings: Settings of all rounds.

    Raises:
      ValueError: If they are wrong for any data, or ask for sets of classes in several rounds.
    """
    if settings.rounds == 1:
        return [settings]
    inputs.check(settings)
    if settings.labels_per_record is not None:
        raise ValueError(
            f"Expected one label a record with {option('rounds')} {settings.rounds}, got "
            f"{option('labels_per_record')} {settings.labels_per_record}; leave one of them out."
        )
    spending = settings.spending
    if not os.path.lexists(settings.ledger_path):  # a first budget is that of all rounds
        budget, budget_delta = spending.budget, spending.budget_delta
        spending = replace(
            spending,
            budget=settings.epsilon if budget is None else budget,
            budget_delta=settings.delta if budget_delta is None else budget_delta,
        )
    found = []
    epsilons, deltas = (
        parts(amount, settings.rounds) for amount in (settings.epsilon, settings.delta)
    )
    if epsilons[0] < LEAST_EPSILON:
        raise ValueError(
            f"Expected {LEAST_EPSILON:g} or more for the first of {option('rounds')} "
            f"{settings.rounds}, got {epsilons[0]:g} of {option('epsilon')} {settings.epsilon:g}; "
            "ask for more, or in fewer rounds."
        )
    for number, (epsilon, part) in enumerate(zip(epsilons, deltas, strict=True), 1):
        out = settings.out
        if out is not None and number < settings.rounds:
            out = out / f"round-{number}"
        one = replace(
            settings,
            epsilon=epsilon,
            delta=part,
            spending=spending,
            check_share=0.0,
            rounds=1,
            out=out,
        )
        found.append(one)
    return found


def checked(settings: "Settings", plan: "Plan") -> "Plan":
    """Return the plan of a first round, with fresh roles for all rounds if records check.

    Their shares are those that suit the part of epsilon of the last round, whose labels count.

    Args:
      settings: Settings of all rounds.
      plan: Plan of the first one, in which all vote. That of a release in one round is returned.
    """
    if settings.rounds == 1:
        return plan
    every = of(settings)
    epsilon = plan.check_epsilon * every[-1].epsilon / every[0].epsilon
    fresh = plan.fresh_roles(settings.check_share, epsilon)
    return plan if fresh is None else plan.checked(fresh)


def costs(every: Sequence["Settings"], plan: "Plan") -> list[Guarantee]:
    """Return the guarantee of each of several rounds, before the long work on public rows.

    Args:
      every: Settings of each of the rounds.
      plan: Plan of one of them.
    """
    found = []
    for one in every:
        votes = questions.cost_of(choosing.choose(one, plan.data).settings, plan.data)
        checked = roles.guarantee(votes, curves=plan.adds_curves)[0]
        found.append(votes if plan.checkers is None else checked)
    return found


def cost(every: Sequence["Settings"], plan: "Plan") -> Guarantee:
    """Return the guarantee of several rounds together.

    Args:
      every: Settings of each of the rounds.
      plan: Plan of one of them.
    """
    epsilon, delta = _sums(every)
    together = accounting.compose(costs(every, plan), delta)
    return replace(together, epsilon=epsilon, delta=delta)


def _sums(every: Sequence["Settings"]) -> tuple[float, float]:
    """Return the sums of epsilons and deltas, rounded up."""
    return (
        accounting.sum_up(one.epsilon for one in every),
        accounting.sum_up(one.delta for one in every),
    )


def check_budget(every: Sequence["Settings"], plan: "Plan") -> None:
    """Raise LedgerError if the budget does not allow these rounds, before the first is paid for.

    Args:
      every: Settings of each of the rounds.
      plan: Plan of the first of them.
    """
    epsilon, delta = _sums(every)
    asked = replace(every[0], epsilon=epsilon, delta=delta, dry_run=False)
    open_ledger(asked, costs(every, plan))


def affordable(every: Sequence["Settings"], plan: "Plan") -> bool:
    """Return whether the budget allows these rounds but what is paid; see `check_budget`."""
    try:
        if unpaid := every[1 if plan.paid else 0 :]:
            check_budget(unpaid, plan)
    except LedgerError:
        return False
    return True


@dataclass(frozen=True)
class Note:
    """Facts that all rounds of a run share, on disk until the last one is complete.

    Attributes:
      request: Hash of the public settings and rows, and of the private files' names.
      roles: Roles of the records, or None if nobody checks. Their key is secret.
    """

    request: str
    roles: Roles | None

    @classmethod
    def of(cls, settings: "Settings", plan: "Plan", roles: Roles | None) -> Self:
        """Return the note of a run.

        Args:
          settings: Settings of all rounds.
          plan: Plan of one of them.
          roles: Roles of the records.
        """
        data = replace(plan.data, before=None)
        # Records may change between rounds, but not to those of other files.
        request = f"{planning.request(settings, data)}\n{planning.places(settings)}"
        return cls(f"{settings.rounds} {hashlib.sha256(request.encode()).hexdigest()}", roles)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the note in a folder, or None; `ValueError` if it is damaged."""
        if not os.path.lexists(folder / ROUNDS):
            return None
        found = read_json(folder / ROUNDS)
        words = found["roles"]
        return cls(str(found["request"]), Roles.of(words) if words else None)

    def write(self, folder: Path) -> None:
        """Write the note, for the owner alone.

        Raises:
          FileExistsError: If another run has written one.
          ValueError: If there is no such folder, and none can be made.
        """
        try:
            make_folder(folder)
        except OSError as error:
            raise ValueError(
                f"Expected {option('out')} to be a folder that can be written, got "
                f"{option('out')} {folder} ({error.strerror}); name another."
            ) from error
        told = {"request": self.request, "roles": self.roles and self.roles.words()}
        write_new(folder / ROUNDS, json.dumps(told).encode(), OWNER)

    def check(self, other: Self, folder: Path) -> None:
        """Raise ValueError if a run with another note goes on here."""
        if other.request != self.request:
            raise ValueError(
                "Expected the settings, public rows and private files of the rounds that "
                f"{option('out')} {folder} holds, got others; go on by the same command, or name "
                "another folder."
            )


def refuse_leftover(folder: Path) -> None:
    """Raise ValueError if a folder has a round of a run that it has no note of."""
    if (folder / "round-1" / RESULTS[-1]).exists() and not (folder / ROUNDS).exists():
        raise ValueError(
            f"Expected {option('out')} without an earlier release, got {option('out')} {folder}, "
            "which holds round-1; name another folder."
        )


def planned(settings: "Settings", number: int, before: Before | None) -> tuple["Plan", Note | None]:
    """Return the plan of a round, and the note of its run, if there is one; see `prepare`."""
    note = Note.read(settings.out) if settings.out else None
    known = None if note is None else note.roles
    plan = planning.prepare(of(settings)[number - 1], before=before, roles=known)
    if note is not None:
        assert settings.out is not None
        note.check(Note.of(settings, plan, known), settings.out)
    elif not plan.paid:
        plan = checked(settings, plan)
    return plan, note


def prepare(settings: "Settings", number: int, before: Before | None) -> "Plan":
    """Return the plan of a round, once the budget allows all that are left; see `planning.prepare`.

    Args:
      settings: Settings of all rounds, with a folder.
      number: Number of the round, from 1 on.
      before: What the rounds before have released. None in the first.

    Raises:
      LedgerError: If the budget does not allow all rounds that are left.
      ValueError: As `planning.prepare`, or if the folder holds rounds of other settings or rows.
    """
    assert settings.out is not None
    plan, note = planned(settings, number, before)
    if not plan.paid:
        check_budget(of(settings)[number - 1 :], plan)
    if note is None:
        chosen = None if plan.checkers is None else plan.checkers.roles
        try:
            Note.of(settings, plan, chosen).write(settings.out)
        except FileExistsError:  # another process has begun this run, whose roles count
            return prepare(settings, number, before)
    return plan


def finished(settings: "Settings") -> Before | None:
    """Return what a round has released, or None if it is not complete.

    Args:
      settings: Settings of a round.
    """
    assert settings.out is not None
    folder = settings.out
    if not clear_finished(folder):
        return None
    card = read_json(folder / RESULTS[-1])
    probabilities = read_arrays(folder / "labels.npz")["probability"]
    return Before(
        np.asarray(probabilities, np.float32),
        Guarantee.of(card["guarantee"]),
        not_covered=tuple(card["not_covered"]),
    )

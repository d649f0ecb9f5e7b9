"""Check of a run's labels by private records that did not vote, as a release has it; simulated.

`sides` tells, by coins, who votes and who checks, before anything else sees a private record. The
whole run, all rounds of it, is then made with the voters alone. After the last round `check` lets
the others compare its labels with their own.

All who check measure the labels of the run, and a few the recall of classes. None choose among
labelings, because a student has been trained on the labels by then, and how they are read is a
setting (`smoothing`). `rknn_jax.privacy.roles` proves that a check costs no epsilon beside that of
the votes: every record has one role, and each role spends at most the epsilon of the whole run.

Without a curator, and without noise, each record that checks sends one randomized bit
(`randomized_bits`). After shuffling, too: it is at the epsilon of the run's guarantee, which a bit
keeps by itself. At the larger epsilon of a message it would need the shuffler, but only messages of
one kind hide among each other, and these bits are few.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rknn_jax import bsvs, randomized_bits
from rknn_jax import check as checks
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.algorithm import Round
from rknn_jax.answers.measured import Measured
from rknn_jax.check import Checkers, Checks, Shares
from rknn_jax.check_noise import SimulatedNoise
from rknn_jax.labelers import Labeler, _persons
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.labels import PublicLabels
from rknn_jax.neighbors import LARGEST
from rknn_jax.privacy import contributions
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.roles import MEASURE, VOTE, Roles
from rknn_jax.types import Records, Task

from .experiment import Experiment
from .run_folder import kept_roles
from .stages import console

LABELING = "the labels of the run"
"""Name of the one labeling that is measured."""


class Sides(NamedTuple):
    """Private records by what they do.

    Attributes:
      task: Data of the run, with the voters alone as private records.
      roles: Roles of all records; None if nobody checks.
      checkers: Private records that check; none if nobody does.
      role: Role of each of them, int8 `[c]`.
    """

    task: Task
    roles: Roles | None
    checkers: Records
    role: np.ndarray


class Checked(NamedTuple):
    """Check of a run.

    Attributes:
      measured: Agreement of the labels with the records that check; None if noise left none.
      num_voters: Number of records, or of persons, that voted.
    """

    measured: Measured | None
    num_voters: int


def in_bits(labeler: Labeler[Any]) -> bool:
    """Return whether each record sends a randomized bit: there is no curator, or no noise."""
    return not labeler.has_curator or math.isinf(labeler.epsilon)


def shares(labeler: Labeler[Any], task: Task, experiment: Experiment) -> Shares:
    """Return the shares of the records that check; see `Experiment.check_share`."""
    local = in_bits(labeler)
    # A bit tells agreement alone, and not of which class.
    num_classes = 0 if local else task.card.num_classes
    if experiment.check_share != "auto":
        return checks.parted(experiment.check_share, num_classes, several=False)
    num_units = labeler.num_units(task.private)
    return checks.shares(num_units, experiment.epsilon, num_classes, several=False, local=local)


def drawn_roles(key: jax.Array, chosen: Shares) -> Roles:
    """Return roles whose coins come from a random key, which is consumed."""
    coins = np.asarray(jax.random.bits(key, (32,), "uint8"))
    return Roles(coins.tobytes(), *chosen)


def roles_of(roles: Roles, private: Records, unit: str) -> np.ndarray:
    """Return the role of each private record, int8 `[n]`; all records of a person have one.

    Args:
      roles: Roles.
      private: Private records.
      unit: Privacy unit: record, or person.
    """
    if unit == "record":
        return roles.of_rows(0, 0, len(private.labels))
    number = _persons.numbered(private)
    names = np.arange(number.max(initial=-1) + 1, dtype=np.uint64)
    role: np.ndarray = roles.of_persons(np.stack([names, np.zeros_like(names)], axis=1))[number]
    return role


def sides(
    noise_key: jax.Array, task: Task, labeler: Labeler[Any], experiment: Experiment, folder: Path
) -> Sides:
    """Part the private records by coins into those that vote and those that check.

    Args:
      noise_key: Key that must stay secret, of which a stage of its own is taken.
      task: Data of the run.
      labeler: Labeler of a round.
      experiment: Settings of the run.
      folder: Folder of the run, which keeps the roles for a training that it may resume.

    Raises:
      ValueError: If nobody is left to vote or to measure, or too few vote for the labeler.
    """
    chosen = shares(labeler, task, experiment)
    nobody = np.zeros(len(task.private.labels), bool)
    if not chosen.measure:
        if experiment.check_share:
            console.print(
                "Nobody checks: with so few records at this epsilon it would tell little."
            )
        return Sides(task, None, subset(task.private, nobody), np.zeros(0, np.int8))
    roles = drawn_roles(stage_key(noise_key, Stage.ROLES), chosen)
    if getattr(labeler, "folder", None) is not None:
        held = task.private
        owners = () if held.clients is None else (held.clients,)
        private = fingerprint(held.images, held.labels, *owners)
        roles = kept_roles(folder, roles, private)
    role = roles_of(roles, task.private, experiment.unit)
    votes = role == VOTE
    for who, some in (("vote", votes), ("measure", role == MEASURE)):
        if not some.any():
            raise ValueError(
                f"Expected a check_share that leaves a {experiment.unit} to {who}, got "
                f"check_share={experiment.check_share} with "
                f"{labeler.num_units(task.private)} of them; bring more, or pass 0."
            )
    voters = replace(
        task, private=subset(task.private, votes), private_index=task.private_index[votes]
    )
    labeler.check(labeler.num_units(voters.private))
    return Sides(voters, roles, subset(task.private, ~votes), role[~votes])


def subset(records: Records, rows: np.ndarray) -> Records:
    """Return some records, with their persons if they name any.

    Args:
      records: Records.
      rows: Their mask, bool `[n]`, or their numbers, int64.
    """
    clients = None if records.clients is None else records.clients[rows]
    return Records(records.images[rows], records.labels[rows], clients)


def check(
    noise_key: jax.Array,
    parted: Sides,
    last: Round,
    votes: Guarantee,
    labeler: Labeler[Any],
    experiment: Experiment,
) -> Checked | None:
    """Let the records that did not vote measure the labels of the last round.

    Guarantee: epsilon-DP for them, with that of `votes`; they have spent nothing before.

    Args:
      noise_key: Key that must stay secret, of which a stage of its own is taken.
      parted: Result of `sides`.
      last: Last round.
      votes: Guarantee of the whole run for the voters.
      labeler: Labeler of the run.
      experiment: Settings of the run.

    Returns:
      The check; None if nobody checks.
    """
    if parted.roles is None:
        return None
    key, draw_key = jax.random.split(stage_key(noise_key, Stage.CHECK))
    task = parted.task
    num_voters = labeler.num_units(task.private)
    checkers = Checkers(
        parted.roles,
        np.asarray(last.encode(task.public.images), np.float32),
        labeler.metric,
        num_classes=task.card.num_classes,
        epsilon=votes.epsilon,
        relation=experiment.relation,
        unit=experiment.unit,
    )
    labeling = labeling_of(last, experiment)
    if in_bits(labeler):
        bits = _measured_by_bits(
            key, draw_key, parted, checkers=checkers, labeling=labeling, last=last
        )
        return Checked(bits, num_voters)
    found = checks_of(parted.checkers, parted.role, checkers, last)
    drawn = checkers.draw(found, [labeling], SimulatedNoise(key))
    return Checked(checkers.measured(drawn, [labeling.name]), num_voters)


def labeling_of(last: Round, experiment: Experiment) -> Labeling:
    """Return the labels of a round as records check them.

    A row without a label counts as one of a class of its own, which no record has.
    """
    labels = last.labels
    known = labels.known[:, None]
    found = PublicLabels(last.answers, labels.probabilities, labels.confidence, labels.query)
    return Labeling(
        LABELING,
        np.concatenate([labels.probabilities, ~known], axis=1).astype(np.float32),
        lambda: found,
        experiment.smoothing == "auto",
    )


def checks_of(records: Records, role: np.ndarray, checkers: Checkers, last: Round) -> Checks:
    """Return what records check with: private.

    Args:
      records: Records that check.
      role: Their roles, int8 `[c]`.
      checkers: Public side of the check.
      last: Round whose representation they are compared in.
    """
    points = np.asarray(last.encode(records.images), np.float32)
    ids = bsvs.voting_labels(np.asarray(records.labels), checkers.num_classes)
    # NaN compares false, so such a record cannot be used either.
    usable = (np.abs(points) <= LARGEST).all(axis=1) & (ids >= 0)
    points = np.where(usable[:, None], points, np.float32(0))
    units = usable.astype(np.int64)
    sizes = np.bincount(role, minlength=4)
    if checkers.unit == "person":
        number = _persons.numbered(records)
        sizes = np.bincount(role[np.unique(number, return_index=True)[1]], minlength=4)
        mine = np.unique(number[usable], return_inverse=True)[1]
        units[usable] = contributions.shared(mine, checkers.grid).units
    return Checks(role, points, ids, units=units, sizes=sizes)


def _measured_by_bits(
    key: jax.Array,
    draw_key: jax.Array,
    parted: Sides,
    checkers: Checkers,
    labeling: Labeling,
    last: Round,
) -> Measured:
    """Return the measure of randomized bits, one a record or a person.

    Args:
      key: Random key of the bits, which is consumed.
      draw_key: Random key of the one record of each person, which is consumed.
      parted: Result of `sides`.
      checkers: Public side of the check.
      labeling: Labels that are measured.
      last: Last round.
    """
    records, role = parted.checkers, parted.role
    if checkers.unit == "person":
        one_each = _persons.one_each(draw_key, records)
        records, role = subset(records, one_each), role[one_each]
    found = checks_of(records, role, checkers, last)
    agrees = checkers.agrees(found, labeling) & (found.units > 0)
    ones = int(randomized_bits.randomized(key, agrees, checkers.epsilon).sum())
    share = randomized_bits.interval_of_bits(ones, len(agrees), checkers.epsilon)
    return Measured(*share, len(agrees), labeling.name, (), None, unit=checkers.unit)

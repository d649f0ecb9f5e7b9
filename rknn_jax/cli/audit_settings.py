"""Settings of `rknn audit`, and which of them go together."""

from dataclasses import dataclass
from typing import Literal

from rknn_jax._internal.ranges import (
    CheckShare,
    Confidence,
    Count,
    Delta,
    ReleaseEpsilon,
    Runs,
    Seed,
)
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import LARGE_EPSILON, Relation, Sampler

DELTA = 1e-5
"""Claimed delta, if noise needs one and none is given."""

SIZES = {"neighbors": 1, "queries": 12, "classes": 3}


@dataclass(frozen=True)
class Audit:
    """Try to break a guarantee: a lower bound on epsilon from what comes out, to be held against the epsilon that is claimed.

    Looks for the two neighboring inputs, and the event, that tell most apart, and counts the event in fresh runs. The stated law of a local mechanism is enumerated too. Not broken is no proof: the power tells what would have been found of one fault, half the noise. Exit status 4: broken.

    Attributes:
      epsilon: claimed epsilon.
      mechanism: mechanism to audit, a file of rknn_jax/mechanisms. Give this, or one of --labeler, --release, --selection, --federation and --ledger.
      labeler: labeler to audit, a file of rknn_jax/labelers, on 24 small pictures of three classes, one of which is a canary.
      release: audit `rknn label` itself, from a plan to the files it writes, on a small table with a canary.
      check_share: with --release, share of the records that check labels instead of voting.
      selection: audit the selection of classes of `rknn classes`, with a canary that is alone in its class, or in a common one.
      federation: audit a client of a round, by its messages, or by a secure sum with dropouts, whose server shares what it sees with another client.
      ledger: buy releases from a ledger in many orders, until it refuses, and compute the epsilon of everything that it sold. This needs no random draws.
      one_run: plant 3,000 canaries in every run of a labeler that sums noisy gradients, such as noisy_sgd, and guess which they are.
      delta: claimed delta. The default is 1e-5 if the noise needs one.
      relation: which data sets are neighbors.
      unit: what is protected, a record or a person. The canary is then a person with many records, or in a federation a client.
      neighbors: number of queries k that a record votes for.
      queries: number of queries s.
      classes: number of classes.
      runs: number of runs of each input. The default is 200,000 for a mechanism, 2,000 for a labeler, 100 for a release, 200 for a selection or a sum, 4,000 for messages, and 20 with --one-run.
      confidence: confidence of the lower bound. An honest mechanism is called broken with probability at most 1 - confidence.
      sampler: noise to audit. simulation is that of jax.random; release is the exact noise from the operating system's entropy.
      skip_power: do not measure the power, by an audit with half the noise.
      seed: seed of the audit's own draws.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    epsilon: ReleaseEpsilon
    mechanism: str | None = None
    labeler: str | None = None
    release: bool = False
    check_share: CheckShare = 0.0
    selection: bool = False
    federation: Literal["messages", "sum"] | None = None
    ledger: bool = False
    one_run: bool = False
    delta: Delta | None = None
    relation: Relation = "replace-one"
    unit: Protected = "record"
    neighbors: Count = SIZES["neighbors"]
    queries: Count = SIZES["queries"]
    classes: Count = SIZES["classes"]
    runs: Runs | None = None
    confidence: Confidence = 0.9999
    sampler: Sampler = "simulation"
    skip_power: bool = False
    seed: Seed = 0
    json: bool = False


def check(settings: Audit) -> None:
    """Raise ValueError for settings that make no sense."""
    subjects = {
        "--mechanism": settings.mechanism,
        "--labeler": settings.labeler,
        "--release": settings.release,
        "--selection": settings.selection,
        "--federation": settings.federation,
        "--ledger": settings.ledger,
    }
    named = [flag for flag, given in subjects.items() if given]
    if len(named) != 1:
        raise ValueError(
            f"Expected one of {', '.join(subjects)}, got {' and '.join(named) or 'none'}; name "
            "what is to be audited."
        )
    if not 0 < settings.epsilon <= LARGE_EPSILON:
        raise ValueError(
            f"Expected 0 < epsilon <= {LARGE_EPSILON:g}, got --epsilon {settings.epsilon:g}; there "
            "must be a guarantee to break."
        )
    if settings.labeler and settings.sampler == "release":
        raise ValueError(
            "Expected --mechanism with --sampler release, got --labeler; labelers are "
            "simulations, audit --release instead."
        )
    given = [
        name
        for name, usual in SIZES.items()
        if not settings.mechanism and getattr(settings, name) != usual
    ]
    if given:
        raise ValueError(
            f"Expected --mechanism with --{given[0]}, got {named[0]}, whose small task has sizes "
            "of its own."
        )
    if settings.unit == "person" and (settings.mechanism or settings.ledger or settings.one_run):
        raise ValueError(
            "Expected --labeler without --one-run with --unit person, or --release, --selection "
            f"or --federation, got {'--one-run' if settings.one_run else named[0]}; a person has "
            "several records."
        )
    if settings.relation != "replace-one" and (settings.federation or settings.ledger):
        raise ValueError(
            f"Expected --relation replace-one with {named[0]}, got {settings.relation}."
        )
    if settings.check_share and not settings.release:
        raise ValueError(
            f"Expected --release with --check-share {settings.check_share}, got {named[0]}; "
            "records check the labels of a release alone."
        )
    if settings.one_run and not settings.labeler:
        raise ValueError("Expected --labeler with --one-run, got none; noisy_sgd is one.")
    if settings.ledger and settings.runs:
        raise ValueError(
            f"Expected no --runs with --ledger, got {settings.runs}; its epsilon is computed."
        )
    if settings.release and settings.delta:
        raise ValueError(
            f"Expected no delta with --release, got --delta {settings.delta}; its discrete "
            "Laplace noise is pure."
        )

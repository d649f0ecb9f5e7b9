"""`rknn account private-knn`, `gnmax` and `lnmax`: cost of labelers that pay by the query.

Each cost is printed for every accountant that applies. The defaults are those of the papers for
MNIST. Nothing here imports JAX, as in `rknn_jax.cli.account`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rknn_jax._internal.ranges import (
    Delta,
    Many,
    ManyOrNone,
    Noise,
    PositiveDelta,
    Probability,
    Threshold,
    Votes,
)
from rknn_jax._internal.terminal import err, out, tell, whole
from rknn_jax.privacy.events import Event, Laplace, gaussian_event
from rknn_jax.privacy.guarantee import Guarantee, Relation, rounded_up


@dataclass(frozen=True)
class PrivateKNN:
    """Tell what Private-kNN's queries cost. Noise is given as in the paper, in votes.

    Attributes:
      delta: delta of all queries together.
      screens: number of queries that are screened; 0 for none.
      answers: largest number of queries that are answered.
      screening_stddev: standard deviation of the noise on the largest count.
      aggregation_stddev: standard deviation of the noise on every count.
      sampling_prob: probability that a record takes part in one step of one query.
      neighbors: number of records k that vote.
      threshold: number of votes that the largest count must reach.
      relation: which data sets are neighbors.
      json: end with one line of JSON on stdout.
    """

    delta: PositiveDelta
    screens: ManyOrNone = 1000
    answers: Many = 735
    screening_stddev: Noise = 75.0
    aggregation_stddev: Noise = 25.0
    sampling_prob: Probability = 0.15
    neighbors: Votes = 300
    threshold: Threshold = 180.0
    relation: Relation = "replace-one"
    json: bool = False


@dataclass(frozen=True)
class GNMax:
    """Tell what PATE's queries cost with Gaussian noise, screened (Confident-GNMax) or not.

    Attributes:
      delta: delta of all queries together.
      screens: number of queries that are screened; 0 for none.
      answers: largest number of queries that are answered.
      screening_stddev: standard deviation of the noise on the largest count.
      aggregation_stddev: standard deviation of the noise on every count.
      teachers: number of teachers that vote.
      threshold: number of votes that the largest count must reach.
      votes: .npy file of the teachers' votes on all queries, integers [n, classes], for what
        depends on them and is private.
      json: end with one line of JSON on stdout.
    """

    delta: PositiveDelta
    screens: ManyOrNone = 640
    answers: Many = 286
    screening_stddev: Noise = 150.0
    aggregation_stddev: Noise = 40.0
    teachers: Votes = 250
    threshold: Threshold = 200.0
    votes: Path | None = None
    json: bool = False


@dataclass(frozen=True)
class LNMax:
    """Tell what PATE's queries cost with Laplace noise.

    Attributes:
      delta: delta of all queries together; 0 adds epsilons up.
      answers: number of queries, all of which are answered.
      scale: scale of the noise on every count.
      votes: .npy file of the teachers' votes, integers [n, classes], for what depends on them and
        is private.
      json: end with one line of JSON on stdout.
    """

    delta: Delta
    answers: Many = 1000
    scale: Noise = 20.0
    votes: Path | None = None
    json: bool = False


def private_knn(settings: PrivateKNN) -> dict[str, Any]:
    """Account for Private-kNN, and return what `--json` prints."""
    replaced = settings.relation == "replace-one"
    screen = (settings.threshold, settings.neighbors)
    events = _screen_and_count(settings, settings.sampling_prob, replaced, screen)
    published = _screen_and_count(settings, settings.sampling_prob, False, None)
    return _result(
        settings,
        settings.relation,
        events,
        {} if replaced else _published(published, settings.delta),
    )


def gnmax(settings: GNMax) -> dict[str, Any]:
    """Account for GNMax or Confident-GNMax, and return what `--json` prints."""
    events = _screen_and_count(settings, 1.0, False, (settings.threshold, settings.teachers))
    told = _result(
        settings,
        "replace-one",
        events,
        _published(_screen_and_count(settings, 1.0, False, None), settings.delta),
    )
    if settings.votes is None:
        return told
    from rknn_jax.privacy import pate

    screen = (
        pate.Screen(settings.threshold, settings.screening_stddev) if settings.screens else None
    )
    return told | {
        "votes": _cost_of_votes(settings, pate.GNMax(settings.aggregation_stddev, screen))
    }


def lnmax(settings: LNMax) -> dict[str, Any]:
    """Account for LNMax, and return what `--json` prints."""
    from rknn_jax.privacy import pate

    answers = whole("answers", settings.answers)
    mechanism = pate.LNMax(settings.scale)
    published = {}
    if settings.delta:
        moments = answers * pate.lnmax_rdp([0.0], settings.scale, pate.MOMENTS)[0]
        published = {
            "moments, as published": pate.rdp_to_epsilon(
                moments, pate.MOMENTS, settings.delta, classic=True
            )
        }
    told = _result(settings, "replace-one", [Laplace(settings.scale, 2 * answers)], published)
    if settings.votes is None:
        return told
    return told | {"votes": _cost_of_votes(settings, mechanism)}


def _screen_and_count(
    settings: PrivateKNN | GNMax,
    sampling_prob: float,
    replaced: bool,
    screen: tuple[float, int] | None,
) -> list[Event]:
    """Return the events of both steps.

    In a neighboring data set one vote moves from one class to another, a distance of sqrt(2).
    """
    counts = gaussian_event(
        settings.aggregation_stddev / math.sqrt(2),
        whole("answers", settings.answers),
        sampling_prob,
        replaced,
    )
    if not settings.screens:
        return [counts]
    return [
        gaussian_event(
            settings.screening_stddev,
            whole("screens", settings.screens),
            sampling_prob,
            replaced=replaced,
            screen=screen,
        ),
        counts,
    ]


def _published(events: list[Event], delta: float) -> dict[str, float]:
    from rknn_jax.privacy import renyi

    return {"RDP, as published": renyi.rdp_epsilon_as_published(events, delta)}


def _result(
    settings: Any, relation: Relation, events: list[Event], found: dict[str, float]
) -> dict[str, Any]:
    """Print and return every accountant's epsilon, after those in `found`, and the guarantee."""
    from rknn_jax.privacy import accounting

    exact = accounting.epsilons(events, settings.delta)
    if not exact:
        raise ValueError(
            f"Expected --delta > 0, got --delta {settings.delta:g}; Gaussian noise gives no pure "
            "differential privacy."
        )
    told = err if settings.json else out
    for name, epsilon in (found | exact).items():
        tell(
            told,
            name,
            f"epsilon = {rounded_up(epsilon, 6)}, "
            f"delta = {0 if name == 'pure' else rounded_up(settings.delta, 6)}",
        )
    name = min(exact, key=lambda name: exact[name])
    delta = 0.0 if name == "pure" else settings.delta
    guarantee = Guarantee(
        exact[name], delta, relation, trust="central", events=tuple(events), accountant=name
    )
    tell(told, "together", str(guarantee))
    return {"accountants": found | exact, **guarantee.asdict()}


def _cost_of_votes(settings: GNMax | LNMax, mechanism: Any) -> dict[str, float]:
    """Print and return the epsilons that depend on the votes, by description."""
    from rknn_jax.privacy import pate, smooth_sensitivity

    assert settings.votes is not None
    votes = np.load(settings.votes, allow_pickle=False)
    if not isinstance(votes, np.ndarray) or votes.ndim != 2 or votes.dtype.kind not in "iu":
        raise ValueError(
            f"Expected an .npy file of votes, integers [num_queries, num_classes], as --votes "
            f"{settings.votes}, got another one; save the array by numpy.save."
        )
    if isinstance(settings, GNMax) and (votes.sum(axis=1, dtype=float) != settings.teachers).any():
        raise ValueError(
            f"Expected {settings.teachers} votes of each query in --votes {settings.votes}, got "
            "others; set --teachers."
        )
    found = pate.report(votes, mechanism, settings.delta)
    if isinstance(mechanism, pate.GNMax):
        plan = smooth_sensitivity.plan_release(
            smooth_sensitivity.expected_votes(*_sizes(votes)), mechanism, settings.delta
        )
        found |= smooth_sensitivity.sanitize(
            np.random.default_rng(), votes, mechanism, plan=plan, delta=settings.delta
        ).facts()
    for name, epsilon in found.items():
        tell(err if settings.json else out, "votes", f"{name}: epsilon = {rounded_up(epsilon, 6)}")
    return found


def _sizes(votes: np.ndarray) -> tuple[int, int, int]:
    """Return the numbers of queries, teachers and classes."""
    return len(votes), int(votes[0].sum()), votes.shape[1]

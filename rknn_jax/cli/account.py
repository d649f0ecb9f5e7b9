r"""`rknn account`: privacy cost of shuffling, several releases, Private-kNN and PATE.

    rknn account shuffle --clients 60000 --delta 1e-6 --epsilon 1
    rknn account rounds --epsilon 0.1 --rounds 10 --delta 1e-5
    rknn account private-knn --screens 1000 --answers 735 \
      --screening-stddev 75 --aggregation-stddev 25 --delta 1e-5
    rknn account gnmax --screens 640 --answers 286 --delta 1e-5
    rknn account lnmax --answers 1000 --scale 20 --delta 1e-5

Each cost is printed for every accountant that applies. The defaults are those of the papers for
MNIST. Nothing here imports JAX: an answer takes a second or two, most of it for the imports.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from tyro.conf import subcommand

from rknn_jax._internal.terminal import err, out, tell, whole
from rknn_jax.privacy.guarantee import Event, Guarantee, Relation

if TYPE_CHECKING:
    from rknn_jax.privacy.amplification import TotalVariation


@dataclass(frozen=True)
class Shuffle:
    """Convert between the epsilon of one message and that of all messages once they are shuffled.

    Attributes:
      clients: number of clients, one message each.
      delta: of the shuffled messages.
      local_epsilon: of one message; give this or epsilon.
      epsilon: of the shuffled messages; give this or local-epsilon.
      bound: variation-ratio, by which rknn releases, of the named mechanism, and the default with --mechanism; general, of every mechanism, and the default without; closed-form, which the papers print.
      mechanism: a local one, such as collision; needed for --bound variation-ratio.
      queries: number of queries s of the mechanism.
      classes: number of classes of the mechanism.
      neighbors: number of queries k that each client of the mechanism votes for.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    clients: float
    delta: float
    local_epsilon: float | None = None
    epsilon: float | None = None
    bound: Literal["general", "variation-ratio", "closed-form"] | None = None
    mechanism: str | None = None
    queries: int = 100
    classes: int = 10
    neighbors: int = 1
    json: bool = False


@dataclass(frozen=True)
class Rounds:
    """Tell what several releases on one data set cost together, by every accountant that applies.

    Attributes:
      epsilon: of each release.
      rounds: number of releases.
      delta: of all together; 0 adds epsilons up.
      neighbors: number of queries k that each private record votes for.
      mechanism: of each release.
      relation: which data sets are neighbours.
      json: end with one line of JSON on stdout.
    """

    epsilon: float
    rounds: int
    delta: float = 0.0
    neighbors: int = 1
    mechanism: Literal["discrete_laplace", "laplace", "permute_and_flip"] = "discrete_laplace"
    relation: Relation = "replace-one"
    json: bool = False


@dataclass(frozen=True)
class PrivateKNN:
    """Tell what Private-kNN's queries cost. Noise is given as in the paper, in votes.

    Attributes:
      delta: of all queries together.
      screens: queries that are screened; 0 for none.
      answers: queries that are answered at most.
      screening_stddev: of the noise on the greatest count.
      aggregation_stddev: of the noise on every count.
      sampling_prob: with which a record takes part in one step of one query.
      neighbors: number of records k that vote.
      threshold: votes that the greatest count must reach.
      relation: which data sets are neighbours.
      json: end with one line of JSON on stdout.
    """

    delta: float
    screens: float = 1000
    answers: float = 735
    screening_stddev: float = 75.0
    aggregation_stddev: float = 25.0
    sampling_prob: float = 0.15
    neighbors: int = 300
    threshold: float = 180.0
    relation: Relation = "replace-one"
    json: bool = False


@dataclass(frozen=True)
class GNMax:
    """Tell what PATE's queries cost with Gaussian noise, screened (Confident-GNMax) or not.

    Attributes:
      delta: of all queries together.
      screens: queries that are screened; 0 for none.
      answers: queries that are answered at most.
      screening_stddev: of the noise on the greatest count.
      aggregation_stddev: of the noise on every count.
      teachers: that vote.
      threshold: votes that the greatest count must reach.
      votes: .npy file of the teachers' votes on all queries, integers [n, classes], for what
        depends on them and is private.
      json: end with one line of JSON on stdout.
    """

    delta: float
    screens: float = 640
    answers: float = 286
    screening_stddev: float = 150.0
    aggregation_stddev: float = 40.0
    teachers: int = 250
    threshold: float = 200.0
    votes: Path | None = None
    json: bool = False


@dataclass(frozen=True)
class LNMax:
    """Tell what PATE's queries cost with Laplace noise.

    Attributes:
      delta: of all queries together; 0 adds them up.
      answers: queries, all of which are answered.
      scale: of the noise on every count.
      votes: .npy file of the teachers' votes, integers [n, classes], for what depends on them and
        is private.
      json: end with one line of JSON on stdout.
    """

    delta: float
    answers: float = 1000
    scale: float = 20.0
    votes: Path | None = None
    json: bool = False


@dataclass(frozen=True)
class Account:
    """Account for shuffling, for several releases, or for the labelers that pay for every query."""

    action: (
        Annotated[Shuffle, subcommand("shuffle")]
        | Annotated[Rounds, subcommand("rounds")]
        | Annotated[PrivateKNN, subcommand("private-knn")]
        | Annotated[GNMax, subcommand("gnmax")]
        | Annotated[LNMax, subcommand("lnmax")]
    )


Action = Shuffle | Rounds | PrivateKNN | GNMax | LNMax


def run(action: Action) -> dict[str, Any]:
    """Run the command, print its result, and return what `--json` prints."""
    match action:
        case Shuffle():
            return shuffle(action)
        case Rounds():
            return rounds(action)
        case PrivateKNN():
            return private_knn(action)
        case GNMax():
            return gnmax(action)
        case LNMax():
            return lnmax(action)


def shuffle(settings: Shuffle) -> dict[str, Any]:
    """Convert, print both epsilons, and return what `--json` prints."""
    from rknn_jax.privacy import amplification

    if (settings.local_epsilon is None) == (settings.epsilon is None):
        raise ValueError(
            "Expected one of --local-epsilon and --epsilon, got --local-epsilon "
            f"{settings.local_epsilon}, --epsilon {settings.epsilon}."
        )
    named = settings.bound or ("general" if settings.mechanism is None else "variation-ratio")
    if (named == "variation-ratio") != (settings.mechanism is not None):
        raise ValueError(
            "Expected --mechanism with --bound variation-ratio and with no other, got --bound "
            f"{named}, --mechanism {settings.mechanism}."
        )
    bound: Any = named.replace("-", " ")
    clients = whole("clients", settings.clients)
    variation = _total_variation(settings)
    if settings.local_epsilon is not None:
        local = settings.local_epsilon
        central = amplification.epsilon(local, clients, settings.delta, bound, variation)
    else:
        central = settings.epsilon or 0.0
        local = amplification.local_epsilon(central, clients, settings.delta, bound, variation)
    told = err if settings.json else out
    tell(told, "one message", f"epsilon = {local:.6g} (pure)")
    tell(
        told,
        "shuffled",
        f"epsilon = {central:.6g}, delta = {settings.delta:g}, with {clients:,} clients of one "
        f"message each ({bound} bound)",
    )
    told_of = (
        {"mechanism": settings.mechanism, "total_variation": variation(local)} if variation else {}
    )
    return {
        "epsilon": central,
        "local_epsilon": local,
        "bound": named,
        **told_of,
        "clients": clients,
        "delta": settings.delta,
    }


def _total_variation(settings: Shuffle) -> "TotalVariation | None":
    """Return the mechanism's total variation as a function of ε₀, or None without a mechanism.

    At each ε₀ the mechanism chooses its own size.
    """
    if settings.mechanism is None:
        return None
    with err.status("loading"):
        from rknn_jax import simulate as job
    name = settings.mechanism
    sizes = {"num_queries": settings.queries, "num_classes": settings.classes}
    return lambda local: (
        job.make(name, epsilon=local, num_neighbors=settings.neighbors, **sizes).total_variation
    )


def rounds(settings: Rounds) -> dict[str, Any]:
    """Compose, print every accountant's epsilon, and return what `--json` prints."""
    from rknn_jax import mechanisms
    from rknn_jax.privacy import accounting

    fields: dict[str, Any] = {"num_neighbors": settings.neighbors, "relation": settings.relation}
    one = mechanisms.make(
        settings.mechanism,
        epsilon=settings.epsilon,
        num_queries=settings.neighbors,
        num_classes=2,
        **fields,
    ).guarantee(1)
    every = [one] * whole("rounds", settings.rounds)
    found = accounting.epsilons(
        [event for guarantee in every for event in guarantee.events], settings.delta
    )
    told = err if settings.json else out
    for name, epsilon in found.items():
        tell(
            told,
            name,
            f"epsilon = {epsilon:.6g}, delta = {0 if name == 'pure' else settings.delta:g}",
        )
    together = accounting.compose(every, settings.delta)
    tell(told, "together", str(together))
    return {"accountants": found, **together.asdict()}


def private_knn(settings: PrivateKNN) -> dict[str, Any]:
    """Account for Private-kNN, and return what `--json` prints."""
    replaced = settings.relation == "replace-one"
    screen = (settings.threshold, settings.neighbors)
    events = _screen_and_count(settings, settings.sampling_prob, replaced, screen)
    published = _screen_and_count(settings, settings.sampling_prob, False, None)
    return _told(
        settings,
        settings.relation,
        events,
        {} if replaced else _published(published, settings.delta),
    )


def gnmax(settings: GNMax) -> dict[str, Any]:
    """Account for GNMax or Confident-GNMax, and return what `--json` prints."""
    events = _screen_and_count(settings, 1.0, False, (settings.threshold, settings.teachers))
    told = _told(
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
        "votes": _told_of_votes(settings, pate.GNMax(settings.aggregation_stddev, screen))
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
    told = _told(
        settings, "replace-one", [Event("laplace", settings.scale, 2 * answers)], published
    )
    if settings.votes is None:
        return told
    return told | {"votes": _told_of_votes(settings, mechanism)}


def _screen_and_count(
    settings: PrivateKNN | GNMax,
    sampling_prob: float,
    replaced: bool,
    screen: tuple[float, int] | None,
) -> list[Event]:
    """Return the events of both steps.

    In a neighboring data set one vote moves from one class to another, a distance of sqrt(2).
    """
    for name in ("screening_stddev", "aggregation_stddev"):
        if not 0 < getattr(settings, name) < math.inf:
            raise ValueError(
                f"Expected a finite --{name.replace('_', '-')} > 0, got "
                f"{getattr(settings, name)}; no noise has no privacy."
            )
    counts = Event(
        "gaussian",
        settings.aggregation_stddev / math.sqrt(2),
        whole("answers", settings.answers),
        sampling_prob,
        replaced,
    )
    if not settings.screens:
        return [counts]
    return [
        Event(
            "gaussian",
            settings.screening_stddev,
            whole("screens", settings.screens),
            sampling_prob,
            replaced,
            screen,
        ),
        counts,
    ]


def _published(events: list[Event], delta: float) -> dict[str, float]:
    from rknn_jax.privacy import accounting

    return {"RDP, as published": accounting.rdp_epsilon_as_published(events, delta)}


def _told(
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
            f"epsilon = {epsilon:.6g}, delta = {0 if name == 'pure' else settings.delta:g}",
        )
    name = min(exact, key=lambda name: exact[name])
    delta = 0.0 if name == "pure" else settings.delta
    guarantee = Guarantee(exact[name], delta, relation, "central", tuple(events), accountant=name)
    tell(told, "together", str(guarantee))
    return {"accountants": found | exact, **guarantee.asdict()}


def _told_of_votes(settings: GNMax | LNMax, mechanism: Any) -> dict[str, float]:
    """Print and return the epsilons that depend on the votes, by description."""
    from rknn_jax.privacy import pate, smooth_sensitivity

    assert settings.votes is not None
    votes = np.load(settings.votes)
    if (
        isinstance(settings, GNMax)
        and votes.ndim == 2
        and votes.sum() != settings.teachers * len(votes)
    ):
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
            np.random.default_rng(), votes, mechanism, plan, settings.delta
        ).told()
    for name, epsilon in found.items():
        tell(err if settings.json else out, "votes", f"{name}: epsilon = {epsilon:.6g}")
    return found


def _sizes(votes: np.ndarray) -> tuple[int, int, int]:
    """Return the numbers of queries, teachers and classes."""
    return len(votes), int(votes[0].sum()), votes.shape[1]

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
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import subcommand

from rknn_jax._internal import progress
from rknn_jax._internal.ranges import Count, Delta, Epsilon, Many, PositiveDelta, ShuffledEpsilon
from rknn_jax._internal.terminal import err, out, tell, whole
from rknn_jax.cli.account_queries import GNMax, LNMax, PrivateKNN, gnmax, lnmax, private_knn
from rknn_jax.privacy.guarantee import Relation, rounded_down, rounded_up

if TYPE_CHECKING:
    from rknn_jax.privacy.amplification import TotalVariation


@dataclass(frozen=True)
class Shuffle:
    """Convert between the epsilon of one message and that of all messages once they are shuffled.

    Attributes:
      clients: number of clients, one message each.
      delta: delta of the shuffled messages.
      local_epsilon: epsilon of one message; give this or epsilon.
      epsilon: epsilon of the shuffled messages together; give this or local-epsilon.
      bound: variation-ratio, for the named mechanism, is what rknn uses in releases, and the default with --mechanism. general holds for every mechanism, and is the default without. closed-form is the formula of the papers.
      mechanism: a local mechanism, such as collision; needed for --bound variation-ratio.
      queries: number of queries s of the mechanism.
      classes: number of classes of the mechanism.
      neighbors: number of queries k that each client of the mechanism votes for.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    clients: Many
    delta: PositiveDelta
    local_epsilon: ShuffledEpsilon | None = None
    epsilon: ShuffledEpsilon | None = None
    bound: Literal["general", "variation-ratio", "closed-form"] | None = None
    mechanism: str | None = None
    queries: Count = 100
    classes: Count = 10
    neighbors: Count = 1
    json: bool = False


@dataclass(frozen=True)
class Rounds:
    """Tell what several releases on one data set cost together, by every accountant that applies.

    Attributes:
      epsilon: epsilon of each release.
      rounds: number of releases.
      delta: delta of all releases together; 0 adds epsilons up.
      neighbors: number of queries k that each private record votes for.
      mechanism: noise of each release; a file of rknn_jax/mechanisms for a trusted curator.
      release_delta: delta of each release, for a mechanism that needs one, such as gaussian.
      relation: which data sets are neighbors.
      votes_alone: flag for votes of records of which none checks (--check-share 0), whose noise is
        known. Others, such as those with checks or of persons, compose by epsilon and delta alone.
      json: end with one line of JSON on stdout.
    """

    epsilon: Epsilon
    rounds: Many
    delta: Delta = 0.0
    neighbors: Count = 1
    mechanism: str = "discrete_laplace"
    release_delta: Delta = 0.0
    relation: Relation = "replace-one"
    votes_alone: bool = False
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
    used = amplification.bound_for(clients, bound)
    with progress.phase("converting"):
        if settings.local_epsilon is not None:
            local = settings.local_epsilon
            central = amplification.epsilon(
                local, clients, settings.delta, bound=bound, total_variation=variation
            )
        else:
            central = settings.epsilon or 0.0
            local = amplification.local_epsilon(
                central, clients, settings.delta, bound=bound, total_variation=variation
            )
    told = err if settings.json else out
    rounded = rounded_up if settings.epsilon is None else rounded_down  # the most that is allowed
    tell(told, "one message", f"epsilon = {rounded(local, 6)} (pure)")
    tell(
        told,
        "shuffled",
        f"epsilon = {rounded_up(central, 6)}, delta = {rounded_up(settings.delta, 6)}, with "
        f"{clients:,} clients of one message each ({used} bound)",
    )
    told_of = (
        {"mechanism": settings.mechanism, "total_variation": variation(local)} if variation else {}
    )
    return {
        "epsilon": central,
        "local_epsilon": local,
        "bound": used.replace(" ", "-"),
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
    with progress.phase("loading"):
        from rknn_jax import simulate as job
    name = settings.mechanism
    sizes = {"num_queries": settings.queries, "num_classes": settings.classes}
    return lambda local: (
        job.make(name, epsilon=local, num_neighbors=settings.neighbors, **sizes).total_variation
    )


def rounds(settings: Rounds) -> dict[str, Any]:
    """Compose, print every accountant's epsilon, and return what `--json` prints."""
    from rknn_jax import mechanisms
    from rknn_jax.privacy import accounting, roles

    mechanism = mechanisms.chosen(settings.mechanism, mechanisms.is_central)
    if mechanism.needs_delta != (settings.release_delta > 0):
        needed = "of more than 0" if mechanism.needs_delta else "0"
        raise ValueError(
            f"Expected --release-delta {needed} with --mechanism {settings.mechanism}, got "
            f"--release-delta {settings.release_delta:g}."
        )
    # The sizes do not matter, but some mechanisms need as many queries as classes.
    size = max(settings.neighbors, 2)
    made = mechanism(
        epsilon=settings.epsilon,
        num_queries=size,
        num_classes=size,
        num_neighbors=settings.neighbors,
        relation=settings.relation,
        **({"delta": settings.release_delta} if mechanism.needs_delta else {}),
    )
    # What a release draws may compose otherwise than its simulation: Gaussian noise is discrete.
    one = made.release_guarantee(1) if mechanism.is_exact() else made.guarantee(1)
    if not settings.votes_alone:
        one, _ = roles.guarantee(one, curves=False)
    times = whole("rounds", settings.rounds)
    with progress.phase("composing"):
        together = accounting.compose([one], settings.delta, times)
        if not math.isfinite(together.epsilon):
            raise ValueError(
                f"Expected a sum that is a number, got --epsilon {settings.epsilon:g} --rounds "
                f"{times}, which promise nothing together; lower either."
            )
        events = together.events
        found = accounting.epsilons(events, settings.delta) if events else {}
    told = err if settings.json else out
    for name, epsilon in found.items():
        tell(
            told,
            name,
            f"epsilon = {rounded_up(epsilon, 6)}, "
            f"delta = {0 if name == 'pure' else rounded_up(settings.delta, 6)}",
        )
    tell(told, "together", str(together))
    return {"accountants": found, **together.asdict()}

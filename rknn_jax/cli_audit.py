"""`rknn audit`: try to break the guarantee of a mechanism or a labeler.

rknn audit --mechanism collision --epsilon 1
rknn audit --mechanism gaussian --epsilon 1 --delta 1e-5 --sampler release
rknn audit --labeler private_knn --epsilon 1 --delta 1e-5
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from rknn_jax.privacy.guarantee import Guarantee, Relation, Sampler
from rknn_jax.terminal import err, tell, whole

BROKEN = 4
"""Exit status."""

RUNS, LABELER_RUNS = 200_000, 2000
DELTA = 1e-5
SIZES = {"neighbors": 1, "queries": 4, "classes": 2}
CLIENTS = 20
"""Of a mechanism whose noise they bring in shares."""


@dataclass(frozen=True)
class Audit:
    """Try to break a guarantee: a lower bound on epsilon from what comes out, to be held against the epsilon that is claimed.

    Looks for the two neighbouring inputs, and the event, that tell most apart, and counts the event in fresh runs. Of local mechanisms with few cells the law is enumerated too. Not broken is no proof; the power says what would have been found. Exit status 4: broken.

    Attributes:
      epsilon: that is claimed.
      mechanism: a file of rknn_jax/mechanisms; give this or a labeler.
      labeler: a file of rknn_jax/labelers, on 24 small pictures of three classes, of which one is a canary.
      delta: that is claimed; 1e-5 where noise needs one and none is given.
      relation: which data sets are neighbours.
      neighbors: number of queries k that a record votes for.
      queries: number of queries s.
      classes: number of classes.
      runs: of each input; 200,000 of a mechanism and 2,000 of a labeler where it is not given.
      confidence: with which the lower bound holds; an honest mechanism is called broken with 1 less that, at most.
      sampler: release audits the exact noise of a mechanism, on the operating system's entropy.
      skip_power: do not audit the same with noise as for twice the epsilon.
      seed: of the audit's own draws.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    epsilon: float
    mechanism: str | None = None
    labeler: str | None = None
    delta: float | None = None
    relation: Relation = "replace-one"
    neighbors: int = SIZES["neighbors"]
    queries: int = SIZES["queries"]
    classes: int = SIZES["classes"]
    runs: float | None = None
    confidence: float = 0.9999
    sampler: Sampler = "simulation"
    skip_power: bool = False
    seed: int = 0
    json: bool = False


def run(settings: Audit) -> dict[str, Any]:
    """Audit, and print the verdict. Returns what `--json` prints."""
    if (settings.mechanism is None) == (settings.labeler is None):
        raise ValueError(
            f"Expected --mechanism or --labeler, got --mechanism {settings.mechanism} and --labeler {settings.labeler}; name one of them."
        )
    if not 0 < settings.epsilon < math.inf:
        raise ValueError(f"Expected 0 < epsilon < infinity, got --epsilon {settings.epsilon}; there must be a guarantee to break.")
    if settings.labeler and settings.sampler == "release":
        raise ValueError("Expected --mechanism with --sampler release, got --labeler; labelers are simulations, a release is `rknn label`.")
    given = [name for name, usual in SIZES.items() if settings.labeler and getattr(settings, name) != usual]
    if given:
        raise ValueError(
            f"Expected --mechanism with --{given[0]}, got --labeler {settings.labeler}, whose small task has sizes of its own."
        )
    with err.status("loading"):
        import jax

        from rknn_jax import compilation, games
        from rknn_jax.privacy import audit
    compilation.keep()
    runs = whole("runs", settings.runs or (RUNS if settings.mechanism else LABELER_RUNS))
    exact = None
    if settings.mechanism:
        subject = mechanism(settings)
        guarantee, played = claimed(subject, settings.sampler), games.of_mechanism(subject, settings.sampler)
        weaker = games.of_mechanism(replace(subject, epsilon=2 * settings.epsilon), settings.sampler)
        exact = games.exact(subject)
        tell(err, "mechanism", str(subject))
    else:
        played, guarantee = labeler_games(settings, settings.epsilon)
        weaker, _ = labeler_games(settings, 2 * settings.epsilon)
        tell(err, "labeler", str(configured(settings, settings.epsilon)))
    tell(err, "claimed", str(guarantee))
    if exact:
        tell(err, "enumerated", f"{exact}  {exact.neighbours}")
    with err.status(f"playing {len(played)} games"):
        try:
            control = None if settings.skip_power else weaker
            found = audit.audit(jax.random.key(settings.seed), played, guarantee, runs, settings.confidence, control)
        except NotImplementedError as error:  # no exact form
            raise ValueError(f"Expected --sampler simulation with --mechanism {settings.mechanism}, got release. {error}") from error
    tell(err, "drawn", str(found))
    tell(err, "inputs", found.neighbours)
    tell(err, "event", found.event)
    # What is enumerated is sure, unless what is drawn does not keep to it.
    told = exact if exact and (exact.broken or not found.broken) else found
    return told.asdict() | {"broken": found.broken or (exact is not None and exact.broken), "power": found.power, "drawn": found.asdict()}


def claimed(subject: Any, sampler: Sampler) -> Guarantee:
    """Return what a mechanism promises where its noise comes from `sampler`."""
    if sampler == "release" and hasattr(subject, "release_guarantee"):
        return subject.release_guarantee(CLIENTS)
    return replace(subject.guarantee(CLIENTS), sampler=sampler)


def mechanism(settings: Audit) -> Any:
    """Return the mechanism that is audited."""
    from rknn_jax import mechanisms

    named = mechanisms.named(settings.mechanism or "")
    takes = {field.name for field in fields(named)}
    if settings.relation != "replace-one" and "relation" not in takes:
        raise ValueError(f"Expected --relation replace-one with --mechanism {settings.mechanism}, got {settings.relation}.")
    if settings.delta and "delta" not in takes:
        raise ValueError(
            f"Expected no delta with --mechanism {settings.mechanism}, got --delta {settings.delta}; it is pure, leave it out."
        )
    optional = {"relation": settings.relation, "delta": DELTA if settings.delta is None else settings.delta, "num_clients": CLIENTS}
    sizes = {"num_queries": settings.queries, "num_classes": settings.classes, "num_neighbors": settings.neighbors}
    return named(epsilon=settings.epsilon, **sizes, **{name: value for name, value in optional.items() if name in takes})


def labeler_games(settings: Audit, epsilon: float) -> tuple[Any, Any]:
    """Return games of the labeler at an epsilon, and its guarantee."""
    from rknn_jax import games

    task = games.small_task()
    encode, queries = games.small_queries(task)
    return games.of_labeler(task, encode, queries, settings.labeler or "", configured(settings, epsilon))


def configured(settings: Audit, epsilon: float) -> Any:
    """Return the labeler's settings."""
    from rknn_jax import games

    delta = DELTA if settings.delta is None else settings.delta
    return games.telling(settings.labeler or "", epsilon=epsilon, relation=settings.relation, delta=delta)

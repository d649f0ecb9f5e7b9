"""Games and claimed guarantees of the mechanism, labeler, release or federation in an audit."""

from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple

from rknn_jax._internal.terminal import err, tell
from rknn_jax.cli.audit_settings import DELTA, Audit
from rknn_jax.privacy.guarantee import Guarantee, Sampler

CLIENTS = 20
"""Number of clients, for mechanisms whose noise the clients add in shares."""


class Subject(NamedTuple):
    """Games to play, and what was found without them.

    Attributes:
      kind: Kind of the subject, a key of `rknn_jax.cli.audit.RUNS`.
      games: Games of the subject.
      guarantee: Guarantee that is claimed.
      weaker: Games of the same with half the noise; None to state no power.
      exact: Finding of an enumeration; None if there is none.
      leaks: Leaks that were found without statistics; None if nothing looked for them.
    """

    kind: str
    games: Any
    guarantee: Guarantee
    weaker: Any = None
    exact: Any = None
    leaks: list[str] | None = None


def find_subject(settings: Audit) -> Subject:
    """Return what is audited."""
    delta = DELTA if settings.delta is None else settings.delta
    epsilon = settings.epsilon
    if settings.release:
        leaks = _leaks(settings)
        return Subject("release", *release_games(settings), leaks=leaks)
    if settings.selection:
        from rknn_jax.audit import games_selection

        tell(err, "selection", "rknn classes, from its records to its classes")
        played = games_selection.of_selection(epsilon, delta, settings.relation, settings.unit)
        law = games_selection.exact(epsilon, delta, settings.relation)
        return Subject("selection", *played, exact=law)
    if settings.federation:
        from rknn_jax.audit.games_federation import of_federation

        kind = settings.federation
        unit: Literal["client", "record"] = "record" if settings.unit == "record" else "client"
        tell(err, "federation", f"{kind} of a client of which a {unit} is protected")
        return Subject(kind, *of_federation(kind, epsilon, delta, unit))
    if settings.mechanism:
        from rknn_jax.audit import games

        subject = mechanism(settings)
        tell(err, "mechanism", str(subject))
        weaker = replace(subject, epsilon=2 * epsilon)
        return Subject(
            "mechanism",
            games.of_mechanism(subject, settings.sampler),
            claimed(subject, settings.sampler),
            weaker=games.of_mechanism(weaker, settings.sampler),
            exact=_exact(settings, subject),
        )
    tell(err, "labeler", str(configured(settings, epsilon)))
    weaker_games, _ = labeler_games(settings, 2 * epsilon)
    return Subject("labeler", *labeler_games(settings, epsilon), weaker_games)


def _exact(settings: Audit, subject: Any) -> Any:
    """Return what the law of a local mechanism tells, at a size at which it is enumerated."""
    from rknn_jax import mechanisms
    from rknn_jax.audit import games

    if mechanisms.is_central(type(subject)):
        return None
    most = max(min(settings.queries, games.MOST_CELLS // settings.classes), settings.neighbors)
    return games.exact(mechanism(replace(settings, queries=most)))


def release_games(settings: Audit) -> tuple[Any, Guarantee]:
    """Return games of `rknn label`, and its guarantee."""
    from rknn_jax.audit.games_release import of_release

    given = _persons(settings) | {"check_share": settings.check_share}
    return of_release(settings.epsilon, settings.relation, **given)


def _persons(settings: Audit) -> dict[str, Any]:
    """Return the settings of `rknn label` that name persons, if persons are protected."""
    return {} if settings.unit == "record" else {"person": "person"}


def _leaks(settings: Audit) -> list[str]:
    """Return the leaks that checks of `rknn label` find without statistics."""
    from rknn_jax.audit.games_release import differing, moved, read_after, worlds

    tell(err, "release", "rknn label, from its plan to its files")
    played = worlds(settings.epsilon, settings.relation, **_persons(settings))
    leaks = sorted({name for world in played for name in differing(world)})
    read = sorted(
        {found for world in played for plan in world.plans if (found := read_after(plan))}
    )
    far = max(moved(world) for world in played)
    beyond = f"one {settings.unit} moves the sum by {far:.4g} times the sensitivity"
    tell(err, "before the noise", f"BROKEN: {beyond}" if far > 1 else beyond)
    told = f"with the same noisy counts, one record decides {', '.join(leaks)}"
    tell(
        err,
        "same noisy counts",
        f"BROKEN: {told}" if leaks else "the same files, whatever one record says",
    )
    tell(
        err,
        "after the noise",
        f"BROKEN: {read[0]}" if read else "no private record or vote is read",
    )
    return [*leaks, *read, *([beyond] if far > 1 else [])]


def claimed(subject: Any, sampler: Sampler) -> Guarantee:
    """Return a mechanism's guarantee, for noise from `sampler`."""
    stated = subject.release_guarantee if sampler == "release" else subject.guarantee
    guarantee: Guarantee = stated(CLIENTS)
    return guarantee


def mechanism(settings: Audit) -> Any:
    """Return the mechanism that is audited."""
    from rknn_jax import mechanisms

    named = mechanisms.named(settings.mechanism or "")
    takes = {field.name for field in fields(named)}
    if settings.relation != "replace-one" and "relation" not in takes:
        raise ValueError(
            f"Expected --relation replace-one with --mechanism {settings.mechanism}, got "
            f"{settings.relation}."
        )
    if settings.delta and "delta" not in takes:
        raise ValueError(
            f"Expected no delta with --mechanism {settings.mechanism}, got --delta "
            f"{settings.delta}; it is pure, leave it out."
        )
    optional = {
        "relation": settings.relation,
        "delta": DELTA if settings.delta is None else settings.delta,
        "num_clients": CLIENTS,
    }
    sizes = {
        "num_queries": settings.queries,
        "num_classes": settings.classes,
        "num_neighbors": settings.neighbors,
    }
    return named(
        epsilon=settings.epsilon,
        **sizes,
        **{name: value for name, value in optional.items() if name in takes},
    )


def labeler_games(settings: Audit, epsilon: float) -> tuple[Any, Any]:
    """Return games of the labeler at an epsilon, and its guarantee."""
    from rknn_jax.audit import games_labeler

    task = games_labeler.small_task()
    encode, queries = games_labeler.small_queries(task)
    return games_labeler.of_labeler(task, encode, queries, configured(settings, epsilon))


def configured(settings: Audit, epsilon: float) -> Any:
    """Return the labeler's settings."""
    from rknn_jax.audit import games_labeler

    delta = DELTA if settings.delta is None else settings.delta
    labeler = games_labeler.telling(
        settings.labeler or "", epsilon=epsilon, relation=settings.relation, delta=delta
    )
    return labeler if settings.unit == "record" else replace(labeler, unit=settings.unit)

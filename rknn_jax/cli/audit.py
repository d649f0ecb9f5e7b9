"""`rknn audit`: try to break the guarantee of a mechanism, a labeler, a release or a ledger.

rknn audit --mechanism collision --epsilon 1
rknn audit --mechanism gaussian --epsilon 1 --delta 1e-5 --sampler release
rknn audit --labeler private_knn --epsilon 1 --delta 1e-5
rknn audit --labeler rknn --unit person --epsilon 1
rknn audit --labeler noisy_sgd --one-run --epsilon 1
rknn audit --release --epsilon 1
rknn audit --release --unit person --epsilon 1
rknn audit --selection --epsilon 1 --delta 1e-5
rknn audit --federation sum --epsilon 1 --delta 1e-5
rknn audit --ledger --epsilon 1 --delta 1e-5
"""

from dataclasses import replace
from typing import Any

from rknn_jax._internal import progress
from rknn_jax._internal.terminal import err, tell, whole
from rknn_jax.cli.audit_settings import DELTA, Audit, check
from rknn_jax.cli.audit_subjects import find_subject
from rknn_jax.privacy.filters import Accounting

BROKEN = 4
"""Exit status of an audit that broke a guarantee."""

RUNS = {
    "mechanism": 200_000,
    "labeler": 2000,
    "release": 100,
    "one_run": 20,
    "selection": 200,
    "messages": 4000,
    "sum": 200,
}
"""Runs of each input, by what is audited."""


def run(settings: Audit) -> dict[str, Any]:
    """Audit, print the verdict, and return what `--json` prints."""
    check(settings)
    with progress.phase("loading"):
        import jax

        from rknn_jax._internal import compilation
        from rknn_jax.audit import verdict
        from rknn_jax.audit.game import HALF_THE_NOISE, Control
    compilation.keep()
    if settings.one_run:
        return _one_run(settings)
    if settings.ledger:
        return _ledger(settings)
    subject = find_subject(settings)
    runs = whole("runs", settings.runs or RUNS[subject.kind])
    tell(err, "claimed", str(subject.guarantee))
    if subject.exact:
        tell(err, "stated law", f"{subject.exact}  {subject.exact.inputs}")
    with progress.phase(f"playing {len(subject.games)} games"):
        try:
            control = None
            if not settings.skip_power and subject.weaker is not None:
                control = Control(HALF_THE_NOISE, subject.weaker)
            found = verdict.audit(
                jax.random.key(settings.seed),
                subject.games,
                subject.guarantee,
                runs=runs,
                confidence=settings.confidence,
                control=control,
            )
        except NotImplementedError as error:  # the mechanism has no exact form
            raise ValueError(
                f"Expected --sampler simulation with --mechanism {settings.mechanism}, got "
                f"release. {error}"
            ) from error
    tell(err, "drawn", str(found))
    tell(err, "inputs", found.inputs)
    tell(err, "event", found.event)
    known = list(subject.leaks or ())
    if subject.exact is not None and subject.exact.broken:
        known.append("the stated law")
    told = found.asdict()
    if known:
        told["broken"] = True
        told["statement"] = f"BROKEN, and no chance: {', '.join(known)}. By the runs alone: {found}"
        tell(err, "verdict", told["statement"])
    return told | {
        "stated_law": subject.exact and subject.exact.asdict(),
        "leaks": subject.leaks,
    }


def _ledger(settings: Audit) -> dict[str, Any]:
    """Audit the ledger by what it sells, under every rule that the budget allows."""
    from rknn_jax.audit.games_ledger import of_ledger

    delta = DELTA if settings.delta is None else settings.delta
    budgets: list[tuple[Accounting, float]] = [("sum", 0.0)]
    if delta:
        budgets += [("sum", delta), ("renyi", delta)]
    found = []
    for rule, spendable in budgets:
        with progress.phase(f"buying from a ledger with accounting={rule}"):
            found.append(of_ledger(settings.epsilon, spendable, rule))
        tell(err, f"accounting={rule}", str(found[-1]))
    worst = max(found, key=lambda one: one.lower_bound)
    tell(err, "event", worst.event)
    return worst.asdict() | {"ledgers": [one.asdict() for one in found]}


def _one_run(settings: Audit) -> dict[str, Any]:
    """Audit a labeler by many canaries in every run."""
    import jax

    from rknn_jax import labelers
    from rknn_jax.audit import games_training, one_run

    runs = whole("runs", settings.runs or RUNS["one_run"])
    config: Any = labelers.named(settings.labeler or "").for_canaries(
        games_training.CANARIES,
        settings.epsilon,
        DELTA if settings.delta is None else settings.delta,
    )
    if config is None:
        raise ValueError(
            "Expected a --labeler with --one-run whose released weights sum the gradients of all "
            f"records, got --labeler {settings.labeler}; noisy_sgd is one."
        )
    tell(err, "labeler", str(config))
    with progress.phase(f"training {runs} times"):
        signs, scores, guarantee = games_training.canary_runs(
            jax.random.key(settings.seed), runs, replace(config, relation=settings.relation)
        )
    found = one_run.judge(signs, scores, guarantee, settings.confidence)
    tell(err, "claimed", str(guarantee))
    tell(err, "drawn", str(found))
    return found.asdict()

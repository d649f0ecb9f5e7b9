"""Statement of a release by `rknn label`: the content of `privacy.json` and `privacy.html`.

Of the private data it shows n, if n is public, and nothing else. No file and no folder is named:
the name of a private file may hold a person's name or diagnosis.
"""

import importlib.metadata
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rknn_jax import check
from rknn_jax.answers.measured import Measured
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.privacy.statement import (
    CHOSEN_BY_RECORDS,
    CHOSEN_SETTINGS,
    ONE_LEDGER,
    PUBLIC_TUNING,
    UNKNOWN_MODEL,
    Account,
    Statement,
    Tuning,
)
from rknn_jax.question import RELEASED_BEFORE
from rknn_jax.release import engines
from rknn_jax.release.planning import Plan

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

PACKAGES = ("rknn-jax", "jax", "opendp", "numpy", "scikit-learn")
"""Packages whose versions a statement names."""

SEEN = {
    "declared": "the private files declare; give them to choose what is told",
    "inferred": "was read from the private labels; give them to avoid that",
}
"""What is said of classes that the private side told, by their origin."""


def card(plan: Plan, told: Statement, measured: Measured | None = None) -> dict[str, Any]:
    """Return the content of `privacy.json`.

    Args:
      plan: Release that was made.
      told: Its statement.
      measured: Agreement with records that did not vote. Defaults to None, if not measured.
    """
    settings = plan.settings
    before = plan.question.before
    choices = ("relation", "representation", "standardize", "smoothing")
    return told.card(
        **{f"num_{settings.unit}s": plan.num_records},
        **_bound(plan),
        num_public=len(plan.data.public),
        num_classes=plan.data.classes.count,
        labeler=plan.question.labeler.name,
        **{name: getattr(settings, name) for name in choices},
        **plan.words.facts,
        **({"rounds_before": before.guarantee.asdict()} if before else {}),
        **_check(plan),
        measured=measured and measured.asdict(),
        **({"model": asdict(plan.data.model)} if plan.data.model else {}),
        **({"choice": plan.choice} if plan.choice else {}),
    )


def not_covered(plan: Plan) -> list[str]:
    """Return sentences on the risks that the guarantee, of all rounds so far, does not cover."""
    before = plan.question.before
    seen = SEEN.get(plan.data.classes.source, "is taken as public")
    found = [
        *(
            []
            if plan.num_records is None
            else [f"the number of private {plan.settings.unit}s, which is taken as public"]
        ),
        f"the set of {plan.data.classes.count} classes, which {seen}",
        plan.data.model.not_covered if plan.data.model else UNKNOWN_MODEL,
        *(plan.data.encode.not_covered if plan.data.encode else ()),
        CHOSEN_SETTINGS,
        *(risk for name in plan.engines for risk in engines.named(name).NOT_COVERED),
        *(before.not_covered if before else ()),
    ]
    return list(dict.fromkeys(found))


def _check(plan: Plan) -> dict[str, Any]:
    """Return the shares of the records that check for the card, or nothing if none does."""
    checkers = plan.checkers
    if checkers is None:
        return {}
    roles = checkers.roles
    shares = {"choose": roles.choose, "measure": roles.measure, "recall": roles.recall}
    return {"check": shares | {"epsilon": checkers.epsilon}}


def _checked(plan: Plan, measured: Measured | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the released items and the details of the check, or nothing if none was made."""
    checkers = plan.checkers
    if checkers is None:
        return (), {}
    unit, roles = plan.settings.unit, checkers.roles
    released = check.released(unit, by_class=roles.recall > 0, chooses=roles.choose > 0)
    details = {
        f"{unit}s that check instead of voting": f"{1 - checkers.roles.vote:.1%}, by a coin that "
        "does not depend on their data",
    }
    if measured is not None:
        details["measured"] = str(measured)
        details["labels are read by"] = measured.labeling
    return (released,), details


def _bound(plan: Plan) -> dict[str, Any]:
    """Return the bound on a person's votes for the card, or nothing if records are protected."""
    if plan.settings.columns.person is None:
        return {}
    words = {"shared": "all, sharing one vote", "clipped": "all, clipped to the norm of one vote"}
    records = plan.contribution.records
    return {"records_per_person": words.get(str(records), records)}


def _scaled(settings: "Settings") -> dict[str, str]:
    """Return what the statement says about the scale of columns, or nothing if it is unchanged."""
    if not settings.standardize:
        return {}
    return {"scale of columns": "mean 0 and standard deviation 1 among the public rows"}


def _before(plan: Plan) -> dict[str, str]:
    """Return what the statement says about earlier rounds, or nothing in a first one."""
    before = plan.question.before
    return {} if before is None else before.details(plan.cost)


def _class_names(plan: Plan) -> tuple[str, ...]:
    """Return the names of the classes, unless they were read from private labels."""
    classes = plan.data.classes
    return () if classes.source == "inferred" else classes.names or ()


def _uncharged(plan: Plan) -> str:
    """Return a sentence on classes that the private side told, or an empty string."""
    seen = SEEN.get(plan.data.classes.source)
    return f"Epsilon does not cover the set of classes, which {seen}." if seen else ""


def statement(
    plan: Plan, ledger: Ledger, release: str, measured: Measured | None = None
) -> Statement:
    """Return the content of `privacy.html`.

    Args:
      plan: Release that was made.
      ledger: Ledger that was charged.
      release: Id of the release.
      measured: Agreement with records that did not vote. Defaults to None, if not measured.
    """
    settings = plan.settings
    checks, checked = _checked(plan, measured)
    unit = settings.unit
    records = (
        f"all private {unit}s"
        if plan.num_records is None
        else f"all {plan.num_records:,} private {unit}s"
    )
    if unit == "person":
        records = f"the records of {records}"
    return Statement(
        plan.question.whole,
        f"Whoever ran this release holds {records}, as they are, in one place.",
        (*plan.words.released, *checks, *([RELEASED_BEFORE] if plan.question.before else [])),
        not_covered=tuple(not_covered(plan)),
        mechanism=str(settings.mechanism),
        # The ledger's name is that of a private file, and its fingerprint of the data is private.
        account=Account(
            ledger.id,
            ledger.head,
            ledger.budget,
            spent=ledger.spent,
            remaining=ledger.remaining,
            accounting=ledger.accounting,
        ),
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        details={
            "public rows": len(plan.data.public),
            "representation": settings.representation or "embeddings, as given",
            **({"embedding model": plan.data.model} if plan.data.model else {}),
            **_scaled(settings),
            **_before(plan),
            "labeler": plan.question.labeler.name,
            **plan.words.details,
            **checked,
            **{name.replace("_", " "): value for name, value in _bound(plan).items()},
            "classes": plan.data.classes.count,
            **({"choice of the labeler": plan.choice} if plan.choice else {}),
        },
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
        release=release,
        responsible=settings.responsible,
        contribution=plan.contribution,
        tuning=_tuning(plan),
        assumptions=(ONE_LEDGER,),
        remark=_uncharged(plan),
        class_names=_class_names(plan),
    )


def _tuning(plan: Plan) -> Tuning:
    """Return how the settings were chosen, and how the noisy sum is read."""
    uncharged = _uncharged(plan)
    if uncharged:
        return Tuning("uncharged", uncharged)
    chooses = plan.checkers is not None and plan.checkers.roles.choose > 0
    return CHOSEN_BY_RECORDS if chooses else PUBLIC_TUNING

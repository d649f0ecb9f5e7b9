"""Lines of `rknn label` on the terminal: its plan, what to expect of it, and what came out."""

import math
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rknn_jax._internal.terminal import err, tell
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.ledger import Amount
from rknn_jax.release.release_folder import RESULTS
from rknn_jax.release.settings import Settings

# JAX and OpenDP take seconds to import, and --help needs none of them.
if TYPE_CHECKING:
    from rknn_jax.release.label import Release
    from rknn_jax.release.planning import Plan
    from rknn_jax.release.preview import Expected, Preview

LONG = 30.0
"""Seconds after the charge from which on an owner is told of them before it."""

MOST_NAMES = 20
MOST_CLASSES = 20
"""Most columns of features or public files, and most classes, that the terminal names."""


def tell_plan(plan: "Plan") -> None:
    """Tell what a release is about to do, before anything is spent."""
    from rknn_jax.formats import jsonl, suffix_of
    from rknn_jax.release import label as job
    from rknn_jax.release import tables

    data = plan.data
    settings = plan.settings
    number = "" if plan.num_records is None else f"{plan.num_records:,} "
    records = f"{number}private {settings.unit}s"
    assumed = (
        " assumed, since a dry run reads no labels (pass --classes)"
        if data.classes.source == "assumed"
        else ""
    )
    tell(
        err,
        "read",
        f"{len(data.public):,} public rows and {records} of {data.public.shape[1]} dimensions; "
        f"{data.classes.count} classes{assumed}",
    )
    if tables.SOURCE_FILE in data.others:
        tell(err, "order", _order(data.others[tables.SOURCE_FILE]))
    if data.names:
        more = f" and {len(data.names) - MOST_NAMES:,} more" if len(data.names) > MOST_NAMES else ""
        tell(err, "features", f"{', '.join(data.names[:MOST_NAMES])}{more}")
    for sentence in data.doubts:
        tell(err, "warning", sentence)
    for sentence in _of_classes(plan):
        tell(err, "classes", sentence)
    if any(suffix_of(name) in jsonl.SUFFIXES for name in _listed(settings.private_labels or ())):
        label = settings.columns.label
        tell(
            err,
            "labels",
            f"{label!r} of each line of --private-labels, for the record in the same "
            "place; other keys are not read, and --label names another one",
        )
    if plan.ledger is None:
        tell(err, "budget", ledger_index.notice(settings.ledger_path))
        tell(err, "", _first_budget(settings))
    if plan.choice:
        tell(err, "labeler", plan.choice)
    for word, text in plan.question.lines:
        tell(err, word, text)
    tell(err, "check", _check_words(plan))
    if (seconds := job.seconds(plan)) > LONG:
        size = job.memory(plan) / 1e9
        text = f"about {seconds / 60:,.0f} min after the charge, with {size:.1g} GB of memory"
        tell(err, "time", f"{text}; fewer classes, queries or public rows take less")
    if data.skipped:
        named = ", ".join(data.skipped[:5])
        tell(
            err,
            "skipped",
            f"{len(data.skipped)} files that hold no records of their own, such as {named}",
        )


def _of_classes(plan: "Plan") -> Iterator[str]:
    """Yield what is said of the classes, and of how numbers among the labels are read."""
    classes = plan.data.classes
    names = ", ".join(map(repr, (classes.names or ())[:MOST_CLASSES]))
    if classes.source == "declared":
        yield (
            f"the private files declare {names or classes.count}, which become public with the "
            "labels; pass --classes to name those that may"
        )
    elif names and plan.settings.classes.classes is not None:  # a name may have held a comma
        yield names
    if plan.data.reading:
        yield plan.data.reading


def _order(sources: np.ndarray) -> str:
    """Return the order of the public rows of several files, by the file of each row."""
    files = list(dict.fromkeys(sources.tolist()))
    more = f" and {len(files) - MOST_NAMES:,} more" if len(files) > MOST_NAMES else ""
    return (
        f"public rows are those of {', '.join(files[:MOST_NAMES])}{more}, one file after another; "
        "labels.npz has the file and row of each label as public_source_file and public_source_row"
    )


def _check_words(plan: "Plan") -> str:
    """Return a line on the records that do not vote but measure what the labels are worth."""
    from rknn_jax import check

    settings = plan.settings
    unit = f"{settings.unit}s"
    checkers = plan.checkers
    if checkers is not None:
        price = "at no epsilon" if plan.check_is_free else "and the ledger's divergence grows"
        return (
            f"{1 - checkers.roles.vote:.1%} of the private {unit} do not vote but check the "
            f"labels, {price}"
        )
    if plan.paid or settings.check_share is not None:
        return "nobody measures what the labels are worth"
    if plan.num_records is None:
        return "n is private, so pass --check-share to have the labels measured"
    if not plan.check_is_free:
        return (
            "nobody measures what the labels are worth: this ledger adds divergences up and would "
            "pay more for it; pass --check-share if it is worth that"
        )
    return (
        f"too few private {unit} to measure what the labels are worth at this epsilon; it takes "
        f"{math.ceil(check.fewest_units(plan.check_epsilon)):,}"
    )


def _tell_votes(expected: "Preview") -> None:
    tell(
        err,
        "lead",
        ", ".join(f"{gap:,} votes for {flips:.1%}" for flips, gap in expected.required_gaps.items())
        + " of labels flipped",
    )
    if expected.expected_votes:
        tell(
            err,
            "votes",
            "about {:,.1f} for the smallest query, {:,.1f} for the median one".format(
                *expected.expected_votes
            ),
        )


def _first_budget(settings: Settings) -> str:
    """Return what is told of the first budget of records, beside the cost of one release."""
    from rknn_jax.release import accounts

    budget, cost = accounts.first_budget(settings), accounts.cost_of(settings)
    left = "" if budget.epsilon > cost.epsilon else ", so that nothing is left for another one"
    return (
        f"the budget of all releases of these records together is {budget}, set once by --budget; "
        f"this release costs {cost}{left}"
    )


def tell_preview(
    plan: "Plan", expected: "Expected", settings: Settings, *, affordable: bool
) -> None:
    """Tell what a dry run expects, and whether the budget allows the release.

    Args:
      plan: Plan of the release, or of its first round.
      expected: Result of the simulations.
      settings: Settings of all rounds.
      affordable: True if the budget allows all rounds.
    """
    from rknn_jax.release import accounts
    from rknn_jax.release.preview import Preview

    if isinstance(expected, Preview):
        _tell_votes(expected)
    # A row has many classes, so that fewer rows have no wrong one.
    labels = "labels" if plan.settings.labels_per_record is None else "sets"
    if expected.expected:
        accuracy = ", ".join(
            f"{share:.0%} of {labels} right at {agreement:.0%} agreement"
            for agreement, share in expected.expected.items()
        )
        tell(err, "expected", f"{accuracy} of the records near a row")
    elif plan.num_records is not None:
        first, second = plan.question.tally.shape
        text = f"not simulated, because a sum of {first:,} by {second:,} takes too long"
        tell(err, "expected", text)
    for flags, share in expected.alternatives.items():
        tell(err, "instead", f"{flags}: {share:.0%} of labels right at 90% agreement")
    for concern in expected.concerns:
        tell(err, "warning", str(concern))
    tell(err, "advice", expected.advice)
    if plan.settings.representation is None:
        tell(
            err,
            "check",
            f"{_unread(plan)} told to you alone by {_check_command(plan.settings)}",
        )
    left = "does not exist yet"
    if plan.ledger:
        left = (
            f"{plan.ledger.remaining} left of its budget, {plan.ledger.budget}, if it is that of "
            f"these records; this release would cost {accounts.cost_of(settings)}"
        )
    refused = "" if affordable else ", so this release would be refused"
    tell(err, "ledger", f"{plan.settings.ledger_path}: {left}{refused}. Nothing was spent.")


def _unread(plan: "Plan") -> str:
    """Return what a dry run does not know, by the names of the private files alone."""
    from rknn_jax.formats import jsonl, suffix_of

    names = [shard.name for shard in plan.data.private.shards]
    what = ["labels"]
    asked = ["whether they are classes"]
    labels = _listed(plan.settings.private_labels or ())
    if any(suffix_of(name) in jsonl.SUFFIXES for name in [*names, *labels]):
        what.append("keys of JSON lines")
        asked.append("whether the columns are there")
    if len(names) > 1:
        asked.append("whether files hold the same records")
    first = f"{', '.join(asked[:-1])} and " if len(asked) > 1 else ""
    return f"a dry run reads no {' and no '.join(what)}; {first}{asked[-1]} is"


def _check_command(settings: Settings) -> str:
    """Return the command that counts the private records that cannot be used."""
    named = {
        "public": settings.public,
        "private_labels": settings.private_labels,
        "labels_per_record": settings.labels_per_record,
        "classes": settings.classes.classes,
        "classes_file": settings.classes.classes_file,
    }
    if not settings.classes:
        named["classes"] = "NAMES"
    words = ["rknn", "check", *_listed(settings.private), *settings.columns.words()]
    for name, value in named.items():
        if value not in (None, ()):
            words += [f"--{name.replace('_', '-')}", *map(str, _listed(value))]
    return shlex.join(words)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def expectations(done: "Release") -> dict[str, float | None]:
    """Return the mean stability, the agreement and the expected accuracy, or None if unknown.

    The decoder's opinions are unknown if noise decides them.
    """
    from rknn_jax.answers.concerns import opinions_hidden

    decoded = done.decoded
    found = {
        "stability": None if done.counts is None else float(done.confidence.mean()),
        "agreement": None if decoded is None else decoded.agreement,
        "expected_accuracy": None
        if decoded is None or done.measured is not None
        else decoded.expected_accuracy,
    }
    return found | dict.fromkeys(opinions_hidden(done.concerns))


def tell_release(plan: "Plan", done: "Release") -> None:
    """Tell what was released, and where it is."""
    from rknn_jax.report.results import MEANINGS

    classes = plan.data.classes
    account = done.card["ledger"]
    per_class = done.found.rows_of_classes
    most = np.sort(np.argsort(-per_class, kind="stable")[:20])
    rest = f"; {classes.count - len(most)} more classes" if len(most) < classes.count else ""
    tell(err, "labels", ", ".join(f"{classes.name(int(c))} {per_class[c]:,}" for c in most) + rest)
    if done.measured is not None:
        tell(err, "measured", str(done.measured))
        tell(err, "read by", done.measured.labeling)
    for name, share in expectations(done).items():
        if share is not None:
            word, meaning = MEANINGS[name]
            tell(err, word, f"about {share:.0%} {meaning}")
    for concern in done.concerns:
        tell(err, "warning", str(concern))
    found = [plan.folder / name for name in RESULTS if (plan.folder / name).exists()]
    tell(err, "files", ", ".join(map(str, found)))
    amounts = (Amount(**account[name]) for name in ("budget", "spent", "remaining"))
    budget, spent, left = amounts
    tell(
        err,
        "ledger",
        f"{plan.settings.ledger_path}: {spent} spent in all, by this release and earlier ones, of "
        f"its budget, {budget}; {left} left; head {account['head']}",
    )
    tell(err, "privacy", done.card["statement"])
    for number, line in enumerate(done.card["not_covered"]):
        tell(err, "" if number else "not covered", line)

"""`rknn label`: messages of a release; `rknn_jax.release.label` does the work."""

import json
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rknn_jax._internal import progress
from rknn_jax._internal.disk import OWNER, write_whole
from rknn_jax._internal.option_files import OPTIONS
from rknn_jax._internal.terminal import err, sure_interrupts, tell
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.ledger import Amount
from rknn_jax.release.release_folder import (
    RESULTS,
    STAGING,
    clear_finished,
    refuse_results,
    warned_after,
)
from rknn_jax.release.settings import Settings

LONG = 30.0
"""Seconds after the charge from which on an owner is told of them before it."""

MOST_NAMES = 20
MOST_CLASSES = 20
"""Most columns of features or public files, and most classes, that the terminal names."""

FOLDER_ONLY = ("out", "json")
"""Options that a later release does not repeat."""

# JAX, scikit-learn and OpenDP take seconds to import, and --help needs none of them.
if TYPE_CHECKING:
    from rknn_jax.question import Before
    from rknn_jax.release.label import Release
    from rknn_jax.release.planning import Plan
    from rknn_jax.release.preview import Expected, Preview


def run(settings: Settings) -> dict[str, Any]:
    """Release labels for the public rows, or preview a release, and return what `--json` prints."""
    with progress.phase("loading"):
        from rknn_jax.release import rounds

    every = rounds.of(settings)
    if len(every) == 1:
        return _run(settings)
    if settings.dry_run:
        shares = ", ".join(f"{one.epsilon:g}" for one in every)
        tell(err, "rounds", f"{len(every)}, at epsilon = {shares}; this is the first one")
        return _run(settings, 1)
    if settings.out is None:
        raise ValueError(
            f"Expected --out with --rounds {settings.rounds}, got none; name a folder, in which a "
            "stopped run goes on."
        )
    if clear_finished(settings.out):
        (settings.out / rounds.NOTE).unlink(missing_ok=True)
    if not (settings.out / STAGING).exists():  # else the last round may be paid for
        refuse_results(settings.out)
    rounds.refuse_leftover(settings.out)
    before: Before | None = None
    for number, one in enumerate(every[:-1], 1):
        _tell_round(number, every)
        found = rounds.finished(one)
        if found is None:
            _run(settings, number, before)
            found = rounds.finished(one)
        else:
            tell(err, "found", f"its labels are in {one.out}; they cost nothing more")
        before = found
    _tell_round(len(every), every)
    result = _run(settings, len(every), before)
    (settings.out / rounds.NOTE).unlink(missing_ok=True)
    return result


def _tell_round(number: int, every: Sequence[Settings]) -> None:
    tell(err, "round", f"{number} of {len(every)}, at epsilon = {every[number - 1].epsilon:g}")


def _run(settings: Settings, number: int = 0, before: "Before | None" = None) -> dict[str, Any]:
    """Make a release, or one round of it, or preview it, and return what `--json` prints.

    Args:
      settings: Settings of the release.
      number: Number of the round, from 1 on. Defaults to 0: there is one.
      before: Labels of the rounds before. Defaults to None, in a first round.
    """
    with progress.phase("loading"):
        from rknn_jax.release import label as job
        from rknn_jax.release import planning, rounds
    with progress.phase("reading the public rows"), sure_interrupts(), _nothing_spent(before):
        if number and not settings.dry_run:
            plan = rounds.prepare(settings, number, before)
        else:
            plan = rounds.checked(settings, planning.prepare(rounds.of(settings)[0]))
    _tell_plan(plan)
    if settings.dry_run:
        job.check_memory(plan)
        with progress.phase("simulating releases"), sure_interrupts(), _nothing_spent(None):
            expected = planning.expect(plan)
        affordable = plan.affordable
        if number:
            affordable = rounds.affordable(rounds.of(settings), plan)
        _tell_preview(plan, expected, settings, affordable=affordable)
        told = {name: _text_keys(value) for name, value in asdict(expected).items()}
        counts = {
            "labeler": plan.question.labeler.name,
            **plan.words.facts,
            "num_classes": plan.data.classes.count,
            f"num_{settings.unit}s": plan.num_records,
        }
        return {"dry_run": True, "affordable": affordable, **counts, **told}
    if plan.paid:
        tell(
            err,
            "finishing",
            f"the release that was paid for and stopped, in {plan.folder}; it costs nothing more",
        )
    with (
        _warnings_told(),
        sure_interrupts(),
        _nothing_spent(before),
    ):
        counted = job.count(plan)
    if counted.ignored:
        words = f"{counted.ignored:,} {plan.question.labeler.ignored}; tell nobody how many"
        tell(err, "ignored", words)
    if not counted.voters:
        tell(
            err,
            "warning",
            "no private record adds anything, so noise alone is released; tell nobody",
        )
    with _warnings_told(), progress.phase("releasing"), sure_interrupts():
        done = job.release(plan, counted)
        with warned_after(plan.folder, "its options could not be written to config.json"):
            last = number in (0, settings.rounds)
            keep_options(settings if last else plan.settings, plan.folder)
    result = done.card
    with _warnings_told(), warned_after(plan.folder, "not all of it could be told"):
        _tell_release(plan, done)
        result = _result(plan, done)
    return result


def _result(plan: "Plan", done: "Release") -> dict[str, Any]:
    """Return what `--json` prints of a release."""
    from rknn_jax.release import label as job

    files = {
        "page" if name == "privacy.html" else name.split(".")[0]: str(plan.folder / name)
        for name in RESULTS
        if (plan.folder / name).exists()
    }
    unsure = None if done.counts is None else job.unsure_share(done)
    said = {"unsure": unsure, **_expectations(done), "concerns": [*map(asdict, done.concerns)]}
    return {"files": files, **said, **done.card}  # the card has `measured`


def keep_options(settings: Settings, folder: Path) -> None:
    """Write the options that are no defaults for `--config`. They name private files."""
    chosen = {
        one.name: getattr(settings, one.name)
        for one in fields(settings)
        if one.name not in FOLDER_ONLY and getattr(settings, one.name) != one.default
    }
    text = json.dumps({OPTIONS: chosen}, indent=2, default=str)
    write_whole(folder / "config.json", f"{text}\n".encode(), OWNER)


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Tell the warnings of what runs inside, also those that a filter would make errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        tell(err, "warning", str(one.message))


@contextmanager
def _nothing_spent(before: "Before | None") -> Iterator[None]:
    """Say after Ctrl-C that this command has spent nothing, but for rounds before this one."""
    try:
        yield
    except KeyboardInterrupt as error:
        words = "This command has spent nothing and written nothing."
        if before is not None:
            words = "This round has spent nothing; the same command goes on with it."
        error.add_note(words)
        raise


def _tell_plan(plan: "Plan") -> None:
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
    if settings.classes is not None and data.classes.names:  # a name may have held a comma
        tell(err, "classes", ", ".join(map(repr, data.classes.names[:MOST_CLASSES])))
    if data.reading:
        tell(err, "classes", data.reading)
    if any(suffix_of(name) in jsonl.SUFFIXES for name in _listed(settings.private_labels or ())):
        tell(
            err,
            "labels",
            f"{settings.label!r} of each line of --private-labels, for the record in the same "
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
        f"{check.fewest_units(plan.check_epsilon):,.0f}"
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


def _tell_preview(
    plan: "Plan", expected: "Expected", settings: Settings, *, affordable: bool
) -> None:
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
        first, second = plan.question.sum.shape
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
        "embedding": settings.embedding,
        "label": settings.label if settings.label != Settings.label else (),
        "drop": settings.drop,
        "person": settings.person,
        "labels_per_record": settings.labels_per_record,
        "classes": settings.classes,
        "classes_file": settings.classes_file,
    }
    if settings.classes is None and settings.classes_file is None:
        named["classes"] = "NAMES"
    words = ["rknn", "check", *_listed(settings.private)]
    for name, value in named.items():
        if value not in (None, ()):
            words += [f"--{name.replace('_', '-')}", *map(str, _listed(value))]
    return shlex.join(words)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _expectations(done: "Release") -> dict[str, float | None]:
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


def _tell_release(plan: "Plan", done: "Release") -> None:
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
    for name, share in _expectations(done).items():
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


def _text_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value

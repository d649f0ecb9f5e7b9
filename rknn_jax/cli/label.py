"""`rknn label`: a release in one round or several; `rknn_jax.release.label` does the work."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rknn_jax._internal import progress
from rknn_jax._internal.disk import OWNER, write_whole
from rknn_jax._internal.option_files import OPTIONS
from rknn_jax._internal.terminal import err, sure_interrupts, tell
from rknn_jax.cli import label_lines
from rknn_jax.release.release_folder import (
    RESULTS,
    ROUNDS,
    STAGING,
    clear_finished,
    refuse_results,
    warned_after,
)
from rknn_jax.release.settings import Settings
from rknn_jax.settings import by_option

FOLDER_ONLY = ("out", "json")
"""Options that a later release does not repeat."""

# JAX, scikit-learn and OpenDP take seconds to import, and --help needs none of them.
if TYPE_CHECKING:
    from rknn_jax.question import Before
    from rknn_jax.release.label import Release
    from rknn_jax.release.planning import Plan


def run(settings: Settings) -> dict[str, Any]:
    """Release labels for the public rows, or preview a release, and return what `--json` prints."""
    with progress.phase("loading"):
        from rknn_jax.release import rounds

    every = rounds.of(settings)
    if len(every) == 1:
        return _run(settings)
    if settings.dry_run:
        number, before = 1, None
        while (
            settings.out and number < len(every) and (found := rounds.finished(every[number - 1]))
        ):
            number, before = number + 1, found
        shares = ", ".join(f"{one.epsilon:g}" for one in every)
        tell(err, "rounds", f"{len(every)}, at epsilon = {shares}; this is number {number}")
        return _run(settings, number, before)
    if settings.out is None:
        raise ValueError(
            f"Expected --out with --rounds {settings.rounds}, got none; name a folder, in which a "
            "stopped run goes on."
        )
    complete = clear_finished(settings.out)
    if complete:
        (settings.out / ROUNDS).unlink(missing_ok=True)
    if complete or not (settings.out / STAGING).exists():  # else the last round may be paid for
        refuse_results(settings.out)
    rounds.refuse_leftover(settings.out)
    before = None
    for number, one in enumerate(every[:-1], 1):
        _tell_round(number, every)
        found = rounds.finished(one)
        if found is None:
            with _paid_before(number):
                _run(settings, number, before)
            found = rounds.finished(one)
        else:
            tell(err, "found", f"its labels are in {one.out}; they cost nothing more")
        before = found
    _tell_round(len(every), every)
    with _paid_before(len(every)):
        result = _run(settings, len(every), before)
    (settings.out / ROUNDS).unlink(missing_ok=True)
    return result


@contextmanager
def _paid_before(number: int) -> Iterator[None]:
    """Say after an error that the rounds before this one are paid for, if there are any."""
    try:
        yield
    except Exception as error:
        if number > 1:
            error.add_note(
                "The rounds before this one are paid for: the same command goes on after them, and "
                "another folder pays for them again."
            )
        raise


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
    with progress.phase("reading the public rows"), sure_interrupts(), _nothing_spent(number):
        if not number:
            plan = planning.prepare(settings)
        elif settings.dry_run:
            plan, _ = rounds.planned(settings, number, before)
        else:
            plan = rounds.prepare(settings, number, before)
    label_lines.tell_plan(plan)
    if settings.dry_run:
        job.check_memory(plan)
        with progress.phase("simulating releases"), sure_interrupts(), _nothing_spent(number):
            expected = planning.expect(plan)
        affordable = plan.affordable
        if number:
            affordable = rounds.affordable(rounds.of(settings)[number - 1 :], plan)
        label_lines.tell_preview(plan, expected, settings, affordable=affordable)
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
        _tell_warnings(),
        sure_interrupts(),
        _nothing_spent(number),
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
    with _tell_warnings(), progress.phase("releasing"), sure_interrupts():
        done = job.release(plan, counted)
        with warned_after(plan.folder, "its options could not be written to config.json"):
            last = number in (0, settings.rounds)
            keep_options(settings if last else plan.settings, plan.folder)
    result = done.card
    with _tell_warnings(), warned_after(plan.folder, "not all of it could be told"):
        label_lines.tell_release(plan, done)
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
    said = {
        "unsure": unsure,
        **label_lines.expectations(done),
        "concerns": [*map(asdict, done.concerns)],
    }
    return {"files": files, **said, **done.card}  # the card has `measured`


def keep_options(settings: Settings, folder: Path) -> None:
    """Write the options that are not defaults for `--config`. They name private files."""
    chosen = {
        name: value
        for name, (field, value) in by_option(settings).items()
        if name not in FOLDER_ONLY and value != field.default
    }
    text = json.dumps({OPTIONS: chosen}, indent=2, default=str)
    write_whole(folder / "config.json", f"{text}\n".encode(), OWNER)


@contextmanager
def _tell_warnings() -> Iterator[None]:
    """Tell the warnings of what runs inside, also those that a filter would make errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        tell(err, "warning", str(one.message))


@contextmanager
def _nothing_spent(number: int) -> Iterator[None]:
    """Say after Ctrl-C that this command has spent nothing, but for rounds before this one.

    Args:
      number: Number of the round; 0 if there is one.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        words = "This command has spent nothing and written nothing."
        if number:
            words = "This round has spent nothing; the same command goes on with it."
        error.add_note(words)
        raise


def _text_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else value

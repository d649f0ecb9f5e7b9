"""Release of labels on a user's own embeddings, from a plan to result files.

This is `rknn label` without its command line, once `rknn_jax.release.planning` has made the plan.
`count` takes the labeler's sum in one pass. `release` makes sure of memory and of a place to write
to. `draw` charges the ledger before it draws exact noise on the operating system's entropy. So a
refused run changes nothing, a spend is never forgotten, and a paid release is not lost
(`rknn_jax.release.release_folder`).

Votes are counted by `rknn_jax.release.counting`, and become public by `Question.draw`; records that
check become public by `Checkers.draw`. `inputs` reads persons, and classes if asked, before that.
`rknn_jax.release.estimator` calls `planning.plan` and `draw` too, with arrays in place of files.
"""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rknn_jax import postprocessing
from rknn_jax._internal import memory as memories
from rknn_jax._internal import progress
from rknn_jax._internal.arithmetic import quiet
from rknn_jax._internal.disk import write_arrays, write_text
from rknn_jax._internal.option_names import option
from rknn_jax._internal.private_warnings import warn_owner
from rknn_jax.answers import Decoded
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.measured import Measured
from rknn_jax.check import Drawn
from rknn_jax.formats._data_files import unchanged
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.labels import PublicLabels
from rknn_jax.neighbors import in_metric
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.fingerprints import fingerprint, warn_of_copies
from rknn_jax.privacy.ledger import Ledger
from rknn_jax.privacy.statement import Statement, as_json, new_release, page
from rknn_jax.release import engines, preview, rehearsal, release_folder, tables
from rknn_jax.release.accounts import open_ledger, open_or_make
from rknn_jax.release.counting import Counted
from rknn_jax.release.planning import Plan, places, request
from rknn_jax.release.release_folder import ReleaseFolder
from rknn_jax.release.shards import files_of
from rknn_jax.release.statements import card, statement
from rknn_jax.report import release as report
from rknn_jax.report import results
from rknn_jax.report.summary import Summary, summarize
from rknn_jax.types import Answers

LATER = 2  # times the memory of a first round, for later ones and what the process keeps
ROOM_FOR_WORDS = 2**22  # bytes of the statement, the report and the array files' headers
BYTES_PER_CELL = 100
BYTES_PER_LABEL = 40
BYTES_PER_GRID = 50
"""Memory after the charge, in bytes per cell, per label and per point of the posterior's grid.

With `SumLabeler.reading_memory`, the sizes exceed the measured 52 MB to 1.6 GB, for 400 to 10^6
cells and 8 * 10^5 to 2 * 10^7 labels.
"""
SECONDS_PER_CELL = 1e-4
SECONDS_PER_LABEL = 4e-6
SECONDS_PER_PRODUCT = 1e-8
"""Time after the charge, per cell, per label, and per label and query, on a busy machine.

Measured on 2 cores that 7 processes shared: 14 s and 43 s for 2 * 10^4 and 2 * 10^5 cells.
"""


@dataclass(frozen=True)
class Release:
    """Result of a release.

    Attributes:
      found: Labels of the public rows, and what they were read off.
      card: Content of `privacy.json`.
      statement: Content of `privacy.html`.
      concerns: Reasons to doubt the labels, each with a remedy.
      measured: Agreement with records that did not vote; None if it was not measured.
    """

    found: PublicLabels
    card: dict[str, Any]
    statement: Statement
    concerns: tuple[Concern, ...]
    measured: Measured | None = None

    def _repr_html_(self) -> str:
        """Return what was measured, the privacy spent and the reasons to doubt, for notebooks."""
        measured = "not measured" if self.measured is None else f"{self.measured}"
        told = [f"<p>{len(self.labels):,} public records have labels; {html.escape(measured)}.</p>"]
        told += [f"<p>{html.escape(str(concern))}</p>" for concern in self.concerns]
        return "".join([*told, self.answers.guarantee._repr_html_()])

    @property
    def answers(self) -> Answers:
        """Answers of the labeler, with their guarantee."""
        return self.found.answers

    @property
    def probabilities(self) -> np.ndarray:
        """Soft labels of the public rows, float32 `[m, num_classes]`."""
        return self.found.probabilities

    @property
    def confidence(self) -> np.ndarray:
        """Probability that noise did not change each row's label, float32 `[m]`; NaN if unknown."""
        return self.found.confidence

    @property
    def counts(self) -> np.ndarray | None:
        """Noisy counts, int64 `[num_queries, num_classes]`; None if none are shown."""
        return self.found.counts

    @property
    def decoded(self) -> Decoded | None:
        """Result of the decoder of noisy counts; None if it did not run."""
        return self.found.decoded

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each public row, int32 `[m]`; -1 for an empty set of classes."""
        return self.found.labels


@quiet()
def count(plan: Plan) -> Counted:
    """Take the labeler's sum over all private records, in one pass.

    The result is private. Nothing is spent, and nothing is written.

    Args:
      plan: Release to make.

    Raises:
      LedgerError: If the ledger belongs to another data set.
      ValueError: If the private records cannot be read, or are changed meanwhile.
    """
    settings = plan.settings
    engine = engines.named(settings.engine)
    # Only with these settings is the number of rows public; else the progress would show it.
    is_public = settings.unit == "record" and plan.num_records is not None
    with (
        unchanged(files_of(plan.data.private.shards), option("private")),
        progress.phase("counting", len(plan.data.private) if is_public else None, "rows") as done,
    ):
        counted: Counted = engine.count_all(
            plan.data.private,
            plan.counter,
            done.advance if is_public else None,
            address=settings.address,
        )
    if not plan.paid:
        # Only now are the fingerprints known: records of another ledger have a budget of their own.
        ledger_index.check(settings.ledger_path, counted.prints)
    open_ledger(settings, [plan.cost], counted.dataset, paid=plan.paid)
    warn_of_copies(counted.shards)
    if (plan.data.digest or fingerprint(plan.data.public)) == counted.dataset:
        warn_owner(
            "The public rows are the private ones; whoever sees the labels sees which rows they "
            "are of. Tell nobody of this warning.",
            stacklevel=2,
        )
    return counted


@quiet()
def release(plan: Plan, counted: Counted | None = None) -> Release:
    """Reserve memory and a folder, then charge the ledger, release and write the results.

    A release that a stopped process has paid for is finished at no cost.

    Args:
      plan: Release to make.
      counted: Sum from `count`. Defaults to None, which takes it.

    Raises:
      LedgerError: As in `draw`.
      ValueError: If the private records cannot be read, or there is not enough memory or room;
        nothing was spent then.
      OSError: If the results cannot be written. A note on the error tells how to finish the
        release, at no further cost.
    """
    counted = counted or count(plan)
    _reserve_memory(plan)

    def opened() -> Ledger:
        return _ledger(plan, counted)

    # What is asked is part of the folder: another command never takes over what this one paid for.
    wanted = request(plan.settings, plan.data)
    with release_folder.held(
        plan.folder,
        wanted,
        plan.settings.ledger_path,
        opened=opened,
        room=_room(plan),
        roles=_roles(plan, counted),
        engine=plan.settings.engine,
        asked=plan.question.asked,
        records=fingerprint(counted.counts),
        files=places(plan.settings),
    ) as folder:
        done = draw(plan, counted, folder)
        folder.publish(lambda staging: write(staging, plan, done))
    return done


@quiet()
def draw(
    plan: Plan, counted: Counted, folder: ReleaseFolder | None = None, num_rounds: int = 1
) -> Release:
    """Charge the ledger and release.

    Guarantee: the returned card states the privacy of everything in the result. The ledger has the
    charge on disk before noise is drawn.

    Args:
      plan: Release to make.
      counted: Sum from `count`.
      folder: Folder that keeps what is drawn and pays. Defaults to none: the ledger is charged, and
        an error loses the release.
      num_rounds: Number of rounds of a run without a folder. Defaults to 1.

    Raises:
      LedgerError: If the ledger cannot be charged; nothing was released then.
      ValueError: If there is not enough memory for a release without a folder; as for `release`.
    """
    question = plan.question
    if folder is None:
        if question.before is None:  # later, a refusal would lose the round before, which is paid
            _reserve_memory(plan, 1 if num_rounds == 1 else LATER)
        number = new_release()
        ledger = _ledger(plan, counted)
        purpose = f"{_purpose(plan)}; release {number}"
        drawn = question.draw(counted.counts, counted.units, ledger, purpose)
        return _released(plan, drawn, _checked(plan, counted, drawn), ledger=ledger, number=number)
    # A stopped process has left what it drew. It is read again and never drawn anew, since two
    # draws for one charge would reveal more than was paid for.
    kept = folder.kept(question.shape)
    if kept is None:
        # The folder is the payer: it notes the request, then charges the ledger, and only then is
        # noise drawn.
        drawn, found = question.draw(counted.counts, counted.units, folder, _purpose(plan)), None
        folder.keep(drawn)
    else:
        drawn, found = kept
    # Noisy counts are on disk before anything is read off them, so that a kill from here on loses
    # time alone.
    if found is None:
        checked = _checked(plan, counted, drawn)
        if checked is not None:
            folder.keep_check(checked.drawn.array())
    else:
        checked = _Checked(Drawn.of(found), question.labelings(drawn))
    folder.seal()
    return _released(plan, drawn, checked, ledger=folder.ledger, number=folder.release)


def _ledger(plan: Plan, counted: Counted) -> Ledger:
    """Open or make the ledger of a release, and note its records and their files in the index."""
    names = [shard.name for shard in plan.data.private.shards]
    return open_or_make(plan.settings, plan.cost, counted, names, paid=plan.paid)


class _Checked(NamedTuple):
    """Check of a release.

    Attributes:
      drawn: Numbers that records have released that did not vote.
      labelings: Labelings from which they chose.
    """

    drawn: Drawn
    labelings: Sequence[Labeling]


def _checked(plan: Plan, counted: Counted, drawn: np.ndarray) -> _Checked | None:
    """Let the records that did not vote choose and measure, or return None if there are none."""
    if counted.checks is None:
        return None
    # The votes are released, so labels made of them are public: records that did not vote may judge
    # them at their own epsilon, which they have not spent.
    assert plan.checkers is not None, "no record checks without them"
    labelings = plan.question.labelings(drawn)
    found = plan.checkers.draw(counted.checks, labelings)
    return _Checked(found, labelings)


def _purpose(plan: Plan) -> str:
    """Return a few words for the ledger."""
    checkers = plan.checkers
    words = "" if checkers is None else f", {1 - checkers.roles.vote:.1%} of them check"
    several = plan.settings.labels_per_record
    sets = "" if several is None else f", up to {several} labels a record"
    question = plan.question
    return f"rknn label: {question.subject}, {question.mechanism}{sets}{words}"


def _roles(plan: Plan, counted: Counted) -> str:
    """Return the roles of the records in words, with a hash of what they depend on."""
    checkers = plan.checkers
    return "" if checkers is None else f"{checkers.roles.words()}\n{counted.order}"


def _released(
    plan: Plan, drawn: np.ndarray, checked: _Checked | None, ledger: Ledger, number: str
) -> Release:
    """Return the result of a release: post-processing of what was drawn.

    Args:
      plan: Release that was made.
      drawn: Result of `Question.draw`.
      checked: Check of it, or None.
      ledger: Ledger that was charged.
      number: Id of the release.
    """
    measured = None
    if checked is None:
        found = plan.question.read(drawn)
    else:
        assert plan.checkers is not None
        names = [one.name for one in checked.labelings]
        found = checked.labelings[checked.drawn.choice].labels()
        # A set may have many classes, so that no share of a class is one of whole sets.
        counts = found.counts if found.sets is None else None
        measured = plan.checkers.measured(checked.drawn, names, counts)
    found, concerns = judged(plan, found, measured)
    told = statement(plan, ledger, number, measured)
    return Release(found, card(plan, told, measured), told, concerns=concerns, measured=measured)


def judged(
    plan: Plan, found: PublicLabels, measured: Measured | None
) -> tuple[PublicLabels, tuple[Concern, ...]]:
    """Return labels, as sure as was measured, and the reasons to doubt them.

    All is read off what was released and public data.

    Args:
      plan: Release that was made.
      found: Released labels.
      measured: Agreement with records that did not vote, which replaces the decoder's opinions.
    """
    question = plan.question
    read = question.labeler.concerns(found, question.public, plan.num_votes)
    usual = rehearsal.concerns(plan.settings, plan.data, question, plan.num_voters)
    return found.judged((*read, *usual), measured, question.public.names)


def unsure_share(done: Release) -> float:
    """Return the share of public rows whose label noise may turn over.

    A label counts as such if counts without noise would give another one in more than 5% of runs.
    """
    return float(np.mean(done.confidence < 1 - preview.LINE))


def _summary(plan: Plan, done: Release) -> Summary:
    """Return what the report needs beside the arrays."""
    features = np.asarray(in_metric(plan.data.public, plan.question.labeler.metric))
    stddev = None if done.counts is None else np.asarray(done.answers.stddev)
    return summarize(features, done.concerns, done.decoded, stddev=stddev, measured=done.measured)


def write(staging: Path, plan: Plan, done: Release) -> None:
    """Write the results, each file whole or not at all."""
    names = plan.data.classes.names
    files = {name: dict(arrays) for name, arrays in _arrays(plan, done.found).items()}
    rows = files["labels.npz"]
    if names:
        rows["class_names"] = np.array(names)
    # Public columns without a role, so that the labels can be joined to what they are of.
    rows |= tables.carried(plan.data.others)
    for name, arrays in files.items():
        write_arrays(staging / name, arrays)
    told = results.of(rows, files.get("queries.npz", {}), done.card, _summary(plan, done))
    report.write(staging, told)
    write_text(staging / "privacy.html", page(done.statement))
    write_text(staging / "privacy.json", as_json(done.card))


def _arrays(plan: Plan, found: PublicLabels) -> dict[str, Mapping[str, np.ndarray]]:
    """Return the arrays of `labels.npz`, and of `queries.npz` if records vote for queries."""
    rows: dict[str, Mapping[str, np.ndarray]] = {"labels.npz": found.rows}
    if plan.question.labeler.votes_per_record is None:
        return rows
    asked = {"index": plan.question.queries.index, "label": found.answers.labels}
    if found.counts is not None:
        asked["noisy_counts"] = found.counts
    if found.sets is not None:
        asked["noisy_voters"] = found.sets.voters
    return rows | {"queries.npz": asked}


def _room(plan: Plan) -> int:
    """Return the most bytes that the sum and the results take on disk."""
    num_classes = plan.data.classes.count
    # A sum is kept and shown, and a query has a number and a label.
    question = 20 * math.prod(plan.question.shape) + 16 * len(plan.question.queries.index)
    sets = 5 * num_classes * (plan.settings.labels_per_record is not None)
    rows = len(plan.data.public) * (16 + 4 * num_classes + sets)
    # The last term is for the class names, which both files of the statement hold.
    carried = sum(values.nbytes for values in plan.data.others.values())
    return ROOM_FOR_WORDS + question + rows + carried + 300 * num_classes


def memory(plan: Plan) -> int:
    """Return the bytes that a release takes after its charge, about."""
    shape = plan.question.tally.shape
    cells = math.prod(shape)
    labels = len(plan.data.public) * plan.data.classes.count
    grid = min(cells * postprocessing.GRID, postprocessing.LARGEST_GRID)
    sizes = BYTES_PER_CELL * cells + BYTES_PER_LABEL * labels + BYTES_PER_GRID * grid
    sizes += plan.question.labeler.reading_memory(shape)
    if plan.checkers is not None:
        sizes += plan.checkers.memory(plan.num_records or 0)
    return 2**24 + sizes


def seconds(plan: Plan) -> float:
    """Return the time that a release takes after its charge, about."""
    queries, classes = plan.question.tally.shape
    labels = len(plan.data.public) * classes
    of_cells = SECONDS_PER_CELL * queries * classes
    return of_cells + (SECONDS_PER_LABEL + SECONDS_PER_PRODUCT * queries) * labels


def check_memory(plan: Plan, times: int = 1) -> None:
    """Raise ValueError if there is not as much free memory as a release takes after its charge.

    Args:
      plan: Release to make.
      times: Factor of the memory. Defaults to 1.
    """
    free = memories.available()
    if free is not None and times * memory(plan) > free:
        raise _too_large(plan, times, f"{free / 1e9:.2g} GB")


def _reserve_memory(plan: Plan, times: int = 1) -> None:
    """Allocate and free the memory of the release, to find a shortage before anything is spent.

    Args:
      plan: Release to make.
      times: Factor of the memory. Defaults to 1.

    Raises:
      ValueError: If there is not enough memory.
    """
    check_memory(plan, times)  # otherwise the system may end the process
    try:
        np.ones(times * memory(plan), np.uint8)  # written to, because unused pages take no memory
    except MemoryError as error:
        raise _too_large(plan, times, "less") from error


def _too_large(plan: Plan, times: int, free: str) -> ValueError:
    first, second = plan.question.tally.shape
    return ValueError(
        f"Expected {times * memory(plan) / 1e9:.2g} GB of free memory for a sum of {first:,} by "
        f"{second:,} and {len(plan.data.public):,} public rows of {plan.data.classes.count:,} "
        f"classes, got {free}; nothing was spent. Use fewer classes, {option('queries')} or public "
        "rows, or a machine with more memory."
    )

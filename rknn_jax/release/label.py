"""Release of labels on a user's own embeddings, from a plan to result files.

This is `rknn label` without its command line, once `rknn_jax.release.planning` has made the plan.
`count` sums the votes in one pass. `release` makes sure of memory and of a place to write to.
`draw` charges the ledger before it draws exact noise on the operating system's entropy. So a
refused run changes nothing, a spend is never forgotten, and a paid release is not lost
(`rknn_jax.release.release_folder`).

Private records are read by `rknn_jax.release.counting`, record by record, and their votes by
`release_counts` alone.
`rknn_jax.release.estimator` calls `planning.plan` and `draw` too, with arrays in place of files.
"""

import importlib.metadata
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rknn_jax import answers as decoder
from rknn_jax import mechanisms, postprocessing
from rknn_jax._internal.disk import write_arrays, write_text
from rknn_jax.answers import Decoded
from rknn_jax.answers.concerns import Concern, Evidence, concerns
from rknn_jax.labelers import rknn
from rknn_jax.labels import Labels
from rknn_jax.mechanisms.base import release_counts
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import Ledger, fingerprint
from rknn_jax.privacy.ledger_lines import MOST_SHARDS
from rknn_jax.privacy.statement import (
    PUBLIC_TUNING,
    Account,
    Contribution,
    Controller,
    Statement,
    Tuning,
    as_json,
    new_release,
    page,
)
from rknn_jax.release import engines, planning, preview, release_folder
from rknn_jax.release.counting import Progress, Votes
from rknn_jax.release.planning import Plan, first_budget, open_ledger, request
from rknn_jax.release.release_folder import ReleaseFolder
from rknn_jax.report import release as report
from rknn_jax.report import results
from rknn_jax.report.summary import summarize
from rknn_jax.types import Answers

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

PACKAGES = ("rknn-jax", "jax", "opendp", "numpy", "scikit-learn")
"""Packages whose versions a statement names."""

ROOM_FOR_WORDS = 2**22  # bytes of the statement, the report and the array files' headers
BYTES_PER_CELL = 100
BYTES_PER_LABEL = 40
BYTES_PER_GRID = 50
"""Memory after the charge, in bytes per cell, per label and per point of the posterior's grid.

The sizes exceed the measured 52 to 765 MB, for 400 to 10^6 cells and 8 * 10^5 to 2 * 10^7 labels.
"""


@dataclass(frozen=True)
class Release:
    """Result of a release.

    Attributes:
      answers: Answers to the queries.
      probabilities: float32 `[m, num_classes]`, soft labels of the public rows.
      confidence: float32 `[m]`, stability of each row's label: the probability that noise did not
        change it; NaN if labels alone were released.
      counts: int64 `[num_queries, num_classes]`, noisy; None if the mechanism releases labels
        alone.
      card: Content of `privacy.json`.
      statement: Content of `privacy.html`.
      decoded: Result of the decoder of noisy counts; None if rows take their query's label.
      concerns: Reasons to doubt the labels, each with a remedy.
    """

    answers: Answers
    probabilities: np.ndarray
    confidence: np.ndarray
    counts: np.ndarray | None
    card: dict[str, Any]
    statement: Statement
    decoded: Decoded | None
    concerns: tuple[Concern, ...]

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each public row, int32 `[m]`."""
        labels: np.ndarray = self.probabilities.argmax(axis=1).astype(np.int32)
        return labels


def count(plan: Plan, on_rows: Progress | None = None) -> Votes:
    """Count the votes of all private records, in one pass.

    The result is private. Nothing is spent, and nothing is written.

    Args:
      plan: Release to make.
      on_rows: Function that is told the progress. Defaults to none.

    Raises:
      LedgerError: If the ledger belongs to another data set.
      ValueError: If the private records cannot be read.
    """
    settings = plan.settings
    engine = engines.named(settings.engine)
    votes: Votes = engine.count_all(
        plan.data.private, plan.question, on_rows, address=settings.address
    )
    if not plan.paid:
        for one in (votes.dataset, *votes.shards[:MOST_SHARDS]):
            ledger_index.check(settings.ledger_path, one)
    open_ledger(settings, plan.cost, votes.dataset, paid=plan.paid)
    # A warning, not an error: the existence of a release must not depend on one private record.
    if (plan.data.digest or fingerprint(plan.data.public)) == votes.dataset:
        warnings.warn(
            "The public rows are the private ones; whoever sees the labels sees which rows they "
            "are of.",
            stacklevel=2,
        )
    return votes


def release(plan: Plan, votes: Votes | None = None) -> Release:
    """Reserve memory and a folder, then charge the ledger, release and write the results.

    A release that a stopped process has paid for is finished at no cost.

    Args:
      plan: Release to make.
      votes: Votes from `count`. Defaults to None, which counts them.

    Raises:
      LedgerError: As in `draw`.
      ValueError: If the private records cannot be read, or there is not enough memory or room;
        nothing was spent then.
      OSError: If the results cannot be written. A note on the error tells how to finish the
        release, at no further cost.
    """
    counted = votes or count(plan)
    _reserve_memory(plan)

    def opened() -> Ledger:
        return _ledger(plan, counted)

    wanted = request(plan.settings, plan.data)
    with release_folder.held(
        plan.folder, wanted, plan.settings.ledger_path, opened, _room(plan)
    ) as folder:
        done = draw(plan, counted, folder)
        folder.publish(lambda staging: write(staging, plan, done))
    return done


def draw(plan: Plan, votes: Votes, folder: ReleaseFolder | None = None) -> Release:
    """Charge the ledger and release.

    Guarantee: the returned card states the privacy of the labels and the noisy counts. The ledger
    has the charge on disk before noise is drawn.

    Args:
      plan: Release to make.
      votes: Votes from `count`.
      folder: Folder that keeps the noisy counts and pays. Defaults to none: the ledger is charged,
        and an error loses the release.

    Raises:
      LedgerError: If the ledger cannot be charged; nothing was released then.
    """
    settings = plan.settings
    data = plan.data
    queries = plan.queries
    config = _labeler(settings)
    ledger = folder.ledger if folder else _ledger(plan, votes)
    number = new_release()
    counts = folder.kept(plan.mechanism.shape) if folder else None
    if counts is None:
        purpose = (
            f"rknn label: {plan.mechanism.num_queries} queries, {data.classes.count} classes, "
            f"{settings.mechanism}"
        )
        if not folder:
            purpose = f"{purpose}; release {number}"
        counts, _ = release_counts(
            plan.mechanism, votes.counts, votes.units, folder or ledger, purpose
        )
        if folder:
            folder.keep(counts)
    guarantee = plan.mechanism.release_guarantee(votes.units)
    stddev = plan.mechanism.stddev(counts, votes.units)
    answers = rknn.answer(counts, stddev, guarantee, queries, config)
    # Permute-and-flip releases labels, and has no counts to show.
    shown = counts if plan.mechanism.releases_counts else None
    rows = _rows(plan, answers)
    told = statement(plan, guarantee, ledger, folder.release if folder else number)
    return Release(
        answers,
        rows.probabilities,
        rows.confidence,
        shown,
        card(plan, told),
        told,
        rows.decoded,
        _concerns(plan, answers, rows),
    )


class _Rows(NamedTuple):
    """Results of the public rows.

    Attributes:
      probabilities: float32 `[m, num_classes]`, soft labels.
      confidence: float32 `[m]`, stability; NaN if labels alone were released.
      decoded: Result of the decoder; None if rows take their query's label.
    """

    probabilities: np.ndarray
    confidence: np.ndarray
    decoded: Decoded | None


def _rows(plan: Plan, answers: Answers) -> _Rows:
    """Return the public rows' soft labels and stability, by post-processing alone."""
    if plan.kernels is not None:
        decoded = decoder.decode(answers.counts, answers.stddev, plan.kernels)
        return _Rows(decoded.probabilities, decoded.stability, decoded)
    before = Labels.none(len(plan.queries.cluster), plan.data.classes.count)
    found = before.after(plan.queries, answers, 0, None, plan.graph)
    if not plan.mechanism.releases_counts:
        return _Rows(found.probabilities, np.full(len(found.query), np.nan, np.float32), None)
    return _Rows(found.probabilities, found.confidence, None)


def _concerns(plan: Plan, answers: Answers, rows: _Rows) -> tuple[Concern, ...]:
    """Return the reasons to doubt the labels, from noisy counts and public data alone."""
    counted = plan.mechanism.releases_counts
    classes = plan.data.classes
    return tuple(
        concerns(
            Evidence(
                planning.of_metric(plan.settings, plan.data.public),
                rows.probabilities.argmax(axis=1),
                [classes.name(i) for i in range(classes.count)],
                plan.queries.size,
                plan.mechanism.noise_stddev,
                plan.num_votes,
                answers.counts if counted else None,
                answers.stddev if counted else None,
                rows.decoded,
            )
        )
    )


def card(plan: Plan, told: Statement) -> dict[str, Any]:
    """Return the content of `privacy.json`.

    Of the private data it shows n, if n is public, and nothing else.
    """
    choices = ("relation", "representation", "standardize", "metric", "smoothing")
    return told.card(
        **{f"num_{plan.settings.unit}s": plan.num_records},
        **_bound(plan),
        num_public=len(plan.data.public),
        num_queries=plan.mechanism.num_queries,
        num_classes=plan.data.classes.count,
        num_neighbors=plan.settings.neighbors,
        **{name: getattr(plan.settings, name) for name in choices},
        clustering_seed=plan.settings.seed,  # public; no seed fixes the noise
    )


def not_covered(plan: Plan) -> list[str]:
    """Return sentences on the risks that the guarantee does not cover."""
    seen = (
        "was read from the private labels; give them to avoid that"
        if plan.data.classes.source == "inferred"
        else "is taken as public"
    )
    return [
        *(
            []
            if plan.num_records is None
            else [f"the number of private {plan.settings.unit}s, which is taken as public"]
        ),
        f"the set of {plan.data.classes.count} classes, which {seen}",
        "the embedding model or other preprocessing, if private data had a part in training or "
        "choosing it",
        "the choice of these settings, if it was made in view of private data, or of results "
        "that were never charged to the budget",
        *engines.named(plan.settings.engine).NOT_COVERED,
    ]


def _bound(plan: Plan) -> dict[str, Any]:
    """Return the bound on a person's votes for the card, or nothing if records are protected."""
    if plan.settings.person is None:
        return {}
    words = {"shared": "all, sharing one vote", "clipped": "all, clipped to the norm of one vote"}
    records = _contribution(plan.settings).records
    return {"records_per_person": words.get(str(records), records)}


def _scaled(settings: "Settings") -> dict[str, str]:
    """Return what the statement says about the scale of columns, or nothing if it is unchanged."""
    if not settings.standardize:
        return {}
    return {"scale of columns": "mean 0 and standard deviation 1 among the public rows"}


def _inferred(plan: Plan) -> str:
    """Return a sentence on classes that were read from private labels, or an empty string."""
    if plan.data.classes.source != "inferred":
        return ""
    return "Epsilon does not cover the set of classes, which was read from the private labels."


def statement(plan: Plan, guarantee: Guarantee, ledger: Ledger, release: str) -> Statement:
    """Return the content of `privacy.html`.

    Of the private data it shows what `card` shows, and the names of the files.

    Args:
      plan: Release that was made.
      guarantee: Guarantee of the release.
      ledger: Ledger that was charged.
      release: Id of the release.
    """
    settings = plan.settings
    classes = plan.data.classes.count
    unit = settings.unit
    records = (
        f"all private {unit}s"
        if plan.num_records is None
        else f"all {plan.num_records:,} private {unit}s"
    )
    if unit == "person":
        records = f"the records of {records}"
    said = (
        f"the noisy number of votes for each of {classes} classes, and the label, of"
        if plan.mechanism.releases_counts
        else "the label of"
    )
    return Statement(
        guarantee,
        f"Whoever ran this release holds {records}, as they are, in one place.",
        (
            f"{said} each of {plan.mechanism.num_queries} queries, which stand for groups of "
            "public records",
            f"a label, and the probability of each class, for each of {len(plan.data.public):,} "
            "public records, made from that",
            "for each of them the query that spoke for it, and how sure that is",
        ),
        tuple(not_covered(plan)),
        settings.mechanism,
        # The file's name without its folder, which may name a person. The ledger's fingerprint of
        # the data is private, and stays there.
        Account(
            ledger.path.name,
            ledger.head,
            ledger.budget,
            ledger.spent,
            ledger.remaining,
            ledger.accounting,
        ),
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        details={
            "private data": _file_names(settings.private),
            "public data": _file_names(settings.public),
            "representation": settings.representation or "embeddings, as given",
            **_scaled(settings),
            f"votes of a {unit}": settings.neighbors,
            **{name.replace("_", " "): value for name, value in _bound(plan).items()},
            "queries": plan.mechanism.num_queries,
            "classes": classes,
        },
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
        release=release,
        controller=Controller(settings.controller, settings.contact, settings.purpose),
        contribution=_contribution(settings),
        tuning=_tuning(plan),
        remark=_inferred(plan),
    )


def _tuning(plan: Plan) -> Tuning:
    """Return how the settings were chosen: on public quantities, unless classes were inferred."""
    if plan.data.classes.source != "inferred":
        return PUBLIC_TUNING
    return Tuning(
        "uncharged",
        "The set of classes was read from the private labels, and epsilon does not cover that.",
    )


def _contribution(settings: "Settings") -> Contribution:
    """Return the largest part that a record or a person has in the release."""
    if settings.person is None:
        return Contribution(1, settings.neighbors)
    whole: Literal["shared", "clipped"] = (
        "clipped" if mechanisms.named(settings.mechanism).norm == 2 else "shared"
    )
    return Contribution(settings.records_per_person or whole, settings.neighbors)


def unsure_share(done: Release) -> float:
    """Return the share of public rows whose label noise may turn over.

    A label counts as such if counts without noise would give another one in more than 5% of runs.
    """
    return float(np.mean(done.confidence < 1 - preview.LINE))


def write(staging: Path, plan: Plan, done: Release) -> None:
    """Write the results, each file whole or not at all."""
    names = plan.data.classes.names
    rows = {
        "label": done.labels,
        "query": plan.queries.cluster,
        "confidence": done.confidence,
        "probability": done.probabilities,
    }
    asked = {"index": plan.queries.index, "label": done.answers.labels}
    rows |= {"class_names": np.array(names)} if names else {}
    asked |= {} if done.counts is None else {"noisy_counts": done.counts}
    write_arrays(staging / "labels.npz", rows)
    write_arrays(staging / "queries.npz", asked)
    features = planning.of_metric(plan.settings, plan.data.public)
    stddev = None if done.counts is None else np.asarray(done.answers.stddev)
    summary = summarize(features, done.concerns, done.decoded, stddev)
    report.write(staging, results.of(rows, asked, done.card, summary))
    write_text(staging / "privacy.html", page(done.statement))
    write_text(staging / "privacy.json", as_json(done.card))


def _file_names(names: str | Sequence[str]) -> str:
    """Return names without their folders, which may name a person."""
    given = [names] if isinstance(names, str) else names
    return ", ".join(PurePosixPath(name).name for name in given)


def _labeler(settings: "Settings") -> rknn.ReverseKNN:
    names = ("epsilon", "delta", "mechanism", "relation", "metric", "smoothing")
    return rknn.ReverseKNN(
        num_neighbors=settings.neighbors,
        **{name: getattr(settings, name) for name in names},
    )


def _ledger(plan: Plan, votes: Votes) -> Ledger:
    """Open the ledger of these people, or make their first one, and note it in the index.

    A release that is paid for is finished whatever the index says.
    """
    settings = plan.settings
    path = settings.ledger_path
    with nullcontext() if plan.paid else ledger_index.held(path, votes.dataset, votes.shards):
        return open_ledger(settings, plan.cost, votes.dataset, paid=plan.paid) or Ledger.create(
            path,
            votes.dataset,
            *first_budget(settings),
            accounting=settings.accounting or "sum",
            relation=settings.relation,
            unit=settings.unit,
            rows=votes.rows,
            shards=votes.shards,
        )


def _room(plan: Plan) -> int:
    """Return the most bytes that the counts and the results take on disk."""
    cells = plan.mechanism.num_queries * plan.mechanism.num_classes
    rows = len(plan.data.public)
    arrays = (
        20 * cells + rows * (16 + 4 * plan.mechanism.num_classes) + 16 * plan.mechanism.num_queries
    )
    # The last term is for the class names, which both files of the statement hold.
    return ROOM_FOR_WORDS + arrays + 300 * plan.mechanism.num_classes


def _reserve_memory(plan: Plan) -> None:
    """Allocate and free the memory of the release, to find a shortage before anything is spent.

    Raises:
      ValueError: If there is not enough memory.
    """
    cells = plan.mechanism.num_queries * plan.mechanism.num_classes
    labels = len(plan.data.public) * plan.mechanism.num_classes
    grid = min(cells * postprocessing.GRID, postprocessing.LARGEST_GRID)
    size = 2**24 + BYTES_PER_CELL * cells + BYTES_PER_LABEL * labels + BYTES_PER_GRID * grid
    try:
        np.ones(size, np.uint8)  # written to, because unused pages take no memory
    except MemoryError as error:
        raise ValueError(
            f"Expected {size / 1e9:.2g} GB of free memory for {plan.mechanism.num_queries} "
            f"queries and {len(plan.data.public)} "
            f"public rows of {plan.mechanism.num_classes} classes, got less; nothing was spent, "
            "use fewer."
        ) from error


@contextmanager
def spend_stands(ledger: Path, where: str) -> Iterator[None]:
    """Add a note to errors after the ledger was charged and before the labels reach `where`."""
    before = _num_spends(ledger)
    try:
        yield
    except BaseException as error:
        if _num_spends(ledger) > before:
            error.add_note(
                f"The labels did not reach {where}, and the spend stands: {ledger} has recorded it."
            )
        raise


def _num_spends(path: Path) -> int:
    return (
        sum(entry.kind == "spend" for entry in Ledger.open(path).entries()) if path.exists() else 0
    )

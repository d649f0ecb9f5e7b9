"""Release of labels on a user's own embeddings, from input files to result files.

This is `rknn label` without its command line. `prepare` reads, and `plan` checks and clusters; both
refuse whatever can be refused. `release` makes sure of memory and of a place to write to. `draw`
charges the ledger before it draws exact noise on the operating system's entropy. So a refused run
changes nothing, a spend is never forgotten, and a paid release is not lost
(`rknn_jax.release.release_folder`).

Private labels are read by `rknn.connect`, record by record, and by `release_counts` alone.
`rknn_jax.release.estimator` calls `plan` and `draw` too, with arrays in place of files.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import shlex
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.sparse import csr_matrix

from rknn_jax import mechanisms, postprocessing
from rknn_jax._internal.disk import write_arrays, write_text
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.labelers import rknn
from rknn_jax.mechanisms.base import CentralMechanism, release_counts
from rknn_jax.privacy.guarantee import LARGE_EPSILON, Guarantee
from rknn_jax.privacy.ledger import Amount, BudgetExceededError, Ledger, LedgerError, fingerprint
from rknn_jax.privacy.statement import Account, Statement, page
from rknn_jax.queries import kmeans
from rknn_jax.release import preview, release_folder, tables
from rknn_jax.release.release_folder import ReleaseFolder
from rknn_jax.release.tables import MISSING, Classes
from rknn_jax.types import Answers, Array, Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

ASSUMED_CLASSES = 10
"""Number of classes that a dry run assumes if none are given.

A dry run reads no private labels, and its results depend on the logarithm of this number.
"""

ROOM_FOR_WORDS = 2**20  # bytes of the statement and of the array files' headers
BYTES_PER_CELL = 100
BYTES_PER_LABEL = 40
BYTES_PER_GRID = 50
"""Memory after the charge, in bytes per cell, per label and per point of the posterior's grid.

The sizes exceed the measured 52 to 765 MB, for 400 to 10^6 cells and 8 * 10^5 to 2 * 10^7 labels.
"""

UNSEEN = (
    "ledger",
    "out",
    "json",
    "dry_run",
    "private",
    "public",
    "private_labels",
    "budget",
    "budget_delta",
    "patience",
)
"""Settings on which the noisy counts of a release do not depend."""


@dataclass(frozen=True)
class Data:
    """Input of a release.

    Attributes:
      public: float32 `[m, f]`.
      private: float32 `[n, f]`.
      labels: int32 `[n]`, private; None in a dry run.
      classes: Set of labels, taken as public.
      dataset: Fingerprint of the private embeddings alone, so that a corrected label does not make
        a new budget.
      ignored: Number of private records with a label that cast no vote, for the owner's eyes alone.
        Their embedding is not finite, or their label is none of the classes. Defaults to 0.
    """

    public: np.ndarray
    private: np.ndarray
    labels: np.ndarray | None
    classes: Classes
    dataset: str
    ignored: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that a release needs, checked; nothing is spent yet.

    Attributes:
      settings: Settings as given; `prepare` adds the folder of the results.
      data: Public and private input.
      mechanism: Calibrated mechanism.
      queries: Public queries.
      graph: Graph of the public rows, along which labels spread, from
        `postprocessing.public_graph`.
      ledger: Ledger to charge; None if it is still to be made.
      paid: Flag for a release that a stopped process has already paid for. Defaults to False.
    """

    settings: "Settings"
    data: Data
    mechanism: CentralMechanism
    queries: Queries
    graph: csr_matrix | None
    ledger: Ledger | None
    paid: bool = False

    @property
    def folder(self) -> Path:
        """Folder of the results; `ValueError` if the settings name none."""
        if self.settings.out is None:
            raise ValueError(
                "Expected a folder for the results, got out=None; name one, or let prepare do so."
            )
        return self.settings.out

    @property
    def num_records(self) -> int | None:
        """Number of private records n, or None if n is private."""
        return len(self.data.private) if self.settings.relation == "replace-one" else None

    @property
    def num_votes(self) -> int | None:
        """Number of votes n·k, or None if n is private."""
        return None if self.num_records is None else self.num_records * self.settings.neighbors

    @property
    def affordable(self) -> bool:
        """True if the ledger has this release's cost left."""
        left = self.ledger.remaining if self.ledger else first_budget(self.settings)
        return self.paid or (
            _cost(self.settings).epsilon <= left.epsilon
            and _cost(self.settings).delta <= left.delta
        )


@dataclass(frozen=True)
class Release:
    """Result of a release.

    Attributes:
      answers: Answers to the queries.
      probabilities: float32 `[m, num_classes]`, soft labels of the public rows.
      counts: int64 `[num_queries, num_classes]`, noisy; None if the mechanism releases labels
        alone.
      card: Content of `privacy.json`.
    """

    answers: Answers
    probabilities: np.ndarray
    counts: np.ndarray | None
    card: dict[str, Any]

    @property
    def labels(self) -> np.ndarray:
        """Most probable class of each public row, int32 `[m]`."""
        return self.probabilities.argmax(axis=1).astype(np.int32)


def prepare(settings: "Settings") -> Plan:
    """Read, check and cluster.

    Raises:
      ValueError: If the input or the settings cannot be used. Nothing was changed or spent then.
    """
    check(settings)
    data = read(settings)
    wanted = request(settings, data)
    new = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-label-eps{settings.epsilon:g}"
    folder = (
        settings.out
        or release_folder.find_unfinished(Path("runs"), wanted, settings.ledger_path)
        or new
    )
    paid = release_folder.is_paid(folder, wanted, settings.ledger_path)
    if not paid:
        release_folder.refuse_results(folder)
    return plan(replace(settings, out=folder), data, paid=paid)


def plan(settings: "Settings", data: Data, *, paid: bool = False) -> Plan:
    """Open the ledger, calibrate the mechanism and cluster the public rows.

    Raises:
      ValueError: As in `prepare`, for settings that `check` has passed.
    """
    # A warning, not an error: the existence of a release must not depend on one private record.
    if np.array_equal(data.public, data.private):
        warnings.warn(
            "The public rows are the private ones; whoever sees the labels sees which rows they "
            "are of.",
            stacklevel=2,
        )
    ledger = open_ledger(settings, data.dataset, paid=paid)
    mechanism = calibrated(settings, data)
    queries = cluster(settings, data.public, mechanism.num_queries)
    # The graph takes long, so make it before anything is spent. A dry run spreads nothing.
    graph = None if settings.dry_run else _graph(settings, data.public, mechanism.num_queries)
    return Plan(settings, data, mechanism, queries, graph, ledger, paid)


def release(plan: Plan) -> Release:
    """Reserve memory and a folder, then charge the ledger, release and write the results.

    A release that a stopped process has paid for is finished at no cost.

    Raises:
      LedgerError: As in `draw`.
      ValueError: If there is not enough memory or room; nothing was spent then.
      OSError: If the results cannot be written. A note on the error tells how to finish the
        release, at no further cost.
    """
    _reserve_memory(plan)

    def opened() -> Ledger:
        return plan.ledger or _new_ledger(plan.settings, plan.data.dataset)

    wanted = request(plan.settings, plan.data)
    with release_folder.held(
        plan.folder, wanted, plan.settings.ledger_path, opened, _room(plan)
    ) as folder:
        done = draw(plan, folder)
        folder.publish(lambda staging: write(staging, plan, done))
    return done


def draw(plan: Plan, folder: ReleaseFolder | None = None) -> Release:
    """Charge the ledger and release.

    Guarantee: the returned card states the privacy of the labels and the noisy counts. The ledger
    has the charge on disk before noise is drawn.

    Args:
      plan: Release to make.
      folder: Folder that keeps the noisy counts and pays. Defaults to none: the ledger is charged,
        and an error loses the release.

    Raises:
      LedgerError: If the ledger cannot be charged; nothing was released then.
    """
    settings = plan.settings
    data = plan.data
    queries = plan.queries
    if data.labels is None:
        raise ValueError(
            "Expected private labels, got the plan of a dry run; prepare without dry_run."
        )
    config = _labeler(settings)
    ledger = folder.ledger if folder else plan.ledger or _new_ledger(settings, data.dataset)
    counts = folder.kept(plan.mechanism.shape) if folder else None
    if counts is None:
        cells = rknn.connect(data.private, data.labels, queries, data.classes.count, config)
        purpose = (
            f"rknn label: {plan.mechanism.num_queries} queries, {data.classes.count} classes, "
            f"{settings.mechanism}"
        )
        counts, _ = release_counts(plan.mechanism, cells, folder or ledger, purpose)
        if folder:
            folder.keep(counts)
    guarantee = plan.mechanism.release_guarantee(len(data.private))
    answers = rknn.answer(
        counts, plan.mechanism.stddev(counts, len(data.private)), guarantee, queries, config
    )
    # Permute-and-flip releases labels, and has no counts to show.
    shown = None if settings.mechanism == "permute_and_flip" else counts
    probabilities = postprocessing.public_labels(
        plan.graph, answers.probabilities[queries.cluster], plan.mechanism.num_queries
    )
    return Release(answers, probabilities, shown, card(plan, guarantee, ledger))


def check(settings: "Settings") -> None:
    """Raise ValueError for settings that are wrong for any data."""
    if not 0 < settings.epsilon < math.inf:
        raise ValueError(
            f"Expected 0 < epsilon < infinity, got --epsilon {settings.epsilon}; choose a finite "
            "privacy budget, such as 1."
        )
    if settings.epsilon > LARGE_EPSILON and not settings.allow_large_epsilon:
        raise ValueError(
            f"Expected --epsilon of at most {LARGE_EPSILON:g}, got --epsilon "
            f"{settings.epsilon:g}, which protects nobody; choose one "
            "below 10, or pass --allow-large-epsilon if the records need no protection."
        )
    for name in ("delta", "budget_delta"):
        value = getattr(settings, name)
        if value is not None and not 0 <= value < 1:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"Expected 0 <= {name} < 1, got {flag} {value}; 1e-5 is a common choice, 0 is "
                "pure privacy."
            )
    if settings.mechanism == "gaussian" and settings.delta == 0:
        raise ValueError(
            "Expected delta > 0 with --mechanism gaussian, got --delta 0; pass --delta 1e-5, or "
            "use discrete_laplace."
        )
    if settings.mechanism != "gaussian" and settings.delta > 0:
        raise ValueError(
            f"Expected no delta with --mechanism {settings.mechanism}, got --delta "
            f"{settings.delta}; it is pure, leave it out."
        )
    if settings.budget is not None and not 0 < settings.budget < math.inf:
        raise ValueError(
            f"Expected 0 < budget < infinity, got --budget {settings.budget}; it bounds what may "
            "be spent in all."
        )
    if settings.neighbors < 1 or (
        settings.queries is not None and settings.queries < settings.neighbors
    ):
        raise ValueError(
            f"Expected 1 <= neighbors <= queries, got --neighbors {settings.neighbors} and "
            f"--queries {settings.queries}; use fewer "
            "neighbors or more queries."
        )
    if settings.relation == "add-remove" and settings.queries is None:
        raise ValueError(
            "Expected --queries with --relation add-remove, got none; the default depends on n, "
            "which is private then."
        )
    if not 0 <= settings.seed < 2**32:
        raise ValueError(
            f"Expected 0 <= seed < 2^32, got --seed {settings.seed}; it only starts the clustering."
        )


def read(settings: "Settings") -> Data:
    """Read and check both files, and the private labels unless it is a dry run.

    A private record that cannot be used casts no vote. It raises no error, because a refused
    release would reveal that record.
    """
    if (
        os.path.lexists(settings.public)
        and os.path.lexists(settings.private)
        and settings.public.samefile(settings.private)
    ):
        raise ValueError(
            f"Expected --public to hold public data, got the private file {settings.private}; "
            "bring data that is public."
        )
    public = tables.read_embeddings(settings.public, "--public")
    private = tables.read_records(settings.private, "--private", public.shape[1])
    if public.shape[1] != private.shape[1]:
        raise ValueError(
            f"Expected embeddings of one width, got --public {settings.public} of "
            f"{public.shape[1]} and --private {settings.private} of "
            f"{private.shape[1]} dimensions; embed both with the same model."
        )
    given = (
        tables.parse_classes(settings.classes)
        if settings.classes is not None
        else tables.read_classes(settings.private)
    )
    if settings.dry_run:
        return data_of(public, private, None, given or Classes(ASSUMED_CLASSES, source="assumed"))
    labels = tables.read_labels(settings.private, settings.private_labels)
    if len(labels) != len(private):
        raise ValueError(
            f"Expected one label a private record, got {len(labels)} labels for {len(private)} "
            f"embeddings of {settings.private}; save both "
            "in the same order."
        )
    if given is None and not settings.infer_classes:
        raise ValueError(
            "Expected --classes, got none; name all classes, or pass --infer-classes to read "
            "them from the private labels, which "
            "epsilon does not cover."
        )
    classes = given or tables.infer_classes(labels)
    return data_of(
        public,
        private,
        tables.label_ids(labels, classes),
        classes,
        num_given=tables.num_given(labels),
    )


def data_of(
    public: np.ndarray,
    private: np.ndarray,
    labels: np.ndarray | None,
    classes: Classes,
    num_given: int = 0,
) -> Data:
    """Return the data of a release. A private record with a row of NaN casts no vote.

    Args:
      public: float32 `[m, f]`.
      private: float32 `[n, f]`, from `tables.usable_rows`.
      labels: int32 `[n]`, private, `MISSING` if a record casts no vote; None in a dry run.
      classes: Set of labels.
      num_given: Number of private records that have a label, usable or not. Defaults to 0.
    """
    dataset = fingerprint(private)
    usable = ~np.isnan(private[:, 0])
    private = np.where(usable[:, None], private, np.float32(0))
    if labels is None:
        return Data(public, private, None, classes, dataset)
    labels = np.where(usable, labels, MISSING).astype(np.int32)
    return Data(
        public, private, labels, classes, dataset, num_given - int(np.sum(labels != MISSING))
    )


def request(settings: "Settings", data: Data) -> str:
    """Return a hash of all public input that the noisy counts of a release depend on."""
    public = {name: value for name, value in asdict(settings).items() if name not in UNSEEN}
    public["records"] = len(data.private) if settings.relation == "replace-one" else None
    words = repr([sorted(public.items()), data.classes, fingerprint(data.public)])
    return hashlib.sha256(words.encode()).hexdigest()


def calibrated(settings: "Settings", data: Data) -> CentralMechanism:
    """Return the mechanism, with the given number of queries or as many as the noise allows."""
    mechanism = mechanisms.make(
        settings.mechanism,
        epsilon=settings.epsilon,
        num_queries=settings.queries or settings.neighbors,
        num_classes=data.classes.count,
        num_neighbors=settings.neighbors,
        relation=settings.relation,
        **({"delta": settings.delta} if settings.mechanism == "gaussian" else {}),
    )
    if settings.queries is None:
        suggested = preview.suggested_num_queries(
            mechanism, len(data.private), shared=shares_votes(settings)
        )
        mechanism = replace(
            mechanism, num_queries=max(min(suggested, len(data.public)), settings.neighbors)
        )
    if mechanism.num_queries > len(data.public):
        raise ValueError(
            f"Expected at most as many queries as public rows, got {mechanism.num_queries} "
            f"queries with {len(data.public)} rows in "
            f"{settings.public}; ask fewer --queries, for fewer --neighbors, or bring more "
            "public data."
        )
    if mechanism.num_queries * mechanism.num_classes >= 2**31:
        raise ValueError(
            f"Expected queries times classes below 2^31, got {mechanism.num_queries} times "
            f"{mechanism.num_classes}; use fewer."
        )
    return mechanism


def cluster(settings: "Settings", public: np.ndarray, num_queries: int) -> Queries:
    """Cluster the public rows into queries, by their directions under the cosine metric."""
    if settings.metric == "cosine":
        norm = np.linalg.norm(public, axis=1, keepdims=True)
        public = public / np.where(norm > 0, norm, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few distinct rows raise an error below
        queries = kmeans.select(
            stage_key(jax.random.key(settings.seed), Stage.QUERIES), public, num_queries
        )
    distinct = len(np.unique(queries.cluster))
    if distinct < num_queries:
        raise ValueError(
            f"Expected at least {num_queries} distinct public rows, got {distinct} in "
            f"{settings.public}; use --queries {distinct} or "
            "fewer, or bring more varied public data."
        )
    return queries


def open_ledger(settings: "Settings", dataset: str, *, paid: bool = False) -> Ledger | None:
    """Open and check the ledger of this release; return None if there is none yet.

    Raises:
      LedgerError: If the ledger belongs to another data set, is damaged, or has not enough left. A
        dry run does not need enough left.
    """
    path = settings.ledger_path
    budget = first_budget(settings)
    if not os.path.lexists(path):
        if budget.epsilon < _cost(settings).epsilon or budget.delta < _cost(settings).delta:
            raise BudgetExceededError(
                f"This release costs {_cost(settings)}, and the first budget is to be {budget}; "
                "ask for less."
            )
        return None
    ledger = Ledger.open(path, dataset, settings.patience)
    raising = f"rknn budget raise {shlex.quote(str(path))} --epsilon"
    for flag, given, wanted, recorded in (
        ("--budget", settings.budget, budget.epsilon, ledger.budget.epsilon),
        ("--budget-delta", settings.budget_delta, budget.delta, ledger.budget.delta),
    ):
        if given is not None and wanted != recorded:
            raise LedgerError(
                f"Expected {flag} {float(recorded)} as {path} has it, got {flag} {given}; leave "
                "it out, or change it on the record: "
                f"{raising} E --reason TEXT"
            )
    left = ledger.remaining
    cost = _cost(settings)
    if (
        not settings.dry_run
        and not paid
        and (cost.epsilon > left.epsilon or cost.delta > left.delta)
    ):
        raise BudgetExceededError(
            f"This release costs {cost}, and {path} has {left} left of {ledger.budget}; ask for "
            "less, or let those who answer for the data "
            f"decide: {raising} {float(ledger.spent.epsilon + cost.epsilon):g} --reason TEXT"
        )
    return ledger


def first_budget(settings: "Settings") -> Amount:
    """Return the budget of a ledger that these settings make."""
    epsilon = settings.epsilon if settings.budget is None else settings.budget
    return _amount(
        epsilon, settings.delta if settings.budget_delta is None else settings.budget_delta
    )


def card(plan: Plan, guarantee: Guarantee, ledger: Ledger) -> dict[str, Any]:
    """Return the content of `privacy.json`.

    Of the private data it shows n, if n is public, and nothing else.
    """
    choices = ("mechanism", "relation", "metric", "smoothing")
    # The ledger's fingerprint of the data is private, and stays there.
    amounts = {name: getattr(ledger, name)._asdict() for name in ("budget", "spent", "remaining")}
    return {
        "statement": f"{guarantee}{_inferred(plan)}",
        "guarantee": guarantee.asdict(),
        "ledger": {
            "file": ledger.path.name,  # without its folder, which may name a person
            "head": ledger.head,
            **amounts,
        },
        "not_covered": not_covered(plan),
        "num_records": plan.num_records,
        "num_public": len(plan.data.public),
        "num_queries": plan.mechanism.num_queries,
        "num_classes": plan.data.classes.count,
        "num_neighbors": plan.settings.neighbors,
        **{name: getattr(plan.settings, name) for name in choices},
        "clustering_seed": plan.settings.seed,  # public; no seed fixes the noise
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("rknn-jax", "jax", "opendp", "numpy", "scikit-learn")
        },
    }


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
            else ["the number of private records, which is taken as public"]
        ),
        f"the set of {plan.data.classes.count} classes, which {seen}",
        "the embedding model or other preprocessing, if private data had a part in training or "
        "choosing it",
        "the choice of these settings, if it was made in view of private data, or of results "
        "that were never charged to the budget",
    ]


def _inferred(plan: Plan) -> str:
    """Return a sentence on classes that were read from private labels, or an empty string."""
    if plan.data.classes.source != "inferred":
        return ""
    return " Epsilon does not cover the set of classes, which was read from the private labels."


def statement(plan: Plan, done: Release) -> Statement:
    """Return the content of `privacy.html`.

    Of the private data it shows what `card` shows, and the names of the files.
    """
    settings = plan.settings
    account = done.card["ledger"]
    classes = plan.data.classes.count
    records = (
        "all private records"
        if plan.num_records is None
        else f"all {plan.num_records:,} private records"
    )
    said = (
        "the label of"
        if done.counts is None
        else f"the noisy number of votes for each of {classes} classes, and the label, of"
    )
    return Statement(
        done.answers.guarantee,
        f"Whoever ran this release holds {records}, as they are, in one place.",
        (
            f"{said} each of {plan.mechanism.num_queries} queries, which stand for groups of "
            "public records",
            f"a label, and the probability of each class, for each of {len(plan.data.public):,} "
            "public records, made from that",
            "for each of them the query that spoke for it, and how sure that is",
        ),
        tuple(done.card["not_covered"]),
        settings.mechanism,
        Account(
            account["file"],
            account["head"],
            *(Amount(**account[name]) for name in ("budget", "spent", "remaining")),
        ),
        done.card["time"],
        details={
            "private data": settings.private.name,
            "public data": settings.public.name,
            "votes of a record": settings.neighbors,
            "queries": plan.mechanism.num_queries,
            "classes": classes,
        },
        versions=done.card["versions"],
    )


def shares_votes(settings: "Settings") -> bool:
    """Return whether similar queries share votes.

    They do not if labels are released alone, without counts.
    """
    return settings.smoothing == "auto" and settings.mechanism != "permute_and_flip"


def weights(plan: Plan, num_votes: float | None) -> np.ndarray | None:
    """Return the weight of each query's votes in each other query's label.

    Args:
      plan: Release to make.
      num_votes: Total number of votes; None if it is private.

    Returns:
      float32 `[num_queries, num_queries]`, or None if queries do not share votes or `num_votes` is
      None.
    """
    if num_votes is None or not shares_votes(plan.settings):
        return None
    return postprocessing.smoothing_weights(
        plan.queries.features, plan.queries.size, num_votes, preview.noise_stddev(plan.mechanism)
    )


def unsure_share(plan: Plan, counts: np.ndarray) -> float:
    """Return the share of public records whose query has a lead that noise may turn over.

    A lead counts as such if noise flips it in more than 5% of runs. It is taken over the votes that
    similar queries share.
    """
    listens = weights(plan, float(max(counts.sum(), 0)))
    listens = np.eye(len(counts)) if listens is None else listens
    ordered = np.sort(listens @ counts / np.linalg.norm(listens, axis=1, keepdims=True), axis=1)
    unsure = ordered[:, -1] - ordered[:, -2] < preview.required_gap(plan.mechanism, preview.LINE)
    return float(unsure[plan.queries.cluster].mean())


def confidence(plan: Plan, done: Release) -> np.ndarray:
    """Return the confidence of each public row's query in its label, float32 `[m]`.

    It is NaN if labels alone were released.
    """
    sure = (
        done.answers.confidence
        if done.counts is not None
        else np.full(len(done.answers.labels), np.nan, np.float32)
    )
    return sure[plan.queries.cluster]


def write(staging: Path, plan: Plan, done: Release) -> None:
    """Write the results, each file whole or not at all."""
    names = plan.data.classes.names
    rows = {
        "label": done.labels,
        "query": plan.queries.cluster,
        "confidence": confidence(plan, done),
        "probability": done.probabilities,
    }
    asked = {"index": plan.queries.index, "label": done.answers.labels}
    write_arrays(staging / "labels.npz", rows | ({"class_names": np.array(names)} if names else {}))
    write_arrays(
        staging / "queries.npz",
        asked | ({} if done.counts is None else {"noisy_counts": done.counts}),
    )
    write_text(staging / "privacy.html", page(statement(plan, done)))
    write_text(
        staging / "privacy.json",
        json.dumps(done.card, indent=2, allow_nan=False, default=float) + "\n",
    )


def _graph(settings: "Settings", public: Array, num_queries: int) -> csr_matrix | None:
    return postprocessing.public_graph(
        public, num_queries, metric=settings.metric, smoothing=settings.smoothing
    )


def _labeler(settings: "Settings") -> rknn.ReverseKNN:
    names = ("epsilon", "delta", "mechanism", "relation", "metric", "smoothing")
    return rknn.ReverseKNN(
        num_neighbors=settings.neighbors, **{name: getattr(settings, name) for name in names}
    )


def _cost(settings: "Settings") -> Amount:
    return _amount(settings.epsilon, settings.delta)


def _amount(epsilon: float, delta: float) -> Amount:
    # Floats by their shortest decimals, as the ledger takes them.
    return Amount(Fraction(str(epsilon)), Fraction(str(delta)))


def _new_ledger(settings: "Settings", dataset: str) -> Ledger:
    return Ledger.create(
        settings.ledger_path, dataset, *first_budget(settings), relation=settings.relation
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

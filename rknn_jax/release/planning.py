"""Plan of a release: its ledger, mechanism, queries and graph, before anything is spent.

`prepare` reads and checks the input; `plan` opens the ledger, calibrates the mechanism and clusters
the public rows. Both refuse whatever can be refused, and neither changes nor spends anything.
`rknn_jax.release.label` makes the release.
"""

import hashlib
import logging
import os
import shlex
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans

from rknn_jax import answers, mechanisms, postprocessing
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.mechanisms.base import CentralMechanism
from rknn_jax.privacy import contributions
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    Amount,
    BudgetExceededError,
    Ledger,
    LedgerError,
    LedgerMismatchError,
    exact_amount,
    fingerprint,
    new_ledger_affords,
)
from rknn_jax.queries import kmeans
from rknn_jax.release import adoption, preview, release_folder
from rknn_jax.release.counting import Bound, Question
from rknn_jax.release.inputs import Data, check, read, refuse_inside
from rknn_jax.release.shards import Shard
from rknn_jax.types import Array, Queries

if TYPE_CHECKING:
    from rknn_jax.release.settings import Settings

_log = logging.getLogger(__name__)

UNSEEN = (
    "ledger",
    "out",
    "json",
    "dry_run",
    "private",
    "public",
    "private_labels",
    "embedding",
    "label",
    "budget",
    "budget_delta",
    "accounting",
    "patience",
    "engine",
    "address",
    "controller",
    "contact",
    "purpose",
)
"""Settings on which the noisy counts of a release do not depend."""

MOST_REHEARSED = 4000
"""Most public rows of a simulated release. Of more, a sample stands for all.

Other numbers of queries are tried if there are no more rows, which are clustered anew.
"""


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
      kernels: Public side of the decoder of noisy counts; None if rows take their query's label.
      ledger: Ledger to charge; None if it is still to be made.
      paid: Flag for a release that a stopped process has already paid for. Defaults to False.
    """

    settings: "Settings"
    data: Data
    mechanism: CentralMechanism
    queries: Queries
    graph: csr_matrix | None
    kernels: answers.Kernels | None
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
        """Number n of private records, or of persons if they are protected; None if private."""
        return public_size(self.settings, self.data)

    @property
    def question(self) -> Question:
        """Public side of the count of votes."""
        settings = self.settings
        return Question(
            self.queries.features,
            self.data.classes,
            settings.neighbors,
            settings.metric,
            self.data.encode,
            None
            if settings.person is None
            else Bound(settings.records_per_person, settings.seed, self.mechanism.norm),
        )

    @property
    def num_votes(self) -> int | None:
        """Number of votes n·k, or None if n is private."""
        return None if self.num_records is None else self.num_records * self.settings.neighbors

    @property
    def affordable(self) -> bool:
        """True if the ledger has this release's cost left."""
        if self.paid:
            return True
        if self.ledger:
            return self.ledger.affords(self.cost)
        settings = self.settings
        return new_ledger_affords(first_budget(settings), settings.accounting or "sum", self.cost)

    @property
    def cost(self) -> Guarantee:
        """Guarantee of the release, which its ledger is charged for."""
        return self.mechanism.release_guarantee(self.num_records or 1)  # n does not count


def prepare(settings: "Settings", private: Sequence[Shard] | None = None) -> Plan:
    """Read the public rows, check everything and cluster.

    Args:
      settings: Settings of the release.
      private: Shards of the private records, as for `inputs.read`. Defaults to the files that the
        settings name.

    Raises:
      ValueError: If the input or the settings cannot be used. Nothing was changed or spent then.
    """
    check(settings)
    data = read(settings, private)
    wanted = request(settings, data)
    new = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-label-eps{settings.epsilon:g}"
    folder = (
        settings.out
        or release_folder.find_unfinished(Path("runs"), wanted, settings.ledger_path)
        or new
    )
    refuse_inside(folder, settings)
    paid = release_folder.is_paid(folder, wanted, settings.ledger_path)
    if not paid:
        release_folder.refuse_results(folder)
    return plan(replace(settings, out=folder), data, paid=paid)


def plan(settings: "Settings", data: Data, *, paid: bool = False) -> Plan:
    """Open the ledger, calibrate the mechanism and cluster the public rows.

    Raises:
      ValueError: As in `prepare`, for settings that `check` has passed.
    """
    mechanism = calibrated(settings, data)
    ledger = open_ledger(settings, mechanism.release_guarantee(1), paid=paid)
    _log.info(
        "clustering %s public rows into %s queries",
        f"{len(data.public):,}",
        f"{mechanism.num_queries:,}",
    )
    queries = cluster(settings, data.public, mechanism.num_queries)
    # The graph takes long, so make it before anything is spent. A dry run spreads nothing.
    _log.info("joining similar public rows")
    graph = None if settings.dry_run else _graph(settings, data.public, mechanism.num_queries)
    kernels = _kernels(settings, data.public, queries, graph)
    return Plan(settings, data, mechanism, queries, graph, kernels, ledger, paid)


def expect(plan: Plan) -> preview.Preview:
    """Return the error to expect of a release, by simulation on public quantities.

    Nothing private is read but the number of records, if that is public, and none is drawn.

    Args:
      plan: Release to make, or dry run.
    """
    settings = plan.settings
    public = of_metric(settings, plan.data.public)
    rehearsal = None
    others: dict[str, preview.Rehearsal] = {}
    if plan.num_records is not None and plan.mechanism.num_queries <= preview.MOST_QUERIES:
        rehearsal = _rehearsal(settings, public, plan.queries, plan.mechanism)
        others = dict(_others(plan, public))
    return preview.preview(
        plan.mechanism,
        plan.queries.size,
        plan.num_records,
        rehearsal=rehearsal,
        others=others,
        features=public,
    )


def _others(plan: Plan, public: np.ndarray) -> Iterator[tuple[str, preview.Rehearsal]]:
    """Yield the flags and the public sides of releases with one other setting."""
    settings = plan.settings
    num_queries = plan.mechanism.num_queries
    asked = replace(settings, queries=num_queries)
    for name in mechanisms.names("central"):
        kind = mechanisms.named(name)
        fits = mechanisms.can_release(kind) and (settings.delta > 0 or not kind.needs_delta)
        if not fits or name == settings.mechanism:
            continue
        other = replace(asked, mechanism=name)
        with suppress(ValueError):  # not every mechanism takes these settings
            mechanism = calibrated(other, plan.data)
            without = "" if kind.needs_delta or not settings.delta else " without --delta"
            flags = f"--mechanism {name}{without}"
            yield flags, _rehearsal(other, public, plan.queries, mechanism)
    if len(public) > MOST_REHEARSED or num_queries > preview.FEW_QUERIES:
        return
    for number in (num_queries // 2, 2 * num_queries):
        if number < max(settings.neighbors, 2) or number > len(public):
            continue
        other = replace(settings, queries=number)
        with suppress(ValueError):  # too few distinct rows
            queries = cluster(other, plan.data.public, number)
            mechanism = calibrated(other, plan.data)
            yield f"--queries {number}", _rehearsal(other, public, queries, mechanism)


def _rehearsal(
    settings: "Settings", public: np.ndarray, queries: Queries, mechanism: CentralMechanism
) -> preview.Rehearsal:
    """Return the public side of a release, with a sample of the rows if there are many.

    Args:
      settings: Settings of the release.
      public: Public rows, of unit length under the cosine metric.
      queries: Public queries.
      mechanism: Calibrated mechanism.
    """
    rows = _sample(queries)
    sampled = replace(queries, cluster=np.asarray(queries.cluster)[rows])
    kernels = _kernels(settings, public[rows], sampled, None)
    graph = None if kernels else _graph(settings, public[rows], mechanism.num_queries)
    groups = KMeans(min(mechanism.num_classes, len(queries.size)), n_init=5, random_state=0)
    centers = np.asarray(queries.features)
    apart = groups.fit(centers, sample_weight=queries.size).transform(centers) ** 2
    return preview.Rehearsal(mechanism, queries.size, apart, sampled.cluster, kernels, graph)


def _sample(queries: Queries) -> np.ndarray:
    """Return the positions of about `MOST_REHEARSED` rows, in proportion of each query.

    A fixed seed is safe: the rows are public.
    """
    of_query = np.asarray(queries.cluster)
    if len(of_query) <= MOST_REHEARSED:
        return np.arange(len(of_query))
    order = np.random.default_rng(0).permutation(len(of_query))
    order = order[np.argsort(of_query[order], kind="stable")]
    held = np.bincount(of_query, minlength=len(queries.size))
    rank = np.arange(len(order)) - (np.cumsum(held) - held)[of_query[order]]
    most = np.ceil(held * MOST_REHEARSED / len(of_query))
    return np.sort(order[rank < most[of_query[order]]])


def public_size(settings: "Settings", data: Data) -> int | None:
    """Return the number n of private records or persons, or None if it is private."""
    if settings.relation != "replace-one":
        return None
    return len(data.private) if settings.person is None else data.num_persons


def request(settings: "Settings", data: Data) -> str:
    """Return a hash of all public input that the noisy counts of a release depend on."""
    public = {name: value for name, value in asdict(settings).items() if name not in UNSEEN}
    for name in ("representation", "person", "records_per_person"):
        if public[name] is None:  # as before there were any
            del public[name]
    if not public["standardize"]:  # likewise
        del public["standardize"]
    public["records"] = public_size(settings, data)
    rows = data.digest or fingerprint(data.public)
    words = repr([sorted(public.items()), data.classes, rows])
    return hashlib.sha256(words.encode()).hexdigest()


def calibrated(settings: "Settings", data: Data) -> CentralMechanism:
    """Return the mechanism, with the given number of queries or as many as the noise allows."""
    mechanism: CentralMechanism = mechanisms.make(
        settings.mechanism,
        epsilon=settings.epsilon,
        num_queries=settings.queries or settings.neighbors,
        num_classes=data.classes.count,
        num_neighbors=settings.neighbors,
        relation=settings.relation,
        unit=settings.unit,
        grid=_grid(settings),
        **({"delta": settings.delta} if mechanisms.named(settings.mechanism).needs_delta else {}),
    )
    if settings.queries is None:
        known = public_size(settings, data)
        assert known is not None  # `check` asks for --queries otherwise
        suggested = preview.suggested_num_queries(mechanism, known, shared=shares_votes(settings))
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
    public = of_metric(settings, public)
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


def open_ledger(
    settings: "Settings", cost: Guarantee, dataset: str | None = None, *, paid: bool = False
) -> Ledger | None:
    """Open and check the ledger of this release; return None if there is none yet.

    Args:
      settings: Settings of the release.
      cost: Guarantee of the release.
      dataset: Fingerprint of the private records. Defaults to None, before they are read, to check
        the budget alone.
      paid: Flag for a release that a stopped process has already paid for. Defaults to False.

    Raises:
      LedgerError: If the ledger belongs to another data set, is damaged, or has not enough left. A
        dry run does not need enough left.
    """
    path = settings.ledger_path
    budget = first_budget(settings)
    if not os.path.lexists(path):
        if not new_ledger_affords(budget, settings.accounting or "sum", cost):
            raise BudgetExceededError(
                f"This release costs {_cost(settings)}, and the first budget is to be {budget}; "
                "ask for less."
            )
        return None
    try:
        ledger = Ledger.open(path, dataset, settings.patience)
    except LedgerMismatchError as error:
        raise LedgerMismatchError(adoption.advice(settings)) from error
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
    if settings.accounting not in (None, ledger.accounting):
        raise LedgerError(
            f"Expected --accounting {ledger.accounting} as {path} has it, got --accounting "
            f"{settings.accounting}; leave it out, because a ledger keeps the rule that it was "
            "made with."
        )
    if not settings.dry_run and not paid and not ledger.affords(cost):
        asked = _cost(settings)
        raise BudgetExceededError(
            f"This release costs {asked}, and {path} has {ledger.remaining} left of "
            f"{ledger.budget}; ask for less, or let those who answer for the data "
            f"decide: {raising} {float(ledger.spent.epsilon + asked.epsilon):g} --reason TEXT"
        )
    return ledger


def first_budget(settings: "Settings") -> Amount:
    """Return the budget of a ledger that these settings make."""
    epsilon = settings.epsilon if settings.budget is None else settings.budget
    return exact_amount(
        epsilon, settings.delta if settings.budget_delta is None else settings.budget_delta
    )


def _grid(settings: "Settings") -> int:
    """Return the units of a vote, in which the votes of persons are counted."""
    if settings.person is None:
        return 1
    return settings.records_per_person or contributions.GRID


def shares_votes(settings: "Settings") -> bool:
    """Return whether rows are labeled from all noisy counts, and not from their query's alone.

    They are not if labels are released without counts.
    """
    return settings.smoothing == "auto" and bool(
        mechanisms.named(settings.mechanism).releases_counts
    )


def _kernels(
    settings: "Settings", public: np.ndarray, queries: Queries, graph: csr_matrix | None
) -> answers.Kernels | None:
    """Return the public side of the decoder, or None if rows take their query's label."""
    if not shares_votes(settings):
        return None
    return answers.kernels(queries, public, graph, metric=settings.metric)


def of_metric(settings: "Settings", public: np.ndarray) -> np.ndarray:
    """Return the rows, of unit length under the cosine metric."""
    if settings.metric != "cosine":
        return public
    norm = np.linalg.norm(public, axis=1, keepdims=True)
    return public / np.where(norm > 0, norm, 1)


def _graph(settings: "Settings", public: Array, num_queries: int) -> csr_matrix | None:
    return postprocessing.public_graph(
        public, num_queries, metric=settings.metric, smoothing=settings.smoothing
    )


def _cost(settings: "Settings") -> Amount:
    return exact_amount(settings.epsilon, settings.delta)

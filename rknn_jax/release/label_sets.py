"""Release of sets of labels on arrays: charge the ledger, then draw exact noise.

    ledger = Ledger.create("clinic.ledger.jsonl", fingerprint(private), 1)
    released = label_sets.release(
        public, private, labels, ledger, epsilon=1, num_classes=20, labels_per_record=3
    )
    released.sets.present
    label_sets.write(Path("labels"), released)

`rknn_jax.label_sets` has the votes, their sensitivity and the way in which counts are read.
"""

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rknn_jax import answers, bsvs, label_sets, mechanisms, postprocessing
from rknn_jax._internal.disk import write_arrays, write_text
from rknn_jax._internal.keys import Stage, stage_key
from rknn_jax.label_sets import LabelSets
from rknn_jax.mechanisms.base import CentralMechanism, release_counts
from rknn_jax.neighbors import nearest_votes
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.privacy.ledger import Ledger, fingerprint
from rknn_jax.privacy.statement import (
    PUBLIC_TUNING,
    Account,
    Contribution,
    Statement,
    as_json,
    new_release,
    page,
)
from rknn_jax.queries import kmeans
from rknn_jax.release import tables
from rknn_jax.release.release_folder import refuse_results
from rknn_jax.types import Queries


@dataclass(frozen=True)
class ReleasedSets:
    """Result of a release. All of it may be published with its guarantee.

    Attributes:
      sets: Set of classes of each public row.
      queries: Public queries.
      counts: int64 `[s, num_classes + 1]`, noisy votes; the last column is of records that voted.
      stddev: Standard deviation of the noise of each count, in votes.
      statement: Privacy statement of everything here together.
    """

    sets: LabelSets
    queries: Queries
    counts: np.ndarray
    stddev: float
    statement: Statement

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of everything here together."""
        return self.statement.guarantee


def release(
    public: np.ndarray,
    private: np.ndarray,
    labels: np.ndarray,
    ledger: Ledger,
    *,
    epsilon: float,
    num_classes: int,
    labels_per_record: int,
    num_queries: int,
    num_neighbors: int = 1,
    mechanism: str = "discrete_laplace",
    relation: Relation = "replace-one",
    delta: float = 0.0,
    seed: int = 0,
) -> ReleasedSets:
    """Release a set of classes for each public row. A record is the privacy unit.

    A record with more than r labels keeps r of them, as `label_sets.ballots` says. A record whose
    embedding is not finite casts no vote.

    Args:
      public: Public embeddings, float `[m, f]`.
      private: Private embeddings, float `[n, f]`.
      labels: Labels of the private records: class numbers `[n, l]`, where a negative one is no
        label, or a mask of the classes, bool `[n, num_classes]`.
      ledger: Ledger of the private records.
      epsilon: Epsilon of the release.
      num_classes: Number of classes |Y|, public.
      labels_per_record: Most labels of a record that count, r, public.
      num_queries: Number of queries s that the public rows are clustered into.
      num_neighbors: Number of queries k that a record votes at. Defaults to 1.
      mechanism: Central mechanism that releases counts exactly. Defaults to `discrete_laplace`.
      relation: Neighboring relation. Defaults to `replace-one`.
      delta: Delta of the release, for Gaussian noise. Defaults to 0, for pure noise.
      seed: Seed of the clustering, public. Defaults to 0.

    Raises:
      LedgerError: If the ledger is of other records, or does not allow the charge; nothing is
        drawn then.
      ValueError: If the input cannot be used; nothing is spent then.
    """
    private_step = _mechanism(
        mechanism,
        delta,
        epsilon=epsilon,
        relation=relation,
        **label_sets.sizes(num_queries, num_classes, labels_per_record, num_neighbors),
    )
    rows = tables.real_rows(np.asarray(public), "public").astype(np.float32)
    ballots = label_sets.ballots(labels, num_classes, labels_per_record)
    points = tables.usable_rows(tables.real_rows(np.asarray(private), "private", rows.shape[1]))
    if len(points) != len(ballots):
        raise ValueError(
            f"Expected a row of labels for each of {len(points)} private records, got "
            f"{len(ballots)}."
        )
    if not np.isfinite(rows).all():
        raise ValueError("Expected finite public embeddings, got NaN or infinity; leave them out.")
    unusable = np.isnan(points[:, 0])
    ballots[unusable] = bsvs.NO_CELL
    key = stage_key(jax.random.key(seed), Stage.QUERIES)
    queries = _cluster(key, rows, num_queries)
    graph = postprocessing.public_graph(rows, num_queries)
    kernels = answers.kernels(queries, rows, graph)
    votes = nearest_votes(
        np.where(unusable[:, None], np.float32(0), points),
        queries.features,
        ballots,
        num_neighbors,
        num_classes + 1,
    )
    dataset = fingerprint(private)
    ledger_index.check(ledger.path, dataset)
    with ledger_index.held(ledger.path, dataset):
        Ledger.open(ledger.path, dataset)  # refuses the ledger of other records
    number = new_release()
    purpose = (
        f"label sets: {num_queries} queries, {num_classes} classes, {labels_per_record} labels a "
        f"record, {mechanism}; release {number}"
    )
    counts, guarantee = release_counts(
        private_step, np.asarray(votes), len(points), ledger, purpose
    )
    stddev = private_step.noise_stddev
    sets = label_sets.read(counts, stddev, queries, kernels)
    known = len(points) if relation == "replace-one" else None
    told = _statement(private_step, mechanism, guarantee, ledger, number, known, len(rows))
    return ReleasedSets(sets, queries, counts, stddev, told)


def write(folder: Path, released: ReleasedSets) -> None:
    """Write `labels.npz`, `queries.npz`, `privacy.html` and `privacy.json`, each file whole.

    Raises:
      ValueError: If the folder holds a release.
      OSError: If the folder cannot be written. The release is paid for and still in memory.
    """
    refuse_results(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        "present": released.sets.present,
        "probability": released.sets.probabilities,
        "stability": released.sets.stability,
        "query": released.queries.cluster,
    }
    stddev = np.full(released.counts.shape, released.stddev)
    asked = {
        "index": released.queries.index,
        "noisy_counts": released.counts,
        "stddev": stddev,
    }
    write_arrays(folder / "labels.npz", rows)
    write_arrays(folder / "queries.npz", asked)
    write_text(folder / "privacy.html", page(released.statement))
    write_text(folder / "privacy.json", as_json(released.statement.card()))


def _statement(
    private_step: CentralMechanism,
    mechanism: str,
    guarantee: Guarantee,
    ledger: Ledger,
    number: str,
    num_records: int | None,
    num_public: int,
) -> Statement:
    """Return the content of the statement. Of the private data it shows n, if n is public."""
    num_classes = private_step.num_classes - 1
    most = private_step.labels_per_record - 1
    held = "all private records" if num_records is None else f"all {num_records:,} private records"
    public = ["the number of private records, which is taken as public"]
    account = Account(
        ledger.path.name,
        ledger.head,
        ledger.budget,
        ledger.spent,
        ledger.remaining,
        ledger.accounting,
    )
    return Statement(
        guarantee,
        f"Whoever ran this release holds {held}, as they are, in one place.",
        (
            f"the noisy number of records with each of {num_classes} classes, and of all records, "
            f"near each of {private_step.num_queries} queries, which stand for groups of public "
            "records",
            f"whether each of {num_public:,} public records has each class, and how probably, made "
            "from that",
        ),
        (
            *(public if num_records is not None else []),
            f"the set of {num_classes} classes and the most labels of a record, {most}, which are "
            "taken as public",
            "the embedding model or other preprocessing, if private data had a part in training or "
            "choosing it",
            "the choice of these settings, if it was made in view of private data",
        ),
        mechanism,
        account,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        details={
            "queries": private_step.num_queries,
            "classes": num_classes,
            "labels of a record, at most": most,
            "queries that a record votes at": private_step.num_neighbors,
        },
        release=number,
        contribution=Contribution(1, private_step.num_neighbors),
        tuning=PUBLIC_TUNING,
    )


def _cluster(key: jax.Array, rows: np.ndarray, num_queries: int) -> Queries:
    """Cluster the public rows into queries.

    Raises:
      ValueError: If fewer rows are distinct.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few distinct rows raise an error below
        queries = kmeans.select(key, rows, num_queries)
    distinct = len(np.unique(queries.cluster))
    if distinct < num_queries:
        raise ValueError(
            f"Expected at least num_queries={num_queries} distinct public rows, got {distinct}; "
            "ask fewer queries, or bring more varied public data."
        )
    return queries


def _mechanism(name: str, delta: float, **fields: Any) -> CentralMechanism:
    """Return the calibrated mechanism, which releases counts.

    Raises:
      ValueError: If it does not, or has no exact noise, or delta does not suit it.
    """
    kind = mechanisms.named(name)
    if not mechanisms.can_release(kind) or not kind.releases_counts:
        raise ValueError(
            "Expected a central mechanism that releases counts with exact noise, got "
            f"mechanism={name}; use discrete_laplace, or gaussian with a delta."
        )
    if kind.needs_delta != (delta > 0):
        raise ValueError(
            f"Expected delta {'above' if kind.needs_delta else 'of'} 0 with mechanism={name}, got "
            f"delta={delta}; Gaussian noise needs one, pure noise has none."
        )
    made: CentralMechanism = kind(**fields, **({"delta": delta} if kind.needs_delta else {}))
    return made

"""Settings of a release, shared by `rknn label` and the estimator."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rknn_jax._internal.ranges import (
    CheckShare,
    Count,
    Delta,
    ReleaseEpsilon,
    Seed,
    make_plain,
)
from rknn_jax.privacy.contributions import Protected
from rknn_jax.privacy.guarantee import Relation
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.settings import GivenClasses, NamedColumns, Spending

AUTO = "auto"
"""Name that leaves the choice of the labeler to `choosing`."""


@dataclass(frozen=True)
class Settings:
    """Label public embeddings with private records: a real release at epsilon, charged to the private data set's ledger.

    Public and private embeddings come from the same model. They are files, folders, patterns or URLs such as s3://bucket/folder: .npz (with arrays `embeddings` and, if private, `labels`), .npy, .parquet, .feather, .csv or .jsonl. Private files may be larger than memory. A label that is NaN, null, negative or '' is missing. A record casts no vote if its label is missing or not one of the classes, or if its embedding is not finite. The set of classes is public: name it with --classes, or in an array `classes` of the private .npz. If the program is stopped after the budget was charged, the same command finishes the release at no further cost.

    Attributes:
      public: public embeddings.
      private: private embeddings and labels.
      epsilon: privacy budget that this release spends.
      private_labels: files of the private labels, if --private does not contain them.
      columns: columns of both sides.
      records_per_person: number m of records that are drawn from each person and count 1/m each. By default, all records of a person count and share one vote. With Gaussian noise, they are scaled to the L2 norm of one vote, which keeps more if they are near many queries.
      labels_per_record: largest number r of labels that count for each record, if records may have several. Each public row then gets a set of classes: those that at least half of the records near it have. Labels are a list column, a bool mask [n, classes], text with ; between names, or class numbers [n, l] with -1 for none. A record with more than r labels keeps the first r. A record without labels counts as having no class, so leave out records with unknown labels. The noise is r + 1 times that of one label.
      labeler: rknn is reverse k-NN labeling. prototypes, public_prototypes and least_squares label the public rows with a classifier that is made from one noisy sum over the private records. auto chooses by n, epsilon and the number of classes. --queries, --neighbors, --metric, --seed, --records-per-person and --labels-per-record belong to rknn only.
      queries: number of queries s. By default, it is chosen from n, epsilon, the classes and the public rows.
      neighbors: number of queries k that each private record votes for.
      delta: delta of this release, for a mechanism that needs one, such as gaussian; 0 is pure differential privacy.
      mechanism: kind of noise, one of the files in rknn_jax/mechanisms that draw exact noise. With rknn: discrete_laplace, the default; permute_and_flip, for fewer wrong labels but no counts; one_to_one, if every query has a different class; or gaussian, for many neighbors. With prototypes or least_squares: gaussian, the default if --delta is above 0, or discrete_laplace. With public_prototypes: permute_and_flip.
      relation: replace-one treats the number n of records as public. add-remove hides n, and with rknn needs --queries.
      check_share: share of the private records that do not vote, but measure how many labels are right and choose the best way to turn votes into labels. This costs no extra epsilon. By default, as many records check as make the measure exact to 3 points, at most 10.5%, and none if that is too few. 0 turns it off. None check by default under add-remove, where n is private, or if the ledger has renyi accounting and the votes are pure, where checking costs more.
      representation: encoder, if the files have raw records instead of embeddings: a file of rknn_jax/representations, which learns from the public images only, or package.module:function, a function of your own that handles each record by itself. It is applied when records are read.
      standardize: center and scale each column of the features by its mean and standard deviation among the public rows. Use it if columns have different units.
      metric: distance between embeddings.
      rounds: number T of rounds of Algorithm 1, which share epsilon; later rounds get more of it. Each later round uses features that were learned from the labels of the round before. More than one round needs --out, and its folder round-1 has the result of the first round with a statement of its own. Several rounds seldom help, and only if classes are linear and many records vote.
      smoothing: auto labels each public row by the noisy votes of all queries, weighted by similarity; the noisy votes also decide how far rows share votes. If no votes are released, as with permute_and_flip, labels of queries take their place. With other labelers, similar rows share labels. none gives each row the arg max of its own query, or the labeler's own label.
      classes: classes of the labels.
      infer_classes: read the classes from the private labels. Epsilon does not cover what this reveals, and the statement says so.
      allow_large_epsilon: allow an epsilon above 50, which protects nobody.
      spending: what may be spent in all.
      out: folder for the results. The default is a new one under runs/.
      engine: local reads one shard after another on this machine. ray counts shards on the Ray cluster at --address, or on one that it starts here.
      address: address of the Ray cluster.
      seed: seed of the clustering, which is public. No option fixes the noise.
      responsible: who answers for the release.
      dry_run: show what error to expect. This reads no private labels, spends nothing and draws no noise.
      json: end with one line of JSON on stdout.
    """  # noqa: E501 tyro shows the lines of a paragraph as they stand

    public: str | tuple[str, ...]
    private: str | tuple[str, ...]
    epsilon: ReleaseEpsilon
    private_labels: str | tuple[str, ...] | None = None
    columns: NamedColumns = field(default_factory=NamedColumns)
    records_per_person: Count | None = None
    labels_per_record: Count | None = None
    labeler: str = "rknn"
    queries: Count | None = None
    neighbors: Count = 1
    delta: Delta = 0.0
    mechanism: str | None = None
    relation: Relation = "replace-one"
    check_share: CheckShare | None = None
    representation: str | None = None
    standardize: bool = False
    metric: Literal["sqeuclidean", "cosine"] = "sqeuclidean"
    rounds: Count = 1
    smoothing: Literal["auto", "none"] = "auto"
    classes: GivenClasses = field(default_factory=GivenClasses)
    infer_classes: bool = False
    allow_large_epsilon: bool = False
    spending: Spending = field(default_factory=Spending)
    out: Path | None = None
    engine: str = "local"
    address: str | None = None
    seed: Seed = 0
    responsible: Responsible = field(default_factory=Responsible)
    dry_run: bool = False
    json: bool = False

    @property
    def chooses_labeler(self) -> bool:
        """True if the program chooses the labeler, by public quantities."""
        return self.labeler == AUTO

    def __post_init__(self) -> None:
        make_plain(self)

    @property
    def unit(self) -> Protected:
        """Privacy unit that epsilon protects."""
        return self.columns.unit

    @property
    def ledger_path(self) -> Path:
        """File that keeps the budget of this data set.

        Raises:
          ValueError: If none is named, and the data set has no folder beside which it may lie.
        """
        return self.spending.ledger_of(self.private)

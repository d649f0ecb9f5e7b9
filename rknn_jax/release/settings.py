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

    Both sides are embeddings by one model, in files, folders, patterns or URLs such as s3://bucket/folder: .npz (arrays `embeddings` and, for the private side, `labels`), .npy, .parquet, .feather, .csv or .jsonl. Private files may be larger than memory. A label that is NaN, null, negative or '' is missing, and its record casts no vote; nor does a record whose embedding is no finite number or whose label is none of the classes. The set of classes is public: name it with --classes or in an array `classes` of the private .npz. If the program is stopped after the budget was charged, the same command finishes the release and costs nothing.

    Attributes:
      public: public embeddings.
      private: private embeddings and labels.
      epsilon: what this release may cost.
      private_labels: private labels, if --private does not hold them.
      columns: columns of both sides.
      records_per_person: number m of a person's records that are drawn and count 1/m each. By default all records of a person share one vote, or with Gaussian noise have the L2 norm of one, which leaves more where they are near many queries.
      labels_per_record: most labels r of a record that count, if a record may have several. Each public row then gets a set of classes, each of which at least half of the records near it have. Labels are a list column, a mask of bool [n, classes], text with ; between names, or class numbers [n, l] with -1 for none. A record with more keeps its first r; one without labels counts as a record of no class, so leave out records whose labels are not known. The noise is r + 1 times that of one label.
      labeler: rknn, reverse k-NN labeling, which is the default; prototypes, public_prototypes or least_squares, which take one noisy sum over the private records and label each public row by it; or auto, which chooses by n, epsilon and the number of classes. --queries, --neighbors, --metric, --seed, --records-per-person and --labels-per-record are settings of rknn alone.
      queries: number of queries s. By default it is chosen from n, epsilon and the classes.
      neighbors: number of queries k that each private record votes for.
      delta: for a mechanism that needs one, such as gaussian; 0 is pure differential privacy.
      mechanism: a file of rknn_jax/mechanisms whose noise a release can draw exactly. With rknn: discrete_laplace, which is the default, permute_and_flip for fewer wrong labels but no counts, one_to_one where each query is another class, or gaussian for many neighbors. With prototypes or least_squares: gaussian, which is the default if there is a delta, or discrete_laplace. With public_prototypes: permute_and_flip.
      relation: replace-one takes n as public; add-remove hides n, and with rknn needs --queries.
      check_share: share of the private records that do not vote, but measure how many labels are right, and choose among ways to read the votes. Costs no epsilon, but more in a ledger of renyi accounting if the votes are pure; there none check by default. Otherwise as many as make the measure exact to 3 points, at most a tenth, and none if that is too few; 0 turns it off. Under add-remove, where n is private, none by default.
      representation: for raw records in place of embeddings: a file of rknn_jax/representations, learned from the public images alone, or a function of your own that treats each record by itself, as package.module:function. It is applied where the records are read.
      standardize: center and scale each column of the features by its mean and standard deviation among the public rows. Use it if columns have different units.
      metric: of the embeddings.
      rounds: number T of rounds of Algorithm 1, which share epsilon: each later round asks in features that the labels of the last one teach, and has more of it. More than one needs --out, where the folder round-1 has what the first round released, with a statement of its own. Several rounds are seldom worth their share of epsilon: where classes are linear and many records vote. The default is one.
      smoothing: auto labels each public row by what all noisy votes tell about rows like it; the votes themselves choose how far rows share them. Without votes, as with permute_and_flip, each query's label stands for its votes; with another labeler, similar rows share labels. none gives each row the arg max of its query, or what the labeler says of the row.
      classes: classes of the labels.
      infer_classes: read the classes from the private labels. Epsilon does not cover what that shows, and the statement says so.
      allow_large_epsilon: allow an epsilon above 50, which protects nobody.
      spending: what may be spent in all.
      out: folder for the results. The default is a new one under runs/.
      engine: local reads shard after shard on this machine; ray counts them on a Ray cluster, or on one that is started here.
      address: of the Ray cluster.
      seed: of the clustering, which is public. No option fixes the noise.
      responsible: who answers for the release.
      dry_run: tell what error to expect. Reads no private labels, spends nothing, draws nothing.
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

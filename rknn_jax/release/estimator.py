"""Scikit-learn estimator of `rknn label`: private rows of a table label public ones.

Arrays or data frames take the place of files.

    labeler = ReverseKNNLabeler(epsilon=1, classes=[0, 1], ledger="clinic.ledger.jsonl")
    pipeline = make_pipeline(StandardScaler(), labeler)
    pipeline.fit(public_X)
    # A release: the ledger is charged, noise is drawn.
    labels = pipeline[-1].label(pipeline[:-1].transform(private_X), private_y)
    pipeline.predict(new_X)

It is one release by `rknn_jax.release.label`, with the same ledger, noise and messages. Neighbors
are found by distance, so scale all columns alike, by `standardize=True` or in the pipeline. Fit the
earlier steps on public rows alone, as `pipeline.fit` does here. Epsilon does not cover what a
scaler learns from private rows.
"""

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from rknn_jax._internal.arithmetic import quiet
from rknn_jax._internal.option_names import option_names
from rknn_jax._internal.private_warnings import warn_owner
from rknn_jax._internal.ranges import LEAST_EPSILON
from rknn_jax.neighbors import LARGEST, Metric, nearest, usable_rows
from rknn_jax.privacy import ledger_index
from rknn_jax.privacy.filters import Accounting
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import Guarantee, Relation
from rknn_jax.privacy.responsible import Responsible
from rknn_jax.privacy.roles import Roles
from rknn_jax.privacy.statement import as_json
from rknn_jax.question import Before
from rknn_jax.records import column_types, features, frames, public_values
from rknn_jax.records.classes import Classes
from rknn_jax.records.persons import find_columns
from rknn_jax.release import choosing, inputs, planning, rounds
from rknn_jax.release import label as job
from rknn_jax.release.accounts import LABELS_LOST, open_ledger, spend_stands
from rknn_jax.release.encoding import Scaling
from rknn_jax.release.preview import Expected
from rknn_jax.release.settings import Settings
from rknn_jax.settings import NamedColumns, Spending

_RELEASED = (
    "classes_",
    "labels_",
    "label_distributions_",
    "confidence_",
    "guarantee_",
    "not_covered_",
    "card_",
    "measured_",
    "concerns_",
    "_space",
)
_CHOICES = {
    name: get_args(Settings.__annotations__[name]) for name in ("relation", "metric", "smoothing")
}


_PARAMETERS = {
    "neighbors": "n_neighbors",
    "queries": "n_queries",
    "seed": "random_state",
    "private": "X",
    "public": "X",
    "private_labels": "y",
}
"""Parameters of other names than their fields in `Settings`."""


def _as_parameter(field: str) -> str:
    """Return the name of a field among the parameters of the estimator."""
    return _PARAMETERS.get(field, field)


def _once_labelled(method: Callable[..., Any]) -> property:
    """Return a property that holds the method once labels were released.

    Before, it raises NotFittedError, so that `hasattr` returns False.
    """

    def bound(self: "ReverseKNNLabeler") -> MethodType:
        if not hasattr(self, "labels_"):
            raise NotFittedError(
                f"This {type(self).__name__} has released no labels yet; call 'fit' and then "
                "'label' first."
            )
        return MethodType(method, self)

    return property(bound, doc=method.__doc__)


class ReverseKNNLabeler(BaseEstimator):  # type: ignore[misc]
    """Label public rows with private ones, differentially private for each private record.

    `fit` takes public rows and needs no labels. `label` is the release: it charges the ledger on
    disk, then draws exact integer noise on the operating system's entropy, which no seed fixes.
    Everything after that is post-processing and costs nothing. The object never keeps a private
    row, label or count. A pickle of it holds public rows and released values, and the names of its
    parameters, such as the path of the ledger and the column of persons.

    Args:
      epsilon: Privacy cost ε of one release. Defaults to 1.
      delta: Privacy parameter δ, for `mechanism="gaussian"`. Defaults to 0, pure differential
        privacy.
      labeler: Labeler of the release: `rknn`, reverse k-NN labeling; `prototypes`,
        `public_prototypes` or `least_squares`, which take one noisy sum of the private rows; or
        `auto`, which chooses by n, epsilon and the number of classes. `n_queries`, `n_neighbors`,
        `records_per_person`, `labels_per_record`, `metric` and `random_state` are settings of
        `rknn`. Defaults to
        `rknn`.
      n_queries: Number of queries s that the public rows are clustered into. Defaults to None,
        which chooses it from n, epsilon and the classes.
      n_neighbors: Number of queries k that each private record votes for. Defaults to 1.
      person_name: Name of the persons that `person` tells apart, such as `patient`. The ledger
        keeps it and pays for no other persons, since a patient with many visits loses more than
        epsilon a visit. Give the name of the column if `rknn label --person` uses the same ledger.
        Defaults to None, the name of a Series or of its only column. Arrays and lists have no name:
        then nothing tells patients from visits, and the ledger pays for persons without a name
        alone.
      records_per_person: Number m of a person's records that are drawn, if `label` is told whose
        they are. Defaults to None: all records of a person share one vote.
      labels_per_record: Most labels r of a record that count, if a record may have several. Each
        public row then gets a set of classes, each of which at least half of the records near it
        have. The noise is r + 1 times that of one label. Defaults to None, one label a record.
      check_share: Share of the private rows that do not vote, but measure how many labels are right
        and choose among ways to read the votes, at no epsilon. 0 turns it off. Defaults to None: as
        many as make the measure exact to 3 points, at most 10.5%, and none if that is too few, or
        if the ledger has `accounting="renyi"` and the votes are pure, for which it would pay more.
      rounds: Number T of rounds of Algorithm 1, which share epsilon: each later round asks in
        features that the labels of the last one teach, and has more of it. Each charges the ledger.
        Defaults to 1.
      mechanism: Noise mechanism of `rknn`: `discrete_laplace`, `permute_and_flip` for fewer wrong
        labels but no counts, `one_to_one` where each query is another class, or `gaussian` for many
        neighbors. Of `prototypes` and `least_squares`: `discrete_laplace` or `gaussian`. Defaults
        to None: `gaussian` for these two if there is a delta, `permute_and_flip` for
        `public_prototypes`, and otherwise `discrete_laplace`.
      relation: Neighboring relation: `replace-one` takes the number of private records as public;
        `add-remove` hides it, and needs `n_queries`. Defaults to `replace-one`.
      standardize: Flag to center and scale each column by its mean and standard deviation among the
        public rows. Defaults to False.
      metric: Metric, `sqeuclidean` or `cosine`. Defaults to `sqeuclidean`.
      smoothing: Smoothing: `auto` labels each public row by what all noisy votes tell about rows
        like it; without votes, similar rows share labels. `none` gives each row the arg max of its
        query. Defaults to `auto`.
      classes: Array-like of all classes that a label can be, which is public. Required by `label`,
        unless the classes are inferred. Defaults to None.
      infer_classes: Flag to read the classes off the private labels, which epsilon does not cover.
        `not_covered_` and `card_` say so. Defaults to False.
      allow_large_epsilon: Flag to allow an epsilon above 50, which protects nobody. Defaults to
        False.
      ledger: Path of the file that keeps the budget of the private data set, made at its first
        release. Required by `label` and `preview`. The ledger knows the data set by its columns at
        the first use, so keep the earlier steps of the pipeline. After another scaler, the ledger
        refuses the same records rather than take them for new ones. Defaults to None.
      budget: Total epsilon that may be spent on this data set, set at its first release. Defaults
        to None, that release's epsilon.
      budget_delta: Total delta that may be spent on this data set, set at its first release.
        Defaults to None, that release's delta.
      accounting: Rule of a ledger that does not exist yet: `sum` adds epsilons up, `renyi` lets
        many small releases cost less than their sum and needs a `budget_delta`. Defaults to None,
        `sum`.
      patience: Time to wait for another process that holds the ledger, in seconds. Defaults to 60.
      random_state: Seed or generator of the clustering, which is public. Defaults to 0.
      controller: Public words for `card_` that name who answers for the release. Defaults to "",
        not stated.
      contact: Address for questions, in `card_`. Defaults to "".
      purpose: Purpose of the release, in `card_`. Defaults to "".
      justification: Why this epsilon, in `card_`. Defaults to "".

    Attributes:
      n_features_in_: Number of features f.
      feature_names_in_: Names of the columns, if X has names.
      X_: float32 `[m, f]`, the public rows.
      classes_: Sorted classes, the columns of `label_distributions_`; for sets, the classes in the
        given order.
      labels_: `[m]`, the released class of each public row; for sets, an indicator matrix of the
        classes of each row, int `[m, num_classes]`.
      label_distributions_: float32 `[m, num_classes]`, soft labels.
      confidence_: float32 `[m]`, the probability that noise did not change the label of the row's
        query, or the least stable class of its set; NaN with `permute_and_flip`.
      guarantee_: `rknn_jax.privacy.guarantee.Guarantee` of all of these together.
      not_covered_: Sentences on the risks that the guarantee does not cover.
      card_: Statement to hand over, as `privacy.json` of `rknn label`.
      measured_: Agreement of the labels with private rows that did not vote, with a 95% interval:
        a `rknn_jax.answers.measured.Measured`. None if there are too few rows to measure it, or
        `check_share` is 0.
      concerns_: Reasons to doubt the labels, each a `rknn_jax.answers.concern.Concern` with a
        number and a remedy. They are read off the noisy counts, and cost nothing.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "epsilon": [Interval(Real, LEAST_EPSILON, None, closed="left")],
        "delta": [Interval(Real, 0, 1, closed="left")],
        "n_queries": [Interval(Integral, 1, None, closed="left"), None],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "person_name": [str, None],
        "records_per_person": [Interval(Integral, 1, None, closed="left"), None],
        "labels_per_record": [Interval(Integral, 1, None, closed="left"), None],
        "rounds": [Interval(Integral, 1, None, closed="left")],
        "check_share": [Interval(Real, 0, 0.5, closed="both"), None],
        "labeler": [str],
        "mechanism": [str, None],
        "standardize": ["boolean"],
        **{name: [StrOptions(set(choices))] for name, choices in _CHOICES.items()},
        "classes": ["array-like", None],
        "infer_classes": ["boolean"],
        "allow_large_epsilon": ["boolean"],
        "ledger": [str, os.PathLike, None],
        "budget": [Interval(Real, 0, None, closed="neither"), None],
        "budget_delta": [Interval(Real, 0, 1, closed="left"), None],
        "accounting": [StrOptions(set(get_args(Accounting))), None],
        "patience": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "controller": [str],
        "contact": [str],
        "purpose": [str],
        "justification": [str],
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 0.0,
        labeler: str = "rknn",
        n_queries: int | None = None,
        n_neighbors: int = 1,
        person_name: str | None = None,
        records_per_person: int | None = None,
        labels_per_record: int | None = None,
        check_share: float | None = None,
        rounds: int = 1,
        mechanism: str | None = None,
        relation: Relation = "replace-one",
        standardize: bool = False,
        metric: Metric = "sqeuclidean",
        smoothing: str = "auto",
        classes: ArrayLike | None = None,
        infer_classes: bool = False,
        allow_large_epsilon: bool = False,
        ledger: str | os.PathLike[str] | None = None,
        budget: float | None = None,
        budget_delta: float | None = None,
        accounting: Accounting | None = None,
        patience: float = 60.0,
        random_state: int | np.random.RandomState | None = 0,
        controller: str = "",
        contact: str = "",
        purpose: str = "",
        justification: str = "",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.labeler = labeler
        self.n_queries = n_queries
        self.n_neighbors = n_neighbors
        self.person_name = person_name
        self.records_per_person = records_per_person
        self.labels_per_record = labels_per_record
        self.check_share = check_share
        self.rounds = rounds
        self.mechanism = mechanism
        self.relation = relation
        self.standardize = standardize
        self.metric = metric
        self.smoothing = smoothing
        self.classes = classes
        self.infer_classes = infer_classes
        self.allow_large_epsilon = allow_large_epsilon
        self.ledger = ledger
        self.budget = budget
        self.budget_delta = budget_delta
        self.accounting = accounting
        self.patience = patience
        self.random_state = random_state
        self.controller = controller
        self.contact = contact
        self.purpose = purpose
        self.justification = justification

    @option_names(_as_parameter)
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> "ReverseKNNLabeler":
        """Take the public rows, and forget earlier releases.

        `preview` and `label` cluster the rows, because the number of clusters depends on the number
        of private records.

        Args:
          X: `[m, f]`, public.
          y: Ignored.

        Raises:
          ValueError: If X is no array or frame of finite numbers alone, or has an index or an id.
        """
        # First, so that rows that are refused leave no labels of others.
        for name in ("X_", *_RELEASED):
            self.__dict__.pop(name, None)
        self._validate_params()
        column_types.refuse_unread(X=X)
        column_types.refuse_columns(X)
        # A copy: a program may read private rows into the same array later.
        rows = validate_data(self, frames.unmasked(X), dtype=np.float32, copy=True)
        names = getattr(self, "feature_names_in_", ())
        remedy = "leave it out of X, or pass X.to_numpy() if it is a feature"
        features.refuse_unnamed(names, remedy)
        public_values.refuse_large(rows, names, "the public rows", LARGEST)
        public_values.refuse_small(rows, "the public rows", lambda: [X])
        columns = rows.T[: len(names)]
        public_values.refuse_ids(columns, names, "the public rows", remedy)
        for sentence in public_values.doubted(columns, names, remedy):
            warnings.warn(f"Columns {sentence}.", stacklevel=3)
        if found := find_columns(names):
            warnings.warn(
                f"Columns {found} are named as if they told whose a record is, and are features; "
                "if one does, leave it out of X, and pass it as person to label.",
                stacklevel=3,
            )
        given = self.random_state
        self._seed = int(
            given if isinstance(given, Integral) else check_random_state(given).randint(2**31 - 1)
        )
        self.X_ = rows
        return self

    @option_names(_as_parameter)
    def preview(self, X: ArrayLike, person: ArrayLike | None = None) -> Expected:
        """Return the error to expect of `label`.

        It spends nothing, draws nothing and reads no label.

        Args:
          X: `[n, f]`, private. The result shows their number n alone, and under `add-remove` not
            even that.
          person: Numbers or text `[n]` that tell whose a record is, as for `label`. Defaults to
            None.

        Raises:
          LedgerError: If the ledger belongs to another data set or is damaged.
          ValueError: If the input or the parameters cannot be used.
        """
        X = self._private(X)
        settings, plan = self._first(X, person)
        open_ledger(settings, rounds.costs(rounds.of(settings), plan), fingerprint(X))
        return planning.expect(plan)

    @option_names(_as_parameter)
    def costs(self, X: ArrayLike, person: ArrayLike | None = None) -> list[Guarantee]:
        """Return what `label` would charge for each of its rounds; see `cost`."""
        settings, plan = self._first(self._private(X), person)
        return rounds.costs(rounds.of(settings), plan)

    @option_names(_as_parameter)
    def cost(self, X: ArrayLike, person: ArrayLike | None = None) -> Guarantee:
        """Return what `label` would charge, and its guarantee. It costs nothing.

        The guarantee of several rounds may be lower than the sum that they are charged.

        Args:
          X: `[n, f]`, private. The result depends on the number of its rows at most.
          person: As for `label`. Defaults to None.

        Raises:
          LedgerError: If the ledger is damaged, or has another rule than `accounting`.
          ValueError: If the input or the parameters cannot be used.
        """
        settings, plan = self._first(self._private(X), person)
        return plan.cost if self.rounds == 1 else rounds.cost(rounds.of(settings), plan)

    @option_names(_as_parameter)
    def label(self, X: ArrayLike, y: ArrayLike, person: ArrayLike | None = None) -> np.ndarray:
        """Release labels for the public rows.

        It charges the ledger, draws the noise, counts the votes and takes the arg max.

        Guarantee: `guarantee_`, for `labels_` and all other attributes together. Another call is
        another release, and is charged again.

        Args:
          X: `[n, f]`, private.
          y: `[n]`, private. A record without a label casts no vote. None, NaN, pandas' NA and ''
            mark it. So does -1 or any other negative number, as in `sklearn.semi_supervised`,
            unless `classes` names it. A record whose label is none of the classes, or whose row
            holds NaN or infinity, casts no vote either. An error would reveal that record. A
            warning gives the number of such records, for the owner's eyes alone. With
            `labels_per_record`, y is an indicator matrix `[n, num_classes]` in the order of
            `classes`, or a list of classes for each record; a record of no class counts as such.
          person: Numbers or text `[n]` that tell whose a record is, private. Epsilon then protects
            a person with all records, and n is the number of persons. A record that names no person
            (None, NaN, '') casts no vote. Floats are exact below 2**53, and larger ones name no
            person: pandas makes floats of whole numbers if one is missing, so keep large numbers as
            text or `Int64`. Bools, decimals and floats of less than 64 bits are refused. The ledger
            keeps the name of a Series; see `person_name`. Defaults to None: epsilon protects a
            record.

        Returns:
          `labels_`, `[m]`, or `[m, num_classes]` for sets.

        Raises:
          LedgerError: If the ledger does not allow the release; nothing was drawn then. The error
            is a `BudgetExceededError` if not enough is left.
          ValueError: If the input or the parameters cannot be used; nothing was spent then.
        """
        column_types.refuse_unread(y=y)
        column_types.refuse_labels(y)
        frames.check_aligned(X, y=y, person=person)
        X = self._private(X)
        several = self.labels_per_record is not None
        if self.classes is None and (several or not self.infer_classes):
            raise ValueError(
                "Expected classes, got classes=None; name all classes, or set infer_classes=True "
                "to read them off the private labels, one a record, which epsilon does not cover."
            )
        if self.labels_per_record is None:
            labels, values = frames.single(y, self.classes)
        else:
            assert self.classes is not None
            labels, values = frames.several(y, self.classes)
        check_consistent_length(X, labels)
        named = _named(values, "inferred" if self.classes is None else "given")
        settings, data = self._asked(X, labels, named, person)
        before: Before | None = None
        with (
            spend_stands(settings.ledger_path, LABELS_LOST),
            quiet(),
        ):
            chosen: Roles | None = None
            for number in range(self.rounds):
                if number == 1:  # the ledger is there, and others may raise its budget
                    spending = replace(settings.spending, budget=None, budget_delta=None)
                    settings = replace(settings, spending=spending)
                left = rounds.of(settings)[number:]
                plan = planning.plan(left[0], data, before, chosen)
                if not number:
                    if plan.ledger is None and ledger_index.known_ledgers():
                        warnings.warn(ledger_index.notice(settings.ledger_path), stacklevel=3)
                    plan = rounds.checked(settings, plan)
                    chosen = None if plan.checkers is None else plan.checkers.roles
                if self.rounds > 1:
                    rounds.check_budget(left, plan)
                counted = job.count(plan)
                done = job.draw(plan, counted, num_rounds=self.rounds)
                before = Before(
                    done.probabilities,
                    done.answers.guarantee,
                    not_covered=tuple(done.card["not_covered"]),
                )
            sets = done.found.sets
            released: np.ndarray = (
                values[done.labels] if sets is None else sets.present.astype(np.int64)
            )
            found = {
                "classes_": values,
                "labels_": released,
                "label_distributions_": done.probabilities,
                "confidence_": done.confidence,
                "guarantee_": done.answers.guarantee,
                "not_covered_": done.card["not_covered"],
                "card_": json.loads(as_json(done.card)),
                "measured_": done.measured,
                "concerns_": list(done.concerns),
                "_space": (self.standardize, self.metric),
            }
            # In one step, so that no interrupt leaves labels beside another release's statement.
            self.__dict__.update(found)
        # After the release, so that a warning that is turned into an error cannot prevent it.
        if counted.ignored:
            words = f"{plan.question.labeler.ignored}; tell nobody how many."
            warn_owner(f"{counted.ignored} {words}", stacklevel=3)
        return released.copy()

    @_once_labelled
    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the released label of the nearest public row, `[n]`, or its set of classes.

        It is post-processing, and costs nothing.

        Args:
          X: `[n, f]`, of anyone who may see the labels.
        """
        labels: np.ndarray = self.labels_[self._nearest(X)]
        return labels

    @_once_labelled
    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the released soft label of the nearest public row, float32 `[n, num_classes]`.

        It is post-processing, and costs nothing.

        Args:
          X: `[n, f]`, of anyone who may see the labels.
        """
        distributions: np.ndarray = self.label_distributions_[self._nearest(X)]
        return distributions

    @property
    def score(self) -> Any:
        """Refuse to score: an accuracy on private labels is a release that no ledger knows.

        scikit-learn takes an estimator whose `score` raises AttributeError for one without it.
        """
        raise AttributeError(
            f"{type(self).__name__} has no score, because an accuracy on private labels is a "
            "release without noise. Compare settings with preview(X), which costs nothing; judge a "
            "release by concerns_ and confidence_, or by predict on public rows whose labels are "
            "known."
        )

    def _nearest(self, X: ArrayLike) -> np.ndarray:
        rows = self._checked(X)
        public = self.X_
        standardize, metric = self._space  # of the release, whatever is set for the next one
        if standardize:
            scaling = Scaling.learned(public)
            rows, public = scaling(rows), scaling(public)
        return np.asarray(nearest(rows, public, 1, metric=metric)[:, 0])

    def _checked(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self, "X_")
        column_types.refuse_unread(X=X)
        checked: np.ndarray = validate_data(self, frames.unmasked(X), dtype=np.float32, reset=False)
        return checked

    def _assumed_classes(self) -> Classes:
        """Return the classes, or an assumed number of them if they are to be inferred."""
        if self.classes is None:
            return Classes(inputs.ASSUMED_CLASSES, source="assumed")
        if self.labels_per_record is not None:
            return _named(np.asarray(self.classes))
        return _named(frames.sorted_classes(self.classes))

    def _private(self, X: ArrayLike) -> np.ndarray:
        """Return private rows float32 `[n, f]`; a row that cannot be used is NaN.

        Only the type and shape of an array can be wrong. What a cell holds decides about its own
        row alone, and no error quotes a row.
        """
        check_is_fitted(self, "X_")
        column_types.refuse_unread(X=X)
        column_types.refuse_private_columns(X)
        if issparse(X):
            validate_data(self, X, reset=False)  # refuses them by type
        if hasattr(X, "columns"):
            validate_data(self, X, reset=False, skip_check_array=True)  # names and number
        rows = frames.rows_of(X, self.n_features_in_)
        if not hasattr(X, "columns"):
            validate_data(self, rows, reset=False, skip_check_array=True)
        if not len(rows) and self.relation == "replace-one":
            raise ValueError(
                "Expected rows [n > 0, f] in X, got n=0, which relation='replace-one' takes as "
                "public; pass one row a record, or hide n by relation='add-remove'."
            )
        with np.errstate(all="ignore"):  # a cell that overflows is its row's own
            return usable_rows(rows.astype(np.float64))

    def _first(self, X: np.ndarray, person: ArrayLike | None) -> tuple[Settings, planning.Plan]:
        """Return the settings of a dry run, and the plan of its first round."""
        settings, data = self._asked(X, None, self._assumed_classes(), person)
        plan = planning.plan(rounds.of(settings)[0], data)
        return settings, rounds.checked(settings, plan)

    def _asked(
        self,
        X: np.ndarray,
        labels: np.ndarray | None,
        classes: Classes,
        person: ArrayLike | None,
    ) -> tuple[Settings, inputs.Data]:
        """Return the settings and the input of a release, or of a dry run without labels."""
        self._validate_params()
        column_types.refuse_unread(person=person)
        column_types.refuse_persons(person)
        persons = None if person is None else frames.column(person)
        check_consistent_length(X, persons)
        if persons is None and self.person_name is not None:
            raise ValueError(
                f"Expected person to tell whose a record is, got person_name={self.person_name!r} "
                "without one; pass person, or leave person_name out to protect records."
            )
        if self.ledger is None:
            raise ValueError(
                "Expected ledger to name the file that keeps the budget of the private data set, "
                "got ledger=None; name one, such as "
                "ledger='clinic.ledger.jsonl', and the same one for every release on these records."
            )
        settings = Settings(
            public="the public rows",
            private="the private rows",
            epsilon=self.epsilon,
            queries=self.n_queries,
            neighbors=self.n_neighbors,
            columns=NamedColumns(
                person=None if persons is None else frames.name_of(person, self.person_name)
            ),
            records_per_person=self.records_per_person,
            labels_per_record=self.labels_per_record,
            check_share=self.check_share,
            spending=Spending(
                self.budget, self.budget_delta, self.accounting, Path(self.ledger), self.patience
            ),
            seed=self._seed,
            delta=self.delta,
            allow_large_epsilon=self.allow_large_epsilon,
            responsible=Responsible(
                self.controller, self.contact, self.purpose, self.justification
            ),
            dry_run=labels is None,
            labeler=self.labeler,
            mechanism=self.mechanism,
            standardize=self.standardize,
            rounds=self.rounds,
            **{name: getattr(self, name) for name in _CHOICES},
        )
        inputs.check(settings)
        choosing.check(settings)
        data = inputs.data_of(self.X_, X, labels, classes=classes, persons=persons)
        if self.standardize:
            data = inputs.standardized(data)
        return settings, data


def _named(values: np.ndarray, source: Any = "given") -> Classes:
    # Their order is sorted, which no number among the labels knows of.
    return Classes(len(values), tuple(map(str, values)), source, counts_from_0=False)

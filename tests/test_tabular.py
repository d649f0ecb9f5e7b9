import datetime
import decimal
import gc
import inspect
import json
import pickle
import tempfile
import weakref
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import scipy.special
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from rknn_jax import answers, mechanisms
from rknn_jax.privacy import exact_noise
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerMismatchError
from rknn_jax.release.estimator import ReverseKNNLabeler, job
from rknn_jax.release.settings import Settings
from rknn_jax.settings import by_option
from tests.test_cli import arrays, blobs, contents

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tabular.ipynb"
ALMOST_NO_NOISE = 1e6  # a draw other than 0 has probability below exp(-1e5): counts come out exact
NUM_PRIVATE = 97  # no other size here


class Labelled(ReverseKNNLabeler):
    """Releases as it is fitted, so that scikit-learn's checks meet `predict` too."""

    def fit(self, X, y=None):
        super().fit(X)
        if y is not None and len(np.unique(y)) > 1:
            with tempfile.TemporaryDirectory() as folder:
                kept = self.ledger
                self.ledger = Path(folder, "ledger.jsonl")
                self.label(self.X_ + np.float32(1e-3), y)
                self.ledger = kept
        return self


# what is ours in scikit-learn's checks of predictions; others hold whatever is predicted
REACH_PREDICT = (
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
)


def scikit_learns_checks():
    """Return all checks of an estimator that has not labeled, which is quick, and of one that
    has; most of those are slow.
    """
    cases = [
        pytest.param(*case, id=f"unlabelled-{name_of(case[1])}")
        for case in estimator_checks_generator(ReverseKNNLabeler())
    ]
    for estimator, check in estimator_checks_generator(
        Labelled(
            epsilon=ALMOST_NO_NOISE,
            allow_large_epsilon=True,
            n_queries=3,
            infer_classes=True,
            smoothing="none",
        )
    ):
        marks = [] if name_of(check) in REACH_PREDICT else [pytest.mark.slow]
        cases.append(pytest.param(estimator, check, id=f"labeled-{name_of(check)}", marks=marks))
    return cases


def name_of(check):
    return getattr(check, "func", check).__name__


@pytest.mark.parametrize(("estimator", "check"), scikit_learns_checks())
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@pytest.fixture
def table():
    public, _ = blobs(60, 0)
    return public, *blobs(NUM_PRIVATE, 1)


@pytest.fixture
def make(tmp_path):
    def make(**changes):
        large = {"allow_large_epsilon": changes.get("epsilon") == ALMOST_NO_NOISE}
        given = (
            {"n_queries": 4, "classes": [0, 1, 2], "ledger": tmp_path / "ledger.jsonl"}
            | large
            | changes
        )
        return ReverseKNNLabeler(**given, infer_classes=given["classes"] is None)

    return make


@pytest.fixture
def known_noise(monkeypatch):
    """Draw the same noise for every release of this test, and return the scale of each."""
    drawn = []

    def noisy(counts, scale):
        drawn.append(scale)
        return counts + np.round(scale * np.random.default_rng(0).normal(size=counts.shape)).astype(
            np.int64
        )

    monkeypatch.setattr(exact_noise, "discrete_laplace", noisy)
    monkeypatch.setattr(exact_noise, "discrete_gaussian", noisy)
    monkeypatch.setattr(
        exact_noise,
        "permute_and_flip",
        lambda counts, scale: noisy(counts, scale).argmax(axis=1).astype(np.int32),
    )
    return drawn


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.5},
        {"epsilon": 0.5, "mechanism": "permute_and_flip", "relation": "add-remove", "queries": 5},
        {
            "epsilon": 2,
            "delta": 1e-5,
            "mechanism": "gaussian",
            "neighbors": 2,
            "metric": "cosine",
            "smoothing": "none",
            "seed": 3,
        },
    ],
    ids=["defaults", "permute_and_flip", "gaussian"],
)
def test_it_releases_what_rknn_label_releases(table, rknn, known_noise, tmp_path, changes):
    public, private, labels = table
    names = np.array(["a", "b", "c"])
    np.savez(tmp_path / "P.npz", embeddings=public)
    np.savez(tmp_path / "R.npz", embeddings=private, labels=names[labels])
    flags = [word for name, value in changes.items() for word in (f"--{name}", value)]
    done = rknn(
        "label",
        "--public",
        "P.npz",
        "--private",
        "R.npz",
        "--classes",
        "a,b,c",
        "--out",
        "new",
        "--json",
        *flags,
    )
    assert done.status == 0, done.err
    rows = arrays(tmp_path / "new" / "labels.npz")

    renamed = {"queries": "n_queries", "neighbors": "n_neighbors", "seed": "random_state"}
    estimator = ReverseKNNLabeler(
        **{renamed.get(name, name): value for name, value in changes.items()},
        classes=names,
        ledger="mine.jsonl",
    )
    np.testing.assert_array_equal(
        estimator.fit(public).label(private, names[labels]), names[rows["label"]]
    )
    np.testing.assert_array_equal(estimator.label_distributions_, rows["probability"])
    np.testing.assert_array_equal(estimator.confidence_, rows["confidence"])
    assert known_noise[0] == known_noise[1]
    assert estimator.guarantee_.asdict() == done.json["guarantee"]
    assert estimator.not_covered_ == done.json["not_covered"]
    assert {name for name in estimator.card_ if estimator.card_[name] != done.json[name]} <= {
        "ledger",
        "release",
        "time",
    }


@pytest.mark.long
def test_without_much_noise_it_says_what_rknn_label_says(table, rknn, make, tmp_path):
    public, private, labels = table
    np.savez(tmp_path / "P.npz", embeddings=public)
    np.savez(tmp_path / "R.npz", embeddings=private, labels=labels)
    files = ("--public", "P.npz", "--private", "R.npz", "--out", "new", "--ledger", "theirs.jsonl")
    assert (
        rknn(
            "label",
            *files,
            "--epsilon",
            ALMOST_NO_NOISE,
            "--allow-large-epsilon",
            "--classes",
            3,
            "--queries",
            4,
        ).status
        == 0
    )
    mine = make(epsilon=ALMOST_NO_NOISE).fit(public).label(private, labels)
    np.testing.assert_array_equal(mine, arrays(tmp_path / "new" / "labels.npz")["label"])
    np.testing.assert_array_equal(mine, blobs(60, 0)[1], "far-apart blobs are told apart")


def test_two_releases_share_the_clustering_and_not_the_noise(table, make):
    public, private, labels = table
    estimator = make(epsilon=0.5, budget=1, smoothing="none").fit(public)
    first, second = (
        estimator.label(private, labels) is None or estimator.label_distributions_ for _ in range(2)
    )
    assert (first != second).any()  # 12 cells at scale 4 agree with probability 1e-12
    assert len(np.unique(np.hstack([first, second]), axis=0)) <= 4


def test_the_ledger_is_charged_once_before_the_noise_and_refuses_what_overspends(
    table, make, monkeypatch
):
    public, private, labels = table
    estimator = make(epsilon=0.6, budget=1).fit(public)
    spent = []
    draw = exact_noise.discrete_laplace
    monkeypatch.setattr(
        exact_noise,
        "discrete_laplace",
        lambda *a: spent.append(float(Ledger.open(estimator.ledger).spent.epsilon)) or draw(*a),
    )
    estimator.label(private, labels)
    assert spent == [0.6]
    assert [entry.kind for entry in Ledger.open(estimator.ledger).entries()] == ["create", "spend"]
    assert Ledger.open(estimator.ledger).entries()[1].guarantee == estimator.guarantee_

    before = vars(estimator).copy()
    ledger = estimator.ledger.read_bytes()
    with pytest.raises(
        BudgetExceededError, match=r"rknn budget raise .*ledger.jsonl --epsilon 1.2 --reason"
    ):
        estimator.label(private, labels)
    with pytest.raises(LedgerMismatchError, match="is the ledger of"):
        estimator.set_params(epsilon=0.1).label(private[1:], labels[1:])
    estimator.set_params(epsilon=before["epsilon"])
    assert spent == [0.6], "refused, and yet drawn"
    assert estimator.ledger.read_bytes() == ledger
    assert all(vars(estimator)[name] is before[name] for name in before)


def test_rounds_that_a_budget_does_not_allow_are_refused_before_the_first(table, make):
    public, private, labels = table
    estimator = make(epsilon=0.6, budget=1).fit(public)
    estimator.label(private, labels)
    with pytest.raises(BudgetExceededError):  # a third of it would fit
        estimator.set_params(rounds=2).label(private, labels)
    assert Ledger.open(estimator.ledger).num_spends == 1


def test_a_spend_stands_where_the_labels_could_not_be_returned(table, make, monkeypatch):
    public, private, labels = table
    estimator = make().fit(public)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(answers, "decode", fail)
    with pytest.raises(MemoryError) as error:
        estimator.label(private, labels)
    assert "did not reach the caller, and the spend stands" in error.value.__notes__[0]
    assert Ledger.open(estimator.ledger).spent.epsilon == 1
    assert not hasattr(estimator, "labels_")


@pytest.mark.long
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_program_with_an_arithmetic_of_its_own_loses_no_release(table, make, rounds):
    """Underflow is an error in it, and its decimals have three digits and may not be rounded."""
    public, private, labels = table
    estimator = make(epsilon=40, budget=40, rounds=rounds, n_queries=3).fit(public[:12])
    own = decimal.Context(prec=3, traps=[decimal.Inexact])
    with np.errstate(all="raise"), scipy.special.errstate(all="raise"), decimal.localcontext(own):
        assert len(estimator.label(private, labels)) == 12
    assert estimator.guarantee_.epsilon == 40


def test_the_guarantee_is_the_mechanisms(table, make):
    public, private, labels = table
    estimator = make(epsilon=2, n_neighbors=3, relation="add-remove").fit(public)
    estimator.label(private, labels)
    mechanism = mechanisms.make(
        "discrete_laplace",
        epsilon=2,
        num_queries=4,
        num_classes=3,
        num_neighbors=3,
        relation="add-remove",
    )
    assert estimator.guarantee_ == mechanism.release_guarantee(NUM_PRIVATE)
    assert estimator.guarantee_.sampler == "release"
    assert estimator.card_["statement"] == str(estimator.guarantee_)
    assert json.loads(json.dumps(estimator.card_)) == estimator.card_, "as privacy.json"


def test_the_card_tells_who_answers_for_it_and_why(table, make):
    public, private, labels = table
    words = {"controller": "A", "contact": "B", "purpose": "C", "justification": "D"}
    estimator = make(**words).fit(public)
    estimator.label(private, labels)
    assert {name: estimator.card_[name] for name in words} == words


@pytest.mark.long
def test_nothing_private_stays_in_the_estimator(table, make):
    public, private, labels = table
    names = np.array(["north", "south", "west"])
    estimator = make(classes=names, relation="add-remove", epsilon=ALMOST_NO_NOISE).fit(public)
    private = private.copy()
    answers = names[labels]
    records = [weakref.ref(private), weakref.ref(answers)]
    estimator.label(private, answers)
    said = pickle.dumps(estimator)
    assert not [
        i
        for i in range(NUM_PRIVATE)
        for kind in (np.float32, np.float64)
        if private[i].astype(kind).tobytes() in said
    ]
    assert not [
        kind
        for kind in (np.int32, np.int64, names.dtype)
        if (answers if kind == names.dtype else labels.astype(kind)).tobytes() in said
    ]
    assert public[0].tobytes() in said, "that is how a row would look"
    assert not [array for array in held(estimator) if NUM_PRIVATE in array.shape]
    assert NUM_PRIVATE not in [estimator.card_[name] for name in estimator.card_], (
        "n is private under add-remove"
    )
    del private, answers
    gc.collect()
    assert all(record() is None for record in records), "something still holds the private records"
    again = pickle.loads(said)
    np.testing.assert_array_equal(again.predict(public), estimator.labels_)
    assert again.guarantee_ == estimator.guarantee_


def test_the_estimator_keeps_what_was_released_alone(table, make):
    public, private, labels = table
    estimator = make(classes=np.arange(3), check_share=0).fit(public)
    before = {*vars(estimator)}
    estimator.label(private, labels)
    assert {*vars(estimator)} - before == {
        *("classes_", "labels_", "label_distributions_", "confidence_"),
        *("guarantee_", "not_covered_", "card_", "measured_", "concerns_", "_space"),
    }


def held(value, seen=None):
    """Yield every array that can be reached from a value."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        yield value
    parts = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else getattr(value, "__dict__", {}).values()
    )
    for part in parts:
        yield from held(part, seen)


def test_other_private_records_with_the_same_votes_change_nothing(
    table, make, tmp_path, known_noise
):
    public, private, labels = table
    ones = [make(ledger=tmp_path / name, classes=None).fit(public) for name in ("one", "two")]
    order = np.random.default_rng(0).permutation(NUM_PRIVATE)
    ones[0].label(private, labels)
    ones[1].label(private[order] + np.float32(1e-3), labels[order])
    first, second = (vars(one) for one in ones)
    for name in ("classes_", "labels_", "label_distributions_", "confidence_"):
        np.testing.assert_array_equal(first[name], second[name])
    assert {name for name in first["card_"] if first["card_"][name] != second["card_"][name]} <= {
        "ledger",
        "release",
        "time",
    }
    ones[1].set_params(ledger=tmp_path / "three").label(private, (labels + 1) % 3)
    assert (ones[0].labels_ != ones[1].labels_).any(), "other votes do"


def test_predict_gives_the_released_label_of_the_nearest_public_row(table, make):
    public, private, labels = table
    names = np.array([10, 7, 30])
    estimator = make(classes=names, epsilon=ALMOST_NO_NOISE)
    for method in ("predict", "predict_proba"):
        assert not hasattr(estimator, method)
        with pytest.raises(NotFittedError, match="call 'fit' and then 'label'"):
            getattr(estimator.fit(public), method)
    estimator.label(private, names[labels])
    np.testing.assert_array_equal(estimator.classes_, [7, 10, 30])
    new = np.random.default_rng(2).normal(size=(20, 4)) * 5
    nearest = ((new[:, None] - public[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(estimator.predict(new), estimator.labels_[nearest])
    np.testing.assert_array_equal(
        estimator.predict_proba(new), estimator.label_distributions_[nearest]
    )
    np.testing.assert_array_equal(estimator.predict(public), estimator.labels_)
    np.testing.assert_allclose(estimator.label_distributions_.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(
        estimator.classes_[estimator.label_distributions_.argmax(axis=1)], estimator.labels_
    )
    assert inspect.signature(estimator.predict).parameters.keys() == {"X"}

    estimator.fit(public[:50])
    assert not hasattr(estimator, "predict"), "labels of rows that are gone"
    assert not [
        name
        for name in vars(estimator)
        if name.endswith("_") and name not in ("X_", "n_features_in_")
    ]


@pytest.mark.parametrize(("scale", "words"), [(1e-17, "differ by at least"), (1e17, "of 0 in")])
def test_public_rows_whose_distances_float32_does_not_hold_are_refused(table, make, scale, words):
    public, private, labels = table
    with pytest.raises(ValueError, match=words):
        make().fit(np.float32(scale) * public)
    make().fit(np.zeros((9, 2)))
    for odd in (1e-60 * np.float64(public), 1e12 + np.float64(public)):
        with pytest.raises(ValueError, match="differ in float32"):
            make().fit(odd)
    make(rounds=2).fit(1e-14 * public).label(1e-14 * private, labels)


def test_predict_looks_for_the_nearest_public_row_by_the_metric_of_the_release(table, make):
    public, private, labels = table
    estimator = make(epsilon=ALMOST_NO_NOISE, metric="cosine").fit(public)
    estimator.label(private, labels)
    new = 0.01 * np.random.default_rng(2).normal(size=(40, 4)) + 0.02 * public[:40]
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)  # noqa: E731
    nearest = (unit(new) @ unit(public).T).argmax(axis=1)
    np.testing.assert_array_equal(estimator.predict(new), estimator.labels_[nearest])
    estimator.set_params(metric="sqeuclidean", standardize=True)  # for the next release
    np.testing.assert_array_equal(estimator.predict(new), estimator.labels_[nearest])


def test_the_length_of_a_record_moves_no_vote_by_cosine(table, make, tmp_path):
    public, private, labels = table
    lengths = np.exp2(np.random.default_rng(2).integers(-5, 6, (NUM_PRIVATE, 1)))
    found = []
    for name, rows in (("given", private), ("scaled", lengths * private)):
        estimator = make(epsilon=ALMOST_NO_NOISE, metric="cosine", ledger=tmp_path / name)
        estimator.fit(public).label(rows, labels)
        found.append(estimator.label_distributions_)
    np.testing.assert_array_equal(*found)


def test_no_name_promises_a_fit_with_private_labels():
    assert not [
        name
        for name in dir(ReverseKNNLabeler)
        if name in ("fit_predict", "fit_transform", "transform", "partial_fit")
    ]


def test_private_labels_score_nothing_and_the_error_says_what_to_do(make):
    """Neither by hand nor in a search, which would spend for each of its fits."""
    labeler = make()
    assert not hasattr(labeler, "score")
    with pytest.raises(AttributeError, match=r"release without noise.*preview\(X\)"):
        labeler.score(np.zeros((2, 2)), [0, 1])
    with pytest.raises(TypeError, match="no scoring is specified"):
        GridSearchCV(labeler, {"epsilon": [1.0, 2.0]}).fit(np.zeros((9, 2)), np.zeros(9))


@pytest.mark.parametrize("missing", [None, np.nan, -1, -7.0, ""])
def test_a_record_without_a_label_casts_no_vote(table, make, tmp_path, missing):
    public, private, labels = table
    words = isinstance(missing, str)
    values = np.array(["0", "1", "2"]) if words else np.arange(3)
    told = labels != 1
    y = np.where(told, values[labels].astype(object), missing)
    settings = {"classes": values, "epsilon": ALMOST_NO_NOISE, "smoothing": "none"}
    whole, part = (
        make(ledger=tmp_path / name, **settings).fit(public) for name in ("whole", "part")
    )
    np.testing.assert_array_equal(
        whole.label(private, y), part.label(private[told], values[labels][told])
    )
    np.testing.assert_array_equal(whole.label_distributions_, part.label_distributions_)
    assert set(whole.labels_) == set(values[[0, 2]])


@pytest.mark.parametrize(
    "what",
    [
        "NaN",
        "infinity",
        "too large",
        "a cell of text",
        "another class",
        "a word",
        "a fraction",
        "a list",
        "a cell of text in a frame",
    ],
)
def test_a_record_that_cannot_be_used_casts_no_vote_and_changes_no_outcome(
    table, make, tmp_path, what
):
    """An error would tell of the record."""
    public, private, labels = table
    settings = {"epsilon": ALMOST_NO_NOISE, "smoothing": "none"}
    rows = private.astype(object if what.startswith("a cell of text") else np.float64)
    y = labels.astype(object)
    if what.startswith("a cell of text"):
        rows[5, 1] = "abc"
        if what.endswith("frame"):
            rows = pytest.importorskip("pandas").DataFrame(rows)
    elif what in ("NaN", "infinity", "too large"):
        rows[5, 1] = {"NaN": np.nan, "infinity": -np.inf, "too large": 1e16}[what]
    else:
        y[5] = {"another class": 3, "a word": "zero", "a fraction": 0.5, "a list": [1, 2]}[what]
    whole, part = (
        make(ledger=tmp_path / name, **settings).fit(public) for name in ("whole", "part")
    )
    with pytest.warns(UserWarning, match="^1 labeled private records"):
        whole.label(rows, y)
    part.label(np.delete(private, 5, axis=0), np.delete(labels, 5))
    np.testing.assert_array_equal(whole.label_distributions_, part.label_distributions_)


def test_private_rows_in_the_place_of_public_ones_are_warned_of(table, make):
    """It is no error: one private record would decide whether there is a release."""
    public, _, labels = table
    with pytest.warns(UserWarning, match="The public rows are the private ones.*Tell nobody"):
        make().fit(public).label(public, labels[:60])


def test_a_negative_class_counts_where_it_is_named(table, make):
    public, private, labels = table
    estimator = make(classes=[-1, 1], epsilon=ALMOST_NO_NOISE).fit(public)
    np.testing.assert_array_equal(
        estimator.label(private, np.where(labels == 0, -1, 1)),
        np.where(blobs(60, 0)[1] == 0, -1, 1),
    )


@pytest.mark.parametrize("kind", [str, float, object, bool])
def test_classes_are_read_off_the_labels_in_their_own_kind_and_that_is_said(table, make, kind):
    public, private, labels = table
    y = (labels % 2 if kind is bool else labels).astype(kind)
    estimator = make(classes=None, epsilon=ALMOST_NO_NOISE).fit(public)
    estimator.label(private, y)
    np.testing.assert_array_equal(estimator.classes_, np.unique(y))
    assert estimator.classes_.dtype.kind == ("i" if kind is object else np.array(y).dtype.kind)
    assert any("read from the private labels" in line for line in estimator.not_covered_)
    assert estimator.card_["class_names"] == []
    estimator.set_params(classes=np.unique(y), ledger=estimator.ledger.with_name("other")).label(
        private, y
    )
    assert not any("read from the private labels" in line for line in estimator.not_covered_)


@pytest.mark.parametrize(
    ("classes", "label", "words"),
    [
        (None, "cat", "all text or all numbers"),
        (None, 0.5, "whole numbers of 64 bits, got float"),
        (None, b"cat", "got bytes"),
        ([2**63, 1], 1, "whole numbers of 64 bits, got int"),
        ([1.5, 2.5], 1, "got float"),
        ([None, 1], 1, "got NoneType, int"),
        ({"a", 1}, 1, "all text or all numbers"),
        ([1], 1, "Expected at least 2 classes, got 1; pass classes"),
        (["a", 1], 1, "all text or all numbers"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(table, make, classes, label, words):
    public, private, labels = table
    y = labels.astype(object) if classes != [1] else np.ones(NUM_PRIVATE, object)
    y[5] = label
    estimator = make(classes=classes).fit(public)
    with pytest.raises(ValueError, match=words):
        estimator.label(private, y)
    assert not estimator.ledger.exists()


def test_text_that_may_stand_for_no_label_is_refused(table, make):
    public, private, labels = table
    y = np.where(labels == 0, "nan", "some")
    with pytest.raises(ValueError, match="got 'nan' among the labels"):
        make(classes=None).fit(public).label(private, y)
    named = make(classes=["nan", "some"], epsilon=ALMOST_NO_NOISE).fit(public)
    assert set(named.label(private, y)) == {"nan", "some"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ledger": None}, "Expected ledger to name the file .* got ledger=None; name one"),
        ({"epsilon": 0}, "'epsilon' parameter"),
        ({"epsilon": np.inf}, "'epsilon' parameter"),
        (
            {"mechanism": "laplace"},
            "mechanism to be one of .*'discrete_laplace', .* got mechanism='laplace'",
        ),  # has no exact form, and must not be found out after the charge
        ({"mechanism": "gaussian"}, "got delta 0"),
        ({"delta": 1e-5}, "Expected no delta"),
        (
            {"n_queries": None, "relation": "add-remove"},
            "Expected n_queries with relation add-remove",
        ),
        (
            {"n_queries": 61},
            "61 queries with 60 rows in the public rows; ask fewer n_queries, for fewer "
            "n_neighbors",
        ),
        ({"n_neighbors": 5}, "n_neighbors 5 and n_queries 4"),
        (
            {"classes": None, "infer_classes": False},
            "Expected classes, got classes=None; name all classes, or set infer_classes=True",
        ),
        ({"epsilon": 51}, "at most 50, got epsilon 51, .* or pass allow_large_epsilon"),
        ({"budget": 0.5}, "costs epsilon=1.0"),
        ({"budget_delta": 1}, "'budget_delta' parameter"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_in_their_own_names(table, make, changes, words):
    public, private, labels = table
    estimator = make().fit(public).set_params(**changes)
    with pytest.raises(ValueError, match=words) as error:
        estimator.label(private, labels)
    assert "--" not in str(error.value)
    assert not (estimator.ledger and estimator.ledger.exists())


def test_the_words_of_a_refusal_keep_the_command_that_helps(table, make):
    public, private, labels = table
    estimator = make(budget=2).fit(public)
    estimator.label(private, labels)
    with pytest.raises(
        ValueError,
        match=r"Expected budget 2.0 as .* got budget 3; .* rknn budget raise .* "
        r"--epsilon E \[--delta D\] --reason TEXT",
    ):
        estimator.set_params(budget=3).label(private, labels)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X, y: (X[:, :3], y), "3 features"),
        (lambda X, y: (X, y[1:]), "inconsistent numbers of samples"),
        (lambda X, y: (X, np.stack([y, y], axis=1)), "1d array"),
        (lambda X, y: (scipy.sparse.csr_matrix(X), y), "Sparse data was passed"),
    ],
    ids=["width", "length", "two labels", "sparse"],
)
def test_tables_that_cannot_be_used_are_refused(table, make, change, words):
    public, private, labels = table
    estimator = make().fit(public)
    with pytest.raises((ValueError, TypeError), match=words):
        estimator.label(*change(private, labels))
    assert not estimator.ledger.exists()


@pytest.mark.parametrize("form", ["pandas", "polars", "arrow"])
@pytest.mark.parametrize("kind", ["times", "lists"])
def test_private_columns_that_no_record_can_have_made_are_refused_before_anything_is_spent(
    table, make, form, kind
):
    public, private, labels = table
    moment = datetime.datetime(2020, 1, 1)
    odd = [moment if kind == "times" else [1.0, 2.0]] * len(private)
    columns = {f"x{place}": column.tolist() for place, column in enumerate(private.T)}
    found = pa.table(columns | {"x2": odd})
    if form == "pandas":
        found = found.to_pandas(types_mapper=pd.ArrowDtype)
    if form == "polars":
        found = pl.from_arrow(found)
    names = pd.DataFrame(public, columns=list(columns))
    estimator = make(epsilon=0.5).fit(names)
    for asked in (estimator.preview, lambda rows: estimator.label(rows, labels)):
        with pytest.raises(ValueError, match=r"Expected columns of numbers in X, got \['x2'\] of"):
            asked(found)
    assert not estimator.ledger.exists()


def test_a_preview_of_other_records_than_a_ledger_has_is_refused(table, make):
    public, private, labels = table
    estimator = make(epsilon=0.5).fit(public)
    estimator.label(private, labels)
    estimator.preview(private)
    with pytest.raises(LedgerMismatchError, match="records"):
        estimator.preview(private + 1)


def test_public_rows_and_labels_stay_when_their_arrays_are_used_again(table, make):
    """A program may read private rows into the array that the public ones were in."""
    public, private, labels = table
    array = public.astype(np.float32)
    estimator = make(epsilon=0.5).fit(array)
    array[:50] = private[:50]
    released = estimator.label(array[:50], labels[:50])
    released += 1
    np.testing.assert_array_equal(estimator.X_, public.astype(np.float32))
    np.testing.assert_array_equal(estimator.labels_, released - 1)


def test_public_rows_that_are_refused_leave_no_labels_of_others(table, make):
    public, private, labels = table
    estimator = make(epsilon=0.5).fit(public)
    estimator.label(private, labels)
    with pytest.raises(ValueError, match="index"):
        estimator.fit(pd.DataFrame(public).assign(id=range(60)).rename(columns=str))
    assert not hasattr(estimator, "labels_")
    with pytest.raises(NotFittedError):
        estimator.label(private, labels)


def test_tables_with_names_and_missing_values_go_in_as_they_are(table, make):
    public, private, labels = table

    def frame(X, names="abcd"):
        return pa.table({name: X[:, i].astype(np.float64) for i, name in enumerate(names)})

    estimator = make(classes=[0, 1, 2], epsilon=ALMOST_NO_NOISE).fit(frame(public))
    np.testing.assert_array_equal(estimator.feature_names_in_, list("abcd"))
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.label(frame(private, "bacd"), labels)
    y = pa.array([None if i % 5 == 0 else int(label) for i, label in enumerate(labels)])
    np.testing.assert_array_equal(estimator.label(frame(private), y), blobs(60, 0)[1])


def test_labels_in_another_order_than_their_rows_are_refused_before_anything_is_spent(table, make):
    pandas = pytest.importorskip("pandas")
    public, private, labels = table
    estimator = make(epsilon=ALMOST_NO_NOISE).fit(public)
    rows = pandas.DataFrame(private, index=[f"patient {i}" for i in range(NUM_PRIVATE)])
    y = pandas.Series(labels, rows.index)
    with pytest.raises(ValueError, match=r"Expected y with the index of X.*y\.loc\[X\.index\]"):
        estimator.label(rows, y[::-1])
    with pytest.raises(ValueError, match="Expected person with the index of X"):
        estimator.label(rows, y, person=y[::-1])
    assert not estimator.ledger.exists()
    by_frame = estimator.label(rows, y)
    np.testing.assert_array_equal(by_frame, blobs(60, 0)[1])


def test_in_a_pipeline_public_rows_alone_decide_the_scale(table, make, tmp_path):
    public, private, labels = table
    units = np.array([1e4, 1, 1e-3, 1])
    pipeline = make_pipeline(StandardScaler(), make(epsilon=ALMOST_NO_NOISE)).fit(public * units)
    with pytest.raises(NotFittedError) as error:
        getattr(pipeline[-1], "predict")  # noqa: B009
    assert not hasattr(pipeline, "predict")
    pipeline[-1].label(pipeline[:-1].transform(private * units), labels)
    scaler = StandardScaler().fit(public * units)
    by_hand = (
        clone(pipeline[-1])
        .set_params(ledger=tmp_path / "by hand")
        .fit(scaler.transform(public * units))
    )
    by_hand.label(scaler.transform(private * units), labels)
    np.testing.assert_array_equal(
        pipeline.predict(private * units), by_hand.predict(scaler.transform(private * units))
    )
    assert "label" in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize("seed", [np.random.RandomState(5), None])
def test_a_random_clustering_is_chosen_once(table, make, seed):
    public, private, _ = table
    estimator = make(random_state=seed, n_queries=7).fit(public)
    assert estimator.preview(private) == estimator.preview(private)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{}, {"epsilon": 0.3, "mechanism": "permute_and_flip", "neighbors": 2}],
    ids=["defaults", "more"],
)
def test_a_preview_is_a_dry_run(table, rknn, tmp_path, changes):
    public, private, labels = table
    np.savez(tmp_path / "P.npz", embeddings=public)
    np.savez(tmp_path / "R.npz", embeddings=private, labels=labels)
    flags = [
        word for name, value in ({"epsilon": 1} | changes).items() for word in (f"--{name}", value)
    ]
    told = rknn(
        "label",
        "--public",
        "P.npz",
        "--private",
        "R.npz",
        "--classes",
        3,
        "--dry-run",
        "--json",
        *flags,
    ).json
    before = contents(tmp_path)
    changes = {
        {"neighbors": "n_neighbors"}.get(name, name): value for name, value in changes.items()
    }
    expected = (
        ReverseKNNLabeler(**changes, classes=[0, 1, 2], ledger="R.npz.ledger.jsonl")
        .fit(public)
        .preview(private)
    )
    assert contents(tmp_path) == before, "it spends nothing"
    assert expected.advice == told["advice"].replace("--queries", "n_queries").replace(
        "--epsilon", "epsilon"
    )
    assert list(expected.expected_votes) == told["expected_votes"]
    assert {str(flips): gap for flips, gap in expected.required_gaps.items()} == told[
        "required_gaps"
    ]
    assert expected.stddev == told["stddev"]
    assert expected.suggested_queries == told["suggested_queries"]


def test_every_setting_of_rknn_label_has_its_parameter():
    renamed = {
        "queries": "n_queries",
        "neighbors": "n_neighbors",
        "person": "person_name",
        "seed": "random_state",
    }
    of_files = {
        "public",
        "private",
        "private_labels",
        "embedding",
        "label",
        "drop",
        "classes_file",
    }
    of_files |= {"representation", "out", "dry_run", "json", "engine", "address"}
    settings = {renamed.get(name, name) for name in by_option(Settings)} - of_files
    assert settings == set(ReverseKNNLabeler().get_params())
    fields = {
        renamed.get(name, name): field.default for name, (field, _) in by_option(Settings).items()
    }
    assert all(
        fields[name] == value
        for name, value in ReverseKNNLabeler(epsilon=fields["epsilon"]).get_params().items()
    )


def test_breast_cancer_at_epsilon_3(tmp_path, monkeypatch):
    """With real noise: labels of queries that lead by so much that the noise turns any of them
    with probability below 1e-6 are right.
    """
    X, y = load_breast_cancer(return_X_y=True)
    public, private, _ = np.split(np.random.default_rng(0).permutation(len(X)), [142, 426])
    pipeline = make_pipeline(
        StandardScaler(),
        ReverseKNNLabeler(
            3, n_queries=6, classes=[0, 1], smoothing="none", ledger=tmp_path / "ledger.jsonl"
        ),
    ).fit(X[public])
    drawn = []
    draw = job.draw
    monkeypatch.setattr(
        job, "draw", lambda *given, **named: drawn.append(given) or draw(*given, **named)
    )
    said = pipeline[-1].label(pipeline[:-1].transform(X[private]), y[private])
    ((plan, votes),) = drawn
    counts = votes.counts
    mechanism = plan.question.noise.mechanism
    flips = np.array([mechanism.flip_prob(abs(int(zeros) - int(ones))) for zeros, ones in counts])
    sure = flips < 1e-7
    assert flips[sure].sum() < 1e-6
    cluster = plan.question.queries.cluster
    rows = sure[cluster]
    np.testing.assert_array_equal(said[rows], counts.argmax(axis=1)[cluster][rows])
    assert np.sum((said == y[public])[rows]) / len(public) > 0.85, (
        "of all public rows, with those of other queries taken as wrong"
    )
    assert np.mean(pipeline.predict(X[private]) == y[private]) > 0.8


def test_the_notebook_is_clean():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


SHORTER = {  # six epsilons ask six numbers of queries; a hundred trees are scikit-learn's
    "epsilons = [0.05, 0.1, 0.2, 0.5, 1, 2]": "epsilons = [1]",
    "HistGradientBoostingClassifier(random_state=0)": (
        "HistGradientBoostingClassifier(random_state=0, max_iter=2)"
    ),
}


@pytest.mark.long
def test_the_notebooks_cells_run(tmp_path, monkeypatch, capsys):
    """In this process, and with less of what takes long; see the next test."""
    monkeypatch.chdir(tmp_path)
    names = {}
    left = set(SHORTER)
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            source = cell.source
            for whole, short in SHORTER.items():
                left -= {whole} if whole in source else set()
                source = source.replace(whole, short)
            exec(source, names)
    names["plt"].close("all")
    assert not left, "the notebook no longer has these"
    assert "BudgetExceededError: This release costs epsilon=1.0" in capsys.readouterr().out
    assert contents(tmp_path) == {}, "the notebook leaves files behind"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "BudgetExceededError: This release costs epsilon=1.0" in text
    assert contents(tmp_path) == {}, "the notebook leaves files behind"

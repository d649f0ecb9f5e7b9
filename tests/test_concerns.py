"""Concerns about released labels, and scaled columns, which are the remedy of one."""

import json
import pickle

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_wine

from rknn_jax import answers
from rknn_jax.answers.concern import Concern
from rknn_jax.answers.concerns import (
    Evidence,
    _noise_alone,
    concerns,
    opinions_hidden,
    set_concerns,
    shifted,
)
from rknn_jax.answers.measured import Interval, Measured
from rknn_jax.answers.planned_concerns import concerns_before
from rknn_jax.labels import PublicLabels
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.records.classes import Classes
from rknn_jax.release import encoding, inputs, planning
from rknn_jax.release.estimator import ReverseKNNLabeler
from rknn_jax.release.settings import Settings
from rknn_jax.types import Answers, Queries
from tests.options import named_settings

NAMES = ("cold", "flu", "cough")


def evidence(counts, stddev, *, rows=40, spread=0.3, names=NAMES):
    """Return what is known if each query has `rows` public rows around a point of its own."""
    counts = np.asarray(counts, np.float64)
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(len(counts)), rows)
    centers = rng.normal(size=(len(counts), 5))
    features = (centers[cluster] + spread * rng.normal(size=(len(cluster), 5))).astype(np.float32)
    size = np.bincount(cluster)
    queries = Queries(np.zeros(len(counts), int), centers, cluster, size)
    noise = np.full(counts.shape, float(stddev))
    decoded = answers.decode(counts, noise, answers.kernels(queries, features))
    total = float(counts.sum())
    return Evidence(features, decoded.labels, names, size, stddev, total, counts, noise, decoded)


def kinds(found):
    return {one.kind for one in found}


def of_kind(found, kind):
    [one] = [one for one in found if one.kind == kind]
    return one


def pure(votes, classes=(0, 1, 2, 0, 1, 2), num_classes=3):
    return votes * np.eye(num_classes)[list(classes)]


def test_clear_votes_give_no_concern():
    assert not concerns(evidence(pure(100), 2.0))


def test_a_class_within_its_noise_is_named():
    counts = pure(100, (0, 1, 0, 1, 0, 1))
    counts[:, 2] = [3, -4, 2, 0, 5, -2]
    found = of_kind(concerns(evidence(counts, 5.0)), "missing_classes")
    words = "no row got class cough; its 4 noisy votes are within twice the noise of ±12"
    assert found.sentence == words
    assert "epsilon" in found.remedy
    assert found.number == 1


def test_a_class_with_votes_in_no_majority_is_named():
    counts = pure(200, (0, 1, 0, 1, 0, 1)) + [0, 0, 30]
    found = of_kind(concerns(evidence(counts, 1.0)), "missing_classes")
    assert "its 180 noisy votes are above twice the noise of ±2" in found.sentence
    assert "queries" in found.remedy


def test_many_missing_classes_make_one_concern():
    names = [f"c{i}" for i in range(20)]
    found = concerns(evidence(pure(100, range(6), 20), 1.0, names=names))
    assert "classes c6, c7, c8 and 11 more" in of_kind(found, "missing_classes").sentence


@pytest.mark.parametrize(("votes", "kind"), [(200, "low_agreement"), (50, "low_accuracy")])
def test_classes_that_the_embeddings_do_not_separate(votes, kind):
    noise = np.random.default_rng(1).normal(scale=4, size=(30, 3))
    counts = votes * np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]] * 10) + noise
    found = of_kind(concerns(evidence(counts, 4.0)), kind)
    assert f"expected accuracy {found.number:.0%}" in found.sentence
    assert found.number < 0.7
    assert found.opinion, "a measure replaces it"


def test_noise_that_decides_is_told_from_poor_embeddings():
    noise = np.random.default_rng(1).normal(scale=20, size=(30, 3))
    for votes, kind in ((8, "noise_alone"), (40, "low_stability")):
        counts = pure(votes, [0, 1, 2] * 10) + noise
        found = kinds(concerns(evidence(counts, 20.0, spread=3.0)))
        assert kind in found
        assert not found & {"low_agreement", "noise_alone", "low_stability"} - {kind}


@pytest.mark.parametrize("num_queries", [3, 6, 30])
def test_counts_that_are_noise_alone_are_told(num_queries):
    """In at most 1 of 20 cases, noise is taken for votes; clear votes are always heard."""
    classes = np.resize([0, 1, 2], num_queries)
    missed = 0
    for seed in range(20):
        noise = np.random.default_rng(seed).laplace(scale=1e6, size=(num_queries, 3))
        found = _noise_alone(pure(50, classes) + noise, np.full(noise.shape, 2e12))
        missed += not found
    assert missed <= 1
    assert not _noise_alone(pure(100, classes) + noise / 1e5, np.full(noise.shape, 200.0))
    assert not _noise_alone(pure(0, classes), np.zeros(noise.shape))


def test_sets_whose_counts_are_noise_alone_are_told():
    noise = np.random.default_rng(0).laplace(scale=10, size=(50, 4))
    rows = np.random.default_rng(1).normal(size=(200, 5)).astype(np.float32)
    size, names = np.full(50, 4), list("abcd")
    for votes, told in ((0, True), (200, False)):
        counts = noise + votes
        found = set_concerns(rows, counts > 5, names, size, counts, 10 * 2**0.5, None)
        assert ("noise_alone" in kinds(found)) == told


def test_opinions_are_hidden_where_noise_decides():
    counts = np.random.default_rng(0).laplace(scale=1e6, size=(6, 3))
    found = concerns(evidence(counts, 2**0.5 * 1e6))
    assert "nothing tells how many are right" in of_kind(found, "noise_alone").sentence
    assert opinions_hidden(found) == {"agreement", "expected_accuracy"}
    decides = [Concern("low_stability", 0.5, "", "")]
    assert opinions_hidden(decides) == {"agreement"}
    assert not opinions_hidden(concerns(evidence(pure(100), 2.0)))


@pytest.mark.long
def test_a_rare_class_that_is_mostly_missed_is_told(tmp_path):
    rng = np.random.default_rng(0)
    ill = rng.random(9000) < 0.06
    rows = (rng.normal(size=(9000, 2)) + 1.3 * ill[:, None]).astype(np.float32)
    given = {"check_share": 0, "classes": ("well", "ill"), "ledger": tmp_path / "ledger.jsonl"}
    labeler = ReverseKNNLabeler(epsilon=10.0, **given).fit(rows[6000:])
    labeler.label(rows[:6000], np.where(ill[:6000], "ill", "well"))
    found = of_kind(labeler.concerns_, "low_expected_recall")
    assert "class ill" in found.sentence
    missed = np.mean(labeler.labels_[ill[6000:]] != "ill")
    expected = float(found.sentence.split("of ill, ")[1].split("%")[0]) / 100
    assert 1 - missed == pytest.approx(expected, abs=0.15)


def judged(found, recall=()):
    """Return the concerns of labels of which those of `cough` are too few."""
    probabilities = np.tile(np.float32([0.4, 0.3, 0.3]), (len(found.labels), 1))
    probabilities[0] = 0.1, 0.1, 0.8
    guarantee = Guarantee(1.0, 0.0, "replace-one", "central", ())
    shown = Answers.predicted(probabilities, guarantee, None)
    labels = PublicLabels(shown, probabilities, found.labels, found.labels, decoded=found.decoded)
    measured = Measured(0.4, 0.3, 0.5, 100, "", recall, None)
    return [labels.judged(concerns(found), one, NAMES)[1] for one in (None, measured)]


def test_an_expected_recall_is_told_unless_it_was_measured_or_noise_decides():
    assert all("low_expected_recall" in kinds(one) for one in judged(evidence(pure(100), 2.0)))
    told, measured = judged(evidence(pure(100), 2.0), recall=(Interval(0.9, 0.8, 1.0),) * 3)
    assert "low_expected_recall" in kinds(told) - kinds(measured)
    noise = evidence(np.random.default_rng(0).laplace(scale=1e6, size=(6, 3)), 2**0.5 * 1e6)
    assert not any("low_expected_recall" in kinds(one) for one in judged(noise))


def test_rows_without_private_records_and_the_reverse():
    counts = pure(100, [0, 1, 2] * 10)
    counts[-6:] = 0
    far = of_kind(concerns(evidence(counts, 4.0)), "distant_rows")
    assert far.number == pytest.approx(0.2)
    assert shifted([far])
    assert far.sentence.startswith("20% of the public rows have hardly a private record near")
    counts = pure(100, [0, 1, 2] * 10)
    counts[0, 0] = 3000
    found = concerns(evidence(counts, 4.0))
    assert shifted(found)
    assert "distant_rows" not in kinds(found)
    near = of_kind(found, "crowded_rows")
    assert near.number == pytest.approx(3000 / 5900)
    assert "3.3% of the public rows" in near.sentence


def of_places(rows, records, places, far):
    """Return the concerns about where records lie, of which `far` more are at the first place."""
    size = np.bincount(cdist(rows, places).argmin(axis=1), minlength=len(places))
    votes = np.bincount(cdist(records, places).argmin(axis=1), minlength=len(places))
    votes[0] += far
    counts = votes[:, None] * np.eye(3)[0]
    noise = np.ones(counts.shape)
    labels = np.zeros(len(rows), int)
    known = Evidence(rows, labels, NAMES, size, 1.0, None, counts, noise)
    return kinds(concerns(known)) & {"distant_rows", "crowded_rows"}


@pytest.mark.parametrize("clusters", [True, False])
def test_rows_and_records_of_one_distribution_are_neither_distant_nor_crowded(clusters):
    """Rows draw the queries near them, and a query of one row may have many votes by chance."""
    alarms = 0
    for seed, (public, private, queries) in enumerate(4 * [(200, 300, 50), (200, 900, 120)]):
        draw = np.random.default_rng(seed)
        rows, records = draw.normal(size=(public, 16)), draw.normal(size=(private, 16))
        places = rows[:queries]
        if clusters:
            places = (
                KMeans(queries, n_init=1, max_iter=3, random_state=0).fit(rows).cluster_centers_
            )
        alarms += bool(of_places(rows, records, places, 0))
        assert "crowded_rows" in of_places(rows, records, places, private)
    assert alarms == 0


@pytest.mark.parametrize("stddev", [1.0, 20.0, 200.0])
def test_noise_alone_makes_no_rows_distant(stddev):
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        votes = rng.poisson(50 * rng.poisson(40, size=30) / 40)
        counts = votes[:, None] * np.eye(3)[np.arange(30) % 3]
        counts += rng.normal(scale=stddev, size=counts.shape)
        noise = np.full(counts.shape, stddev)
        size = np.full(30, 40)
        labels = np.arange(30) % 3
        known = Evidence(
            np.eye(30), labels, NAMES, size, stddev, counts.sum(), counts=counts, stddev=noise
        )
        found = kinds(concerns(known))
        alarms += bool(found & {"distant_rows", "crowded_rows"})
    assert alarms <= 1


def test_a_class_that_is_rarer_among_private_records_is_told():
    counts = pure(400, [0, 1] * 8, 3)[:, :2]
    counts[1::2] /= 20
    found = concerns(evidence(counts, 1.0, names=NAMES[:2]))
    assert of_kind(found, "rarer_classes").sentence.startswith("class flu is ")
    assert of_kind(found, "rarer_classes").number > 5
    assert "distant_rows" not in kinds(found)


def test_labels_alone_tell_missing_classes():
    features = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    labels = np.zeros(30, int)
    found = concerns(Evidence(features, labels, NAMES, np.full(3, 10), 2.0, 600.0))
    assert [one.sentence for one in found] == ["no row got classes flu, cough"]


def columns(scales, rows=50):
    return np.random.default_rng(0).normal(size=(rows, len(scales))) * scales


@pytest.mark.parametrize(
    ("scales", "warns"),
    [
        ((1, 1, 1, 1, 1), False),
        ((1, 1, 1, 1, 30), True),
        ((1, 1, 1, 500, 900), True),
        ((1, 900), False),
        (1 / np.arange(1, 30), False),
        ((0, 0, 0, 1, 2), False),
    ],
)
def test_columns_of_different_units(scales, warns):
    found = concerns_before(columns(np.array(scales)), np.full(5, 10), 2, None, 1.0)
    assert kinds(found) == ({"unscaled_columns"} if warns else set())
    assert all("standardize" in one.remedy for one in found)


def test_too_few_queries_and_too_few_votes():
    found = concerns_before(columns(np.ones(4)), np.full(8, 5), 10, 400, 60.0)
    assert of_kind(found, "few_queries").number == 8
    assert of_kind(found, "thin_votes").number == 50
    assert not concerns_before(columns(np.ones(4)), np.full(10, 5), 10, 4000, 60.0)


def test_labels_alone_are_told_of_too_few_votes_after_their_release(tmp_path):
    rows = columns(np.ones(2), 240).astype(np.float32)
    settings = {"classes": [0, 1], "n_queries": 8, "relation": "replace-one"}
    labeler = ReverseKNNLabeler(
        epsilon=0.01, mechanism="permute_and_flip", ledger=tmp_path / "ledger", **settings
    )
    labeler.fit(rows[:40]).label(rows[40:], np.arange(200) % 2)
    assert of_kind(labeler.concerns_, "thin_votes").number < 200


def test_scaling_is_learned_on_public_rows_and_applied_to_each_record_alone():
    public = columns(np.array([1.0, 100, 0])) + [3, -50, 7]
    scaling = encoding.Scaling.learned(public.astype(np.float32))
    scaled = scaling(public)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1, 0], atol=1e-5)
    records = 1e3 * columns(np.ones(3), 9)
    together = scaling(records)
    for i in range(9):
        np.testing.assert_array_equal(scaling(records[i : i + 1])[0], together[i])


def made(standardize, public, private, labels, ledger, **settings):
    labeler = ReverseKNNLabeler(
        standardize=standardize, classes=[0, 1, 2], ledger=ledger, **settings
    )
    labeler.fit(public).label(private, labels)
    return labeler


@pytest.mark.long
def test_wine_is_labeled_better_with_scaled_columns(tmp_path):
    X, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    public, private = order[:59], order[59:]
    settings = {"epsilon": 2.0, "budget": 4.0, "n_queries": 6}
    ledger = tmp_path / "ledger"
    plain, scaled = (
        made(flag, X[public], X[private], y[private], ledger, **settings) for flag in (False, True)
    )
    right = [np.mean(one.labels_ == y[public]) for one in (plain, scaled)]
    assert right[1] > 0.85
    assert right[1] > right[0] + 0.1
    assert [kinds(one.concerns_) & {"unscaled_columns"} for one in (plain, scaled)] == [
        {"unscaled_columns"},
        set(),
    ]
    assert scaled.card_["standardize"] is True
    assert plain.card_["standardize"] is False
    np.testing.assert_array_equal(scaled.predict(X[public]), scaled.labels_)
    assert kinds(pickle.loads(pickle.dumps(plain)).concerns_) == kinds(plain.concerns_)


def test_a_record_that_cannot_be_scaled_casts_no_vote(tmp_path):
    X = columns(np.array([1e-20, 1, 1]), 60).astype(np.float32)
    private = X.copy()
    private[0, 0] = 1e30
    private[1, 1] = np.nan
    data = inputs.data_of(X, private, np.zeros(60, np.int32), Classes(2))
    settings = named_settings(
        Settings, "P", "R", 1.0, queries=3, standardize=True, ledger=tmp_path / "ledger"
    )
    plan = planning.plan(settings, inputs.standardized(data))
    from rknn_jax.release import label

    votes = label.count(plan)
    assert votes.voters == 58
    plain = label.count(planning.plan(settings, data))
    assert votes.dataset == plain.dataset, "scaled or not, the people and their ledger are the same"


def test_an_earlier_request_has_the_same_name_without_scaling():
    data = inputs.data_of(
        columns(np.ones(3)).astype(np.float32), columns(np.ones(3)), None, Classes(3)
    )
    settings = Settings("P", "R", 1.0, queries=3)
    before = "d641e811ffe4ac48"
    assert planning.request(settings, data).startswith(before)
    scaled = Settings("P", "R", 1.0, queries=3, standardize=True)
    assert planning.request(scaled, inputs.standardized(data)) != planning.request(settings, data)


@pytest.mark.long
def test_the_command_tells_concerns_and_three_expectations(rknn, tmp_path):
    X, y = load_digits(return_X_y=True)
    X = X * np.where(np.arange(64) == 20, 1000, 1)
    np.savez(tmp_path / "P.npz", embeddings=X[:400])
    np.savez(tmp_path / "R.npz", embeddings=X[400:], labels=y[400:])
    files = ("label", "--public", "P.npz", "--private", "R.npz", "--classes", 10)
    # Votes of 1,397 records for 20 rows: at epsilon = 8, no noise hides what the records agree on.
    first = rknn(*files, "--epsilon", 8, "--budget", 16, "--queries", 20, "--json")
    assert first.status == 0, first.err
    assert "unscaled_columns" in {one["kind"] for one in first.json["concerns"]}
    assert "pass --standardize" in " ".join(first.err.split())
    words = ("stability", "agreement", "expected_accuracy")
    assert all(0 < first.json[word] <= 1 for word in words)
    assert all(f"{word} " in first.err for word in ("stability", "agreement", "expected"))
    second = rknn(*files, "--epsilon", 8, "--queries", 20, "--standardize", "--json")
    assert second.status == 0, second.err
    assert "unscaled_columns" not in {one["kind"] for one in second.json["concerns"]}
    card = json.loads((tmp_path / second.json["files"]["privacy"]).read_text())
    assert card["standardize"] is True
    page = (tmp_path / second.json["files"]["page"]).read_text()
    assert "standard deviation 1 among the public rows" in page

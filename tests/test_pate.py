"""PATE: the parts, the teachers, the aggregators, and what one record can do to them."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from rknn_jax.labelers import _pate_teachers, pate
from rknn_jax.labelers.pate import PATE
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import Gaussian
from rknn_jax.types import Queries, Records

QUICK = PATE(epsilon=math.inf, num_teachers=12, steps=120, hidden=8)


def blobs(n, seed=0):
    """Three classes around the corners of a triangle."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n).astype(np.int32)
    corners = np.float32([[0, 0], [4, 0], [2, 4]])
    return (corners[labels] + rng.normal(size=(n, 2))).astype(np.float32), labels


FEATURES, LABELS = blobs(600)
ASKED, TRUTH = blobs(50, seed=1)
QUERIES = Queries(
    ASKED, np.arange(50, dtype=np.int32), np.arange(50, dtype=np.int32), np.ones(50, int)
)


def records(labels=LABELS, clients=None):
    return Records(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, clients)


def voted(config, features=FEATURES, labels=LABELS, clients=None):
    return config.contribute(
        jax.random.key(0), records(labels, clients), lambda _: features, QUERIES, 3
    )


def tallied(votes, config, predicted=None, seed=0):
    return config.release(jax.random.key(seed), votes, QUERIES, 3, predicted)


def trained(features, labels, part, config):
    """Return the predictions of twelve teachers, int32 `[12, s]`."""
    key = jax.random.key(2)
    return _pate_teachers.predictions(key, features, labels, part, 12, ASKED, 3, config.training)


@pytest.mark.long
@pytest.mark.parametrize("hidden", [pytest.param(0, marks=pytest.mark.slow), 8])
def test_teachers_learn_and_every_one_votes(hidden):
    votes = voted(dataclasses.replace(QUICK, hidden=hidden))
    assert (votes.sum(1) == 12).all()
    assert np.mean(votes.argmax(1) == TRUTH) > 0.85
    assert votes[np.arange(50), TRUTH].sum() / votes.sum() > 0.75


@pytest.mark.long
def test_a_teacher_sees_its_own_part_alone():
    """Whatever becomes of its part, all others say what they said, so one record moves one vote
    of each query.
    """
    part = pate.parts_of(jax.random.key(1), records(), QUICK)
    said = trained(FEATURES, LABELS, part, QUICK)
    features = FEATURES.copy()
    labels = LABELS.copy()
    features[part == part[7]] *= 100
    labels[part == part[7]] = 1
    again = trained(features, labels, part, QUICK)
    others = np.arange(12) != part[7]
    np.testing.assert_array_equal(again[others], said[others])
    assert np.any(again[part[7]] != said[part[7]])


def test_nobody_learns_from_records_of_no_class_or_of_no_finite_features():
    """Every other record is one, and whatever else is in it, all teachers say the same; -1 is
    not the last class.
    """
    part = pate.parts_of(jax.random.key(1), records(), QUICK)
    said = []
    for label, scale in ((-1, 1), (-1, 3), (3, 1), (100, 0), (1, np.nan), (2, np.inf)):
        features = FEATURES.copy()
        labels = LABELS.copy()
        features[::2] *= scale
        labels[::2] = label
        said.append(trained(features, labels, part, QUICK))
    for other in said[1:]:
        np.testing.assert_array_equal(other, said[0])
    assert np.mean(said[0] == TRUTH) > 0.5


def test_parts_are_equal_where_n_is_public_and_independent_where_it_is_not():
    """Under add-remove a record's part must not tell of others: sizes are binomial, with a
    variance of n/T (1 - 1/T).
    """
    equal = np.bincount(pate.parts_of(jax.random.key(0), records(), QUICK))
    assert equal.tolist() == [50] * 12
    config = dataclasses.replace(QUICK, relation="add-remove")
    sizes = np.concatenate(
        [
            np.bincount(pate.parts_of(jax.random.key(seed), records(), config), minlength=12)
            for seed in range(40)
        ]
    )
    assert sizes.var() == pytest.approx(600 / 12 * 11 / 12, rel=0.4)  # 480 sizes: 6 standard errors


PERSONS = np.repeat(np.int32([7, 900, 3, 41]), 150)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_a_person_has_one_teacher(relation):
    config = dataclasses.replace(QUICK, unit="person", num_teachers=4, relation=relation)
    part = pate.parts_of(jax.random.key(0), records(clients=PERSONS), config)
    assert len(np.unique(part)) == 4 or relation == "add-remove"
    assert all(len(np.unique(part[person == PERSONS])) == 1 for person in PERSONS)


@pytest.mark.parametrize(
    ("unit", "relation"), [("person", "replace-one"), ("record", "add-remove")]
)
def test_one_who_comes_with_many_records_moves_one_vote_of_each_query(unit, relation):
    """On one device, most votes between two classes changed when the largest part grew; the bits of
    other teachers are compared in `test_dpdfd`.
    """
    rng = np.random.default_rng(0)
    count, more = 480, 24 if unit == "person" else 1
    features = rng.normal(size=(count + more, 20)).astype(np.float32)
    labels = rng.integers(0, 10, count + more)
    person = np.append(np.arange(count) % 20, np.zeros(more, int)).astype(np.int32)
    asked = Queries.alone(rng.normal(size=(40, 20)).astype(np.float32), np.arange(40))
    config = PATE(1.0, 1e-5, relation, unit=unit, num_teachers=20, learning_rate=1.0)
    votes = [
        config.contribute(
            jax.random.key(1),
            Records(features[:n], labels[:n], person[:n]),
            np.asarray,
            asked,
            10,
        ).astype(int)
        for n in (count, count + more)
    ]
    moved = np.abs(votes[0] - votes[1]).sum(axis=1)
    assert 0 < moved.max() <= 2


@pytest.mark.long
def test_whole_persons_are_dealt_to_the_teachers():
    clients = PERSONS
    config = dataclasses.replace(QUICK, unit="person", num_teachers=4, epsilon=5.0, hidden=0)
    votes = voted(config, clients=clients)
    assert (votes.sum(1) == 4).all()
    assert tallied(votes, config).guarantee.unit == "person"
    with pytest.raises(ValueError, match="clients for unit=person, got clients=None"):
        voted(config)
    with pytest.raises(ValueError, match="a person for every teacher, got num_teachers=5 with 4"):
        voted(dataclasses.replace(config, num_teachers=5), clients=clients)


def test_a_teacher_without_records_is_refused():
    with pytest.raises(
        ValueError, match="num_teachers=601 with 600 private records, which leaves 1"
    ):
        voted(dataclasses.replace(QUICK, num_teachers=601))
    with pytest.raises(ValueError, match="2 teachers with 3 classes"):
        voted(dataclasses.replace(QUICK, num_teachers=2))


@pytest.mark.long
def test_a_teacher_without_records_tells_nothing_where_their_number_is_private():
    """Under add-remove an error would tell that a teacher's only record is gone."""
    config = dataclasses.replace(QUICK, num_teachers=601, relation="add-remove", steps=2, hidden=0)
    assert (voted(config).sum(1) == 601).all()


@pytest.mark.long
def test_what_fills_up_a_part_is_nobodys_record():
    """Parts of 50 and 51 records: the first record, without bound, reaches its own teacher
    alone.
    """
    part = pate.parts_of(jax.random.key(1), records(LABELS[:601]), QUICK)
    features = np.concatenate([FEATURES, FEATURES[:1]])
    labels = np.append(LABELS, LABELS[0])
    part = np.append(part, 5)
    linear = dataclasses.replace(QUICK, hidden=0)
    said = trained(features, labels, part, linear)
    features[0] = np.nan
    again = trained(features, labels, part, linear)
    others = np.arange(12) != part[0]
    np.testing.assert_array_equal(again[others], said[others])


def agreeing(share, num_teachers=250):
    votes = np.zeros((50, 3), np.int32)
    votes[np.arange(50), TRUTH] = round(share * num_teachers)
    votes[np.arange(50), (TRUTH + 1) % 3] = num_teachers - round(share * num_teachers)
    return votes


@pytest.mark.parametrize("aggregator", ["lnmax", "gnmax", "confident_gnmax", "interactive"])
def test_without_noise_the_majority_answers(aggregator):
    answers = tallied(agreeing(0.9), PATE(epsilon=math.inf, aggregator=aggregator))
    assert answers.answered.all()
    np.testing.assert_array_equal(answers.labels, TRUTH)
    declined = tallied(agreeing(0.7), PATE(epsilon=math.inf, aggregator=aggregator))
    assert declined.answered.all() == (aggregator in ("lnmax", "gnmax"))


def test_the_teachers_answer_only_what_is_news_to_the_student():
    """The student knows the even queries; the teachers are as sure of all.

    Its own sure labels fill in, at no cost.
    """
    predicted = np.full((50, 3), 1 / 3, np.float32)
    predicted[::2] = np.eye(3, dtype=np.float32)[TRUTH[::2]]
    config = PATE(epsilon=math.inf, aggregator="interactive", threshold=0.4)
    answers = tallied(agreeing(0.9), config, predicted)
    released = answers.counts.any(axis=1)
    assert not released[::2].any()
    assert released[1::2].all()
    assert answers.answered.all()
    np.testing.assert_array_equal(answers.labels, TRUTH)
    unsure = tallied(
        agreeing(0.9), config, np.where(predicted == 1, np.float32(0.8), np.float32(0.1))
    )
    assert not unsure.answered[::2].any(), "a student that is not sure leaves the query open"


@pytest.mark.parametrize("aggregator", ["lnmax", "gnmax", "confident_gnmax", "interactive"])
def test_the_noise_is_what_the_guarantee_says(aggregator):
    """150 counts: their noise's standard deviation is right to 5 standard errors, 35% for
    Laplace's heavier tails.
    """
    config = PATE(epsilon=6.0, aggregator=aggregator, threshold=-1e6)
    votes = agreeing(0.9)
    answers = tallied(votes, config)
    noise = pate.noise(50, 250, config)
    assert np.std(answers.counts - votes) == pytest.approx(noise.aggregation_stddev, rel=0.35)
    events = answers.guarantee.events
    assert {event.kind for event in events} == {"laplace" if aggregator == "lnmax" else "gaussian"}
    if aggregator == "lnmax":
        assert noise.aggregation_stddev == pytest.approx(math.sqrt(2) * events[0].parameter)
        assert events[0].count == 100, "two counts of each query"
    else:
        assert noise.aggregation_stddev == pytest.approx(math.sqrt(2) * events[-1].parameter)
    if aggregator == "interactive":
        assert isinstance(events[0], Gaussian), "counts less probabilities are no whole numbers"


@pytest.mark.long
def test_the_papers_noise_comes_back_at_what_it_costs():
    """150 and 40 at the 2.5426 that 640 screens and 286 answers cost, and Lap(20) at 11.3478 for
    1000 queries.
    """
    noise = pate.noise(640, 250, PATE(epsilon=2.5426, max_answers=286))
    assert noise.screening_stddev == pytest.approx(150, rel=2e-3)
    assert noise.aggregation_stddev == pytest.approx(40, rel=2e-3)
    laplace = pate.noise(1000, 250, PATE(epsilon=11.3478, aggregator="lnmax"))
    assert laplace.aggregation_stddev == pytest.approx(20 * math.sqrt(2), rel=2e-3)
    pure = pate.noise(1000, 250, PATE(epsilon=100.0, delta=0.0, aggregator="lnmax"))
    assert pure.aggregation_stddev == pytest.approx(20 * math.sqrt(2))
    assert pure.guarantee.delta == 0


@pytest.mark.long
def test_both_relations_cost_the_same():
    """One record more, less or another is one teacher that may change its mind."""
    noises = [
        pate.noise(100, 250, PATE(relation=relation)) for relation in ("replace-one", "add-remove")
    ]
    assert noises[0].aggregation_stddev == noises[1].aggregation_stddev
    assert [noise.guarantee.relation for noise in noises] == ["replace-one", "add-remove"]


def test_a_cap_is_kept_and_charged():
    config = PATE(epsilon=10.0, max_answers=9)
    answers = tallied(agreeing(1.0), config)
    assert answers.answered.sum() == 9
    assert [event.count for event in answers.guarantee.events] == [50, 9]
    assert min(accounting.epsilons(answers.guarantee.events, config.delta).values()) <= 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_teachers": 0}, "num_teachers=0"),
        ({"aggregator": "max"}, "aggregator='max'"),
        ({"unit": "client"}, "unit='client'"),
        ({"max_answers": 0}, "max_answers=0"),
        ({"steps": 0}, "steps=0"),
        ({"hidden": -1}, "hidden=-1"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        PATE(**change)


@pytest.mark.parametrize(
    ("change", "words"), [({"epsilon": -1.0}, "epsilon=-1.0"), ({"delta": 0.0}, "delta=0.0")]
)
def test_noise_that_cannot_be_calibrated_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        pate.noise(10, 250, PATE(**change))
    if "epsilon" in change:
        with pytest.raises(ValueError, match=words):
            pate.noise(10, 250, PATE(**change, aggregator="lnmax"))

"""Private-kNN: who votes, what one record moves, and what the answers cost."""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from rknn_jax.labelers import private_knn
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.privacy import accounting
from rknn_jax.privacy.events import SampledGaussian
from rknn_jax.types import Queries, Records

RNG = np.random.default_rng(0)


def questions(features):
    features = np.asarray(features, np.float32)
    return Queries(
        features,
        np.arange(len(features), dtype=np.int32),
        np.arange(len(features), dtype=np.int32),
        np.ones(len(features), int),
    )


def asked(features, labels, queries, config, seed=0):
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return config.contribute(
        jax.random.key(seed), Records(images, labels), lambda _: features, queries, 3
    )


def test_all_records_are_asked_without_sampling():
    features = RNG.normal(size=(60, 2)).astype(np.float32)
    labels = RNG.integers(0, 3, 60).astype(np.int32)
    queries = questions(RNG.normal(size=(20, 2)))
    votes = asked(features, labels, queries, PrivateKNN(num_neighbors=9, sampling_prob=1.0))
    near = np.argsort(((queries.features[:, None] - features[None]) ** 2).sum(-1), axis=1)[:, :9]
    expected = [np.bincount(labels[row], minlength=3) for row in near]
    np.testing.assert_array_equal(votes.screened, expected)
    np.testing.assert_array_equal(votes.counted, expected)
    assert votes.short == 0


@functools.cache
def sampled_votes():
    """Return the votes of 18 neighbors in samples of 60 records, whose sizes are Bin(60, 0.3):
    about half of 40 hold fewer.
    """
    features = RNG.normal(size=(60, 2)).astype(np.float32)
    labels = RNG.integers(0, 3, 60).astype(np.int32)
    return asked(
        features,
        labels,
        questions(RNG.normal(size=(20, 2))),
        PrivateKNN(num_neighbors=18, sampling_prob=0.3),
    )


def test_fewer_records_than_neighbors_are_told_where_their_number_is_public_alone():
    """Under add-remove, an error would tell that there is no record more."""
    queries = questions(RNG.normal(size=(4, 2)))
    for size, relation in itertools.product((14, 15), ("add-remove", "replace-one")):
        config = PrivateKNN(num_neighbors=15, sampling_prob=1.0, relation=relation)
        sides = np.zeros((size, 2), np.float32), np.zeros(size, np.int32)
        if size < 15 and relation == "replace-one":
            with pytest.raises(ValueError, match="num_neighbors=15 with 14"):
                asked(*sides, queries, config)
        else:
            assert asked(*sides, queries, config).counted.sum() == size * 4


def test_every_query_is_screened_and_paid_for_however_few_are_answered():
    released = private_knn.release(100, PrivateKNN(max_answers=10))
    assert (released.screened, released.answered) == (100, 10)


@pytest.mark.long
def test_the_two_steps_of_a_query_ask_different_samples():
    votes = sampled_votes()
    assert np.any(votes.screened != votes.counted, axis=1).mean() > 0.8


def test_short_samples_are_counted_and_cast_fewer_votes():
    votes = sampled_votes()
    cast = np.concatenate([votes.screened.sum(1), votes.counted.sum(1)])
    assert votes.short == np.sum(cast < 18) > 5
    assert cast.max() == 18


@pytest.mark.parametrize("label", [-7, -1, 3, 4, 100])
def test_a_label_that_no_class_has_casts_no_vote(label):
    near = np.array([[0, 1], [1, 2], [2, -1]])
    counts = private_knn.counts_of(near, np.array([label, 1, 2]), 3)
    np.testing.assert_array_equal(counts, [[0, 1, 0], [0, 1, 1], [0, 0, 1]])


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_one_record_moves_one_vote(relation):
    """Every sample of six records, each changed in every way of a small grid: L2 distance
    sqrt(2), the greatest count by 1.
    """
    grid = [np.float32([x, y]) for x, y in itertools.product((-1.0, 0.2, 1.0), (-0.7, 0.6))]
    features = np.stack(grid)
    labels = np.int32([0, 1, 2, 0, 1, 1])
    query = np.float32([0.1, 0.0])
    k = 3
    worst = 0.0

    def count(members, features, labels):
        members = np.asarray(members, int)
        near = members[np.argsort(((features[members] - query) ** 2).sum(1), kind="stable")[:k]]
        return private_knn.counts_of(
            np.pad(near, (0, k - len(near)), constant_values=-1)[None], labels, 3
        )[0]

    for size in range(6):
        for members in itertools.combinations(range(1, 6), size):
            base = [count(members, features, labels)]
            contents = itertools.product(grid, range(3))
            for place, label in contents:
                changed = features.copy()
                names = labels.copy()
                changed[0] = place * np.float32(0.9)
                names[0] = label
                base.append(count((0, *members), changed, names))
            others = base if relation == "replace-one" else base[:1]
            for one, other in itertools.product(base, others):
                worst = max(worst, float(np.linalg.norm(one - other)))
                assert abs(int(one.max()) - int(other.max())) <= 1
    assert worst == pytest.approx(math.sqrt(2))
    released = private_knn.release(10, PrivateKNN(relation=relation))
    assert released.change == pytest.approx(worst)
    assert released.replaced == (relation == "replace-one")


@pytest.mark.long
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_noise_is_charged_for_every_screen_and_every_answer(relation):
    config = PrivateKNN(epsilon=0.7, delta=1e-6, relation=relation, max_answers=40)
    noise = private_knn.noise(100, config)
    screen, counts = noise.guarantee.events
    assert (screen.count, counts.count) == (100, 40)
    assert screen.screen == (180, 300)
    assert screen.sampling_prob == counts.sampling_prob == 0.15
    assert (
        screen.parameter
        == pytest.approx(noise.screening_stddev)
        == pytest.approx(3 * noise.aggregation_stddev)
    )
    assert counts.parameter == pytest.approx(noise.aggregation_stddev / math.sqrt(2))
    assert 0.69 < min(accounting.epsilons(noise.guarantee.events, 1e-6).values()) <= 0.7


@pytest.mark.long
def test_the_papers_noise_comes_back_at_what_it_costs():
    """sigma 75 and 25 at the epsilon that 1000 screens and 735 answers really cost."""
    noise = private_knn.noise(
        1000, PrivateKNN(epsilon=0.8833, relation="add-remove", max_answers=735)
    )
    assert noise.screening_stddev == pytest.approx(75, rel=2e-3)
    assert noise.aggregation_stddev == pytest.approx(25, rel=2e-3)


def tallied(votes, config, seed=0):
    queries = questions(np.zeros((len(votes.screened), 2)))
    return config.release(jax.random.key(seed), votes, queries, 3)


def clear_votes(num_queries, share):
    """30 votes a query, of which a share is for class q mod 3."""
    counts = np.zeros((num_queries, 3), np.int32)
    counts[np.arange(num_queries), np.arange(num_queries) % 3] = round(30 * share)
    counts[np.arange(num_queries), (np.arange(num_queries) + 1) % 3] += 30 - round(30 * share)
    return private_knn.Votes(counts, counts, 0)


def test_queries_without_agreement_are_declined_and_tell_nothing():
    config = PrivateKNN(epsilon=math.inf, num_neighbors=30)
    answers = tallied(clear_votes(6, 0.5), config)
    assert not answers.answered.any()
    assert (answers.labels == -1).all()
    assert not answers.counts.any()
    assert tallied(clear_votes(6, 0.9), config).labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_no_more_are_answered_than_were_paid_for():
    answers = tallied(
        clear_votes(50, 0.9),
        PrivateKNN(epsilon=20.0, num_neighbors=30, sampling_prob=1.0, max_answers=7),
    )
    assert answers.answered.sum() == 7
    assert answers.guarantee.events[1].count == 7


@pytest.mark.long
def test_the_noise_has_the_calibrated_spread():
    """600 counts that pass by a low threshold: the standard deviation is right to 6 standard
    errors, 17%.
    """
    config = PrivateKNN(epsilon=1.0, num_neighbors=30, threshold=-1e6)
    votes = clear_votes(200, 0.9)
    answers = tallied(votes, config)
    noise = private_knn.noise(200, config)
    assert answers.answered.all()
    assert np.std(answers.counts - votes.counted) == pytest.approx(
        noise.aggregation_stddev, rel=0.17
    )
    np.testing.assert_allclose(answers.stddev, noise.aggregation_stddev, rtol=1e-6)


def test_clipped_attributes_move_no_more_than_they_are_charged_for():
    """All pairs of six attributes, for clips on both sides of the room that two disjoint vectors
    have.
    """
    every = np.array(list(itertools.product((0, 1), repeat=6)), np.float32)
    for clip in (0.5, 1.0, 2.0, 2.5, 3.0, 6.0):
        clipped = private_knn.clipped_attributes(every, clip)
        assert clipped.sum(1).max() <= clip * (1 + 1e-6)
        widest = np.linalg.norm(clipped[:, None] - clipped[None], axis=-1).max()
        assert private_knn.multi_label_change(6, clip) == pytest.approx(widest, rel=1e-6)
    assert private_knn.multi_label_change(40, 10) == pytest.approx(math.sqrt(20)), (
        "sqrt(2 tau), and not sqrt(2) tau"
    )


def test_in_a_sample_of_fewer_records_than_neighbors_each_counts_once():
    queries = questions(RNG.normal(size=(40, 2)))
    config = PrivateKNN(epsilon=math.inf, num_neighbors=20, sampling_prob=0.2)
    features, every = RNG.normal(size=(25, 2)).astype(np.float32), np.ones((25, 1))
    found = private_knn.multi_label(jax.random.key(0), features, every, queries, config, clip=1)
    # Bin(25, 0.2): 20 never occur in 40 samples, and the mean is 5 to five standard errors.
    assert found.counts.max() < 20
    assert found.counts.mean() == pytest.approx(5, abs=5 * 2 / math.sqrt(40))
    # What is neither 0 nor 1 counts as 0: an error would tell of its record.
    odd = np.tile([1, np.nan, 2, 0.5, -1], (25, 1))
    other = private_knn.multi_label(jax.random.key(0), features, odd, queries, config, clip=1)
    np.testing.assert_array_equal(other.counts, found.counts * [1, 0, 0, 0, 0])


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_attributes_of_a_replaced_record_are_charged_as_replaced(relation):
    config = PrivateKNN(epsilon=5.0, num_neighbors=2, sampling_prob=0.2, relation=relation)
    features, every = np.zeros((25, 2), np.float32), np.ones((25, 1))
    queries = questions(np.zeros((40, 2)))
    found = private_knn.multi_label(jax.random.key(0), features, every, queries, config, clip=1)
    (event,) = found.guarantee.events
    assert (event.count, event.sampling_prob) == (40, 0.2)
    assert event.replaced == (relation == "replace-one")


@pytest.mark.long
def test_attributes_are_those_of_the_neighbours():
    features = np.repeat(np.float32([[0, 0], [9, 9]]), 40, axis=0)
    # What is neither 0 nor 1 counts as 0: an error would tell of its record.
    attributes = np.repeat([[1, 1, np.nan, 0.5], [2, 0, -1, 1]], 40, axis=0)
    queries = questions(np.tile([[1, 0], [8, 9]], (150, 1)))
    config = PrivateKNN(epsilon=math.inf, num_neighbors=20, sampling_prob=0.8)
    found = private_knn.multi_label(
        jax.random.key(0), features, attributes, queries, config, clip=4
    )
    np.testing.assert_array_equal(found.present, np.tile([[1, 1, 0, 0], [0, 0, 0, 1]], (150, 1)))
    np.testing.assert_allclose(found.counts, np.tile([[20, 20, 0, 0], [0, 0, 0, 20]], (150, 1)))
    private = private_knn.multi_label(
        jax.random.key(0),
        features,
        attributes,
        queries,
        dataclasses.replace(config, epsilon=5.0),
        clip=2,
    )
    (event,) = private.guarantee.events
    assert event.count == 300
    assert isinstance(event, SampledGaussian)
    assert np.std(private.counts[:, 2]) == pytest.approx(
        event.parameter * private_knn.multi_label_change(4, 2), rel=0.25
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling_prob": 0.0}, "sampling_prob=0.0"),
        ({"sampling_prob": 1.2}, "sampling_prob=1.2"),
        ({"num_neighbors": 0}, "num_neighbors=0"),
        ({"max_answers": 0}, "max_answers=0"),
        ({"relation": "none"}, "relation='none'"),
        ({"threshold": math.nan}, "threshold=nan"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(ValueError, match=words):
        PrivateKNN(**change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"ratio": 0.0}, "ratio=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
    ],
)
def test_noise_that_cannot_be_calibrated_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        private_knn.noise(10, dataclasses.replace(PrivateKNN(), **change))


def test_more_neighbours_than_records_are_refused():
    with pytest.raises(ValueError, match="num_neighbors=300 with 20"):
        asked(
            np.zeros((20, 2), np.float32),
            np.zeros(20, np.int32),
            questions(np.zeros((1, 2))),
            PrivateKNN(),
        )
    with pytest.raises(ValueError, match="num_neighbors=2 with 3 classes"):
        asked(
            np.zeros((20, 2), np.float32),
            np.zeros(20, np.int32),
            questions(np.zeros((1, 2))),
            PrivateKNN(num_neighbors=2),
        )
    with pytest.raises(ValueError, match="0 and 1"):
        private_knn.multi_label(
            jax.random.key(0),
            np.zeros((4, 2)),
            np.zeros(4),
            questions(np.zeros((1, 2))),
            PrivateKNN(),
            1.0,
        )
    with pytest.raises(ValueError, match="clip=0"):
        private_knn.clipped_attributes(np.ones((2, 2)), 0)

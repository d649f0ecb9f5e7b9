"""Reverse k-NN labeling against the slow transcription, and the property that the privacy proof
stands on.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import bsvs, postprocessing
from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.labelers._votes import Bound
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.mechanisms.base import check_counts
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.privacy import accounting, amplification, contributions
from rknn_jax.queries import kmeans
from rknn_jax.types import Queries
from tests import reference
from train.experiment import Experiment

NOISELESS = rknn.ReverseKNN(epsilon=math.inf, smoothing="none")
NEIGHBORS = st.sampled_from([1, 3])  # few, as each is compiled


def data(seed, n=40, s=6, num_classes=4):
    rng = np.random.default_rng(seed)
    public = rng.normal(size=(30, 5)).astype(np.float32)
    return (
        rng.normal(size=(n, 5)).astype(np.float32),
        rng.integers(0, num_classes, n),
        kmeans.select(jax.random.key(seed), public, s),
    )


@pytest.mark.long
@given(st.integers(0, 99), NEIGHBORS)
def test_without_noise_the_fast_path_equals_algorithm_1_exactly(seed, k):
    features, labels, queries = data(seed)
    config = dataclasses.replace(NOISELESS, num_neighbors=k)
    answers = config.release(
        jax.random.key(0), rknn.vote_cells(features, labels, queries, 4, config), queries, 4
    )
    counts, expected = reference.label(features, labels, np.asarray(queries.features), 4, k)
    np.testing.assert_array_equal(answers.counts, counts)
    np.testing.assert_array_equal(answers.labels, expected)
    np.testing.assert_array_equal(bsvs.gap(answers.counts), reference.gap(counts))


def test_several_labels_and_missing_ones_equal_the_transcription_too():
    features, _, queries = data(1)
    labels = (
        np.stack([np.random.default_rng(i).permutation(5)[:2] for i in range(40)]) - 1
    )  # about a fifth is missing
    cells = rknn.vote_cells(
        features, labels, queries, 4, dataclasses.replace(NOISELESS, num_neighbors=3)
    )
    counts, _ = reference.label(features, labels, np.asarray(queries.features), 4, 3)
    np.testing.assert_array_equal(bsvs.sum_votes(cells, 24).reshape(6, 4), counts)


@given(st.integers(0, 99), NEIGHBORS)
def test_replacing_one_record_by_any_other_moves_at_most_2k_votes(seed, k):
    features, labels, queries = data(seed)
    config = dataclasses.replace(NOISELESS, num_neighbors=k)
    before = bsvs.sum_votes(rknn.vote_cells(features, labels, queries, 4, config), 24)
    rng = np.random.default_rng(seed + 1)
    for scale in (0.0, 1.0, 1e4):
        features[7] = scale * rng.normal(size=5)
        labels[7] = rng.integers(0, 4)
        after = bsvs.sum_votes(rknn.vote_cells(features, labels, queries, 4, config), 24)
        change = np.abs(np.asarray(before) - np.asarray(after))
        assert change.sum() <= 2 * k
        assert change.max() <= 1


def test_a_record_that_comes_or_goes_moves_no_vote_of_another():
    features, labels, queries = data(3)
    with_it = np.asarray(rknn.vote_cells(features, labels, queries, 4, NOISELESS))
    without = np.asarray(
        rknn.vote_cells(np.delete(features, 5, 0), np.delete(labels, 5), queries, 4, NOISELESS)
    )
    np.testing.assert_array_equal(np.delete(with_it, 5, 0), without)


def test_more_queries_cost_no_more_privacy():
    features, labels, few = data(0)
    public = np.random.default_rng(9).normal(size=(150, 5)).astype(np.float32)
    config = rknn.ReverseKNN(epsilon=0.3, smoothing="none")
    costs = []
    for queries in (few, Queries.alone(public, np.arange(150))):
        costs.append(
            config.release(
                jax.random.key(1), rknn.vote_cells(features, labels, queries, 4, config), queries, 4
            )
        )
    assert costs[0].guarantee == costs[1].guarantee
    assert costs[0].stddev.max() == costs[1].stddev.max()


def test_the_answers_are_post_processing_of_the_noisy_counts_alone():
    """`answer` sees counts, public queries and the guarantee; equal noisy counts give equal
    answers whatever the private records were.
    """
    _, _, queries = data(0)
    counts = np.random.default_rng(0).normal(size=(6, 4)) * 10
    guarantee = _vote_mechanism.calibrated(6, 4, 1, rknn.ReverseKNN()).guarantee(1)
    first, second = (
        rknn.ReverseKNN().read(counts, np.full((6, 4), 28.0), guarantee, queries) for _ in range(2)
    )
    np.testing.assert_array_equal(first.labels, second.labels)
    np.testing.assert_allclose(first.probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(first.counts, counts.astype(np.float32))


def test_permute_and_flip_answers_are_its_winners():
    features, labels, queries = data(2)
    config = rknn.ReverseKNN(epsilon=1.0, mechanism="permute_and_flip")
    answers = config.release(
        jax.random.key(0), rknn.vote_cells(features, labels, queries, 4, config), queries, 4
    )
    np.testing.assert_array_equal(answers.counts.sum(1), 1)
    np.testing.assert_array_equal(answers.labels, answers.counts.argmax(1))
    assert answers.stddev.max() == 0


def test_more_neighbours_than_queries_is_refused_before_any_vote():
    features, labels, queries = data(0)
    with pytest.raises(ValueError, match="num_neighbors=9"):
        rknn.vote_cells(features, labels, queries, 4, rknn.ReverseKNN(num_neighbors=9))


def test_public_labels_spread_only_where_they_may():
    features = np.concatenate([np.zeros((20, 2)), np.full((20, 2), 9.0)]).astype(np.float32)
    features += np.random.default_rng(0).normal(size=features.shape).astype(np.float32)
    labels = np.eye(2, dtype=np.float32)[np.repeat([0, 1], 20)]
    wrong = labels.copy()
    wrong[[3, 30]] = labels[[30, 3]]
    graph = postprocessing.public_graph(features, 4)
    np.testing.assert_array_equal(
        postprocessing.public_labels(graph, wrong, 4).argmax(1), labels.argmax(1)
    )
    assert postprocessing.public_graph(features, 4, smoothing="none") is None
    assert postprocessing.public_graph(features, 40) is None, "every record is a query"
    np.testing.assert_array_equal(postprocessing.public_labels(None, wrong, 4), wrong)


def test_whom_the_records_trust_decides_what_epsilon_means():
    features, labels, queries = data(0)
    cells = rknn.vote_cells(features, labels, queries, 4, rknn.ReverseKNN())
    local, shuffled = (
        rknn.ReverseKNN(epsilon=1.0, delta=1e-6, mechanism="collision", trust=trust).release(
            jax.random.key(0), cells, queries, 4
        )
        for trust in ("local", "shuffle")
    )
    assert (local.guarantee.trust, local.guarantee.epsilon, local.guarantee.delta) == (
        "local",
        1.0,
        0.0,
    )
    assert (shuffled.guarantee.trust, shuffled.guarantee.epsilon, shuffled.guarantee.delta) == (
        "shuffle",
        1.0,
        1e-6,
    )
    ratio = lambda epsilon: Collision(epsilon, 6, 4).total_variation  # noqa: E731
    amplified = amplification.local_epsilon(1.0, 40, 1e-6, "variation ratio", ratio)
    assert amplified > 1
    expected = Collision(amplified, 6, 4).stddev(shuffled.counts, 40)
    np.testing.assert_allclose(shuffled.stddev, expected, rtol=1e-5)
    assert shuffled.stddev.max() < local.stddev.max()


def test_the_tighter_bound_is_the_default_and_the_general_one_can_be_named():
    """Golden: 60,000 messages of Collision for ten queries and ten classes at (0.1, 1e-6)."""
    shuffled = {"epsilon": 0.1, "delta": 1e-6, "mechanism": "collision", "trust": "shuffle"}
    for config, local, spread in (
        (rknn.ReverseKNN(**shuffled), 3.8742, 76.14),
        (rknn.ReverseKNN(**shuffled, amplification="general"), 3.2413, 103.82),
    ):
        found = _vote_mechanism.calibrated(10, 10, 60_000, config)
        assert found.epsilon == pytest.approx(local, abs=1e-4)
        assert found.mean_variance * 60_000 == pytest.approx(spread**2, rel=1e-3)
    assert (
        Experiment().labeler.amplification == rknn.ReverseKNN().amplification == "variation ratio"
    )


@pytest.mark.parametrize(
    ("name", "neighbors", "words"),
    [
        ("collision", 1, "variation ratio bound for an ideal hash"),
        ("wheel", 1, "variation ratio bound for an ideal hash"),
        ("local_hashing", 2, "variation ratio bound for an ideal hash"),
        ("collision", 2, "variation ratio bound"),
        ("subset_selection", 1, "variation ratio bound"),
    ],
)
def test_a_guarantee_tells_whether_its_bound_takes_the_hash_for_ideal(name, neighbors, words):
    config = rknn.ReverseKNN(
        epsilon=0.5, delta=1e-6, num_neighbors=neighbors, mechanism=name, trust="shuffle"
    )
    cost = _vote_mechanism.guarantee(_vote_mechanism.calibrated(6, 4, 1000, config), 1000, config)
    assert cost.accountant == f"amplification by shuffling, {words}"
    general = dataclasses.replace(config, amplification="general")
    assert (
        _vote_mechanism.guarantee(
            _vote_mechanism.calibrated(6, 4, 1000, general), 1000, general
        ).accountant
        == "amplification by shuffling, general bound"
    )


@pytest.mark.parametrize("name", ["collision", "wheel", "randomized_response"])
def test_the_variation_ratio_bound_lets_messages_say_more_for_the_same_guarantee(name):
    general, tighter = (
        rknn.ReverseKNN(
            epsilon=0.5, delta=1e-6, mechanism=name, trust="shuffle", amplification=bound
        )
        for bound in ("general", "variation ratio")
    )
    one, other = (_vote_mechanism.calibrated(6, 4, 10_000, config) for config in (general, tighter))
    assert other.epsilon > one.epsilon + 0.05
    cost = amplification.epsilon(
        other.epsilon, 10_000, 1e-6, "variation ratio", lambda _: other.total_variation
    )
    assert cost <= 0.5 + 1e-8
    assert "variation ratio bound" in _vote_mechanism.guarantee(other, 10_000, tighter).accountant


@pytest.mark.parametrize("bound", ["general", "variation ratio"])
def test_fewer_records_than_the_messages_were_calibrated_for_are_refused(bound):
    config = rknn.ReverseKNN(
        epsilon=1.0, delta=1e-6, mechanism="collision", trust="shuffle", amplification=bound
    )
    found = _vote_mechanism.calibrated(6, 4, 60_000, config)
    assert _vote_mechanism.guarantee(found, 60_000, config).epsilon == 1.0
    with pytest.raises(ValueError, match="got 50000"):
        _vote_mechanism.guarantee(found, 50_000, config)


def test_messages_that_only_shuffling_protects_need_no_amplification():
    config = rknn.ReverseKNN(epsilon=0.5, delta=1e-6, mechanism="multi_message", trust="shuffle")
    found = _vote_mechanism.calibrated(6, 4, 10_000, config)
    assert (found.epsilon, found.delta, found.num_clients) == (0.5, 1e-6, 10_000)
    assert _vote_mechanism.guarantee(found, 10_000, config) == found.guarantee(10_000)
    with pytest.raises(ValueError, match="trust=local, got mechanism=multi_message"):
        _vote_mechanism.calibrated(
            6, 4, 40, rknn.ReverseKNN(mechanism="multi_message", trust="local")
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trust": "local", "mechanism": "discrete_laplace"}, "mechanism=discrete_laplace"),
        ({"mechanism": "collision"}, "mechanism=collision"),
        (
            {"mechanism": "collision", "trust": "local", "relation": "add-remove"},
            "relation=add-remove",
        ),
    ],
)
def test_a_mechanism_of_another_trust_model_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        _vote_mechanism.calibrated(6, 4, 40, rknn.ReverseKNN(**changes))


def test_the_assignment_gives_each_query_another_label():
    queries = Queries(np.eye(3, dtype=np.float32), np.arange(3), np.arange(3), np.ones(3, np.int64))
    counts = np.float32(
        [[9, 8, 0], [9, 2, 1], [0, 1, 5]]
    )  # the first class has the most votes of two queries
    guarantee = DiscreteLaplace(1.0, 3, 3).guarantee(9)
    plain, assigned = (
        rknn.ReverseKNN(smoothing="none", decode=decode).read(
            counts, np.ones((3, 3)), guarantee, queries
        )
        for decode in ("argmax", "assignment")
    )
    assert plain.labels.tolist() == [0, 0, 2]
    assert assigned.labels.tolist() == [1, 0, 2]
    np.testing.assert_array_equal(assigned.probabilities, np.eye(3)[[1, 0, 2]])


def corners(n, seed):
    """Features around four corners, and the corners."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 4, n)
    places = np.float32([[0, 0], [0, 9], [9, 0], [9, 9]])
    return places[corner] + rng.normal(size=(n, 2)).astype(np.float32), corner


def test_arrays_are_labelled_in_one_call():
    """Clusters of one class get its label, and records of no class count nothing."""
    public, truth = corners(60, 0)
    private, labels = corners(400, 1)
    labels[:50] = -1
    labeler = rknn.ReverseKNN(epsilon=5.0)
    found = labeler.label(public, private, labels, 4, num_queries=8, key=jax.random.key(0))
    np.testing.assert_array_equal(found.labels, truth)
    assert (len(found.queries.features), found.answers.guarantee.epsilon) == (8, 5.0)
    assert found.answers.counts.sum() == pytest.approx(350, abs=30)
    again = labeler.label(public, private, labels, 4, num_queries=8, key=jax.random.key(0))
    np.testing.assert_array_equal(again.answers.counts, found.answers.counts)
    fresh = labeler.label(public, private, labels, 4, num_queries=8)
    assert not np.array_equal(fresh.answers.counts, found.answers.counts)


def test_arrays_that_do_not_fit_are_named():
    public, _ = corners(20, 0)
    private, labels = corners(30, 1)
    labeler = rknn.ReverseKNN()
    with pytest.raises(ValueError, match=r"shapes \(20, 2\), \(30, 2\) and \(29,\)"):
        labeler.label(public, private, labels[1:], 4)
    with pytest.raises(ValueError, match=r"\(30, 1\)"):
        labeler.label(public, private[:, :1], labels, 4)
    with pytest.raises(ValueError, match=r"and \(30, 1\)"):
        labeler.label(public, private, labels[:, None], 4)
    given = {"public": public, "private": private, "labels": labels, "person": labels}
    for name, array in given.items():
        with pytest.raises(ValueError, match=f"without a mask in {name}.*{name}.filled"):
            labeler.label(**given | {name: np.ma.masked_array(array)}, num_classes=4)
    for name in ("public", "private"):
        with pytest.raises(ValueError, match=f"numbers in {name}, got an array of object"):
            labeler.label(**given | {name: given[name].astype(object)}, num_classes=4)
    given["public"] = public.copy()
    given["public"][3, 0] = np.nan
    with pytest.raises(ValueError, match="public has NaN or infinite values in 1 rows"):
        labeler.label(**given, num_classes=4)
    with pytest.raises(ValueError, match="num_queries=21"):
        labeler.label(public, private, labels, 4, num_queries=21)


def test_rows_and_labels_of_no_use_cast_no_vote():
    public, truth = corners(60, 0)
    private, labels = corners(400, 1)
    private[:100] = np.nan
    labels[100:200] += 2**40
    found = rknn.ReverseKNN(epsilon=5.0).label(public, private, labels, 4, num_queries=8)
    assert found.answers.counts.sum() == pytest.approx(200, abs=30)
    for wrong in (labels + 0.5, labels.astype(str), labels[:0]):
        with pytest.raises(ValueError, match=r"integer labels|labels \[n\]"):
            rknn.ReverseKNN().label(public, private[: len(wrong)], wrong, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    "labeler",
    [
        rknn.ReverseKNN(num_neighbors=2),
        rknn.ReverseKNN(mechanism="gaussian"),
        pytest.param(PrivateKNN(num_neighbors=50, sampling_prob=0.2), marks=pytest.mark.long),
        pytest.param(PATE(num_teachers=50), marks=pytest.mark.long),
        PATE(num_teachers=50, aggregator="lnmax"),
    ],
    ids=["rknn", "gaussian", "private_knn", "pate", "lnmax"],
)
def test_rounds_together_cost_what_was_asked(labeler):
    """An even share of epsilon would leave a third of it unused."""
    epsilon, delta, rounds = 2.0, 1e-5, 4
    even = labeler.for_round(epsilon, delta, "replace-one", "auto", rounds)
    shared = even.sharing(epsilon, delta * (1 - 1e-12), rounds, 1000, 20, 5)
    costs = [
        accounting.compose([one.guarantee_of(1000, 20, 5)] * rounds, delta).epsilon
        for one in (even, shared)
    ]
    assert 0.99 * epsilon < costs[1] <= epsilon
    assert costs[0] < 0.9 * epsilon
    assert even.sharing(epsilon, delta, 1, 1000, 20, 5) == even


def test_rounds_without_a_delta_and_after_shuffling_share_evenly():
    pure = rknn.ReverseKNN().for_round(2.0, 0.0, "replace-one", "auto", 4)
    assert pure.sharing(2.0, 0.0, 4, 1000, 20, 5).epsilon == 0.5
    shuffled = rknn.ReverseKNN(trust="shuffle").for_round(2.0, 1e-5, "replace-one", "auto", 4)
    assert shuffled.sharing(2.0, 1e-5, 4, 1000, 20, 5).epsilon == 0.5


def test_a_record_counts_as_one_and_a_person_in_units_of_a_grid():
    queries = data(0)[2]
    records = rknn.ReverseKNN()
    persons = dataclasses.replace(records, unit="person")
    assert records.bounded_tally(queries, 4, None, 0).bound is None
    assert persons.bounded_tally(queries, 4, 3, 9).bound == Bound(3, 9, 1)
    grids = [one.exact(6, 4, most).mechanism.grid for one, most in ((records, None), (persons, 3))]
    assert grids == [1, 3]
    assert persons.exact(6, 4).mechanism.grid == contributions.GRID


@pytest.mark.parametrize("setting", [{"smoothing": "none"}, {"decode": "assignment"}])
def test_counts_that_are_not_shared_have_no_decoder(setting):
    public = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    queries = kmeans.select(jax.random.key(0), public, 6)
    one = dataclasses.replace(rknn.ReverseKNN(), **setting)
    assert one.public_side(queries, public, 4, "none").kernels is None


@pytest.mark.parametrize("totals", [np.int64([1 << 62] * 4), np.uint64([1 << 63] * 2 + [0] * 2)])
def test_votes_whose_sum_wraps_around_to_zero_are_refused(totals):
    mechanism = DiscreteLaplace(epsilon=1.0, num_queries=2, num_classes=2)
    check_counts(mechanism, np.ones((2, 2), totals.dtype), num_records=4)
    with pytest.raises(ValueError, match="Expected integer votes"):
        check_counts(mechanism, totals.reshape(2, 2), num_records=4)

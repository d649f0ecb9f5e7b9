"""DiversePublic against a straightforward reference, what it does where clusters are small, and
the baselines of uncertainty.
"""

import math

import jax
import numpy as np
import pytest

from rknn_jax.queries import diverse_public, kmeans, most_uncertain, uncertainty

RNG = np.random.default_rng(0)


def predictions(confidence):
    """Two classes, of which one has the given probability."""
    confidence = np.asarray(confidence, np.float64)
    return np.stack([confidence, 1 - confidence], axis=1)


def blobs(sizes, spread=0.3):
    """Groups far from each other: features `[n, 6]` and the group of each."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    return (20 * np.eye(6)[group] + RNG.normal(0, spread, (len(group), 6))).astype(
        np.float32
    ), group


def reference(features, probabilities, num_queries, candidates, components, per_cluster, group):
    """Steps 1 to 6 by loops in float64, where the clusters are known: the records of each that
    are nearest its mean.
    """
    features = [list(map(float, row)) for row in features]
    mean = np.mean(features, axis=0)
    directions = np.linalg.svd(np.asarray(features) - mean, full_matrices=False)[2][:components]
    entropy = [-sum(p * math.log(p) for p in row if p > 0) for row in probabilities]
    uncertain = sorted(range(len(features)), key=lambda i: (-entropy[i], i))[
        : num_queries + candidates
    ]
    points = {i: directions @ (np.asarray(features[i]) - mean) for i in uncertain}
    chosen = set()
    for name in set(group[uncertain]):
        members = [i for i in uncertain if group[i] == name]
        centre = np.mean([points[i] for i in members], axis=0)
        chosen |= set(
            sorted(members, key=lambda i: float(np.sum((points[i] - centre) ** 2)))[:per_cluster]
        )
    return chosen, set(uncertain)


CLUSTERING = kmeans.Config(num_starts=10)


def test_it_is_the_reference_where_clusters_are_plain():
    features, group = blobs([30, 30, 30, 30])
    probabilities = predictions(RNG.uniform(0.5, 1, len(features)))
    config = diverse_public.Config(
        candidates=60, components=4, per_cluster=5, clustering=CLUSTERING
    )
    chosen = diverse_public.select(jax.random.key(0), features, probabilities, 20, config)
    expected, _ = reference(features, probabilities, 20, 60, 4, 5, group)
    assert len(expected) == 20
    assert set(chosen.index.tolist()) == expected
    np.testing.assert_array_equal(chosen.features, features[chosen.index])
    assert np.bincount(group[chosen.index]).tolist() == [5, 5, 5, 5]


@pytest.mark.long
def test_small_clusters_give_all_that_they_have_and_the_rest_is_drawn_from_the_uncertain():
    features, group = blobs([2, 3, 40, 40])
    probabilities = predictions(np.linspace(0.5, 0.9, len(features)))
    config = diverse_public.Config(
        candidates=40, components=4, per_cluster=5, clustering=CLUSTERING
    )
    drawn = set()
    for seed in range(8):
        chosen = diverse_public.select(jax.random.key(seed), features, probabilities, 20, config)
        near, uncertain = reference(features, probabilities, 20, 40, 4, 5, group)
        assert len(near) == 2 + 3 + 5 + 5
        index = set(chosen.index.tolist())
        assert near <= index <= uncertain
        assert len(index) == len(chosen.index) == 20
        drawn |= {frozenset(index - near)}
    assert len(drawn) > 1, "another key fills up with others"


def test_what_floor_leaves_over_is_drawn():
    features, _ = blobs([30, 30])
    config = diverse_public.Config(candidates=20, components=2, per_cluster=4)
    chosen = diverse_public.select(
        jax.random.key(0), features, predictions(RNG.uniform(0.5, 1, 60)), 11, config
    )
    assert len(set(chosen.index.tolist())) == 11


def test_records_that_are_all_alike_are_chosen_all_the_same():
    config = diverse_public.Config(candidates=5, components=2, per_cluster=2)
    chosen = diverse_public.select(
        jax.random.key(0), np.ones((20, 3), np.float32), predictions(np.full(20, 0.5)), 10, config
    )
    assert len(set(chosen.index.tolist())) == 10


def test_it_is_more_diverse_than_uncertainty_alone():
    """One kind of record, a tenth of the pool, is the least sure: uncertainty alone buys nothing
    else.
    """
    features, group = blobs([10, 30, 30, 30])
    probabilities = predictions(np.where(group == 0, 0.5, RNG.uniform(0.6, 0.8, 100)))
    diverse = diverse_public.select(
        jax.random.key(0),
        features,
        probabilities,
        10,
        diverse_public.Config(50, components=4, per_cluster=2, clustering=CLUSTERING),
    )
    alike = most_uncertain.select(jax.random.key(0), features, probabilities, 10)
    assert set(group[alike.index]) == {0}
    assert set(group[diverse.index]) == {0, 1, 2, 3}


# Uncertainty.


def test_scores_are_entropy_and_the_lead_of_the_first_class():
    probabilities = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [1.0, 0.0, 0.0]])
    entropy = [-sum(p * math.log(p) for p in row if p) for row in probabilities]
    np.testing.assert_allclose(uncertainty.score(probabilities), entropy, rtol=1e-12)
    np.testing.assert_allclose(
        uncertainty.score(probabilities, "difference"), [-0.2, 0.0, -1.0], atol=1e-12
    )


def test_the_most_uncertain_come_in_their_order_and_measures_differ():
    probabilities = np.array(
        [[0.45, 0.44, 0.11], [0.36, 0.33, 0.31], [0.9, 0.06, 0.04], [0.5, 0.5, 0.0]]
    )
    features = np.eye(4, 5, dtype=np.float32)
    by_entropy, by_difference = (
        most_uncertain.select(
            jax.random.key(0), features, probabilities, 3, most_uncertain.Config(measure)
        ).index.tolist()
        for measure in ("entropy", "difference")
    )
    assert by_entropy == [1, 0, 3]
    assert by_difference == [3, 0, 1]


def test_equally_uncertain_records_come_in_the_order_of_the_pool():
    chosen = most_uncertain.select(
        jax.random.key(0), np.zeros((5, 1), np.float32), predictions([0.7, 0.6, 0.7, 0.6, 0.7]), 4
    )
    assert chosen.index.tolist() == [1, 3, 0, 2]


# Bad input.


@pytest.mark.parametrize(
    ("num_records", "num_queries", "config", "words"),
    [
        (0, 5, {}, "with 0 public records"),
        (20, 0, {}, "num_queries=0"),
        (20, 21, {"candidates": 0}, "num_queries=21 .* 20 public records"),
        (20, 15, {"candidates": 6}, "candidates=6"),
        (20, 3, {"per_cluster": 4}, "per_cluster=4"),
        (20, 10, {"components": 4}, "components=4"),
    ],
    ids=str,
)
def test_what_a_pool_cannot_give_is_named(num_records, num_queries, config, words):
    config = diverse_public.Config(**{"candidates": 5, "components": 2, "per_cluster": 2, **config})
    with pytest.raises(ValueError, match=words):
        diverse_public.select(
            jax.random.key(0),
            np.zeros((num_records, 3), np.float32),
            predictions(np.full(num_records, 0.5)),
            num_queries,
            config,
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [("candidates", -1), ("components", 0), ("per_cluster", 0), ("measure", "margin")],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        diverse_public.Config(**{name: value})


def test_measures_that_nobody_knows_are_named():
    with pytest.raises(ValueError, match="measure='margin'"):
        most_uncertain.Config("margin")
    with pytest.raises(ValueError, match="measure='margin'"):
        uncertainty.score(predictions([0.5]), "margin")


@pytest.mark.parametrize(
    "probabilities",
    [np.ones(5), np.ones((5, 1)), np.full((5, 2), np.nan), -np.ones((5, 2))],
    ids=str,
)
def test_what_are_no_probabilities_is_refused(probabilities):
    with pytest.raises(ValueError, match="Expected probabilities"):
        uncertainty.score(probabilities)


def test_a_prediction_for_each_record_is_needed():
    with pytest.raises(ValueError, match="got 5 for 6"):
        uncertainty.candidates(np.zeros((6, 2)), predictions(np.full(5, 0.5)), 2)

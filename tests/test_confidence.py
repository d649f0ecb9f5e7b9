"""Confidence: nothing heard is said to be nothing, what is heard is said, and an assignment is
not said to be certain.
"""

import numpy as np
import pytest

from rknn_jax import postprocessing
from rknn_jax.labelers import _confidence


def clusters(rng, votes, purity, num_classes=10):
    """Return true counts of as many clusters as classes, whose first class is in a random order."""
    shares = np.full((num_classes, num_classes), (1 - purity) / (num_classes - 1))
    shares[np.arange(num_classes), rng.permutation(num_classes)] = purity
    return votes * shares


def said_and_true(decode, stddev, purity=0.8, runs=60):
    """Return the mean confidence and the part of labels that are those without noise."""
    rng = np.random.default_rng(0)
    said = []
    true = []
    for _ in range(runs):
        counts = clusters(rng, 100.0, purity)
        noisy = counts + rng.normal(0, stddev, counts.shape)
        spread = np.full(counts.shape, stddev)
        expected = np.full(10, 100.0)
        if decode == "argmax":
            labels = postprocessing.noisy_max(noisy)
            truth = postprocessing.noisy_max(counts)
            said.append(_confidence.of_argmax(noisy, spread, expected, labels))
        else:
            labels = postprocessing.assignment(noisy)
            truth = postprocessing.assignment(counts)
            said.append(_confidence.of_assignment(noisy, spread, expected, labels))
        true.append(labels == truth)
    return float(np.mean(said)), float(np.mean(true))


@pytest.mark.long
@pytest.mark.parametrize("decode", ["argmax", "assignment"])
@pytest.mark.parametrize("stddev", [5.0, 25.0, 40.0, 1000.0])
def test_confidence_is_the_part_of_labels_that_noise_left_alone(decode, stddev):
    """600 labels a case: 0.08 are 4 standard errors of a part of one half, and 13 of those that
    nothing or all is heard of.
    """
    said, true = said_and_true(decode, stddev)
    assert said < true + 0.08, "never said too much"
    if stddev in (5.0, 1000.0):
        assert said == pytest.approx(true, abs=0.08)


def test_an_assignment_says_less_where_two_classes_could_change_places():
    counts = np.array([[50.0, 50, 0], [50, 50, 0], [0, 0, 100]])
    sure = _confidence.of_assignment(
        counts, np.full((3, 3), 5.0), np.full(3, 100.0), np.int32([0, 1, 2])
    )
    np.testing.assert_allclose(sure, [0.5, 0.5, 1], atol=0.2)


def test_a_query_with_a_count_without_noise_is_certain():
    found = postprocessing.posterior(np.float32([[5, 4], [4, 5]]), np.float32([[0, 1], [1, 0]]))
    np.testing.assert_array_equal(found, [[1, 0], [0, 1]])


def test_without_noise_both_are_certain():
    counts = np.diag([5.0, 6, 7])
    labels = np.int32([0, 1, 2])
    none = np.zeros((3, 3))
    expected = np.full(3, 6.0)
    np.testing.assert_array_equal(_confidence.of_argmax(counts, none, expected, labels), 1)
    np.testing.assert_array_equal(_confidence.of_assignment(counts, none, expected, labels), 1)


def test_the_leaders_probability_is_bayes_rule():
    """Against all classes and shares one by one, with noise that differs between cells."""
    rng = np.random.default_rng(3)
    heard = rng.normal(20, 30, (4, 5))
    stddev = rng.uniform(10, 40, (4, 5))
    expected = rng.uniform(20, 90, 4)
    blocks = _confidence._blocks(heard, stddev, expected)
    found = _confidence._leader(*blocks[0], _confidence._of_others(blocks))
    leading, other = _confidence._shares(5)
    slow = np.empty_like(found)
    for query, leader, share in np.ndindex(*found.shape):
        mean = np.full(5, other[share])
        mean[leader] = leading[share]
        slow[query, leader, share] = np.exp(
            -0.5 * np.sum(((heard[query] - expected[query] * mean) / stddev[query]) ** 2)
        )
    whichever = slow.sum(axis=1)  # the others may be led by any class, with the same share
    slow *= np.stack([np.prod(np.delete(whichever, query, axis=0), axis=0) for query in range(4)])[
        :, None
    ]
    np.testing.assert_allclose(found, slow / slow.sum(axis=(1, 2), keepdims=True), rtol=1e-9)


def test_blocks_of_queries_change_nothing(monkeypatch):
    rng = np.random.default_rng(4)
    heard = rng.normal(20, 30, (7, 5))
    stddev = rng.uniform(10, 40, (7, 5))
    expected = rng.uniform(20, 90, 7)
    labels = postprocessing.noisy_max(heard)
    whole = _confidence.of_argmax(heard, stddev, expected, labels)
    monkeypatch.setattr(postprocessing, "LARGEST_GRID", 300)
    np.testing.assert_allclose(
        _confidence.of_argmax(heard, stddev, expected, labels), whole, rtol=1e-6
    )


def test_no_votes_expected_say_one_in_all_classes():
    sure = _confidence.of_argmax(
        np.array([[9.0, 0, -9, 1]]), np.full((1, 4), 5.0), np.zeros(1), np.int32([0])
    )
    np.testing.assert_allclose(sure, 0.25, rtol=1e-6)

"""Labels between public rows: what they say at a place, whatever other places are asked about."""

import tracemalloc

import numpy as np
import pytest

from rknn_jax import interpolation
from rknn_jax.interpolation import Interpolator
from rknn_jax.label_sets import LabelSets
from tests.conftest import crossed

NUM_CLASSES = 3
CENTERS = np.random.default_rng(0).normal(size=(NUM_CLASSES, 16))


def overlapping(num_rows, seed):
    """Return rows of classes that overlap, and their most likely class, by the law of the rows."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, NUM_CLASSES, num_rows)
    rows = (CENTERS[classes] + 1.8 * rng.normal(size=(num_rows, 16))).astype(np.float32)
    return rows, classes


def likely(rows):
    """Return the probabilities of the classes at rows."""
    apart = ((rows[:, None] - CENTERS) ** 2).sum(axis=2) / 1.8**2
    odds = np.exp(-apart / 2)
    return (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)


ROWS, CLASSES = overlapping(900, 1)
RADIAL = Interpolator(ROWS, "sqeuclidean")
"""Rows whose labels radial features predict best."""


def test_agreement_is_the_share_of_right_public_labels_where_a_mean_of_rows_is_not():
    """A false alarm takes five standard deviations of 4,000 records."""
    probabilities = likely(ROWS)
    right = np.mean(probabilities.argmax(axis=1) == CLASSES)
    private, labels = overlapping(4000, 2)
    found = RADIAL.agreement(private, labels, probabilities, smooth=True).mean()
    assert abs(found - right) < 5 * np.sqrt(0.25 / 4000 + 0.25 / 900) * 0.6
    of_rows = np.mean(RADIAL._mean(private, probabilities, interpolation.NEAR).argmax(1) == labels)
    assert of_rows < found - 0.02
    of_one = RADIAL.agreement(private, labels, probabilities, smooth=False).mean()
    assert of_one < found - 0.05


@pytest.mark.long
@crossed(metric=["sqeuclidean", "cosine"], smooth=[True, False])
def test_a_place_has_the_same_labels_whatever_other_places_there_are(metric, smooth):
    function = Interpolator(ROWS, metric).between(likely(ROWS), smooth=smooth)
    places = overlapping(700, 3)[0]
    whole = function(places)
    rng = np.random.default_rng(4)
    for count in (1, 2, 7, 64, 255, 256, 257, 600):
        chosen = rng.permutation(len(places))[:count]
        assert np.array_equal(function(places[chosen]), whole[chosen]), count
    others = 1e3 * rng.normal(size=places.shape).astype(np.float32)
    others[100:200] = places[100:200]
    assert np.array_equal(function(others)[100:200], whole[100:200])
    assert np.array_equal(function(np.asfortranarray(places)), whole)


@pytest.mark.long
def test_rows_that_a_regression_did_not_see_are_predicted_as_by_another_fit():
    wanted = likely(ROWS).astype(np.float64) - 1 / NUM_CLASSES
    for radial in RADIAL._radial:
        found = radial.unseen(wanted)
        features = (radial.factor @ radial.white).T
        square = features.T @ features
        penalty = interpolation.RIDGE * np.trace(square) / len(square) * np.eye(len(square))
        for row in (0, 1, 450, 899):
            rest = np.arange(len(ROWS)) != row
            seen, labels = features[rest], wanted[rest]
            again = np.linalg.solve(seen.T @ seen + penalty, seen.T @ labels)
            assert features[row] @ again == pytest.approx(found[row], abs=1e-5)


def test_labels_at_rows_are_those_of_a_float64_regression():
    probabilities = likely(ROWS)
    found = RADIAL.between(probabilities, smooth=True)(ROWS[:50])
    mean = probabilities.mean(axis=0, dtype=np.float64)
    landmarks = ROWS[np.linspace(0, 899, 512).astype(int)].astype(np.float64)
    apart = ((ROWS[:50, None].astype(np.float64) - landmarks) ** 2).sum(axis=2)
    fits = [
        np.exp(-one.scale * apart) @ one.weights(probabilities - mean) for one in RADIAL._radial
    ]
    assert min(np.abs(mean + one - found).max() for one in fits) < 1e-3


def test_labels_that_hold_for_small_groups_are_taken_from_the_rows_nearby():
    """Twenty times as many groups as landmarks: no regression has room for them."""
    rng = np.random.default_rng(5)
    groups = rng.normal(size=(3000, 8))
    classes = rng.integers(0, 2, 3000)
    rows = np.repeat(groups, 6, axis=0) + 1e-3 * rng.normal(size=(18_000, 8))
    between = Interpolator(rows.astype(np.float32), "sqeuclidean")
    probabilities = np.eye(2, dtype=np.float32)[np.repeat(classes, 6)]
    places = (groups + 1e-3 * rng.normal(size=groups.shape)).astype(np.float32)
    assert between.agreement(places, classes, probabilities, smooth=True).all()


def test_a_set_agrees_if_all_of_it_does():
    rows = np.repeat(np.eye(4, dtype=np.float32), 10, axis=0)
    sets = np.repeat(np.float32([[1, 0, 0], [0.9, 0, 0.7], [0, 0.4, 0], [0, 0, 1]]), 10, axis=0)
    ballots = np.array([[0, -1, 3], [0, -1, 3], [-1, -1, 3], [1, 2, 3]], np.int32)
    between = Interpolator(rows, "sqeuclidean")
    for smooth in (True, False):
        found = between.agreement(rows[::10], ballots, sets, smooth=smooth)
        assert found.tolist() == [True, False, True, False]


@pytest.mark.parametrize("smooth", [True, False])
def test_a_class_that_is_as_likely_as_not_is_in_no_set_as_in_the_released_ones(smooth):
    rows = np.eye(2, 3, dtype=np.float32)
    likely = np.float32([[0.5, 0.1], [0.5, 0.1]])
    assert not LabelSets(likely, likely, likely[:, 0]).present.any()
    nobody = np.full((2, 2), [-1, 2], np.int32)
    assert Interpolator(rows, "sqeuclidean").agreement(rows, nobody, likely, smooth=smooth).all()


def test_the_nearest_row_alone_says_the_label_of_a_query():
    rows = np.arange(6, dtype=np.float32)[:, None]
    probabilities = np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1, 1]]
    places = np.float32([[0.4], [2.4], [2.6], [9.0]])
    between = Interpolator(rows, "sqeuclidean")
    found = between.between(probabilities, smooth=False)(places)
    assert found.argmax(axis=1).tolist() == [0, 0, 1, 1]


def test_lengths_do_not_matter_under_cosine():
    between = Interpolator(ROWS, "cosine").between(likely(ROWS), smooth=True)
    places = overlapping(100, 6)[0]
    assert np.allclose(between(places), between(places * np.float32(8)), atol=1e-6)
    assert np.isfinite(between(np.zeros((1, 16), np.float32))).all()


@pytest.mark.parametrize(
    "rows",
    [np.zeros((1, 2)), np.zeros((2, 2)), np.zeros((9, 2)), np.arange(6).reshape(3, 2), 1e17 * ROWS],
    ids=["one", "two equal", "nine equal", "three", "huge"],
)
def test_few_equal_and_huge_rows_have_labels_between_them(rows):
    rows = np.asarray(rows, np.float32)
    probabilities = np.tile(np.float32([0.25, 0.75]), (len(rows), 1))
    between = Interpolator(rows, "sqeuclidean")
    for smooth in (True, False):
        places = np.concatenate([rows[:2], np.full_like(rows[:1], 7)])
        found = between.between(probabilities, smooth=smooth)(places)
        assert found == pytest.approx(np.tile([0.25, 0.75], (len(places), 1)), abs=1e-5)


def test_no_record_is_asked_about():
    function = RADIAL.between(likely(ROWS), smooth=True)
    assert function(np.zeros((0, 16), np.float32)).shape == (0, NUM_CLASSES)


@crossed(smooth=[True, False], several=[True, False])
def test_agreement_takes_no_memory_for_each_class_of_each_record(smooth, several):
    """A release has been paid for by then, and the server that asks a client may be hostile."""
    rng = np.random.default_rng(7)
    rows, num_classes = ROWS[:40], 600
    probabilities = rng.random((40, num_classes), np.float32)
    between = Interpolator(rows, "sqeuclidean")
    places = rng.normal(size=(20_000, 16)).astype(np.float32)
    classes = rng.integers(0, num_classes, (20_000, 4), np.int32)
    ids = classes if several else classes[:, 0]
    between.agreement(places[:300], ids[:300], probabilities, smooth=smooth)
    tracemalloc.start()
    found = between.agreement(places, ids, probabilities, smooth=smooth)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * num_classes * len(places) * 0.75
    said = between.between(probabilities, smooth=smooth, several=several)(places[:50])
    if not several:
        assert np.array_equal(found[:50], said.argmax(axis=1) == ids[:50])


def test_few_rows_with_many_classes_take_no_more_memory_than_they_are():
    rows = np.arange(16, dtype=np.float32)[:, None]
    between = Interpolator(rows, "sqeuclidean")
    wanted = np.zeros((16, 2**14), np.float32)
    wanted[:8, 0] = wanted[8:, 1] = 1
    tracemalloc.start()
    _, fitted = between._best(wanted, smooth=True, several=False)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fitted.weights.shape == wanted.shape
    assert most < 16 * wanted.nbytes
    assert between.agreement(rows, wanted.argmax(axis=1), wanted, smooth=True).all()

"""Hostile records through every labeler.

Each hostile record is one among ordinary ones. It moves what one record may, the parts of all
others stay the same, and nothing is raised or warned of, since that would tell of the record.
"""

import dataclasses
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rknn_jax.labelers import _distillation, _pate_teachers, individual_knn, pate, private_knn
from rknn_jax.labelers._sampled_neighbors import nearest_in_samples
from rknn_jax.labelers.dpdfd import SMALL, teachers
from rknn_jax.labelers.individual_knn import IndividualKNN
from rknn_jax.labelers.least_squares import LeastSquares
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.labelers.pate import PATE
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.labelers.public_prototypes import PublicPrototypes
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.students import dpsgd
from rknn_jax.types import Queries, Records
from tests.conftest import crossed

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # other tests'
]

NUM_RECORDS, WIDTH, CLASSES = 60, 5, 3
RANDOM = np.random.default_rng(0)
PUBLIC = RANDOM.normal(size=(8, WIDTH)).astype(np.float32)
QUERIES = Queries.alone(PUBLIC, np.arange(len(PUBLIC)))
FEATURES = RANDOM.normal(size=(NUM_RECORDS, WIDTH))
LABELS = RANDOM.integers(0, CLASSES, NUM_RECORDS)
PERSONS = np.arange(NUM_RECORDS) // 2

NUMBERS = (np.nan, np.inf, -np.inf, 1e38, -3e38, 1e308, -1e308, 2e19, 1e-45, 1e-310, -0.0)
ROWS = [
    *(np.full(WIDTH, number) for number in NUMBERS),
    *(np.array([0, number, 0, 0, 1]) for number in (np.nan, np.inf, 1e38, 1e308)),
    np.array([1e308, -1e308, np.inf, np.nan, 0]),
    PUBLIC[3].astype(np.float64),  # a duplicate of a query
    FEATURES[7],  # a duplicate of another record
]
OTHER_LABELS = (-1, CLASSES, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**63), -(2**32))
"""Labels of no class. Some of them are a class once they are cut to 32 bits."""

CASES = [(row, 1) for row in ROWS] + [(ROWS[11], label) for label in OTHER_LABELS]


def hostile(row, label, place=0):
    """Return the records with another one in a place."""
    features, labels = FEATURES.copy(), LABELS.copy()
    features[place], labels[place] = row, label
    return features, labels


def contributed(labeler, features, labels, key=0):
    records = Records(features, labels, PERSONS)
    encode = np.asarray
    return labeler.contribute(jax.random.key(key), records, encode, QUERIES, CLASSES)


# One sum


@pytest.mark.parametrize(
    "labeler",
    [
        ReverseKNN(num_neighbors=2),
        ReverseKNN(num_neighbors=2, metric="cosine"),
        ReverseKNN(num_neighbors=2, unit="person"),
        Prototypes(),
        Prototypes(unit="person"),
        LeastSquares(),
        PublicPrototypes(),
    ],
    ids=str,
)
def test_a_sum_gets_the_part_of_a_hostile_record_and_the_same_of_all_others(labeler):
    """A label of no class leaves the sum as it is, and so does any record beside the others."""

    def part(features, labels):
        found = contributed(labeler, features, labels)
        return found if isinstance(found, jax.Array) else np.asarray(found.totals, np.int64)

    person = PERSONS if labeler.unit == "person" else np.arange(NUM_RECORDS)
    mine = person == person[0]
    without = part(FEATURES, np.where(mine, -1, LABELS))
    for row, label in CASES:
        features, labels = hostile(row, label)
        moved = np.asarray(part(features, labels)) - np.asarray(without)
        alone = part(features, np.where(mine, labels, -1))
        nothing = part(features, np.full(NUM_RECORDS, -1))
        np.testing.assert_array_equal(moved, np.asarray(alone) - np.asarray(nothing))
        if label != 1 and labeler.unit == "record":
            assert not moved.any(), (row, label)


@pytest.mark.long
def test_labels_of_arrays_do_not_tell_of_a_hostile_record():
    """Through the one call for arrays, with features as they come."""
    for row, label in CASES:
        features, labels = hostile(row, label)
        done = ReverseKNN(epsilon=math.inf).label(PUBLIC, features, labels, CLASSES, num_queries=4)
        assert done.labels.shape == (len(PUBLIC),)


# Private-kNN


@pytest.mark.long
@crossed(unit=["person", "record"], implementation=[None, "xla"])
def test_private_knn_gives_a_hostile_record_one_place_and_one_vote(
    unit, implementation, monkeypatch
):
    """Without sampling: at each query the others that vote are the nearest k, or k - 1."""
    search = partial(nearest_in_samples, implementation=implementation)
    monkeypatch.setattr(private_knn, "nearest_in_samples", search)
    k = 9
    labeler = PrivateKNN(num_neighbors=k, sampling_prob=1.0, unit=unit)
    names = PERSONS if unit == "person" else np.arange(NUM_RECORDS)
    apart = ((PUBLIC[:, None].astype(np.float64) - FEATURES[None]) ** 2).sum(axis=2)
    for row, label in CASES:
        votes = contributed(labeler, *hostile(row, label))
        np.testing.assert_array_equal(votes.screened, votes.counted)
        for query, counts in enumerate(votes.counted):
            order = [i for i in np.argsort(apart[query]) if names[i] != names[0]]
            first = [i for place, i in enumerate(order) if names[i] not in names[order[:place]]]
            all_others = np.bincount(LABELS[first[:k]], minlength=CLASSES)
            most = np.bincount(LABELS[first[: k - 1]], minlength=CLASSES)
            mine = counts - most
            one = mine.sum() in (0, 1) and mine.min() >= 0 and (label == 1 or not mine.any())
            one = one or (unit == "person" and mine.sum() == 1 and mine.min() >= 0)
            assert np.array_equal(counts, all_others) or one, (row, label, query)


@pytest.mark.long
@pytest.mark.parametrize("person", [None, PERSONS], ids=["record", "person"])
def test_private_knn_keeps_the_order_of_others_in_each_sample(person):
    """Samples are drawn first, so that with one key they have the same members."""
    names = np.arange(NUM_RECORDS) if person is None else person

    def found(features):
        key, k = jax.random.key(1), 4
        return nearest_in_samples(key, PUBLIC, features, k, 0.1, 5, person).reshape(-1, k)

    before = found(FEATURES)
    for place, row in itertools.product((0, 13, NUM_RECORDS - 1), ROWS):
        after = found(hostile(row, 1, place)[0])
        for own, other in zip(after, before, strict=True):
            kept, expected = (
                [i for i in each if i >= 0 and names[i] != names[place]] for each in (own, other)
            )
            least = min(len(kept), len(expected))
            assert kept[:least] == expected[:least], (place, row)
            assert abs(len(kept) - len(expected)) <= 1
            assert len(set(names[own[own >= 0]])) == (own >= 0).sum()


# Individual kNN


@pytest.mark.parametrize("unit", ["record", "person"])
def test_individual_knn_adds_at_most_a_vote_of_length_1_for_a_hostile_record(unit):
    labeler = IndividualKNN(unit=unit)
    plan = labeler.plan(QUERIES, CLASSES)

    def steps(votes):
        return list(individual_knn.steps(votes, QUERIES, plan, CLASSES, lambda i, n: 40.0))

    person = PERSONS if unit == "person" else np.arange(NUM_RECORDS)
    mine = person == person[0]
    without = steps(contributed(labeler, FEATURES, np.where(mine, -1, LABELS)))
    for row, label in CASES:
        features, labels = hostile(row, label)
        whole = steps(contributed(labeler, features, labels))
        for step, rest in zip(whole, without, strict=True):
            assert step.neighbors - rest.neighbors in (0, 1)
            assert np.linalg.norm(step.votes - rest.votes) <= 1 + 1e-9, (row, label)
            if unit == "record" and label != 1:
                np.testing.assert_array_equal(step.votes, rest.votes)


# PATE


@pytest.mark.long
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_pate_gives_a_hostile_record_its_own_teacher(relation):
    labeler = PATE(num_teachers=6, hidden=0, steps=3, relation=relation)
    key = jax.random.key(2)
    part = pate.parts_of(key, Records(FEATURES, LABELS), labeler)

    def said(features, labels):
        training = labeler.training
        return _pate_teachers.predictions(key, features, labels, part, 6, PUBLIC, CLASSES, training)

    without = said(*hostile(FEATURES[0], -1))
    others = np.arange(6) != part[0]
    for row, label in CASES:
        votes = said(*hostile(row, label))
        np.testing.assert_array_equal(votes[others], without[others])
        assert (0 <= votes).all(), (row, label)
        assert (votes < CLASSES).all(), (row, label)
        if label != 1 or not np.abs(row).max() < 1e300:
            np.testing.assert_array_equal(votes, without)


@pytest.mark.long
def test_pate_counts_one_vote_a_teacher_whatever_it_learned_from():
    labeler = PATE(num_teachers=6, hidden=4, steps=3, unit="person")
    before = contributed(labeler, FEATURES, LABELS)
    for row, label in CASES:
        after = contributed(labeler, *hostile(row, label))
        assert (after.sum(axis=1) == 6).all()
        assert np.abs(after - before).sum(axis=1).max() <= 2, (row, label)


# Noisy SGD


@pytest.mark.long
@pytest.mark.parametrize("unit", ["record", "person"])
def test_noisy_sgd_moves_a_step_by_the_clip_at_most(unit):
    """One step on all records, without noise: the weights are the mean of the clipped gradients."""
    batch = NUM_RECORDS if unit == "record" else len(np.unique(PERSONS))
    labeler = NoisySGD.for_canaries(batch, math.inf, 1e-5)
    labeler = dataclasses.replace(labeler, unit=unit, epochs=1.0)

    def weights(features, labels):
        votes = contributed(labeler, features, labels)
        head = labeler.release(jax.random.key(3), votes, QUERIES, CLASSES).model
        leaves = jax.tree.leaves(head.params)
        return np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)

    others = np.where(PERSONS == 0, -1, LABELS)
    without = weights(FEATURES, others)
    for row, label in CASES:
        features, labels = hostile(row, label)
        labels[1] = others[1]
        moved = weights(features, labels) - without
        distance = np.linalg.norm(moved) * batch / labeler.learning_rate
        assert distance <= labeler.clip * (1 + dpsgd.SLACK) + 1e-4, (row, label)
        if label != 1:
            assert distance < 1e-4, (row, label)


# DPDFD


@pytest.mark.long
def test_dpdfd_bounds_what_a_teacher_of_a_hostile_record_says():
    labeler = dataclasses.replace(SMALL, num_teachers=6, teacher_steps=3)
    images = RANDOM.uniform(0, 255, (NUM_RECORDS, 6, 6, 1)).astype(np.float32)
    key = jax.random.key(4)
    part = pate.parts_of(key, Records(images, LABELS), PATE(num_teachers=6))
    others = np.arange(6) != part[0]
    shown = RANDOM.integers(0, 256, (4, 6, 6, 1), np.uint8)

    def gradients(image, label):
        changed, labels = images.copy(), LABELS.copy()
        changed[0], labels[0] = image, label
        votes = labeler.contribute(key, Records(changed, labels), np.asarray, QUERIES, CLASSES)
        logits = teachers.answers(votes, jnp.asarray(shown), CLASSES, labeler)
        student = jnp.zeros((len(shown), CLASSES))
        made = _distillation.logit_gradients(student, logits, 1.0, 1.0, 1.0)
        return np.asarray(_distillation.bounded(made, labeler.clip, labeler.bound), np.float64)

    without = gradients(images[0], -1)
    for number, label in [
        *((n, 1) for n in (np.nan, np.inf, -np.inf, 1e38, 1e-45, -0.0)),
        *((7, label) for label in OTHER_LABELS),
    ]:
        found = gradients(np.float32(number), label)
        np.testing.assert_array_equal(found[others], without[others])
        assert np.linalg.norm(found, axis=2).max() <= labeler.clip, (number, label)
        if label != 1:
            np.testing.assert_array_equal(found, without)

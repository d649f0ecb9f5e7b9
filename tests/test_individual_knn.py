"""Ind-KNN: who votes, what each record is charged, and that no history charges more than a budget.

A history is a sequence of noisy counts. The tests choose histories themselves.
"""

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from rknn_jax.labelers import individual_knn
from rknn_jax.labelers._cosines import PublicCosines
from rknn_jax.labelers.individual_knn import IndividualKNN, Plan, Votes
from rknn_jax.labelers.private_knn import PrivateKNN
from rknn_jax.types import Queries, Records
from tests.test_prototypes import Split, asked

WIDTH = 3
NUM_CLASSES = 3
NUM_QUERIES = 60


@functools.cache
def queries():
    return asked(np.random.default_rng(0).normal(size=(NUM_QUERIES, WIDTH)))


def contributed(labeler, rows, labels, clients=None):
    rows, labels = np.asarray(rows, np.float32), np.asarray(labels, np.int32)
    clients = None if clients is None else np.asarray(clients, np.int32)
    records = Records(rows, labels, clients)
    return labeler.contribute(jax.random.key(0), records, lambda each: each, queries(), NUM_CLASSES)


def run(labeler, votes, history=None):
    """Return all steps on a history of noisy counts."""
    plan = labeler.plan(queries(), NUM_CLASSES)
    noisy = np.full(NUM_QUERIES, 100.0) if history is None else history
    return list(
        individual_knn.steps(votes, queries(), plan, NUM_CLASSES, lambda place, _: noisy[place])
    )


def divergence(labeler, before, after):
    """Return the Rényi divergence of all results of two runs on one history, over the order."""
    plan = labeler.plan(queries(), NUM_CLASSES)
    return sum(
        (one.neighbors - other.neighbors) ** 2 / (2 * plan.count_stddev**2)
        + np.sum((one.votes - other.votes) ** 2) / (2 * one.stddev**2)
        for one, other in zip(before, after, strict=True)
    )


def histories():
    """Return noisy counts: even, wild, and falling from many to none."""
    rng = np.random.default_rng(1)
    return (
        np.full(NUM_QUERIES, 100.0),
        rng.uniform(-1e3, 1e3, NUM_QUERIES),
        np.geomspace(1e6, 1e-3, NUM_QUERIES),
    )


def allowed(labeler):
    """Return rho of the guarantee."""
    [event] = labeler.guarantee_of(1, NUM_QUERIES, NUM_CLASSES).events
    return 1 / (2 * event.parameter**2)


def worlds(labeler):
    """Yield what one unit contributes: rows of many directions, in one class or another."""
    rng = np.random.default_rng(2)
    person = labeler.unit == "person"
    rows = [*np.asarray(queries().features)[:5], *rng.normal(size=(3, WIDTH))]
    for row, label in itertools.product(rows, range(2)):
        yield contributed(labeler, [row], [label], [0])
    if person:
        for count in (2, 30):
            drawn = np.asarray(queries().features)[rng.integers(0, NUM_QUERIES, count)]
            yield contributed(labeler, drawn, rng.integers(0, 2, count), [0] * count)


def nobody(labeler):
    return contributed(labeler, np.ones((1, WIDTH)), [-1], [0])


def search(labeler):
    """Return the largest divergence that a unit causes on any of the histories."""
    found = list(worlds(labeler))
    largest = 0.0
    for history in histories():
        runs = [run(labeler, votes, history) for votes in found]
        pairs = itertools.combinations(runs, 2)
        if labeler.relation == "add-remove":
            pairs = itertools.product([run(labeler, nobody(labeler), history)], runs)
        largest = max(largest, *(divergence(labeler, *pair) for pair in pairs))
    return largest


@pytest.mark.long
@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_no_history_costs_more_than_the_guarantee(relation, unit):
    labeler = IndividualKNN(relation=relation, unit=unit)
    assert 0.9 * allowed(labeler) <= search(labeler) <= allowed(labeler)


@pytest.mark.long
def test_counts_that_cost_nothing_are_found(monkeypatch):
    """A planted bug: only the votes are charged."""
    monkeypatch.setattr(Plan, "count_cost", property(lambda plan: 0.0))
    labeler = IndividualKNN(count_share=0.3)
    assert search(labeler) > 1.1 * allowed(labeler)


@pytest.mark.long
def test_a_budget_for_one_of_two_relations_is_found(monkeypatch):
    """A planted bug: replacing a record is charged like removing it."""
    honest = IndividualKNN()
    whole = dataclasses.replace(honest, relation="add-remove").budget
    assert whole == pytest.approx(2 * honest.budget)
    monkeypatch.setattr(IndividualKNN, "budget", whole)
    assert search(honest) > 1.5 * allowed(honest)


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_unit_adds_the_same_whoever_else_is_there(unit):
    """On one history: the sums of all are those of each alone. The proof stands on this."""
    rng = np.random.default_rng(3)
    labeler = IndividualKNN(epsilon=0.5, unit=unit)
    rows, labels = rng.normal(size=(12, WIDTH)), rng.integers(0, NUM_CLASSES, 12)
    person = np.arange(12) // (3 if unit == "person" else 1)
    whole = run(labeler, contributed(labeler, rows, labels, person))
    alone = [
        run(labeler, contributed(labeler, rows[person == one], labels[person == one], [0] * 3))
        if unit == "person"
        else run(labeler, contributed(labeler, rows[[one]], labels[[one]]))
        for one in np.unique(person)
    ]
    for step, parts in zip(whole, zip(*alone, strict=True), strict=True):
        assert step.neighbors == sum(part.neighbors for part in parts)
        np.testing.assert_allclose(step.votes, sum(part.votes for part in parts), atol=1e-6)


def test_no_person_votes_with_more_than_one_vote():
    """Thirty records at a query, which a large budget would pay for."""
    labeler = IndividualKNN(epsilon=50.0, unit="person")
    rows = np.repeat(queries().features[:1], 30, axis=0)
    found = run(labeler, contributed(labeler, rows, np.arange(30) % 2, [0] * 30))
    assert found[0].neighbors == 1
    assert np.linalg.norm(found[0].votes) == pytest.approx(1)
    assert max(np.linalg.norm(step.votes) for step in found) <= 1 + 1e-9


@pytest.mark.long
def test_a_record_at_the_threshold_is_a_neighbor_whoever_else_is_there():
    """The threshold is the cosine of one record after another, to the last bit."""
    rng = np.random.default_rng(6)
    width, size = 70, 40
    shown = asked(rng.normal(size=(5, width)))
    labeler = IndividualKNN()
    plan = labeler.plan(shown, NUM_CLASSES)
    rows = rng.normal(size=(size, width))

    def votes_of(rows):
        records = Records(rows, np.zeros(len(rows), np.int32))
        return labeler.contribute(jax.random.key(0), records, np.asarray, shown, NUM_CLASSES)

    def neighbors(votes, threshold):
        at = plan._replace(threshold=threshold)
        return next(individual_knn.steps(votes, shown, at, NUM_CLASSES, lambda i, n: 9.0)).neighbors

    whole = votes_of(rows)
    alone = [votes_of(rows[i : i + 1]) for i in range(size)]
    first = (
        PublicCosines.of(shown, 0.0, 1.0).directions(shown.features[:1]).astype(whole.rows.dtype)
    )
    for one in alone:
        threshold = float((first @ one.rows.T)[0, 0])
        assert neighbors(one, threshold) == 1
        assert neighbors(whole, threshold) == sum(neighbors(other, threshold) for other in alone)


def test_without_noise_all_neighbors_vote_with_their_cosines():
    """Against a loop in float64."""
    rng = np.random.default_rng(4)
    rows, labels = rng.normal(size=(50, WIDTH)), rng.integers(0, NUM_CLASSES, 50)
    labeler = IndividualKNN(epsilon=math.inf)
    features = np.asarray(queries().features, np.float64)
    center = features.mean(axis=0)
    unit = lambda each: each / np.linalg.norm(each)  # noqa: E731
    pairs = [unit(a - center) @ unit(b - center) for a, b in itertools.combinations(features, 2)]
    threshold = np.quantile(pairs, 1 - 1 / NUM_CLASSES)
    found = run(labeler, contributed(labeler, rows, labels))
    for step, query in zip(found, features, strict=True):
        cosine = np.array([unit(row - center) @ unit(query - center) for row in rows])
        near = cosine >= threshold
        assert step.neighbors == near.sum()
        expected = np.bincount(labels[near], cosine[near], NUM_CLASSES)
        np.testing.assert_allclose(step.votes, expected, atol=1e-5)
        assert step.stddev == 0


def test_a_neighbor_never_votes_against_its_class():
    """Three directions, each opposite to the others: a negative vote could make two data sets
    differ by more than both of them cost.
    """
    turns = 2 * np.pi * np.arange(3) / 3
    corners = np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)
    labeler = IndividualKNN()
    plan = labeler.plan(asked(corners), 2)
    assert plan.threshold == 0
    records = Records(np.repeat(corners, 5, axis=0), np.tile(np.arange(15) % 2, 1))
    votes = labeler.contribute(jax.random.key(0), records, np.asarray, asked(corners), 2)
    for step in individual_knn.steps(votes, asked(corners), plan, 2, lambda i, n: 9.0):
        assert (step.votes >= 0).all()
        assert step.neighbors == 5


def test_a_record_that_has_spent_its_budget_is_dropped_and_others_are_not():
    """Sixty equal queries and, at the end, one elsewhere."""
    features = np.zeros((NUM_QUERIES, WIDTH), np.float32)
    features[:-1, 0], features[-1, 1] = 1, 1
    rows = np.array([[5.0, 0, 0], [0.0, 5, 0]], np.float32)
    votes = Votes(rows / 5, np.array([0, 1]), np.arange(2), 2)
    plan = Plan(budget=0.0115, threshold=0.5, count_stddev=20.0, vote_stddev=20.0)
    center = Queries.alone(np.vstack([features, -features]), np.arange(2 * NUM_QUERIES))
    found = list(individual_knn.steps(votes, center, plan, NUM_CLASSES, lambda place, n: 100))
    first = [step.votes[0] for step in found[: NUM_QUERIES - 1]]
    assert first[0] == pytest.approx(1)
    assert first[-1] == 0
    # A count and a vote cost 1/800 each. After four of both and a count, 0.00025 is left.
    np.testing.assert_allclose(first[3:6], [1, math.sqrt(2 * 0.00025) * 20, 0], atol=1e-6)
    assert found[NUM_QUERIES - 1].votes[1] == pytest.approx(1)
    spent = sum(step.neighbors * plan.count_cost for step in found[: NUM_QUERIES - 1])
    spent += sum(vote**2 / (2 * 20.0**2) for vote in first)
    assert spent <= plan.budget


@pytest.mark.long
def test_the_noise_is_as_large_as_it_is_said_to_be():
    """Nobody is near, so the counts are the noise alone."""
    labeler = IndividualKNN(epsilon=0.5)
    drawn = [
        labeler.release(jax.random.key(noise), nobody(labeler), queries(), NUM_CLASSES)
        for noise in range(20)
    ]
    noise = np.stack([answers.counts / answers.stddev for answers in drawn])
    np.testing.assert_allclose(noise.std(), 1, atol=0.04)
    np.testing.assert_allclose(noise.mean(), 0, atol=0.05)


def test_the_noisy_count_decides_the_noise_of_the_votes():
    """With more neighbors, a query has more noise, and its neighbors pay less."""
    labeler = IndividualKNN()
    votes = nobody(labeler)
    many = np.where(np.arange(NUM_QUERIES) % 2, 4e6, 1e6)
    found = run(labeler, votes, many)[20:]
    np.testing.assert_allclose(found[1].stddev / found[0].stddev, 2, rtol=0.1)


@pytest.mark.long
def test_digits_are_labeled_better_than_by_private_knn():
    """At the same epsilon, for the same hundred queries."""
    split = Split()
    some = asked(np.asarray(split.queries.features)[:100])

    def accuracy(labeler):
        key = jax.random.key(0)
        votes = labeler.contribute(key, split.private, lambda each: each, some, 10)
        return np.mean(labeler.release(key, votes, some, 10).labels == split.truth[:100])

    found = accuracy(IndividualKNN(epsilon=3.0))
    other = accuracy(PrivateKNN(epsilon=3.0, num_neighbors=30, sampling_prob=0.5))
    assert found >= 0.7
    assert found > other + 0.1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"relation": "swap"}, "relation='swap'"),
        ({"unit": "household"}, "unit='household'"),
        ({"count_share": 1.0}, "count_share=1.0; 0.1 leaves"),
    ],
)
def test_settings_that_do_not_exist_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        IndividualKNN(**given)

"""Every labeler with a person as the unit: one person's records, however many, change what is
contributed by no more than the calibration assumes.

One person of eighteen has 25 records, which are replaced by any others or leave. The draws of all
others stay the same: one key serves all worlds, and every person is in every sample.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from rknn_jax import labelers, mechanisms
from rknn_jax.labelers import _one_sum, _persons, individual_knn, noisy_sgd, private_knn
from rknn_jax.labelers import public_prototypes as public
from rknn_jax.labelers.dpdfd import teachers
from rknn_jax.labelers.rknn import PersonVotes, ReverseKNN
from rknn_jax.privacy.contributions import SIMULATED_GRID
from rknn_jax.types import Records
from tests.conftest import modules
from tests.contracts.test_labelers import problem

NUM_CLASSES = 3
OTHERS = 17
MINE = 25
CLIENTS = np.concatenate([np.full(26, 3), np.arange(OTHERS), np.full(MINE, 901)]).astype(np.int32)
NUM_PERSONS = OTHERS + 1
"""Person 901 is replaced. Another one has more records, so that no padding changes its width."""

ROUNDING = 1 + 1e-4


def key():
    """Return the one key of all worlds."""
    return jax.random.key(4)


def suited(labeler):
    """Return a labeler that a search can follow: no chance but the key's, and 18 persons."""
    given = {"unit": "person", "sampling_prob": 1.0, "num_teachers": 6, "num_neighbors": 4}
    if labeler.clusters:
        given.pop("num_neighbors")
    takes = {one.name for one in dataclasses.fields(labeler)}
    steps = type(labeler).for_canaries(NUM_PERSONS, 1.0, 1e-5)
    if steps is not None:
        given |= {"epsilon": float("inf"), "epochs": 1.0, "relation": labeler.relation}
        return dataclasses.replace(steps, **{k: v for k, v in given.items() if k in takes})
    return dataclasses.replace(labeler, **{k: v for k, v in given.items() if k in takes})


EXAMPLES = {
    f"{module.__name__.split('.')[-1]} {number}": suited(labeler)
    for module in modules(labelers)
    for number, labeler in enumerate(module.EXAMPLES)
    if "unit" in {one.name for one in dataclasses.fields(labeler)}
} | {"rknn local": ReverseKNN(epsilon=1.0, trust="local", unit="person")}


def case(name, labeler):
    later = labeler.slow or (name.endswith(("1", "2")) and not labeler.clusters)
    tier = pytest.mark.slow if later else pytest.mark.long if labeler.trains else ()
    return pytest.param(labeler, marks=tier, id=name)


each = pytest.mark.parametrize("labeler", [case(*example) for example in EXAMPLES.items()])


@functools.cache
def private():
    """Return records of which person 901 has the 25 nearest to one query, with a wrong label."""
    task, encode, queries = problem()
    images = task.private.images[: len(CLIENTS)].copy()
    labels = task.private.labels[: len(CLIENTS)].copy()
    others = task.private.images[len(CLIENTS) :]
    features = np.asarray(encode(task.private.images))[len(CLIENTS) :]
    distance = np.linalg.norm(features - np.asarray(queries.features[0]), axis=1)
    mine = CLIENTS == 901
    images[mine] = others[np.argsort(distance)[:MINE]]
    labels[mine] = (task.public.true_labels[queries.index[0]] + 1) % NUM_CLASSES
    return Records(images, labels, CLIENTS)


def worlds(relation):
    """Yield data sets that differ from `private()` in person 901 alone."""
    task, _, queries = problem()
    mine = CLIENTS == 901
    if relation == "add-remove":
        whole = private()
        yield Records(whole.images[~mine], whole.labels[~mine], CLIENTS[~mine])
        return
    rng = np.random.default_rng(0)
    for label in range(2):
        images, labels = private().images.copy(), private().labels.copy()
        images[mine], labels[mine] = task.public.images[queries.index[label]], label
        yield Records(images, labels, CLIENTS)
    for voters in (MINE, 1):
        images, labels = private().images.copy(), private().labels.copy()
        images[mine] = rng.integers(0, 256, images[mine].shape)
        labels[mine] = np.where(np.arange(MINE) < voters, rng.integers(0, 3, MINE), -1)
        yield Records(images, labels, CLIENTS)
    fewer = np.append(np.flatnonzero(~mine), np.flatnonzero(mine)[:2])
    yield Records(private().images[fewer], private().labels[fewer], CLIENTS[fewer])


def contributed(labeler, records):
    _, encode, queries = problem()
    return labeler.contribute(key(), records, encode, queries, NUM_CLASSES)


@functools.singledispatch
def moved(before, after, labeler):
    """Return the change of a contribution, over the largest that the calibration assumes."""
    raise NotImplementedError(f"Say how {labeler.name}'s contribution changes.")


def neighbors_in(labeler):
    return 2 if labeler.relation == "replace-one" else 1


@moved.register
def _(before: PersonVotes, after, labeler):
    change = np.abs(after.totals - before.totals) / SIMULATED_GRID
    allowed = neighbors_in(labeler) * labeler.num_neighbors
    moves = change.sum() if mechanisms.named(labeler.noise).norm == 1 else 0.0
    return max(moves, np.sum(change**2)) / allowed


@moved.register
def _(before: jax.Array, after, labeler):
    """Messages of a local mechanism: one changes."""
    if before.shape != after.shape:
        return abs(len(before) - len(after))
    return np.sum(np.any(np.asarray(before != after), axis=1))


@moved.register
def _(before: private_knn.Votes, after, labeler):
    return max(
        moved(before.screened, after.screened, labeler), moved(*before[1:2], after[1], labeler)
    )


@moved.register
def _(before: np.ndarray, after, labeler):
    """Counts of votes: one moves, and the largest count changes by one."""
    largest = np.abs(after.max(axis=1) - before.max(axis=1)).max()
    return max(np.linalg.norm(after - before, axis=1).max() / np.sqrt(2), largest)


@moved.register
def _(before: teachers.Votes, after, labeler):
    """Teachers: one learns something else."""
    return np.sum(np.any(np.asarray(before.weights != after.weights), axis=(1, 2)))


@moved.register
def _(before: noisy_sgd.Votes, after, labeler):
    """One step of all persons, without noise: a sum of clipped gradients."""
    heads = [trained(labeler, votes) for votes in (before, after)]
    step = jax.tree.map(lambda a, b: (a - b) * labeler.batch_size / labeler.learning_rate, *heads)
    length = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(step)))
    return length / (neighbors_in(labeler) * labeler.clip)


@moved.register
def _(before: _one_sum.Sums, after, labeler):
    """Sums by their norm; utilities of each class by how far they rise, and how far they fall."""
    change = after.totals - before.totals
    if not isinstance(labeler, public.PublicPrototypes):
        return np.linalg.norm(change.ravel(), labeler.norm) / labeler.sensitivity
    rise, fall = np.maximum(change, 0).max(axis=1), np.maximum(-change, 0).max(axis=1)
    return np.sum(rise + fall) / labeler.sensitivity


@moved.register
def _(before: individual_knn.Votes, after, labeler):
    """All steps on one history: their divergences, over those that the guarantee allows."""
    queries = problem()[2]
    plan = labeler.plan(queries, NUM_CLASSES)
    pairs = zip(
        *(
            individual_knn.steps(votes, queries, plan, NUM_CLASSES, lambda place, _: 5.0 + place)
            for votes in (before, after)
        ),
        strict=True,
    )
    [event] = labeler.guarantee_of(NUM_PERSONS, len(queries.features), NUM_CLASSES).events
    spent = sum(
        ((mine.neighbors - other.neighbors) / plan.count_stddev) ** 2
        + np.sum(np.square(mine.votes - other.votes)) / mine.stddev**2
        for mine, other in pairs
    )
    return spent * event.parameter**2


def trained(labeler, votes):
    queries = problem()[2]
    return labeler.release(key(), votes, queries, NUM_CLASSES).model.params


def changes(labeler):
    """Yield the change of what is contributed, in one world after the other."""
    before = contributed(labeler, private())
    for world in worlds(labeler.relation):
        yield moved(before, contributed(labeler, world), labeler)


@pytest.mark.long
@each
def test_a_person_moves_no_more_than_the_noise_is_made_for(labeler):
    assert 0 < max(changes(labeler)) <= ROUNDING


@pytest.mark.long
@each
def test_rows_that_count_as_persons_are_found(labeler, monkeypatch):
    """A planted bug: every row is taken for a person of its own."""
    rows = lambda records: np.arange(len(records.labels))  # noqa: E731
    monkeypatch.setattr(_persons, "numbered", rows)
    monkeypatch.setattr(_persons, "num_persons", lambda records: len(records.labels))
    assert any(change > 1.5 for change in changes(labeler))


@each
def test_persons_are_counted_and_not_their_records(labeler):
    assert labeler.num_units(private()) == NUM_PERSONS
    with pytest.raises(ValueError, match="clients for unit=person, got clients=None"):
        labeler.num_units(Records(private().images, private().labels))
    with pytest.raises(ValueError, match="unit='household'"):
        dataclasses.replace(labeler, unit="household")


@pytest.mark.slow  # tests/test_pate.py and tests/test_distill_labelers.py look at two of them
@each
def test_the_guarantee_is_that_of_a_person(labeler):
    if labeler.slow:
        pytest.skip("its training takes long, and tests/contracts/test_labelers.py has it")
    labeler = dataclasses.replace(labeler, epsilon=8.0)
    _, _, queries = problem()
    answers = labeler.release(key(), contributed(labeler, private()), queries, NUM_CLASSES)
    assert answers.guarantee.unit == "person"
    assert answers.guarantee.epsilon == 8.0
    assert answers.guarantee.relation == labeler.relation


def test_arrays_take_the_person_of_each_row():
    task, encode, _ = problem()
    rows = [np.asarray(encode(images)) for images in (task.public.images, private().images)]
    labeler = ReverseKNN(epsilon=50.0, unit="person")
    names = np.array([f"person {client}" for client in CLIENTS])

    def labeled(person):
        return labeler.label(
            *rows, private().labels, NUM_CLASSES, person=person, num_queries=4, key=key()
        )

    answers = labeled(names).answers
    assert answers.guarantee.unit == "person"
    np.testing.assert_allclose(answers.counts.sum(), NUM_PERSONS, atol=2)
    with pytest.raises(ValueError, match="clients for unit=person, got clients=None"):
        labeled(None)
    for odd in (names[:3], np.zeros(len(CLIENTS))):
        with pytest.raises(ValueError, match="integers or strings, one for each private row"):
            labeled(odd)


def test_a_draw_of_one_record_does_not_change_with_other_persons():
    """And over keys, any of a person's records comes up."""
    mine = np.flatnonzero(CLIENTS == 901)
    alone = Records(private().images[mine], private().labels[mine], CLIENTS[mine])
    for seed in range(3):
        drawn = _persons.one_each(jax.random.key(seed), private())
        np.testing.assert_array_equal(CLIENTS[drawn], np.unique(CLIENTS))
        assert mine[_persons.one_each(jax.random.key(seed), alone)[0]] == drawn[-1]
    draws = [_persons.one_each(jax.random.key(seed), alone)[0] for seed in range(100)]
    assert len(set(draws)) > MINE / 2

"""Simulation, a release and a federation read the same noisy sum alike, to the bit.

Rows have uneven lengths, so that a metric that one of the three forgets shows.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rknn_jax import labelers
from rknn_jax.algorithm import Keys, distill
from rknn_jax.answers import calibration
from rknn_jax.federation import round_labels
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import _simulation_only, rknn
from rknn_jax.labelers._one_sum import Noise
from rknn_jax.records.classes import Classes
from rknn_jax.release import inputs, questions
from rknn_jax.release.settings import Settings
from rknn_jax.types import Card, Public, Queries, Records, Task
from tests.conftest import modules
from tests.options import named_settings

NAMES = ("a", "b", "c")
KEYS = Keys(jax.random.key(0), jax.random.key(1))
RNG = np.random.default_rng(0)
GROUP = np.arange(60) % 3
LENGTHS = RNG.lognormal(sigma=1.5, size=(60, 1))
PUBLIC = ((np.eye(4)[GROUP] + 0.2 * RNG.normal(size=(60, 4))) * LENGTHS).astype(np.float32)
NOTHING = np.zeros((2, 4), np.float32), np.zeros(2, np.int32)

SUMS = [
    name
    for name in labelers.names()
    if not _simulation_only.hindrance(labelers.named(name))
    and not issubclass(labelers.named(name), rknn.ReverseKNN)
]


EXAMPLES = {
    f"{module.__name__.split('.')[-1]} {number}": labeler
    for module in modules(labelers)
    for number, labeler in enumerate(module.EXAMPLES)
    if not _simulation_only.hindrance(type(labeler))
}


@pytest.mark.parametrize("labeler", EXAMPLES.values(), ids=EXAMPLES)
def test_a_sum_is_that_of_its_parts_and_of_its_records(labeler):
    """A release adds totals of blocks, and a client messages of parts: both count the same."""
    tally = labeler.tally(Queries.alone(PUBLIC, np.arange(4)), 3)
    ids = np.where(np.arange(12) == 5, -1, GROUP[:12]).astype(np.int32)
    whole = tally.total(PUBLIC[:12], ids)
    alone = [tally.total(PUBLIC[i : i + 1], ids[i : i + 1]) for i in range(12)]
    np.testing.assert_array_equal(whole, sum(alone))
    assert not alone[5].any(), "no label, nothing added"
    assert tally.fits(whole, 11)
    if isinstance(labeler, rknn.ReverseKNN):
        cells = tally.parts(PUBLIC[:12], ids)
        assert cells.shape == (12, labeler.num_neighbors)
        counts = np.bincount(cells[cells >= 0], minlength=whole.size)
        np.testing.assert_array_equal(counts.reshape(whole.shape), whole)
        assert max(one.max() for one in alone) == 1


def asked(**given):
    """Question of a release."""
    settings = named_settings(Settings, "public", "private", 2.0, classes="3", **given)
    return questions.ask(settings, inputs.data_of(PUBLIC, *NOTHING, Classes(3, NAMES)))


def simulated(labeler, queries, smoothing):
    """Labels by Algorithm 1, whose features are the rows as they are."""
    nobody = Records(*NOTHING)
    parts = [np.arange(0)] * 3
    task = Task(Card("rows", "", "", NAMES), Public(PUBLIC, GROUP), nobody, nobody, *parts)
    rounds = distill(labeler, lambda *_: queries, np.asarray, None, task, KEYS, 1, smoothing)
    # What is released has a little doubt, lest a probability be 0 or 1.
    return calibration.doubted(next(rounds).labels.probabilities)


def read(found, guarantee, queries):
    """Labels of a round."""
    rows = round_labels.rows_of(found.round, queries, PUBLIC)
    return round_labels.read(found, guarantee, rows)


def round_of(labeler, **given):
    """A round that asks what a release asks, of clients who randomize their own votes."""
    config = dataclasses.replace(labeler, mechanism="collision", trust="local")
    return Round(PUBLIC[:6], NAMES, config, **given)


def collected(noisy, stddev, round):
    spread = np.full(noisy.shape, stddev)
    return SimpleNamespace(round=round, counts=lambda: (noisy.astype(np.float64), spread))


@pytest.mark.long
@pytest.mark.parametrize("smoothing", ["auto", "none"])
@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_votes_are_read_alike(metric, smoothing, monkeypatch):
    mechanism = "discrete_laplace"
    given = {"metric": metric, "smoothing": smoothing, "mechanism": mechanism}
    question = asked(queries=6, **given)
    noisy = np.random.default_rng(3).integers(-4, 20, (6, 3))
    released = question.read(noisy)
    labeler = question.labeler

    stddev = question.noise.stddev
    round = round_of(labeler)
    federated = read(collected(noisy, stddev, round), question.guarantee, question.queries)
    np.testing.assert_array_equal(federated.probabilities, released.probabilities)
    np.testing.assert_array_equal(federated.confidence, released.confidence)
    np.testing.assert_array_equal(federated.labels, released.labels)

    monkeypatch.setattr(rknn, "estimate_counts", lambda *_: np.float32(noisy))
    labels = simulated(labeler, question.queries, smoothing)
    np.testing.assert_array_equal(labels, released.probabilities)


@pytest.mark.long
def test_labels_without_counts_are_read_alike(monkeypatch):
    given = {"metric": "cosine", "mechanism": "permute_and_flip"}
    question = asked(queries=6, **given)
    chosen = np.eye(3, dtype=np.int64)[[0, 1, 2, 0, 1, 2]]
    released = question.read(chosen)
    monkeypatch.setattr(rknn, "estimate_counts", lambda *_: np.float32(chosen))
    labels = simulated(question.labeler, question.queries, "auto")
    np.testing.assert_array_equal(labels, released.probabilities)


@pytest.mark.long
@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_sets_are_read_alike(metric):
    given = {"metric": metric, "mechanism": "discrete_laplace", "labels_per_record": 2}
    question = asked(queries=6, **given)
    noisy = np.random.default_rng(3).integers(-4, 20, (6, 4))
    released = question.read(noisy)
    config = dataclasses.replace(question.labeler, labels_per_record=0)
    round = round_of(config, labels_per_record=2)
    found = collected(noisy, question.noise.stddev, round)
    federated = read(found, question.guarantee, question.queries)
    np.testing.assert_array_equal(federated.probabilities, released.probabilities)
    np.testing.assert_array_equal(federated.sets.present, released.sets.present)


def noisy_sum(question):
    """Return the exact sum of the public rows, and the same with a labeler's noise."""
    totals = question.tally.total(PUBLIC, GROUP.astype(np.int32))
    return totals, question.noise.draw(totals)


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_read_alike(name, monkeypatch):
    kind = labelers.named(name)
    delta = {"delta": 1e-5} if kind().needs_delta else {}
    given = {"labeler": name, **delta}
    given["mechanism"] = kind().usual_mechanism(given.get("delta", 0.0))
    question = asked(**given)
    totals, drawn = noisy_sum(question)
    exact = question.noise
    released = question.read(drawn)

    noise = Noise(exact.guarantee, exact.stddev, lambda _: drawn)
    monkeypatch.setattr(kind, "simulated", lambda self, key: noise)
    labels = simulated(question.labeler, question.queries, "auto")
    np.testing.assert_array_equal(labels, released.probabilities)

    # Clients see a sum whole: one that leads to the same choice, if the labeler chooses.
    whole = drawn if drawn.shape == totals.shape else np.eye(totals.shape[1])[drawn]
    config = dataclasses.replace(question.labeler, unit="record")
    round = Round(PUBLIC, NAMES, config, honest=3)
    found = collected(whole, exact.stddev, round)
    federated = read(found, exact.guarantee, question.queries)
    np.testing.assert_array_equal(federated.probabilities, released.probabilities)
    np.testing.assert_array_equal(federated.labels, released.labels)
    assert np.ptp(released.probabilities, axis=0).max() > 0.1, "the rows have labels of their own"


def test_sums_that_are_not_spread_are_read_alike(monkeypatch):
    given = {"labeler": "prototypes", "mechanism": "discrete_laplace", "smoothing": "none"}
    question = asked(**given)
    _, drawn = noisy_sum(question)
    noise = question.noise._replace(draw=lambda _: drawn)
    monkeypatch.setattr(labelers.named("prototypes"), "simulated", lambda self, key: noise)
    labels = simulated(question.labeler, question.queries, "none")
    np.testing.assert_array_equal(labels, question.read(drawn).probabilities)


def test_the_metric_decides_labels_of_rows_of_uneven_length():
    """Directions tell the classes, lengths do not: by the cosine nearly all rows are right."""
    given = {"metric": "cosine", "mechanism": "discrete_laplace"}
    question = asked(queries=6, **given)
    votes = np.zeros((6, 3), np.int64)
    np.add.at(votes, (question.queries.cluster, GROUP), 40)
    assert np.mean(question.read(votes).labels == GROUP) > 0.9

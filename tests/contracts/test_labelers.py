"""Every labeler against its contract: shapes, a guarantee that travels with the answers, and keys
that decide the noise.

All tests look at the same few runs of an example, on the same records and queries. Of a file that
trains a network on the private records the first example is run in `make test`, and the others in
`make test-all` only.
"""

import dataclasses
import functools
import math

import chex
import jax
import numpy as np
import pytest

from rknn_jax import labelers
from rknn_jax.labelers import dpdfd
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.privacy import accounting
from rknn_jax.queries import kmeans
from rknn_jax.representations import pixels
from rknn_jax.types import Answers, Card, Public, Records, Task
from tests import recorded
from tests.conftest import modules

EXAMPLES = {
    f"{module.__name__.split('.')[-1]} {number}": labeler
    for module in modules(labelers)
    for number, labeler in enumerate(module.EXAMPLES)
}


def case(name, labeler):
    later = labeler.trains and not name.endswith(" 0")
    tier = pytest.mark.slow if later else pytest.mark.long if labeler.slow else ()
    return pytest.param(labeler, marks=tier, id=name)


each = pytest.mark.parametrize("labeler", [case(*example) for example in EXAMPLES.items()])


def tiny_task(seed=0):
    """Three classes, each a bright quarter of a 6x6 image."""
    rng = np.random.default_rng(seed)

    def draw(n):
        labels = rng.integers(0, 3, n).astype(np.int32)
        images = rng.integers(0, 60, (n, 6, 6, 1)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[
                3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3
            ] += 180
        return images, labels

    (public, truth) = draw(40)
    private = draw(300)
    test = draw(20)
    parts = [np.arange(a, b) for a, b in ((0, 40), (40, 340), (340, 360))]
    return Task(
        Card("tiny", "made here", "none", ("a", "b", "c")),
        Public(public, truth),
        Records(*private),
        Records(*test),
        *parts,
    )


@functools.cache
def problem():
    """Return the task, how its images are described, and four queries."""
    task = tiny_task()
    encode = pixels.fit(jax.random.key(0), task.public.images)
    return task, encode, kmeans.select(jax.random.key(1), encode(task.public.images), 4)


@functools.cache
def answers_of(labeler, noise=0, blind=False):
    """Run a labeler, `blind` on a task whose public records are all said to be of class 0."""
    task, encode, queries = problem()
    if blind:
        task = dataclasses.replace(
            task, public=Public(task.public.images, np.zeros_like(task.public.true_labels))
        )
    return labelers.label(labeler, jax.random.key(noise), task, encode, queries)


def released(answers):
    return answers.counts if answers.model is None else answers.probabilities


@each
def test_answers_are_complete_and_carry_their_guarantee(labeler):
    answers = answers_of(labeler)
    assert isinstance(answers, Answers)
    chex.assert_shape([answers.probabilities, answers.counts, answers.stddev], (4, 3))
    chex.assert_shape([answers.labels, answers.answered], (4,))
    np.testing.assert_allclose(answers.probabilities.sum(1), 1, rtol=1e-5)
    assert ((answers.labels >= 0) & (answers.labels < 3))[answers.answered].all()
    assert (answers.labels == -1)[~answers.answered].all()
    assert answers.counts.any(axis=1)[answers.answered].all()
    assert not answers.counts[~answers.answered].any(), (
        "what was not answered shows nothing of the votes"
    )
    assert answers.guarantee.epsilon == labeler.epsilon
    assert answers.guarantee.relation == labeler.relation
    assert answers.guarantee.sampler == "simulation"


@each
def test_labels_are_right_where_the_classes_are_plain(labeler):
    """300 records on 4 queries without noise: those that are answered are right, and nearly all
    are.
    """
    task, _, queries = problem()
    answers = answers_of(dataclasses.replace(labeler, epsilon=math.inf))
    asked = answers.answered[queries.cluster]
    assert np.mean(answers.labels[queries.cluster][asked] == task.public.true_labels[asked]) > 0.9
    assert answers.answered.sum() >= 3


@each
def test_epsilon_is_what_the_events_cost(labeler):
    """A guarantee names the noise; composed anew by an accountant it costs no more than was
    promised, and not much less.
    """
    guarantee = answers_of(labeler).guarantee
    cost = min(accounting.epsilons(guarantee.events, labeler.delta).values())
    assert 0.98 * labeler.epsilon <= cost <= labeler.epsilon * (1 + 1e-9)
    assert labelers.named(type(labeler).__module__.split(".")[-1]) is type(labeler)


@each
def test_the_public_truth_is_never_used(labeler):
    """Nor is anything but the key: the second run begins from the same one."""
    first = answers_of(labeler)
    blind = answers_of(labeler, blind=True)
    np.testing.assert_array_equal(first.labels, blind.labels)
    np.testing.assert_array_equal(released(first), released(blind))


@pytest.mark.parametrize(
    "labeler",
    [
        case(name, dataclasses.replace(labeler, **changed))
        for name, labeler in EXAMPLES.items()
        if labeler.relation == "add-remove"
        for changed in ({}, {"unit": "person"})[: 1 + hasattr(labeler, "unit")]
    ]
    + [
        pytest.param(
            dataclasses.replace(dpdfd.SMALL, relation="add-remove", teacher="datalens"),
            marks=pytest.mark.long,
            id="dpdfd whose teachers are networks",
        ),
        pytest.param(
            NoisySGD(
                epsilon=8.0,
                delta=1e-3,
                relation="add-remove",
                sampling_prob=0.5,
                network="cnn",
                epochs=1.0,
            ),
            marks=pytest.mark.long,
            id="noisy_sgd on images",
        ),
    ],
)
def test_under_add_remove_no_error_tells_that_there_is_no_record(labeler):
    """Some labelers refused no record and took one, so that one decided about a release."""
    task, encode, queries = problem()
    nobody = Records(task.private.images[:0], task.private.labels[:0], np.zeros(0, np.int32))
    empty = dataclasses.replace(task, private=nobody, private_index=np.zeros(0, np.int64))
    answers = labelers.label(labeler, jax.random.key(0), empty, encode, queries)
    assert answers.guarantee.epsilon == labeler.epsilon


@each
def test_another_key_draws_other_noise(labeler):
    """The same key draws the same, as the test before this one shows."""
    first = answers_of(labeler)
    other = answers_of(labeler, noise=1)
    assert not np.array_equal(released(first), released(other))


@each
def test_the_labels_are_those_that_were_recorded(labeler):
    if labeler.slow:
        pytest.skip("after so many steps, another processor's roundings change a label")
    [name] = (name for name, example in EXAMPLES.items() if example is labeler)
    answers = answers_of(labeler)
    recorded.check(f"labels of {name}", answers.labels, answers.answered)

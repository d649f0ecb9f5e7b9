"""Algorithm 1 against a slow transcription in NumPy, and the names that the package offers."""

import dataclasses
import importlib
import math
import sys

import jax
import numpy as np
import pytest

import rknn_jax as rk
from rknn_jax.algorithm import Keys, distill
from rknn_jax.labelers import rknn
from rknn_jax.queries import kmeans
from rknn_jax.representations import pixels
from tests.contracts.test_labelers import tiny_task

KEYS = Keys(jax.random.key(0), jax.random.key(1))
NUM_QUERIES, NUM_CLASSES = 4, 3


class Told:
    """A student that says what it was told, and describes images by their brightness."""

    interrupted = False

    def __init__(self, labels):
        self.labels = labels

    def predict_proba(self, images):
        return np.tile(self.labels.probabilities.mean(axis=0), (len(images), 1))

    def features(self, images):
        return np.float32(images.reshape(len(images), -1)[:, ::2])


def ask(key, features, labels, student):
    return kmeans.select(key, features, NUM_QUERIES)


def transcribed(task, features, private, queries, num_neighbors):
    """Steps 3 to 6 in loops and float64: the label of each public record."""
    counts = np.zeros((NUM_QUERIES, NUM_CLASSES), int)
    for row, label in zip(private, task.private.labels, strict=True):
        distance = ((np.float64(row) - np.float64(queries.features)) ** 2).sum(axis=1)
        for query in np.argsort(distance, kind="stable")[:num_neighbors]:
            counts[query, label] += 1
    return counts, counts.argmax(axis=1)[queries.cluster]


@pytest.mark.parametrize("num_rounds", [1, 2])
def test_algorithm_1_is_what_its_transcription_does(num_rounds):
    task = tiny_task()
    labeler = rknn.ReverseKNN(epsilon=math.inf, num_neighbors=2, smoothing="none")
    encode = pixels.fit(jax.random.key(2), task.public.images)

    def fit(key, step, labels):
        return Told(labels)

    rounds = distill(labeler, ask, encode, fit, task, KEYS, num_rounds, "none")
    count = 0
    for found in rounds:
        features = np.asarray(encode(task.public.images))
        private = np.asarray(encode(task.private.images))
        counts, labels = transcribed(task, features, private, found.queries, 2)
        np.testing.assert_array_equal(found.answers.counts, counts)
        np.testing.assert_array_equal(found.labels.hard, labels)
        np.testing.assert_array_equal(
            found.labels.query, count * NUM_QUERIES + found.queries.cluster
        )
        encode = found.student.features
        count += 1
    assert count == num_rounds


def test_a_student_that_is_interrupted_ends_it_and_the_one_before_stays():
    task = tiny_task()
    encode = pixels.fit(jax.random.key(2), task.public.images)
    students = [Told(None), None]

    def fit(key, step, labels):
        if students[step] is not None:
            students[step].labels = labels
        return students[step]

    labeler = rknn.ReverseKNN(epsilon=math.inf, smoothing="none")
    rounds = list(distill(labeler, ask, encode, fit, task, KEYS, 5, "none"))
    assert len(rounds) == 2
    assert rounds[-1].student is students[0]


def test_no_answer_is_an_error_before_any_student():
    @dataclasses.dataclass(frozen=True)
    class Silent(rknn.ReverseKNN):
        def release(self, *given, **named):
            answers = super().release(*given, **named)
            nobody = np.zeros(NUM_QUERIES, bool)
            return dataclasses.replace(answers, answered=nobody)

    task = tiny_task()
    encode = pixels.fit(jax.random.key(2), task.public.images)
    with pytest.raises(ValueError, match="Expected an answer"):
        next(distill(Silent(smoothing="none"), ask, encode, None, task, KEYS, 1, "none"))


def test_every_name_of_the_package_is_there():
    for name in rk.__all__:
        assert getattr(rk, name) is getattr(rk, name)
        assert name in dir(rk)
    with pytest.raises(AttributeError, match="nothing"):
        _ = rk.nothing


def test_the_former_name_of_reverse_knn_warns():
    with pytest.warns(DeprecationWarning, match="ReverseKNN"):
        assert rknn.Config is rknn.ReverseKNN


def test_the_former_module_of_the_estimator_warns():
    sys.modules.pop("rknn_jax.tabular", None)
    with pytest.warns(DeprecationWarning, match="has moved"):
        former = importlib.import_module("rknn_jax.tabular")
    assert former.ReverseKNNLabeler is rk.ReverseKNNLabeler


def keys_of_a_run(keys):
    """Return the three rounds of a run, and the keys of its public and its secret stages."""
    public, secret = [], []

    @dataclasses.dataclass(frozen=True)
    class Watched(rknn.ReverseKNN):
        def contribute(self, key, *rest, **named):
            secret.append(key)
            return super().contribute(key, *rest, **named)

        def release(self, key, *rest, **named):
            secret.append(key)
            return super().release(key, *rest, **named)

    def ask_same(key, features, labels, student):
        public.append(key)
        return kmeans.select(jax.random.key(0), features, NUM_QUERIES)

    def fit(key, step, labels):
        public.append(key)
        student = Told(labels)
        student.features = encode
        return student

    task = tiny_task()
    encode = pixels.fit(jax.random.key(2), task.public.images)
    labeler = Watched(epsilon=1.0, num_neighbors=2, smoothing="none")
    rounds = list(distill(labeler, ask_same, encode, fit, task, keys, 3, "none"))
    words = [
        [tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in given]
        for given in (public, secret)
    ]
    return rounds, *words


def test_no_key_serves_two_purposes_or_two_rounds():
    """One noise key for all rounds would let the difference of two rounds show the votes."""
    rounds, public, secret = keys_of_a_run(KEYS)
    assert len(public) == len(secret) == 6
    assert len({*public, *secret}) == 12
    # The same question to the same records: what differs is the noise.
    noise = [found.answers.counts for found in rounds]
    for one in range(3):
        for other in range(one):
            assert not np.array_equal(noise[one], noise[other])


def test_samples_and_noise_come_from_the_secret_key_alone():
    """Whoever knows the seed of the public stages could subtract noise that is drawn from it."""
    _, public, secret = keys_of_a_run(KEYS)
    _, other, same = keys_of_a_run(dataclasses.replace(KEYS, public=jax.random.key(8)))
    assert same == secret
    assert not {*other} & {*public}
    _, same, other = keys_of_a_run(dataclasses.replace(KEYS, noise=jax.random.key(9)))
    assert same == public
    assert not {*other} & {*secret}

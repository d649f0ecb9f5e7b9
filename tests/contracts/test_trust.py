"""Every trust model against its contract."""

import sys

import jax
import numpy as np
import pytest

from rknn_jax import mechanisms, trust
from rknn_jax.labelers import _vote_mechanism
from rknn_jax.labelers.rknn import ReverseKNN
from rknn_jax.privacy.statement import schema
from tests.conftest import modules
from train.experiment import Experiment

MODELS = [(module.__name__.split(".")[-1], module.MODEL) for module in modules(trust)]
each = pytest.mark.parametrize(
    ("name", "model"), MODELS, ids=[f"trust-{name}" for name, _ in MODELS]
)


@each
def test_a_model_says_who_sees_what(name, model):
    assert trust.named(name) is model
    assert model.words
    assert not model.words.endswith(".")  # they stand within a sentence
    assert model.deployment
    assert name in schema()["$defs"]["guarantee"]["properties"]["trust"]["enum"]
    assert bool(model.federated) == bool(model.server)
    if model.server:
        assert model.server.format(epsilon=1.0, honest=3)


@each
def test_labels_carry_the_name_of_their_model(name, model):
    if not model.labels:
        with pytest.raises(ValueError, match="Expected trust to be one of"):
            ReverseKNN(trust=name)
        return
    labeler = ReverseKNN(epsilon=1.0, delta=1e-5, trust=name)
    assert labeler.noise == model.usual
    assert (labeler.has_curator, labeler.is_shuffled) == (model.has_curator, model.is_shuffled)
    found = labeler.guarantee_of(60_000, 4, 3)
    assert found.trust == name
    assert found.epsilon <= 1
    assert model.words in str(found)


@each
def test_a_model_takes_mechanisms_by_its_own_word(name, model):
    for other in mechanisms.names() if model.labels else ():
        if model.takes(mechanisms.named(other)):
            assert ReverseKNN(trust=name, mechanism=other).noise == other
        else:
            with pytest.raises(ValueError, match="Expected mechanism to be one of"):
                ReverseKNN(trust=name, mechanism=other)


@each
def test_records_check_under_one_partys_noise_alone(name, model):
    """The party that drew the one noise of a check could subtract it."""
    if not model.labels:
        return
    settings = {"labeler": ReverseKNN(trust=name), "check_share": 0.1, "delta": 1e-5}
    if model.noises == 1:
        assert Experiment(**settings).check_share == 0.1
        return
    with pytest.raises(ValueError, match=f"got labeler.trust={name}, under which"):
        Experiment(**settings)


@each
def test_the_standard_deviation_is_that_of_all_noise(name, model):
    """By 6,000 draws of each, within five standard errors of their spread: once in 10^6 by chance.

    Squares of Laplace noise, whose kurtosis is 6, spread most: by sqrt(5 / n) of their mean.
    """
    if not (model.labels and model.has_curator):
        return  # `test_local.py` has the messages of clients
    step = _vote_mechanism.calibrated(2000, 3, 100, ReverseKNN(epsilon=1.0, trust=name))
    zeros = np.zeros(step.shape, np.int32)
    variance = float(step.stddev(zeros, 100)[0, 0]) ** 2
    for drawn in (step.estimate(jax.random.key(0), zeros, 100), step.release(zeros)):
        assert abs(np.mean(np.square(drawn)) / variance - 1) < 5 * np.sqrt(5 / zeros.size)


@pytest.fixture(params=["central", "local", "shuffle"])
def own(request, tmp_path, monkeypatch):
    """Write a trust model of one's own, like one that is there, and return its name."""
    text = "from dataclasses import replace\nfrom rknn_jax.trust.{0} import MODEL as LIKE\n"
    text += "MODEL = replace(LIKE, words='{1} looks')\n"
    name = f"like_{request.param}"
    (tmp_path / f"{name}.py").write_text(text.format(request.param, "nobody"))
    monkeypatch.setattr(trust, "__path__", [*trust.__path__, str(tmp_path)])
    yield name
    sys.modules.pop(f"rknn_jax.trust.{name}", None)
    trust.named.cache_clear()


def test_a_new_file_is_a_trust_model(own):
    test_a_model_says_who_sees_what(own, trust.named(own))
    test_labels_carry_the_name_of_their_model(own, trust.named(own))
    test_the_standard_deviation_is_that_of_all_noise(own, trust.named(own))

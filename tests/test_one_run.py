"""One-run auditing: bounds that no honest mechanism passes, and half of noisy SGD's noise."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from rknn_jax.audit import games_training, one_run
from rknn_jax.labelers.noisy_sgd import NoisySGD
from rknn_jax.mechanisms.gaussian import Gaussian
from rknn_jax.privacy import events
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.students import clipped_gradients, dpsgd

RUNS = 12
CANARIES = 500
"""Sizes at which half the noise is found in `make test`."""


def largest_probability(curve, canaries, guesses, correct):
    """Largest P[N >= v] under the inequalities of the module, by linear programming.

    Every inequality is linear in the law of N at each point of the curve.
    """
    numbers = np.arange(guesses + 1)
    rows = []
    bounds = []
    for c in range(1, correct + 1):
        a = np.where(numbers >= c, numbers, 0) / canaries
        b = np.where(numbers >= c - 1, guesses - numbers, 0) / canaries
        for delta, epsilon in curve:
            rows += [a - math.exp(epsilon) * b, math.exp(epsilon) * a - b]
            bounds += [delta, math.exp(epsilon) - 1 + delta]
    told = linprog(
        -(numbers >= correct).astype(float),
        np.array(rows),
        np.array(bounds),
        np.ones((1, guesses + 1)),
        [1.0],
    )
    return -told.fun


@pytest.mark.parametrize(
    "curve", [((0.0, 1.0),), ((0.01, 0.5),), ((1e-3, 1.5), (0.05, 0.7), (0.2, 0.0))], ids=str
)
@pytest.mark.parametrize(("canaries", "guesses"), [(12, 12), (15, 9)])
def test_the_bound_is_the_largest_probability_that_the_inequalities_allow(curve, canaries, guesses):
    for correct in (guesses, guesses - 1, guesses // 2 + 1):
        largest = largest_probability(curve, canaries, guesses, correct)
        assert one_run.allows(curve, canaries, guesses, correct, largest * (1 - 1e-6))
        if largest < 0.999:
            assert not one_run.allows(curve, canaries, guesses, correct, largest * (1 + 1e-5))


def test_randomized_response_is_nearly_the_worst_pure_mechanism():
    """Its right guesses are binomial, which no bound may exclude; Steinke's is that very law."""
    chance = math.e / (1 + math.e)
    for correct in (750, 770, 780):
        law = binom.sf(correct - 1, 1000, chance)
        assert one_run.allows(((0.0, 1.0),), 1000, 1000, correct, law)
        assert one_run.steinke_tail(1000, 1000, correct, 1.0, 0.0) == pytest.approx(law)
    assert not one_run.allows(((0.0, 1.0),), 1000, 1000, 790, 1e-4)


def test_steinkes_bound_has_the_term_of_delta():
    """Delta enters by 2 m delta max_i P[v - i <= B < v] / i, recomputed here one i at a time."""
    chance = 1 / (1 + math.exp(-0.5))
    law = binom.pmf(np.arange(41), 40, chance)
    worst = max(law[30 - i : 30].sum() / i for i in range(1, 31))
    expected = law[30:].sum() + 2 * 50 * 1e-3 * worst
    assert one_run.steinke_tail(50, 40, 30, 0.5, 1e-3) == pytest.approx(expected, rel=1e-9)


def shared_noise(rng, runs, canaries):
    """Guesses from one noisy sum of all signs: most are right together, or wrong.

    The sum moves by 2 when a sign changes, so each run is 2/stddev-Gaussian private.
    """
    signs = rng.choice([-1, 1], (runs, canaries))
    noisy = signs.sum(axis=1, keepdims=True) + rng.normal(0, 4.0, (runs, 1))
    return signs, np.broadcast_to(noisy, signs.shape) + 1e-9 * rng.random(signs.shape)


def own_noise(rng, runs, canaries):
    signs = rng.choice([-1, 1], (runs, canaries))
    return signs, signs + rng.normal(0, 4.0, signs.shape)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", [shared_noise, own_noise])
def test_an_honest_gaussian_is_called_broken_less_often_than_the_error_allows(mechanism):
    """At an error of 20%, in 40 audits; 17 or more have probability 1e-3 at the full error."""
    guarantee = gaussian(0.5)
    rng = np.random.default_rng(0)
    broken = [
        one_run.judge(*mechanism(rng, 5, 64), guarantee, confidence=0.8).broken for _ in range(40)
    ]
    assert sum(broken) < 17


def gaussian(mu, delta=1e-5):
    """Guarantee of Gaussian noise that hides a change of mu standard deviations."""
    event = events.Gaussian(1 / mu)
    epsilon = min(one_run.accounting.epsilons((event,), delta).values())
    return Guarantee(epsilon, delta, "replace-one", "central", (event,))


def test_an_opaque_guarantee_is_one_point():
    guarantee = gaussian(0.5)
    assert len(one_run.dense_curve(guarantee)) > 20
    plain = Guarantee(1.0, 1e-5, "replace-one", "central", ())
    assert one_run.dense_curve(plain) == ((1e-5, 1.0),)
    with pytest.raises(ValueError, match="finite epsilon"):
        one_run.dense_curve(Gaussian(math.inf, 2, 2).guarantee(5))


@pytest.mark.parametrize(("epsilon", "enough"), [(2.0, True), (12.0, False)])
def test_guesses_too_few_to_contradict_a_claim_are_told(epsilon, enough):
    """All are right here."""
    signs = np.random.default_rng(0).choice([-1, 1], (20, 50))
    found = one_run.judge(signs, signs, Guarantee(epsilon, 0.0, "replace-one", "central", ()))
    assert (found.broken, found.conclusive) == (enough, enough)
    assert str(found).startswith("BROKEN" if enough else "Inconclusive, take more runs")


def test_what_cannot_be_judged_is_refused():
    guarantee = gaussian(0.5)
    ones = np.ones((2, 5), int)
    with pytest.raises(ValueError, match="shapes"):
        one_run.judge(ones, np.ones((2, 4)), guarantee)
    with pytest.raises(ValueError, match="signs of 1 or -1"):
        one_run.judge(0 * ones, np.ones((2, 5)), guarantee)
    config = NoisySGD.for_canaries(8, 1.0, 1e-5)
    with pytest.raises(ValueError, match="replace-one"):
        games_training.canary_runs(
            jax.random.key(0),
            1,
            dataclasses.replace(config, relation="add-remove", sampling_prob=1.0),
            8,
        )


def trained(epsilon, runs=RUNS, canaries=CANARIES):
    config = NoisySGD.for_canaries(canaries, epsilon, 1e-5)
    drawn = games_training.canary_runs(jax.random.key(0), runs, config, canaries)
    return one_run.judge(*drawn, 1 - 1e-5)


def with_a_factor(monkeypatch, factor):
    """Noisy SGD that draws noise of another size than its guarantee is computed for."""
    honest = dpsgd.noise

    def noise(config, num_records):
        multiplier, guarantee = honest(config, num_records)
        return factor * multiplier, guarantee

    monkeypatch.setattr(dpsgd, "noise", noise)


@pytest.mark.slow
def test_half_of_noisy_sgds_noise_is_found_in_at_most_twenty_runs(monkeypatch):
    honest = trained(2.0)
    assert not honest.broken, honest
    assert honest.lower_bound > 0.1, "it sees nothing"
    with_a_factor(monkeypatch, 0.5)
    found = trained(2.0)
    assert found.broken, found
    assert found.runs <= 20
    told = json.loads(json.dumps(found.asdict(), allow_nan=False))
    assert "BROKEN" in told["statement"]
    assert (told["runs"], told["canaries"]) == (RUNS, CANARIES)


def test_a_mechanism_that_shows_few_records_in_full_is_broken():
    """Few guesses alone tell, and the others are as good as those of an honest mechanism."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1], (20, 1000))
    scores = 0.1 * rng.normal(size=signs.shape)
    scores[:, :62] = 10 * signs[:, :62]
    claimed = Guarantee(1.0, 1e-5, "replace-one", trust="central", events=())
    assert one_run.judge(signs, scores, claimed).broken


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_half_of_the_noise_is_found_at_other_epsilons(monkeypatch, epsilon):
    assert not trained(epsilon, 20, 1000).broken
    with_a_factor(monkeypatch, 0.5)
    assert trained(epsilon, 20, 1000).broken


@pytest.mark.slow  # beside half of the noise
def test_a_clip_that_is_forgotten_is_found(monkeypatch):
    """Gradients of these canaries are five times as long as the clipped ones."""
    monkeypatch.setattr(
        dpsgd,
        "clipped_sum",
        lambda gradients, clip: jax.tree.map(lambda g: g.sum(axis=0), gradients),
    )
    clipped_gradients.add_clipped.clear_cache()
    try:
        assert trained(2.0, 6, 128).broken
    finally:
        clipped_gradients.add_clipped.clear_cache()

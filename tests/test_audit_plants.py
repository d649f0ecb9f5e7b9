"""Planted bugs of mechanisms: the audit finds every one, and nothing in what they are copies of."""

import dataclasses

import jax
import pytest

from rknn_jax.audit import games, verdict
from rknn_jax.audit.game import HALF_THE_NOISE, Control
from rknn_jax.cli.audit import RUNS
from tests.plants import plants

CONFIDENCE = 1 - 1e-5
CLIENTS = 20
PLANTS = plants()


def found_in(mechanism, honest, runs, confidence=CONFIDENCE):
    return verdict.audit(
        jax.random.key(0),
        games.of_mechanism(mechanism),
        honest.guarantee(CLIENTS),
        runs,
        confidence,
    )


def in_the_fast_tier(plant):
    """Return whether it is the one query without noise; each plant takes seconds."""
    return plant is PLANTS[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(p, id=p.words, marks=() if in_the_fast_tier(p) else pytest.mark.slow)
        for p in PLANTS
    ],
)
def test_a_planted_bug_is_found(plant):
    found = found_in(plant.mechanism, plant.honest, plant.runs)
    assert found.broken, found


@pytest.mark.slow
@pytest.mark.parametrize("plant", plants(12, 3, 1.0), ids=lambda plant: plant.words)
def test_a_planted_bug_is_found_at_the_default_sizes(plant):
    """Of `rknn audit`: 12 queries, 3 classes, 200,000 runs, and its confidence."""
    found = found_in(plant.mechanism, plant.honest, RUNS["mechanism"], 0.9999)
    assert found.broken, found


@pytest.mark.slow  # tests/test_audit.py has the words of the command
def test_power_says_against_what():
    plant = PLANTS[1]
    weaker = games.of_mechanism(dataclasses.replace(plant.honest, epsilon=2 * plant.honest.epsilon))
    control = Control(HALF_THE_NOISE, weaker[3:4])
    played = games.of_mechanism(plant.mechanism)[3:4]
    told = str(
        verdict.audit(
            jax.random.key(0), played, plant.honest.guarantee(CLIENTS), 600, CONFIDENCE, control
        )
    )
    assert "against half the noise" in told
    assert "other faults may go unseen" in told

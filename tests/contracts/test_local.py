"""Every local randomizer: its privacy loss enumerated, its law, its bias, its variance, and what its server makes of messages."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import pdist

from rknn_jax import mechanisms
from rknn_jax.games import inputs
from rknn_jax.mechanisms.base import estimate_counts
from rknn_jax.mechanisms.hadamard_response import HadamardResponse
from rknn_jax.mechanisms.local import LocalRandomizer, PureProtocol
from rknn_jax.mechanisms.local_hashing import LocalHashing
from tests.conftest import modules, thin

EXAMPLES = [
    example
    for module in modules(mechanisms, leave_out=mechanisms.CONTRACTS)
    for example in module.EXAMPLES
    if isinstance(example, LocalRandomizer)
]
each = thin(EXAMPLES)
each_pure = thin([example for example in EXAMPLES if isinstance(example, PureProtocol)])
every = pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
SEEDS = 10
CLIENTS = 100_000


def full(mechanism):
    return [votes for votes in inputs(mechanism) if votes.min() >= 0]


def law(mechanism, key, votes):
    messages = mechanism.alphabet(key)
    return messages, np.stack([mechanism.log_prob(messages, cells) for cells in votes])


@every
@pytest.mark.parametrize("epsilon", [None, 1e-6, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_privacy_loss_of_every_pair_of_inputs_is_at_most_epsilon(mechanism, epsilon):
    """All inputs and messages, under 10 seeds of the public coins: some votes collide in a bucket and some do not."""
    mechanism = mechanism if epsilon is None else dataclasses.replace(mechanism, epsilon=epsilon, **free(mechanism))
    largest = 0.0
    for seed in range(SEEDS):
        _, log_prob = law(mechanism, jax.random.key(seed), inputs(mechanism))
        np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1, atol=1e-9)
        largest = max(largest, float((log_prob.max(axis=0) - log_prob.min(axis=0)).max()))
    assert largest <= mechanism.epsilon + 1e-9
    assert largest >= 0.99 * mechanism.epsilon, "epsilon is not used up"


def free(mechanism):
    """Let a mechanism choose its own size again for another epsilon."""
    return {
        name: None for name in ("num_buckets", "subset_size", "arc_length", "query_buckets", "label_buckets") if hasattr(mechanism, name)
    }


@each
def test_messages_follow_the_law(mechanism):
    """Whatever the public coins, a message weighed by 1 over its probability counts as 1: for each value of its private part.

    100,000 clients for each of three inputs, 4.5 standard errors a value; together a false alarm in a thousand at other seeds than this.
    """
    for cells in (full(mechanism)[0], full(mechanism)[-1], inputs(mechanism)[0]):
        messages = randomized(mechanism, np.tile(cells, (CLIENTS, 1)))
        weight = np.exp(-mechanism.log_prob(messages, cells))
        private = np.asarray(jax.tree.leaves(messages)[-1]).reshape(CLIENTS, -1)
        values, value = np.unique(private, axis=0, return_inverse=True)
        assert len(values) == len(jax.tree.leaves(mechanism.alphabet(jax.random.key(0)))[0]), "some message never came"
        first, second = (np.bincount(value.ravel(), weights=weight**power) / CLIENTS for power in (1, 2))
        assert np.all(np.abs(first - 1) < 4.5 * np.sqrt((second - first**2) / CLIENTS))


def randomized(mechanism, cells, seed=1):
    keys = jax.random.split(jax.random.key(seed), len(cells))
    return jax.jit(jax.vmap(mechanism.randomize))(keys, jnp.asarray(cells))


@each_pure
def test_cells_are_supported_with_probability_p_and_q(mechanism):
    """300,000 clients of one input, every cell within 4.5 standard errors: a weak hash shows on the cells next to a vote."""
    clients = 300_000
    cells = full(mechanism)[len(full(mechanism)) // 2]
    totals = np.asarray(jax.jit(mechanism.aggregate)(randomized(mechanism, np.tile(cells, (clients, 1)), seed=2)))
    chance = np.where(np.isin(np.arange(mechanism.num_cells), cells), mechanism.p, mechanism.q)
    assert np.all(np.abs(totals / clients - chance) < 4.5 * np.sqrt(chance * (1 - chance) / clients))


@each_pure
def test_a_client_without_votes_biases_nothing(mechanism):
    clients = 300_000
    totals = np.asarray(jax.jit(mechanism.aggregate)(randomized(mechanism, np.full((clients, mechanism.votes_per_record), -1), seed=4)))
    assert np.all(np.abs(totals / clients - mechanism.q) < 4.5 * np.sqrt(mechanism.q * (1 - mechanism.q) / clients))


@each
@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 50.0])
def test_extreme_epsilons_stay_finite(mechanism, epsilon):
    mechanism = dataclasses.replace(mechanism, epsilon=epsilon, **free(mechanism))
    if isinstance(mechanism, PureProtocol):
        assert 0 < mechanism.q < mechanism.p <= 1
    assert 0 < mechanism.mean_variance < math.inf
    counts = estimate_counts(mechanism, jax.random.key(0), jnp.asarray(full(mechanism)))
    assert np.isfinite(np.asarray(counts)).all()


@each
def test_what_is_outside_the_alphabet_is_told(mechanism):
    valid = jax.jit(jax.vmap(mechanism.valid))
    assert np.asarray(valid(mechanism.alphabet(jax.random.key(0)))).all()
    leaves, structure = jax.tree.flatten(randomized(mechanism, np.asarray(full(mechanism)[:5])))
    out = np.asarray(leaves[-1]).copy()
    out[3] = -1 if out.dtype == np.int32 else out[3] | np.uint32(2**31)
    np.testing.assert_array_equal(valid(jax.tree.unflatten(structure, [*leaves[:-1], out])), np.arange(5) != 3)


@each
def test_as_many_votes_as_cells_are_refused(mechanism):
    with pytest.raises(ValueError, match="ask more queries|votes a record"):
        dataclasses.replace(mechanism, num_queries=2, num_classes=1, num_neighbors=2, labels_per_record=1, **free(mechanism))


@pytest.mark.parametrize("mechanism", [m for m in EXAMPLES if type(m).total_variation is not LocalRandomizer.total_variation], ids=str)
@pytest.mark.parametrize("epsilon", [None, pytest.param(0.1, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.slow)])
def test_no_two_inputs_are_further_apart_than_the_total_variation(mechanism, epsilon):
    """All pairs, with missing votes and none: under each of 36 seeds or, where it is an average, within 4.5 standard errors of 400."""
    mechanism = mechanism if epsilon is None else dataclasses.replace(mechanism, epsilon=epsilon, **free(mechanism))
    average = mechanism.votes_per_record == 1 or isinstance(mechanism, LocalHashing | HadamardResponse)
    seeds, votes = 400 if average else 36, inputs(mechanism)
    alphabets = jax.vmap(mechanism.alphabet)(jax.random.split(jax.random.key(0), seeds))
    messages = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), alphabets)
    laws = np.exp([mechanism.log_prob(messages, cells) for cells in votes]).reshape(len(votes), seeds, -1)
    distance, bound = np.stack([pdist(laws[:, seed], "cityblock") / 2 for seed in range(seeds)]), mechanism.total_variation
    assert bound * (1 - 1e-9) <= distance.max()
    if average:
        variance = max(bound * (distance.max() - bound), 0.0)  # the most that numbers between 0 and the largest have
        assert distance.mean(axis=0).max() <= bound + 4.5 * math.sqrt(variance / seeds) + 1e-9
    else:
        assert distance.max() <= bound + 1e-9
    assert bound <= math.tanh(mechanism.epsilon / 2) * (1 + 1e-9)

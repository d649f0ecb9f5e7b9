"""Every local randomizer: its privacy loss enumerated, its law, its bias, its variance, and what
its server makes of messages.
"""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import pdist

from rknn_jax import mechanisms
from rknn_jax.audit.neighboring import inputs
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.concatenation_as_published import ConcatenationAsPublished
from rknn_jax.mechanisms.generalized_randomized_response import GeneralizedRandomizedResponse
from rknn_jax.mechanisms.hadamard_response import HadamardResponse
from rknn_jax.mechanisms.local import LocalRandomizer, PureProtocol
from rknn_jax.mechanisms.local_hashing import LocalHashing
from rknn_jax.mechanisms.separation import Separation
from rknn_jax.mechanisms.wheel import Wheel
from tests import recorded
from tests.conftest import modules, thin

EXAMPLES = [
    example
    for module in modules(mechanisms, leave_out=mechanisms.CONTRACTS)
    for example in module.EXAMPLES
    if isinstance(example, LocalRandomizer)
]
each = thin(EXAMPLES)
PURE = [example for example in EXAMPLES if isinstance(example, PureProtocol)]
each_pure = thin(PURE)
HARD = [
    m for m in EXAMPLES if m.votes_per_record > 1 or isinstance(m, GeneralizedRandomizedResponse)
]
ENUMERATED = [
    *((mechanism, None) for mechanism in EXAMPLES),
    *((mechanism, 1e-6) for mechanism in HARD),
    *(
        pytest.param(mechanism, 1e-6, marks=pytest.mark.slow)
        for mechanism in EXAMPLES
        if mechanism not in HARD
    ),
    *(pytest.param(mechanism, 4.0, marks=pytest.mark.slow) for mechanism in EXAMPLES),
]
CLIENTS = 100_000


def full(mechanism):
    return [votes for votes in inputs(mechanism) if votes.min() >= 0]


def averages(mechanism):
    """True if its total variation is that of an average over the public coins, so that it takes
    many of them.
    """
    return mechanism.votes_per_record == 1 or isinstance(mechanism, LocalHashing | HadamardResponse)


@functools.cache
def alphabets(mechanism):
    """Every message under 36 or 400 draws of the public coins, and their number."""
    coins = 400 if averages(mechanism) else 36
    drawn = jax.jit(jax.vmap(mechanism.alphabet))(jax.random.split(jax.random.key(0), coins))
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), drawn), coins


@functools.cache
def law(mechanism):
    """Log probability of every message from every input: `[inputs, coins, messages]`."""
    messages, coins = alphabets(mechanism)
    log_prob = [
        mechanism.log_prob(messages, cells).reshape(coins, -1) for cells in inputs(mechanism)
    ]
    return np.stack(log_prob)


def free(mechanism):
    """Let a mechanism choose its own size again for another epsilon."""
    return {
        name: None
        for name in ("num_buckets", "subset_size", "arc_length", "query_buckets", "label_buckets")
        if hasattr(mechanism, name)
    }


@jax.jit
def collect(mechanism, keys, cells):
    """Let every client send a message, add them up, estimate: one program a mechanism, as
    epsilon and sizes of a message are its leaves.
    """
    messages = jax.vmap(mechanism.randomize)(keys, cells)
    totals = mechanism.aggregate(messages)
    return messages, totals, mechanism.estimate(None, totals, len(cells))


def collected(mechanism, votes, seed):
    """Messages, totals and counts of 100,000 clients that vote in turn as each of `votes` does."""
    cells = np.resize(np.asarray(votes, np.int32), (CLIENTS, mechanism.votes_per_record))
    keys = jax.random.split(jax.random.key(seed), CLIENTS)
    return jax.tree.map(np.asarray, collect(mechanism, keys, cells))


@functools.cache
def collected_of(mechanism, number, seed):
    """Of clients that all vote as one input does, by its number."""
    return collected(mechanism, inputs(mechanism)[number], seed)


@pytest.mark.parametrize(("mechanism", "epsilon"), ENUMERATED, ids=str)
def test_the_privacy_loss_of_every_pair_of_inputs_is_at_most_epsilon(mechanism, epsilon):
    """All inputs and messages, under many draws of the public coins: some votes collide in a
    bucket and some do not.
    """
    mechanism = (
        mechanism
        if epsilon is None
        else dataclasses.replace(mechanism, epsilon=epsilon, **free(mechanism))
    )
    log_prob = law(mechanism)
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=2), 1, atol=1e-9)
    largest = float((log_prob.max(axis=0) - log_prob.min(axis=0)).max())
    assert largest <= mechanism.epsilon + 1e-9
    assert largest >= 0.99 * mechanism.epsilon, "epsilon is not used up"


@pytest.mark.long
@each
def test_messages_follow_the_law(mechanism):
    """Whatever the public coins, a message weighed by 1 over its probability counts as 1: for each
    value of its private part.

    100,000 clients for each of three inputs, 4.5 standard errors a value; together a false alarm in
    a thousand at other seeds than this.
    """
    last = len(inputs(mechanism)) - 1
    for number in (
        last - len(full(mechanism)) + 1,
        last,
        0,
    ):  # the first and the last with all votes, and the one without
        messages = collected_of(mechanism, number, seed=1)[0]
        weight = np.exp(-mechanism.log_prob(messages, inputs(mechanism)[number]))
        private = jax.tree.leaves(messages)[-1].reshape(CLIENTS, -1)
        one_number = private.astype(np.int64) @ np.random.default_rng(0).integers(
            2**40, size=private.shape[1]
        )
        values, value = np.unique(one_number, return_inverse=True)
        assert len(values) == len(jax.tree.leaves(mechanism.alphabet(jax.random.key(0)))[0]), (
            "some message never came"
        )
        first, second = (
            np.bincount(value.ravel(), weights=weight**power) / CLIENTS for power in (1, 2)
        )
        assert np.all(np.abs(first - 1) < 4.5 * np.sqrt((second - first**2) / CLIENTS)), inputs(
            mechanism
        )[number]


HASHED = [
    *(
        max((m for m in EXAMPLES if type(m) is kind), key=lambda m: m.votes_per_record)
        for kind in (Collision, LocalHashing, HadamardResponse, Wheel, Separation)
    ),
    next(m for m in EXAMPLES if isinstance(m, ConcatenationAsPublished)),
]


def under_one_hash(mechanism, seed, key, votes):
    """Messages of clients that vote for the same cells, all with one hash of the cells."""
    mix = hashing.mix
    with pytest.MonkeyPatch.context() as patch:  # while this is traced
        patch.setattr(hashing, "mix", lambda _, cells: mix(seed, cells))
        keys = jax.random.split(key, 20_000)
        return jax.vmap(mechanism.randomize, in_axes=(0, None))(keys, votes)


def private_part(message):
    """Return the parts of messages that are not the seed, int `[n, parts]`."""
    leaves = [np.asarray(leaf) for leaf in message if leaf.dtype == np.int32]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def with_seed(mechanism, seed, parts):
    """Messages of these private parts and a seed."""
    like = mechanism.alphabet(jax.random.key(0))
    columns = iter(parts.T)
    leaves = []
    for leaf in like:
        shape = (len(parts), *leaf.shape[1:])
        if leaf.dtype == np.int32:
            width = math.prod(shape[1:])
            leaves.append(np.stack([next(columns) for _ in range(width)], axis=1).reshape(shape))
        else:
            leaves.append(np.broadcast_to(seed, shape))
    return type(like)(*leaves)


@pytest.mark.parametrize("mechanism", HASHED, ids=str)
def test_messages_follow_the_law_under_each_hash(mechanism):
    """Chi-square of all messages of 20,000 clients, under two hashes, for the first cells, for one
    vote less, and for none: at a false-alarm rate of 1e-5 each.

    The server sees the hash. A lie that follows the vote is as likely as others only on average
    over the hashes.
    """
    first = full(mechanism)[0]
    fewer = np.where(np.arange(len(first)) < len(first) - 1, first, -1)
    asked = (first, fewer, np.full_like(first, -1))
    several = jax.jit(jax.vmap(under_one_hash, in_axes=(None, None, 0, 0)))
    for seed in np.uint32([[1, 2], [3, 4]]):
        keys = jax.random.split(jax.random.key(int(seed[0])), len(asked))
        sent = several(mechanism, seed, keys, np.int32(asked))
        for number, votes in enumerate(asked):
            parts = private_part(jax.tree.map(lambda leaf, i=number: leaf[i], sent))
            values, counts = np.unique(parts, axis=0, return_counts=True)
            chance = np.exp(mechanism.log_prob(with_seed(mechanism, seed, values), votes))
            coins = mechanism.order if isinstance(mechanism, HadamardResponse) else 1
            assert chance.sum() == pytest.approx(coins), "some message never came"
            found = stats.chisquare(counts, chance / chance.sum() * len(parts))
            assert found.pvalue > 1e-5, (seed, votes)


@pytest.mark.parametrize("mechanism", PURE, ids=str)
def test_the_votes_and_the_other_cells_are_supported_as_the_law_of_messages_says(mechanism):
    """Enumerated messages weighed by their law: each cell, and each pattern of the votes, within
    4.5 standard errors of the draws of public coins, and exactly where there are none.
    """
    messages, coins = alphabets(mechanism)
    votes = full(mechanism)[-1]
    masks = np.asarray(jax.jit(jax.vmap(mechanism.support))(messages))
    chance = np.exp(law(mechanism)[-1])[..., None]

    def assert_mean(told, expected):
        found = (chance * told.reshape(*chance.shape[:2], -1)).sum(axis=1)
        error = found.std(axis=0) / math.sqrt(coins)
        assert np.all(np.abs(found.mean(axis=0) - expected) <= 4.5 * error + 1e-6)

    voted = np.isin(np.arange(mechanism.num_cells), votes)
    assert_mean(masks, np.where(voted, mechanism.p, mechanism.q))
    width = len(votes)
    hits = np.arange(2**width)[:, None] >> np.arange(width) & 1 == 1
    hit_law = mechanism.hit_law(hits)
    if hit_law is not None:
        assert_mean((masks[:, None, votes] == hits).all(axis=2), hit_law)
        np.testing.assert_allclose([hit_law[hit].sum() for hit in hits.T], mechanism.p)


@each
def test_messages_are_those_that_were_recorded(mechanism):
    """Few of them: of 100,000 draws, one may fall where another processor rounds otherwise."""
    messages, _, _ = collected_of(mechanism, 0, seed=1)
    recorded.check(f"messages of {mechanism}", *(leaf[:2000] for leaf in jax.tree.leaves(messages)))


@pytest.mark.long
@each_pure
def test_cells_are_supported_with_probability_p_and_q(mechanism):
    """300,000 clients of one input, every cell within 4.5 standard errors: a weak hash shows on
    the cells next to a vote.
    """
    number = len(inputs(mechanism)) - 1 - len(full(mechanism)) // 2
    share = sum(collected_of(mechanism, number, seed)[1] for seed in (2, 3, 4)) / (3 * CLIENTS)
    chance = np.where(
        np.isin(np.arange(mechanism.num_cells), inputs(mechanism)[number]), mechanism.p, mechanism.q
    )
    assert np.all(np.abs(share - chance) < 4.5 * np.sqrt(chance * (1 - chance) / (3 * CLIENTS)))


@pytest.mark.parametrize("mechanism", PURE, ids=str)
def test_the_stated_deviation_is_that_of_so_many_votes_whatever_noise_made_of_their_number(
    mechanism,
):
    """An estimate may be below 0 or above n."""
    member, other = mechanism.variances
    votes = np.array([0, 0, 3, 10, 10])
    stated = mechanism.stddev(np.array([-4.0, 0.0, 3.0, 10.0, 11.5]), 10)
    np.testing.assert_allclose(stated**2, votes * member + (10 - votes) * other)


@pytest.mark.long
@each_pure
def test_a_client_without_votes_biases_nothing(mechanism):
    share = sum(collected_of(mechanism, 0, seed)[1] for seed in (1, 2, 3)) / (3 * CLIENTS)
    assert np.all(
        np.abs(share - mechanism.q) < 4.5 * np.sqrt(mechanism.q * (1 - mechanism.q) / (3 * CLIENTS))
    )


@pytest.mark.long
@each
@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 50.0])
def test_extreme_epsilons_stay_finite(mechanism, epsilon):
    mechanism = dataclasses.replace(mechanism, epsilon=epsilon, **free(mechanism))
    if isinstance(mechanism, PureProtocol):
        assert 0 < mechanism.q < mechanism.p <= 1
    assert 0 < mechanism.mean_variance < math.inf
    assert np.isfinite(mechanism.stddev(np.array([0.0, 1, CLIENTS]), CLIENTS)).all()
    messages, _, counts = collected(mechanism, full(mechanism), seed=0)
    assert np.isfinite(counts).all()
    assert valid(mechanism, messages).all()


@jax.jit
def valid(mechanism, messages):
    return jax.vmap(mechanism.valid)(messages)


@each
def test_what_is_outside_the_alphabet_is_told(mechanism):
    """Every message of the alphabet, then what clients send, and among them one message that
    nobody can send.
    """
    alphabet = jax.tree.map(np.asarray, mechanism.alphabet(jax.random.key(0)))
    sent = collected_of(mechanism, len(inputs(mechanism)) - 1, seed=1)[0]
    messages = jax.tree.map(
        lambda some, many: np.concatenate([some, many])[:CLIENTS], alphabet, sent
    )
    leaves, structure = jax.tree.flatten(messages)
    wrong = CLIENTS - 3
    leaves[-1][wrong] = -1 if leaves[-1].dtype == np.int32 else leaves[-1][wrong] | np.uint32(2**31)
    np.testing.assert_array_equal(
        valid(mechanism, jax.tree.unflatten(structure, leaves)), np.arange(CLIENTS) != wrong
    )


@each
def test_a_finite_epsilon_whose_exponential_is_none_is_refused(mechanism):
    with pytest.raises(ValueError, match="epsilon <= 700 of a message, got epsilon=1000"):
        dataclasses.replace(mechanism, epsilon=1000.0)


@each
def test_as_many_votes_as_cells_are_refused(mechanism):
    with pytest.raises(ValueError, match="ask more queries|votes a record"):
        dataclasses.replace(
            mechanism,
            num_queries=2,
            num_classes=1,
            num_neighbors=2,
            labels_per_record=1,
            **free(mechanism),
        )


def test_no_total_variation_is_more_than_epsilon_allows():
    """Which is reached by randomized response of two symbols."""
    most = {str(m): (np.exp(m.epsilon) - 1) / (np.exp(m.epsilon) + 1) for m in EXAMPLES}
    assert all(m.total_variation <= most[str(m)] + 1e-12 for m in EXAMPLES)
    default = [m for m in EXAMPLES if type(m).total_variation is LocalRandomizer.total_variation]
    assert default
    for mechanism in default:
        assert mechanism.total_variation == pytest.approx(most[str(mechanism)])


@pytest.mark.parametrize(
    "mechanism",
    [m for m in EXAMPLES if type(m).total_variation is not LocalRandomizer.total_variation],
    ids=str,
)
@pytest.mark.parametrize(
    "epsilon",
    [None, pytest.param(0.1, marks=pytest.mark.slow), pytest.param(4.0, marks=pytest.mark.slow)],
)
def test_no_two_inputs_are_further_apart_than_the_total_variation(mechanism, epsilon):
    """All pairs, with missing votes and none: under each of 36 seeds or, where it is an average,
    within 4.5 standard errors of 400.
    """
    mechanism = (
        mechanism
        if epsilon is None
        else dataclasses.replace(mechanism, epsilon=epsilon, **free(mechanism))
    )
    laws = np.exp(law(mechanism))
    seeds = laws.shape[1]
    distance = np.stack([pdist(laws[:, seed], "cityblock") / 2 for seed in range(seeds)])
    bound = mechanism.total_variation
    assert bound * (1 - 1e-9) <= distance.max()
    if averages(mechanism):
        variance = max(
            bound * (distance.max() - bound), 0.0
        )  # the most that numbers between 0 and the largest have
        assert distance.mean(axis=0).max() <= bound + 4.5 * math.sqrt(variance / seeds) + 1e-9
    else:
        assert distance.max() <= bound + 1e-9
    some_hashes_tell_more = distance.max() > bound + 1e-9
    exact = isinstance(mechanism, HadamardResponse)  # the average over rows is that of the matrix
    assert mechanism.averages_over_hashes == (some_hashes_tell_more and not exact)
    assert bound <= math.tanh(mechanism.epsilon / 2) * (1 + 1e-9)

"""Multi-message counting: the flooding against golden values and a direct hockey stick, the
noise against its law, the messages.
"""

import dataclasses
import itertools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from rknn_jax.labelers import _vote_mechanism, rknn
from rknn_jax.mechanisms import multi_message
from rknn_jax.mechanisms.base import client_totals, estimate_counts
from rknn_jax.mechanisms.multi_message import MultiMessage
from rknn_jax.privacy import flooding
from rknn_jax.privacy.flooding import Flooding, cell_deltas
from train.experiment import Experiment

GOLDEN = Flooding(5.0, -math.log(0.6))


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.6, 0.04407128), (0.8, 0.02478516), (1.0, 0.01533259)]
)
def test_delta_of_a_cell_agrees_with_the_golden_values(epsilon, delta):
    assert cell_deltas(epsilon, 0.5, GOLDEN) == (pytest.approx(delta, abs=5e-9), 0.0)


def views(count_epsilon, law, vote=0, plus=None, top=60, cut=130):
    """The law of the numbers of (+) and (-) messages, summed directly over N1, N2 and N3; `plus`
    other flooding of (+).
    """
    a = math.exp(-count_epsilon)
    one = (1 - a) * a ** np.arange(cut)
    joint = np.zeros((cut + top + 2, cut + top + 1))
    for n, weight in enumerate(law[:top]):
        first = n if plus is None else plus
        joint[vote + first : vote + first + cut, n : n + cut] += weight * np.outer(one, one)
    return joint


def hockey_stick(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


@pytest.mark.parametrize(
    ("flood", "count_epsilon"),
    [(GOLDEN, 0.5), (Flooding(0.7, 0.6), 0.3), (flooding.NONE, 0.4), (Flooding(40, 2), 1.0)],
)
def test_delta_of_a_cell_is_the_hockey_stick_of_both_numbers_of_messages(flood, count_epsilon):
    law = flooding.law(*flood, 60)
    without, with_vote = (views(count_epsilon, law, vote) for vote in (0, 1))
    for epsilon in (0.0, 0.1, 0.35, 0.5, 0.9, 1.5):
        deltas = cell_deltas(epsilon, count_epsilon, flood)
        expected = (
            hockey_stick(without, with_vote, epsilon),
            hockey_stick(with_vote, without, epsilon),
        )
        np.testing.assert_allclose(deltas, expected, rtol=1e-7, atol=1e-9)


def test_flooding_of_one_sign_alone_would_hide_nothing():
    """The mutation: n₃ dropped from (+) leaves (+) = x + N₁, so that (+) = 0 tells that there is
    no vote.
    """
    law = flooding.law(*GOLDEN, 60)
    broken = [views(0.5, law, vote, plus=0) for vote in (0, 1)]
    assert hockey_stick(*broken, 1.0) > 0.39 > 25 * cell_deltas(1.0, 0.5, GOLDEN)[0]


@pytest.mark.parametrize(("shape", "decay"), [(0.01, 0.02), (0.5, 1.0), (27.5, 0.35), (1e4, 8.0)])
def test_the_negative_binomial_and_its_tail_are_scipys(shape, decay):
    values = np.arange(400)
    theirs = stats.nbinom(shape, -math.expm1(-decay))
    np.testing.assert_allclose(
        flooding.law(shape, decay, 399), theirs.pmf(values), rtol=1e-9, atol=1e-300
    )
    np.testing.assert_allclose(
        flooding.above(shape, decay, values), theirs.sf(values), rtol=1e-9, atol=1e-300
    )


GOLDEN_MEANS = [
    (0.5, 0.5, 1e-6, 64.94),
    (0.25, 0.25, 5e-7, 135.1),
    (0.05, 0.45, 5e-7, 592.9),
    (0.025, 0.475, 5e-7, 1089),
]


@pytest.mark.parametrize(("extra", "count", "delta", "mean"), GOLDEN_MEANS)
def test_tight_flooding_has_the_least_mean_that_hides_a_vote(extra, count, delta, mean):
    found = flooding.tight(extra, count, delta)
    assert found.mean == pytest.approx(mean, rel=5e-3)
    assert 0.999 * delta < cell_deltas(extra + count, count, found)[0] <= delta
    assert cell_deltas(extra + count, count, found)[1] == 0
    assert cell_deltas(extra + count, count, found._replace(shape=0.999 * found.shape))[0] > delta


@pytest.mark.parametrize(
    ("extra", "count", "delta"),
    [(0.5, 4.5, 1e-6), (0.01, 0.09, 1e-9), (1.0, 1.0, 1e-7), (0.1, 0.9, 1e-12)],
)
def test_no_other_shape_of_the_flooding_is_two_percent_smaller(extra, count, delta):
    def mean(log_decay):
        def excess(shape):
            flooding = Flooding(math.exp(shape), math.exp(log_decay))
            return math.log(cell_deltas(extra + count, count, flooding)[0] / delta)

        return math.exp(optimize.brentq(excess, 0, 8, xtol=1e-4)) / math.expm1(math.exp(log_decay))

    best = optimize.minimize_scalar(
        mean,
        bounds=(math.log(0.3 * extra), math.log(2.5 * extra)),
        method="bounded",
        options={"xatol": 0.02},
    )
    assert flooding.tight(extra, count, delta).mean < 1.02 * best.fun


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("delta", [0.3, 1e-6, 1e-15])
def test_tight_flooding_is_verified_over_all_budgets(epsilon, delta):
    started = time.process_time()
    found = flooding.tight(0.1 * epsilon, 0.9 * epsilon, delta)
    assert time.process_time() - started < 5, "it takes 2 s at most"
    assert max(cell_deltas(epsilon, 0.9 * epsilon, found)) <= delta


def test_published_flooding_is_far_more_than_is_needed_and_refused_where_it_is_too_little():
    found = flooding.published(0.5, 0.5, 1e-6)
    assert found.mean == pytest.approx(422.61, abs=5e-3)
    assert cell_deltas(1.0, 0.5, found)[0] == pytest.approx(1.9e-22, rel=0.01)
    assert flooding.published(0.25, 0.25, 1e-6).mean == pytest.approx(866.89, abs=5e-3)
    with pytest.raises(
        ValueError, match=r"published flooding hides a vote, got 8 a cell; use flooding='tight'"
    ):
        flooding.published(8.0, 8.0, 1e-6)
    with pytest.raises(ValueError, match=r"at most 1e\+07 pairs .*; raise epsilon"):
        flooding.tight(1e-8, 1e-7, 1e-12)


@pytest.mark.parametrize(
    ("cells", "votes", "epsilon", "gamma", "stddev", "published", "tight"),
    [
        (100, 1, 1.0, 0.5, 5.642, 4.037, 1.462),
        (100, 1, 1.0, 0.2, 3.512, 8.684, 2.069),
        (100, 1, 1.0, 0.1, 3.116, 16.437, 2.982),
        (100, 1, 1.0, 0.05, 2.949, 31.945, 4.636),
        (100, 1, 0.1, 0.5, 56.57, 32.07, 4.618),
        (100, 1, 0.1, 0.1, 31.42, 156.1, 14.91),
        (400, 1, 1.0, 0.5, 5.642, 13.15, None),
        (10_000, 4, 1.0, 0.5, 22.6, 1352, None),
    ],
)
def test_messages_and_noise_are_those_of_the_table(
    cells, votes, epsilon, gamma, stddev, published, tight
):
    sizes = {
        "num_queries": cells // 10,
        "num_classes": 10,
        "num_neighbors": votes,
        "num_clients": 60_000,
        "gamma": gamma,
    }
    for rule, expected in (("published", published), ("tight", tight)):
        mechanism = MultiMessage(epsilon, **sizes, flooding=rule)
        assert expected is None or mechanism.expected_messages == pytest.approx(expected, rel=0.03)
        assert mechanism.stddev(np.zeros(3), 60_000) == pytest.approx(np.full(3, stddev), rel=2e-3)
        assert mechanism.message_bits == math.ceil(math.log2(cells)) + 1


def sent(mechanism, cells, runs):
    """What clients send in many runs, int `[runs, num_clients, 2, d]`."""
    keys = jax.random.split(jax.random.key(0), (runs, len(cells)))
    return np.asarray(
        jax.jit(jax.vmap(jax.vmap(mechanism.randomize), in_axes=(0, None)))(keys, cells)
    )


def chi_square(draws, law, least=20):
    """P-value of integer draws under `law` of 0, 1, ...; values expected less than `least` times
    are pooled with the largest.
    """
    expected = len(draws) * law
    last = int(np.argmax(np.cumsum(expected[::-1])[::-1] < least + expected))
    seen = np.bincount(np.minimum(draws, last), minlength=last + 1)
    expected = np.append(expected[:last], len(draws) - expected[:last].sum())
    return stats.chisquare(seen, expected).pvalue


def two_sided(count_epsilon, most=400):
    """Discrete Laplace noise: the law of |D|, with the sign left to its symmetry."""
    a = math.exp(-count_epsilon)
    law = 2 * (1 - a) / (1 + a) * a ** np.arange(most)
    law[0] /= 2
    return law


RELIED_ON = 6
CLIENTS = 12
RUNS = 1000


@pytest.fixture(scope="module")
def half():
    """A mechanism that relies on half of its clients, and what all of them send in 1,000 runs
    without a vote.
    """
    mechanism = MultiMessage(
        2.0, 8, 4, num_clients=CLIENTS, honest_share=0.5, delta=0.2, gamma=0.5
    )  # few messages
    assert mechanism.honest_clients == RELIED_ON
    return mechanism, sent(mechanism, jnp.full((CLIENTS, 1), -1), RUNS)


@pytest.mark.long
@pytest.mark.parametrize(
    "present", [slice(0, RELIED_ON), slice(RELIED_ON, CLIENTS)], ids=["first half", "second half"]
)
def test_shares_of_the_clients_relied_on_sum_to_discrete_laplace_noise(half, present):
    """Whoever drops out: 32,000 cells."""
    mechanism, counts = half
    noise = counts[:, present].sum(1)
    assert mechanism.guarantee(RELIED_ON).epsilon == 2
    decoded = (noise[:, 0] - noise[:, 1]).ravel()
    smaller = noise.min(1).ravel()
    assert chi_square(np.abs(decoded), two_sided(mechanism.count_epsilon)) > 1e-6
    assert abs(np.sum(np.sign(decoded))) < 5 * math.sqrt(np.sum(decoded != 0))
    paired = flooding.law(mechanism.flooding_shape, mechanism.flooding_decay, 300)
    a2 = math.exp(-2 * mechanism.count_epsilon)
    assert chi_square(smaller, np.convolve(paired, (1 - a2) * a2 ** np.arange(300))[:300]) > 1e-6
    assert abs(np.corrcoef(np.abs(decoded), smaller)[0, 1]) < 5 / math.sqrt(len(decoded)), (
        "D and W are independent"
    )
    assert np.abs(np.corrcoef((noise[:, 0] - noise[:, 1]).T) - np.eye(32)).max() < 5.5 / math.sqrt(
        RUNS
    ), "and so are the cells"


@pytest.mark.long
def test_one_clients_share_is_a_negative_binomial_of_its_own(half):
    """Of the (-) messages of one client of 6: NB(1/6, a) and NB(r/6, p)."""
    mechanism, counts = half
    lone = flooding.law(1 / RELIED_ON, mechanism.count_epsilon, 400)
    paired = flooding.law(mechanism.flooding_shape / RELIED_ON, mechanism.flooding_decay, 400)
    assert chi_square(counts[:, 0, 1].ravel(), np.convolve(lone, paired)[:400]) > 1e-6


def test_more_clients_than_are_relied_on_add_noise_that_stddev_knows(half):
    """Within 5 standard errors."""
    mechanism, counts = half
    decoded = (counts[:, :, 0] - counts[:, :, 1]).sum(1)
    (stddev,) = mechanism.stddev(np.zeros(1), CLIENTS)
    assert np.var(decoded) == pytest.approx(stddev**2, rel=5 * math.sqrt(5 / decoded.size))
    assert stddev == pytest.approx(math.sqrt(2) * mechanism.stddev(np.zeros(1), RELIED_ON)[0])


@pytest.mark.long  # the contract tests have the harder case of two votes
def test_counts_are_unbiased_with_the_stated_variance():
    """1,000 runs of 40 voters: means within 5 standard errors, variances within 5 of theirs
    (kurtosis 6).
    """
    cells = np.random.default_rng(0).integers(0, 12, (40, 1))
    exact = np.bincount(cells.ravel(), minlength=12).reshape(4, 3)
    mechanism = MultiMessage(2.0, 4, 3, num_clients=40, delta=1e-3, gamma=0.3)
    runs = jax.jit(jax.vmap(lambda key: estimate_counts(mechanism, key, cells)))(
        jax.random.split(jax.random.key(1), 1000)
    )
    runs = np.asarray(runs, np.float64)
    stddev = mechanism.stddev(exact, 40)
    assert np.all(np.abs(runs.mean(0) - exact) < 5 * stddev / math.sqrt(1000))
    assert np.all(np.abs(runs.var(0) / stddev**2 - 1) < 5 * math.sqrt(5 / 1000))


@pytest.fixture(scope="module")
def voted():
    """200 clients with two votes each, and what they send in 20 runs."""
    mechanism = MultiMessage(1.0, 5, 4, num_clients=200, num_neighbors=2)
    return mechanism, sent(
        mechanism, np.stack([np.random.default_rng(i).permutation(20)[:2] for i in range(200)]), 20
    )


def test_numbers_of_messages_have_the_stated_mean_and_maximum(voted):
    mechanism, counts = voted
    numbers = counts.sum((2, 3))
    assert numbers.min() >= 2
    assert numbers.mean() == pytest.approx(mechanism.expected_messages, rel=0.02)
    assert 2 <= np.sum(numbers.max(1) > mechanism.most_messages(0.5)) <= 18, (
        "half of the 20 runs; false alarm 4e-5"
    )
    assert numbers.max() <= mechanism.most_messages(1e-7)


@pytest.mark.parametrize("honest", [30, 15])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(2.0, 1e-3), (0.5, 0.9)], ids=["flooded", "not flooded"]
)
def test_mean_and_largest_number_of_messages_follow_from_the_exact_law(epsilon, delta, honest):
    mechanism = MultiMessage(epsilon, 3, 2, num_clients=30, delta=delta, honest_share=honest / 30)
    share = 6 / honest
    flood = (mechanism.flooding_shape, mechanism.flooding_decay)
    law = np.convolve(
        flooding.law(2 * share, mechanism.count_epsilon, 6000),
        np.kron(flooding.law(share * flood[0], flood[1], 3000), [1, 0]),
    )
    mean = 1 + law @ np.arange(len(law))
    assert mechanism.expected_messages == pytest.approx(mean, rel=1e-6)
    exceeded = [
        1 - np.cumsum(law)[most - 1] ** 30
        for most in (mechanism.most_messages(0.01), mechanism.most_messages(0.01) - 1)
    ]
    assert exceeded[0] <= 0.01 < exceeded[1]


def test_shuffled_messages_decode_to_the_totals_and_keep_the_multiset(voted):
    mechanism, (counts, *_) = voted
    plain = multi_message.messages(counts)
    np.testing.assert_array_equal(
        plain, np.concatenate([multi_message.messages(client) for client in counts])
    )
    assert plain.dtype == np.uint32
    assert plain.max() < 2**mechanism.message_bits
    mixed = multi_message.shuffle(np.random.default_rng(1), plain)
    assert not np.array_equal(mixed, plain)
    np.testing.assert_array_equal(np.sort(mixed), np.sort(plain))
    np.testing.assert_array_equal(
        multi_message.decode(mixed, 20), mechanism.aggregate(jnp.asarray(counts))
    )


def test_a_shuffle_is_uniform_over_permutations():
    rng = np.random.default_rng(0)
    seen = [tuple(multi_message.shuffle(rng, np.arange(4))) for _ in range(12_000)]
    counts = [seen.count(order) for order in itertools.permutations(range(4))]
    assert stats.chisquare(counts).pvalue > 1e-6


def test_without_privacy_every_client_sends_its_votes_alone():
    mechanism = MultiMessage(math.inf, 4, 3, num_clients=9)
    cells = jnp.arange(9, dtype=jnp.int32)[:, None] - 1
    np.testing.assert_array_equal(
        client_totals(mechanism, jax.random.key(0), cells), [1] * 8 + [0] * 4
    )
    assert mechanism.expected_messages == mechanism.most_messages(1e-9) == 1
    assert mechanism.stddev(np.zeros(1), 9) == [0]


def test_too_few_clients_get_no_guarantee():
    mechanism = MultiMessage(1.0, 4, 3, num_clients=100, honest_share=0.8)
    assert mechanism.guarantee(80).delta == 1e-6
    with pytest.raises(
        ValueError, match=r"honest_share \* num_clients = 80 clients, got 79.*lower honest_share"
    ):
        mechanism.guarantee(79)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("delta", 0.0, "0 < delta < 1, got delta=0.0"),
        ("delta", 1.0, "got delta=1.0"),
        ("gamma", 0.0, "0 < gamma < 1, got gamma=0.0"),
        ("gamma", 1.0, "got gamma=1.0"),
        ("honest_share", 0.0, "0 < honest_share <= 1, got honest_share=0.0"),
        ("honest_share", 1.1, "honest_share=1.1"),
        ("num_clients", 0, "num_clients >= 1, got num_clients=0"),
        ("flooding", "none", "one of .'tight', 'published'., got flooding='none'"),
    ],
)
def test_bad_fields_are_named(field, value, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(multi_message.EXAMPLES[0], **{field: value})
    assert dataclasses.replace(multi_message.EXAMPLES[0], num_clients=1).num_clients == 1
    with pytest.raises(ValueError, match=r"0 < failure_prob < 1, got failure_prob=0"):
        multi_message.EXAMPLES[0].most_messages(0)


def test_the_labeler_gives_it_the_budget_of_the_release_and_amplifies_local_mechanisms_alone():
    config = rknn.ReverseKNN(epsilon=1.0, delta=1e-6, mechanism="multi_message", trust="shuffle")
    mechanism = _vote_mechanism.calibrated(10, 10, 5000, config)
    assert mechanism == MultiMessage(1.0, 10, 10, delta=1e-6, num_clients=5000)
    guarantee = _vote_mechanism.guarantee(mechanism, 5000, config)
    assert (guarantee.epsilon, guarantee.delta, guarantee.trust, guarantee.relation) == (
        1.0,
        1e-6,
        "shuffle",
        "replace-one",
    )
    assert "Ghazi et al. 2020" in guarantee.accountant
    local = dataclasses.replace(config, mechanism="collision")
    assert (
        "amplification"
        in _vote_mechanism.guarantee(
            _vote_mechanism.calibrated(10, 10, 5000, local), 5000, local
        ).accountant
    )
    with pytest.raises(ValueError, match="trust=local, got mechanism=multi_message"):
        dataclasses.replace(config, trust="local")
    assert (
        Experiment(
            labeler=rknn.ReverseKNN(trust="shuffle", mechanism="multi_message"), delta=1e-6
        ).labeler.noise
        == "multi_message"
    )


@pytest.mark.long
def test_totals_of_clients_are_those_of_their_messages():
    """Clients who vote for fewer cells, or twice for one, and clients of many clusters."""
    mechanism = MultiMessage(1.0, 4, 3, num_neighbors=2, num_clients=20)
    cells = jnp.asarray(np.random.default_rng(0).integers(-1, 12, (30, 2)), jnp.int32)
    keys = jax.random.split(jax.random.key(0), 30)
    messages = jax.vmap(mechanism.randomize)(keys, cells)
    np.testing.assert_array_equal(
        mechanism.totals_of_clients(keys, cells), mechanism.aggregate(messages)
    )


def test_no_bits_are_the_number_0_or_1():
    """The logarithm of a number of them is drawn from, and that of 0 is none."""
    ends = np.asarray(multi_message._uniform(jnp.array([0, 1, 2**32 - 1], jnp.uint32)))
    np.testing.assert_array_equal(ends[:2], np.float32([0.5, 1.5]) * 2.0**-32)
    assert 1 - 2.0**-23 <= ends[2] < 1

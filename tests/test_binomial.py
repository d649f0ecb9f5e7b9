"""Noise in shares: exact coins, whose sum is what the guarantee speaks of, and a guarantee that
enumeration cannot better.
"""

import math
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from rknn_jax.bsvs import NO_CELL
from rknn_jax.labelers._vote_shares import VoteShares
from rknn_jax.labelers._votes import VoteTally
from rknn_jax.mechanisms.binomial import Binomial, heads
from rknn_jax.privacy import accounting, analytic_gaussian, calibration, events
from rknn_jax.privacy.entropy import Entropy


def exact_delta(coins, count, epsilon):
    """Delta at epsilon of `count` cells of which half gain a vote and half lose one, by
    enumeration of all heads.
    """
    pmf = binom.pmf(np.arange(-1, coins + 2), coins, 0.5)  # index 0 is -1 heads
    p = q = np.ones(())
    for cell in range(count):
        p = np.multiply.outer(p, pmf[1:-1])
        q = np.multiply.outer(q, pmf[2:] if cell % 2 else pmf[:-2])
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


@pytest.mark.parametrize(("coins", "count"), [(20, 1), (60, 1), (40, 2), (101, 2), (24, 4)])
def test_the_privacy_loss_is_that_of_all_coins(coins, count):
    """Against enumeration of every outcome: never below, and at most 0.5% above in epsilon."""
    delta = 1e-3
    told = accounting.epsilons([events.Binomial(math.sqrt(coins) / 2, count)], delta)
    assert set(told) == {"PLD"}, (
        "heads that show that a vote is there have no pure epsilon and no Rényi divergence"
    )
    assert exact_delta(coins, count, told["PLD"]) <= delta
    assert exact_delta(coins, count, told["PLD"] * 0.995 - 1e-9) > delta


@pytest.mark.parametrize(("epsilon", "neighbors"), [(0.1, 1), (1.0, 1), (3.0, 2)])
def test_coins_are_enough_and_hardly_more(epsilon, neighbors):
    mechanism = Binomial(epsilon, 5, 4, num_neighbors=neighbors, delta=1e-6)

    def cost(coins):
        return accounting.epsilons([events.Binomial(math.sqrt(coins) / 2, 2 * neighbors)], 1e-6)[
            "PLD"
        ]

    assert cost(mechanism.coins) <= epsilon < cost(math.floor(0.99 * mechanism.coins) - 1)
    assert mechanism.guarantee(10).epsilon == epsilon
    gaussian = analytic_gaussian.gaussian_noise_multiplier(epsilon, 1e-6) * math.sqrt(2 * neighbors)
    assert 1 <= mechanism.stddev(np.zeros((5, 4)), 10).max() / gaussian < 1.2


@pytest.mark.parametrize("coins", [1, 5, 63, 64, 70, 200])
def test_heads_have_the_binomial_law(coins):
    """40,000 draws: chi-square over outcomes of more than 5 expected draws within 6 standard
    deviations at this seed.
    """
    drawn = heads(Entropy(bytes(32)), coins, 40_000)
    expected = 40_000 * binom.pmf(np.arange(coins + 1), coins, 0.5)
    common = expected > 5
    counts = np.bincount(drawn, minlength=coins + 1)
    assert len(counts) == coins + 1
    freedom = common.sum() - 1
    assert ((counts - expected)[common] ** 2 / expected[common]).sum() < freedom + 6 * math.sqrt(
        2 * freedom
    ) + 5


def test_many_coins_in_several_pieces_are_as_exact(monkeypatch):
    """Mean and variance of 2,000 draws of 1,000 coins within 5 standard errors; pieces of one
    word each.
    """
    monkeypatch.setattr("rknn_jax.mechanisms.binomial.BYTES_AT_ONCE", 8)
    drawn = heads(Entropy(bytes(32)), 1000, 2000)
    assert abs(drawn.mean() - 500) < 5 * math.sqrt(250 / 2000)
    assert abs(drawn.var() / 250 - 1) < 5 * math.sqrt(2 / 2000)


def test_shares_of_clients_add_up_to_the_noise_of_a_curator():
    """7 clients, 3,000 cells: the mean of their sum within 5 standard errors and its variance
    within 5 of its own; more clients, more.
    """
    mechanism = Binomial(1.0, 1000, 3, delta=1e-6, shares=7)
    counts = np.random.default_rng(0).integers(0, 9, (1000, 3))
    for clients in (7, 9):
        total = (
            sum(mechanism.share(Entropy(bytes([i]) * 32)) for i in range(clients)) + counts.ravel()
        )
        noise = mechanism.without_mean(total, clients) - counts
        stddev = mechanism.stddev(counts, 0)[0, 0] * math.sqrt(clients / 7)
        assert abs(noise.mean()) < 5 * stddev / math.sqrt(3000)
        assert abs(noise.var() / stddev**2 - 1) < 5 * math.sqrt(2 / 3000)
    assert mechanism.coins % 7 == 0
    assert mechanism.coins >= Binomial(1.0, 1000, 3, delta=1e-6).coins


def test_a_curator_releases_it_exactly():
    """1,000 cells of 5 votes: the mean within 5 standard errors of 5, where half a vote may be
    cut off, and integers.
    """
    mechanism = Binomial(2.0, 100, 10, delta=1e-4)
    released = mechanism.release(np.full((100, 10), 5))
    assert released.dtype == np.int64
    assert abs(released.mean() - 5 - (mechanism.coins % 2) / 2) < 5 * mechanism.stddev(released, 0)[
        0, 0
    ] / math.sqrt(1000)
    assert jax.eval_shape(
        mechanism.estimate, jax.random.key(0), np.zeros(1000, np.int32), 1
    ).shape == (100, 10)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"delta": 0.0}, "0 < delta"),
        ({"shares": 0}, "shares >= 1"),
        ({"records": 0}, "records >= 1"),
    ],
)
def test_what_cannot_be_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Binomial(1.0, 4, 3, **wrong)


def test_more_coins_than_anybody_tosses_are_refused_before_anything_is_paid():
    for wide in ({"epsilon": 1e-4, "num_queries": 25}, {"epsilon": 1e-3, "num_queries": 10**6}):
        with pytest.raises(ValueError, match="coins of a client and cell.*raise epsilon"):
            Binomial(**wide, num_classes=10, delta=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("epsilon", "shares"), [(0.01, 4), (0.006, 4), (1e-3, 100), (2e-4, 1000)])
def test_very_many_coins_are_simulated_too(epsilon, shares):
    """40,000 cells of a law whose whole numbers no float32 holds: mean and variance within 5
    standard errors.
    """
    mechanism = Binomial(epsilon, 4_000, 10, delta=1e-6, shares=shares)
    scale = math.sqrt(mechanism.coins) / 2
    draw = jax.jit(lambda mechanism, key: mechanism.estimate(key, jnp.zeros(40_000, jnp.int32), 1))
    noise = np.asarray(draw(mechanism, jax.random.key(0)), np.float64)
    assert abs(noise.mean()) < 5 * scale / math.sqrt(noise.size)
    assert abs(noise.var() / scale**2 - 1) < 5 * math.sqrt(2 / noise.size)
    assert np.all(noise % 1 == mechanism.coins % 2 / 2 * (mechanism.coins <= 2**20))
    assert np.abs(noise).max() < 7 * scale, "false alarm below 1e-6"


class Constant(Entropy):
    """Entropy whose bits are all the same, for the ends of a law."""

    def __init__(self, word):
        super().__init__(bytes(32))
        self.word = word

    def words(self, *shape):
        return np.full(shape, self.word, np.uint64)


@pytest.mark.parametrize("coins", [1, 63, 64, 65, 1000, 10_007])
def test_the_ends_of_the_law_are_reached(coins):
    """All heads and none: coins that are cut, or left out, would show."""
    np.testing.assert_array_equal(heads(Constant(2**64 - 1), coins, 3), coins)
    np.testing.assert_array_equal(heads(Constant(0), coins, 3), 0)


@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_client_counts_in_a_cell_once_however_many_records_vote_for_it(records, monkeypatch):
    """The coins hide a change of each cell by 1: all records of this client agree."""
    monkeypatch.setattr(Binomial, "share", lambda self, entropy: np.zeros(self.num_cells, np.int64))
    coins = Binomial(1.0, 4, 3, delta=1e-3, records=records)
    votes = VoteTally(np.eye(4, dtype=np.float32), 3)
    shares = VoteShares(votes, coins, records)
    told = np.full((9, 1), 7, np.int32)
    told[5:] = 3
    counts = shares.vector(told, Entropy(bytes(32)))
    assert counts.max() == 1
    assert counts.sum() <= records


def test_the_noisy_votes_of_clients_are_their_votes_on_average():
    """Records that do not vote add nothing. False alarms: 12 cells at 5 deviations, below 1e-5."""
    coins = Binomial(1.0, 4, 3, delta=1e-3, shares=60)
    shares = VoteShares(VoteTally(np.eye(4, dtype=np.float32), 3), coins, 0)
    told = np.array([[7], [NO_CELL], [0], [7]], np.int32)
    clients = [shares.vector(told, Entropy(number.to_bytes(32))) for number in range(60)]
    votes, stddev = shares.estimate(np.sum(clients, axis=0), 60)
    truth = np.bincount([7, 0, 7], minlength=12) * 60
    np.testing.assert_array_less(np.abs(votes.ravel() - truth), 5 * np.ravel(stddev))
    assert np.max(stddev) < 12  # so that a cell of 60 votes is seen
    assert shares.noise == "binomial"


@pytest.mark.parametrize("delta", [0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("count", [1, 2])
def test_few_coins_keep_a_large_delta(epsilon, delta, count):
    """Of so few coins, each outcome is taken: delta is summed over all of them."""
    coins = calibration.binomial_coins(epsilon, delta, count)
    heads = np.arange(coins + 1)
    with np.errstate(divide="ignore"):
        one = np.log((coins - heads + 1) / heads)
    losses = reduce(np.add.outer, [one] * count)
    chances = reduce(np.multiply.outer, [binom.pmf(heads, coins, 0.5)] * count)
    assert (chances * -np.expm1(np.minimum(epsilon - losses, 0))).sum() <= delta


def test_no_coin_is_no_noise():
    found = accounting.epsilons([events.Binomial(0.4, 1)], 0.3)
    assert min(found.values()) == math.inf


@pytest.mark.parametrize("honest", [1, 3])
def test_without_noise_no_client_adds_coins(honest):
    nobody = Binomial(math.inf, 3, 2, 1, delta=1e-5, shares=honest)
    assert nobody.coins_per_share == 0
    assert nobody.share(Entropy.fresh()).tolist() == [0] * 6

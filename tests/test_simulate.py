"""Message level and count level are one law, and both tell the error that the variances predict."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from scipy import stats

from rknn_jax import mechanisms, simulate
from rknn_jax.mechanisms import base
from rknn_jax.mechanisms.base import client_totals
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.generalized_randomized_response import GeneralizedRandomizedResponse
from rknn_jax.mechanisms.hadamard_response import HadamardResponse
from rknn_jax.mechanisms.local_hashing import LocalHashing
from rknn_jax.mechanisms.optimized_unary_encoding import OptimizedUnaryEncoding
from rknn_jax.mechanisms.randomized_response import RandomizedResponse
from rknn_jax.mechanisms.separation import Separation
from rknn_jax.mechanisms.wheel import Wheel

RUNS = 3000
EXACT = [
    pytest.param(Collision(1.0, 3, 2, num_buckets=3), marks=pytest.mark.slow),
    pytest.param(Collision(1.0, 3, 4, num_neighbors=2, num_buckets=5), marks=pytest.mark.slow),
    Collision(1.0, 3, 4, num_neighbors=3, num_buckets=8),
    pytest.param(LocalHashing(2.0, 3, 4, num_neighbors=2), marks=pytest.mark.slow),
    RandomizedResponse(3.0, 3, 3, num_neighbors=2),
    pytest.param(OptimizedUnaryEncoding(3.0, 3, 3, num_neighbors=2), marks=pytest.mark.slow),
    GeneralizedRandomizedResponse(2.0, 3, 2),
    HadamardResponse(2.0, 3, 2, num_neighbors=2),
    Separation(3.0, 3, 3),
    pytest.param(
        Separation(3.0, 3, 3, num_neighbors=2, labels_per_record=2), marks=pytest.mark.slow
    ),
    Wheel(2.0, 3, 3, num_neighbors=2, circle_bits=8),
]


@pytest.mark.long
@pytest.mark.parametrize("mechanism", EXACT, ids=str)
def test_totals_have_the_law_of_messages_jointly_over_cells(mechanism):
    """3,000 runs of 12 clients each way, one of them with a vote missing: six random projections
    by a two-sample KS test, each at 1e-4.
    """
    votes, _ = simulate.population(mechanism)
    votes = votes[[0, 3, 4]].copy()
    clients = np.array([6, 5, 1])
    if mechanism.votes_per_record > 1 and not isinstance(mechanism, Separation):
        votes[2, -1] = -1
    cells = np.repeat(votes, clients, axis=0)
    keys = jax.random.split(jax.random.key(0), RUNS)
    slow = np.asarray(jax.jit(jax.vmap(lambda key: client_totals(mechanism, key, cells)))(keys))
    rng = np.random.default_rng(0)
    fast = np.stack([mechanism.sample_totals(rng, votes, clients) for _ in range(RUNS)])
    for projection in np.random.default_rng(1).normal(size=(6, mechanism.num_totals)):
        assert stats.ks_2samp(slow @ projection, fast @ projection).pvalue > 1e-4
    member = np.flatnonzero(np.bincount(votes[0], minlength=mechanism.num_cells))
    if len(member) > 1:  # where one vote is supported another is less often, or as often
        covariance = [np.cov(totals[:, member[:2]].T)[0, 1] for totals in (slow, fast)]
        spread = np.sqrt(np.prod(fast[:, member[:2]].var(axis=0)) / RUNS)
        assert abs(covariance[0] - covariance[1]) < 5 * np.sqrt(2) * spread


@pytest.mark.parametrize(
    ("mechanism", "golden"),
    [
        (
            Collision(1.0, 9, 9, num_neighbors=3, num_buckets=8),
            (0.45434836, 0.47462006, 0.06780287, 0.00322871),
        ),
        (Collision(1.0, 9, 9, num_buckets=3), (0.42388312, 0.57611688)),
    ],
)
def test_the_number_of_supported_votes_has_the_golden_law(mechanism, golden):
    width = mechanism.votes_per_record
    hits = (np.arange(2**width)[:, None] >> np.arange(width)[None]) & 1 == 1
    found = np.bincount(hits.sum(axis=1), weights=mechanism.hit_law(hits))
    np.testing.assert_allclose(found, golden, atol=1e-8)


WITHOUT_LAW = {"subset_selection"}


WITH_LAW = sorted(set(mechanisms.names("local")) - WITHOUT_LAW)
BY_MESSAGES = [
    pytest.param(
        name, "message", marks=pytest.mark.long if name == "collision" else pytest.mark.slow
    )
    for name in WITH_LAW
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "level"), [*BY_MESSAGES, *((name, "count") for name in WITH_LAW)])
def test_the_error_is_as_predicted_and_without_bias(name, level):
    """200 cells: the mean square within 4.5 standard errors, 45%, and the bias within 4.5 of its
    own; 14 cases.

    As many messages as fit one block on each of 8 devices.
    """
    clients = 200_000 if level == "count" else 8 * base.CLIENTS_PER_BLOCK
    found = simulate.simulate(
        simulate.make(name, epsilon=2.0, num_queries=20, num_classes=10), clients, level
    )
    assert found.mse == pytest.approx(found.predicted_mse, rel=0.45)
    assert abs(found.bias_z) < 4.5
    assert found.clients_per_second == pytest.approx(found.clients / found.seconds)


def test_a_small_bias_of_many_cells_is_seen(monkeypatch):
    """Half a standard deviation in each of 200 cells is 7 standard errors of their mean."""
    mechanism = simulate.make("collision", epsilon=2.0, num_queries=20, num_classes=10)
    sound = type(mechanism).estimate
    step = 0.5 * math.sqrt(simulate.simulate(mechanism, 200_000, "count").predicted_mse)
    monkeypatch.setattr(type(mechanism), "estimate", lambda *given: sound(*given) + step)
    found = simulate.simulate(mechanism, 200_000, "count")
    assert found.bias_z == pytest.approx(0.5 * math.sqrt(200), abs=4.5)


@pytest.mark.parametrize("name", sorted(WITHOUT_LAW))
def test_mechanisms_without_an_exact_law_have_no_count_level(name):
    mechanism = simulate.make(name, epsilon=1.0, num_queries=4, num_classes=4)
    with pytest.raises(ValueError, match="Use level=message"):
        simulate.simulate(mechanism, 1000, "count")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(WITHOUT_LAW))
def test_mechanisms_without_an_exact_law_are_simulated_by_their_messages(name):
    mechanism = simulate.make(name, epsilon=1.0, num_queries=4, num_classes=4)
    assert abs(simulate.simulate(mechanism, 20_000).bias_z) < 4.5


@pytest.mark.slow
def test_clients_beyond_a_block_go_on_where_it_stopped(monkeypatch):
    mechanism = Collision(1.0, 4, 4)
    one = Mesh(np.array(jax.devices()[:1]), ("clients",))
    whole = simulate.simulate(mechanism, 1000, mesh=one)
    monkeypatch.setattr(simulate, "CLIENTS_AT_ONCE", 300)
    parts = simulate.simulate(mechanism, 1000, mesh=one)
    assert dataclasses.replace(parts, seconds=0, clients_per_second=0) == dataclasses.replace(
        whole, seconds=0, clients_per_second=0
    )


def test_votes_messages_and_parts_have_numbers_of_their_own(monkeypatch):
    used = []

    def noted(function):
        def call(*given, **named):
            keys = [one for one in given if isinstance(one, jax.Array) and one.ndim == 0]
            used.extend(tuple(jax.random.key_data(key).tolist()) for key in keys)
            return function(*given, **named)

        return call

    def sampled(self, rng, votes, voters):
        used.append(id(rng))
        return np.zeros(self.num_totals, np.int64)

    monkeypatch.setattr(simulate, "_votes", noted(simulate._votes))
    totals = simulate._distributed.client_totals
    monkeypatch.setattr(simulate._distributed, "client_totals", noted(totals))
    one = Mesh(np.array(jax.devices()[:1]), ("clients",))
    simulate.messages(RandomizedResponse(0.01, 8, 9), 0, 0, 64, one, compiled=True)
    assert len(used) == len({*used}) == 2
    monkeypatch.setattr(Collision, "sample_totals", sampled)
    simulate.simulate(Collision(1.0, 4, 4), 1000, "count")
    assert len(used) == len({*used}) == 2 + simulate.PARTS


def test_two_blocks_of_clients_have_noise_of_their_own():
    """At this epsilon votes are lost in it; 72 sums correlate by 0.6 in less than 1 of 10^7."""
    one = Mesh(np.array(jax.devices()[:1]), ("clients",))
    first, second = (
        simulate.messages(RandomizedResponse(0.01, 8, 9), 0, start, 64, one, compiled=True).totals
        for start in (0, 64)
    )
    assert np.std(first) > 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.6


def test_a_billion_clients_have_integer_totals_that_do_not_overflow():
    found = simulate.simulate(Collision(0.4, 50, 10, num_neighbors=2), 10**10, "count")
    assert found.mse == pytest.approx(
        found.predicted_mse, rel=0.3
    )  # 500 cells: 4.7 standard errors
    assert abs(found.bias_z) < 4.5


def test_more_messages_than_there_are_numbers_are_refused():
    with pytest.raises(ValueError, match="level=count"):
        simulate.simulate(Collision(1.0, 4, 4), 2**31)


def test_no_clients_and_unknown_mechanisms_are_refused():
    with pytest.raises(ValueError, match="clients=0"):
        simulate.simulate(Collision(1.0, 4, 4), 0)
    with pytest.raises(ValueError, match="mechanism='laplace'"):
        simulate.make("laplace", epsilon=1.0, num_queries=2, num_classes=2)

"""Balanced connections: priced ones are record-local and even, joint ones move more votes than k
allows and refuse to be cast.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rknn_jax import bsvs
from rknn_jax.labelers import _connections
from rknn_jax.mechanisms.discrete_laplace import DiscreteLaplace
from rknn_jax.neighbors import nearest
from rknn_jax.privacy import accounting, events

GOLDEN = (
    np.array(
        [
            [35, 44, 98],
            [57, 27, 25],
            [90, 24, 13],
            [30, 60, 56],
            [82, 57, 30],
            [42, 83, 64],
            [97, 38, 56],
        ]
    )
    / 100
)
# public and private records alike, three blocks of which the last is ragged: few shapes, as each is
# compiled
N = 600
SCORES = {
    _connections.max_min: np.min,
    _connections.harmonic_mean: lambda totals: len(totals) / np.sum(1 / totals),
}
JOINT_FORMS = tuple(SCORES)


def crowded(seed):
    """Return points of which three of four are around one place, so that plain degrees are
    uneven.
    """
    spread = np.where(np.arange(N) % 4 == 0, 2.0, 0.5)[:, None]
    return (np.random.default_rng(seed).normal(size=(N, 3)) * spread).astype(np.float32)


def degrees(near, s):
    return np.asarray(bsvs.sum_votes(near, s))


@functools.cache
def public_data(k):
    public = crowded(0)
    queries = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    return public, queries, _connections.public_prices(public, queries, k)


@pytest.mark.long
@given(st.integers(0, 99), st.sampled_from([(256, 1), (257, 3)]))
def test_the_least_cost_is_the_float64_one(seed, size):
    n, k = size
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 4))
    references = rng.normal(size=(6, 4))
    prices = 3 * rng.normal(size=6)
    cost = ((points[:, None] - references[None]) ** 2).sum(-1) + prices
    index, found = _connections.priced_nearest(points, references, prices, k)
    chex.assert_shape((index, found), (n, k))
    chex.assert_type([index, found], [jnp.int32, jnp.float32])
    np.testing.assert_allclose(found, np.sort(cost, axis=1)[:, :k], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        np.take_along_axis(cost, np.asarray(index), 1),
        np.sort(cost, axis=1)[:, :k],
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.long
def test_equal_prices_change_no_connection():
    points, queries, _ = public_data(1)
    plain = nearest(points, queries, 1)
    np.testing.assert_array_equal(
        _connections.priced_nearest(points, queries, np.full(8, -7.0), 1)[0], plain
    )


@pytest.mark.parametrize("k", [1, 3])
def test_replacing_a_record_leaves_all_other_rows_bit_for_bit(k):
    _, queries, prices = public_data(k)
    private = crowded(5)
    before = _connections.priced_nearest(private, queries, prices, k)
    for row, value in (
        (0, 9.0),
        (255, -9.0),
        (599, 0.0),
    ):  # in the first, at the end of a block, in the ragged last one
        changed = private.copy()
        changed[row] = value
        after = _connections.priced_nearest(changed, queries, prices, k)
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(np.delete(old, row, 0), np.delete(new, row, 0))


@given(st.integers(0, 99), st.sampled_from([1, 3]))
def test_a_search_finds_no_record_that_moves_more_than_2k_votes(seed, k):
    _, queries, prices = public_data(k)
    rng = np.random.default_rng(seed)
    features = crowded(seed)
    labels = rng.integers(0, 4, N)
    row = rng.integers(N)

    def votes():
        near, _ = _connections.priced_nearest(features, queries, prices, k)
        return np.asarray(bsvs.sum_votes(bsvs.cells(near, labels, 4), 32))

    before = votes()
    for scale in (0.0, 1.0, 1e3):
        features[row] = scale * rng.normal(size=3)
        labels[row] = rng.integers(0, 4)
        change = np.abs(before - votes())
        assert change.sum() <= 2 * k
        assert change.max() <= 1


@pytest.mark.parametrize("k", [1, 3])
def test_public_prices_make_public_degrees_even(k):
    """The greatest plain degree is 7.9 (k = 1) and 4.7 (k = 3) times the least; priced ones are
    m·k/s, 75 and 225, to one record.
    """
    public, queries, prices = public_data(k)
    chex.assert_type(prices, jnp.float32)
    assert prices.min() == 0
    plain = degrees(nearest(public, queries, k), 8)
    even = degrees(_connections.priced_nearest(public, queries, prices, k)[0], 8)
    assert plain.max() > 4 * plain.min()
    np.testing.assert_allclose(even, N * k / 8, atol=1)


@pytest.mark.parametrize("seed", range(3))
def test_prices_balance_distances_of_several_orders_of_magnitude(seed):
    """Two tight groups far apart, of 500 and 100 records: the greatest degree falls from 6 times
    the least to less than twice.
    """
    rng = np.random.default_rng(seed)
    public = np.where(np.arange(N) < 500, 0.0, 1.0)[:, None] + 0.01 * rng.normal(size=(N, 3))
    queries = np.vstack([public[:4], public[-4:]])
    prices = _connections.public_prices(public, queries)
    even = degrees(_connections.priced_nearest(public, queries, prices, 1)[0], 8)
    assert even.max() < 2 * even.min()


def test_a_part_of_the_prices_balances_in_part():
    public, queries, prices = public_data(1)
    spread = [
        degrees(_connections.priced_nearest(public, queries, share * prices, 1)[0], 8).std()
        for share in (0.0, 0.3, 0.6, 1.0)
    ]
    assert spread == sorted(spread, reverse=True)


@pytest.mark.long
def test_histogram_prices_make_private_degrees_more_even_where_private_records_lie_elsewhere():
    """The greatest private degree is 113 times the least without prices, 29 times with public
    ones and 3 times with fitted ones.
    """
    public, queries, prices = public_data(1)
    private = crowded(7) * 0.6 + np.float32([0.5, 0.0, -0.3])
    plain = nearest(private, queries, 1)
    found = _connections.noisy_degrees(jax.random.key(0), plain, 8, epsilon=1.0)
    fitted = _connections.histogram_prices(found, public, queries)
    kinds = [
        degrees(_connections.priced_nearest(private, queries, price, 1)[0], 8)
        for price in (np.zeros(8), prices, fitted)
    ]
    without, by_public, by_histogram = (kind.max() / kind.min() for kind in kinds)
    assert without > 50
    assert by_public > 20
    assert by_histogram < 4


def test_histogram_prices_are_the_public_ones_where_noise_covers_everything():
    public, queries, prices = public_data(1)
    plain = nearest(crowded(7), queries, 1)
    found = _connections.noisy_degrees(jax.random.key(0), plain, 8, epsilon=1.0)
    drowned = _connections.NoisyDegrees(found.counts, 1e6, found.guarantee)
    np.testing.assert_allclose(
        _connections.histogram_prices(drowned, public, queries), prices, atol=0.02
    )  # prices that even out the same


@pytest.mark.parametrize(("relation", "changed"), [("replace-one", 6), ("add-remove", 3)])
def test_noisy_degrees_cost_what_their_noise_hides_and_compose_with_the_answers(relation, changed):
    near = nearest(crowded(7), public_data(3)[1], 3)
    found = _connections.noisy_degrees(jax.random.key(0), near, 8, epsilon=0.02, relation=relation)
    assert found.guarantee.events == (events.DiscreteLaplace(changed / 0.02, changed),)
    assert found.stddev == pytest.approx(np.sqrt(2) * changed / 0.02, rel=1e-3)
    answers = DiscreteLaplace(0.08, 8, 4, 3, relation=relation).guarantee(N)
    both = accounting.compose([found.guarantee, answers])
    assert (both.epsilon, both.delta) == (pytest.approx(0.1), 0)
    exact = _connections.noisy_degrees(
        jax.random.key(0), near, 8, epsilon=np.inf, relation=relation
    )
    np.testing.assert_array_equal(exact.counts, degrees(near, 8))
    assert 0 < np.abs(found.counts - exact.counts).max() < 12 * found.stddev


@given(st.integers(0, 99), st.sampled_from([1, 3]))
def test_a_search_finds_no_record_that_moves_more_degrees_than_the_noise_hides(seed, k):
    queries = public_data(k)[1]
    features = crowded(seed)
    exact = nearest(features, queries, k)
    features[seed] = 1e3 * np.random.default_rng(seed).normal(size=3)
    before, after = (
        _connections.noisy_degrees(jax.random.key(0), near, 8, epsilon=np.inf)
        for near in (exact, nearest(features, queries, k))
    )
    finite = _connections.noisy_degrees(jax.random.key(0), exact, 8, epsilon=0.5)
    assert np.abs(before.counts - after.counts).sum() <= 0.5 * finite.guarantee.events[0].parameter


def chain(s, first):
    """Records j = 1..

    are equally similar to queries j - 1 and j; record 0 is similar to query `first`.
    """
    similarity = np.full((s, s), 0.01)
    for j in range(1, s):
        similarity[j, [j - 1, j]] = 1
    similarity[0, first] = 1
    return similarity


@pytest.mark.parametrize("optimum", JOINT_FORMS)
@pytest.mark.parametrize("s", [3, 5])
def test_along_a_chain_one_record_moves_2s_votes_of_a_joint_optimum(optimum, s):
    before, after = (optimum(chain(s, first)) for first in (0, s - 1))
    np.testing.assert_array_equal(before.near[:, 0], np.arange(s))
    np.testing.assert_array_equal(after.near[:, 0], np.roll(np.arange(s), 1))
    assert before.exact
    assert after.exact
    assert before.score == after.score == 1
    votes = [
        np.asarray(bsvs.sum_votes(bsvs.cells(found.near, np.arange(s), s), s * s))
        for found in (before, after)
    ]
    assert np.abs(votes[0] - votes[1]).sum() == 2 * s


def test_along_the_same_chain_one_record_moves_two_votes_of_the_priced_form():
    queries = np.arange(5, dtype=np.float32)[:, None]
    s = 5
    prices = np.float32([0.3, 0.0, 0.1, 0.2, 0.0])
    votes = []
    for first in (0.0, 4.0):
        records = np.float32([first, *np.arange(s - 1) + 0.5])[:, None]
        near, _ = _connections.priced_nearest(records, queries, prices, 1)
        votes.append(np.asarray(bsvs.sum_votes(bsvs.cells(near, np.arange(s), s), s * s)))
    assert np.abs(votes[0] - votes[1]).sum() == 2


def test_max_min_of_one_matrix_before_and_after_its_first_record_is_replaced():
    replaced = np.vstack([[0.60, 0.86, 0.16], GOLDEN[1:]])
    before, after = (
        _connections.max_min(scale * similarity).near[:, 0]
        for scale, similarity in ((1, GOLDEN), (2.0**-40, replaced))
    )
    np.testing.assert_array_equal(before, [2, 1, 0, 2, 1, 1, 0])
    np.testing.assert_array_equal(after, [1, 0, 0, 1, 2, 2, 2])
    assert (
        np.sum(before != after) == 6
    )  # so that 12 votes move where each record has a label of its own


@pytest.mark.parametrize("optimum", JOINT_FORMS)
def test_the_local_search_comes_near_the_optimum(optimum, monkeypatch):
    problems = [(np.random.default_rng(seed).random((8, 3)), 1 + seed % 2) for seed in range(10)]
    best = [optimum(*problem) for problem in problems]
    monkeypatch.setattr(_connections, "LARGEST_ENUMERATION", 1)
    found = [optimum(*problem) for problem in problems]
    assert all(result.exact for result in best)
    assert not any(result.exact for result in found)
    ratio = [result.score / optimal.score for result, optimal in zip(found, best, strict=True)]
    assert max(ratio) <= 1 + 1e-9
    assert np.mean(ratio) > 0.95
    for result, (similarity, k) in zip(found, problems, strict=True):
        assert result.near.shape == (8, k)
        assert all(len(set(row)) == k for row in result.near.tolist())
        np.testing.assert_allclose(
            result.totals, [similarity[(result.near == q).any(1), q].sum() for q in range(3)]
        )
        assert result.score == pytest.approx(SCORES[optimum](result.totals))
        np.testing.assert_array_equal(optimum(2.0**-40 * similarity, k).near, result.near)


@pytest.mark.parametrize("optimum", JOINT_FORMS)
def test_the_local_search_stands_a_query_that_no_record_resembles(optimum, monkeypatch):
    monkeypatch.setattr(_connections, "LARGEST_ENUMERATION", 1)
    similarity = np.array([[1.0, 0.0, 0.0], [0.9, 0.0, 0.8], [0.0, 0.0, 0.0]])
    with np.errstate(invalid="raise"):
        found = optimum(similarity)
    assert found.near[:2, 0].tolist() == [0, 2]
    assert found.score == 0


@pytest.mark.parametrize("optimum", JOINT_FORMS)
def test_joint_optima_give_the_least_heard_query_more_than_reverse_nearest_neighbours(optimum):
    similarity = np.random.default_rng(0).random((300, 8)) ** np.linspace(1, 4, 8)
    near = similarity.argmax(1)
    plain = np.bincount(near, similarity.max(1), 8)
    found = optimum(similarity)
    assert found.totals.min() > 1.5 * plain.min()


@pytest.mark.parametrize(
    "use",
    [
        lambda joint: bsvs.cells(joint, np.zeros(7, np.int32), 3),
        lambda joint: _connections.noisy_degrees(jax.random.key(0), joint, 3, epsilon=1.0),
        jnp.asarray,
        np.asarray,
        lambda joint: np.array([joint]),
    ],
)
def test_joint_connections_refuse_to_become_votes(use):
    with pytest.raises(TypeError, match=r"grow with n.*priced_nearest"):
        use(_connections.max_min(GOLDEN))


@pytest.mark.parametrize("use", [lambda joint: bsvs.sum_votes(joint, 3), list, len])
def test_joint_connections_are_no_array(use):
    with pytest.raises(TypeError):
        use(_connections.max_min(GOLDEN))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="one price for each of 4 references"):
        _connections.priced_nearest(np.zeros((5, 3)), np.zeros((4, 3)), np.zeros(3), 1)
    with pytest.raises(ValueError, match="all finite"):
        _connections.priced_nearest(np.zeros((5, 3)), np.zeros((2, 3)), np.array([0, np.inf]), 1)
    with pytest.raises(ValueError, match="num_neighbors=5"):
        _connections.priced_nearest(np.zeros((5, 3)), np.zeros((4, 3)), np.zeros(4), 5)
    with pytest.raises(ValueError, match="at least 0"):
        _connections.max_min(np.full((3, 2), -1.0))
    with pytest.raises(ValueError, match="num_neighbors=3"):
        _connections.harmonic_mean(np.ones((3, 2)), 3)


@pytest.mark.long
def test_the_cost_matrix_is_never_held():
    """Temporaries at 600,000 x 2,000 x 63, k = 4: little more than a copy of the points, 154 MB,
    where an [n, s] matrix takes 4.8 GB.
    """
    points, references, prices = (
        jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((600_000, 63), (2_000, 63), (2_000,))
    )
    memory = (
        _connections._priced_nearest.lower(points, references, prices, num_neighbors=4)
        .compile()
        .memory_analysis()
    )
    assert memory.temp_size_in_bytes < 200e6

"""Numbers of the local randomizers against golden values, and the hash that they stand on."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from rknn_jax import mechanisms
from rknn_jax.kernels import hashing
from rknn_jax.mechanisms.collision import Collision, best_num_buckets
from rknn_jax.mechanisms.generalized_randomized_response import GeneralizedRandomizedResponse
from rknn_jax.mechanisms.hadamard_response import HadamardResponse, entries
from rknn_jax.mechanisms.local import happens, packed
from rknn_jax.mechanisms.local_hashing import LocalHashing
from rknn_jax.mechanisms.optimized_unary_encoding import OptimizedUnaryEncoding
from rknn_jax.mechanisms.randomized_response import RandomizedResponse, below, bernoulli_bits
from rknn_jax.mechanisms.subset_selection import SubsetSelection, uniform_set
from rknn_jax.mechanisms.wheel import Wheel


@pytest.mark.parametrize(
    ("epsilon", "c", "variance", "flip"),
    [
        (0.1, 1, 399.91667708, 0.4875026035),
        (0.4, 1, 24.91683307, None),
        (1, 1, 3.91769809, 0.3775406688),
        (2, 1, 0.92067359, None),
        (1, 2, 15.91692644, None),
        (1, 4, 63.91673173, 0.4687906266),
        (4, 4, 3.91769809, None),
    ],
)
def test_randomized_response_has_the_golden_variance_for_votes_and_others_alike(
    epsilon, c, variance, flip
):
    mechanism = RandomizedResponse(float(epsilon), 10, 10, num_neighbors=c)
    assert mechanism.variances == pytest.approx((variance, variance), abs=1e-8)
    assert flip is None or mechanism.q == pytest.approx(flip, abs=1e-10)


SMALL = {"num_queries": 10, "num_classes": 10}
LARGE = {"num_queries": 200, "num_classes": 50, "num_neighbors": 2, "labels_per_record": 2}


@pytest.mark.parametrize(
    ("mechanism", "sizes", "golden"),
    [
        (OptimizedUnaryEncoding, SMALL, {0.1: 399.68, 1.0: 3.6927, 4.0: 0.086022}),
        (OptimizedUnaryEncoding, LARGE, {0.1: 6399.7, 1.0: 63.668, 4.0: 3.6831}),
        (
            Collision,
            LARGE,
            {0.1: 2399.0, 0.4: 137.24, 1.0: 18.190, 2.0: 3.1743, 4.0: 0.31113},
        ),  # of the published real l
        (HadamardResponse, SMALL, {0.1: 400.66, 0.4: 25.659, 1.0: 4.6727, 2.0: 1.7141, 4.0: 1.066}),
    ],
)
def test_mean_variances_are_those_of_the_table(mechanism, sizes, golden):
    for epsilon, variance in golden.items():
        assert mechanism(epsilon, **sizes).mean_variance == pytest.approx(variance, rel=3e-3), (
            epsilon
        )


@pytest.mark.parametrize("votes", [1, 2])
def test_a_set_at_any_epsilon_has_a_variance(votes):
    """Of few cells, p was greater than 1 by its last digit, and the variance NaN."""
    for queries, classes, epsilon in itertools.product((2, 3, 7), (2, 3, 10), (1e-9, 1, 36, 700)):
        made = SubsetSelection(epsilon, queries, classes, num_neighbors=votes)
        assert 0 <= made.q < made.p <= 1
        assert np.isfinite(made.stddev(np.array([0, 60]), 60)).all()


@pytest.mark.parametrize(
    ("sizes", "golden"),
    [
        (SMALL, {0.1: 391.74, 1.0: 3.5995, 2.0: 0.69976, 4.0: 0.064827}),
        (LARGE, {0.1: 2000.4, 1.0: 16.455, 4.0: 0.30556}),
    ],
)
def test_subset_selection_beats_all_others_but_for_the_dummies(sizes, golden):
    """The table's sets hold no dummies for missing votes: kr more symbols cost up to a percent
    at d = 100.
    """
    for epsilon, variance in golden.items():
        mechanism = SubsetSelection(epsilon, **sizes)
        assert variance * (1 - 1e-4) < mechanism.mean_variance < variance * 1.012, epsilon
        assert mechanism.mean_variance < Collision(epsilon, **sizes).mean_variance * 1.002


@pytest.mark.parametrize(
    ("epsilon", "sizes"),
    [
        (0.1, {"num_queries": 200, "num_classes": 1000}),
        (0.1, LARGE),
        (4.0, LARGE),
        (4.0, {"num_queries": 200, "num_classes": 10, "num_neighbors": 4}),
    ],
)
def test_sets_hold_votes_as_often_as_their_law_says_however_many_cells_there_are(epsilon, sizes):
    """Against float64 counts of sets: an error of 5% in how often a set holds the vote made
    epsilon = 0.1 cost 0.19.
    """
    mechanism = SubsetSelection(epsilon, **sizes)
    votes = mechanism.votes_per_record
    hits = np.arange(mechanism.votes_per_record + 1)
    sets = stats.hypergeom(mechanism.num_symbols, votes, mechanism.subset_size).pmf(
        hits
    ) * np.where(hits > 0, np.exp(epsilon), 1)
    more = np.cumsum((sets / sets.sum())[::-1])[::-1][1:]
    np.testing.assert_allclose(mechanism._more_votes(), more, rtol=2e-5)


def test_one_of_d_symbols_is_worth_its_message_at_a_large_epsilon_only():
    variances = {
        e: [m(e, **SMALL).mean_variance for m in (GeneralizedRandomizedResponse, Collision)]
        for e in (0.1, 6.0)
    }
    assert variances[0.1][0] > 20 * variances[0.1][1]
    assert variances[6.0][0] < variances[6.0][1]


@pytest.mark.parametrize(
    ("epsilon", "votes", "best"),
    [(0.4, 1, 3), (1.0, 1, 4), (0.1, 4, 12), (1.0, 4, 19), (50.0, 4, hashing.MOST_BUCKETS)],
)
def test_the_number_of_buckets_is_the_best_integer(epsilon, votes, best):
    assert best_num_buckets(epsilon, votes) == best
    if best < hashing.MOST_BUCKETS:
        others = [
            Collision(epsilon, 10, 10, num_neighbors=votes, num_buckets=n).variances[1]
            for n in range(votes + 1, 200)
        ]
        assert np.argmin(others) + votes + 1 == best


bucket = jax.jit(hashing.bucket)
interval = jax.jit(hashing.interval)


@pytest.mark.parametrize("num_buckets", [2, 3, 7, 16, 228, 32768, 65535])
def test_buckets_and_their_intervals_are_exact_in_64_bits(num_buckets):
    words = np.random.default_rng(0).integers(0, 2**32, hashing.MOST_BUCKETS, dtype=np.uint32)
    words[:3] = [0, 2**32 - 1, 2**31]
    expected = (words.astype(np.uint64) * np.uint64(num_buckets) >> np.uint64(32)).astype(np.int32)
    np.testing.assert_array_equal(bucket(words, num_buckets), expected)
    for step in (0, 1, num_buckets - 1):
        first, width = map(np.asarray, interval((expected + step) % num_buckets, num_buckets))
        assert np.all(((words - first) < width) == (step == 0))
    every = np.arange(hashing.MOST_BUCKETS, dtype=np.int32) % num_buckets
    widths = np.asarray(interval(every, num_buckets)[1])[:num_buckets].astype(np.uint64)
    assert widths.sum() == 2**32


@functools.partial(jax.jit, static_argnames="clients")
def shares_of_hits(mechanism, key, votes, watched, clients):
    """How often the bucket of one of many clients, who vote alike, holds each of some cells."""
    messages = jax.vmap(mechanism.randomize, in_axes=(0, None))(
        jax.random.split(key, clients), votes
    )
    first, width = hashing.interval(messages.bucket, mechanism.num_buckets)
    hits = jax.vmap(lambda seed, a, b: hashing.mix(seed, watched) - a < b)(
        messages.seed, first, width
    )
    return hits.mean(axis=0)


@pytest.mark.parametrize(
    ("epsilon", "votes", "num_buckets"),
    [
        pytest.param(0.4, 2, 5, marks=pytest.mark.slow),
        pytest.param(1.0, 4, 19, marks=pytest.mark.long),
    ],
)
def test_cells_next_to_the_votes_are_not_biased(epsilon, votes, num_buckets):
    """An affine hash is off by -0.125 on cell 2 of the first case and by -0.08 on cell 4 of the
    second: 8 standard errors and more.

    2,000,000 clients and 12 cells, 4.5 standard errors each.
    """
    clients = 2_000_000
    mechanism = Collision(epsilon, 51, 10, num_neighbors=votes, num_buckets=num_buckets)
    watched = np.array([*range(votes + 8), 100, 500], np.int32)
    shares = shares_of_hits(
        mechanism, jax.random.key(0), np.arange(votes, dtype=np.int32), watched, clients
    )
    chance = np.where(watched < votes, mechanism.p, mechanism.q)
    assert np.all(np.abs(shares - chance) < 4.5 * np.sqrt(chance * (1 - chance) / clients))


def test_two_clients_hash_independently_and_a_seed_spreads_evenly():
    """Chi-square of pairs of buckets of neighboring seeds and cells, 64 x 64, at a false-alarm
    rate of 1e-6 each.
    """
    seeds = np.stack([np.arange(300_000), np.zeros(300_000)], 1).astype(np.uint32)
    words = np.asarray(
        jax.jit(jax.vmap(hashing.mix, in_axes=(0, None)))(
            seeds, np.array([0, 1, 2, 1000], np.int32)
        )
    )
    for one, other in (
        (words[:, 0], words[:, 1]),
        (words[:, 2], words[:, 3]),
        (words[:-1, 0], words[1:, 0]),
    ):
        for shift in (0, 26):
            table = np.bincount((one >> shift & 63) * 64 + (other >> shift & 63), minlength=4096)
            expected = len(one) / 4096
            assert abs(((table - expected) ** 2 / expected).sum() - 4095) < 5 * np.sqrt(2 * 4095)


def test_rows_of_the_hadamard_matrix_agree_in_half_of_the_columns():
    matrix = np.asarray(
        entries(np.arange(16, dtype=np.int32)[:, None], np.arange(16, dtype=np.int32)[None, :])
    )
    np.testing.assert_array_equal((1 - 2 * matrix) @ (1 - 2 * matrix).T, 16 * np.eye(16, dtype=int))


@functools.partial(jax.jit, static_argnames=("num_symbols", "clients"))
def drawn_sets(free, num_symbols, sizes, clients):
    """Sets that many clients draw for each row of free symbols and its size, packed."""
    keys = jax.random.split(jax.random.key(0), (len(sizes), clients))
    of_clients = jax.vmap(uniform_set, in_axes=(0, None, None, None))
    return jax.vmap(of_clients, in_axes=(0, 0, None, 0))(keys, free, num_symbols, sizes)


def free_but_for(num_symbols, votes):
    free = np.ones(num_symbols, bool)
    free[list(votes)] = False
    return free


@pytest.mark.long
def test_all_sets_of_a_size_are_equally_likely():
    """Sets from 8, 7 and 6 of 8 symbols: chi-square of every set, 5,000 draws a case, at a
    false-alarm rate of 1e-5 in all.
    """
    cases = [
        (free_but_for(8, votes), size)
        for votes, sizes in (((), (4, 7)), ((3,), (3,)), ((0, 7), (2, 5)))
        for size in sizes
    ]
    free = np.stack([free for free, _ in cases])
    sizes = np.array([size for _, size in cases])
    drawn = np.asarray(drawn_sets(packed(free), 8, sizes, 5000))[..., 0]
    for words, (symbols, size) in zip(drawn, cases, strict=True):
        possible = [
            sum(1 << symbol for symbol in chosen)
            for chosen in itertools.combinations(np.flatnonzero(symbols).tolist(), size)
        ]
        assert set(words.tolist()) == set(possible)
        counts = np.bincount(words)[possible]
        assert stats.chisquare(counts).pvalue > 1e-5 / len(cases)


@pytest.mark.long
@pytest.mark.parametrize("num_symbols", [200, 5001])
def test_symbols_of_large_sets_are_those_of_a_draw_without_replacement(num_symbols):
    """All 2^6 patterns of six symbols, in the first two words and the last one, against their
    hypergeometric law by chi-square: 10,000 draws of each size, and a false-alarm rate of 1e-5 in
    all. Masks draw most of these sets, unless they are tiny.
    """
    free = free_but_for(num_symbols, (1, num_symbols - 1))
    num_free = num_symbols - 2
    sizes = np.array([0, 1, 6, num_free // 4, num_free // 2, num_free - 9, num_free])
    drawn = np.asarray(
        drawn_sets(np.tile(packed(free[None]), (len(sizes), 1)), num_symbols, sizes, 10_000)
    )
    assert not np.any(drawn & ~packed(free[None]))
    np.testing.assert_array_equal(
        np.bitwise_count(drawn).sum(axis=2), np.tile(sizes[:, None], (1, 10_000))
    )
    watched = np.array([0, 31, 32, 63, num_symbols - 3, num_symbols - 2])
    bits = drawn[:, :, watched // 32] >> (watched % 32).astype(np.uint32) & 1
    hits = np.bitwise_count(np.arange(64))
    for patterns, size in zip(bits @ (1 << np.arange(6)), sizes, strict=True):
        law = stats.hypergeom(num_free, 6, size).pmf(hits) / special.comb(6, hits)
        counts = np.bincount(patterns, minlength=64)
        often = law * 10_000 > 5
        counts, expected = (np.append(of[often], of[~often].sum()) for of in (counts, law * 10_000))
        common = expected > 0
        assert counts[~common].sum() == 0
        found = stats.chisquare(counts[common], expected[common])
        assert found.pvalue > 1e-5 / len(sizes) or common.sum() == 1


@functools.partial(jax.jit, static_argnames=("clients", "width"))
def words_of_clients(key, probability, clients, width):
    return jax.vmap(lambda key: bernoulli_bits(key, probability, width))(
        jax.random.split(key, clients)
    )


@pytest.mark.parametrize("probability", [0.5, 0.3775, 0.01, 1e-4])
def test_bits_of_a_word_are_independent_with_the_asked_probability(probability):
    """3.2 million bits: the mean and the correlation of neighboring bits within 4.5 standard
    errors.
    """
    words = np.asarray(words_of_clients(jax.random.key(0), probability, 1, 3_200_000))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").astype(float)
    variance = probability * (1 - probability)
    assert abs(bits.mean() - probability) < 4.5 * np.sqrt(variance / len(bits))
    assert abs(
        np.mean((bits[1:] - probability) * (bits[:-1] - probability))
    ) < 4.5 * variance / np.sqrt(len(bits))


@pytest.mark.long
@pytest.mark.parametrize("probability", [0.5, 0.2689, 0.01])
def test_each_bit_of_many_clients_has_the_asked_probability_and_tells_nothing_of_others(
    probability,
):
    """200,000 clients of 70 bits: each bit, and each with the next, with that of the next word and
    with that of the next client.

    Counts of bits and of pairs are binomial; each fails by chance once in a million times, and the
    247 together with 2.5e-4.
    """
    width = 70
    words = np.asarray(words_of_clients(jax.random.key(0), probability, 200_000, width))
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    assert not bits[:, width:].any()
    bits = bits[:, :width]
    pairs = bits[:, 1:] & bits[:, :-1], bits[:, 32:] & bits[:, :-32], bits[::2] & bits[1::2]
    for hits, chance in ((bits, probability), *((pair, probability**2) for pair in pairs)):
        low, high = stats.binom.interval(1 - 1e-6, len(hits), chance)
        assert np.all((low <= hits.sum(axis=0)) & (hits.sum(axis=0) <= high))


@pytest.mark.parametrize(
    "digits",
    [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow), 9],
)
def test_of_all_numbers_exactly_those_below_the_threshold_pass(digits):
    numbers = np.arange(2**digits)
    complements = [
        -(~numbers >> position & 1).astype(np.uint32) for position in range(digits)
    ]  # the same number in all bits of a word
    passed = jax.jit(jax.vmap(below, in_axes=(None, 0)))(complements, numbers.astype(np.uint32))
    np.testing.assert_array_equal(passed, -(numbers[None] < numbers[:, None]).astype(np.uint32))


@functools.partial(jax.jit, static_argnames="clients")
def decoded(mechanism, key, clients):
    """Totals of messages, and what each of them supports by itself."""
    keys = jax.random.split(key, clients)
    messages = jax.vmap(mechanism.randomize, in_axes=(0, None))(
        keys, jnp.arange(mechanism.votes_per_record)
    )
    return mechanism.aggregate(messages), jax.vmap(mechanism.support)(messages)


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanism", [Collision(1.0, 13, 10, num_neighbors=3), LocalHashing(0.5, 5, 7)], ids=str
)
@pytest.mark.parametrize("clients", [pytest.param(1024, marks=pytest.mark.slow), 2500])
def test_many_messages_are_decoded_as_each_by_itself(mechanism, clients):
    totals, supported = decoded(mechanism, jax.random.key(0), clients)
    np.testing.assert_array_equal(totals, np.asarray(supported).sum(axis=0))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_local_hashing_has_the_buckets_of_least_variance(epsilon):
    def variance(buckets):
        return LocalHashing(epsilon, 5, 7, num_buckets=buckets).variances[1]

    assert LocalHashing(epsilon, 5, 7).num_buckets == min(range(2, 30), key=variance)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("votes", "circle_bits"), [(1, 1), (1, 8), (2, 4), (3, 2), (3, 9)])
def test_the_wheel_has_the_arc_of_least_variance_of_all_on_the_smallest_circle_too(
    epsilon, votes, circle_bits
):
    def wheel(arc_length=None):
        return Wheel(epsilon, 5, 7, votes, circle_bits=circle_bits, arc_length=arc_length)

    lengths = range(1, (2**circle_bits - 1) // votes + 1)
    assert wheel().arc_length == min(lengths, key=lambda length: wheel(length).variances[1])
    with pytest.raises(ValueError, match="votes of a record \\* arc_length"):
        wheel(lengths[-1] + 1)


def test_a_message_of_randomized_response_names_every_cell_or_none():
    bits = [GeneralizedRandomizedResponse(1.0, cells, 2).message_bits for cells in (3, 4, 5)]
    assert bits == [3, 4, 4]


def test_the_best_mechanism_has_the_least_variance_within_the_message_size():
    names = set(mechanisms.names("local"))
    for epsilon, fields in ((0.5, SMALL), (1.0, LARGE), (5.0, SMALL)):
        chosen, reason = mechanisms.best(epsilon, **fields)
        allowed = names - ({"generalized_randomized_response"} if fields is LARGE else set())
        every = [mechanisms.make(name, epsilon=epsilon, **fields) for name in allowed]
        assert chosen.mean_variance == min(mechanism.mean_variance for mechanism in every)
        assert all(name in reason for name in allowed)
    assert mechanisms.best(1.0, **SMALL, max_bits=2).mechanism == Collision(1.0, **SMALL)
    assert mechanisms.best(1.0, **SMALL, max_bits=1).mechanism == HadamardResponse(1.0, **SMALL)
    with pytest.raises(ValueError, match="max_bits >= 1, got max_bits=0"):
        mechanisms.best(1.0, **SMALL, max_bits=0)


def test_a_probability_beyond_the_resolution_is_rounded_up_and_none_is_certain():
    """At ε = 18 the flips of unary encoding were never drawn, and its messages told everything.

    64 million bits hold 4 of 2^-24.
    """
    words = np.asarray(words_of_clients(jax.random.key(0), 1e-12, 1000, 64_000))
    flips = int(np.bitwise_count(words).sum())
    assert 0 < flips < 15  # Poisson of mean 3.8: 2% and 1e-5 at other seeds
    words = np.array([0, 2**32 - 1, 2**32 - 257], np.uint32)
    np.testing.assert_array_equal(jax.jit(happens)(words, 1.0), [True, False, True])
    np.testing.assert_array_equal(jax.jit(happens)(words, 0.0), [False, False, False])

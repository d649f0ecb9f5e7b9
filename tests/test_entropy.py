"""What clients really send: exact laws on a seed, by enumeration of their alphabets and in the
integers that are drawn against.
"""

from contextlib import suppress
from decimal import Decimal, localcontext
from fractions import Fraction

import chex
import jax
import numpy as np
import pytest

from rknn_jax.federation.round_validation import LEAST_OF_A_MESSAGE
from rknn_jax.mechanisms.collision import Collision
from rknn_jax.mechanisms.generalized_randomized_response import GeneralizedRandomizedResponse
from rknn_jax.mechanisms.hadamard_response import HadamardResponse
from rknn_jax.mechanisms.optimized_unary_encoding import OptimizedUnaryEncoding
from rknn_jax.mechanisms.randomized_response import RandomizedResponse
from rknn_jax.mechanisms.subset_selection import SubsetSelection
from rknn_jax.privacy.entropy import SURE, Entropy, at_least, at_most, at_most_odds
from rknn_jax.randomized_bits import RandomizedBit

DEPLOYED = [
    Collision(1.0, 3, 2),
    Collision(1.5, 3, 2, num_neighbors=2),
    Collision(1.0, 3, 2, num_neighbors=3, num_buckets=5),
    RandomizedResponse(1.0, 2, 2),
    RandomizedResponse(3.0, 3, 2, num_neighbors=2),
    OptimizedUnaryEncoding(1.5, 2, 2),
    OptimizedUnaryEncoding(2.0, 3, 2, num_neighbors=2),
    SubsetSelection(1.0, 2, 3),
    SubsetSelection(2.0, 3, 2, num_neighbors=2),
    GeneralizedRandomizedResponse(1.0, 2, 3),
]
RECORDS = 60_000


def fixed(number=0):
    return Entropy(bytes([number]) * 32)


@jax.jit
def valid(mechanism, messages):
    return jax.vmap(mechanism.valid)(messages)


@pytest.mark.parametrize("mechanism", DEPLOYED, ids=str)
@pytest.mark.parametrize("missing", [False, True])
def test_every_message_has_the_law_that_the_proofs_enumerate(mechanism, missing):
    """60,000 messages a case against `log_prob`, which the contract tests hold to e^ε; mixed over
    the seeds of a hash.

    Chi-square over the alphabet's probabilities: the statistic is within 6 standard deviations of
    its mean at this seed, one-sided below 1e-6 each.
    """
    votes = np.arange(mechanism.votes_per_record, dtype=np.int32) * mechanism.num_classes
    cells = np.where(missing & (np.arange(len(votes)) == 0), -1, votes).astype(np.int32)
    messages = mechanism.respond(fixed(), np.tile(cells, (RECORDS, 1)))
    assert np.asarray(valid(mechanism, messages)).all()
    chex.assert_trees_all_equal_dtypes(
        messages, jax.eval_shape(mechanism.randomize, jax.random.key(0), cells)
    )
    if isinstance(mechanism, Collision):  # the bucket's law given its own seed
        probability = np.exp(mechanism.log_prob(messages, cells))
        every = np.stack(
            [
                np.exp(
                    mechanism.log_prob(
                        messages._replace(bucket=np.full(RECORDS, z, np.int32)), cells
                    )
                )
                for z in range(mechanism.num_buckets)
            ]
        )
        mean = (every**2).sum(0)
        variance = (every**3).sum(0) - (every**2).sum(0) ** 2
        assert abs((probability - mean).sum()) < 6 * np.sqrt(variance.sum()) + 1e-9 * RECORDS
        counts = np.bincount(messages.bucket, minlength=mechanism.num_buckets)
        expected = every.sum(axis=1)
    else:
        alphabet = np.asarray(mechanism.alphabet(jax.random.key(0))).reshape(-1)
        order = np.argsort(alphabet)
        position = np.searchsorted(alphabet[order], np.asarray(messages).reshape(-1))
        counts = np.bincount(position, minlength=len(alphabet))
        expected = (
            RECORDS
            * np.exp(mechanism.log_prob(mechanism.alphabet(jax.random.key(0)), cells))[order]
        )
    freedom = len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 6 * np.sqrt(2 * freedom) + 10


def largest_odds(mechanism):
    """Return the largest ratio of two probabilities of one message, exactly, from the integer
    thresholds that are drawn against.
    """
    votes = mechanism.votes_per_record
    cells = mechanism.num_cells
    if isinstance(mechanism, Collision):
        held = Fraction(at_most(mechanism.p), SURE)
        other = [(1 - m * held) / (mechanism.num_buckets - m) for m in range(votes + 1)]
        return max([held, *other]) / min([held, *other])
    if isinstance(mechanism, SubsetSelection):
        share = Fraction(1)
        for i in range(votes):
            share *= Fraction(
                mechanism.num_symbols - mechanism.subset_size - i, mechanism.num_symbols - i
            )
        meets = Fraction(at_most_odds(1 - share, share, mechanism.epsilon), SURE)
        return (meets / (1 - share)) / ((1 - meets) / share)
    if isinstance(mechanism, GeneralizedRandomizedResponse):
        kept = Fraction(at_most(mechanism.p), SURE)
        return kept / ((1 - kept) / cells)
    if isinstance(mechanism, RandomizedBit):
        kept = Fraction(at_most(mechanism.p), SURE)
        return kept / (1 - kept)
    flipped = Fraction(at_least(mechanism.q), SURE)
    return ((1 - flipped) / flipped) ** (
        2 * votes if isinstance(mechanism, RandomizedResponse) else votes
    )


@pytest.mark.parametrize(
    "kind",
    [
        Collision,
        RandomizedResponse,
        OptimizedUnaryEncoding,
        SubsetSelection,
        GeneralizedRandomizedResponse,
    ],
)
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 0.4, 1.0, 3.0, 8.0, 20.0])
def test_rounding_never_costs_more_than_epsilon(kind, epsilon):
    """In rational arithmetic against 60 digits of e^ε: the odds stay below it and lose no more
    than a millionth of a millionth.
    """
    for neighbors in (1, 2, 4) if kind is not GeneralizedRandomizedResponse else (1,):
        odds = largest_odds(kind(epsilon, 40, 10, num_neighbors=neighbors))
        with localcontext() as context:
            context.prec = 60
            allowed = Fraction(Decimal(epsilon).exp())
        assert 1 / allowed <= odds <= allowed
        assert float(1 - odds / allowed) < 1e-11 * np.exp(epsilon)


@pytest.mark.parametrize(
    ("kind", "queries", "classes", "neighbors"),
    [
        (RandomizedResponse, 2**19, 4, 2**19),
        (OptimizedUnaryEncoding, 2**19, 4, 2**19),
        (GeneralizedRandomizedResponse, 2**20, 4, 1),
        (Collision, 2**19, 4, 1),
        (Collision, 2**19, 4, 2**9),
        (SubsetSelection, 2**19, 4, 1),
        (SubsetSelection, 2**10, 4, 2**4),
        (RandomizedBit, 1, 2, 1),
    ],
)
def test_the_least_epsilon_of_a_message_is_kept_in_the_largest_rounds(
    kind, queries, classes, neighbors
):
    """Below 1/2, rounding a lie up costs nothing; above, it would tell the truth in reverse."""
    mechanism = kind(LEAST_OF_A_MESSAGE, queries, classes, num_neighbors=neighbors)
    odds = largest_odds(mechanism)
    assert max(odds, 1 / odds) <= 1 + Fraction(LEAST_OF_A_MESSAGE)


@pytest.mark.parametrize(
    ("epsilon", "queries", "classes", "neighbors"),
    [(0.1, 200, 10, 100), (5.0, 20, 10, 19), (1.0, 2, 4, 1)],
)
def test_sets_without_a_vote_are_never_too_likely(epsilon, queries, classes, neighbors):
    """With 900 of 1,000 cells, a set without a vote was once e^13.4 times as likely as one with."""
    taken = []
    for size in range(1, queries * classes + 1):
        with suppress(ValueError):
            taken.append(
                SubsetSelection(
                    epsilon, queries, classes, num_neighbors=neighbors, subset_size=size
                )
            )
    with localcontext() as context:
        context.prec = 60
        allowed = Fraction(Decimal(epsilon).exp())
    every = map(largest_odds, taken[-50:])
    assert all(max(odds, 1 / odds) <= allowed for odds in every)
    assert (len(taken) == queries * classes) == (neighbors == 1)


def test_a_size_with_which_no_message_is_without_a_vote_is_refused():
    with pytest.raises(ValueError, match="subset_size=900 of 2100 symbols with 100 votes"):
        SubsetSelection(0.1, 200, 10, num_neighbors=100, subset_size=900)


class OneWord:
    """Entropy that is one word again and again."""

    def __init__(self, word):
        self.word = word

    def words(self, *shape):
        return np.full(shape, self.word, np.uint64)

    def below(self, bounds):
        return np.zeros(len(bounds), np.int64)


@pytest.mark.parametrize(
    ("mechanism", "threshold", "below", "above"),
    [
        (RandomizedResponse(1.0, 2, 3), lambda m: at_least(m.q), "others", "vote"),
        (OptimizedUnaryEncoding(1.0, 2, 3), lambda m: at_least(m.q), "all", "vote"),
        (OptimizedUnaryEncoding(1.0, 2, 3), lambda m: SURE // 2, "vote", "none"),
        (GeneralizedRandomizedResponse(1.0, 2, 3), lambda m: at_most(m.p), "vote", "next"),
        # under the hash of the second word, both cells are in one bucket
        (Collision(1.0, 1, 2, num_buckets=2), lambda m: at_most(m.p), "vote", "none"),
    ],
)
def test_of_all_words_exactly_those_below_the_threshold_pass(mechanism, threshold, below, above):
    """The threshold is rounded so that privacy holds, and one word more would break it."""
    cells = np.arange(mechanism.num_cells)
    sets = {
        "vote": cells == 0,
        "next": cells == 1,
        "others": cells != 0,
        "all": cells >= 0,
        "none": cells < 0,
    }
    word = threshold(mechanism)
    for drawn, expected in ((word - 1, below), (word, above)):
        sent = mechanism.respond(OneWord(drawn), np.zeros((1, 1), np.int32))
        supported = mechanism.support(jax.tree.map(lambda leaf: leaf[0], sent))
        np.testing.assert_array_equal(supported, sets[expected])


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 30.0])
def test_odds_do_not_depend_on_the_decimals_of_a_program(epsilon):
    ways, others = Fraction(3), Fraction(4)
    expected = at_most_odds(ways, others, epsilon)
    with localcontext() as context:
        context.prec = 2
        assert at_most_odds(ways, others, epsilon) == expected


@pytest.mark.parametrize("mechanism", [m for m in DEPLOYED if m.votes_per_record > 1], ids=str)
def test_a_cell_that_a_record_names_twice_has_one_vote(mechanism):
    """Draws do not depend on votes, so the same messages are sent as of a record with one vote."""
    twice = np.full((500, mechanism.votes_per_record), 3, np.int32)
    one = np.where(np.arange(mechanism.votes_per_record) == 0, twice, -1)
    sent = [mechanism.respond(fixed(), cells) for cells in (twice, one)]
    chex.assert_trees_all_equal(*sent)


def test_a_seed_makes_one_stream_and_another_seed_another():
    assert np.array_equal(fixed().words(1000), fixed().words(1000))
    assert not np.intersect1d(fixed(0).words(1000), fixed(1).words(1000)).size
    stream = fixed()
    assert not np.intersect1d(stream.words(1000), stream.words(1000)).size
    assert not np.intersect1d(Entropy.fresh().words(1000), Entropy.fresh().words(1000)).size
    with pytest.raises(ValueError, match="32 bytes, got 5"):
        Entropy(b"short")


def test_integers_are_uniform_also_where_the_bound_is_no_power_of_two(monkeypatch):
    """Chi-square of 50,000 draws below 7 within 6 standard deviations; and every word that would
    favor small ones is drawn again.
    """
    counts = np.bincount(fixed().below(np.full(50_000, 7)), minlength=7)
    assert ((counts - 50_000 / 7) ** 2 / (50_000 / 7)).sum() < 6 + 6 * np.sqrt(12)
    assert fixed().below(np.array([1, 1])).tolist() == [0, 0]
    words = iter(
        [np.array([1, 2, 2**64 - 1], np.uint64), np.array([0], np.uint64), np.array([9], np.uint64)]
    )
    stream = fixed()
    monkeypatch.setattr(stream, "words", lambda *shape: next(words))
    assert stream.below(np.full(3, 7)).tolist() == [
        9 % 7,
        2,
        (2**64 - 1) % 7,
    ]  # 2^64 mod 7 is 2: words 0 and 1 are drawn again


def test_large_integers_are_uniform_and_small_ones_too():
    """6,000 draws below 3: each within 5 standard deviations of a third; and below a number of
    200 digits, mean and highest third.
    """
    counts = np.bincount(fixed().large_below(3, 6000))
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(6000 * 2 / 9))
    bound = 10**200 + 7
    drawn = np.array([float(number / bound) for number in fixed().large_below(bound, 4000)])
    assert 0 <= drawn.min() <= drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 4000)
    assert abs(np.mean(drawn > 2 / 3) - 1 / 3) < 5 * np.sqrt(2 / 9 / 4000)


def test_large_integers_favor_no_small_ones():
    """Below 3/4 of 2^64, words wrap around to the lowest third of the range if all are taken: it
    would get half of them. 6,000 draws, within 5 standard deviations of a third.
    """
    drawn = fixed().large_below(3 * 2**62, 6000)
    assert abs(sum(number < 2**62 for number in drawn) - 2000) < 5 * np.sqrt(6000 * 2 / 9)


def test_a_mechanism_without_an_exact_form_is_not_deployed():
    with pytest.raises(NotImplementedError, match="simulated but not deployed"):
        HadamardResponse(1.0, 4, 3).respond(fixed(), np.zeros((1, 1), np.int32))


def test_the_draws_of_a_client_s_records_are_their_own():
    """One draw for all would tell of a record by the messages of others."""
    hashes = Collision(1.0, 4, 3).respond(fixed(), np.zeros((200, 1), np.int32)).seed
    assert len(np.unique(hashes, axis=0)) == 200
    subsets = SubsetSelection(4.0, 6, 4, num_neighbors=3, subset_size=8)
    cells = np.tile(np.array([0, 5, 10], np.int32), (4000, 1))
    sent = np.ascontiguousarray(subsets.respond(fixed(), cells)).view(np.uint8)
    held = np.unpackbits(sent, axis=1, bitorder="little")[:, [0, 5, 10]].sum(axis=1)
    assert len(np.unique(held[held > 0])) > 1

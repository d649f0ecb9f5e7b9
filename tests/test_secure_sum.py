"""Sums by secure aggregation: exact, of those that stayed, hidden under fresh masks, and nothing
more for a server that asks for it.
"""

import itertools
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")

from rknn_jax.federation import client_payments as client_side
from rknn_jax.federation import (
    participation,
    round_folder,
    secure_sum,
    secure_sum_keys,
    secure_sum_layout,
)
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.collector import Sum
from rknn_jax.federation.connection import Received
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.secure_sum import Participant
from rknn_jax.federation.secure_sum_keys import STEPS, SumRefusedError
from rknn_jax.federation.secure_sum_server import Summation
from rknn_jax.labelers import rknn
from rknn_jax.privacy.ledger import BudgetExceededError
from tests.test_federation import CLASSES, QUERIES, a_client

CLIENTS = (3, 7, 11, 2**63, 2**64 - 1)
LENGTH = 6
LEAST = 3


def half(clients):
    return clients // 2 + 1


class Party(Participant):
    """A participant with a vector of its number's, that counts how often the vector is taken."""

    def __init__(self, number, round_id="round", vector=None, length=LENGTH):
        self.vector = np.random.default_rng(number % 1000).integers(
            -(2**63), 2**63, length, np.int64
        )
        if vector is not None:
            self.vector = vector
        self.taken = 0
        super().__init__(round_id, length, half, self._take)

    def _take(self):
        self.taken += 1
        return self.vector


def begin(clients=CLIENTS, threshold=LEAST, round_id="round", length=LENGTH):
    parties = {number: Party(number, round_id, length=length) for number in clients}
    return parties, Summation(round_id, length, clients, threshold)


def take_step(parties, server, lost=()):
    for number in sorted(server.waiting() - set(lost)):
        reply = parties[number].step(server.step, server.question(number))
        assert server.receive(number, server.step, reply) == "counted"


def play(parties, server, lost=None, until=secure_sum_keys.STEPS):
    """Take the steps before `until`; `lost[number]` is the first step that a client misses."""
    lost = lost or {}
    while server.step < until:
        gone = [number for number, step in lost.items() if step <= server.step]
        take_step(parties, server, gone)
        server.advance()
    return server.result


def total_of(parties, numbers):
    words = [parties[number].vector.view(np.uint64) for number in numbers]
    return np.sum(words, axis=0, dtype=np.uint64).view(np.int64)


@pytest.mark.parametrize(("clients", "threshold"), [(2, 2), (3, 2), (5, 5), (12, 7)])
def test_a_sum_is_exact_with_negative_numbers_and_modulo_two_to_the_64(clients, threshold):
    numbers = range(100, 100 + clients)
    parties, server = begin(numbers, threshold)
    parties[100].vector = np.array([-1, 2**63 - 1, -(2**63), 0, 5, -7])
    total, count = play(parties, server)
    assert (total.dtype, count) == (np.int64, clients)
    np.testing.assert_array_equal(total, total_of(parties, numbers))
    assert [party.taken for party in parties.values()] == [1] * clients


def test_small_numbers_are_added_without_a_modulus():
    parties, server = begin()
    for number, party in enumerate(parties.values()):
        party.vector = np.array([-1, 1, 0, 1000, -(10**12), number])
    total, _ = play(parties, server)
    np.testing.assert_array_equal(total, [-5, 5, 0, 5000, -5 * 10**12, 10])


@pytest.mark.parametrize("lost", list(itertools.product(range(4), repeat=2)))
def test_clients_may_drop_out_before_any_step(lost):
    parties, server = begin()
    gone = dict(zip((7, 2**63), lost, strict=True))
    total, count = play(parties, server, gone)
    inside = [number for number in CLIENTS if gone.get(number, 4) > 2]
    assert count == len(inside)
    np.testing.assert_array_equal(total, total_of(parties, inside))
    for number, step in gone.items():
        assert parties[number].taken == (step > 2)
        assert server.question(number) is None


@pytest.mark.parametrize("step", range(4))
def test_fewer_than_the_threshold_open_nothing(step):
    parties, server = begin()
    with pytest.raises(
        ValueError, match=f"could not be opened: expected 3 .* got 2 in step {step}"
    ):
        play(parties, server, {3: step, 7: step, 11: step})
    assert server.result is None
    assert server.step == step


def test_who_is_waited_for_and_asked():
    parties, server = begin()
    assert server.waiting() == set(CLIENTS)
    assert server.question(99) is None
    play(parties, server, {3: 1}, until=2)
    assert server.waiting() == set(CLIENTS) - {3}
    assert server.question(3) is None
    play(parties, server)
    assert server.step == secure_sum_keys.STEPS
    assert server.waiting() == set()
    assert server.question(7) is None
    with pytest.raises(ValueError, match="not open yet"):
        server.advance()


@pytest.mark.parametrize(
    ("clients", "threshold"),
    [
        ((1,), 1),
        ((1, 2), 1),
        ((1, 2), 3),
        ((1, 1, 2), 2),
        (range(secure_sum_keys.MOST_CLIENTS + 1), 9),
    ],
)
def test_a_sum_of_strange_clients_is_not_begun(clients, threshold):
    with pytest.raises(ValueError, match="each client once"):
        Summation("round", LENGTH, clients, threshold)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_client_has_a_number_below_two_to_the_64(number):
    with pytest.raises(ValueError, match="from 0 to 2"):
        Summation("round", LENGTH, (1, number), 2)


# What the server sees


class Fixed:
    """Secrets drawn from a seeded generator, in place of the operating system's."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def token_bytes(self, size):
        return self.rng.bytes(size)

    def randbelow(self, bound):
        return int.from_bytes(self.rng.bytes(40), "little") % bound


def test_a_masked_vector_is_uniform(monkeypatch):
    """Bytes of 4,000 masked zeros, in each of 8 places; with fresh secrets, a right program fails
    once in 100,000 runs.
    """
    for module in (secure_sum, secure_sum_keys):
        monkeypatch.setattr(module, "secrets", Fixed(0))
    parties, server = begin((1, 2, 3), 2, length=4000)
    parties[2].vector = np.zeros(4000, np.int64)
    play(parties, server, until=2)
    data = np.frombuffer(parties[2].step(2, server.question(2)), np.uint8).reshape(4000, 8)
    for place in range(8):
        counts = np.bincount(data[:, place], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-5 / 8


def test_two_sums_of_one_vector_share_nothing():
    seen = []
    for _ in range(2):
        parties, server = begin()
        play(parties, server, until=2)
        seen.append(np.frombuffer(parties[7].step(2, server.question(7)), "<u8"))
    assert not np.any(seen[0] == seen[1])


@pytest.mark.parametrize("without", ["own", "pair"])
def test_a_vector_stays_hidden_when_one_kind_of_mask_is_known(without, monkeypatch):
    """The server learns pair masks of those that drop out, and own masks of those that stay."""

    def zero(*given, **named):
        return np.zeros(named.get("length", given[-1]), np.uint64)

    monkeypatch.setattr(secure_sum, f"{without}_mask", zero)
    parties, server = begin()
    play(parties, server, until=2)
    sent = np.frombuffer(parties[7].step(2, server.question(7)), "<i8")
    assert not np.any(sent == parties[7].vector)


def test_a_client_reveals_one_share_of_each_and_helps_once():
    parties, server = begin()
    play(parties, server, {3: 2}, until=3)
    asked = server.question(7)
    said = secure_sum_layout.decode_shares(parties[7].step(3, asked))
    held = parties[7]._shares
    assert said == [held[number][number != 3] for number in CLIENTS]
    assert parties[7].step(3, asked) == secure_sum_layout.encode_shares(said)
    with pytest.raises(SumRefusedError, match="got step 3"):
        parties[7].step(3, secure_sum_layout.encode_numbers(CLIENTS))


@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_a_threshold_of_shares_gives_the_secret(threshold):
    secret = bytes(range(32))
    shares = secure_sum_keys.split(secret, threshold, CLIENTS)
    for chosen in itertools.combinations(CLIENTS, threshold):
        assert secure_sum_keys.combine({number: shares[number] for number in chosen}) == secret


@pytest.mark.parametrize("other", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_one_share_too_few_fits_every_secret(other, monkeypatch):
    """For each other secret there are coefficients that give the same shares.

    They are equally likely, because each is drawn from the whole field.
    """
    prime = secure_sum_keys.PRIME
    shares = secure_sum_keys.split(b"a secret of 32 bytes, all hidden", 3, (4, 9))
    (x, y), secret = (5, 10), int.from_bytes(other, "little")
    left, right = (shares[4] - secret) * pow(x, -1, prime), (shares[9] - secret) * pow(y, -1, prime)
    second = (left - right) * pow(x - y, -1, prime) % prime
    first = (left - second * x) % prime
    drawn = iter([first, second])

    def randbelow(bound):
        assert bound == prime
        return next(drawn)

    monkeypatch.setattr(secure_sum_keys, "secrets", SimpleNamespace(randbelow=randbelow))
    assert secure_sum_keys.split(other, 3, (4, 9)) == shares


def test_the_field_is_one():
    """Fermat's test to thirteen bases, and a share of every size comes back."""
    assert all(
        pow(base, secure_sum_keys.PRIME - 1, secure_sum_keys.PRIME) == 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    )
    for share in (0, 2**256 - 1, secure_sum_keys.PRIME - 1):
        assert secure_sum_layout.decode_shares(secure_sum_layout.encode_shares([share])) == [share]
    with pytest.raises(SumRefusedError, match="below the prime"):
        secure_sum_layout.decode_shares(secure_sum_keys.PRIME.to_bytes(33, "little"))


# A server that deviates

LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
)
ANOTHERS = secure_sum_keys.public_keys(b"a" * 32, b"b" * 32, b"c" * 32)
ANOTHER_FORM = (2**255 - 19 + 9).to_bytes(32, "little")  # the base point


def number(value):
    return value.to_bytes(8, "little")


def rows(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


def changed_row(size, index, change):
    def spoil(data):
        found = rows(data, size)
        found[index] = change(found[index])
        return b"".join(found)

    return spoil


def key_of_another(data):
    found = rows(data, 72)
    found[0] = found[0][:8] + found[1][8:40] + found[0][40:]
    return b"".join(found)


def swapped_shares(data):
    """The ciphertexts of two clients, each under the other's number."""
    found = rows(data, 90)
    found[0], found[1] = found[0][:8] + found[1][8:], found[1][:8] + found[0][8:]
    return b"".join(found)


# The second client, number 7, is asked this instead.
DEVIATIONS = {
    "a threshold below the owner's": (0, lambda _: number(7) + number(2) + number(5)),
    "a threshold of one": (0, lambda _: number(7) + number(1) + number(1)),
    "more clients than it is good for": (0, lambda _: number(7) + number(3) + number(6)),
    "a threshold above the clients": (0, lambda _: number(7) + number(6) + number(5)),
    "too many clients": (0, lambda _: number(7) + number(1500) + number(2001)),
    "a short invitation": (0, lambda data: data[:-1]),
    "a long invitation": (0, lambda data: data + b"\0"),
    "no keys": (1, lambda _: b""),
    "keys without its own": (1, lambda data: data[:72] + data[144:]),
    "another channel key of its own": (
        1,
        changed_row(72, 1, lambda row: row[:8] + bytes([row[8] ^ 1]) + row[9:]),
    ),
    "another mask key of its own": (
        1,
        changed_row(72, 1, lambda row: row[:40] + bytes([row[40] ^ 1]) + row[41:]),
    ),
    "a client twice": (1, lambda data: data[:72] + data[:-72]),
    "its own keys twice": (1, lambda data: data[:144] + data[72:]),
    "clients out of order": (1, lambda data: data[72:] + data[:72]),
    "a key twice": (1, key_of_another),
    "channel and mask key the same": (
        1,
        changed_row(72, 0, lambda row: row[:40] + row[8:40]),
    ),
    **{
        f"a channel key of low order, {index}": (
            1,
            changed_row(72, 0, lambda row, key=key: row[:8] + key + row[40:]),
        )
        for index, key in enumerate(LOW_ORDER)
    },
    "a mask key of low order": (1, changed_row(72, 0, lambda row: row[:40] + LOW_ORDER[2])),
    "a key in another form": (1, changed_row(72, 0, lambda row: row[:40] + ANOTHER_FORM)),
    "fewer keys than the threshold": (1, lambda data: data[:144]),
    "more keys than clients": (
        1,
        lambda data: number(1) + b"".join(ANOTHERS[:2]) + data,
    ),
    "keys cut short": (1, lambda data: data[:-1]),
    "shares of too few": (2, lambda data: data[:90]),
    "shares of an unknown client": (2, lambda data: number(4) + data[8:]),
    "shares of its own": (2, changed_row(90, 1, lambda row: number(7) + row[8:])),
    "shares of one client twice": (2, lambda data: data[:90] + data[:270]),
    "changed shares": (2, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "shares of one under the number of another": (2, swapped_shares),
    "shares cut short": (2, lambda data: data[:-1]),
    "a sum without it": (3, lambda data: data[:8] + data[16:]),
    "a sum of too few": (3, lambda data: data[:16]),
    "a sum with an unknown client": (3, lambda data: data[:8] + number(7) + number(8) + data[24:]),
    "one client twice": (3, lambda data: data[:16] + data[8:]),
    "a sum out of order": (3, lambda data: data[8:] + data[:8]),
    "a sum without a client": (3, lambda _: b""),
    "a sum cut short": (3, lambda data: data[:-1]),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_client_refuses_what_would_show_more_than_the_sum(name):
    """It says nothing more from then on, does not spend before step 2, and the others go on."""
    step, spoil = DEVIATIONS[name]
    parties, server = begin()
    play(parties, server, until=step)
    asked = server.question(7)
    with pytest.raises(SumRefusedError):
        parties[7].step(step, spoil(asked))
    assert parties[7].taken == (step == 3)
    with pytest.raises(SumRefusedError, match=f"got step {step}"):
        parties[7].step(step, asked)
    total, count = play(parties, server, {7: step})
    inside = [number for number in CLIENTS if number != 7 or step == 3]
    assert count == len(inside)
    np.testing.assert_array_equal(total, total_of(parties, inside))


def test_a_client_takes_no_step_after_the_last_one():
    parties, server = begin()
    play(parties, server)
    with pytest.raises(SumRefusedError, match="got step 4"):
        parties[7].step(secure_sum_keys.STEPS, b"")


def test_a_sum_of_clients_that_dealt_no_shares_is_not_opened():
    parties, server = begin()
    play(parties, server, {3: 1}, until=3)
    with pytest.raises(SumRefusedError, match="dealt it shares"):
        parties[7].step(3, secure_sum_layout.encode_numbers(CLIENTS))


def test_shares_of_another_sum_are_refused():
    """Keys are bound to the round, its threshold, and everybody's keys."""
    parties, server = begin()
    play(parties, server, until=1)
    listed = server.question(7)
    hashes = {
        secure_sum_keys.transcript(*fields)
        for fields in (
            ("round", 6, 3, 5, listed),
            ("other", 6, 3, 5, listed),
            ("round", 7, 3, 5, listed),
            ("round", 6, 4, 5, listed),
            ("round", 6, 3, 6, listed),
            ("round", 6, 3, 5, listed[:-72]),
        )
    }
    assert len(hashes) == 6
    other = Summation("round", LENGTH, CLIENTS, LEAST)
    parties[7]._round_id = "other"
    play(parties, server, until=2)
    with pytest.raises(SumRefusedError, match="that client 3 sealed"):
        parties[7].step(2, server.question(7))
    assert parties[7].taken == 0
    assert other.result is None


@pytest.mark.parametrize("step", [-1, 1, 2, 3, 4])
def test_steps_out_of_order_are_refused(step):
    party = Party(7)
    with pytest.raises(SumRefusedError, match=f"Expected step 0 of the sum, got step {step}"):
        party.step(step, b"")


def test_a_retry_gets_the_same_bytes_and_another_question_none():
    parties, server = begin()
    for step in range(secure_sum_keys.STEPS):
        asked = server.question(7)
        first = parties[7].step(step, asked)
        assert parties[7].step(step, asked) == first
        take_step(parties, server)
        server.advance()
    assert parties[7].taken == 1
    np.testing.assert_array_equal(server.result[0], total_of(parties, CLIENTS))
    with pytest.raises(SumRefusedError, match="got step 0"):
        parties[7].step(0, number(7) + number(3) + number(5))


def test_a_ledger_that_refuses_ends_the_clients_part():
    parties, server = begin()
    play(parties, server, until=2)
    calls = []

    def refuse():
        calls.append(1)
        raise BudgetExceededError("nothing left")

    parties[7]._vector = refuse
    asked = server.question(7)
    with pytest.raises(BudgetExceededError):
        parties[7].step(2, asked)
    with pytest.raises(SumRefusedError):
        parties[7].step(2, asked)
    assert calls == [1]
    assert play(parties, server, {7: 2})[1] == 4


@pytest.mark.parametrize("vector", [np.zeros(5, np.int64), np.zeros(6), np.zeros(6, np.int32)])
def test_a_vector_of_another_form_is_an_error(vector):
    parties, server = begin()
    parties[7].vector = vector
    play(parties, server, until=2)
    with pytest.raises(ValueError, match="int64 vector of 6"):
        parties[7].step(2, server.question(7))


# Clients that deviate

GARBAGE = {
    "nothing": (range(4), lambda _: b""),
    "a byte too few": (range(4), lambda data: data[:-1]),
    "a byte too many": (range(4), lambda data: data + b"\0"),
    "twice as many": (range(4), lambda data: data + data),
    "text": (range(4), lambda data: data.decode("latin1")),
    "no bytes": (range(4), lambda _: None),
    "a channel key of low order": ((0,), lambda data: LOW_ORDER[2] + data[32:]),
    "a mask key of low order": ((0,), lambda data: data[:32] + LOW_ORDER[0] + data[64:]),
    "a key in another form": ((0,), lambda data: ANOTHER_FORM + data[32:]),
    "one key for both": ((0,), lambda data: data[:32] + data[:32] + data[64:]),
    "a share beyond the field": ((3,), lambda data: data[:-33] + b"\xff" * 33),
}


@pytest.mark.parametrize(
    ("name", "step"), [(name, step) for name, (steps, _) in GARBAGE.items() for step in steps]
)
def test_garbage_is_rejected_and_stops_nobody(name, step):
    """The same client may still answer rightly, and is counted then."""
    parties, server = begin()
    play(parties, server, until=step)
    reply = parties[7].step(step, server.question(7))
    assert server.receive(7, step, GARBAGE[name][1](reply)) == "malformed"
    assert 7 in server.waiting()
    assert server.receive(7, step, reply) == "counted"
    total, count = play(parties, server)
    assert count == 5
    np.testing.assert_array_equal(total, total_of(parties, CLIENTS))


def test_the_keys_of_another_client_are_rejected():
    parties, server = begin()
    theirs = parties[3].step(0, server.question(3))
    mine = parties[7].step(0, server.question(7))
    assert server.receive(3, 0, theirs) == "counted"
    assert server.receive(7, 0, theirs) == "malformed"
    assert server.receive(7, 0, mine[:32] + theirs[:32] + mine[64:]) == "malformed"
    assert server.receive(7, 0, mine[:32] + theirs[32:64] + mine[64:]) == "malformed"
    assert server.receive(7, 0, mine) == "counted"


def test_nobody_is_kept_out_by_a_commitment_that_is_its_key():
    parties, server = begin()
    theirs = parties[3].step(0, server.question(3))
    mine = parties[7].step(0, server.question(7))
    assert server.receive(3, 0, theirs[:64] + mine[:32]) == "counted"
    assert server.receive(7, 0, mine) == "counted"


def test_the_fate_of_what_comes_twice_late_early_or_from_nobody():
    parties, server = begin()
    reply = parties[7].step(0, server.question(7))
    assert server.receive(8, 0, reply) == "unknown"
    assert server.receive("7", 0, reply) == "unknown"
    for step in (1, 3, 4, -1, "0", None):
        assert server.receive(7, step, reply) == "malformed"
    assert server.receive(7, 0, reply) == "counted"
    assert server.receive(7, 0, reply) == "again"
    assert server.receive(7, 0, b"other") == "again"
    late = parties[3].step(0, server.question(3))
    play(parties, server, {3: 0}, until=1)
    assert server.receive(3, 0, late) == "late"
    assert server.receive(3, 1, b"") == "late"
    assert server.receive(7, 0, reply) == "again"
    total, _ = play(parties, server)
    np.testing.assert_array_equal(total, total_of(parties, CLIENTS[1:]))
    assert server.receive(3, 3, b"") == "late"


def test_shares_that_nobody_can_open_cost_nobody_anything():
    parties, server = begin()
    play(parties, server, until=1)
    spoiled = bytes(82) + parties[7].step(1, server.question(7))[82:]
    assert server.receive(7, 1, spoiled) == "counted"
    take_step(parties, server)
    server.advance()
    with pytest.raises(SumRefusedError, match="that client 7 sealed"):
        parties[3].step(2, server.question(3))
    assert parties[3].taken == 0
    total, _ = play(parties, server, {3: 2})
    np.testing.assert_array_equal(total, total_of(parties, CLIENTS[1:]))


@pytest.mark.parametrize("liar", CLIENTS)
@pytest.mark.parametrize("lost", [None, 11])
def test_one_that_reveals_false_shares_is_outvoted(liar, lost):
    """The second case rebuilds a mask key from shares, besides the seeds."""
    parties, server = begin()
    play(parties, server, {lost: 2}, until=3)
    if liar != lost:
        said = secure_sum_layout.decode_shares(parties[liar].step(3, server.question(liar)))
        false = secure_sum_layout.encode_shares([share ^ 1 for share in said])
        assert server.receive(liar, 3, false) == "counted"
    total, _ = play(parties, server)
    inside = [number for number in CLIENTS if number != lost]
    np.testing.assert_array_equal(total, total_of(parties, inside))


@pytest.mark.parametrize("lost", [7, None])
def test_false_shares_open_no_false_sum(lost):
    """As many as the threshold answer, one falsely; or a client deals shares of another secret."""
    parties, server = begin()
    if lost is None:
        play(parties, server, until=1)
        party = parties[11]
        party._seed = bytes(32)
    play(parties, server, {lost: 3, 3: 3} if lost else {}, until=3)
    if lost:
        said = secure_sum_layout.decode_shares(parties[11].step(3, server.question(11)))
        server.receive(11, 3, secure_sum_layout.encode_shares([share ^ 1 for share in said]))
    with pytest.raises(ValueError, match="shares of client .* do not fit"):
        play(parties, server, {lost: 3, 3: 3} if lost else {})
    assert server.result is None


# Vectors for other implementations

VECTORS = {
    "step 0, to client 5": "050000000000000002000000000000000300000000000000",
    "step 0, from client 5": (
        "7b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13052a50773ac8d917"
        "73f2dc9662e12f0defe915e415b8a1c8e20a5a3d6ab2b84323d80081d9366bf46cc350aae99f6aa1"
        "2214e60aeb4c0a264aa321a1e80980cb"
    ),
    "step 1, to client 5": (
        "05000000000000007b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13"
        "052a50773ac8d91773f2dc9662e12f0defe915e415b8a1c8e20a5a3d6ab2b8430a00000000000000"
        "7d34a4815fa6b982535e60af3bd9b49556816080f1641ff81d2b7c8ae8268a440faa684ed28867b9"
        "7f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f200f0000000000000004f5f29162c31a8d"
        "efa18e6e742224ee806fc1718a278be859ba5620402b8f3a59d9225473451efffe6b36dbcaefdbf7"
        "b1895de62084509a7f5b58bf01d06418"
    ),
    "step 1, from client 5": (
        "740d3fbb33cf224e21ab56bc54a506ecd25428e25dffc1924f19eea0788a5a2e59144eb354910390"
        "f5c6440db3fd61177f71a41f551deef751a6dea876cff5acd37dc81dd779803335ae467e313bb76f"
        "29f8cd876df9ec86aacbf11d4434c92d496280927a36d94f6dccf025ae729545fdc58291b2e8bd08"
        "33c813c6d6522da7a10a63a19b05cdb038c27c5a8793a538d6ca688d2c0adc4fdc2c2ec446467202"
        "841d7846"
    ),
    "step 2, to client 5": (
        "0a00000000000000951bcfe30c145dd0558ef7646f3da770b9588848e01e938718b8f78101c71838"
        "c719e452cf10055568496a942fb037298cdbc7a16d95b05d1d3eb18e7a247c24922f412410340037"
        "b0a5be8974b69ba082660f000000000000009bed1c37ade642d1877c53fdf72d02e6bd6caa545078"
        "cba84661481333a73c670334634bbcd702a0b9308dc21979ee732a434c55f1cd7409f85918fe47ef"
        "54b855412a0467a59bf49ba2561cf9aacb33a53a"
    ),
    "step 2, from client 5": "5fbf6243b5d46bd800d9c374aac6092e",
    "step 3, to client 5": "05000000000000000a00000000000000",
    "step 3, from client 5": (
        "919191919191919191919191919191919191919191919191919191919191919100d8000202020202"
        "0202020202020202020202020202020202020202020202020200416a6b6b6b6b6b6b6b6b6b6b6b6b"
        "6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b00"
    ),
    "transcript": ("a6bfa1299631bb29a605b05838a81c1c64986dc8632153bf4486ea671a8fb575"),
    "sum": [3, -3],
}
MASKS = {
    "pair mask of client 5 for client 10": "abebae1e1f488947adf4bf1c91e6f1e7",
    "own mask of client 5": "fa4e31ae045d410d6da40942406c78f8",
}


def recorded_sum(monkeypatch):
    """The bytes of a sum of three clients whose secrets are fixed.

    Client i of 1, 2, 3 has the number 5i. Its channel key, mask key and seed are 32 bytes of value
    16i + 1, 16i + 2 and 16i + 3. The second coefficient of its two polynomials, for mask key and
    seed, is the number of 32 bytes of value 16i + 4 and 16i + 5. Its vector is (i, -i). The third
    client is lost before step 2.
    """
    sent = {}
    parties, server = begin((5, 10, 15), 2, "a round", 2)
    for i, party in enumerate(parties.values(), 1):
        party.vector = np.array([i, -i])
    while server.step < secure_sum_keys.STEPS:
        for i in (1, 2) if server.step > 1 else (1, 2, 3):
            drawn = iter(range(16 * i + 1, 16 * i + 4))
            coefficients = iter(
                [int.from_bytes(bytes([16 * i + place]) * 32, "little") for place in (4, 5)]
            )
            fixed = SimpleNamespace(
                token_bytes=lambda size, drawn=drawn: bytes([next(drawn)]) * size,
                randbelow=lambda _, coefficients=coefficients: next(coefficients),
            )
            for module in (secure_sum, secure_sum_keys):
                monkeypatch.setattr(module, "secrets", fixed)
            asked = server.question(5 * i)
            reply = parties[5 * i].step(server.step, asked)
            assert server.receive(5 * i, server.step, reply) == "counted"
            if i == 1:
                sent[f"step {server.step}, to client 5"] = asked.hex()
                sent[f"step {server.step}, from client 5"] = reply.hex()
        server.advance()
    sent["transcript"] = parties[5]._transcript.hex()
    sent["sum"] = server.result[0].tolist()
    return sent


def test_the_bytes_of_a_sum_are_those_recorded(monkeypatch):
    assert recorded_sum(monkeypatch) == VECTORS


def test_masks_are_those_recorded():
    """Keys of the recorded sum's clients 5 and 10, and a transcript of 32 bytes of value 9."""
    first, second = (bytes([16 * i + 2]) * 32 for i in (1, 2))
    hashed = bytes([9]) * 32
    public = [
        secure_sum_keys.public_keys(bytes([1]) * 32, key, b"").mask for key in (first, second)
    ]
    pair = secure_sum_keys.pair_mask(first, public[1], hashed, 5, 10, 2)
    other = secure_sum_keys.pair_mask(second, public[0], hashed, 10, 5, 2)
    np.testing.assert_array_equal(pair + other, [0, 0])
    assert MASKS == {
        "pair mask of client 5 for client 10": pair.astype("<u8").tobytes().hex(),
        "own mask of client 5": secure_sum_keys.own_mask(bytes([19]) * 32, hashed, 5, 2)
        .astype("<u8")
        .tobytes()
        .hex(),
    }


def test_the_stream_is_chacha20_of_rfc_8439():
    """Appendix A.1, test vector 1: key, nonce and counter of zeros."""
    expected = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert secure_sum_keys.stream(bytes(32), 4).astype("<u8").tobytes() == expected


# Sums of a federation's clients


def a_round(epsilon=1.0, honest=3, **fields):
    return Round(
        QUERIES,
        CLASSES,
        rknn.ReverseKNN(epsilon=epsilon, mechanism="binomial", trust="central", delta=1e-4),
        honest=honest,
        **fields,
    )


def a_party(folder, seed, dishonest=0, **fields):
    return a_client(
        folder,
        seed=seed,
        agreement=Agreement("central", dishonest=dishonest),
        budget_delta="1/100",
        **fields,
    )


def add_up(round, parties, threshold, lost=None):
    """Sum the parties' counts; numbers of clients are 10, 11, ..."""
    taking = {}
    for number, party in enumerate(parties, 10):
        prepared = party.ready(round.data)
        taking[number] = Participant(round.id, 12, prepared.least_threshold, prepared.vector)
    server = Summation(round.id, 12, list(taking), threshold)
    totals, count = play(taking, server, lost)
    return Sum(round, totals, count, Counter())


def expected_of(round, parties):
    total = 0
    for party in parties:
        cells = round.contribute(party.inputs, party.labels)
        total = total + np.bincount(cells.ravel(), minlength=12)
    return total


@pytest.fixture
def without_noise(monkeypatch):
    """Coins that all show heads: a sum is then known exactly."""
    from rknn_jax.mechanisms import binomial

    monkeypatch.setattr(
        binomial, "heads", lambda entropy, coins, count: np.full(count, coins, np.int64)
    )


def test_the_sum_is_that_of_the_votes_exactly(tmp_path, without_noise):
    round = a_round()
    parties = [a_party(tmp_path / str(i), i, records=20) for i in range(5)]
    found = add_up(round, parties, 4)
    assert found.num_clients == 5
    np.testing.assert_array_equal(
        found.totals - 5 * round.sum.coins.coins_per_share, expected_of(round, parties)
    )
    assert all(party.ledger.spent.epsilon == 1 for party in parties)


def test_the_noise_of_all_is_in_the_sum(tmp_path):
    """12 cells of fresh noise: the mean square is beyond 0.07 and 4 times its own in fewer than
    one of 100,000 runs.
    """
    round = a_round(epsilon=0.5)
    parties = [a_party(tmp_path / str(i), i) for i in range(3)]
    counts, stddev = add_up(round, parties, 3).counts()
    noise = counts.ravel() - expected_of(round, parties)
    assert 0.07 < (noise**2).sum() / (stddev**2).sum() < 4


@pytest.mark.parametrize("step", [1, 2, 3])
def test_clients_that_are_lost_leave_the_sum_of_the_others(tmp_path, without_noise, step):
    """A client that is lost before its vector was asked for has spent nothing."""
    round = a_round()
    parties = [a_party(tmp_path / str(i), i) for i in range(5)]
    found = add_up(round, parties, 4, {12: step})
    inside = [party for i, party in enumerate(parties) if i != 2 or step == 3]
    assert found.num_clients == len(inside)
    np.testing.assert_array_equal(
        found.totals - len(inside) * round.sum.coins.coins_per_share, expected_of(round, inside)
    )
    np.testing.assert_allclose(
        found.counts()[1], round.sum.coins.stddev(np.zeros((4, 3)), 0) * np.sqrt(len(inside) / 2)
    )
    assert parties[2].ledger.spent.epsilon == (step == 3)


def test_the_owners_threshold_is_that_of_the_round(tmp_path):
    round = a_round()
    with pytest.raises(SumRefusedError, match="threshold of 4 or more of 5 clients, got 3"):
        add_up(round, [a_party(tmp_path / str(i), i, dishonest=1) for i in range(5)], 3)


def test_the_threshold_leaves_room_for_those_that_are_not_believed_in(tmp_path):
    round = a_round(honest=3)
    for dishonest, clients, least in (
        (0, 5, 3),
        (1, 5, 4),
        (2, 5, 5),
        (3, 5, 6),
        (0, 9, 5),
        (2, 11, 7),
        (0, 10, 6),
        (1, 9, 6),
    ):
        assert (
            a_party(tmp_path / f"{dishonest}-{clients}", 1, dishonest)
            .ready(round.data)
            .least_threshold(clients)
            == least
        )


def test_a_client_adds_to_a_sum_once(tmp_path):
    """Two sums of one vector and different others would show it with its own share of the noise
    alone.
    """
    round = a_round()
    party = a_party(tmp_path, 1)
    prepared = party.ready(round.data)
    prepared.vector()
    with pytest.raises(RefusedError, match="takes part once"):
        prepared.vector()
    with pytest.raises(RefusedError, match="takes part once"):
        a_party(tmp_path, 1).ready(round.data)
    assert party.ledger.spent.epsilon == 1
    assert float(party.ledger.spent.delta) == 1e-4


class Line:
    """Connection to a server whose round is closed, or that is lost at the last step of a sum."""

    def __init__(self, round_id):
        self.ticket = None
        self.ends = ""
        self.round_id = round_id

    def get(self, path, most, *, by_id):
        return Received(410, self.round_id, b"")

    def poll(self, path, most):
        if path.endswith(f"/{STEPS - 1}"):
            raise KeyboardInterrupt
        return Received(200, self.round_id, b"")

    def post(self, path, data):
        return "counted"


@pytest.mark.parametrize(
    ("pays", "words"), [(True, "has paid for it"), (False, "Nothing was spent")]
)
def test_a_client_that_was_stopped_in_a_sum_is_told_what_it_paid(tmp_path, pays, words):
    round = a_round()
    prepared = a_party(tmp_path, 1).ready(round.data)
    if pays:
        prepared.vector()

    def leave(name, text):
        raise KeyboardInterrupt(f"{name}: {text}")

    with pytest.raises(KeyboardInterrupt, match=f"too late: .* {words}"):
        participation._question(a_party(tmp_path, 1), Line(round.id), leave)


def test_a_vector_that_counts_is_noted_before_the_sum_is_opened(tmp_path, monkeypatch):
    """A client that is stopped in the last step is in the sum, and knows it when it comes back."""
    round = a_round()
    party = a_party(tmp_path, 1)
    stub = SimpleNamespace(step=lambda number, data: b"")
    monkeypatch.setattr(participation, "Participant", lambda *_: stub)
    with pytest.raises(KeyboardInterrupt):
        participation._add(party, Line(round.id), round.id, round.data, lambda *_: None)
    assert party.counted() == [round.id]


def test_the_note_of_a_sum_keeps_no_seed(tmp_path, monkeypatch):
    """With the seed, whoever reads the client's disk takes its share of the noise out of its
    vector.
    """
    seeds = []
    entropy_of = client_side.noted_entropy

    def remember(note, *votes):
        seeds.append(json.loads(note.read_bytes())["seed"])
        return entropy_of(note, *votes)

    monkeypatch.setattr(client_side, "noted_entropy", remember)
    party = a_party(tmp_path, 1)
    party.ready(a_round().data).vector()
    held = b"".join(path.read_bytes() for path in party.folder.rglob("*") if path.is_file())
    assert len(seeds) == 1
    assert seeds[0].encode() not in held
    assert bytes.fromhex(seeds[0]) not in held


def test_being_ready_costs_nothing_and_needs_the_owners_word(tmp_path):
    round = a_round()
    party = a_party(tmp_path / "a", 1)
    party.ready(round.data)
    assert party.ledger.spent.epsilon == 0
    for agreement in (Agreement(), Agreement("shuffle", 9)):
        with pytest.raises(RefusedError, match="trusts nobody"):
            a_client(tmp_path / "b", agreement=agreement, budget_delta="1/100").ready(round.data)
    with pytest.raises(RefusedError, match="asks for a sum"):
        party.answer(round.data)
    with pytest.raises(BudgetExceededError):
        a_client(
            tmp_path / "c", agreement=Agreement("central"), budget="1/10", budget_delta="1/100"
        ).ready(round.data).vector()


def test_a_client_level_sum_counts_each_cell_once(tmp_path, without_noise):
    round = a_round(unit="client", records_per_client=4)
    plain = a_round()
    assert round.guarantee().unit == "client"
    assert round.guarantee().events[0].count == 4 * plain.guarantee().events[0].count
    party = a_party(tmp_path, 1, records=20, unit="client")
    votes = party.ready(round.data).vector() - round.sum.coins.coins_per_share
    assert set(votes.tolist()) <= {0, 1}
    assert 1 <= votes.sum() <= 4


def test_a_sum_is_kept_before_it_is_used_and_not_begun_twice(tmp_path):
    round = a_round()
    assert round_folder.kept_sum(tmp_path, round) is None
    round_folder.begin_sum(tmp_path)
    with pytest.raises(ValueError, match="begin another round"):
        round_folder.kept_sum(tmp_path, round)
    round_folder.keep_sum(
        tmp_path, Sum(round, np.arange(12), 4, Counter({"refused by the client": 2}))
    )
    kept = round_folder.kept_sum(tmp_path, round)
    np.testing.assert_array_equal(kept.totals, np.arange(12))
    assert (kept.num_clients, kept.rejected) == (4, {"refused by the client": 2})


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("many", [1, 2, 3])
def test_whoever_drops_out_the_sum_has_the_noise_that_is_claimed_or_none(
    tmp_path, monkeypatch, step, many
):
    """Coins of each client are recorded. Any `many` of six clients vanish before `step`: the sum is
    that of those who sent, coins for coins, of at least as many honest clients as are promised.
    """
    from rknn_jax.mechanisms import binomial

    drawn = []

    def recorded(entropy, coins, count):
        drawn.append(heads(entropy, coins, count))
        assert coins == round.sum.coins.coins_per_share
        return drawn[-1]

    heads = binomial.heads
    monkeypatch.setattr(binomial, "heads", recorded)
    round = a_round(honest=3)
    parties = [a_party(tmp_path / str(i), i, dishonest=1) for i in range(6)]
    lost = {10 + i: step for i in range(many)}
    left = 6 - many
    if left < 4:  # honest + dishonest
        with pytest.raises(ValueError, match="could not be opened"):
            add_up(round, parties, 4, lost)
        return
    found = add_up(round, parties, 4, lost)
    inside = parties if step == 3 else parties[many:]
    assert found.num_clients == len(inside) == len(drawn)
    np.testing.assert_array_equal(found.totals - sum(drawn), expected_of(round, inside))
    coins = round.sum.coins
    honest = len(inside) - 1  # one may be dishonest, and one honest client knows its own coins
    assert (honest - 1) * coins.coins_per_share >= coins.coins
    spent = [party.ledger.spent.epsilon for party in parties]
    assert spent == [0 if step < 3 and i < many else 1 for i in range(6)]

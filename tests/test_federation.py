"""The protocol without its transport: what travels, what clients keep to, what a server counts,
and what crashes and liars cannot do.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import io
import itertools
import json
import math
import operator
import os
import signal
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import get_args

import chex
import jax
import numpy as np
import pytest

from rknn_jax import mechanisms, representations
from rknn_jax._internal import disk, onnx
from rknn_jax.bsvs import NO_CELL
from rknn_jax.federation import agreement as agreements
from rknn_jax.federation import collector as collectors
from rknn_jax.federation import joining, wire
from rknn_jax.federation import messages as client_messages
from rknn_jax.federation import settings as settings_of
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.client import ANSWERED, SENT_AGAIN, Client
from rknn_jax.federation.collector import Collector, Reply, most_shift
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.notes import seal
from rknn_jax.federation.rounds import Round
from rknn_jax.labelers import rknn
from rknn_jax.labelers._vote_shares import drawn_records
from rknn_jax.mechanisms.base import client_totals
from rknn_jax.mechanisms.local import LocalRandomizer
from rknn_jax.privacy import amplification
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.guarantee import UNITS
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerError, LedgerMismatchError
from rknn_jax.representations import dti, pca, pixels, pretrained, scan, simclr, spectral
from tests import recorded, tiny_network
from tests.conftest import modules
from tests.options import named_settings

DEPLOYED = (
    "collision",
    "subset_selection",
    "randomized_response",
    "optimized_unary_encoding",
    "generalized_randomized_response",
)
QUICK = ("collision", "wheel")  # a bucket under a hash, and a point of a circle
CLASSES = ("ant", "bee", "cow")
RNG = np.random.default_rng(0)
QUERIES = RNG.normal(size=(4, 5)).astype(np.float32)


def a_round(
    epsilon=1.0,
    mechanism="collision",
    neighbors=1,
    trust="local",
    metric="sqeuclidean",
    amplification="general",
    **fields,
):
    config = rknn.ReverseKNN(
        epsilon, 1e-5, neighbors, mechanism, trust, amplification=amplification, metric=metric
    )
    return Round(QUERIES, CLASSES, config, **fields)


@pytest.mark.parametrize("count", [1, 3])
def test_events_of_a_client_cost_all_of_its_messages(count):
    cost = a_round(unit="client", records_per_client=count, epsilon=1.0).guarantee()
    assert sum(event.pure_epsilon for event in cost.events) == pytest.approx(cost.epsilon)
    assert sum(event.count for event in cost.events) == count


def a_client(
    folder,
    records=6,
    budget=3,
    seed=1,
    agreement=Agreement(),
    unit="record",
    budget_delta=0,
    **fields,
):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(records, 5)).astype(np.float32)
    labels = rng.integers(0, 3, records).astype(np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ledger.jsonl"
    dataset = fingerprint(features)
    ledger = (
        Ledger.open(path, dataset)
        if path.exists()
        else Ledger.create(path, dataset, budget, budget_delta, unit=unit)
    )
    return Client(features, labels, ledger, folder / "rounds", agreement, **fields)


def replies_of(round, payloads, first=0):
    return [Reply(first + i, round.id, payload) for i, payload in enumerate(payloads)]


def honest(round, count, seed=0):
    """Payloads of one-record clients."""
    cells = (
        np.random.default_rng(seed)
        .integers(0, 12, (count, round.mechanism.votes_per_record))
        .astype(np.int32)
    )
    messages = round.mechanism.respond(Entropy(bytes([seed]) * 32), cells)
    data = wire.encode(round.mechanism, messages)
    size = wire.message_bytes(round.mechanism)
    return [data[i * size : (i + 1) * size] for i in range(count)]


# What travels


def name_of(module):
    return module.__name__.split(".")[-1]


REPRESENTATIONS = modules(representations)
TRAINED = (
    "simclr",
    "scan",
    "self_trained",
    "dti",
    "spectral",
)  # fitted in the slow tests; see the next test for their form


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(module, marks=[pytest.mark.slow] if name_of(module) in TRAINED else [])
        for module in REPRESENTATIONS
    ],
    ids=name_of,
)
def test_every_representation_arrives_as_it_was_sent(module):
    images = np.random.default_rng(0).integers(0, 256, (30, 12, 12, 1)).astype(np.uint8)
    encode = module.fit(jax.random.key(0), images, module.EXAMPLES[0])
    arrived = wire.unpack(wire.pack(encode))
    assert type(arrived) is type(encode)
    np.testing.assert_array_equal(np.asarray(arrived(images)), np.asarray(encode(images)))


def untrained():
    """Encoders as training makes them, with nested weights, networks, configuration and encoders
    inside them, and arbitrary numbers.
    """
    weights = {
        "params": {"layer": {"kernel": RNG.normal(size=(2, 3)).astype(np.float32)}},
        "batch_stats": {"mean": np.arange(3.0)},
    }
    network = simclr.Network("cnn", 4, hidden=True)
    graph = spectral.Encoder(
        pixels.Encoder(), *RNG.normal(size=(3, 2, 2)).astype(np.float32), spectral.EXAMPLES[0]
    )
    return [
        dti.Encoder(weights["params"], weights["batch_stats"], dti.EXAMPLES[0]),
        simclr.Encoder(weights, network, "projection"),
        scan.Encoder(weights, network),
        graph,
        dataclasses.replace(graph, describe=simclr.Encoder(weights, network, "backbone")),
    ]


def test_a_client_without_records_is_named():
    with pytest.raises(ValueError, match="at least one private record, got none"):
        a_round().contribute(np.zeros((0, 2), np.float32), np.zeros(0, np.int32))


def test_every_field_of_an_encoder_arrives():
    for sent in untrained():
        arrived = wire.unpack(wire.pack(sent))
        assert type(arrived) is type(sent)
        chex.assert_trees_all_equal(arrived, sent)
        chex.assert_trees_all_equal_dtypes(arrived, sent)
        assert jax.tree.structure(arrived) == jax.tree.structure(sent), (
            f"of {sent}: networks and configuration too"
        )


@pytest.mark.parametrize("mechanism", DEPLOYED)
def test_questions_and_answers_are_those_that_were_recorded(mechanism):
    """Clients and servers of two versions understand each other."""
    round = a_round(mechanism=mechanism, nonce="00" * 16)
    answers = b"".join(honest(round, 5))
    recorded.check(f"question of {mechanism}", np.frombuffer(round.data, np.uint8))
    recorded.check(f"answers of {mechanism}", np.frombuffer(answers, np.uint8))


def test_a_round_arrives_under_the_id_of_its_bytes():
    round = a_round(unit="client", records_per_client=2)
    arrived = Round.of(round.data)
    assert arrived.id == round.id
    assert arrived.mechanism == round.mechanism
    assert arrived.guarantee() == round.guarantee()
    np.testing.assert_array_equal(arrived.queries, QUERIES)
    assert a_round().id != a_round().id, "equal questions are different rounds"


def test_every_unit_that_a_command_offers_can_be_asked_for():
    offered = set(get_args(settings_of.Unit))
    for unit in UNITS:
        ask = contextlib.nullcontext() if unit in offered else pytest.raises(ValueError, match=unit)
        with ask:
            a_round(unit=unit, records_per_client=int(unit == "client"))


@pytest.mark.parametrize(
    "value",
    [
        {"class": "rknn_jax.federation.rounds:subprocess", "fields": {}},
        {"class": "subprocess:Popen", "fields": {"args": "true"}},
        {"class": "rknn_jax.labelers.rknn:mechanism", "fields": {}},
        {"class": "rknn_jax.labelers.rknn:Config", "fields": {"unknown": 1}},
        {"array": 3},
        {"strange": 1},
    ],
)
def test_only_numbers_and_named_configuration_are_built(value):
    tree = json.dumps(value).encode()
    kinds = b"[]"
    data = len(tree).to_bytes(8, "little") + len(kinds).to_bytes(8, "little") + tree + kinds
    with pytest.raises(ValueError, match="Expected a question"):
        wire.unpack(data)


def test_any_damage_to_a_question_is_an_error_or_another_round():
    """Every byte of the header flipped in one bit, and every length of the head: never another
    exception, never the same id.
    """
    data = a_round().data
    for cut in range(0, min(len(data), 200)):
        with pytest.raises(ValueError, match="Expected"):
            Round.of(data[:cut])
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        try:
            assert Round.of(bytes(damaged)).id != Round.of(data).id
        except ValueError:
            continue


@pytest.mark.parametrize("name", DEPLOYED)
@pytest.mark.parametrize("epsilon", [0.4, 3.0])
def test_a_message_is_as_long_as_its_mechanism_says_and_survives(name, epsilon):
    mechanism = mechanisms.make(name, epsilon=epsilon, num_queries=13, num_classes=7)
    cells = np.random.default_rng(0).integers(0, 91, (50, 1)).astype(np.int32)
    messages = mechanism.respond(Entropy(bytes(32)), cells)
    data = wire.encode(mechanism, messages)
    coins = 8 if name == "collision" else 0
    assert len(data) == 50 * wire.message_bytes(mechanism)
    assert 0 <= 8 * (wire.message_bytes(mechanism) - coins) - mechanism.message_bits < 8
    chex.assert_trees_all_equal(
        jax.tree.map(np.asarray, wire.decode(mechanism, data)), jax.tree.map(np.asarray, messages)
    )
    if wire.message_bytes(mechanism) > 1:
        with pytest.raises(ValueError, match="every client must use"):
            wire.decode(mechanism, data[:-1])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trust": "central", "honest": 3}, "trust=central, got mechanism=collision"),
        ({"mechanism": "binomial"}, "trust=local, got mechanism=binomial"),
        ({"trust": "central", "mechanism": "binomial"}, "honest >= 2"),
        ({"trust": "central", "mechanism": "binomial", "honest": 3, "simulated": 1}, "real noise"),
        ({"epsilon": float("inf")}, "< epsilon <"),
        ({"mechanism": "hadamard_response"}, "give its class `respond`"),
        ({"mechanism": "discrete_laplace"}, "trust=local, got mechanism=discrete_laplace"),
        ({"unit": "client"}, "records_per_client > 0"),
        ({"records_per_client": 2}, "records_per_client > 0"),
        ({"records_per_client": 1.5, "unit": "client"}, "an integer records_per_client"),
        ({"trust": "shuffle"}, "honest >= 2"),
        (
            {"trust": "shuffle", "honest": 50, "unit": "client", "records_per_client": 2},
            "one message",
        ),
        ({"neighbors": 9}, "num_neighbors"),
        ({"epsilon": True}, "epsilon of type float"),
        ({"epsilon": "1"}, "epsilon of type float"),
        ({"epsilon": 10**400}, "< epsilon <"),
        ({"epsilon": 1e-12}, "< epsilon <"),
        ({"unit": "client", "records_per_client": 2**21}, "records_per_client <="),
        (
            {"unit": "client", "records_per_client": 2**11, "epsilon": 1e-9},
            "epsilon / records_per_client >=",
        ),
        (
            {"trust": "central", "mechanism": "binomial", "honest": 2, "epsilon": 1e-5},
            "coins of a client",
        ),
        ({"metric": "bogus"}, "metric to be one of"),
        (
            {"trust": "shuffle", "honest": 50, "amplification": "closed form"},
            "amplification to be one of",
        ),
    ],
)
def test_a_round_that_cannot_keep_its_word_is_not_made(wrong, words):
    with pytest.raises(ValueError, match=words):
        a_round(**wrong)


# Federation = simulation


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in (*DEPLOYED, "local_hashing", "wheel")
    ],
)
def test_the_same_votes_and_seed_give_the_totals_of_a_simulation(tmp_path, name):
    """Through three clients of 18 records each, bytes, and a collector that is closed and opened
    between them.
    """
    round = a_round(mechanism=name, simulated=7)
    cells = []
    first = 0
    for number in range(3):
        client = a_client(
            tmp_path / f"{number}",
            18,
            seed=number,
            agreement=Agreement(simulated=True),
            first=first,
        )
        id, ticket, payload = client.answer(round.data)
        total = Collector(tmp_path, round)
        assert total.receive([Reply(ticket, id, payload)]) == ["counted"]
        total.close()
        cells.append(round.contribute(client.inputs, client.labels))
        first += 18
    expected = np.asarray(client_totals(round.mechanism, jax.random.key(7), np.concatenate(cells)))
    np.testing.assert_array_equal(total.totals, expected)
    np.testing.assert_allclose(
        total.counts()[0],
        np.asarray(round.mechanism.estimate(jax.random.key(0), expected, 54)),
        rtol=1e-6,
    )


def test_real_messages_estimate_the_votes(tmp_path):
    """4,000 one-record clients: every cell within 5 of its standard deviations; twelve cells,
    false alarms below 1e-5 at this seed.
    """
    round = a_round(epsilon=2.0)
    cells = np.random.default_rng(3).integers(0, 12, (4000, 1)).astype(
        np.int32
    ) % np.random.default_rng(4).integers(1, 13, (4000, 1))
    collector = Collector(tmp_path, round)
    data = wire.encode(round.mechanism, round.mechanism.respond(Entropy(bytes(32)), cells))
    size = wire.message_bytes(round.mechanism)
    collector.receive(replies_of(round, [data[i * size : (i + 1) * size] for i in range(4000)]))
    counts, stddev = collector.counts()
    assert np.all(
        np.abs(counts - np.bincount(cells[:, 0], minlength=12).reshape(4, 3)) < 5 * stddev
    )


# The client's word


def test_asked_again_a_client_says_the_same_and_spends_once(tmp_path):
    round = a_round()
    first = a_client(tmp_path).answer(round.data)
    assert a_client(tmp_path).answer(round.data) == first
    assert [entry.kind for entry in a_client(tmp_path).ledger.entries()] == ["create", "spend"]
    again = a_client(tmp_path).answer(a_round().data)
    assert again[1:] != first[1:]
    assert a_client(tmp_path).ledger.spent.epsilon == 2


def test_features_that_one_side_has_no_names_for_are_taken_in_their_order(tmp_path):
    names = tuple("edcba")
    client, round = a_client(tmp_path, features=names), a_round(features=tuple("abcde"))
    assert client._order(round) == [4, 3, 2, 1, 0]
    assert client._order(a_round()) == [0, 1, 2, 3, 4]
    assert dataclasses.replace(client, features=())._order(round) == [0, 1, 2, 3, 4]


def test_every_client_draws_noise_of_its_own(tmp_path):
    round = a_round(epsilon=0.1)
    messages = {a_client(tmp_path / str(i), seed=0).answer(round.data)[2] for i in range(4)}
    assert len(messages) == 4


def test_a_round_beyond_the_budget_is_refused_and_leaves_nothing(tmp_path):
    client = a_client(tmp_path, budget=1)
    client.answer(a_round(epsilon=0.6).data)
    with pytest.raises(BudgetExceededError):
        client.answer(a_round(epsilon=0.6).data)
    assert [path.suffix for path in client.folder.glob("[!.]*")] == [".answer"]
    client.answer(a_round(epsilon=0.4).data)
    assert client.ledger.remaining.epsilon == 0


def in_a_fork(run):
    """Run something in another process, which has all that is imported here but not JAX's
    threads, and return its number.
    """
    number = os.fork()
    if number == 0:
        status = 1
        try:
            signal.alarm(60)  # kills it where it hangs
            run()
            status = 0
        finally:
            os._exit(status)
    return number


def exit_status(number):
    """Return how a process ended: 0, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def connect_without_jax(client, round, seconds=0.0):
    """Return a `Round.connect` for a fork, which must not run JAX: the votes that this process
    finds, after some time.
    """
    cells = client._contribution(round)
    wire.message_bytes(round.mechanism)  # its shapes are traced once and kept

    def connect(*_):
        time.sleep(seconds)
        return cells

    return connect


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_the_charge():
    Ledger.charge = die


def die_after_the_charge():
    charge = Ledger.charge

    def charge_and_die(*arguments, **named):
        charge(*arguments, **named)
        die()

    Ledger.charge = charge_and_die


def die_before_the_answer_is_on_disk():
    wire.encode = die


def die_after_the_answer_is_on_disk():
    rename = os.replace

    def rename_and_die(source, target):
        rename(source, target)
        if str(target).endswith("answer"):
            die()

    os.replace = rename_and_die


MOMENTS = {
    "before the charge": die_before_the_charge,
    "after the charge": die_after_the_charge,
    "before the answer is on disk": die_before_the_answer_is_on_disk,
    "after the answer is on disk": die_after_the_answer_is_on_disk,
}


@pytest.mark.filterwarnings("ignore:os.fork")  # the fork runs no JAX
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_at_any_moment_costs_one_spend_and_makes_one_message(tmp_path, moment):
    """The process is killed by SIGKILL at that moment; started again, it answers, twice the
    same, with one spend in the ledger.
    """
    round = a_round(mechanism="randomized_response")  # whose messages are drawn without JAX
    connect = connect_without_jax(a_client(tmp_path), round)

    def answer_and_die():
        Round.connect = connect
        MOMENTS[moment]()
        a_client(tmp_path).answer(round.data)

    assert exit_status(in_a_fork(answer_and_die)) == -signal.SIGKILL
    client = a_client(tmp_path)
    kept = [path.read_bytes() for path in client.folder.glob("*.answer")]
    spent = [entry.kind for entry in client.ledger.entries()].count("spend")
    assert spent == (moment != "before the charge")
    said = client.answer(round.data)
    assert client.answer(round.data) == said
    assert kept in ([], [said[1].to_bytes(8, "little") + said[2]])
    assert bool(kept) is (moment == "after the answer is on disk")
    assert client.ledger.spent.epsilon == 1
    assert [path.suffix for path in client.folder.glob("[!.]*") if path.suffix != ".noted"] == [
        ".answer"
    ]


def test_what_was_said_is_said_again_whatever_has_become_of_the_data(tmp_path):
    """And the server does not learn that it has changed."""
    round = a_round()
    client = a_client(tmp_path)
    said = client.answer(round.data)
    assert dataclasses.replace(client, labels=(client.labels + 1) % 3).answer(round.data) == said
    answer = client.folder / f"{round.id}.answer"
    assert answer.stat().st_mode & 0o077 == 0
    answer.unlink()
    with pytest.raises(RefusedError, match="not again"):
        client.answer(round.data)
    assert client.ledger.spent.epsilon == 1


def test_nothing_in_the_data_decides_whether_there_is_an_answer(tmp_path):
    """A rare class, features that are not numbers or overflow: an answer of the same length."""
    plain = a_client(tmp_path / "plain")
    strange = a_client(tmp_path / "strange")
    strange.labels[0] = 40
    strange.inputs[1:4] = np.array([[np.nan], [np.inf], [3e38]], np.float32)
    lengths = {len(client.answer(a_round().data)[2]) for client in (plain, strange)}
    assert len(lengths) == 1
    assert (strange._contribution(a_round())[:4] == -1).all()
    beyond = a_round(epsilon=40.0)
    for client in (plain, strange):
        with pytest.raises(BudgetExceededError):  # before the data is looked at
            dataclasses.replace(client, labels=None).answer(beyond.data)


def test_a_representation_sees_one_record_at_a_time(tmp_path):
    """One that would put record 0's first pixel into the features of all: components of another
    shape than `fit` makes.
    """
    images = np.random.default_rng(0).integers(0, 256, (9, 6, 6, 1)).astype(np.uint8)
    inner = pca.Encoder(
        pixels.Encoder(),
        np.zeros((36,), np.float32),
        np.tile(np.eye(36, 1, dtype=np.float32), (9, 1, 1)),
    )
    assert np.asarray(inner(images)).ndim == 3, "all records at once do mix"
    images_of = {"inputs": images, "labels": np.zeros(9, np.int32)}
    for encode in (
        inner,
        pca.Encoder(pixels.Encoder(), np.zeros((36,), np.float32), np.ones((36, 1), np.float32)),
    ):
        client = dataclasses.replace(a_client(tmp_path / str(id(encode))), **images_of)
        round = dataclasses.replace(
            a_round(), queries=np.arange(4, dtype=np.float32)[:, None] * 3000, encode=encode
        )
        if encode is inner:
            with pytest.raises(RefusedError, match="makes something else"):
                client._contribution(round)
            continue
        whole = client._contribution(round)
        for i in range(9):
            changed = images.copy()
            changed[i] = 255 - changed[i]
            moved = dataclasses.replace(client, inputs=changed)._contribution(round)
            assert np.flatnonzero((moved != whole).any(axis=1)).tolist() in ([], [i])


@dataclasses.dataclass(frozen=True)
class Picky:
    """Encoder that fails on a batch, and on an image that is bright in its corner."""

    def __call__(self, images):
        assert len(images) == 1
        assert images[0, 0, 0, 0] < 200
        return np.ones((1, 1), np.float32)


def test_an_image_on_which_the_representation_fails_has_no_vote_and_others_have(tmp_path):
    images = np.zeros((9, 6, 6, 1), np.uint8)
    images[3] = 255
    client = dataclasses.replace(a_client(tmp_path), inputs=images, labels=np.zeros(9, np.int32))
    round = dataclasses.replace(
        a_round(), queries=np.arange(4, dtype=np.float32)[:, None], encode=Picky()
    )
    found = client._contribution(round)
    assert (found == NO_CELL).all(axis=1).tolist() == [row == 3 for row in range(9)]


@pytest.mark.filterwarnings("ignore:os.fork")  # the forks run no JAX
def test_two_processes_of_one_client_spend_once(tmp_path):
    """Each takes half a second between looking for an answer and charging for it, so that they
    meet there unless one waits.
    """
    round = a_round(mechanism="randomized_response")  # whose messages are drawn without JAX
    connect = connect_without_jax(a_client(tmp_path), round, seconds=0.5)

    def answer_into(path):
        Round.connect = connect
        path.write_text(repr(a_client(tmp_path).answer(round.data)))

    said = [tmp_path / name for name in ("first", "second")]
    both = [in_a_fork(functools.partial(answer_into, path)) for path in said]
    assert [exit_status(number) for number in both] == [0, 0]
    assert said[0].read_text() == said[1].read_text()
    assert a_client(tmp_path).ledger.spent.epsilon == 1


def with_other_numbers(data):
    """Questions in which one number or constant is another one, as no honest server writes it."""
    size = int.from_bytes(data[:8], "little")

    def places(tree, at=()):
        inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in inner:
            if isinstance(value, dict | list):
                yield from places(value, (*at, key))
            elif not isinstance(value, str):
                yield (*at, key)

    huge = (2**31, 2**53 + 1, 2**63 - 1, 2**64 - 1, 10**400, -(10**400))
    odd = (0, -1, 1e-320, 1e308, math.nan, math.inf, True, None, "", [], {})
    for place in places(json.loads(data[16 : 16 + size])):
        for other in (*huge, *odd):
            tree = json.loads(data[16 : 16 + size])
            functools.reduce(operator.getitem, place[:-1], tree)[place[-1]] = other
            text = json.dumps(tree).encode()
            yield len(text).to_bytes(8, "little") + data[8:16] + text + data[16 + size :]


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ({}, {}),
        ({"trust": "shuffle", "honest": 500}, {"honest": 600}),
        ({"trust": "central", "honest": 3, "mechanism": "binomial"}, {"honest": 3}),
        ({"unit": "client", "records_per_client": 2}, {}),
    ],
)
def test_a_question_with_any_number_has_a_cost_or_is_refused(asked, agreed):
    """A number of 400 digits once ended the client instead."""
    agreement = Agreement(trust=asked.get("trust", "local"), **agreed)
    fates = Counter()
    for question in with_other_numbers(a_round(**asked).data):
        try:
            agreement.cost(agreement.parsed(question, 5))
            fates["cost"] += 1
        except RefusedError:
            fates["refused"] += 1
    assert fates["cost"]
    assert fates["refused"] > fates["cost"]


def test_what_the_owner_has_not_agreed_to_is_refused_before_anything_is_spent(tmp_path):
    client = a_client(tmp_path, agreement=Agreement(epsilon=0.5, delta=0))
    wide = dataclasses.replace(a_round(epsilon=0.5), queries=np.zeros((4, 6), np.float32))
    for question, words in (
        (a_round(epsilon=0.6).data, "epsilon <= 0.5"),
        (a_round(epsilon=0.5, simulated=1).data, "simulated noise"),
        (a_round(epsilon=0.5, trust="shuffle", honest=500).data, "trusts nobody"),
        (b"nonsense", "Expected a question"),
        (wire.pack(rknn.ReverseKNN()), "Expected a round"),
        (wide.data, "private with embeddings of 6 dimensions, as the round's queries have, got 5;"),
        (
            dataclasses.replace(a_round(epsilon=0.5), encode=pixels.Encoder()).data,
            "a round about features",
        ),
    ):
        with pytest.raises(RefusedError, match=words):
            client.answer(question)
    with pytest.raises(RefusedError, match="real noise is not drawn"):
        dataclasses.replace(client, ledger=None).answer(a_round(epsilon=0.5).data)
    assert client.ledger.spent.epsilon == 0
    with pytest.raises(LedgerMismatchError):  # a ledger of records is not charged for clients
        client.answer(a_round(epsilon=0.5, unit="client", records_per_client=1).data)
    client.answer(a_round(epsilon=0.5).data)


@pytest.mark.parametrize(
    ("bound", "fields", "words"),
    [
        (
            {"most_cells": 11},
            {},
            "at most 11 cells in a round, got 12; agree to more with most_cells 12",
        ),
        ({"most_bytes": 200}, {}, "at most 200 bytes in a question"),
        ({"most_work": 71}, {}, "at most 71 work of cells times records in a round, got 72"),
        (
            {"most_bytes": 2000},
            {"records_per_client": 1001, "unit": "client"},
            "2,000 bytes in an answer, got 2,002",
        ),
        (
            {"most_work": 12_000},
            {"records_per_client": 1001, "unit": "client"},
            "got 12,012; agree to more with most_work",
        ),
    ],
)
def test_what_would_exhaust_a_client_is_refused_before_anything_is_spent(
    tmp_path, bound, fields, words
):
    round = a_round(mechanism="randomized_response", **fields)
    client = a_client(tmp_path, agreement=Agreement(**bound), unit=round.unit)
    with pytest.raises(RefusedError, match=words):
        client.answer(round.data)
    assert client.ledger.spent.epsilon == 0
    ((name, most),) = bound.items()
    enough = max(most + 1, len(round.data)) if name == "most_bytes" and not fields else most + 12
    dataclasses.replace(client, agreement=Agreement(**{name: enough})).answer(round.data)
    assert client.ledger.spent.epsilon == 1


def test_a_client_is_bounded_unless_its_owner_says_otherwise():
    """A million cells for each of 2,000 records, an answer of 250 MB, are too much work; a
    thousand cells of 60,000 are not.
    """
    classes = tuple(map(str, range(100)))
    ask = functools.partial(
        Round,
        classes=classes,
        config=rknn.ReverseKNN(mechanism="optimized_unary_encoding", trust="local"),
    )
    heavy, usual = (ask(np.zeros((count, 5), np.float32)) for count in (10_000, 10))
    few, many, digits = (
        Client(np.zeros((count, 5), np.float32), np.zeros(count, np.int32), None, Path())
        for count in (200, 2000, 60_000)
    )
    assert few.parsed(heavy.data).answer_bytes(200) == 25_000_000
    assert digits.parsed(usual.data).answer_bytes(60_000) == 7_500_000
    with pytest.raises(
        RefusedError, match="work of cells times records in a round, got 2,000,000,000"
    ):
        many.parsed(heavy.data)
    with pytest.raises(ValueError, match="queries times classes <= 4194304"):
        ask(np.zeros((2**16, 5), np.float32))
    with pytest.raises(ValueError, match="most_work >= 1"):
        Agreement(most_work=0)


def test_the_bounds_do_not_tell_how_many_records_a_client_has(tmp_path):
    round = a_round(mechanism="randomized_response", unit="client", records_per_client=2)
    for most, fits in ((24, True), (23, False)):
        for count in (1, 2, 200):
            mine = Client(
                np.zeros((count, 5), np.float32),
                np.zeros(count, np.int32),
                None,
                tmp_path,
                Agreement(most_work=most),
            )
            with contextlib.nullcontext() if fits else pytest.raises(RefusedError):
                mine.parsed(round.data)


def test_coins_of_a_sum_count_as_work():
    config = rknn.ReverseKNN(epsilon=0.05, delta=1e-9, mechanism="binomial", trust="central")
    round = Round(QUERIES, CLASSES, config, honest=3)
    assert round.work(6) == 12 * -(-round.sum.coins.coins_per_share // 64) > 12 * 500
    assert round.work(10**6) == 12 * 10**6
    assert round.answer_bytes(6) == 8 * 12


def test_bits_of_many_cells_are_drawn_for_few_records_at_a_time(monkeypatch):
    round = a_round(mechanism="optimized_unary_encoding")
    cells = np.arange(10, dtype=np.int32)[:, None]
    sealed = seal(bytes(32), cells, client_messages.records_at_once(round))
    assert sealed == seal(bytes(32), cells), "notes of earlier versions hold"
    monkeypatch.setattr(client_messages, "BITS_AT_ONCE", 40)
    assert seal(bytes(32), cells, client_messages.records_at_once(round)) != sealed, (
        "no two messages of one seed"
    )
    drawn = []
    respond = type(round.mechanism).respond

    def counted(self, entropy, block):
        drawn.append(len(block))
        return respond(self, entropy, block)

    monkeypatch.setattr(type(round.mechanism), "respond", counted)
    assert len(client_messages.messages(round, cells, Entropy(bytes(32)))) == round.answer_bytes(10)
    assert drawn == [3, 3, 3, 1]


def test_an_epsilon_that_protects_next_to_nothing_wants_a_word(tmp_path):
    round = a_round(epsilon=50.5)
    client = a_client(tmp_path, budget=100)
    with pytest.raises(
        RefusedError, match="epsilon <= 50 a round, got epsilon=50.5.*allow_large_epsilon"
    ):
        client.answer(round.data)
    assert client.ledger.spent.epsilon == 0
    dataclasses.replace(client, agreement=Agreement(large_epsilon=True)).answer(round.data)
    client.answer(a_round(epsilon=49.5).data)
    settings = named_settings(settings_of.Serve, tmp_path, 50.5, 2, tmp_path, "3")
    with pytest.raises(ValueError, match="epsilon <= 50, got epsilon 50.5.*allow_large_epsilon"):
        settings_of.asked(settings)
    assert (
        settings_of.asked(dataclasses.replace(settings, allow_large_epsilon=True)).config.epsilon
        == 50.5
    )


def test_the_flags_of_join_are_the_clients_agreement(tmp_path):
    np.savez(
        tmp_path / "R.npz", embeddings=np.zeros((3, 5), np.float32), labels=np.zeros(3, np.int32)
    )
    usual = named_settings(Join, tmp_path / "R.npz", budget=1)
    assert joining.open_client(usual).agreement == Agreement()
    bounds = {"most_cells": 5, "most_bytes": 6, "most_work": 7}
    asked = dataclasses.replace(usual, **bounds, allow_large_epsilon=True)
    assert joining.open_client(asked).agreement == Agreement(**bounds, large_epsilon=True)


def test_join_trusts_others_and_pays_for_a_round_as_far_as_its_flags_say(tmp_path):
    trusted = {"trust": "central", "honest": 5, "dishonest": 2, "networks": (tmp_path / "n.onnx",)}
    flags = named_settings(Join, tmp_path / "R.npz", most_epsilon=0.5, most_delta=1e-9, **trusted)
    assert joining.agreed(flags) == Agreement(epsilon=0.5, delta=1e-9, **trusted)


def test_join_waits_for_its_ledger_as_long_as_it_was_told_to(tmp_path):
    np.savez(
        tmp_path / "R.npz", embeddings=np.zeros((3, 5), np.float32), labels=np.zeros(3, np.int32)
    )
    for budget in (3, None):  # of a new ledger, and of one that is there
        client = joining.open_client(
            named_settings(Join, tmp_path / "R.npz", budget=budget, patience=0.1)
        )
        with open(client.ledger.path, "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(LedgerError, match="was not free within 0 s"):
                client.answer(a_round().data)
        client.answer(a_round().data)
    assert client.ledger.spent.epsilon == 2


# Units and trust


def test_a_client_level_round_hides_how_many_records_there_are_and_which(tmp_path):
    """Exact: any two clients' messages are as likely up to e^ε, over all outputs of both
    messages, whatever they hold (0 to 2 records).
    """
    round = a_round(
        epsilon=1.0,
        mechanism="generalized_randomized_response",
        unit="client",
        records_per_client=2,
    )
    sizes = {
        len(a_client(tmp_path / str(n), n, unit="client").answer(round.data)[2]) for n in (1, 2, 9)
    }
    assert sizes == {2 * wire.message_bytes(round.mechanism)}
    assert round.guarantee().unit == "client"
    mechanism = round.mechanism
    alphabet = round.mechanism.alphabet(jax.random.key(0))
    single = np.stack(
        [np.exp(mechanism.log_prob(alphabet, np.array([cell]))) for cell in (-1, *range(12))]
    )
    held = itertools.combinations_with_replacement(range(13), 2)
    joint = np.stack(
        [(np.outer(single[a], single[b]) + np.outer(single[b], single[a])).ravel() for a, b in held]
    )
    assert np.log(joint.max(axis=0) / joint.min(axis=0)).max() <= 1.0


@pytest.mark.long
def test_records_are_drawn_uniformly_without_replacement():
    """9,000 draws of 2 out of 3: each pair within 5 standard deviations of a third."""
    cells = np.arange(3, dtype=np.int32)[:, None]
    pairs = [
        tuple(sorted(drawn_records(Entropy(i.to_bytes(32, "little")), cells, 2)[:, 0]))
        for i in range(9000)
    ]
    counts = np.array([pairs.count(pair) for pair in ((0, 1), (0, 2), (1, 2))])
    assert np.all(np.abs(counts - 3000) < 5 * np.sqrt(9000 * 2 / 9))
    assert sorted(drawn_records(Entropy(bytes(32)), cells, 5)[:, 0].tolist()) == [
        -1,
        -1,
        0,
        1,
        2,
    ]


def test_a_shuffled_round_is_charged_for_as_many_as_the_owner_believes_in(tmp_path):
    round = a_round(epsilon=0.5, trust="shuffle", honest=2000)
    assert round.mechanism.epsilon == pytest.approx(
        amplification.local_epsilon(0.5, 2000, 1e-5, "general", None)
    )
    assert round.guarantee().epsilon == round.message_epsilon > 2, "without a shuffler"
    believes = a_client(tmp_path / "a", agreement=Agreement("shuffle", 2000), budget_delta="1/1000")
    believes.answer(round.data)
    assert (believes.ledger.spent.epsilon, float(believes.ledger.spent.delta)) == (0.5, 1e-5)
    for agreement in (Agreement("shuffle", 100), Agreement("shuffle"), Agreement()):
        doubts = a_client(tmp_path / f"{agreement}", agreement=agreement, budget_delta="1/1000")
        with pytest.raises(RefusedError):
            doubts.answer(round.data)
        assert doubts.ledger.spent.epsilon == 0


def test_a_server_counts_by_the_tighter_bound_and_its_clients_check_it(tmp_path):
    settings = named_settings(
        settings_of.Serve, tmp_path, 0.5, 2, tmp_path, "3", trust="shuffle", honest=2000
    )
    tighter, general = (
        dataclasses.replace(settings, **said) for said in ({}, {"amplification": "general"})
    )
    assert settings_of.asked(tighter).config.amplification == "variation ratio"
    assert settings_of.asked(general).config.amplification == "general"
    shuffled = {"epsilon": 0.5, "trust": "shuffle", "honest": 2000}
    asked = a_round(**shuffled, amplification="variation ratio")
    assert asked.mechanism.epsilon > a_round(**shuffled).mechanism.epsilon + 0.1
    client = a_client(tmp_path / "a", agreement=Agreement("shuffle", 2000), budget_delta="1/1000")
    client.answer(asked.data)
    assert client.ledger.spent == (0.5, Fraction("1e-5"))
    assert "variation ratio" in client.ledger.entries()[-1].guarantee.accountant
    doubts = a_client(tmp_path / "b", agreement=Agreement("shuffle", 1900), budget_delta="1/1000")
    with pytest.raises(RefusedError, match="got 1900"):
        doubts.answer(asked.data)
    assert doubts.ledger.spent.epsilon == 0


# Files that a question names


def image_round(encode, width=5):
    queries = np.zeros((4, width), np.float32)
    return Round(queries, CLASSES, a_round().config, encode, nonce=NONCE_OF_FILES)


def image_client(folder, **agreed):
    images = np.random.default_rng(2).integers(0, 256, (3, 6, 6, 3)).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.create(folder / "ledger.jsonl", fingerprint(images), 3)
    return Client(images, np.arange(3), ledger, folder / "rounds", Agreement(**agreed))


NONCE_OF_FILES = "01" * 16


@dataclasses.dataclass(frozen=True)
class Looks:
    """Every call by which a file could be looked for."""

    paths: list = dataclasses.field(default_factory=list)

    def watch(self, monkeypatch, secret):
        for owner, name in ((os, "stat"), (os, "lstat"), (os, "open"), (io, "open")):
            honest_call = getattr(owner, name)

            def called(path, *arguments, honest_call=honest_call, **named):
                if str(path) == str(secret):
                    self.paths.append(path)
                return honest_call(path, *arguments, **named)

            monkeypatch.setattr(owner, name, called)
        monkeypatch.setattr("builtins.open", io.open)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("others", [(), ("other.onnx", "elsewhere/secret.onnx")])
def test_a_server_learns_nothing_about_files_that_the_owner_has_not_listed(
    tmp_path, monkeypatch, there, others
):
    secret = tmp_path / "secret.onnx"
    if there:
        secret.write_bytes(b"private")
    digest = hashlib.sha256(b"private").hexdigest()
    card = pretrained.Card((6, 6), (0, 0, 0), (1, 1, 1), "NCHW", "features")
    data = image_round(pretrained.Encoder(str(secret), digest, card)).data
    listed = tuple(tmp_path / name for name in others)
    client = image_client(tmp_path / "client", networks=listed)
    looks = Looks()
    looks.watch(monkeypatch, secret)
    with pytest.raises(RefusedError, match="Expected a representation that reads no file"):
        client.answer(data)
    assert not looks.paths, "not even looked for"
    assert client.ledger.spent.epsilon == 0


def test_a_listed_network_is_run_if_it_is_the_one_and_small_enough(tmp_path, monkeypatch):
    path = tiny_network.write(tmp_path)
    encode = pretrained.load(path)
    data = image_round(encode).data
    willing = image_client(tmp_path / "willing", networks=(path,))
    assert len(willing.answer(data)[2]) == 3 * wire.message_bytes(image_round(encode).mechanism)

    size = path.stat().st_size
    sparing = image_client(tmp_path / "sparing", networks=(path,), most_bytes=size - 1)
    read = []
    honest_read = onnx.read
    monkeypatch.setattr(onnx, "read", lambda path: read.append(path) or honest_read(path))
    agreements._digest.cache_clear()
    with pytest.raises(RefusedError, match=f"bytes in the network .*, got {size:,}"):
        sparing.answer(data)
    assert not read, "sizes before bytes"

    another = image_round(dataclasses.replace(encode, digest="0" * 64)).data
    asked = image_client(tmp_path / "asked", networks=(path,))
    for _ in range(5):
        with pytest.raises(RefusedError, match="another one of this name"):
            asked.answer(another)
    assert len(read) == 1, "a server cannot make a client hash again and again"
    path.unlink()
    with pytest.raises(RefusedError, match="No such file"):
        asked.answer(data)


@pytest.mark.parametrize("path", [b"x", 3, None, ["secret.onnx"], "x" * 5000, "a\0b", "/dev/zero"])
def test_odd_paths_in_a_question_are_refused(tmp_path, path):
    card = pretrained.Card((6, 6), (0, 0, 0), (1, 1, 1), "NCHW", "features")
    encode = pretrained.Encoder(path if path != b"x" else np.zeros(3, np.uint8), "0" * 64, card)
    client = image_client(tmp_path, networks=(tmp_path / "mine.onnx",))
    with pytest.raises(RefusedError, match="reads no file"):
        client.answer(image_round(encode).data)


def test_a_file_is_found_wherever_a_question_hides_it():
    card = pretrained.Card((6, 6), (0, 0, 0), (1, 1, 1), "NCHW", "features")
    encode = pretrained.Encoder("p", "d", card)
    assert wire.files_of({"a": [(1, encode)], "b": encode}) == [("p", "d"), ("p", "d")]
    assert wire.files_of(pixels.Encoder()) == []


def test_a_card_of_a_stranger_asks_for_no_huge_image():
    with pytest.raises(ValueError, match="pixels"):
        pretrained.Card((10**6, 10**6), (0, 0, 0), (1, 1, 1), "NCHW", "features")


# The server's count


@pytest.mark.long
def test_what_cannot_be_counted_is_rejected_by_name_and_the_rest_is_counted(tmp_path):
    round = a_round(mechanism="generalized_randomized_response")
    # 12 is "no vote"
    good = honest(round, 4)
    outside = b"\x0d"
    collector = Collector(tmp_path, round, most_records=3)
    fates = collector.receive(
        [
            Reply(1, round.id, good[0]),
            Reply(2, round.id, good[1] + outside),
            Reply(3, "0" * 64, good[1]),
            Reply(4, round.id, b""),
            Reply(5, round.id, b"".join(good)),
            Reply(1, round.id, good[2]),
            Reply(6, round.id, b"".join(good[:3])),
            Reply(2**64 - 1, round.id, good[3]),
        ]
    )
    reasons = ["outside the alphabet", "another round", "malformed", "too many", "again"]
    assert fates == ["counted", *reasons, "counted", "counted"]
    assert collector.receive([Reply(1, round.id, good[1]), Reply(9, round.id, good[1])]) == [
        "again",
        "counted",
    ]
    assert collector.receive([Reply(10, round.id, good[1])], late=True) == ["late"]
    assert collector.clients == {1, 6, 9, 2**64 - 1}
    assert collector.num_messages == 6
    told = [good[0], *good[:3], good[3], good[1]]
    expected = round.mechanism.aggregate(wire.decode(round.mechanism, b"".join(told)))
    np.testing.assert_array_equal(collector.totals, expected)
    collector.close()
    assert Collector(tmp_path, round).rejected == dict.fromkeys([*reasons, "late"], 1) | {
        "again": 2
    }


# A full disk


def fill(monkeypatch, written):
    """Let a disk take no more than so many bytes of each file from now on; 0 makes room again."""
    honest_write = os.write

    def write(descriptor, data):
        if not written or len(data) < 16:
            return honest_write(descriptor, data)
        if len(data) > written[0]:
            part = data[: written[0]]
            written[0] = 0
            if part:
                return honest_write(descriptor, part)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return honest_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)


def test_answers_wait_for_room_on_the_disk_and_then_count_once(tmp_path, monkeypatch):
    round = a_round(mechanism="generalized_randomized_response")
    replies = replies_of(round, honest(round, 4))
    with contextlib.closing(Collector(tmp_path, round)) as collector:
        assert collector.receive(replies[:1]) == ["counted"]
        before = (tmp_path / collectors.ANSWERS).read_bytes()
        written = [20]  # a part of the frame
        fill(monkeypatch, written)
        wrong = Reply(9, round.id, b"\xff")
        assert collector.receive([*replies[1:], wrong]) == ["busy"] * 3 + ["outside the alphabet"]
        assert collector.full
        assert (tmp_path / collectors.ANSWERS).read_bytes() == before, "no part of a frame stays"
        assert collector.clients == {0}
        written.clear()
        assert collector.receive(replies[1:]) == ["counted"] * 3
        assert not collector.full
        assert collector.rejected == {"outside the alphabet": 1}
    with contextlib.closing(Collector(tmp_path, round)) as again:
        assert (again.clients, again.cut) == ({0, 1, 2, 3}, 0)
        np.testing.assert_array_equal(again.totals, collector.totals)


def test_another_error_of_the_disk_names_the_file_and_leaves_whole_frames(tmp_path, monkeypatch):
    round = a_round(mechanism="generalized_randomized_response")
    replies = replies_of(round, honest(round, 2))

    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with contextlib.closing(Collector(tmp_path, round)) as collector:
        collector.receive(replies[:1])
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match=r"answers\.bin"):
                collector.receive(replies[1:])
        assert collector.clients == {0}
    assert Collector(tmp_path, round).clients == {0}


def test_a_client_level_answer_has_exactly_its_number_of_messages(tmp_path):
    round = a_round(unit="client", records_per_client=2, mechanism="randomized_response")
    one = honest(round, 3)
    fates = Collector(tmp_path, round).receive(
        replies_of(round, [one[0], one[0] + one[1], b"".join(one)])
    )
    assert fates == ["malformed", "counted", "too many"]


@pytest.mark.parametrize("name", DEPLOYED)
def test_random_bytes_never_count_unless_they_are_messages(tmp_path, name):
    round = a_round(mechanism=name)
    rng = np.random.default_rng(0)
    size = wire.message_bytes(round.mechanism)
    payloads = [rng.bytes(int(n)) for n in rng.integers(0, 4 * size, 300)]
    collector = Collector(tmp_path, round)
    fates = collector.receive(replies_of(round, payloads))
    counted = b"".join(
        payload for payload, fate in zip(payloads, fates, strict=True) if fate == "counted"
    )
    assert np.asarray(jax.vmap(round.mechanism.valid)(wire.decode(round.mechanism, counted))).all()
    assert collector.num_messages == sum(
        len(p) // size for p, fate in zip(payloads, fates, strict=True) if fate == "counted"
    )
    assert np.all(collector.totals <= collector.num_messages)


@functools.partial(jax.jit, static_argnames="mechanism")
def alphabet_and_supports(mechanism, key):
    alphabet = mechanism.alphabet(key)
    return alphabet, jax.vmap(mechanism.support)(alphabet)


@pytest.mark.parametrize("name", DEPLOYED)
def test_liars_move_a_count_by_no_more_than_their_sensitivity(tmp_path, name):
    """The worst of the whole alphabet under 5 hashes, one to three liars among twenty honest
    clients, and the bound is reached.
    """
    round = a_round(mechanism=name)
    mechanism = round.mechanism
    shift = most_shift(round.mechanism)
    base = Collector(tmp_path / "honest", round)
    base.receive(replies_of(round, honest(round, 20)))
    worst = 0.0
    for seed in range(5 if name == "collision" else 1):
        alphabet, supports = jax.tree.map(
            np.asarray, alphabet_and_supports(mechanism, jax.random.key(seed))
        )
        size = wire.message_bytes(mechanism)
        data = wire.encode(mechanism, alphabet)
        lie = data[size * (best := int(supports[:, 5].argmax())) : size * (best + 1)]
        for liars in (1, 3):
            told = Collector(tmp_path / f"{seed}-{liars}", round)
            told.receive(
                replies_of(round, honest(round, 20)) + replies_of(round, [lie] * liars, first=100)
            )
            moved = (told.totals - base.totals) / mechanism.advantage
            assert np.abs(moved).max() <= liars * shift * (1 + 1e-12)
            worst = max(worst, float(np.abs(moved).max() / liars / shift))
    assert worst == pytest.approx(1)


def test_an_error_after_the_charge_says_that_the_round_is_paid_for(tmp_path, monkeypatch):
    client = a_client(tmp_path)
    round = a_round(mechanism="randomized_response")
    real = disk.write_whole

    def fails(path, *others):
        if path.suffix == f".{ANSWERED}":
            raise OSError(errno.EIO, "Input/output error")
        real(path, *others)

    with monkeypatch.context() as damaged:
        damaged.setattr(disk, "write_whole", fails)
        with pytest.raises(OSError, match="Input/output") as failed:
            client.answer(round.data)
    assert failed.value.__notes__ == [SENT_AGAIN]
    assert client.answer(round.data)[2]
    assert client.ledger.num_spends == 1


@pytest.mark.parametrize(
    ("kept", "tail"),
    [
        (0.0, b""),
        (0.3, b""),
        (0.999, b""),
        (0.0, bytes(500)),
        (0.0, b"\xff" * 500),
        (0.999, b"\x77"),
    ],
)
def test_a_batch_that_a_crash_cut_short_never_counted(tmp_path, kept, tail):
    round = a_round(mechanism="randomized_response")
    collector = Collector(tmp_path, round)
    assert collector.cut == 0
    collector.receive(replies_of(round, honest(round, 20)))
    totals = collector.totals.copy()
    size = os.path.getsize(tmp_path / collectors.ANSWERS)
    collector.receive(replies_of(round, honest(round, 17, seed=1), first=50))
    collector.close()
    whole = os.path.getsize(tmp_path / collectors.ANSWERS)
    os.truncate(tmp_path / collectors.ANSWERS, size + int(kept * (whole - size)))
    with open(tmp_path / collectors.ANSWERS, "ab") as file:
        file.write(tail)
    again = Collector(tmp_path, round)
    np.testing.assert_array_equal(again.totals, totals)
    assert len(again.clients) == again.num_messages == 20
    assert again.cut == int(kept * (whole - size)) + len(tail)
    again.receive(replies_of(round, honest(round, 17, seed=1), first=50))
    again.close()
    np.testing.assert_array_equal(Collector(tmp_path, round).totals, collector.totals)


def test_answers_that_rot_on_the_disk_are_found(tmp_path):
    round = a_round()
    for batch in range(2):
        collector = Collector(tmp_path, round)
        collector.receive(replies_of(round, honest(round, 10, seed=batch), first=10 * batch))
        collector.close()
    path = tmp_path / collectors.ANSWERS
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="restore the file"):
        Collector(tmp_path, round)
    with pytest.raises(ValueError, match="another round"):
        Collector(tmp_path, a_round())


def test_two_servers_never_count_in_one_folder(tmp_path):
    """In this process and in another; the lock of a server that was killed goes with it."""
    round = a_round()
    collector = Collector(tmp_path, round)
    collector.receive(replies_of(round, honest(round, 3)))
    with pytest.raises(ValueError, match="no other server counts in"):
        Collector(tmp_path, round)
    assert exit_status(in_a_fork(lambda: Collector(tmp_path, round))) != 0
    collector.close()

    def die_with_the_lock():
        disk.lock(os.open(tmp_path / collectors.ANSWERS, os.O_RDWR), "busy")
        os.kill(os.getpid(), signal.SIGKILL)

    killed = in_a_fork(die_with_the_lock)
    assert exit_status(killed) == -signal.SIGKILL
    assert Collector(tmp_path, round).num_clients == 3


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"late": -1}', b'{"late": "many"}', b"null", b"{"]
)
def test_a_damaged_count_of_the_rejected_names_its_file(tmp_path, content):
    round = a_round()
    Collector(tmp_path, round).close()
    (tmp_path / collectors.REJECTED).write_bytes(content)
    with pytest.raises(ValueError, match=collectors.REJECTED):
        Collector(tmp_path, round)


def test_any_order_and_any_batches_give_one_total(tmp_path):
    round = a_round(mechanism="subset_selection")
    replies = replies_of(round, honest(round, 61))
    totals = []
    for number, size in enumerate(
        (61, 1, 20)
    ):  # filled up to 64, not at all, and to 32 but for a last one
        collector = Collector(tmp_path / str(number), round)
        mixed = [replies[i] for i in np.random.default_rng(number).permutation(61)]
        for start in range(0, 61, size):
            collector.receive(mixed[start : start + size])
        totals.append(collector.totals)
        collector.close()
    for other in totals[1:]:
        np.testing.assert_array_equal(other, totals[0])


def test_every_deployed_mechanism_is_tested():
    able = {
        name
        for name in mechanisms.names("local")
        if mechanisms.named(name).respond is not LocalRandomizer.respond
    }
    assert able == set(DEPLOYED)


def test_an_answer_that_is_in_the_file_twice_is_not_counted_twice(tmp_path):
    """As in a file that was copied together from two."""
    round = a_round()
    collector = Collector(tmp_path, round)
    collector.receive(replies_of(round, honest(round, 3)))
    collector.close()
    path = tmp_path / collectors.ANSWERS
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ValueError, match=f"of each client once, in .*{collectors.ANSWERS}"):
        Collector(tmp_path, round)


def test_a_frame_of_half_a_message_names_its_file(tmp_path):
    round = a_round()
    collector = Collector(tmp_path, round)
    collector._append(np.array([1], np.uint64), b"x")
    collector.close()
    with pytest.raises(ValueError, match=f"Expected whole messages.*{collectors.ANSWERS}"):
        Collector(tmp_path, round)


@pytest.mark.parametrize("mechanism", DEPLOYED)
def test_the_length_of_an_answer_tells_the_number_of_records_and_no_more(tmp_path, mechanism):
    """Neither labels, nor records that cannot vote, nor the noise."""
    lengths = set()
    for number, labels in enumerate(([0] * 6, [2] * 6, [-1] * 6, [0, 1, 2, -1, 9, 1])):
        client = a_client(tmp_path / str(number), seed=number)
        inputs = client.inputs if number else np.full_like(client.inputs, np.nan)
        changed = dataclasses.replace(client, inputs=inputs, labels=np.array(labels, np.int32))
        lengths.add(len(changed.answer(a_round(mechanism=mechanism).data)[2]))
    assert len(lengths) == 1


@pytest.mark.parametrize(("trust", "noise"), [("shuffle", "collision"), ("central", "binomial")])
def test_a_round_that_nobody_could_publish_is_not_asked(tmp_path, trust, noise):
    """Two clients of a message each paid for a round that promised 600."""
    fields = {"unit": "client", "trust": trust, "mechanism": noise, "delta": 1e-5}
    wanted = named_settings(
        settings_of.Serve, tmp_path, 1.0, 2, tmp_path / "out", "3", honest=3, **fields
    )
    with pytest.raises(ValueError, match="honest <= 2, all that clients 2 can send"):
        settings_of.asked(wanted)
    for enough in ({"honest": 2}, {"collect_only": True}):
        settings_of.asked(dataclasses.replace(wanted, **enough))
    if trust == "shuffle":  # of which a client sends one message
        with pytest.raises(ValueError, match="<= 1, all that clients 3 with check_share 0.5"):
            settings_of.asked(dataclasses.replace(wanted, clients=3, honest=2, check_share=0.5))
        several = {"trust": "local", "records_per_client": 2, "epsilon": 4.0}
        settings_of.asked(dataclasses.replace(wanted, **several))

"""Labels of a federation that are checked by records that did not vote: roles, spends, measures.

Each record votes or checks, and no client pays twice: not after a kill, and not by a server's wish.
"""

import concurrent.futures
import contextlib
import copy
import dataclasses
import itertools
import json
import math
import shutil
import time
import types
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from rknn_jax._internal import disk
from rknn_jax.answers.measured import coin_quantiles, interval_under
from rknn_jax.cli import federation
from rknn_jax.federation import checking, client_payments, client_roles, hosting, publish
from rknn_jax.federation import client as clients
from rknn_jax.federation.agreement import Agreement, RefusedError
from rknn_jax.federation.check_rounds import CheckRound, terms_of
from rknn_jax.federation.collector import Collector, Reply, Sum
from rknn_jax.federation.join_settings import Join
from rknn_jax.federation.joining import ledger_path
from rknn_jax.federation.rounds import Round
from rknn_jax.federation.settings import Serve
from rknn_jax.labelers._sum_labeler import Labeling
from rknn_jax.labelers.prototypes import Prototypes
from rknn_jax.mechanisms.binomial import Binomial
from rknn_jax.privacy import roles
from rknn_jax.privacy.entropy import Entropy
from rknn_jax.privacy.fingerprints import fingerprint
from rknn_jax.privacy.ledger import BudgetExceededError, Ledger, LedgerError
from rknn_jax.randomized_bits import AGREES, DIFFERS, RandomizedBit
from rknn_jax.representations import pixels
from tests.conftest import crossed
from tests.options import named_settings
from tests.test_federation import CLASSES, QUERIES, a_client, a_round
from tests.test_federation_http import HERE, free_port, impatient, quick  # noqa: F401

CENTERS = 6 * np.eye(3, 4)
PATIENCE = 120
ONE_HOT = np.eye(3, dtype=np.float32)
NOBODY = np.zeros(0, np.int32)


def a_check(votes, labels=(0, 1, 2, 1), **fields):
    """Return a check of labels of the queries."""
    labeling = Labeling("labels", ONE_HOT[list(labels)], lambda: None, smooth=False)
    check = CheckRound.of_votes(votes, QUERIES, labeling)
    return dataclasses.replace(check, **fields) if fields else check


@pytest.fixture
def drawn(monkeypatch):
    """Let clients draw their roles by keys of the test, one after the other."""
    draw_from(1, monkeypatch)


def draw_from(first, monkeypatch):
    """Let keys be of a number each, one after the other."""
    keys = itertools.count(first)
    monkeypatch.setattr(roles.secrets, "token_bytes", lambda size: bytes([next(keys)]) * size)


def asked(client, round):
    """Return which records a client answers with, without an answer."""
    client.folder.mkdir(parents=True, exist_ok=True)
    return client_roles.asked(client.folder, round, client.inputs, client.labels, paid=False)[0]


# Who answers what


VOTES = {
    "local": {"check_share": 0.5},
    "several neighbors": {"check_share": 0.5, "neighbors": 2, "mechanism": "subset_selection"},
    "clients": {"check_share": 0.5, "unit": "client", "records_per_client": 2},
    "shuffle": {"check_share": 0.5, "trust": "shuffle", "honest": 4000},
    "central": {"check_share": 0.5, "trust": "central", "mechanism": "binomial", "honest": 3},
}


def votes_of(form, **fields):
    return a_round(**(VOTES[form] | fields))


def party(folder, form, **fields):
    """Return a client that agrees to a form."""
    given = VOTES[form]
    agreement = Agreement(given.get("trust", "local"), given.get("honest"))
    others = {"unit": given.get("unit", "record"), "budget_delta": 1e-4, "records": 40}
    return a_client(folder, agreement=agreement, **(others | fields))


@pytest.mark.parametrize("form", ["local", "several neighbors", "shuffle"])
def test_each_record_sends_one_message_to_one_of_both_rounds(form, tmp_path, monkeypatch):
    votes = votes_of(form)
    check = a_check(votes)
    client = party(tmp_path, form)
    sent = []
    messages = clients.messages

    def noted(round, cells, entropy):
        sent.append(cells)
        return messages(round, cells, entropy)

    monkeypatch.setattr(clients, "messages", noted)
    client.answer(votes.data)
    client.answer(check.data)
    voting = asked(client, votes)
    assert 0 < voting.sum() < 40  # neither has a probability of 2^-40
    np.testing.assert_array_equal(asked(client, check), ~voting)
    ids = client.labels
    np.testing.assert_array_equal(sent[0], votes.contribute(client.inputs, ids)[voting])
    np.testing.assert_array_equal(sent[1], check.contribute(client.inputs, ids)[~voting])
    assert client.ledger.spent.epsilon == 1
    assert len([one for one in client.ledger.entries() if one.kind == "spend"]) == 1


def test_a_client_that_is_protected_as_a_whole_votes_or_checks(tmp_path):
    votes = votes_of("clients")
    check = a_check(votes)
    said = []
    for number in range(40):
        client = party(tmp_path / str(number), "clients", records=3)
        paid = []
        for round in (votes, check):
            said.append(len(client.answer(round.data)[2]))
            paid.append(client.ledger.spent.epsilon)
        assert paid == ([1, 1] if said[-2] else [0, 1])
    size = len(
        a_client(tmp_path / "one", unit="client").answer(
            a_round(unit="client", records_per_client=2).data
        )[2]
    )
    assert set(zip(said[::2], said[1::2], strict=True)) == {(size, 0), (0, 1)}


@pytest.mark.long
@pytest.mark.parametrize("unit", ["record", pytest.param("client", marks=pytest.mark.long)])
def test_to_a_sum_each_record_adds_once_and_all_take_part(unit, tmp_path, monkeypatch):
    """Nobody sees who votes and who checks: each client takes part in both sums, with its noise."""
    monkeypatch.setattr(Binomial, "share", lambda self, entropy: np.zeros(self.num_cells, np.int64))
    whole = unit == "client"
    votes = dataclasses.replace(votes_of("central"), unit=unit, records_per_client=5 * whole)
    check = a_check(votes)
    told = []
    for number in range(40):  # all have one role at a probability of 2^-39
        client = party(tmp_path / str(number), "central", records=5, unit=unit)
        told.append([client.ready(one.data).vector().sum() for one in (votes, check)])
        voting = asked(client, votes)
        if whole:  # a client adds to each cell of its votes once, and checks with one record
            assert voting.all() or not voting.any()
            assert [told[-1][0] > 0, told[-1][1]] == [voting.all(), not voting.any()]
        else:
            assert told[-1] == [voting.sum(), (~voting).sum()]
        assert client.ledger.spent.epsilon == 1
        for one in (votes, check):
            with pytest.raises(RefusedError, match="takes part once"):
                client.ready(one.data)
    assert np.min(np.sum(told, axis=0)) > 0


def test_other_labelers_sum_their_voters_alone(tmp_path):
    votes = Round(QUERIES, CLASSES, Prototypes(1.0, 1e-5), honest=3, check_share=0.5)
    client = party(tmp_path, "central")
    prepared = client.ready(votes.data)
    voting = asked(client, votes)
    expected = votes.contribute(client.inputs[voting], client.labels[voting])
    np.testing.assert_array_equal(prepared.contribution, expected)
    check = a_check(votes)
    told = client.ready(check.data).contribution
    assert (told[voting] == -1).all()
    assert set(told[~voting].ravel()) <= {AGREES, DIFFERS}


@pytest.mark.long
def test_a_client_whose_records_all_check_says_nothing_in_the_round_of_votes(tmp_path):
    votes = votes_of("local")
    said = set()
    for number in range(30):
        client = party(tmp_path / str(number), "local", records=1)
        lengths = tuple(len(client.answer(one.data)[2]) for one in (votes, a_check(votes)))
        said.add(lengths)
        assert client.ledger.spent.epsilon == 1
    assert said == {(9, 0), (0, 1)}


def test_roles_are_drawn_by_the_operating_system_and_by_no_data(tmp_path, drawn):
    votes = votes_of("local")
    first = party(tmp_path / "a", "local")
    twin = party(tmp_path / "b", "local")
    other = dataclasses.replace(first, labels=1 - first.labels, folder=tmp_path / "c")
    told = [asked(one, votes) for one in (first, twin)]
    assert (told[0] != told[1]).any(), "of equal records, each client has its own coins"
    asked(other, votes)
    for one in (first, other):
        path = next(one.folder.glob("*.roles"))
        kept = client_roles.Note.read(path)
        fixed = roles.Roles(bytes(32), 0.0, 0.5, 0.0)
        sealed = client_roles._sealed(fixed, first.inputs, one.labels)
        dataclasses.replace(kept, roles=fixed.words(), records=sealed).write(path)
    np.testing.assert_array_equal(asked(first, votes), asked(other, votes))


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_as_many_check_as_the_round_says(share, tmp_path):
    """A false alarm has a probability of 2e-9, by Chernoff's bound on 4,000 coins."""
    votes = a_round(check_share=share)
    client = a_client(tmp_path, records=4000)
    checks = int((~asked(client, votes)).sum())
    low, high = binom.ppf([1e-9, 1 - 1e-9], 4000, share)
    assert low <= checks <= high


# Privacy of both rounds together


def joint_law(record, epsilon, share, *, role=lambda record: 1.0, twice=False):
    """Return the law of all that a server sees of one record, by enumeration.

    The labels that are checked depend on the vote, as a hostile server may choose them.
    """
    votes = a_round(epsilon, "generalized_randomized_response", check_share=0.5).mechanism
    bit = RandomizedBit(epsilon, 1, 2)
    symbols, bits = np.arange(votes.num_cells + 1), np.arange(2)
    voted = np.exp(votes.log_prob(symbols, np.array([record])))
    law = {}
    checks = share * role(record)
    for symbol in (None, *symbols):
        named = symbol is not None
        before = (1 - checks) * voted[symbol] if named else checks
        if named and not twice:
            law[symbol, None] = before
            continue
        label = record % 3 if symbol is None else symbol % 3
        agrees = AGREES if record % 3 == label else DIFFERS
        told = np.exp(bit.log_prob(bits, np.array([agrees if record != 5 else DIFFERS])))
        for message in bits:
            law[symbol, message] = before * told[message]
    return law


def loss(*arguments, **settings):
    laws = [joint_law(record, *arguments, **settings) for record in (0, 5)]
    assert all(math.isclose(sum(law.values()), 1) for law in laws)
    assert set(laws[0]) == set(laws[1])
    return max(abs(math.log(laws[0][seen] / laws[1][seen])) for seen in laws[0])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_both_rounds_cost_a_record_epsilon_once(epsilon):
    assert loss(epsilon, 0.3) == pytest.approx(epsilon, rel=1e-9)


def test_a_record_that_votes_and_checks_or_whose_role_is_its_own_costs_more():
    assert loss(1.0, 0.3, twice=True) > 1.5
    assert loss(1.0, 0.3, role=lambda record: 0.2 if record else 1.0) > 1.5


@pytest.mark.parametrize("epsilon", [2.0**-20, 0.5, 3.0, 30.0])
def test_a_bit_is_as_private_as_it_says_and_exact(epsilon):
    """The share of kept bits misses by 5 standard deviations at a probability below 1e-6."""
    bit = RandomizedBit(epsilon, 1, 2)
    alphabet = np.asarray(bit.alphabet(None))
    laws = [bit.log_prob(alphabet, np.array([cell])) for cell in (AGREES, DIFFERS, -1)]
    assert all(np.exp(law).sum() == pytest.approx(1) for law in laws)
    assert np.abs(laws[0] - laws[1]).max() == pytest.approx(epsilon)
    np.testing.assert_array_equal(laws[1], laws[2])
    assert bit.advantage == pytest.approx(math.tanh(epsilon / 2))
    size = 100_000
    cells = np.full((size, 1), AGREES, np.int32)
    for true in (AGREES, DIFFERS, -1):
        cells[:] = true
        sent = bit.respond(Entropy(bytes([7]) * 32), cells)
        kept = np.sum(sent == (AGREES if true == AGREES else DIFFERS))
        assert abs(kept - size * bit.p) <= 5 * math.sqrt(size * bit.p * bit.q) + 1
    assert np.asarray([bit.valid(one) for one in (-1, 0, 1, 2)]).tolist() == [
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="one of two cells"):
        RandomizedBit(1.0, 2, 2)


def test_a_round_promises_what_either_role_costs():
    for form in VOTES:
        votes = votes_of(form)
        alone = dataclasses.replace(votes, check_share=0.0)
        honest = votes.honest or None
        whole, before, check = (one.guarantee(honest) for one in (votes, alone, a_check(votes)))
        assert (whole.epsilon, whole.delta) == (before.epsilon, before.delta)
        assert check.epsilon <= whole.epsilon
        assert check.delta <= whole.delta
        assert check.unit == whole.unit == votes.unit
    shared = a_round(unit="client", records_per_client=3, check_share=0.1)
    assert [event.pure_epsilon for event in shared.guarantee().events] == [1.0]
    assert shared.guarantee().events[0].count == 1, "one bit spends all, and not a third thrice"


# Kills and hostile servers


class KilledError(Exception):
    """Death of a client."""


def killed_at(monkeypatch, place):
    """Let the process die at the write, charge or removal of this number."""
    left = itertools.count()

    def dying(function):
        def called(*arguments, **named):
            if next(left) == place:
                raise KilledError
            found = function(*arguments, **named)
            if next(left) == place:
                raise KilledError
            return found

        return called

    monkeypatch.setattr(disk, "write_whole", dying(disk.write_whole))
    ledger = clients.Ledger
    monkeypatch.setattr(ledger, "charge", dying(ledger.charge))
    monkeypatch.setattr(ledger, "mark_drawn", dying(ledger.mark_drawn))


@pytest.mark.parametrize(("form", "first"), [("local", 1), ("clients", 1), ("clients", 7)])
@pytest.mark.parametrize("place", range(0, 28))
def test_a_client_killed_anywhere_keeps_its_roles_and_says_and_pays_the_same(
    form, first, place, tmp_path, monkeypatch
):
    """By the first number, a client checks; by the other one, it votes."""
    draw_from(first, monkeypatch)
    votes = votes_of(form)
    check = a_check(votes)
    sent, seen = [], []
    messages = clients.messages

    def noted(round, cells, entropy):
        drawn = copy.copy(entropy).words(2).tobytes()  # another draw may make the same bits
        sent.append((round.id, cells.tobytes(), drawn, made := messages(round, cells, entropy)))
        return made

    monkeypatch.setattr(clients, "messages", noted)

    def answers():
        client = party(tmp_path, form, records=6, seed=place)
        for round in (votes, check):
            seen.append((round.id, client.answer(round.data)))
            notes = list(tmp_path.glob("rounds/*.roles"))
            told.update(json.loads(notes[0].read_text())["roles"] for _ in notes[:1])

    told = set()
    with monkeypatch.context() as patched:
        killed_at(patched, place)
        with contextlib.suppress(KilledError):
            answers()
    kept = {json.loads(path.read_text())["roles"] for path in tmp_path.glob("rounds/*.roles")}
    answers()
    assert kept <= told
    assert len(told) == 1
    assert len(set(sent)) == len({one[0] for one in sent}), "no other message of one spend"
    assert len(set(seen)) == 2
    assert party(tmp_path, form, records=6, seed=place).ledger.spent.epsilon == 1


def test_the_ledger_is_charged_before_anything_is_kept_for_sending(tmp_path, monkeypatch):
    votes = votes_of("local")

    def refuse(*_, **__):
        raise LedgerError("no")

    client = party(tmp_path, "local")
    with monkeypatch.context() as patched:
        patched.setattr(clients.Ledger, "charge", refuse)
        for _ in range(2):
            with pytest.raises(LedgerError):
                client.answer(votes.data)
    assert client.said(votes.id) is None
    poor = party(tmp_path / "poor", "clients", budget=0.5)
    with pytest.raises(BudgetExceededError):
        poor.answer(votes_of("clients").data)
    assert not list(poor.folder.glob("*.roles")), "a server may ask any number of times"


@pytest.mark.parametrize("form", VOTES)
def test_a_client_refuses_a_check_that_is_not_its_rounds(form, tmp_path):
    votes = votes_of(form)
    client = party(tmp_path, form)
    answer = (
        (lambda one: client.ready(one.data).vector())
        if votes.summed
        else (lambda one: client.answer(one.data))
    )
    check = a_check(votes)
    with pytest.raises(RefusedError, match="was asked to vote in"):
        answer(check)
    answer(votes)
    paid = client.ledger.spent
    for wrong in (
        {"config": dataclasses.replace(check.config, epsilon=0.5)},
        {"config": dataclasses.replace(check.config, epsilon=1.5)},
        {"config": dataclasses.replace(check.config, metric="cosine")},
        {"classes": ("ant", "bee", "fly")},
    ):
        with pytest.raises(RefusedError, match="by the terms of its round"):
            answer(dataclasses.replace(check, **wrong))
    other = "client" if check.unit == "record" else "record"
    with pytest.raises((RefusedError, LedgerError)):
        answer(dataclasses.replace(check, unit=other, records_per_client=int(other == "client")))
    answer(check)
    once = client.ledger.spent
    assert once.epsilon == 1
    assert paid.epsilon in (0, 1)
    mine = client.said(check.id)
    for second in (a_check(votes), a_check(votes, labels=(2, 1, 0, 0))):
        if mine is not None and not mine[1]:
            assert client.answer(second.data)[2] == b"", "it has voted, and says nothing"
            continue
        with pytest.raises(RefusedError, match="one check of round"):
            answer(second)
    assert client.ledger.spent == once
    assert client.said(check.id) == mine


class Hostile:
    """A server that asks whatever it likes, beside a client with other records, and backups.

    Attributes:
      sent: Epsilon of all messages of each record.
    """

    def __init__(self, client, form, seed, monkeypatch):
        self.rng = np.random.default_rng(seed)
        draw_from(1, monkeypatch)
        self.client = client
        self.turned = dataclasses.replace(
            client, inputs=client.inputs[::-1], labels=client.labels[::-1]
        )
        self.sent = np.full(len(client.inputs), Fraction(0))
        self.rounds = []
        for _ in range(6):
            after = self.one_of(["", *(one.id for one in self.rounds)])
            epsilon = self.one_of([0.001, 0.5, 1.0])
            self.rounds.append(votes_of(form, epsilon=epsilon, after=after))
        self.waiting, self.saved, self.masks = [], {}, {}
        contribution = clients.Client._contribution

        def noted(asked, round, mine=None):
            self.masks[round.id] = mine[::-1] if asked is self.turned else mine
            return contribution(asked, round, mine)

        monkeypatch.setattr(clients.Client, "_contribution", noted)

    def one_of(self, values):
        return values[self.rng.integers(len(values))]

    def ask(self, round):
        self.masks.pop(round.id, None)
        client = self.one_of([self.client] * 9 + [self.turned])
        if round.summed:
            self.waiting.append((client.ready(round.data), self.masks[round.id]))
            return
        client.answer(round.data)
        if round.id in self.masks:  # and is no answer of before
            self.sent[self.masks[round.id]] += Fraction(str(round.config.epsilon))

    def votes(self):
        self.ask(self.one_of(self.rounds))

    def votes_of_another_width(self):
        wide = np.zeros((2, 9), np.float32)
        self.ask(dataclasses.replace(self.one_of(self.rounds), queries=wide))

    def check(self):
        self.ask(a_check(self.one_of(self.rounds), voted=self.one_of(self.rounds).id))

    def sum(self):
        if self.waiting:
            prepared, mask = self.waiting.pop(self.rng.integers(len(self.waiting)))
            prepared.vector()
            self.sent[mask] += Fraction(str(prepared.round.config.epsilon))

    def clear(self):
        self.client.clear_roles(self.one_of(self.rounds).id)

    def backup(self):
        notes = self.client.folder.glob("*.roles")
        if not self.saved:
            self.saved = {path: path.read_bytes() for path in notes}
        else:
            for path, data in self.saved.items():
                path.write_bytes(data)
            self.saved = {}


STEPS = [
    "votes",
    "votes",
    "votes_of_another_width",
    *["check"] * 4,
    "sum",
    "sum",
    "clear",
    "backup",
]


@crossed(form=["local", "clients", "shuffle", "central"], seed=range(4))
def test_no_order_of_questions_gets_more_of_a_record_than_was_charged(
    form, seed, tmp_path, monkeypatch
):
    client = party(tmp_path, form, budget=99, budget_delta=0.5, records=24)
    hostile = Hostile(client, form, seed, monkeypatch)
    for _ in range(60):
        with contextlib.suppress(RefusedError, LedgerError):
            getattr(hostile, hostile.one_of(STEPS))()
    assert 0 < max(hostile.sent) <= client.ledger.spent.epsilon


def test_a_paid_round_is_answered_by_the_roles_that_it_was_paid_for(tmp_path, monkeypatch):
    """Records that are all equal say the same by other roles, so the note's seal tells nothing."""
    client = party(tmp_path, "local")
    client.inputs[:] = 0
    client.labels[:] = 1
    ledger = Ledger.create(tmp_path / "l.jsonl", fingerprint(client.inputs), 3)
    client = dataclasses.replace(client, ledger=ledger)
    votes = votes_of("local")
    with monkeypatch.context() as patch:
        patch.setattr(clients, "messages", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            client.answer(votes.data)
    path = client.folder / f"{votes.id}.roles"
    other = roles.Roles(bytes(32), 0.0, 0.5, 0.0)
    note = client_roles.Note.read(path)
    sealed = client_roles._sealed(other, client.inputs, client.labels)
    dataclasses.replace(note, roles=other.words(), records=sealed).write(path)
    with pytest.raises(RefusedError, match="Expected the roles, records and terms"):
        client.answer(votes.data)
    note.write(path)
    assert client.answer(votes.data)[2]
    assert client.ledger.spent.epsilon == 1


def test_a_check_by_the_terms_of_another_round_is_refused(tmp_path):
    """They were in the note of a round that another one had named as its first."""
    client = party(tmp_path, "local", budget=9)
    votes = votes_of("local", epsilon=0.001)
    dear = votes_of("local", epsilon=2.9, after=votes.id)
    other = dataclasses.replace(dear, queries=np.zeros((2, 9), np.float32))
    with pytest.raises(RefusedError, match="dimensions"):
        client.answer(other.data)
    client.answer(votes.data)
    with pytest.raises(RefusedError, match="by the terms of its round"):
        client.answer(a_check(other, voted=votes.id).data)
    client.answer(dear.data)
    with pytest.raises(RefusedError, match="by the terms of its round"):
        client.answer(a_check(dear, voted=votes.id).data)
    client.answer(a_check(votes).data)
    client.answer(a_check(dear).data)
    assert client.ledger.spent.epsilon == Fraction("2.901")


@pytest.mark.parametrize("others", ["roles", "records"])
def test_a_sum_is_charged_for_what_it_was_made_by(others, tmp_path):
    """Another process of the client may have drawn other roles by then, or have other records."""
    client = party(tmp_path, "central")
    turned = dataclasses.replace(client, inputs=client.inputs[::-1], labels=client.labels[::-1])
    votes = votes_of("central")
    prepared = client.ready(votes.data)
    if others == "roles":
        client.clear_roles(votes.id)
        client.ready(votes_of("central", after=votes.id).data)
    other = client if others == "roles" else turned
    other.ready(votes.data)
    prepared.vector()
    with pytest.raises(RefusedError, match="Expected the roles, records and terms"):
        other.ready(a_check(votes).data).vector()
    assert client.ledger.spent.epsilon == 1


@pytest.mark.parametrize("equal", [True, False])
def test_records_in_another_order_have_no_roles(equal, tmp_path):
    """Nor have those whose features are equal, which the ledger does not tell apart."""
    votes = votes_of("local")
    client = party(tmp_path, "local")
    if equal:
        client.inputs[:] = 0
        ledger = Ledger.create(tmp_path / "l.jsonl", fingerprint(client.inputs), 3)
        client = dataclasses.replace(client, ledger=ledger)
    client.answer(votes.data)
    turned = dataclasses.replace(client, inputs=client.inputs[::-1], labels=client.labels[::-1])
    with pytest.raises(RefusedError, match="in their order"):
        turned.answer(a_check(votes).data)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"roles": 1}', '{"roles": "x"}', "{" * 9999])
def test_a_damaged_note_of_roles_is_refused_without_its_words(text, tmp_path):
    votes = votes_of("local")
    client = party(tmp_path, "local")
    client.answer(votes.data)
    path = next(client.folder.glob("*.roles"))
    key = json.loads(json.loads(path.read_text())["roles"])[0]
    path.write_text(text or path.read_text().replace(key, key[:-2]))
    with pytest.raises(RefusedError, match="as it was written") as error:
        client.answer(a_check(votes).data)
    assert key[:8] not in str(error.value)


def test_a_client_whose_roles_were_removed_after_it_paid_answers_no_more(tmp_path):
    votes = votes_of("local")
    client = party(tmp_path, "local")
    client.answer(votes.data)
    for path in client.folder.iterdir():
        path.unlink()
    for round, words in ((votes, "got none; not again"), (a_check(votes), "has no roles")):
        with pytest.raises(RefusedError, match=words):
            client.answer(round.data)


@pytest.mark.parametrize("form", ["local", "shuffle", "central"])
def test_a_folder_from_a_backup_answers_no_check_twice(form, tmp_path):
    """A second answer has noise of its own, and the average of many has none."""
    votes = votes_of(form)
    check = a_check(votes)
    client = party(tmp_path, form)

    def answer(one):
        return client.ready(one.data).vector() if one.summed else client.answer(one.data)[2]

    answer(votes)
    shutil.copytree(client.folder, tmp_path / "backup")
    assert len(answer(check))
    for again in (check, a_check(votes), a_check(votes, labels=(2, 1, 0, 0))):
        shutil.rmtree(client.folder)
        shutil.copytree(tmp_path / "backup", client.folder)
        with pytest.raises(RefusedError):
            answer(again)


@pytest.mark.parametrize("what", ["votes", "votes without roles", "check"])
def test_a_note_that_was_not_paid_for_makes_no_second_message(what, tmp_path, monkeypatch):
    """One folder is stopped before it pays, another one answers, and the first goes on."""
    votes = votes_of("local", check_share=0.0 if what == "votes without roles" else 0.5)
    client = party(tmp_path / "one", "local")
    other = dataclasses.replace(client, folder=tmp_path / "other")
    asks = votes
    if what == "check":
        asks = a_check(votes)
        client.answer(votes.data)
        shutil.copytree(client.folder, other.folder)
    with monkeypatch.context() as patch:
        patch.setattr(clients.Ledger, "mark_drawn" if what == "check" else "charge", stop)
        with pytest.raises(KeyboardInterrupt):
            other.answer(asks.data)
    said = client.answer(asks.data)
    assert said[2]
    with pytest.raises(RefusedError, match="the folder that answered first"):
        other.answer(asks.data)
    (client.folder / f"{asks.id}.answer").unlink()  # and its note is gone: nothing is said
    with pytest.raises(RefusedError):
        client.answer(asks.data)
    assert client.ledger.spent.epsilon == 1


def stop(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["the note is written", "the charge is made"])
@pytest.mark.parametrize("form", ["local", "shuffle", "central"])
def test_two_folders_of_one_client_that_answer_at_once_are_one_answer(
    form, moment, tmp_path, monkeypatch
):
    votes = dataclasses.replace(votes_of(form), check_share=0.0)
    client = party(tmp_path / "one", form)
    other = dataclasses.replace(client, folder=tmp_path / "other")
    write_whole, charge = clients.disk.write_whole, clients.Ledger.charge
    waiting = [votes.data]

    def write_and_let_the_other_answer(path, *arguments):
        write_whole(path, *arguments)
        if path.parent == client.folder and path.suffix == ".noted" and waiting:
            answer(other, waiting.pop())

    def let_the_other_answer_and_charge(*arguments, **named):
        if waiting:
            answer(other, waiting.pop())
        return charge(*arguments, **named)

    def answer(who, data):
        return who.ready(data).vector() if votes.summed else who.answer(data)

    if moment == "the note is written":
        monkeypatch.setattr(clients.disk, "write_whole", write_and_let_the_other_answer)
    else:
        monkeypatch.setattr(clients.Ledger, "charge", let_the_other_answer_and_charge)
    with pytest.raises((RefusedError, LedgerError), match=r"answered first|the first charge"):
        answer(client, votes.data)
    assert not waiting
    assert client.ledger.num_spends == 1
    assert not list(client.folder.glob("*.noted"))


def test_a_charge_of_an_earlier_version_names_no_note_and_pays_for_its_answer(
    tmp_path, monkeypatch
):
    """It was stopped after the charge, and the program was renewed."""
    votes = votes_of("local")
    client = party(tmp_path, "local")
    with monkeypatch.context() as patch:
        patch.setattr(client_payments, "note_name", lambda _: "")
        patch.setattr(clients, "messages", stop)
        with pytest.raises(KeyboardInterrupt):
            client.answer(votes.data)
    assert client.answer(votes.data)[2]
    assert client.ledger.spent.epsilon == 1


@pytest.mark.parametrize("known_by", ["the first", "the last", "its check"])
def test_rounds_that_are_over_leave_no_roles_and_are_not_checked(tmp_path, known_by):
    """Roles of all rounds but the last stayed, and a check that came later was answered."""
    first = votes_of("local")
    last = dataclasses.replace(first, after=first.id)
    other = dataclasses.replace(first, honest=7)
    client = party(tmp_path, "local", budget=3)
    for votes in (first, last, other):
        client.answer(votes.data)
    check = a_check(last)
    client.answer(check.data)
    (client.folder / f"{'0' * 64}.roles").write_text("damaged")
    over = {"the first": first, "the last": last, "its check": check}
    client.clear_roles(over[known_by].id)
    assert {path.stem for path in client.folder.glob("*.roles")} == {other.id, "0" * 64}
    for votes in (first, last):
        with pytest.raises(RefusedError, match="has no roles"):
            client.answer(a_check(votes, labels=(1, 1, 1, 1)).data)


@pytest.mark.long
@pytest.mark.parametrize("form", ["local", "clients", "central"])
def test_a_second_folder_of_one_ledger_has_no_roles_of_its_own(form, tmp_path):
    """Roles by which nothing was paid are worth nothing, whoever drew them first."""
    votes = votes_of(form)
    check = a_check(votes)

    def answer(client, one):
        return client.ready(one.data).vector() if one.summed else client.answer(one.data)[2]

    for number in range(12):
        client = party(tmp_path / str(number), form, records=5)
        other = dataclasses.replace(client, folder=tmp_path / f"{number}.other")
        for one in (client, other):
            asked(one, votes)
        paid = 0
        for who, what in itertools.product((client, other), (votes, check)):
            with contextlib.suppress(RefusedError):
                paid += bool(len(answer(who, what)) and who.folder == other.folder)
        assert client.ledger.spent.epsilon == 1
        said = {one.folder: [one.said(two.id) for two in (votes, check)] for one in (client, other)}
        assert not paid, said


# The question


def test_a_check_travels_and_rounds_without_one_are_as_before():
    plain = a_round()
    assert b"check_share" not in plain.data
    for form in VOTES:
        votes = votes_of(form)
        assert Round.of(votes.data).check_share == 0.5
        check = Round.of(a_check(votes).data)
        assert isinstance(check, CheckRound)
        assert check.terms == terms_of(votes)
        assert check.account == votes.id != check.id
        assert check.num_cells == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"voted": "x"}, "id of a round"),
        ({"voted": 7}, "id of a round"),
        ({"smooth": 1}, "true or false"),
        ({"check_share": 0.1}, "not checked again"),
        ({"simulated": 3}, "real noise"),
        ({"probabilities": ONE_HOT[:3]}, "probabilities float32"),
        (
            {
                "queries": np.ones((2**14 + 1, 4), np.float32),
                "probabilities": np.ones((2**14 + 1, 3), np.float32),
            },
            "at most 16,384 rows",
        ),
        ({"probabilities": ONE_HOT[[0, 1, 2, 1]] * 2}, "from 0 to 1"),
        ({"probabilities": np.full((4, 3), np.nan, np.float32)}, "from 0 to 1"),
        ({"probabilities": np.zeros((4, 3))}, "float32"),
    ],
)
def test_a_check_of_a_hostile_server_is_refused(wrong, words):
    check = a_check(votes_of("local"))
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(check, **wrong)


@pytest.mark.parametrize("share", [-0.1, 0.6, math.nan, 1, "0.1"])
def test_shares_that_leave_too_few_to_vote_are_refused(share):
    with pytest.raises(ValueError, match="check_share"):
        a_round(check_share=share)
    with pytest.raises(ValueError, match="real noise"):
        a_round(check_share=0.1, simulated=1)


def test_agreement_is_that_of_the_rows_near_a_record_alone():
    votes = votes_of("local")
    points = np.concatenate([QUERIES, QUERIES[:2]]) + np.float32(0.01)
    labels = np.array([0, 1, 0, 1, 1, -1], np.int32)
    expected = [AGREES, AGREES, DIFFERS, AGREES, DIFFERS, -1]
    check = a_check(votes)
    cells = check.contribute(points, labels)
    assert cells.ravel().tolist() == expected
    for i in range(6):
        np.testing.assert_array_equal(check.contribute(points[[i]], labels[[i]]), cells[[i]])
    several = a_check(a_round(labels_per_record=2, check_share=0.5))
    ballots = several.encoded(
        np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
    ).ids
    ballots[5] = -1  # a record that cannot be used
    sets = [AGREES, DIFFERS, DIFFERS, AGREES, DIFFERS, -1]
    assert several.contribute(points, ballots).ravel().tolist() == sets
    with pytest.raises(ValueError, match="at least one private record"):
        check.contribute(points[:0], NOBODY)


def test_records_check_the_labels_near_them_by_the_metric_of_the_votes():
    queries = np.float32([[10, 0, 0, 0], [0, 1, 0, 0]])
    records, labels = np.float32([[1, 0.1, 0, 0], [2, 0.5, 0, 0]]), np.zeros(2, np.int32)
    labeling = Labeling("labels", ONE_HOT[[0, 1]], lambda: None, smooth=False)
    for metric, told in (("cosine", AGREES), ("sqeuclidean", DIFFERS)):
        votes = dataclasses.replace(a_round(check_share=0.5, metric=metric), queries=queries)
        check = CheckRound.of_votes(votes, queries, labeling)
        assert check.contribute(records, labels).ravel().tolist() == [told, told]


@pytest.mark.long
def test_images_check_in_the_representation_of_the_round(tmp_path):
    votes = a_round(encode=pixels.Encoder(), check_share=0.5)
    client = party(tmp_path, "local", records=30)
    images = np.random.default_rng(0).integers(0, 255, (30, 5, 1, 1), np.uint8)
    client = dataclasses.replace(client, inputs=images)
    check = a_check(votes)
    lengths = [len(client.answer(one.data)[2]) for one in (votes, check)]
    assert lengths[0] // 9 + lengths[1] == 30
    encoded = np.asarray(votes.encode(images), np.float32)
    expected = check.contribute(encoded, client.labels)[asked(client, check)]
    np.testing.assert_array_equal(client._contribution(check, asked(client, check)), expected)


def test_of_many_rows_evenly_spaced_ones_are_asked_about(monkeypatch):
    monkeypatch.setattr("rknn_jax.federation.check_rounds.MOST_ROWS", 3)
    check = a_check(votes_of("local"))
    np.testing.assert_array_equal(check.queries, QUERIES[[0, 1, 3]])
    np.testing.assert_array_equal(check.probabilities, ONE_HOT[[0, 1, 1]])


# The server


def test_an_answer_without_messages_counts_where_there_are_roles(tmp_path):
    votes, plain = votes_of("local"), a_round()
    payload = party(tmp_path / "client", "local").answer(votes.data)[2]
    for round, expected in ((plain, "malformed"), (votes, "counted")):
        collector = Collector(tmp_path / round.id, round)
        told = [b"", payload, b"", payload[:9], b"", b"\xff" * 9]
        replies = [Reply(i, round.id, one) for i, one in enumerate(told)]
        fates = collector.receive(replies)
        assert fates[::2] == [expected] * 3
        assert fates[1::2] == ["counted", "counted", "outside the alphabet"]
        alone = collector.receive([Reply(9, round.id, b"")])
        assert alone == [expected]
        state = collector.clients, collector.num_messages, collector.totals.tolist()
        collector.close()
        again = Collector(tmp_path / round.id, round)
        assert state == (again.clients, again.num_messages, again.totals.tolist())
        again.close()


def test_a_client_that_was_counted_in_the_check_alone_has_an_account(tmp_path, monkeypatch):
    """It came too late to vote, and has paid for the round."""
    votes = votes_of("local")
    check = a_check(votes)

    def collect(desk, collector, clients, tell):
        assert collector.receive([Reply(9, check.id, b"")]) == ["counted"]

    monkeypatch.setattr(checking, "prepared", lambda *_: check)
    monkeypatch.setattr(checking.hosting, "collect", collect)
    labeled = publish.Labeled(None, None, votes.guarantee())
    asked = types.SimpleNamespace(deadline=60.0)
    (tmp_path / "check").mkdir()
    counted = []
    checking.measure(
        tmp_path,
        *(votes, labeled, asked, 1),
        serve=lambda _: None,
        counted=lambda answers: counted.append(set(answers.clients)),
        tell=lambda *_: None,
    )
    assert counted == [{9}]


def measured_of(check, folder, agree, differ):
    """Return what a collector measures of exact bits, by fixed seeds."""
    collector = Collector(folder, check)
    cells = np.repeat([AGREES, DIFFERS], [agree, differ]).astype(np.int32)[:, None]
    sent = check.mechanism.respond(Entropy(folder.name.encode().ljust(32)), cells)
    fates = collector.receive([Reply(1, check.id, sent.astype(np.uint8).tobytes())])
    assert fates == ["counted"]
    found = checking.measured(collector)
    collector.close()
    return found


@pytest.mark.long
def test_intervals_of_bits_cover_in_95_of_100_rounds(tmp_path):
    """Of 300 rounds with fixed seeds, 97% cover on average; below 92% has a probability of 1e-4."""
    check = a_check(votes_of("local"))
    rng = np.random.default_rng(0)
    covered = 0
    for number in range(300):
        agree = int(rng.binomial(300, 0.8))
        found = measured_of(check, tmp_path / f"{number}", agree, 300 - agree)
        assert found.checkers == 300
        covered += found.low <= 0.8 <= found.high
    assert covered >= 276


@pytest.mark.long
@pytest.mark.parametrize(("size", "coins"), [(20, 100), (50, 1600), (1000, 1600)])
def test_intervals_of_sums_cover_in_95_of_100_rounds(size, coins):
    """Of 400 rounds with fixed seeds; below 91% has a probability of 1e-3 at 95%."""
    rng = np.random.default_rng(size)
    noise = coin_quantiles(coins)
    covered = []
    for _ in range(400):
        agree = rng.binomial(size, 0.8)
        right, wrong = np.array([agree, size - agree]) + rng.binomial(coins, 0.5, 2) - coins / 2
        if right + wrong >= 1:
            found = interval_under(right, wrong, noise, known=False)
            covered.append(found.low <= 0.8 <= found.high)
    assert np.mean(covered) >= 0.91


def test_a_sum_is_read_with_the_noise_of_its_clients(tmp_path):
    check = a_check(votes_of("central"))
    coins = 4 * check.sum.coins.coins_per_share
    found = checking.measured(Sum(check, np.array([900, 100]) + coins // 2, 4, {}))
    assert (found.right, found.checkers) == (0.9, 1000)
    assert found.low < 0.88 < 0.92 < found.high
    assert checking.measured(Sum(check, np.array([-2, 1]) + coins // 2, 4, {})) is None


def rows_of(seed, size, classes=3):
    """Return records around three centers, and their classes."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, classes, size)
    return (CENTERS[group] + rng.normal(size=(size, 4))).astype(np.float32), group.astype(np.int32)


def write(path, seed, size):
    inputs, labels = rows_of(seed, size)
    np.savez(path, embeddings=inputs, labels=labels)
    return path


def a_federation(folder, clients, records, *, trust="local", unit="record", **settings):
    """Run a server and its clients to the end; return the card and what the clients return."""
    np.savez(folder / "public.npz", embeddings=rows_of(99, 60)[0])
    given = {"epsilon": 2.0, "check_share": 0.5, "classes": "3", "trust": trust, "unit": unit}
    given["deadline"] = PATIENCE  # so that a fault fails a test, and does not hold it for an hour
    served = named_settings(
        Serve,
        folder / "public.npz",
        clients=clients,
        out=folder / "out",
        port=free_port(),
        **(given | settings),
    )
    budgets = {"budget": served.epsilon, "budget_delta": 0.0 if trust == "local" else served.delta}
    joins = [
        named_settings(
            Join,
            write(folder / f"R{i}.npz", i, records),
            f"{HERE}:{served.port}",
            trust=trust,
            unit=unit,
            honest=served.honest or None,
            wait=PATIENCE,  # a server that could not begin is not waited for
            **budgets,
        )
        for i in range(clients)
    ]
    with concurrent.futures.ThreadPoolExecutor(clients + 1) as pool:
        parties = []
        for one in joins:  # which read their files one after the other: see `test_inputs`
            parties.append(pool.submit(federation.join, one))
            while not (ledger_path(one).exists() or parties[-1].done()):
                time.sleep(0.002)
        server = pool.submit(serve_until_it_ends, served)
        # A client that fails is told at once: its server would wait for it.
        for one in concurrent.futures.wait(
            [*parties, server], PATIENCE, concurrent.futures.FIRST_EXCEPTION
        ).done:
            one.result()
        return server.result(PATIENCE), [one.result(PATIENCE) for one in parties]


def serve_until_it_ends(settings):
    """Start a server again if it was killed."""
    while True:
        with contextlib.suppress(KilledError):
            return federation.serve(settings)


FORMS = {
    "local": {"records": 300},
    # With 12 clients nobody checks in one run of 4,000; 40 toss no such coins.
    "local, clients": {"records": 3, "clients": 40, "unit": "client", "epsilon": 8.0},
    "shuffle": {"records": 300, "trust": "shuffle", "honest": 200, "delta": 1e-3},
    "central": {"records": 300, "trust": "central", "delta": 1e-3},
    "central, clients": {
        "records": 3,
        "clients": 80,  # noise leaves none of 40 checkers in 1e-7 of runs, none of six in 8%
        "unit": "client",
        "trust": "central",
        "epsilon": 8.0,
        "delta": 1e-3,
    },
    "prototypes": {
        "records": 300,
        "trust": "central",
        "labeler": "prototypes",
        "delta": 1e-3,
    },
}


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=() if form in ("local", "central") else pytest.mark.long)
        for form in FORMS
    ],
)
def test_a_federation_measures_its_labels_and_each_client_pays_once(form, tmp_path):
    """Counts of coins and bits miss these bounds at a probability below 1e-8."""
    given = {"clients": 3} | FORMS[form]
    card, found = a_federation(tmp_path, **given)
    measured = card["measured"]
    unit = given.get("unit", "record")
    total = given["clients"] * (1 if unit == "client" else given["records"])
    assert measured["low"] <= measured["right"] <= measured["high"]
    assert measured["unit"] == card["guarantee"]["unit"] == unit
    assert abs(measured["checkers"] - total / 2) < 3 * math.sqrt(total) + 60
    epsilon = given.get("epsilon", 2.0)
    assert {one["ledger"]["spent"]["epsilon"] for one in found} == {epsilon}
    assert card["guarantee"]["epsilon"] == epsilon
    assert all(one["exit_status"] == 0 for one in found)
    assert not list(tmp_path.glob("**/*.roles")), "the key of the roles outlived the round"
    out = tmp_path / "out"
    assert json.loads((out / "summary.json").read_text())["measured"] == measured
    assert json.loads((out / "privacy.json").read_text())["measured"] == measured
    for page in ("privacy.html", "report.html"):
        assert f"private {unit}s that did not vote" in (out / page).read_text()
    if unit == "record":
        assert np.mean(np.load(out / "labels.npz")["label"] == rows_of(99, 60)[1]) > 0.9
        assert measured["right"] > 0.8


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", [pytest.param("local", marks=pytest.mark.long), "central"])
def test_a_server_killed_in_the_check_asks_the_same_check_again(form, tmp_path, monkeypatch):
    collect, take_sum = hosting.collect, hosting.sum_up
    killed = []

    def die_once(desk):
        if isinstance(desk.round, CheckRound) and not killed:
            killed.append(desk.round.id)
            raise KilledError

    def collected(desk, *arguments):
        collect(desk, *arguments)
        die_once(desk)

    def summed(desk, *arguments, **named):
        die_once(desk)
        return take_sum(desk, *arguments, **named)

    monkeypatch.setattr(hosting, "collect", collected)
    monkeypatch.setattr(hosting, "sum_up", summed)
    card, found = a_federation(tmp_path, 3, **FORMS[form])
    asked = Round.of((tmp_path / "out/check/question.bin").read_bytes())
    assert [asked.id] == killed
    assert card["measured"]["checkers"] > 100
    assert {one["ledger"]["spent"]["epsilon"] for one in found} == {2}
    assert all(one["exit_status"] == 0 for one in found)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("form", [pytest.param("local", marks=pytest.mark.long), "central"])
def test_labels_are_published_unmeasured_if_nobody_answers_the_check(form, tmp_path, monkeypatch):
    def refuse(self, check):
        raise RefusedError("no")

    monkeypatch.setattr(client_roles.Note, "check_asked", refuse)
    monkeypatch.setattr(checking.round_folder, "closes_at", closes_soon)
    card, found = a_federation(tmp_path, 3, **FORMS[form])
    assert card["measured"] is None
    assert (tmp_path / "out/labels.npz").exists()
    assert all(one["exit_status"] == 0 for one in found), "they voted"
    assert "nothing, as too few answered" in (tmp_path / "out/privacy.html").read_text()


CLOSES_AT = checking.round_folder.closes_at


def closes_soon(folder, deadline):
    return CLOSES_AT(folder, 2.0 if folder.name == checking.CHECK else deadline)


@pytest.mark.parametrize("wrong", [{"collect_only": True}, {"merge": ("a", "b")}])
def test_servers_that_share_a_round_check_nothing(wrong, tmp_path):
    np.savez(tmp_path / "public.npz", embeddings=rows_of(1, 9)[0])
    settings = named_settings(
        Serve, tmp_path / "public.npz", 1.0, 1, tmp_path / "out", "3", check_share=0.1, **wrong
    )
    with pytest.raises(ValueError, match="--check-share 0.1"):
        federation.serve(settings)

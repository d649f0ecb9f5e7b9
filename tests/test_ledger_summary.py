"""Summaries of a ledger: nothing that it says depends on them, and damage before them is found."""

import json
import random
from dataclasses import replace
from fractions import Fraction

import pytest

from rknn_jax.privacy import ledger_file, ledger_summary
from rknn_jax.privacy.events import Gaussian, Pure
from rknn_jax.privacy.filters import Cost
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    Amount,
    BudgetExceededError,
    DataSet,
    Ledger,
    LedgerCorruptError,
    LedgerError,
    LedgerMismatchError,
)
from rknn_jax.privacy.ledger_lines import parse, sound_part

DATA = "sha256:of-some-records"
WORDS = ("budget", "spent", "remaining", "unread", "head", "datasets", "name", "id", "relation")


def released(epsilon, delta=0.0, noise=None):
    event = Gaussian(noise) if noise else Pure(epsilon)
    return Guarantee(epsilon, delta, "replace-one", "central", (event,), sampler="release")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """A summary after every three lines."""
    monkeypatch.setattr(ledger_summary, "EVERY", 3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hospital.ledger"


def whole(path):
    """Return the chain of a file that is read line by line, summaries or not."""
    return parse(path.read_bytes(), path)


def summaries(path):
    return sum(b'"kind":"summary"' in line for line in path.read_bytes().split(b"\n"))


def test_a_summary_keeps_the_column_that_names_the_persons(path):
    ledger = Ledger.create(path, DATA, 3, unit="person", person="patient")
    for number in range(4):
        ledger.charge(replace(released(0.1), unit="person"), f"release {number}")
    assert summaries(path)
    Ledger.open(path).check_person("patient")
    for other in ("visit", ""):
        with pytest.raises(LedgerMismatchError, match="patient"):
            Ledger.open(path).check_person(other)


@pytest.mark.parametrize("accounting", ["sum", pytest.param("renyi", marks=pytest.mark.long)])
def test_a_ledger_with_summaries_says_what_its_lines_say(path, accounting):
    draw = random.Random(0)
    ledger = Ledger.create(path, DATA, 3, "0.01", accounting=accounting)
    for i in range(60):
        kind = draw.choice(["charge", "charge", "noise", "raise", "adopt", "drawn"])
        if kind == "charge":
            ledger.charge(released(draw.choice([0.1, 0.01, 0.03])), f"release {i}")
        elif kind == "noise":
            ledger.charge(released(0.3, 1e-6, noise=20.0), f"release {i}")
        elif kind == "raise":
            ledger.raise_budget(3 + i, "0.01", "decided")
        elif kind == "adopt":
            data = DataSet(f"sha256:{draw.randrange(4)}", 5)
            ledger.adopt(data, "new embedding", unrelated=True)
        else:
            ledger.charge(released(0.01), f"drawn {i}")
            ledger.mark_drawn(f"drawn {i}", "ab" * 32)
        chain = whole(path)
        opened = Ledger.open(path, DATA)
        for word in WORDS[:-2]:
            told = getattr(chain, word)
            assert getattr(opened, word) == (told or path.stem if word == "name" else told), word
        assert (opened.num_lines, opened.num_spends) == (len(chain.entries), chain.num_spends)
        assert opened.id == chain.entries[0].hash[:16]
        assert opened.entries() == chain.entries
        for begins in ("release", f"drawn {i}", "nothing"):
            named = tuple(one for one in chain.entries if one.purpose.startswith(begins))
            assert opened.entries_of(begins) == named
        for since in (0, 1, len(chain.entries) // 2, len(chain.entries)):
            within = chain.budget
            assert opened.left(within=within, since=since) == chain.rule.left(
                within, chain.costs_since(since)
            )
    assert summaries(path) >= 15


def test_a_budget_is_never_overspent_across_summaries(path):
    ledger = Ledger.create(path, DATA, 1)
    assert ledger.affords(released(1.0))
    for i in range(10):
        ledger.charge(released(0.1), f"release {i}")
    assert ledger.remaining == (0, 0)
    assert not ledger.affords(released(0.0001))
    with pytest.raises(BudgetExceededError):
        Ledger.open(path, DATA).charge(released(0.0001), "one more")
    assert summaries(path) == 3


def test_noise_that_was_drawn_before_a_summary_is_not_drawn_again(path):
    ledger = Ledger.create(path, DATA, 1)
    ledger.charge(released(0.1), "old")
    ledger.charge(released(0.1), "drawn")
    ledger.mark_drawn("drawn", "ab" * 32)
    for i in range(6):
        ledger.charge(released(0.01), f"later {i}")
    later = Ledger.open(path, DATA)
    with pytest.raises(LedgerError, match="got spend, drawn"):
        later.mark_drawn("drawn", "cd" * 32)
    later.mark_drawn("old", "cd" * 32)
    with pytest.raises(LedgerError, match="got spend, drawn"):
        Ledger.open(path, DATA).mark_drawn("old", "ef" * 32)


@pytest.mark.long
def test_every_byte_that_is_changed_is_found_or_costs_at_least_as_much(path):
    ledger = Ledger.create(path, DATA, 1, "0.01")
    for i in range(7):
        ledger.charge(released(0.05), f"release {i}")
    assert summaries(path) == 2
    sound = path.read_bytes()
    left = ledger.remaining
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        try:
            found = Ledger.open(path, DATA).remaining
        except LedgerError:
            continue
        assert at >= sound.rstrip(b"\n").rfind(b"\n"), f"byte {at} is not in the last line"
        assert found <= left


@pytest.mark.long
def test_a_last_line_that_is_cut_short_costs_what_the_whole_line_did(path):
    ledger = Ledger.create(path, DATA, 1)
    for i in range(3):
        ledger.charge(released(0.1), f"release {i}")
    sound = path.read_bytes()
    last = sound.rstrip(b"\n").rfind(b"\n") + 1
    assert b"summary" in sound[last:]
    amounts = len(b'{"delta":"0","epsilon":"0",')
    for cut in range(last + 1, len(sound)):
        path.write_bytes(sound[:cut])
        spent = Ledger.open(path, DATA).spent
        assert spent.epsilon == (1 if cut - last < amounts else Fraction(3, 10))
    more = Ledger.open(path, DATA)
    more.charge(released(0.1), "after the cut")
    assert Ledger.open(path, DATA).spent.epsilon == Fraction(4, 10)
    assert Ledger.open(path, DATA).entries() == whole(path).entries


def test_a_repaired_ledger_is_read_whole_until_its_next_summary_and_says_the_same(path):
    ledger = Ledger.create(path, DATA, 10)
    for i in range(8):
        ledger.charge(released(0.1), f"release {i}")
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"release 1", b"release X")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerCorruptError):
        Ledger.open(path, DATA)
    with pytest.raises(LedgerCorruptError):
        Ledger(path, DATA).charge(released(0.1), "nothing is charged")
    Ledger(path, None).repair("a disk failed", 0.7, 0)
    for i in range(8):
        opened = Ledger.open(path, DATA)
        chain = whole(path)
        assert (opened.spent, opened.head) == (chain.spent, chain.head)
        assert opened.spent.epsilon == Fraction(8 + i, 10)
        assert [one.purpose for one in opened.entries_of("release")] == ["release 0"]
        opened.charge(released(0.1), f"later {i}")
    assert json.loads(path.read_bytes().rstrip(b"\n").split(b"\n")[-2])["kind"] != "repair"


def test_a_ledger_without_summaries_gets_one_at_its_next_charge(path, monkeypatch):
    monkeypatch.setattr(ledger_summary, "EVERY", 1000)
    ledger = Ledger.create(path, DATA, 10)
    for i in range(20):
        ledger.charge(released(0.1), f"release {i}")
    assert summaries(path) == 0
    monkeypatch.setattr(ledger_summary, "EVERY", 3)
    ledger.charge(released(0.1), "one more")
    assert summaries(path) == 1
    reopened = Ledger.open(path, DATA)
    assert (reopened.spent.epsilon, reopened.num_spends) == (Fraction(21, 10), 21)


def test_a_charge_stands_if_its_summary_cannot_be_written(path, monkeypatch):
    ledger = Ledger.create(path, DATA, 10)
    append = ledger_file.append

    def refuse(file, size, text):
        if b'"kind":"summary"' in text:
            raise OSError(28, "No space left on device")
        append(file, size, text)

    monkeypatch.setattr("rknn_jax.privacy.ledger.append", refuse)
    for i in range(6):
        assert ledger.charge(released(0.1), f"release {i}").purpose == f"release {i}"
    assert summaries(path) == 0
    assert Ledger.open(path, DATA).num_spends == 6


def test_a_purpose_with_the_words_of_a_summary_is_none(path):
    ledger = Ledger.create(path, DATA, 10)
    ledger.charge(released(0.1), '{"kind":"summary","lines":9}')
    assert Ledger.open(path, DATA).spent.epsilon == Fraction(1, 10)
    assert sound_part(path.read_bytes(), path).past.lines == 0


def test_reading_after_a_summary_touches_few_lines(path, monkeypatch):
    ledger = Ledger.create(path, DATA, 10)
    for i in range(40):
        ledger.charge(released(0.01), f"release {i}")
    read = []
    monkeypatch.setattr(
        "rknn_jax.privacy.ledger.parse",
        lambda data, *more: read.append(data.count(b"\n")) or parse(data, *more),
    )
    opened = Ledger.open(path, DATA)
    assert opened.spent.epsilon == Fraction(40, 100)
    opened.charge(released(0.01), "one more")
    assert max(read) <= 5


def test_a_summary_and_a_purpose_are_found_wherever_a_block_ends(path, monkeypatch):
    ledger = Ledger.create(path, DATA, 10)
    for i in range(10):
        ledger.charge(released(0.01), f"release {i}")
    with path.open("rb") as file:
        found = ledger_summary.find(file)
        start = path.read_bytes().rfind(b"\n", 0, path.read_bytes().rfind(b'"summary"')) + 1
        assert found is not None
        assert found[0] == start
        assert found[1] == json.loads(path.read_bytes()[:start].splitlines()[-1])["hash"]
        lines = list(ledger_summary.lines_with(file, "release", start))
        for block in range(900, 1300):
            monkeypatch.setattr(ledger_summary, "BLOCK", block)
            assert ledger_summary.find(file) == found
            assert list(ledger_summary.lines_with(file, "release", start)) == lines


def test_a_budget_that_was_lowered_between_summaries_stays_lowered(path):
    ledger = Ledger.create(path, DATA, 3)
    for number in range(12):
        if number == 5:
            ledger.raise_budget(1, None, "less")
        ledger.charge(released(0.01), f"release {number}")
    assert Ledger.open(path, DATA).budget.epsilon == 1


def test_a_divergence_that_is_not_known_is_not_known_in_a_sum():
    amount = Amount(Fraction(1), Fraction(0))
    both = (Cost(amount), Cost(amount, Fraction(1)))
    assert ledger_summary.added_up(both).divergence is None

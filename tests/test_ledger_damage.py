"""What a ledger cannot read counts as spent: cuts, faults, odd lines, replaced files and waiting
for another process.
"""

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

import rknn_jax
from rknn_jax.privacy import analytic_gaussian, ledger_file, ledger_lines, ledger_summary
from rknn_jax.privacy.events import Gaussian, Pure
from rknn_jax.privacy.guarantee import Guarantee
from rknn_jax.privacy.ledger import (
    Amount,
    BudgetExceededError,
    DataSet,
    Ledger,
    LedgerCorruptError,
    LedgerError,
)

DATA = "sha256:of-some-records"


def released(epsilon, delta=0.0):
    event = Pure(epsilon)
    return Guarantee(epsilon, delta, "replace-one", "central", (event,), sampler="release")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hospital.ledger"


@pytest.fixture
def ledger(path):
    """A budget of (1, 1/100) of which (1/10, 1/1000) is spent on record."""
    made = Ledger.create(path, DATA, 1, "0.01")
    made.charge(released(0.1, 0.001), "one")
    return made


def last_line(path):
    """Return the bytes before the last line, and the line without its newline."""
    before, line = path.read_bytes()[:-1].rsplit(b"\n", 1)
    return before + b"\n", line


@pytest.mark.parametrize("size", [100, -20])  # the second is cut within its hash
def test_a_charge_that_closes_damage_and_is_cut_itself_leaves_a_ledger_that_is_read(
    ledger, path, size
):
    ledger.charge(released(0.2), "acknowledged")
    before, line = last_line(path)
    torn = before + line[:size]
    path.write_bytes(torn)
    left = ledger.remaining
    ledger.charge(released(0.1), "closes")
    whole = path.read_bytes()
    closed = whole.index(b"\n", len(torn) + 1) + 1
    for cut in (*range(len(torn) + 1, closed, 11), closed - 1):
        path.write_bytes(whole[:cut])
        assert ledger.remaining == left, cut
        ledger.charge(released(0.1), "again")
        assert float(ledger.remaining.epsilon) == pytest.approx(float(left.epsilon) - 0.1)


@pytest.mark.parametrize("kind", ["spend", "raise", "lower", "drawn"])
def test_a_last_line_cut_at_any_byte_leaves_no_more_than_the_whole_line_did(ledger, path, kind):
    if kind == "spend":
        ledger.charge(released(0.5, 0.002), "acknowledged")
    elif kind == "drawn":
        ledger.mark_drawn("one", "ab" * 32)
    else:
        ledger.raise_budget(2 if kind == "raise" else Fraction(1, 5), Fraction(1, 100), "decided")
    truth = ledger.remaining
    before, line = last_line(path)
    exact = 0
    for cut in range(1, len(line) + 1):
        path.write_bytes(before + line[:cut])
        left = Ledger.open(path, DATA).remaining
        assert left.epsilon <= truth.epsilon, f"cut at byte {cut}"
        assert left.delta <= truth.delta, f"cut at byte {cut}"
        assert path.read_bytes() == before + line[:cut], "reading changes nothing"
        exact += left == truth
    assert exact >= (1 if kind == "raise" else len(line) - 60), (
        "a line that tells its amount costs that and no more"
    )


def test_a_spend_is_marked_as_drawn_once_and_nothing_else_is(ledger, path):
    ledger.charge(released(0.5, 0.002), "two")
    before = ledger.remaining
    marked = ledger.mark_drawn("one", "ab" * 32)
    assert (marked.kind, marked.purpose, marked.amount, marked.result) == (
        "drawn",
        "one",
        (0, 0),
        "ab" * 32,
    )
    assert ledger.remaining == before
    for purpose in ("one", "three", "the first budget"):
        with pytest.raises(LedgerError, match="nothing was marked"):
            ledger.mark_drawn(purpose, "cd" * 32)
    assert [entry.kind for entry in ledger.entries()] == ["create", "spend", "spend", "drawn"]


def test_a_cut_line_counts_once_and_charging_goes_on(ledger, path):
    ledger.charge(released(0.5, 0.002), "acknowledged")
    before, line = last_line(path)
    path.write_bytes(before + line[:-2])
    assert ledger.unread == (Fraction(1, 2), Fraction(2, 1000))
    assert ledger.spent == (Fraction(6, 10), Fraction(3, 1000))
    assert ledger.remaining == (Fraction(4, 10), Fraction(7, 1000))
    ledger.charge(released(0.2), "next")
    assert ledger.spent.epsilon == Fraction(8, 10)
    assert ledger.unread == (0, 0)
    assert [entry.kind for entry in ledger.entries()] == ["create", "spend", "repair", "spend"]
    assert path.read_bytes().startswith(before + line[:-2]), "nothing is taken out"
    with pytest.raises(BudgetExceededError):
        ledger.charge(released(0.3), "too much")


@pytest.mark.parametrize(
    "tail",
    [b"{", b'{"delta":"0","eps', bytes(100), b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b" "],
)
def test_an_end_that_tells_no_amount_counts_as_all_that_remained_until_it_is_repaired(
    ledger, path, tail
):
    with path.open("ab") as file:
        file.write(tail)
    assert ledger.remaining == (0, 0)
    with pytest.raises(
        BudgetExceededError, match="damaged last line counts as .* rknn budget repair"
    ):
        ledger.charge(released(0.01), "refused")
    entry = ledger.repair("the disk was full; nothing was released", 0, 0)
    assert entry.kind == "repair"
    assert ledger.remaining == (Fraction(9, 10), Fraction(9, 1000))
    ledger.charge(released(0.9), "the rest")
    with pytest.raises(LedgerError, match="nothing to repair"):
        ledger.repair("again")


def test_a_repair_without_amounts_counts_the_worst_and_needs_a_reason(ledger, path):
    with path.open("ab") as file:
        file.write(b"{")
    with pytest.raises(LedgerError, match="reason"):
        ledger.repair("  ")
    with pytest.raises(LedgerError, match="epsilon >= 0"):
        ledger.repair("why", -1)
    assert ledger.repair("why").amount == (Fraction(9, 10), Fraction(9, 1000))
    assert ledger.remaining == (0, 0)


def test_a_changed_byte_anywhere_refuses_all_spending_and_a_repair_counts_what_remained(
    ledger, path
):
    ledger.charge(released(0.2), "two")
    sound = path.read_bytes()
    first = sound.index(b"\n") + 1
    flip = random.Random(0)
    for position in range(first, len(sound), 7):
        changed = bytearray(sound)
        changed[position] ^= 1 << flip.randrange(7)
        path.write_bytes(changed)
        with pytest.raises(LedgerCorruptError, match="budget repair"):
            ledger.charge(released(0.01), "refused")
        ledger.repair("a bad sector")
        assert ledger.remaining == (0, 0), f"byte {position}"
        assert path.read_bytes().startswith(bytes(changed))


@pytest.mark.parametrize("accounting", ["sum", "renyi"])
@pytest.mark.parametrize("place", [b"the board", b'"kind":"budget"', b'"epsilon":"10"'])
def test_damage_that_hides_a_raised_budget_counts_what_was_spent_of_it(path, accounting, place):
    delta = 1e-5 if accounting == "renyi" else 0
    ledger = Ledger.create(path, DATA, 1, delta, accounting=accounting)
    ledger.raise_budget(10, None, "the board")
    ledger.charge(released(8.0), "a release")
    before, found, after = path.read_bytes().partition(place)
    path.write_bytes(before + found[:-2] + b"X" + found[-1:] + after)
    ledger.repair("a bit flipped")
    assert ledger.spent.epsilon >= 8
    assert ledger.is_overspent
    with pytest.raises(LedgerError, match="fits into"):
        ledger.raise_budget(7.9, None, "the board, again")
    assert not ledger.affords(released(0.01))


def test_divergences_behind_a_raise_that_is_lost_count_by_themselves(path):
    """Gaussian noise of epsilon 1.35 at delta 1e-3: as if pure, it left room beside it."""
    ledger = Ledger.create(path, DATA, 1, "1e-5", accounting="renyi")
    ledger.raise_budget(20, None, "the board")
    epsilon = analytic_gaussian.gaussian_epsilon(2.0, 1e-3)
    noise = released(epsilon, 1e-3)
    charged = ledger.charge(replace(noise, events=(Gaussian(2.0),)), "votes")
    path.write_bytes(path.read_bytes().replace(b'{"delta":"1/100000","epsilon":"20"', bytes(9)))
    ledger.repair("a block is lost")
    chain = ledger._chain()
    assert chain.costs[-1].divergence >= charged.divergence
    assert ledger.is_overspent


def zeroed(path, start, stop=None):
    data = path.read_bytes()
    stop = len(data) if stop is None else stop
    path.write_bytes(data[:start] + bytes(stop - start) + data[stop:])


def test_zeros_behind_a_line_that_was_cut_may_cover_spends(ledger, path):
    ledger.mark_drawn("one", "ab" * 32)
    size = path.stat().st_size
    for number in range(3):
        ledger.charge(released(0.3, 0.001), f"release {number}")
    zeroed(path, size - 40)
    assert Ledger.open(path, DATA).remaining == (0, 0)


@pytest.mark.parametrize("tail", [bytes(2000), b"\xff" * 2000, b"# notes of another program" * 90])
def test_an_end_that_may_hide_a_raise_waits_for_its_owner(ledger, path, tail):
    """A second raise closed it unasked, and what was spent of the first one was gone."""
    path.write_bytes(path.read_bytes() + tail)
    for change in (
        lambda: ledger.raise_budget(3, None, "the raise of the board is not there"),
        lambda: ledger.adopt(DataSet("sha256:of-others", 5), "the same", unrelated=True),
        lambda: ledger.mark_drawn("one", "ab" * 32),
    ):
        with pytest.raises(LedgerCorruptError, match="may hide charges .*rknn budget repair"):
            change()
    ledger.repair("a bad disk; the board had raised it", 2, 0)
    assert ledger.spent.epsilon == Fraction(21, 10)
    assert ledger.is_overspent


@pytest.mark.parametrize("lost", ["lines", "a line break"])
def test_a_repair_that_is_cut_itself_leaves_no_more_than_it_did(ledger, path, lost):
    ledger.mark_drawn("one", "ab" * 32)
    size = path.stat().st_size
    ledger.charge(released(0.5), "two")
    data = path.read_bytes()
    before = data[: size - 40]
    if lost == "a line break":  # and what is around it
        before += b"x" * 80 + data[size + 40 :]
    path.write_bytes(before)
    ledger.repair("a bad block", *((0.7, 0) if lost == "lines" else ()))
    left = ledger.remaining.epsilon
    whole = path.read_bytes()
    told = whole.index(b'"kind":"repair"', len(before))  # before it, the amount may be cut
    for cut in range(told if lost == "lines" else len(before) + 1, len(whole), 3):
        path.write_bytes(whole[:cut])
        try:
            assert Ledger.open(path, DATA).remaining.epsilon <= left, cut
        except LedgerCorruptError:
            continue


def test_an_old_copy_behind_the_lines_takes_none_of_them_back(path, monkeypatch):
    monkeypatch.setattr(ledger_summary, "EVERY", 3)
    ledger = Ledger.create(path, DATA, 10)
    while b'"kind":"summary"' not in path.read_bytes():
        ledger.charge(released(0.01), "small")
    copy = path.read_bytes()
    ledger.charge(released(5.0), "large")
    path.write_bytes(path.read_bytes() + copy)
    with pytest.raises(LedgerCorruptError):
        ledger.charge(released(6.0), "more than there is")


def test_damage_whose_delta_is_no_probability_asks_for_one(path):
    ledger = Ledger.create(path, DATA, 10, 0.9)
    ledger.charge(released(0.1, 0.6), "one")
    before, line = last_line(path)
    path.write_bytes(before + 2 * (line.replace(b"one", b"two") + b"\n"))
    with pytest.raises(LedgerError, match=r"got epsilon=.*, delta=1\.2; say what it was"):
        ledger.repair("a line is there twice")


def test_a_crash_while_damage_is_closed_refuses_all_spending(ledger, path):
    """The second line of the write is cut at every byte: nothing is refunded."""
    ledger.charge(released(0.5), "acknowledged")
    before, line = last_line(path)
    torn = before + line[:-2]
    path.write_bytes(torn)
    ledger.charge(released(0.2), "next")
    whole = path.read_bytes()
    for cut in range(len(torn) + 1, len(whole), 5):
        path.write_bytes(whole[:cut])
        try:
            assert Ledger.open(path, DATA).remaining.epsilon <= Fraction(4, 10)
        except LedgerCorruptError:
            continue


ODD = [
    {"epsilon": "-1/10"},
    {"epsilon": "0"},
    {"epsilon": "1/0"},
    {"epsilon": "nan"},
    {"epsilon": "1e99"},
    {"epsilon": 0.1},
    {"epsilon": None},
    {"delta": "1"},
    {"delta": "-1/2"},
    {"kind": "refund"},
    {"kind": "create"},
    {"kind": ["spend"]},
    {"time": 5},
    {"purpose": None},
    {"guarantee": None},
    {"guarantee": {}},
    {"guarantee": {"epsilon": -1}},
    {"kind": "repair"},
]


@pytest.mark.parametrize("change", ODD, ids=str)
def test_a_line_with_a_right_hash_and_odd_values_is_corrupt(ledger, path, change):
    before, line = last_line(path)
    record = json.loads(line)
    head = json.loads(before.splitlines()[-1])["hash"]
    del record["hash"]
    path.write_bytes(before + ledger_lines.sealed(record | change, head) + b"\n")
    with pytest.raises(LedgerCorruptError):
        Ledger.open(path, DATA)


@pytest.mark.parametrize(
    "change",
    [{"kind": "uniform"}, {"parameter": -1}, {"sampling_prob": 0.5}, {"more": 1}],
    ids=str,
)
def test_noise_that_is_not_known_blocks_all_spending(ledger, path, change):
    before, line = last_line(path)
    record = json.loads(line)
    head = json.loads(before.splitlines()[-1])["hash"]
    del record["hash"]
    record["guarantee"]["events"][0] |= change
    path.write_bytes(before + ledger_lines.sealed(record, head) + b"\n")
    with pytest.raises(LedgerCorruptError, match="holds no guarantee"):
        ledger.charge(released(0.1), "after unknown noise")


@pytest.mark.parametrize(
    "change",
    [{"relation": "swap"}, {"unit": "row"}, {"dataset": 3}, {"kind": "spend"}, {"format": "?"}],
    ids=str,
)
def test_a_first_line_with_a_right_hash_and_odd_values_is_corrupt(ledger, path, change):
    header = json.loads(path.read_bytes().splitlines()[0])
    del header["hash"]
    path.write_bytes(ledger_lines.sealed(header | change, "") + b"\n")
    with pytest.raises(LedgerCorruptError):
        Ledger.open(path, DATA)


def test_a_line_that_is_no_object_or_too_deep_is_corrupt(ledger, path):
    sound = path.read_bytes()
    head = ledger.head
    for body in (b"[1]", b"[" * 100_000 + b"]" * 100_000, b'"text"'):
        path.write_bytes(sound + ledger_lines.seal(body, head) + b"\n")
        with pytest.raises(LedgerCorruptError):
            Ledger.open(path, DATA)


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def held(path, seconds):
    """Start a process that holds the ledger."""
    environment = os.environ | {"PYTHONPATH": str(Path(rknn_jax.__file__).parents[1])}
    command = [sys.executable, "-c", HOLD, str(path), str(seconds)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_waiter_says_whom_it_waits_for_and_gives_up(ledger, path, monkeypatch, caplog):
    process = held(path, 60)
    try:
        with pytest.raises(LedgerError, match="was not free within"):
            Ledger.open(path, DATA, patience=0.05).charge(released(0.1), "not now")
        assert "waiting for" not in caplog.text, "a short wait says nothing"
        monkeypatch.setattr(ledger_file, "SILENCE", 0.05)
        with pytest.raises(
            LedgerError, match=f"held by process {process.pid}, and was not free within 0 s"
        ):
            Ledger.open(path, DATA, patience=0.3).charge(released(0.1), "not now")
    finally:
        process.kill()
        process.wait()
    assert f"waiting for process {process.pid}" in caplog.text
    assert ledger.spent.epsilon == Fraction(1, 10)
    ledger.charge(released(0.1), "now")


@pytest.mark.parametrize(
    "command", [("raise", "--epsilon", 2), ("repair",)], ids=lambda command: command[0]
)
def test_a_command_waits_as_long_as_it_was_told_to(rknn, ledger, path, command):
    (verb, *amounts) = command
    reason = ("--reason", "the board said so", "--json")
    if verb == "repair":
        path.write_bytes(path.read_bytes()[:-5])
    before = path.read_bytes()
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        began = time.monotonic()
        done = rknn("budget", verb, path, *amounts, *reason, "--patience", 0.2)
        assert 0.2 <= time.monotonic() - began < 10
    assert done.status == 2
    assert "was not free within 0 s" in done.json["error"]
    assert path.read_bytes() == before
    assert rknn("budget", verb, path, *amounts, *reason, "--patience", 0).status == 0


@pytest.mark.parametrize("patience", [-1.0, float("nan")])
def test_a_patience_that_is_no_time_is_refused(path, ledger, patience):
    with pytest.raises(LedgerError, match="patience >= 0"):
        Ledger.open(path, DATA, patience)


def test_a_ledger_that_was_replaced_while_a_charge_waited_is_charged_and_not_the_old_one(
    ledger, path
):
    process = held(path, 0.5)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    began = time.monotonic()
    os.replace(copy, path)
    old = (
        os.open(f"/proc/{process.pid}/fd/3", os.O_RDONLY)
        if os.path.exists(f"/proc/{process.pid}/fd/3")
        else None
    )
    ledger.charge(released(0.1), "after the change")
    assert time.monotonic() - began < 30
    process.wait()
    assert Ledger.open(path, DATA).spent.epsilon == Fraction(2, 10)
    if old is not None:
        os.close(old)


def test_a_file_that_is_replaced_between_opening_and_locking_is_noticed(ledger, path, monkeypatch):
    real = ledger_file.lock
    swapped = []

    def swap_first(file, where, deadline, undone):
        if not swapped:
            swapped.append(True)
            copy = path.with_name("copy")
            copy.write_bytes(path.read_bytes())
            os.replace(copy, path)
        real(file, where, deadline, undone)

    monkeypatch.setattr(ledger_file, "lock", swap_first)
    ledger.charge(released(0.1), "in the file that the path names")
    assert Ledger.open(path, DATA).spent.epsilon == Fraction(2, 10)


# The commands


def test_what_a_ledger_of_epsilon_alone_lost_is_shown(rknn, path):
    forged = "a study\n  2026-01-01T00:00:00+00:00  budget   epsilon=9.0, delta=0.0     more"
    ledger = Ledger.create(path, DATA, 1)
    ledger.charge(released(0.1), forged)
    lines = rknn("budget", "show", path).out.splitlines()
    assert sum("a study" in line and "epsilon=9.0" in line for line in lines) == 1
    assert not [line for line in lines if line.startswith("  2026-01-01")]
    path.write_bytes(path.read_bytes()[:-9])
    assert "damaged" in rknn("budget", "show", path).out


def test_the_command_shows_damage_and_repairs_it(rknn, ledger, path):
    with path.open("ab") as file:
        file.write(b"{")
    shown = rknn("budget", "show", path)
    assert "damaged" in shown.out
    assert rknn("budget", "repair", path, "--reason", " ").status == 2
    done = rknn(
        "budget",
        "repair",
        path,
        "--reason",
        "the backup was cut",
        "--epsilon",
        0.2,
        "--delta",
        0,
        "--json",
    )
    assert done.status == 0
    assert done.json["spent"]["epsilon"] == pytest.approx(0.3)
    assert "damaged" not in rknn("budget", "show", path).out
    assert rknn("budget", "repair", path, "--reason", "again").status == 2


def test_a_head_that_was_kept_elsewhere_tells_of_lines_that_are_gone(rknn, ledger, path):
    older = ledger.head
    newest = ledger.charge(released(0.1), "two").hash
    assert rknn("budget", "show", path, "--expect-head", older).status == 0
    assert rknn("budget", "show", path, "--expect-head", newest).status == 0
    path.write_bytes(last_line(path)[0])
    assert rknn("budget", "show", path).status == 0
    gone = rknn("budget", "show", path, "--expect-head", newest)
    assert gone.status == 5
    assert "lines were removed" in gone.err


@pytest.fixture
def torn(ledger, path):
    """A ledger of which a charge of 0.4 was cut short, as by a kill, and how many lines it had."""
    lines = ledger.num_lines
    ledger.charge(released(0.4), "of a session")
    path.write_bytes(path.read_bytes()[:-40])
    return Ledger.open(path, DATA), lines


def test_a_cap_since_a_line_counts_a_line_that_was_cut(torn):
    opened, since = torn
    cap = Amount(Fraction(1, 2), Fraction(1, 100))
    assert opened.left(within=cap, since=since).epsilon <= Fraction(1, 10)
    assert not opened.affords(released(0.2), within=cap, since=since)


def test_what_fits_beside_damage_is_what_can_be_charged(torn):
    opened, _ = torn
    assert opened.affords(released(0.5))
    assert not opened.affords(released(0.6))
    with pytest.raises(BudgetExceededError):
        opened.charge(released(0.6), "too much")


def test_a_budget_is_not_lowered_below_damage(torn):
    with pytest.raises(LedgerError, match="at least"):
        torn[0].raise_budget(0.3, None, "decided")
